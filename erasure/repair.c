/* erasure/repair.c - walks the stripes line by line and deals out the work; see repair.h. */
#include "erasure/repair.h"

#include <stdlib.h>

#include "base/assert.h"

/* Lines of one stripe that are alike: the same chunks exist, and the same must be rebuilt. */
struct run {
    uint32_t stripe;
    uint64_t line_first;
    uint64_t line_end;
    uint64_t real;      /* positions whose chunk reaches these lines */
    uint64_t available; /* of those, readable */
    uint64_t rebuild;   /* of those, to be rebuilt */
};

void
cairn_bad_block_code(struct cairn_codec *codec, struct cairn_bad_block *bad)
{
    uint8_t area = (uint8_t)bad->area;

    cairn_codec_u8(codec, &area);
    cairn_codec_check(codec, area <= CAIRN_AREA_PARITY);
    bad->area = (enum cairn_area)area;
    cairn_codec_u64(codec, &bad->block);
}

static uint64_t
bit(uint32_t position)
{
    return (uint64_t)1 << position;
}

static uint32_t
count_of(uint64_t set)
{
    return (uint32_t)__builtin_popcountll(set);
}

static int
by_line(const void *left, const void *right)
{
    const struct cairn_bad_block *a = left, *b = right;

    if (a->stripe != b->stripe)
        return a->stripe < b->stripe ? -1 : 1;
    if (a->line != b->line)
        return a->line < b->line ? -1 : 1;
    return (a->position > b->position) - (a->position < b->position);
}

/* The bad positions at line `line` of the current stripe, from *at on, which moves behind them. */
static uint64_t
bad_at_line(const struct cairn_repair *repair, uint64_t line, size_t *at)
{
    const struct cairn_bad_block *bad = repair->request.bad;
    uint64_t set = 0;

    for (; *at < repair->request.bad_count && bad[*at].stripe == repair->stripe &&
           bad[*at].line == line;
         ++*at)
        set |= bit(bad[*at].position);
    return set;
}

/* The end of the run that begins at the current line, as far as bad blocks go; *bad: its set. */
static uint64_t
bad_run_end(const struct cairn_repair *repair, uint64_t line_end, uint64_t *bad)
{
    const struct cairn_bad_block *list = repair->request.bad;
    size_t at = repair->bad_at;
    uint64_t line = repair->line;

    *bad = bad_at_line(repair, line, &at);
    if (*bad == 0) {
        if (at < repair->request.bad_count && list[at].stripe == repair->stripe &&
            list[at].line < line_end)
            return list[at].line;
        return line_end;
    }
    if (line_end - line > CAIRN_MESSAGE_BLOCKS_MAX)
        line_end = line + CAIRN_MESSAGE_BLOCKS_MAX; /* more would be walked again for each item */
    do
        line++;
    while (line < line_end && bad_at_line(repair, line, &at) == *bad);
    return line;
}

/* Finds the run at the current stripe and line, whether or not it needs work. */
static struct run
run_here(const struct cairn_repair *repair)
{
    const struct cairn_stripes *stripes = repair->request.stripes;
    const struct cairn_geometry *geometry = &stripes->geometry;
    struct run run = {.stripe = repair->stripe, .line_first = repair->line};
    uint64_t parity, bad, all = cairn_geometry_all(geometry);

    run.line_end = stripes->parity_blocks[repair->stripe];
    for (uint32_t p = 0; p < geometry->n; p++) {
        uint64_t blocks = cairn_stripes_blocks(stripes, repair->stripe, p);

        if (blocks <= run.line_first)
            continue;
        run.real |= bit(p);
        if (blocks < run.line_end)
            run.line_end = blocks;
    }
    run.line_end = bad_run_end(repair, run.line_end, &bad);
    parity = geometry->m == 0 ? 0
                              : cairn_stripe_positions_of(geometry, repair->stripe,
                                                          all & ~(bit(geometry->k) - 1));
    bad &= repair->request.intact;
    run.available = run.real & repair->request.intact & ~bad;
    run.rebuild = run.real & ((repair->request.rebuild_data & ~parity) |
                              (repair->request.rebuild_parity & parity) | bad);
    return run;
}

