/* replan/profile/link_samples.c - where a channel's ranks are, how many bytes come into a device,
 * and what that takes. */
#include "replan/profile/link_samples.h"

#include "base/array.h"

#include <math.h>
#include <stdlib.h>

enum { GROUP_MIN = 4 }; /* transfers of one channel and size, for a sample */
#define NS_PER_MS 1e6
#define BYTES_MAX                                                                                  \
    0x1p62 /* that come into a device: a trace may say any, and each rank of a ring gives as many */
#define SIZE_SPREAD 1.25 /* sizes that near to each other are one */
#define SIZES_APART 2.0  /* the largest over the smallest, for latency to be told from bandwidth */
#define FIT_ERROR_MAX 0.25  /* beyond, they are not: the largest transfers say the bandwidth */
#define MAD_SIGMA 1.4826    /* a standard deviation over the median deviation */
#define MEDIAN_SIGMA 1.2533 /* a median's standard error over the mean's */
#define ERROR_MIN 0.01      /* of the logarithm of a time: no sample is known better */

static int
ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return a < b ? -1 : a > b;
}

static int
ascending_ids(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return a < b ? -1 : a > b;
}

static int
ascending_bytes(const void *left, const void *right)
{
    const struct cairn_transfer *a = left, *b = right;

    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

double
cairn_link_median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, ascending);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* ---- nodes ---- */

static cairn_err
find_nodes(struct cairn_link_samples *work)
{
    const struct cairn_problem *problem = work->problem;
    uint64_t *ids;

    work->node_of = malloc(work->topology->world * sizeof *work->node_of);
    work->node_ids = ids = calloc((size_t)problem->device_count + 1, sizeof *ids);
    work->ranks_on = calloc((size_t)problem->device_count + 1, sizeof *work->ranks_on);
    if (!work->node_of || !ids || !work->ranks_on)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < problem->device_count; i++)
        ids[i] = problem->devices[i].node;
    qsort(ids, problem->device_count, sizeof *ids, ascending_ids);
    for (uint32_t i = 0; i < problem->device_count; i++)
        if (i == 0 || ids[i] != ids[work->node_count - 1])
            ids[work->node_count++] = ids[i];
    for (uint32_t rank = 0; rank < work->topology->world; rank++) {
        uint32_t at = cairn_problem_device_find(problem, rank);
        const uint64_t *id = at < problem->device_count
                                 ? bsearch(&problem->devices[at].node, ids, work->node_count,
                                           sizeof *ids, ascending_ids)
                                 : NULL;

        work->node_of[rank] = id ? (uint32_t)(id - ids) : CAIRN_LINK_NODE_NONE;
    }
    return CAIRN_OK;
}

/* Where a channel's ranks are. */
struct place {
    uint32_t nodes[2]; /* ascending, where there are two */
    uint32_t node_count;
    uint32_t ranks_max; /* on one of them */
};

static struct place
place_of(struct cairn_link_samples *work, const uint32_t *ranks, uint32_t count)
{
    struct place place = {.nodes = {CAIRN_LINK_NODE_NONE, CAIRN_LINK_NODE_NONE}};

    for (uint32_t i = 0; i < count; i++) {
        uint32_t node = work->node_of[ranks[i]];

        if (node == CAIRN_LINK_NODE_NONE) { /* the problem does not know it */
            place.node_count = 0;
            break;
        }
        if (work->ranks_on[node]++ == 0 && place.node_count++ < 2)
            place.nodes[place.node_count - 1] = node;
        if (work->ranks_on[node] > place.ranks_max)
            place.ranks_max = work->ranks_on[node];
    }
    for (uint32_t i = 0; i < count; i++)
        if (work->node_of[ranks[i]] != CAIRN_LINK_NODE_NONE)
            work->ranks_on[work->node_of[ranks[i]]] = 0;
    if (place.node_count == 2 && place.nodes[0] > place.nodes[1]) {
        place.nodes[0] ^= place.nodes[1];
        place.nodes[1] ^= place.nodes[0];
        place.nodes[0] ^= place.nodes[1];
    }
    return place;
}

