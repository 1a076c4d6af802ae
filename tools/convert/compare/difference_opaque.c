/* tools/convert/compare/difference_opaque.c - opaque state that differs in bytes and says the same:
 * pickles compared by what they say. */
#include "tools/convert/compare/difference.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/pickle/compare.h"
#include "tools/convert/state/reserved.h"

enum { PATH_BYTES = 256 };

static const struct cairn_tensor *
tensor_of(const struct cairn_difference_side sides[2], const struct cairn_difference *difference)
{
    return difference->left != UINT32_MAX ? cairn_layout_tensor(sides[0].layout, difference->left)
                                          : cairn_layout_tensor(sides[1].layout, difference->right);
}

/* Compares one pickle that both sides have. */
static cairn_err
compare(const struct cairn_difference_side sides[2], bool bits, const char *name,
        struct cairn_difference *difference, bool *same)
{
    struct cairn_opaque_tree left, right = {.root = NULL};
    char path[PATH_BYTES] = "";
    cairn_err err = cairn_opaque_tree_open(sides[0].checkpoint, name, &left);

    *same = false;
    if (!err)
        err = cairn_opaque_tree_open(sides[1].checkpoint, name, &right);
    if (err == CAIRN_CORRUPT || err == CAIRN_VERSION) {
        err = CAIRN_OK; /* it is called so and is not a pickle: its bytes differ, and that is all */
    } else if (!err) {
        err =
            cairn_pickle_compare(&left.tree, left.root, right.root, bits, path, sizeof(path), same);
        if (!err && !*same) {
            difference->kind = CAIRN_OTHER_VALUE;
            difference->path = strdup(path);
            err = difference->path ? CAIRN_OK : CAIRN_NOMEM;
        }
    }
    cairn_opaque_tree_close(&left);
    cairn_opaque_tree_close(&right);
    return err;
}

/* What a reader keeps to write the same container again, if all its values have their own names. */
static bool
is_nesting(const char *name)
{
    return strcmp(name, CAIRN_TORCH_TREE) == 0 || cairn_text_ends(name, CAIRN_DCP_NAMES) ||
           cairn_text_ends(name, CAIRN_DCP_NAMES ".pickle");
}

cairn_err
cairn_difference_opaque(const struct cairn_difference_side sides[2], bool bits,
                        struct cairn_difference *differences, size_t *count)
{
    size_t kept = 0;
    cairn_err err = CAIRN_OK;

    for (size_t i = 0; i < *count; i++) {
        struct cairn_difference *difference = &differences[i];
        const struct cairn_tensor *tensor = tensor_of(sides, difference);
        bool same = false, both = difference->left != UINT32_MAX && difference->right != UINT32_MAX;

        if (!err && tensor->kind == CAIRN_OPAQUE && both &&
            cairn_text_ends(tensor->name, ".pickle")) {
            err = compare(sides, bits, tensor->name, difference, &same);
        } else if (!err && tensor->kind == CAIRN_OPAQUE && !both && is_nesting(tensor->name)) {
            same = true;
            err = cairn_checkpoint_warn(
                sides[difference->left == UINT32_MAX].checkpoint,
                "%s: has the nesting of the files of %s; the other side has no such files",
                tensor->name, sides[difference->left == UINT32_MAX].checkpoint->place.path);
        } else if (!err && tensor->kind == CAIRN_OPAQUE && !both &&
                   strcmp(tensor->name, CAIRN_SAFETENSORS_NOTES) == 0) {
            same = true;
            err = cairn_checkpoint_warn(
                sides[difference->left == UINT32_MAX].checkpoint,
                "%s: has notes (__metadata__ of safetensors files), the other side has none",
                sides[difference->left == UINT32_MAX].checkpoint->place.path);
        }
        if (!same)
            differences[kept++] = *difference;
    }
    *count = kept;
    return err;
}

void
cairn_differences_free(struct cairn_difference *differences, size_t count)
{
    for (size_t i = 0; differences && i < count; i++)
        free(differences[i].path);
    free(differences);
}
