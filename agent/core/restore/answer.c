/* agent/core/restore/answer.c - see answer.h. */
#include "agent/core/restore/answer.h"

#include <stdlib.h>
#include <string.h>

static void
send_inventory(struct env *env, uint32_t to, uint64_t attempt, uint32_t mode,
               const struct parts *parts, const struct inventory_self *self)
{
    struct cairn_message message = env_message(env, CAIRN_MSG_INVENTORY, self->active);
    uint8_t *bytes = NULL;
    size_t len = 0;

    if (inventory_pack(self, parts, &bytes, &len) != CAIRN_OK) {
        env->actions->failed = true;
        return;
    }
    message.as.inventory.attempt = attempt;
    message.as.inventory.mode = mode;
    message.bytes = bytes;
    message.bytes_len = (uint32_t)len;
    env_send(env, to, &message);
    free(bytes);
}

/* Forgets what is owed to a coordinator for this attempt and earlier ones. */
static void
drop_owed(struct answering *answering, uint32_t coordinator, uint64_t attempt)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < answering->owed_count; i++)
        if (answering->owed[i].coordinator != coordinator || answering->owed[i].attempt > attempt)
            answering->owed[kept++] = answering->owed[i];
    answering->owed_count = kept;
}

void
answer_progress(struct env *env, struct answering *answering, const struct parts *parts,
                const struct inventory_self *self)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < answering->owed_count; i++) {
        const struct owed *owed = &answering->owed[i];

        if (parts_are_verified(parts, owed->generation, owed->check))
            send_inventory(env, owed->coordinator, owed->attempt, owed->mode, parts, self);
        else
            answering->owed[kept++] = *owed;
    }
    answering->owed_count = kept;
}

static void
unpin(struct answering *answering)
{
    answering->attempt = 0;
    answering->mode = 0;
}

bool
answer_ends(struct answering *answering)
{
    struct cairn_generation_id unused;

    if (!answer_pins(answering, &unused))
        return false;
    unpin(answering);
    return true;
}

static void
verify(struct env *env, struct answering *answering, struct parts *parts,
       const struct inventory_self *self, const struct cairn_message *message)
{
    const struct cairn_message_ask *ask = &message->as.ask;
    struct owed owed = {.attempt = ask->attempt,
                        .coordinator = message->from,
                        .mode = ask->mode,
                        .check = env_request(env)};

    if (answering->attempt > ask->attempt && answering->coordinator == message->from)
        return; /* of an earlier try */
    if (ask->mode == CAIRN_ASK_VERIFY)
        owed.generation = ask->generation;
    answering->attempt = ask->attempt;
    answering->coordinator = message->from;
    answering->mode = ask->mode;
    answering->generation = owed.generation;
    drop_owed(answering, message->from, UINT64_MAX);
    if (answering->owed_count == OWED_MAX)
        memmove(&answering->owed[0], &answering->owed[1],
                --answering->owed_count * sizeof answering->owed[0]);
    answering->owed[answering->owed_count++] = owed;
    parts_verify(env, parts, owed.generation, owed.check);
    answer_progress(env, answering, parts, self);
}

/* Meets the agents that an ASK lists. */
static void
meet(const struct env *env, struct peers *peers, const struct cairn_message *message)
{
    struct cairn_reader reader;

    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    while (cairn_reader_left(&reader) >= sizeof(uint32_t) + sizeof(uint64_t)) {
        uint32_t agent = cairn_read_u32(&reader);
        uint64_t incarnation = cairn_read_u64(&reader);

        if (agent < env->options->agent_count && agent != env->options->self)
            peers_meet(peers, agent, incarnation);
    }
}

void
answer_ask(struct env *env, struct answering *answering, struct parts *parts, struct peers *peers,
           const struct inventory_self *self, const struct cairn_message *message)
{
    const struct cairn_message_ask *ask = &message->as.ask;

    if (ask->attempt == 0)
        return;
    meet(env, peers, message);
    switch (ask->mode) {
    case CAIRN_ASK_LIST:
        send_inventory(env, message->from, ask->attempt, ask->mode, parts, self);
        break;
    case CAIRN_ASK_VERIFY:
    case CAIRN_ASK_VERIFY_ALL:
        verify(env, answering, parts, self, message);
        break;
    case CAIRN_ASK_RELEASE:
        drop_owed(answering, message->from, ask->attempt);
        if (answering->coordinator == message->from && answering->attempt <= ask->attempt)
            unpin(answering);
        break;
    default:
        break;
    }
}

bool
answer_peer_down(struct answering *answering, uint32_t agent)
{
    bool pinned;

    drop_owed(answering, agent, UINT64_MAX);
    if (answering->attempt == 0 || answering->coordinator != agent)
        return false;
    pinned = answer_ends(answering);
    unpin(answering);
    return pinned;
}

bool
answer_pins(const struct answering *answering, struct cairn_generation_id *out)
{
    if (answering->attempt == 0 || answering->mode != CAIRN_ASK_VERIFY)
        return false;
    *out = answering->generation;
    return true;
}

bool
answer_pins_for(const struct answering *answering, uint32_t coordinator, uint64_t attempt)
{
    return answering->mode == CAIRN_ASK_VERIFY && answering->coordinator == coordinator &&
           attempt != 0 && answering->attempt == attempt;
}
