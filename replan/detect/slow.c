/*
 * replan/detect/slow.c - finds the ranks that compute longer than is normal for them.
 *
 * A rank's deviation in a step is ln(computation / work), less the rank's own normal, less what all
 * ranks have in common in that step. Its normal is the median of its first steps, unless that is
 * far above its peers' of the same stage: then theirs holds. Where the ranks of a pipeline vary
 * together (sequence lengths that nobody reported), that variation is taken out too.
 * replan/detect/normal.c computes both. A deviation that lasts is a shift (replan/detect/shift.h).
 */
#include "replan/detect/detector.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- thresholds of a slow rank ---- */

/* A shift opens a verdict when it passes all three limits. */

/* Its size, the lower median of the deviations since the onset: ln(1.065), so 6.5 % longer than
 * normal. */
static const double size_min = 0.063;
/* Its score, in standard errors of their mean. A job of 1,024 ranks looks up to 62,000 times per
 * step (61 onsets per rank), and normal noise passes 7 once in 8e11 looks. */
static const double score_min = 7, score_ranks = 1024;
enum {
    STEPS_MIN = 4,        /* how long it lasts: a single pause, or two in a row, is not a shift */
    UNEVEN_STEPS_MIN = 8, /* ... where pipelines are loaded unevenly */
    SUDDEN_STEPS_MIN = 8, /* ... where the noise wanders, and only how suddenly it came tells */
    THIN_STEPS_MIN = 12   /* ... where the score is below score_min */
};

/* A verdict ends when both hold. */
enum {
    QUIET_STEPS = 6 /* so many steps lie behind the likeliest end */
};
static const double end_sure_min = 12; /* an end is e^12 times likelier than that it goes on */

/* ---- noise and other constants ---- */

/* The median distance of two values of normal noise, in standard deviations of one ... */
static const double jump_of_noise = 0.954;
/* ... and of the excess over the smaller of two ranks' values, which often is 0. */
static const double jump_of_pairs = 0.554;
/* Noise of the slow rank of a pair over the other: both vary. */
static const double noise_of_pairs = 1.42;
static const double growth_min = 1.5;   /* a smaller growth of the noise may be chance */
static const double growth_kept = 0.95; /* share of the growth kept per step: old values stay in the
                                         * window */
static const double dealt_clip = 0.05;  /* what is further from normal counts as so far away */
static const double dealt_share = 0.25; /* of a shift that more work explains */
static const double share_of_wait = 0.25; /* a victim waits longer by this share of the delay */
/* A victim's shift, so many times, is at most its culprit's; it is slight, ln(1.15). */
static const double beside_times = 3, slight = 0.14;
enum {
    NOISE_RANKS_MIN = 3,
    WINDOW = CAIRN_SHIFT_WINDOW,
    NORMAL_STEPS_MAX = 256, /* a normal counts as known from at most so many steps, so it follows
                             * drift */
    BESIDE_STEPS = 2,       /* by which the onsets of a culprit and its victim differ at most */
    BEFORE_STEPS_MIN = 24,  /* of values that show how a rank's noise moves */
    ONSET_STEPS = 8,        /* by which noise may move the onset of a shift */
    LOAD_STEPS = 16
};

/* ---- verdicts ---- */

/* The mean of the values that are known; 0 without any. */
static double
mean_of(const struct cairn_rank_state *state, const float *values, uint32_t from, uint32_t to)
{
    uint32_t known = 0;
    double sum = 0;

    for (uint32_t back = from; back < to; back++) {
        float value = values[(state->shift.next + 2 * WINDOW - 1 - back) % WINDOW];

        if (isnan(value))
            continue;
        sum += (double)value;
        known++;
    }
    return known > 0 ? sum / known : 0;
}

