/*
 * tools/tree.h - a JSON text as a tree of values, for an agent's answers: unknown fields are
 * ignored, missing fields have the value that the reader names.
 *
 * Bounded: TREE_VALUES_MAX values, CAIRN_JSON_DEPTH_MAX deep. Values borrow from the text.
 */
#ifndef CAIRN_TOOLS_TREE_H
#define CAIRN_TOOLS_TREE_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum cairn_tree_kind {
    CAIRN_TREE_NULL = 0,
    CAIRN_TREE_BOOL,
    CAIRN_TREE_NUMBER,
    CAIRN_TREE_STRING,
    CAIRN_TREE_ARRAY,
    CAIRN_TREE_OBJECT
};

struct cairn_tree_value {
    enum cairn_tree_kind kind;
    uint32_t next;     /* sibling, 0 none (value 0 is the root) */
    uint32_t child;    /* first element or member, 0 none */
    uint32_t count;    /* elements or members */
    size_t key;        /* place of the key's quote in the text, SIZE_MAX none */
    size_t begin, end; /* of the value in the text */
};

struct cairn_tree {
    const char *text; /* borrowed */
    struct cairn_tree_value *values;
    uint32_t count, room;
};

/* Parses text[text_len], which must outlive the tree. CAIRN_CORRUPT: not one JSON value;
 * CAIRN_FULL: too many values; CAIRN_NOMEM. Ended by cairn_tree_fini. */
CAIRN_MUST_CHECK cairn_err cairn_tree_parse(const char *text, size_t text_len,
                                            struct cairn_tree *out);
void cairn_tree_fini(struct cairn_tree *tree); /* all zero is allowed */

/* The member of an object, by a path such as "newest.step"; NULL if missing or null. `from` NULL:
 * the root. */
const struct cairn_tree_value *cairn_tree_find(const struct cairn_tree *tree,
                                               const struct cairn_tree_value *from,
                                               const char *path);
/* The next element after `at`; NULL starts. NULL at the end, or if `array` is not an array. */
const struct cairn_tree_value *cairn_tree_next(const struct cairn_tree *tree,
                                               const struct cairn_tree_value *array,
                                               const struct cairn_tree_value *at);

/* Values by path; `fallback` if there is none of that type. */
uint64_t cairn_tree_u64(const struct cairn_tree *tree, const struct cairn_tree_value *from,
                        const char *path, uint64_t fallback);
int64_t cairn_tree_i64(const struct cairn_tree *tree, const struct cairn_tree_value *from,
                       const char *path, int64_t fallback);
double cairn_tree_double(const struct cairn_tree *tree, const struct cairn_tree_value *from,
                         const char *path, double fallback);
bool cairn_tree_bool(const struct cairn_tree *tree, const struct cairn_tree_value *from,
                     const char *path, bool fallback);
/* Unescaped into out[out_bytes], cut if it does not fit; "" if missing. Returns out. path "":
 * `from` itself. */
const char *cairn_tree_text(const struct cairn_tree *tree, const struct cairn_tree_value *from,
                            const char *path, char *out, size_t out_bytes);

#endif
