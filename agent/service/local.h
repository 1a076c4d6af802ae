/*
 * agent/service/local.h - writes this node's part of a generation to its own disk (local_dir), so
 * that a job whose machines all stop goes on from there.
 *
 * Tiers: memory, then a local disk on each node, then storage that all nodes share (spill.h). A
 * part is written when
 *   - `cairn run --grace` asks (all agents are asked),
 *   - local_every_generations have been committed since the last one, or
 *   - this node has had no trainers for local_after_ms, or
 *   - an epoch begins, and there is an older part: agents drop what is older than the generation
 *     that their epoch began with, also when they have loaded it.
 * The generation is pinned meanwhile. A disk that does not answer for 30 seconds is given up.
 *
 * Thread: loop; the disk has a thread of its own.
 */
#ifndef CAIRN_AGENT_SERVICE_LOCAL_H
#define CAIRN_AGENT_SERVICE_LOCAL_H

#include "cairn/err.h"
#include "snapshot/generation.h"

#include <stdbool.h>
#include <stdint.h>

struct cairn_agent;

CAIRN_MUST_CHECK cairn_err local_open(struct cairn_agent *agent);
void local_close(struct cairn_agent *agent);
void local_tick(struct cairn_agent *agent);

/* The job committed a generation. */
void local_committed(struct cairn_agent *agent);

/* The ready generation, and those committed in the next seconds, must go to the disk now. */
void local_ask(struct cairn_agent *agent);

/* The file of this generation is damaged: it is written again when needed. */
void local_forget(struct cairn_agent *agent, struct cairn_generation_id generation);

/* Nothing is being written. */
bool local_is_idle(const struct cairn_agent *agent);

/* The generation on the disk (step 0: none), and why the newest write failed (CAIRN_OK: it did
 * not). */
void local_read(const struct cairn_agent *agent, struct cairn_generation_id *newest,
                cairn_err *err);

#endif
