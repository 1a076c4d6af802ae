/*
 * agent/process/carry_jobs.c - the core's actions that workers carry out; see carry_jobs.h.
 *
 * A job names its part's generation, so the core recognizes a late answer about memory that has
 * been filled again since.
 */
#include "agent/process/carry_jobs.h"

#include "erasure/roster.h"
#include "agent/process/agent_state.h"
#include "agent/process/codes.h"
#include "agent/process/memory.h"
#include "agent/process/scratch.h"
#include "agent/process/step.h"
#include "base/array.h"
#include "base/bitset.h"
#include "base/crc.h"
#include "base/log.h"
#include "base/worker.h"

#include <stdlib.h>
#include <string.h>

struct decode_job {
    struct cairn_job job;
    struct cairn_agent *agent;
    uint32_t item;
    uint64_t request;
    uint64_t sources, lost;
    size_t bytes;
    const struct cairn_code *code;
    uint8_t *shards[CAIRN_SHARDS_MAX];
    struct space *space;    /* held, as the buffers are: the item may be released meanwhile */
    uint32_t payload_count; /* so are its sources */
    struct kept_payload payloads[CAIRN_SHARDS_MAX];
    cairn_err err;
};

static void
decode_run(struct cairn_job *job)
{
    struct decode_job *decode = (struct decode_job *)job;

    decode->err = cairn_code_rebuild_some(decode->code, decode->bytes, decode->sources,
                                          decode->lost, decode->shards);
    for (uint32_t s = 0; !decode->err && s < CAIRN_SHARDS_MAX; s++)
        for (size_t at = 0; ((decode->lost >> s) & 1) && at < decode->bytes;
             at += CAIRN_BLOCK_BYTES)
            space_crcs(decode->space, s)[at / CAIRN_BLOCK_BYTES] =
                cairn_crc64(0, decode->shards[s] + at, CAIRN_BLOCK_BYTES);
}

static void
decode_done(struct cairn_job *job)
{
    struct decode_job *decode = (struct decode_job *)job;
    struct cairn_agent *agent = decode->agent;
    struct cairn_event event = {.type = CAIRN_EVENT_DECODED,
                                .as.decoded = {.item = decode->item, .request = decode->request}};

    space_drop(agent, decode->space);
    scratch_give_back(agent, decode->payloads, decode->payload_count);
    if (decode->err) { /* an item that is never answered would hold up every later repair */
        CAIRN_LOG_AT(ERROR, "rebuild: decode failed: %s", cairn_err_text(decode->err));
        agent_abort(agent, 1, "lost blocks cannot be decoded");
    } else { /* of a released item too: before the answer the core does not use it again */
        agent_step(agent, &event, NULL);
    }
    free(decode);
}

static void
submit(struct cairn_agent *agent, struct cairn_job *job)
{
    if (cairn_workers_submit(agent->workers, job) == CAIRN_OK)
        return;
    agent_abort(agent, 1, "more jobs than parts and repairs can ask for");
    job->done(job); /* a stopping agent takes no event, so this only frees */
}

void
carry_decode(struct cairn_agent *agent, const struct cairn_action_decode *action)
{
    struct scratch_item *scratch = &agent->scratch.items[action->item % SCRATCH_ITEMS_MAX];
    const struct cairn_code *code =
        codes_get(&agent->codes, action->data_shards, action->parity_shards);
    struct decode_job *decode = calloc(1, sizeof *decode);
    uint32_t shards = action->data_shards + action->parity_shards;

    if (!decode || !code || !scratch->space) {
        free(decode);
        agent_abort(agent, 1, "no memory to decode lost blocks");
        return;
    }
    decode->job = (struct cairn_job){.run = decode_run, .done = decode_done};
    decode->agent = agent;
    decode->item = action->item;
    decode->request = action->request;
    decode->sources = action->sources;
    decode->lost = action->lost;
    decode->bytes = (size_t)action->count * CAIRN_BLOCK_BYTES;
    decode->code = code;
    for (uint32_t s = 0; s < shards; s++)
        if (((scratch->staged | action->lost) >> s) & 1) /* a source that is not staged is zeros */
            decode->shards[s] = scratch_shard(agent, action->item, s);
    decode->payload_count = scratch_take_kept(agent, action->item, decode->payloads);
    decode->space = scratch->space;
    space_hold(decode->space);
    submit(agent, &decode->job);
}

