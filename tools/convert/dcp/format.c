/*
 * tools/convert/dcp/format.c - checkpoints of torch.distributed.checkpoint: a `.metadata` and files
 * of items beside it, "__<rank>_<number>.distcp" where PyTorch names them.
 *
 * What has no tensors in it is one pickle within its item, and its piece is that pickle, unread.
 * Only parameter groups are read: they get one form for all formats.
 */
#include "tools/convert/core/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "snapshot/box.h"
#include "tools/convert/dcp/dcp.h"
#include "tools/convert/dcp/output.h"
#include "tools/convert/state/kept_names.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/state/names.h"
#include "tools/convert/torch/state.h"
#include "tools/convert/state/opaque_tree.h"

static bool
probe(const struct cairn_place *place)
{
    return cairn_place_has_file(place, CAIRN_DCP_METADATA) &&
           !cairn_place_has_file(place, "metadata.json"); /* Megatron's, which reads it otherwise */
}

/* ---- reading ---- */

/* What becomes of an entry. */
struct named {
    char *name;      /* canonical, owned; NULL: not decided, or part of the parameter groups */
    uint32_t tensor; /* in the layout; of tensors */
    uint32_t leaf;   /* 1 + index in `leaves`; 0: none */
    bool grouped;    /* `value` is of parameter groups */
    struct cairn_group_value value;
};

struct reading {
    struct cairn_checkpoint *checkpoint;
    struct cairn_dcp_metadata metadata;
    struct cairn_state_roots roots;
    struct cairn_name_set whole;
    struct named *named; /* [entry_count] */
    struct cairn_dcp_wants wants;

    bool groups_plain;                /* all of them could be read */
    bool groups_carried;              /* they are there in one form too */
    struct cairn_torch_file kept;     /* the tree of the file of torch.save that this was */
    struct cairn_torch_leaves leaves; /* of that tree */
    uint32_t *first_of;               /* [nodes of the tree]: 1 + index of its first leaf */
    bool in_tree;                     /* there is such a tree, and it fits */
};

static bool
same_path(const struct cairn_state_path *a, const struct cairn_state_path *b)
{
    if (a->count != b->count)
        return false;
    for (uint32_t i = 0; i < a->count; i++)
        if (a->keys[i].number != b->keys[i].number || strcmp(a->keys[i].text, b->keys[i].text) != 0)
            return false;
    return true;
}

static bool
is_carried(const struct cairn_dcp_entry *entry)
{
    return entry->tensor && entry->keys_said && entry->key_count == 2 && !entry->keys[1].number &&
           strcmp(entry->keys[0].text, CAIRN_CARRIED_KEY) == 0 && entry->dtype == CAIRN_U8 &&
           entry->dims == 1;
}

/* ---- the tree of a file of torch.save ---- */

/* The bytes of the carried tree; *bytes stays NULL where there is none. */
static cairn_err
load_kept_tree(struct reading *reading, uint8_t **bytes, size_t *bytes_len)
{
    const struct cairn_checkpoint *checkpoint = reading->checkpoint;
    const struct cairn_dcp_wanted *wanted = NULL;
    char file_name[CAIRN_NAME_BYTES_MAX];
    struct cairn_torch_file file = {0};
    int fd = -1;
    size_t got = 0;
    cairn_err err;

    for (size_t i = 0; i < reading->wants.count; i++) {
        const struct cairn_dcp_entry *entry =
            &reading->metadata.entries[reading->wants.items[i].entry];

        if (is_carried(entry) && strcmp(entry->keys[1].text, CAIRN_TORCH_TREE) == 0)
            wanted = &reading->wants.items[i];
    }
    if (!wanted || wanted->item.bytes > CAIRN_DCP_OBJECT_BYTES_MAX ||
        !cairn_pickle_copy_text(wanted->item.path, file_name, sizeof(file_name)) ||
        !cairn_place_name_check(file_name))
        return CAIRN_OK; /* refused with the others */
    err = cairn_place_open_file(&checkpoint->place, file_name, &fd, reading->checkpoint->complaint);
    if (!err)
        err = cairn_torch_open(fd, file_name, wanted->item.offset_bytes, wanted->item.bytes,
                               CAIRN_DCP_TREE_BYTES_MAX, &file, reading->checkpoint->complaint);
    if (!err && file.tensor_count == 1 && file.tensors[0].contiguous) {
        *bytes_len = (size_t)file.tensors[0].bytes;
        *bytes = malloc(*bytes_len + 1);
        err = *bytes ? cairn_file_read_at(fd, file.tensors[0].at, *bytes, *bytes_len, &got)
                     : CAIRN_NOMEM;
        if (!err && got != *bytes_len)
            err = CAIRN_CORRUPT;
    }
    cairn_torch_close(&file);
    (void)cairn_file_close(fd); /* only read; -1 is allowed */
    return cairn_complain_failed(reading->checkpoint->complaint, err, "%s/%s: %s cannot be read",
                                 checkpoint->place.path, file_name, CAIRN_TORCH_TREE);
}

