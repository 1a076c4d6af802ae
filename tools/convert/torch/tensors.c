/*
 * tools/convert/torch/tensors.c - the storages that a tree names, each once, found by key; and the
 * tensors at the ends of a tree, with their names.
 *
 * A container that is held twice is walked twice, so every tensor gets all its names. A cycle is
 * not walked again. A limit on steps stops small trees with endlessly many paths.
 */
#include "base/array.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/box.h"
#include "tools/convert/torch/parts.h"
#include "tools/convert/torch/carry.h"

static uint32_t
hash_of(const char *key)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (; *key; key++)
        hash = (hash ^ (uint8_t)*key) * 16777619u;
    return hash;
}

/* The slot where a key is, or where it would be; there is always a free one. */
static uint32_t
slot_of(const struct cairn_torch_file *file, const char *key)
{
    uint32_t slot = hash_of(key) & (file->slot_count - 1);

    while (file->storage_slots[slot] != 0 &&
           strcmp(file->storages[file->storage_slots[slot] - 1].key, key) != 0)
        slot = (slot + 1) & (file->slot_count - 1);
    return slot;
}

struct cairn_torch_stored *
cairn_torch_find_storage(const struct cairn_torch_file *file, const char *key)
{
    uint32_t index = file->slot_count > 0 ? file->storage_slots[slot_of(file, key)] : 0;

    return index > 0 ? &file->storages[index - 1] : NULL;
}

/* Room for one more storage, and a table of slots that is at most half full. */
static cairn_err
make_storage_room(struct cairn_torch_file *file)
{
    uint32_t count = file->slot_count ? 2 * file->slot_count : 32;
    uint32_t *slots;

    if (file->storage_count >= CAIRN_TORCH_TENSORS_MAX)
        return CAIRN_CORRUPT;
    if (!cairn_array_grow(&file->storages, file->storage_count, sizeof(*file->storages)))
        return CAIRN_NOMEM;
    if (2 * file->storage_count < file->slot_count)
        return CAIRN_OK;
    slots = calloc(count, sizeof(*slots));
    if (!slots)
        return CAIRN_NOMEM;
    free(file->storage_slots);
    file->storage_slots = slots;
    file->slot_count = count;
    for (uint32_t i = 0; i < file->storage_count; i++)
        slots[slot_of(file, file->storages[i].key)] = i + 1;
    return CAIRN_OK;
}

/* Replaces what only the form before 1.6 has: ('module', class, source file, source) by the class,
 * and a storage's id by one without the view, which is none. */
static bool
modernize(struct cairn_pickle_node *node)
{
    struct cairn_pickle_node *id = node->items[0];

    if (id->kind == CAIRN_PICKLE_TUPLE && id->count == 4 &&
        cairn_pickle_is_text(id->items[0], "module") && id->items[1]->kind == CAIRN_PICKLE_GLOBAL) {
        node->kind = CAIRN_PICKLE_GLOBAL;
        node->global = id->items[1]->global;
        return false;
    }
    if (id->kind == CAIRN_PICKLE_TUPLE && id->count == 6 && id->items[5]->kind == CAIRN_PICKLE_NONE)
        id->count = 5;
    return true;
}

static cairn_err
add_storage(void *context, struct cairn_pickle_node *node)
{
    const struct cairn_torch_opening *opening = context;
    struct cairn_torch_file *file = opening->file;
    struct cairn_torch_storage_id id;
    struct cairn_torch_stored *known;
    const char *why;
    cairn_err err;

    if (file->legacy && !modernize(node))
        return CAIRN_OK;
    why = cairn_torch_read_storage(node, &id);
    if (why)
        return cairn_complain(opening->complaint, CAIRN_CORRUPT, "%s: storage %" PRIu32 ": %s",
                              opening->where, file->storage_count + 1, why);
    known = cairn_torch_find_storage(file, id.key);
    if (known) {
        if (known->bytes < id.bytes)
            known->bytes = id.bytes; /* a count of elements leaves the rest of the last one out */
        return CAIRN_OK;
    }
    err = make_storage_room(file);
    if (err == CAIRN_CORRUPT)
        return cairn_torch_refuse(opening, "it has too many storages");
    if (err)
        return err;
    known = &file->storages[file->storage_count];
    memset(known, 0, sizeof(*known));
    memcpy(known->key, id.key, sizeof(known->key));
    known->dtype = id.dtype;
    known->bytes = id.bytes;
    file->storage_slots[slot_of(file, id.key)] = ++file->storage_count;
    return CAIRN_OK;
}

