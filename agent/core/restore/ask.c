/* agent/core/restore/ask.c - see ask.h. */
#include "agent/core/restore/ask.h"

#include "agent/core/epoch/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORGOTTEN_BYTES = 12 }; /* per agent in the bytes of ASK */

/* An agent that has promised so many rounds more than this one sends garbage. */
static const uint64_t rounds_ahead_max = UINT64_C(1) << 32;

cairn_err
ask_init(struct ask *ask, uint32_t agent_count)
{
    size_t words = cairn_bitset_words(agent_count);

    memset(ask, 0, sizeof *ask);
    ask->agent_count = agent_count;
    ask->answered = calloc(words, sizeof *ask->answered);
    ask->ignored = calloc(words, sizeof *ask->ignored);
    ask->inventories = calloc(agent_count, sizeof *ask->inventories);
    if (ask->answered && ask->ignored && ask->inventories)
        return CAIRN_OK;
    ask_fini(ask);
    return CAIRN_NOMEM;
}

void
ask_forget(struct ask *ask, uint32_t agent)
{
    inventory_fini(&ask->inventories[agent]);
    ask->answered[agent / 64] &= ~(UINT64_C(1) << (agent % 64));
}

void
ask_fini(struct ask *ask)
{
    for (uint32_t a = 0; ask->inventories && a < ask->agent_count; a++)
        inventory_fini(&ask->inventories[a]);
    cairn_roster_drop(ask->common);
    free(ask->answered);
    free(ask->ignored);
    free(ask->inventories);
    memset(ask, 0, sizeof *ask);
}

static bool
is_asked(const struct ask *ask, uint32_t agent)
{
    return !cairn_bitset_has(ask->ignored, agent) &&
           (ask->everyone || ask->inventories[agent].known);
}

/* The agents that forgot their promises, packed; NULL: there are none, or no memory. */
static uint8_t *
pack_forgotten(const struct ask *ask, size_t *len)
{
    size_t room = (size_t)ask_forgotten(ask) * FORGOTTEN_BYTES;
    struct cairn_writer writer;
    uint8_t *bytes;

    *len = 0;
    if (room == 0)
        return NULL;
    bytes = malloc(room);
    if (!bytes)
        return NULL;
    cairn_writer_init(&writer, bytes, room);
    for (uint32_t a = 0; a < ask->agent_count; a++)
        if (ask->inventories[a].known && !ask->inventories[a].self.knows) {
            cairn_write_u32(&writer, a);
            cairn_write_u64(&writer, ask->inventories[a].self.incarnation);
        }
    *len = writer.used_bytes;
    return bytes;
}

/* Asks one agent, or with UINT32_MAX all that are asked in this round. */
static void
send_ask(struct env *env, const struct ask *ask, uint32_t only)
{
    struct cairn_message message = env_message(env, CAIRN_MSG_ASK, ask->epoch);
    size_t len = 0;
    uint8_t *bytes = NULL;

    if (!ask->everyone && ask->mode == CAIRN_ASK_LIST) {
        bytes = pack_forgotten(ask, &len);
        if (!bytes && ask_forgotten(ask) > 0) {
            env->actions->failed = true;
            return;
        }
    }
    message.as.ask.attempt = ask->number;
    message.as.ask.mode = ask->mode;
    message.as.ask.generation = ask->generation;
    message.bytes = bytes;
    message.bytes_len = (uint32_t)len;
    for (uint32_t a = 0; a < ask->agent_count; a++) {
        if ((only != UINT32_MAX && a != only) || !is_asked(ask, a))
            continue;
        env_connect(env, a);
        env_send(env, a, &message);
    }
    free(bytes);
}

static void
begin(struct env *env, struct ask *ask, enum cairn_ask mode, struct cairn_generation_id generation)
{
    memset(ask->answered, 0, cairn_bitset_words(ask->agent_count) * sizeof *ask->answered);
    ask->number = env_request(env);
    ask->mode = mode;
    ask->generation = generation;
    if (mode == CAIRN_ASK_VERIFY)
        ask->pinned = ask->number;
    send_ask(env, ask, UINT32_MAX);
}

void
ask_everyone(struct env *env, struct ask *ask, uint64_t epoch, enum cairn_ask mode)
{
    for (uint32_t a = 0; a < ask->agent_count; a++)
        inventory_fini(&ask->inventories[a]);
    if (epoch != ask->epoch) /* who was silent then may be a member of it now */
        memset(ask->ignored, 0, cairn_bitset_words(ask->agent_count) * sizeof *ask->ignored);
    ask->everyone = true;
    ask->epoch = epoch;
    begin(env, ask, mode, (struct cairn_generation_id){0});
}

