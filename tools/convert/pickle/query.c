/* tools/convert/pickle/query.c - questions to the nodes of an inert pickle tree. */
#include "tools/convert/pickle/pickle.h"

#include <string.h>

#include "base/json.h"

const char *
cairn_pickle_kind_name(const struct cairn_pickle_node *node)
{
    static const char *const names[] = {[CAIRN_PICKLE_NONE] = "None",
                                        [CAIRN_PICKLE_BOOL] = "bool",
                                        [CAIRN_PICKLE_INT] = "int",
                                        [CAIRN_PICKLE_BIG_INT] = "int",
                                        [CAIRN_PICKLE_FLOAT] = "float",
                                        [CAIRN_PICKLE_TEXT] = "str",
                                        [CAIRN_PICKLE_TEXT8] = "str of Python 2",
                                        [CAIRN_PICKLE_BYTES] = "bytes",
                                        [CAIRN_PICKLE_BYTEARRAY] = "bytearray",
                                        [CAIRN_PICKLE_LIST] = "list",
                                        [CAIRN_PICKLE_TUPLE] = "tuple",
                                        [CAIRN_PICKLE_SET] = "set",
                                        [CAIRN_PICKLE_FROZENSET] = "frozenset",
                                        [CAIRN_PICKLE_DICT] = "dict",
                                        [CAIRN_PICKLE_GLOBAL] = "global",
                                        [CAIRN_PICKLE_OBJECT] = "call",
                                        [CAIRN_PICKLE_PERSISTENT] = "persistent id"};

    return node ? names[node->kind] : "nothing";
}

bool
cairn_pickle_is_list(const struct cairn_pickle_node *node)
{
    return node && node->kind == CAIRN_PICKLE_LIST;
}

struct cairn_pickle_node *
cairn_pickle_only(const struct cairn_pickle_node *node)
{
    return cairn_pickle_is_list(node) && node->count == 1 ? node->items[0] : NULL;
}

bool
cairn_pickle_is_true(const struct cairn_pickle_node *node)
{
    return node && node->kind == CAIRN_PICKLE_BOOL && node->truth;
}

bool
cairn_pickle_is_text(const struct cairn_pickle_node *node, const char *text)
{
    return node && (node->kind == CAIRN_PICKLE_TEXT || node->kind == CAIRN_PICKLE_TEXT8) &&
           node->count == strlen(text) && memcmp(node->bytes, text, node->count) == 0;
}

bool
cairn_pickle_is_global(const struct cairn_pickle_node *node, const char *module, const char *name)
{
    return node && node->kind == CAIRN_PICKLE_GLOBAL && strcmp(node->global->module, module) == 0 &&
           strcmp(node->global->name, name) == 0;
}

bool
cairn_pickle_is_call(const struct cairn_pickle_node *node, const char *module, const char *name)
{
    return node && node->kind == CAIRN_PICKLE_OBJECT &&
           cairn_pickle_is_global(node->object->callable, module, name);
}

bool
cairn_pickle_u64(const struct cairn_pickle_node *node, uint64_t *value)
{
    if (!node || node->kind != CAIRN_PICKLE_INT || node->integer < 0)
        return false;
    *value = (uint64_t)node->integer;
    return true;
}

bool
cairn_pickle_copy_text(const struct cairn_pickle_node *node, char *out, size_t out_bytes)
{
    if (!node || (node->kind != CAIRN_PICKLE_TEXT && node->kind != CAIRN_PICKLE_TEXT8) ||
        node->count >= out_bytes || memchr(node->bytes, 0, node->count) ||
        !cairn_utf8_valid((const char *)node->bytes, node->count))
        return false;
    memcpy(out, node->bytes, node->count);
    out[node->count] = '\0';
    return true;
}

