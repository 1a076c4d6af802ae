/* tools/assign.c - `cairn assign`: sequences of different length to pipelines of different
 * speed. */
#include "replan/assign/pack.h"
#include "tools/common.h"
#include "tools/planning.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char about[] =
    "Assigns the sequences of a problem file to pipelines so that the slowest pipeline ends as "
    "early as possible, and prints a bound that no assignment can beat. If the file has "
    "\"microbatch_tokens\", sequences are packed into micro-batches, and long sequences cut. "
    "docs/PLANNER.md has the format and formulas.\n"
    "\n"
    "Exits 4 if a sequence is too long for every pipeline.";
static const char examples[] = "  cairn assign --problem sequences.json\n"
                               "  cairn assign --problem sequences.json -o json | jq .assignment\n";

/* The micro-batches of one pipeline's sequences, under microbatch_tokens. */
static cairn_err
pack_pipeline(const struct cairn_assign_problem *problem, const struct cairn_assignment *assignment,
              uint32_t pipeline, uint32_t *sequences, struct cairn_packing *out)
{
    uint64_t *tokens = calloc((size_t)problem->sequence_count + 1, sizeof(*tokens));
    uint64_t cap_tokens = problem->pipelines[pipeline].max_tokens;
    uint32_t count = 0;
    cairn_err err = CAIRN_NOMEM;

    for (uint32_t i = 0; tokens && i < problem->sequence_count; i++)
        if (assignment->pipelines[i] == pipeline) {
            sequences[count] = i;
            tokens[count++] = problem->tokens[i];
        }
    if (problem->microbatch_tokens < cap_tokens)
        cap_tokens = problem->microbatch_tokens;
    if (tokens)
        err = cairn_pack(problem, tokens, count, cap_tokens, out);
    free(tokens);
    return err;
}

/* Writes "microbatches": of each pipeline the pieces of its sequences, each with the micro-batch it
 * is in. */
static cairn_err
write_microbatches(const struct cairn_assign_problem *problem,
                   const struct cairn_assignment *assignment, struct cairn_json_writer *writer)
{
    uint32_t *sequences = calloc((size_t)problem->sequence_count + 1, sizeof(*sequences));
    cairn_err err = sequences ? CAIRN_OK : CAIRN_NOMEM;

    cairn_json_put_array(writer, "microbatches");
    for (uint32_t i = 0; !err && i < problem->pipeline_count; i++) {
        struct cairn_packing packing = {0};

        err = pack_pipeline(problem, assignment, i, sequences, &packing);
        cairn_json_write_array_begin(writer);
        for (uint32_t j = 0; j < packing.piece_count; j++) {
            const struct cairn_packed_piece *piece = &packing.pieces[j];

            cairn_json_write_object_begin(writer);
            cairn_json_put_u64(writer, "microbatch", piece->microbatch);
            cairn_json_put_u64(writer, "sequence", sequences[piece->sequence]);
            cairn_json_put_array(writer, "tokens");
            cairn_json_write_u64(writer, piece->first_token);
            cairn_json_write_u64(writer, piece->end_token);
            cairn_json_write_array_end(writer);
            cairn_json_write_object_end(writer);
        }
        cairn_json_write_array_end(writer);
        cairn_json_write_line(writer);
        cairn_packing_fini(&packing);
    }
    cairn_json_write_array_end(writer);
    cairn_json_write_line(writer);
    free(sequences);
    return err;
}

