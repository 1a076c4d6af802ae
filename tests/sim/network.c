/*
 * tests/sim/network.c - sessions between agents, and the messages in them: packed and unpacked by
 * the product, late, damaged, or lost with their session.
 *
 * What the transport promises is what is kept here. Between two agents there is a session or none.
 * A session is tried for ever while one side wants it. PEER_UP comes to both sides before any
 * message. Messages arrive once, and in order within their class: short messages without blocks
 * among themselves, all others among themselves. What grows with the job is long even where the
 * world is small. A session may break at any time: then what is under way
 * is lost, and each side learns it at its own time. A cut holds messages back, in order; a cut of
 * either direction breaks the session after a while, and no new one begins.
 *
 * Messages to oneself arrive later, in order. Tags and block checksums are compared at the receiver
 * before the core sees the message: a payload with other tags does not arrive.
 */
#include "tests/sim/sim.h"

#include "base/wire.h"
#include "erasure/stripe.h"

#include <stdlib.h>
#include <string.h>

#define TO_ITSELF UINT64_MAX /* value of a PACKET */

enum { SHARED_BYTES_MIN = 4096 /* smaller bodies are not looked up */ };

#define QUEUE_NS_MAX (200 * MS_NS)

struct shared *
shared_new(const void *bytes, size_t len)
{
    struct shared *shared = malloc(sizeof *shared + len);

    if (!shared)
        abort();
    shared->references = 1;
    shared->len = len;
    memcpy(shared->bytes, bytes, len);
    return shared;
}

void
shared_drop(struct shared *shared)
{
    if (shared && --shared->references == 0)
        free(shared);
}

/* ---- links ---- */

static uint32_t
slot_of(const struct network *network, uint32_t low, uint32_t high)
{
    return (uint32_t)mix64(((uint64_t)low << 32) | high) & (network->table_size - 1);
}

static void
enter(struct network *network, uint32_t index)
{
    const struct link *link = &network->links[index];
    uint32_t at = slot_of(network, link->agents[0], link->agents[1]);

    while (network->table[at])
        at = (at + 1) & (network->table_size - 1);
    network->table[at] = index + 1;
}

static void
grow(struct network *network)
{
    network->link_room = network->link_room ? network->link_room * 2 : 64;
    network->table_size = network->link_room * 2;
    network->links = realloc(network->links, network->link_room * sizeof *network->links);
    free(network->table);
    network->table = calloc(network->table_size, sizeof *network->table);
    if (!network->links || !network->table)
        abort();
    for (uint32_t i = 0; i < network->link_count; i++)
        enter(network, i);
}

static void
remember_link(struct node *node, uint32_t index)
{
    if (node->link_count == node->link_room) {
        node->link_room = node->link_room ? node->link_room * 2 : 16;
        node->links = realloc(node->links, node->link_room * sizeof *node->links);
        if (!node->links)
            abort();
    }
    node->links[node->link_count++] = index;
}

/* The link of two agents; UINT32_MAX if there is none, unless one must be made. */
static uint32_t
find_link(struct world *world, uint32_t a, uint32_t b, bool make)
{
    struct network *network = &world->network;
    uint32_t low = a < b ? a : b, high = a < b ? b : a;

    if (network->link_count)
        for (uint32_t at = slot_of(network, low, high); network->table[at];
             at = (at + 1) & (network->table_size - 1)) {
            const struct link *link = &network->links[network->table[at] - 1];

            if (link->agents[0] == low && link->agents[1] == high)
                return network->table[at] - 1;
        }
    if (!make)
        return UINT32_MAX;
    if (network->link_count == network->link_room)
        grow(network);
    network->links[network->link_count] = (struct link){.agents = {low, high}};
    enter(network, network->link_count);
    remember_link(&world->nodes[low], network->link_count);
    remember_link(&world->nodes[high], network->link_count);
    return network->link_count++;
}

uint32_t
network_side_of(const struct link *link, uint32_t agent)
{
    return link->agents[1] == agent;
}

static void
packet_free(struct packet *packet)
{
    shared_drop(packet->body);
    free(packet);
}

static void
flush(struct lane *lane)
{
    while (lane->head) {
        struct packet *packet = lane->head;

        lane->head = packet->next;
        packet_free(packet);
    }
    lane->tail = NULL;
}