static int
compare_entries(const void *left, const void *right, void *entries)
{
    const struct cairn_dcp_entry *all = entries;

    return strcmp(all[*(const uint32_t *)left].name, all[*(const uint32_t *)right].name);
}

/* The entry that lies where a leaf does; UINT32_MAX. */
static uint32_t
entry_of_leaf(const struct reading *reading, const uint32_t *sorted,
              const struct cairn_torch_leaf *leaf)
{
    const struct cairn_dcp_entry *entries = reading->metadata.entries;
    struct cairn_state_path path = cairn_torch_leaf_path(leaf), said;
    uint32_t low = 0, count = reading->metadata.entry_count;
    char joined[CAIRN_STATE_NAME_BYTES_MAX];

    if (!cairn_state_join(&path, joined, sizeof(joined)))
        return UINT32_MAX;
    CAIRN_BISECT(low, count, middle, strcmp(entries[sorted[middle]].name, joined) < 0);
    if (low == count || strcmp(entries[sorted[low]].name, joined) != 0)
        return UINT32_MAX;
    said = cairn_dcp_entry_path(&entries[sorted[low]]);
    return same_path(&said, &path) ? sorted[low] : UINT32_MAX;
}

/* Finds the leaf of each tensor. Without one for each, as where keys were not kept or a tensor was
 * left out, the tree says nothing: *fits. */
static cairn_err
match_leaves(struct reading *reading, bool *fits)
{
    const struct cairn_dcp_metadata *metadata = &reading->metadata;
    uint32_t *sorted = calloc((size_t)metadata->entry_count + 1, sizeof(*sorted));

    if (!sorted)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < metadata->entry_count; i++)
        sorted[i] = i;
    qsort_r(sorted, metadata->entry_count, sizeof(*sorted), compare_entries, metadata->entries);
    for (uint32_t i = 0; i < reading->leaves.count && *fits; i++) {
        const struct cairn_torch_leaf *leaf = &reading->leaves.leaves[i];
        uint32_t entry;

        if (leaf->groups || !cairn_pickle_tensor_name(leaf->node, NULL))
            continue;
        entry = entry_of_leaf(reading, sorted, leaf);
        *fits = entry != UINT32_MAX && metadata->entries[entry].tensor;
        if (*fits)
            reading->named[entry].leaf = i + 1;
    }
    free(sorted);
    for (uint32_t i = 0; i < metadata->entry_count && *fits; i++) {
        struct cairn_state_path path = cairn_dcp_entry_path(&metadata->entries[i]);
        struct cairn_state_place place;

        *fits = !metadata->entries[i].tensor || reading->named[i].leaf != 0 ||
                is_carried(&metadata->entries[i]) ||
                (cairn_state_classify(&reading->roots, &path, &place) &&
                 place.class == CAIRN_STATE_GROUP);
    }
    return CAIRN_OK;
}

