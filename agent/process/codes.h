/*
 * agent/process/codes.h - the erasure codes of all group shapes, each made when it is first needed.
 *
 * Owned by the agent; a code stays until codes_close. Thread: loop; workers may use a code.
 */
#ifndef CAIRN_AGENT_PROCESS_CODES_H
#define CAIRN_AGENT_PROCESS_CODES_H

#include "base/limits.h"
#include "erasure/code.h"

struct codes {
    struct cairn_code *made[CAIRN_SHARDS_MAX + 1][CAIRN_SHARDS_MAX + 1]; /* [k][m]; NULL: not yet */
};

/* The code of k data and m parity shards; NULL if there is no such code, or no memory. */
const struct cairn_code *codes_get(struct codes *codes, uint32_t k, uint32_t m);

void codes_close(struct codes *codes);

#endif
