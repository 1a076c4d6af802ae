/*
 * agent/process/carry_jobs.h - the core's actions that workers carry out: decoding, checksumming,
 * reserving memory.
 *
 * Each is answered by an event, at the latest when its worker is done. A job owns what it needs
 * until then: it holds the memory, space and buffers that it reads and writes.
 */
#ifndef CAIRN_AGENT_PROCESS_CARRY_JOBS_H
#define CAIRN_AGENT_PROCESS_CARRY_JOBS_H

#include "agent/core/core.h"

struct cairn_agent;

/* Decodes the lost shards of a repair item. */
void carry_decode(struct cairn_agent *agent, const struct cairn_action_decode *action);

/*
 * Checksums a part: its parity after a save, its data too after a rebuild. With `verify` data
 * and parity are compared with the checksums on record.
 */
void carry_check(struct cairn_agent *agent, const struct cairn_action_part *action, bool verify);

/* Reserves memory for another node's part. */
void carry_open(struct cairn_agent *agent, const struct cairn_action_part *action);

#endif
