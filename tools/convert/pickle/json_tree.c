/* tools/convert/pickle/json_tree.c - see json_tree.h. */
#include "tools/convert/pickle/json_tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { NUMBER_BYTES_MAX = 64 };

/* What is open at a depth: a dict with the key of the value that comes next, or a list. */
struct level {
    struct cairn_pickle_node *node, *key;
};

static struct cairn_pickle_node *
read_number(struct cairn_pickle *tree, struct cairn_json_reader *reader, const char *from,
            size_t bytes_len)
{
    char text[NUMBER_BYTES_MAX], *end;
    long long whole;
    double real;

    if (bytes_len >= sizeof(text)) {
        cairn_json_reader_fail(reader, "a number has too many digits");
        return NULL;
    }
    memcpy(text, from, bytes_len);
    text[bytes_len] = '\0';
    errno = 0;
    whole = strtoll(text, &end, 10);
    if (*end == '\0' && end != text && errno == 0)
        return cairn_pickle_int(tree, whole);
    real = strtod(text, &end);
    if (*end == '\0' && end != text)
        return cairn_pickle_float(tree, real);
    cairn_json_reader_fail(reader, "expected a value");
    return NULL;
}

/* A value that is neither object nor array. */
static struct cairn_pickle_node *
read_leaf(struct cairn_pickle *tree, struct cairn_json_reader *reader)
{
    char first = cairn_json_peek(reader), text[CAIRN_JSON_TREE_TEXT_BYTES_MAX];
    size_t begin;

    if (first == '"') {
        cairn_json_read_string(reader, text, sizeof(text));
        return cairn_json_reader_failed(reader) ? NULL : cairn_pickle_text(tree, text);
    }
    begin = reader->at;
    cairn_json_skip(reader);
    if (cairn_json_reader_failed(reader))
        return NULL;
    if (first == 't' || first == 'f')
        return cairn_pickle_bool(tree, first == 't');
    if (first == 'n')
        return cairn_pickle_none(tree);
    return read_number(tree, reader, reader->text + begin, reader->at - begin);
}

/* Steps to the next value of what is open, with its key; false at its end. */
static bool
step(struct cairn_pickle *tree, struct cairn_json_reader *reader, struct level *level)
{
    char key[CAIRN_JSON_TREE_TEXT_BYTES_MAX];

    if (level->node->kind == CAIRN_PICKLE_LIST)
        return cairn_json_array_next(reader);
    if (!cairn_json_object_next(reader, key, sizeof(key)))
        return false;
    if (cairn_pickle_get(level->node, key))
        cairn_json_reader_fail(reader, "a key is there twice");
    level->key = cairn_pickle_text(tree, key);
    return true;
}

cairn_err
cairn_json_tree_read(struct cairn_pickle *tree, const char *text, size_t bytes_len,
                     struct cairn_pickle_node **root, const char **why, size_t *at_bytes)
{
    struct level levels[CAIRN_JSON_DEPTH_MAX + 1];
    struct cairn_json_reader reader;
    uint32_t depth = 0;
    cairn_err err;

    *root = NULL;
    cairn_json_reader_init(&reader, text, bytes_len);
    do {
        char first = cairn_json_peek(&reader);
        struct cairn_pickle_node *node = NULL;

        if (first == '{') {
            cairn_json_object_begin(&reader);
            node = cairn_pickle_dict(tree);
        } else if (first == '[') {
            cairn_json_array_begin(&reader);
            node = cairn_pickle_list(tree);
        } else {
            node = read_leaf(tree, &reader);
        }
        if (!node || cairn_json_reader_failed(&reader))
            break;
        if (depth == 0)
            *root = node;
        else if (levels[depth - 1].node->kind == CAIRN_PICKLE_LIST)
            cairn_pickle_append(tree, levels[depth - 1].node, node);
        else
            cairn_pickle_put(tree, levels[depth - 1].node, levels[depth - 1].key, node);
        if (first == '{' || first == '[') /* the reader lets no more be open than it has room for */
            levels[depth++] = (struct level){node, NULL};
        while (depth > 0 && !step(tree, &reader, &levels[depth - 1]))
            depth--;
    } while (depth > 0 && !cairn_json_reader_failed(&reader));
    err = cairn_json_reader_done(&reader);
    *why = reader.why;
    *at_bytes = reader.at;
    return err ? err : cairn_pickle_done(tree);
}
