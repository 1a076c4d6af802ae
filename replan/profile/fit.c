/* replan/profile/fit.c - a profile's coefficients from what was measured. */
#include "replan/profile/fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNKNOWNS_MAX = 3 };
#define FAR_OFF 5.0    /* times the median error: such samples are left out */
#define ERROR_MIN 1e-3 /* but none that is this near */
#define OPEN 1e-9      /* a pivot of that part of the largest: the samples leave its unknown open */

/* measured = sum of part[i] * unknown[i] */
struct equation {
    double part[UNKNOWNS_MAX];
    double measured;
    bool left_out;
};

/* Solves the normal equations of those that are not left out, each over what it measured. False
 * where an unknown is open. */
static bool
solve(const struct equation *equations, uint32_t count, uint32_t unknowns, double *out)
{
    double rows[UNKNOWNS_MAX][UNKNOWNS_MAX + 1] = {{0}}, scale[UNKNOWNS_MAX] = {0};

    for (uint32_t e = 0; e < count; e++)
        for (uint32_t i = 0; !equations[e].left_out && i < unknowns; i++)
            scale[i] = fmax(scale[i], fabs(equations[e].part[i] / equations[e].measured));
    for (uint32_t i = 0; i < unknowns; i++)
        if (scale[i] <= 0)
            return false;
    for (uint32_t e = 0; e < count; e++)
        for (uint32_t i = 0; !equations[e].left_out && i < unknowns; i++) {
            double own = equations[e].part[i] / equations[e].measured / scale[i];

            for (uint32_t j = 0; j < unknowns; j++)
                rows[i][j] += own * equations[e].part[j] / equations[e].measured / scale[j];
            rows[i][unknowns] += own;
        }
    for (uint32_t i = 0; i < unknowns; i++) {
        uint32_t pivot = i;

        for (uint32_t r = i + 1; r < unknowns; r++)
            if (fabs(rows[r][i]) > fabs(rows[pivot][i]))
                pivot = r;
        if (fabs(rows[pivot][i]) < OPEN * count)
            return false;
        for (uint32_t c = 0; c <= unknowns; c++) {
            double moved = rows[i][c];

            rows[i][c] = rows[pivot][c];
            rows[pivot][c] = moved;
        }
        for (uint32_t r = 0; r < unknowns; r++) {
            double times = rows[r][i] / rows[i][i];

            for (uint32_t c = i; r != i && c <= unknowns; c++)
                rows[r][c] -= times * rows[i][c];
        }
    }
    for (uint32_t i = 0; i < unknowns; i++)
        out[i] = rows[i][unknowns] / rows[i][i] / scale[i];
    return true;
}

static double
error_of(const struct equation *equation, uint32_t unknowns, const double *found)
{
    double said = 0;

    for (uint32_t i = 0; i < unknowns; i++)
        said += equation->part[i] * found[i];
    return fabs(said / equation->measured - 1);
}

static int
ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return a < b ? -1 : a > b;
}

/* Fits, leaves out what is far off, and fits again. CAIRN_INVAL: an unknown is open. */
static cairn_err
fit_equations(struct equation *equations, uint32_t count, uint32_t unknowns, double *out,
              struct cairn_fit *fit)
{
    double *errors = calloc((size_t)count + 1, sizeof(*errors)), median, sum = 0;
    cairn_err err = errors ? CAIRN_OK : CAIRN_NOMEM;

    if (!err && (count < unknowns || !solve(equations, count, unknowns, out)))
        err = CAIRN_INVAL;
    for (uint32_t e = 0; !err && e < count; e++)
        errors[e] = error_of(&equations[e], unknowns, out);
    if (!err) {
        qsort(errors, count, sizeof(*errors), ascending);
        median = errors[count / 2];
        for (uint32_t e = 0; e < count; e++)
            equations[e].left_out =
                error_of(&equations[e], unknowns, out) > fmax(FAR_OFF * median, ERROR_MIN);
        if (!solve(equations, count, unknowns, out))
            err = CAIRN_INVAL; /* what was left out said it alone */
    }
    fit->used = 0;
    for (uint32_t e = 0; !err && e < count; e++)
        if (!equations[e].left_out) {
            sum += pow(error_of(&equations[e], unknowns, out), 2);
            fit->used++;
        }
    if (!err)
        fit->error_rms = sqrt(sum / fit->used);
    free(errors);
    return err;
}

