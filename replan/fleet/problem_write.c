/* replan/fleet/problem_write.c - a problem as its file. */
#include "base/json.h"
#include "replan/fleet/plan.h"
#include "replan/fleet/problem.h"

#include <inttypes.h>
#include <stdio.h>

static void
write_device(struct cairn_json_writer *writer, const struct cairn_device *device)
{
    cairn_json_write_line(writer);
    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "id", device->id);
    cairn_json_put_u64(writer, "node", device->node);
    cairn_json_write_key(writer, "rate");
    if (device->rate > 0)
        cairn_json_write_double(writer, device->rate);
    else
        cairn_json_write_null(writer);
    cairn_json_put_u64(writer, "memory_bytes", device->memory_bytes);
    cairn_json_write_object_end(writer);
}

static void
write_links(struct cairn_json_writer *writer, const struct cairn_problem *problem)
{
    if (problem->intra_gbps > 0 && problem->inter_gbps > 0) {
        cairn_json_put_object(writer, "link_gbps");
        cairn_json_put_double(writer, "intra", problem->intra_gbps);
        cairn_json_put_double(writer, "inter", problem->inter_gbps);
        cairn_json_write_object_end(writer);
    }
    if (problem->slow_link_count == 0)
        return;
    cairn_json_put_array(writer, "slow_links");
    for (uint32_t i = 0; i < problem->slow_link_count; i++) {
        cairn_json_write_object_begin(writer);
        cairn_json_put_array(writer, "nodes");
        cairn_json_write_u64(writer, problem->slow_links[i].nodes[0]);
        cairn_json_write_u64(writer, problem->slow_links[i].nodes[1]);
        cairn_json_write_array_end(writer);
        cairn_json_put_double(writer, "gbps", problem->slow_links[i].gbps);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
}

cairn_err
cairn_problem_write(const struct cairn_problem *problem, struct cairn_json_writer *writer)
{
    cairn_err err = CAIRN_OK;

    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "layers", problem->layers);
    cairn_json_put_double(writer, "layer_ms", problem->layer_ms);
    cairn_json_put_double(writer, "embed_layers", problem->embed_layers);
    cairn_json_put_double(writer, "head_layers", problem->head_layers);
    cairn_json_put_u64(writer, "microbatches", problem->microbatches);
    if (problem->tp > 0)
        cairn_json_put_u64(writer, "tp", problem->tp);
    cairn_json_put_object(writer, "tp_cost");
    for (uint32_t i = 0; i < problem->size_count; i++) {
        char size[16];

        (void)snprintf(size, sizeof(size), "%" PRIu32, problem->sizes[i].size);
        cairn_json_put_double(writer, size, problem->sizes[i].cost);
    }
    cairn_json_write_object_end(writer);
    cairn_json_write_line(writer);
    cairn_json_put_u64(writer, "layer_bytes", problem->layer_bytes);
    cairn_json_put_u64(writer, "activation_bytes", problem->activation_bytes);
    cairn_json_put_u64(writer, "reserved_bytes", problem->reserved_bytes);
    write_links(writer, problem);
    cairn_json_write_line(writer);
    cairn_json_put_array(writer, "devices");
    for (uint32_t i = 0; i < problem->device_count; i++)
        write_device(writer, &problem->devices[i]);
    cairn_json_write_array_end(writer);
    cairn_json_write_line(writer);
    cairn_json_write_key(writer, "current");
    if (problem->current) {
        cairn_json_write_object_begin(writer);
        err = cairn_plan_write(problem->current, problem, writer);
        cairn_json_write_object_end(writer);
    } else {
        cairn_json_write_null(writer);
    }
    cairn_json_write_object_end(writer);
    return err;
}