/* Takes the prefixes from the tree, in its order, as from the file itself. */
static cairn_err
take_kept_tree(struct reading *reading)
{
    struct cairn_state_roots before = reading->roots;
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    bool fits = true;
    cairn_err err = load_kept_tree(reading, &bytes, &bytes_len);

    if (err || !bytes) {
        free(bytes);
        return err;
    }
    err = cairn_torch_leaves_of_kept(bytes, bytes_len, &reading->kept, &reading->leaves);
    reading->kept.pickle_bytes = bytes; /* which the tree borrows */
    memset(&reading->roots, 0, sizeof(reading->roots));
    for (uint32_t i = 0; i < reading->leaves.count && !err; i++) {
        struct cairn_state_path path = cairn_torch_leaf_path(&reading->leaves.leaves[i]);

        if (cairn_pickle_tensor_name(reading->leaves.leaves[i].node, NULL))
            cairn_state_roots_see(&reading->roots, &path);
    }
    reading->first_of = calloc((size_t)reading->kept.tree.node_count + 1, sizeof(uint32_t));
    if (!err && !reading->first_of)
        err = CAIRN_NOMEM;
    for (uint32_t i = reading->leaves.count; i-- > 0 && !err;)
        reading->first_of[reading->leaves.leaves[i].node->index] = i + 1;
    if (!err)
        err = match_leaves(reading, &fits);
    reading->in_tree = !err && fits;
    if (err == CAIRN_CORRUPT || err == CAIRN_INVAL || (!err && !fits)) {
        reading->roots = before;
        err = CAIRN_OK;
    }
    return err;
}

/* ---- names ---- */

static cairn_err
set_name(struct reading *reading, uint32_t index, const char *name)
{
    cairn_err err = cairn_checkpoint_check_name(reading->checkpoint, name);

    if (err)
        return err;
    free(reading->named[index].name);
    reading->named[index].name = strdup(name);
    return reading->named[index].name ? CAIRN_OK : CAIRN_NOMEM;
}

static cairn_err
add_named(struct reading *reading, uint32_t index, const char *name, enum cairn_kind kind)
{
    const struct cairn_dcp_entry *entry = &reading->metadata.entries[index];
    struct cairn_checkpoint *checkpoint = reading->checkpoint;
    cairn_err err;

    if (cairn_layout_tensor_find(checkpoint->layout, name) != UINT32_MAX)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT, "duplicate tensor %.300s", name);
    err = set_name(reading, index, name);
    if (!err)
        err = cairn_checkpoint_add_tensor(checkpoint, name, entry->dtype, kind, entry->dims,
                                          entry->shape, &reading->named[index].tensor);
    return err;
}

static cairn_err
add_tensor(struct reading *reading, uint32_t index, const char *name, enum cairn_kind kind)
{
    const char *whole = reading->metadata.entries[index].name;

    /* Two prefixes may hold a tensor of one name; the second keeps its whole name. */
    if (strcmp(name, whole) != 0 &&
        (cairn_name_set_has(&reading->whole, name) ||
         cairn_layout_tensor_find(reading->checkpoint->layout, name) != UINT32_MAX))
        name = whole;
    return add_named(reading, index, name, kind);
}

/* Whether a leaf is the first of the tree with its node, which all of them share. */
static bool
is_first(const struct reading *reading, const struct cairn_torch_leaf *leaf)
{
    return reading->first_of[leaf->node->index] == leaf - reading->leaves.leaves + 1;
}

/* A second path to a tensor in the tree: more bytes of that tensor, which the executor compares. */
static cairn_err
add_again(struct reading *reading, uint32_t index, const char *of)
{
    const struct cairn_dcp_entry *entry = &reading->metadata.entries[index];
    struct cairn_checkpoint *checkpoint = reading->checkpoint;
    uint32_t known = cairn_layout_tensor_find(checkpoint->layout, of);
    const struct cairn_tensor *tensor =
        known == UINT32_MAX ? NULL : cairn_layout_tensor(checkpoint->layout, known);
    struct cairn_state_path path = cairn_dcp_entry_path(entry);
    struct cairn_state_place place;
    const char *name = entry->name;
    cairn_err err;

    if (!tensor || tensor->dtype != entry->dtype ||
        !cairn_shape_equal(tensor->dims, tensor->shape, entry->dims, entry->shape))
        return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                            "%.300s is not the tensor %.300s that %s says it is; take another copy",
                            entry->name, of, CAIRN_TORCH_TREE);
    if (cairn_state_classify(&reading->roots, &path, &place) && place.class != CAIRN_STATE_MOMENT &&
        place.class != CAIRN_STATE_GROUP && !cairn_name_set_has(&reading->whole, place.parameter) &&
        cairn_layout_tensor_find(checkpoint->layout, place.parameter) == UINT32_MAX)
        name = place.parameter;
    if (path.count == 2 && !path.keys[0].number && !path.keys[1].number &&
        strcmp(path.keys[0].text, CAIRN_CARRIED_KEY) == 0 &&
        cairn_layout_tensor_find(checkpoint->layout, path.keys[1].text) == UINT32_MAX)
        name = path.keys[1].text; /* as torch/format.c names it */
    err = set_name(reading, index, name);
    reading->named[index].tensor = known;
    return err ? err : cairn_checkpoint_add_alias(checkpoint, name, known);
}

