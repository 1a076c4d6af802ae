/*
 * replan/detect/normal.c - what is normal: for each rank, from the first steps and its peers, and
 * for all of them in one step.
 *
 * What ranks have in common is a low quantile and not the median, so that it stays normal while a
 * whole node of two is slow; for normal noise that quantile lies common_bias sigmas below the mean.
 */
#include "replan/detect/detector.h"

#include <math.h>
#include <string.h>

static const double common_share = 0.35, common_bias = 0.385;
static const double pair_bias = 0.564;  /* sigmas by which the smaller of two values lies below
                                         * their mean */
static const double pair_spread = 1.43; /* sigmas in what is seen of them: half of the values over
                                         * the smaller one are 0 */
/* what is common of few is one of their values, or nearly: of k ranks that vary for themselves the
 * middle of the deviations is narrower by 1 + 0.6 / k than their standard deviation, which is 1 -
 * 0.3 / k */
static const double few_spread = 0.6, few_deviation = 0.3;
static const double sigma_floor = 0.005;
static const double first_steps_gain = 1.08;
static const double sends_gain = 0.95;      /* of the noise at most is left where sends are read
                                        * rightly … */
static const double sends_jumps_gain = 0.8; /* … and of what single gaps vary by */
static const double short_sigmas = 2.5;   /* a rank that looks quicker by more was in operations */
static const double pipeline_gain = 0.8;  /* of the noise at most is left where what pipelines vary
                                           * by is taken out … */
static const double pair_gain = 0.6;      /* … of pairs, of whose noise less is known */
static const double spread_floor = 0.006; /* of healthy devices of one kind */
static const double hidden_gain =
    1.5; /* where intervals between starts vary by more than this times
                                        * what gaps do, operations hide none */
static const double excess_min = 0.06; /* over the peers, from the first step on */
static const double pause_min = 0.15;  /* of all ranks, a logarithm */
static const double pause_rest = 0.1;  /* of a rank's computation at least is left */
enum {
    STEPS_MIN = 4,
    PEERS_MIN = 3,
    HIDDEN_STEPS_MAX = 4,
    PIPELINE_RANKS_MIN = 4 /* else they are pairs, or nearly so */
};

/* True where pipelines have so few ranks that what is common of one can only be the smaller of two
 * values. */
static bool
are_pairs(const struct cairn_topology *topology)
{
    return topology->pipeline_count * PIPELINE_RANKS_MIN > topology->world;
}

static double
ranks_of_pipeline(const struct cairn_topology *topology)
{
    return (double)topology->world / topology->pipeline_count;
}

/* The share of the noise that may be left at most where what pipelines have in common is taken
 * out. */
static double
gain_of(const struct cairn_topology *topology)
{
    return are_pairs(topology) ? pair_gain
                               : pipeline_gain * (1 - few_deviation / ranks_of_pipeline(topology));
}

/* The quantile of value[] over ranks[count] that have one; NaN for too few. */
static double
common_of(struct cairn_detector *detector, const double *value, const uint32_t *ranks,
          uint32_t count, double sigma, bool by_pipeline)
{
    uint32_t known = 0;

    for (uint32_t i = 0; i < count; i++)
        if (!isnan(value[ranks[i]]))
            detector->scratch[known++] = (float)value[ranks[i]];
    if (by_pipeline && known == 2)
        return (double)fminf(detector->scratch[0], detector->scratch[1]) + pair_bias * sigma;
    if (known < PEERS_MIN)
        return (double)NAN;
    return (double)cairn_quantile(detector->scratch, known, common_share) + common_bias * sigma;
}

void
cairn_detect_remove_common(struct cairn_detector *detector, double *value, bool by_pipeline,
                           double sigma)
{
    const struct cairn_topology *topology = detector->topology;
    uint32_t groups = by_pipeline ? topology->pipeline_count : 1;

    for (uint32_t group = 0; group < groups; group++) {
        uint32_t begin = by_pipeline ? topology->pipeline_begin[group] : 0;
        uint32_t end = by_pipeline ? topology->pipeline_begin[group + 1] : topology->world;
        const uint32_t *ranks = topology->ranks_of_pipeline + begin;
        double common = common_of(detector, value, ranks, end - begin, sigma, by_pipeline);

        for (uint32_t i = 0; i < end - begin && (by_pipeline || !isnan(common)); i++)
            value[ranks[i]] -= common; /* of a pipeline without others to compare with nothing is
                                        * known */
        if (by_pipeline)
            detector->pipeline_common[group] = isnan(common) ? 0 : common;
    }
}

