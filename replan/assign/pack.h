/*
 * replan/assign/pack.h - the sequences of one pipeline into micro-batches under a cap of tokens.
 *
 * A sequence longer than the cap is cut into chunks of the cap, which attend to earlier chunks:
 * they stand in micro-batches of their own, in order, before all others, and the remainder in a
 * later one. The rest is packed whole. There are as few micro-batches as are found, and among those
 * the costs are made equal: filling and draining takes (stages - 1) times the largest.
 */
#ifndef CAIRN_REPLAN_ASSIGN_PACK_H
#define CAIRN_REPLAN_ASSIGN_PACK_H

#include "replan/assign/assign.h"

enum { CAIRN_PACK_PIECES_MAX = 65536 };

/* Tokens [first_token, end_token) of a sequence, in one micro-batch. */
struct cairn_packed_piece {
    uint32_t sequence;
    uint32_t microbatch;
    uint64_t first_token;
    uint64_t end_token;
};

struct cairn_packing {
    struct cairn_packed_piece *pieces; /* owned; chunks of a sequence in their order */
    uint32_t piece_count;
    uint32_t microbatch_count;
    uint32_t microbatches_min; /* no packing has fewer */
    double largest_ms;         /* of a micro-batch, at time_scale 1 */
    double sum_ms;             /* of all; the same however they are packed */
};

/*
 * Packs sequences of the given tokens (each at least 1); `cost` gives what they cost, its sequences
 * and pipelines are not looked at. A chunk costs what it adds to its sequence. CAIRN_INVAL:
 * cap_tokens is 0, a sequence has no token, or there would be more than CAIRN_PACK_PIECES_MAX
 * pieces. CAIRN_NOMEM. The caller ends *out with cairn_packing_fini.
 */
CAIRN_MUST_CHECK cairn_err cairn_pack(const struct cairn_assign_problem *cost,
                                      const uint64_t *tokens, uint32_t sequence_count,
                                      uint64_t cap_tokens, struct cairn_packing *out);
void cairn_packing_fini(struct cairn_packing *packing);

#endif
