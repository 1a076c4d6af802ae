/* replan/bound/lp.c - a linear program that grows by columns. */
#include "replan/bound/lp.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LITTLE 1e-9 /* a gain, or a use, that counts as none */

struct activity {
    double gain;
    uint32_t first; /* of its entries */
    uint32_t count;
    bool in_basis;
};

/* Activities from limit_count on are those that were added; earlier activities are what is left of
 * each limit. */
struct cairn_lp {
    uint32_t limit_count;
    uint32_t activity_count;
    uint32_t activity_room;
    uint32_t entry_count;
    uint32_t entry_room;
    struct activity *activities;
    struct cairn_lp_entry *entries;
    double *inverse; /* [limit_count][limit_count] */
    double *amount;  /* [limit_count] of the activities in the basis */
    double *price;   /* [limit_count] */
    double *column;  /* [limit_count] */
    uint32_t *basis; /* [limit_count] activities */
};

cairn_err
cairn_lp_create(const double *limits, uint32_t limit_count, struct cairn_lp **out)
{
    struct cairn_lp *lp = calloc(1, sizeof(*lp));
    size_t room = (size_t)limit_count + 1;

    if (!lp)
        return CAIRN_NOMEM;
    lp->limit_count = limit_count;
    lp->inverse = calloc(room * room, sizeof(*lp->inverse));
    lp->amount = calloc(room, sizeof(*lp->amount));
    lp->price = calloc(room, sizeof(*lp->price));
    lp->column = calloc(room, sizeof(*lp->column));
    lp->basis = calloc(room, sizeof(*lp->basis));
    if (!lp->inverse || !lp->amount || !lp->price || !lp->column || !lp->basis)
        goto failed;
    for (uint32_t i = 0; i < limit_count; i++) {
        const struct cairn_lp_entry left = {i, 1};

        if (cairn_lp_add(lp, 0, &left, 1))
            goto failed;
        lp->activities[i].in_basis = true;
        lp->inverse[(size_t)i * limit_count + i] = 1;
        lp->amount[i] = limits[i];
        lp->basis[i] = i;
    }
    *out = lp;
    return CAIRN_OK;
failed:
    cairn_lp_destroy(lp);
    return CAIRN_NOMEM;
}

void
cairn_lp_destroy(struct cairn_lp *lp)
{
    if (!lp)
        return;
    free(lp->activities);
    free(lp->entries);
    free(lp->inverse);
    free(lp->amount);
    free(lp->price);
    free(lp->column);
    free(lp->basis);
    free(lp);
}

cairn_err
cairn_lp_add(struct cairn_lp *lp, double gain, const struct cairn_lp_entry *entries,
             uint32_t entry_count)
{
    if (lp->activity_count == lp->activity_room) {
        uint32_t room = lp->activity_room ? 2 * lp->activity_room : 64;
        struct activity *grown = realloc(lp->activities, room * sizeof(*grown));

        if (!grown)
            return CAIRN_NOMEM;
        lp->activities = grown;
        lp->activity_room = room;
    }
    if (lp->entry_room - lp->entry_count < entry_count) {
        uint32_t room = 2 * lp->entry_room + entry_count + 256;
        struct cairn_lp_entry *grown = realloc(lp->entries, room * sizeof(*grown));

        if (!grown)
            return CAIRN_NOMEM;
        lp->entries = grown;
        lp->entry_room = room;
    }
    if (entry_count > 0)
        memcpy(lp->entries + lp->entry_count, entries, entry_count * sizeof(*entries));
    lp->activities[lp->activity_count++] =
        (struct activity){gain, lp->entry_count, entry_count, false};
    lp->entry_count += entry_count;
    return CAIRN_OK;
}

static void
set_prices(struct cairn_lp *lp)
{
    memset(lp->price, 0, lp->limit_count * sizeof(*lp->price));
    for (uint32_t row = 0; row < lp->limit_count; row++) {
        double gain = lp->activities[lp->basis[row]].gain;

        for (uint32_t i = 0; (gain < 0 || gain > 0) && i < lp->limit_count; i++)
            lp->price[i] += gain * lp->inverse[(size_t)row * lp->limit_count + i];
    }
}

/* The activity that gains most beyond the prices of what it uses; activity_count: there is none. */
static uint32_t
choose(const struct cairn_lp *lp)
{
    uint32_t chosen = lp->activity_count;
    double most = LITTLE;

    for (uint32_t i = 0; i < lp->activity_count; i++) {
        const struct activity *activity = &lp->activities[i];
        double gain = activity->gain;

        if (activity->in_basis)
            continue;
        for (uint32_t j = activity->first; j < activity->first + activity->count; j++)
            gain -= lp->price[lp->entries[j].limit] * lp->entries[j].uses;
        if (gain > most) {
            most = gain;
            chosen = i;
        }
    }
    return chosen;
}

/* What one of an activity takes from each of the basis. The row that is used up first; limit_count:
 * none is. */
static uint32_t
set_column(struct cairn_lp *lp, uint32_t chosen)
{
    const struct activity *activity = &lp->activities[chosen];
    uint32_t leaving = lp->limit_count;
    double least = 0;

    for (uint32_t row = 0; row < lp->limit_count; row++) {
        const double *inverse = lp->inverse + (size_t)row * lp->limit_count;
        double uses = 0, room;

        for (uint32_t j = activity->first; j < activity->first + activity->count; j++)
            uses += inverse[lp->entries[j].limit] * lp->entries[j].uses;
        lp->column[row] = uses;
        if (uses <= LITTLE)
            continue;
        room = lp->amount[row] / uses;
        if (leaving == lp->limit_count || room < least) {
            least = room;
            leaving = row;
        }
    }
    return leaving;
}

static void
exchange(struct cairn_lp *lp, uint32_t chosen, uint32_t leaving)
{
    double *pivot = lp->inverse + (size_t)leaving * lp->limit_count,
           scale = 1 / lp->column[leaving];

    for (uint32_t i = 0; i < lp->limit_count; i++)
        pivot[i] *= scale;
    lp->amount[leaving] *= scale;
    for (uint32_t row = 0; row < lp->limit_count; row++) {
        double *own = lp->inverse + (size_t)row * lp->limit_count, part = lp->column[row];

        if (row == leaving || !(part < 0 || part > 0))
            continue;
        for (uint32_t i = 0; i < lp->limit_count; i++)
            own[i] -= part * pivot[i];
        lp->amount[row] -= part * lp->amount[leaving];
        if (lp->amount[row] < 0) /* by rounding */
            lp->amount[row] = 0;
    }
    lp->activities[lp->basis[leaving]].in_basis = false;
    lp->activities[chosen].in_basis = true;
    lp->basis[leaving] = chosen;
}

double
cairn_lp_solve(struct cairn_lp *lp, uint32_t steps_max, const struct cairn_stop *stop)
{
    double gained = 0;

    set_prices(lp);
    for (uint32_t step = 0; step < steps_max && !stop->over(stop->context); step++) {
        uint32_t chosen = choose(lp), leaving;

        if (chosen == lp->activity_count)
            break;
        leaving = set_column(lp, chosen);
        if (leaving == lp->limit_count) /* gains without end: nothing is proved by that */
            break;
        exchange(lp, chosen, leaving);
        set_prices(lp);
    }
    for (uint32_t row = 0; row < lp->limit_count; row++)
        gained += lp->amount[row] * lp->activities[lp->basis[row]].gain;
    return gained;
}

double
cairn_lp_price(const struct cairn_lp *lp, uint32_t limit)
{
    return lp->price[limit];
}
