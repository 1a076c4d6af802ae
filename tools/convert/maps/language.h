/*
 * tools/convert/maps/language.h - the language in which a map says how two namings of one model
 * belong together, as a parsed table.
 *
 * A statement begins in the first column and goes on in indented lines; '#' begins a comment.
 *
 *   sides hf megatron                     the names of the two sides, left and right of a '='
 *   include llama                         the statements of a preset, here
 *   number heads from n_head num_heads    a size by its keys in the configuration, the first known
 *   number groups from kv(gqa) else heads "kv" counts only where "gqa" is not false
 *   number each = heads / groups          or from other numbers
 *   choice megatron norms = fused plain   spellings of a side; the first is written by default
 *   prefix hf transformer.                what names of that side may lack when they are read
 *   drop hf model.layers.{l}.inv_freq     tensors of a side that the other does not have
 *
 *   a.{l}.q [groups*each*d, h] a.{l}.k [groups*d, h] = b.{l}.qk [groups*(each + 1)*d, h]
 *       when norms=fused given hf a.{l}.norm
 *
 * The last is a rule. Brackets say the axes of a tensor: a dimension is a product, its last axis
 * runs fastest. A sum has one term for each tensor of the other side, and what it counts lies one
 * after the other: this describes halves, groups and blocks. The same axis has the same size
 * wherever it stands in a rule; sizes follow from numbers and from shapes. "{l}" is a decimal
 * number in a name; where only one side has it in its names, it is an axis of the other side.
 * "vocab..padded" is a dimension that may be longer than vocab: what follows is padding, which the
 * other side does not have; it is written with the length `padded`, where that number is known.
 * Names without brackets are the same tensor on both sides, of any shape.
 *
 * `when` (one choice of each side at most) holds where the choice's side is written; `given` where
 * its side is read. Of the rules that hold, the first that knows a tensor's name counts.
 */
#ifndef CAIRN_TOOLS_CONVERT_MAPS_LANGUAGE_H
#define CAIRN_TOOLS_CONVERT_MAPS_LANGUAGE_H

#include "cairn/types.h"
#include "base/complaint.h"

enum {
    CAIRN_MAP_BYTES_MAX = 1 << 20,
    CAIRN_MAP_WORD_BYTES_MAX = 48, /* of axes, numbers, choices; names of tensors may be longer */
    CAIRN_MAP_SYMBOLS_MAX = 256,
    CAIRN_MAP_RULES_MAX = 1024,
    CAIRN_MAP_NUMBERS_MAX = 64,
    CAIRN_MAP_KEYS_MAX = 8, /* of a number */
    CAIRN_MAP_CHOICES_MAX = 16,
    CAIRN_MAP_VALUES_MAX = 8, /* of a choice */
    CAIRN_MAP_DROPS_MAX = 64,
    CAIRN_MAP_PARTS_MAX = 8,    /* tensors of one side of a rule, terms of a sum */
    CAIRN_MAP_FACTORS_MAX = 6,  /* of a dimension */
    CAIRN_MAP_AXES_MAX = 4,     /* of a term */
    CAIRN_MAP_CAPTURES_MAX = 4, /* of a name */
    CAIRN_MAP_NONE = -1
};

/* A product of axes, each an index into the map's symbols. */
struct cairn_map_term {
    uint32_t count;
    uint32_t axes[CAIRN_MAP_AXES_MAX];
};

/* A sum of terms; most often one term of one axis. */
struct cairn_map_factor {
    uint32_t count;
    struct cairn_map_term terms[CAIRN_MAP_PARTS_MAX];
};

struct cairn_map_dim {
    uint32_t count; /* of factors; the last runs fastest */
    struct cairn_map_factor factors[CAIRN_MAP_FACTORS_MAX];
    bool padded;       /* may be longer than the product */
    int32_t padded_to; /* symbol, CAIRN_MAP_NONE */
};

/* A name with captures: "{l}" stands for a decimal number. */
struct cairn_map_name {
    char text[CAIRN_NAME_BYTES_MAX];
    uint32_t capture_count;
    uint32_t captures[CAIRN_MAP_CAPTURES_MAX]; /* symbols, in the order of the text */
};

struct cairn_map_tensor {
    struct cairn_map_name name;
    bool shaped; /* has brackets */
    uint32_t dims;
    struct cairn_map_dim dim[CAIRN_DIMS_MAX];
};

struct cairn_map_side {
    uint32_t count;
    struct cairn_map_tensor *tensors; /* [count], owned */
};

