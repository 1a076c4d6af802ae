/* replan/live/ledger.c - the verdicts on a running job: entries opened, continued and closed. */
#include "replan/live/ledger.h"
#include "base/assert.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const uint64_t return_ns = 60000000000; /* that a cause may be away and still be the same
                                                * verdict */
static const double rate_news = 0.1;           /* by how much a rate must change to be told */

void
cairn_ledger_init(struct cairn_ledger *ledger)
{
    memset(ledger, 0, sizeof *ledger);
    ledger->next_number = 1;
}

/* ---- entries and verdicts ---- */

static uint32_t
copy_list(const struct cairn_u32_list *list, uint32_t unit, uint32_t units_max, uint32_t *out)
{
    uint32_t units = list->count / unit;

    if (list->count > 0)
        memcpy(out, list->items, (units < units_max ? units : units_max) * unit * sizeof *out);
    return units;
}

static bool
same_list(const struct cairn_u32_list *list, uint32_t unit, uint32_t units_max,
          const uint32_t *items, uint32_t count)
{
    uint32_t units = list->count / unit, listed = units < units_max ? units : units_max;

    return units == count &&
           (listed == 0 || memcmp(list->items, items, listed * unit * sizeof *items) == 0);
}

/* True where a verdict's links and an entry's have one in common: slow links are found one after
 * the other. */
static bool
shares_link(const struct cairn_ledger_entry *entry, const struct cairn_verdict *verdict)
{
    for (uint32_t i = 0; i < entry->link_count && i < CAIRN_LEDGER_LINKS_MAX; i++)
        for (uint32_t k = 0; k + 1 < verdict->links.count; k += 2)
            if (entry->links[2 * i] == verdict->links.items[k] &&
                entry->links[2 * i + 1] == verdict->links.items[k + 1])
                return true;
    return false;
}

static bool
same_cause(const struct cairn_ledger_entry *entry, const struct cairn_verdict *verdict)
{
    const char *pattern = verdict->pattern ? verdict->pattern : "";

    if (entry->kind != verdict->kind || strcmp(entry->pattern, pattern) != 0 ||
        !same_list(&verdict->nodes, 1, CAIRN_LEDGER_NODES_MAX, entry->nodes, entry->node_count))
        return false;
    if (verdict->kind == CAIRN_SLOW_LINK)
        return verdict->nodes.count > 0 || shares_link(entry, verdict);
    return same_list(&verdict->ranks, 1, CAIRN_LEDGER_RANKS_MAX, entry->ranks, entry->rank_count) &&
           same_list(&verdict->links, 2, CAIRN_LEDGER_LINKS_MAX, entry->links, entry->link_count);
}

double
cairn_ledger_lost_ns(const struct cairn_ledger_entry *entry, uint64_t wall_ns)
{
    uint64_t since_ns = wall_ns > entry->lost_until_wall_ns && entry->closed_wall_ns == 0
                            ? wall_ns - entry->lost_until_wall_ns
                            : 0;

    return (double)entry->lost_ns +
           (entry->rate > 1 ? (double)since_ns * (1 - 1 / entry->rate) : 0);
}

/* Before the rate changes, or the entry is closed. */
static void
settle_loss(struct cairn_ledger_entry *entry, uint64_t wall_ns)
{
    double lost_ns = cairn_ledger_lost_ns(entry, wall_ns);

    entry->lost_ns = lost_ns < 0x1p63 ? (uint64_t)lost_ns : UINT64_C(1) << 63;
    entry->lost_until_wall_ns = wall_ns;
}

