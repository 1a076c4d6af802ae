/*
 * agent/process/carry.c - carries out the core's actions, in their order; see carry.h.
 *
 * Folding, writing and staging are done at once, while the payload is in cache. Longer work is a
 * worker's job (carry_jobs.c).
 */
#include "agent/process/carry.h"

#include "erasure/roster.h"
#include "agent/process/agent_state.h"
#include "agent/process/carry_jobs.h"
#include "agent/process/codes.h"
#include "agent/process/cutting.h"
#include "agent/process/fleet.h"
#include "agent/process/handlers.h"
#include "agent/process/keeping.h"
#include "agent/process/mail.h"
#include "agent/process/memory.h"
#include "agent/process/recorder.h"
#include "agent/process/scratch.h"
#include "agent/process/session.h"
#include "agent/process/session_region.h"
#include "agent/process/step.h"
#include "base/assert.h"
#include "base/crc.h"
#include "base/log.h"
#include "base/wire.h"
#include "snapshot/catalog.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct cairn_generation_id no_generation = {0};

/* Blocks of a part's area. Parity goes by (parity slot = row, line). */
static uint8_t *
blocks_at(struct cairn_agent *agent, uint32_t part, uint32_t area, uint32_t row,
          uint64_t first_block, uint32_t count)
{
    struct cairn_part_view view;

    if (area == CAIRN_AREA_DATA)
        return cairn_memory_data(agent->memory, part, first_block, count);
    if (!cairn_core_look_part(agent->core, part, &view))
        return NULL;
    return cairn_memory_parity(agent->memory, part, row,
                               cairn_roster_group_of(view.roster, view.member)->parity, first_block,
                               count);
}

/* ---- messages ---- */

static void
send_decoded(struct cairn_agent *agent, const struct cairn_action_send *send)
{
    struct cairn_message message = send->message;
    const struct cairn_blocks *blocks = &send->blocks;
    uint8_t crcs[8 * CAIRN_MESSAGE_BLOCKS_MAX];
    struct cairn_writer writer;
    struct space *space;

    CAIRN_ASSERT(blocks->item < SCRATCH_ITEMS_MAX && blocks->count <= CAIRN_MESSAGE_BLOCKS_MAX);
    space = agent->scratch.items[blocks->item].space;
    CAIRN_ASSERT(space);
    cairn_writer_init(&writer, crcs, sizeof crcs);
    for (uint32_t i = 0; i < blocks->count; i++)
        cairn_write_u64(&writer, space_crcs(space, blocks->shard)[i]);
    message.bytes = crcs;
    message.bytes_len = (uint32_t)writer.used_bytes;
    mail_send(agent, &message, space_shard(space, blocks->shard),
              (size_t)blocks->count * CAIRN_BLOCK_BYTES, UINT32_MAX, space);
}

static void
send_finished(struct cairn_agent *agent, const struct cairn_action_send *send)
{
    struct cairn_message message = send->message;
    const struct cairn_blocks *blocks = &send->blocks;
    const uint8_t *payload =
        ring_blocks(&agent->ring, blocks->row, blocks->first_block, blocks->count);
    uint8_t crcs[8 * CAIRN_MESSAGE_BLOCKS_MAX];
    struct cairn_writer writer;

    CAIRN_ASSERT(payload && blocks->count <= CAIRN_MESSAGE_BLOCKS_MAX);
    cairn_writer_init(&writer, crcs, sizeof crcs);
    for (uint32_t i = 0; i < blocks->count; i++)
        cairn_write_u64(&writer,
                        cairn_crc64(0, payload + (size_t)i * CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES));
    message.bytes = crcs;
    message.bytes_len = (uint32_t)writer.used_bytes;
    mail_send(agent, &message, payload, (size_t)blocks->count * CAIRN_BLOCK_BYTES, UINT32_MAX,
              NULL);
}

