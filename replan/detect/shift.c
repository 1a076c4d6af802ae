/* replan/detect/shift.c - the last values of a series, and whether they have been shifted
 * upwards. */
#include "replan/detect/shift.h"
#include "base/assert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double clip_sigmas = 4, clip_sizes = 2, height_sigmas = 2;

void
cairn_shift_push(struct cairn_shift *shift, uint32_t step, double value)
{
    shift->value[shift->next] = (float)value;
    shift->step[shift->next] = step;
    shift->next = (shift->next + 1) % CAIRN_SHIFT_WINDOW;
    if (shift->used < CAIRN_SHIFT_WINDOW)
        shift->used++;
}

void
cairn_shift_clear(struct cairn_shift *shift)
{
    shift->used = 0;
    shift->next = 0;
}

static uint32_t
slot_of(const struct cairn_shift *shift, uint32_t back)
{
    CAIRN_ASSERT(back < CAIRN_SHIFT_WINDOW);
    return (shift->next + 2 * CAIRN_SHIFT_WINDOW - 1 - back) % CAIRN_SHIFT_WINDOW;
}

double
cairn_shift_value(const struct cairn_shift *shift, uint32_t back)
{
    return (double)shift->value[slot_of(shift, back)];
}

uint32_t
cairn_shift_step(const struct cairn_shift *shift, uint32_t back)
{
    return shift->step[slot_of(shift, back)];
}

static int
compare_floats(const void *left, const void *right)
{
    float a = *(const float *)left, b = *(const float *)right;

    return (a > b) - (a < b);
}

float
cairn_quantile(float *values, uint32_t count, double share)
{
    double place = share * (double)(count - 1);
    uint32_t low = (uint32_t)place;
    float part = (float)(place - (double)low);

    CAIRN_ASSERT(count > 0 && share >= 0 && share <= 1);
    qsort(values, count, sizeof *values, compare_floats);
    return low + 1 < count ? values[low] + part * (values[low + 1] - values[low]) : values[low];
}

double
cairn_shift_median(const struct cairn_shift *shift, uint32_t count)
{
    return cairn_shift_quantile(shift, count, 0.5);
}

double
cairn_shift_quantile(const struct cairn_shift *shift, uint32_t count, double share)
{
    float values[CAIRN_SHIFT_WINDOW];

    if (count > shift->used)
        count = shift->used;
    if (count == 0)
        return 0;
    for (uint32_t back = 0; back < count; back++)
        values[back] = (float)cairn_shift_value(shift, back);
    qsort(values, count, sizeof *values, compare_floats);
    return (double)values[(uint32_t)(share * (count - 1))];
}

/* A base that values before a shift have a say in. */
struct base {
    double value, values; /* as limits' */
};

static struct base
base_before(const struct cairn_shift_limits *limits, double sum, uint32_t count)
{
    struct base base = {limits->base, limits->base_values};

    if (limits->first_values == 0 || count <= limits->first_values)
        return base;
    base.value = (limits->base * limits->base_values + limits->base * count + sum) /
                 (limits->base_values + count);
    base.values = limits->base_values + count - limits->first_values;
    return base;
}

double
cairn_shift_height(const struct cairn_shift *shift, uint32_t skip, uint32_t count, double sigma)
{
    double reach = height_sigmas * sigma, middle, sum = 0;
    float values[CAIRN_SHIFT_WINDOW];

    if (skip >= shift->used || count == 0)
        return 0;
    if (count > shift->used - skip)
        count = shift->used - skip;
    for (uint32_t i = 0; i < count; i++)
        values[i] = (float)cairn_shift_value(shift, skip + i);
    middle = (double)cairn_quantile(values, count, 0.5);
    for (uint32_t i = 0; i < count; i++)
        sum += fmax(fmin((double)values[i] - middle, reach), -reach);
    return middle + sum / count;
}