/* ---- calibration: the first steps ---- */

/* Of the values that the first steps have kept in a block (CAIRN_KEPT_*). */
static double
median_of_first(const struct cairn_detector *detector, uint32_t block, uint32_t rank)
{
    float values[CAIRN_CALIBRATE_STEPS];
    uint32_t count = 0;

    for (uint32_t i = 0; i < detector->calibrate_count; i++) {
        float value = *cairn_detect_kept(detector, block, i, rank);

        if (!isnan(value))
            values[count++] = value;
    }
    return count >= STEPS_MIN ? (double)cairn_quantile(values, count, 0.5) : (double)NAN;
}

float *
cairn_detect_kept(const struct cairn_detector *detector, uint32_t block, uint32_t index,
                  uint32_t rank)
{
    return detector->calibrate +
           ((size_t)block * CAIRN_CALIBRATE_STEPS + index) * detector->topology->world + rank;
}

/*
 * Where operations go on behind computation, a rank that is long in one computes meanwhile, and the
 * gaps that are left are shorter than its computation. What its operations take longer than normal
 * may have been computation: only what is short beyond that is. Otherwise all who wait for a slow
 * rank would look quick, and those beside them slow. No operation hides the gap before the first
 * one of a step, so that alone tells the rank's speed then; it counts for less if it is noisier.
 * Without one, if that lasts, nothing is known of the rank: else it would look slow as soon as it
 * waits no longer. What most ranks of a pipeline are below normal is their data (`common`, 0 at
 * most): it says nothing of a single rank.
 */
static double
restore_hidden(struct cairn_detector *detector, uint32_t rank, double value, double common)
{
    struct cairn_rank_state *state = &detector->ranks[rank];
    double quick = common - short_sigmas * state->sigma;
    double work = detector->now.work[rank] > 0 ? detector->now.work[rank] : 1;
    double first = log(detector->now.first_ns[rank] / work) - state->normal_first;
    double first_more = exp(state->normal_first - state->normal) * (exp(first) - 1), rest = value;
    double hidden = (detector->now.operations_ns[rank] - state->normal_operations_ns) /
                    (exp(state->normal) * work);

    if (!isnan(first_more))
        rest = log(exp(value) - first_more);
    state->by_first =
        !isnan(first) && (detector->now.is_hidden[rank] || (rest < quick && hidden > 0));
    if (!(rest < quick) || !(hidden > 0) || state->by_first) {
        state->hidden_steps = 0;
        return state->by_first ? first * fmin(1, detector->sigma / detector->first_sigma) : value;
    }
    state->hidden_steps++;
    return fmin(log(exp(value) + hidden), quick);
}

/* Replaces value[world] by what operations leave to be told (restore_hidden). Where pipelines vary
 * each by itself, the quantile beyond the middle is reached by those whose computation shows. */
static void
restore_all_hidden(struct cairn_detector *detector, double *value, bool by_pipeline)
{
    const struct cairn_topology *topology = detector->topology;

    for (uint32_t group = 0; group < topology->pipeline_count; group++) {
        uint32_t begin = topology->pipeline_begin[group], end = topology->pipeline_begin[group + 1];
        const uint32_t *ranks = topology->ranks_of_pipeline;
        uint32_t known = 0;
        double common = 0;

        for (uint32_t i = begin; by_pipeline && i < end; i++)
            if (!isnan(value[ranks[i]]))
                detector->scratch[known++] = (float)value[ranks[i]];
        if (known > 0)
            common = fmin((double)cairn_quantile(detector->scratch, known, 1 - common_share), 0);
        for (uint32_t i = begin; i < end; i++)
            value[ranks[i]] = restore_hidden(detector, ranks[i], value[ranks[i]], common);
    }
}

