/*
 * tools/convert/pickle/pickle.h - what a pickle says, as an inert tree: nothing is ever called.
 *
 * A tree lives in an arena with a limit and is freed at once. Nodes that the pickle shares are
 * shared here, and cycles are cycles: walkers of a tree need a limit on depth
 * (CAIRN_PICKLE_DEPTH_MAX serves) and a note of what it has visited (node->index, which counts from
 * 0 to pickle->node_count, serves as its key). Nodes of two trees are not mixed. A node may stand
 * for many equal values: a tree is changed by putting another node in a place, never by changing a
 * node.
 *
 * Building: errors are sticky. A builder whose memory runs out, or that is given NULL for a node,
 * gives NULL, and cairn_pickle_done says in the end whether all went well.
 */
#ifndef CAIRN_TOOLS_CONVERT_PICKLE_PICKLE_H
#define CAIRN_TOOLS_CONVERT_PICKLE_PICKLE_H

#include "base/complaint.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CAIRN_PICKLE_DEPTH_MAX = 1000 }; /* of nested nodes: Python's own limit on recursion */

enum cairn_pickle_kind {
    CAIRN_PICKLE_NONE,
    CAIRN_PICKLE_BOOL,
    CAIRN_PICKLE_INT,     /* fits an int64_t */
    CAIRN_PICKLE_BIG_INT, /* bytes[count]: two's complement, least byte first, more than 8 */
    CAIRN_PICKLE_FLOAT,
    CAIRN_PICKLE_TEXT,      /* bytes[count]: as stored, meant to be UTF-8 but not checked */
    CAIRN_PICKLE_TEXT8,     /* bytes[count]: a str of Python 2, of unknown encoding */
    CAIRN_PICKLE_BYTES,     /* bytes[count] */
    CAIRN_PICKLE_BYTEARRAY, /* bytes[count] */
    CAIRN_PICKLE_LIST,      /* items[count] */
    CAIRN_PICKLE_TUPLE,     /* items[count] */
    CAIRN_PICKLE_SET,       /* items[count] */
    CAIRN_PICKLE_FROZENSET, /* items[count] */
    CAIRN_PICKLE_DICT,      /* items[2 * count]: key, value, key, value, … as stored */
    CAIRN_PICKLE_GLOBAL,    /* a name of a module: class, function or constant */
    CAIRN_PICKLE_OBJECT,    /* what a call would have given */
    CAIRN_PICKLE_PERSISTENT /* items[0]: what names an object outside the pickle */
};

struct cairn_pickle_node {
    uint8_t kind;
    bool memoized;  /* the pickle gave it a number for later use; so does the writer */
    uint16_t depth; /* at least 1 + that of what it held when it was made */
    uint32_t index;
    uint32_t count;
    uint32_t room; /* of items, for those that grow */
    union {
        bool truth;
        int64_t integer;
        double real;
        const uint8_t *bytes;
        struct cairn_pickle_node **items;
        const struct cairn_pickle_global *global;
        struct cairn_pickle_object *object;
    };
};

struct cairn_pickle_global {
    const char *module;
    const char *name;
};

enum cairn_pickle_call {
    CAIRN_PICKLE_REDUCE,   /* callable(*args) */
    CAIRN_PICKLE_NEWOBJ,   /* callable.__new__(callable, *args) */
    CAIRN_PICKLE_NEWOBJ_EX /* the same with keyword arguments */
};

/* What would be called, and what would then be done to the result, in this order. */
struct cairn_pickle_object {
    enum cairn_pickle_call call;
    struct cairn_pickle_node *callable;
    struct cairn_pickle_node *args;   /* a tuple, or anything a hostile pickle gives */
    struct cairn_pickle_node *kwargs; /* NULL but for NEWOBJ_EX */
    struct cairn_pickle_node *items;  /* a list of what is appended, NULL: nothing */
    struct cairn_pickle_node *pairs;  /* a dict of what is set by key, NULL: nothing */
    struct cairn_pickle_node *state;  /* of BUILD, NULL: none */
};

