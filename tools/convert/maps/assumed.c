/*
 * tools/convert/maps/assumed.c - what a mapping took for granted: 4 heads of 64 rows and 8 heads of
 * 32 are the same shapes, so that a number of the user's that is wrong by a factor makes another
 * one wrong, and no shape contradicts.
 */
#include <inttypes.h>
#include <stdio.h>

#include "tools/convert/maps/stage.h"

enum { SAID_BYTES_MAX = 160 };

/* Numbers that the user set, and those that are calculated of them. */
static void
mark_said(const struct cairn_map *map, const struct cairn_map_settings *before,
          bool said[CAIRN_MAP_SYMBOLS_MAX])
{
    for (uint32_t n = 0; n < map->number_count; n++) { /* a number stands behind its operands */
        const struct cairn_map_number *number = &map->numbers[n];

        said[number->symbol] = before->said[number->symbol] ||
                               (number->left != CAIRN_MAP_NONE && said[number->left]) ||
                               (number->right != CAIRN_MAP_NONE && said[number->right]);
    }
}

/* Whether one dimension of any tensor has the number and one that the user set. */
static bool
follows_in(const struct cairn_map_dim *dim, uint32_t symbol, const bool said[CAIRN_MAP_SYMBOLS_MAX])
{
    bool itself = false, other = false;

    for (uint32_t f = 0; f < dim->count; f++)
        for (uint32_t t = 0; t < dim->factors[f].count; t++)
            for (uint32_t i = 0; i < dim->factors[f].terms[t].count; i++) {
                uint32_t axis = dim->factors[f].terms[t].axes[i];

                itself = itself || axis == symbol;
                other = other || said[axis];
            }
    return itself && other;
}

static bool
follows(const struct cairn_map *map, uint32_t symbol, const bool said[CAIRN_MAP_SYMBOLS_MAX])
{
    for (uint32_t r = 0; r < map->rule_count; r++)
        for (size_t side = 0; side < 2; side++)
            for (uint32_t t = 0; t < map->rules[r].sides[side].count; t++) {
                const struct cairn_map_tensor *tensor = &map->rules[r].sides[side].tensors[t];

                for (uint32_t d = 0; tensor->shaped && d < tensor->dims; d++)
                    if (follows_in(&tensor->dim[d], symbol, said))
                        return true;
            }
    return false;
}

cairn_err
cairn_map_assumed_tell(struct cairn_map_stage *stage, const struct cairn_map_settings *before)
{
    const struct cairn_map *map = stage->map;
    bool said[CAIRN_MAP_SYMBOLS_MAX] = {false};
    char given[SAID_BYTES_MAX] = "";
    size_t used = 0;
    cairn_err err = CAIRN_OK;

    mark_said(map, before, said);
    for (uint32_t n = 0; n < map->number_count && used < sizeof(given); n++) {
        uint32_t symbol = map->numbers[n].symbol;

        if (said[symbol] && before->values[symbol] != 0 && map->numbers[n].key_count > 0)
            used += (size_t)snprintf(given + used, sizeof(given) - used, "%s%s = %" PRIu64,
                                     used ? ", " : "", map->symbols[symbol].name,
                                     before->values[symbol]);
    }
    for (uint32_t n = 0; n < map->number_count && !err; n++) {
        uint32_t symbol = map->numbers[n].symbol;

        if (before->values[symbol] == 0 && stage->settings.values[symbol] != 0 &&
            follows(map, symbol, said))
            err = cairn_checkpoint_warn(
                stage->checkpoint,
                "%s: is %" PRIu64
                " by the shapes, given %s, but if those were wrong by one factor, rows would come "
                "out in a wrong order; compare it with the model's, or set it with --set %s=N",
                map->symbols[symbol].name, stage->settings.values[symbol], given,
                map->symbols[symbol].name);
    }
    return err;
}
