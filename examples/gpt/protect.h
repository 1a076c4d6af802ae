/*
 * examples/gpt/protect.h - what makes this trainer survive: the calls of the public C API, all
 * here.
 *
 * For each tensor of the stage, in the order of the update, three slices are registered: NAME (a
 * parameter), exp_avg.NAME and exp_avg_sq.NAME (optimizer state), held alike by the dp replicas;
 * and last "trainer.progress", an opaque blob held alike by all ranks. Names and shapes do not
 * depend on dp, pp or the division of layers: a generation of one division restores into any other.
 */
#ifndef GPT_PROTECT_H
#define GPT_PROTECT_H

#include <stdbool.h>
#include <stdint.h>

#include "cairn/client.h"
#include "plan.h"
#include "progress.h"
#include "state.h"

struct gpt_protect;

struct gpt_protect_options {
    const char *agent_socket; /* NULL: $CAIRN_AGENT, and without it none */
    const char *job;          /* NULL: $CAIRN_JOB, else "default" */
    uint32_t local_ranks;
    uint32_t fence_timeout_ms;
    uint32_t restore_timeout_ms;
};

/*
 * Opens a client and registers the state's tensors and progress. It borrows them until the caller
 * registers another state or calls gpt_protect_close (NULL allowed). Succeeds without an agent, and
 * if the agent has no room: the client logs that training goes on unprotected. Else the errors of
 * cairn_client_open and cairn_client_register, after a message.
 */
CAIRN_MUST_CHECK cairn_err gpt_protect_open(const struct gpt_protect_options *options,
                                            const struct gpt_plan *plan,
                                            const struct gpt_state *state,
                                            struct gpt_progress *progress,
                                            struct gpt_protect **out);
void gpt_protect_close(struct gpt_protect *protect);

/* Registers another state instead, as gpt_protect_open does. */
CAIRN_MUST_CHECK cairn_err gpt_protect_register(struct gpt_protect *protect,
                                                const struct gpt_plan *plan,
                                                const struct gpt_state *state,
                                                const struct gpt_progress *progress);

/*
 * Fills everything registered from the newest generation. CAIRN_OK with *out; CAIRN_NOT_FOUND:
 * there is none, start fresh; other errors of cairn_client_restore, after a message: do not use the
 * state.
 */
CAIRN_MUST_CHECK cairn_err gpt_protect_restore(struct gpt_protect *protect,
                                               struct cairn_restored *out);

/* Waits until tensor `index` of the stage and its moments may be overwritten. */
void gpt_protect_fence_tensor(struct gpt_protect *protect, uint32_t index);

/* Waits until everything may be overwritten. */
void gpt_protect_fence_all(struct gpt_protect *protect);

/* The time spent in fences since the last call, in ns. */
uint64_t gpt_protect_fence_ns(struct gpt_protect *protect);

/* Begins a snapshot of the state after update `step`. True when one was begun. */
bool gpt_protect_begin(struct gpt_protect *protect, uint64_t step);

/* The same for a state that layers move from; ignores the snapshot interval. */
bool gpt_protect_commit(struct gpt_protect *protect, uint64_t step);

/* This rank's vote on the placement of the next step; and what the joined votes of all ranks
 * change: *next is the new plan for CAIRN_PLACEMENT_TAKEN and _ENTER. */
uint64_t gpt_protect_vote(struct gpt_protect *protect, const struct gpt_plan *plan);
enum cairn_placement_change gpt_protect_take(struct gpt_protect *protect, uint64_t agreed,
                                             const struct gpt_plan *plan, struct gpt_plan *next);

/* Registers the state of another plan and fills it from the generation of `step`, as
 * cairn_placement_fill. */
CAIRN_MUST_CHECK cairn_err gpt_protect_fill(struct gpt_protect *protect, uint64_t step,
                                            const struct gpt_plan *plan,
                                            const struct gpt_state *state,
                                            const struct gpt_progress *progress,
                                            uint32_t timeout_ms, struct cairn_restored *out);

/* The client's counters. */
struct cairn_client_stats gpt_protect_stats(const struct gpt_protect *protect);

#endif
