/* agent/service/drill_plan.c - see drill_plan.h. */
#include "agent/service/drill_plan.h"

static bool
has(uint64_t positions, uint32_t position)
{
    return (positions >> position) & 1;
}

/* Blocks of data that a position has in a stripe. */
static uint64_t
data_blocks(const struct cairn_stripes *stripes, uint32_t stripe, uint32_t position)
{
    return cairn_stripe_data_index(&stripes->geometry, stripe, position) == CAIRN_STRIPE_NONE
               ? 0
               : cairn_stripes_blocks(stripes, stripe, position);
}

uint64_t
drill_total_blocks(const struct cairn_stripes *stripes, uint64_t lost)
{
    uint64_t total = 0;

    for (uint32_t p = 0; p < stripes->geometry.n; p++)
        if (has(lost, p))
            total += stripes->shard_blocks[p];
    return total;
}

bool
drill_next(const struct cairn_stripes *stripes, uint64_t lost, uint32_t lines_max,
           struct drill_place *place, struct drill_lines *out)
{
    const uint32_t n = stripes->geometry.n;

    for (; place->stripe < n; place->stripe++, place->line = 0) {
        struct drill_lines lines = {.stripe = place->stripe, .first = place->line};

        for (uint32_t p = 0; p < n; p++) {
            uint64_t blocks = has(lost, p) ? data_blocks(stripes, place->stripe, p) : 0, left;

            if (blocks <= place->line)
                continue;
            left = blocks - place->line;
            lines.wanted |= UINT64_C(1) << p;
            if (left > lines_max)
                left = lines_max;
            if (left > lines.count)
                lines.count = (uint32_t)left;
        }
        if (lines.wanted) {
            *out = lines;
            return true;
        }
    }
    return false;
}

uint32_t
drill_blocks(const struct cairn_stripes *stripes, const struct drill_lines *lines,
             uint32_t position)
{
    uint64_t blocks = cairn_stripes_blocks(stripes, lines->stripe, position);

    if (blocks <= lines->first)
        return 0;
    return blocks - lines->first < lines->count ? (uint32_t)(blocks - lines->first) : lines->count;
}

bool
drill_sources(const struct cairn_geometry *geometry, uint64_t without, uint32_t own, uint64_t *out)
{
    uint32_t left = geometry->k;
    uint64_t sources = 0;

    if (own < geometry->n && !has(without, own)) {
        sources |= UINT64_C(1) << own;
        left--;
    }
    for (uint32_t p = 0; p < geometry->n && left > 0; p++)
        if (!has(without | sources, p)) {
            sources |= UINT64_C(1) << p;
            left--;
        }
    *out = sources;
    return left == 0;
}
