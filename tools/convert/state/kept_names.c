/* tools/convert/state/kept_names.c - see state/kept_names.h. */
#include "tools/convert/state/kept_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/text.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/state/reserved.h"

enum { LIST_BYTES_MAX = 1 << 28, TREE_BYTES_MAX = 1 << 29 };

/* ---- by default ---- */

/* Appends a key's text to `text`; NULL where it does not fit. */
static const char *
keep_key(char text[CAIRN_STATE_NAME_BYTES_MAX], size_t *used, const char *key, size_t key_bytes)
{
    char *at = text + *used;

    if (*used + key_bytes + 1 > CAIRN_STATE_NAME_BYTES_MAX)
        return NULL;
    memcpy(at, key, key_bytes);
    at[key_bytes] = '\0';
    *used += key_bytes + 1;
    return at;
}

static bool
add_key(struct cairn_state_path *path, char text[CAIRN_STATE_NAME_BYTES_MAX], size_t *used,
        const char *key, size_t key_bytes, bool number)
{
    if (path->count == CAIRN_STATE_KEYS_MAX)
        return false;
    path->keys[path->count] =
        (struct cairn_state_key){keep_key(text, used, key, key_bytes), number};
    return path->keys[path->count++].text != NULL;
}

/* A short decimal number is the index of a list. */
static bool
is_index(const char *key, size_t bytes)
{
    if (bytes == 0 || bytes > 9 || (bytes > 1 && key[0] == '0'))
        return false;
    return strspn(key, "0123456789") >= bytes;
}

/* The keys between the dots; a name that begins or ends with one, or has two together, is one
 * key. */
static bool
cut(const char *name, size_t bytes, char text[CAIRN_STATE_NAME_BYTES_MAX],
    struct cairn_state_path *path)
{
    size_t used = 0, from = 0;

    for (size_t at = 0; at <= bytes; at++) {
        if (at < bytes && name[at] != '.')
            continue;
        if (at == from || path->count == CAIRN_STATE_KEYS_MAX) {
            used = 0;
            path->count = 0;
            return add_key(path, text, &used, name, bytes, false);
        }
        if (!add_key(path, text, &used, name + from, at - from,
                     path->count > 0 && is_index(name + from, at - from)))
            return false;
        from = at + 1;
    }
    return true;
}

/* Makes text of the number in [<prefix>.]state.<number>.<key> where the optimizer's tensors lie
 * there, whose numbers are: PyTorch does not load a dict that has keys of both kinds. */
static void
name_as_tensors(const struct cairn_checkpoint *checkpoint, const char *name,
                struct cairn_state_path *path)
{
    uint32_t state = path->count - 3;
    size_t bytes = 0;

    if (path->count < 3 || !path->keys[state + 1].number ||
        strcmp(path->keys[state].text, "state") != 0)
        return;
    for (uint32_t i = 0; i <= state; i++)
        bytes += strlen(path->keys[i].text) + 1;
    for (uint32_t i = 0;
         i < cairn_layout_tensor_count(checkpoint->layout) && path->keys[state + 1].number; i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, i);

        path->keys[state + 1].number =
            tensor->kind != CAIRN_OPTIMIZER || strncmp(tensor->name, name, bytes) != 0;
    }
}

