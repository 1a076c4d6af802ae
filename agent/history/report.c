/* agent/history/report.c - where a job's time went; see report.h. */
#include "agent/history/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STILL_FACTOR = 3 }; /* a step that takes so many times the mean is not progress any more … */
static const uint64_t still_ns = UINT64_C(10) * 1000000000; /* … but no sooner than this */

/* A TRAINING of one node within the report's time. */
struct piece {
    uint64_t begin_ns, end_ns;
    double first, last; /* the steps before and at its end, where it may be cut */
    uint64_t wait_ns, captures;
    uint32_t list;
    bool left; /* in good order */
    bool is_live;
};

struct span {
    uint64_t begin_ns, end_ns;
    double rate; /* of a straggler */
};

struct reporting {
    struct piece *pieces;
    uint32_t piece_count;
    struct span *training; /* disjoint, growing */
    uint32_t training_count;
    struct span *slow;
    uint32_t slow_count;
    uint64_t training_ns;
    struct history_report *out;
};

static uint64_t
max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t
min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* A hostile history may have any numbers: sums saturate. */
static uint64_t
whole(double value)
{
    const double most = 4611686018427387904.0; /* 2^62 */

    return value > 0 ? (uint64_t)fmin(value, most) : 0;
}

/* ---- pieces ---- */

static void
cut(struct piece *piece, uint64_t since_ns, uint64_t now_ns)
{
    double length = (double)(piece->end_ns - piece->begin_ns), steps = piece->last - piece->first;
    uint64_t begin = max_u64(piece->begin_ns, since_ns), end = min_u64(piece->end_ns, now_ns);
    double share;

    if (length <= 0 || begin >= end) {
        piece->end_ns = piece->begin_ns;
        return;
    }
    share = (double)(end - begin) / length;
    piece->first += steps * (double)(begin - piece->begin_ns) / length;
    piece->last = piece->first + steps * share;
    piece->wait_ns = whole((double)piece->wait_ns * share);
    piece->captures = whole((double)piece->captures * share + 0.5);
    piece->begin_ns = begin;
    piece->end_ns = end;
}

static void
add_piece(struct reporting *reporting, uint32_t list, const struct history_event *event,
          bool is_newest, uint64_t since_ns, uint64_t now_ns)
{
    struct piece piece = {.begin_ns = event->wall_ns,
                          .end_ns = event->until_wall_ns,
                          .first = (double)event->generation.step - 1,
                          .last = (double)event->last_step,
                          .wait_ns = event->took_ns,
                          .captures = event->captures,
                          .list = list,
                          .left = event->change == HISTORY_LEFT};
    uint64_t step_ns;

    if (event->last_step < event->generation.step)
        return;
    step_ns = (piece.end_ns - piece.begin_ns) / (event->last_step - event->generation.step + 1);
    piece.is_live = is_newest && event->change == HISTORY_RUNS && now_ns >= piece.end_ns &&
                    now_ns - piece.end_ns <= max_u64(STILL_FACTOR * step_ns, still_ns);
    if (piece.is_live)
        piece.end_ns = now_ns; /* the step that is being computed */
    cut(&piece, since_ns, now_ns);
    if (piece.end_ns > piece.begin_ns)
        reporting->pieces[reporting->piece_count++] = piece;
}

static int
compare_pieces(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;

    if (a->begin_ns != b->begin_ns)
        return a->begin_ns < b->begin_ns ? -1 : 1;
    return (a->end_ns > b->end_ns) - (a->end_ns < b->end_ns);
}

static void
collect(struct reporting *reporting, const struct history_list *lists, uint32_t list_count,
        uint64_t since_ns, uint64_t now_ns)
{
    for (uint32_t l = 0; l < list_count; l++) {
        uint32_t newest = UINT32_MAX;

        for (uint32_t i = 0; i < lists[l].count; i++)
            if (lists[l].events[i].kind == HISTORY_TRAINING)
                newest = i;
        for (uint32_t i = 0; i < lists[l].count; i++)
            if (lists[l].events[i].kind == HISTORY_TRAINING)
                add_piece(reporting, l, &lists[l].events[i], i == newest, since_ns, now_ns);
    }
    if (reporting->piece_count)
        qsort(reporting->pieces, reporting->piece_count, sizeof *reporting->pieces, compare_pieces);
}

/* ---- training, redone and down ---- */