/* Who waits longer by a good part of what the culprit takes longer. */
static cairn_err
find_victims(struct cairn_detector *detector, uint32_t culprit, uint32_t steps,
             struct cairn_verdict *verdict)
{
    const struct cairn_rank_state *slow = &detector->ranks[culprit];
    double normal = exp(-log(verdict->rate)) * mean_of(slow, slow->compute_ns, 0, steps);
    double extra_ns = mean_of(slow, slow->compute_ns, 0, steps) - normal;
    double own_wait_ns = mean_of(slow, slow->wait_ns, 0, steps), peer_wait_ns = 0;
    uint32_t victims = 0;

    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        const struct cairn_rank_state *state = &detector->ranks[rank];
        uint32_t used = state->shift.used, after = steps < used ? steps : used;
        double wait_ns, before_ns;

        if (rank == culprit || used == 0)
            continue;
        wait_ns = mean_of(state, state->wait_ns, 0, after);
        before_ns = used > after ? mean_of(state, state->wait_ns, after, used) : own_wait_ns;
        if (wait_ns - before_ns < share_of_wait * extra_ns)
            continue;
        peer_wait_ns += wait_ns;
        victims++;
        cairn_err err = cairn_list_add(&verdict->victims, rank);

        if (err)
            return err;
    }
    snprintf(
        verdict->evidence, sizeof verdict->evidence,
        "rank %u computes %.1f ms a step where %.1f ms is normal for it and its peers in stage %u; "
        "it waits %.1f ms for others, %u ranks that wait longer since then wait %.1f ms",
        culprit, (normal + extra_ns) / 1e6, normal / 1e6, detector->topology->stage[culprit],
        own_wait_ns / 1e6, victims, victims ? peer_wait_ns / victims / 1e6 : 0);
    return CAIRN_OK;
}

static double
confidence_of(double score)
{
    return 1 - exp(-score / 2);
}

static cairn_err
open_verdict(struct cairn_detector *detector, uint32_t rank, const struct cairn_shift_found *found)
{
    struct cairn_rank_state *state = &detector->ranks[rank];
    struct cairn_verdict *verdict;
    uint32_t index;
    cairn_err err = cairn_verdicts_add(&detector->verdicts, CAIRN_SLOW_COMPUTE, &index);

    if (err)
        return err;
    verdict = &detector->verdicts.items[index];
    verdict->since_step = found->since_step;
    verdict->detected_step = detector->now.step;
    verdict->rate = exp(found->size);
    verdict->confidence = confidence_of(found->score);
    state->verdict = index;
    state->slow_steps = found->steps;
    state->slow_base = found->base;
    err = cairn_list_add(&verdict->ranks, rank);
    return err ? err : find_victims(detector, rank, found->steps, verdict);
}

/* Follows an open verdict: its rate, and whether it is over. A rate that has faded is judged as
 * size_min, otherwise nothing would tell it from noise. */
static void
follow(struct cairn_detector *detector, struct cairn_rank_state *state)
{
    struct cairn_verdict *verdict = &detector->verdicts.items[state->verdict];
    double sigma =
               state->sigma * detector->noise_growth * (detector->by_pairs ? noise_of_pairs : 1),
           size, sure;
    uint32_t tail;

    state->slow_steps++;
    tail = cairn_shift_tail(&state->shift, state->slow_base, fmax(log(verdict->rate), size_min),
                            sigma, state->slow_steps, &sure);
    if (tail < QUIET_STEPS || sure < end_sure_min) {
        if (verdict->ranks.count > 1 || tail >= state->slow_steps || tail >= state->shift.used)
            return; /* it is the node's, or none of its steps is left */
        size = cairn_shift_height(&state->shift, tail, state->slow_steps - tail, sigma) -
               state->slow_base;
        if (size > 0)
            verdict->rate = exp(size);
        return;
    }
    if (verdict->ranks.count == 1 || verdict->until_step == CAIRN_STEP_NONE)
        verdict->until_step =
            state->shift.used > tail ? cairn_shift_step(&state->shift, tail) : verdict->since_step;
    state->verdict = UINT32_MAX;
    state->excess = 0;
    cairn_shift_clear(&state->shift);
}

