/* tools/convert/maps/stage.h - a mapping in progress; for maps/map.c and the files that it calls.
 */
#ifndef CAIRN_TOOLS_CONVERT_MAPS_STAGE_H
#define CAIRN_TOOLS_CONVERT_MAPS_STAGE_H

#include "snapshot/reshard_pieces.h"
#include "tools/convert/maps/map.h"
#include "tools/convert/maps/numbers.h"
#include "tools/convert/state/opaque_tree.h"

struct cairn_map_pieces {
    struct cairn_piece *pieces;
    size_t count;
};

struct cairn_map_stage {
    const struct cairn_map *map;
    struct cairn_map_settings settings;
    struct cairn_checkpoint *checkpoint;
    const struct cairn_layout *from; /* the checkpoint's, until it is replaced */
    struct cairn_piece_table table;  /* of `from` */
    uint32_t side;                   /* of the source; the target's is 1 - side */
    /* Of each tensor of the source: */

    bool *used;
    uint32_t *target_first, *target_count; /* what it became, together with its other parts */
    /* What is made: */
    struct cairn_layout *to;
    struct cairn_alias *aliases;
    uint32_t alias_count;
    size_t *piece_first; /* of each tensor of `to`, in its pieces */

    struct cairn_map_pieces scratch;
    uint32_t zeros; /* a container of zeros in memory; UINT32_MAX until one is needed */
    struct cairn_map_report *report;
};

/* Makes the target's tensors of the rule that tensor `first` is a part of: its name, without `key`
 * and a dot, fits a pattern with captures[] (by symbol). Does nothing if all parts are aliases and
 * `aliases` is false. Errors of cairn_checkpoint_map. */
CAIRN_MUST_CHECK cairn_err cairn_map_instance_make(struct cairn_map_stage *stage,
                                                   const struct cairn_map_rule *rule,
                                                   const char *key, const uint64_t *captures,
                                                   uint32_t first, bool aliases);

/* A tensor of the source by a pattern; UINT32_MAX where there is none. */
uint32_t cairn_map_source_find(const struct cairn_map_stage *stage,
                               const struct cairn_map_name *pattern, const char *key,
                               const uint64_t *captures);

/* Adds a tensor to `to` with the pieces in `scratch`, or as an alias of `alias_of` where that is
 * not UINT32_MAX. CAIRN_CORRUPT where it is there already. */
CAIRN_MUST_CHECK cairn_err cairn_map_target_add(struct cairn_map_stage *stage, const char *name,
                                                const struct cairn_tensor *like, uint32_t dims,
                                                const uint64_t *shape, uint32_t alias_of);

/* The pieces of a tensor of the source; those of its original where it is an alias. */
const struct cairn_piece **cairn_map_pieces_of(const struct cairn_map_stage *stage, uint32_t tensor,
                                               size_t *count);
/* Appends them to `scratch`. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_map_scratch_copy(struct cairn_map_stage *stage, uint32_t tensor);
/* Appends a piece to `scratch`. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_map_scratch_add(struct cairn_map_stage *stage,
                                                 const struct cairn_piece *piece);

/* Warns of each number that nothing but shapes said, where it follows from what the user set (as
 * `before` has it): maps/assumed.c. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_map_assumed_tell(struct cairn_map_stage *stage,
                                                  const struct cairn_map_settings *before);

/* The parameter groups with the new names of their members, in place of the old ones in the
 * checkpoint, which has its new layout. Nothing where there are none. `from` is the old layout. */
CAIRN_MUST_CHECK cairn_err cairn_map_groups_rename(struct cairn_map_stage *stage,
                                                   const struct cairn_layout *from,
                                                   struct cairn_opaque_tree *groups);

#endif
