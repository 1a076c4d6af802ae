/* agent/core/actions.c - the list of actions of one step, and the messages in it. */
#include "agent/core/core_state.h"

#include <stdlib.h>
#include <string.h>

struct cairn_action *
action_add(struct cairn_core *core, enum cairn_action_type type)
{
    struct cairn_actions *actions = core->actions;
    struct cairn_action *action;

    if (actions->count == actions->room) {
        size_t room = actions->room ? actions->room * 2 : 32;
        struct cairn_action *list = realloc(actions->list, room * sizeof *list);

        if (!list) {
            actions->failed = true;
            return NULL;
        }
        actions->list = list;
        actions->room = room;
    }
    action = &actions->list[actions->count++];
    memset(action, 0, sizeof *action);
    action->type = type;
    action->holding = UINT32_MAX;
    return action;
}

void
action_bytes(struct cairn_core *core, struct cairn_action *action, const void *bytes, size_t len)
{
    uint8_t *copy;

    if (!action || len == 0)
        return;
    copy = malloc(len);
    if (!copy) {
        core->actions->failed = true;
        return;
    }
    memcpy(copy, bytes, len);
    action->bytes = copy;
    action->bytes_len = len;
}

struct cairn_action *
send_message(struct cairn_core *core, uint32_t to, const struct cairn_message *message)
{
    struct cairn_action *action = action_add(core, CAIRN_ACTION_SEND);

    if (!action)
        return NULL;
    action->message = *message;
    action->message.to = to;
    action_bytes(core, action, message->bytes, message->bytes_len);
    action->message.bytes = action->bytes;
    action->message.bytes_len = (uint32_t)action->bytes_len;
    return action;
}

struct cairn_message
message_new(const struct cairn_core *core, enum cairn_message_type type, uint64_t epoch)
{
    struct cairn_message message = {0};

    message.type = type;
    message.from = core->options.self;
    message.epoch = epoch;
    return message;
}

void
cairn_actions_clear(struct cairn_actions *actions)
{
    for (size_t i = 0; i < actions->count; i++)
        free((void *)(uintptr_t)actions->list[i].bytes);
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
