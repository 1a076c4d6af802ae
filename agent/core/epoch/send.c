/* agent/core/epoch/send.c - see send.h. */
#include "agent/core/epoch/send.h"

#include <stdlib.h>

void
env_send_blocks(struct env *env, uint32_t to, const struct cairn_message *message,
                const struct cairn_blocks *blocks)
{
    struct cairn_action *action;

    if (!(cairn_message_is_of_epoch(message) ? env_is_level(env, to) : env_reaches(env, to)))
        return;
    action = env_act(env, CAIRN_ACTION_SEND);
    action->as.send.message = *message;
    action->as.send.message.to = to;
    action->as.send.message.bytes = env_keep(env, action, message->bytes, message->bytes_len);
    if (blocks)
        action->as.send.blocks = *blocks;
}

void
env_send(struct env *env, uint32_t to, const struct cairn_message *message)
{
    env_send_blocks(env, to, message, NULL);
}

void
env_send_packed(struct env *env, uint32_t to, struct cairn_message *message, cairn_codec_fn *code,
                const void *value)
{
    uint8_t *bytes = NULL;
    size_t len = 0;

    if (cairn_codec_pack(code, value, &bytes, &len) != CAIRN_OK) {
        env->actions->failed = true;
        return;
    }
    message->bytes = bytes;
    message->bytes_len = (uint32_t)len;
    env_send(env, to, message);
    free(bytes);
}
