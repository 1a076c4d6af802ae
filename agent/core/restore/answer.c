/* agent/core/restore/answer.c - see answer.h. */
#include "agent/core/restore/answer.h"

#include <stdlib.h>
#include <string.h>

cairn_err
answer_init(struct answering *answering, uint32_t agent_count)
{
    answering->open_from = calloc(agent_count, sizeof *answering->open_from);
    return answering->open_from ? CAIRN_OK : CAIRN_NOMEM;
}

void
answer_fini(struct answering *answering)
{
    free(answering->open_from);
    memset(answering, 0, sizeof *answering);
}

/* Forgets the answers owed to a coordinator for attempts up to this one. */
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
answer_progress(struct env *env, struct answering *answering, const struct inventory_self *self)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < answering->owed_count; i++) {
        const struct owed *owed = &answering->owed[i];

        if (parts_are_verified(env->parts, owed->generation, owed->check))
            inventory_send(env, owed->coordinator, owed->attempt, self);
        else
            answering->owed[kept++] = *owed;
    }
    answering->owed_count = kept;
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
    struct owed owed = {
        .attempt = ask->attempt, .coordinator = message->from, .check = env_request(env)};

    if (ask->attempt < answering->open_from[message->from])
        return;
    answering->open_from[message->from] = ask->attempt;
    if (ask->mode == CAIRN_ASK_VERIFY) {
        owed.generation = ask->generation;
        answering->attempt = ask->attempt;
        answering->coordinator = message->from;
        env->parts->pinned = true;
        env->parts->pinned_generation = ask->generation;
    }
    drop_owed(answering, message->from, UINT64_MAX);
    if (answering->owed_count == OWED_MAX)
        memmove(&answering->owed[0], &answering->owed[1],
                --answering->owed_count * sizeof answering->owed[0]);
    answering->owed[answering->owed_count++] = owed;
    parts_verify(env, owed.generation, owed.check);
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
        answering->open_from[message->from] =
            max_u64(answering->open_from[message->from], ask->attempt + 1);
        drop_owed(answering, message->from, ask->attempt);
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
    drop_owed(answering, agent, UINT64_MAX);
    answering->open_from[agent] = 0;
    if (answering->coordinator == agent)
        answer_unpin(env, answering);
}

bool
answer_pins_for(const struct answering *answering, uint32_t coordinator, uint64_t attempt)
{
    return answering->coordinator == coordinator && attempt != 0 && answering->attempt == attempt;
}
