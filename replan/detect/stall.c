/* replan/detect/stall.c - who is behind, and who waits; see stall.h. */
#include "replan/detect/stall.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How sure a hang is that counts alone show. */
static const double sure_dead = 0.9, sure_silent = 0.6, sure_behind = 0.9, sure_link = 0.6,
                    sure_dump = 0.7;

static int
compare(const void *left, const void *right)
{
    const struct cairn_op_count *a = left, *b = right;
    int by_comm = strcmp(a->comm, b->comm);

    if (by_comm != 0)
        return by_comm;
    if (a->op != b->op)
        return a->op < b->op ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

/* A copy in the order of communicators, operations, ranks; NULL where memory is short. */
static struct cairn_op_count *
sorted(const struct cairn_op_count *from, size_t count)
{
    struct cairn_op_count *copy = malloc((count + 1) * sizeof *copy);

    if (!copy)
        return NULL;
    memcpy(copy, from, count * sizeof *copy);
    qsort(copy, count, sizeof *copy, compare);
    return copy;
}

static cairn_err
begin(struct cairn_verdicts *out, enum cairn_verdict_kind kind, double confidence,
      struct cairn_verdict **verdict)
{
    uint32_t index;
    cairn_err err = cairn_verdicts_add(out, kind, &index);

    if (err)
        return err;
    *verdict = &out->items[index];
    (*verdict)->confidence = confidence;
    (*verdict)->rate = 1;
    return CAIRN_OK;
}

static void
settle(struct cairn_verdict *verdict)
{
    cairn_list_sort(&verdict->ranks, 1);
    cairn_list_sort(&verdict->victims, 1);
}

/* ---- NCCL's counters ---- */

static size_t
end_of_comm(const struct cairn_op_count *all, size_t from, size_t count)
{
    size_t end = from;

    while (end < count && strcmp(all[end].comm, all[from].comm) == 0)
        end++;
    return end;
}

/* Those that do not answer; of an operation (0) of their own. */
static cairn_err
say_missing(const struct cairn_op_count *ranks, size_t count, struct cairn_verdicts *out)
{
    struct cairn_verdict *verdict = NULL;
    cairn_err err = CAIRN_OK;
    uint32_t dead = 0;

    for (size_t i = 0; !err && i < count; i++) {
        if (ranks[i].presence == CAIRN_PRESENT)
            continue;
        if (!verdict)
            err = begin(out, CAIRN_CRASH, sure_silent, &verdict);
        if (!err)
            err = cairn_list_add(&verdict->ranks, ranks[i].rank);
        dead += ranks[i].presence == CAIRN_CONSIDERED_DEAD;
    }
    if (err || !verdict)
        return err;
    settle(verdict);
    if (dead > 0)
        verdict->confidence = sure_dead;
    snprintf(verdict->evidence, sizeof verdict->evidence,
             "%" PRIu32 " of %" PRIu32
             " ranks of communicator %s do not answer NCCL's RAS, %" PRIu32
             " of them NCCL considers dead",
             verdict->ranks.count, ranks[0].ranks, ranks[0].comm, dead);
    return CAIRN_OK;
}

/* True where each count of a communicator is what it was, and somebody has counted. */
static bool
stands_still(const struct cairn_op_count *before, size_t before_count,
             const struct cairn_op_count *after, size_t after_count)
{
    bool any = false;

    for (size_t i = 0; i < after_count; i++) {
        const struct cairn_op_count *was;

        if (after[i].presence != CAIRN_PRESENT)
            continue;
        was = bsearch(&after[i], before, before_count, sizeof *before, compare);
        if (!was || was->presence != CAIRN_PRESENT || was->entered != after[i].entered)
            return false;
        any |= after[i].entered > 0;
    }
    return any;
}

/* Adds who is behind and who is ahead in one operation of a communicator. */
static cairn_err
compare_counts(const struct cairn_op_count *ranks, size_t count, struct cairn_verdict *verdict,
               uint64_t *furthest)
{
    uint64_t least = UINT64_MAX, most = 0;
    cairn_err err = CAIRN_OK;

    for (size_t i = 0; i < count; i++) {
        least = ranks[i].entered < least ? ranks[i].entered : least;
        most = ranks[i].entered > most ? ranks[i].entered : most;
    }
    if (least == most)
        return CAIRN_OK;
    *furthest = most - least > *furthest ? most - least : *furthest;
    for (size_t i = 0; !err && i < count; i++)
        err = cairn_list_add(ranks[i].entered < most ? &verdict->ranks : &verdict->victims,
                             ranks[i].rank);
    return err;
}

/* Those behind in a communicator that stands still; *behind: there are some. */
static cairn_err
say_behind(const struct cairn_op_count *ranks, size_t count, struct cairn_verdicts *out,
           bool *behind)
{
    struct cairn_verdict found = {.kind = CAIRN_HANG_COMPUTE}, *verdict;
    uint64_t furthest = 0;
    cairn_err err = CAIRN_OK;

    for (size_t i = 0, end; !err && i < count; i = end) {
        for (end = i; end < count && ranks[end].op == ranks[i].op;)
            end++;
        if (ranks[i].presence == CAIRN_PRESENT)
            err = compare_counts(&ranks[i], end - i, &found, &furthest);
    }
    *behind = found.ranks.count > 0;
    if (!err && *behind)
        err = begin(out, CAIRN_HANG_COMPUTE, sure_behind, &verdict);
    if (err || !*behind) {
        free(found.ranks.items);
        free(found.victims.items);
        return err;
    }
    cairn_list_take(&verdict->ranks, &found.ranks);
    cairn_list_take(&verdict->victims, &found.victims);
    settle(verdict);
    snprintf(verdict->evidence, sizeof verdict->evidence,
             "in communicator %s of %" PRIu32 " ranks no count moves, and that of rank %" PRIu32
             "%s is up to %" PRIu64 " operations behind the others'",
             ranks[0].comm, ranks[0].ranks, verdict->ranks.items[0],
             verdict->ranks.count > 1 ? " and others" : "", furthest);
    return CAIRN_OK;
}

cairn_err
cairn_stall_of_ras(const struct cairn_op_count *before, size_t before_count,
                   const struct cairn_op_count *after, size_t after_count,
                   struct cairn_verdicts *out, uint32_t *still)
{
    struct cairn_op_count *was = sorted(before, before_count), *is = sorted(after, after_count);
    uint32_t first = out->count, behind_comms = 0;
    cairn_err err = was && is ? CAIRN_OK : CAIRN_NOMEM;

    *still = 0;
    for (size_t i = 0, end; !err && i < after_count; i = end) {
        bool behind = false;

        end = end_of_comm(is, i, after_count);
        err = say_missing(&is[i], end - i, out);
        if (err || is[i].ranks < 2 || !stands_still(was, before_count, &is[i], end - i))
            continue;
        err = say_behind(&is[i], end - i, out, &behind);
        behind_comms += behind;
        *still += !behind;
    }
    for (uint32_t i = first; behind_comms > 1 && i < out->count; i++)
        if (out->items[i].kind == CAIRN_HANG_COMPUTE)
            out->items[i].confidence /= 2;
    free(was);
    free(is);
    return err;
}

/* ---- dumps ---- */

static bool
is_inside(const struct cairn_op_count *dump)
{
    return dump->entered != CAIRN_PROGRESS_UNKNOWN &&
           (dump->completed == CAIRN_PROGRESS_UNKNOWN || dump->completed < dump->entered);
}

static bool
is_inside_any(const struct cairn_op_count *dumps, size_t count, uint32_t rank)
{
    for (size_t i = 0; i < count; i++)
        if (dumps[i].rank == rank && is_inside(&dumps[i]))
            return true;
    return false;
}

/* One group: who is behind and inside nothing joins *found; a group that is inside as a whole is
 * reported by itself. */
static cairn_err
look_at_group(const struct cairn_op_count *group, size_t group_count,
              const struct cairn_op_count *dumps, size_t count, struct cairn_verdict *found,
              struct cairn_verdicts *out)
{
    struct cairn_verdict *verdict;
    uint64_t most = 0;
    size_t inside = 0;
    cairn_err err = CAIRN_OK;

    for (size_t i = 0; i < group_count; i++)
        if (is_inside(&group[i])) {
            most = group[i].entered > most ? group[i].entered : most;
            inside++;
        }
    if (inside == 0)
        return CAIRN_OK;
    if (inside == group_count && group_count > 1 && group[0].entered == most) {
        bool equal = true;

        for (size_t i = 0; i < group_count; i++)
            equal &= group[i].entered == most;
        if (equal) {
            err = begin(out, CAIRN_HANG_LINK, sure_link, &verdict);
            for (size_t i = 0; !err && i < group_count; i++)
                err = cairn_list_add(&verdict->ranks, group[i].rank);
            if (!err) {
                settle(verdict);
                snprintf(verdict->evidence, sizeof verdict->evidence,
                         "all %zu ranks seen of group %s are inside operation %" PRIu64
                         ", which does not end",
                         group_count, group[0].comm, most);
            }
            return err;
        }
    }
    for (size_t i = 0; !err && i < group_count; i++)
        if (is_inside(&group[i]) && group[i].entered == most)
            err = cairn_list_add(&found->victims, group[i].rank);
        else if ((group[i].entered == CAIRN_PROGRESS_UNKNOWN || group[i].entered < most) &&
                 !is_inside_any(dumps, count, group[i].rank))
            err = cairn_list_add(&found->ranks, group[i].rank);
    return err;
}

cairn_err
cairn_stall_of_dumps(const struct cairn_op_count *dumps, size_t count, struct cairn_verdicts *out)
{
    struct cairn_op_count *all = sorted(dumps, count);
    struct cairn_verdict found = {.kind = CAIRN_HANG_COMPUTE}, *verdict;
    cairn_err err = all ? CAIRN_OK : CAIRN_NOMEM;

    for (size_t i = 0, end; !err && i < count; i = end) {
        end = end_of_comm(all, i, count);
        err = look_at_group(&all[i], end - i, all, count, &found, out);
    }
    if (!err && found.ranks.count > 0)
        err = begin(out, CAIRN_HANG_COMPUTE, sure_dump, &verdict);
    if (err || found.ranks.count == 0) {
        free(found.ranks.items);
        free(found.victims.items);
        free(all);
        return err;
    }
    cairn_list_take(&verdict->ranks, &found.ranks);
    cairn_list_take(&verdict->victims, &found.victims);
    settle(verdict);
    snprintf(verdict->evidence, sizeof verdict->evidence,
             "rank %" PRIu32 "%s inside no operation, and behind others that wait inside one",
             verdict->ranks.items[0], verdict->ranks.count > 1 ? " and others are" : " is");
    free(all);
    return CAIRN_OK;
}