static void
flush_side(struct link *link, uint32_t side)
{
    for (uint32_t c = 0; c < LANES; c++)
        flush(&link->lanes[side][c]);
}

void
network_fini(struct world *world)
{
    struct network *network = &world->network;

    for (uint32_t i = 0; i < network->link_count; i++)
        for (uint32_t s = 0; s < 2; s++)
            flush_side(&network->links[i], s);
    for (uint32_t i = 0; i < network->link_count; i++)
        seals_close(&network->links[i]);
    free(world->seals_seen.table);
    shared_drop(network->last);
    free(network->links);
    free(network->table);
    memset(network, 0, sizeof *network);
}

/* ---- cuts ---- */

bool
network_is_cut(const struct world *world, uint32_t from, uint32_t to)
{
    const struct network *network = &world->network;
    bool from_side = mix64(network->cut_seed + from) & 1;
    bool to_side = mix64(network->cut_seed + to) & 1;

    switch ((enum cut_kind)network->cut_kind) {
    case CUT_NONE:
        return false;
    case CUT_HALVES:
        return from_side != to_side;
    case CUT_HALVES_ONE_WAY:
        return from_side && !to_side;
    case CUT_LONE:
        return from == network->cut_from || to == network->cut_from;
    case CUT_SOME:
        return mix64(network->cut_seed ^ ((uint64_t)from << 32 | to)) % 5 == 0;
    case CUT_ONE_WAY:
        return from == network->cut_from && to == network->cut_to;
    }
    return false;
}

bool
network_unreliable(const struct world *world)
{
    const struct network *network = &world->network;

    return network->cut_kind != CUT_NONE || network->breaks_per_million != 0 ||
           network->delay_ns_max != 0;
}

static bool
either_way_cut(const struct world *world, const struct link *link)
{
    return network_is_cut(world, link->agents[0], link->agents[1]) ||
           network_is_cut(world, link->agents[1], link->agents[0]);
}

void
network_cut(struct world *world, enum cut_kind kind)
{
    struct network *network = &world->network;
    uint32_t n = world->setup.agent_count;

    network->cut_kind = kind;
    network->cut_seed = random_next(&world->random);
    network->cut_from = (uint32_t)random_below(&world->random, n);
    network->cut_to = (network->cut_from + 1 + (uint32_t)random_below(&world->random, n - 1)) % n;
    world_say(world, "the network is cut, kind %d (%u → %u)", (int)kind, network->cut_from,
              network->cut_to);
    for (uint32_t i = 0; i < network->link_count; i++) {
        struct sim_event event;

        if (!network->links[i].up || !either_way_cut(world, &network->links[i]))
            continue;
        event = sim_event_new(world, EVENT_STARVED, 0,
                              random_between(&world->random, 2 * SECOND_NS, 25 * SECOND_NS));
        event.value = i;
        event.incarnation = network->links[i].session;
        queue_push(&world->queue, &event);
    }
}

void
network_heal(struct world *world)
{
    world->network.cut_kind = CUT_NONE;
    world->network.unreliable_ns = world->now_ns;
}

/* ---- sessions ---- */

static void
push_side(struct world *world, enum event_kind kind, uint32_t index, uint32_t side,
          uint64_t after_ns)
{
    const struct link *link = &world->network.links[index];
    const struct node *node = &world->nodes[link->agents[side]];
    struct sim_event event = sim_event_new(world, kind, node->number, after_ns);

    event.incarnation = node->incarnation;
    event.value = index | (link->session << 32);
    queue_push(&world->queue, &event);
}

static void
try_later(struct world *world, uint32_t index, uint64_t after_ns)
{
    struct link *link = &world->network.links[index];
    struct sim_event event = sim_event_new(world, EVENT_TRY, 0, after_ns);

    if (link->trying || link->up || link->told[0] || link->told[1] ||
        (!link->wanted[0] && !link->wanted[1]))
        return;
    link->trying = true;
    event.value = index;
    queue_push(&world->queue, &event);
}

