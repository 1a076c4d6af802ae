/* agent/core/answer.c - see answer.h. */
#include "agent/core/answer.h"

#include <stdlib.h>
#include <string.h>

static bool
pins(const struct asked *asked)
{
    return asked->attempt != 0 && asked->mode == CAIRN_ASK_VERIFY;
}

static void
send_inventory(struct env *env, struct asked *asked, const struct parts *parts,
               const struct inventory_self *self)
{
    struct cairn_message message = env_message(env, CAIRN_MSG_INVENTORY, self->active);
    uint8_t *bytes = NULL;
    size_t len = 0;

    if (inventory_pack(self, parts, &bytes, &len) != CAIRN_OK) {
        env->actions->failed = true;
        return;
    }
    message.as.inventory.attempt = asked->attempt;
    message.as.inventory.mode = asked->mode;
    message.bytes = bytes;
    message.bytes_len = (uint32_t)len;
    env_send(env, asked->coordinator, &message);
    free(bytes);
    asked->owed = false;
}

void
answer_progress(struct env *env, struct answering *answering, const struct parts *parts,
                const struct inventory_self *self)
{
    struct asked *verify = &answering->verify;

    if (!self->knows)
        return;
    if (answering->list.owed)
        send_inventory(env, &answering->list, parts, self);
    if (verify->owed && parts_are_verified(parts, verify->generation, verify->check))
        send_inventory(env, verify, parts, self);
}

static void
release(struct answering *answering, uint32_t coordinator, uint64_t attempt)
{
    if (answering->verify.coordinator == coordinator && answering->verify.attempt <= attempt)
        memset(&answering->verify, 0, sizeof answering->verify);
}

void
answer_ask(struct env *env, struct answering *answering, struct parts *parts,
           const struct inventory_self *self, const struct cairn_message *message)
{
    const struct cairn_message_ask *ask = &message->as.ask;
    struct asked *asked = ask->mode == CAIRN_ASK_LIST ? &answering->list : &answering->verify;

    if (ask->attempt == 0 || ask->mode > CAIRN_ASK_RELEASE)
        return;
    if (ask->mode == CAIRN_ASK_RELEASE) {
        release(answering, message->from, ask->attempt);
        return;
    }
    if (asked->coordinator == message->from && asked->attempt > ask->attempt)
        return; /* of an earlier try */
    if (asked->coordinator != message->from || asked->attempt != ask->attempt)
        *asked = (struct asked){.attempt = ask->attempt,
                                .coordinator = message->from,
                                .mode = ask->mode,
                                .generation = ask->generation,
                                .check = env_request(env)};
    asked->owed = true;
    if (asked->mode == CAIRN_ASK_VERIFY_ALL)
        asked->generation = (struct cairn_generation){0};
    if (asked->mode != CAIRN_ASK_LIST)
        parts_verify(env, parts, asked->generation, asked->check);
    answer_progress(env, answering, parts, self);
}

bool
answer_peer_down(struct answering *answering, uint32_t agent)
{
    bool pinned = pins(&answering->verify) && answering->verify.coordinator == agent;

    if (answering->list.coordinator == agent)
        memset(&answering->list, 0, sizeof answering->list);
    release(answering, agent, UINT64_MAX);
    return pinned;
}

bool
answer_ends(struct answering *answering)
{
    bool pinned = pins(&answering->verify);

    if (pinned)
        memset(&answering->verify, 0, sizeof answering->verify);
    return pinned;
}

bool
answer_pins(const struct answering *answering, struct cairn_generation *out)
{
    if (!pins(&answering->verify))
        return false;
    *out = answering->verify.generation;
    return true;
}
