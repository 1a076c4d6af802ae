/*
 * agent/service/probe.h - probes the other agents for `cairn doctor`: whether they answer, how long
 * a round trip takes, how fast blocks arrive, and which options they set differently.
 *
 * One peer after the other, by messages that agents answer anyway: a FETCH of a generation that
 * nobody holds is refused at once (the round trip); a FETCH of blocks of the ready generation
 * brings what a repair would bring (the bandwidth). Both are timed by this node's clock alone, so
 * clocks need not agree. At most PROBE_BYTES come from each peer.
 *
 * Thread: loop.
 */
#ifndef CAIRN_AGENT_SERVICE_PROBE_H
#define CAIRN_AGENT_SERVICE_PROBE_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_agent;
struct cairn_service_message;

enum {
    PROBE_PEERS_MAX = 64, /* that one request looks at */
    PROBE_TRIPS = 8,      /* round trips to each */
    PROBE_BYTES = 4 << 20
};

struct probe_peer {
    uint32_t node;
    bool answers;
    bool refused; /* it has other options, and this agent has no session with it for that */
    uint64_t trip_min_ns, trip_median_ns;
    uint64_t bytes, bytes_ns; /* that arrived, and their time; 0: it holds no blocks */
};

typedef void probe_done_fn(void *context, uint64_t request, const struct probe_peer *peers,
                           uint32_t count, uint32_t left_out);

/* Starts; `done` is called once, from the loop. CAIRN_AGAIN: a probe runs; CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err probe_start(struct cairn_agent *agent, uint64_t request,
                                       probe_done_fn *done, void *context);
void probe_tick(struct cairn_agent *agent);
void probe_close(struct cairn_agent *agent);

/* A FETCHED of another agent. False: not for a probe. */
bool probe_message(struct cairn_agent *agent, const struct cairn_service_message *message,
                   size_t payload_len);

#endif