void
network_end_session(struct world *world, uint32_t index, bool silently)
{
    struct link *link = &world->network.links[index];

    link->up = false;
    for (uint32_t side = 0; side < 2; side++) {
        uint64_t after_ns = silently ? random_below(&world->random, 8 * SECOND_NS)
                            : random_chance(&world->random, 600)
                                ? random_below(&world->random, 50 * MS_NS)
                                : random_below(&world->random, 3 * SECOND_NS);
        uint64_t end_ns =
            world->now_ns +
            (random_chance(&world->random, 500) ? 0 : random_below(&world->random, after_ns + 1));

        for (uint32_t c = 0; c < LANES; c++)
            link->lanes[side][c].end_ns = end_ns;
        if (link->told[side])
            push_side(world, EVENT_DOWN, index, side, after_ns);
    }
    try_later(world, index, 100 * MS_NS);
}

static void
break_session(struct world *world, uint32_t index, bool silently)
{
    if (!world->network.links[index].up)
        return;
    world->counters.breaks++;
    world->network.unreliable_ns = world->now_ns;
    network_end_session(world, index, silently);
}

void
network_connect(struct world *world, struct node *node, uint32_t agent)
{
    uint32_t index;

    if (agent >= world->setup.agent_count || agent == node->number) {
        judge_fail(world, VERDICT_OTHER, "agent %u wants a session with agent %u", node->number,
                   agent);
        return;
    }
    index = find_link(world, node->number, agent, true);
    world->network.links[index]
        .wanted[network_side_of(&world->network.links[index], node->number)] = true;
    try_later(world, index, random_between(&world->random, MS_NS, 60 * MS_NS));
}

void
network_disconnect(struct world *world, struct node *node, uint32_t agent)
{
    uint32_t index = find_link(world, node->number, agent, false);

    if (index != UINT32_MAX)
        break_session(world, index, false);
}

void
network_break_some(struct world *world, struct node *node, uint32_t per_thousand)
{
    for (uint32_t i = 0; i < node->link_count; i++)
        if (random_chance(&world->random, per_thousand))
            break_session(world, node->links[i], random_chance(&world->random, 300));
}

void
network_agent_died(struct world *world, struct node *node, bool node_too)
{
    for (uint32_t i = 0; i < node->link_count; i++) {
        uint32_t index = node->links[i];
        struct link *link = &world->network.links[index];
        uint32_t side = network_side_of(link, node->number);

        link->told[side] = link->wanted[side] = false;
        flush_side(link, side);
        break_session(world, index, node_too);
        try_later(world, index, random_between(&world->random, 100 * MS_NS, SECOND_NS));
    }
    while (node->self_head) {
        struct packet *packet = node->self_head;

        node->self_head = packet->next;
        packet_free(packet);
    }
    node->self_tail = NULL;
    node->sessions = 0;
}

static bool
can_meet(const struct world *world, const struct link *link)
{
    for (uint32_t side = 0; side < 2; side++) {
        const struct node *node = &world->nodes[link->agents[side]];

        if (!node->up || !node->running || node->paused_until_ns > world->now_ns)
            return false;
    }
    return !either_way_cut(world, link);
}

static void
try_session(struct world *world, uint32_t index)
{
    struct link *link = &world->network.links[index];

    link->trying = false;
    if (link->up || link->told[0] || link->told[1])
        return; /* tried again once both sides know of its end */
    if (!can_meet(world, link)) {
        try_later(world, index, random_between(&world->random, 300 * MS_NS, 2 * SECOND_NS));
        return;
    }
    link->up = true;
    link->session++;
    seals_open(world, link);
    for (uint32_t side = 0; side < 2; side++) {
        uint64_t after_ns = random_between(&world->random, MS_NS / 5, 5 * MS_NS);

        if (random_chance(&world->random, 50))
            after_ns += random_below(&world->random, SECOND_NS);
        flush_side(link, side); /* of sessions that this side has never seen */
        link->used_ns[side] = world->now_ns;
        link->leaving[side] = false;
        for (uint32_t c = 0; c < LANES; c++) {
            link->lanes[side][c].last_ns = world->now_ns + after_ns;
            link->lanes[side][c].end_ns = UINT64_MAX;
        }
        push_side(world, EVENT_UP, index, side, after_ns);
    }
}

/* ---- messages ---- */

static uint64_t
latency_ns(struct world *world)
{
    uint64_t late = random_between(&world->random, 200000, 2000000);

    if (world->network.delay_ns_max && random_chance(&world->random, 50))
        late += random_below(&world->random, world->network.delay_ns_max);
    return late;
}

