/* replan/live/ledger.c - the verdicts on a running job; see ledger.h. */
#include "replan/live/enforce.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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

/* True where a verdict's links and an entry's have one in common: slow ones are found one after the
 * other. */
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

void
cairn_ledger_remember_exchanges(struct cairn_ledger *ledger, const struct cairn_ledger_entry *entry)
{
    struct cairn_ledger_exchanges *list = ledger->exchanges;
    uint32_t count = cairn_ledger_exchanges_of(entry), at = ledger->exchanges_count;
    uint64_t wall_ns = cairn_enforce_counted_ns(entry);

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

/* The budget of exchanges, and how commands ended, outlive the entry. */
static void
forget(struct cairn_ledger *ledger, const struct cairn_ledger_entry *entry)
{
    enum cairn_enforcement_result result = cairn_enforce_result(&entry->enforcement);

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

/* How a verdict ended. While one rank is waited for nobody can tell a pause from a hang, so that
 * what was said is taken back here. */
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
                 "it went on by itself %" PRIu64 " s after this was said: a pause, no hang",
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

/* ---- bytes ---- */

static void
write_double(struct cairn_writer *writer, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    cairn_write_u64(writer, bits);
}

static double
read_double(struct cairn_reader *reader)
{
    uint64_t bits = cairn_read_u64(reader);
    double value;

    memcpy(&value, &bits, sizeof value);
    if (!(isfinite(value) && value >= 0))
        reader->failed = true;
    return value;
}

static void
write_items(struct cairn_writer *writer, const uint32_t *items, uint32_t count, uint32_t unit,
            uint32_t units_max)
{
    cairn_write_u32(writer, count);
    for (uint32_t i = 0; i < (count < units_max ? count : units_max) * unit; i++)
        cairn_write_u32(writer, items[i]);
}

static uint32_t
read_items(struct cairn_reader *reader, uint32_t *items, uint32_t unit, uint32_t units_max)
{
    uint32_t count = cairn_read_u32(reader);

    for (uint32_t i = 0; i < (count < units_max ? count : units_max) * unit; i++)
        items[i] = cairn_read_u32(reader);
    return count;
}

/* A text that a terminal will show: printable ASCII, which is all that a detector writes. */
static void
read_text(struct cairn_reader *reader, char *out, size_t out_bytes)
{
    cairn_read_string(reader, out, out_bytes);
    for (const char *at = out; !reader->failed && *at; at++)
        if (*at < ' ' || *at > '~')
            reader->failed = true;
}

static void
pack_enforcement(const struct cairn_enforcement *enforcement, struct cairn_writer *writer)
{
    cairn_write_u8(writer, (uint8_t)enforcement->state);
    cairn_write_u32(writer, enforcement->node);
    cairn_write_u64(writer, enforcement->incarnation);
    cairn_write_u64(writer, enforcement->begun_wall_ns);
    cairn_write_u64(writer, enforcement->ended_wall_ns);
    cairn_write_u32(writer, enforcement->exchanges);
    cairn_write_u32(writer, enforcement->value);
}

static void
unpack_enforcement(struct cairn_reader *reader, struct cairn_enforcement *enforcement)
{
    uint8_t state = cairn_read_u8(reader);

    if (state > CAIRN_ENFORCEMENT_EXITED)
        reader->failed = true;
    enforcement->state = (enum cairn_enforcement_state)state;
    enforcement->node = cairn_read_u32(reader);
    enforcement->incarnation = cairn_read_u64(reader);
    enforcement->begun_wall_ns = cairn_read_u64(reader);
    enforcement->ended_wall_ns = cairn_read_u64(reader);
    enforcement->exchanges = cairn_read_u32(reader);
    enforcement->value = cairn_read_u32(reader);
}

static void
pack_entry(const struct cairn_ledger_entry *entry, struct cairn_writer *writer)
{
    cairn_write_u64(writer, entry->number);
    cairn_write_u64(writer, entry->run);
    cairn_write_u8(writer, (uint8_t)entry->kind);
    cairn_write_string(writer, entry->pattern);
    write_items(writer, entry->ranks, entry->rank_count, 1, CAIRN_LEDGER_RANKS_MAX);
    write_items(writer, entry->nodes, entry->node_count, 1, CAIRN_LEDGER_NODES_MAX);
    write_items(writer, entry->links, entry->link_count, 2, CAIRN_LEDGER_LINKS_MAX);
    cairn_write_u32(writer, entry->victim_count);
    cairn_write_u32(writer, entry->since_step);
    cairn_write_u32(writer, entry->until_step);
    cairn_write_u32(writer, entry->detected_step);
    cairn_write_u32(writer, entry->run_since_step);
    cairn_write_u32(writer, entry->returns);
    write_double(writer, entry->rate);
    write_double(writer, entry->confidence);
    cairn_write_u32(writer, entry->evidence_kinds);
    cairn_write_u64(writer, entry->opened_wall_ns);
    cairn_write_u64(writer, entry->closed_wall_ns);
    cairn_write_u64(writer, entry->lost_ns);
    cairn_write_u64(writer, entry->lost_until_wall_ns);
    cairn_write_string(writer, entry->evidence);
    cairn_write_string(writer, entry->closed_why);
    pack_enforcement(&entry->enforcement, writer);
}

static void
unpack_entry(struct cairn_reader *reader, struct cairn_ledger_entry *entry)
{
    uint8_t kind;

    entry->number = cairn_read_u64(reader);
    entry->run = cairn_read_u64(reader);
    kind = cairn_read_u8(reader);
    if (kind > CAIRN_STRUCTURAL)
        reader->failed = true;
    entry->kind = (enum cairn_verdict_kind)kind;
    read_text(reader, entry->pattern, sizeof entry->pattern);
    entry->rank_count = read_items(reader, entry->ranks, 1, CAIRN_LEDGER_RANKS_MAX);
    entry->node_count = read_items(reader, entry->nodes, 1, CAIRN_LEDGER_NODES_MAX);
    entry->link_count = read_items(reader, entry->links, 2, CAIRN_LEDGER_LINKS_MAX);
    entry->victim_count = cairn_read_u32(reader);
    entry->since_step = cairn_read_u32(reader);
    entry->until_step = cairn_read_u32(reader);
    entry->detected_step = cairn_read_u32(reader);
    entry->run_since_step = cairn_read_u32(reader);
    entry->returns = cairn_read_u32(reader);
    entry->rate = read_double(reader);
    entry->confidence = read_double(reader);
    entry->evidence_kinds = cairn_read_u32(reader);
    entry->opened_wall_ns = cairn_read_u64(reader);
    entry->closed_wall_ns = cairn_read_u64(reader);
    entry->lost_ns = cairn_read_u64(reader);
    entry->lost_until_wall_ns = cairn_read_u64(reader);
    read_text(reader, entry->evidence, sizeof entry->evidence);
    read_text(reader, entry->closed_why, sizeof entry->closed_why);
    unpack_enforcement(reader, &entry->enforcement);
    if (entry->evidence_kinds > CAIRN_EVIDENCE_ALL || entry->confidence > 1)
        reader->failed = true;
}

void
cairn_ledger_pack(const struct cairn_ledger *ledger, struct cairn_writer *writer)
{
    cairn_write_u64(writer, ledger->version);
    cairn_write_u64(writer, ledger->next_number);
    cairn_write_u32(writer, ledger->count);
    for (uint32_t i = 0; i < ledger->count; i++)
        pack_entry(&ledger->entries[i], writer);
    cairn_write_u32(writer, ledger->exchanges_count);
    for (uint32_t i = 0; i < ledger->exchanges_count; i++) {
        cairn_write_u64(writer, ledger->exchanges[i].wall_ns);
        cairn_write_u32(writer, ledger->exchanges[i].count);
        cairn_write_u32(writer, ledger->exchanges[i].begun);
    }
    for (uint32_t i = 0; i < CAIRN_ENFORCED_RESULTS; i++)
        cairn_write_u64(writer, ledger->enforced_before[i]);
}

cairn_err
cairn_ledger_unpack(const void *bytes, size_t bytes_len, struct cairn_ledger *out)
{
    struct cairn_ledger *ledger = calloc(1, sizeof *ledger);
    struct cairn_reader reader;
    uint64_t number = 0;
    cairn_err err;

    if (!ledger)
        return CAIRN_NOMEM;
    cairn_reader_init(&reader, bytes, bytes_len);
    ledger->version = cairn_read_u64(&reader);
    ledger->next_number = cairn_read_u64(&reader);
    ledger->count = cairn_read_u32(&reader);
    if (ledger->count > CAIRN_LEDGER_MAX)
        reader.failed = true;
    for (uint32_t i = 0; !reader.failed && i < ledger->count; i++) {
        unpack_entry(&reader, &ledger->entries[i]);
        if (ledger->entries[i].number <= number || ledger->entries[i].number >= ledger->next_number)
            reader.failed = true;
        number = ledger->entries[i].number;
    }
    ledger->exchanges_count = cairn_read_u32(&reader);
    if (ledger->exchanges_count > CAIRN_LEDGER_EXCHANGES_MAX)
        reader.failed = true;
    for (uint32_t i = 0; !reader.failed && i < ledger->exchanges_count; i++) {
        ledger->exchanges[i].wall_ns = cairn_read_u64(&reader);
        ledger->exchanges[i].count = cairn_read_u32(&reader);
        ledger->exchanges[i].begun = cairn_read_u32(&reader);
        if (ledger->exchanges[i].begun > ledger->exchanges[i].count)
            reader.failed = true;
    }
    for (uint32_t i = 0; i < CAIRN_ENFORCED_RESULTS; i++)
        ledger->enforced_before[i] = cairn_read_u64(&reader);
    err = ledger->next_number == 0 ? CAIRN_CORRUPT : cairn_reader_done(&reader);
    if (!err)
        *out = *ledger;
    free(ledger);
    return err;
}
