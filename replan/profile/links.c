/* replan/profile/links.c - pairs of nodes that are slower than the others, then one bandwidth for
 * the rest. */
#include "replan/profile/links.h"
#include "base/array.h"

#include "replan/profile/link_samples.h"

#include <math.h>
#include <stdlib.h>

enum {
    TRANSFERS_MIN = 8, /* of a kind, for a bandwidth */
    PAIRS_MIN = 3      /* of nodes, for some to be slower than the others */
};
#define GBPS_MIN 1e-6 /* what a problem's file may say */
#define GBPS_MAX 1e9
#define AT_ODDS 1.5         /* between two operations that carry the same over the same links */
#define SLOW_MIN 0.26236    /* ln(1.3) */
#define SLOW_ERRORS 5.0     /* standard errors */
#define TYPICAL_SHARE 0.35  /* of the pairs of nodes: a slow NIC may be in more than half of them */
#define MEDIAN_SIGMA 1.2533 /* a median's standard error over the mean's */

/* A pair of nodes as the channels of one kind see it. */
struct node_pair {
    uint32_t nodes[2], kind;
    double excess, error; /* of the logarithm of the time, over what its bytes take */
    double over;          /* the excess over most other pairs' */
    double bytes_max;     /* of the kind */
    bool slow;
};

struct work {
    struct cairn_link_samples samples;
    struct node_pair *pairs;
    uint32_t pair_count;
    double *values; /* [sample_count + 1] */
};

/* ---- slow pairs of nodes ---- */

static int
ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return a < b ? -1 : a > b;
}

/* Samples by kind and nodes. */
static int
by_kind(const void *left, const void *right)
{
    const struct cairn_link_group *a = left, *b = right;

    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    if (a->nodes[0] != b->nodes[0])
        return a->nodes[0] < b->nodes[0] ? -1 : 1;
    return a->nodes[1] < b->nodes[1] ? -1 : a->nodes[1] > b->nodes[1];
}

/* Pairs by nodes, first what the largest transfers say. */
static int
by_nodes(const void *left, const void *right)
{
    const struct node_pair *a = left, *b = right;

    if (a->nodes[0] != b->nodes[0])
        return a->nodes[0] < b->nodes[0] ? -1 : 1;
    if (a->nodes[1] != b->nodes[1])
        return a->nodes[1] < b->nodes[1] ? -1 : 1;
    return a->bytes_max > b->bytes_max ? -1 : a->bytes_max < b->bytes_max;
}

static bool
same_nodes(const uint32_t *left, const uint32_t *right)
{
    return left[0] == right[0] && left[1] == right[1];
}

/* The pairs of nodes that channels of a kind tell of: samples[count], sorted by their nodes. */
static void
list_pairs(struct work *work, const struct cairn_link_group *samples, uint32_t count)
{
    const struct cairn_link_kind *kind = &work->samples.kinds[samples->kind];

    for (uint32_t first = 0, end; first < count; first = end) {
        struct node_pair *pair = &work->pairs[work->pair_count];
        double weight = 0;

        for (end = first; end < count && same_nodes(samples[end].nodes, samples[first].nodes);
             end++) {
            double expected_ms =
                kind->latency_ms + CAIRN_LINK_GBPS_OF * samples[end].bytes / kind->gbps;

            work->values[end - first] = log(samples[end].ms / expected_ms);
            weight += 1 / (samples[end].error * samples[end].error);
        }
        if (samples[first].nodes[0] == CAIRN_LINK_NODE_NONE)
            continue;
        *pair = (struct node_pair){.nodes = {samples[first].nodes[0], samples[first].nodes[1]},
                                   .kind = samples->kind,
                                   .excess = cairn_link_median(work->values, end - first),
                                   .error = (end - first > 2 ? MEDIAN_SIGMA : 1) / sqrt(weight),
                                   .bytes_max = kind->bytes_max};
        work->pair_count++;
    }
}

/* Compares the pairs of nodes of each kind, and leaves one of each pair, as the kind with the
 * largest transfers sees it. */