/* Whether another rank became slow at about the same time: what waits for it may look longer. */
static bool
has_slow_other(const struct cairn_detector *detector, const struct cairn_shift_found *found)
{
    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        uint32_t index = detector->ranks[rank].verdict, since;

        if (index == UINT32_MAX)
            continue;
        since = detector->verdicts.items[index].since_step;
        if (since <= found->since_step + ONSET_STEPS && found->since_step <= since + ONSET_STEPS)
            return true;
    }
    return false;
}

/* Where ranks stay longer or shorter for many steps with nothing wrong, as with lengths that
 * wander, one is slow only where chance would not make it so. Its node's other ranks may be slow
 * with it, so of these, as of itself, what was before counts: in a small job they are half of all
 * that is known. */
static bool
is_no_wandering(const struct cairn_detector *detector, uint32_t rank,
                const struct cairn_shift_limits *limits, struct cairn_shift_found *found)
{
    const uint32_t *node = detector->topology->node;
    uint32_t world = detector->topology->world, stride = 1 + world / CAIRN_HISTORY_SERIES_MAX;
    double reach = cairn_shift_reach(limits), mean, score;
    struct cairn_history history;

    cairn_history_start(&history, reach, CAIRN_HISTORY_RANKS);
    for (uint32_t i = rank % stride; i < world; i += stride)
        if (detector->ranks[i].verdict == UINT32_MAX) {
            bool with_it = i == rank || (node[i] != CAIRN_NODE_UNKNOWN && node[i] == node[rank]);

            cairn_history_add(&history, &detector->ranks[i].shift, detector->ranks[i].base,
                              with_it ? found->since_step : UINT32_MAX);
        }
    if (found->score < score_min &&
        (found->steps < THIN_STEPS_MIN || cairn_history_kept(&history) > 0))
        return false;
    mean = cairn_shift_mean(&detector->ranks[rank].shift, found->base, reach, found->steps);
    score = fmax(CAIRN_HISTORY_GAIN * cairn_history_score(&history, mean, found->steps),
                 cairn_history_wander_score(&history, found->size, found->steps));
    if (score < score_min && found->steps >= SUDDEN_STEPS_MIN &&
        detector->ranks[rank].shift.used >= found->steps + BEFORE_STEPS_MIN &&
        !has_slow_other(detector, found))
        score = fmax(score, cairn_history_step_score(&history, &detector->ranks[rank].shift,
                                                     detector->ranks[rank].base, found->steps));
    found->score = fmin(found->score, score);
    return score >= score_min;
}

/*
 * True for a rank whose operations take longer since its shift and that need not compute longer:
 * before, operations may have hidden as much computation as it seems to have more of now. A culprit
 * waits less, or there is a worse one.
 */
static bool
may_be_victim(const struct cairn_detector *detector, uint32_t rank,
              const struct cairn_shift_found *found)
{
    const struct cairn_rank_state *state = &detector->ranks[rank];
    double extra_ns = mean_of(state, state->compute_ns, 0, found->steps) * (1 - exp(-found->size));
    double operations_ns = mean_of(state, state->operations_ns, 0, found->steps);

    return found->size - mean_of(state, state->doubts, 0, found->steps) < size_min &&
           operations_ns - state->normal_operations_ns > share_of_wait * extra_ns;
}

/*
 * True for a rank whose operations hide less since its shift, so that gaps show what they hid
 * before: a rank that is a little late waits less for the others, and looks twice as late. Its
 * shift counts if it is large enough without as much as the operations are shorter now, or if the
 * first gap of the steps, which nothing hides, has grown too: by size_min, less a standard error.
 */