/*
 * A pause of all ranks (a checkpoint) adds the same time to each and not the same factor: those
 * that compute little would look late beside those that compute much. In a step that takes all of
 * them much longer, a rank is late only by both readings. early[world]: before what is common was
 * taken out.
 */
static void
compare_pause(struct cairn_detector *detector, double *value, const double *early)
{
    uint32_t world = detector->topology->world, known = 0;
    double extra;

    for (uint32_t rank = 0; rank < world; rank++)
        if (!isnan(early[rank]))
            detector->scratch[known++] = (float)early[rank];
    if (known < PEERS_MIN || (double)cairn_quantile(detector->scratch, known, 0.5) < pause_min)
        return;
    known = 0;
    for (uint32_t rank = 0; rank < world; rank++)
        if (!isnan(early[rank]))
            detector->scratch[known++] =
                (float)(exp(detector->ranks[rank].normal) * (exp(early[rank]) - 1));
    extra = (double)cairn_quantile(detector->scratch, known, common_share);
    for (uint32_t rank = 0; rank < world; rank++) {
        double share = extra / exp(detector->ranks[rank].normal);

        if (!isnan(early[rank]))
            value[rank] = fmin(value[rank], log(fmax(exp(early[rank]) - share, pause_rest)));
    }
}

void
cairn_detect_deviations(struct cairn_detector *detector, bool by_pipeline, double sigma,
                        bool operations_known)
{
    uint32_t world = detector->topology->world;
    double *value = detector->value, *other = detector->value_aside, *early = detector->early;
    bool by_reading = detector->sends_unsure && by_pipeline;

    for (uint32_t rank = 0; rank < world; rank++) {
        value[rank] -= detector->ranks[rank].normal;
        other[rank] -= detector->ranks[rank].normal_aside;
        /* NaN of the other is passed over */
        if (detector->sends_unsure && !by_reading && !isnan(value[rank]))
            value[rank] = fmin(value[rank], other[rank]);
    }
    if (operations_known)
        restore_all_hidden(detector, value, by_pipeline);
    memcpy(early, value, world * sizeof *early);
    /* ranks whose wrong reading is low would make the others of their pipeline late; what this one
     * finds common of pipelines is replaced by what the other one does */
    if (by_reading)
        cairn_detect_remove_common(detector, other, by_pipeline, sigma);
    cairn_detect_remove_common(detector, value, by_pipeline, sigma);
    compare_pause(detector, value, early);
    for (uint32_t rank = 0; rank < world; rank++) {
        if (operations_known && detector->ranks[rank].hidden_steps > HIDDEN_STEPS_MAX &&
            detector->ranks[rank].verdict == UINT32_MAX)
            value[rank] = (double)NAN;
        else if (by_reading && !isnan(value[rank]))
            value[rank] = fmin(value[rank], other[rank]);
    }
}

void
cairn_detect_first_values(struct cairn_detector *detector, uint32_t index, bool by_pipeline,
                          double sigma, bool operations_known)
{
    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        detector->value[rank] =
            (double)*cairn_detect_kept(detector, CAIRN_KEPT_COMPUTE, index, rank);
        detector->value_aside[rank] =
            (double)*cairn_detect_kept(detector, CAIRN_KEPT_ASIDE, index, rank);
    }
    cairn_detect_deviations(detector, by_pipeline, sigma, operations_known);
}

