/* tools/convert/pickle/pickle.c - the arena and the builders of an inert pickle tree. */
#include "tools/convert/pickle/pickle.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { CHUNK_BYTES_MIN = 1 << 14, CHUNK_BYTES_MAX = 1 << 22, ROOM_MIN = 4 };

struct cairn_pickle_chunk {
    struct cairn_pickle_chunk *next;
    size_t used_bytes;
    size_t room_bytes;
    _Alignas(8) uint8_t bytes[];
};

/* ---- the arena ---- */

void
cairn_pickle_init(struct cairn_pickle *pickle, uint64_t limit_bytes)
{
    memset(pickle, 0, sizeof(*pickle));
    pickle->limit_bytes = limit_bytes;
}

void
cairn_pickle_fini(struct cairn_pickle *pickle)
{
    while (pickle->chunks) {
        struct cairn_pickle_chunk *chunk = pickle->chunks;

        pickle->chunks = chunk->next;
        free(chunk);
    }
    memset(pickle, 0, sizeof(*pickle));
}

cairn_err
cairn_pickle_done(const struct cairn_pickle *pickle)
{
    return pickle->err;
}

static void
fail(struct cairn_pickle *pickle, cairn_err err)
{
    if (pickle->err == CAIRN_OK)
        pickle->err = err;
}

/* A chunk of its own for what is large, so that the open chunk is not left half empty. */
static struct cairn_pickle_chunk *
add_chunk(struct cairn_pickle *pickle, size_t bytes)
{
    size_t room = CHUNK_BYTES_MIN;
    struct cairn_pickle_chunk *chunk;

    while (room < CHUNK_BYTES_MAX && room < pickle->used_bytes / 4)
        room *= 2;
    if (bytes > room / 4)
        room = bytes;
    chunk = malloc(sizeof(*chunk) + room);
    if (!chunk)
        return NULL;
    chunk->used_bytes = 0;
    chunk->room_bytes = room;
    if (room == bytes && pickle->chunks) {
        chunk->next = pickle->chunks->next;
        pickle->chunks->next = chunk;
    } else {
        chunk->next = pickle->chunks;
        pickle->chunks = chunk;
    }
    return chunk;
}

void *
cairn_pickle_alloc(struct cairn_pickle *pickle, uint64_t bytes)
{
    struct cairn_pickle_chunk *chunk = pickle->chunks;
    void *out;

    if (pickle->err)
        return NULL;
    if (bytes > SIZE_MAX / 2 || bytes > pickle->limit_bytes ||
        pickle->used_bytes > pickle->limit_bytes - bytes) {
        fail(pickle, CAIRN_NOMEM);
        return NULL;
    }
    bytes = (bytes + 7) & ~(uint64_t)7;
    if (!chunk || chunk->room_bytes - chunk->used_bytes < bytes)
        chunk = add_chunk(pickle, (size_t)bytes);
    if (!chunk) {
        fail(pickle, CAIRN_NOMEM);
        return NULL;
    }
    out = chunk->bytes + chunk->used_bytes;
    chunk->used_bytes += (size_t)bytes;
    pickle->used_bytes += bytes;
    return out;
}

/* ---- building ---- */

static struct cairn_pickle_node *
add_node(struct cairn_pickle *pickle, enum cairn_pickle_kind kind, bool memoized)
{
    struct cairn_pickle_node *node = cairn_pickle_alloc(pickle, sizeof(*node));

    if (!node)
        return NULL;
    if (pickle->node_count == UINT32_MAX) {
        fail(pickle, CAIRN_NOMEM);
        return NULL;
    }
    memset(node, 0, sizeof(*node));
    node->kind = (uint8_t)kind;
    node->memoized = memoized;
    node->depth = 1;
    node->index = pickle->node_count++;
    return node;
}

static void
deepen(struct cairn_pickle_node *node, const struct cairn_pickle_node *child)
{
    if (child && child->depth >= node->depth && child->depth < UINT16_MAX)
        node->depth = (uint16_t)(child->depth + 1);
}

struct cairn_pickle_node *
cairn_pickle_none(struct cairn_pickle *pickle)
{
    return add_node(pickle, CAIRN_PICKLE_NONE, false);
}

struct cairn_pickle_node *
cairn_pickle_bool(struct cairn_pickle *pickle, bool truth)
{
    struct cairn_pickle_node *node = add_node(pickle, CAIRN_PICKLE_BOOL, false);

    if (node)
        node->truth = truth;
    return node;
}

struct cairn_pickle_node *
cairn_pickle_int(struct cairn_pickle *pickle, int64_t integer)
{
    struct cairn_pickle_node *node = add_node(pickle, CAIRN_PICKLE_INT, false);

    if (node)
        node->integer = integer;
    return node;
}