static struct shared *
share_body(struct network *network, const uint8_t *bytes, uint32_t len)
{
    if (len == 0)
        return NULL;
    if (len < SHARED_BYTES_MIN)
        return shared_new(bytes, len);
    if (!network->last || network->last->len != len ||
        memcmp(network->last->bytes, bytes, len) != 0) {
        shared_drop(network->last);
        network->last = shared_new(bytes, len);
    }
    network->last->references++;
    return network->last;
}

static struct packet *
pack(struct world *world, const struct cairn_message *message, const uint8_t *payload,
     uint32_t payload_len)
{
    size_t room = CAIRN_MESSAGE_HEAD_BYTES_MAX + message->bytes_len, used = 0, head;
    uint8_t small[8192], *bytes = room <= sizeof small ? small : malloc(room);
    struct packet *packet = NULL;

    if (!bytes)
        abort();
    if (cairn_message_pack(message, bytes, room, &used) != CAIRN_OK || used < message->bytes_len) {
        judge_fail(world, VERDICT_OTHER, "a message does not pack: %s",
                   cairn_message_name(message->kind));
    } else {
        head = used - message->bytes_len;
        packet = malloc(sizeof *packet + head + payload_len);
        if (!packet)
            abort();
        *packet =
            (struct packet){.body = share_body(&world->network, bytes + head, message->bytes_len),
                            .kind = message->kind,
                            .head_len = (uint32_t)head,
                            .payload_len = payload_len};
        memcpy(packet->bytes, bytes, head);
        if (payload_len)
            memcpy(packet->bytes + head, payload, payload_len);
    }
    if (bytes != small)
        free(bytes);
    return packet;
}

static size_t
message_len(const struct packet *packet)
{
    return packet->head_len + (packet->body ? packet->body->len : 0);
}

static void
append(struct world *world, struct packet **head, struct packet **tail, struct packet *packet,
       uint32_t to, uint64_t value, uint64_t incarnation)
{
    struct sim_event event = sim_event_new(world, EVENT_PACKET, to, packet->at_ns - world->now_ns);

    if (*tail)
        (*tail)->next = packet;
    else
        *head = packet;
    *tail = packet;
    event.value = value;
    event.incarnation = incarnation;
    queue_push(&world->queue, &event);
}

static void
send_to_itself(struct world *world, struct node *node, struct packet *packet)
{
    packet->at_ns = world->now_ns + random_between(&world->random, 1000, MS_NS);
    if (packet->at_ns < node->self_ns)
        packet->at_ns = node->self_ns;
    node->self_ns = packet->at_ns;
    append(world, &node->self_head, &node->self_tail, packet, node->number, TO_ITSELF,
           node->incarnation);
}

static bool
is_long(const struct packet *packet, const struct cairn_message *message)
{
    bool grows = message->kind == CAIRN_MSG_ASK || message->kind == CAIRN_MSG_INVENTORY ||
                 message->kind == CAIRN_MSG_REBUILD || message->kind == CAIRN_MSG_CLAIM ||
                 message->kind == CAIRN_MSG_ACTIVATE;

    return packet->payload_len || message_len(packet) > SHORT_BYTES ||
           (grows && message->bytes_len > 0);
}

static void
count_traffic(struct node *node, const struct packet *packet, bool sent)
{
    if (packet->kind == CAIRN_MSG_HEARTBEAT) {
        node->traffic.heartbeats += sent;
        node->traffic.heartbeat_bytes += sent ? message_len(packet) : 0;
        return;
    }
    node->traffic.messages++;
    node->traffic.bytes += message_len(packet);
}

/* Tags a payload. It may be damaged before, in its sender's memory, or after, on its way. */
static void
payload_damage(struct world *world, struct packet *packet, struct cairn_seal *seal,
               const uint8_t *payload)
{
    uint8_t *bytes = packet->bytes + packet->head_len, change = 0;
    uint32_t at = 0;

    if (packet->payload_len == 0)
        return;
    if (random_chance(&world->random, world->network.damage_per_thousand)) {
        at = (uint32_t)random_below(&world->random, packet->payload_len);
        change = (uint8_t)random_between(&world->random, 1, 255);
        bytes[at] ^= change;
    }
    packet->tag = seals_tag(seal, change & 1 ? bytes : payload, packet->payload_len);
}