cairn_err
cairn_torch_list_storages(struct cairn_torch_opening *opening)
{
    cairn_err err = cairn_torch_visit_persistent(&opening->file->tree, opening->file->root,
                                                 add_storage, opening);

    return err == CAIRN_CORRUPT
               ? cairn_torch_refuse(opening, "its object is nested more than 1000 deep")
               : err;
}

enum { STEPS_MAX = 1 << 26, KEY_DEPTH_MAX = 4 };

/* ---- names ---- */

struct path {
    char text[CAIRN_TORCH_NAME_BYTES_MAX];
    size_t used;
    bool full; /* a part did not fit */
};

static void
add_text(struct path *path, const char *text, size_t text_bytes)
{
    if (text_bytes >= sizeof(path->text) - path->used) {
        path->full = true;
        return;
    }
    memcpy(path->text + path->used, text, text_bytes);
    path->used += text_bytes;
    path->text[path->used] = '\0';
}

/* A key as Python prints it, for those that checkpoints have; false for others. */
static bool
add_key(struct path *path, const struct cairn_pickle_node *key, int depth)
{
    char text[CAIRN_TORCH_NAME_BYTES_MAX];

    if (cairn_pickle_copy_text(key, text, sizeof(text))) {
        add_text(path, text, strlen(text));
        return true;
    }
    switch (key->kind) {
    case CAIRN_PICKLE_NONE:
        add_text(path, "None", 4);
        return true;
    case CAIRN_PICKLE_BOOL:
        add_text(path, key->truth ? "True" : "False", key->truth ? 4 : 5);
        return true;
    case CAIRN_PICKLE_INT:
        (void)snprintf(text, sizeof(text), "%" PRId64, key->integer);
        add_text(path, text, strlen(text));
        return true;
    case CAIRN_PICKLE_GLOBAL:
        add_text(path, key->global->module, strlen(key->global->module));
        add_text(path, ".", 1);
        add_text(path, key->global->name, strlen(key->global->name));
        return true;
    case CAIRN_PICKLE_TUPLE:
        if (depth == KEY_DEPTH_MAX)
            return false;
        add_text(path, "(", 1);
        for (uint32_t i = 0; i < key->count; i++) {
            if (i > 0)
                add_text(path, ", ", 2);
            if (path->full || !add_key(path, key->items[i], depth + 1))
                return false;
        }
        add_text(path, ")", 1);
        return true;
    default:
        return false;
    }
}

static void
add_child(struct path *path, const struct cairn_torch_child *child)
{
    char text[32];
    size_t before;

    if (child->silent)
        return;
    if (path->used > 0)
        add_text(path, ".", 1);
    if (child->argument)
        add_text(path, "()", 2);
    before = path->used;
    if (child->key && add_key(path, child->key, 0))
        return;
    path->used = before;
    (void)snprintf(text, sizeof(text), child->key ? "?%" PRIu32 : "%" PRIu32, child->index);
    add_text(path, text, strlen(text));
}

/* ---- tensors ---- */

static bool
is_contiguous(const struct cairn_torch_view *view)
{
    uint64_t expected[CAIRN_DIMS_MAX];
    bool same = true;

    cairn_shape_strides(view->dims, view->shape, 1, expected);
    for (uint32_t d = 0; d < view->dims; d++)
        same = same && (view->shape[d] == 1 || view->stride[d] == expected[d]);
    return same || cairn_shape_elements(view->dims, view->shape) == 0;
}

static cairn_err
refuse_tensor(const struct cairn_torch_opening *opening, const char *name, const char *why)
{
    return cairn_complain(opening->complaint, CAIRN_CORRUPT, "%s: tensor %s: %s", opening->where,
                          name[0] ? name : "(the object itself)", why);
}

static cairn_err
exhausted(const struct cairn_torch_opening *opening)
{
    return cairn_complain(opening->complaint, CAIRN_NOMEM,
                          "%s: no memory for more than %" PRIu32 " tensors; allow more memory",
                          opening->where, opening->file->tensor_count);
}

static cairn_err
make_room(const struct cairn_torch_opening *opening)
{
    struct cairn_torch_file *file = opening->file;

    if (file->tensor_count >= CAIRN_TORCH_TENSORS_MAX)
        return cairn_torch_refuse(opening, "it has too many tensors");
    if (2 * (uint64_t)file->tensor_count * sizeof(*file->tensors) > opening->memory_bytes ||
        !cairn_array_grow(&file->tensors, file->tensor_count, sizeof(*file->tensors)))
        return exhausted(opening);
    return CAIRN_OK;
}

