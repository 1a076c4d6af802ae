/*
 * agent/service/scrub_spilled.h - compares the generations in spill_dir with their checksums in the
 * background, and repairs what is damaged.
 *
 * All nodes share spill_dir, so each generation has one keeper among the live agents: the agent
 * whose number and the generation hash highest. Only that agent reads it. Pace and period are those
 * of the scrub of memory (scrub_plan.h); the disk thread of the spills reads.
 *
 *   memory holds the generation ─► the damaged file is written again as the index says; all files
 *                                  and the index, if the index or a header is damaged
 *   otherwise, or that failed twice ─► the generation is marked as bad
 *
 * An agent that has just started hears no other yet, so two agents may read a generation for a
 * moment. Neither repairs nor marks anything before it knows who lives (scrub_remedy).
 *
 * Nobody lists a generation that is marked as bad, and no restore takes it. The agent that marks it
 * tells all others, and they spill the ready generation if that is newer than what is left.
 *
 * Invariants:
 *  1. What differs is read again from the disk before it counts as damage.
 *  2. A file that is written again gets its name when it is whole; until then the damaged file
 *     stays.
 *
 * Thread: loop.
 */
#ifndef CAIRN_AGENT_SERVICE_SCRUB_SPILLED_H
#define CAIRN_AGENT_SERVICE_SCRUB_SPILLED_H

#include "agent/service/scrub.h"

CAIRN_MUST_CHECK cairn_err scrub_spilled_open(struct cairn_agent *agent);
/* Before the spills end. */
void scrub_spilled_stop(struct cairn_agent *agent);
/* After the disk thread of the spills was stopped. */
void scrub_spilled_close(struct cairn_agent *agent);
/* found and repaired count blocks, and a whole generation whose index or headers are damaged. */
void scrub_spilled_read(const struct cairn_agent *agent, struct scrub_report *out);

#endif