static void
add_training(struct reporting *reporting, uint64_t begin_ns, uint64_t end_ns)
{
    struct span *last =
        reporting->training_count ? &reporting->training[reporting->training_count - 1] : NULL;

    reporting->training_ns += end_ns - begin_ns;
    if (last && last->end_ns == begin_ns)
        last->end_ns = end_ns;
    else
        reporting->training[reporting->training_count++] =
            (struct span){.begin_ns = begin_ns, .end_ns = end_ns};
}

/* Goes along the pieces, which overlap if several nodes train. */
static void
walk(struct reporting *reporting, uint64_t now_ns)
{
    struct history_report *out = reporting->out;
    uint64_t covered_ns = out->from_wall_ns;
    double done = 0, before = 0, steps = 0, redone_steps = 0, redone_ns = 0;
    bool left = true, is_live = false;

    for (uint32_t i = 0; i < reporting->piece_count; i++) {
        const struct piece *piece = &reporting->pieces[i];
        uint64_t begin = max_u64(piece->begin_ns, covered_ns);
        double from, again, length;

        if (i == 0 || begin > covered_ns) { /* a life begins */
            out->lives++;
            out->faults += i > 0 && !left;
            before = done;
        }
        if (piece->end_ns <= covered_ns)
            continue;
        length = (double)(piece->end_ns - piece->begin_ns);
        from = piece->first +
               (piece->last - piece->first) * (double)(begin - piece->begin_ns) / length;
        again = fmin(fmax(before - from, 0), piece->last - from);
        steps += piece->last - from;
        redone_steps += again;
        if (piece->last > from)
            redone_ns += (double)(piece->end_ns - begin) * again / (piece->last - from);
        done = fmax(done, piece->last);
        add_training(reporting, begin, piece->end_ns);
        covered_ns = piece->end_ns;
        left = piece->left;
        is_live = piece->is_live;
    }
    out->is_running = is_live;
    out->faults += !left && !is_live;
    out->until_wall_ns = left ? covered_ns : now_ns;
    out->down_ns = out->until_wall_ns - out->from_wall_ns - reporting->training_ns;
    out->steps = whole(steps + 0.5);
    out->redone_steps = whole(redone_steps + 0.5);
    out->redone_ns = min_u64(whole(redone_ns), reporting->training_ns);
}

/* ---- snapshots ---- */

/* The share of its training that the slowest node waited for snapshots, and the cost of one. */
static double
snapshots_share(struct reporting *reporting, uint32_t list_count)
{
    double largest = 0;

    for (uint32_t l = 0; l < list_count; l++) {
        double length = 0, wait = 0, captures = 0;

        for (uint32_t i = 0; i < reporting->piece_count; i++)
            if (reporting->pieces[i].list == l) {
                length += (double)(reporting->pieces[i].end_ns - reporting->pieces[i].begin_ns);
                wait += (double)reporting->pieces[i].wait_ns;
                captures += (double)reporting->pieces[i].captures;
            }
        if (length < 1 || captures < 1 ||
            (reporting->out->captures > 0 && wait / length <= largest))
            continue;
        largest = fmin(wait / length, 1);
        reporting->out->captures = whole(captures);
        reporting->out->cost_ns = whole(wait / captures);
    }
    return largest;
}

/* ---- stragglers ---- */

static void
collect_slow(struct reporting *reporting, const struct history_merge *merge, uint64_t now_ns)
{
    for (uint32_t i = 0; i < merge->count; i++) {
        const struct history_event *event = &merge->entries[i].event;
        struct span slow = {.begin_ns = event->wall_ns, .end_ns = now_ns, .rate = event->rate};

        if (event->kind != HISTORY_VERDICT || event->change == HISTORY_CLOSED || event->rate <= 1)
            continue;
        for (uint32_t j = i + 1; j < merge->count && slow.end_ns == now_ns; j++) {
            const struct history_event *end = &merge->entries[j].event;

            if (end->kind == HISTORY_VERDICT && end->subject == event->subject &&
                end->change == HISTORY_CLOSED)
                slow.end_ns = end->wall_ns;
        }
        if (slow.end_ns > slow.begin_ns)
            reporting->slow[reporting->slow_count++] = slow;
    }
}

static int
compare_times(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return (a > b) - (a < b);
}

static uint64_t
trained_within(const struct reporting *reporting, uint64_t begin_ns, uint64_t end_ns)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < reporting->training_count; i++) {
        uint64_t begin = max_u64(begin_ns, reporting->training[i].begin_ns);
        uint64_t end = min_u64(end_ns, reporting->training[i].end_ns);

        sum += end > begin ? end - begin : 0;
    }
    return sum;
}

