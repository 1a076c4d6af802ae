/*
 * replan/trace/progress_ras.c - launch counters from NCCL's RAS.
 *
 * { …, "communicators": [ { "hash": "0x…", "size": N, "ranks": [ { "rank": R, "collective_counts":
 * { "AllReduce": C, … }, … } ], "missing_ranks": [ { "rank": R, "status": { "unresponsive": B,
 * "considered_dead": B }, … } ], … } ], … }. NCCL writes a communicator's name and size before its
 * ranks, and that order is required; in a rank's object there is none.
 */
#include "replan/trace/progress.h"

#include "base/json.h"
#include "cairn/timing.h"

#include <string.h>

enum { KEY_BYTES = 64, OPERATIONS_MAX = 16 };

struct reading {
    struct cairn_json_reader json;
    cairn_progress_sink *sink;
    void *context;
    struct cairn_op_count comm; /* what all of a communicator's values share */
    bool enough;                /* the sink has said so */
};

/* 0 for one that the records do not have. */
static uint16_t
operation_of(const char *name)
{
    static const struct {
        const char *name;
        uint16_t op;
    } operations[] = {
        {"Broadcast", CAIRN_BROADCAST},  {"Reduce", CAIRN_REDUCE},
        {"AllGather", CAIRN_ALL_GATHER}, {"ReduceScatter", CAIRN_REDUCE_SCATTER},
        {"AllReduce", CAIRN_ALL_REDUCE},
    };

    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (strcmp(name, operations[i].name) == 0)
            return operations[i].op;
    return 0;
}

