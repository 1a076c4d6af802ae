/* replan/detect/history.c - how likely a shift is by chance, by what the job has shown before
 * it. */
#include "replan/detect/history.h"

#include "base/assert.h"

#include <math.h>
#include <string.h>

static const double proven_share = 0.35; /* of the series keep less */
static const double kept_error = 0.65;   /* of what is kept, times the root of the values */
static const double fades_slowly = 0.1, fades_fast = 0.3; /* of what is kept, from step to step */
/* Shares of normal values that lie within one, two and 2.6 standard deviations. */
static const double one_share = 0.6827, two_share = 0.9545, most_share = 0.99;
static const double normal_margin = 1.35; /* of deviations by these shares: else not normal */
static const double tail_margin =
    1.15; /* averages that wander have longer tails than a normal distribution */
enum {
    VALUES_MIN = 8,
    STEPS_MIN = 8,
    SEARCH_ROUNDS = 40,
    FAR_MAX = 4 /* steps between values that are compared */,
    BINS = CAIRN_HISTORY_BINS
};

void
cairn_history_start(struct cairn_history *history, double reach, enum cairn_history_kind kind)
{
    *history =
        (struct cairn_history){.reach = reach,
                               .kind = kind,
                               .fades = kind == CAIRN_HISTORY_CHANNELS ? fades_fast : fades_slowly};
}

static uint32_t
bin_of(const struct cairn_history *history, double value)
{
    double place = (value / history->reach + 1) / 2 * (BINS - 1);

    return (uint32_t)fmax(fmin(round(place), BINS - 1), 0);
}

static double
value_of(const struct cairn_history *history, uint32_t bin)
{
    return (2.0 * bin / (BINS - 1) - 1) * history->reach;
}

/* The sum of the correlations of values up to n apart, each weighted by how many pairs of n values
 * are so far apart, where all that a value says of the next stays but for a part per step. */
static double
sum_kept(double fades, double n)
{
    double stays = 1 - fades;

    return stays / fades - stays * (1 - pow(stays, n)) / (fades * fades * n);
}

/*
 * What values have in common with the next values, as a share of their variance: of squares about
 * the mean of `steps` values, and of products of those up to FAR_MAX apart. Some may stay long and
 * the rest not at all, so it is the sum over several distances that tells it. About the mean of few
 * steps that looks smaller than it is, by what the mean itself varies.
 */
static double
kept_of(double fades, double products, double squares, double steps)
{
    double sum = squares > 0 ? products / squares : 0, stays = 0,
           shrunk = 2 * sum_kept(fades, steps) / steps;

    for (uint32_t far = 1; far <= FAR_MAX; far++)
        stays += pow(1 - fades, far);
    return squares > 0 ? (sum * (1 - 1 / steps) + FAR_MAX / steps) /
                             fmax(stays - FAR_MAX * shrunk + sum * shrunk, 0.1)
                       : 0;
}

static void
add_kept(struct cairn_history *history, const double *values, uint32_t count, double mean)
{
    double squares = 0, products = 0;

    for (uint32_t i = 0; i < count; i++)
        squares += (values[i] - mean) * (values[i] - mean);
    for (uint32_t far = 1; far <= FAR_MAX; far++)
        for (uint32_t i = 0; i + far < count; i++)
            products += (values[i] - mean) * (values[i + far] - mean) * count / (count - far);
    history->squares += squares;
    history->products += products;
    history->kept_values += count;
    history->kept[history->kept_count++] = (float)kept_of(history->fades, products, squares, count);
}

static void
add_lags(struct cairn_history *history, const double *values, uint32_t count)
{
    for (uint32_t lag = 0; lag < CAIRN_HISTORY_LAGS; lag++) {
        uint32_t far = 1u << lag;

        for (uint32_t i = 0; i + far < count; i++)
            history->lag_squares[lag] +=
                (values[i + far] - values[i]) * (values[i + far] - values[i]);
        history->lag_pairs[lag] += count > far ? count - far : 0;
    }
}

void
cairn_history_add(struct cairn_history *history, const struct cairn_shift *shift, double base,
                  uint32_t before_step)
{
    double values[CAIRN_SHIFT_WINDOW], mean = 0;
    uint32_t count = 0;

    for (uint32_t back = 0; back < shift->used; back++)
        if (cairn_shift_step(shift, back) < before_step) {
            double value = cairn_shift_value(shift, back) - base;

            values[count] = fmax(fmin(value, history->reach), -history->reach);
            mean += values[count];
            history->bins[bin_of(history, values[count++])]++;
        }
    history->values += count;
    history->series += count > 0;
    add_lags(history, values, count);
    if (count >= STEPS_MIN && history->kept_count < CAIRN_HISTORY_SERIES_MAX)
        add_kept(history, values, count, mean / count);
}