bool
cairn_state_default_path(const struct cairn_checkpoint *checkpoint, uint32_t tensor,
                         char text[CAIRN_STATE_NAME_BYTES_MAX], struct cairn_state_path *path)
{
    const struct cairn_tensor *known = cairn_layout_tensor(checkpoint->layout, tensor);
    size_t bytes = strlen(known->name), used = 0;
    uint32_t key_bytes = 0;

    path->count = 0;
    if (known->kind == CAIRN_OPAQUE) {
        if (cairn_text_ends(known->name, ".pickle") && bytes > 7 && !strchr(known->name, '/')) {
            if (!cut(known->name, bytes - 7, text, path))
                return false;
            name_as_tensors(checkpoint, known->name, path);
            return true;
        }
        return add_key(path, text, &used, CAIRN_CARRIED_KEY, strlen(CAIRN_CARRIED_KEY), false) &&
               add_key(path, text, &used, known->name, bytes, false);
    }
    if (known->kind != CAIRN_OPTIMIZER)
        return add_key(path, text, &used, "model", 5, false) &&
               add_key(path, text, &used, known->name, bytes, false);
    if (cairn_checkpoint_parameter_of(checkpoint, tensor, &key_bytes) == UINT32_MAX) {
        if (!cut(known->name, bytes, text, path))
            return false;
        /* a parameter's number is the key of a dict, which PyTorch makes text */
        for (uint32_t i = 1; i < path->count; i++)
            if (strcmp(path->keys[i - 1].text, "state") == 0)
                path->keys[i].number = false;
        return true;
    }
    return add_key(path, text, &used, "optim", 5, false) &&
           add_key(path, text, &used, "state", 5, false) &&
           add_key(path, text, &used, known->name + key_bytes + 1, bytes - key_bytes - 1, false) &&
           add_key(path, text, &used, known->name, key_bytes, false);
}

void
cairn_state_default_prefix(const struct cairn_checkpoint *checkpoint,
                           char text[CAIRN_STATE_NAME_BYTES_MAX], struct cairn_state_path *path)
{
    struct cairn_state_roots roots = {0};

    for (uint32_t i = 0;
         i < cairn_layout_tensor_count(checkpoint->layout) && !roots.optimizer_known; i++)
        if (cairn_layout_tensor(checkpoint->layout, i)->kind == CAIRN_OPTIMIZER &&
            cairn_state_default_path(checkpoint, i, text, path))
            cairn_state_roots_see(&roots, path);
    *path = roots.optimizer_known
                ? roots.optimizer
                : (struct cairn_state_path){.count = 1, .keys = {{"optim", false}}};
}

/* ---- as they were ---- */

static const char *
copy_text(struct cairn_kept_names *names, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = cairn_pickle_alloc(&names->pickle, bytes);

    return copy ? memcpy(copy, text, bytes) : NULL;
}

cairn_err
cairn_kept_names_add(struct cairn_kept_names *names, const char *canonical, const char *name,
                     const struct cairn_state_path *path)
{
    struct cairn_state_key *keys =
        cairn_pickle_alloc(&names->pickle, ((uint64_t)path->count + 1) * sizeof(*keys));
    struct cairn_kept_name kept = {.canonical = copy_text(names, canonical),
                                   .name = copy_text(names, name),
                                   .keys = keys,
                                   .key_count = path->count};

    if (!cairn_array_grow(&names->kept, names->kept_count, sizeof(*names->kept)))
        return CAIRN_NOMEM;
    for (uint32_t i = 0; keys && i < path->count; i++) {
        keys[i] =
            (struct cairn_state_key){copy_text(names, path->keys[i].text), path->keys[i].number};
        if (!keys[i].text)
            return CAIRN_NOMEM;
    }
    if (!keys || !kept.canonical || !kept.name)
        return CAIRN_NOMEM;
    names->kept[names->kept_count++] = kept;
    return CAIRN_OK;
}

const struct cairn_state_key *
cairn_state_keys_read(struct cairn_pickle *arena, const struct cairn_pickle_node *tuple)
{
    struct cairn_state_key *keys;

    if (!tuple || tuple->kind != CAIRN_PICKLE_TUPLE || tuple->count == 0 ||
        tuple->count > CAIRN_STATE_KEYS_MAX)
        return NULL;
    keys = cairn_pickle_alloc(arena, tuple->count * sizeof(*keys));
    for (uint32_t i = 0; keys && i < tuple->count; i++) {
        const struct cairn_pickle_node *key = tuple->items[i];
        size_t room = key->kind == CAIRN_PICKLE_TEXT ? (size_t)key->count + 1 : 24;
        char *text = cairn_pickle_alloc(arena, room);
        uint64_t number;

        if (!text)
            return NULL;
        keys[i] = (struct cairn_state_key){text, cairn_pickle_u64(key, &number)};
        if (keys[i].number)
            (void)snprintf(text, room, "%" PRIu64, number);
        else if (!cairn_pickle_copy_text(key, text, room) || !text[0])
            return NULL;
    }
    return keys;
}

