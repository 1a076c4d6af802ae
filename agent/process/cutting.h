/*
 * agent/process/cutting.h - cuts the memory of own slots into the regions of the registered ranks.
 *
 * A trainer gets the descriptor of one file per slot, which holds its rank's region. The file
 * exists as soon as the rank registers. The pages of the slot move into it when none of them belong
 * to another rank:
 *
 *   the slot is free, or a generation is being captured in it     at once
 *   it holds a generation that has this very region of this rank  at once, contents and all
 *   it holds another generation                                   when that is dropped
 *
 * REGISTERED waits for the first two, for two seconds at most (session.c). Otherwise the trainer
 * has a file without all of its pages, and a grant of the slot waits.
 *
 * A trainer that had other tensors before may stand still between two placements of them, and other
 * ranks may still be filling theirs from this node. So REGISTERED does not wait for its memory, and
 * its pages move from its next BEGIN on.
 *
 * Invariant: a trainer's file holds only bytes of its own rank, or of nobody. The exception: a part
 * that a repair rebuilds into a slot that was cut for another arrangement of ranks.
 */
#ifndef CAIRN_AGENT_PROCESS_CUTTING_H
#define CAIRN_AGENT_PROCESS_CUTTING_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_agent;
struct session;

/* Makes the files of a session's region, which is planned, and starts the moves. On failure
 * text[text_bytes] gets the reason. */
CAIRN_MUST_CHECK cairn_err cutting_claim(struct cairn_agent *agent, struct session *session,
                                         char *text, size_t text_bytes);

/* True if all moves for the session are made, or none is possible now. */
bool cutting_is_done(const struct cairn_agent *agent, const struct session *session);

/* The descriptors of a registered session's files: fds[slots], borrowed. False: one is gone. */
bool cutting_files(const struct cairn_agent *agent, const struct session *session, int *fds);

/* True if the trainer's writes to its file reach the slot. */
bool cutting_is_whole(const struct cairn_agent *agent, const struct session *session,
                      uint32_t slot);

/* A slot's state has changed: starts the moves that are possible now. */
void cutting_advance(struct cairn_agent *agent);

/* The session gives up its region. */
void cutting_forget(struct cairn_agent *agent, const struct session *session);

#endif
