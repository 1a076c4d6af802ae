/* replan/trace/header.c - a trace's first line: the ranks, their nodes and their communicators. */
#include "replan/trace/read.h"

#include "base/array.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 64 };

/* Reads an array of numbers up to value_max into a growing list. */
static cairn_err
read_list(struct cairn_json_reader *reader, uint64_t value_max, uint32_t count_max, uint32_t **list,
          uint32_t *count)
{
    *count = 0;
    cairn_json_array_begin(reader);
    while (cairn_json_array_next(reader)) {
        if (*count == count_max) {
            cairn_json_reader_fail(reader, "a list is longer than the job has ranks");
            break;
        }
        if (!cairn_array_grow(list, *count, sizeof **list))
            return CAIRN_NOMEM;
        (*list)[(*count)++] = (uint32_t)cairn_json_read_u64(reader, value_max);
    }
    return CAIRN_OK;
}

static cairn_err
read_comms(struct cairn_json_reader *reader, struct cairn_topology *topology, uint32_t **list)
{
    char name[CAIRN_TOPOLOGY_NAME_BYTES];
    cairn_err err = CAIRN_OK;

    cairn_json_object_begin(reader);
    while (!err && cairn_json_object_next(reader, name, sizeof name)) {
        uint32_t count = 0;

        err = read_list(reader, topology->world - 1, topology->world, list, &count);
        if (err || cairn_json_reader_failed(reader))
            break;
        err = cairn_topology_add(topology, name, *list, count);
        if (err == CAIRN_INVAL || err == CAIRN_FULL) {
            cairn_json_reader_fail(reader,
                                   "a communicator is empty, named twice, or names a rank twice");
            err = CAIRN_OK;
        }
    }
    return err;
}

static cairn_err
read_nodes(struct cairn_json_reader *reader, struct cairn_topology *topology, uint32_t **list)
{
    uint32_t count = 0;
    cairn_err err = read_list(reader, CAIRN_TOPOLOGY_WORLD_MAX - 1, topology->world, list, &count);

    if (err || cairn_json_reader_failed(reader))
        return err;
    if (count != topology->world)
        cairn_json_reader_fail(reader, "\"nodes\" must give a node for every rank");
    else
        memcpy(topology->node, *list, count * sizeof **list);
    return CAIRN_OK;
}

/* The world must be known before the lists are read, wherever it stands: it is looked for first. */
static uint32_t
find_world(struct cairn_json_reader reader, struct cairn_trace_fault *fault)
{
    char key[KEY_BYTES];
    uint64_t world = 0, version = 0;

    cairn_json_object_begin(&reader);
    while (cairn_json_object_next(&reader, key, sizeof key)) {
        if (strcmp(key, "world") == 0)
            world = cairn_json_read_u64(&reader, CAIRN_TOPOLOGY_WORLD_MAX);
        else if (strcmp(key, "cairn_trace") == 0)
            version = cairn_json_read_u64(&reader, UINT64_MAX);
        else
            cairn_json_skip(&reader);
    }
    if (cairn_json_reader_done(&reader))
        *fault = (struct cairn_trace_fault){reader.why, reader.at};
    else if (version != 1)
        *fault = (struct cairn_trace_fault){
            "the first line must be a header with \"cairn_trace\": 1", 0};
    else if (world == 0)
        *fault = (struct cairn_trace_fault){"the header lacks \"world\", the number of ranks", 0};
    else
        return (uint32_t)world;
    return 0;
}

cairn_err
cairn_trace_read_header(const char *line, size_t line_bytes, struct cairn_topology **out,
                        struct cairn_trace_fault *fault)
{
    struct cairn_topology *topology = NULL;
    struct cairn_json_reader reader;
    char key[KEY_BYTES];
    uint32_t *list = NULL, world;
    cairn_err err;

    cairn_json_reader_init(&reader, line, line_bytes);
    world = find_world(reader, fault);
    if (world == 0)
        return CAIRN_CORRUPT;
    err = cairn_topology_create(world, &topology);
    cairn_json_object_begin(&reader);
    while (!err && cairn_json_object_next(&reader, key, sizeof key)) {
        if (strcmp(key, "comms") == 0)
            err = read_comms(&reader, topology, &list);
        else if (strcmp(key, "nodes") == 0)
            err = read_nodes(&reader, topology, &list);
        else
            cairn_json_skip(&reader);
    }
    if (!err && cairn_json_reader_done(&reader)) {
        *fault = (struct cairn_trace_fault){reader.why, reader.at};
        err = CAIRN_CORRUPT;
    }
    if (!err)
        err = cairn_topology_finish(topology);
    free(list);
    if (err) {
        cairn_topology_destroy(topology);
        return err;
    }
    *out = topology;
    return CAIRN_OK;
}