static bool
is_space(char byte)
{
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

/* NCCL 2.28 ends the number after "nvml_dev" of a missing rank without a comma. */
static void
mend(char *text, size_t text_bytes)
{
    static const char key[] = "\"nvml_dev\":";
    const size_t key_bytes = sizeof key - 1;

    for (size_t i = 0; i + key_bytes < text_bytes; i++) {
        size_t at = i + key_bytes, space;

        if (memcmp(text + i, key, key_bytes) != 0)
            continue;
        while (at < text_bytes && is_space(text[at]))
            at++;
        while (at < text_bytes && (text[at] == '-' || (text[at] >= '0' && text[at] <= '9')))
            at++;
        space = at;
        while (at < text_bytes && is_space(text[at]))
            at++;
        if (at > space && at < text_bytes && text[at] == '"')
            text[space] = ',';
        i = space - 1;
    }
}

static void
emit(struct reading *reading, const struct cairn_op_count *progress)
{
    if (!reading->enough && !cairn_json_reader_failed(&reading->json))
        reading->enough = !reading->sink(reading->context, progress);
}

/* true or false, by their length as they stand. */
static bool
read_bool(struct cairn_json_reader *json)
{
    size_t begin = json->at;

    cairn_json_skip(json);
    while (begin < json->at &&
           (is_space(json->text[begin]) || json->text[begin] == ':' || json->text[begin] == ','))
        begin++;
    if (json->at - begin == 4 && memcmp(json->text + begin, "true", 4) == 0)
        return true;
    if (json->at - begin != 5 || memcmp(json->text + begin, "false", 5) != 0)
        cairn_json_reader_fail(json, "true or false is expected");
    return false;
}

static void
read_rank(struct reading *reading)
{
    struct cairn_json_reader *json = &reading->json;
    struct cairn_op_count progress = reading->comm;
    struct {
        uint16_t op;
        uint64_t count;
    } counts[OPERATIONS_MAX];
    char key[KEY_BYTES];
    size_t count = 0;
    bool named = false;

    cairn_json_object_begin(json);
    while (cairn_json_object_next(json, key, sizeof key)) {
        if (strcmp(key, "rank") == 0) {
            progress.rank = (uint32_t)cairn_json_read_u64(json, UINT32_MAX - 1);
            named = true;
        } else if (strcmp(key, "collective_counts") == 0) {
            cairn_json_object_begin(json);
            while (cairn_json_object_next(json, key, sizeof key)) {
                uint16_t op = operation_of(key);

                if (op == 0)
                    cairn_json_skip(json);
                else if (count == OPERATIONS_MAX)
                    cairn_json_reader_fail(json, "an operation is counted more than once");
                else {
                    counts[count].op = op;
                    counts[count++].count = cairn_json_read_u64(json, UINT64_MAX - 1);
                }
            }
        } else {
            cairn_json_skip(json);
        }
    }
    if (!named)
        cairn_json_reader_fail(json, "a rank has no number");
    for (size_t i = 0; i < count; i++) {
        progress.op = counts[i].op;
        progress.entered = counts[i].count;
        emit(reading, &progress);
    }
}

static void
read_missing_rank(struct reading *reading)
{
    struct cairn_json_reader *json = &reading->json;
    struct cairn_op_count progress = reading->comm;
    char key[KEY_BYTES];
    bool named = false;

    progress.presence = CAIRN_UNRESPONSIVE;
    cairn_json_object_begin(json);
    while (cairn_json_object_next(json, key, sizeof key)) {
        if (strcmp(key, "rank") == 0) {
            progress.rank = (uint32_t)cairn_json_read_u64(json, UINT32_MAX - 1);
            named = true;
        } else if (strcmp(key, "status") == 0) {
            cairn_json_object_begin(json);
            while (cairn_json_object_next(json, key, sizeof key))
                if (strcmp(key, "considered_dead") != 0)
                    cairn_json_skip(json);
                else if (read_bool(json))
                    progress.presence = CAIRN_CONSIDERED_DEAD;
        } else {
            cairn_json_skip(json);
        }
    }
    if (!named)
        cairn_json_reader_fail(json, "a missing rank has no number");
    emit(reading, &progress);
}

static void
read_communicator(struct reading *reading)
{
    struct cairn_json_reader *json = &reading->json;
    char key[KEY_BYTES];

    reading->comm = (struct cairn_op_count){.rank = UINT32_MAX,
                                            .entered = CAIRN_PROGRESS_UNKNOWN,
                                            .started = CAIRN_PROGRESS_UNKNOWN,
                                            .completed = CAIRN_PROGRESS_UNKNOWN};
    cairn_json_object_begin(json);
    while (cairn_json_object_next(json, key, sizeof key)) {
        bool present = strcmp(key, "ranks") == 0;

        if (strcmp(key, "hash") == 0) {
            cairn_json_read_string(json, reading->comm.comm, sizeof reading->comm.comm);
        } else if (strcmp(key, "size") == 0) {
            reading->comm.ranks = (uint32_t)cairn_json_read_u64(json, UINT32_MAX);
        } else if (present || strcmp(key, "missing_ranks") == 0) {
            if (reading->comm.comm[0] == '\0')
                cairn_json_reader_fail(json, "a communicator has no hash before its ranks");
            cairn_json_array_begin(json);
            while (cairn_json_array_next(json))
                (present ? read_rank : read_missing_rank)(reading);
        } else {
            cairn_json_skip(json);
        }
    }
}

cairn_err
cairn_progress_read_ras(char *text, size_t text_bytes, cairn_progress_sink *sink, void *context,
                        struct cairn_progress_fault *fault)
{
    struct reading reading = {.sink = sink, .context = context};
    char key[KEY_BYTES];
    bool found = false;
    cairn_err err;

    mend(text, text_bytes);
    cairn_json_reader_init(&reading.json, text, text_bytes);
    cairn_json_object_begin(&reading.json);
    while (cairn_json_object_next(&reading.json, key, sizeof key)) {
        if (strcmp(key, "communicators") == 0) {
            found = true;
            cairn_json_array_begin(&reading.json);
            while (cairn_json_array_next(&reading.json))
                read_communicator(&reading);
        } else {
            cairn_json_skip(&reading.json);
        }
    }
    if (!found)
        cairn_json_reader_fail(&reading.json,
                               "this is not an answer of NCCL's RAS: it has no \"communicators\"");
    err = cairn_json_reader_done(&reading.json);
    if (err)
        *fault = (struct cairn_progress_fault){reading.json.why, reading.json.at};
    return err;
}