static int
print_json(const struct cairn_assign_problem *problem, const struct cairn_assignment *assignment,
           double plan_ms)
{
    struct cairn_json_writer writer;
    cairn_err err = CAIRN_OK;

    cairn_json_begin(&writer);
    cairn_json_put_array(&writer, "assignment");
    for (uint32_t i = 0; i < problem->sequence_count; i++)
        cairn_json_write_u64(&writer, assignment->pipelines[i]);
    cairn_json_write_array_end(&writer);
    cairn_json_write_line(&writer);
    if (problem->microbatch_tokens > 0)
        err = write_microbatches(problem, assignment, &writer);
    cairn_json_put_double(&writer, "step_ms", assignment->step_ms);
    cairn_json_put_double(&writer, "lower_bound_ms", assignment->bound_ms);
    cairn_json_write_key(&writer, "gap");
    cairn_json_write_double(
        &writer, assignment->bound_ms > 0 ? assignment->step_ms / assignment->bound_ms - 1 : 0);
    cairn_json_put_double(&writer, "plan_ms", plan_ms);
    cairn_json_write_object_end(&writer);
    if (err) {
        cairn_json_writer_fini(&writer);
        cairn_tool_error("assign", "the sequences were not packed",
                         err == CAIRN_INVAL ? "a pipeline would have more than 65536 pieces"
                                            : cairn_err_text(err),
                         err == CAIRN_INVAL ? "give a larger microbatch_tokens" : NULL);
        return cairn_exit_code(err);
    }
    return cairn_json_finish("assign", &writer);
}

static void
print_table(const struct cairn_assign_problem *problem, const struct cairn_assignment *assignment,
            double plan_ms)
{
    printf("%-9s %-9s %s\n", "pipeline", "sequences", "tokens");
    for (uint32_t i = 0; i < problem->pipeline_count; i++) {
        uint64_t tokens = 0;
        uint32_t count = 0;

        for (uint32_t j = 0; j < problem->sequence_count; j++)
            if (assignment->pipelines[j] == i) {
                tokens += problem->tokens[j];
                count++;
            }
        printf("%-9" PRIu32 " %-9" PRIu32 " %" PRIu64 "\n", i, count, tokens);
    }
    printf("a step takes %.1f ms; no assignment takes less than %.1f ms; assigned in %.1f ms\n",
           assignment->step_ms, assignment->bound_ms, plan_ms);
}

static int
run(const char *path, bool json)
{
    struct cairn_assign_problem problem = {0};
    struct cairn_assignment assignment = {0};
    struct cairn_fault fault = {""};
    struct cairn_deadline deadline;
    uint8_t *text = NULL;
    size_t text_bytes = 0;
    int exit_code = CAIRN_EXIT_OK;
    cairn_err err;

    if (!cairn_planning_load("assign", path, &text, &text_bytes, &exit_code))
        return exit_code;
    err = cairn_assign_problem_read(text, text_bytes, &problem, &fault);
    free(text);
    if (err) {
        cairn_tool_error("assign", path, err == CAIRN_CORRUPT ? fault.text : cairn_err_text(err),
                         err == CAIRN_CORRUPT ? "docs/PLANNER.md has the format" : NULL);
        return cairn_exit_code(err);
    }
    (void)cairn_deadline_parse("1", &deadline); /* to see how long it takes */
    err = cairn_assign(&problem, &assignment, &fault);
    if (err == CAIRN_NOT_FOUND) {
        cairn_tool_error("assign", "a sequence has no place", fault.text,
                         "give microbatch_tokens, under which it is cut into chunks, or a pipeline "
                         "that takes it");
        exit_code = CAIRN_EXIT_LOST;
    } else if (err == CAIRN_INVAL) {
        cairn_tool_error("assign", path, fault.text,
                         "give microbatch_tokens that some pipeline takes");
        exit_code = CAIRN_EXIT_INPUT;
    } else if (err) {
        cairn_tool_error("assign", "nothing was assigned", cairn_err_text(err), NULL);
        exit_code = cairn_exit_code(err);
    } else if (json) {
        exit_code = print_json(&problem, &assignment, cairn_deadline_elapsed_ms(&deadline));
    } else {
        print_table(&problem, &assignment, cairn_deadline_elapsed_ms(&deadline));
    }
    free(assignment.pipelines);
    cairn_assign_problem_fini(&problem);
    return exit_code;
}

int
cairn_verb_assign(int argc, char **argv)
{
    const char *output = NULL, *path = NULL;
    const struct cairn_flag flags[] = {
        {"problem", 0, "FILE", "read sequences, costs and pipelines from this JSON file", &path,
         NULL},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {"assign", "--problem FILE [-o table|json]", about, examples,
                                      flags,    sizeof flags / sizeof *flags,     NULL,  NULL};
    int exit_code;
    bool json;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (!path)
        return cairn_usage_error(&usage, "--problem FILE: missing");
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    return run(path, json);
}
