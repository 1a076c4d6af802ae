/*
 * agent/core/tiling.c - checks before a commit that all parts together hold every tensor exactly
 * once.
 *
 * Each yes has the digest of its part's layout (facts.c), so an agent that knows all votes knows
 * the combination of layouts. A verdict on a combination never changes, and is true for every
 * generation with it. Known verdicts cost nothing. The first member audits a new combination once;
 * a commit needs its yes anyway.
 *
 *   1. first member: all voted yes, and the combination is unknown. It sends LAYOUT_ASK to each
 *      member, for the member's part of that generation.
 *   2. member: answers by LAYOUT with 64 sums over its tensors (snapshot/tiling.h), and with the
 *      keys of the tensors whose origin it has.
 *   3. first member: if all sums are 0 and no key comes twice, the combination is good. Otherwise
 *      it asks for the sums of the tensors in one 64th, CAIRN_TILING_LEVELS times, then for the
 *      pieces of the few tensors that are left, and looks at those: it is bad, and the text has
 *      names.
 *   4. first member: sends TILED to each member. A member that waits too long asks by the same
 *      message (CAIRN_AGAIN).
 *
 * Questions without an answer are sent again. Members answer from the manifest that they sealed, so
 * they keep no state, and a first member that restarted begins again.
 *
 * All agents give up a generation with a bad combination. The next due step is skipped, and its
 * trainers are told why. The step after that is tried again, since the ranks may have registered
 * again.
 */
#include "agent/core/core_state.h"

#include "base/crc.h"
#include "base/log.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ORIGINS_PER_MESSAGE = 7168, PIECES_BYTES_MAX = 60000 };

static uint32_t
agent_of(const struct cairn_core *core, uint32_t member)
{
    return core->table->members[member].agent;
}

/* ---- verdicts ---- */

uint64_t
tiling_of_group(const uint32_t *digests, uint32_t count)
{
    uint8_t bytes[4 * CAIRN_SHARDS_MAX];
    struct cairn_writer writer;
    uint64_t crc;

    cairn_writer_init(&writer, bytes, sizeof bytes);
    for (uint32_t p = 0; p < count; p++)
        cairn_write_u32(&writer, digests[p]);
    crc = cairn_crc64(0, bytes, writer.used_bytes);
    return crc ? crc : 1;
}

uint64_t
tiling_with_group(uint64_t combination, uint64_t group)
{
    uint8_t bytes[8];
    struct cairn_writer writer;
    uint64_t crc;

    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_write_u64(&writer, group);
    crc = cairn_crc64(combination, bytes, sizeof bytes);
    return crc ? crc : 1;
}

/* The combination of layouts that all have voted with. */
static uint64_t
combine(const struct cairn_roster *table, const uint32_t *layouts)
{
    uint64_t combination = 0;

    for (uint32_t g = 0; g < table->group_count; g++) {
        const struct cairn_roster_group *group = &table->groups[g];
        uint32_t digests[CAIRN_SHARDS_MAX];

        for (uint32_t p = 0; p < group->count; p++)
            digests[p] = layouts[group->members[p]];
        combination = tiling_with_group(combination, tiling_of_group(digests, group->count));
    }
    return combination;
}

const struct tiling_verdict *
tiling_verdict_on(const struct cairn_core *core, uint64_t combination)
{
    for (uint32_t i = 0; i < TILINGS_KNOWN; i++)
        if (combination != 0 && core->tiling.known[i].combination == combination)
            return &core->tiling.known[i];
    return NULL;
}

void
tiling_remember(struct cairn_core *core, uint64_t combination, bool good, const char *text)
{
    struct tiling_verdict *verdict = &core->tiling.known[core->tiling.known_next++ % TILINGS_KNOWN];

    verdict->combination = combination;
    verdict->good = good;
    cairn_text_clean(verdict->text, sizeof verdict->text, text);
}

void
tiling_send_verdict(struct cairn_core *core, uint32_t to, struct cairn_generation generation,
                    const struct tiling_verdict *verdict)
{
    struct cairn_message message = message_new(core, CAIRN_MSG_TILED, core->active);

    message.generation = generation;
    message.request = verdict->combination;
    message.err = verdict->good ? CAIRN_OK : CAIRN_CORRUPT;
    message.bytes = (const uint8_t *)verdict->text;
    message.bytes_len = (uint32_t)strlen(verdict->text);
    send_message(core, to, &message);
}

