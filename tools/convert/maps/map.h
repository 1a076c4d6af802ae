/*
 * tools/convert/maps/map.h - a checkpoint under other names and in another layout: a stage between
 * the reader and the writer of a conversion.
 *
 * No byte is touched. The mapped checkpoint has new tensors, whose pieces are boxes of the source's
 * pieces with offsets and strides; so fused, split, stacked and transposed tensors cost what any
 * other piece costs. Optimizer state follows its parameter by the same rule; a scalar of several
 * parts (a step) is one replica for each, so that they are compared. Every element of the source is
 * in the result exactly once (maps/proof.h), but for padding, which is reported.
 */
#ifndef CAIRN_TOOLS_CONVERT_MAPS_MAP_H
#define CAIRN_TOOLS_CONVERT_MAPS_MAP_H

#include "tools/convert/core/checkpoint.h"

struct cairn_map_report {
    char from[48], to[48]; /* the sides */
    uint32_t mapped, made; /* tensors of the source, and what they became */
    uint32_t dropped;      /* tensors that the map leaves out */
};

/*
 * Maps the checkpoint in place: `map` is a preset's name, or a file's; the side that knows more of
 * the tensors' names is the source's. sets[set_count]: maps/numbers.h. CAIRN_INVAL where a tensor
 * is unknown to the map, shapes contradict it, or a number is missing; CAIRN_CORRUPT where the map
 * is not a map, or a part of a fused tensor is missing; CAIRN_NOT_FOUND: no such map; CAIRN_NOMEM.
 * Complained about; the checkpoint is then only to be closed.
 */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_map(struct cairn_checkpoint *checkpoint,
                                                const char *map, const char *const *sets,
                                                size_t set_count, struct cairn_map_report *report);

struct cairn_map;

/* The same by a map that is parsed already (maps/language.h), which is borrowed for the call. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_map_by(struct cairn_checkpoint *checkpoint,
                                                   const struct cairn_map *map,
                                                   const char *const *sets, size_t set_count,
                                                   struct cairn_map_report *report);

#endif
