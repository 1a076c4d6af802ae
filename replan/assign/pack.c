/* replan/assign/pack.c - sequences into micro-batches. */
#include "replan/assign/pack.h"

#include <math.h>
#include <stdlib.h>

/* A piece that shares its micro-batch with others. */
struct loose {
    uint64_t tokens;
    double cost_ms;
    uint32_t piece;
};

struct batch {
    uint64_t room_tokens;
    double cost_ms;
    uint32_t number;
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

static bool
is_cheaper(const struct batch *left, const struct batch *right)
{
    if (left->cost_ms < right->cost_ms || left->cost_ms > right->cost_ms)
        return left->cost_ms < right->cost_ms;
    return left->number < right->number;
}

/* Restores the heap of batches, the cheapest first, whose element `at` may be too dear. */
static void
sink(struct batch *heap, uint32_t count, uint32_t at)
{
    struct batch own = heap[at];

    for (uint32_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && is_cheaper(&heap[child + 1], &heap[child]))
            child++;
        if (!is_cheaper(&heap[child], &own))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = own;
}

/* The cheapest batch with room, by its place in the heap; `count` where there is none. Subtrees of
 * dearer nodes than the best are left out: nearly always the first has room. open[count] is working
 * memory. */
static uint32_t
cheapest_with_room(const struct batch *heap, uint32_t count, uint64_t room_tokens, uint32_t *open)
{
    uint32_t open_count = 1, best = count;

    open[0] = 0;
    while (open_count > 0) {
        uint32_t at = open[--open_count];

        if (best < count && !is_cheaper(&heap[at], &heap[best]))
            continue;
        if (heap[at].room_tokens >= room_tokens) {
            best = at;
            continue;
        }
        for (uint32_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++)
            open[open_count++] = child;
    }
    return best;
}

/* Whether all loose pieces fit so many micro-batches, the most costly first, each to the one that
 * costs least and has room; places[loose_count] then says where. */
static bool
fill(const struct loose *loose, uint32_t loose_count, uint64_t cap_tokens, struct batch *batches,
     uint32_t batch_count, uint32_t *places, uint32_t *open)
{
    for (uint32_t i = 0; i < batch_count; i++)
        batches[i] = (struct batch){cap_tokens, 0, i};
    for (uint32_t i = 0; i < loose_count; i++) {
        uint32_t to = cheapest_with_room(batches, batch_count, loose[i].tokens, open);

        if (to == batch_count)
            return false;
        places[i] = batches[to].number;
        batches[to].room_tokens -= loose[i].tokens;
        batches[to].cost_ms += loose[i].cost_ms;
        sink(batches, batch_count, to);
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
           uint64_t cap_tokens, struct batch *batches, uint32_t *places, uint32_t *open)
{
    uint32_t count = fewest(loose, loose_count, cap_tokens);

    packing->microbatches_min = packing->microbatch_count + count;
    qsort(loose, loose_count, sizeof(*loose), most_costly_first);
    while (!fill(loose, loose_count, cap_tokens, batches, count, places, open)) {
        count += count / 64 + 1;
        count = count < loose_count ? count : loose_count; /* each its own: that fits */
    }
    for (uint32_t i = 0; i < loose_count; i++)
        packing->pieces[loose[i].piece].microbatch = packing->microbatch_count + places[i];
    for (uint32_t i = 0; i < count; i++)
        packing->largest_ms = fmax(packing->largest_ms, batches[i].cost_ms);
    packing->microbatch_count += count;
}

cairn_err
cairn_pack(const struct cairn_assign_problem *cost, const uint64_t *tokens, uint32_t sequence_count,
           uint64_t cap_tokens, struct cairn_packing *out)
{
    struct cairn_packing packing = {0};
    struct loose *loose = NULL;
    struct batch *batches = NULL;
    uint32_t *places = NULL, *open = NULL, piece_count, loose_count;
    cairn_err err = CAIRN_NOMEM;

    if (cap_tokens == 0 || !count_pieces(tokens, sequence_count, cap_tokens, &piece_count))
        return CAIRN_INVAL;
    packing.pieces = calloc((size_t)piece_count + 1, sizeof(*packing.pieces));
    loose = calloc((size_t)piece_count + 1, sizeof(*loose));
    batches = calloc((size_t)piece_count + 1, sizeof(*batches));
    places = calloc((size_t)piece_count + 1, sizeof(*places));
    open = calloc((size_t)piece_count + 1, sizeof(*open));
    if (!packing.pieces || !loose || !batches || !places || !open)
        goto done;
    loose_count = cut(cost, tokens, sequence_count, cap_tokens, &packing, loose);
    pack_loose(&packing, loose, loose_count, cap_tokens, batches, places, open);
    *out = packing;
    packing.pieces = NULL;
    err = CAIRN_OK;
done:
    cairn_packing_fini(&packing);
    free(loose);
    free(batches);
    free(places);
    free(open);
    return err;
}

void
cairn_packing_fini(struct cairn_packing *packing)
{
    free(packing->pieces);
    *packing = (struct cairn_packing){0};
}