/* ---- the own part ---- */

cairn_err
tiling_own(struct cairn_core *core, const uint8_t *manifest, size_t len,
           const struct cairn_tiling **out)
{
    struct tiling_state *state = &core->tiling;
    uint32_t digest = cairn_tiling_digest(manifest, len);
    struct cairn_tiling *tiling = NULL;
    cairn_err err;

    if (state->own_digest != digest) {
        err = cairn_tiling_create(manifest, len, &tiling);
        if (err == CAIRN_NOMEM)
            return err;
        cairn_tiling_destroy(state->own);
        state->own = tiling;
        state->own_digest = digest;
    }
    *out = state->own;
    return CAIRN_OK;
}

cairn_err
tiling_sum_of(struct cairn_core *core, const uint8_t *manifest, size_t len, uint64_t *sum)
{
    const struct cairn_tiling *tiling;
    cairn_err err = tiling_own(core, manifest, len, &tiling);

    if (!err)
        *sum = tiling ? cairn_tiling_sum(tiling) : 0;
    return err;
}

void
tiling_answer(const struct cairn_core *core, const struct cairn_message *ask,
              const struct cairn_tiling *tiling, uint8_t *bytes, struct cairn_message *answer)
{
    uint64_t sums[CAIRN_TILING_FAN] = {0};
    const uint64_t *origins = NULL;
    struct cairn_writer writer;
    size_t count = 0;

    *answer = message_new(core, CAIRN_MSG_LAYOUT, core->active);
    answer->generation = ask->generation;
    answer->member = core->self_member;
    answer->request = ask->request;
    answer->stripe = ask->stripe;
    answer->first_block = ask->first_block;
    answer->offset = ask->offset;
    answer->bytes = bytes;
    if (ask->stripe >= CAIRN_TILING_LEVELS) {
        bytes[0] = 0;
        answer->bytes_len = tiling ? (uint32_t)cairn_tiling_pack_pieces(tiling, ask->first_block,
                                                                        bytes, PIECES_BYTES_MAX)
                                   : 1;
        return;
    }
    if (tiling)
        cairn_tiling_sums(tiling, ask->stripe, ask->first_block, sums);
    if (tiling && ask->stripe == 0)
        origins = cairn_tiling_origins(tiling, &count);
    answer->total = count;
    cairn_writer_init(&writer, bytes, CAIRN_MESSAGE_PART_BYTES_MAX);
    for (uint32_t i = 0; i < CAIRN_TILING_FAN; i++)
        cairn_write_u64(&writer, sums[i]);
    for (size_t i = ask->offset; i < count && i - ask->offset < ORIGINS_PER_MESSAGE; i++)
        cairn_write_u64(&writer, origins[i]);
    answer->bytes_len = (uint32_t)writer.used_bytes;
}

const struct seal *
tiling_own_seal(struct cairn_core *core, struct cairn_generation generation)
{
    const struct holding *holding = holding_find(core, generation, core->self_member);

    return holding && holding->seals[holding->position].whole ? &holding->seals[holding->position]
                                                              : NULL;
}

static void
take_ask(struct cairn_core *core, const struct cairn_message *ask)
{
    const struct tiling_verdict *verdict = tiling_verdict_on(core, ask->total);
    const struct seal *seal = tiling_own_seal(core, ask->generation);
    const struct cairn_tiling *tiling;
    struct cairn_message answer;
    uint8_t bytes[CAIRN_MESSAGE_PART_BYTES_MAX];

    if (verdict) {
        tiling_send_verdict(core, ask->from, ask->generation, verdict);
        return;
    }
    if (!seal) {
        facts_answer(core, ask->generation, ask->from);
        return;
    }
    if (ask->member != core->self_member ||
        tiling_own(core, seal->manifest, seal->manifest_len, &tiling) != CAIRN_OK ||
        core->tiling.own_digest != ask->request)
        return;
    tiling_answer(core, ask, tiling, bytes, &answer);
    send_message(core, ask->from, &answer);
}

/* ---- every member ---- */

/* Asks the first member, whose word may have been lost. */
static void
question(struct cairn_core *core, struct cairn_generation generation, uint64_t combination)
{
    struct cairn_message message = message_new(core, CAIRN_MSG_TILED, core->active);

    if (core->now_ns - core->tiling.asked_ns < core->options.resend_after_ns)
        return;
    core->tiling.asked_ns = core->now_ns;
    message.generation = generation;
    message.request = combination;
    message.err = CAIRN_AGAIN;
    send_message(core, agent_of(core, 0), &message);
}

