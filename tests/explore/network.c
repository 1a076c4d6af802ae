/*
 * tests/explore/network.c - sessions between agents.
 *
 * One side or both want a session. It begins when both can, and each side learns that in a step of
 * its own; the same when it ends. Within a session control messages arrive in order, and bulk
 * messages do; between the two classes there is no order. Bulk is what carries blocks or may be
 * long in a large job. What is on its way when the session ends is lost. What was delivered before
 * is a prefix of each class, because the end may come after any delivery.
 */
#include "tests/explore/explore.h"

#include <stdio.h>
#include <string.h>

static bool
is_bulk(const struct cairn_message *message)
{
    switch (message->kind) {
    case CAIRN_MSG_DATA:
    case CAIRN_MSG_BLOCKS:
    case CAIRN_MSG_WRITE:
    case CAIRN_MSG_SEAL:
    case CAIRN_MSG_INVENTORY:
    case CAIRN_MSG_REBUILD:
    case CAIRN_MSG_CLAIM:
    case CAIRN_MSG_ACTIVATE:
        return true;
    default:
        return message->kind == CAIRN_MSG_AUDIT && message->as.audit.answer;
    }
}

static uint64_t
hash_bytes(const uint8_t *bytes, size_t len)
{
    uint64_t hash = len;

    for (; len >= 8; bytes += 8, len -= 8) {
        uint64_t word;

        memcpy(&word, bytes, 8);
        hash = hash_mix(hash, word);
    }
    for (; len > 0; bytes++, len--)
        hash = hash_mix(hash, *bytes);
    return hash;
}

static struct packet *
pack(const struct cairn_message *message, const uint8_t *payload, uint32_t payload_len)
{
    size_t room = CAIRN_MESSAGE_HEAD_BYTES_MAX + message->bytes_len, used = 0;
    struct packet *packet = malloc(sizeof *packet + room + payload_len);

    if (cairn_message_pack(message, packet->bytes, room, &used) != CAIRN_OK)
        fail("a message cannot be packed");
    packet->next = NULL;
    packet->len = (uint32_t)used;
    packet->payload_len = payload_len;
    if (payload_len)
        memcpy(packet->bytes + used, payload, payload_len);
    return packet;
}

static uint64_t
hash_message(const struct cairn_message *message, const struct packet *packet)
{
    uint8_t bytes[CAIRN_MESSAGE_HEAD_BYTES_MAX];
    struct cairn_message plain = *message;
    size_t used = 0;

    if (message->kind != CAIRN_MSG_REPORT)
        return hash_bytes(packet->bytes, packet->len + packet->payload_len);
    plain.as.report.for_ms = 0;
    plain.bytes_len = 0;
    if (cairn_message_pack(&plain, bytes, sizeof bytes, &used) != CAIRN_OK)
        return 0;
    return hash_bytes(bytes, used);
}

void
network_send(struct agent *from, const struct cairn_message *message, const uint8_t *payload,
             uint32_t payload_len)
{
    struct arena *last = arena_use(arena_number(world->setup.agents));
    uint32_t to = message->to;
    struct packet *packet;
    struct channel *channel;

    if (to != from->number &&
        (!world->open[to][from->number] || !world->sides[from->number][to].up))
        goto done;
    packet = pack(message, payload, payload_len);
    if (message->kind == CAIRN_MSG_HEARTBEAT) {
        packet->hash = to | (uint64_t)from->number << 32;
        if (world->last_beat)
            world->last_beat->next = packet;
        else
            world->beats = packet;
        world->last_beat = packet;
        goto done;
    }
    packet->hash = hash_message(message, packet);
    channel = &world->channels[to][from->number][is_bulk(message) ? CHANNEL_BULK : CHANNEL_CONTROL];
    if (channel->last)
        channel->last->next = packet;
    else
        channel->first = packet;
    channel->last = packet;
done:
    arena_use(last);
}

void
network_connect(uint32_t a, uint32_t b)
{
    world->sides[a][b].wanted = true;
}

static void
channel_clear(struct channel *channel)
{
    while (channel->first) {
        struct packet *next = channel->first->next;

        free(channel->first);
        channel->first = next;
    }
    channel->last = NULL;
}

static void
end_side(struct side *side)
{
    side->to_up = false;
    if (side->up)
        side->to_down = true;
}

void
network_end(uint32_t a, uint32_t b)
{
    if (!world->open[a][b])
        return;
    world->open[a][b] = world->open[b][a] = false;
    for (uint32_t class = 0; class < CHANNELS; class ++) {
        channel_clear(&world->channels[a][b][class]);
        channel_clear(&world->channels[b][a][class]);
    }
    end_side(&world->sides[a][b]);
    end_side(&world->sides[b][a]);
}

void
network_crash(uint32_t a)
{
    for (uint32_t b = 0; b < world->setup.agents; b++) {
        if (b != a)
            network_end(a, b);
        world->sides[a][b] = (struct side){0};
    }
    for (uint32_t class = 0; class < CHANNELS; class ++)
        channel_clear(&world->channels[a][a][class]);
}

static bool
can_meet(uint32_t a)
{
    return agents[a]->core && !agents[a]->paused;
}

void
network_settle(void)
{
    for (uint32_t a = 0; a < world->setup.agents; a++)
        for (uint32_t b = a + 1; b < world->setup.agents; b++) {
            struct side *left = &world->sides[a][b], *right = &world->sides[b][a];

            if (world->open[a][b] || world->split[a][b] || !can_meet(a) || !can_meet(b) ||
                !(left->wanted || right->wanted) || left->up || right->up)
                continue;
            world->open[a][b] = world->open[b][a] = true;
            left->to_up = right->to_up = true;
        }
}