static cairn_err
add_all_again(struct reading *reading)
{
    char of[CAIRN_NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < reading->metadata.entry_count && !err; i++)
        if (reading->in_tree && reading->named[i].leaf != 0 && !reading->named[i].name &&
            cairn_pickle_tensor_name(reading->leaves.leaves[reading->named[i].leaf - 1].node, of))
            err = add_again(reading, i, of);
    return err;
}

/* Names the tensors of one class; optimizer state last, which looks up its parameters. */
static cairn_err
name_tensors(struct reading *reading, bool moments, uint32_t *model_count)
{
    const struct cairn_dcp_metadata *metadata = &reading->metadata;
    char name[2 * CAIRN_STATE_NAME_BYTES_MAX + 2];
    struct cairn_state_place place;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < metadata->entry_count && !err; i++) {
        const struct cairn_dcp_entry *entry = &metadata->entries[i];
        struct cairn_state_path path = cairn_dcp_entry_path(entry);

        if (!entry->tensor)
            continue;
        if (!cairn_state_classify(&reading->roots, &path, &place))
            return cairn_refuse(reading->checkpoint, CAIRN_CORRUPT, "the name %.300s is too long",
                                entry->name);
        if (moments != (place.class == CAIRN_STATE_MOMENT))
            continue;
        if (reading->in_tree && reading->named[i].leaf != 0) {
            const struct cairn_torch_leaf *leaf =
                &reading->leaves.leaves[reading->named[i].leaf - 1];

            if (!is_first(reading, leaf))
                continue;
            if (!cairn_pickle_tensor_name(leaf->node, name))
                return CAIRN_CORRUPT;
            err = add_named(reading, i, name,
                            place.class == CAIRN_STATE_MOMENT || place.class == CAIRN_STATE_GROUP
                                ? CAIRN_OPTIMIZER
                            : place.in_model && cairn_state_is_parameter_dtype(entry->dtype)
                                ? CAIRN_PARAM
                                : CAIRN_BUFFER);
        } else if (is_carried(entry)) {
            reading->groups_carried |= strcmp(entry->keys[1].text, CAIRN_PARAM_GROUPS_NAME) == 0;
            err = add_tensor(reading, i, entry->keys[1].text, CAIRN_OPAQUE);
        } else if (place.class == CAIRN_STATE_MOMENT) {
            cairn_state_unwrap(place.parameter);
            (void)snprintf(name, sizeof(name), "%s.%s", place.key, place.parameter);
            if (strchr(place.key, '.') ||
                (*model_count > 0 && cairn_layout_tensor_find(reading->checkpoint->layout,
                                                              place.parameter) == UINT32_MAX))
                (void)snprintf(name, sizeof(name), "%s", entry->name);
            err = add_tensor(reading, i, name, CAIRN_OPTIMIZER);
        } else if (place.class == CAIRN_STATE_GROUP) {
            err = add_tensor(reading, i, entry->name, CAIRN_OPTIMIZER);
        } else {
            bool parameter = place.in_model && cairn_state_is_parameter_dtype(entry->dtype);

            *model_count += parameter;
            err = add_tensor(reading, i, place.parameter, parameter ? CAIRN_PARAM : CAIRN_BUFFER);
        }
    }
    return err;
}

/* ---- parameter groups ---- */

static cairn_err
note_group(struct reading *reading, uint32_t index, const struct cairn_state_place *place)
{
    struct cairn_group_value *value = &reading->named[index].value;

    *value = (struct cairn_group_value){.group = place->group};
    value->key = strdup(place->key);
    value->parameter = place->flat ? strdup(place->parameter) : NULL;
    reading->named[index].grouped = true;
    return value->key && (!place->flat || value->parameter) ? CAIRN_OK : CAIRN_NOMEM;
}

