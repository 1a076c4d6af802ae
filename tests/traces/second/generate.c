/*
 * tests/traces/second/generate.c - writes one labelled trace of the second generator from a seed.
 *
 *     generate --seed N --case NAME [--steps N] [--drift F] --trace FILE --labels FILE
 *
 * Ordinary cases have a fault or none, and moderate noise; hard cases have one difficulty each, and
 * every fourth trace of them has no fault. --drift gives the slow drift of each rank's speed (0:
 * none). Labels are as the first generator writes them, with one more key: "tolerated" lists kinds
 * of verdicts that are neither asked for nor false.
 */
#include "tests/traces/second/model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- labels ---- */

static const char *
kind_of(enum model_cause cause)
{
    switch (cause) {
    case CAUSE_NODE:
        return "slow_node";
    case CAUSE_LINK:
    case CAUSE_NIC:
        return "slow_link";
    case CAUSE_HANG:
        return "hang_compute";
    case CAUSE_HANG_LINK:
        return "hang_link";
    case CAUSE_CRASH:
        return "crash";
    case CAUSE_STAGE:
    case CAUSE_LENGTHS:
    case CAUSE_COLLECTOR:
        return "structural";
    default:
        return "slow_compute";
    }
}

static const char *
pattern_of(const struct model *model, const struct model_fault *fault)
{
    switch (fault->cause) {
    case CAUSE_STAGE:
        return fault->stage + 1 == model->pp ? "last_stage" : "long_stage";
    case CAUSE_LENGTHS:
        return "sequence_length";
    case CAUSE_COLLECTOR:
        return "garbage_collection";
    default:
        return "";
    }
}

static void
write_labels(const struct model *model, const char *name, FILE *out)
{
    bool first = true, uneven = false;

    for (uint32_t i = 0; i < model->fault_count; i++)
        uneven |= model->faults[i].cause == CAUSE_EXPERT;
    fprintf(out,
            "{\"case\":\"%s\",\"world\":%" PRIu32 ",\"tp\":%" PRIu32 ",\"pp\":%" PRIu32
            ",\"dp\":%" PRIu32 ",\"ep\":%" PRIu32 ",\"layout\":%d,\"sends\":%d,\"overlapped\":%s,"
            "\"ranks_per_node\":%" PRIu32 ",\"steps\":%" PRIu32 ",\"noise\":%.4f,"
            "\"correlation\":%.3f,\"drift\":%.4f,\"lengths\":%.3f,\"spikes\":%.3f,\"named\":%s,"
            "\"by_end\":%s,\"restart\":%" PRIu32 ",\"back\":%" PRIu32
            ",\"tolerated\":[%s],\"faults\":[",
            name, model->world, model->tp, model->pp, model->dp, model->ep, (int)model->layout,
            (int)model->sends, model->overlapped ? "true" : "false", model->ranks_per_node,
            model->ticks, model->spread, model->correlation, model->drift, model->lengths,
            model->spikes, model->steps_named ? "true" : "false", model->by_end ? "true" : "false",
            model->restart, model->back, uneven ? "\"structural\"" : "");
    for (uint32_t i = 0; i < model->fault_count; i++) {
        const struct model_fault *fault = &model->faults[i];

        if (fault->cause == CAUSE_PAUSE || fault->cause == CAUSE_EXPERT)
            continue;
        fprintf(out,
                "%s{\"kind\":\"%s\",\"pattern\":\"%s\",\"rank\":%" PRIu32 ",\"peer\":%" PRIu32
                ",\"node\":%" PRIu32 ",\"nic\":%s,\"since_step\":%" PRIu32
                ",\"until_step\":%" PRId64 ",\"rate\":%.4f}",
                first ? "" : ",", kind_of(fault->cause), pattern_of(model, fault), fault->rank,
                fault->peer, fault->node, fault->cause == CAUSE_NIC ? "true" : "false",
                model_step(model, fault->since),
                fault->until >= model->ticks ? (int64_t)-1
                                             : (int64_t)model_step(model, fault->until),
                fault->factor);
        first = false;
    }
    fputs("]}\n", out);
}

static FILE *
open_out(const char *path)
{
    FILE *file = path ? fopen(path, "w") : NULL;

    if (!file) {
        fprintf(stderr, "generate: cannot write %s\n", path ? path : "(no file named)");
        exit(74);
    }
    return file;
}

int
main(int argc, char **argv)
{
    const char *trace = NULL, *labels = NULL, *name = "quiet";
    struct random random = {1};
    struct model model = {.ticks = 0};
    double drift = -1;
    FILE *out;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0)
            random = model_seed(strtoull(argv[i + 1], NULL, 10));
        else if (strcmp(argv[i], "--case") == 0)
            name = argv[i + 1];
        else if (strcmp(argv[i], "--steps") == 0)
            model.ticks = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--drift") == 0)
            drift = strtod(argv[i + 1], NULL);
        else if (strcmp(argv[i], "--trace") == 0)
            trace = argv[i + 1];
        else if (strcmp(argv[i], "--labels") == 0)
            labels = argv[i + 1];
    }
    if (!model_draw(&model, &random, name, drift)) {
        fprintf(stderr, "generate: there is no case \"%s\"\n", name);
        return 64;
    }
    out = open_out(labels);
    write_labels(&model, name, out);
    if (fclose(out) != 0)
        return 74;
    out = open_out(trace);
    model_run(&model, &random, out);
    return fclose(out) == 0 ? 0 : 74;
}
