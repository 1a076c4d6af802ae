/* agent/service/operator_launcher.c - see operator_launcher.h. */
#include "agent/service/operator_launcher.h"

#include "base/clock.h"

#include <stdio.h>

bool
operator_launcher_take(struct operator_launcher *launcher, uint64_t serial, const char *note)
{
    if (launcher->serial != 0 && launcher->serial != serial)
        return false;
    launcher->serial = serial;
    snprintf(launcher->note, sizeof launcher->note, "%s", note);
    return true;
}

void
operator_launcher_leave(struct operator_launcher *launcher, uint64_t serial)
{
    if (launcher->serial == serial)
        launcher->serial = 0;
}

uint64_t
operator_launcher_asked_ms(const struct operator_launcher *launcher, uint64_t now_ns)
{
    return launcher->asked_ns ? 1 + (now_ns - launcher->asked_ns) / CAIRN_NS_PER_MS : 0;
}

static void
write_node(struct cairn_json_writer *writer, const struct operator_job *job, uint32_t number)
{
    const struct cairn_config_node *configured = &job->config->nodes[number];
    const struct operator_node *node = &job->nodes[number];

    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "node", number);
    cairn_json_put_string(writer, "address", configured->address);
    cairn_json_put_bool(writer, "removed", configured->removed);
    cairn_json_put_bool(writer, "spare", configured->spare);
    cairn_json_put_bool(writer, "alive", node->alive);
    cairn_json_put_bool(writer, "answered", node->known);
    if (node->known) {
        cairn_json_put_bool(writer, "holds", node->member != UINT32_MAX && !node->blank);
        cairn_json_put_bool(writer, "launcher", node->launcher != 0);
        cairn_json_put_string(writer, "note", node->launcher_note);
        if (node->relaunch_asked_ms) {
            cairn_json_put_u64(writer, "relaunch_asked_ms", node->relaunch_asked_ms);
        }
    }
    cairn_json_write_object_end(writer);
}

/* The nodes and shape that the job's command must start on; null: no relaunch is approved. */
static void
write_relaunch(struct cairn_json_writer *writer, const struct operator_job *job)
{
    const struct proposal *shape = job->book ? &job->book->shape : NULL;

    cairn_json_write_key(writer, "relaunch");
    if (!shape || shape->placement.count == 0) {
        cairn_json_write_null(writer);
        return;
    }
    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "number", shape->placement.number);
    cairn_json_put_u64(writer, "tp", shape->shape.tp);
    cairn_json_put_array(writer, "nodes");
    for (uint32_t i = 0; i < shape->shape.node_count; i++)
        cairn_json_write_u64(writer, shape->shape.nodes[i]);
    cairn_json_write_array_end(writer);
    cairn_json_put_array(writer, "micro_batches");
    for (uint32_t i = 0; i < shape->placement.count; i++)
        cairn_json_write_u64(writer, shape->placement.parts[i]);
    cairn_json_write_array_end(writer);
    cairn_json_put_array(writer, "stage_layers");
    for (uint32_t i = 0; i < shape->placement.stages; i++)
        cairn_json_write_u64(writer, shape->placement.layers[i]);
    cairn_json_write_array_end(writer);
    cairn_json_write_object_end(writer);
}

void
operator_write_launchers(struct cairn_json_writer *writer, const struct operator_job *job,
                         uint32_t self)
{
    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "schema", 1);
    cairn_json_put_string(writer, "job", job->config->job);
    cairn_json_put_u64(writer, "node", self);
    cairn_json_put_string(writer, "problem", job->config->problem);
    write_relaunch(writer, job);
    cairn_json_put_array(writer, "nodes");
    for (uint32_t i = 0; i < job->config->node_count; i++)
        write_node(writer, job, i);
    cairn_json_write_array_end(writer);
    cairn_json_write_object_end(writer);
}
