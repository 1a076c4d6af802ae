/* replan/fleet/plan_json.c - plans as JSON: the "pipelines" and "unused" of `cairn plan`, both
 * ways. */
#include "replan/fleet/plan.h"

#include "base/array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_BYTES = 32,
    STAGES_MAX = CAIRN_PROBLEM_DEVICES_MAX /* a stage has a device, a pipeline a stage */
};

/* What an answer carries beside its pipelines; read by people, not here. */
static const char *const passed_over[] = {
    "schema",  "unused",     "step_ms",     "schedule_ms", "lower_bound_ms",
    "gap",     "healthy_ms", "moved_bytes", "migrate_ms",  "payback_steps",
    "plan_ms", "complete",   "cut_short",   "current_ms",  "slow_reduction_layers"};

static bool
too_many(struct cairn_json_reader *reader, uint32_t count)
{
    if (count < STAGES_MAX)
        return false;
    cairn_json_reader_fail(reader, "there are more than 65536 of them");
    return true;
}

static cairn_err
read_group(struct cairn_json_reader *reader, struct cairn_plan *plan,
           struct cairn_plan_stage *stage)
{
    stage->first_device = plan->device_count;
    cairn_json_array_begin(reader);
    while (cairn_json_array_next(reader)) {
        if (too_many(reader, plan->device_count))
            return CAIRN_OK;
        if (!cairn_array_grow(&plan->devices, plan->device_count, sizeof(*plan->devices)))
            return CAIRN_NOMEM;
        plan->devices[plan->device_count++] = cairn_json_read_u64(reader, UINT64_MAX);
    }
    stage->device_count = plan->device_count - stage->first_device;
    if (stage->device_count == 0)
        cairn_json_reader_fail(reader, "a stage has no devices");
    return CAIRN_OK;
}

/* Half-open: [first, end]. */
static void
read_layers(struct cairn_json_reader *reader, struct cairn_plan_stage *stage)
{
    uint32_t bounds[2] = {0}, count = 0;

    cairn_json_array_begin(reader);
    while (cairn_json_array_next(reader)) {
        if (count == 2)
            break;
        bounds[count++] = (uint32_t)cairn_json_read_u64(reader, CAIRN_PROBLEM_LAYERS_MAX);
    }
    if (count != 2 || bounds[1] <= bounds[0])
        cairn_json_reader_fail(reader, "layers must be [first, end] with end above first");
    stage->first_layer = bounds[0];
    stage->layer_count = bounds[1] - bounds[0];
}

static cairn_err
read_stage(struct cairn_json_reader *reader, struct cairn_plan *plan)
{
    struct cairn_plan_stage stage = {0};
    char key[KEY_BYTES];
    bool devices = false, layers = false;
    cairn_err err = CAIRN_OK;

    cairn_json_object_begin(reader);
    while (!err && cairn_json_object_next(reader, key, sizeof(key))) {
        if (strcmp(key, "devices") == 0 && !devices) {
            devices = true;
            err = read_group(reader, plan, &stage);
        } else if (strcmp(key, "layers") == 0 && !layers) {
            layers = true;
            read_layers(reader, &stage);
        } else {
            cairn_json_reader_fail(reader, "a stage has devices and layers, each once");
        }
    }
    if (!err && !(devices && layers))
        cairn_json_reader_fail(reader, "a stage must have devices and layers");
    if (!err && !too_many(reader, plan->stage_count) &&
        !cairn_array_grow(&plan->stages, plan->stage_count, sizeof(stage)))
        err = CAIRN_NOMEM;
    if (!err && !cairn_json_reader_failed(reader))
        plan->stages[plan->stage_count++] = stage;
    return err;
}

static cairn_err
read_pipeline(struct cairn_json_reader *reader, struct cairn_plan *plan)
{
    struct cairn_plan_pipeline pipeline = {.first_stage = plan->stage_count};
    char key[KEY_BYTES];
    bool stages = false, microbatches = false;
    cairn_err err = CAIRN_OK;

    cairn_json_object_begin(reader);
    while (!err && cairn_json_object_next(reader, key, sizeof(key))) {
        if (strcmp(key, "microbatches") == 0 && !microbatches) {
            microbatches = true;
            pipeline.microbatches =
                (uint32_t)cairn_json_read_u64(reader, CAIRN_PROBLEM_MICROBATCHES_MAX);
        } else if (strcmp(key, "stages") == 0 && !stages) {
            stages = true;
            cairn_json_array_begin(reader);
            while (!err && cairn_json_array_next(reader))
                err = read_stage(reader, plan);
        } else {
            cairn_json_reader_fail(reader, "a pipeline has microbatches and stages, each once");
        }
    }
    pipeline.stage_count = plan->stage_count - pipeline.first_stage;
    if (!err && (pipeline.microbatches == 0 || pipeline.stage_count == 0))
        cairn_json_reader_fail(reader, "a pipeline must have a micro-batch and a stage");
    if (!err && !too_many(reader, plan->pipeline_count) &&
        !cairn_array_grow(&plan->pipelines, plan->pipeline_count, sizeof(pipeline)))
        err = CAIRN_NOMEM;
    if (!err && !cairn_json_reader_failed(reader))
        plan->pipelines[plan->pipeline_count++] = pipeline;
    return err;
}