static cairn_err
open_unknown(struct cairn_fault *fault, const char *what)
{
    (void)snprintf(fault->text, sizeof(fault->text), "%s", what);
    return CAIRN_INVAL;
}

static struct equation *
equations_of(uint32_t count)
{
    return calloc((size_t)count + 1, sizeof(struct equation));
}

cairn_err
cairn_fit_stages(const struct cairn_stage_sample *samples, uint32_t count,
                 struct cairn_problem *problem, struct cairn_fit *fit, struct cairn_fault *fault)
{
    struct equation *equations = equations_of(count);
    double found[UNKNOWNS_MAX] = {0};
    bool has_first = false, has_last = false;
    uint32_t first_at, last_at;
    cairn_err err = equations ? CAIRN_OK : CAIRN_NOMEM;

    for (uint32_t i = 0; !err && i < count; i++) {
        if (!(samples[i].ms > 0) || samples[i].ms == INFINITY || samples[i].layers == 0)
            err = open_unknown(fault,
                               "a stage sample needs at least one layer and a time above 0 ms");
        has_first = has_first || samples[i].first;
        has_last = has_last || samples[i].last;
    }
    first_at = 1;
    last_at = 1 + has_first;
    for (uint32_t i = 0; !err && i < count; i++) {
        equations[i].part[0] = samples[i].layers;
        if (samples[i].first)
            equations[i].part[first_at] = 1;
        if (samples[i].last)
            equations[i].part[last_at] = 1;
        equations[i].measured = samples[i].ms;
    }
    if (!err) {
        err = fit_equations(equations, count, 1u + has_first + has_last, found, fit);
        if (err == CAIRN_INVAL)
            (void)open_unknown(
                fault,
                "the samples of stages leave a time open; measure a stage without vocabulary, or "
                "first and last stages of several numbers of layers");
    }
    free(equations);
    if (!err && !(found[0] > 0))
        err = open_unknown(fault,
                           "by these samples a layer takes no time: they contradict each other");
    if (err)
        return err;
    problem->layer_ms = found[0];
    if (has_first) /* below nothing is noise around nothing */
        problem->embed_layers = fmax(0, found[first_at] / found[0]);
    if (has_last)
        problem->head_layers = fmax(0, found[last_at] / found[0]);
    return CAIRN_OK;
}

cairn_err
cairn_fit_link(const struct cairn_link_sample *samples, uint32_t count, double *gbps,
               double *latency_ms, struct cairn_fit *fit, struct cairn_fault *fault)
{
    struct equation *equations = equations_of(count);
    double found[UNKNOWNS_MAX] = {0};
    cairn_err err = equations ? CAIRN_OK : CAIRN_NOMEM;

    for (uint32_t i = 0; !err && i < count; i++) {
        if (!(samples[i].ms > 0) || samples[i].ms == INFINITY || samples[i].bytes == 0)
            err = open_unknown(fault, "a transfer needs at least one byte and a time above 0 ms");
        equations[i].part[0] = (double)samples[i].bytes;
        equations[i].part[1] = 1;
        equations[i].measured = samples[i].ms;
    }
    if (!err) {
        err = fit_equations(equations, count, 2, found, fit);
        if (err == CAIRN_INVAL)
            (void)open_unknown(
                fault, "the transfers leave bandwidth and latency open; measure several sizes");
    }
    free(equations);
    if (!err && !(found[0] > 0))
        err = open_unknown(
            fault, "by these transfers more bytes take no longer; measure larger transfers");
    if (err)
        return err;
    *gbps = 8e-6 / found[0];
    *latency_ms = fmax(0, found[1]);
    return CAIRN_OK;
}

static uint64_t
whole_bytes(double bytes)
{
    return bytes > 0 ? (uint64_t)(fmin(bytes, (double)CAIRN_PROBLEM_BYTES_MAX) + 0.5) : 0;
}

/* The columns of a set of unknowns, in front of the others. */
static uint32_t
choose_columns(const struct equation *all, uint32_t count, unsigned set, struct equation *chosen)
{
    uint32_t columns = 0;

    for (uint32_t i = 0; i < UNKNOWNS_MAX; i++) {
        if (!(set & 1u << i))
            continue;
        for (uint32_t e = 0; e < count; e++) {
            chosen[e].part[columns] = all[e].part[i];
            chosen[e].measured = all[e].measured;
            chosen[e].left_out = false;
        }
        columns++;
    }
    return columns;
}

