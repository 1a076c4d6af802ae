/*
 * tools/convert/pickle/json_tree.h - a JSON file as an inert tree, so that what a user says and
 * what a checkpoint says are looked at in the same way.
 *
 * Objects are dicts, arrays lists, and numbers ints where they are written without fraction and
 * exponent and fit 64 bits, else floats: as Python's json.load has it.
 */
#ifndef CAIRN_TOOLS_CONVERT_PICKLE_JSON_TREE_H
#define CAIRN_TOOLS_CONVERT_PICKLE_JSON_TREE_H

#include "tools/convert/pickle/pickle.h"

enum { CAIRN_JSON_TREE_TEXT_BYTES_MAX = 4096 }; /* of one string */

/* Reads a whole text; strings are copied. CAIRN_CORRUPT with *why (static) and *at_bytes, where in
 * the text; CAIRN_NOMEM where the arena is full. */
CAIRN_MUST_CHECK cairn_err cairn_json_tree_read(struct cairn_pickle *tree, const char *text,
                                                size_t bytes_len, struct cairn_pickle_node **root,
                                                const char **why, size_t *at_bytes);

#endif