static void
carry_send(struct cairn_agent *agent, const struct cairn_action_send *send)
{
    const struct cairn_blocks *blocks = &send->blocks;
    const uint8_t *payload;

    if (blocks->count == 0) {
        mail_send(agent, &send->message, NULL, 0, UINT32_MAX, NULL);
        return;
    }
    if (blocks->area == CAIRN_AREA_SCRATCH) {
        send_decoded(agent, send);
        return;
    }
    if (blocks->area == CAIRN_AREA_RING) {
        send_finished(agent, send);
        return;
    }
    payload = blocks_at(agent, blocks->part, blocks->area, blocks->row, blocks->first_block,
                        blocks->count);
    if (payload)
        mail_send(agent, &send->message, payload, (size_t)blocks->count * CAIRN_BLOCK_BYTES,
                  blocks->part, NULL);
    else
        agent_abort(agent, 1, "blocks to send have no place in memory");
}

/* ---- bytes ---- */

static void
carry_fold(struct cairn_agent *agent, const struct cairn_action_fold *fold,
           const struct arrival *arrival)
{
    struct cairn_part_view view;
    const struct cairn_roster_group *group;
    const struct cairn_code *code;
    uint8_t *rows[CAIRN_SHARDS_MAX];
    bool placed;

    if (!cairn_core_look_part(agent->core, fold->part, &view))
        return;
    group = cairn_roster_group_of(view.roster, view.member);
    code = codes_get(&agent->codes, group->count - group->parity, group->parity);
    rows[0] = cairn_memory_parity(agent->memory, fold->part, 0, group->parity, fold->first_block,
                                  fold->count);
    placed = code && rows[0];
    for (uint32_t row = 1; row < group->parity; row++) {
        rows[row] = ring_blocks(&agent->ring, row, fold->first_block, fold->count);
        placed &= rows[row] != NULL;
    }
    if (!placed) {
        agent_abort(agent, 1, "a parity block has no place in memory");
        return;
    }
    cairn_code_fold_rows(code, fold->source, (size_t)fold->count * CAIRN_BLOCK_BYTES,
                         arrival->payload + (size_t)fold->skip * CAIRN_BLOCK_BYTES, rows,
                         fold->fresh);
}

/* Bytes may come at any time, so not while a worker moves the slot's memory. No move begins while
 * the part is being rebuilt (may_move in cutting.c). */
uint8_t *
carry_place(struct cairn_agent *agent, uint32_t from, uint64_t place, size_t payload_len)
{
    struct cairn_action_place where;

    if (payload_len % CAIRN_BLOCK_BYTES ||
        !cairn_core_place(agent->core, from, place, (uint32_t)(payload_len / CAIRN_BLOCK_BYTES),
                          &where) ||
        cairn_memory_is_moving(agent->memory, where.part))
        return NULL;
    return blocks_at(agent, where.part, where.area, where.row, where.first_block, where.count);
}

/* The payload was compared before, and is in place or is copied there. From here on its blocks
 * count, so nothing else may arrive in them. */
static void
carry_write(struct cairn_agent *agent, const struct cairn_action_place *place,
            const struct arrival *arrival)
{
    size_t bytes = (size_t)place->count * CAIRN_BLOCK_BYTES;
    uint8_t *target =
        blocks_at(agent, place->part, place->area, place->row, place->first_block, place->count);

    if (!target) {
        agent_abort(agent, 1, "a rebuilt block has no place in memory");
        return;
    }
    mail_unplace(agent, target, bytes);
    cairn_memory_write_begin(agent->memory, place->part);
    if (arrival->payload != target)
        memcpy(target, arrival->payload, bytes);
    cairn_memory_write_end(agent->memory, place->part);
}

