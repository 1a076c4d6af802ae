/* tools/convert/state/opaque_tree.c - see opaque_tree.h. */
#include "tools/convert/state/opaque_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/pickle/write.h"

cairn_err
cairn_opaque_load(const struct cairn_checkpoint *checkpoint, const char *name, size_t bytes_max,
                  struct cairn_pickle *tree, uint8_t **bytes, size_t *bytes_len)
{
    uint8_t *loaded = NULL;
    cairn_err err = cairn_checkpoint_load_opaque(checkpoint, name, bytes_max, &loaded, bytes_len);

    if (err)
        return err;
    *bytes = cairn_pickle_alloc(tree, (uint64_t)*bytes_len + 1);
    if (*bytes)
        memcpy(*bytes, loaded, *bytes_len + 1);
    free(loaded);
    return *bytes ? CAIRN_OK : CAIRN_NOMEM;
}

cairn_err
cairn_opaque_read(const struct cairn_checkpoint *checkpoint, const char *name, size_t bytes_max,
                  struct cairn_pickle *tree, struct cairn_pickle_node **root)
{
    char where[CAIRN_FILE_PATH_BYTES_MAX];
    uint8_t *bytes;
    size_t bytes_len;
    cairn_err err = cairn_opaque_load(checkpoint, name, bytes_max, tree, &bytes, &bytes_len);

    (void)snprintf(where, sizeof(where), "%s: %s", checkpoint->place.path, name);
    return err ? err
               : cairn_pickle_read(tree, where, bytes, bytes_len, root, checkpoint->complaint);
}

cairn_err
cairn_opaque_add(struct cairn_checkpoint *checkpoint, const char *name,
                 const struct cairn_pickle *tree, const struct cairn_pickle_node *root)
{
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    cairn_err err = cairn_pickle_done(tree);

    if (!err)
        err = cairn_pickle_write(tree, root, &bytes, &bytes_len, checkpoint->complaint);
    if (!err)
        err = cairn_checkpoint_add_opaque(checkpoint, name, bytes, bytes_len);
    free(bytes);
    return err;
}

cairn_err
cairn_opaque_tree_open(const struct cairn_checkpoint *checkpoint, const char *name,
                       struct cairn_opaque_tree *out)
{
    size_t bytes_len;
    uint8_t *bytes;
    cairn_err err;

    memset(out, 0, sizeof(*out));
    cairn_pickle_init(&out->tree, CAIRN_CONVERT_METADATA_BYTES_MAX);
    err = cairn_opaque_load(checkpoint, name, CAIRN_CONVERT_METADATA_BYTES_MAX, &out->tree, &bytes,
                            &bytes_len);
    out->loaded = !err;
    return err ? err : cairn_pickle_read(&out->tree, name, bytes, bytes_len, &out->root, NULL);
}

void
cairn_opaque_tree_close(struct cairn_opaque_tree *tree)
{
    cairn_pickle_fini(&tree->tree);
    memset(tree, 0, sizeof(*tree));
}
