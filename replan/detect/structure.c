/*
 * replan/detect/structure.c - what is uneven though no device is at fault: a stage that is longer
 * than the others, sequences that load the pipelines differently step by step, pauses that wander
 * over the ranks (a collector of garbage).
 */
#include "replan/detect/detector.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- thresholds ---- */

/* A long stage: its ranks over the middle of all, ln(1.15). */
static const double stage_size_min = 0.14;
/* Uneven data: after WATCH_STEPS, pipelines differ by the spread in this share of the steps, and
 * the longest one is so many times the mean. */
static const double uneven_spread_min = 0.14, uneven_steps_share = 0.45, uneven_mean_min = 1.12;
/* Wandering pauses: after WATCH_STEPS_PAUSES, PAUSES_MIN steps in which single ranks are late by
 * this much (ln), PAUSE_RANKS_MIN ranks in all, and this share of the steps. What stops many ranks
 * in one step is not a collector. */
static const double pause_size_min = 0.15, pause_share_min = 0.12;
enum { WATCH_STEPS = 20, WATCH_STEPS_PAUSES = 24, PAUSES_MIN = 6, PAUSE_RANKS_MIN = 3 };
/* Where some operations go on behind computation, what they hide varies by this share of itself. */
static const double doubt_share = 0.4, pause_doubt = 1.6 /* times that, of single ranks */;
/* The chance that pauses meet on one rank must stay below this, in the whole job. */
static const double chance_max = 1e-3;
/* Either is over when its share, in OVER_STEPS of the present run, falls below this part of the
 * limit. */
static const double over_share = 0.5;
enum { RUN_STEPS = 128, OVER_STEPS = 64, STAGES_MAX = 1024 };

static cairn_err
say(struct cairn_detector *detector, const char *pattern, uint32_t since_step, double rate,
    uint32_t *index)
{
    cairn_err err = cairn_verdicts_add(&detector->verdicts, CAIRN_STRUCTURAL, index);
    struct cairn_verdict *verdict;

    if (err)
        return err;
    verdict = &detector->verdicts.items[*index];
    verdict->pattern = pattern;
    verdict->since_step = since_step;
    verdict->detected_step = detector->now.step;
    verdict->rate = rate;
    verdict->confidence = 0.95;
    return CAIRN_OK;
}

/* The normals of a stage's ranks: a low quantile, which all but a few of them reach. NaN:
 * unknown. */
static double
stage_normal(struct cairn_detector *detector, uint32_t stage, double share)
{
    uint32_t count = 0;

    for (uint32_t rank = 0; rank < detector->topology->world; rank++)
        if (detector->topology->stage[rank] == stage && !isnan(detector->ranks[rank].normal))
            detector->scratch[count++] = (float)detector->ranks[rank].normal;
    return count > 0 ? (double)cairn_quantile(detector->scratch, count, share) : (double)NAN;
}

/* Once, when the ranks' normals are known. */
cairn_err
cairn_detect_stages(struct cairn_detector *detector)
{
    const struct cairn_topology *topology = detector->topology;
    uint32_t stages = topology->stage_count, index, known = 0;
    float normals[STAGES_MAX];
    double middle, size;
    cairn_err err;

    if (stages < 2 || stages > STAGES_MAX)
        return CAIRN_OK;
    for (uint32_t stage = 0; stage < stages; stage++) {
        double normal = stage_normal(detector, stage, 0.5);

        if (!isnan(normal))
            normals[known++] = (float)normal;
    }
    if (known < 2)
        return CAIRN_OK;
    middle = (double)cairn_quantile(normals, known, known == 2 ? 0 : 0.35);
    for (uint32_t stage = 0; stage < stages; stage++) {
        struct cairn_verdict *verdict;

        size = stage_normal(detector, stage, 0.2) - middle;
        if (!(size > stage_size_min))
            continue;
        err = say(detector, stage + 1 == stages ? "last_stage" : "long_stage",
                  detector->calibrate_step[0], exp(stage_normal(detector, stage, 0.5) - middle),
                  &index);
        if (err)
            return err;
        verdict = &detector->verdicts.items[index];
        for (uint32_t rank = 0; !err && rank < topology->world; rank++)
            if (topology->stage[rank] == stage && detector->seen[rank])
                err = cairn_list_add(&verdict->ranks, rank);
        if (err)
            return err;
        snprintf(
            verdict->evidence, sizeof verdict->evidence,
            "the ranks of stage %u of %u compute %.2f times as long a step as those of the other "
            "stages, from the first step on and all of them: the plan is uneven, not a device",
            stage, stages, verdict->rate);
    }
    return CAIRN_OK;
}

