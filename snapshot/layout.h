/*
 * snapshot/layout.h - a layout: which container holds which part of a tensor.
 *
 * The manifest of a generation, the source and target of a restore, and both ends of a migration or
 * conversion are all layouts. A container is anything with byte offsets: a node's shard in an
 * arena, a rank's memory, a file. A piece is an N-d box of a tensor in a container, with a byte
 * offset for the box's first element and a byte stride per dimension (so transposes are pieces
 * too). A flat range of a row-major box becomes at most 2 * dims - 1 pieces. Pure: no I/O, no
 * clock, no threads.
 *
 * Bounds that hold for every tensor and piece in a layout, so that no sum or product on them
 * overflows: the bytes of a tensor (dimensions of size 0 counted as 1), and the end of a piece in
 * its container, are at most INT64_MAX.
 */
#ifndef CAIRN_SNAPSHOT_LAYOUT_H
#define CAIRN_SNAPSHOT_LAYOUT_H

#include "cairn/err.h"
#include "cairn/types.h"

struct cairn_tensor {
    char name[CAIRN_NAME_BYTES_MAX];
    enum cairn_dtype dtype;
    enum cairn_kind kind;
    uint32_t dims;
    uint64_t shape[CAIRN_DIMS_MAX];
};

struct cairn_piece {
    uint32_t tensor; /* index into the layout's tensors */
    uint32_t container;
    uint64_t start[CAIRN_DIMS_MAX];        /* of the box in the tensor, in elements */
    uint64_t extent[CAIRN_DIMS_MAX];       /* of the box, in elements; all > 0 */
    uint64_t offset_bytes;                 /* of the box's first element in the container */
    uint64_t stride_bytes[CAIRN_DIMS_MAX]; /* in the container, of one step along a dimension */
};

struct cairn_layout; /* opaque; grows as slices are added */

/*
 * Makes an empty layout. CAIRN_NOMEM. The caller ends *out with cairn_layout_destroy. Thread:
 * any.
 */
CAIRN_MUST_CHECK cairn_err cairn_layout_create(struct cairn_layout **out);
void cairn_layout_destroy(struct cairn_layout *layout); /* NULL is allowed */

/*
 * Adds the flat range [flat_begin, flat_end) (in elements of the slice's row-major box) of a slice,
 * contiguous at offset_bytes of `container`. `slice->address`, `->flat_*` and `->replica_*` are not
 * read. flat_begin = flat_end = 0 means the whole box. An empty range or box adds only the tensor.
 * CAIRN_INVAL if a box leaves its tensor, or the name is known with another dtype, kind or shape;
 * *why (may be NULL) then gets a static text. CAIRN_NOMEM. On error nothing is added.
 */
CAIRN_MUST_CHECK cairn_err cairn_layout_add(struct cairn_layout *layout, uint32_t container,
                                            const struct cairn_slice *slice, uint64_t flat_begin,
                                            uint64_t flat_end, uint64_t offset_bytes,
                                            const char **why);

/*
 * Adds one piece with explicit strides of a known tensor (index from cairn_layout_tensor_find).
 * CAIRN_INVAL if the tensor is unknown, an extent is 0, the box leaves the tensor, or its end in
 * the container is beyond INT64_MAX; CAIRN_NOMEM. On error nothing is added.
 */
CAIRN_MUST_CHECK cairn_err cairn_layout_add_piece(struct cairn_layout *layout,
                                                  const struct cairn_piece *piece);

/* Tensors and pieces are numbered in the order added; a pointer is valid until the next add. */
uint32_t cairn_layout_tensor_count(const struct cairn_layout *layout);
const struct cairn_tensor *cairn_layout_tensor(const struct cairn_layout *layout, uint32_t index);
/* Index of a tensor by name, UINT32_MAX if unknown. */
uint32_t cairn_layout_tensor_find(const struct cairn_layout *layout, const char *name);
size_t cairn_layout_piece_count(const struct cairn_layout *layout);
const struct cairn_piece *cairn_layout_piece(const struct cairn_layout *layout, size_t index);
/* The only piece of a tensor; NULL if it has none or several. In constant time. */
const struct cairn_piece *cairn_layout_only_piece(const struct cairn_layout *layout,
                                                  uint32_t tensor);

/*
 * Checks a slice on its own: name (UTF-8 without control characters, 1 to CAIRN_NAME_BYTES_MAX -
 * 1 bytes), dtype, kind (an opaque one is CAIRN_U8 of one dimension), dims, box inside shape, no
 * overflow, flat range inside the box, replica numbers. CAIRN_INVAL, and *why (may be NULL) gets
 * a static text. Allocates nothing. Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_slice_check(const struct cairn_slice *slice, const char **why);

/* Elements of a slice: of its box, or of its flat range. The slice has passed cairn_slice_check. */
uint64_t cairn_slice_elements(const struct cairn_slice *slice);

/*
 * What this replica captures of a checked slice: elements [*begin, *end) of the row-major box (so
 * inside the slice's own flat range, if it has one). The replica_count parts are disjoint, cover
 * the slice, differ by at most one alignment unit, and are cut at multiples of 64 bytes if
 * possible.
 */
void cairn_slice_share(const struct cairn_slice *slice, uint64_t *begin, uint64_t *end);

/*
 * Proves that the pieces of every tensor cover each element at least once and, with `exactly_once`,
 * no element twice. Else CAIRN_CORRUPT, and `report` (report_bytes long, may be NULL) names a few
 * tensors with their missing or doubled parts; CAIRN_NOMEM. O(P log P) for P pieces that overlap
 * little.
 */
CAIRN_MUST_CHECK cairn_err cairn_layout_check_tiling(const struct cairn_layout *layout,
                                                     bool exactly_once, char *report,
                                                     size_t report_bytes);
/* The same, exactly once, of a layout whose containers are called `container` in the report:
 * "rank". */
CAIRN_MUST_CHECK cairn_err cairn_layout_check_tiling_of(const struct cairn_layout *layout,
                                                        const char *container, char *report,
                                                        size_t report_bytes);
#endif