/* Robust standard deviation of all deviations of the first steps. */
static double
first_sigma(struct cairn_detector *detector, bool by_pipeline)
{
    uint32_t world = detector->topology->world, count = 0;
    float *all = detector->scratch + world; /* the first world are common_of's */

    for (uint32_t i = 0; i + 1 < detector->calibrate_count; i++) {
        cairn_detect_first_values(detector, i, by_pipeline, 0, false);
        for (uint32_t rank = 0; rank < world; rank++)
            if (!isnan(detector->value[rank]))
                all[count++] = (float)detector->value[rank];
    }
    if (count < STEPS_MIN)
        return 1;
    double middle = (double)cairn_quantile(all, count, 0.5), sigma;

    /* what is common of few ranks is nearly one of their values, and a heap of zeros in the middle
     * hides half of the noise from a median: so the outer quantiles have a say too */
    sigma = (double)(cairn_quantile(all, count, 0.84) - cairn_quantile(all, count, 0.16)) / 2;
    for (uint32_t i = 0; i < count; i++)
        all[i] = fabsf(all[i] - (float)middle);
    sigma = fmax(sigma, 1.4826 * (double)cairn_quantile(all, count, 0.5));
    if (by_pipeline)
        sigma *= are_pairs(detector->topology)
                     ? pair_spread
                     : 1 + few_spread / ranks_of_pipeline(detector->topology);
    /* the normals come from the same few steps, hence a little more */
    return fmax(first_steps_gain * (1 + 1 / sqrt(count)) * sigma, sigma_floor);
}

/* A rank's own noise: where it is clearly above the others'. */
static double
own_sigma(struct cairn_detector *detector, uint32_t rank)
{
    float values[CAIRN_CALIBRATE_STEPS];
    uint32_t count = 0;

    for (uint32_t i = 0; i < detector->calibrate_count; i++) {
        float value = *cairn_detect_kept(detector, CAIRN_KEPT_COMPUTE, i, rank);

        if (!isnan(value))
            values[count++] = fabsf(value - (float)detector->ranks[rank].normal);
    }
    return count >= STEPS_MIN && !detector->by_pipeline
               ? 0.7 * 1.4826 * (double)cairn_quantile(values, count, 0.5)
               : 0;
}

/* What the pipelines have in common does not tell their ranks' normals apart. Of pairs it is the
 * mean: where one rank's normal is by chance too low, both ranks' deviations are wrong by half of
 * that, each in its direction. */
static void
level_normals(struct cairn_detector *detector, double *normal)
{
    const struct cairn_topology *topology = detector->topology;

    for (uint32_t rank = 0; rank < topology->world; rank++)
        normal[rank] = detector->ranks[rank].normal;
    if (!detector->by_pipeline)
        return;
    if (!detector->by_pairs) {
        cairn_detect_remove_common(detector, normal, true, 0);
        return;
    }
    for (uint32_t pipeline = 0; pipeline < topology->pipeline_count; pipeline++) {
        const uint32_t *ranks = topology->ranks_of_pipeline + topology->pipeline_begin[pipeline];
        uint32_t count =
            topology->pipeline_begin[pipeline + 1] - topology->pipeline_begin[pipeline];
        double sum = 0;

        for (uint32_t i = 0; i < count; i++)
            sum += normal[ranks[i]];
        for (uint32_t i = 0; i < count; i++)
            normal[ranks[i]] -= sum / count;
        detector->pipeline_common[pipeline] = isnan(sum) ? 0 : sum / count;
    }
}

/* False where ranks send to each other and no communicator tells the stages: those of other stages
 * may compute longer. */
static bool
are_peers_alike(const struct cairn_detector *detector)
{
    bool any_pair = false;

    for (uint32_t i = 0; i < detector->channel_count; i++)
        any_pair |= detector->channels[i].comm == CAIRN_COMM_NONE;
    return !any_pair || detector->topology->stage_count > 1;
}

/*
 * Draws the normals of a stage's ranks towards each other as far as their differences can be
 * chance: with noise sigma, the median of k steps is known to 1.25 sigma / sqrt(k), and what the
 * ranks differ by beyond that is real. A rank far above its peers keeps theirs, and the distance is
 * its excess.
 */