/* The cost of the slowest straggler of each moment, in nanoseconds of training. */
static double
stragglers_ns(const struct reporting *reporting, uint64_t *times)
{
    uint32_t count = 0;
    double sum = 0;

    for (uint32_t i = 0; i < reporting->slow_count; i++) {
        times[count++] = reporting->slow[i].begin_ns;
        times[count++] = reporting->slow[i].end_ns;
    }
    if (count)
        qsort(times, count, sizeof *times, compare_times);
    for (uint32_t t = 0; t + 1 < count; t++) {
        double rate = 1;

        for (uint32_t i = 0; i < reporting->slow_count; i++)
            if (reporting->slow[i].begin_ns <= times[t] && reporting->slow[i].end_ns > times[t])
                rate = fmax(rate, reporting->slow[i].rate);
        sum += (double)trained_within(reporting, times[t], times[t + 1]) * (1 - 1 / rate);
    }
    return sum;
}

/* ---- the interval ---- */

uint64_t
history_best_interval_ns(uint64_t cost_ns, uint64_t between_faults_ns)
{
    double cost = (double)cost_ns, between = (double)between_faults_ns, ratio, best;

    if (cost >= 2 * between)
        return between_faults_ns;
    ratio = cost / (2 * between);
    best = sqrt(2 * cost * between) * (1 + sqrt(ratio) / 3 + ratio / 9) - cost;
    return whole(best);
}

static void
advise(struct reporting *reporting, const struct history_merge *merge)
{
    struct history_report *out = reporting->out;
    double protect = 0, commits = 0;

    for (uint32_t i = 0; i < merge->count; i++)
        if (merge->entries[i].event.kind == HISTORY_COMMIT && merge->entries[i].event.took_ns) {
            protect += (double)merge->entries[i].event.took_ns;
            commits += (double)merge->entries[i].event.count;
        }
    out->protect_ns = commits >= 1 ? whole(protect / commits) : 0;
    out->step_ns = out->steps ? reporting->training_ns / out->steps : 0;
    out->is_bound = out->faults == 0;
    out->between_faults_ns = reporting->training_ns / (out->faults ? out->faults : 1);
    if (out->captures == 0 || out->step_ns == 0)
        return;
    out->best_ns = max_u64(history_best_interval_ns(out->cost_ns, out->between_faults_ns),
                           max_u64(out->protect_ns, out->step_ns));
    out->best_steps = (out->best_ns + out->step_ns / 2) / out->step_ns;
}

cairn_err
history_report(const struct history_list *lists, uint32_t list_count,
               const struct history_merge *merge, uint64_t since_wall_ns, uint64_t now_wall_ns,
               struct history_report *out)
{
    struct history_report report = {.from_wall_ns = now_wall_ns, .until_wall_ns = now_wall_ns};
    struct reporting reporting = {.out = &report};
    uint64_t *times = NULL, rest;
    size_t total = 1;
    cairn_err err = CAIRN_NOMEM;

    for (uint32_t l = 0; l < list_count; l++)
        total += lists[l].count;
    reporting.pieces = calloc(total, sizeof *reporting.pieces);
    reporting.training = calloc(total, sizeof *reporting.training);
    reporting.slow = calloc((size_t)merge->count + 1, sizeof *reporting.slow);
    times = calloc(2 * ((size_t)merge->count + 1), sizeof *times);
    if (!reporting.pieces || !reporting.training || !reporting.slow || !times)
        goto done;
    collect(&reporting, lists, list_count, since_wall_ns, now_wall_ns);
    if (reporting.piece_count) {
        double kept;

        report.from_wall_ns = reporting.pieces[0].begin_ns;
        walk(&reporting, now_wall_ns);
        collect_slow(&reporting, merge, now_wall_ns);
        rest = reporting.training_ns - report.redone_ns;
        kept = (double)rest / (double)reporting.training_ns;
        report.snapshots_ns =
            min_u64(whole(snapshots_share(&reporting, list_count) * (double)rest), rest);
        report.stragglers_ns =
            min_u64(whole(stragglers_ns(&reporting, times) * kept), rest - report.snapshots_ns);
        report.productive_ns = rest - report.snapshots_ns - report.stragglers_ns;
        advise(&reporting, merge);
    }
    *out = report;
    err = CAIRN_OK;
done:
    free(reporting.pieces);
    free(reporting.training);
    free(reporting.slow);
    free(times);
    return err;
}
