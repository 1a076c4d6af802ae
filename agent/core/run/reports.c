/* agent/core/run/reports.c - see reports.h. */
#include "agent/core/run/reports.h"

#include <stdlib.h>
#include <string.h>

cairn_err
reports_init(struct reports *reports, uint32_t count)
{
    memset(reports, 0, sizeof *reports);
    reports->count = count;
    reports->members = calloc(count + 1u, sizeof *reports->members);
    reports->heard_ns = calloc(count + 1u, sizeof *reports->heard_ns);
    if (reports->members && reports->heard_ns)
        return CAIRN_OK;
    reports_fini(reports);
    return CAIRN_NOMEM;
}

void
reports_fini(struct reports *reports)
{
    free(reports->members);
    free(reports->heard_ns);
    memset(reports, 0, sizeof *reports);
}

static struct cairn_message_report *
late_entry(struct reports *reports, uint32_t agent)
{
    for (uint32_t i = 0; i < reports->late_count; i++)
        if (reports->late[i].agent == agent)
            return &reports->late[i];
    return reports->late_count < REPORTS_LATE_MAX ? &reports->late[reports->late_count++] : NULL;
}

bool
reports_take(struct reports *reports, const struct cairn_roster *roster,
             const struct cairn_message_report *report, uint64_t now_ns)
{
    uint32_t member = cairn_roster_member_of(roster, report->agent);
    struct cairn_message_report *entry;
    bool changed;

    if (member < reports->count && report->registration == 0) {
        reports->heard_ns[member] = 0;
        return false;
    }
    entry =
        member < reports->count ? &reports->members[member] : late_entry(reports, report->agent);
    if (!entry)
        return false;
    if (member < reports->count)
        reports->heard_ns[member] = max_u64(now_ns, 1);
    changed = entry->registration != report->registration ||
              entry->incarnation != report->incarnation || entry->ranks != report->ranks;
    *entry = *report;
    return changed;
}