static void
join_peers(struct cairn_detector *detector, const double *normal, uint32_t stage)
{
    const struct cairn_topology *topology = detector->topology;
    double chance = 1.25 * detector->sigma / sqrt(CAIRN_CALIBRATE_STEPS);
    double middle, spread, real, weight;
    uint32_t count = 0;

    for (uint32_t rank = 0; rank < topology->world; rank++)
        if (topology->stage[rank] == stage && !isnan(normal[rank]))
            detector->scratch[count++] = (float)normal[rank];
    if (count < PEERS_MIN)
        return;
    middle = (double)cairn_quantile(detector->scratch, count, 0.5);
    spread = ((double)cairn_quantile(detector->scratch, count, 0.84) -
              (double)cairn_quantile(detector->scratch, count, 0.16)) /
             2;
    real = fmax(sqrt(fmax(spread * spread - chance * chance, 0)), spread_floor);
    weight = real * real / (real * real + chance * chance);
    for (uint32_t rank = 0; rank < topology->world; rank++) {
        struct cairn_rank_state *state = &detector->ranks[rank];
        double above = normal[rank] - middle;

        if (topology->stage[rank] != stage || isnan(above))
            continue;
        if (above > fmax(excess_min, 5 * chance)) {
            /* half of it has gone into the pair's mean */
            state->excess = detector->by_pairs ? 2 * above : above;
            continue;
        }
        state->base = (weight - 1) * above; /* values are relative to the rank's own median */
        state->normal_steps += detector->sigma * detector->sigma / (real * real);
    }
}

/* Takes the computation as it is where sends go on by themselves for the computation, and the other
 * way round. */
static void
swap_readings(struct cairn_detector *detector)
{
    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        struct cairn_rank_state *state = &detector->ranks[rank];
        double normal = state->normal;

        state->normal = state->normal_aside;
        state->normal_aside = normal;
        for (uint32_t i = 0; i < detector->calibrate_count; i++) {
            float *compute = cairn_detect_kept(detector, CAIRN_KEPT_COMPUTE, i, rank);
            float *aside = cairn_detect_kept(detector, CAIRN_KEPT_ASIDE, i, rank), kept = *compute;

            *compute = *aside;
            *aside = kept;
        }
    }
    detector->sends_aside = !detector->sends_aside;
}

/*
 * Where no operation has begun inside of a send, its time is computation (the send goes on by
 * itself) or waiting (the rank is in it). Sends take as long as their receivers let them, so the
 * wrong reading is the noisier one: of the gaps behind sends where these are known, each compared
 * with its like in the step before, else of whole steps. Where both are alike, only what both say
 * is believed.
 */
static void
choose_reading(struct cairn_detector *detector)
{
    const double *jumps_ns = detector->sends_jumps_ns;
    double wait, aside;

    if (detector->sends_aside) /* seen */
        return;
    if (jumps_ns[CAIRN_GAPS_SENDS_WAIT] > 0 && jumps_ns[CAIRN_GAPS_SENDS_ASIDE] > 0) {
        wait = jumps_ns[CAIRN_GAPS_SENDS_WAIT];
        aside = jumps_ns[CAIRN_GAPS_SENDS_ASIDE];
        if (aside < sends_jumps_gain * wait)
            swap_readings(detector);
        detector->sends_unsure =
            aside >= sends_jumps_gain * wait && wait >= sends_jumps_gain * aside;
        return;
    }
    wait = fmin(first_sigma(detector, false), first_sigma(detector, true));
    swap_readings(detector);
    aside = fmin(first_sigma(detector, false), first_sigma(detector, true));
    if (aside < sends_gain * wait)
        return;
    swap_readings(detector);
    detector->sends_unsure = wait >= sends_gain * aside;
}

/* Robust standard deviation of what a block keeps (a logarithm), each rank about its own middle;
 * NaN where it is unknown. */
static double
kept_sigma(struct cairn_detector *detector, uint32_t block)
{
    float *all = detector->scratch + detector->topology->world;
    uint32_t count = 0;

    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        double middle = median_of_first(detector, block, rank);

        for (uint32_t i = 0; i < detector->calibrate_count && !isnan(middle); i++) {
            float value = *cairn_detect_kept(detector, block, i, rank);

            if (!isnan(value))
                all[count++] = fabsf(value - (float)middle);
        }
    }
    return count > 0 ? 1.4826 * (double)cairn_quantile(all, count, 0.5) : (double)NAN;
}

/* Whether intervals between starts vary little against the gaps between operations, in all the job.
 * Of pipelines two readings of sends tell what is waiting. */
