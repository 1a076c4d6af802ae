/* tools/convert/engine/select.c - see select.h. */
#include "tools/convert/engine/select.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "snapshot/box.h"

enum { NONE = UINT32_MAX };

/* What becomes of each tensor. */
struct selection {
    uint32_t count;
    uint32_t *of; /* whose elements it gets, with the dtype; NONE: it is left out */
    uint32_t
        *owners; /* the first tensor that gets these elements, or the one that had them; NONE */
    uint32_t *numbers; /* in the new layout */
};

static cairn_err
selection_init(const struct cairn_checkpoint *checkpoint, struct selection *selection)
{
    uint32_t count = cairn_layout_tensor_count(checkpoint->layout);

    selection->count = count;
    selection->of = malloc((3 * (size_t)count + 1) * sizeof(*selection->of));
    if (!selection->of)
        return CAIRN_NOMEM;
    selection->owners = selection->of + count;
    selection->numbers = selection->owners + count;
    for (uint32_t t = 0; t < count; t++)
        selection->of[t] = cairn_checkpoint_past_alias(checkpoint, t);
    return CAIRN_OK;
}

static void
find_owners(struct selection *selection)
{
    uint32_t kept = 0;

    for (uint32_t t = 0; t < selection->count; t++) {
        selection->owners[t] = selection->of[t] == t ? t : NONE;
        selection->numbers[t] = selection->of[t] != NONE ? kept++ : NONE;
    }
    for (uint32_t t = 0; t < selection->count; t++)
        if (selection->of[t] != NONE && selection->owners[selection->of[t]] == NONE)
            selection->owners[selection->of[t]] = t;
}

/* The tensors that stay, in order, and the pieces that somebody gets. Those that get another
 * tensor's elements become its aliases. */
static cairn_err
copy_layout(const struct cairn_layout *from, const struct selection *selection,
            struct cairn_layout *to, struct cairn_alias **aliases, uint32_t *alias_count)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t t = 0; !err && t < selection->count; t++) {
        uint32_t of = selection->of[t], index;

        if (of == NONE)
            continue;
        err = cairn_box_copy_tensor(to, cairn_layout_tensor(from, t),
                                    cairn_layout_tensor(from, of)->dtype, &index);
        if (err || selection->owners[of] == t)
            continue;
        if (!cairn_array_grow(aliases, *alias_count, sizeof(**aliases)))
            return CAIRN_NOMEM;
        (*aliases)[(*alias_count)++] =
            (struct cairn_alias){index, selection->numbers[selection->owners[of]]};
    }
    for (size_t i = 0; !err && i < cairn_layout_piece_count(from); i++) {
        struct cairn_piece piece = *cairn_layout_piece(from, i);

        if (selection->owners[piece.tensor] == NONE)
            continue;
        piece.tensor = selection->numbers[selection->owners[piece.tensor]];
        err = cairn_layout_add_piece(to, &piece);
    }
    return err;
}

/* Gives the checkpoint a layout of what is selected. */
static cairn_err
apply(struct cairn_checkpoint *checkpoint, struct selection *selection)
{
    struct cairn_layout *layout = NULL;
    struct cairn_alias *aliases = NULL;
    uint32_t alias_count = 0;
    cairn_err err = cairn_layout_create(&layout);

    find_owners(selection);
    if (!err)
        err = copy_layout(checkpoint->layout, selection, layout, &aliases, &alias_count);
    if (err) {
        free(aliases);
        cairn_layout_destroy(layout);
        return err;
    }
    free(checkpoint->aliases);
    checkpoint->aliases = aliases;
    checkpoint->alias_count = alias_count;
    cairn_layout_destroy(checkpoint->layout);
    checkpoint->layout = layout;
    return CAIRN_OK;
}

/* ---- dropping ---- */

cairn_err
cairn_checkpoint_drop(struct cairn_checkpoint *checkpoint, const char *const *patterns,
                      size_t pattern_count, uint32_t *dropped)
{
    struct selection selection = {.count = 0};
    cairn_err err = CAIRN_OK;

    *dropped = 0;
    if (pattern_count == 0)
        return CAIRN_OK;
    err = selection_init(checkpoint, &selection);
    for (size_t p = 0; !err && p < pattern_count; p++) {
        bool fits = false;

        for (uint32_t t = 0; t < selection.count; t++) {
            if (fnmatch(patterns[p], cairn_layout_tensor(checkpoint->layout, t)->name, 0) != 0)
                continue;
            fits = true;
            *dropped += selection.of[t] != NONE;
            selection.of[t] = NONE;
        }
        if (!fits)
            err = cairn_refuse(checkpoint, CAIRN_INVAL,
                               "no tensor matches \"%s\"; see cairn inspect", patterns[p]);
    }
    if (!err)
        err = apply(checkpoint, &selection);
    free(selection.of);
    return err;
}

/* ---- masters ---- */

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

/* Selects masters in the place of what has some; returns how many. Tied parameters share one. */
static uint32_t
select_masters(const struct cairn_checkpoint *checkpoint, struct selection *selection)
{
    uint32_t *masters = selection->numbers, taken = 0;

    for (uint32_t t = 0; t < selection->count;
         t++) /* an alias of an alias would have no elements */
        masters[t] = cairn_checkpoint_past_alias(checkpoint, find_master(checkpoint->layout, t));
    for (uint32_t i = 0; i < checkpoint->alias_count; i++)
        if (masters[checkpoint->aliases[i].of] == NONE)
            masters[checkpoint->aliases[i].of] = masters[checkpoint->aliases[i].tensor];
    for (uint32_t i = 0; i < checkpoint->alias_count; i++)
        masters[checkpoint->aliases[i].tensor] = masters[checkpoint->aliases[i].of];
    for (uint32_t t = 0; t < selection->count; t++) {
        taken += masters[t] != NONE;
        selection->of[t] = masters[t] != NONE ? masters[t] : selection->of[t];
    }
    return taken;
}

cairn_err
cairn_checkpoint_take_masters(struct cairn_checkpoint *checkpoint, uint32_t *taken)
{
    struct selection selection = {.count = 0};
    cairn_err err = selection_init(checkpoint, &selection);

    *taken = err ? 0 : select_masters(checkpoint, &selection);
    if (*taken > 0)
        err = apply(checkpoint, &selection);
    free(selection.of);
    return err ? cairn_refuse(checkpoint, err, "no memory for its tensors") : CAIRN_OK;
}
