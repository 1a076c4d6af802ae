/*
 * tools/demo.h - shared by the files of `cairn demo`: the options and the story's state.
 *
 *   demo.c           the story: reference, protected training, faults, recoveries
 *   demo_options.c   the command line
 *   demo_process.c   child processes, and the guard that ends what is left of them
 *   demo_tail.c      lines of a growing file, and fields of such lines
 *   demo_cluster.c   the nodes: directory, configurations, agents
 *   demo_job.c       a training job: its ranks, their events, its step times
 *   demo_fault.c     what is killed, who notices, and the way back
 *   demo_slow.c      --slow: a device that becomes slow, shares that move; demo_slow_report.c shows
 *   demo_report.c    the figures at the end
 *   demo_view.c      progress on stderr
 *
 * One thread. Each wait calls demo_tick in a loop with a deadline, until it returns false.
 */
#ifndef CAIRN_TOOLS_DEMO_H
#define CAIRN_TOOLS_DEMO_H

#include "base/clock.h"
#include "snapshot/generation.h"
#include "tools/demo_job.h"
#include "tools/demo_process.h"
#include "tools/demo_slow.h"
#include "tools/demo_tail.h"
#include "tools/demo_view.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DEMO_FAULTS_MAX = 64,
    DEMO_RESTORES_MAX = 32,
    DEMO_REASONS_BYTES = 4096,
    DEMO_DIR_BYTES_MAX = 80, /* a keeper's socket lies below it, and socket paths are short */
    DEMO_TURN_STEPS = 5 /* steps that one of the two jobs trains while the other stands still */
};

enum demo_fault_kind { DEMO_FAULT_NODE, DEMO_FAULT_TRAINER, DEMO_FAULT_AGENT };

struct demo_fault {
    enum demo_fault_kind kind;
    uint32_t target;   /* node; one rank runs on each */
    const char *point; /* of a move of layers, at which the trainer dies; NULL: by step */
    uint64_t step;     /* as soon as this step is done; once it has happened, that step */
    bool done;
    uint64_t at_ns;
    uint64_t noticed_ns; /* 0: by nobody yet */
};

struct demo_options {
    uint32_t nodes;
    uint32_t parity;
    uint64_t steps;
    const char *text;     /* NULL: the trainer's default */
    const char *dir;      /* NULL: a temporary one */
    uint32_t spill_every; /* generations; 0: none */
    bool quick;           /* a small model */
    bool reference;       /* a run without protection and faults, to compare with */
    bool json;
    struct demo_fault faults[DEMO_FAULTS_MAX];
    uint32_t fault_count;
    struct demo_slow_option slow;
};

/* One recovery: from a fault to the first step after it. */
struct demo_restore {
    struct cairn_generation_id generation; /* its epoch as shown to people */
    bool from_files;
    uint64_t lost_steps;
    uint64_t rebuilt_bytes;
    uint64_t detect_ns, restart_ns, restore_ns, resume_ns; /* its parts, one after the other */
};

struct demo_node {
    char config[DEMO_PATH_BYTES];
    char socket[DEMO_PATH_BYTES];
    char state[DEMO_PATH_BYTES];
    char log[DEMO_PATH_BYTES];
    uint16_t port;
    struct demo_process agent;
    struct demo_tail tail;
    bool serves;
    bool adopted; /* this start took memory over from the keeper */
    uint64_t reserved_bytes;
    uint64_t rss_bytes; /* highest that was seen */
    char memory[256];   /* the sum that it printed */
    char error[512];    /* its last error */
};

struct demo {
    struct demo_options options;
    struct cairn_clock clock;
    struct demo_view view;
    char dir[DEMO_PATH_BYTES];
    char cairn[DEMO_PATH_BYTES];
    char trainer[DEMO_PATH_BYTES];
    struct demo_guard guard;
    uint32_t dp, pp;
    uint64_t slot_bytes;  /* reserved per slot and node, for the state of one rank */
    uint64_t model_bytes; /* the job's state, every byte counted once */
    struct demo_node nodes[DEMO_NODES_MAX];
    struct demo_job job;       /* protected */
    struct demo_job reference; /* not protected */
    uint64_t epoch;            /* of the newest generation seen committed, and its step */
    uint64_t committed_step;
    uint64_t committed_count;
    uint64_t protect_ns; /* of the newest one, from the first grant to the commit */
    uint64_t spilled_count;
    uint64_t repaired_bytes; /* rebuilt by agents themselves since the last restore */
    bool faults_waited;      /* the next faults, for a generation to restore */
    struct demo_restore restores[DEMO_RESTORES_MAX];
    uint32_t restore_count;
    uint32_t commands;                /* started so far, for the names of their files */
    char reasons[DEMO_REASONS_BYTES]; /* of the last restore, one line per generation */
    struct demo_slow slow;
};

/* ---- demo.c ---- */
uint64_t demo_now_ns(const struct demo *demo);
/* Sleeps a few milliseconds, takes in the children's output and ends, redraws. False: a signal asks
 * for the end. */
bool demo_tick(struct demo *demo);

/* ---- demo_options.c ---- */
/* False: the command ends with *exit_code, and the error is printed. */
bool demo_options_parse(int argc, char **argv, struct demo_options *out, int *exit_code);
extern const char *const demo_fault_names[]; /* by enum demo_fault_kind */

/* ---- demo_cluster.c: each function reports errors and returns an exit code, 0 for success ---- */
/* How many replicas of how many stages that many nodes are. */
void demo_shape(uint32_t nodes, uint32_t *dp, uint32_t *pp);
int demo_cluster_open(struct demo *demo);
int demo_agents_start(struct demo *demo, const bool *which);
/* Waits until the chosen agents serve. */
int demo_agents_wait(struct demo *demo, const bool *which);
/* The machine is gone: agent, keeper and state. */
void demo_node_destroy(struct demo *demo, uint32_t node);
void demo_agents_look(struct demo *demo);

/* ---- demo_fault.c ---- */
/* Does the faults that are due; then recovers. */
int demo_faults_do(struct demo *demo);
/* True if some are due: their step is done, and there is a generation to restore (in files, if more
 * nodes are killed at once than the parity covers and generations are spilled); or a trainer has
 * died at its point of a move. */
bool demo_faults_due(struct demo *demo);
/* At the end of training: reports faults that have not happened, and why; returns an exit code, 0
 * for none. */
int demo_faults_left(struct demo *demo);
/* Checks a line of a trainer's or agent's log for a noticed fault. */
void demo_fault_notice(struct demo *demo, const char *who, uint32_t number, const char *line);
/* Runs `cairn …` with its output in *text (freed by the caller, may be NULL on failure); returns
 * its exit code. */
int demo_command(struct demo *demo, const char *const *words, uint32_t seconds, char **text);

/* ---- demo_report.c ---- */
void demo_report_table(const struct demo *demo);
int demo_report_json(const struct demo *demo, int exit_code);
/* Loss and state of both jobs agree. */
bool demo_identical(const struct demo *demo);

#endif
