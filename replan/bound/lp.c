/* replan/bound/lp.c - a linear program that grows by columns. */
#include "replan/bound/lp.h"
#include "base/assert.h"
#include "base/array.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LITTLE 1e-9 /* values up to this count as 0 */

struct column {
    double objective;
    uint32_t first; /* of its entries */
    uint32_t count;
    bool in_basis;
};

/* The first row_count columns are the rows' slacks, the others were added. */
struct cairn_lp {
    uint32_t row_count;
    uint32_t column_count;
    uint32_t entry_count;
    uint32_t entry_room;
    struct column *columns;
    struct cairn_lp_entry *entries;
    double *inverse;   /* [row_count][row_count] */
    double *amount;    /* [row_count] of the columns in the basis */
    double *price;     /* [row_count] */
    double *direction; /* [row_count] */
    uint32_t *basis;   /* [row_count] columns */
};

cairn_err
cairn_lp_create(const double *rhs, uint32_t row_count, struct cairn_lp **out)
{
    struct cairn_lp *lp = calloc(1, sizeof(*lp));
    size_t room = (size_t)row_count + 1;

    if (!lp)
        return CAIRN_NOMEM;
    lp->row_count = row_count;
    lp->inverse = calloc(room * room, sizeof(*lp->inverse));
    lp->amount = calloc(room, sizeof(*lp->amount));
    lp->price = calloc(room, sizeof(*lp->price));
    lp->direction = calloc(room, sizeof(*lp->direction));
    lp->basis = calloc(room, sizeof(*lp->basis));
    if (!lp->inverse || !lp->amount || !lp->price || !lp->direction || !lp->basis)
        goto failed;
    for (uint32_t i = 0; i < row_count; i++) {
        const struct cairn_lp_entry left = {i, 1};

        CAIRN_ASSERT(rhs[i] >= 0);
        if (cairn_lp_add(lp, 0, &left, 1))
            goto failed;
        lp->columns[i].in_basis = true;
        lp->inverse[(size_t)i * row_count + i] = 1;
        lp->amount[i] = rhs[i];
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
    free(lp->columns);
    free(lp->entries);
    free(lp->inverse);
    free(lp->amount);
    free(lp->price);
    free(lp->direction);
    free(lp->basis);
    free(lp);
}

cairn_err
cairn_lp_add(struct cairn_lp *lp, double objective, const struct cairn_lp_entry *entries,
             uint32_t entry_count)
{
    for (uint32_t i = 0; i < entry_count; i++)
        CAIRN_ASSERT(entries[i].row < lp->row_count);
    if (!cairn_array_grow(&lp->columns, lp->column_count, sizeof *lp->columns))
        return CAIRN_NOMEM;
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
    lp->columns[lp->column_count++] =
        (struct column){objective, lp->entry_count, entry_count, false};
    lp->entry_count += entry_count;
    return CAIRN_OK;
}

static void
set_prices(struct cairn_lp *lp)
{
    memset(lp->price, 0, lp->row_count * sizeof(*lp->price));
    for (uint32_t row = 0; row < lp->row_count; row++) {
        double objective = lp->columns[lp->basis[row]].objective;

        for (uint32_t i = 0; (objective < 0 || objective > 0) && i < lp->row_count; i++)
            lp->price[i] += objective * lp->inverse[(size_t)row * lp->row_count + i];
    }
}

/* The entering column: the one with the largest reduced cost; column_count: none is positive. */
static uint32_t
choose(const struct cairn_lp *lp)
{
    uint32_t chosen = lp->column_count;
    double most = LITTLE;

    for (uint32_t i = 0; i < lp->column_count; i++) {
        const struct column *column = &lp->columns[i];
        double reduced = column->objective;

        if (column->in_basis)
            continue;
        for (uint32_t j = column->first; j < column->first + column->count; j++)
            reduced -= lp->price[lp->entries[j].row] * lp->entries[j].value;
        if (reduced > most) {
            most = reduced;
            chosen = i;
        }
    }
    return chosen;
}

/* Computes the direction: by how much each basic column falls per unit of the chosen one. Returns
 * the row that reaches 0 first (the ratio test); row_count: none does. */
static uint32_t
set_direction(struct cairn_lp *lp, uint32_t chosen)
{
    const struct column *column = &lp->columns[chosen];
    uint32_t leaving = lp->row_count;
    double least = 0;

    for (uint32_t row = 0; row < lp->row_count; row++) {
        const double *inverse = lp->inverse + (size_t)row * lp->row_count;
        double value = 0, room;

        for (uint32_t j = column->first; j < column->first + column->count; j++)
            value += inverse[lp->entries[j].row] * lp->entries[j].value;
        lp->direction[row] = value;
        if (value <= LITTLE)
            continue;
        room = lp->amount[row] / value;
        if (leaving == lp->row_count || room < least) {
            least = room;
            leaving = row;
        }
    }
    return leaving;
}

static void
exchange(struct cairn_lp *lp, uint32_t chosen, uint32_t leaving)
{
    double *pivot = lp->inverse + (size_t)leaving * lp->row_count,
           scale = 1 / lp->direction[leaving];

    for (uint32_t i = 0; i < lp->row_count; i++)
        pivot[i] *= scale;
    lp->amount[leaving] *= scale;
    for (uint32_t row = 0; row < lp->row_count; row++) {
        double *own = lp->inverse + (size_t)row * lp->row_count, part = lp->direction[row];

        if (row == leaving || !(part < 0 || part > 0))
            continue;
        for (uint32_t i = 0; i < lp->row_count; i++)
            own[i] -= part * pivot[i];
        lp->amount[row] -= part * lp->amount[leaving];
        if (lp->amount[row] < 0) /* by rounding */
            lp->amount[row] = 0;
    }
    lp->columns[lp->basis[leaving]].in_basis = false;
    lp->columns[chosen].in_basis = true;
    lp->basis[leaving] = chosen;
}

double
cairn_lp_solve(struct cairn_lp *lp, uint32_t steps_max, const struct cairn_stop *stop)
{
    double objective = 0;

    set_prices(lp);
    for (uint32_t step = 0; step < steps_max && !stop->over(stop->context); step++) {
        uint32_t chosen = choose(lp), leaving;

        if (chosen == lp->column_count)
            break;
        leaving = set_direction(lp, chosen);
        if (leaving == lp->row_count) /* unbounded: that proves nothing */
            break;
        exchange(lp, chosen, leaving);
        set_prices(lp);
    }
    for (uint32_t row = 0; row < lp->row_count; row++)
        objective += lp->amount[row] * lp->columns[lp->basis[row]].objective;
    return objective;
}

double
cairn_lp_price(const struct cairn_lp *lp, uint32_t row)
{
    return lp->price[row];
}