/* Copies what the detector says now. True where that is news. */
static bool
update(struct cairn_ledger_entry *entry, const struct cairn_verdict *verdict,
       uint32_t evidence_kinds, uint64_t run, uint64_t wall_ns)
{
    bool news =
        fabs(entry->rate - verdict->rate) > rate_news * entry->rate || entry->run != run ||
        entry->evidence_kinds != evidence_kinds ||
        !same_list(&verdict->links, 2, CAIRN_LEDGER_LINKS_MAX, entry->links, entry->link_count);

    if (!news)
        return false;
    settle_loss(entry, wall_ns);
    entry->run = run;
    entry->kind = verdict->kind;
    snprintf(entry->pattern, sizeof entry->pattern, "%s", verdict->pattern ? verdict->pattern : "");
    entry->rank_count = copy_list(&verdict->ranks, 1, CAIRN_LEDGER_RANKS_MAX, entry->ranks);
    entry->node_count = copy_list(&verdict->nodes, 1, CAIRN_LEDGER_NODES_MAX, entry->nodes);
    entry->link_count = copy_list(&verdict->links, 2, CAIRN_LEDGER_LINKS_MAX, entry->links);
    entry->victim_count = verdict->victims.count;
    entry->rate = verdict->rate;
    entry->confidence = verdict->confidence;
    entry->evidence_kinds = evidence_kinds;
    snprintf(entry->evidence, sizeof entry->evidence, "%s", verdict->evidence);
    return true;
}

/* The budget of exchanges, and how commands ended, outlive the entry. */
static void
forget(struct cairn_ledger *ledger, const struct cairn_ledger_entry *entry)
{
    enum cairn_enforcement_result result = cairn_enforcement_result(&entry->enforcement);

    cairn_ledger_remember_exchanges(ledger, entry);
    if (result != CAIRN_ENFORCED_RESULTS)
        ledger->enforced_before[result]++;
}

static bool
may_be_forgotten(const struct cairn_ledger_entry *entry)
{
    return entry->closed_wall_ns != 0 && entry->enforcement.state != CAIRN_ENFORCEMENT_RUNNING;
}

/* Room for a new entry; NULL where all are open. */
static struct cairn_ledger_entry *
append(struct cairn_ledger *ledger, bool *touched)
{
    uint32_t oldest = 0;

    if (ledger->count == CAIRN_LEDGER_MAX) {
        while (oldest < ledger->count && !may_be_forgotten(&ledger->entries[oldest]))
            oldest++;
        if (oldest == ledger->count)
            return NULL;
        forget(ledger, &ledger->entries[oldest]);
        ledger->count--;
        memmove(&ledger->entries[oldest], &ledger->entries[oldest + 1],
                (ledger->count - oldest) * sizeof *ledger->entries);
        memmove(&touched[oldest], &touched[oldest + 1], (ledger->count - oldest) * sizeof *touched);
    }
    CAIRN_ASSERT(ledger->count < CAIRN_LEDGER_MAX);
    touched[ledger->count] = true;
    ledger->entries[ledger->count] = (struct cairn_ledger_entry){.number = ledger->next_number++};
    return &ledger->entries[ledger->count++];
}

static void
close_entry(struct cairn_ledger *ledger, struct cairn_ledger_entry *entry, uint32_t until_step,
            uint64_t wall_ns, const char *why, cairn_ledger_change_fn *said, void *context)
{
    settle_loss(entry, wall_ns);
    entry->until_step = until_step;
    entry->closed_wall_ns = wall_ns ? wall_ns : 1;
    snprintf(entry->closed_why, sizeof entry->closed_why, "%s", why);
    ledger->version++;
    if (said)
        said(context, entry, CAIRN_LEDGER_CLOSED);
}

/* The entry of a verdict that lasts: the open one, or else one that was closed a short while ago.
 * One that another verdict has taken in this round is not it. */
static uint32_t
find_entry(const struct cairn_ledger *ledger, const struct cairn_verdict *verdict, uint64_t wall_ns,
           const bool *touched)
{
    uint32_t found = UINT32_MAX;

    for (uint32_t i = 0; i < ledger->count; i++) {
        const struct cairn_ledger_entry *entry = &ledger->entries[i];

        if (touched[i] || !same_cause(entry, verdict))
            continue;
        if (entry->closed_wall_ns == 0)
            return i;
        if (wall_ns < entry->closed_wall_ns + return_ns)
            found = i;
    }
    return found;
}