static bool
may_be_hidden_before(const struct cairn_detector *detector, uint32_t rank,
                     const struct cairn_shift_found *found)
{
    const struct cairn_rank_state *state = &detector->ranks[rank];
    double work = detector->now.work[rank] > 0 ? detector->now.work[rank] : 1;
    double compute_ns = mean_of(state, state->compute_ns, 0, found->steps);
    double normal_ns = compute_ns * exp(-found->size), error;
    double shorter_ns =
        fmin(state->normal_operations_ns - mean_of(state, state->operations_ns, 0, found->steps),
             state->hidden_ns * work);

    if (!(shorter_ns > 0) || log((compute_ns - shorter_ns) / normal_ns) >= size_min)
        return false;
    error = detector->first_sigma * sqrt(1.0 / found->steps + 1 / state->normal_steps);
    return mean_of(state, state->first, 0, found->steps) + error < size_min;
}

/* True where another rank, with a verdict or about to get one, has become far slower since the same
 * step: what waits for it may look longer. When the window holds nothing older, that may be so. */
static bool
is_beside(const struct cairn_detector *detector, uint32_t rank, uint32_t other,
          const struct cairn_shift_found *found)
{
    const struct cairn_rank_state *state = &detector->ranks[other];
    uint32_t before = found->steps + BESIDE_STEPS, since;

    if (state->verdict != UINT32_MAX) {
        since = detector->verdicts.items[state->verdict].since_step;
        return log(detector->verdicts.items[state->verdict].rate) >= beside_times * found->size &&
               since <= found->since_step + BESIDE_STEPS &&
               (found->since_step <= since + BESIDE_STEPS ||
                before >= detector->ranks[rank].shift.used);
    }
    return state->shift.used >= before + STEPS_MIN &&
           cairn_shift_median(&state->shift, found->steps - BESIDE_STEPS) - state->base >=
               beside_times * found->size &&
           cairn_shift_value(&state->shift, before) - state->base < found->size;
}

static bool
is_beside_larger(const struct cairn_detector *detector, uint32_t rank,
                 const struct cairn_shift_found *found)
{
    for (uint32_t other = 0; found->size < slight && other < detector->topology->world; other++)
        if (other != rank && is_beside(detector, rank, other, found))
            return true;
    return false;
}

/* True for a rank that gives more in all-to-alls since its shift: an expert that gets more tokens
 * gives more back. Its work is uneven; its device is not slow. */
static bool
has_more_dealt(const struct cairn_detector *detector, uint32_t rank,
               const struct cairn_shift_found *found)
{
    const struct cairn_rank_state *state = &detector->ranks[rank];
    double now = mean_of(state, state->dealt, 0, found->steps);

    return state->normal_dealt > 0 && log(now / state->normal_dealt) > dealt_share * found->size;
}

/* Where pipelines are loaded unevenly, long sequences may meet on a rank several times in a row, as
 * what is common of few ranks follows them only roughly. */
static bool
may_be_lengths(const struct cairn_detector *detector, const struct cairn_rank_state *state,
               const struct cairn_shift_found *found)
{
    return cairn_detect_is_uneven(detector) &&
           (found->steps < UNEVEN_STEPS_MIN ||
            cairn_shift_median(&state->shift, STEPS_MIN) - state->base < size_min);
}

/* A job of other size looks more or less often: for as many false alarms, the chance of one look
 * goes with 1 / ranks, and its logarithm with the square of the score. Less than score_min is
 * enough only where each value is by itself. */
static double
least_score(const struct cairn_detector *detector)
{
    return sqrt(score_min * score_min + 2 * log(detector->topology->world / score_ranks));
}

static cairn_err
judge(struct cairn_detector *detector, uint32_t rank)
{
    struct cairn_rank_state *state = &detector->ranks[rank];
    struct cairn_shift_limits limits = {.sigma = state->sigma * detector->noise_growth,
                                        .base = state->base,
                                        .base_values = state->normal_steps,
                                        .first_values = CAIRN_CALIBRATE_STEPS,
                                        .score_min = least_score(detector),
                                        .size_min = size_min,
                                        .steps_min = STEPS_MIN};
    struct cairn_shift_found found;

    if (state->verdict != UINT32_MAX) {
        follow(detector, state);
        return CAIRN_OK;
    }
    if (!cairn_shift_find(&state->shift, &limits, &found) ||
        may_be_lengths(detector, state, &found) ||
        cairn_detect_may_be_pauses(detector, rank, &found) ||
        may_be_victim(detector, rank, &found) || may_be_hidden_before(detector, rank, &found) ||
        is_beside_larger(detector, rank, &found) || has_more_dealt(detector, rank, &found) ||
        !is_no_wandering(detector, rank, &limits, &found))
        return CAIRN_OK;
    return open_verdict(detector, rank, &found);
}

