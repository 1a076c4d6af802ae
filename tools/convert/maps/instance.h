/* tools/convert/maps/instance.h - a rule with the tensors that it is applied to; what
 * maps/instance.c and maps/pieces.c share. */
#ifndef CAIRN_TOOLS_CONVERT_MAPS_INSTANCE_H
#define CAIRN_TOOLS_CONVERT_MAPS_INSTANCE_H

#include "tools/convert/maps/proof.h"
#include "tools/convert/maps/stage.h"

#define CAIRN_MAP_NO_SYMBOL UINT32_MAX

struct cairn_map_instance {
    struct cairn_map_stage *stage;
    const struct cairn_map_rule *rule;
    const struct cairn_map_side *source, *target;
    const char *key;
    uint64_t captures[CAIRN_MAP_SYMBOLS_MAX];
    uint64_t values[CAIRN_MAP_SYMBOLS_MAX]; /* sizes of axes */
    uint32_t gathered; /* the symbol that only the source's names have; NO_SYMBOL */
    uint32_t spread;   /* that only the target's have; NO_SYMBOL */
    uint32_t stack;    /* tensors along `gathered`, 1 where there is none */
    uint32_t *sources; /* [source->count * stack]: tensors, part by part */
    struct cairn_map_places before, after;
};

/* Appends to the stage's scratch what part `part` of a target tensor has of one source tensor; the
 * axes `gathered` and `spread` are fixed at captures[]. CAIRN_INVAL: too many boxes, complained
 * about; CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_map_part_add(struct cairn_map_instance *instance, uint32_t part,
                                              uint32_t source,
                                              const struct cairn_map_tensor *target);

/* Appends zeros behind each padded dimension of a target of this shape. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_map_padding_add(struct cairn_map_instance *instance,
                                                 const struct cairn_map_tensor *target,
                                                 const uint64_t *shape);

/* Notes the places of the scratch, but for zeros, as those of a target of `dims` dimensions. */
void cairn_map_places_note(struct cairn_map_instance *instance, uint32_t dims);

/* After all targets: the places noted, with the source's padding, are those of the sources.
 * CAIRN_INTERNAL where they are not. What is left out as padding becomes a warning. */
CAIRN_MUST_CHECK cairn_err cairn_map_places_check(struct cairn_map_instance *instance);

#endif