/* ---- samples ---- */

/* What comes into each device, over the bytes that a record says (cairn/timing.h); 0 where the
 * operation's way is not known. */
static double
part_in(uint8_t op, uint32_t ranks)
{
    switch (op) {
    case CAIRN_ALL_REDUCE:
        return 2.0 * (ranks - 1) / ranks;
    case CAIRN_ALL_GATHER:
        return ranks - 1.0;
    case CAIRN_REDUCE_SCATTER:
        return (ranks - 1.0) / ranks;
    case CAIRN_BROADCAST:
    case CAIRN_REDUCE:
    case CAIRN_SEND:
        return 1;
    default:
        return 0;
    }
}

static cairn_err
find_kind(struct cairn_link_samples *work, const struct cairn_transfer_channel *channel,
          bool crosses, uint32_t *out)
{
    uint32_t comm_kind = channel->comm == CAIRN_COMM_NONE
                             ? CAIRN_COMM_NONE
                             : work->topology->comms[channel->comm].kind;

    for (*out = 0; *out < work->kind_count; ++*out) {
        const struct cairn_link_kind *kind = &work->kinds[*out];

        if (kind->of.op == channel->op && kind->comm_kind == comm_kind && kind->crosses == crosses)
            return CAIRN_OK;
    }
    if (!cairn_array_grow(&work->kinds, work->kind_count, sizeof *work->kinds))
        return CAIRN_NOMEM;
    work->kinds[work->kind_count++] =
        (struct cairn_link_kind){.of = *channel, .comm_kind = comm_kind, .crosses = crosses};
    return CAIRN_OK;
}

/* Adds transfers[count], which are of about one size, times[count] being scratch. */
static cairn_err
add_sample(struct cairn_link_samples *work, struct cairn_link_group sample, double part,
           const struct cairn_transfer *transfers, double *times)
{
    struct cairn_link_kind *kind = &work->kinds[sample.kind];
    double bytes = 0;

    if (!cairn_array_grow(&work->samples, work->sample_count, sizeof *work->samples))
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < sample.count; i++)
        bytes += (double)transfers[i].bytes / sample.count;
    sample.bytes = fmin(bytes * part, BYTES_MAX);
    if (sample.bytes < 1)
        return CAIRN_OK;
    for (uint32_t i = 0; i < sample.count; i++)
        times[i] = (double)transfers[i].ns / NS_PER_MS * (bytes / (double)transfers[i].bytes);
    sample.ms = cairn_link_median(times, sample.count);
    for (uint32_t i = 0; i < sample.count; i++)
        times[i] = fabs(log(times[i] / sample.ms));
    sample.error = fmax(ERROR_MIN, MEDIAN_SIGMA * MAD_SIGMA *
                                       cairn_link_median(times, sample.count) / sqrt(sample.count));
    kind->bytes_max = fmax(kind->bytes_max, sample.bytes);
    work->samples[work->sample_count++] = sample;
    return CAIRN_OK;
}

static cairn_err
add_channel(struct cairn_link_samples *work, const struct cairn_transfer_channel *channel,
            struct cairn_transfer *transfers, uint32_t count)
{
    bool pair = channel->comm == CAIRN_COMM_NONE;
    const uint32_t *ranks = pair ? channel->ends : work->topology->comms[channel->comm].ranks;
    uint32_t rank_count = pair ? 2 : work->topology->comms[channel->comm].count;
    double part = part_in(channel->op, rank_count), times[CAIRN_TRANSFERS_KEPT];
    struct place place = place_of(work, ranks, rank_count);
    struct cairn_link_group sample = {.nodes = {CAIRN_LINK_NODE_NONE, CAIRN_LINK_NODE_NONE}};
    cairn_err err;

