/* replan/live/enforce.c - whether the operator's command must run for a verdict; see enforce.h. */
#include "replan/live/enforce.h"

#include <stdio.h>
#include <string.h>

static const uint64_t day_ns = UINT64_C(86400) * 1000000000;
/* After which a command runs no more, wherever it was started: its limit, the time to end it, and
 * what clocks differ by. */
static const uint64_t lost_ns = (CAIRN_ENFORCE_LIMIT_S + 30) * UINT64_C(1000000000);

/* What was run for in the day that ends now. */
static uint64_t
spent(const struct cairn_ledger *ledger, uint64_t wall_ns)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < ledger->exchanges_count; i++)
        if (ledger->exchanges[i].wall_ns + day_ns > wall_ns)
            total += ledger->exchanges[i].begun;
    for (uint32_t i = 0; i < ledger->count; i++) {
        const struct cairn_enforcement *enforcement = &ledger->entries[i].enforcement;

        if (enforcement->state != CAIRN_ENFORCEMENT_NONE &&
            enforcement->begun_wall_ns + day_ns > wall_ns)
            total += enforcement->exchanges;
    }
    return total;
}

/* Who is only slow has cost what was lost since the verdict; who hangs or is gone costs all there
 * is. */
static bool
has_cost_an_exchange(const struct cairn_ledger_entry *entry, uint64_t exchange_ns, uint64_t wall_ns)
{
    if (entry->kind != CAIRN_SLOW_COMPUTE && entry->kind != CAIRN_SLOW_NODE)
        return true;
    return entry->rate > 1 && cairn_ledger_lost_ns(entry, wall_ns) >= (double)exchange_ns;
}

static bool
any_is_running(const struct cairn_ledger *ledger)
{
    for (uint32_t i = 0; i < ledger->count; i++)
        if (ledger->entries[i].enforcement.state == CAIRN_ENFORCEMENT_RUNNING)
            return true;
    return false;
}

uint64_t
cairn_enforce_next(struct cairn_ledger *ledger, const struct cairn_enforcer *by,
                   uint32_t exchanges_per_day, uint64_t wall_ns)
{
    uint64_t used = spent(ledger, wall_ns);

    if (any_is_running(ledger))
        return 0;
    for (uint32_t i = 0; i < ledger->count; i++) {
        struct cairn_ledger_entry *entry = &ledger->entries[i];
        uint32_t exchanges = cairn_ledger_exchanges_of(entry);

        if (entry->closed_wall_ns != 0 || entry->enforcement.state != CAIRN_ENFORCEMENT_NONE ||
            entry->run != by->run ||
            !cairn_ledger_proposes(ledger, entry, exchanges_per_day, true) ||
            used + exchanges > exchanges_per_day ||
            !has_cost_an_exchange(entry, by->exchange_ns, wall_ns))
            continue;
        entry->enforcement = (struct cairn_enforcement){.state = CAIRN_ENFORCEMENT_RUNNING,
                                                        .node = by->node,
                                                        .incarnation = by->incarnation,
                                                        .begun_wall_ns = wall_ns,
                                                        .exchanges = exchanges};
        ledger->version++;
        return entry->number;
    }
    return 0;
}

static bool
is_own(const struct cairn_enforcement *enforcement, const struct cairn_enforcer *by)
{
    return enforcement->node == by->node && enforcement->incarnation == by->incarnation;
}

bool
cairn_enforce_end(struct cairn_ledger *ledger, const struct cairn_enforcer *by, uint64_t number,
                  enum cairn_enforcement_state state, uint32_t value, uint64_t wall_ns)
{
    for (uint32_t i = 0; i < ledger->count; i++) {
        struct cairn_enforcement *enforcement = &ledger->entries[i].enforcement;

        /* another agent may have taken it for lost already */
        if (ledger->entries[i].number != number || !is_own(enforcement, by) ||
            enforcement->state > CAIRN_ENFORCEMENT_UNKNOWN || enforcement->state == state)
            continue;
        enforcement->state = state;
        enforcement->value = value;
        enforcement->ended_wall_ns = wall_ns;
        ledger->version++;
        return true;
    }
    return false;
}

bool
cairn_enforce_settle(struct cairn_ledger *ledger, const struct cairn_enforcer *by,
                     const bool *alive, uint32_t node_count, uint64_t wall_ns)
{
    bool changed = false;

    for (uint32_t i = 0; i < ledger->count; i++) {
        struct cairn_enforcement *enforcement = &ledger->entries[i].enforcement;
        bool is_there = !alive || (enforcement->node < node_count && alive[enforcement->node]);

        if (enforcement->state != CAIRN_ENFORCEMENT_RUNNING ||
            (is_own(enforcement, by) && ledger->entries[i].number == by->running))
            continue;
        if (is_there && enforcement->node != by->node &&
            wall_ns < enforcement->begun_wall_ns + lost_ns)
            continue;
        enforcement->state = CAIRN_ENFORCEMENT_UNKNOWN;
        enforcement->ended_wall_ns = wall_ns;
        changed = true;
    }
    ledger->version += changed;
    return changed;
}

