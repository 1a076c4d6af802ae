/*
 * base/yaml_config.h - reads a configuration file into a tree of scalars, lists and maps with line
 * numbers.
 *
 * A strict subset of YAML, by libyaml's events: one document; plain scalars as keys; no anchors,
 * aliases or tags, so nothing is expanded or executed; no duplicate keys. The limits below bound
 * everything. agent/process/config.c knows what the values mean.
 */
#ifndef CAIRN_BASE_YAML_CONFIG_H
#define CAIRN_BASE_YAML_CONFIG_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CAIRN_YAML_FILE_BYTES_MAX = 1 << 20,
    CAIRN_YAML_NODES_MAX = 65536,
    CAIRN_YAML_KEYS_MAX = 128, /* in one map */
    CAIRN_YAML_DEPTH_MAX = 8,
    CAIRN_YAML_SCALAR_BYTES_MAX = 4096
};

enum cairn_yaml_kind { CAIRN_YAML_SCALAR = 1, CAIRN_YAML_LIST = 2, CAIRN_YAML_MAP = 3 };

struct cairn_yaml_node {
    enum cairn_yaml_kind kind;
    uint32_t line;  /* from 1; in a map, that of its key */
    uint32_t next;  /* the next child of the same parent, 0: none */
    uint32_t child; /* the first child, 0: none */
    uint32_t key;   /* in a map: offset of this child's key in texts */
    uint32_t text;  /* of a scalar: offset of its text in texts */
    bool quoted;    /* the scalar was quoted, so "" is an empty text, not a missing value */
};

/* All zero is the empty document. Node 0 is the root. An empty file has an empty map as its root.
 */
struct cairn_yaml {
    struct cairn_yaml_node *nodes;
    uint32_t node_count;
    char *texts;
    size_t texts_bytes;
};

/*
 * Reads bytes[bytes_len]. On failure error[error_bytes] gets "file:line: what, why, what to do" and
 * *out is untouched. CAIRN_CONFIG for anything wrong in the text, CAIRN_NOMEM. The caller ends *out
 * with cairn_yaml_fini. Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_yaml_parse(const void *bytes, size_t bytes_len,
                                            const char *file_name, struct cairn_yaml *out,
                                            char *error, size_t error_bytes);

/* Frees what a document owns and zeroes it. */
void cairn_yaml_fini(struct cairn_yaml *yaml);

const char *cairn_yaml_key(const struct cairn_yaml *yaml, const struct cairn_yaml_node *node);
const char *cairn_yaml_text(const struct cairn_yaml *yaml, const struct cairn_yaml_node *node);

/* The first child, or the next sibling, of a node; NULL at the end. */
const struct cairn_yaml_node *cairn_yaml_child(const struct cairn_yaml *yaml,
                                               const struct cairn_yaml_node *node);
const struct cairn_yaml_node *cairn_yaml_next(const struct cairn_yaml *yaml,
                                              const struct cairn_yaml_node *node);

#endif