double
cairn_history_kept(const struct cairn_history *history)
{
    float values[CAIRN_HISTORY_SERIES_MAX];
    double kept;

    if (history->kept_count == 0)
        return 0;
    memcpy(values, history->kept, history->kept_count * sizeof *values);
    if (history->kind == CAIRN_HISTORY_RANKS)
        return fmax(fmin((double)cairn_quantile(values, history->kept_count, 0.5), 1), 0);
    kept = history->kind == CAIRN_HISTORY_NODES
               ? (double)cairn_quantile(values, history->kept_count, proven_share)
               : kept_of(history->fades, history->products, history->squares,
                         (double)history->kept_values / history->kept_count);
    return fmax(fmin(kept - kept_error / sqrt(history->values), 1), 0);
}

/* By how much more the mean of so many values varies than if each were by itself. */
static double
spread_of(double fades, double kept, double steps)
{
    return 1 + 2 * kept * sum_kept(fades, steps);
}

/* The exponent of Chernoff's bound for one value, at a. As many values as say the same count once:
 * so many may have been as high as can be. */
static double
exponent_at(const struct cairn_history *history, double mean, double unseen, double a)
{
    double sum = unseen * exp(a * (history->reach - mean));

    for (uint32_t bin = 0; bin < BINS; bin++)
        if (history->bins[bin] > 0)
            sum += history->bins[bin] * exp(a * (value_of(history, bin) - mean));
    return -log(sum / (history->values + unseen));
}

double
cairn_history_score(const struct cairn_history *history, double mean, uint32_t steps)
{
    double kept = cairn_history_kept(history), known, unseen, low = 0, high = 200 / history->reach,
           exponent;

    if (history->values < VALUES_MIN)
        return (double)INFINITY;
    known = (double)history->values / history->series;
    unseen = spread_of(history->fades, kept, known) - 1;
    for (uint32_t i = 0; i < SEARCH_ROUNDS; i++) { /* the exponent has one top */
        double left = low + (high - low) / 3, right = high - (high - low) / 3;

        if (exponent_at(history, mean, unseen, left) < exponent_at(history, mean, unseen, right))
            low = left;
        else
            high = right;
    }
    exponent = fmax(exponent_at(history, mean, unseen, low), 0);
    if (kept > 0) {
        /* wandering makes the mean of the shift less certain, and the normal, which some of these
         * steps gave; and about that normal they vary by less than they do in the long run */
        exponent *= fmax(1 - spread_of(history->fades, kept, known) / known, 0.1);
        exponent /= spread_of(history->fades, kept, steps) +
                    steps * (spread_of(history->fades, kept, known) - 1) / known;
    }
    return sqrt(2 * exponent * steps);
}

/* The distance from normal within which a share of the values lies. */
static double
distance_of(const struct cairn_history *history, double share)
{
    uint32_t wanted = (uint32_t)ceil(share * history->values), within = history->bins[BINS / 2];

    for (uint32_t far = 1; far <= BINS / 2; far++) {
        if (within >= wanted)
            return value_of(history, BINS / 2 + far - 1) + history->reach / (BINS - 1);
        within += history->bins[BINS / 2 + far] + history->bins[BINS / 2 - far];
    }
    return history->reach;
}

bool
cairn_history_has_tail(const struct cairn_history *history)
{
    double one = distance_of(history, one_share);

    return fmax(distance_of(history, two_share) / 2, distance_of(history, most_share) / 2.576) >
           normal_margin * one;
}

double
cairn_history_wander_score(const struct cairn_history *history, double size, uint32_t steps)
{
    double kept = cairn_history_kept(history), known, deviation, variance;

    if (history->values < VALUES_MIN)
        return (double)INFINITY;
    known = (double)history->values / history->series;
    deviation = fmax(distance_of(history, one_share), distance_of(history, two_share) / 2);
    if (history->kind ==
        CAIRN_HISTORY_CHANNELS) { /* none is in a shift: what is far from normal is congestion */
        deviation = fmax(deviation, distance_of(history, most_share) / 2.576);
        if (cairn_history_has_tail(history))
            return 0;
    }
    variance = spread_of(history->fades, kept, steps) / steps +
               spread_of(history->fades, kept, known) / known;
    return size / (tail_margin * deviation * sqrt(variance));
}

/* ---- innovations ---- */

/* The processes that noise is a sum of: what stays of each from one step to the next. */
enum { PROCESSES = 4, FIT_ROUNDS = 200, SERIES = 3 };
static const double stays[PROCESSES] = {0, 0.5, 0.8, 0.97};
static const double variance_floor = 1e-6;