struct cairn_map_rule {
    uint32_t line;
    const char *file; /* of the map or preset that it stands in; the map's */
    uint32_t parts;   /* 1, or the terms of its sums */
    struct cairn_map_side sides[2];
    struct {
        int32_t choice, value; /* CAIRN_MAP_NONE: none */
    } when[2];                 /* by the side whose choice it is */
    int32_t given_side;        /* CAIRN_MAP_NONE: none */
    struct cairn_map_name given;
};

struct cairn_map_key {
    char key[CAIRN_MAP_WORD_BYTES_MAX];
    char only_if[CAIRN_MAP_WORD_BYTES_MAX]; /* "": always */
};

/* A size: by its keys, else `left`, `left * right` or `left / right` (op ' ', '*', '/'). */
struct cairn_map_number {
    uint32_t symbol;
    uint32_t key_count;
    struct cairn_map_key keys[CAIRN_MAP_KEYS_MAX];
    int32_t left, right; /* symbols; CAIRN_MAP_NONE */
    char op;
};

struct cairn_map_choice {
    uint32_t side;
    char name[CAIRN_MAP_WORD_BYTES_MAX];
    uint32_t count;
    char values[CAIRN_MAP_VALUES_MAX][CAIRN_MAP_WORD_BYTES_MAX];
};

struct cairn_map_symbol {
    char name[CAIRN_MAP_WORD_BYTES_MAX];
    uint64_t literal; /* a number written as one; 0: a name */
};

struct cairn_map_drop {
    uint32_t side;
    struct cairn_map_name name;
};

/* All zero is the empty value. */
struct cairn_map {
    char sides[2][CAIRN_MAP_WORD_BYTES_MAX];
    char prefixes[2][CAIRN_MAP_WORD_BYTES_MAX];
    struct cairn_map_symbol symbols[CAIRN_MAP_SYMBOLS_MAX];
    uint32_t symbol_count;
    struct cairn_map_number numbers[CAIRN_MAP_NUMBERS_MAX];
    uint32_t number_count;
    struct cairn_map_choice choices[CAIRN_MAP_CHOICES_MAX];
    uint32_t choice_count;
    struct cairn_map_drop drops[CAIRN_MAP_DROPS_MAX];
    uint32_t drop_count;
    struct cairn_map_rule *rules; /* the first that fits counts */
    uint32_t rule_count;
    char *files[CAIRN_MAP_CHOICES_MAX]; /* names of what was parsed, owned */
    uint32_t file_count;
};

/* Parses text[text_bytes], called `file` in messages, into a new map that the caller ends with
 * cairn_map_destroy. CAIRN_CORRUPT with file, line and column, CAIRN_NOMEM; complained about.
 * Thread: any. */
CAIRN_MUST_CHECK cairn_err cairn_map_parse(const char *file, const char *text, size_t text_bytes,
                                           struct cairn_map **out,
                                           struct cairn_complaint *complaint);

/* The same of a map by what the user calls it: a preset's name, or a file's. CAIRN_NOT_FOUND,
 * CAIRN_DENIED, the errors of reading. */
CAIRN_MUST_CHECK cairn_err cairn_map_load(const char *map, struct cairn_map **out,
                                          struct cairn_complaint *complaint);
void cairn_map_destroy(struct cairn_map *map); /* NULL is allowed */

/* Whether a tensor's name fits; if so, values[] (by symbol) get the captures. */
bool cairn_map_name_match(const struct cairn_map_name *pattern, const char *name,
                          uint64_t values[CAIRN_MAP_SYMBOLS_MAX]);

/* The name with these captures behind `key` and a dot ("": neither). False: it is too long. */
bool cairn_map_name_make(const struct cairn_map_name *pattern, const char *key,
                         const uint64_t values[CAIRN_MAP_SYMBOLS_MAX],
                         char out[CAIRN_NAME_BYTES_MAX]);

/* Whether a name has this capture. */
bool cairn_map_name_has(const struct cairn_map_name *pattern, uint32_t symbol);

/* The text of a preset; NULL where there is none. The i-th one's name; NULL behind the last. */
const char *cairn_map_preset(const char *name, size_t *text_bytes);
const char *cairn_map_preset_name(uint32_t index);

/* Checks a rule that is complete: its sides have as many parts, and in each part every axis of one
 * side is one of the other. `rule->parts` is set. CAIRN_CORRUPT, said with the rule's line. */
CAIRN_MUST_CHECK cairn_err cairn_map_rule_check(const struct cairn_map *map,
                                                struct cairn_map_rule *rule,
                                                struct cairn_complaint *complaint);

#endif
