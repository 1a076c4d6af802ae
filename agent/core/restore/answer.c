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

void
answer_end(struct env *env, struct answering *answering, uint32_t coordinator)
{
    answering->askers[coordinator] = (struct asker){0};
    if (answering->coordinator == coordinator)
        answer_unpin(env, answering);
}

static void
verify(struct env *env, struct answering *answering, const struct inventory_self *self,
       const struct cairn_message *message)
{
    const struct cairn_message_ask *ask = &message->as.ask;
    struct asker *asker = &answering->askers[message->from];

    *asker = (struct asker){.attempt = ask->attempt};
    if (ask->mode == CAIRN_ASK_VERIFY) {
        asker->generation = ask->generation;
        answering->attempt = ask->attempt;
        answering->coordinator = message->from;
        env->parts->pinned = true;
        env->parts->pinned_generation = ask->generation;
    }
    parts_verify(env, asker->generation, ask->mode == CAIRN_ASK_VERIFY ? ask->lost : 0);
    answer_progress(env, answering, self);
}

void
answer_ask(struct env *env, struct answering *answering, const struct inventory_self *self,
           const struct cairn_message *message)
{
    const struct cairn_message_ask *ask = &message->as.ask;

    if (ask->mode == CAIRN_ASK_RELEASE)
        answer_end(env, answering, message->from);
    else if (ask->mode == CAIRN_ASK_LIST)
        inventory_send(env, message->from, ask->attempt, self);
    else if (ask->attempt != 0)
        verify(env, answering, self, message);
}

bool
answer_pins_for(const struct answering *answering, uint32_t coordinator, uint64_t attempt)
{
    return answering->coordinator == coordinator && attempt != 0 && answering->attempt == attempt;
}
