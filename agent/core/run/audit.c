/*
 * agent/core/run/audit.c - the leader's audit of a run's layouts; audit.h has the way.
 *
 * All members answer a question before the next is asked. Each question has a number, which its
 * answers repeat, so late and repeated answers change nothing.
 */
#include "agent/core/run/audit.h"

#include "agent/core/epoch/tree.h"
#include "base/crc.h"
#include "base/log.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    ORIGINS_MAX = 1 << 21,    /* keys of all members, and of one: above that, doubles are not */
    ORIGINS_OF_ONE = 1 << 15, /* looked for, so that it holds nothing up for long, and so that one
                                * message carries an answer */
    SUMS_BYTES = 8 * CAIRN_TILING_FAN,
    PIECES_BYTES_MAX = 60000,
    ANSWER_BYTES_MAX = 8 * ORIGINS_OF_ONE
};

/* Names a combination of layouts; never 0. */
static uint64_t
combine(const struct cairn_message_report *reports, uint32_t count)
{
    uint64_t combination = 0;

    for (uint32_t m = 0; m < count; m++) {
        uint8_t bytes[4];
        struct cairn_writer writer;

        cairn_writer_init(&writer, bytes, sizeof bytes);
        cairn_write_u32(&writer, reports[m].digest);
        combination = cairn_crc64(combination, bytes, sizeof bytes);
    }
    return combination ? combination : 1;
}

static enum audit_result
conclude(struct audit *audit, enum audit_result verdict, const char *text)
{
    audit->verdict = verdict;
    cairn_text_clean(audit->text, sizeof audit->text, text);
    audit_end(audit);
    return verdict;
}

void
audit_end(struct audit *audit)
{
    free(audit->answered);
    free(audit->sums);
    free(audit->origins);
    cairn_tiling_pieces_fini(&audit->pieces);
    audit->id = 0;
    audit->answered = audit->sums = audit->origins = NULL;
    audit->origin_count = audit->origin_room = 0;
    audit->uncounted = false;
}

/* ---- a member's answer ---- */

void
audit_reply(struct env *env, uint32_t to, const struct cairn_message *question,
            const struct cairn_tiling *tiling)
{
    struct cairn_message answer = epoch_message(env, CAIRN_MSG_AUDIT);
    uint64_t sums[CAIRN_TILING_FAN] = {0};
    const uint64_t *origins = NULL;
    uint8_t *bytes = malloc(ANSWER_BYTES_MAX);
    struct cairn_writer writer;
    size_t count = 0;

    if (!bytes) {
        env->actions->failed = true;
        return;
    }
    answer.as.audit = question->as.audit;
    answer.as.audit.answer = 1;
    cairn_writer_init(&writer, bytes, ANSWER_BYTES_MAX);
    switch (question->as.audit.asks) {
    case CAIRN_AUDIT_SUMS:
        if (tiling)
            cairn_tiling_sums(tiling, sums);
        for (uint32_t i = 0; i < CAIRN_TILING_FAN; i++)
            cairn_write_u64(&writer, sums[i]);
        break;
    case CAIRN_AUDIT_ORIGINS:
        if (tiling)
            origins = cairn_tiling_origins(tiling, &count);
        answer.as.audit.cut = count > ORIGINS_OF_ONE;
        for (size_t i = 0; i < count && i < ORIGINS_OF_ONE; i++)
            cairn_write_u64(&writer, origins[i]);
        break;
    case CAIRN_AUDIT_PIECES:
        bytes[0] = 0;
        writer.used_bytes = tiling ? cairn_tiling_pack_pieces(tiling, question->as.audit.prefix,
                                                              bytes, PIECES_BYTES_MAX)
                                   : 1;
        break;
    }
    answer.bytes = bytes;
    answer.bytes_len = (uint32_t)writer.used_bytes;
    env_send(env, to, &answer);
    free(bytes);
}

/* ---- questions ---- */

static void
ask(struct env *env, const struct audit *audit, uint32_t member)
{
    const struct cairn_roster *roster = env->membership->record.roster;
    struct cairn_message message = epoch_message(env, CAIRN_MSG_AUDIT);
    uint32_t next = tree_towards(env->membership->self_member, audit->count, member);

    message.as.audit = (struct cairn_message_audit){.agent = roster->members[member].agent,
                                                    .audit = audit->id,
                                                    .asks = audit->asks,
                                                    .prefix = audit->prefix};
    env_send(env, roster->members[next].agent, &message);
}

/* Asks every member that has tensors. */
static enum audit_result
ask_all(struct env *env, struct audit *audit, enum cairn_audit asks, uint64_t prefix)
{
    audit->id = env_request(env);
    audit->asks = asks;
    audit->prefix = prefix;
    memset(audit->answered, 0, cairn_bitset_words(audit->count) * sizeof(uint64_t));
    for (uint32_t m = 0; m < audit->count; m++) {
        if (audit->reports[m].digest == 0)
            cairn_bitset_add(audit->answered, m);
        else
            ask(env, audit, m);
    }
    return AUDIT_RUNNING;
}

static bool
take_sums(struct audit *audit, const struct cairn_message *answer)
{
    struct cairn_reader reader;

    if (answer->bytes_len != SUMS_BYTES)
        return false;
    cairn_reader_init(&reader, answer->bytes, answer->bytes_len);
    for (uint32_t i = 0; i < CAIRN_TILING_FAN; i++)
        audit->sums[i] =
            cairn_tiling_add(audit->sums[i], cairn_read_u64(&reader) % CAIRN_TILING_FIELD);
    return true;
}

