/* agent/core/run/reports.c - see reports.h. */
#include "agent/core/run/reports.h"

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
reports_take(struct reports *reports, const struct cairn_roster *roster,
             const struct cairn_message_report *report, uint64_t now_ns)
{
    struct cairn_message_report *entry = &reports->list[report->agent];
    bool changed;

    reports->heard_ns[report->agent] = report->registration == 0 ? 0 : max_u64(now_ns, 1);
    if (report->registration == 0 && cairn_roster_member_of(roster, report->agent) != UINT32_MAX)
        return false; /* it may come back as it was */
    changed = entry->registration != report->registration ||
              entry->incarnation != report->incarnation || entry->ranks != report->ranks;
    *entry = *report;
    return changed;
}
