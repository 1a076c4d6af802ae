/*
 * replan/detect/history.h - what a job has shown while nothing was wrong, as evidence against a
 * shift.
 *
 * The score of a shift takes its values for normal noise, each by itself. Two things are not: now
 * and then a value far above the others (congestion, few long sequences), and values that stay for
 * many steps what they are (lengths that wander). Both are seen in the values before the shift, of
 * the series itself and of others like it. With them, the chance that so many values in a row have
 * such a mean is bounded by Chernoff's inequality, min over a of E[exp(a x)]^n exp(-a n mean),
 * where n is less the more a value says of the next.
 */
#ifndef CAIRN_REPLAN_DETECT_HISTORY_H
#define CAIRN_REPLAN_DETECT_HISTORY_H

#include "replan/detect/shift.h"

enum {
    CAIRN_HISTORY_BINS = 65,
    CAIRN_HISTORY_LAGS = 6,        /* 1, 2, 4 … steps */
    CAIRN_HISTORY_SERIES_MAX = 256 /* of those that are like it, so many say enough */
};

/* What a value of such series says of the next. */
enum cairn_history_kind {
    CAIRN_HISTORY_CHANNELS, /* what all show together: congestion is rare, short and fades fast */
    /* Some of the series may be in a shift of their own. Lengths are dealt afresh in each step, so
     * that what nodes keep must be proven: what most of them show, and not by chance. */
    CAIRN_HISTORY_NODES,
    /* Devices do wander, so that what ranks keep is the likeliest: their median. A lower quantile
     * of series that each are known to 0.2 is 0 even where a value keeps a fifth of the last one,
     * and the mean of 30 such values varies nearly twice as much as that of independent values. */
    CAIRN_HISTORY_RANKS
};

struct cairn_history {
    enum cairn_history_kind kind;
    double fades;                      /* of what a value says of the next, from step to step */
    double reach;                      /* what is further from normal counts as so far away */
    uint32_t bins[CAIRN_HISTORY_BINS]; /* values, from -reach to reach */
    uint32_t values, series;
    float kept[CAIRN_HISTORY_SERIES_MAX]; /* of the first series that are long enough: the
                                           * correlation of a value with the next */
    uint32_t kept_count;
    double squares, products; /* … and of what that comes from, of all of these */
    uint32_t kept_values;
    double lag_squares[CAIRN_HISTORY_LAGS]; /* of differences of values so far apart */
    uint32_t lag_pairs[CAIRN_HISTORY_LAGS];
};

/* Empties it. reach > 0. */
void cairn_history_start(struct cairn_history *history, double reach, enum cairn_history_kind kind);
/* Adds what a series, whose normal is base, has shown before a step. */
void cairn_history_add(struct cairn_history *history, const struct cairn_shift *shift, double base,
                       uint32_t before_step);
/* How much a value says of the next, 0 to 1; except for ranks 0 where that may be chance. */
double cairn_history_kept(const struct cairn_history *history);
/*
 * The same as a score: how many standard errors above normal would be as unlikely as that `steps`
 * values in a row have this mean (over the base, none of them more than reach). INFINITY where too
 * little is known.
 */
double cairn_history_score(const struct cairn_history *history, double mean, uint32_t steps);
/* Whether more values are far from normal than a normal distribution has. */
bool cairn_history_has_tail(const struct cairn_history *history);
/*
 * The same for values that wander slowly, as an autoregressive process does, and seldom jump: the
 * shift's size in standard deviations of the difference of two averages of such values, that of the
 * shift and that of the normal. Unlike the score above it grows with the size beyond reach.
 * INFINITY where too little is known; 0 where channels have a long tail.
 */
double cairn_history_wander_score(const struct cairn_history *history, double size, uint32_t steps);
/*
 * The score of a step of the mean before the last `steps` values of a series, by the innovations of
 * its noise: white noise and autoregressive processes, whose variances are fitted to the variogram
 * of the history. A slow process moves little from one step to the next, so that a sudden shift
 * stands out where its averages vary as much. 0 where too little is known.
 */
double cairn_history_step_score(const struct cairn_history *history,
                                const struct cairn_shift *shift, double base, uint32_t steps);

#endif