static void
carry_stage(struct cairn_agent *agent, const struct cairn_action_place *place,
            const struct arrival *arrival)
{
    const uint8_t *source = arrival ? arrival->payload : NULL;
    uint8_t *shard;

    if (source && scratch_keep(agent, place->item, place->source, source))
        return;
    shard = scratch_stage(agent, place->item, place->source);
    if (!shard || !source) {
        agent_abort(agent, 1, "no memory to decode lost blocks");
        return;
    }
    memcpy(shard, source, (size_t)place->count * CAIRN_BLOCK_BYTES);
}

/* ---- stores ---- */

static void
carry_store_epoch(struct cairn_agent *agent, const struct cairn_action_store *store)
{
    cairn_err err = cairn_catalog_put(agent->catalog, CAIRN_TABLE_EPOCHS, "epoch", 5, store->bytes,
                                      store->bytes_len);

    if (!err)
        err = keeping_memory_is_known(agent);
    if (err == CAIRN_NOMEM)
        agent_abort(agent, 1, "out of memory to store the epoch durably");
    else if (err)
        agent_abort(agent, 74,
                    "the epoch could not be stored durably: an agent that forgets a promise could "
                    "break one; fix the disk of the state directory (`dir`) and start the agent "
                    "again");
}

static void
carry_store_part(struct cairn_agent *agent, const struct cairn_action_store *store)
{
    if (cairn_memory_record_store(agent->memory, store->part, store->bytes, store->bytes_len) !=
        CAIRN_OK)
        agent_abort(
            agent, 1,
            "a generation's record does not fit its memory: state_bytes is too small for the "
            "number of tensors, raise it");
}

static uint64_t
generation_bytes(const struct cairn_agent *agent, uint32_t part)
{
    struct cairn_part_view view;

    if (!cairn_core_look_part(agent->core, part, &view))
        return 0;
    return view.data_blocks * CAIRN_BLOCK_BYTES;
}

static void
carry_committed(struct cairn_agent *agent, const struct cairn_action_committed *committed)
{
    struct committed_time *commit =
        &agent->carry.commits[agent->carry.commit_count % COMMIT_TIMES_MAX];
    bool timed = cairn_generation_id_compare(committed->generation, agent->carry.first_grant) == 0;

    commit->generation = committed->generation;
    commit->wall_ns = cairn_clock_wall_ns(&agent->clock);
    commit->bytes = committed->part == UINT32_MAX ? 0 : generation_bytes(agent, committed->part);
    commit->protect_ns = timed ? agent_now_ns(agent) - agent->carry.first_grant_ns : 0;
    agent->carry.commit_count++;
    CAIRN_LOG_AT(DEBUG,
                 "save: committed epoch=%" PRIu64 " step=%" PRIu64 " bytes=%" PRIu64
                 " protect_ns=%" PRIu64,
                 cairn_epoch_number(committed->generation.epoch), committed->generation.step,
                 commit->bytes, commit->protect_ns);
    recorder_committed(agent, committed->generation, commit->bytes, commit->protect_ns);
    session_committed(agent, committed->generation);
    agent->handlers->committed(agent, committed->generation);
}

static void
carry_seal(struct cairn_agent *agent, const struct cairn_action_part *seal)
{
    struct cairn_event event = {.type = CAIRN_EVENT_SEALED,
                                .as.answer = {.part = seal->part,
                                              .request = seal->request,
                                              .generation = seal->generation}};
    uint8_t *bytes = NULL;

    event.as.answer.err = session_manifest(agent, seal, &bytes, &event.as.answer.bytes_len);
    event.as.answer.bytes = bytes;
    agent_step(agent, &event, NULL);
    free(bytes);
}

static void
carry_close(struct cairn_agent *agent, const struct cairn_action_part *close)
{
    agent->carry.hosting[close->part] = 0;
    for (uint32_t area = 0; area < 2; area++) {
        size_t bytes_len;
        const uint8_t *bytes = cairn_memory_area(agent->memory, close->part, area, &bytes_len);

        mail_unplace(agent, bytes, bytes_len);
    }
    cairn_memory_free(agent->memory, close->part);
    cutting_advance(agent);
}

