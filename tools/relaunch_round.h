/*
 * tools/relaunch_round.h - the next round of `cairn run --relaunch` as one launcher sees the nodes:
 * who joins, who leads, who gets which rank. Pure. For relaunch_plan.c alone, which decides when.
 */
#ifndef CAIRN_TOOLS_RELAUNCH_ROUND_H
#define CAIRN_TOOLS_RELAUNCH_ROUND_H

#include "tools/relaunch_plan.h"

/* The note of a node's launcher, NULL without one. */
const struct cairn_relaunch_note *cairn_relaunch_note_of(const struct cairn_relaunch *relaunch,
                                                         const struct cairn_relaunch_view *view,
                                                         uint32_t node);
/* Whether a node's launcher waits for a round. */
bool cairn_relaunch_joins(const struct cairn_relaunch *relaunch,
                          const struct cairn_relaunch_view *view, uint32_t node);

/* Whether a node's launcher runs the command, and is another one. */
bool cairn_relaunch_runs(const struct cairn_relaunch *relaunch,
                         const struct cairn_relaunch_view *view, uint32_t node);

/* Whether the next round is that of an approved relaunch: all its nodes join. */
bool cairn_relaunch_has_offer(const struct cairn_relaunch *relaunch,
                              const struct cairn_relaunch_view *view);

/* The node that leads the joining launchers. */
uint32_t cairn_relaunch_leader(const struct cairn_relaunch *relaunch,
                               const struct cairn_relaunch_view *view);

/* The seats of the next round of a leader, at most `most`; the caller frees out->seats.
 * CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_relaunch_round_choose(const struct cairn_relaunch *relaunch,
                                                       const struct cairn_relaunch_view *view,
                                                       uint32_t leader, uint64_t most,
                                                       struct cairn_relaunch_round *out);

/* A checksum of job, term and all seats, never 0. */
uint64_t cairn_relaunch_round_name(const struct cairn_relaunch_round *round, uint64_t job,
                                   uint64_t term);

/* The rank of a node in a round, UINT32_MAX without one. */
uint32_t cairn_relaunch_round_rank(const struct cairn_relaunch_round *round, uint32_t node);

#endif