static bool
is_independent(const struct equation *all, uint32_t count, unsigned set, struct equation *chosen)
{
    double found[UNKNOWNS_MAX];
    uint32_t columns = choose_columns(all, count, set, chosen);

    return count >= columns && solve(chosen, count, columns, found);
}

/* Those unknowns whose column is not a sum of the others'. *basis: as many as can be fitted, these
 * among them. */
static unsigned
told_unknowns(const struct equation *all, uint32_t count, struct equation *chosen, unsigned *basis)
{
    unsigned told = 0;

    for (uint32_t i = 0; i < UNKNOWNS_MAX; i++) {
        unsigned others = 0;

        for (uint32_t k = 0; k < UNKNOWNS_MAX; k++)
            if (k != i && is_independent(all, count, others | 1u << k, chosen))
                others |= 1u << k;
        if (is_independent(all, count, others | 1u << i, chosen))
            told |= 1u << i;
    }
    *basis = told;
    for (uint32_t i = 0; i < UNKNOWNS_MAX; i++)
        if (is_independent(all, count, *basis | 1u << i, chosen))
            *basis |= 1u << i;
    return told;
}

/* Fits the unknowns of the set; what would be below nothing is nothing, and the others are fitted
 * without it. */
static cairn_err
fit_not_negative(const struct equation *all, uint32_t count, unsigned set, struct equation *chosen,
                 double *found, struct cairn_fit *fit)
{
    for (;;) {
        double values[UNKNOWNS_MAX] = {0}, least = 0;
        uint32_t columns = choose_columns(all, count, set, chosen), column = 0,
                 worst = UNKNOWNS_MAX;
        cairn_err err = set ? fit_equations(chosen, count, columns, values, fit) : CAIRN_INVAL;

        if (err)
            return err;
        for (uint32_t i = 0; i < UNKNOWNS_MAX; i++) {
            found[i] = set & 1u << i ? values[column++] : 0;
            if (found[i] < least) {
                least = found[i];
                worst = i;
            }
        }
        if (worst == UNKNOWNS_MAX)
            return CAIRN_OK;
        set &= ~(1u << worst);
    }
}

cairn_err
cairn_fit_memory(const struct cairn_memory_sample *samples, uint32_t count,
                 struct cairn_problem *problem, struct cairn_memory_told *told,
                 struct cairn_fit *fit, struct cairn_fault *fault)
{
    struct equation *equations = equations_of(count), *chosen = equations_of(count);
    double found[UNKNOWNS_MAX] = {0};
    unsigned known = 0, basis = 0;
    cairn_err err = equations && chosen ? CAIRN_OK : CAIRN_NOMEM;

    if (!err && count == 0)
        err = open_unknown(fault, "there are no samples of memory");
    for (uint32_t i = 0; !err && i < count; i++) {
        if (samples[i].group_size == 0 || samples[i].layers == 0 || samples[i].in_flight == 0 ||
            samples[i].device_bytes == 0) {
            err = open_unknown(fault, "a memory sample needs layers, a micro-batch, and a group of "
                                      "at least one device, which holds something");
            break;
        }
        equations[i].part[0] = (double)samples[i].layers / samples[i].group_size;
        equations[i].part[1] =
            (double)samples[i].layers * samples[i].in_flight / samples[i].group_size;
        equations[i].part[2] = 1;
        equations[i].measured = (double)samples[i].device_bytes;
    }
    if (!err)
        known = told_unknowns(equations, count, chosen, &basis);
    if (!err && known) {
        err = fit_not_negative(equations, count, basis, chosen, found, fit);
        if (err == CAIRN_INVAL) { /* what is far off said it alone */
            known = 0;
            err = CAIRN_OK;
        }
    }
    free(equations);
    free(chosen);
    if (err)
        return err;
    *told = (struct cairn_memory_told){known & 1u, known & 2u, known & 4u};
    problem->layer_bytes = told->layer ? whole_bytes(found[0]) : problem->layer_bytes;
    problem->activation_bytes =
        told->activation ? whole_bytes(found[1]) : problem->activation_bytes;
    problem->reserved_bytes = told->reserved ? whole_bytes(found[2]) : problem->reserved_bytes;
    return CAIRN_OK;
}
