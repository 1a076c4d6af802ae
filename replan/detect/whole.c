/*
 * replan/detect/whole.c - slow nodes that are whole pipelines.
 *
 * Where the ranks of a pipeline vary together (sequence lengths that nobody reported), what they
 * have in common is taken out of their deviations (normal.c), and with it a node that all of a
 * pipeline runs on. So that is watched by itself: for each node that holds nothing but whole
 * pipelines, the mean of what they have in common, over the median of all pipelines. Sequences
 * differ in every step; what lasts is the node. A few may be very long, and the first steps may
 * have none of those: what steps as late as other nodes' could look like by chance has to go on.
 */
#include "replan/detect/detector.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Thresholds of a slow whole node: the same as a rank's (slow.c). */
static const double score_min = 7, size_min = 0.063; /* standard errors; ln(1.065) */
enum { STEPS_MIN = 4 };
/* The chance that long sequences meet on a node must stay below this, in the whole job. */
static const double chance_max = 1e-3;

static const double sigma_floor = 0.01;
static const double spread = 0.01; /* of healthy nodes of one kind */
enum { OVER_STEPS = 12, PIPELINES_MIN = 3, BASE_VALUES_MAX = 256 };

bool
cairn_detect_any_whole_slow(const struct cairn_detector *detector)
{
    for (uint32_t node = 0; detector->wholes && node < detector->topology->node_count; node++)
        if (detector->wholes[node].verdict != UINT32_MAX)
            return true;
    return false;
}

static const uint32_t *
ranks_of(const struct cairn_topology *topology, uint32_t pipeline, uint32_t *count)
{
    *count = topology->pipeline_begin[pipeline + 1] - topology->pipeline_begin[pipeline];
    return topology->ranks_of_pipeline + topology->pipeline_begin[pipeline];
}

/* Counts the pipelines of each node that none of whose ranks shares a pipeline with another
 * node. */
static void
find_wholes(struct cairn_detector *detector)
{
    const struct cairn_topology *topology = detector->topology;
    uint32_t count;

    for (uint32_t i = 0; i < topology->pipeline_count; i++) {
        uint32_t node = topology->node[*ranks_of(topology, i, &count)];

        if (node != CAIRN_NODE_UNKNOWN)
            detector->wholes[node].pipelines++;
    }
    for (uint32_t i = 0; i < topology->pipeline_count; i++) {
        const uint32_t *ranks = ranks_of(topology, i, &count);
        bool one_node = true;

        for (uint32_t k = 1; k < count; k++)
            one_node = one_node && topology->node[ranks[k]] == topology->node[ranks[0]];
        for (uint32_t k = 0; !one_node && k < count; k++)
            if (topology->node[ranks[k]] != CAIRN_NODE_UNKNOWN)
                detector->wholes[topology->node[ranks[k]]].pipelines = 0;
    }
}

/* Puts into each whole node's sum its detector->pipeline_common. */
static void
sum_pipelines(struct cairn_detector *detector)
{
    const struct cairn_topology *topology = detector->topology;
    uint32_t count;
    double middle;

    for (uint32_t i = 0; i < topology->pipeline_count; i++)
        detector->scratch[i] = (float)detector->pipeline_common[i];
    middle = (double)cairn_quantile(detector->scratch, topology->pipeline_count, 0.5);
    for (uint32_t node = 0; node < topology->node_count; node++)
        detector->wholes[node].sum = 0;
    for (uint32_t i = 0; i < topology->pipeline_count; i++) {
        uint32_t node = topology->node[*ranks_of(topology, i, &count)];

        if (node != CAIRN_NODE_UNKNOWN)
            detector->wholes[node].sum += detector->pipeline_common[i] - middle;
    }
}

