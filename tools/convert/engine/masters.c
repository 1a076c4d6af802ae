/* tools/convert/engine/masters.c - see masters.h. */
#include "tools/convert/engine/masters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "snapshot/box.h"

enum { NONE = UINT32_MAX };

/* Which tensor has the master weights of another one, by name; NONE. */
static uint32_t
find_master(const struct cairn_layout *layout, uint32_t index)
{
    const struct cairn_tensor *tensor = cairn_layout_tensor(layout, index), *master;
    char name[CAIRN_NAME_BYTES_MAX + 8];
    uint32_t found;

    if (tensor->kind != CAIRN_PARAM || (tensor->dtype != CAIRN_BF16 && tensor->dtype != CAIRN_F16))
        return NONE;
    (void)snprintf(name, sizeof(name), "fp32.%s", tensor->name);
    found = cairn_layout_tensor_find(layout, name);
    if (found == NONE)
        return NONE;
    master = cairn_layout_tensor(layout, found);
    return master->kind == CAIRN_OPTIMIZER && master->dtype == CAIRN_F32 &&
                   cairn_shape_equal(master->dims, master->shape, tensor->dims, tensor->shape)
               ? found
               : NONE;
}

/* masters[tensor], NONE where it stays what it is; returns how many are not. */
static uint32_t
find_masters(const struct cairn_checkpoint *checkpoint, uint32_t *masters)
{
    uint32_t count = cairn_layout_tensor_count(checkpoint->layout), taken = 0;

    for (uint32_t t = 0; t < count; t++) /* an alias of an alias would have no elements */
        masters[t] = cairn_checkpoint_past_alias(checkpoint, find_master(checkpoint->layout, t));
    for (uint32_t i = 0; i < checkpoint->alias_count; i++) { /* tied parameters share one master */
        struct cairn_alias alias = checkpoint->aliases[i];

        if (masters[alias.of] == NONE)
            masters[alias.of] = masters[alias.tensor];
    }
    for (uint32_t i = 0; i < checkpoint->alias_count; i++)
        masters[checkpoint->aliases[i].tensor] = masters[checkpoint->aliases[i].of];
    for (uint32_t t = 0; t < count; t++)
        taken += masters[t] != NONE;
    return taken;
}

static cairn_err
copy_layout(const struct cairn_layout *from, const uint32_t *masters, struct cairn_layout *to)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t t = 0; !err && t < cairn_layout_tensor_count(from); t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(from, t);
        uint32_t index;

        err = cairn_box_copy_tensor(to, tensor, masters[t] == NONE ? tensor->dtype : CAIRN_F32,
                                    &index);
    }
    for (size_t i = 0; !err && i < cairn_layout_piece_count(from); i++)
        if (masters[cairn_layout_piece(from, i)->tensor] == NONE)
            err = cairn_layout_add_piece(to, cairn_layout_piece(from, i));
    return err;
}

/* The aliases that stay, and one for each parameter with a master. `aliases` has room for all. */
static uint32_t
list_aliases(const struct cairn_checkpoint *checkpoint, const uint32_t *masters,
             struct cairn_alias *aliases)
{
    uint32_t count = 0;

    for (uint32_t t = 0; t < cairn_layout_tensor_count(checkpoint->layout); t++) {
        uint32_t of = masters[t] == NONE ? cairn_checkpoint_past_alias(checkpoint, t) : masters[t];

        if (of != t)
            aliases[count++] = (struct cairn_alias){t, of};
    }
    return count;
}

cairn_err
cairn_checkpoint_take_masters(struct cairn_checkpoint *checkpoint, uint32_t *taken)
{
    size_t count = cairn_layout_tensor_count(checkpoint->layout);
    uint32_t *masters = malloc((count + 1) * sizeof(*masters));
    struct cairn_alias *aliases = NULL;
    struct cairn_layout *layout = NULL;
    cairn_err err = masters ? CAIRN_OK : CAIRN_NOMEM;

    *taken = masters ? find_masters(checkpoint, masters) : 0;
    if (*taken > 0) {
        for (uint32_t i = 0; !err && i < checkpoint->alias_count + *taken; i++)
            err = cairn_array_grow(&aliases, i, sizeof(*aliases)) ? CAIRN_OK : CAIRN_NOMEM;
        if (!err)
            err = cairn_layout_create(&layout);
        if (!err)
            err = copy_layout(checkpoint->layout, masters, layout);
        if (!err) {
            checkpoint->alias_count = list_aliases(checkpoint, masters, aliases);
            free(checkpoint->aliases);
            checkpoint->aliases = aliases;
            cairn_layout_destroy(checkpoint->layout);
            checkpoint->layout = layout;
            aliases = NULL;
            layout = NULL;
        }
    }
    free(aliases);
    cairn_layout_destroy(layout);
    free(masters);
    return err ? cairn_refuse(checkpoint, err, "no memory for its tensors") : CAIRN_OK;
}