struct cairn_pickle_chunk;

/* The arena of one tree, or of several read into it. */
struct cairn_pickle {
    struct cairn_pickle_chunk *chunks;
    uint64_t used_bytes;
    uint64_t limit_bytes;
    uint32_t node_count;
    cairn_err err; /* the first failure of a builder: CAIRN_NOMEM, or CAIRN_INVAL for misuse */
};

/* Makes an empty arena that holds at most limit_bytes. Cannot fail. */
void cairn_pickle_init(struct cairn_pickle *pickle, uint64_t limit_bytes);
/* Frees all nodes and bytes at once; allowed twice and on zeroes. */
void cairn_pickle_fini(struct cairn_pickle *pickle);
/* CAIRN_OK where no builder has failed so far. */
CAIRN_MUST_CHECK cairn_err cairn_pickle_done(const struct cairn_pickle *pickle);

/* Memory of the arena, aligned to 8, not zeroed; NULL when the limit is reached. */
void *cairn_pickle_alloc(struct cairn_pickle *pickle, uint64_t bytes);

/* ---- building: each gives a new node, memoized where Python would ---- */

struct cairn_pickle_node *cairn_pickle_none(struct cairn_pickle *pickle);
struct cairn_pickle_node *cairn_pickle_bool(struct cairn_pickle *pickle, bool truth);
struct cairn_pickle_node *cairn_pickle_int(struct cairn_pickle *pickle, int64_t integer);
/* From two's complement, least byte first, borrowed; an INT if it fits. */
struct cairn_pickle_node *cairn_pickle_big_int(struct cairn_pickle *pickle, const uint8_t *bytes,
                                               size_t bytes_len);
struct cairn_pickle_node *cairn_pickle_float(struct cairn_pickle *pickle, double real);
/* TEXT; copied. */
struct cairn_pickle_node *cairn_pickle_text(struct cairn_pickle *pickle, const char *text);
/* TEXT, TEXT8, BYTES or BYTEARRAY of bytes that outlive the tree: they are borrowed. */
struct cairn_pickle_node *cairn_pickle_borrow(struct cairn_pickle *pickle,
                                              enum cairn_pickle_kind kind, const void *bytes,
                                              size_t bytes_len);
/* LIST, TUPLE, SET or FROZENSET of the items; the array is copied. */
struct cairn_pickle_node *cairn_pickle_sequence(struct cairn_pickle *pickle,
                                                enum cairn_pickle_kind kind,
                                                struct cairn_pickle_node *const items[],
                                                size_t count);
/* An empty LIST, and an empty DICT. */
struct cairn_pickle_node *cairn_pickle_list(struct cairn_pickle *pickle);
struct cairn_pickle_node *cairn_pickle_dict(struct cairn_pickle *pickle);
/* Copies the names; CAIRN_INVAL if one is empty, holds a NUL or a newline, or is not UTF-8. */
struct cairn_pickle_node *cairn_pickle_global_of(struct cairn_pickle *pickle, const void *module,
                                                 size_t module_bytes, const void *name,
                                                 size_t name_bytes);
struct cairn_pickle_node *cairn_pickle_global(struct cairn_pickle *pickle, const char *module,
                                              const char *name);
struct cairn_pickle_node *cairn_pickle_object(struct cairn_pickle *pickle,
                                              enum cairn_pickle_call call,
                                              struct cairn_pickle_node *callable,
                                              struct cairn_pickle_node *args);
struct cairn_pickle_node *cairn_pickle_persistent(struct cairn_pickle *pickle,
                                                  struct cairn_pickle_node *id);
/* Room for `more` further items or pairs, where their number is known; else room doubles. */
void cairn_pickle_reserve(struct cairn_pickle *pickle, struct cairn_pickle_node *target,
                          size_t more);