/* The same verdict in another ledger. Two agents that did not hear each other may have given one
 * number twice. */
static uint32_t
find_same(const struct cairn_ledger *ledger, const struct cairn_ledger_entry *entry)
{
    for (uint32_t i = 0; i < ledger->count; i++)
        if (ledger->entries[i].number == entry->number &&
            ledger->entries[i].opened_wall_ns == entry->opened_wall_ns)
            return i;
    return UINT32_MAX;
}

bool
cairn_enforce_keep(struct cairn_ledger *to, const struct cairn_ledger *from)
{
    bool changed = false;

    for (uint32_t i = 0; i < from->count; i++) {
        const struct cairn_ledger_entry *entry = &from->entries[i];
        uint32_t at = find_same(to, entry);

        if (at == UINT32_MAX || to->entries[at].enforcement.state >= entry->enforcement.state)
            continue;
        to->entries[at].enforcement = entry->enforcement;
        changed = true;
    }
    to->version += changed;
    return changed;
}

bool
cairn_enforce_keep_budget(struct cairn_ledger *to, const struct cairn_ledger *from)
{
    bool changed = false;

    for (uint32_t i = 0; i < from->count; i++) {
        const struct cairn_ledger_entry *entry = &from->entries[i];
        bool counts = entry->enforcement.state != CAIRN_ENFORCEMENT_NONE &&
                      find_same(to, entry) == UINT32_MAX;

        /* it has made room there, and counts already */
        for (uint32_t k = 0; counts && k < to->exchanges_count; k++)
            counts = to->exchanges[k].wall_ns != cairn_ledger_counted_ns(entry);
        if (!counts)
            continue;
        cairn_ledger_remember_exchanges(to, entry);
        changed = true;
    }
    to->version += changed;
    return changed;
}

/* ---- in words ---- */

const char *
cairn_enforce_result_text(enum cairn_enforcement_result result)
{
    static const char *const texts[] = {
        [CAIRN_ENFORCED_SUCCEEDED] = "succeeded", [CAIRN_ENFORCED_FAILED] = "failed",
        [CAIRN_ENFORCED_TIMEOUT] = "timeout",     [CAIRN_ENFORCED_NOT_STARTED] = "not_started",
        [CAIRN_ENFORCED_UNKNOWN] = "unknown",     [CAIRN_ENFORCED_RESULTS] = "none"};

    return texts[result];
}

void
cairn_enforce_count(const struct cairn_ledger *ledger, uint64_t *out)
{
    memcpy(out, ledger->enforced_before, sizeof ledger->enforced_before);
    for (uint32_t i = 0; i < ledger->count; i++) {
        enum cairn_enforcement_result result =
            cairn_enforcement_result(&ledger->entries[i].enforcement);

        if (result != CAIRN_ENFORCED_RESULTS)
            out[result]++;
    }
}

void
cairn_enforce_describe(const struct cairn_enforcement *enforcement, char *out, size_t out_bytes)
{
    uint32_t node = enforcement->node;

    switch (enforcement->state) {
    case CAIRN_ENFORCEMENT_NONE:
        (void)snprintf(out, out_bytes, "enforce_command was not run");
        break;
    case CAIRN_ENFORCEMENT_RUNNING:
        (void)snprintf(out, out_bytes, "enforce_command runs on node %u", node);
        break;
    case CAIRN_ENFORCEMENT_UNKNOWN:
        (void)snprintf(out, out_bytes,
                       "enforce_command: unknown: the agent of node %u ended before it reported "
                       "the result; it is not run again",
                       node);
        break;
    case CAIRN_ENFORCEMENT_NOT_STARTED:
        (void)snprintf(out, out_bytes, "enforce_command could not be started on node %u: %s", node,
                       strerror((int)enforcement->value));
        break;
    case CAIRN_ENFORCEMENT_TIMEOUT:
        (void)snprintf(out, out_bytes,
                       "enforce_command did not end within %d s on node %u, and was killed",
                       CAIRN_ENFORCE_LIMIT_S, node);
        break;
    case CAIRN_ENFORCEMENT_SIGNALLED:
        (void)snprintf(out, out_bytes, "enforce_command failed on node %u: signal %u ended it",
                       node, enforcement->value);
        break;
    case CAIRN_ENFORCEMENT_EXITED:
        if (enforcement->value == 0)
            (void)snprintf(out, out_bytes, "enforce_command succeeded on node %u", node);
        else
            (void)snprintf(out, out_bytes, "enforce_command failed on node %u with exit status %u",
                           node, enforcement->value);
        break;
    }
}