enum tiling_word
tiling_look(struct cairn_core *core, const struct facts *facts)
{
    uint64_t combination = combine(core->table, facts->layouts);
    const struct tiling_verdict *verdict = tiling_verdict_on(core, combination);
    struct tiling_state *state = &core->tiling;

    if (CAIRN_PLANTED(core, BUG_TILING_UNSEEN))
        return TILING_GOOD;
    if (!verdict && core->self_member == 0) {
        tiling_audit_begin(core, facts, combination);
        verdict = tiling_verdict_on(core, combination);
    }
    if (verdict)
        return verdict->good ? TILING_GOOD : TILING_BAD;
    if (!state->awaited)
        state->asked_ns = core->now_ns; /* the first member says it by itself, but needs some
                                         * time */
    state->awaited = state->unknown = true;
    if (core->self_member != 0 && core->self_member != UINT32_MAX)
        question(core, facts->generation, combination);
    return TILING_UNKNOWN;
}

void
tiling_refused(struct cairn_core *core, const struct facts *facts)
{
    const struct tiling_verdict *verdict =
        tiling_verdict_on(core, combine(core->table, facts->layouts));
    const char *text = verdict ? verdict->text : "";

    if (strcmp(core->tiling.refusal, text) != 0)
        CAIRN_LOG_AT(WARN, "save: step=%" PRIu64 " is given up, as will be all like it: %s",
                     facts->generation.step, text);
    cairn_text_clean(core->tiling.refusal, sizeof core->tiling.refusal, text);
    core->tiling.refused = facts->generation;
    core->tiling.told = 0;
}

bool
tiling_skips(struct cairn_core *core, uint32_t rank, uint64_t step)
{
    struct tiling_state *state = &core->tiling;
    uint64_t bit = UINT64_C(1) << rank;

    if (state->refused.step == 0 || state->refused.epoch != core->active ||
        step <= state->refused.step || (state->told & bit))
        return false;
    state->told |= bit;
    return true;
}

static void
take_tiled(struct cairn_core *core, const struct cairn_message *message)
{
    const struct tiling_verdict *verdict = tiling_verdict_on(core, message->request);
    struct tiling_audit *audit = &core->tiling.audit;
    char text[TILING_TEXT_BYTES] = "";

    if (message->err == CAIRN_AGAIN) {
        if (verdict)
            tiling_send_verdict(core, message->from, message->generation, verdict);
        else
            facts_answer(core, message->generation, message->from);
        return;
    }
    if (verdict || message->request == 0 || message->bytes_len >= sizeof text)
        return;
    if (message->bytes_len > 0)
        memcpy(text, message->bytes, message->bytes_len);
    tiling_remember(core, message->request, message->err == CAIRN_OK, text);
    if (tiling_audit_runs(audit) && audit->combination == message->request)
        tiling_audit_end(audit);
    facts_settle_full(core);
}

void
tiling_message(struct cairn_core *core, const struct cairn_message *message)
{
    if (message->epoch != core->active || message->generation.epoch != message->epoch ||
        core->frozen || core->self_member == UINT32_MAX)
        return;
    if (message->type == CAIRN_MSG_LAYOUT_ASK) {
        take_ask(core, message);
    } else if (message->type == CAIRN_MSG_TILED) {
        take_tiled(core, message);
    } else {
        tiling_audit_message(core, message);
    }
}

void
tiling_tick(struct cairn_core *core)
{
    tiling_audit_tick(core);
    if (!core->tiling.awaited || core->frozen)
        return;
    core->tiling.unknown = false;
    facts_settle_full(core);
    core->tiling.awaited = core->tiling.unknown;
}

void
tiling_clear(struct cairn_core *core)
{
    struct tiling_state *state = &core->tiling;

    tiling_audit_end(&state->audit);
    state->awaited = false;
    state->refused = (struct cairn_generation){0, 0};
    state->told = 0;
    state->refusal[0] = '\0';
}

void
tiling_fini(struct cairn_core *core)
{
    tiling_audit_end(&core->tiling.audit);
    cairn_tiling_destroy(core->tiling.own);
    core->tiling.own = NULL;
    core->tiling.own_digest = 0;
}
