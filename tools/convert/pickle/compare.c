/* tools/convert/pickle/compare.c - see pickle/compare.h. Pairs of containers are walked with a
 * stack of their own. */
#include "tools/convert/pickle/compare.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of an object: the call; and what is set by key, in the order of an OrderedDict. */
enum { PART_ARGS = 1, PART_PAIRS = 4 };

enum {
    FRAMES_MAX = 2 * CAIRN_PICKLE_DEPTH_MAX, /* a call's parts are a level more */
    STEPS_MAX = 1 << 28,                     /* a second or two; a hostile pickle may have a node in
                                              * places without number */
    OBJECT_PARTS = 6
};

struct frame {
    const struct cairn_pickle_node *left, *right;
    uint32_t next; /* item, pair or part */
    bool ordered;  /* a dict whose order counts */
    bool set;      /* a list that only a set is made of: its order does not count */
    size_t path_end;
};

struct comparing {
    struct frame *frames; /* [FRAMES_MAX] */
    uint32_t depth;
    uint64_t steps;
    uint32_t *seen; /* [nodes of the left tree]: 1 + the index of the node that it was last compared
                     * with; 0: none */
    bool bits;
    char *path;
    size_t path_bytes, path_end;
};

/* ---- the path ---- */

static void
extend(struct comparing *comparing, const char *text, size_t bytes)
{
    size_t room = comparing->path_bytes - 1 - comparing->path_end;

    bytes = bytes < room ? bytes : room;
    memcpy(comparing->path + comparing->path_end, text, bytes);
    comparing->path_end += bytes;
    comparing->path[comparing->path_end] = '\0';
}

static void
extend_number(struct comparing *comparing, int64_t number)
{
    char text[32];
    int bytes = snprintf(text, sizeof(text), "[%" PRId64 "]", number);

    extend(comparing, text, (size_t)bytes);
}

static void
extend_key(struct comparing *comparing, const struct cairn_pickle_node *key)
{
    if (key->kind == CAIRN_PICKLE_INT) {
        extend_number(comparing, key->integer);
    } else if (key->kind == CAIRN_PICKLE_TEXT) {
        if (comparing->path_end > 0)
            extend(comparing, ".", 1);
        extend(comparing, (const char *)key->bytes, key->count);
    } else {
        extend(comparing, "[…]", strlen("[…]"));
    }
}

/* ---- one pair of nodes ---- */

static bool
same_real(double left, double right, bool bits)
{
    if (memcmp(&left, &right, sizeof(left)) == 0)
        return true;
    return !bits && (left == right || (isnan(left) && isnan(right)));
}

/* Compares two nodes of one kind; *inner if what they hold is still to be compared. */
static bool
same_node(const struct cairn_pickle_node *left, const struct cairn_pickle_node *right, bool bits,
          bool *inner)
{
    *inner = false;
    switch ((enum cairn_pickle_kind)left->kind) {
    case CAIRN_PICKLE_NONE:
        return true;
    case CAIRN_PICKLE_BOOL:
        return left->truth == right->truth;
    case CAIRN_PICKLE_INT:
        return left->integer == right->integer;
    case CAIRN_PICKLE_FLOAT:
        return same_real(left->real, right->real, bits);
    case CAIRN_PICKLE_BIG_INT:
    case CAIRN_PICKLE_TEXT:
    case CAIRN_PICKLE_TEXT8:
    case CAIRN_PICKLE_BYTES:
    case CAIRN_PICKLE_BYTEARRAY:
        return left->count == right->count &&
               (left->count == 0 || memcmp(left->bytes, right->bytes, left->count) == 0);
    case CAIRN_PICKLE_GLOBAL:
        return strcmp(left->global->module, right->global->module) == 0 &&
               strcmp(left->global->name, right->global->name) == 0;
    case CAIRN_PICKLE_OBJECT:
        *inner = true;
        return left->object->call == right->object->call;
    case CAIRN_PICKLE_LIST:
    case CAIRN_PICKLE_TUPLE:
    case CAIRN_PICKLE_SET:
    case CAIRN_PICKLE_FROZENSET:
    case CAIRN_PICKLE_DICT:
        *inner = true;
        return left->count == right->count;
    case CAIRN_PICKLE_PERSISTENT:
        *inner = true;
        return true;
    }
    return false;
}

