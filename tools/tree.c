/* tools/tree.c - a JSON text as a tree of values. One pass, no recursion: open objects and arrays
 * are a stack. */
#include "tools/tree.h"

#include "base/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { TREE_VALUES_MAX = 1 << 20, TEXT_BYTES_MAX = 4096 };

static void
skip_space(const char *text, size_t len, size_t *at)
{
    while (*at < len && strchr(" \t\r\n", text[*at]) && text[*at] != '\0')
        (*at)++;
}

/* Passes over a string; false where it has no end. */
static bool
skip_string(const char *text, size_t len, size_t *at)
{
    if (*at >= len || text[*at] != '"')
        return false;
    for (++*at; *at < len; ++*at) {
        if (text[*at] == '"') {
            ++*at;
            return true;
        }
        if (text[*at] == '\\')
            ++*at;
        else if ((unsigned char)text[*at] < 0x20)
            return false;
    }
    return false;
}

static bool
skip_digits(const char *text, size_t len, size_t *at)
{
    size_t start = *at;

    while (*at < len && text[*at] >= '0' && text[*at] <= '9')
        ++*at;
    return *at > start;
}

static bool
skip_number(const char *text, size_t len, size_t *at)
{
    if (text[*at] == '-')
        ++*at;
    if (!skip_digits(text, len, at))
        return false;
    if (*at < len && text[*at] == '.') {
        ++*at;
        if (!skip_digits(text, len, at))
            return false;
    }
    if (*at < len && (text[*at] == 'e' || text[*at] == 'E')) {
        ++*at;
        if (*at < len && (text[*at] == '+' || text[*at] == '-'))
            ++*at;
        return skip_digits(text, len, at);
    }
    return true;
}

static bool
skip_word(const char *text, size_t len, size_t *at, const char *word)
{
    size_t word_len = strlen(word);

    if (len - *at < word_len || memcmp(text + *at, word, word_len) != 0)
        return false;
    *at += word_len;
    return true;
}

/* Appends a value; UINT32_MAX when it cannot. */
static uint32_t
add_value(struct cairn_tree *tree, cairn_err *err)
{
    if (tree->count == tree->room) {
        uint32_t room = tree->room ? 2 * tree->room : 256;
        struct cairn_tree_value *grown;

        if (room > TREE_VALUES_MAX) {
            *err = CAIRN_FULL;
            return UINT32_MAX;
        }
        grown = realloc(tree->values, room * sizeof *grown);
        if (!grown) {
            *err = CAIRN_NOMEM;
            return UINT32_MAX;
        }
        tree->values = grown;
        tree->room = room;
    }
    tree->values[tree->count] = (struct cairn_tree_value){.key = SIZE_MAX};
    return tree->count++;
}

struct parser {
    struct cairn_tree tree;
    size_t len, at;
    uint32_t open[CAIRN_JSON_DEPTH_MAX]; /* values that are not closed */
    uint32_t last[CAIRN_JSON_DEPTH_MAX]; /* of each, its last child, 0 none */
    uint32_t depth;
    cairn_err err;
};

static void
link_child(struct parser *parser, uint32_t index)
{
    uint32_t top = parser->depth - 1;

    if (parser->last[top])
        parser->tree.values[parser->last[top]].next = index;
    else
        parser->tree.values[parser->open[top]].child = index;
    parser->last[top] = index;
    parser->tree.values[parser->open[top]].count++;
}

/* The kind by its first character; scalars are passed over, objects and arrays opened. */
static bool
read_value(struct parser *parser, uint32_t index)
{
    const char *text = parser->tree.text;
    struct cairn_tree_value *value = &parser->tree.values[index];
    bool right = true;

    value->begin = parser->at;
    switch (parser->at < parser->len ? text[parser->at] : '\0') {
    case '{':
    case '[':
        value->kind = text[parser->at] == '{' ? CAIRN_TREE_OBJECT : CAIRN_TREE_ARRAY;
        if (parser->depth == CAIRN_JSON_DEPTH_MAX)
            return false;
        parser->open[parser->depth] = index;
        parser->last[parser->depth++] = 0;
        parser->at++;
        return true;
    case '"':
        value->kind = CAIRN_TREE_STRING;
        right = skip_string(text, parser->len, &parser->at);
        break;
    case 't':
        value->kind = CAIRN_TREE_BOOL;
        right = skip_word(text, parser->len, &parser->at, "true");
        break;
    case 'f':
        value->kind = CAIRN_TREE_BOOL;
        right = skip_word(text, parser->len, &parser->at, "false");
        break;
    case 'n':
        right = skip_word(text, parser->len, &parser->at, "null");
        break;
    case '\0':
        return false;
    default:
        value->kind = CAIRN_TREE_NUMBER;
        right = skip_number(text, parser->len, &parser->at);
        break;
    }
    value->end = parser->at;
    return right;
}