/*
 * Fits the processes' variances to the variogram: half the mean square of differences of values
 * `far` apart is the sum of variance * (1 - stays^far). Multiplicative updates keep them positive
 * (Lee and Seung, Algorithms for Non-negative Matrix Factorization, 2001).
 */
static void
fit_variances(const struct cairn_history *history, double *variances)
{
    double shares[CAIRN_HISTORY_LAGS][PROCESSES], halves[CAIRN_HISTORY_LAGS] = {0};
    uint32_t lags = 0;

    CAIRN_ASSERT(history->lag_pairs[0] >= VALUES_MIN);
    for (; lags < CAIRN_HISTORY_LAGS && history->lag_pairs[lags] >= VALUES_MIN; lags++) {
        halves[lags] =
            fmax(history->lag_squares[lags] / history->lag_pairs[lags] / 2, variance_floor);
        for (uint32_t i = 0; i < PROCESSES; i++) /* relative errors count */
            shares[lags][i] = (1 - pow(stays[i], 1u << lags)) / halves[lags];
    }
    for (uint32_t i = 0; i < PROCESSES; i++)
        variances[i] = halves[0] / PROCESSES;
    for (uint32_t round = 0; round < FIT_ROUNDS; round++) {
        double up[PROCESSES] = {0}, down[PROCESSES] = {0};

        for (uint32_t lag = 0; lag < lags; lag++) {
            double sum = 0;

            for (uint32_t i = 0; i < PROCESSES; i++)
                sum += shares[lag][i] * variances[i];
            for (uint32_t i = 0; i < PROCESSES; i++) {
                up[i] += shares[lag][i];
                down[i] += shares[lag][i] * sum;
            }
        }
        for (uint32_t i = 0; i < PROCESSES; i++)
            variances[i] *= up[i] / down[i];
    }
}

/* A Kalman filter of the sum of the processes, for several series with the same noise. */
struct filter {
    double variances[PROCESSES];
    double covariance[PROCESSES][PROCESSES]; /* of the states */
    double states[SERIES][PROCESSES];
};

/* Takes the next value of each series: their innovations, and the variance of these. */
static double
filter_next(struct filter *filter, const double *values, double *innovations)
{
    double gain[PROCESSES] = {0}, variance = variance_floor;

    for (uint32_t i = 0; i < PROCESSES; i++) {
        for (uint32_t k = 0; k < PROCESSES; k++)
            gain[i] += filter->covariance[i][k];
        variance += gain[i];
    }
    for (uint32_t s = 0; s < SERIES; s++) {
        innovations[s] = values[s];
        for (uint32_t i = 0; i < PROCESSES; i++)
            innovations[s] -= filter->states[s][i];
        for (uint32_t i = 0; i < PROCESSES; i++)
            filter->states[s][i] =
                stays[i] * (filter->states[s][i] + gain[i] / variance * innovations[s]);
    }
    for (uint32_t i = 0; i < PROCESSES; i++) {
        for (uint32_t k = 0; k < PROCESSES; k++)
            filter->covariance[i][k] =
                stays[i] * stays[k] * (filter->covariance[i][k] - gain[i] * gain[k] / variance);
        filter->covariance[i][i] += (1 - stays[i] * stays[i]) * filter->variances[i];
    }
    return variance;
}

double
cairn_history_step_score(const struct cairn_history *history, const struct cairn_shift *shift,
                         double base, uint32_t steps)
{
    struct filter filter = {0};
    double moments[SERIES][SERIES] = {0}, left;

    if (history->lag_pairs[0] < VALUES_MIN)
        return 0;
    fit_variances(history, filter.variances);
    for (uint32_t i = 0; i < PROCESSES; i++)
        filter.covariance[i][i] = filter.variances[i];
    /* generalized least squares for the mean and the step, by the innovations of both */
    for (uint32_t back = shift->used; back-- > 0;) {
        double value = cairn_shift_value(shift, back) - base, innovations[SERIES];
        double values[SERIES] = {1, back < steps ? 1 : 0,
                                 fmax(fmin(value, history->reach), -history->reach)};
        double variance = filter_next(&filter, values, innovations);

        for (uint32_t i = 0; i < SERIES; i++)
            for (uint32_t k = 0; k < SERIES; k++)
                moments[i][k] += innovations[i] * innovations[k] / variance;
    }
    left = moments[0][0] * moments[1][1] - moments[0][1] * moments[0][1];
    if (!(left > 0))
        return 0;
    return (moments[0][0] * moments[1][2] - moments[0][1] * moments[0][2]) /
           sqrt(left * moments[0][0]);
}