static cairn_err
add_tensor(const struct cairn_torch_opening *opening, const struct cairn_pickle_node *node,
           const char *name)
{
    struct cairn_torch_file *file = opening->file;
    struct cairn_torch_tensor tensor = {.node = node};
    struct cairn_torch_storage_id id;
    struct cairn_torch_stored *stored;
    const char *why = cairn_torch_read_view(node, &tensor.view);
    char *copy;
    cairn_err err;

    if (!why)
        why = cairn_torch_read_storage(tensor.view.storage, &id);
    if (why)
        return refuse_tensor(opening, name, why);
    stored = cairn_torch_find_storage(file, id.key);
    if (!stored)
        return refuse_tensor(opening, name, "its storage is not among the file's");
    err = make_room(opening);
    if (err)
        return err;
    copy = cairn_pickle_alloc(&file->names, strlen(name) + 1);
    if (!copy)
        return exhausted(opening);
    memcpy(copy, name, strlen(name) + 1);
    stored->viewed = true;
    tensor.name = copy;
    tensor.storage = (uint32_t)(stored - file->storages);
    tensor.at = stored->at + tensor.view.offset * tensor.view.dtype->element_bytes;
    tensor.bytes = tensor.view.dtype->element_bytes *
                   cairn_shape_elements(tensor.view.dims,
                                        tensor.view.shape); /* bounded by cairn_torch_read_view */
    if (tensor.bytes == 0)
        tensor.at = stored->at; /* an empty tensor's offset means nothing and has no bound */
    tensor.contiguous = is_contiguous(&tensor.view);
    file->tensors[file->tensor_count++] = tensor;
    return CAIRN_OK;
}

/* ---- the walk ---- */

struct level {
    const struct cairn_pickle_node *node;
    uint64_t slot;
    size_t path_used; /* bytes of the path to this node */
};

struct walk {
    const struct cairn_torch_opening *opening;
    struct level *levels;
    size_t depth;
    uint8_t *open; /* by node->index: on the way down to here */
    struct path path;
};

/* A node at the present path: a tensor, or something to walk into. */
static cairn_err
enter(struct walk *walk, const struct cairn_pickle_node *node)
{
    cairn_err err = CAIRN_OK;

    if (cairn_torch_is_tensor(node)) {
        err = add_tensor(walk->opening, node, walk->path.text);
        node = cairn_torch_attributes(node);
    }
    if (err || !node || walk->open[node->index])
        return err;
    switch (node->kind) {
    case CAIRN_PICKLE_LIST:
    case CAIRN_PICKLE_TUPLE:
    case CAIRN_PICKLE_SET:
    case CAIRN_PICKLE_FROZENSET:
    case CAIRN_PICKLE_DICT:
    case CAIRN_PICKLE_OBJECT:
        break;
    default:
        return CAIRN_OK;
    }
    if (walk->depth == CAIRN_PICKLE_DEPTH_MAX)
        return cairn_torch_refuse(walk->opening, "its object is nested more than 1000 deep");
    walk->open[node->index] = 1;
    walk->levels[walk->depth++] = (struct level){node, 0, walk->path.used};
    return CAIRN_OK;
}

static cairn_err
step(struct walk *walk)
{
    struct level *level = &walk->levels[walk->depth - 1];
    struct cairn_torch_child child;

    walk->path.used = level->path_used;
    walk->path.text[walk->path.used] = '\0';
    if (!cairn_torch_next_child(level->node, level->slot++, &child)) {
        walk->open[level->node->index] = 0;
        walk->depth--;
        return CAIRN_OK;
    }
    add_child(&walk->path, &child);
    if (walk->path.full)
        return cairn_complain(walk->opening->complaint, CAIRN_CORRUPT,
                              "%s: a name below %.200s is longer than %d bytes",
                              walk->opening->where, walk->path.text,
                              CAIRN_TORCH_NAME_BYTES_MAX - 1);
    return enter(walk, child.node);
}

cairn_err
cairn_torch_list_tensors(const struct cairn_torch_opening *opening)
{
    struct walk *walk = calloc(1, sizeof(*walk));
    uint64_t steps = 0;
    cairn_err err = CAIRN_NOMEM;

    if (!walk)
        return CAIRN_NOMEM;
    walk->opening = opening;
    walk->levels = malloc(CAIRN_PICKLE_DEPTH_MAX * sizeof(*walk->levels));
    walk->open = calloc(opening->file->tree.node_count, 1);
    if (walk->levels && walk->open)
        err = enter(walk, opening->file->root);
    while (err == CAIRN_OK && walk->depth > 0) {
        err = step(walk);
        if (err == CAIRN_OK && ++steps > STEPS_MAX)
            err = cairn_torch_refuse(opening, "its object has endlessly many paths");
    }
    free(walk->levels);
    free(walk->open);
    free(walk);
    return err;
}