/* Checksums a part: parity alone (a save), or everything and its record (verify). */
struct check_job {
    struct cairn_job job;
    struct cairn_agent *agent;
    uint32_t part;
    uint64_t request;
    struct cairn_generation_id generation;
    bool verify; /* answer VERIFIED, else FINISHED */
    bool record_damaged;
    uint64_t data_blocks;
    const uint8_t *data;
    uint64_t *skip; /* blocks that are not compared, the parity's behind the data's; NULL: none */
    uint64_t *data_crcs; /* expected */
    uint32_t parity_slots;
    const uint8_t *parity[CAIRN_SHARDS_MAX];
    uint64_t parity_blocks[CAIRN_SHARDS_MAX];
    uint64_t parity_total;
    uint64_t *parity_crcs; /* expected when verifying, else the answer */
    struct cairn_bad_block *bad;
    uint64_t bad_count;
    cairn_err err;
};

static void
note_bad(struct check_job *check, enum cairn_area area, uint64_t block)
{
    if (!cairn_array_grow(&check->bad, check->bad_count, sizeof *check->bad)) {
        check->err = CAIRN_NOMEM;
        return;
    }
    check->bad[check->bad_count++] = (struct cairn_bad_block){.area = area, .block = block};
}

static bool
skips(const struct check_job *check, uint64_t block)
{
    return check->skip && cairn_bitset_has(check->skip, (uint32_t)block);
}

static void
check_run(struct cairn_job *job)
{
    struct check_job *check = (struct check_job *)job;
    uint64_t index = 0;

    if (check->verify)
        check->record_damaged = !cairn_memory_record_is_whole(check->agent->memory, check->part);
    for (uint64_t b = 0; check->verify && b < check->data_blocks; b++)
        if (!skips(check, b) && cairn_crc64(0, check->data + b * CAIRN_BLOCK_BYTES,
                                            CAIRN_BLOCK_BYTES) != check->data_crcs[b])
            note_bad(check, CAIRN_AREA_DATA, b);
    for (uint32_t slot = 0; slot < check->parity_slots; slot++)
        for (uint64_t b = 0; b < check->parity_blocks[slot]; b++, index++) {
            uint64_t crc;

            if (skips(check, check->data_blocks + index))
                continue;
            crc = cairn_crc64(0, check->parity[slot] + b * CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES);
            if (!check->verify)
                check->parity_crcs[index] = crc;
            else if (check->parity_crcs[index] != crc)
                note_bad(check, CAIRN_AREA_PARITY, index);
        }
}

static void
check_free(struct check_job *check)
{
    free(check->skip);
    free(check->data_crcs);
    free(check->parity_crcs);
    free(check->bad);
    free(check);
}

static void
check_done(struct cairn_job *job)
{
    struct check_job *check = (struct check_job *)job;
    struct cairn_agent *agent = check->agent;
    struct cairn_event event = {.type = check->verify ? CAIRN_EVENT_VERIFIED : CAIRN_EVENT_FINISHED,
                                .as.answer = {.part = check->part,
                                              .request = check->request,
                                              .generation = check->generation,
                                              .err = check->err}};
    struct cairn_event_answer *answer = &event.as.answer;

    cairn_memory_unhold(agent->memory, check->part);
    if (check->verify) {
        answer->bad = check->bad;
        answer->count = check->bad_count;
        answer->record_damaged = check->record_damaged;
    } else {
        answer->crcs = check->parity_crcs;
        answer->count = check->parity_total;
    }
    agent_step(agent, &event, NULL);
    check_free(check);
}

static cairn_err
fill_check(struct cairn_agent *agent, struct check_job *check, const struct cairn_part_view *view,
           const uint64_t *skip)
{
    const struct cairn_roster_group *group = cairn_roster_group_of(view->roster, view->member);
    uint64_t at = 0;

    check->data_blocks = view->stripes->shard_blocks[view->position];
    check->data = cairn_memory_data(agent->memory, check->part, 0, check->data_blocks);
    check->data_crcs = malloc(8 * check->data_blocks + 8);
    check->parity_slots = group->parity;
    for (uint32_t slot = 0; slot < group->parity; slot++) {
        uint32_t stripe = cairn_slot_stripe(&view->stripes->geometry, view->position, slot);

        check->parity_blocks[slot] = view->stripes->parity_blocks[stripe];
        check->parity_total += check->parity_blocks[slot];
        check->parity[slot] = cairn_memory_parity(agent->memory, check->part, slot, group->parity,
                                                  0, check->parity_blocks[slot]);
        if (!check->parity[slot] && check->parity_blocks[slot])
            return CAIRN_INTERNAL;
    }
    check->parity_crcs = malloc(8 * check->parity_total + 8);
    if (skip)
        check->skip = malloc(8 * ((check->data_blocks + check->parity_total) / 64 + 1));
    if (!check->data_crcs || !check->parity_crcs || (skip && !check->skip))
        return CAIRN_NOMEM;
    if (skip)
        memcpy(check->skip, skip, 8 * ((check->data_blocks + check->parity_total) / 64 + 1));
    if (!check->data || !view->block_crcs)
        return CAIRN_INTERNAL;
    memcpy(check->data_crcs, view->block_crcs, 8 * check->data_blocks);
    for (uint32_t slot = 0; check->verify && slot < group->parity; slot++) {
        memcpy(check->parity_crcs + at, view->parity_crcs[slot], 8 * check->parity_blocks[slot]);
        at += check->parity_blocks[slot];
    }
    return CAIRN_OK;
}