static cairn_err
note_groups(struct reading *reading)
{
    const struct cairn_dcp_metadata *metadata = &reading->metadata;
    struct cairn_state_place place;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < metadata->entry_count && !err; i++) {
        struct cairn_state_path path = cairn_dcp_entry_path(&metadata->entries[i]);

        if (!cairn_state_classify(&reading->roots, &path, &place) ||
            place.class != CAIRN_STATE_GROUP)
            continue;
        err = note_group(reading, i, &place);
        if (!err && metadata->entries[i].tensor)
            reading->named[i].value.tensor = reading->named[i].name;
    }
    return err;
}

/* One opaque state of all groups. Where they are not all plain, each stays an object of its own. */
static cairn_err
pack_groups(struct reading *reading, bool *packed)
{
    struct cairn_group_value *values;
    size_t count = 0;
    cairn_err err = CAIRN_OK;

    *packed = false;
    values = calloc((size_t)reading->metadata.entry_count + 1, sizeof(*values));
    if (!values)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < reading->metadata.entry_count; i++)
        if (reading->named[i].grouped)
            values[count++] = reading->named[i].value;
    if (count > 0 && reading->groups_plain)
        err = cairn_param_groups_add(reading->checkpoint, values, count, NULL, 0, packed);
    free(values);
    return err;
}

/* ---- items ---- */

static cairn_err
add_chunk(struct reading *reading, struct cairn_dcp_chunks *chunks, size_t index,
          const struct cairn_dcp_source *source)
{
    uint32_t entry = reading->wants.items[index].entry;
    const struct cairn_dcp_chunk *chunk;
    cairn_err err = cairn_dcp_chunks_take(chunks, index, reading->checkpoint, source, &chunk);

    return err ? err
               : cairn_checkpoint_add_box(reading->checkpoint, reading->named[entry].tensor,
                                          source->container, chunk->start, chunk->extent, chunk->at,
                                          chunk->stride_bytes);
}

static cairn_err
read_item(struct reading *reading, struct cairn_dcp_source *source, struct cairn_dcp_chunks *chunks,
          size_t index, bool groups_again)
{
    const struct cairn_dcp_wanted *wanted = &reading->wants.items[index];
    const struct cairn_dcp_entry *entry = &reading->metadata.entries[wanted->entry];
    struct named *named = &reading->named[wanted->entry];
    char name[CAIRN_STATE_NAME_BYTES_MAX], final_name[CAIRN_NAME_BYTES_MAX];
    struct cairn_state_path path;
    uint8_t *bytes = NULL;
    cairn_err err;

    err = cairn_dcp_source_select(reading->checkpoint, source, &wanted->item, entry->name);
    if (err)
        return err;
    if (entry->tensor)
        return add_chunk(reading, chunks, index, source);
    if (named->grouped && !groups_again) {
        if (!reading->groups_plain)
            return CAIRN_OK;
        err = cairn_dcp_load_object(source, wanted, entry->name, &bytes, &named->value.bytes_len,
                                    reading->checkpoint->complaint);
        named->value.bytes = bytes;
        reading->groups_plain = bytes != NULL;
        return err;
    }
    path = cairn_dcp_entry_path(entry);
    if (!cairn_state_join(&path, name, sizeof(name)))
        return cairn_refuse(reading->checkpoint, CAIRN_CORRUPT, "the name %.300s is too long",
                            entry->name);
    err = cairn_dcp_add_object(reading->checkpoint, source, wanted, name, final_name);
    return err ? err : set_name(reading, wanted->entry, final_name);
}

static cairn_err
read_items(struct reading *reading, bool groups_again)
{
    struct cairn_dcp_source source = {.fd = -1};
    struct cairn_dcp_chunks *chunks = NULL;
    cairn_err err =
        cairn_dcp_chunks_open(reading->checkpoint, &reading->metadata, &reading->wants, &chunks);

    for (size_t i = 0; i < reading->wants.count && !err; i++) {
        uint32_t entry = reading->wants.items[i].entry;

        if (!groups_again ||
            (reading->named[entry].grouped && !reading->metadata.entries[entry].tensor))
            err = read_item(reading, &source, chunks, i, groups_again);
    }
    cairn_dcp_chunks_close(chunks);
    cairn_dcp_source_close(&source);
    return err;
}

