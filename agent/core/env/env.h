/*
 * agent/core/env/env.h - what every part of the core may use while it handles one event: the
 * options, the time, the sessions that are up, what others know, and the list of actions.
 *
 * Functions of a noun take the env and that noun. They read the epoch, the peers and the newest
 * decision through the env, and change only their noun and the parts in memory; what others must
 * learn they return, and core.c tells them. So no file calls back into one above it.
 */
#ifndef CAIRN_AGENT_CORE_ENV_ENV_H
#define CAIRN_AGENT_CORE_ENV_ENV_H

#include "agent/core/env/action.h"
#include "agent/core/env/event.h"
#include "agent/core/env/planted.h"
#include "base/assert.h"
#include "base/bitset.h"
#include "base/codec.h"

struct membership;
struct parts;
struct peers;

struct env {
    const struct cairn_core_options *options;
    const struct membership *membership;
    const struct peers *peers;
    const struct cairn_decision *decision; /* the newest that this member knows */
    struct parts *parts;
    uint64_t now_ns;
    const uint64_t *up;    /* bitset of agents with a session; a message to another is dropped, and
                         * sent when its session is up */
    const uint64_t *level; /* bitset of agents that said in this session that they are in this
                            * agent's epoch: messages of the epoch go only to them */
    struct cairn_actions *actions;
    uint64_t next_request; /* numbers what the core asks for; use env_request */
};

/* A number that no earlier start of this agent has used for a request. */
static inline uint64_t
env_request(struct env *env)
{
    return ++env->next_request;
}

/* Appends an action, zeroed. When memory runs out the caller fills in one that is not carried out,
 * and the agent stops after this event. */
struct cairn_action *env_act(struct env *env, enum cairn_action_type type);
/* Copies bytes that an action or a message needs, or makes room for them (NULL), as the action's
 * own; NULL when memory ran out, which stops the agent after this event. */
void *env_keep(struct env *env, struct cairn_action *action, const void *bytes, size_t len);

/* The same for a value that is packed; 0 bytes when memory ran out. */
const uint8_t *env_pack(struct env *env, struct cairn_action *action, cairn_codec_fn *code,
                        const void *value, size_t *len);

/* A message from this agent, zeroed but for the header. */
struct cairn_message env_message(const struct env *env, enum cairn_message_kind kind,
                                 uint64_t epoch);
/* Sends to an agent with a session, or to this agent itself; copies message->bytes. */
void env_send(struct env *env, uint32_t to, const struct cairn_message *message);
/* The same with a packed value as its bytes. */
void env_send_packed(struct env *env, uint32_t to, struct cairn_message *message,
                     cairn_codec_fn *code, const void *value);
/* The same with blocks. */
void env_send_blocks(struct env *env, uint32_t to, const struct cairn_message *message,
                     const struct cairn_blocks *blocks);
void env_connect(struct env *env, uint32_t agent);
/* Answers an operator; copies the text. */
void env_reply(struct env *env, uint64_t request, cairn_err err,
               struct cairn_generation_id generation, const char *text);

static inline bool
env_reaches(const struct env *env, uint32_t agent)
{
    return agent == env->options->self ||
           (agent < env->options->agent_count && cairn_bitset_has(env->up, agent));
}

/* Messages of the active epoch reach that agent. */
static inline bool
env_is_level(const struct env *env, uint32_t agent)
{
    return agent == env->options->self ||
           (agent < env->options->agent_count && cairn_bitset_has(env->level, agent));
}

static inline uint64_t
min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t
max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
