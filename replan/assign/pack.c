/* replan/assign/pack.c - sequences into micro-batches. */
#include "replan/assign/pack.h"

#include <stdlib.h>

/* A piece that shares its micro-batch with others. */
struct loose {
    uint64_t tokens;
    double cost_ms;
    uint32_t piece;
};

struct batch {
    uint64_t tokens;
    double cost_ms;
};

/* What a sequence's tokens [first, end) cost: attention to all before them included, the constant
 * with the first. */
static double
cost_of(const struct cairn_assign_problem *cost, uint64_t first_token, uint64_t end_token)
{
    double first = (double)first_token, end = (double)end_token;

    return cost->square * (end - first) * (end + first) + cost->linear * (end - first) +
           (first_token == 0 ? cost->constant : 0);
}

static int
most_costly_first(const void *left, const void *right)
{
    const struct loose *a = left, *b = right;

    if (a->cost_ms < b->cost_ms || a->cost_ms > b->cost_ms)
        return a->cost_ms > b->cost_ms ? -1 : 1;
    if (a->tokens != b->tokens)
        return a->tokens > b->tokens ? -1 : 1;
    return a->piece < b->piece ? -1 : 1;
}

/* Counts pieces; false where there are too many, or a sequence has no token. */
static bool
count_pieces(const uint64_t *tokens, uint32_t sequence_count, uint64_t cap_tokens, uint32_t *count)
{
    uint64_t pieces = 0;

    for (uint32_t i = 0; i < sequence_count; i++) {
        if (tokens[i] == 0)
            return false;
        pieces += (tokens[i] - 1) / cap_tokens + 1;
        if (pieces > CAIRN_PACK_PIECES_MAX)
            return false;
    }
    *count = (uint32_t)pieces;
    return true;
}

/* Cuts sequences; chunks of the whole cap get micro-batches of their own, the other pieces are
 * listed. Their count. */
static uint32_t
cut(const struct cairn_assign_problem *cost, const uint64_t *tokens, uint32_t sequence_count,
    uint64_t cap_tokens, struct cairn_packing *packing, struct loose *loose)
{
    uint32_t loose_count = 0;

    for (uint32_t i = 0; i < sequence_count; i++)
        for (uint64_t first = 0; first < tokens[i]; first += cap_tokens) {
            uint64_t left = tokens[i] - first,
                     end = left < cap_tokens ? tokens[i] : first + cap_tokens;
            double cost_ms = cost_of(cost, first, end);
            struct cairn_packed_piece *piece = &packing->pieces[packing->piece_count];

            *piece = (struct cairn_packed_piece){i, 0, first, end};
            packing->sum_ms += cost_ms;
            if (left >= cap_tokens) {
                piece->microbatch = packing->microbatch_count++;
                if (cost_ms > packing->largest_ms)
                    packing->largest_ms = cost_ms;
            } else {
                loose[loose_count++] = (struct loose){left, cost_ms, packing->piece_count};
            }
            packing->piece_count++;
            if (left <= cap_tokens)
                break; /* first + cap_tokens may be beyond the largest number */
        }
    return loose_count;
}

/* Whether all loose pieces fit so many micro-batches, the most costly first, each to the one that
 * costs least and has room; places[loose_count] then says where. */
static bool
fill(const struct loose *loose, uint32_t loose_count, uint64_t cap_tokens, struct batch *batches,
     uint32_t batch_count, uint32_t *places)
{
    for (uint32_t i = 0; i < batch_count; i++)
        batches[i] = (struct batch){0, 0};
    for (uint32_t i = 0; i < loose_count; i++) {
        uint32_t to = batch_count;

        for (uint32_t j = 0; j < batch_count; j++)
            if (loose[i].tokens <= cap_tokens - batches[j].tokens &&
                (to == batch_count || batches[j].cost_ms < batches[to].cost_ms))
                to = j;
        if (to == batch_count)
            return false;
        batches[to].tokens += loose[i].tokens;
        batches[to].cost_ms += loose[i].cost_ms;
        places[i] = to;
    }
    return true;
}

/* Fewer than that cannot hold the loose pieces: all their tokens, and two of more than half the cap
 * never share one. */
static uint32_t
fewest(const struct loose *loose, uint32_t loose_count, uint64_t cap_tokens)
{
    uint64_t full = 0, part = 0;
    uint32_t large = 0;

    for (uint32_t i = 0; i < loose_count; i++) { /* full * cap + part tokens, without overflow */
        large += loose[i].tokens > cap_tokens / 2;
        if (loose[i].tokens >= cap_tokens - part) {
            part = loose[i].tokens - (cap_tokens - part);
            full++;
        } else {
            part += loose[i].tokens;
        }
    }
    full += part > 0;
    return full > large ? (uint32_t)full : large;
}

static void
pack_loose(struct cairn_packing *packing, struct loose *loose, uint32_t loose_count,
           uint64_t cap_tokens, struct batch *batches, uint32_t *places)
{
    uint32_t count = fewest(loose, loose_count, cap_tokens);

    packing->microbatches_min = packing->microbatch_count + count;
    qsort(loose, loose_count, sizeof(*loose), most_costly_first);
    while (!fill(loose, loose_count, cap_tokens, batches, count, places)) {
        count += count / 64 + 1;
        count = count < loose_count ? count : loose_count; /* each its own: that fits */
    }
    for (uint32_t i = 0; i < loose_count; i++) {
        packing->pieces[loose[i].piece].microbatch = packing->microbatch_count + places[i];
        if (batches[places[i]].cost_ms > packing->largest_ms)
            packing->largest_ms = batches[places[i]].cost_ms;
    }
    packing->microbatch_count += count;
}

cairn_err
cairn_pack(const struct cairn_assign_problem *cost, const uint64_t *tokens, uint32_t sequence_count,
           uint64_t cap_tokens, struct cairn_packing *out)
{
    struct cairn_packing packing = {0};
    struct loose *loose = NULL;
    struct batch *batches = NULL;
    uint32_t *places = NULL, piece_count, loose_count;
    cairn_err err = CAIRN_NOMEM;

    if (cap_tokens == 0 || !count_pieces(tokens, sequence_count, cap_tokens, &piece_count))
        return CAIRN_INVAL;
    packing.pieces = calloc((size_t)piece_count + 1, sizeof(*packing.pieces));
    loose = calloc((size_t)piece_count + 1, sizeof(*loose));
    batches = calloc((size_t)piece_count + 1, sizeof(*batches));
    places = calloc((size_t)piece_count + 1, sizeof(*places));
    if (!packing.pieces || !loose || !batches || !places)
        goto done;
    loose_count = cut(cost, tokens, sequence_count, cap_tokens, &packing, loose);
    pack_loose(&packing, loose, loose_count, cap_tokens, batches, places);
    *out = packing;
    packing.pieces = NULL;
    err = CAIRN_OK;
done:
    cairn_packing_fini(&packing);
    free(loose);
    free(batches);
    free(places);
    return err;
}

void
cairn_packing_fini(struct cairn_packing *packing)
{
    free(packing->pieces);
    *packing = (struct cairn_packing){0};
}
