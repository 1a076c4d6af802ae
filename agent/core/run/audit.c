/*
 * agent/core/run/audit.c - the leader's audit of a run's layouts; audit.h has the way.
 *
 * All members answer a question before the next is asked. What arrives is counted against the
 * audit, the question, the digest that the member reported and the keys received so far, so that
 * repeats and late answers change nothing.
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
    ORIGINS_MAX = 1 << 21, /* keys of all members; above that, doubles are not looked for, so that
                            * sorting them holds nothing up for long */
    SUMS_BYTES = 8 * CAIRN_TILING_FAN,
    ORIGINS_PER_MESSAGE = 7168,
    PIECES_BYTES_MAX = 60000
};

/* What every step of one audit needs. */
struct asking {
    struct env *env;
    struct audit *audit;
    const struct cairn_roster *roster;
    const struct cairn_tiling *tiling; /* of this agent's member */
    uint64_t epoch;
    uint32_t own;
};

/* ---- verdicts ---- */

static const struct audit_verdict *
verdict_on(const struct audit *audit, uint64_t combination)
{
    for (uint32_t i = 0; i < AUDITS_KNOWN; i++)
        if (combination != 0 && audit->known[i].combination == combination)
            return &audit->known[i];
    return NULL;
}

const char *
audit_text(const struct audit *audit)
{
    const struct audit_verdict *verdict = verdict_on(audit, audit->combination);

    return verdict ? verdict->text : "";
}

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
conclude(struct audit *audit, bool good, const char *text)
{
    struct audit_verdict *verdict = &audit->known[audit->known_next++ % AUDITS_KNOWN];

    verdict->combination = audit->combination;
    verdict->good = good;
    cairn_text_clean(verdict->text, sizeof verdict->text, text);
    audit_end(audit);
    return good ? AUDIT_GOOD : AUDIT_BAD;
}

void
audit_end(struct audit *audit)
{
    free(audit->question.answered);
    free(audit->question.received);
    free(audit->origins);
    cairn_tiling_pieces_fini(&audit->pieces);
    audit->reports = NULL;
    audit->question = (struct audit_question){0};
    audit->origins = NULL;
    audit->origin_count = audit->origin_room = 0;
    audit->uncounted = false;
}

void
audit_fini(struct audit *audit)
{
    audit_end(audit);
}

/* ---- a member's answer ---- */

static struct cairn_message
answer_to(const struct env *env, const struct cairn_message *question,
          const struct cairn_tiling *tiling, uint8_t bytes[CAIRN_MESSAGE_PART_BYTES_MAX])
{
    const struct cairn_message_audit *asked = &question->as.audit;
    struct cairn_message answer = env_message(env, CAIRN_MSG_AUDIT, question->epoch);
    uint64_t sums[CAIRN_TILING_FAN] = {0};
    const uint64_t *origins = NULL;
    struct cairn_writer writer;
    size_t count = 0;

    answer.as.audit = *asked;
    answer.as.audit.answer = 1;
    answer.bytes = bytes;
    if (asked->level >= CAIRN_TILING_LEVELS) {
        bytes[0] = 0;
        answer.bytes_len = tiling ? (uint32_t)cairn_tiling_pack_pieces(tiling, asked->prefix, bytes,
                                                                       PIECES_BYTES_MAX)
                                  : 1;
        return answer;
    }
    if (tiling)
        cairn_tiling_sums(tiling, asked->level, asked->prefix, sums);
    if (tiling && asked->level == 0)
        origins = cairn_tiling_origins(tiling, &count);
    answer.as.audit.total = (uint32_t)count;
    cairn_writer_init(&writer, bytes, CAIRN_MESSAGE_PART_BYTES_MAX);
    for (uint32_t i = 0; i < CAIRN_TILING_FAN; i++)
        cairn_write_u64(&writer, sums[i]);
    for (size_t i = asked->offset; i < count && i - asked->offset < ORIGINS_PER_MESSAGE; i++)
        cairn_write_u64(&writer, origins[i]);
    answer.bytes_len = (uint32_t)writer.used_bytes;
    return answer;
}

void
audit_reply(struct env *env, uint32_t to, const struct cairn_message *question,
            const struct cairn_tiling *tiling)
{
    uint8_t bytes[CAIRN_MESSAGE_PART_BYTES_MAX];
    struct cairn_message answer = answer_to(env, question, tiling, bytes);

    env_send(env, to, &answer);
}

/* ---- questions ---- */