/* Moves to the next run in which something must be rebuilt, cut to a message's length. */
static bool
run_next(struct cairn_repair *repair, struct run *out)
{
    const struct cairn_stripes *stripes = repair->request.stripes;
    const struct cairn_bad_block *bad = repair->request.bad;

    while (repair->stripe < stripes->geometry.n) {
        struct run run;

        if (repair->line >= stripes->parity_blocks[repair->stripe]) {
            repair->stripe++;
            repair->line = 0;
            continue;
        }
        while (repair->bad_at < repair->request.bad_count &&
               (bad[repair->bad_at].stripe < repair->stripe ||
                (bad[repair->bad_at].stripe == repair->stripe &&
                 bad[repair->bad_at].line < repair->line)))
            repair->bad_at++;
        run = run_here(repair);
        if (run.rebuild != 0 && run.line_end - run.line_first > CAIRN_MESSAGE_BLOCKS_MAX)
            run.line_end = run.line_first + CAIRN_MESSAGE_BLOCKS_MAX;
        repair->line = run.line_end;
        if (run.rebuild != 0) {
            *out = run;
            return true;
        }
    }
    return false;
}

/* The member of a set with the least load, the lowest of equals; the set is not empty. */
static uint32_t
least(uint64_t set, const uint64_t *load)
{
    uint32_t found = (uint32_t)__builtin_ctzll(set);

    for (uint64_t rest = set; rest != 0; rest &= rest - 1) {
        uint32_t p = (uint32_t)__builtin_ctzll(rest);

        if (load[p] < load[found])
            found = p;
    }
    return found;
}

bool
cairn_repair_next(struct cairn_repair *repair, struct cairn_repair_item *out)
{
    const struct cairn_geometry *geometry = &repair->request.stripes->geometry;
    struct cairn_repair_item item = {0};
    struct run run;
    uint64_t left;
    uint32_t need;

    if (!run_next(repair, &run))
        return false;
    item.stripe = run.stripe;
    item.line_first = run.line_first;
    item.line_count = (uint32_t)(run.line_end - run.line_first);
    item.rebuild = run.rebuild;
    item.sources = cairn_geometry_all(geometry) & ~run.real; /* zeros, for nothing */
    CAIRN_ASSERT(count_of(item.sources) < geometry->k);      /* the longest chunk is real */
    need = geometry->k - count_of(item.sources);
    CAIRN_ASSERT(count_of(run.available) >= need); /* proved by init */
    item.worker = least(run.available, repair->work);
    item.reads = bit(item.worker);
    left = run.available & ~item.reads;
    while (count_of(item.reads) < need) {
        uint32_t p = least(left, repair->read);

        item.reads |= bit(p);
        left &= ~bit(p);
    }
    item.sources |= item.reads;
    repair->work[item.worker] += (uint64_t)item.line_count * count_of(item.rebuild);
    for (uint64_t rest = item.reads; rest != 0; rest &= rest - 1)
        repair->read[__builtin_ctzll(rest)] += item.line_count;
    *out = item;
    return true;
}

static cairn_err
check_request(const struct cairn_repair_request *request)
{
    uint64_t outside = ~cairn_geometry_all(&request->stripes->geometry);
    uint64_t rebuild = request->rebuild_data | request->rebuild_parity;

    if (((request->intact | rebuild) & outside) || (request->intact & rebuild))
        return CAIRN_INVAL;
    for (size_t i = 0; i < request->bad_count; i++) {
        struct cairn_bad_block *bad = &request->bad[i];
        struct cairn_place place;
        cairn_err err;

        err = cairn_stripes_place(request->stripes, bad->position, bad->area, bad->block, &place);
        if (err)
            return err;
        bad->stripe = place.stripe;
        bad->line = place.line;
    }
    return CAIRN_OK;
}

cairn_err
cairn_repair_init(const struct cairn_repair_request *request, struct cairn_repair_loss *loss,
                  struct cairn_repair_totals *totals, struct cairn_repair *out)
{
    const struct cairn_geometry *geometry = &request->stripes->geometry;
    struct cairn_repair repair = {.request = *request};
    struct cairn_repair_totals sum = {0};
    struct cairn_repair_loss most = {0};
    struct run run;
    cairn_err err;

    err = check_request(request);
    if (err)
        return err;
    if (request->bad_count > 0)
        qsort(request->bad, request->bad_count, sizeof *request->bad, by_line);
    while (run_next(&repair, &run)) {
        uint64_t lines = run.line_end - run.line_first, missing = run.real & ~run.available;

        if (count_of(missing) > geometry->m && count_of(missing) > most.missing)
            most = (struct cairn_repair_loss){.stripe = run.stripe,
                                              .missing = count_of(missing),
                                              .line = run.line_first,
                                              .positions = missing};
        sum.items++;
        sum.rebuilt_blocks += lines * count_of(run.rebuild);
        /* k sources less the zeros, n less the real sources */
        sum.read_blocks += lines * (geometry->k - (geometry->n - count_of(run.real)));
    }
    if (most.missing > 0) {
        if (loss)
            *loss = most;
        return CAIRN_LOST;
    }
    if (totals)
        *totals = sum;
    *out = (struct cairn_repair){.request = *request};
    return CAIRN_OK;
}