static void
merge_lasting(struct cairn_ledger *ledger, const struct cairn_verdict *verdict,
              uint32_t evidence_kinds, uint64_t run, uint64_t wall_ns, bool *touched,
              cairn_ledger_change_fn *said, void *context)
{
    uint32_t at = find_entry(ledger, verdict, wall_ns, touched);
    struct cairn_ledger_entry *entry =
        at == UINT32_MAX ? append(ledger, touched) : &ledger->entries[at];
    enum cairn_ledger_change change =
        at == UINT32_MAX ? CAIRN_LEDGER_OPENED : CAIRN_LEDGER_RETURNED;
    bool news;

    if (!entry)
        return;
    touched[entry - ledger->entries] = true;
    news = update(entry, verdict, evidence_kinds, run, wall_ns);
    entry->run_since_step = verdict->since_step;
    if (at != UINT32_MAX && entry->closed_wall_ns == 0) {
        ledger->version += news;
        return;
    }
    if (change == CAIRN_LEDGER_OPENED) {
        entry->since_step = verdict->since_step;
        entry->detected_step = verdict->detected_step;
        entry->opened_wall_ns = wall_ns;
    }
    entry->returns += change == CAIRN_LEDGER_RETURNED;
    entry->lost_until_wall_ns = wall_ns;
    entry->until_step = CAIRN_STEP_NONE;
    entry->closed_wall_ns = 0;
    entry->closed_why[0] = '\0';
    ledger->version++;
    if (said)
        said(context, entry, change);
}

/* How a verdict ended. While one rank is waited for nobody can tell a pause from a hang, so the
 * report is withdrawn here. */
static void
tell_end(const struct cairn_ledger_entry *entry, uint64_t wall_ns, char *out, size_t out_bytes)
{
    bool is_hang = entry->kind == CAIRN_HANG_COMPUTE || entry->kind == CAIRN_HANG_LINK;
    uint64_t lasted_s =
        wall_ns > entry->opened_wall_ns ? (wall_ns - entry->opened_wall_ns) / 1000000000 : 0;

    if (!is_hang)
        snprintf(out, out_bytes, "it is over");
    else if (entry->evidence_kinds & CAIRN_EVIDENCE_PROCESS)
        snprintf(out, out_bytes, "its process goes on");
    else if (entry->returns > 0)
        snprintf(out, out_bytes, "it went on by itself: a pause, no hang");
    else
        snprintf(out, out_bytes,
                 "it went on by itself %" PRIu64 " s after this was reported: a pause, no hang",
                 lasted_s);
}

/* A verdict that the detector has ended. One that was never seen to last is not worth an entry. */
static void
merge_ended(struct cairn_ledger *ledger, const struct cairn_verdict *verdict, uint64_t run,
            uint64_t wall_ns, bool *touched, cairn_ledger_change_fn *said, void *context)
{
    char why[CAIRN_LEDGER_WHY_BYTES];

    for (uint32_t i = 0; i < ledger->count; i++) {
        struct cairn_ledger_entry *entry = &ledger->entries[i];

        if (touched[i] || entry->closed_wall_ns != 0 || entry->run != run ||
            entry->run_since_step != verdict->since_step || !same_cause(entry, verdict))
            continue;
        touched[i] = true;
        tell_end(entry, wall_ns, why, sizeof why);
        close_entry(ledger, entry, verdict->until_step, wall_ns, why, said, context);
    }
}