/* Appends to a LIST or SET, or to what an OBJECT appends. */
void cairn_pickle_append(struct cairn_pickle *pickle, struct cairn_pickle_node *target,
                         struct cairn_pickle_node *item);
/* Adds a pair to a DICT, or to what an OBJECT sets by key; an equal key is not looked for. */
void cairn_pickle_put(struct cairn_pickle *pickle, struct cairn_pickle_node *target,
                      struct cairn_pickle_node *key, struct cairn_pickle_node *value);
/* The same under a text. */
void cairn_pickle_set(struct cairn_pickle *pickle, struct cairn_pickle_node *target,
                      const char *key, struct cairn_pickle_node *value);
/* Adds the pairs of `from` (cairn_pickle_pairs; NULL: none) to a DICT, but for those under the text
 * keys in `without`, which ends with NULL (NULL: none). */
void cairn_pickle_put_all(struct cairn_pickle *pickle, struct cairn_pickle_node *target,
                          const struct cairn_pickle_node *from, const char *const without[]);
/* Gives an OBJECT its state. */
void cairn_pickle_build(struct cairn_pickle *pickle, struct cairn_pickle_node *target,
                        struct cairn_pickle_node *state);

/* ---- questions; NULL is not a node of any kind ---- */

/* The kind's name as people know it: "int", "dict", "call", … */
const char *cairn_pickle_kind_name(const struct cairn_pickle_node *node);
bool cairn_pickle_is_list(const struct cairn_pickle_node *node);
/* The item of a LIST of one; NULL for any other node. */
struct cairn_pickle_node *cairn_pickle_only(const struct cairn_pickle_node *node);
/* A BOOL that is true. */
bool cairn_pickle_is_true(const struct cairn_pickle_node *node);
/* TEXT (or TEXT8) of exactly these bytes. */
bool cairn_pickle_is_text(const struct cairn_pickle_node *node, const char *text);
bool cairn_pickle_is_global(const struct cairn_pickle_node *node, const char *module,
                            const char *name);
/* An OBJECT whose callable is this global. */
bool cairn_pickle_is_call(const struct cairn_pickle_node *node, const char *module,
                          const char *name);
/* The value of an INT of 0 … INT64_MAX; false for any other node. */
bool cairn_pickle_u64(const struct cairn_pickle_node *node, uint64_t *value);
/* The text with a NUL after it; false if it is none, holds a NUL, is not UTF-8 or does not fit. */
bool cairn_pickle_copy_text(const struct cairn_pickle_node *node, char *out, size_t out_bytes);
/* The bytes of a BYTES, or of protocol 2's call for it, in the arena of `pickle`; false for any
 * other node, or without memory (cairn_pickle_done). */
bool cairn_pickle_read_bytes(struct cairn_pickle *pickle, const struct cairn_pickle_node *node,
                             const uint8_t **bytes, size_t *bytes_len);
/* The pairs of a DICT or of an OBJECT that sets by key (OrderedDict and its like); NULL if there
 * are none. */
const struct cairn_pickle_node *cairn_pickle_pairs(const struct cairn_pickle_node *node);
/* The value of a text key of cairn_pickle_pairs, the last of equal keys, as in Python; NULL. */
struct cairn_pickle_node *cairn_pickle_get(const struct cairn_pickle_node *node, const char *key);
/* The value of an int key of cairn_pickle_pairs, the first of equal keys; NULL. */
struct cairn_pickle_node *cairn_pickle_at(const struct cairn_pickle_node *node, uint64_t number);
/* The attribute that an OBJECT's state sets: state["name"], or its part for slots; NULL. */
struct cairn_pickle_node *cairn_pickle_attribute(const struct cairn_pickle_node *node,
                                                 const char *name);
/* The i-th argument of an OBJECT's call; NULL. */
struct cairn_pickle_node *cairn_pickle_arg(const struct cairn_pickle_node *node, size_t i);

#endif
