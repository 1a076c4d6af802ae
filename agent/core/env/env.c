/* agent/core/env/env.c - the list of actions of one event, and the messages in it; see env.h. */
#include "agent/core/env/env.h"

#include <stdlib.h>
#include <string.h>

struct cairn_action *
env_act(struct env *env, enum cairn_action_type type)
{
    struct cairn_actions *actions = env->actions;
    struct cairn_action *action;

    if (actions->count == actions->room) {
        size_t room = actions->room ? actions->room * 2 : 32;
        struct cairn_action *list = realloc(actions->list, room * sizeof *list);

        if (!list) {
            actions->failed = true;
            actions->missing = (struct cairn_action){.type = type};
            return &actions->missing;
        }
        actions->list = list;
        actions->room = room;
    }
    action = &actions->list[actions->count++];
    memset(action, 0, sizeof *action);
    action->type = type;
    return action;
}

void *
env_keep(struct env *env, struct cairn_action *action, const void *bytes, size_t len)
{
    void *copy;

    if (action == &env->actions->missing || len == 0)
        return NULL;
    copy = malloc(len);
    if (!copy) {
        env->actions->failed = true;
        return NULL;
    }
    if (bytes)
        memcpy(copy, bytes, len);
    action->owned = copy;
    return copy;
}

const uint8_t *
env_pack(struct env *env, struct cairn_action *action, cairn_codec_fn *code, const void *value,
         size_t *len)
{
    uint8_t *bytes = NULL;

    *len = 0;
    if (action == &env->actions->missing)
        return NULL;
    env->actions->failed |= cairn_codec_pack(code, value, &bytes, len) != CAIRN_OK;
    action->owned = bytes;
    return bytes;
}

struct cairn_message
env_message(const struct env *env, enum cairn_message_kind kind, uint64_t epoch)
{
    struct cairn_message message;

    memset(&message, 0, sizeof message);
    message.kind = kind;
    message.from = env->options->self;
    message.epoch = epoch;
    return message;
}

void
env_connect(struct env *env, uint32_t agent)
{
    /* Also where a session is up: the other side may want it no longer when it breaks. */
    if (agent != env->options->self)
        env_act(env, CAIRN_ACTION_CONNECT)->as.peer.agent = agent;
}

void
env_reply(struct env *env, uint64_t request, cairn_err err, struct cairn_generation_id generation,
          const char *text)
{
    struct cairn_action *action = env_act(env, CAIRN_ACTION_REPLY);

    action->as.reply = (struct cairn_action_reply){request, err, generation,
                                                   env_keep(env, action, text, strlen(text) + 1)};
}

void
cairn_actions_clear(struct cairn_actions *actions)
{
    for (size_t i = 0; i < actions->count; i++)
        free(actions->list[i].owned);
    actions->count = 0;
    actions->failed = false;
}

void
cairn_actions_fini(struct cairn_actions *actions)
{
    cairn_actions_clear(actions);
    free(actions->list);
    memset(actions, 0, sizeof *actions);
}
