/*
 * agent/process/carry.h - carries out the core's actions, in their order.
 *
 * A store that fails stops the agent (agent_abort), since the actions after it rely on it.
 */
#ifndef CAIRN_AGENT_PROCESS_CARRY_H
#define CAIRN_AGENT_PROCESS_CARRY_H

#include "agent/core/core.h"

struct arrival;
struct cairn_agent;

enum { COMMIT_TIMES_MAX = 64 };

/* When a generation was committed, and how long that took. */
struct committed_time {
    struct cairn_generation_id generation;
    uint64_t wall_ns; /* 0: unused */
    uint64_t bytes;
    uint64_t protect_ns; /* from the first grant to the commit, 0 unknown */
};

struct carry {
    struct cairn_generation_id first_grant; /* of the generation being captured */
    uint64_t first_grant_ns;
    struct committed_time commits[COMMIT_TIMES_MAX]; /* a ring: the newest is at commit_count - 1 */
    uint64_t commit_count;
    uint64_t hosting[CAIRN_PARTS_MAX]; /* serial of the reservation under way, 0: none */
    uint64_t hosting_serial;
};

/* Where a core's payload that begins to arrive goes, until carry_out writes it or closes its part;
 * NULL: into a buffer. */
uint8_t *carry_place(struct cairn_agent *agent, uint32_t from, uint64_t place, size_t payload_len);

/* A handler (handlers.h). */
void carry_out(struct cairn_agent *agent, const struct arrival *arrival,
               const struct cairn_actions *actions);

#endif
