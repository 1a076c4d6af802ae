/*
 * replan/detect/shift.h - a series of small deviations from normal, and the search for the moment
 * since which it has been shifted upwards.
 *
 * Values are logarithms of (measured / normal), near 0 while nothing is wrong. A shift of the last
 * n values is believed when three things hold: their sum, each value clipped so that one pause
 * weighs little, is score_min standard errors above the base (which is itself known from a number
 * of values alone, or also from what stands before the shift); the lower median is at least
 * size_min, so that more than half of them are really high; and n is at least steps_min. The n with
 * the largest score gives the onset. This is a likelihood ratio over all onsets in the window, with
 * a verification.
 */
#ifndef CAIRN_REPLAN_DETECT_SHIFT_H
#define CAIRN_REPLAN_DETECT_SHIFT_H

#include <stdbool.h>
#include <stdint.h>

enum { CAIRN_SHIFT_WINDOW = 64 };

struct cairn_shift {
    float value[CAIRN_SHIFT_WINDOW];
    uint32_t step[CAIRN_SHIFT_WINDOW];
    uint32_t used, next;
};

struct cairn_shift_limits {
    double sigma;          /* standard deviation of one value while nothing is wrong */
    double base;           /* what is normal for a value */
    double base_values;    /* how many values that is known from */
    uint32_t first_values; /* where not 0: what stands before a shift tells the base too, but for as
                            * many values, from which the base is known already */
    double score_min;
    double size_min;
    uint32_t steps_min;
};

struct cairn_shift_found {
    double score;
    double size;              /* lower median of the shifted values, over the limits' base */
    double base, base_values; /* as the limits', with what stands before the shift */
    uint32_t since_step;
    uint32_t steps; /* values since then */
};

void cairn_shift_push(struct cairn_shift *shift, uint32_t step, double value);
void cairn_shift_clear(struct cairn_shift *shift);
/* The value pushed `back` pushes ago (0: the last); back < used. */
double cairn_shift_value(const struct cairn_shift *shift, uint32_t back);
uint32_t cairn_shift_step(const struct cairn_shift *shift, uint32_t back);
/* True with *found where the series ends in a shift. */
bool cairn_shift_find(const struct cairn_shift *shift, const struct cairn_shift_limits *limits,
                      struct cairn_shift_found *found);
/* What is further above the base counts as so far above. */
double cairn_shift_reach(const struct cairn_shift_limits *limits);
/* Mean of the last `count` values over a base, those out of reach counted as so far away; count >
 * 0. */
double cairn_shift_mean(const struct cairn_shift *shift, double base, double reach, uint32_t count);
/* Lower median of the last `count` values, fewer where there are fewer; 0 without any. */
double cairn_shift_median(const struct cairn_shift *shift, uint32_t count);
/* The same for the value below which a share of them lies (0 to 1). */
double cairn_shift_quantile(const struct cairn_shift *shift, uint32_t count, double share);
/* How many of the last values come after the end of a shift by `size` over `base` that has lasted
 * for `steps` values, if it has ended: those of the likeliest moment; 0 where no moment is likelier
 * than that it goes on. *sure: by how much, as a logarithm. */
uint32_t cairn_shift_tail(const struct cairn_shift *shift, double base, double size, double sigma,
                          uint32_t steps, double *sure);
/* Mean of `count` values before the last `skip` (fewer where there are fewer), with those that are
 * more than two sigmas from their median counted as so far away: of noise nearly as good as the
 * mean, and a pause weighs little. 0 without any. */
double cairn_shift_height(const struct cairn_shift *shift, uint32_t skip, uint32_t count,
                          double sigma);
/* Mean of the last `count` values, fewer where there are fewer; 0 without any. */
double cairn_shift_recent(const struct cairn_shift *shift, uint32_t count);

/* The value below which a share of values[count] lies (0 … 1), interpolated; sorts them. count >
 * 0. */
float cairn_quantile(float *values, uint32_t count, double share);

#endif
