/*
 * replan/assign_long.c - places for the longest sequences, all ways tried.
 *
 * Where few long sequences decide how long a step takes, rules of thumb end far from the best, and a bound that counts
 * fractions of sequences far below it. There are few of them, so a search with backtracking settles both: the
 * longest first, into each pipeline that has room, the one that loses least first; given up as soon as
 * what is left over cannot hold the sequences that remain.
 */
#include "replan/assigner.h"

#include <stdlib.h>
#include <string.h>

#define MARGIN 1e-9
enum { FAILED_ROOM = 8192 };

/* 128 bits that stand for a state; two states have the same by chance once in far more than there ever are. */
struct name {
    uint64_t part[2];
};

/* A pipeline that is filled. */
struct bin {
    double holds_ms; /* of work, empty */
    double left_ms;  /* holds_ms less its work and what its longest sequence loses */
    double largest_ms;
    uint64_t max_tokens;
    uint32_t lost_times; /* stages - 1 */
    uint32_t alike;      /* the first pipeline that is the same when empty */
    uint32_t index;      /* in the problem */
};

struct cairn_long {
    const struct cairn_assign_problem *problem;
    const struct cairn_sequence *sequences;
    double total_ms;
    struct bin *bins;       /* [pipeline_count] */
    uint32_t *candidates;   /* [CAIRN_LONG_MAX * pipeline_count], for each sequence the bins to try */
    double *prices;         /* [pipeline_count], of the candidates of one sequence */
    uint64_t *empty_seen;   /* [pipeline_count] by kind, in which listing an empty one was met */
    uint64_t listings;
    struct name sum;        /* of all bins */
    uint64_t looked_at;     /* bins, since the search began */
    uint64_t searches;      /* so far: names of one search mean nothing in another */
    struct name failed[FAILED_ROOM]; /* states from which there is no way; later ones replace earlier ones */
};

cairn_err
cairn_long_create(const struct cairn_assign_problem *problem, const struct cairn_sequence *sequences,
                  struct cairn_long **out)
{
    struct cairn_long *longest = calloc(1, sizeof(*longest));
    size_t count = (size_t)problem->pipeline_count + 1;

    if (!longest)
        return CAIRN_NOMEM;
    longest->problem = problem;
    longest->sequences = sequences;
    longest->bins = calloc(count, sizeof(*longest->bins));
    longest->candidates = calloc(count * CAIRN_LONG_MAX, sizeof(*longest->candidates));
    longest->prices = calloc(count, sizeof(*longest->prices));
    longest->empty_seen = calloc(count, sizeof(*longest->empty_seen));
    if (!longest->bins || !longest->candidates || !longest->prices || !longest->empty_seen) {
        cairn_long_destroy(longest);
        return CAIRN_NOMEM;
    }
    for (uint32_t i = 0; i < problem->sequence_count; i++)
        longest->total_ms += sequences[i].cost_ms;
    *out = longest;
    return CAIRN_OK;
}

void
cairn_long_destroy(struct cairn_long *longest)
{
    if (!longest)
        return;
    free(longest->bins);
    free(longest->candidates);
    free(longest->prices);
    free(longest->empty_seen);
    free(longest);
}

static uint64_t
mix(uint64_t name, uint64_t more)
{
    name = (name ^ more) * UINT64_C(0x9e3779b97f4a7c15);
    return name ^ name >> 29;
}

/* A bin's part in the name of a state; of one that the next sequence may not go to, another. */
static struct name
name_bin(const struct bin *bin, bool passed)
{
    uint64_t left, largest, own = 2 * (uint64_t)bin->alike + !passed;

    memcpy(&left, &bin->left_ms, sizeof(left));
    memcpy(&largest, &bin->largest_ms, sizeof(largest));
    return (struct name){{mix(mix(mix(own, left), largest), left), mix(mix(mix(~own, largest), left), largest)}};
}

static void
add_name(struct name *sum, const struct name *more, const struct name *less)
{
    for (uint32_t i = 0; i < 2; i++)
        sum->part[i] += more->part[i] - less->part[i];
}

/* The name of a state before sequence `at` is placed in one of the bins from `first` on. Bins that are alike may change
 * places on either side of `first`: a name is a sum over all. */
static struct name
name_state(struct cairn_long *longest, uint32_t at, uint32_t first)
{
    struct name name = longest->sum;

    longest->looked_at += first + 1;
    for (uint32_t i = 0; i < first; i++) {
        struct name passed = name_bin(&longest->bins[i], true), open = name_bin(&longest->bins[i], false);

        add_name(&name, &passed, &open);
    }
    for (uint64_t i = 0; i < 2; i++)
        name.part[i] = mix(mix(mix(name.part[i], longest->searches), at), i + 7);
    return name;
}

static bool
has_failed(const struct cairn_long *longest, const struct name *name)
{
    const struct name *there = &longest->failed[name->part[0] % FAILED_ROOM];

    return there->part[0] == name->part[0] && there->part[1] == name->part[1];
}

