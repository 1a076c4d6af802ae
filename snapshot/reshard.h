/*
 * snapshot/reshard.h - the one engine that turns two layouts into moves.
 *
 * Intersects the pieces of a source and a target layout tensor by tensor and yields moves, merged
 * into the longest runs, so that every element of every target piece is written exactly once
 * (proved before the plan is returned). Tensors are matched by name. If several source pieces hold
 * an element (replicas), the cheapest by `cost` wins, and load is balanced over equally cheap
 * pieces. A byte that is already in place (same container number and offset, with
 * `same_containers`) is not moved. O((S + T) log S) per tensor for regular layouts. Pure.
 *
 * Containers of source and target are separate memory, except that with `same_containers` what is
 * in place stays: code that runs moves inside one container must first read what a later move
 * overwrites.
 */
#ifndef CAIRN_SNAPSHOT_RESHARD_H
#define CAIRN_SNAPSHOT_RESHARD_H

#include "snapshot/layout.h"

/*
 * Copy run_count runs of run_bytes: run i goes from source_offset + i * source_stride to
 * target_offset + i * target_stride. Both strides are 0 if run_count is 1.
 */
struct cairn_move {
    uint32_t tensor; /* index in the target layout */
    uint32_t source_container;
    uint32_t target_container;
    uint32_t reserved;
    uint64_t source_offset;
    uint64_t target_offset;
    uint64_t run_bytes;
    uint64_t run_count;
    uint64_t source_stride;
    uint64_t target_stride;
};

struct cairn_reshard_options {
    bool same_containers; /* container numbers mean the same in source and target */
    /*
     * Relative cost of reading a source container for a target container, asked of every holder for
     * every target piece; NULL: all equal. Bytes in place cost nothing.
     */
    uint32_t (*cost)(void *context, uint32_t source_container, uint32_t target_container);
    void *cost_context;
};

struct cairn_moves {
    struct cairn_move *moves; /* sorted by source container, then source offset */
    size_t count;
    uint64_t bytes;          /* to be copied */
    uint64_t in_place_bytes; /* left where they are */
};

/*
 * Plans the moves. CAIRN_NOT_FOUND if a target tensor is missing in the source, CAIRN_INVAL if its
 * dtype or shape differs, CAIRN_CORRUPT if some target element is in no source piece, or two target
 * pieces share a byte of one container (or one piece does with itself: its strides must nest, each
 * at least as long as the smaller strides span); `report` (report_bytes long, may be NULL) then
 * names the tensor and the reason. CAIRN_NOMEM. The caller ends *out with cairn_moves_fini; on
 * failure it is untouched. `options` NULL: none.
 */
CAIRN_MUST_CHECK cairn_err cairn_reshard_plan(const struct cairn_layout *source,
                                              const struct cairn_layout *target,
                                              const struct cairn_reshard_options *options,
                                              struct cairn_moves *out, char *report,
                                              size_t report_bytes);

/* Frees the moves and zeroes the struct; an all-zero one is allowed. */
void cairn_moves_fini(struct cairn_moves *moves);

/*
 * Runs one move between two mapped containers (`source` and `target` are their first bytes), whose
 * runs do not overlap each other in memory. The caller checks that the move is inside them. Thread:
 * any.
 */
void cairn_move_copy(const struct cairn_move *move, const uint8_t *source, uint8_t *target);

#endif