static void
give(struct agent *to, struct packet *packet, bool damaged)
{
    uint8_t payload[CAIRN_MESSAGE_BLOCKS_MAX * BLOCK_BYTES];
    struct cairn_event event = {.type = CAIRN_EVENT_MESSAGE};
    struct cairn_message message;

    if (cairn_message_unpack(packet->bytes, packet->len, &message) != CAIRN_OK) {
        fail("a message cannot be unpacked");
        return;
    }
    memcpy(payload, packet->bytes + packet->len, packet->payload_len);
    if (damaged)
        payload[0] ^= 1;
    event.as.message.message = &message;
    event.as.message.payload_ok = true;
    for (uint32_t i = 0; i < packet->payload_len / BLOCK_BYTES; i++) {
        uint64_t crc = block_crc(payload + (size_t)i * BLOCK_BYTES), said = 0;

        for (uint32_t b = 0; b < 8; b++)
            said |= (uint64_t)message.bytes[8 * i + b] << (8 * b);
        event.as.message.payload_ok &= crc == said;
    }
    agent_event(to, &event, payload);
}

void
network_deliver(uint32_t to, uint32_t from, uint32_t class, bool damaged)
{
    struct channel *channel = &world->channels[to][from][class];
    struct packet *packet = channel->first;

    channel->first = packet->next;
    if (!channel->first)
        channel->last = NULL;
    give(agents[to], packet, damaged);
    free(packet);
}

void
network_beats(void)
{
    while (world->beats && !failed()) {
        struct packet *packet = world->beats;
        uint32_t to = (uint32_t)packet->hash, from = (uint32_t)(packet->hash >> 32);

        world->beats = packet->next;
        if (!world->beats)
            world->last_beat = NULL;
        if (world->open[to][from] && world->sides[to][from].up && agents[to]->core &&
            !agents[to]->paused)
            give(agents[to], packet, false);
        free(packet);
    }
}

uint64_t
network_hash(void)
{
    uint64_t hash = 3;

    for (uint32_t a = 0; a < world->setup.agents; a++)
        for (uint32_t b = 0; b < world->setup.agents; b++) {
            const struct side *side = &world->sides[a][b];

            hash = hash_mix(hash, (uint64_t)side->up | (uint64_t)side->to_up << 1 |
                                      (uint64_t)side->to_down << 2 | (uint64_t)side->wanted << 3 |
                                      (uint64_t)world->open[a][b] << 4 |
                                      (uint64_t)world->split[a][b] << 5);
            for (uint32_t class = 0; class < CHANNELS; class ++)
                for (const struct packet *packet = world->channels[a][b][class].first; packet;
                     packet = packet->next)
                    hash = hash_mix(hash, packet->hash + class);
        }
    return hash;
}

void
network_describe(uint32_t to, uint32_t from, uint32_t class, char *text, size_t bytes)
{
    const struct packet *packet = world->channels[to][from][class].first;
    struct cairn_message message;
    char more[96] = "";

    if (!packet || cairn_message_unpack(packet->bytes, packet->len, &message) != CAIRN_OK) {
        snprintf(text, bytes, "?");
        return;
    }
    switch (message.kind) {
    case CAIRN_MSG_DECISION:
        snprintf(more, sizeof more, " serial=%llx run=%llx next=%llu committed=%llu",
                 (unsigned long long)message.as.decision.decision.serial,
                 (unsigned long long)message.as.decision.decision.run,
                 (unsigned long long)message.as.decision.decision.next,
                 (unsigned long long)message.as.decision.decision.committed.step);
        break;
    case CAIRN_MSG_DATA:
        snprintf(more, sizeof more, " step=%llu",
                 (unsigned long long)message.as.data.generation.step);
        break;
    case CAIRN_MSG_SEAL:
        snprintf(more, sizeof more, " step=%llu of=%u for=%u",
                 (unsigned long long)message.as.seal.generation.step, message.as.seal.member,
                 message.as.seal.for_member);
        break;
    case CAIRN_MSG_RECEIVED:
        snprintf(more, sizeof more, " step=%llu row=%x",
                 (unsigned long long)message.as.received.generation.step, message.as.received.row);
        break;
    case CAIRN_MSG_POSITION:
        snprintf(more, sizeof more, " promised=%llx",
                 (unsigned long long)message.as.position.promised);
        break;
    case CAIRN_MSG_REPORT:
        snprintf(more, sizeof more,
                 " agent=%u ranks=%u registration=%llu complete=%llu aborted=%llu reason=%u "
                 "cause=%u for=%u",
                 message.as.report.agent, message.as.report.ranks,
                 (unsigned long long)message.as.report.registration,
                 (unsigned long long)message.as.report.complete0.step,
                 (unsigned long long)message.as.report.aborted.step, message.as.report.reason,
                 message.as.report.cause, message.as.report.for_agent);
        break;
    case CAIRN_MSG_ASK:
        snprintf(more, sizeof more, " mode=%u step=%llu", message.as.ask.mode,
                 (unsigned long long)message.as.ask.generation.step);
        break;
    case CAIRN_MSG_PROMISE:
        snprintf(more, sizeof more, " err=%s", cairn_err_text((cairn_err)message.as.promise.err));
        break;
    case CAIRN_MSG_REBUILT:
        snprintf(more, sizeof more, " member=%u finished=%u err=%s", message.as.rebuilt.member,
                 message.as.rebuilt.finished, cairn_err_text((cairn_err)message.as.rebuilt.err));
        break;
    default:
        break;
    }
    snprintf(text, bytes, "%s epoch=%llx%s", cairn_message_name(message.kind),
             (unsigned long long)message.epoch, more);
}