static bool
may_be_behind(const struct cairn_detector *detector)
{
    double gaps_ns = 0, intervals_ns = 0;

    for (uint32_t i = 0; i < detector->channel_count; i++)
        if (detector->channels[i].comm == CAIRN_COMM_NONE)
            return false;
    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        gaps_ns += detector->ranks[rank].gap_jumps_ns;
        intervals_ns += detector->ranks[rank].interval_jumps_ns;
    }
    return intervals_ns < hidden_gain * gaps_ns;
}

/*
 * What operations hide of the computation in a normal step belongs to it, else small changes of a
 * rank's speed would look large. It is at most the time in operations before gaps, and at most what
 * makes the gaps vary as much more than the first one of a step, which shows the rank's noise as it
 * is. One number for all ranks of a stage keeps them comparable.
 */
static void
learn_hidden(struct cairn_detector *detector)
{
    const struct cairn_topology *topology = detector->topology;
    double larger = kept_sigma(detector, CAIRN_KEPT_COMPUTE) / detector->first_sigma - 1;

    if (!(larger > 0) || !may_be_behind(detector))
        return;
    for (uint32_t stage = 0; stage < topology->stage_count; stage++) {
        float *hidden_ns = detector->scratch, *shown_ns = hidden_ns + topology->world;
        uint32_t count = 0;
        double most_ns;

        for (uint32_t rank = 0; rank < topology->world; rank++) {
            double of_rank_ns = median_of_first(detector, CAIRN_KEPT_HIDDEN, rank);
            double compute = median_of_first(detector, CAIRN_KEPT_COMPUTE, rank);

            if (topology->stage[rank] != stage || isnan(of_rank_ns) || isnan(compute))
                continue;
            hidden_ns[count] = (float)of_rank_ns;
            shown_ns[count++] = (float)exp(compute);
        }
        if (count == 0)
            continue;
        most_ns = fmin((double)cairn_quantile(hidden_ns, count, 0.5),
                       larger * (double)cairn_quantile(shown_ns, count, 0.5));
        for (uint32_t rank = 0; rank < topology->world; rank++)
            if (topology->stage[rank] == stage)
                detector->ranks[rank].hidden_ns = most_ns;
    }
    for (uint32_t i = 0; i < detector->calibrate_count; i++)
        for (uint32_t rank = 0; rank < topology->world; rank++) {
            float *compute = cairn_detect_kept(detector, CAIRN_KEPT_COMPUTE, i, rank);
            float *aside = cairn_detect_kept(detector, CAIRN_KEPT_ASIDE, i, rank);

            *compute = (float)log(exp((double)*compute) + detector->ranks[rank].hidden_ns);
            *aside = (float)log(exp((double)*aside) + detector->ranks[rank].hidden_ns);
        }
}

enum { NORMALS = 5 };

/* One of a rank's normals. */
static double *
normal_of(struct cairn_rank_state *state, uint32_t index)
{
    double *all[NORMALS] = {&state->normal, &state->normal_aside, &state->normal_first,
                            &state->normal_operations_ns, &state->normal_dealt};

    return all[index];
}

/* The middle of one of the normals of a stage's ranks; NaN of too few. */
static double
middle_of(struct cairn_detector *detector, uint32_t stage, uint32_t index)
{
    uint32_t count = 0;

    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        double normal = *normal_of(&detector->ranks[rank], index);

        if (detector->topology->stage[rank] == stage && !isnan(normal))
            detector->scratch[count++] = (float)normal;
    }
    return count >= PEERS_MIN ? (double)cairn_quantile(detector->scratch, count, 0.5) : (double)NAN;
}

/* A rank that lost its records of the first steps is taken to be like its peers. */
static void
borrow_normals(struct cairn_detector *detector, uint32_t stage)
{
    bool any = false;

    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        struct cairn_rank_state *state = &detector->ranks[rank];

        state->is_borrowed |= detector->topology->stage[rank] == stage && isnan(state->normal);
        any |= detector->topology->stage[rank] == stage && state->is_borrowed;
    }
    for (uint32_t i = 0; any && i < NORMALS; i++) {
        double middle = middle_of(detector, stage, i);

        for (uint32_t rank = 0; rank < detector->topology->world; rank++)
            if (detector->topology->stage[rank] == stage && detector->ranks[rank].is_borrowed)
                *normal_of(&detector->ranks[rank], i) = middle;
    }
}

