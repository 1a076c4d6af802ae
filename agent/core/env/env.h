/*
 * agent/core/env/env.h - what every part of the core may use while it handles one event: the
 * options, the time, what others know, and the list of actions.
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
void env_connect(struct env *env, uint32_t agent);
/* Answers an operator; copies the text. */
void env_reply(struct env *env, uint64_t request, cairn_err err,
               struct cairn_generation_id generation, const char *text);

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