/* Whether the pair is equal so far; pushes it where it holds others. */
static bool
take(struct comparing *comparing, const struct cairn_pickle_node *left,
     const struct cairn_pickle_node *right, bool ordered, size_t path_end)
{
    bool inner;

    if (!left || !right || left == right)
        return left == right;
    if (left->kind != right->kind || !same_node(left, right, comparing->bits, &inner))
        return false;
    if (!inner || comparing->seen[left->index] == right->index + 1) {
        comparing->path_end = path_end;
        comparing->path[path_end] = '\0';
        return true;
    }
    if (comparing->depth == FRAMES_MAX)
        return false;
    comparing->seen[left->index] = right->index + 1;
    comparing->frames[comparing->depth++] =
        (struct frame){left, right, 0, ordered, false, path_end};
    return true;
}

/* ---- what a pair holds ---- */

static bool
same_key(const struct cairn_pickle_node *left, const struct cairn_pickle_node *right)
{
    bool inner;

    return left->kind == right->kind && same_node(left, right, true, &inner) && !inner;
}

/* A key's place among every `stride`-th node of a container; UINT32_MAX: none, or several. */
static uint32_t
only_place(struct comparing *comparing, const struct cairn_pickle_node *holder, uint32_t stride,
           const struct cairn_pickle_node *key)
{
    uint32_t found = UINT32_MAX;

    comparing->steps += holder->count;
    for (uint32_t j = 0; j < holder->count; j++) {
        if (!same_key(key, holder->items[(size_t)stride * j]))
            continue;
        if (found != UINT32_MAX)
            return UINT32_MAX;
        found = j;
    }
    return found;
}

/* The place in the right dict (stride 2) or set (stride 1) of the left one's key `i`, mostly the
 * same; UINT32_MAX. A key elsewhere must be there once on both sides: so keys pair up even if a
 * hostile pickle repeats some. */
static uint32_t
place_of(struct comparing *comparing, const struct frame *frame, uint32_t stride, uint32_t i)
{
    const struct cairn_pickle_node *key = frame->left->items[(size_t)stride * i];

    if (same_key(key, frame->right->items[(size_t)stride * i]))
        return i;
    if (frame->ordered || only_place(comparing, frame->left, stride, key) == UINT32_MAX)
        return UINT32_MAX;
    return only_place(comparing, frame->right, stride, key);
}

/* Whether two nodes are keys that hold others, of one kind: such are compared where they stand. */
static bool
both_hold(const struct cairn_pickle_node *left, const struct cairn_pickle_node *right)
{
    bool inner;

    return left->kind == right->kind && same_node(left, right, true, &inner) && inner;
}

static const struct cairn_pickle_node *
part_of(const struct cairn_pickle_object *object, uint32_t part)
{
    const struct cairn_pickle_node *parts[OBJECT_PARTS] = {object->callable, object->args,
                                                           object->kwargs,   object->items,
                                                           object->pairs,    object->state};

    return parts[part];
}

/* The list that a set of protocols below 4 is made of; NULL where the object is none. */
static const struct cairn_pickle_node *
list_of_set(const struct cairn_pickle_node *node)
{
    const struct cairn_pickle_node *args = node->object->args;
    bool set = cairn_pickle_is_call(node, "builtins", "set") ||
               cairn_pickle_is_call(node, "__builtin__", "set") ||
               cairn_pickle_is_call(node, "builtins", "frozenset") ||
               cairn_pickle_is_call(node, "__builtin__", "frozenset");

    return set && args && args->kind == CAIRN_PICKLE_TUPLE && args->count == 1 &&
                   args->items[0]->kind == CAIRN_PICKLE_LIST
               ? args->items[0]
               : NULL;
}

