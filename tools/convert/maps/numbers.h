/*
 * tools/convert/maps/numbers.h - the sizes that a map's rules are told in: from the user, from the
 * config.json beside the weights, or from Megatron's arguments in the checkpoint.
 */
#ifndef CAIRN_TOOLS_CONVERT_MAPS_NUMBERS_H
#define CAIRN_TOOLS_CONVERT_MAPS_NUMBERS_H

#include "tools/convert/core/checkpoint.h"
#include "tools/convert/maps/language.h"

/* What is known: before any shape is looked at, and then what shapes said. */
struct cairn_map_settings {
    uint64_t values[CAIRN_MAP_SYMBOLS_MAX];  /* by symbol; 0: not known */
    bool said[CAIRN_MAP_SYMBOLS_MAX];        /* by symbol: the user set it */
    uint32_t choices[CAIRN_MAP_CHOICES_MAX]; /* the chosen value of each */
};

/* sets[set_count] are "NAME=VALUE", a number or a choice each; they override the checkpoint. An
 * unknown number stays 0. CAIRN_INVAL: an unknown set, a division with a rest; CAIRN_CORRUPT: a
 * damaged config.json or arguments; errors of reading. Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_map_settings_find(const struct cairn_map *map,
                                                   const struct cairn_checkpoint *checkpoint,
                                                   const char *const *sets, size_t set_count,
                                                   struct cairn_map_settings *out);

#endif
