/* replan/assign/read.c - problem files of `cairn assign`. */
#include "replan/assign/assign.h"

#include "base/array.h"
#include "replan/fleet/field.h"
#include "replan/fleet/plan.h"

#include <stdlib.h>

enum { KEY_BYTES = 32 };
#define TOKENS_MAX (UINT64_C(1) << 32)
#define COEFFICIENT_MAX 1e12
#define SCALE_MAX 1e6

static uint64_t
read_tokens(struct cairn_json_reader *reader)
{
    uint64_t tokens = cairn_json_read_u64(reader, UINT64_MAX);

    if (tokens < 1 || tokens > TOKENS_MAX)
        cairn_json_reader_fail(reader, "tokens must be from 1 to 2^32");
    return tokens;
}

static cairn_err
read_sequences(struct cairn_json_reader *reader, struct cairn_assign_problem *problem)
{
    cairn_json_array_begin(reader);
    while (cairn_json_array_next(reader)) {
        if (problem->sequence_count == CAIRN_ASSIGN_SEQUENCES_MAX) {
            cairn_json_reader_fail(reader, "there are more than 1000000 sequences");
            return CAIRN_OK;
        }
        if (!cairn_array_grow(&problem->tokens, problem->sequence_count, sizeof(*problem->tokens)))
            return CAIRN_NOMEM;
        problem->tokens[problem->sequence_count++] = read_tokens(reader);
    }
    return CAIRN_OK;
}

static void
read_cost(struct cairn_json_reader *reader, struct cairn_assign_problem *problem)
{
    static const char *const names[] = {"a", "b", "c"};
    static const char why[] = "a cost must be from 0 to 1e12";
    char key[KEY_BYTES];
    uint32_t seen = 0;

    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof(key))) {
        uint32_t which = cairn_field_key(reader, key, names, 3, &seen);
        double value = cairn_field_number(reader, 0, COEFFICIENT_MAX, why);

        if (which == 0)
            problem->square = value;
        else if (which == 1)
            problem->linear = value;
        else
            problem->constant = value;
    }
    if (seen != 7)
        cairn_json_reader_fail(reader, "cost must have a, b and c");
    else if (problem->square + problem->linear + problem->constant <= 0)
        cairn_json_reader_fail(reader, "sequences must cost something: a, b and c are 0");
}

static void
read_pipeline(struct cairn_json_reader *reader, struct cairn_assign_pipeline *pipeline)
{
    static const char *const names[] = {"time_scale", "stages", "max_tokens"};
    char key[KEY_BYTES];
    uint32_t seen = 0;

    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof(key))) {
        uint32_t which = cairn_field_key(reader, key, names, 3, &seen);
        uint64_t stages;

        if (which == 0) {
            pipeline->time_scale = cairn_field_number(reader, 1e-6, SCALE_MAX,
                                                      "a time_scale must be from 1e-6 to 1e6");
        } else if (which == 1) {
            stages = cairn_json_read_u64(reader, UINT64_MAX);
            if (stages < 1 || stages > CAIRN_PROBLEM_LAYERS_MAX)
                cairn_json_reader_fail(reader, "stages must be from 1 to 10000");
            pipeline->stages = (uint32_t)stages;
        } else {
            pipeline->max_tokens = read_tokens(reader);
        }
    }
    if (seen != 7)
        cairn_json_reader_fail(reader, "a pipeline must have time_scale, stages and max_tokens");
}

static cairn_err
read_pipelines(struct cairn_json_reader *reader, struct cairn_assign_problem *problem)
{
    cairn_json_array_begin(reader);
    while (cairn_json_array_next(reader)) {
        if (problem->pipeline_count == CAIRN_ASSIGN_PIPELINES_MAX) {
            cairn_json_reader_fail(reader, "there are more than 4096 pipelines");
            return CAIRN_OK;
        }
        if (!cairn_array_grow(&problem->pipelines, problem->pipeline_count,
                              sizeof(*problem->pipelines)))
            return CAIRN_NOMEM;
        problem->pipelines[problem->pipeline_count] = (struct cairn_assign_pipeline){0};
        read_pipeline(reader, &problem->pipelines[problem->pipeline_count++]);
    }
    if (problem->pipeline_count == 0)
        cairn_json_reader_fail(reader, "there are no pipelines");
    return CAIRN_OK;
}

cairn_err
cairn_assign_problem_read(const void *text, size_t text_bytes, struct cairn_assign_problem *out,
                          struct cairn_fault *fault)
{
    static const char *const names[] = {"sequences", "cost", "pipelines", "microbatch_tokens"};
    struct cairn_assign_problem problem = {0};
    struct cairn_json_reader reader;
    char key[KEY_BYTES];
    uint32_t seen = 0;
    cairn_err err = CAIRN_OK;

    cairn_json_reader_init(&reader, text, text_bytes);
    cairn_json_object_begin(&reader);
    while (!err && cairn_json_object_next(&reader, key, sizeof(key))) {
        uint32_t which = cairn_field_key(&reader, key, names, 4, &seen);

        if (cairn_json_reader_failed(&reader))
            break;
        if (which == 0)
            err = read_sequences(&reader, &problem);
        else if (which == 1)
            read_cost(&reader, &problem);
        else if (which == 2)
            err = read_pipelines(&reader, &problem);
        else
            problem.microbatch_tokens = read_tokens(&reader);
    }
    if (!err && (seen & 7) != 7)
        cairn_json_reader_fail(&reader, "the problem must have sequences, cost and pipelines");
    if (!err)
        err = cairn_json_reader_done(&reader);
    if (err == CAIRN_CORRUPT)
        cairn_fault_from_reader(&reader, fault);
    if (err)
        cairn_assign_problem_fini(&problem);
    else
        *out = problem;
    return err;
}
