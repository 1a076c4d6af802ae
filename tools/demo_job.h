/*
 * tools/demo_job.h - a training job of `cairn demo`: one gpt process per node, their events, its
 * step times.
 *
 * Two jobs run in one demo, in turns: while one trains some steps, the other is stopped (SIGSTOP).
 * So both see the same noise of the machine, and the medians of their step times are comparable.
 * The first step after a pause does not count: it holds the pause, and the other job's leftovers.
 */
#ifndef CAIRN_TOOLS_DEMO_JOB_H
#define CAIRN_TOOLS_DEMO_JOB_H

#include "tools/demo_process.h"
#include "tools/demo_tail.h"

#include <stdbool.h>
#include <stdint.h>

struct demo;

enum { DEMO_SAMPLES_MAX = 16384, DEMO_SHA256_BYTES = 65 };

/* Times in the order of arrival; dropped when it is full. */
struct demo_samples {
    uint64_t ns[DEMO_SAMPLES_MAX];
    uint32_t count;
};

struct demo_rank {
    struct demo_process process;
    struct demo_tail log;
    char last[512]; /* what it said last */
    uint64_t step;  /* newest done */
    bool done;      /* it said so */
};

struct demo_job {
    const char *name; /* "job", "reference" */
    bool protect;
    bool started;
    bool stopped; /* by SIGSTOP */
    bool fresh;   /* it said that there was nothing to restore */
    uint32_t count;
    uint64_t step;       /* newest that any rank has done since the last start */
    uint64_t skip_step;  /* rank 0's step that holds a pause */
    uint64_t resumed_ns; /* when the first step after the last start was seen; 0: not yet */
    struct demo_samples step_times;  /* rank 0's, those that count */
    struct demo_samples fence_times; /* what each rank waited in each step */
    double loss;                     /* of `step` */
    double loss_first, loss_last;
    char loss_sha256[DEMO_SHA256_BYTES];
    char state_sha256[DEMO_SHA256_BYTES];
    struct demo_tail events;
    struct demo_rank ranks[DEMO_NODES_MAX];
};

/* Names the job's files; nothing runs yet. */
void demo_job_init(struct demo *demo, struct demo_job *job, const char *name, bool protect);
void demo_job_fini(struct demo_job *job);
/* Starts all ranks, with --resume after the first time. Reports errors and returns an exit code, 0
 * for success. */
int demo_job_start(struct demo *demo, struct demo_job *job, bool resume);
/* Takes in events and what the ranks say. */
void demo_job_look(struct demo *demo, struct demo_job *job);
/* Stops it (SIGSTOP), or lets it go on. */
void demo_job_pause(struct demo_job *job, bool pause);
/* Ends it at once. */
void demo_job_kill(struct demo_job *job);

bool demo_job_running(const struct demo_job *job); /* any rank */
bool demo_job_done(const struct demo_job *job);    /* all ranks ended well */
/* A rank that ended otherwise; UINT32_MAX: none. */
uint32_t demo_job_failed(const struct demo_job *job);
uint64_t demo_job_step_least(const struct demo_job *job);
/* The time below which `share` (0 … 1) of them are, 0 without any. */
uint64_t demo_samples_quantile_ns(const struct demo_samples *samples, double share);

/* Free TCP ports on loopback, below those that the system gives to outgoing connections.
 * CAIRN_AGAIN: none found. */
CAIRN_MUST_CHECK cairn_err demo_ports_find(uint16_t *ports, uint32_t count);

#endif
