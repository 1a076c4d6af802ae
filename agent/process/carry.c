/*
 * agent/process/carry.c - carries out the core's actions, in their order; see carry.h.
 *
 * Folding, writing and staging are done at once, while the payload is in cache. Longer work is a
 * worker's job (carry_jobs.c).
 */
#include "agent/process/carry.h"

#include "agent/core/roster.h"
#include "agent/process/agent_state.h"
#include "agent/process/carry_jobs.h"
#include "agent/process/codes.h"
#include "agent/process/handlers.h"
#include "agent/process/keeping.h"
#include "agent/process/mail.h"
#include "agent/process/memory.h"
#include "agent/process/scratch.h"
#include "agent/process/session.h"
#include "agent/process/session_region.h"
#include "agent/process/step.h"
#include "base/assert.h"
#include "base/log.h"
#include "base/wire.h"
#include "snapshot/catalog.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct cairn_generation no_generation = {0, 0};

/* Blocks of a holding's area. Parity goes by (parity slot = row, line). */
static uint8_t *
blocks_at(struct cairn_agent *agent, uint32_t holding, uint32_t area, uint32_t row,
          uint64_t first_block, uint32_t count)
{
    struct cairn_holding_view view;

    if (area == CAIRN_AREA_DATA)
        return cairn_memory_data(agent->memory, holding, first_block, count);
    if (!cairn_core_look_holding(agent->core, holding, &view))
        return NULL;
    return cairn_memory_parity(agent->memory, holding, row,
                               cairn_roster_group_of(view.table, view.member)->parity, first_block,
                               count);
}

/* ---- messages ---- */

static void
send_decoded(struct cairn_agent *agent, const struct cairn_action *action)
{
    struct cairn_message message = action->message;
    uint8_t crcs[8 * CAIRN_MESSAGE_BLOCKS_MAX];
    struct cairn_writer writer;
    struct space *space;

    CAIRN_ASSERT(action->item < SCRATCH_ITEMS_MAX && action->count <= CAIRN_MESSAGE_BLOCKS_MAX);
    space = agent->scratch.items[action->item].space;
    if (!space)
        return;
    cairn_writer_init(&writer, crcs, sizeof crcs);
    for (uint32_t i = 0; i < action->count; i++)
        cairn_write_u64(&writer, space_crcs(space, action->source)[i]);
    message.bytes = crcs;
    message.bytes_len = (uint32_t)writer.used_bytes;
    mail_send(agent, &message, space_shard(space, action->source),
              (size_t)action->count * CAIRN_BLOCK_BYTES, UINT32_MAX, space);
}

static void
carry_send(struct cairn_agent *agent, const struct cairn_action *action)
{
    const uint8_t *payload;

    if (action->area == CAIRN_AREA_SCRATCH) {
        send_decoded(agent, action);
        return;
    }
    if (action->holding == UINT32_MAX || action->count == 0) {
        mail_send(agent, &action->message, NULL, 0, UINT32_MAX, NULL);
        return;
    }
    payload = blocks_at(agent, action->holding, action->area, action->row, action->first_block,
                        action->count);
    if (payload)
        mail_send(agent, &action->message, payload, (size_t)action->count * CAIRN_BLOCK_BYTES,
                  action->holding, NULL);
}

/* ---- bytes ---- */

static void
carry_fold(struct cairn_agent *agent, const struct cairn_action *action,
           const struct arrival *arrival)
{
    struct cairn_holding_view view;
    const struct cairn_roster_group *group;
    const struct cairn_code *code;
    uint8_t *parity;

    if (!cairn_core_look_holding(agent->core, action->holding, &view))
        return;
    group = cairn_roster_group_of(view.table, view.member);
    code = codes_get(&agent->codes, group->count - group->parity, group->parity);
    parity = cairn_memory_parity(agent->memory, action->holding, action->row, group->parity,
                                 action->first_block, action->count);
    if (!code || !parity) {
        agent_abort(agent, 1, "a parity block has no place in memory");
        return;
    }
    cairn_code_fold(code, action->row, action->source, (size_t)action->count * CAIRN_BLOCK_BYTES,
                    arrival->payload + (size_t)action->skip * CAIRN_BLOCK_BYTES, parity,
                    action->fresh);
}

