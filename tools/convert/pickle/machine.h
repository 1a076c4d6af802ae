/*
 * tools/convert/pickle/machine.h - the stack, the memo and the input of the pickle reader; for
 * pickle/machine.c and pickle/read.c alone.
 *
 * `why` is the first thing that was wrong; after it nothing that these functions give means
 * anything. Bounds: the stack and the memo hold no more entries than the input has bytes, open
 * marks no more than CAIRN_PICKLE_DEPTH_MAX, nodes are the arena's to count. What stands below the
 * innermost mark cannot be reached until that mark is closed.
 */
#ifndef CAIRN_TOOLS_CONVERT_PICKLE_MACHINE_H
#define CAIRN_TOOLS_CONVERT_PICKLE_MACHINE_H

#include "tools/convert/pickle/pickle.h"

enum { CAIRN_PICKLE_SMALL_INTS = 256 };

struct cairn_pickle_machine {
    struct cairn_pickle *pickle;
    const uint8_t *bytes;
    size_t bytes_len;
    size_t at;
    struct cairn_pickle_node **stack;
    size_t stack_count, stack_room;
    size_t marks[CAIRN_PICKLE_DEPTH_MAX]; /* how high the stack was */
    size_t mark_count;
    struct cairn_pickle_node **memo; /* NULL where no entry is */
    size_t memo_room, memo_count;
    /* one node of each value that is met often is enough */
    struct cairn_pickle_node *none, *truths[2], *empty, *small[CAIRN_PICKLE_SMALL_INTS];
    unsigned kind, count; /* operands of the opcode at hand, from its row of the table */
    const char *why;
    bool exhausted; /* why is a lack of memory */
    bool cut;       /* why is that the input ends too early */
    bool stopped;
};

/* Makes the stack of a machine that has its input and its arena, and is zeroes besides. */
void cairn_pickle_machine_init(struct cairn_pickle_machine *vm);
/* Frees what the machine itself holds: not the arena. */
void cairn_pickle_machine_fini(struct cairn_pickle_machine *vm);
/* Keeps the first reason; static text. */
void cairn_pickle_machine_fail(struct cairn_pickle_machine *vm, const char *why);

/* Fails because the input ends too early. */
void cairn_pickle_machine_fail_cut(struct cairn_pickle_machine *vm);

/* The next bytes of the input; NULL, and failed, where fewer are left. */
const uint8_t *cairn_pickle_machine_take(struct cairn_pickle_machine *vm, uint64_t bytes);
/* An unsigned little-endian number of 1 to 8 bytes. */
uint64_t cairn_pickle_machine_number(struct cairn_pickle_machine *vm, size_t bytes);
/* Up to the next newline, which is taken too; never NULL. */
const uint8_t *cairn_pickle_machine_line(struct cairn_pickle_machine *vm, size_t *line_bytes);

/* NULL counts as out of memory. */
void cairn_pickle_machine_push(struct cairn_pickle_machine *vm, struct cairn_pickle_node *node);
/* The last `count` values above the mark; NULL, and failed, where there are fewer. */
struct cairn_pickle_node **cairn_pickle_machine_top(struct cairn_pickle_machine *vm, size_t count);
/* Takes the last value off; NULL, and failed, where there is none. */
struct cairn_pickle_node *cairn_pickle_machine_pop(struct cairn_pickle_machine *vm);
void cairn_pickle_machine_mark(struct cairn_pickle_machine *vm);
/* Closes the innermost mark and takes all above it off; they stay readable until the next push. */
struct cairn_pickle_node **cairn_pickle_machine_pop_mark(struct cairn_pickle_machine *vm,
                                                         size_t *count);

/* Marks a value as used more than once; None, booleans, integers and () need no number for it. */
void cairn_pickle_machine_share(struct cairn_pickle_node *node);
/* Numbers the last value. */
void cairn_pickle_machine_put(struct cairn_pickle_machine *vm, uint64_t number);
/* Pushes the value of a number. */
void cairn_pickle_machine_get(struct cairn_pickle_machine *vm, uint64_t number);

#endif