    if (!(part > 0) || place.node_count == 0 || count < GROUP_MIN)
        return CAIRN_OK;
    err = find_kind(work, channel, place.node_count > 1, &sample.kind);
    if (place.node_count > 1)
        part /= pair ? 1 : place.ranks_max;
    if (place.node_count == 2) {
        sample.nodes[0] = place.nodes[0];
        sample.nodes[1] = place.nodes[1];
    }
    qsort(transfers, count, sizeof *transfers, ascending_bytes);
    for (uint32_t first = 0, end; !err && first < count; first = end) {
        for (end = first + 1; end < count && (double)transfers[end].bytes <=
                                                 SIZE_SPREAD * (double)transfers[first].bytes;)
            end++;
        sample.count = end - first;
        if (sample.count >= GROUP_MIN)
            err = add_sample(work, sample, part, transfers + first, times);
    }
    return err;
}

/* ---- bandwidth ---- */

/* Latency and bandwidth of a kind, by its samples that are not slow. */
static cairn_err
fit_kind(struct cairn_link_samples *work, uint32_t index)
{
    struct cairn_link_kind *kind = &work->kinds[index];
    double least = INFINITY, most = 0;
    struct cairn_fault fault;
    struct cairn_fit fit;
    uint32_t count = 0, large = 0;
    cairn_err err = CAIRN_INVAL;

    kind->transfers = 0;
    kind->gbps = kind->latency_ms = 0;
    for (uint32_t i = 0; i < work->sample_count; i++) {
        const struct cairn_link_group *sample = &work->samples[i];

        if (sample->kind != index || sample->slow)
            continue;
        work->fitted[count++] = (struct cairn_link_sample){(uint64_t)sample->bytes, sample->ms};
        kind->transfers += sample->count;
        least = fmin(least, sample->bytes);
        most = fmax(most, sample->bytes);
    }
    if (count == 0)
        return CAIRN_OK;
    if (most >= SIZES_APART * least)
        err = cairn_fit_link(work->fitted, count, &kind->gbps, &kind->latency_ms, &fit, &fault);
    if (err == CAIRN_NOMEM || (!err && fit.error_rms <= FIT_ERROR_MAX))
        return err;
    for (uint32_t i = 0; i < count; i++)
        if ((double)work->fitted[i].bytes * SIZES_APART >= most)
            work->values[large++] =
                CAIRN_LINK_GBPS_OF * (double)work->fitted[i].bytes / work->fitted[i].ms;
    kind->gbps = cairn_link_median(work->values, large);
    kind->latency_ms = 0;
    return CAIRN_OK;
}

cairn_err
cairn_link_samples_fit(struct cairn_link_samples *work)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; !err && i < work->kind_count; i++)
        err = fit_kind(work, i);
    return err;
}

/* ---- the whole ---- */

static cairn_err
add_channels(struct cairn_link_samples *work, const struct cairn_transfers *transfers)
{
    struct cairn_transfer list[CAIRN_TRANSFERS_KEPT];
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; !err && i < cairn_transfers_channel_count(transfers); i++) {
        struct cairn_transfer_channel channel;
        uint32_t count = cairn_transfers_of(transfers, i, &channel, list);

        err = add_channel(work, &channel, list, count);
    }
    return err;
}

cairn_err
cairn_link_samples_make(struct cairn_link_samples *work, const struct cairn_problem *problem,
                        const struct cairn_topology *topology,
                        const struct cairn_transfers *transfers)
{
    cairn_err err;

    work->problem = problem;
    work->topology = topology;
    err = find_nodes(work);
    if (!err)
        err = add_channels(work, transfers);
    if (err)
        return err;
    work->values = calloc((size_t)work->sample_count + 1, sizeof *work->values);
    work->fitted = calloc((size_t)work->sample_count + 1, sizeof *work->fitted);
    return work->values && work->fitted ? CAIRN_OK : CAIRN_NOMEM;
}

void
cairn_link_samples_fini(struct cairn_link_samples *work)
{
    free(work->node_of);
    free(work->node_ids);
    free(work->ranks_on);
    free(work->samples);
    free(work->kinds);
    free(work->values);
    free(work->fitted);
    *work = (struct cairn_link_samples){0};
}
