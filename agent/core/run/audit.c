/*
 * agent/core/run/audit.c - the leader's audit of a run's layouts; audit.h has the way.
 *
 * All members answer a question before the next is asked. Each question has a number, which its
 * answers repeat, so late and repeated answers change nothing.
 */
#include "agent/core/run/audit.h"

#include "agent/core/epoch/send.h"
#include "agent/core/epoch/tree.h"
#include "base/crc.h"
#include "base/log.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* Names a combination of layouts; never 0. */
static uint64_t
combine(const struct cairn_message_report *reports, uint32_t count)
{
    uint64_t combination = 0;

    for (uint32_t m = 0; m < count; m++) {
        uint8_t bytes[4];

        cairn_little_put(bytes, sizeof bytes, reports[m].digest);
        combination = cairn_crc64(combination, bytes, sizeof bytes);
    }
    return combination ? combination : 1;
}

void
audit_end(struct audit *audit)
{
    free(audit->answered);
    cairn_tiling_audit_fini(&audit->tiling);
    audit->id = 0;
    audit->answered = NULL;
}

/* ---- a member's answer ---- */

void
audit_reply(struct env *env, uint32_t to, const struct cairn_message *question,
            const struct cairn_tiling *tiling)
{
    struct cairn_message answer = epoch_message(env, CAIRN_MSG_AUDIT);
    uint8_t *bytes = malloc(CAIRN_TILING_ANSWER_BYTES_MAX);
    bool cut;

    if (!bytes) {
        env->actions->failed = true;
        return;
    }
    answer.as.audit = question->as.audit;
    answer.bytes = bytes;
    answer.bytes_len =
        (uint32_t)cairn_tiling_answer(tiling, (enum cairn_tiling_question)question->as.audit.asks,
                                      question->as.audit.prefix, bytes, &cut);
    answer.as.audit.answer = 1;
    answer.as.audit.cut = cut;
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
                                                    .asks = audit->tiling.asks,
                                                    .prefix = audit->tiling.prefix};
    env_send(env, roster->members[next].agent, &message);
}

/* Asks every member that has tensors. */
static void
ask_all(struct env *env, struct audit *audit)
{
    audit->id = env_request(env);
    memset(audit->answered, 0, cairn_bitset_words(audit->count) * sizeof(uint64_t));
    for (uint32_t m = 0; m < audit->count; m++) {
        if (audit->reports[m].digest == 0)
            cairn_bitset_add(audit->answered, m);
        else
            ask(env, audit, m);
    }
}

/* Asks the next question, or all have answered and there is a verdict. */
static enum cairn_tiling_verdict
conclude(struct env *env, struct audit *audit, enum cairn_tiling_verdict verdict, const char *text)
{
    if (verdict == CAIRN_TILING_OPEN) {
        ask_all(env, audit);
        return verdict;
    }
    if (audit->tiling.uncounted)
        CAIRN_LOG_AT(WARN,
                     "audit: more than %d tensors, or %d on a node; not checked whether two ranks "
                     "hold one",
                     CAIRN_TILING_ORIGINS_MAX, CAIRN_TILING_ORIGINS_OF_ONE);
    audit->verdict = verdict;
    cairn_text_clean(audit->text, sizeof audit->text, text);
    audit_end(audit);
    return verdict;
}

enum cairn_tiling_verdict
audit_begin(struct env *env, struct audit *audit, const struct cairn_message_report *reports,
            uint32_t count)
{
    uint64_t combination = combine(reports, count), sum = 0;
    bool any = false;

    audit_end(audit);
    if (CAIRN_PLANTED(env, BUG_LAYOUT_UNSEEN))
        return CAIRN_TILING_GOOD;
    if (combination == audit->combination && audit->verdict != CAIRN_TILING_OPEN)
        return audit->verdict;
    audit->combination = combination;
    audit->verdict = CAIRN_TILING_OPEN;
    audit->text[0] = '\0';
    audit->reports = reports;
    audit->count = count;
    for (uint32_t m = 0; m < count; m++) {
        sum = cairn_tiling_add(sum, reports[m].tiling_sum % CAIRN_TILING_FIELD);
        any |= reports[m].digest != 0;
    }
    audit->answered = calloc(cairn_bitset_words(count), sizeof *audit->answered);
    if (!audit->answered || cairn_tiling_audit_begin(&audit->tiling, sum) != CAIRN_OK) {
        audit_end(audit);
        env->actions->failed = true;
        return CAIRN_TILING_OPEN;
    }
    return conclude(env, audit, any ? CAIRN_TILING_OPEN : CAIRN_TILING_GOOD, "");
}

enum cairn_tiling_verdict
audit_answered(struct env *env, struct audit *audit, const struct cairn_message *message)
{
    const struct cairn_message_audit *said = &message->as.audit;
    uint32_t member = cairn_roster_member_of(env->membership->record.roster, said->agent);
    char text[CAIRN_REFUSAL_BYTES] = "";
    cairn_err err;

    if (audit->id == 0 || said->audit != audit->id || member >= audit->count ||
        cairn_bitset_has(audit->answered, member))
        return CAIRN_TILING_OPEN;
    err = cairn_tiling_audit_take(&audit->tiling, message->bytes, message->bytes_len, said->cut);
    env->actions->failed |= err == CAIRN_NOMEM;
    if (err)
        return CAIRN_TILING_OPEN;
    cairn_bitset_add(audit->answered, member);
    return cairn_bitset_full(audit->answered, audit->count)
               ? conclude(env, audit, cairn_tiling_audit_next(&audit->tiling, text, sizeof text),
                          text)
               : CAIRN_TILING_OPEN;
}

void
audit_ask_again(struct env *env, const struct audit *audit, uint32_t agent)
{
    uint32_t member = cairn_roster_member_of(env->membership->record.roster, agent);

    if (audit->id != 0 && member < audit->count && !cairn_bitset_has(audit->answered, member))
        ask(env, audit, member);
}
