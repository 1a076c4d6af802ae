/* agent/service/probe.c - see probe.h. */
#include "agent/service/probe.h"

#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/service/fetch_state.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t patience_ns = 1500 * CAIRN_NS_PER_MS; /* for one answer */
static const uint64_t again_ns = 300 * CAIRN_NS_PER_MS;     /* before there is a session */

struct probe {
    uint64_t request;
    probe_done_fn *done;
    void *context;
    struct probe_peer peers[PROBE_PEERS_MAX];
    uint32_t count, left_out;
    uint32_t at;       /* the peer that is looked at */
    uint64_t id;       /* of the FETCH under way */
    uint64_t begun_ns; /* with that peer */
    uint64_t sent_ns;
    uint64_t trips_ns[PROBE_TRIPS];
    uint32_t trips;
    uint32_t member; /* whose blocks it holds; UINT32_MAX: none */
    uint64_t block;  /* the next */
    struct cairn_generation_id generation;
};

static void
send_fetch(struct cairn_agent *agent, struct probe *probe, uint32_t blocks)
{
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_FETCH,
                                            .from = agent->config.node,
                                            .to = probe->peers[probe->at].node,
                                            .item = probe->member,
                                            .verb = ASK_BLOCKS,
                                            .offset = probe->block,
                                            .block_count = blocks};

    if (blocks)
        message.generation = probe->generation;
    message.request = probe->id = ++agent->fetches->next_id;
    probe->sent_ns = agent_now_ns(agent);
    mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
}

/* The member whose part of the ready generation an agent holds; UINT32_MAX: none. */
static uint32_t
find_member(struct cairn_agent *agent, uint32_t node, struct cairn_generation_id *generation)
{
    struct cairn_core_view view;

    cairn_core_look(agent->core, &view);
    *generation = view.ready;
    for (uint32_t m = 0; view.ready_roster && m < view.ready_roster->member_count; m++)
        if (cairn_core_holder(agent->core, view.ready, m) == node)
            return m;
    return UINT32_MAX;
}

static void
begin_peer(struct cairn_agent *agent, struct probe *probe)
{
    for (; probe->at < probe->count; probe->at++) {
        struct probe_peer *peer = &probe->peers[probe->at];

        peer->refused = agent->mail.boxes[peer->node].refused;
        if (!peer->refused)
            break;
    }
    probe->trips = 0;
    probe->block = 0;
    probe->begun_ns = agent_now_ns(agent);
    if (probe->at == probe->count) {
        agent->probe = NULL;
        probe->done(probe->context, probe->request, probe->peers, probe->count, probe->left_out);
        free(probe);
        return;
    }
    probe->member = find_member(agent, probe->peers[probe->at].node, &probe->generation);
    send_fetch(agent, probe, 0); /* begins to connect, where that is needed */
}

static int
shorter_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void
next_peer(struct cairn_agent *agent, struct probe *probe)
{
    struct probe_peer *peer = &probe->peers[probe->at];

    if (probe->trips > 0) {
        qsort(probe->trips_ns, probe->trips, sizeof *probe->trips_ns, shorter_first);
        peer->answers = true;
        peer->trip_min_ns = probe->trips_ns[0];
        peer->trip_median_ns = probe->trips_ns[probe->trips / 2];
    }
    probe->at++;
    begin_peer(agent, probe);
}

bool
probe_message(struct cairn_agent *agent, const struct cairn_service_message *message,
              size_t payload_len)
{
    struct probe *probe = agent->probe;
    struct probe_peer *peer;
    uint64_t took_ns;

    if (!probe || message->kind != CAIRN_SERVICE_FETCHED || message->request != probe->id ||
        message->from != probe->peers[probe->at].node)
        return false;
    peer = &probe->peers[probe->at];
    took_ns = agent_now_ns(agent) - probe->sent_ns;
    if (probe->trips < PROBE_TRIPS) {
        probe->trips_ns[probe->trips++] = took_ns ? took_ns : 1;
        if (probe->trips < PROBE_TRIPS) {
            send_fetch(agent, probe, 0);
            return true;
        }
    } else if (payload_len == 0) { /* it holds no more */
        next_peer(agent, probe);
        return true;
    } else {
        peer->bytes += payload_len;
        peer->bytes_ns += took_ns ? took_ns : 1;
        probe->block += payload_len / CAIRN_BLOCK_BYTES;
    }
    if (probe->member == UINT32_MAX || peer->bytes >= PROBE_BYTES)
        next_peer(agent, probe);
    else
        send_fetch(agent, probe, peer->bytes ? CAIRN_MESSAGE_BLOCKS_MAX : 1);
    return true;
}

cairn_err
probe_start(struct cairn_agent *agent, uint64_t request, probe_done_fn *done, void *context)
{
    const uint32_t n = agent->config.node_count;
    struct probe *probe;

    if (agent->probe)
        return CAIRN_AGAIN;
    probe = calloc(1, sizeof *probe);
    if (!probe)
        return CAIRN_NOMEM;
    probe->request = request;
    probe->done = done;
    probe->context = context;
    for (uint32_t i = 1; i < n; i++) { /* the next nodes, so that all nodes' doctors see all */
        uint32_t node = (agent->config.node + i) % n;

        if (agent->config.nodes[node].removed)
            continue;
        if (probe->count < PROBE_PEERS_MAX)
            probe->peers[probe->count++].node = node;
        else
            probe->left_out++;
    }
    agent->probe = probe;
    begin_peer(agent, probe);
    return CAIRN_OK;
}

void
probe_tick(struct cairn_agent *agent)
{
    struct probe *probe = agent->probe;
    uint64_t now_ns = agent_now_ns(agent);

    if (!probe)
        return;
    if (now_ns - (probe->trips ? probe->sent_ns : probe->begun_ns) > patience_ns)
        next_peer(agent, probe);
    else if (probe->trips == 0 && now_ns - probe->sent_ns > again_ns)
        send_fetch(agent, probe, 0);
}

void
probe_close(struct cairn_agent *agent)
{
    free(agent->probe);
    agent->probe = NULL;
}