static void
find_slow(struct work *work)
{
    uint32_t begin, left = 0;

    if (work->samples.sample_count == 0)
        return;
    qsort(work->samples.samples, work->samples.sample_count, sizeof *work->samples.samples,
          by_kind);
    for (uint32_t first = 0, end; first < work->samples.sample_count; first = end) {
        double typical;

        for (end = first; end < work->samples.sample_count &&
                          work->samples.samples[end].kind == work->samples.samples[first].kind;)
            end++;
        if (!work->samples.kinds[work->samples.samples[first].kind].crosses)
            continue;
        begin = work->pair_count;
        list_pairs(work, work->samples.samples + first, end - first);
        if (work->pair_count - begin < PAIRS_MIN) {
            work->pair_count = begin;
            continue;
        }
        for (uint32_t i = begin; i < work->pair_count; i++)
            work->values[i - begin] = work->pairs[i].excess;
        qsort(work->values, work->pair_count - begin, sizeof *work->values, ascending);
        typical = work->values[(uint32_t)(TYPICAL_SHARE * (work->pair_count - begin - 1))];
        for (uint32_t i = begin; i < work->pair_count; i++) {
            work->pairs[i].over = work->pairs[i].excess - typical;
            work->pairs[i].slow =
                work->pairs[i].over > fmax(SLOW_MIN, SLOW_ERRORS * work->pairs[i].error);
        }
    }
    qsort(work->pairs, work->pair_count, sizeof *work->pairs, by_nodes);
    for (uint32_t i = 0; i < work->pair_count; i++)
        if (left == 0 || !same_nodes(work->pairs[i].nodes, work->pairs[left - 1].nodes))
            work->pairs[left++] = work->pairs[i];
    work->pair_count = left;
}

static const struct node_pair *
pair_of(const struct work *work, const uint32_t *nodes)
{
    const struct node_pair wanted = {.nodes = {nodes[0], nodes[1]}, .bytes_max = INFINITY};
    uint32_t low = 0, high = work->pair_count;

    CAIRN_BISECT(low, high, middle, by_nodes(&work->pairs[middle], &wanted) < 0);
    return low < work->pair_count && same_nodes(work->pairs[low].nodes, nodes) ? &work->pairs[low]
                                                                               : NULL;
}

/* Samples of slow pairs say nothing of the others' bandwidth. */
static void
mark_slow(struct work *work)
{
    for (uint32_t i = 0; i < work->samples.sample_count; i++) {
        struct cairn_link_group *sample = &work->samples.samples[i];
        const struct node_pair *pair =
            sample->nodes[0] == CAIRN_LINK_NODE_NONE ? NULL : pair_of(work, sample->nodes);

        sample->slow = pair && pair->slow;
    }
}

/* ---- into the problem ---- */

/* Whether a kind is usable, as far as itself tells. */
static bool
is_known(const struct cairn_link_kind *kind)
{
    return kind->transfers >= TRANSFERS_MIN && kind->gbps >= GBPS_MIN && kind->gbps <= GBPS_MAX;
}

/* Writing the bytes of the whole buffer instead of one rank's makes a ring of n ranks n times as
 * fast in all_gather. In reduce_scatter both are the same. */
static bool
is_at_odds(const struct work *work, const struct cairn_link_kind *kind)
{
    uint8_t other = kind->of.op == CAIRN_ALL_GATHER ? CAIRN_REDUCE_SCATTER : CAIRN_ALL_GATHER;

    if (kind->of.op != CAIRN_ALL_GATHER && kind->of.op != CAIRN_REDUCE_SCATTER)
        return false;
    for (uint32_t i = 0; i < work->samples.kind_count; i++) {
        const struct cairn_link_kind *twin = &work->samples.kinds[i];

        if (twin->of.op == other && twin->comm_kind == kind->comm_kind &&
            twin->crosses == kind->crosses && is_known(twin))
            return fmax(twin->gbps / kind->gbps, kind->gbps / twin->gbps) > AT_ODDS;
    }
    return false;
}

static void
tell_scope(const struct work *work, int scope, struct cairn_profiled_link *link)
{
    const struct cairn_link_kind *best = NULL;

    for (uint32_t i = 0; i < work->samples.kind_count; i++) {
        const struct cairn_link_kind *kind = &work->samples.kinds[i];

        if (kind->crosses != (scope == CAIRN_LINK_INTER) || !is_known(kind))
            continue;
        if (is_at_odds(work, kind))
            link->at_odds = true;
        else if (!best || kind->bytes_max > best->bytes_max)
            best = kind;
    }
    if (!best)
        return;
    link->told = true;
    link->op = best->of.op;
    link->gbps = best->gbps;
    link->latency_ms = best->latency_ms;
    link->transfers = best->transfers;
}

