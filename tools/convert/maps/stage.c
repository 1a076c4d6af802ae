/* tools/convert/maps/stage.c - finds tensors of a mapping's source, and adds tensors and pieces to
 * its target. */
#include "tools/convert/maps/stage.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "snapshot/box.h"

uint32_t
cairn_map_source_find(const struct cairn_map_stage *stage, const struct cairn_map_name *pattern,
                      const char *key, const uint64_t *captures)
{
    const char *prefix = stage->map->prefixes[stage->side];
    size_t prefix_bytes = strlen(prefix), key_bytes = key[0] ? strlen(key) + 1 : 0;
    char name[CAIRN_NAME_BYTES_MAX];
    uint32_t found;

    if (!cairn_map_name_make(pattern, key, captures, name))
        return UINT32_MAX;
    found = cairn_layout_tensor_find(stage->from, name);
    if (found != UINT32_MAX || prefix_bytes == 0 ||
        strncmp(name + key_bytes, prefix, prefix_bytes) != 0)
        return found;
    memmove(name + key_bytes, name + key_bytes + prefix_bytes,
            strlen(name + key_bytes + prefix_bytes) + 1);
    return cairn_layout_tensor_find(stage->from, name);
}

cairn_err
cairn_map_scratch_add(struct cairn_map_stage *stage, const struct cairn_piece *piece)
{
    struct cairn_map_pieces *scratch = &stage->scratch;

    if (!cairn_array_grow(&scratch->pieces, scratch->count, sizeof(*scratch->pieces)))
        return CAIRN_NOMEM;
    scratch->pieces[scratch->count++] = *piece;
    return CAIRN_OK;
}

const struct cairn_piece **
cairn_map_pieces_of(const struct cairn_map_stage *stage, uint32_t tensor, size_t *count)
{
    uint32_t original = cairn_checkpoint_past_alias(stage->checkpoint, tensor);

    *count = stage->table.begin[original + 1] - stage->table.begin[original];
    return &stage->table.piece[stage->table.begin[original]];
}

cairn_err
cairn_map_scratch_copy(struct cairn_map_stage *stage, uint32_t tensor)
{
    size_t count;
    const struct cairn_piece **pieces = cairn_map_pieces_of(stage, tensor, &count);
    cairn_err err = CAIRN_OK;

    for (size_t i = 0; i < count && !err; i++)
        err = cairn_map_scratch_add(stage, pieces[i]);
    return err;
}

static cairn_err
add_alias(struct cairn_map_stage *stage, uint32_t tensor, uint32_t of)
{
    if (!cairn_array_grow(&stage->aliases, stage->alias_count, sizeof(*stage->aliases)))
        return CAIRN_NOMEM;
    stage->aliases[stage->alias_count++] = (struct cairn_alias){tensor, of};
    return CAIRN_OK;
}

cairn_err
cairn_map_target_add(struct cairn_map_stage *stage, const char *name,
                     const struct cairn_tensor *like, uint32_t dims, const uint64_t *shape,
                     uint32_t alias_of)
{
    uint32_t index = cairn_layout_tensor_count(stage->to);
    cairn_err err;

    if (cairn_layout_tensor_find(stage->to, name) != UINT32_MAX)
        return cairn_refuse(
            stage->checkpoint, CAIRN_CORRUPT,
            "two tensors would be called %s, the second is %s; leave one out with --drop", name,
            like->name);
    if (!cairn_array_grow(&stage->piece_first, index, sizeof(*stage->piece_first)))
        return CAIRN_NOMEM;
    stage->piece_first[index] = cairn_layout_piece_count(stage->to);
    err = cairn_box_add_tensor(stage->to, name, like->dtype, like->kind, dims, shape, &index, NULL);
    for (size_t i = 0; !err && alias_of == UINT32_MAX && i < stage->scratch.count; i++) {
        stage->scratch.pieces[i].tensor = index;
        err = cairn_layout_add_piece(stage->to, &stage->scratch.pieces[i]);
    }
    if (!err && alias_of != UINT32_MAX)
        err = add_alias(stage, index, alias_of);
    return cairn_complain_failed(stage->checkpoint->complaint, err, "%s: tensor %s cannot be added",
                                 stage->checkpoint->place.path, name);
}
