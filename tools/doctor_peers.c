/* tools/doctor_peers.c - what the agent that runs here tells `cairn doctor` about the other agents:
 * who answers, how fast, and which options differ. */
#include "tools/doctor.h"

#include "agent/service/probe.h"
#include "tools/ask.h"
#include "tools/common.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    PEERS_MS = 120000,
    SLOW_FACTOR = 4,    /* below the median: slow */
    SLOW_PEERS_MIN = 3, /* fewer have no median that means anything */
    PEER_FINDINGS_MAX = 12
};

static const uint64_t SLOW_TRIP_NS = 1000000; /* shorter round trips are fine */

struct measured {
    uint64_t node, trip_ns, bytes_per_s;
};

struct peers {
    struct measured list[PROBE_PEERS_MAX];
    uint32_t count, asked, found;
    uint64_t trips_ns[PROBE_PEERS_MAX], bytes_per_s[PROBE_PEERS_MAX];
    uint32_t rates;
};

static int
smaller_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* One peer: reports what is wrong with it alone, and keeps its numbers. */
static void
look_at(struct doctor *doctor, const struct cairn_tree *tree, const struct cairn_tree_value *peer,
        struct peers *peers)
{
    struct measured *measured = &peers->list[peers->count];
    bool refused = cairn_tree_bool(tree, peer, "refused", false);
    char address[CAIRN_CONFIG_ADDRESS_BYTES_MAX], mismatch[256];

    measured->node = cairn_tree_u64(tree, peer, "node", 0);
    cairn_tree_text(tree, peer, "address", address, sizeof address);
    cairn_tree_text(tree, peer, "mismatch", mismatch, sizeof mismatch);
    peers->asked++;
    if (mismatch[0] && peers->found++ < PEER_FINDINGS_MAX)
        doctor_find(doctor, refused ? DOCTOR_CRITICAL : DOCTOR_WARN, "peer-options",
                    "give all nodes the same options, and restart the agents that differ",
                    "node %" PRIu64 " (%s)%s: %s", measured->node, address,
                    refused ? " is refused" : "", mismatch);
    if (!cairn_tree_bool(tree, peer, "answers", false)) {
        if (!mismatch[0] && peers->found++ < PEER_FINDINGS_MAX)
            doctor_find(doctor, DOCTOR_CRITICAL, "peer",
                        "see whether it runs (`cairn agent`), and whether the network between "
                        "these nodes lets its port through",
                        "node %" PRIu64 " (%s) does not answer", measured->node, address);
        return;
    }
    measured->trip_ns = cairn_tree_u64(tree, peer, "round_trip_ns", 0);
    measured->bytes_per_s = cairn_tree_u64(tree, peer, "bytes_per_s", 0);
    peers->trips_ns[peers->count++] = measured->trip_ns;
    if (measured->bytes_per_s)
        peers->bytes_per_s[peers->rates++] = measured->bytes_per_s;
}

/* Peers that are far behind the median. */
static void
find_slow(struct doctor *doctor, struct peers *peers)
{
    char bytes[CAIRN_SHOWN_BYTES], usual[CAIRN_SHOWN_BYTES];
    uint64_t trip_ns = peers->trips_ns[peers->count / 2];
    uint64_t rate = peers->rates ? peers->bytes_per_s[peers->rates / 2] : 0;

    for (uint32_t i = 0; i < peers->count && peers->count >= SLOW_PEERS_MIN; i++) {
        const struct measured *peer = &peers->list[i];
        bool late = peer->trip_ns > SLOW_TRIP_NS && peer->trip_ns / SLOW_FACTOR > trip_ns;
        bool slow = peers->rates >= SLOW_PEERS_MIN && peer->bytes_per_s &&
                    peer->bytes_per_s < rate / SLOW_FACTOR;

        if ((!late && !slow) || peers->found++ >= PEER_FINDINGS_MAX)
            continue;
        if (slow)
            doctor_find(doctor, DOCTOR_WARN, "peer-slow",
                        "look at that node's network card, cable and switch port, and at what else "
                        "uses them",
                        "node %" PRIu64 " sends %s/s, the median is %s/s", peer->node,
                        cairn_show_bytes(peer->bytes_per_s, bytes), cairn_show_bytes(rate, usual));
        else
            doctor_find(doctor, DOCTOR_WARN, "peer-slow",
                        "look at the load of that node, and at the network between",
                        "node %" PRIu64 " answers after %s, the median is %s", peer->node,
                        cairn_show_duration(peer->trip_ns, bytes),
                        cairn_show_duration(trip_ns, usual));
    }
}

static void
sum_up(struct doctor *doctor, const struct peers *peers, uint64_t left_out)
{
    char shortest[CAIRN_SHOWN_BYTES], longest[CAIRN_SHOWN_BYTES], least[CAIRN_SHOWN_BYTES],
        most[CAIRN_SHOWN_BYTES], rates[3 * CAIRN_SHOWN_BYTES] = "", more[64] = "";

    if (left_out)
        snprintf(more, sizeof more, "; %" PRIu64 " more were not asked", left_out);
    if (peers->count == 0) {
        doctor_find(doctor, DOCTOR_OK, "peers", NULL, "0 of %" PRIu32 " other agents answer%s",
                    peers->asked, more);
        return;
    }
    if (peers->rates)
        snprintf(rates, sizeof rates, ", %s/s to %s/s",
                 cairn_show_bytes(peers->bytes_per_s[0], least),
                 cairn_show_bytes(peers->bytes_per_s[peers->rates - 1], most));
    doctor_find(doctor, DOCTOR_OK, "peers", NULL,
                "%" PRIu32 " of %" PRIu32 " other agents answer: round trips of %s to %s%s%s",
                peers->count, peers->asked, cairn_show_duration(peers->trips_ns[0], shortest),
                cairn_show_duration(peers->trips_ns[peers->count - 1], longest), rates, more);
}

void
doctor_peers(struct doctor *doctor, const char *socket)
{
    const struct cairn_question question = {
        .verb = "peers", .socket = socket, .timeout_ms = PEERS_MS, .progress = "peers"};
    const struct cairn_tree_value *list, *peer = NULL;
    struct peers peers = {.count = 0};
    struct cairn_answer answer;

    if (cairn_ask(&question, &answer) != CAIRN_OK)
        return; /* `agent` says whether it answers */
    list = cairn_tree_find(&answer.tree, NULL, "peers");
    while ((peer = cairn_tree_next(&answer.tree, list, peer)) && peers.asked < PROBE_PEERS_MAX)
        look_at(doctor, &answer.tree, peer, &peers);
    qsort(peers.trips_ns, peers.count, sizeof *peers.trips_ns, smaller_first);
    qsort(peers.bytes_per_s, peers.rates, sizeof *peers.bytes_per_s, smaller_first);
    find_slow(doctor, &peers);
    if (list)
        sum_up(doctor, &peers, cairn_tree_u64(&answer.tree, NULL, "left_out", 0));
    else
        doctor_find(doctor, DOCTOR_WARN, "peers", "try again, or upgrade the agent",
                    "the agent has not looked at its peers: %.200s", answer.text);
    cairn_answer_fini(&answer);
}
