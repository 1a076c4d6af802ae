/*
 * replan/views/align.c - the parts of each operation, and from them the ranks' clocks.
 *
 * Two ranks' clocks differ by what their ends of the same operations do, in the median. An
 * operation's first rank is compared with each of its others; ranks so compared are joined to
 * trees, by collectives before pairs; and in a tree all times are brought to the clock of its root.
 */
#include "replan/views/timeline.h"

#include <math.h>
#include <stdlib.h>

static bool
is_pair(const struct cairn_span *span)
{
    return span->op == CAIRN_SEND || span->op == CAIRN_RECV;
}

/* Orders the parts of one operation next to each other: by communicator, or by source and
 * target. */
static int
compare_operations(const void *left, const void *right)
{
    const struct cairn_span *a = *(struct cairn_span *const *)left,
                            *b = *(struct cairn_span *const *)right;
    uint64_t keys[2][5];

    for (int i = 0; i < 2; i++) {
        const struct cairn_span *span = i == 0 ? a : b;
        bool pair = is_pair(span);

        keys[i][0] = pair;
        keys[i][1] = !pair ? span->comm : span->op == CAIRN_SEND ? span->rank : span->peer;
        keys[i][2] = !pair ? span->op : span->op == CAIRN_SEND ? span->peer : span->rank;
        keys[i][3] = span->has_seq ? UINT32_MAX : span->step; /* numbers of a step begin again */
        keys[i][4] = span->seq;
    }
    for (int k = 0; k < 5; k++)
        if (keys[0][k] != keys[1][k])
            return keys[0][k] > keys[1][k] ? 1 : -1;
    return a->rank > b->rank ? 1 : a->rank < b->rank ? -1 : 0;
}

static bool
same_operation(const struct cairn_span *a, const struct cairn_span *b)
{
    if (is_pair(a) != is_pair(b) || a->seq != b->seq || a->has_seq != b->has_seq ||
        (!a->has_seq && a->step != b->step))
        return false;
    if (!is_pair(a))
        return a->comm == b->comm && a->op == b->op && a->rank != b->rank;
    return a->op != b->op && a->rank == b->peer && a->peer == b->rank;
}

uint32_t
cairn_spans_match(struct cairn_span *spans, size_t count, struct cairn_span **order)
{
    uint32_t operation = 0;

    for (size_t i = 0; i < count; i++)
        order[i] = &spans[i];
    qsort(order, count, sizeof(struct cairn_span *), compare_operations);
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && !same_operation(order[i - 1], order[i]))
            operation++;
        order[i]->operation = operation;
    }
    return count > 0 ? operation + 1 : 0;
}

/* A rank's clock: what to add to its times to get to those of `parent`; a tree with its root in
 * itself. */
struct clock {
    uint32_t parent;
    double ahead_ns;
};

/* What two ranks' clocks differ by, as one operation shows it. */
struct difference {
    uint32_t low, high; /* ranks */
    bool pair;
    double ns; /* low's end less high's */
};

static int
compare_differences(const void *left, const void *right)
{
    const struct difference *a = left, *b = right;

    if (a->pair != b->pair) /* collectives first: their ends are nearer to each other */
        return a->pair ? 1 : -1;
    if (a->low != b->low)
        return a->low > b->low ? 1 : -1;
    if (a->high != b->high)
        return a->high > b->high ? 1 : -1;
    return a->ns > b->ns ? 1 : a->ns < b->ns ? -1 : 0;
}

/* The root of a rank's tree, with *ahead_ns to add to the rank's times. */
static uint32_t
root_of(struct clock *clocks, uint32_t rank, double *ahead_ns)
{
    uint32_t root = rank;
    double sum_ns = 0;

    for (; clocks[root].parent != root; root = clocks[root].parent)
        sum_ns += clocks[root].ahead_ns;
    *ahead_ns = sum_ns;
    while (clocks[rank].parent != root && rank != root) { /* the next time it is one step */
        struct clock next = clocks[rank];

        clocks[rank] = (struct clock){root, sum_ns};
        sum_ns -= next.ahead_ns;
        rank = next.parent;
    }
    return root;
}

static size_t
list_differences(struct cairn_span *const *order, size_t span_count, struct difference *out)
{
    const struct cairn_span *first = NULL;
    size_t count = 0;

    for (size_t i = 0; i < span_count; i++) {
        const struct cairn_span *span = order[i];

        if (!first || first->operation != span->operation) {
            first = span;
            continue;
        }
        if (first->open || span->open)
            continue;
        out[count].pair = is_pair(span);
        out[count].low = first->rank < span->rank ? first->rank : span->rank;
        out[count].high = first->rank < span->rank ? span->rank : first->rank;
        out[count++].ns =
            first->rank < span->rank ? first->end_ns - span->end_ns : span->end_ns - first->end_ns;
    }
    return count;
}

cairn_err
cairn_spans_align(uint32_t world, struct cairn_span *spans, size_t span_count,
                  struct cairn_span *const *order)
{
    struct difference *differences = malloc((span_count + 1) * sizeof *differences);
    struct clock *clocks = malloc(world * sizeof *clocks);
    double begin_ns = INFINITY, ahead_ns = 0;
    size_t count;

    if (!differences || !clocks) {
        free(differences);
        free(clocks);
        return CAIRN_NOMEM;
    }
    for (uint32_t rank = 0; rank < world; rank++)
        clocks[rank] = (struct clock){rank, 0};
    count = list_differences(order, span_count, differences);
    qsort(differences, count, sizeof *differences, compare_differences);
    for (size_t i = 0, next; i < count; i = next) {
        const struct difference *middle;
        double low_ns, high_ns;
        uint32_t low, high;

        for (next = i + 1; next < count && differences[next].pair == differences[i].pair &&
                           differences[next].low == differences[i].low &&
                           differences[next].high == differences[i].high;)
            next++;
        middle = &differences[i + (next - i) / 2];
        low = root_of(clocks, middle->low, &low_ns);
        high = root_of(clocks, middle->high, &high_ns);
        if (low != high) /* high's times + ns are low's */
            clocks[high] = (struct clock){low, middle->ns + low_ns - high_ns};
    }
    for (size_t i = 0; i < span_count; i++) {
        struct cairn_span *span = &spans[i];

        if (i == 0 || span->rank != span[-1].rank)
            (void)root_of(clocks, span->rank, &ahead_ns);
        span->start_ns += ahead_ns;
        span->end_ns += ahead_ns;
        begin_ns = fmin(begin_ns, span->start_ns);
    }
    for (size_t i = 0; i < span_count; i++) {
        spans[i].start_ns -= begin_ns;
        spans[i].end_ns -= begin_ns;
    }
    free(differences);
    free(clocks);
    return CAIRN_OK;
}
