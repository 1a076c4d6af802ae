/*
 * tools/bench.h - one measurement: cases with value, floor and ratio, and further figures.
 *
 * A stage is measured next to its floor in the same run. `ratio` is always value / floor. For
 * speeds more is better and the promise is a lower bound; for CPU seconds less is better and it is
 * an upper bound.
 */
#ifndef CAIRN_TOOLS_BENCH_H
#define CAIRN_TOOLS_BENCH_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CAIRN_BENCH_CASES_MAX = 32,
    CAIRN_BENCH_DETAILS_MAX = 64,
    CAIRN_BENCH_NAME_BYTES = 64,
    CAIRN_BENCH_ROUNDS_MAX = 31,
    CAIRN_BENCH_NODES = 6, /* of protect and restore by default; as the next */
    CAIRN_BENCH_PARITY = 2
};

/* What the command line may set; 0 is the stage's default. */
struct cairn_bench_options {
    uint64_t bytes;  /* of state: per node for protect and restore, in all for the others */
    uint32_t rounds; /* 1 … CAIRN_BENCH_ROUNDS_MAX */
    uint32_t nodes;  /* protect, restore */
    uint32_t parity; /* protect, restore */
    bool keep;       /* protect, restore: leave the directory with configurations and logs */
};

struct cairn_bench_case {
    char name[CAIRN_BENCH_NAME_BYTES];
    double value;
    double floor;
    const char *unit;    /* of both; static */
    const char *command; /* what the floor is; static */
    double bound;        /* what the ratio must reach; 0: no promise */
    bool at_most;        /* the bound is an upper one */
    uint64_t bytes;      /* per round */
    uint32_t threads;
    double cpu_seconds_per_gib; /* of the value, over all processes and threads */
};

/* A further figure of the run. */
struct cairn_bench_detail {
    const char *name; /* static, with its unit */
    double value;
};

struct cairn_bench_report {
    const char *stage;   /* static */
    const char *skipped; /* static; why this machine cannot measure it: no cases then. Or NULL */
    uint32_t case_count;
    struct cairn_bench_case cases[CAIRN_BENCH_CASES_MAX];
    uint32_t detail_count;
    struct cairn_bench_detail details[CAIRN_BENCH_DETAILS_MAX];
};

/* Add to a report (bench_report.c). What does not fit is left out. `name` is copied (case), static
 * (detail). */
void cairn_bench_add(struct cairn_bench_report *report, const struct cairn_bench_case *value);
void cairn_bench_note(struct cairn_bench_report *report, const char *name, double value);

/*
 * The stages, each in its file. They block for seconds, use at most as many threads as the machine
 * has cores or a case says, and print failures to stderr. CAIRN_NOMEM; CAIRN_CORRUPT if the output
 * is wrong; others as the stage says.
 */
CAIRN_MUST_CHECK cairn_err cairn_bench_capture(const struct cairn_bench_options *options,
                                               struct cairn_bench_report *report);
CAIRN_MUST_CHECK cairn_err cairn_bench_device(const struct cairn_bench_options *options,
                                              struct cairn_bench_report *report);
CAIRN_MUST_CHECK cairn_err cairn_bench_erasure(const struct cairn_bench_options *options,
                                               struct cairn_bench_report *report);
CAIRN_MUST_CHECK cairn_err cairn_bench_transport(const struct cairn_bench_options *options,
                                                 struct cairn_bench_report *report);
CAIRN_MUST_CHECK cairn_err cairn_bench_protect(const struct cairn_bench_options *options,
                                               struct cairn_bench_report *report);
CAIRN_MUST_CHECK cairn_err cairn_bench_restore(const struct cairn_bench_options *options,
                                               struct cairn_bench_report *report);
CAIRN_MUST_CHECK cairn_err cairn_bench_migrate(const struct cairn_bench_options *options,
                                               struct cairn_bench_report *report);
CAIRN_MUST_CHECK cairn_err cairn_bench_convert(const struct cairn_bench_options *options,
                                               struct cairn_bench_report *report);
CAIRN_MUST_CHECK cairn_err cairn_bench_disk(const struct cairn_bench_options *options,
                                            struct cairn_bench_report *report);
CAIRN_MUST_CHECK cairn_err cairn_bench_scrub(const struct cairn_bench_options *options,
                                             struct cairn_bench_report *report);
CAIRN_MUST_CHECK cairn_err cairn_bench_history(const struct cairn_bench_options *options,
                                               struct cairn_bench_report *report);
CAIRN_MUST_CHECK cairn_err cairn_bench_timing(const struct cairn_bench_options *options,
                                              struct cairn_bench_report *report);
CAIRN_MUST_CHECK cairn_err cairn_bench_detect(const struct cairn_bench_options *options,
                                              struct cairn_bench_report *report);
CAIRN_MUST_CHECK cairn_err cairn_bench_plan(const struct cairn_bench_options *options,
                                            struct cairn_bench_report *report);
CAIRN_MUST_CHECK cairn_err cairn_bench_reshard(const struct cairn_bench_options *options,
                                               struct cairn_bench_report *report);

#endif