/* The noise of whole nodes in the first steps; 0 where there are none. CAIRN_NOMEM. */
static cairn_err
find_noise(struct cairn_detector *detector)
{
    const struct cairn_topology *topology = detector->topology;
    float *all = malloc(((size_t)topology->node_count * CAIRN_CALIBRATE_STEPS + 1) * sizeof *all);
    uint32_t count = 0;

    if (!all)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < detector->calibrate_count; i++) {
        cairn_detect_first_values(detector, i, true, detector->sigma, false);
        sum_pipelines(detector);
        for (uint32_t node = 0; node < topology->node_count; node++)
            if (detector->wholes[node].pipelines > 0)
                all[count++] =
                    fabsf((float)(detector->wholes[node].sum / detector->wholes[node].pipelines));
    }
    if (count > 0)
        detector->whole_sigma = fmax(
            1.6 * (1 + 1 / sqrt(count)) * (double)cairn_quantile(all, count, 0.5), sigma_floor);
    free(all);
    return CAIRN_OK;
}

/*
 * detector->pipeline_common is that of the ranks' normals. A node that is above or below the others
 * by no more than chance is taken to be like them, which is known much better than its own few
 * first steps; one that differs by more (longer sequences by plan, another kind of device) keeps
 * its own.
 */
cairn_err
cairn_detect_wholes_learn(struct cairn_detector *detector)
{
    const struct cairn_topology *topology = detector->topology;
    double own_values = CAIRN_CALIBRATE_STEPS / 1.57 /* a median's efficiency */, chance;
    cairn_err err;

    if (topology->pipeline_count < PIPELINES_MIN || topology->node_count == 0)
        return CAIRN_OK;
    detector->wholes = calloc(topology->node_count, sizeof *detector->wholes);
    if (!detector->wholes)
        return CAIRN_NOMEM;
    find_wholes(detector);
    sum_pipelines(detector);
    for (uint32_t node = 0; node < topology->node_count; node++) {
        struct cairn_whole_node *whole = &detector->wholes[node];

        whole->verdict = UINT32_MAX;
        whole->base = whole->pipelines > 0 ? -whole->sum / whole->pipelines : 0;
    }
    err = find_noise(detector);
    chance = detector->whole_sigma / sqrt(own_values);
    for (uint32_t node = 0; node < topology->node_count; node++) {
        struct cairn_whole_node *whole = &detector->wholes[node];
        bool alike = fabs(whole->base) <= 3 * chance;
        double values = detector->whole_sigma * detector->whole_sigma / (spread * spread);

        whole->base_values = alike ? fmin(fmax(values, own_values), BASE_VALUES_MAX) : own_values;
        whole->base = alike ? whole->base : 0;
    }
    return err;
}

/* How many of the values from `skip` to `end` back are above the base by more than half of a
 * size. */
static uint32_t
count_late(const struct cairn_whole_node *whole, uint32_t skip, uint32_t end, double size)
{
    uint32_t late = 0;

    for (uint32_t back = skip; back < end; back++)
        late += cairn_shift_value(&whole->shift, back) - whole->base > size / 2;
    return late;
}

/* A shift is compared with how often nodes are as late while nothing lasts, as
 * cairn_detect_may_be_pauses does with pauses. */
static bool
may_be_lengths(const struct cairn_detector *detector, uint32_t node,
               const struct cairn_shift_found *found)
{
    uint32_t late = count_late(&detector->wholes[node], 0, found->steps, found->size), values = 0,
             others = 0, nodes = 0;
    double chance;

    for (uint32_t i = 0; i < detector->topology->node_count; i++) {
        const struct cairn_whole_node *whole = &detector->wholes[i];
        uint32_t skip = i == node ? found->steps : 0;

        if (whole->pipelines == 0)
            continue;
        nodes++;
        if (whole->verdict != UINT32_MAX || whole->shift.used <= skip)
            continue;
        values += whole->shift.used - skip;
        others += count_late(whole, skip, whole->shift.used, found->size);
    }
    if (others == 0)
        return false;
    chance = log((double)nodes * detector->watched_steps) + late * log((double)others / values) +
             lgamma(found->steps + 1.0) - lgamma(late + 1.0) - lgamma(found->steps - late + 1.0);
    return chance > log(chance_max);
}

/* Lengths that stay what they are for many steps look like a slow node until they have gone: so
 * what nodes have wandered by before counts. */
