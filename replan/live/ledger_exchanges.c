/* replan/live/ledger_exchanges.c - what the ledger's entries would have exchanged, what of that is
 * within the day's budget, and how the operator's commands ended. */
#include "replan/live/ledger.h"

#include <string.h>

static const uint64_t day_ns = UINT64_C(86400) * 1000000000;

static uint32_t
kinds_of_evidence(const struct cairn_ledger_entry *entry)
{
    uint32_t count = 0;

    for (uint32_t bit = 1; bit <= CAIRN_EVIDENCE_PROCESS; bit *= 2)
        count += (entry->evidence_kinds & bit) != 0;
    return count;
}

uint32_t
cairn_ledger_exchanges_of(const struct cairn_ledger_entry *entry)
{
    if (entry->enforcement.state != CAIRN_ENFORCEMENT_NONE)
        return entry->enforcement.exchanges;
    if (kinds_of_evidence(entry) < 2)
        return 0;
    switch (entry->kind) {
    case CAIRN_SLOW_COMPUTE:
    case CAIRN_HANG_COMPUTE:
    case CAIRN_CRASH:
        return entry->rank_count;
    case CAIRN_SLOW_NODE:
        return entry->node_count;
    case CAIRN_SLOW_LINK:
    case CAIRN_HANG_LINK:
    case CAIRN_STRUCTURAL:
        break;
    }
    return 0;
}

/* The exchanges proposed in the day that ends with this entry, its own included; with `enforced`
 * without those that ended before anything was run for them. */
static uint64_t
exchanges_until(const struct cairn_ledger *ledger, const struct cairn_ledger_entry *entry,
                bool enforced)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < ledger->exchanges_count; i++)
        if (ledger->exchanges[i].wall_ns <= entry->opened_wall_ns &&
            ledger->exchanges[i].wall_ns + day_ns > entry->opened_wall_ns)
            total += enforced ? ledger->exchanges[i].begun : ledger->exchanges[i].count;
    for (uint32_t i = 0; i < ledger->count; i++) {
        const struct cairn_ledger_entry *earlier = &ledger->entries[i];

        if (enforced && earlier->closed_wall_ns != 0 &&
            earlier->enforcement.state == CAIRN_ENFORCEMENT_NONE)
            continue;
        if (earlier->number <= entry->number &&
            earlier->opened_wall_ns + day_ns > entry->opened_wall_ns)
            total += cairn_ledger_exchanges_of(earlier);
    }
    return total;
}

bool
cairn_ledger_proposes(const struct cairn_ledger *ledger, const struct cairn_ledger_entry *entry,
                      uint32_t exchanges_per_day, bool enforced)
{
    return cairn_ledger_exchanges_of(entry) > 0 &&
           exchanges_until(ledger, entry, enforced) <= exchanges_per_day;
}

uint64_t
cairn_ledger_counted_ns(const struct cairn_ledger_entry *entry)
{
    uint64_t begun_ns = entry->enforcement.begun_wall_ns;

    return begun_ns > entry->opened_wall_ns ? begun_ns : entry->opened_wall_ns;
}

void
cairn_ledger_remember_exchanges(struct cairn_ledger *ledger, const struct cairn_ledger_entry *entry)
{
    struct cairn_ledger_exchanges *list = ledger->exchanges;
    uint32_t count = cairn_ledger_exchanges_of(entry), at = ledger->exchanges_count;
    uint64_t wall_ns = cairn_ledger_counted_ns(entry);

    if (count == 0)
        return;
    if (at == CAIRN_LEDGER_EXCHANGES_MAX) {
        list[1].count += list[0].count;
        list[1].begun += list[0].begun;
        memmove(list, list + 1, --at * sizeof *list);
    }
    while (at > 0 && list[at - 1].wall_ns > wall_ns) {
        list[at] = list[at - 1];
        at--;
    }
    list[at] = (struct cairn_ledger_exchanges){
        wall_ns, count, entry->enforcement.state != CAIRN_ENFORCEMENT_NONE ? count : 0};
    if (ledger->exchanges_count < CAIRN_LEDGER_EXCHANGES_MAX)
        ledger->exchanges_count++;
}

enum cairn_enforcement_result
cairn_enforcement_result(const struct cairn_enforcement *enforcement)
{
    switch (enforcement->state) {
    case CAIRN_ENFORCEMENT_NONE:
    case CAIRN_ENFORCEMENT_RUNNING:
        break;
    case CAIRN_ENFORCEMENT_UNKNOWN:
        return CAIRN_ENFORCED_UNKNOWN;
    case CAIRN_ENFORCEMENT_NOT_STARTED:
        return CAIRN_ENFORCED_NOT_STARTED;
    case CAIRN_ENFORCEMENT_TIMEOUT:
        return CAIRN_ENFORCED_TIMEOUT;
    case CAIRN_ENFORCEMENT_SIGNALLED:
        return CAIRN_ENFORCED_FAILED;
    case CAIRN_ENFORCEMENT_EXITED:
        return enforcement->value == 0 ? CAIRN_ENFORCED_SUCCEEDED : CAIRN_ENFORCED_FAILED;
    }
    return CAIRN_ENFORCED_RESULTS;
}