struct cairn_pickle_node *
cairn_pickle_big_int(struct cairn_pickle *pickle, const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_pickle_node *node;
    uint64_t value = 0;

    /* the shortest form: a last byte that only repeats the sign says nothing */
    while (bytes_len > 1 && ((bytes[bytes_len - 1] == 0 && bytes[bytes_len - 2] < 0x80) ||
                             (bytes[bytes_len - 1] == 0xff && bytes[bytes_len - 2] >= 0x80)))
        bytes_len--;
    if (bytes_len > 8) {
        node = cairn_pickle_borrow(pickle, CAIRN_PICKLE_BIG_INT, bytes, bytes_len);
        if (node)
            node->memoized = false;
        return node;
    }
    if (bytes_len > 0 && bytes[bytes_len - 1] >= 0x80)
        value = UINT64_MAX;
    for (size_t i = bytes_len; i-- > 0;)
        value = value << 8 | bytes[i];
    return cairn_pickle_int(pickle, (int64_t)value);
}

struct cairn_pickle_node *
cairn_pickle_float(struct cairn_pickle *pickle, double real)
{
    struct cairn_pickle_node *node = add_node(pickle, CAIRN_PICKLE_FLOAT, false);

    if (node)
        node->real = real;
    return node;
}

struct cairn_pickle_node *
cairn_pickle_borrow(struct cairn_pickle *pickle, enum cairn_pickle_kind kind, const void *bytes,
                    size_t bytes_len)
{
    struct cairn_pickle_node *node;

    if (bytes_len > UINT32_MAX) {
        fail(pickle, CAIRN_INVAL);
        return NULL;
    }
    node = add_node(pickle, kind, true);
    if (!node)
        return NULL;
    node->bytes = bytes;
    node->count = (uint32_t)bytes_len;
    return node;
}

static char *
copy_text(struct cairn_pickle *pickle, const void *text, size_t text_bytes)
{
    char *copy = cairn_pickle_alloc(pickle, (uint64_t)text_bytes + 1);

    if (!copy)
        return NULL;
    memcpy(copy, text, text_bytes);
    copy[text_bytes] = '\0';
    return copy;
}

struct cairn_pickle_node *
cairn_pickle_text(struct cairn_pickle *pickle, const char *text)
{
    size_t text_bytes = strlen(text);
    char *copy = copy_text(pickle, text, text_bytes);

    return copy ? cairn_pickle_borrow(pickle, CAIRN_PICKLE_TEXT, copy, text_bytes) : NULL;
}

struct cairn_pickle_node *
cairn_pickle_sequence(struct cairn_pickle *pickle, enum cairn_pickle_kind kind,
                      struct cairn_pickle_node *const items[], size_t count)
{
    /* the empty tuple is one object in Python, which has no need of a number */
    bool memoized = count > 0 || kind != CAIRN_PICKLE_TUPLE;
    struct cairn_pickle_node *node;

    if (count > UINT32_MAX / 2) {
        fail(pickle, CAIRN_INVAL);
        return NULL;
    }
    node = add_node(pickle, kind, memoized);
    if (!node || count == 0)
        return node;
    node->items = cairn_pickle_alloc(pickle, count * sizeof(struct cairn_pickle_node *));
    if (!node->items)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        if (!items[i]) {
            fail(pickle, CAIRN_INVAL);
            return NULL;
        }
        node->items[i] = items[i];
        deepen(node, items[i]);
    }
    node->count = node->room = (uint32_t)count;
    return node;
}

struct cairn_pickle_node *
cairn_pickle_list(struct cairn_pickle *pickle)
{
    return cairn_pickle_sequence(pickle, CAIRN_PICKLE_LIST, NULL, 0);
}

struct cairn_pickle_node *
cairn_pickle_dict(struct cairn_pickle *pickle)
{
    return add_node(pickle, CAIRN_PICKLE_DICT, true);
}

static bool
name_fits(const void *name, size_t name_bytes)
{
    return name_bytes > 0 && !memchr(name, 0, name_bytes) && !memchr(name, '\n', name_bytes) &&
           cairn_utf8_valid(name, name_bytes);
}

struct cairn_pickle_node *
cairn_pickle_global_of(struct cairn_pickle *pickle, const void *module, size_t module_bytes,
                       const void *name, size_t name_bytes)
{
    struct cairn_pickle_node *node;
    struct cairn_pickle_global *global;

    if (!name_fits(module, module_bytes) || !name_fits(name, name_bytes)) {
        fail(pickle, CAIRN_INVAL);
        return NULL;
    }
    node = add_node(pickle, CAIRN_PICKLE_GLOBAL, true);
    global = cairn_pickle_alloc(pickle, sizeof(*global));
    if (!node || !global)
        return NULL;
    global->module = copy_text(pickle, module, module_bytes);
    global->name = copy_text(pickle, name, name_bytes);
    if (!global->module || !global->name)
        return NULL;
    node->global = global;
    return node;
}

struct cairn_pickle_node *
cairn_pickle_global(struct cairn_pickle *pickle, const char *module, const char *name)
{
    return cairn_pickle_global_of(pickle, module, strlen(module), name, strlen(name));
}

