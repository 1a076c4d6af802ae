/* agent/core/run/reports.c - see reports.h. */
#include "agent/core/run/reports.h"

#include "agent/core/epoch/tree.h"

#include <stdlib.h>
#include <string.h>

cairn_err
reports_init(struct reports *reports, uint32_t count)
{
    memset(reports, 0, sizeof *reports);
    reports->count = count;
    reports->list = calloc(count, sizeof *reports->list);
    reports->heard_ns = calloc(count, sizeof *reports->heard_ns);
    if (reports->list && reports->heard_ns)
        return CAIRN_OK;
    reports_fini(reports);
    return CAIRN_NOMEM;
}

void
reports_fini(struct reports *reports)
{
    free(reports->list);
    free(reports->heard_ns);
    memset(reports, 0, sizeof *reports);
}

bool
reports_take(const struct env *env, struct reports *reports,
             const struct cairn_message_report *report)
{
    const struct cairn_roster *roster = env->membership->record.roster;
    struct cairn_message_report *entry = &reports->list[report->agent];
    bool changed;

    reports->heard_ns[report->agent] = report->registration == 0 ? 0 : max_u64(env->now_ns, 1);
    if (report->registration == 0 && cairn_roster_member_of(roster, report->agent) != UINT32_MAX)
        return false; /* it may come back as it was */
    changed = entry->registration != report->registration ||
              entry->incarnation != report->incarnation || entry->ranks != report->ranks;
    *entry = *report;
    return changed;
}

bool
reports_differ(const struct cairn_message_report *report, const struct cairn_message_report *before)
{
    return report->incarnation != before->incarnation ||
           report->registration != before->registration ||
           (report->begun != 0) != (before->begun != 0) || report->asked > before->asked ||
           (report->aborted.step != 0 && !cairn_generation_is(report->aborted, before->aborted)) ||
           report->cause != before->cause || report->for_agent != before->for_agent ||
           !cairn_generation_is(report->stalled, before->stalled);
}

bool
reports_pass(const struct env *env, struct reports *reports,
             const struct cairn_message_report *report)
{
    bool news = reports->heard_ns[report->agent] == 0 ||
                reports_differ(report, &reports->list[report->agent]);

    (void)reports_take(env, reports, report);
    return news;
}

static bool
lists(const struct cairn_message_report *report, struct cairn_generation_id generation)
{
    return cairn_generation_is(report->complete0, generation) ||
           cairn_generation_is(report->complete1, generation) ||
           cairn_generation_is(report->complete2, generation) ||
           cairn_generation_is(report->complete3, generation);
}

/* The newest report of the member below that comes after member `*child`, which is replaced; NULL:
 * there is none. */
static const struct cairn_message_report *
next_below(const struct env *env, const struct reports *reports, uint32_t *child)
{
    const struct cairn_roster *roster = env->membership->record.roster;

    *child = tree_next_child(env->membership->self_member, roster->member_count, *child);
    return *child == UINT32_MAX ? NULL : &reports->list[roster->members[*child].agent];
}

uint32_t
reports_missing(const struct env *env, const struct reports *reports,
                struct cairn_generation_id generation, uint32_t *first)
{
    const struct cairn_message_report *report;
    uint32_t child = UINT32_MAX, missing = 0;

    while ((report = next_below(env, reports, &child)))
        if (!lists(report, generation) && missing++ == 0)
            *first = env->membership->record.roster->members[child].agent;
    return missing;
}

uint64_t
reports_begun(const struct env *env, const struct reports *reports)
{
    const struct cairn_message_report *report;
    uint32_t child = UINT32_MAX;
    uint64_t begun = 0;

    while ((report = next_below(env, reports, &child)))
        begun = max_u64(begun, max_u64(report->begun, report->begun_below));
    return begun;
}