/* ---- what canonical names do not give back ---- */

static void
add_line(struct cairn_pickle *pickle, struct cairn_pickle_node *list, const char *canonical,
         const char *name, struct cairn_pickle_node *path)
{
    struct cairn_pickle_node *items[3];

    items[0] = cairn_pickle_text(pickle, canonical);
    items[1] = cairn_pickle_text(pickle, name);
    items[2] = path;
    cairn_pickle_append(pickle, list, cairn_pickle_sequence(pickle, CAIRN_PICKLE_TUPLE, items, 3));
}

static bool
default_name(const struct reading *reading, uint32_t index)
{
    const struct cairn_dcp_entry *entry = &reading->metadata.entries[index];
    struct cairn_state_path said = cairn_dcp_entry_path(entry), chosen;
    char text[CAIRN_STATE_NAME_BYTES_MAX], joined[CAIRN_STATE_NAME_BYTES_MAX];
    uint32_t tensor =
        cairn_layout_tensor_find(reading->checkpoint->layout, reading->named[index].name);

    return is_carried(entry) ||
           (entry->keys_said && tensor != UINT32_MAX &&
            cairn_state_default_path(reading->checkpoint, tensor, text, &chosen) &&
            same_path(&said, &chosen) && cairn_state_join(&chosen, joined, sizeof(joined)) &&
            strcmp(joined, entry->name) == 0);
}

/* Sorts entries by canonical name, so the order in which they are kept is not the file's. */
static int
compare_named(const void *left, const void *right, void *named)
{
    const struct named *names = named;

    return strcmp(names[*(const uint32_t *)left].name, names[*(const uint32_t *)right].name);
}

static cairn_err
keep_names(struct reading *reading, bool groups_packed)
{
    const struct cairn_dcp_metadata *metadata = &reading->metadata;
    const struct cairn_state_path *prefix = &reading->roots.optimizer;
    struct cairn_pickle pickle;
    struct cairn_pickle_node *list;
    uint32_t *order = calloc((size_t)metadata->entry_count + 1, sizeof(*order)), count = 0;
    char text[CAIRN_STATE_NAME_BYTES_MAX];
    struct cairn_state_path usual;
    cairn_err err;

    if (!order)
        return CAIRN_NOMEM;
    cairn_state_default_prefix(reading->checkpoint, text, &usual);
    for (uint32_t i = 0; i < metadata->entry_count; i++)
        if (reading->named[i].name && !default_name(reading, i))
            order[count++] = i;
    qsort_r(order, count, sizeof(*order), compare_named, reading->named);
    cairn_pickle_init(&pickle, CAIRN_DCP_TREE_BYTES_MAX);
    list = cairn_pickle_list(&pickle);
    for (uint32_t i = 0; i < count; i++) {
        const struct cairn_dcp_entry *entry = &metadata->entries[order[i]];
        struct cairn_state_path path = cairn_dcp_entry_path(entry);

        add_line(&pickle, list, reading->named[order[i]].name, entry->name,
                 entry->keys_said ? cairn_dcp_path_node(&pickle, &path)
                                  : cairn_pickle_none(&pickle));
    }
    free(order);
    /* where something has a name of its own, what is usual may be another place once tensors were
     * dropped or have another order */
    if (groups_packed &&
        (reading->roots.flat || !same_path(prefix, &usual) ||
         (count > 0 && (prefix->count != 1 || strcmp(prefix->keys[0].text, "optim") != 0))))
        add_line(&pickle, list, CAIRN_PARAM_GROUPS_NAME, reading->roots.flat ? "flat" : "",
                 cairn_dcp_path_node(&pickle, prefix));
    err = cairn_pickle_done(&pickle);
    if (!err && list->count > 0)
        err = cairn_opaque_add(reading->checkpoint, CAIRN_DCP_NAMES, &pickle, list);
    cairn_pickle_fini(&pickle);
    return err;
}

/* ---- the whole ---- */