static void
carry_write(struct cairn_agent *agent, const struct cairn_action *action,
            const struct arrival *arrival)
{
    uint8_t *target = blocks_at(agent, action->holding, action->area, action->row,
                                action->first_block, action->count);

    if (target)
        memcpy(target, arrival->payload, (size_t)action->count * CAIRN_BLOCK_BYTES);
    else
        agent_abort(agent, 1, "a rebuilt block has no place in memory");
}

static void
carry_stage(struct cairn_agent *agent, const struct cairn_action *action,
            const struct arrival *arrival)
{
    const uint8_t *source = arrival ? arrival->payload : NULL;
    uint8_t *shard;

    if (source && scratch_keep(agent, action->item, action->source, source))
        return;
    shard = scratch_stage(agent, action->item, action->source);
    if (!shard || !source) {
        agent_abort(agent, 1, "no memory to decode lost blocks");
        return;
    }
    memcpy(shard, source, (size_t)action->count * CAIRN_BLOCK_BYTES);
}

/* ---- stores ---- */

static void
carry_store_epoch(struct cairn_agent *agent, const struct cairn_action *action)
{
    cairn_err err = cairn_catalog_put(agent->catalog, CAIRN_TABLE_EPOCHS, "epoch", 5, action->bytes,
                                      action->bytes_len);

    if (!err)
        err = keeping_memory_is_known(agent);
    if (err == CAIRN_NOMEM)
        agent_abort(agent, 1, "out of memory to store the epoch durably");
    else if (err)
        agent_abort(agent, 74,
                    "the epoch could not be stored durably: an agent that forgets a promise could "
                    "break one; mend "
                    "the disk of the state directory (`dir`) and start the agent again");
}

static void
carry_store_holding(struct cairn_agent *agent, const struct cairn_action *action)
{
    cairn_err err =
        cairn_memory_record_store(agent->memory, action->holding, action->bytes, action->bytes_len);

    if (err)
        agent_abort(
            agent, 1,
            "a generation's record does not fit its memory: state_bytes is too small for the "
            "number of tensors, raise it");
}

static uint64_t
generation_bytes(const struct cairn_agent *agent, uint32_t holding)
{
    struct cairn_holding_view view;

    if (!cairn_core_look_holding(agent->core, holding, &view))
        return 0;
    return view.data_blocks * CAIRN_BLOCK_BYTES;
}

static void
carry_committed(struct cairn_agent *agent, const struct cairn_action *action)
{
    struct committed_time *commit =
        &agent->carry.commits[agent->carry.commit_count % COMMIT_TIMES_MAX];
    uint8_t value[40];
    uint8_t key[16];
    struct cairn_writer writer;
    bool timed = action->generation.epoch == agent->carry.first_grant.epoch &&
                 action->generation.step == agent->carry.first_grant.step;

    commit->generation = action->generation;
    commit->wall_ns = cairn_clock_wall_ns(&agent->clock);
    commit->bytes = action->holding == UINT32_MAX ? 0 : generation_bytes(agent, action->holding);
    commit->protect_ns = timed ? agent_now_ns(agent) - agent->carry.first_grant_ns : 0;
    agent->carry.commit_count++;
    CAIRN_LOG_AT(
        DEBUG,
        "save: committed epoch=%" PRIu64 " step=%" PRIu64 " bytes=%" PRIu64 " protect_ns=%" PRIu64,
        action->generation.epoch >> 16, action->generation.step, commit->bytes, commit->protect_ns);
    cairn_writer_init(&writer, key, sizeof key);
    cairn_write_u64(&writer, __builtin_bswap64(action->generation.epoch)); /* big-endian: sorted */
    cairn_write_u64(&writer, __builtin_bswap64(action->generation.step));
    cairn_writer_init(&writer, value, sizeof value);
    cairn_write_u64(&writer, commit->wall_ns);
    cairn_write_u64(&writer, commit->bytes);
    cairn_write_u64(&writer, commit->protect_ns);
    if (agent->carry.commit_count % 16 ==
            1 && /* history for people; the memory's own records are the
                                          * truth */
        cairn_catalog_put(agent->catalog, CAIRN_TABLE_GENERATIONS, key, sizeof key, value,
                          writer.used_bytes) != CAIRN_OK)
        CAIRN_LOG_AT(WARN, "catalog: the history of generations is not written any more");
    agent->handlers->committed(agent, action->generation);
}