/* ---- steps ---- */

/* What has left the window without being part of a shift makes the normal better known. */
static void
refine(struct cairn_rank_state *state)
{
    double oldest, dealt;

    if (state->shift.used < WINDOW || state->verdict != UINT32_MAX)
        return;
    oldest = cairn_shift_value(&state->shift, WINDOW - 1) - state->base;
    oldest = fmax(fmin(oldest, 3 * state->sigma), -3 * state->sigma);
    state->normal_steps = fmin(state->normal_steps + 1, NORMAL_STEPS_MAX);
    state->base += oldest / state->normal_steps;
    dealt = (double)state->dealt[state->shift.next];
    if (state->normal_dealt > 0 && dealt > 0)
        state->normal_dealt *=
            exp(fmax(fmin(log(dealt / state->normal_dealt), dealt_clip), -dealt_clip) /
                state->normal_steps);
}

/*
 * All ranks may get noisier long after the first steps, as where the data changes; each of them
 * would then be called slow in turn. From one step to the next a slow rank stays what it is, and
 * what starts in one step does not move a median over several.
 */
static void
note_noise(struct cairn_detector *detector)
{
    double growth;
    uint32_t known = 0;

    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        const struct cairn_rank_state *state = &detector->ranks[rank];

        if (!isnan(detector->value[rank]) && state->shift.used > 0)
            detector->scratch[known++] = (float)fabs(detector->value[rank] + state->excess -
                                                     cairn_shift_value(&state->shift, 0));
    }
    detector->noise_growth = 1 + (detector->noise_growth - 1) * growth_kept;
    if (known < NOISE_RANKS_MIN)
        return;
    detector->jumps[detector->jump_count++ % CAIRN_JUMPS] =
        cairn_quantile(detector->scratch, known, 0.5);
    if (detector->jump_count < CAIRN_JUMPS)
        return;
    memcpy(detector->scratch, detector->jumps, sizeof detector->jumps);
    growth = (double)cairn_quantile(detector->scratch, CAIRN_JUMPS, 0.5) /
             ((detector->by_pairs ? jump_of_pairs : jump_of_noise) * detector->sigma);
    if (growth > growth_min)
        detector->noise_growth = fmax(detector->noise_growth, growth);
}

/* ln(computation / work); NaN where it is not known. */
static double
log_of(const struct cairn_observation *now, const double *compute_ns, uint32_t rank)
{
    return log(compute_ns[rank] / (now->work[rank] > 0 ? now->work[rank] : 1));
}

static void
push_values(struct cairn_detector *detector, uint32_t step)
{
    detector->now.step = step;
    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        struct cairn_rank_state *state = &detector->ranks[rank];

        if (isnan(detector->value[rank]))
            continue;
        refine(state);
        state->wait_ns[state->shift.next] = (float)detector->now.wait_ns[rank];
        state->compute_ns[state->shift.next] = (float)detector->now.compute_ns[rank];
        state->operations_ns[state->shift.next] = (float)detector->now.operations_ns[rank];
        state->dealt[state->shift.next] = (float)detector->now.dealt[rank];
        state->doubts[state->shift.next] = state->by_first ? 0 : (float)state->doubt;
        state->first[state->shift.next] =
            (float)(log_of(&detector->now, detector->now.first_ns, rank) - state->normal_first);
        cairn_shift_push(&state->shift, step, detector->value[rank] + state->excess);
    }
}

