/*
 * snapshot/tiling.h - is every tensor of a job held exactly once? Computed from parts on many
 * nodes, by numbers that are added up, without the layouts in one place.
 *
 * Every element of every tensor has a value in the field of 2^61 - 1 elements: a weight of the
 * tensor (its name, dtype, kind and shape) times, for every dimension and every set bit of its
 * index there, a number of that dimension and bit. All of these are hashes, the same on every node.
 * A box's values add up in as many steps as its bounds have bits. A part's sum is that of its
 * pieces, less the whole tensor's for every piece that has the tensor's origin (its element 0, ...,
 * 0).
 *
 * The parts' sums add up to 0 if every tensor is covered evenly, as often as its origin is. Else
 * they do with a probability below 2^-54: the difference is a polynomial in those numbers, of
 * degree 72 at most, whose monomials are distinct for distinct elements. (Powers of one number per
 * dimension would need a degree of the dimension's length.)
 *
 * A tensor without a piece adds nothing, so the sum would not miss it. It comes from replicas with
 * wrong numbers: if the tensor has few bytes, one number captures all of them. So every replica r
 * of n adds a number of its box, n and r + 1 (0 behind the last), less that of r: together 0 if
 * each number is there as often as the others, and with the same certainty only then. Then a
 * replica 0 has captured something of the box, and the sum above finds what is missing.
 *
 * It remains to check that no origin is held twice, which no sum of fewer numbers than tensors can
 * show: so every part lists the keys of its origins, a hash of the name each, 8 bytes. In all parts
 * together each tensor is listed once.
 *
 * To find the wrong tensors, they are divided by the first bits of their keys, and summed by
 * division. The pieces of the few tensors in a wrong division are brought together and compared.
 *
 * Tensors of one name that differ in dtype, kind or shape have different values, and so are not
 * covered. Pure.
 */
#ifndef CAIRN_SNAPSHOT_TILING_H
#define CAIRN_SNAPSHOT_TILING_H

#include "snapshot/layout.h"

enum {
    CAIRN_TILING_FAN_LOG2 = 12,
    CAIRN_TILING_FAN = 1 << CAIRN_TILING_FAN_LOG2 /* divisions */
};

/* What one part, a packed manifest, holds of the job's tensors. Opaque and immutable. */
struct cairn_tiling;

/* Reads a packed manifest. CAIRN_CORRUPT, CAIRN_VERSION, CAIRN_NOMEM. The caller ends *out with
 * cairn_tiling_destroy. */
CAIRN_MUST_CHECK cairn_err cairn_tiling_create(const void *manifest, size_t manifest_bytes,
                                               struct cairn_tiling **out);
void cairn_tiling_destroy(struct cairn_tiling *tiling); /* NULL is allowed */

/* The sum of two sums; both are below CAIRN_TILING_FIELD. */
#define CAIRN_TILING_FIELD ((UINT64_C(1) << 61) - 1)
uint64_t cairn_tiling_add(uint64_t a, uint64_t b);

/* The part's sum over all its tensors. */
uint64_t cairn_tiling_sum(const struct cairn_tiling *tiling);

/* The part's sums over the tensors of each division. */
void cairn_tiling_sums(const struct cairn_tiling *tiling, uint64_t sums[CAIRN_TILING_FAN]);

/* The keys of the tensors with origins in the part, ascending, once per such piece. Borrowed. */
const uint64_t *cairn_tiling_origins(const struct cairn_tiling *tiling, size_t *count);

/* The division of a key: its first CAIRN_TILING_FAN_LOG2 bits. */
uint64_t cairn_tiling_prefix(uint64_t key);

/*
 * Packs the pieces of the tensors of a division into out[room], as many as fit (tiling_pieces.c has
 * the format). Returns the bytes used. `room` is at least 1.
 */
size_t cairn_tiling_pack_pieces(const struct cairn_tiling *tiling, uint64_t prefix, uint8_t *out,
                                size_t room);

/* A rank's claim to be one of several replicas of a box. */
struct cairn_tiling_replica {
    uint64_t group;  /* a number of the tensor, the box and the count */
    uint32_t tensor; /* in the layout */
    uint32_t rank;
    uint32_t index;
    uint32_t count;
};

/* Pieces of a few tensors, brought together from all parts. All zero is empty. */
struct cairn_tiling_pieces {
    struct cairn_layout *layout; /* containers are ranks */
    struct cairn_tiling_replica *replicas;
    size_t replica_count;
    bool cut;        /* there are more */
    char fault[512]; /* ranks that do not agree what a tensor is; "" */
};

/*
 * Adds what a part has packed. Hostile bytes give CAIRN_CORRUPT; beyond 2^18 pieces, replicas and
 * tensors in all the rest is left out and `cut` set. CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_tiling_add_pieces(struct cairn_tiling_pieces *pieces,
                                                   const uint8_t *bytes, size_t bytes_len);

/*
 * Reports in text[text_bytes] which tensors are not held exactly once, what of them is missing or
 * doubled, and by which ranks. Sorts the replicas.
 */
void cairn_tiling_explain(struct cairn_tiling_pieces *pieces, char *text, size_t text_bytes);
void cairn_tiling_pieces_fini(struct cairn_tiling_pieces *pieces);

/* A tensor of a part, for tiling_pieces.c: rows are sorted by key. */
struct cairn_tiling_row {
    uint64_t key;
    uint64_t sum;
    uint32_t tensor; /* in the layout */
};
const struct cairn_tiling_row *cairn_tiling_rows(const struct cairn_tiling *tiling, size_t *count);
/* by tensor */
const struct cairn_tiling_replica *cairn_tiling_replicas(const struct cairn_tiling *tiling,
                                                         size_t *count);
const struct cairn_layout *cairn_tiling_layout(const struct cairn_tiling *tiling);

#endif
