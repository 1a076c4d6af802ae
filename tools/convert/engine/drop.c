/* tools/convert/engine/drop.c - see drop.h. */
#include "tools/convert/engine/drop.h"

#include <fnmatch.h>
#include <stdlib.h>

#include "snapshot/box.h"

/* Marks what goes: numbers[tensor] is the new number, UINT32_MAX where it is dropped. */
static cairn_err
number_tensors(const struct cairn_checkpoint *checkpoint, const char *const *patterns,
               size_t pattern_count, uint32_t *numbers, uint32_t *dropped)
{
    uint32_t count = cairn_layout_tensor_count(checkpoint->layout), kept = 0;

    for (size_t p = 0; p < pattern_count; p++) {
        bool fits = false;

        for (uint32_t t = 0; t < count && !fits; t++)
            fits = fnmatch(patterns[p], cairn_layout_tensor(checkpoint->layout, t)->name, 0) == 0;
        if (!fits)
            return cairn_refuse(checkpoint, CAIRN_INVAL,
                                "no tensor matches \"%s\"; see cairn inspect", patterns[p]);
    }
    for (uint32_t t = 0; t < count; t++) {
        bool fits = false;

        for (size_t p = 0; p < pattern_count && !fits; p++)
            fits = fnmatch(patterns[p], cairn_layout_tensor(checkpoint->layout, t)->name, 0) == 0;
        numbers[t] = fits ? UINT32_MAX : kept++;
    }
    *dropped = count - kept;
    return CAIRN_OK;
}

/* heirs[tensor]: the first alias that is kept of a tensor that is not, which then has its elements;
 * else UINT32_MAX. */
static void
find_heirs(const struct cairn_checkpoint *checkpoint, const uint32_t *numbers, uint32_t *heirs)
{
    for (uint32_t t = 0; t < cairn_layout_tensor_count(checkpoint->layout); t++)
        heirs[t] = UINT32_MAX;
    for (uint32_t i = 0; i < checkpoint->alias_count; i++) {
        struct cairn_alias alias = checkpoint->aliases[i];

        if (numbers[alias.tensor] != UINT32_MAX && numbers[alias.of] == UINT32_MAX &&
            heirs[alias.of] == UINT32_MAX)
            heirs[alias.of] = alias.tensor;
    }
}

/* The layout without what is dropped; numbers stay in order. */
static cairn_err
copy_kept(const struct cairn_layout *from, const uint32_t *numbers, const uint32_t *heirs,
          struct cairn_layout *to)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t t = 0; !err && t < cairn_layout_tensor_count(from); t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(from, t);
        uint32_t index;

        if (numbers[t] == UINT32_MAX)
            continue;
        err = cairn_box_copy_tensor(to, tensor, tensor->dtype, &index);
    }
    for (size_t i = 0; !err && i < cairn_layout_piece_count(from); i++) {
        struct cairn_piece piece = *cairn_layout_piece(from, i);

        if (numbers[piece.tensor] == UINT32_MAX)
            piece.tensor = heirs[piece.tensor];
        if (piece.tensor == UINT32_MAX)
            continue;
        piece.tensor = numbers[piece.tensor];
        err = cairn_layout_add_piece(to, &piece);
    }
    return err;
}

static void
renumber_aliases(struct cairn_checkpoint *checkpoint, const uint32_t *numbers,
                 const uint32_t *heirs)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < checkpoint->alias_count; i++) {
        struct cairn_alias alias = checkpoint->aliases[i];

        if (numbers[alias.of] == UINT32_MAX)
            alias.of = heirs[alias.of];
        if (numbers[alias.tensor] == UINT32_MAX || alias.tensor == alias.of)
            continue;
        checkpoint->aliases[kept++] =
            (struct cairn_alias){numbers[alias.tensor], numbers[alias.of]};
    }
    checkpoint->alias_count = kept;
}

cairn_err
cairn_checkpoint_drop(struct cairn_checkpoint *checkpoint, const char *const *patterns,
                      size_t pattern_count, uint32_t *dropped)
{
    struct cairn_layout *layout = NULL;
    uint32_t *numbers, *heirs; /* one after the other */
    cairn_err err;

    *dropped = 0;
    if (pattern_count == 0)
        return CAIRN_OK;
    numbers =
        malloc((2 * (size_t)cairn_layout_tensor_count(checkpoint->layout) + 1) * sizeof(*numbers));
    if (!numbers)
        return CAIRN_NOMEM;
    heirs = numbers + cairn_layout_tensor_count(checkpoint->layout);
    err = number_tensors(checkpoint, patterns, pattern_count, numbers, dropped);
    if (!err)
        err = cairn_layout_create(&layout);
    if (!err)
        find_heirs(checkpoint, numbers, heirs);
    if (!err)
        err = copy_kept(checkpoint->layout, numbers, heirs, layout);
    if (!err)
        renumber_aliases(checkpoint, numbers, heirs);
    free(numbers);
    if (err) {
        cairn_layout_destroy(layout);
        return err;
    }
    cairn_layout_destroy(checkpoint->layout);
    checkpoint->layout = layout;
    return CAIRN_OK;
}
