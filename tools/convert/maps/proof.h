/*
 * tools/convert/maps/proof.h - the proof that a map moves each element once: the places of all
 * elements of one side are those of the other.
 *
 * A place is a byte offset of a container. The places of a piece are summed up as the polynomial
 * sum of x^offset, weighted by container, at a fixed point x of the prime field of 2^61 - 1; that
 * is a geometric series for each dimension, so a piece of any size costs the same. Two sets of
 * pieces with equal sums hold the same places equally often: for two that do not, the polynomials
 * differ, and their degree is so far below 2^61 that a fixed point is a root of the difference with
 * a probability below one in a thousand, for two points (both are summed) below one in a million.
 */
#ifndef CAIRN_TOOLS_CONVERT_MAPS_PROOF_H
#define CAIRN_TOOLS_CONVERT_MAPS_PROOF_H

#include "snapshot/layout.h"

enum { CAIRN_MAP_PROOF_POINTS = 2 };

/* All zero is the empty set. */
struct cairn_map_places {
    uint64_t sums[CAIRN_MAP_PROOF_POINTS];
};

/* Adds the elements of a piece of `dims` dimensions. */
void cairn_map_places_add(struct cairn_map_places *places, const struct cairn_piece *piece,
                          uint32_t dims);

bool cairn_map_places_equal(const struct cairn_map_places *a, const struct cairn_map_places *b);

#endif
