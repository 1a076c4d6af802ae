/*
 * agent/service/scrub.h - reads this agent's memory in the background, and has damage repaired.
 *
 * Each block of the ready generation, data and parity, is compared with its checksum once per
 * scrub_interval_ms, in at most a hundredth of a processor's time (scrub_plan.h). So are the two
 * copies of each part's record. For the job a damaged block is a lost one: a verify
 * (CAIRN_OP_VERIFY), which any operator may ask for, decodes it from the other members.
 *
 * Invariants:
 *  1. Only complete parts are read, and none while a repair writes to them.
 *  2. Damage is compared a second time in the loop's thread before it counts: nothing else writes
 *     then.
 *
 * Thread: loop; a worker computes the checksums.
 */
#ifndef CAIRN_AGENT_SERVICE_SCRUB_H
#define CAIRN_AGENT_SERVICE_SCRUB_H

#include "cairn/err.h"

#include <stdint.h>

struct cairn_agent;

/* What a scrub has done since the agent's start. */
struct scrub_report {
    uint64_t read_bytes;
    uint64_t passes;
    uint64_t pass_age_ns;     /* since the last full pass ended; UINT64_MAX: none has */
    uint64_t found, repaired; /* blocks and records */
    uint64_t unrepairable;    /* now: damage that repairs have left */
};

CAIRN_MUST_CHECK cairn_err scrub_open(struct cairn_agent *agent);
/* After the workers were stopped. */
void scrub_close(struct cairn_agent *agent);
void scrub_read(const struct cairn_agent *agent, struct scrub_report *out);

#endif