void
network_send(struct world *world, struct node *from, const struct cairn_message *message,
             const uint8_t *payload, uint32_t payload_len)
{
    uint32_t index, side, class;
    struct packet *packet;
    struct link *link;
    struct lane *lane;

    judge_sent(world, from, message);
    if (message->to >= world->setup.agent_count || message->from != from->number) {
        judge_fail(world, VERDICT_OTHER, "agent %u sends %s from %u to %u", from->number,
                   cairn_message_name(message->kind), message->from, message->to);
        return;
    }
    packet = pack(world, message, payload, payload_len);
    if (!packet)
        return;
    if (message->to == from->number) {
        send_to_itself(world, from, packet);
        return;
    }
    world->counters.messages++;
    count_traffic(from, packet, true);
    index = find_link(world, from->number, message->to, false);
    side = index == UINT32_MAX ? 0 : network_side_of(&world->network.links[index], message->to);
    if (index == UINT32_MAX || !world->network.links[index].told[!side]) {
        judge_fail(world, VERDICT_OTHER, "agent %u sends %s to agent %u without a session",
                   from->number, cairn_message_name(message->kind), message->to);
        packet_free(packet);
        return;
    }
    link = &world->network.links[index];
    if (link->up && random_below(&world->random, 1000000) < world->network.breaks_per_million)
        break_session(world, index, random_chance(&world->random, 300));
    if (!link->up) {
        packet_free(packet);
        return;
    }
    link->used_ns[!side] = world->now_ns;
    count_traffic(&world->nodes[message->to], packet, false);
    payload_damage(world, packet, link->seals[side][0], payload);
    class = is_long(packet, message) ? LANE_BULK : LANE_CONTROL;
    lane = &link->lanes[side][class];
    packet->at_ns = world->now_ns + latency_ns(world);
    if (class == LANE_BULK && random_chance(&world->random, 100)) /* others' blocks go first */
        packet->at_ns += random_below(&world->random, QUEUE_NS_MAX);
    if (packet->at_ns < lane->last_ns)
        packet->at_ns = lane->last_ns;
    lane->last_ns = packet->at_ns;
    append(world, &lane->head, &lane->tail, packet, message->to, index | ((uint64_t) class << 32),
           link->session);
}

static struct lane *
lane_of(const struct world *world, const struct sim_event *event, struct link **link)
{
    *link = &world->network.links[(uint32_t)event->value];
    return &(*link)->lanes[network_side_of(*link, event->node)][event->value >> 32];
}

uint32_t
network_next_kind(const struct world *world, const struct sim_event *event)
{
    const struct packet *packet;
    struct link *link;

    if (event->value == TO_ITSELF) {
        packet = world->nodes[event->node].self_head;
    } else {
        packet = lane_of(world, event, &link)->head;
        if (!link->told[network_side_of(link, event->node)])
            return 0;
    }
    return packet ? packet->kind : 0;
}

static bool
payload_good(const struct cairn_message *message, const uint8_t *payload, uint32_t payload_len)
{
    struct cairn_reader reader;
    uint32_t count = cairn_message_block_count(message);

    if (payload_len == 0 || payload_len != count * BLOCK_BYTES || message->bytes_len != 8 * count)
        return false;
    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    for (uint32_t i = 0; i < count; i++)
        if (cairn_read_u64(&reader) != block_crc(payload + (size_t)i * BLOCK_BYTES))
            return false;
    return true;
}

/* How much of a packet arrives. */
enum arrival {
    ARRIVES,
    ARRIVES_TORN, /* without its payload, whose tags are not those of its bytes */
    ARRIVES_HALF  /* half of its payload, and no message: the session ends */
};

static void
hand_over(struct world *world, struct node *node, const struct packet *packet, enum arrival arrival)
{
    struct cairn_message message;
    struct cairn_event event = {.type = CAIRN_EVENT_MESSAGE};
    uint32_t payload_len = arrival == ARRIVES_TORN ? 0 : packet->payload_len;
    const uint8_t *payload = payload_len ? packet->bytes + packet->head_len : NULL;
    uint8_t small[4096], *bytes = small;
    size_t len = message_len(packet);

    if (len > sizeof small && !(bytes = malloc(len)))
        abort();
    memcpy(bytes, packet->bytes, packet->head_len);
    if (packet->body)
        memcpy(bytes + packet->head_len, packet->body->bytes, packet->body->len);
    if (cairn_message_unpack(bytes, len, &message) != CAIRN_OK) {
        judge_fail(world, VERDICT_OTHER, "a message does not unpack: %s",
                   cairn_message_name(packet->kind));
    } else if (arrival == ARRIVES_HALF) {
        node_place(world, node, &message, payload, payload_len / 2);
    } else {
        node_place(world, node, &message, packet->bytes + packet->head_len, packet->payload_len);
        event.as.message.message = &message;
        event.as.message.payload_ok = payload_good(&message, payload, payload_len);
        judge_got(world, node, &message);
        if (packet->payload_len && !event.as.message.payload_ok)
            world_say(world, "the blocks of the next message are damaged");
        node_event(world, node, &event, payload);
    }
    if (bytes != small)
        free(bytes);
}

