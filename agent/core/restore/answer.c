/* agent/core/restore/answer.c - see answer.h. */
#include "agent/core/restore/answer.h"

#include <stdlib.h>
#include <string.h>

cairn_err
answer_init(struct answering *answering, uint32_t agent_count)
{
    answering->askers = calloc(agent_count, sizeof *answering->askers);
    return answering->askers ? CAIRN_OK : CAIRN_NOMEM;
}

void
answer_fini(struct answering *answering)
{
    free(answering->askers);
    memset(answering, 0, sizeof *answering);
}

void
answer_progress(struct env *env, struct answering *answering, const struct inventory_self *self)
{
    for (uint32_t a = 0; a < env->options->agent_count; a++) {
        struct asker *asker = &answering->askers[a];

        if (asker->attempt == 0 || !parts_are_verified(env->parts, asker->generation))
            continue;
        inventory_send(env, a, asker->attempt, self);
        asker->attempt = 0;
    }
}

void
answer_unpin(struct env *env, struct answering *answering)
{
    answering->attempt = 0;
    env->parts->pinned = false;
}

static void
verify(struct env *env, struct answering *answering, const struct inventory_self *self,
       const struct cairn_message *message)
{
    const struct cairn_message_ask *ask = &message->as.ask;
    struct asker *asker = &answering->askers[message->from];

    if (ask->attempt < asker->open_from)
        return;
    *asker = (struct asker){.open_from = ask->attempt, .attempt = ask->attempt};
    if (ask->mode == CAIRN_ASK_VERIFY) {
        asker->generation = ask->generation;
        answering->attempt = ask->attempt;
        answering->coordinator = message->from;
        env->parts->pinned = true;
        env->parts->pinned_generation = ask->generation;
    }
    parts_verify(env, asker->generation);
    answer_progress(env, answering, self);
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
answer_ask(struct env *env, struct answering *answering, struct peers *peers,
           const struct inventory_self *self, const struct cairn_message *message)
{
    const struct cairn_message_ask *ask = &message->as.ask;
    struct asker *asker = &answering->askers[message->from];

    if (ask->attempt == 0)
        return;
    meet(env, peers, message);
    switch (ask->mode) {
    case CAIRN_ASK_LIST:
        inventory_send(env, message->from, ask->attempt, self);
        break;
    case CAIRN_ASK_VERIFY:
    case CAIRN_ASK_VERIFY_ALL:
        verify(env, answering, self, message);
        break;
    case CAIRN_ASK_RELEASE:
        asker->open_from = max_u64(asker->open_from, ask->attempt + 1);
        if (asker->attempt < asker->open_from)
            asker->attempt = 0;
        if (answer_pins_for(answering, message->from, min_u64(answering->attempt, ask->attempt)))
            answer_unpin(env, answering);
        break;
    default:
        break;
    }
}

void
answer_peer_down(struct env *env, struct answering *answering, uint32_t agent)
{
    answering->askers[agent] = (struct asker){0};
    if (answering->coordinator == agent)
        answer_unpin(env, answering);
}

bool
answer_pins_for(const struct answering *answering, uint32_t coordinator, uint64_t attempt)
{
    return answering->coordinator == coordinator && attempt != 0 && answering->attempt == attempt;
}
