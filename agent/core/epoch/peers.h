/*
 * agent/core/epoch/peers.h - sessions, and who is alive.
 *
 * Every agent counts up once per interval and sends its counter to log2(n) agents (self + 2^j),
 * with a few rumors. An agent that has not heard one of its senders for dead_after reports it dead,
 * and alive again once its counter grows. Rumors travel with the heartbeats, a fixed number in
 * each, so a heartbeat has a fixed size (after Das, Gupta and Motivala, SWIM, 2002). A wrong
 * suspicion costs time, never data.
 */
#ifndef CAIRN_AGENT_CORE_EPOCH_PEERS_H
#define CAIRN_AGENT_CORE_EPOCH_PEERS_H

#include "agent/core/env/env.h"

enum {
    RUMORS_MAX = 64,    /* remembered by one agent */
    RUMORS_PER_BEAT = 8 /* told in one heartbeat */
};

struct peer {
    uint64_t incarnation; /* newest that was met; 0: none */
    uint64_t counter;     /* of its heartbeats */
    uint64_t heard_ns;    /* when its counter grew, as far as is known here; 0: never */
    uint64_t dead_ns;     /* since when it is taken for dead; 0: it is not */
};

struct rumor {
    uint32_t agent;
    uint32_t told; /* times */
};

struct peers {
    uint64_t *up;      /* bitset */
    uint64_t *watched; /* bitset of agents whose heartbeats come here */
    struct peer *list; /* [agent_count] */
    uint64_t *epochs;  /* [agent_count]: told in the session that is up; UINT64_MAX: none yet */
    struct rumor rumors[RUMORS_MAX];
    uint32_t rumor_count;
    uint32_t rumor_next;
    uint32_t table_next; /* agent whose entry fills the next beat */
    uint64_t counter;
    uint64_t beat_ns;
    uint64_t event_ns; /* of the newest event */
    uint64_t started_ns;
    uint32_t positions; /* agents that have told their position since the start */
};

CAIRN_MUST_CHECK cairn_err peers_init(struct peers *peers, const struct cairn_core_options *options,
                                      uint64_t now_ns);
void peers_fini(struct peers *peers);
/* Before every event. Returns how long this agent itself stood still: nobody else's silence. */
uint64_t peers_awake(struct env *env, struct peers *peers);
void peers_up(struct env *env, struct peers *peers, uint32_t agent, uint64_t incarnation);
void peers_down(struct peers *peers, uint32_t agent);
void peers_tick(struct env *env, struct peers *peers);
void peers_heartbeat(struct env *env, struct peers *peers, const struct cairn_message *message);
/* The newest incarnation of an agent that this one has met; of itself its own. */
uint64_t peers_met(const struct env *env, uint32_t agent);

/* Another agent has met that incarnation. */
void peers_meet(struct peers *peers, uint32_t agent, uint64_t incarnation);

/* Not taken for dead, and heard of since the start, if only by others. */
bool peers_alive(const struct env *env, uint32_t agent);
/* Alive, or not heard of yet while the start is young. */
bool peers_maybe_alive(const struct env *env, uint32_t agent);
/* True if heartbeats go from this agent to that one, or come from it. */
bool peers_beat_between(const struct env *env, uint32_t agent);
/* Dead for so long that nobody waits for it any more. */
bool peers_given_up(const struct env *env, uint32_t agent);

#endif