static struct cairn_message
question_for(const struct asking *asking, uint32_t member)
{
    const struct audit *audit = asking->audit;
    struct cairn_message message = env_message(asking->env, CAIRN_MSG_AUDIT, asking->epoch);

    message.as.audit = (struct cairn_message_audit){
        .agent = asking->roster->members[member].agent,
        .audit = audit->question.id,
        .digest = audit->reports[member].digest,
        .level = audit->question.level,
        .prefix = audit->question.prefix,
        .offset = audit->question.received[member],
    };
    return message;
}

static void
ask(const struct asking *asking, uint32_t member)
{
    struct cairn_message message = question_for(asking, member);
    uint32_t next = tree_towards(asking->own, asking->audit->count, member);

    env_send(asking->env, asking->roster->members[next].agent, &message);
}

/* Keeps the keys of one answer; false without memory. */
static bool
keep_origins(struct audit *audit, struct cairn_reader *reader, size_t count)
{
    if (audit->origin_count + count > ORIGINS_MAX) {
        audit->uncounted = true;
        return true;
    }
    if (audit->origin_count + count > audit->origin_room) {
        size_t room = 2 * (audit->origin_count + count);
        uint64_t *origins = realloc(audit->origins, room * sizeof *origins);

        if (!origins)
            return false;
        audit->origins = origins;
        audit->origin_room = room;
    }
    for (size_t i = 0; i < count; i++)
        audit->origins[audit->origin_count++] = cairn_read_u64(reader);
    return true;
}

/* Takes one part of a member's sums and keys; with the last of them it has answered. */
static void
take_sums(const struct asking *asking, uint32_t member, const struct cairn_message *answer)
{
    const struct cairn_message_audit *said = &answer->as.audit;
    struct audit *audit = asking->audit;
    uint64_t sums[CAIRN_TILING_FAN];
    struct cairn_reader reader;
    size_t count;

    if (answer->bytes_len < SUMS_BYTES || answer->bytes_len % 8 != 0 ||
        said->offset != audit->question.received[member] || said->offset > said->total)
        return;
    count = (answer->bytes_len - SUMS_BYTES) / 8;
    cairn_reader_init(&reader, answer->bytes, answer->bytes_len);
    for (uint32_t i = 0; i < CAIRN_TILING_FAN; i++) {
        sums[i] = cairn_read_u64(&reader);
        if (sums[i] >= CAIRN_TILING_FIELD)
            return;
    }
    if (count > said->total - said->offset || (count == 0 && said->offset < said->total))
        return;
    if (!keep_origins(audit, &reader, count)) {
        asking->env->actions->failed = true;
        return;
    }
    audit->question.received[member] += (uint32_t)count;
    if (audit->question.received[member] < said->total) {
        if (member != asking->own)
            ask(asking, member); /* for the other keys */
        return;
    }
    for (uint32_t i = 0; i < CAIRN_TILING_FAN; i++)
        audit->question.sums[i] = cairn_tiling_add(audit->question.sums[i], sums[i]);
    cairn_bitset_add(audit->question.answered, member);
}

static void
take_answer(const struct asking *asking, uint32_t member, const struct cairn_message *answer)
{
    const struct cairn_message_audit *said = &answer->as.audit;
    struct audit *audit = asking->audit;

    if (said->audit != audit->question.id || said->level != audit->question.level ||
        said->prefix != audit->question.prefix || said->digest != audit->reports[member].digest ||
        cairn_bitset_has(audit->question.answered, member))
        return;
    if (said->level < CAIRN_TILING_LEVELS)
        take_sums(asking, member, answer);
    else if (cairn_tiling_add_pieces(&audit->pieces, answer->bytes, answer->bytes_len) ==
             CAIRN_NOMEM)
        asking->env->actions->failed = true;
    else
        cairn_bitset_add(audit->question.answered, member);
}

/* The own layout answers at once. */
static void
answer_own(const struct asking *asking)
{
    const struct audit_question *question = &asking->audit->question;
    uint8_t bytes[CAIRN_MESSAGE_PART_BYTES_MAX];
    uint32_t before;

    do {
        struct cairn_message message = question_for(asking, asking->own);

        before = question->received[asking->own];
        message = answer_to(asking->env, &message, asking->tiling, bytes);
        take_answer(asking, asking->own, &message);
    } while (question->received[asking->own] != before &&
             !cairn_bitset_has(question->answered, asking->own));
}

/* Asks every member that has tensors. */
static void
ask_all(const struct asking *asking)
{
    struct audit *audit = asking->audit;

    for (uint32_t m = 0; m < audit->count; m++) {
        if (audit->reports[m].digest == 0)
            cairn_bitset_add(audit->question.answered, m);
        else if (m == asking->own)
            answer_own(asking);
        else
            ask(asking, m);
    }
}

static int
compare_keys(const void *left, const void *right)
{
    const uint64_t *a = left, *b = right;

    return (*a > *b) - (*a < *b);
}