static void
add_link(struct cairn_slow_link *links, uint32_t *count, const struct cairn_slow_link *link,
         uint32_t *counted, uint32_t *passed)
{
    if (*count == CAIRN_PROBLEM_SLOW_LINKS_MAX) {
        ++*passed;
        return;
    }
    links[(*count)++] = *link;
    ++*counted;
}

/* What was compared is as it was found; what the problem says of other pairs stays. How slow a slow
 * pair is is known by factor alone: without a bandwidth between nodes it is not put into numbers,
 * which would be made up. */
static void
list_slow(const struct work *work, double inter_gbps, struct cairn_slow_link *links,
          uint32_t *count, struct cairn_profiled_links *out)
{
    const struct cairn_problem *problem = work->samples.problem;
    const uint64_t *ids = work->samples.node_ids;

    for (uint32_t i = 0; i < work->pair_count; i++) {
        const struct node_pair *pair = &work->pairs[i];
        struct cairn_slow_link link = {{ids[pair->nodes[0]], ids[pair->nodes[1]]},
                                       fmax(GBPS_MIN, inter_gbps * exp(-pair->over))};

        if (pair->slow && !(inter_gbps > 0))
            out->unknown_links++;
        else if (pair->slow)
            add_link(links, count, &link, &out->slow_links, &out->passed_links);
    }
    for (uint32_t i = 0; i < problem->slow_link_count; i++) {
        const struct cairn_slow_link *link = &problem->slow_links[i];
        bool compared = false;

        for (uint32_t k = 0; k < work->pair_count && !compared; k++) {
            uint64_t low = ids[work->pairs[k].nodes[0]], high = ids[work->pairs[k].nodes[1]];

            if (work->pairs[k].slow && !(inter_gbps > 0))
                continue;
            compared = (link->nodes[0] == low && link->nodes[1] == high) ||
                       (link->nodes[0] == high && link->nodes[1] == low);
        }
        if (!compared)
            add_link(links, count, link, &out->kept_links, &out->passed_links);
    }
}

/* links[CAIRN_PROBLEM_SLOW_LINKS_MAX] become the problem's. */
static void
set_links(struct cairn_problem *problem, const struct work *work, struct cairn_slow_link *links,
          struct cairn_profiled_links *out)
{
    const struct cairn_profiled_link *intra = &out->scopes[CAIRN_LINK_INTRA],
                                     *inter = &out->scopes[CAIRN_LINK_INTER];
    double intra_gbps = intra->told ? intra->gbps : problem->intra_gbps;
    double inter_gbps = inter->told ? inter->gbps : problem->inter_gbps;
    uint32_t count = 0;

    list_slow(work, inter_gbps, links, &count, out);
    free(problem->slow_links);
    problem->slow_links = links;
    problem->slow_link_count = count;
    out->node_pairs = work->pair_count;
    out->unpaired = (intra_gbps > 0) != (inter_gbps > 0);
    if (out->unpaired)
        return; /* the file says both or neither */
    problem->intra_gbps = intra_gbps;
    problem->inter_gbps = inter_gbps;
}

cairn_err
cairn_profile_links(struct cairn_problem *problem, const struct cairn_topology *topology,
                    const struct cairn_transfers *transfers, struct cairn_profiled_links *out)
{
    struct cairn_slow_link *links = calloc(CAIRN_PROBLEM_SLOW_LINKS_MAX, sizeof *links);
    struct cairn_profiled_links profiled = {.node_pairs = 0};
    struct work work = {.pair_count = 0};
    cairn_err err =
        links ? cairn_link_samples_make(&work.samples, problem, topology, transfers) : CAIRN_NOMEM;

    if (!err) {
        work.pairs = calloc((size_t)work.samples.sample_count + 1, sizeof *work.pairs);
        work.values = calloc((size_t)work.samples.sample_count + 1, sizeof *work.values);
        err = work.pairs && work.values ? cairn_link_samples_fit(&work.samples) : CAIRN_NOMEM;
    }
    if (!err) {
        find_slow(&work);
        mark_slow(&work);
        err = cairn_link_samples_fit(&work.samples);
    }
    for (int scope = 0; !err && scope < CAIRN_LINK_SCOPES; scope++)
        tell_scope(&work, scope, &profiled.scopes[scope]);
    if (!err) {
        set_links(problem, &work, links, &profiled);
        links = NULL;
        *out = profiled;
    }
    cairn_link_samples_fini(&work.samples);
    free(work.pairs);
    free(work.values);
    free(links);
    return err;
}