/* How many ranks wrote it, as far as the names of the files say. */
static void
count_ranks(struct cairn_checkpoint *checkpoint)
{
    uint32_t ranks = 0;

    for (uint32_t i = 0; i < checkpoint->container_count; i++) {
        unsigned rank, number;
        char end;

        if (checkpoint->containers[i].path &&
            sscanf(checkpoint->containers[i].path, "__%u_%u.distcp%c", &rank, &number, &end) == 2 &&
            rank < CAIRN_CONVERT_CONTAINERS_MAX && rank + 1 > ranks)
            ranks = rank + 1;
    }
    checkpoint->parallelism.dp = ranks;
}

static cairn_err
read_all(struct reading *reading)
{
    const struct cairn_dcp_metadata *metadata = &reading->metadata;
    uint32_t model_count = 0;
    bool groups_packed = false;
    cairn_err err = CAIRN_OK;

    reading->named = calloc((size_t)metadata->entry_count + 1, sizeof(*reading->named));
    if (!reading->named)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < metadata->entry_count; i++)
        if (metadata->entries[i].tensor) {
            struct cairn_state_path path = cairn_dcp_entry_path(&metadata->entries[i]);

            cairn_state_roots_see(&reading->roots, &path);
        }
    for (uint32_t i = 0; i < metadata->entry_count && !err; i++)
        if (metadata->entries[i].tensor) {
            struct cairn_state_path path = cairn_dcp_entry_path(&metadata->entries[i]);

            err = cairn_whole_names_add(&reading->whole, &reading->roots, &path);
        }
    cairn_name_set_sort(&reading->whole);
    for (uint32_t i = 0; i < metadata->entry_count && !err; i++)
        err = cairn_dcp_want_entry(reading->checkpoint, &reading->metadata, i, &reading->wants);
    if (!err)
        err = take_kept_tree(reading);
    cairn_dcp_metadata_forget_tree(&reading->metadata); /* before the layout needs the memory */
    if (!err)
        err = name_tensors(reading, false, &model_count);
    if (!err)
        err = name_tensors(reading, true, &model_count);
    if (!err)
        err = add_all_again(reading);
    if (!err)
        err = note_groups(reading);
    if (!err)
        err = cairn_dcp_wants_sort(reading->checkpoint, &reading->metadata, &reading->wants);
    if (err)
        return err;
    reading->groups_plain = !reading->groups_carried;
    err = read_items(reading, false);
    if (!err && !reading->groups_carried)
        err = pack_groups(reading, &groups_packed);
    if (!err && !groups_packed && !reading->groups_carried)
        err = read_items(reading, true);
    if (!err && !reading->in_tree)
        err = keep_names(reading, groups_packed);
    return err;
}

static void
end_reading(struct reading *reading)
{
    for (uint32_t i = 0; reading->named && i < reading->metadata.entry_count; i++) {
        struct named *named = &reading->named[i];

        free(named->name);
        free((void *)(uintptr_t)named->value.key);
        free((void *)(uintptr_t)named->value.parameter);
        free((void *)(uintptr_t)named->value.bytes);
    }
    cairn_name_set_fini(&reading->whole);
    cairn_torch_leaves_fini(&reading->leaves);
    cairn_torch_close(&reading->kept);
    free(reading->first_of);
    free(reading->named);
    free(reading->wants.items);
    cairn_dcp_metadata_fini(&reading->metadata);
}

static cairn_err
read_checkpoint(struct cairn_checkpoint *checkpoint)
{
    struct reading reading = {.checkpoint = checkpoint};
    cairn_err err = cairn_dcp_metadata_load(checkpoint, &reading.metadata);

    if (err)
        return err;
    (void)snprintf(checkpoint->framework, sizeof(checkpoint->framework),
                   "PyTorch distributed checkpoint%s%s", reading.metadata.version[0] ? " " : "",
                   reading.metadata.version);
    err = read_all(&reading);
    if (!err)
        count_ranks(checkpoint);
    end_reading(&reading);
    return err;
}

const struct cairn_format cairn_format_dcp = {
    .name = "dcp",
    .about = "PyTorch distributed checkpoint: .metadata and .distcp files (FSDP2, torchtitan, "
             "Accelerate)",
    .probe = probe,
    .read = read_checkpoint,
    .plan = cairn_dcp_plan,
    .finish = cairn_dcp_finish,
    .release = cairn_dcp_kept_end,
};