/* By how much less of a rank's computation than usual its operations may hide in a step; a
 * logarithm. */
static double
doubt_of(const struct cairn_detector *detector, const struct cairn_rank_state *state)
{
    return state->doubt * (detector->now.all_behind ? 1 : doubt_share);
}

/* A rank's work in this step, as it reports it; if some rank reports none, the time it computed.
 * NaN: unknown. *doubt: by how much operations may hide it, a logarithm. */
static double
load_of(const struct cairn_detector *detector, bool by_work, uint32_t rank, double *doubt)
{
    if (by_work)
        return detector->now.work[rank] > 0 ? detector->now.work[rank] : (double)NAN;
    *doubt = fmax(*doubt, doubt_of(detector, &detector->ranks[rank]));
    return detector->now.compute_ns[rank];
}

/* How differently the pipelines are loaded in this step: spread of the middle half, and the largest
 * over the mean, both less what operations may hide. False if it is unknown. */
static bool
pipelines_of(struct cairn_detector *detector, double *spread, double *largest)
{
    const struct cairn_topology *topology = detector->topology;
    double sum = 0, most = 0, doubt = 0, low, high, middle;
    uint32_t count = 0;
    double *load = detector->value;
    bool by_work = true;

    if (topology->pipeline_count < 2)
        return false;
    for (uint32_t i = 0; i < topology->pipeline_count; i++)
        load[i] = 0;
    for (uint32_t rank = 0; rank < topology->world; rank++)
        by_work =
            by_work && (isnan(detector->now.compute_ns[rank]) || detector->now.work[rank] > 0);
    for (uint32_t rank = 0; rank < topology->world; rank++)
        /* NaN spoils its pipeline */
        load[topology->pipeline[rank]] += load_of(detector, by_work, rank, &doubt);
    for (uint32_t i = 0; i < topology->pipeline_count; i++)
        if (!isnan(load[i])) {
            detector->scratch[count++] = (float)load[i];
            sum += load[i];
            most = fmax(most, load[i]);
        }
    if (count < 2)
        return false;
    low = (double)cairn_quantile(detector->scratch, count, 0.25);
    high = (double)cairn_quantile(detector->scratch, count, 0.75);
    middle = (double)cairn_quantile(detector->scratch, count, 0.5);
    /* quartiles, so that a few late ranks do not count; of two or three there are none */
    *spread = count < 4
                  ? (double)(detector->scratch[count - 1] - detector->scratch[0]) / 1.41 / middle
                  : (high - low) / 1.35 / middle;
    *spread -= doubt / 2;
    *largest = most / (sum / count) - doubt;
    return true;
}

/* A slow rank makes its pipeline the longest, which sequences do not explain. */
static bool
some_rank_slow(const struct cairn_detector *detector)
{
    for (uint32_t rank = 0; rank < detector->topology->world; rank++)
        if (detector->ranks[rank].verdict != UINT32_MAX)
            return true;
    return cairn_detect_any_whole_slow(detector);
}

/* The verdict of a pattern that lasts; NULL. */
static struct cairn_verdict *
lasting(struct cairn_detector *detector, const char *pattern)
{
    for (uint32_t i = 0; i < detector->verdicts.count; i++) {
        struct cairn_verdict *verdict = &detector->verdicts.items[i];

        if (verdict->kind == CAIRN_STRUCTURAL && verdict->until_step == CAIRN_STEP_NONE &&
            strcmp(verdict->pattern, pattern) == 0)
            return verdict;
    }
    return NULL;
}

