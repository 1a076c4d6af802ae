/*
 * agent/core/epoch/send.h - messages to other agents, as far as sessions and epochs allow.
 *
 * A message to an agent without a session is dropped. A message of the epoch goes only to agents
 * that have said in this session that they are in it, while no newer one is promised (R4). When a
 * session or an epoch begins, both sides say again what the other may miss.
 */
#ifndef CAIRN_AGENT_CORE_EPOCH_SEND_H
#define CAIRN_AGENT_CORE_EPOCH_SEND_H

#include "agent/core/epoch/membership.h"

static inline bool
env_reaches(const struct env *env, uint32_t agent)
{
    return agent == env->options->self ||
           (agent < env->options->agent_count && cairn_bitset_has(env->peers->up, agent));
}

/* Messages of the active epoch reach that agent. */
static inline bool
env_is_level(const struct env *env, uint32_t agent)
{
    return agent == env->options->self ||
           (env_reaches(env, agent) && !membership_fenced(env->membership) &&
            env->peers->epochs[agent] == env->membership->record.epoch);
}

/* Sends to an agent with a session, or to this agent itself; copies message->bytes. */
void env_send(struct env *env, uint32_t to, const struct cairn_message *message);
/* The same with a packed value as its bytes. */
void env_send_packed(struct env *env, uint32_t to, struct cairn_message *message,
                     cairn_codec_fn *code, const void *value);
/* The same with blocks. */
void env_send_blocks(struct env *env, uint32_t to, const struct cairn_message *message,
                     const struct cairn_blocks *blocks);

#endif