/* Where the search stands for one sequence: what is to be tried, and what to undo. */
struct level {
    uint32_t candidate_count;
    uint32_t next;
    uint32_t bin;
    double was_left_ms;
    double was_largest_ms;
    double all_left_ms; /* of all pipelines, before the sequence is placed */
    double work_ms;     /* of the sequences from here on */
    struct name state;  /* before the sequence is placed; of the first one, nothing */
};

/* Only bins that can hold the least of the sequences are searched; all work counts. */
static uint32_t
begin(struct cairn_long *longest, uint32_t count, double step_ms, double *all_left_ms)
{
    const struct cairn_assign_problem *problem = longest->problem;
    const struct cairn_sequence *least = &longest->sequences[count - 1];
    const struct name nothing = {{0, 0}};
    struct name own;
    uint32_t bin_count = 0;

    longest->looked_at = problem->pipeline_count;
    longest->sum = (struct name){{0, 0}};
    *all_left_ms = 0;
    for (uint32_t i = 0; i < problem->pipeline_count; i++) {
        const struct cairn_assign_pipeline *pipeline = &problem->pipelines[i];
        struct bin bin = {.holds_ms = step_ms / pipeline->time_scale * (1 + MARGIN),
                          .max_tokens = pipeline->max_tokens,
                          .lost_times = pipeline->stages - 1,
                          .index = i};

        *all_left_ms += bin.holds_ms;
        if (bin.holds_ms < pipeline->stages * least->cost_ms || bin.max_tokens < least->tokens)
            continue;
        bin.left_ms = bin.holds_ms;
        bin.alike = bin_count;
        for (uint32_t j = 0; j < bin_count; j++) {
            const struct bin *other = &longest->bins[j];

            if (other->lost_times == bin.lost_times && !(other->holds_ms < bin.holds_ms) &&
                !(bin.holds_ms < other->holds_ms) &&
                (other->max_tokens == bin.max_tokens ||
                 (other->max_tokens >= longest->sequences[0].tokens &&
                  bin.max_tokens >= longest->sequences[0].tokens))) {
                bin.alike = j;
                break;
            }
        }
        own = name_bin(&bin, false);
        add_name(&longest->sum, &own, &nothing);
        longest->bins[bin_count++] = bin;
    }
    return bin_count;
}

/* How many whole times: floor, which is a call where it is asked for most. */
static double
whole(double times)
{
    return times < 1e9 ? (double)(int32_t)times : times;
}

/* The most work of sequences of next_ms at most that a bin can take, and how many of them; per_ms: of the least of them. */
static double
room_of(const struct bin *bin, double next_ms, double per_ms, double *places)
{
    double count, each_ms;

    if (bin->largest_ms > 0) {
        count = whole(bin->left_ms * per_ms);
        *places = count;
        return count * next_ms < bin->left_ms ? count * next_ms : bin->left_ms;
    }
    /* n sequences, the longest of them M: n M and holds - (stages - 1) M both limit their work. */
    count = whole(bin->holds_ms * per_ms) - bin->lost_times;
    if (count < 1) {
        *places = 0;
        return 0;
    }
    each_ms = bin->holds_ms / (count + bin->lost_times);
    *places = count;
    return count * (each_ms < next_ms ? each_ms : next_ms);
}

/* Whether what is left could hold the sequences from `at` to `count`, fractions included. */
static bool
may_fit_some(struct cairn_long *longest, uint32_t bin_count, uint32_t at, uint32_t count, double work_ms)
{
    double next_ms = longest->sequences[at].cost_ms, per_ms = (1 + MARGIN) / longest->sequences[count - 1].cost_ms;
    double room_ms = 0, places = 0;

    for (uint32_t i = 0; i < bin_count; i++) {
        double own;

        longest->looked_at++;
        room_ms += room_of(&longest->bins[i], next_ms, per_ms, &own);
        places += own;
        if (room_ms * (1 + MARGIN) >= work_ms && places >= count - at) /* equal ones add up with rounding */
            return true;
    }
    return false;
}

/* The same of the next few sequences, more, and all: those that are few may be what does not fit. */
static bool
may_fit(struct cairn_long *longest, uint32_t bin_count, uint32_t at, uint32_t count,
        const struct level *levels)
{
    for (uint32_t some = 3; at + some < count; some = 2 * some)
        if (!may_fit_some(longest, bin_count, at, at + some, levels[at].work_ms - levels[at + some].work_ms))
            return false;
    return may_fit_some(longest, bin_count, at, count, levels[at].work_ms);
}

/* The bins from `first` on that a sequence may go to, the one that loses least of what it has left first, then the fullest. Of
 * bins that are alike the first empty one stands for all. */