void
carry_check(struct cairn_agent *agent, const struct cairn_action_part *action, bool verify)
{
    struct cairn_part_view view;
    struct check_job *check = calloc(1, sizeof *check);
    cairn_err err = check ? CAIRN_OK : CAIRN_NOMEM;

    if (!err && (!cairn_core_look_part(agent->core, action->part, &view) || !view.stripes))
        err = CAIRN_INTERNAL;
    if (!err) {
        check->job = (struct cairn_job){.run = check_run, .done = check_done};
        check->agent = agent;
        check->part = action->part;
        check->request = action->request;
        check->generation = action->generation;
        check->verify = verify;
        err = fill_check(agent, check, &view, action->skip);
    }
    if (err) {
        struct cairn_event failed = {.type = verify ? CAIRN_EVENT_VERIFIED : CAIRN_EVENT_FINISHED,
                                     .as.answer = {.part = action->part,
                                                   .request = action->request,
                                                   .generation = action->generation,
                                                   .err = err}};

        CAIRN_LOG_AT(ERROR, "memory: cannot check a generation's memory: %s", cairn_err_text(err));
        if (check)
            check_free(check);
        agent_step(agent, &failed, NULL); /* its caller must not wait for ever */
        return;
    }
    cairn_memory_hold(agent->memory, action->part);
    submit(agent, &check->job);
}

/* Reserves memory for a hosted part: this touches every page, and may take seconds. */
struct host_job {
    struct cairn_job job;
    struct cairn_agent *agent;
    uint32_t part;
    uint64_t request;
    struct cairn_generation_id generation;
    uint64_t serial;
    uint64_t data_blocks, parity_blocks;
    struct cairn_memory_reserved reserved;
    cairn_err err;
};

static void
host_run(struct cairn_job *job)
{
    struct host_job *host = (struct host_job *)job;

    host->err = cairn_memory_reserve(host->agent->memory, host->data_blocks, host->parity_blocks,
                                     &host->reserved);
}

static void
host_done(struct cairn_job *job)
{
    struct host_job *host = (struct host_job *)job;
    struct cairn_agent *agent = host->agent;
    struct cairn_event event = {.type = CAIRN_EVENT_OPENED,
                                .as.answer = {.part = host->part,
                                              .request = host->request,
                                              .generation = host->generation,
                                              .err = host->err}};

    if (agent->carry.hosting[host->part] != host->serial) {
        event.as.answer.err = CAIRN_STALE; /* the part was closed meanwhile */
    } else {
        agent->carry.hosting[host->part] = 0;
        if (!host->err && !agent->stopping)
            event.as.answer.err = cairn_memory_host(agent->memory, host->part, &host->reserved);
    }
    agent_step(agent, &event, NULL);
    cairn_memory_unreserve(&host->reserved); /* what was not hosted */
    free(host);
}

void
carry_open(struct cairn_agent *agent, const struct cairn_action_part *action)
{
    struct host_job *host = calloc(1, sizeof *host);

    if (!host || action->part >= CAIRN_PARTS_MAX || action->part < agent->config.slots) {
        struct cairn_event event = {.type = CAIRN_EVENT_OPENED,
                                    .as.answer = {.part = action->part,
                                                  .request = action->request,
                                                  .generation = action->generation,
                                                  .err = host ? CAIRN_FULL : CAIRN_NOMEM}};

        if (host)
            CAIRN_LOG_AT(ERROR, "memory: a lost part is larger than this node's slots: state_bytes "
                                "must be the same on all "
                                "nodes");

        free(host);
        agent_step(agent, &event, NULL);
        return;
    }
    host->job = (struct cairn_job){.run = host_run, .done = host_done};
    host->agent = agent;
    host->part = action->part;
    host->request = action->request;
    host->generation = action->generation;
    host->serial = agent->carry.hosting[action->part] = ++agent->carry.hosting_serial;
    host->data_blocks = action->blocks;
    host->parity_blocks = action->parity_blocks;
    submit(agent, &host->job);
}