struct cairn_pickle_node *
cairn_pickle_object(struct cairn_pickle *pickle, enum cairn_pickle_call call,
                    struct cairn_pickle_node *callable, struct cairn_pickle_node *args)
{
    struct cairn_pickle_node *node;
    struct cairn_pickle_object *object;

    if (!callable || !args) {
        fail(pickle, CAIRN_INVAL);
        return NULL;
    }
    node = add_node(pickle, CAIRN_PICKLE_OBJECT, true);
    object = cairn_pickle_alloc(pickle, sizeof(*object));
    if (!node || !object)
        return NULL;
    memset(object, 0, sizeof(*object));
    object->call = call;
    object->callable = callable;
    object->args = args;
    node->object = object;
    deepen(node, callable);
    deepen(node, args);
    return node;
}

struct cairn_pickle_node *
cairn_pickle_persistent(struct cairn_pickle *pickle, struct cairn_pickle_node *id)
{
    struct cairn_pickle_node *node = cairn_pickle_sequence(pickle, CAIRN_PICKLE_PERSISTENT, &id, 1);

    if (node)
        node->memoized = false;
    return node;
}

/* Room for `more` further elements, each of one pointer or, in a dict, of two. */
static bool
grow(struct cairn_pickle *pickle, struct cairn_pickle_node *node, size_t more, bool doubling)
{
    size_t slots = node->kind == CAIRN_PICKLE_DICT ? 2 : 1;
    struct cairn_pickle_node **items;
    uint64_t room = (uint64_t)node->count + more;

    if (room <= node->room)
        return true;
    if (doubling && room < ROOM_MIN)
        room = ROOM_MIN;
    if ((doubling || node->count > 0) && room < 2 * (uint64_t)node->count)
        room = 2 * (uint64_t)node->count;
    if (room > UINT32_MAX / 2) {
        fail(pickle, CAIRN_NOMEM);
        return false;
    }
    items = cairn_pickle_alloc(pickle, room * slots * sizeof(struct cairn_pickle_node *));
    if (!items)
        return false;
    if (node->count > 0)
        memcpy(items, node->items, (size_t)node->count * slots * sizeof(*items));
    node->items = items;
    node->room = (uint32_t)room;
    return true;
}

void
cairn_pickle_reserve(struct cairn_pickle *pickle, struct cairn_pickle_node *target, size_t more)
{
    if (target && (target->kind == CAIRN_PICKLE_LIST || target->kind == CAIRN_PICKLE_SET ||
                   target->kind == CAIRN_PICKLE_DICT))
        (void)grow(pickle, target, more, false);
}

void
cairn_pickle_append(struct cairn_pickle *pickle, struct cairn_pickle_node *target,
                    struct cairn_pickle_node *item)
{
    struct cairn_pickle_node *list = target;

    if (target && target->kind == CAIRN_PICKLE_OBJECT) {
        if (!target->object->items)
            target->object->items = cairn_pickle_sequence(pickle, CAIRN_PICKLE_LIST, NULL, 0);
        list = target->object->items;
    }
    if (!list || !item || (list->kind != CAIRN_PICKLE_LIST && list->kind != CAIRN_PICKLE_SET)) {
        fail(pickle, CAIRN_INVAL);
        return;
    }
    if (!grow(pickle, list, 1, true))
        return;
    list->items[list->count++] = item;
    deepen(target, item);
}

void
cairn_pickle_put(struct cairn_pickle *pickle, struct cairn_pickle_node *target,
                 struct cairn_pickle_node *key, struct cairn_pickle_node *value)
{
    struct cairn_pickle_node *dict = target;

    if (target && target->kind == CAIRN_PICKLE_OBJECT) {
        if (!target->object->pairs)
            target->object->pairs = cairn_pickle_dict(pickle);
        dict = target->object->pairs;
    }
    if (!dict || !key || !value || dict->kind != CAIRN_PICKLE_DICT) {
        fail(pickle, CAIRN_INVAL);
        return;
    }
    if (!grow(pickle, dict, 1, true))
        return;
    dict->items[2 * (size_t)dict->count] = key;
    dict->items[2 * (size_t)dict->count + 1] = value;
    dict->count++;
    deepen(target, key);
    deepen(target, value);
}

void
cairn_pickle_set(struct cairn_pickle *pickle, struct cairn_pickle_node *target, const char *key,
                 struct cairn_pickle_node *value)
{
    cairn_pickle_put(pickle, target, cairn_pickle_text(pickle, key), value);
}

void
cairn_pickle_build(struct cairn_pickle *pickle, struct cairn_pickle_node *target,
                   struct cairn_pickle_node *state)
{
    if (!target || !state || target->kind != CAIRN_PICKLE_OBJECT || target->object->state) {
        fail(pickle, CAIRN_INVAL);
        return;
    }
    target->object->state = state;
    deepen(target, state);
}