void
cairn_ledger_merge(struct cairn_ledger *ledger, const struct cairn_verdicts *verdicts,
                   const uint32_t *evidence_kinds, uint64_t run, uint64_t wall_ns,
                   cairn_ledger_change_fn *said, void *context)
{
    bool touched[CAIRN_LEDGER_MAX + 1] = {false};

    for (uint32_t i = 0; i < verdicts->count; i++)
        if (verdicts->items[i].until_step == CAIRN_STEP_NONE)
            merge_lasting(ledger, &verdicts->items[i], evidence_kinds[i], run, wall_ns, touched,
                          said, context);
    for (uint32_t i = 0; i < verdicts->count; i++)
        if (verdicts->items[i].until_step != CAIRN_STEP_NONE)
            merge_ended(ledger, &verdicts->items[i], run, wall_ns, touched, said, context);
    for (uint32_t i = 0; i < ledger->count; i++)
        if (!touched[i] && ledger->entries[i].closed_wall_ns == 0 && ledger->entries[i].run == run)
            close_entry(ledger, &ledger->entries[i], CAIRN_STEP_NONE, wall_ns,
                        "it is part of another verdict now, or no longer supported", said, context);
}

void
cairn_ledger_close_others(struct cairn_ledger *ledger, uint64_t run, uint64_t wall_ns,
                          const char *why, cairn_ledger_change_fn *said, void *context)
{
    for (uint32_t i = 0; i < ledger->count; i++)
        if (ledger->entries[i].closed_wall_ns == 0 && ledger->entries[i].run != run)
            close_entry(ledger, &ledger->entries[i], CAIRN_STEP_NONE, wall_ns, why, said, context);
}

static bool
is_about(const struct cairn_ledger_entry *entry, uint64_t rank)
{
    for (uint32_t i = 0; i < entry->rank_count && i < CAIRN_LEDGER_RANKS_MAX; i++)
        if (entry->ranks[i] == rank)
            return true;
    return false;
}

/* An entry that called the rank slow, and that another run than its own has closed. */
static bool
leaves_unsure(const struct cairn_ledger_entry *entry, uint64_t rank, uint64_t run)
{
    return (entry->kind == CAIRN_SLOW_COMPUTE || entry->kind == CAIRN_SLOW_NODE) &&
           is_about(entry, rank) && entry->closed_wall_ns != 0 &&
           entry->until_step == CAIRN_STEP_NONE && entry->run != run;
}

bool
cairn_ledger_is_unsure(const struct cairn_ledger *ledger, uint64_t rank, uint64_t run,
                       uint64_t since_wall_ns)
{
    for (uint32_t i = 0; i < ledger->count; i++)
        if (leaves_unsure(&ledger->entries[i], rank, run) &&
            ledger->entries[i].closed_wall_ns >= since_wall_ns)
            return true;
    return false;
}

void
cairn_ledger_settle(struct cairn_ledger *ledger, uint64_t rank, uint64_t run)
{
    for (uint32_t i = 0; i < ledger->count; i++) {
        if (!leaves_unsure(&ledger->entries[i], rank, run))
            continue;
        ledger->entries[i].run = run;
        ledger->version++;
    }
}

uint32_t
cairn_ledger_open_count(const struct cairn_ledger *ledger)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < ledger->count; i++)
        count += ledger->entries[i].closed_wall_ns == 0;
    return count;
}

bool
cairn_ledger_suspects(const struct cairn_ledger *ledger)
{
    for (uint32_t i = 0; i < ledger->count; i++)
        if (ledger->entries[i].closed_wall_ns == 0 && ledger->entries[i].kind != CAIRN_STRUCTURAL)
            return true;
    return false;
}

uint32_t
cairn_ledger_slow_ranks(const struct cairn_ledger *ledger, uint32_t *ranks, double *rates)
{
    uint32_t count = 0;

    for (uint32_t e = 0; e < ledger->count; e++) {
        const struct cairn_ledger_entry *entry = &ledger->entries[e];

        if (entry->closed_wall_ns != 0 ||
            (entry->kind != CAIRN_SLOW_COMPUTE && entry->kind != CAIRN_SLOW_NODE))
            continue;
        for (uint32_t i = 0; i < entry->rank_count && i < CAIRN_LEDGER_RANKS_MAX; i++) {
            ranks[count] = entry->ranks[i];
            rates[count++] = entry->rate;
        }
    }
    return count;
}
