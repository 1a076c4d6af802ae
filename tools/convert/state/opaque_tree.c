/* tools/convert/state/opaque_tree.c - see opaque_tree.h. */
#include "tools/convert/state/opaque_tree.h"

#include <stdlib.h>
#include <string.h>

#include "tools/convert/pickle/read.h"

cairn_err
cairn_opaque_tree_open(const struct cairn_checkpoint *checkpoint, const char *name,
                       struct cairn_opaque_tree *out, struct cairn_complaint *complaint)
{
    size_t bytes_len = 0, taken = 0;
    cairn_err err;

    memset(out, 0, sizeof(*out));
    cairn_pickle_init(&out->tree, CAIRN_CONVERT_METADATA_BYTES_MAX);
    err = cairn_checkpoint_load_opaque(checkpoint, name, CAIRN_CONVERT_METADATA_BYTES_MAX,
                                       &out->bytes, &bytes_len, complaint);
    if (!err)
        err = cairn_pickle_read(&out->tree, name, out->bytes, bytes_len, &out->root, &taken);
    out->whole = !err && taken == bytes_len;
    return err;
}

void
cairn_opaque_tree_close(struct cairn_opaque_tree *tree)
{
    cairn_pickle_fini(&tree->tree);
    free(tree->bytes);
    memset(tree, 0, sizeof(*tree));
}