static bool
is_passed_over(const char *key)
{
    for (size_t i = 0; i < sizeof(passed_over) / sizeof(*passed_over); i++)
        if (strcmp(key, passed_over[i]) == 0)
            return true;
    return false;
}

cairn_err
cairn_plan_read(struct cairn_json_reader *reader, struct cairn_plan **out)
{
    struct cairn_plan *plan = calloc(1, sizeof(*plan));
    char key[KEY_BYTES];
    bool pipelines = false;
    cairn_err err = plan ? CAIRN_OK : CAIRN_NOMEM;

    if (!err)
        cairn_json_object_begin(reader);
    while (!err && cairn_json_object_next(reader, key, sizeof(key))) {
        if (strcmp(key, "pipelines") == 0 && !pipelines) {
            pipelines = true;
            cairn_json_array_begin(reader);
            while (!err && cairn_json_array_next(reader))
                err = read_pipeline(reader, plan);
        } else if (is_passed_over(key)) {
            cairn_json_skip(reader);
        } else {
            cairn_json_reader_fail(reader, pipelines ? "an unknown or duplicate key of a plan"
                                                     : "an unknown key of a plan");
        }
    }
    if (!err && (!pipelines || plan->pipeline_count == 0))
        cairn_json_reader_fail(reader, "a plan must have pipelines");
    if (!err && cairn_json_reader_failed(reader))
        err = CAIRN_CORRUPT;
    if (err)
        cairn_plan_destroy(plan);
    else
        *out = plan;
    return err;
}

void
cairn_fault_from_reader(const struct cairn_json_reader *reader, struct cairn_fault *fault)
{
    size_t line = 1, column = 1;

    for (size_t i = 0; i < reader->at && i < reader->bytes_len; i++) {
        column = reader->text[i] == '\n' ? 1 : column + 1;
        line += reader->text[i] == '\n';
    }
    (void)snprintf(fault->text, sizeof(fault->text), "line %zu, column %zu: %s", line, column,
                   reader->why ? reader->why : "?");
}

cairn_err
cairn_plan_read_text(const void *text, size_t text_bytes, struct cairn_plan **out,
                     struct cairn_fault *fault)
{
    struct cairn_json_reader reader;
    struct cairn_plan *plan = NULL;
    cairn_err err;

    cairn_json_reader_init(&reader, text, text_bytes);
    err = cairn_plan_read(&reader, &plan);
    if (!err)
        err = cairn_json_reader_done(&reader);
    if (err == CAIRN_CORRUPT)
        cairn_fault_from_reader(&reader, fault);
    if (err)
        cairn_plan_destroy(plan);
    else
        *out = plan;
    return err;
}

static void
write_stage(const struct cairn_plan *plan, const struct cairn_plan_stage *stage,
            struct cairn_json_writer *writer)
{
    cairn_json_write_object_begin(writer);
    cairn_json_put_array(writer, "devices");
    for (uint32_t i = 0; i < stage->device_count; i++)
        cairn_json_write_u64(writer, plan->devices[stage->first_device + i]);
    cairn_json_write_array_end(writer);
    cairn_json_put_array(writer, "layers");
    cairn_json_write_u64(writer, stage->first_layer);
    cairn_json_write_u64(writer, stage->first_layer + stage->layer_count);
    cairn_json_write_array_end(writer);
    cairn_json_write_object_end(writer);
}

cairn_err
cairn_plan_write(const struct cairn_plan *plan, const struct cairn_problem *problem,
                 struct cairn_json_writer *writer)
{
    bool *used = calloc((size_t)problem->device_count + 1, sizeof(*used));

    if (!used)
        return CAIRN_NOMEM;
    cairn_json_put_array(writer, "pipelines");
    for (uint32_t i = 0; i < plan->pipeline_count; i++) {
        cairn_json_write_line(writer);
        cairn_json_write_object_begin(writer);
        cairn_json_put_u64(writer, "microbatches", plan->pipelines[i].microbatches);
        cairn_json_put_array(writer, "stages");
        for (uint32_t j = 0; j < plan->pipelines[i].stage_count; j++)
            write_stage(plan, &plan->stages[plan->pipelines[i].first_stage + j], writer);
        cairn_json_write_array_end(writer);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
    for (uint32_t i = 0; i < plan->device_count; i++)
        used[cairn_problem_device_find(problem, plan->devices[i])] = true;
    cairn_json_write_line(writer);
    cairn_json_put_array(writer, "unused");
    for (uint32_t i = 0; i < problem->device_count; i++)
        if (!used[i])
            cairn_json_write_u64(writer, problem->devices[i].id);
    cairn_json_write_array_end(writer);
    free(used);
    return CAIRN_OK;
}
