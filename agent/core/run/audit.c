/*
 * agent/core/run/audit.c - the leader's audit of a run's layouts; audit.h has the way.
 *
 * All members answer a question before the next is asked. Answers repeat the numbers of the run and
 * the question, so a late or repeated answer changes nothing.
 */
#include "agent/core/run/audit.h"

#include "agent/core/epoch/send.h"
#include "agent/core/epoch/tree.h"
#include "base/log.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

void
audit_end(struct audit *audit)
{
    free(audit->answered);
    cairn_tiling_audit_fini(&audit->tiling);
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
    uint32_t agent = roster->members[member].agent;

    message.as.audit =
        (struct cairn_message_audit){.agent = agent,
                                     .run = audit->run,
                                     .question = audit->question,
                                     .incarnation = audit->reports[agent].incarnation,
                                     .registration = audit->reports[agent].registration,
                                     .asks = audit->tiling.asks,
                                     .prefix = audit->tiling.prefix};
    env_send(env, roster->members[next].agent, &message);
}

static void
ask_all(struct env *env, struct audit *audit)
{
    audit->question++;
    memset(audit->answered, 0, cairn_bitset_words(audit->count) * sizeof(uint64_t));
    for (uint32_t m = 0; m < audit->count; m++)
        ask(env, audit, m);
}

/* All have answered: asks the next question, or there is a verdict. */
static enum cairn_tiling_verdict
conclude(struct env *env, struct audit *audit)
{
    enum cairn_tiling_verdict verdict = CAIRN_TILING_GOOD;
    char text[CAIRN_REFUSAL_BYTES] = "";

    if (!CAIRN_PLANTED(env, BUG_LAYOUT_UNSEEN))
        verdict = cairn_tiling_audit_next(&audit->tiling, text, sizeof text);
    if (verdict == CAIRN_TILING_OPEN) {
        ask_all(env, audit);
        return verdict;
    }
    if (audit->tiling.uncounted)
        CAIRN_LOG_AT(WARN,
                     "audit: more than %d tensors, or %d on a node; not checked whether two ranks "
                     "hold one",
                     CAIRN_TILING_ORIGINS_MAX, CAIRN_TILING_ORIGINS_OF_ONE);
    cairn_text_clean(audit->text, sizeof audit->text, text);
    audit_end(audit);
    return verdict;
}

void
audit_begin(struct env *env, struct audit *audit, uint64_t run,
            const struct cairn_message_report *reports, uint32_t count)
{
    const struct cairn_roster *roster = env->membership->record.roster;
    uint64_t sum = 0;

    audit_end(audit);
    *audit = (struct audit){.run = run, .reports = reports, .count = count};
    for (uint32_t m = 0; m < count; m++)
        sum = cairn_tiling_add(sum,
                               reports[roster->members[m].agent].tiling_sum % CAIRN_TILING_FIELD);
    audit->answered = calloc(cairn_bitset_words(count), sizeof *audit->answered);
    if (!audit->answered || cairn_tiling_audit_begin(&audit->tiling, sum) != CAIRN_OK) {
        audit_end(audit);
        env->actions->failed = true;
        return;
    }
    ask_all(env, audit);
}

enum cairn_tiling_verdict
audit_answered(struct env *env, struct audit *audit, const struct cairn_message *message)
{
    const struct cairn_message_audit *said = &message->as.audit;
    uint32_t member = cairn_roster_member_of(env->membership->record.roster, said->agent);
    cairn_err err;

    if (!audit_under_way(audit) || said->run != audit->run || said->question != audit->question ||
        member >= audit->count || cairn_bitset_has(audit->answered, member))
        return CAIRN_TILING_OPEN;
    err = cairn_tiling_audit_take(&audit->tiling, message->bytes, message->bytes_len, said->cut);
    env->actions->failed |= err == CAIRN_NOMEM;
    if (err)
        return CAIRN_TILING_OPEN;
    cairn_bitset_add(audit->answered, member);
    return cairn_bitset_full(audit->answered, audit->count) ? conclude(env, audit)
                                                            : CAIRN_TILING_OPEN;
}

void
audit_ask_again(struct env *env, const struct audit *audit, uint32_t agent)
{
    uint32_t member = cairn_roster_member_of(env->membership->record.roster, agent);

    if (audit_under_way(audit) && member < audit->count &&
        !cairn_bitset_has(audit->answered, member))
        ask(env, audit, member);
}