static cairn_err
judge_all(struct cairn_detector *detector, bool ranks)
{
    uint32_t opened = detector->verdicts.count;
    cairn_err err = CAIRN_OK;

    for (uint32_t rank = 0; ranks && !err && rank < detector->topology->world; rank++)
        if (!isnan(detector->value[rank]))
            err = judge(detector, rank);
    if (!err && detector->verdicts.count > opened)
        err = cairn_detect_nodes(detector, false);
    if (!err && detector->by_pipeline)
        err = cairn_detect_wholes(detector);
    return err;
}

/* A kept first step, as if it were only now. */
static void
push_first(struct cairn_detector *detector, uint32_t index)
{
    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        detector->now.compute_ns[rank] =
            exp((double)*cairn_detect_kept(detector, CAIRN_KEPT_COMPUTE, index, rank));
        detector->now.wait_ns[rank] =
            (double)*cairn_detect_kept(detector, CAIRN_KEPT_WAIT, index, rank);
        detector->now.operations_ns[rank] =
            (double)*cairn_detect_kept(detector, CAIRN_KEPT_OPERATIONS, index, rank);
        detector->now.dealt[rank] =
            (double)*cairn_detect_kept(detector, CAIRN_KEPT_DEALT, index, rank);
        detector->now.is_hidden[rank] = false;
        detector->now.first_ns[rank] =
            exp((double)*cairn_detect_kept(detector, CAIRN_KEPT_FIRST, index, rank)) *
            (detector->now.work[rank] > 0 ? detector->now.work[rank] : 1);
    }
    cairn_detect_first_values(detector, index, detector->by_pipeline, detector->sigma, true);
    push_values(detector, detector->calibrate_step[index]);
}

/* The first steps are over: normals, noise, and the steps themselves twice more: to know how often
 * ranks pause before any of them is called slow, and to judge. */
static cairn_err
calibrate(struct cairn_detector *detector)
{
    uint32_t step = detector->now.step;
    cairn_err err = CAIRN_OK;

    detector->calibrated = true;
    cairn_detect_learn_normals(detector);
    if (detector->by_pipeline)
        err = cairn_detect_wholes_learn(detector);
    for (uint32_t i = 0; !err && i < detector->calibrate_count; i++) {
        push_first(detector, i);
        cairn_detect_count_pauses(detector);
    }
    for (uint32_t rank = 0; rank < detector->topology->world; rank++)
        cairn_shift_clear(&detector->ranks[rank].shift);
    for (uint32_t i = 0; !err && i < detector->calibrate_count; i++) {
        push_first(detector, i);
        /* ranks by all of them: fewer do not show what wanders */
        err = judge_all(detector, i + 1 == detector->calibrate_count);
    }
    detector->now.step = step;
    for (uint32_t i = 0; i < detector->verdicts.count; i++)
        detector->verdicts.items[i].detected_step = step; /* known only now */
    return err ? err : cairn_detect_stages(detector);
}

/* Keeps one of the first steps, unless too few ranks say what they computed in it. */
static cairn_err
keep_first(struct cairn_detector *detector)
{
    const struct cairn_observation *now = &detector->now;
    uint32_t at = detector->calibrate_count, known = 0;

    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        *cairn_detect_kept(detector, CAIRN_KEPT_COMPUTE, at, rank) =
            (float)log_of(now, now->compute_ns, rank);
        *cairn_detect_kept(detector, CAIRN_KEPT_ASIDE, at, rank) =
            (float)log_of(now, now->aside_ns, rank);
        *cairn_detect_kept(detector, CAIRN_KEPT_MOST, at, rank) =
            (float)log_of(now, now->most_ns, rank);
        *cairn_detect_kept(detector, CAIRN_KEPT_FIRST, at, rank) =
            (float)log_of(now, now->first_ns, rank);
        *cairn_detect_kept(detector, CAIRN_KEPT_HIDDEN, at, rank) =
            (float)(now->hidden_ns[rank] / (now->work[rank] > 0 ? now->work[rank] : 1));
        *cairn_detect_kept(detector, CAIRN_KEPT_OPERATIONS, at, rank) =
            (float)now->operations_ns[rank];
        *cairn_detect_kept(detector, CAIRN_KEPT_DEALT, at, rank) = (float)now->dealt[rank];
        *cairn_detect_kept(detector, CAIRN_KEPT_WAIT, at, rank) = (float)now->wait_ns[rank];
        known += isnan(now->compute_ns[rank]) ? 0 : 1;
    }
    if (known * 2 < detector->ranks_seen)
        return CAIRN_OK;
    detector->calibrate_step[detector->calibrate_count++] = now->step;
    return detector->calibrate_count == CAIRN_CALIBRATE_STEPS ? calibrate(detector) : CAIRN_OK;
}