/* Adds a step in which pipelines were compared. Pauses have runs of their own steps. */
static void
count_lengths(struct cairn_detector *detector, double spread, double largest)
{
    struct cairn_watched *now = &detector->watched[0], *before = &detector->watched[1];

    if (now->length_steps == RUN_STEPS) {
        before->length_steps = now->length_steps;
        before->uneven = now->uneven;
        before->uneven_first_step = now->uneven_first_step;
        before->largest_sum = now->largest_sum;
        now->length_steps = now->uneven = 0;
        now->largest_sum = 0;
    }
    if (now->length_steps++ == 0)
        now->length_first_step = detector->now.step;
    if (spread >= uneven_spread_min && now->uneven++ == 0)
        now->uneven_first_step = detector->now.step;
    now->largest_sum += largest;
}

bool
cairn_detect_is_uneven(const struct cairn_detector *detector)
{
    const struct cairn_watched *now = &detector->watched[0], *before = &detector->watched[1];

    return now->uneven + before->uneven >
           uneven_steps_share * (now->length_steps + before->length_steps);
}

static cairn_err
watch_lengths(struct cairn_detector *detector)
{
    static const char pattern[] = "sequence_length";
    static const struct cairn_watched none;
    const struct cairn_watched *now = &detector->watched[0], *before = &detector->watched[1];
    struct cairn_verdict *verdict;
    double spread, largest, mean;
    uint32_t index, steps;
    cairn_err err;

    if (some_rank_slow(detector) || !pipelines_of(detector, &spread, &largest))
        return CAIRN_OK;
    if (!detector->by_pipeline && lasting(detector, "garbage_collection"))
        return CAIRN_OK; /* a pipeline is the longest since one of its ranks pauses */
    count_lengths(detector, spread, largest);
    verdict = lasting(detector, pattern);
    if (verdict) {
        if (now->length_steps >= OVER_STEPS &&
            now->uneven < over_share * uneven_steps_share * now->length_steps)
            verdict->until_step = now->length_first_step;
        return CAIRN_OK;
    }
    if (now->length_steps >= OVER_STEPS)
        before = &none; /* the present run is enough */
    steps = now->length_steps + before->length_steps;
    mean = (now->largest_sum + before->largest_sum) / steps;
    if (steps < WATCH_STEPS || mean < uneven_mean_min ||
        now->uneven + before->uneven < uneven_steps_share * steps)
        return CAIRN_OK;
    err = say(detector, pattern,
              before->uneven ? before->uneven_first_step : now->uneven_first_step, mean, &index);
    if (err)
        return err;
    verdict = &detector->verdicts.items[index];
    snprintf(verdict->evidence, sizeof verdict->evidence,
             "the pipelines' computation differs step by step, each being the longest in turn: the "
             "longest takes %.2f times the mean; the sequences are dealt unevenly",
             mean);
    return CAIRN_OK;
}

/* What a step takes longer by where a rank pauses in it, and no operation hides less of its
 * computation than usual. */
static double
pause_size(const struct cairn_detector *detector, const struct cairn_rank_state *state)
{
    return fmax(6 * state->sigma * detector->noise_growth, pause_size_min) +
           pause_doubt * doubt_of(detector, state);
}

/* A lone late step of a rank: late in the step before this one, and not in its neighbours. */
static bool
lone_pause(const struct cairn_detector *detector, const struct cairn_rank_state *state)
{
    double least = pause_size(detector, state);

    return state->shift.used >= 3 && state->verdict == UINT32_MAX &&
           cairn_shift_value(&state->shift, 1) > least &&
           cairn_shift_value(&state->shift, 0) < least / 2 &&
           cairn_shift_value(&state->shift, 2) < least / 2;
}

/* True where all ranks of a node, and there are several, paused in the same step: its clock was
 * set, or the node stood still, and no process did anything by itself. */
static bool
whole_node_pauses(const struct cairn_detector *detector, uint32_t node)
{
    const struct cairn_topology *topology = detector->topology;
    uint32_t ranks = 0, pause = 0;

    for (uint32_t rank = 0; node != CAIRN_NODE_UNKNOWN && rank < topology->world; rank++)
        if (topology->node[rank] == node && detector->seen[rank]) {
            ranks++;
            pause += lone_pause(detector, &detector->ranks[rank]);
        }
    return ranks > 1 && pause == ranks;
}