/* Pushes two such lists. They are not noted as seen, for elsewhere the same lists may be lists. */
static bool
take_sets(struct comparing *comparing, const struct cairn_pickle_node *left,
          const struct cairn_pickle_node *right, size_t path_end)
{
    if (left->count != right->count || comparing->depth == FRAMES_MAX)
        return false;
    comparing->frames[comparing->depth++] = (struct frame){left, right, 0, false, true, path_end};
    return true;
}

/* The next pair that the topmost one holds; *ended where there is none any more. */
static bool
step(struct comparing *comparing, bool *ended)
{
    struct frame *frame = &comparing->frames[comparing->depth - 1];
    const struct cairn_pickle_node *left = frame->left, *right = frame->right;
    uint32_t at, i = frame->next++,
                 count = left->kind == CAIRN_PICKLE_OBJECT       ? OBJECT_PARTS
                         : left->kind == CAIRN_PICKLE_PERSISTENT ? 1
                                                                 : left->count;
    size_t path_end = comparing->path_end;

    *ended = i >= count;
    if (*ended)
        return true;
    switch (frame->set ? CAIRN_PICKLE_SET : (enum cairn_pickle_kind)left->kind) {
    case CAIRN_PICKLE_OBJECT:
        if (i == PART_ARGS && list_of_set(left) && list_of_set(right))
            return take_sets(comparing, list_of_set(left), list_of_set(right), path_end);
        return take(comparing, part_of(left->object, i), part_of(right->object, i), i == PART_PAIRS,
                    path_end);
    case CAIRN_PICKLE_DICT:
        extend_key(comparing, left->items[2 * i]);
        at = place_of(comparing, frame, 2, i);
        if (at == UINT32_MAX && both_hold(left->items[2 * i], right->items[2 * i]) &&
            take(comparing, left->items[2 * i], right->items[2 * i], true, path_end))
            at = i;
        return at != UINT32_MAX &&
               take(comparing, left->items[2 * i + 1], right->items[2 * at + 1], false, path_end);
    case CAIRN_PICKLE_SET:
    case CAIRN_PICKLE_FROZENSET:
        if (place_of(comparing, frame, 1, i) != UINT32_MAX)
            return true;
        extend_number(comparing, i);
        return both_hold(left->items[i], right->items[i]) &&
               take(comparing, left->items[i], right->items[i], false, path_end);
    case CAIRN_PICKLE_PERSISTENT:
        return take(comparing, left->items[0], right->items[0], false, path_end);
    default:
        extend_number(comparing, i);
        return take(comparing, left->items[i], right->items[i], false, path_end);
    }
}

cairn_err
cairn_pickle_compare(const struct cairn_pickle *tree, const struct cairn_pickle_node *left,
                     const struct cairn_pickle_node *right, bool bits, char *path,
                     size_t path_bytes, bool *same)
{
    struct comparing comparing = {.bits = bits, .path = path, .path_bytes = path_bytes};
    cairn_err err = CAIRN_NOMEM;

    path[0] = '\0';
    comparing.frames = malloc(FRAMES_MAX * sizeof(*comparing.frames));
    comparing.seen = calloc((size_t)tree->node_count + 1, sizeof(*comparing.seen));
    if (comparing.frames && comparing.seen) {
        err = CAIRN_OK;
        *same = take(&comparing, left, right, false, 0);
        while (*same && comparing.depth > 0) {
            bool ended = false;

            *same = step(&comparing, &ended) && comparing.steps++ < STEPS_MAX;
            if (ended && *same) {
                comparing.path_end = comparing.frames[--comparing.depth].path_end;
                comparing.path[comparing.path_end] = '\0';
            }
        }
    }
    free(comparing.frames);
    free(comparing.seen);
    return err;
}