static bool
is_no_wandering(const struct cairn_detector *detector, uint32_t node,
                const struct cairn_shift_limits *limits, struct cairn_shift_found *found)
{
    double reach = cairn_shift_reach(limits), mean;
    struct cairn_history history;

    cairn_history_start(&history, reach, CAIRN_HISTORY_NODES);
    for (uint32_t i = 0; i < detector->topology->node_count; i++)
        if (detector->wholes[i].pipelines > 0 && detector->wholes[i].verdict == UINT32_MAX)
            cairn_history_add(&history, &detector->wholes[i].shift, detector->wholes[i].base,
                              i == node ? found->since_step : UINT32_MAX);
    mean = cairn_shift_mean(&detector->wholes[node].shift, found->base, reach, found->steps);
    if (cairn_history_kept(&history) > 0)
        found->score =
            fmin(found->score,
                 fmax(CAIRN_HISTORY_GAIN * cairn_history_score(&history, mean, found->steps),
                      cairn_history_wander_score(&history, found->size, found->steps)));
    return found->score >= limits->score_min;
}

static cairn_err
say(struct cairn_detector *detector, uint32_t node, const struct cairn_shift_found *found)
{
    const struct cairn_topology *topology = detector->topology;
    struct cairn_whole_node *whole = &detector->wholes[node];
    struct cairn_verdict *verdict;
    uint32_t index;
    cairn_err err = cairn_verdicts_add(&detector->verdicts, CAIRN_SLOW_NODE, &index);

    if (err)
        return err;
    verdict = &detector->verdicts.items[index];
    verdict->since_step = found->since_step;
    verdict->detected_step = detector->now.step;
    verdict->rate = exp(found->size);
    verdict->confidence = 1 - exp(-found->score / 2);
    whole->verdict = index;
    whole->slow_steps = found->steps;
    err = cairn_list_add(&verdict->nodes, node);
    for (uint32_t rank = 0; !err && rank < topology->world; rank++)
        if (topology->node[rank] == node && detector->seen[rank])
            err = cairn_list_add(&verdict->ranks, rank);
    snprintf(
        verdict->evidence, sizeof verdict->evidence,
        "all %u ranks of node %u, which are %u whole pipeline%s, compute %.2f times as long as is "
        "normal beside the other pipelines, and that lasts while the sequences change",
        verdict->ranks.count, node, whole->pipelines, whole->pipelines == 1 ? "" : "s",
        verdict->rate);
    return err;
}

/* Follows an open verdict: its rate, and whether it is over. */
static void
follow(struct cairn_detector *detector, struct cairn_whole_node *whole)
{
    struct cairn_verdict *verdict = &detector->verdicts.items[whole->verdict];
    uint32_t steps = ++whole->slow_steps < OVER_STEPS ? whole->slow_steps : OVER_STEPS;

    if (cairn_shift_recent(&whole->shift, steps) - whole->base >= log(verdict->rate) / 2) {
        verdict->rate = exp(cairn_shift_median(&whole->shift, whole->slow_steps) - whole->base);
        return;
    }
    /* about half of these are quiet */
    verdict->until_step = cairn_shift_step(&whole->shift, steps / 2);
    whole->verdict = UINT32_MAX;
    cairn_shift_clear(&whole->shift);
}

cairn_err
cairn_detect_wholes(struct cairn_detector *detector)
{
    cairn_err err = CAIRN_OK;

    if (!detector->wholes || detector->whole_sigma <= 0)
        return CAIRN_OK;
    sum_pipelines(detector);
    for (uint32_t node = 0; !err && node < detector->topology->node_count; node++) {
        struct cairn_whole_node *whole = &detector->wholes[node];
        struct cairn_shift_limits limits = {.sigma = detector->whole_sigma,
                                            .base = whole->base,
                                            .base_values = whole->base_values,
                                            .first_values = CAIRN_CALIBRATE_STEPS,
                                            .score_min = score_min,
                                            .size_min = size_min,
                                            .steps_min = STEPS_MIN};
        struct cairn_shift_found found;

        if (whole->pipelines == 0)
            continue;
        cairn_shift_push(&whole->shift, detector->now.step, whole->sum / whole->pipelines);
        if (whole->verdict != UINT32_MAX)
            follow(detector, whole);
        else if (cairn_shift_find(&whole->shift, &limits, &found) &&
                 !may_be_lengths(detector, node, &found) &&
                 is_no_wandering(detector, node, &limits, &found))
            err = say(detector, node, &found);
    }
    return err;
}