void
ask_known(struct env *env, struct ask *ask, enum cairn_ask mode,
          struct cairn_generation_id generation)
{
    ask->everyone = false;
    begin(env, ask, mode, generation);
}

void
ask_peer_up(struct env *env, struct ask *ask, uint32_t agent)
{
    if (agent < ask->agent_count && !cairn_bitset_has(ask->answered, agent))
        send_ask(env, ask, agent);
}

/* Keeps one copy of a roster that most agents send. */
static void
share_rosters(struct ask *ask, struct inventory *inventory)
{
    for (uint32_t i = 0; i < inventory->part_count; i++) {
        struct cairn_roster **roster = &inventory->parts[i].roster;

        if (ask->common && cairn_roster_same(ask->common, *roster)) {
            cairn_roster_drop(*roster);
            *roster = cairn_roster_hold(ask->common);
        } else {
            cairn_roster_drop(ask->common);
            ask->common = cairn_roster_hold(*roster);
        }
    }
}

bool
ask_take(struct ask *ask, uint64_t promised, const struct cairn_message *message)
{
    struct inventory inventory = {0};
    struct cairn_reader reader;

    if (message->from >= ask->agent_count || message->as.inventory.attempt != ask->number ||
        message->as.inventory.mode != ask->mode || !is_asked(ask, message->from))
        return false;
    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    if (inventory_read(&reader, &inventory) != CAIRN_OK)
        return false;
    if (inventory.self.promised >> EPOCH_CLAIMANT_BITS >
        (promised >> EPOCH_CLAIMANT_BITS) + rounds_ahead_max) {
        inventory_fini(&inventory);
        return false;
    }
    share_rosters(ask, &inventory);
    inventory_fini(&ask->inventories[message->from]);
    ask->inventories[message->from] = inventory;
    cairn_bitset_add(ask->answered, message->from);
    return true;
}

bool
ask_is_answered(const struct env *env, const struct ask *ask, const struct peers *peers,
                bool newcomers)
{
    for (uint32_t a = 0; a < ask->agent_count; a++)
        if (is_asked(ask, a) && !cairn_bitset_has(ask->answered, a) &&
            (!ask->everyone || peers_maybe_alive(env, peers, a) ||
             (newcomers && !env->options->spares[a])))
            return false;
    return true;
}

void
ask_ignore_silent(struct ask *ask)
{
    for (uint32_t a = 0; a < ask->agent_count; a++)
        if (is_asked(ask, a) && !cairn_bitset_has(ask->answered, a))
            cairn_bitset_add(ask->ignored, a);
}

void
ask_release(struct env *env, const struct ask *ask)
{
    struct cairn_message message = env_message(env, CAIRN_MSG_ASK, ask->epoch);

    if (ask->pinned == 0)
        return;
    message.as.ask.attempt = ask->pinned;
    message.as.ask.mode = CAIRN_ASK_RELEASE;
    for (uint32_t a = 0; a < ask->agent_count; a++)
        env_send(env, a, &message);
}

uint32_t
ask_count(const struct ask *ask)
{
    uint32_t count = 0;

    for (uint32_t a = 0; a < ask->agent_count; a++)
        count += ask->inventories[a].known;
    return count;
}

uint32_t
ask_forgotten(const struct ask *ask)
{
    uint32_t count = 0;

    for (uint32_t a = 0; a < ask->agent_count; a++)
        count += ask->inventories[a].known && !ask->inventories[a].self.knows;
    return count;
}

bool
ask_knows_all(const struct env *env, const struct ask *ask, bool spares)
{
    for (uint32_t a = 0; a < ask->agent_count; a++)
        if (!ask->inventories[a].known && (spares || !env->options->spares[a]))
            return false;
    return true;
}

void
ask_name_silent(const struct ask *ask, char *text, size_t text_bytes)
{
    size_t used = strlen(text);
    bool any = false;

    for (uint32_t a = 0; a < ask->agent_count && used + 48 < text_bytes; a++)
        if (!ask->inventories[a].known) {
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%u",
                                     any ? ", " : "no answer from agents ", a);
            any = true;
        }
    if (any)
        snprintf(text + used, text_bytes - used, "\n");
}
