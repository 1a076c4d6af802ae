/*
 * tests/traces/second/state.h - the state of a running job, for the files of this folder.
 *
 *   shape.c  ranks, stages, communicators
 *   noise.c  what varies, and what faults stretch
 *   step.c   what a rank does in a step
 *   run.c    runs the steps of all ranks
 *   write.c  what each rank's source records
 */
#ifndef CAIRN_TESTS_TRACES_SECOND_STATE_H
#define CAIRN_TESTS_TRACES_SECOND_STATE_H

#include "tests/traces/second/model.h"

#include <stddef.h>

enum { ITEMS_MAX = 1024, STREAMS = 4, QUEUE_MAX = 256, GROUP_MAX = MODEL_RANKS_MAX };
enum { STREAM_COMPUTE, STREAM_GRADIENTS, STREAM_FORWARD, STREAM_BACKWARD };
enum item_kind { ITEM_COMPUTE, ITEM_WAIT, ITEM_ALL, ITEM_SEND, ITEM_RECV };
enum op { OP_ALL_REDUCE, OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_ALL_TO_ALL, OP_SEND, OP_RECV, OPS };

struct item {
    enum item_kind kind;
    enum op op;
    uint32_t stream, group, peer;
    int32_t after; /* item of the same rank that must have ended; -1: none, -2: all before */
    uint64_t bytes, seq;
    double ns, start_ns, end_ns; /* end < 0: has not ended; start < 0: has not started */
};

struct wander { /* AR(1), of unit variance */
    double value;
};

struct group {
    char name[16];
    uint32_t ranks[GROUP_MAX], count, arrived;
    double last_ns;
    uint64_t seqs[OPS];
    bool far;
    struct wander wander;
};

struct pair { /* what one rank has sent another and the other not yet received, or vice versa */
    uint32_t sends[QUEUE_MAX], recvs[QUEUE_MAX]; /* items */
    uint32_t send_head, send_tail, recv_head, recv_tail;
    uint64_t seq_sent, seq_received;
    struct wander wander;
};

struct worker {
    struct item items[ITEMS_MAX];
    uint32_t count, at[STREAMS];
    uint32_t order[STREAMS][ITEMS_MAX], length[STREAMS];
    double free_ns[STREAMS];
    double begun_ns, offset_ns, clock_drift, stopped_ns, enter_ns;
    struct wander wander, drift, load;
    double expert; /* its share of the tokens in the long run */
    uint32_t collect_every, collect_phase;
    uint32_t lose_left, lose_tick, lose_count;
    bool stuck, dead, queued;
    uint32_t tensor, stages, replicas, experts, expert_replicas;
    char *text;
    size_t text_len, text_size;
    size_t marks[MODEL_TICKS_MAX + 8]; /* where ticks end in the text */
};

struct run {
    const struct model *model;
    struct random *random;
    FILE *out;
    struct worker *workers;
    struct group *groups;
    uint32_t group_count, everybody;
    struct pair *pairs; /* [world][world] */
    uint32_t *ready, ready_count;
    struct wander common, *nodes;
    double step_at_ns[MODEL_CLOCK_STEPS_MAX];
    double *lengths;
    uint32_t tick;
    bool stopped;
};

/* shape.c: fills run->groups and each worker's share in them. */
void model_groups(struct run *run);
uint32_t model_node(const struct model *model, uint32_t rank);
/* noise.c: the next value of a process. */
double model_move(struct run *run, struct wander *wander, double correlation);
double model_jitter(struct run *run, double ns, double share);
bool model_active(const struct model_fault *fault, uint32_t tick);
/* How many times as long a rank computes in this tick: faults and noise. */
double model_speed(struct run *run, uint32_t rank);
double model_length(struct run *run);
/* What a step computes without noise, roughly. */
double model_usual_ns(const struct model *model);
/* Time lost at the beginning of a tick. */
double model_lost_ns(struct run *run, uint32_t rank);
double model_channel_ns(struct run *run, struct wander *wander, double ns, bool far);
/* By what factor faults stretch a transfer among these ranks. */
double model_stretch(const struct run *run, const uint32_t *ranks, uint32_t count);
/* True where a transfer among these ranks has stopped for good. */
bool model_stops(const struct run *run, const uint32_t *ranks, uint32_t count);
/* step.c: the items of a rank's next step. */
void model_make_step(struct run *run, uint32_t rank);
/* write.c */
void model_write_header(const struct run *run);
void model_write_tick(struct run *run, uint32_t rank);
/* Signs of life of a job that stands still, where somebody still lives. */
void model_write_life(struct run *run);
/* Writes what has been recorded, tick by tick or one rank after the other. */
void model_write_text(struct run *run, uint32_t ticks);

#endif