/* One child, or the closing bracket, of the innermost open value. */
static bool
read_child(struct parser *parser)
{
    const char *text = parser->tree.text;
    uint32_t parent = parser->open[parser->depth - 1], index;
    bool object = parser->tree.values[parent].kind == CAIRN_TREE_OBJECT;
    size_t key = SIZE_MAX;

    skip_space(text, parser->len, &parser->at);
    if (parser->at < parser->len && text[parser->at] == (object ? '}' : ']')) {
        parser->at++;
        parser->tree.values[parent].end = parser->at;
        parser->depth--;
        return true;
    }
    if (parser->tree.values[parent].count) {
        if (!skip_word(text, parser->len, &parser->at, ","))
            return false;
        skip_space(text, parser->len, &parser->at);
    }
    if (object) {
        key = parser->at;
        if (!skip_string(text, parser->len, &parser->at))
            return false;
        skip_space(text, parser->len, &parser->at);
        if (!skip_word(text, parser->len, &parser->at, ":"))
            return false;
        skip_space(text, parser->len, &parser->at);
    }
    index = add_value(&parser->tree, &parser->err);
    if (index == UINT32_MAX)
        return false;
    parser->tree.values[index].key = key;
    link_child(parser, index);
    return read_value(parser, index);
}

cairn_err
cairn_tree_parse(const char *text, size_t text_len, struct cairn_tree *out)
{
    struct parser parser = {.tree.text = text, .len = text_len};
    bool right;

    skip_space(text, text_len, &parser.at);
    right = add_value(&parser.tree, &parser.err) == 0 && read_value(&parser, 0);
    while (right && parser.depth > 0)
        right = read_child(&parser);
    skip_space(text, text_len, &parser.at);
    if (!right || parser.at != text_len) {
        cairn_tree_fini(&parser.tree);
        return parser.err ? parser.err : CAIRN_CORRUPT;
    }
    *out = parser.tree;
    return CAIRN_OK;
}

void
cairn_tree_fini(struct cairn_tree *tree)
{
    free(tree->values);
    memset(tree, 0, sizeof *tree);
}

static const struct cairn_tree_value *
find_member(const struct cairn_tree *tree, const struct cairn_tree_value *object, const char *name,
            size_t name_len)
{
    uint32_t index = object->kind == CAIRN_TREE_OBJECT ? object->child : 0;

    for (; index; index = tree->values[index].next) {
        const struct cairn_tree_value *value = &tree->values[index];

        if (strncmp(tree->text + value->key + 1, name, name_len) == 0 &&
            tree->text[value->key + 1 + name_len] == '"')
            return value;
    }
    return NULL;
}

const struct cairn_tree_value *
cairn_tree_find(const struct cairn_tree *tree, const struct cairn_tree_value *from,
                const char *path)
{
    const struct cairn_tree_value *value = from ? from : tree->values;

    while (value && *path) {
        size_t len = strcspn(path, ".");

        value = find_member(tree, value, path, len);
        path += len + (path[len] == '.');
    }
    return value && value->kind != CAIRN_TREE_NULL ? value : NULL;
}

const struct cairn_tree_value *
cairn_tree_next(const struct cairn_tree *tree, const struct cairn_tree_value *array,
                const struct cairn_tree_value *at)
{
    uint32_t index;

    if (!array || array->kind != CAIRN_TREE_ARRAY)
        return NULL;
    index = at ? at->next : array->child;
    return index ? &tree->values[index] : NULL;
}

/* Copies a number for the C library, which wants an end. */
static bool
number_text(const struct cairn_tree *tree, const struct cairn_tree_value *from, const char *path,
            char out[64])
{
    const struct cairn_tree_value *value = cairn_tree_find(tree, from, path);

    if (!value || value->kind != CAIRN_TREE_NUMBER || value->end - value->begin >= 64)
        return false;
    memcpy(out, tree->text + value->begin, value->end - value->begin);
    out[value->end - value->begin] = '\0';
    return true;
}

uint64_t
cairn_tree_u64(const struct cairn_tree *tree, const struct cairn_tree_value *from, const char *path,
               uint64_t fallback)
{
    char number[64], *end;
    uint64_t value;

    if (!number_text(tree, from, path, number) || number[0] == '-')
        return fallback;
    errno = 0;
    value = strtoull(number, &end, 10);
    return errno || *end ? fallback : value;
}

int64_t
cairn_tree_i64(const struct cairn_tree *tree, const struct cairn_tree_value *from, const char *path,
               int64_t fallback)
{
    char number[64], *end;
    int64_t value;

    if (!number_text(tree, from, path, number))
        return fallback;
    errno = 0;
    value = strtoll(number, &end, 10);
    return errno || *end ? fallback : value;
}

double
cairn_tree_double(const struct cairn_tree *tree, const struct cairn_tree_value *from,
                  const char *path, double fallback)
{
    char number[64];

    return number_text(tree, from, path, number) ? strtod(number, NULL) : fallback;
}

bool
cairn_tree_bool(const struct cairn_tree *tree, const struct cairn_tree_value *from,
                const char *path, bool fallback)
{
    const struct cairn_tree_value *value = cairn_tree_find(tree, from, path);

    return value && value->kind == CAIRN_TREE_BOOL ? tree->text[value->begin] == 't' : fallback;
}

const char *
cairn_tree_text(const struct cairn_tree *tree, const struct cairn_tree_value *from,
                const char *path, char *out, size_t out_bytes)
{
    const struct cairn_tree_value *value = cairn_tree_find(tree, from, path);
    struct cairn_json_reader reader;
    char whole[TEXT_BYTES_MAX];

    out[0] = '\0';
    if (!value || value->kind != CAIRN_TREE_STRING || out_bytes == 0)
        return out;
    cairn_json_reader_init(&reader, tree->text + value->begin, value->end - value->begin);
    cairn_json_read_string(&reader, whole, sizeof whole);
    if (!cairn_json_reader_failed(&reader)) {
        size_t len = strnlen(whole, out_bytes - 1);

        memcpy(out, whole, len);
        out[len] = '\0';
    }
    return out;
}