uint32_t
cairn_shift_tail(const struct cairn_shift *shift, double base, double size, double sigma,
                 uint32_t steps, double *sure)
{
    double sum = 0, best = 0;
    uint32_t tail = 0;

    for (uint32_t n = 1; n <= steps && n <= shift->used; n++) {
        sum += fmax(fmin(base + size / 2 - cairn_shift_value(shift, n - 1), size), -size);
        if (sum > best) {
            best = sum;
            tail = n;
        }
    }
    *sure = best * size / (sigma * sigma);
    return tail;
}

/* The base with what stands before the last `steps` values. */
static struct base
base_at(const struct cairn_shift *shift, const struct cairn_shift_limits *limits, uint32_t steps,
        double clip)
{
    double sum = 0;

    for (uint32_t n = steps; n < shift->used; n++)
        sum += fmin(cairn_shift_value(shift, n) - limits->base, clip);
    return base_before(limits, sum, shift->used - steps);
}

/*
 * How many of the last steps_max values belong to a shift of size `latest` over `base`. Clipped
 * values cannot tell a large shift from a smaller disturbance before it, a pause or a busy moment.
 * The likeliest onset of a step from 0 to `latest` is where the sum of the values less half its
 * size is largest (Page's cumulative sum; E. S. Page, Continuous Inspection Schemes, 1954).
 */
static uint32_t
steps_of_large(const struct cairn_shift *shift, double base, double latest, uint32_t steps_max)
{
    double sum = 0, best = 0;
    uint32_t steps = 0;

    for (uint32_t n = 1; n <= steps_max; n++) {
        sum += fmax(fmin(cairn_shift_value(shift, n - 1) - base, latest), 0) - latest / 2;
        if (sum >= best) {
            best = sum;
            steps = n;
        }
    }
    return steps;
}

bool
cairn_shift_find(const struct cairn_shift *shift, const struct cairn_shift_limits *limits,
                 struct cairn_shift_found *found)
{
    double clip = cairn_shift_reach(limits);
    double sum = 0, whole = 0, best = 0, latest;
    uint32_t best_steps = 0;
    struct base before;

    if (shift->used < limits->steps_min ||
        cairn_shift_recent(shift, limits->steps_min) <= limits->base)
        return false;
    for (uint32_t n = 0; n < shift->used; n++)
        whole += fmin(cairn_shift_value(shift, n) - limits->base, clip);
    for (uint32_t n = 1; n <= shift->used; n++) {
        struct base base;
        double score;

        sum += fmin(cairn_shift_value(shift, n - 1) - limits->base, clip);
        base = base_before(limits, whole - sum, shift->used - n);
        score = (sum / n - (base.value - limits->base)) /
                (limits->sigma * sqrt(1.0 / n + 1 / base.values));
        if (n >= limits->steps_min && score > best) {
            best = score;
            best_steps = n;
        }
    }
    if (best < limits->score_min)
        return false;
    latest = cairn_shift_median(shift, limits->steps_min) - limits->base;
    if (latest > clip)
        best_steps = steps_of_large(shift, limits->base, latest, best_steps);
    if (best_steps < limits->steps_min)
        return false;
    before = base_at(shift, limits, best_steps, clip);
    found->base = before.value;
    found->base_values = before.values;
    found->score = best;
    found->steps = best_steps;
    found->size = cairn_shift_median(shift, best_steps) - limits->base;
    found->since_step = cairn_shift_step(shift, best_steps - 1);
    return found->size >= limits->size_min;
}

double
cairn_shift_reach(const struct cairn_shift_limits *limits)
{
    return fmax(clip_sigmas * limits->sigma, clip_sizes * limits->size_min);
}

double
cairn_shift_mean(const struct cairn_shift *shift, double base, double reach, uint32_t count)
{
    double sum = 0;

    for (uint32_t back = 0; back < count; back++)
        sum += fmin(cairn_shift_value(shift, back) - base, reach);
    return sum / count;
}

double
cairn_shift_recent(const struct cairn_shift *shift, uint32_t count)
{
    double sum = 0;

    if (count > shift->used)
        count = shift->used;
    for (uint32_t back = 0; back < count; back++)
        sum += cairn_shift_value(shift, back);
    return count > 0 ? sum / (double)count : 0;
}