/* True if the origin of a tensor is held twice; its key. */
static bool
find_double(struct audit *audit, uint64_t *key)
{
    if (audit->origin_count == 0)
        return false;
    qsort(audit->origins, audit->origin_count, sizeof *audit->origins, compare_keys);
    for (size_t i = 1; i < audit->origin_count; i++)
        if (audit->origins[i] == audit->origins[i - 1]) {
            *key = audit->origins[i];
            return true;
        }
    return false;
}

/* All members have answered: the verdict, or the next question. */
static enum audit_result
advance(const struct asking *asking)
{
    struct audit *audit = asking->audit;
    struct audit_question *question = &audit->question;
    uint32_t division = 0;
    uint64_t key;

    if (question->level == CAIRN_TILING_LEVELS) {
        char text[CAIRN_REFUSAL_BYTES];

        cairn_tiling_explain(&audit->pieces, text, sizeof text);
        return conclude(audit, false, text);
    }
    while (division < CAIRN_TILING_FAN && question->sums[division] == 0)
        division++;
    if (division < CAIRN_TILING_FAN) {
        question->prefix = question->prefix << CAIRN_TILING_FAN_LOG2 | division;
        question->level++;
    } else if (question->level > 0) {
        return conclude(audit, false,
                        "a tensor is not held exactly once, and the ranks contradict themselves "
                        "about which");
    } else if (find_double(audit, &key)) {
        question->prefix = cairn_tiling_prefix(key);
        question->level = CAIRN_TILING_LEVELS;
    } else {
        if (audit->uncounted)
            CAIRN_LOG_AT(WARN,
                         "audit: more than %d tensors; not checked whether two ranks hold one",
                         ORIGINS_MAX);
        return conclude(audit, true, "");
    }
    memset(question->answered, 0, cairn_bitset_words(audit->count) * sizeof(uint64_t));
    memset(question->received, 0, audit->count * sizeof *question->received);
    memset(question->sums, 0, sizeof question->sums);
    ask_all(asking);
    return AUDIT_RUNNING;
}

static enum audit_result
go_on(const struct asking *asking)
{
    enum audit_result result = AUDIT_RUNNING;

    while (result == AUDIT_RUNNING && !asking->env->actions->failed &&
           cairn_bitset_full(asking->audit->question.answered, asking->audit->count))
        result = advance(asking);
    return result;
}

enum audit_result
audit_begin(struct env *env, struct audit *audit, const struct cairn_roster *roster, uint64_t epoch,
            const struct cairn_message_report *reports, uint32_t count, uint32_t own,
            const struct cairn_tiling *tiling)
{
    struct asking asking = {env, audit, roster, tiling, epoch, own};
    uint64_t combination = combine(reports, count);
    const struct audit_verdict *verdict = verdict_on(audit, combination);

    audit_end(audit);
    audit->combination = combination;
    if (CAIRN_PLANTED(env, BUG_LAYOUT_UNSEEN))
        return AUDIT_GOOD;
    if (verdict)
        return verdict->good ? AUDIT_GOOD : AUDIT_BAD;
    audit->question.received = calloc(count, sizeof *audit->question.received);
    audit->question.answered = calloc(cairn_bitset_words(count), sizeof *audit->question.answered);
    if (!audit->question.received || !audit->question.answered) {
        audit_end(audit);
        env->actions->failed = true;
        return AUDIT_RUNNING;
    }
    audit->reports = reports;
    audit->count = count;
    audit->question.id = env_request(env);
    ask_all(&asking);
    return go_on(&asking);
}

enum audit_result
audit_answered(struct env *env, struct audit *audit, const struct cairn_roster *roster,
               uint64_t epoch, uint32_t own, const struct cairn_tiling *tiling,
               const struct cairn_message *message)
{
    struct asking asking = {env, audit, roster, tiling, epoch, own};
    uint32_t member;

    if (audit->question.id == 0)
        return AUDIT_RUNNING;
    member = cairn_roster_member_of(roster, message->as.audit.agent);
    if (member < audit->count)
        take_answer(&asking, member, message);
    return go_on(&asking);
}

void
audit_peer_up(struct env *env, struct audit *audit, const struct cairn_roster *roster,
              uint64_t epoch, uint32_t agent)
{
    struct asking asking = {env, audit, roster, NULL, epoch, UINT32_MAX};

    if (audit->question.id == 0)
        return;
    asking.own = cairn_roster_member_of(roster, env->options->self);
    for (uint32_t m = 0; m < audit->count; m++)
        if (!cairn_bitset_has(audit->question.answered, m) && m != asking.own &&
            roster->members[tree_towards(asking.own, audit->count, m)].agent == agent)
            ask(&asking, m);
}