static void
carry_seal(struct cairn_agent *agent, const struct cairn_action *action)
{
    struct cairn_event event = {.type = CAIRN_EVENT_SEALED,
                                .holding = action->holding,
                                .request = action->request,
                                .generation = action->generation};
    uint8_t *bytes = NULL;

    event.err = session_manifest(agent, action, &bytes, &event.bytes_len);
    event.bytes = bytes;
    agent_step(agent, &event, NULL);
    free(bytes);
}

static void
carry_close(struct cairn_agent *agent, const struct cairn_action *action)
{
    agent->carry.hosting[action->holding] = 0;
    cairn_memory_free(agent->memory, action->holding);
}

static void
carry_one(struct cairn_agent *agent, const struct cairn_action *action,
          const struct arrival *arrival)
{
    switch (action->type) {
    case CAIRN_ACTION_SEND:
        carry_send(agent, action);
        break;
    case CAIRN_ACTION_FOLD:
        carry_fold(agent, action, arrival);
        break;
    case CAIRN_ACTION_WRITE:
        carry_write(agent, action, arrival);
        break;
    case CAIRN_ACTION_STAGE:
        carry_stage(agent, action, arrival);
        break;
    case CAIRN_ACTION_DECODE:
        carry_decode(agent, action);
        break;
    case CAIRN_ACTION_RELEASE:
        scratch_release(agent, action->item);
        break;
    case CAIRN_ACTION_STORE_EPOCH:
        carry_store_epoch(agent, action);
        break;
    case CAIRN_ACTION_STORE_HOLDING:
        carry_store_holding(agent, action);
        break;
    case CAIRN_ACTION_OPEN:
        carry_open(agent, action);
        break;
    case CAIRN_ACTION_CLOSE:
        carry_close(agent, action);
        break;
    case CAIRN_ACTION_SEAL:
        carry_seal(agent, action);
        break;
    case CAIRN_ACTION_FINISH:
        carry_check(agent, action, false);
        break;
    case CAIRN_ACTION_VERIFY:
        carry_check(agent, action, true);
        break;
    case CAIRN_ACTION_GRANT:
        if (agent->carry.first_grant.epoch != action->generation.epoch ||
            agent->carry.first_grant.step != action->generation.step) {
            agent->carry.first_grant = action->generation;
            agent->carry.first_grant_ns = agent_now_ns(agent);
        }
        session_grant(agent, action);
        break;
    case CAIRN_ACTION_SKIP:
        session_skip(agent, action);
        break;
    case CAIRN_ACTION_DROP:
        session_drop(agent, action->generation);
        break;
    case CAIRN_ACTION_COMMITTED:
        carry_committed(agent, action);
        break;
    case CAIRN_ACTION_ACTIVATED: {
        struct cairn_core_view view;

        cairn_core_look(agent->core, &view);
        agent->carry.first_grant = no_generation;
        CAIRN_LOG_AT(INFO, "epoch: active epoch=%" PRIu64 " ready_step=%" PRIu64 " restart=%d",
                     view.active >> 16, action->generation.step, action->restart);
        session_epoch(agent, view.active, action->restart);
        break;
    }
    case CAIRN_ACTION_REPLY:
        agent->handlers->reply(agent, action);
        break;
    }
}

void
carry_out(struct cairn_agent *agent, const struct arrival *arrival,
          const struct cairn_actions *actions)
{
    if (actions->failed) /* the list lacks something: none of it may be done */
        agent_abort(agent, 1, "out of memory in the protocol core");
    for (size_t i = 0; i < actions->count && !agent->stopping; i++)
        carry_one(agent, &actions->list[i], arrival);
}