static bool
take_origins(struct env *env, struct audit *audit, const struct cairn_message *answer)
{
    size_t count = answer->bytes_len / 8;
    struct cairn_reader reader;

    if (answer->bytes_len % 8 != 0)
        return false;
    if (answer->as.audit.cut || audit->origin_count + count > ORIGINS_MAX) {
        audit->uncounted = true;
        return true;
    }
    if (audit->origin_count + count > audit->origin_room) {
        size_t room = 2 * (audit->origin_count + count);
        uint64_t *origins = realloc(audit->origins, room * sizeof *origins);

        if (!origins) {
            env->actions->failed = true;
            return false;
        }
        audit->origins = origins;
        audit->origin_room = room;
    }
    cairn_reader_init(&reader, answer->bytes, answer->bytes_len);
    for (size_t i = 0; i < count; i++)
        audit->origins[audit->origin_count++] = cairn_read_u64(&reader);
    return true;
}

static bool
take_pieces(struct env *env, struct audit *audit, const struct cairn_message *answer)
{
    env->actions->failed |=
        cairn_tiling_add_pieces(&audit->pieces, answer->bytes, answer->bytes_len) == CAIRN_NOMEM;
    return true;
}

static int
compare_keys(const void *left, const void *right)
{
    const uint64_t *a = left, *b = right;

    return (*a > *b) - (*a < *b);
}

/* No key comes twice; else asks for the pieces of the first that does. */
static enum audit_result
judge_origins(struct env *env, struct audit *audit)
{
    if (audit->origin_count > 0)
        qsort(audit->origins, audit->origin_count, sizeof *audit->origins, compare_keys);
    for (size_t i = 1; i < audit->origin_count; i++)
        if (audit->origins[i] == audit->origins[i - 1])
            return ask_all(env, audit, CAIRN_AUDIT_PIECES, cairn_tiling_prefix(audit->origins[i]));
    if (audit->uncounted)
        CAIRN_LOG_AT(WARN,
                     "audit: more than %d tensors, or %d on a node; not checked whether two ranks "
                     "hold one",
                     ORIGINS_MAX, ORIGINS_OF_ONE);
    return conclude(audit, AUDIT_GOOD, "");
}

/* All members have answered: the verdict, or the next question. */
static enum audit_result
advance(struct env *env, struct audit *audit)
{
    char text[CAIRN_REFUSAL_BYTES];

    if (audit->asks == CAIRN_AUDIT_ORIGINS)
        return judge_origins(env, audit);
    for (uint64_t i = 0; audit->asks == CAIRN_AUDIT_SUMS && i < CAIRN_TILING_FAN; i++)
        if (audit->sums[i] != 0)
            return ask_all(env, audit, CAIRN_AUDIT_PIECES, i);
    cairn_tiling_explain(&audit->pieces, text, sizeof text);
    return conclude(audit, AUDIT_BAD, text);
}

enum audit_result
audit_begin(struct env *env, struct audit *audit, const struct cairn_message_report *reports,
            uint32_t count)
{
    uint64_t combination = combine(reports, count), sum = 0;
    bool any = false;

    audit_end(audit);
    if (CAIRN_PLANTED(env, BUG_LAYOUT_UNSEEN))
        return AUDIT_GOOD;
    if (combination == audit->combination && audit->verdict != AUDIT_RUNNING)
        return audit->verdict;
    audit->combination = combination;
    audit->verdict = AUDIT_RUNNING;
    audit->text[0] = '\0';
    audit->reports = reports;
    audit->count = count;
    for (uint32_t m = 0; m < count; m++) {
        sum = cairn_tiling_add(sum, reports[m].tiling_sum % CAIRN_TILING_FIELD);
        any |= reports[m].digest != 0;
    }
    audit->answered = calloc(cairn_bitset_words(count), sizeof *audit->answered);
    audit->sums = sum ? calloc(CAIRN_TILING_FAN, sizeof *audit->sums) : NULL;
    if (!audit->answered || (sum && !audit->sums)) {
        audit_end(audit);
        env->actions->failed = true;
        return AUDIT_RUNNING;
    }
    if (!any)
        return conclude(audit, AUDIT_GOOD, "");
    return ask_all(env, audit, sum ? CAIRN_AUDIT_SUMS : CAIRN_AUDIT_ORIGINS, 0);
}

enum audit_result
audit_answered(struct env *env, struct audit *audit, const struct cairn_message *message)
{
    const struct cairn_message_audit *said = &message->as.audit;
    uint32_t member = cairn_roster_member_of(env->membership->record.roster, said->agent);
    bool taken;

    if (audit->id == 0 || said->audit != audit->id || member >= audit->count ||
        cairn_bitset_has(audit->answered, member))
        return AUDIT_RUNNING;
    if (audit->asks == CAIRN_AUDIT_SUMS)
        taken = take_sums(audit, message);
    else
        taken = audit->asks == CAIRN_AUDIT_ORIGINS ? take_origins(env, audit, message)
                                                   : take_pieces(env, audit, message);
    if (taken)
        cairn_bitset_add(audit->answered, member);
    return taken && cairn_bitset_full(audit->answered, audit->count) ? advance(env, audit)
                                                                     : AUDIT_RUNNING;
}

void
audit_ask_again(struct env *env, const struct audit *audit, uint32_t agent)
{
    uint32_t member = cairn_roster_member_of(env->membership->record.roster, agent);

    if (audit->id != 0 && member < audit->count && !cairn_bitset_has(audit->answered, member))
        ask(env, audit, member);
}