bool
cairn_pickle_read_bytes(struct cairn_pickle *pickle, const struct cairn_pickle_node *node,
                        const uint8_t **bytes, size_t *bytes_len)
{
    const struct cairn_pickle_node *text = cairn_pickle_arg(node, 0);
    uint8_t *out;
    size_t used = 0;

    if (node && node->kind == CAIRN_PICKLE_BYTES) {
        *bytes = node->bytes;
        *bytes_len = node->count;
        return true;
    }
    if (!cairn_pickle_is_call(node, "_codecs", "encode") || !text ||
        text->kind != CAIRN_PICKLE_TEXT ||
        !cairn_pickle_is_text(cairn_pickle_arg(node, 1), "latin1") || cairn_pickle_arg(node, 2))
        return false;
    out = cairn_pickle_alloc(pickle, (uint64_t)text->count + 1);
    for (uint32_t i = 0; out && i < text->count; i++) {
        uint8_t c = text->bytes[i];

        if (c >= 0x80) { /* two bytes of UTF-8, as U+0080 … U+00FF have */
            if ((c != 0xc2 && c != 0xc3) || ++i == text->count || (text->bytes[i] & 0xc0) != 0x80)
                return false;
            c = (uint8_t)(c << 6 | (text->bytes[i] & 0x3f));
        }
        out[used++] = c;
    }
    *bytes = out;
    *bytes_len = used;
    return out != NULL;
}

const struct cairn_pickle_node *
cairn_pickle_pairs(const struct cairn_pickle_node *node)
{
    if (node && node->kind == CAIRN_PICKLE_OBJECT)
        return node->object->pairs;
    return node && node->kind == CAIRN_PICKLE_DICT ? node : NULL;
}

void
cairn_pickle_put_all(struct cairn_pickle *pickle, struct cairn_pickle_node *target,
                     const struct cairn_pickle_node *from, const char *const without[])
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(from);

    for (uint32_t i = 0; pairs && i < pairs->count; i++) {
        size_t k = 0;

        while (without && without[k] && !cairn_pickle_is_text(pairs->items[2 * i], without[k]))
            k++;
        if (!without || !without[k])
            cairn_pickle_put(pickle, target, pairs->items[2 * i], pairs->items[2 * i + 1]);
    }
}

struct cairn_pickle_node *
cairn_pickle_get(const struct cairn_pickle_node *node, const char *key)
{
    const struct cairn_pickle_node *dict = cairn_pickle_pairs(node);

    for (size_t i = dict ? dict->count : 0; i-- > 0;)
        if (cairn_pickle_is_text(dict->items[2 * i], key))
            return dict->items[2 * i + 1];
    return NULL;
}

struct cairn_pickle_node *
cairn_pickle_at(const struct cairn_pickle_node *node, uint64_t number)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(node);
    uint64_t key;

    for (uint32_t i = 0; pairs && i < pairs->count; i++)
        if (cairn_pickle_u64(pairs->items[2 * i], &key) && key == number)
            return pairs->items[2 * i + 1];
    return NULL;
}

struct cairn_pickle_node *
cairn_pickle_attribute(const struct cairn_pickle_node *node, const char *name)
{
    const struct cairn_pickle_node *state;
    struct cairn_pickle_node *value = NULL;

    if (!node || node->kind != CAIRN_PICKLE_OBJECT || !node->object->state)
        return NULL;
    state = node->object->state;
    if (state->kind != CAIRN_PICKLE_TUPLE)
        return cairn_pickle_get(state, name);
    /* (state or None, attributes of __slots__) */
    for (uint32_t i = 0; i < state->count && i < 2 && !value; i++)
        value = cairn_pickle_get(state->items[i], name);
    return value;
}

struct cairn_pickle_node *
cairn_pickle_arg(const struct cairn_pickle_node *node, size_t i)
{
    const struct cairn_pickle_node *args;

    if (!node || node->kind != CAIRN_PICKLE_OBJECT)
        return NULL;
    args = node->object->args;
    return args->kind == CAIRN_PICKLE_TUPLE && i < args->count ? args->items[i] : NULL;
}