cairn_err
cairn_detect_ranks(struct cairn_detector *detector)
{
    const struct cairn_observation *now = &detector->now;

    if (!detector->calibrated)
        return keep_first(detector);
    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        double hidden_ns =
            detector->ranks[rank].hidden_ns * (now->work[rank] > 0 ? now->work[rank] : 1);

        now->compute_ns[rank] += hidden_ns;
        now->aside_ns[rank] += hidden_ns;
        detector->value[rank] = log_of(now, now->compute_ns, rank);
        detector->value_aside[rank] = log_of(now, now->aside_ns, rank);
    }
    cairn_detect_deviations(detector, detector->by_pipeline, detector->sigma, true);
    note_noise(detector);
    push_values(detector, now->step);
    cairn_detect_count_pauses(detector);
    return judge_all(detector, true);
}

/* Culprits are nobody's victims. */
static void
clear_victims(struct cairn_detector *detector)
{
    struct cairn_verdicts *verdicts = &detector->verdicts;

    for (uint32_t i = 0; i < verdicts->count; i++) {
        struct cairn_u32_list *victims = &verdicts->items[i].victims;
        uint32_t kept = 0;

        for (uint32_t k = 0; k < victims->count; k++) {
            bool culprit = false;

            for (uint32_t j = 0; j < verdicts->count && !culprit; j++)
                for (uint32_t r = 0; r < verdicts->items[j].ranks.count && !culprit; r++)
                    culprit = verdicts->items[j].kind <= CAIRN_SLOW_NODE &&
                              verdicts->items[j].ranks.items[r] == victims->items[k];
            if (!culprit)
                victims->items[kept++] = victims->items[k];
        }
        victims->count = kept;
    }
}

cairn_err
cairn_detect_slow_finish(struct cairn_detector *detector)
{
    cairn_err err = detector->calibrated ? cairn_detect_nodes(detector, true) : CAIRN_OK;

    clear_victims(detector);
    return err;
}

void
cairn_detector_load(const struct cairn_detector *detector, uint32_t rank, struct cairn_load *out)
{
    const struct cairn_rank_state *state = &detector->ranks[rank];
    double sum_ns = 0, squares = 0, mean_ns;
    uint32_t count = 0;

    for (uint32_t back = 0; back < LOAD_STEPS; back++) {
        double value_ns = (double)NAN;

        if (detector->calibrated && back < state->shift.used)
            value_ns =
                (double)state->compute_ns[(state->shift.next + 2 * WINDOW - 1 - back) % WINDOW];
        else if (!detector->calibrated && back < detector->calibrate_count)
            value_ns = exp((double)*cairn_detect_kept(detector, CAIRN_KEPT_COMPUTE, back, rank));
        if (isnan(value_ns))
            continue;
        sum_ns += value_ns;
        squares += value_ns * value_ns;
        count++;
    }
    mean_ns = sum_ns / count; /* NaN of none */
    out->compute_ns = count > 0 ? mean_ns : (double)NAN;
    out->error_ns =
        count > 1 ? sqrt(fmax(squares / count - mean_ns * mean_ns, 0) / (count - 1)) : (double)NAN;
}