void
cairn_detect_count_pauses(struct cairn_detector *detector)
{
    struct cairn_watched *now = &detector->watched[0], *before = &detector->watched[1];
    uint32_t world = detector->topology->world;
    bool any = false;

    if (now->steps == RUN_STEPS) {
        before->steps = now->steps;
        before->pauses = now->pauses;
        before->pause_first_step = now->pause_first_step;
        memcpy(detector->pauses_now + world, detector->pauses_now,
               world * sizeof *detector->pauses_now);
        memset(detector->pauses_now, 0, world * sizeof *detector->pauses_now);
        now->steps = now->pauses = 0;
    }
    if (now->steps++ == 0)
        now->first_step = detector->now.step;
    detector->watched_steps++;
    for (uint32_t rank = 0; rank < world; rank++) {
        if (!lone_pause(detector, &detector->ranks[rank]) ||
            whole_node_pauses(detector, detector->topology->node[rank]))
            continue;
        detector->pauses[rank]++;
        detector->pauses_now[rank]++;
        detector->pause_count++;
        any = true;
        if (now->pauses == 0)
            now->pause_first_step = cairn_shift_step(&detector->ranks[rank].shift, 1);
    }
    now->pauses += any;
}

/*
 * A shift most of whose values are pauses is compared with how often the others pause. With p the
 * share of a rank's steps that are, k of the last n are by chance in about C(n, k) p^k of the
 * places where they could be; what is expected less than chance_max times in the whole job so far
 * is not chance.
 */
bool
cairn_detect_may_be_pauses(const struct cairn_detector *detector, uint32_t rank,
                           const struct cairn_shift_found *found)
{
    const struct cairn_rank_state *state = &detector->ranks[rank];
    double others = (double)detector->pause_count - detector->pauses[rank];
    double places = (double)detector->ranks_seen * detector->watched_steps, chance;
    double share = others / fmax((detector->ranks_seen - 1.0) * detector->watched_steps, 1);
    uint32_t late = 0;

    for (uint32_t back = 0; back < found->steps; back++)
        late += cairn_shift_value(&state->shift, back) - state->base > pause_size(detector, state);
    if (others <= 0 || late * 2 <= found->steps)
        return false;
    chance = log(places) + late * log(share) + lgamma(found->steps + 1.0) - lgamma(late + 1.0) -
             lgamma(found->steps - late + 1.0);
    return chance > log(chance_max);
}

static cairn_err
watch_pauses(struct cairn_detector *detector)
{
    static const char pattern[] = "garbage_collection";
    const struct cairn_watched *now = &detector->watched[0], *before = &detector->watched[1];
    uint32_t steps = now->steps + before->steps, pauses = now->pauses + before->pauses;
    uint32_t world = detector->topology->world, ranks = 0, most = 0, index;
    bool is_over =
        now->steps >= OVER_STEPS && now->pauses < over_share * pause_share_min * now->steps;
    struct cairn_verdict *verdict = lasting(detector, pattern);
    cairn_err err;

    if (verdict) {
        if (is_over)
            verdict->until_step = now->first_step;
        return CAIRN_OK;
    }
    if (lasting(detector, "sequence_length") ||
        (detector->by_pipeline && now->uneven > uneven_steps_share * now->length_steps))
        return CAIRN_OK; /* its ranks are late together */
    if (is_over || steps < WATCH_STEPS_PAUSES || pauses < PAUSES_MIN ||
        pauses < pause_share_min * steps)
        return CAIRN_OK;
    for (uint32_t rank = 0; rank < world; rank++) {
        uint32_t count = detector->pauses_now[rank] + detector->pauses_now[world + rank];

        ranks += count > 0;
        most = count > most ? count : most;
    }
    if (ranks < PAUSE_RANKS_MIN || most * 2 > pauses)
        return CAIRN_OK;
    err = say(detector, pattern, before->pauses ? before->pause_first_step : now->pause_first_step,
              1, &index);
    if (err)
        return err;
    verdict = &detector->verdicts.items[index];
    snprintf(
        verdict->evidence, sizeof verdict->evidence,
        "in %u of %u steps single ranks paused, %u ranks by turns: a collector of garbage, or the "
        "like, that each process runs at its own time",
        pauses, steps, ranks);
    return CAIRN_OK;
}

cairn_err
cairn_detect_data(struct cairn_detector *detector)
{
    cairn_err err;

    if (!detector->calibrated)
        return CAIRN_OK;
    err = watch_lengths(detector);
    return err ? err : watch_pauses(detector);
}