static void
tell_side(struct world *world, const struct sim_event *sim_event)
{
    uint32_t index = (uint32_t)sim_event->value;
    struct link *link = &world->network.links[index];
    struct node *node = &world->nodes[sim_event->node];
    uint32_t side = network_side_of(link, node->number), peer = link->agents[!side];
    bool begins = sim_event->kind == EVENT_UP;
    struct cairn_event event = {.type = begins ? CAIRN_EVENT_PEER_UP : CAIRN_EVENT_PEER_DOWN};

    if (!node->running || node->incarnation != sim_event->incarnation ||
        (uint32_t)link->session != (uint32_t)(sim_event->value >> 32) ||
        link->told[side] == begins || (begins && !link->up))
        return;
    link->told[side] = begins;
    node->sessions += begins ? 1 : UINT32_MAX;
    event.as.peer.agent = peer;
    event.as.peer.incarnation = begins ? world->nodes[peer].incarnation : 0;
    if (!begins) {
        const struct packet *arriving = link->lanes[side][LANE_BULK].head;

        if (arriving && arriving->kind == CAIRN_MSG_WRITE)
            hand_over(world, node, arriving, ARRIVES_HALF);
        flush_side(link, side);
        try_later(world, index, random_between(&world->random, 10 * MS_NS, 300 * MS_NS));
    }
    world_say(world, "agent %u: session with %u %s", node->number, peer,
              begins ? "begins" : "has ended");
    node_event(world, node, &event, NULL);
}

static bool
is_torn(struct cairn_seal *seal, const struct packet *packet)
{
    return packet->payload_len &&
           seals_tag(seal, packet->bytes + packet->head_len, packet->payload_len) != packet->tag;
}

static void
deliver(struct world *world, struct sim_event *event)
{
    struct node *node = &world->nodes[event->node];
    struct packet *packet;
    struct link *link;
    struct lane *lane;
    uint32_t side;

    if (event->value == TO_ITSELF) {
        packet = node->running && node->incarnation == event->incarnation ? node->self_head : NULL;
        if (!packet)
            return;
        node->self_head = packet->next;
        if (!node->self_head)
            node->self_tail = NULL;
        hand_over(world, node, packet, ARRIVES);
        packet_free(packet);
        return;
    }
    lane = lane_of(world, event, &link);
    side = network_side_of(link, node->number);
    if (link->session != event->incarnation || !lane->head)
        return;
    if (network_is_cut(world, link->agents[!side], node->number)) { /* sent again and again */
        struct sim_event later = *event;

        later.at_ns = world->now_ns + random_between(&world->random, 50 * MS_NS, 400 * MS_NS);
        queue_push(&world->queue, &later);
        return;
    }
    packet = lane->head;
    lane->head = packet->next;
    if (!lane->head)
        lane->tail = NULL;
    if (node->running && link->told[side] && packet->at_ns <= lane->end_ns) {
        link->used_ns[side] = world->now_ns;
        link->leaving[side] = false;
        hand_over(world, node, packet,
                  is_torn(link->seals[side][1], packet) ? ARRIVES_TORN : ARRIVES);
    }
    packet_free(packet);
}

void
network_event(struct world *world, struct sim_event *event)
{
    struct network *network = &world->network;

    switch (event->kind) {
    case EVENT_TRY:
        try_session(world, (uint32_t)event->value);
        break;
    case EVENT_UP:
    case EVENT_DOWN:
        tell_side(world, event);
        break;
    case EVENT_STARVED:
        if (network->links[event->value].session == event->incarnation &&
            either_way_cut(world, &network->links[event->value]))
            break_session(world, (uint32_t)event->value, true);
        break;
    case EVENT_PACKET:
        deliver(world, event);
        break;
    default:
        break;
    }
}
