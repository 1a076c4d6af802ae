/*
 * tests/sim/network.c - messages between agents: packed and unpacked by the product, lost,
 * repeated, late, out of order, damaged, or cut off.
 *
 * A message to oneself takes the same way, but is never cut. Block checksums are compared at the
 * receiver, as the transport does it, before the core sees the message.
 */
#include "tests/sim/sim.h"

#include "base/wire.h"
#include "erasure/stripe.h"

#include <stdlib.h>
#include <string.h>

bool
network_cut(const struct world *world, uint32_t from, uint32_t to)
{
    return world->cuts && from != to && world->cut[from * world->setup.agent_count + to];
}

bool
network_unreliable(const struct world *world)
{
    return world->cuts || world->loss_per_thousand != 0 || world->delay_ns_max != 0;
}

static uint64_t
latency_ns(struct world *world)
{
    uint64_t late = random_between(&world->random, 200000, 2000000);

    if (world->delay_ns_max && random_chance(&world->random, 200))
        late += random_below(&world->random, world->delay_ns_max);
    return late;
}

static bool
is_control(enum cairn_message_type type)
{
    switch (type) {
    case CAIRN_MSG_DATA:
    case CAIRN_MSG_DATA_ACK:
    case CAIRN_MSG_SEAL_ACK:
    case CAIRN_MSG_READ:
    case CAIRN_MSG_BLOCKS:
    case CAIRN_MSG_WRITE:
    case CAIRN_MSG_WRITE_ACK:
    case CAIRN_MSG_ACTIVATE_ACK:
        return false;
    default:
        return true;
    }
}

void
network_send(struct world *world, struct node *from, const struct cairn_message *message,
             const uint8_t *payload, uint32_t payload_len)
{
    size_t room = CAIRN_MESSAGE_FIXED_BYTES + message->bytes_len, used = 0;
    struct packet *packet;
    uint32_t copies = 1;

    judge_sent(world, from, message);
    world->counters.messages++;
    world->counters.control_messages += is_control(message->type);
    if (message->to >= world->setup.agent_count) {
        judge_fail(world, VERDICT_OTHER, "agent %u sends %s to agent %u, which is none",
                   from->number, cairn_message_name(message->type), message->to);
        return;
    }
    if (network_cut(world, from->number, message->to) ||
        random_chance(&world->random, world->loss_per_thousand))
        return;
    packet = malloc(sizeof *packet + room + payload_len);
    if (!packet)
        abort();
    if (cairn_message_pack(message, packet->bytes, room, &used) != CAIRN_OK || used != room) {
        judge_fail(world, VERDICT_OTHER, "a message does not pack: %s",
                   cairn_message_name(message->type));
        free(packet);
        return;
    }
    if (payload_len)
        memcpy(packet->bytes + used, payload, payload_len);
    packet->from = from->number;
    packet->to = message->to;
    packet->len = (uint32_t)used;
    packet->payload_len = payload_len;
    if (payload_len && random_chance(&world->random, world->damage_per_thousand))
        packet->bytes[used + random_below(&world->random, payload_len)] ^=
            (uint8_t)random_between(&world->random, 1, 255);
    copies += random_chance(&world->random, world->repeat_per_thousand);
    packet->references = copies;
    for (uint32_t i = 0; i < copies; i++) {
        struct sim_event event = sim_event_new(
            world, EVENT_PACKET, packet->to,
            latency_ns(world) + (i ? random_below(&world->random, 5 * SECOND_NS) : 0));

        event.as.packet = packet;
        queue_push(&world->queue, &event);
    }
}

static bool
payload_good(const struct cairn_message *message, const uint8_t *payload, uint32_t payload_len)
{
    struct cairn_reader reader;

    if (payload_len == 0)
        return false;
    if (payload_len != message->block_count * BLOCK_BYTES ||
        message->bytes_len != 8 * message->block_count)
        return false;
    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    for (uint32_t i = 0; i < message->block_count; i++)
        if (cairn_read_u64(&reader) != block_crc(payload + (size_t)i * BLOCK_BYTES))
            return false;
    return true;
}

void
network_deliver(struct world *world, struct sim_event *event)
{
    struct packet *packet = event->as.packet;
    struct node *node = &world->nodes[packet->to];
    struct cairn_message message;
    struct cairn_event input = {.type = CAIRN_EVENT_MESSAGE, .message = &message};

    if (!node->up || !node->running)
        return;
    if (cairn_message_unpack(packet->bytes, packet->len, &message) != CAIRN_OK) {
        judge_fail(world, VERDICT_OTHER, "a message does not unpack");
        return;
    }
    input.payload_ok = payload_good(&message, packet->bytes + packet->len, packet->payload_len);
    if (world->verbose && message.type != CAIRN_MSG_HEARTBEAT)
        world_say(world,
                  "%u → %u %s e=%llx g=%llx.%llu member=%u row=%u stripe=%u first=%llu count=%u "
                  "offset=%llu request=%llu err=%u%s",
                  message.from, message.to, cairn_message_name(message.type),
                  (unsigned long long)message.epoch, (unsigned long long)message.generation.epoch,
                  (unsigned long long)message.generation.step, message.member, message.row,
                  message.stripe, (unsigned long long)message.first_block, message.block_count,
                  (unsigned long long)message.offset, (unsigned long long)message.request,
                  message.err, packet->payload_len && !input.payload_ok ? " DAMAGED" : "");
    node_event(world, node, &input, packet->bytes + packet->len);
}