static int
compare_kept(const void *left, const void *right)
{
    const struct cairn_kept_name *a = left, *b = right;

    return strcmp(a->canonical, b->canonical);
}

void
cairn_kept_names_sort(struct cairn_kept_names *names)
{
    if (names->kept_count > 0)
        qsort(names->kept, names->kept_count, sizeof(*names->kept), compare_kept);
}

cairn_err
cairn_kept_names_load(const struct cairn_checkpoint *checkpoint, struct cairn_kept_names *names)
{
    struct cairn_pickle_node *list = NULL;
    size_t bytes_len = 0;
    uint8_t *bytes;
    cairn_err err;

    memset(names, 0, sizeof(*names));
    cairn_pickle_init(&names->pickle, TREE_BYTES_MAX);
    err = cairn_opaque_load(checkpoint, CAIRN_DCP_NAMES, LIST_BYTES_MAX, &names->pickle, &bytes,
                            &bytes_len);
    if (err)
        return err == CAIRN_NOT_FOUND ? CAIRN_OK : err;
    err = cairn_pickle_read(&names->pickle, CAIRN_DCP_NAMES, bytes, bytes_len, &list, NULL);
    if (err || list->kind != CAIRN_PICKLE_LIST)
        return err == CAIRN_NOMEM ? err : CAIRN_OK;
    for (uint32_t i = 0; i < list->count && !err; i++) {
        const struct cairn_pickle_node *line = list->items[i];
        char canonical[CAIRN_STATE_NAME_BYTES_MAX], name[CAIRN_STATE_NAME_BYTES_MAX];
        struct cairn_kept_name kept = {.key_count = 0};
        struct cairn_state_path path;

        if (line->kind != CAIRN_PICKLE_TUPLE || line->count != 3 ||
            !cairn_pickle_copy_text(line->items[0], canonical, sizeof(canonical)) ||
            !cairn_pickle_copy_text(line->items[1], name, sizeof(name)))
            continue;
        kept.keys = cairn_state_keys_read(&names->pickle, line->items[2]);
        kept.key_count = kept.keys ? line->items[2]->count : 0;
        path = cairn_kept_name_path(&kept);
        if (kept.keys || line->items[2]->kind == CAIRN_PICKLE_NONE || line->items[2]->count == 0)
            err = cairn_kept_names_add(names, canonical, name, &path);
    }
    cairn_kept_names_sort(names);
    return err;
}

void
cairn_kept_names_fini(struct cairn_kept_names *names)
{
    cairn_pickle_fini(&names->pickle);
    free(names->kept);
    memset(names, 0, sizeof(*names));
}

struct cairn_state_path
cairn_kept_name_path(const struct cairn_kept_name *kept)
{
    struct cairn_state_path path = {.count = kept->key_count};

    if (kept->key_count > 0)
        memcpy(path.keys, kept->keys, kept->key_count * sizeof(*kept->keys));
    return path;
}

const struct cairn_kept_name *
cairn_kept_names_find(const struct cairn_kept_names *names, const char *canonical)
{
    struct cairn_kept_name wanted = {.canonical = canonical};

    return names->kept_count > 0
               ? bsearch(&wanted, names->kept, names->kept_count, sizeof(wanted), compare_kept)
               : NULL;
}

bool
cairn_kept_names_choose(const struct cairn_kept_names *names,
                        const struct cairn_checkpoint *checkpoint, uint32_t tensor,
                        char text[CAIRN_STATE_NAME_BYTES_MAX],
                        char name[CAIRN_STATE_NAME_BYTES_MAX], struct cairn_state_path *path)
{
    const struct cairn_kept_name *kept =
        cairn_kept_names_find(names, cairn_layout_tensor(checkpoint->layout, tensor)->name);

    if (!kept)
        return cairn_state_default_path(checkpoint, tensor, text, path) &&
               cairn_state_join(path, name, CAIRN_STATE_NAME_BYTES_MAX);
    *path = cairn_kept_name_path(kept);
    return (size_t)snprintf(name, CAIRN_STATE_NAME_BYTES_MAX, "%s", kept->name) <
           CAIRN_STATE_NAME_BYTES_MAX;
}