static uint32_t
list_candidates(struct cairn_long *longest, uint32_t first, uint32_t bin_count,
                const struct cairn_sequence *sequence, uint32_t *candidates)
{
    uint32_t found = 0;

    longest->looked_at += bin_count;
    longest->listings++;
    for (uint32_t i = 0; i < bin_count; i++) {
        const struct bin *bin = &longest->bins[i];
        double lost_ms = 0, left_ms, price;
        uint32_t at = found;

        if (bin->largest_ms <= 0) {
            if (longest->empty_seen[bin->alike] == longest->listings)
                continue;
            longest->empty_seen[bin->alike] = longest->listings;
            lost_ms = bin->lost_times * sequence->cost_ms;
        }
        left_ms = bin->left_ms - lost_ms - sequence->cost_ms;
        if (i < first || left_ms < 0 || sequence->tokens > bin->max_tokens)
            continue;
        price = lost_ms / (left_ms + sequence->cost_ms) + 1e-3 * left_ms / bin->holds_ms;
        for (; at > 0 && longest->prices[at - 1] > price; at--) {
            longest->prices[at] = longest->prices[at - 1];
            candidates[at] = candidates[at - 1];
        }
        longest->prices[at] = price;
        candidates[at] = i;
        found++;
    }
    return found;
}

/* Puts what a bin has left and its largest sequence, and keeps the sum of names right. */
static void
set_bin(struct cairn_long *longest, uint32_t at, double left_ms, double largest_ms)
{
    struct bin *bin = &longest->bins[at];
    struct name before = name_bin(bin, false), after;

    bin->left_ms = left_ms;
    bin->largest_ms = largest_ms;
    after = name_bin(bin, false);
    add_name(&longest->sum, &after, &before);
}

enum cairn_long_answer
cairn_long_place(struct cairn_long *longest, uint32_t count, double step_ms, uint64_t *work,
                 uint32_t *places)
{
    struct level levels[CAIRN_LONG_MAX + 1] = {{0}};
    uint32_t room = longest->problem->pipeline_count, at = 0, bin_count;
    double work_ms = 0, rest_ms;

    for (uint32_t i = count; i-- > 0;) {
        work_ms += longest->sequences[i].cost_ms;
        levels[i].work_ms = work_ms;
    }
    rest_ms = longest->total_ms - work_ms;
    longest->searches++;
    bin_count = begin(longest, count, step_ms, &levels[0].all_left_ms);
    levels[0].candidate_count =
        levels[0].all_left_ms >= longest->total_ms && may_fit(longest, bin_count, 0, count, levels)
            ? list_candidates(longest, 0, bin_count, &longest->sequences[0], longest->candidates)
            : 0;
    for (;;) {
        struct level *level = &levels[at];
        const struct cairn_sequence *sequence = &longest->sequences[at];
        const struct bin *bin;

        if (level->next == level->candidate_count) { /* nothing is left to try: one back */
            if (at == 0) {
                *work -= longest->looked_at < *work ? longest->looked_at : *work;
                return CAIRN_LONG_NONE;
            }
            if (level->candidate_count > 0)
                longest->failed[level->state.part[0] % FAILED_ROOM] = level->state;
            level = &levels[--at];
            set_bin(longest, level->bin, level->was_left_ms, level->was_largest_ms);
            continue;
        }
        if (longest->looked_at >= *work) {
            *work = 0;
            return CAIRN_LONG_UNKNOWN;
        }
        level->bin = longest->candidates[at * room + level->next++];
        bin = &longest->bins[level->bin];
        level->was_left_ms = bin->left_ms;
        level->was_largest_ms = bin->largest_ms;
        set_bin(longest, level->bin,
                bin->left_ms - sequence->cost_ms - (bin->largest_ms > 0 ? 0 : bin->lost_times * sequence->cost_ms),
                bin->largest_ms > 0 ? bin->largest_ms : sequence->cost_ms);
        levels[at + 1].all_left_ms = level->all_left_ms - (level->was_left_ms - bin->left_ms);
        levels[at + 1].next = 0;
        levels[at + 1].candidate_count = 0;
        longest->looked_at++;
        at++;
        if (levels[at].all_left_ms < levels[at].work_ms + rest_ms)
            continue;
        if (at == count)
            break;
        if (may_fit(longest, bin_count, at, count, levels)) {
            /* Of sequences that are alike the order does not matter: bins are taken in theirs. */
            const struct cairn_sequence *next = &longest->sequences[at];
            bool alike = next->tokens == sequence->tokens && !(next->cost_ms < sequence->cost_ms);
            uint32_t first = alike ? level->bin : 0;

            levels[at].state = name_state(longest, at, first);
            if (has_failed(longest, &levels[at].state))
                continue;
            levels[at].candidate_count = list_candidates(longest, first, bin_count, &longest->sequences[at],
                                                         longest->candidates + at * room);
        }
    }
    *work -= longest->looked_at < *work ? longest->looked_at : *work;
    for (uint32_t i = 0; i < count; i++)
        places[i] = longest->bins[levels[i].bin].index;
    return CAIRN_LONG_PLACED;
}