/* What the others' normals, per unit of work, are above those of the earlier run; NaN where there
 * are none. */
static double
change_of_others(struct cairn_detector *detector)
{
    uint32_t count = 0;

    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        const struct cairn_rank_state *state = &detector->ranks[rank];

        if (!state->was_slow && detector->now.work[rank] > 0 && !state->is_borrowed &&
            !isnan(state->normal - state->earlier))
            detector->scratch[count++] = (float)(state->normal - state->earlier);
    }
    return count > 0 ? (double)cairn_quantile(detector->scratch, count, 0.5) : (double)NAN;
}

/* A rank that an earlier run has left slow, and that still is, gets the normal that it had there:
 * what is slow never changes what is normal. */
static void
recall_normals(struct cairn_detector *detector)
{
    double chance = 1.25 * detector->sigma / sqrt(CAIRN_CALIBRATE_STEPS);
    double change = change_of_others(detector);

    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        struct cairn_rank_state *state = &detector->ranks[rank];
        double above = state->normal - state->earlier - change;

        state->is_recalled = state->was_slow && detector->now.work[rank] > 0 && !isnan(above);
        if (!state->is_recalled || above <= fmax(excess_min, 5 * chance))
            continue;
        state->normal -= above;
        state->normal_aside -= above;
        state->normal_first -= above;
    }
}

void
cairn_detect_learn_normals(struct cairn_detector *detector)
{
    const struct cairn_topology *topology = detector->topology;
    double sigma;

    detector->first_sigma =
        fmax(first_steps_gain * kept_sigma(detector, CAIRN_KEPT_FIRST), sigma_floor);
    learn_hidden(detector);
    for (uint32_t rank = 0; rank < topology->world; rank++) {
        detector->ranks[rank].normal = median_of_first(detector, CAIRN_KEPT_COMPUTE, rank);
        detector->ranks[rank].normal_first = median_of_first(detector, CAIRN_KEPT_FIRST, rank);
        detector->ranks[rank].normal_aside = median_of_first(detector, CAIRN_KEPT_ASIDE, rank);
        detector->ranks[rank].normal_operations_ns =
            median_of_first(detector, CAIRN_KEPT_OPERATIONS, rank);
        detector->ranks[rank].normal_dealt = median_of_first(detector, CAIRN_KEPT_DEALT, rank);
    }
    choose_reading(detector);
    for (uint32_t stage = 0; stage < topology->stage_count; stage++)
        borrow_normals(detector, stage);
    for (uint32_t rank = 0; rank < topology->world; rank++) {
        struct cairn_rank_state *state = &detector->ranks[rank];
        double most = median_of_first(detector, CAIRN_KEPT_MOST, rank);

        state->doubt = isnan(most) ? 0 : fmax(most - state->normal, 0);
    }
    detector->sigma = first_sigma(detector, false);
    sigma = first_sigma(detector, true);
    if (topology->pipeline_count > 1 && topology->pipeline_count * 2 <= topology->world &&
        sigma < gain_of(topology) * detector->sigma) {
        detector->by_pipeline = true;
        detector->by_pairs = are_pairs(topology);
        detector->sigma = sigma;
    }
    for (uint32_t rank = 0; rank < topology->world; rank++) {
        detector->ranks[rank].sigma = fmax(detector->sigma, own_sigma(detector, rank));
        /* a median's efficiency */
        detector->ranks[rank].normal_steps =
            detector->ranks[rank].is_borrowed ? 1 : CAIRN_CALIBRATE_STEPS / 1.57;
    }
    recall_normals(detector);
    level_normals(detector, detector->value);
    for (uint32_t stage = 0; are_peers_alike(detector) && stage < topology->stage_count; stage++)
        join_peers(detector, detector->value, stage);
}