static void
carry_grant(struct cairn_agent *agent, const struct cairn_action_trainer *grant)
{
    if (cairn_generation_id_compare(agent->carry.first_grant, grant->generation) != 0) {
        agent->carry.first_grant = grant->generation;
        agent->carry.first_grant_ns = agent_now_ns(agent);
    }
    session_grant(agent, grant);
}

static void
carry_activated(struct cairn_agent *agent, const struct cairn_action_activated *activated)
{
    struct cairn_core_view view;

    cairn_core_look(agent->core, &view);
    agent->carry.first_grant = no_generation;
    CAIRN_LOG_AT(INFO, "epoch: active epoch=%" PRIu64 " ready_step=%" PRIu64 " restart=%d",
                 cairn_epoch_number(view.active), activated->ready.step, activated->restart);
    recorder_activated(agent, activated);
    fleet_activated(agent);
    session_epoch(agent, view.active, activated->restart);
}

static void
carry_one(struct cairn_agent *agent, const struct cairn_action *action,
          const struct arrival *arrival)
{
    switch (action->type) {
    case CAIRN_ACTION_SEND:
        carry_send(agent, &action->as.send);
        break;
    case CAIRN_ACTION_CONNECT:
        mail_connect(agent, action->as.peer.agent);
        break;
    case CAIRN_ACTION_DISCONNECT:
        mail_disconnect(agent, action->as.peer.agent);
        break;
    case CAIRN_ACTION_FOLD:
        carry_fold(agent, &action->as.fold, arrival);
        break;
    case CAIRN_ACTION_WRITE:
        carry_write(agent, &action->as.place, arrival);
        break;
    case CAIRN_ACTION_STAGE:
        carry_stage(agent, &action->as.place, arrival);
        break;
    case CAIRN_ACTION_DECODE:
        carry_decode(agent, &action->as.decode);
        break;
    case CAIRN_ACTION_RELEASE:
        scratch_release(agent, action->as.decode.item);
        break;
    case CAIRN_ACTION_STORE_EPOCH:
        carry_store_epoch(agent, &action->as.store);
        break;
    case CAIRN_ACTION_STORE_PART:
        carry_store_part(agent, &action->as.store);
        break;
    case CAIRN_ACTION_OPEN:
        carry_open(agent, &action->as.part);
        break;
    case CAIRN_ACTION_CLOSE:
        carry_close(agent, &action->as.part);
        break;
    case CAIRN_ACTION_SEAL:
        carry_seal(agent, &action->as.part);
        break;
    case CAIRN_ACTION_FINISH:
        carry_check(agent, &action->as.part, false);
        break;
    case CAIRN_ACTION_VERIFY:
        carry_check(agent, &action->as.part, true);
        break;
    case CAIRN_ACTION_GRANT:
        carry_grant(agent, &action->as.trainer);
        break;
    case CAIRN_ACTION_SKIP:
        session_skip(agent, &action->as.trainer);
        break;
    case CAIRN_ACTION_DROP:
        session_drop(agent, action->as.trainer.generation);
        break;
    case CAIRN_ACTION_COMMITTED:
        carry_committed(agent, &action->as.committed);
        break;
    case CAIRN_ACTION_ACTIVATED:
        carry_activated(agent, &action->as.activated);
        break;
    case CAIRN_ACTION_REPLY:
        agent->handlers->reply(agent, &action->as.reply);
        break;
    }
}

void
carry_out(struct cairn_agent *agent, const struct arrival *arrival,
          const struct cairn_actions *actions)
{
    if (actions->failed) /* the list is incomplete: no action may be done */
        agent_abort(agent, 1, "out of memory in the protocol core");
    for (size_t i = 0; i < actions->count && !agent->stopping; i++)
        carry_one(agent, &actions->list[i], arrival);
}
