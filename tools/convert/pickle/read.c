/*
 * tools/convert/pickle/read.c - a machine that runs pickles of protocols 0 to 5: its stack, memo
 * and input; the opcodes; and one table that says for each byte its name, its operands, and what it
 * does or why it is refused. Lines of text are read in pickle/values.c.
 *
 * Bounds: the stack and the memo hold no more entries than the input has bytes, open marks no more
 * than CAIRN_PICKLE_DEPTH_MAX, nodes are the arena's to count. What stands below the innermost mark
 * cannot be reached until that mark is closed.
 */
#include "tools/convert/pickle/read.h"

#include <stdlib.h>
#include <string.h>

#include "base/wire.h"
#include "tools/convert/pickle/values.h"

enum {
    PROTOCOL_MAX = 5,
    MEMO_DIGITS_MAX = 10,
    LINE_BYTES_MAX = 1 << 20,
    ROOM_MIN = 256,
    SMALL_INTS = 256
};

struct machine {
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
    struct cairn_pickle_node *none, *truths[2], *empty, *small[SMALL_INTS];
    unsigned kind, count; /* operands of the opcode at hand, from its row of the table */
    const char *why;      /* the first thing that was wrong; after it nothing here means anything */
    bool exhausted;       /* why is a lack of memory */
    bool cut;             /* why is that the input ends too early */
    bool stopped;
};

/* ---- the machine ---- */

static const char too_deep[] = "it is nested more than 1000 deep";

/* Keeps the first reason; static text. */
static void
fail(struct machine *vm, const char *why)
{
    if (!vm->why)
        vm->why = why;
}

/* Fails because the input ends too early. */
static void
fail_cut(struct machine *vm)
{
    if (!vm->why)
        vm->cut = true;
    fail(vm, "the pickle is truncated here");
}

static void
fail_memory(struct machine *vm)
{
    if (!vm->why)
        vm->exhausted = true;
    fail(vm, "it needs more memory than there is for it");
}

/* The next bytes of the input; NULL, and failed, where fewer are left. */
static const uint8_t *
take(struct machine *vm, uint64_t bytes)
{
    const uint8_t *at = vm->bytes + vm->at;

    if (bytes > vm->bytes_len - vm->at) {
        fail_cut(vm);
        return NULL;
    }
    vm->at += (size_t)bytes;
    return at;
}

/* An unsigned little-endian number of 1 to 8 bytes. */
static uint64_t
take_number(struct machine *vm, size_t bytes)
{
    const uint8_t *at = take(vm, bytes);

    return at ? cairn_little_get(at, bytes) : 0;
}

/* Up to the next newline, which is taken too; never NULL. */
static const uint8_t *
take_line(struct machine *vm, size_t *line_bytes)
{
    size_t left = vm->bytes_len - vm->at;
    const uint8_t *line = vm->bytes + vm->at;
    const uint8_t *end = memchr(line, '\n', left < LINE_BYTES_MAX ? left : LINE_BYTES_MAX);

    *line_bytes = 0;
    if (!end) {
        if (left < LINE_BYTES_MAX)
            fail_cut(vm);
        fail(vm, "a line of more than 1 MiB");
        return line;
    }
    *line_bytes = (size_t)(end - line);
    vm->at += *line_bytes + 1;
    return line;
}

/* Room for entries[needed]; what is new is NULL. */
static bool
widen(struct cairn_pickle_node ***entries, size_t *room, size_t needed)
{
    size_t wider = *room < ROOM_MIN ? ROOM_MIN : *room;
    struct cairn_pickle_node **grown;

    if (needed < *room)
        return true;
    while (wider <= needed)
        wider *= 2;
    grown = realloc(*entries, wider * sizeof(struct cairn_pickle_node *));
    if (!grown)
        return false;
    memset(grown + *room, 0, (wider - *room) * sizeof(struct cairn_pickle_node *));
    *entries = grown;
    *room = wider;
    return true;
}

/* NULL counts as out of memory. */
static void
push(struct machine *vm, struct cairn_pickle_node *node)
{
    if (!node || !widen(&vm->stack, &vm->stack_room, vm->stack_count)) {
        fail_memory(vm);
        return;
    }
    if (node->depth > CAIRN_PICKLE_DEPTH_MAX)
        fail(vm, too_deep);
    vm->stack[vm->stack_count++] = node;
}

/* The last `count` values above the mark; NULL, and failed, where there are fewer. */
static struct cairn_pickle_node **
top(struct machine *vm, size_t count)
{
    size_t floor = vm->mark_count > 0 ? vm->marks[vm->mark_count - 1] : 0;

    if (vm->stack_count - floor < count) {
        fail(vm, "it needs more values than there are on the stack");
        return NULL;
    }
    return vm->stack + vm->stack_count - count;
}

/* Takes the last value off; NULL, and failed, where there is none. */
static struct cairn_pickle_node *
pop(struct machine *vm)
{
    struct cairn_pickle_node **last = top(vm, 1);

    if (!last)
        return NULL;
    vm->stack_count--;
    return *last;
}

/* Closes the innermost mark and takes all above it off; they stay readable until the next push. */
static struct cairn_pickle_node **
pop_mark(struct machine *vm, size_t *count)
{
    *count = 0;
    if (vm->mark_count == 0) {
        fail(vm, "there is no mark before it");
        return NULL;
    }
    vm->mark_count--;
    *count = vm->stack_count - vm->marks[vm->mark_count];
    vm->stack_count = vm->marks[vm->mark_count];
    return vm->stack + vm->stack_count;
}

/* Marks a value as used more than once; None, booleans, integers and () need no number for it. */
static void
share(struct cairn_pickle_node *node)
{
    bool empty = node->kind == CAIRN_PICKLE_TUPLE && node->count == 0;

    if (node->kind != CAIRN_PICKLE_NONE && node->kind != CAIRN_PICKLE_BOOL &&
        node->kind != CAIRN_PICKLE_INT && !empty)
        node->memoized = true;
}

/* Numbers the last value. */
static void
put(struct machine *vm, uint64_t number)
{
    struct cairn_pickle_node **last = top(vm, 1);

    /* picklers count up from 0 or 1, and each number costs bytes of the input */
    if (number > vm->bytes_len)
        fail_cut(vm);
    if (vm->why)
        return;
    if (!widen(&vm->memo, &vm->memo_room, (size_t)number)) {
        fail_memory(vm);
        return;
    }
    if (!vm->memo[number])
        vm->memo_count++;
    vm->memo[number] = *last;
    share(*last);
}

/* A line that holds what vm->count says. */
static void
op_line(struct machine *vm)
{
    size_t line_bytes;
    const uint8_t *line = take_line(vm, &line_bytes);
    const char *why = NULL;
    struct cairn_pickle_node *node;

    if (vm->why)
        return;
    node = cairn_pickle_read_line(vm->pickle, vm->count, line, line_bytes, &why);
    if (why) {
        fail(vm, why);
        return;
    }
    if (node)
        node->memoized = false;
    push(vm, node);
}

/* ---- scalars ---- */

static void
op_none(struct machine *vm)
{
    if (!vm->none)
        vm->none = cairn_pickle_none(vm->pickle);
    push(vm, vm->none);
}

static void
op_bool(struct machine *vm)
{
    if (!vm->truths[vm->count])
        vm->truths[vm->count] = cairn_pickle_bool(vm->pickle, vm->count == 1);
    push(vm, vm->truths[vm->count]);
}

static void
op_binint(struct machine *vm)
{
    uint64_t value = take_number(vm, vm->count);
    int64_t integer = vm->count == 4 ? (int32_t)(uint32_t)value : (int64_t)value;

    if (integer < 0 || integer >= SMALL_INTS) {
        push(vm, cairn_pickle_int(vm->pickle, integer));
        return;
    }
    if (!vm->small[integer])
        vm->small[integer] = cairn_pickle_int(vm->pickle, integer);
    push(vm, vm->small[integer]);
}

/* The length of LONG4 has a sign; a negative one is larger than any input. */
static void
op_binlong(struct machine *vm)
{
    uint64_t bytes = take_number(vm, vm->count);
    const uint8_t *value = take(vm, bytes);

    if (value)
        push(vm, cairn_pickle_big_int(vm->pickle, value, (size_t)bytes));
}

static void
op_binfloat(struct machine *vm)
{
    const uint8_t *at = take(vm, 8);
    uint64_t bits = 0;
    double real;

    for (size_t i = 0; at && i < 8; i++)
        bits = bits << 8 | at[i];
    memcpy(&real, &bits, sizeof(real));
    push(vm, cairn_pickle_float(vm->pickle, real));
}

/* A length of vm->count bytes, and as many bytes. */
static void
op_bytes(struct machine *vm)
{
    uint64_t bytes = take_number(vm, vm->count);
    const uint8_t *at = vm->why ? NULL : take(vm, bytes);
    struct cairn_pickle_node *node;

    if (!at)
        return;
    node = cairn_pickle_borrow(vm->pickle, vm->kind, at, (size_t)bytes);
    if (node)
        node->memoized = false; /* until a PUT */
    push(vm, node);
}

/* ---- containers ---- */

static void
push_sequence(struct machine *vm, struct cairn_pickle_node *const items[], size_t count)
{
    struct cairn_pickle_node *node;

    if (vm->why)
        return;
    node = cairn_pickle_sequence(vm->pickle, vm->kind, items, count);
    if (node)
        node->memoized = false;
    push(vm, node);
}

/* Of the last vm->count values. */
static void
op_sequence(struct machine *vm)
{
    struct cairn_pickle_node **items = NULL;

    if (vm->count > 0)
        items = top(vm, vm->count);
    if (vm->why)
        return;
    if (vm->count == 0 && vm->kind == CAIRN_PICKLE_TUPLE) {
        if (!vm->empty)
            vm->empty = cairn_pickle_sequence(vm->pickle, CAIRN_PICKLE_TUPLE, NULL, 0);
        push(vm, vm->empty);
        return;
    }
    vm->stack_count -= vm->count;
    push_sequence(vm, items, vm->count);
}

/* Of what is above the mark. */
static void
op_marked_sequence(struct machine *vm)
{
    size_t count;
    struct cairn_pickle_node **items = pop_mark(vm, &count);

    push_sequence(vm, items, count);
}

/* Whether the value on top may grow. The tree keeps in which order an object got items, pairs and
 * state; it cannot express another order. */
static struct cairn_pickle_node *
growing(struct machine *vm, enum cairn_pickle_kind kind)
{
    struct cairn_pickle_node **last = top(vm, 1);
    const struct cairn_pickle_object *object;

    if (vm->why)
        return NULL;
    if ((*last)->kind == kind)
        return *last;
    if ((*last)->kind != CAIRN_PICKLE_OBJECT || kind == CAIRN_PICKLE_SET) {
        fail(vm, "it adds to a value of another kind");
        return NULL;
    }
    object = (*last)->object;
    if (object->state || (kind == CAIRN_PICKLE_LIST && object->pairs)) {
        fail(vm, "it adds to an object that was complete");
        return NULL;
    }
    return *last;
}

static void
append_all(struct machine *vm, struct cairn_pickle_node *const items[], size_t count)
{
    struct cairn_pickle_node *target = vm->why ? NULL : growing(vm, vm->kind);

    cairn_pickle_reserve(vm->pickle, target, count);
    for (size_t i = 0; target && i < count; i++)
        cairn_pickle_append(vm->pickle, target, items[i]);
}

static void
put_all(struct machine *vm, struct cairn_pickle_node *target,
        struct cairn_pickle_node *const items[], size_t count)
{
    if (count % 2 != 0)
        fail(vm, "a key without a value");
    cairn_pickle_reserve(vm->pickle, target, count / 2);
    for (size_t i = 0; target && !vm->why && i < count; i += 2)
        cairn_pickle_put(vm->pickle, target, items[i], items[i + 1]);
}

static void
op_append(struct machine *vm)
{
    struct cairn_pickle_node *item = pop(vm);

    append_all(vm, &item, 1);
}

static void
op_appends(struct machine *vm)
{
    size_t count;
    struct cairn_pickle_node **items = pop_mark(vm, &count);

    append_all(vm, items, count);
}

static void
op_setitem(struct machine *vm)
{
    struct cairn_pickle_node **pair = top(vm, 2);

    if (!pair)
        return;
    vm->stack_count -= 2;
    put_all(vm, growing(vm, CAIRN_PICKLE_DICT), pair, 2);
}

static void
op_setitems(struct machine *vm)
{
    size_t count;
    struct cairn_pickle_node **items = pop_mark(vm, &count);

    put_all(vm, growing(vm, CAIRN_PICKLE_DICT), items, count);
}

static void
op_dict(struct machine *vm)
{
    size_t count = 0;
    struct cairn_pickle_node **items = NULL;
    struct cairn_pickle_node *dict = cairn_pickle_dict(vm->pickle);

    if (vm->kind == CAIRN_PICKLE_DICT)
        items = pop_mark(vm, &count);
    if (dict)
        dict->memoized = false;
    put_all(vm, dict, items, count);
    push(vm, dict);
}

/* ---- globals, calls, persistent ids ---- */

static void
push_global(struct machine *vm, const uint8_t *module, size_t module_bytes, const uint8_t *name,
            size_t name_bytes)
{
    struct cairn_pickle_node *node;

    if (vm->why)
        return;
    node = cairn_pickle_global_of(vm->pickle, module, module_bytes, name, name_bytes);
    if (vm->pickle->err == CAIRN_INVAL) {
        fail(vm, "a module or name that cannot be one");
        return;
    }
    if (node)
        node->memoized = false;
    push(vm, node);
}

static void
op_global(struct machine *vm)
{
    size_t module_bytes, name_bytes;
    const uint8_t *module = take_line(vm, &module_bytes);
    const uint8_t *name = take_line(vm, &name_bytes);

    push_global(vm, module, module_bytes, name, name_bytes);
}

static void
op_stack_global(struct machine *vm)
{
    struct cairn_pickle_node *name = pop(vm);
    struct cairn_pickle_node *module = pop(vm);

    if (vm->why)
        return;
    if (name->kind != CAIRN_PICKLE_TEXT || module->kind != CAIRN_PICKLE_TEXT)
        fail(vm, "the module and the name are not strings");
    else
        push_global(vm, module->bytes, module->count, name->bytes, name->count);
}

static void
push_call(struct machine *vm, struct cairn_pickle_node *callable, struct cairn_pickle_node *args,
          struct cairn_pickle_node *kwargs)
{
    struct cairn_pickle_node *node;

    if (vm->why)
        return;
    if (args->kind != CAIRN_PICKLE_TUPLE || (kwargs && kwargs->kind != CAIRN_PICKLE_DICT)) {
        fail(vm, "the arguments of a call are not a tuple (or not a dict)");
        return;
    }
    node = cairn_pickle_object(vm->pickle, vm->kind, callable, args);
    if (node) {
        node->memoized = false;
        node->object->kwargs = kwargs;
        if (kwargs && kwargs->depth >= node->depth)
            node->depth = (uint16_t)(kwargs->depth + 1);
    }
    push(vm, node);
}

static void
op_call(struct machine *vm)
{
    struct cairn_pickle_node *kwargs = vm->kind == CAIRN_PICKLE_NEWOBJ_EX ? pop(vm) : NULL;
    struct cairn_pickle_node *args = pop(vm);
    struct cairn_pickle_node *callable = pop(vm);

    push_call(vm, callable, args, kwargs);
}

/* INST names the class as text, OBJ has it below the arguments: both call it. */
static void
op_instance(struct machine *vm)
{
    size_t count;
    struct cairn_pickle_node **items;
    struct cairn_pickle_node *callable, *args;

    if (vm->count == 1) {
        op_global(vm);
        callable = pop(vm);
        items = pop_mark(vm, &count);
    } else {
        items = pop_mark(vm, &count);
        if (count == 0)
            fail(vm, "the class of the object is missing");
        if (vm->why)
            return;
        callable = *items++;
        count--;
    }
    if (vm->why)
        return;
    args = cairn_pickle_sequence(vm->pickle, CAIRN_PICKLE_TUPLE, items, count);
    if (!args)
        push(vm, NULL); /* says that memory ran out */
    push_call(vm, callable, args, NULL);
}

static void
op_build(struct machine *vm)
{
    struct cairn_pickle_node *state = pop(vm);
    struct cairn_pickle_node **target = top(vm, 1);

    if (vm->why)
        return;
    if ((*target)->kind != CAIRN_PICKLE_OBJECT)
        fail(vm, "only an object can be given a state");
    else if ((*target)->object->state)
        fail(vm, "the object has been given a state before");
    else
        cairn_pickle_build(vm->pickle, *target, state);
}

static void
push_persistent(struct machine *vm, struct cairn_pickle_node *id)
{
    if (!vm->why)
        push(vm, cairn_pickle_persistent(vm->pickle, id));
}

static void
op_persid(struct machine *vm)
{
    size_t line_bytes;
    const uint8_t *line = take_line(vm, &line_bytes);

    push_persistent(vm, cairn_pickle_borrow(vm->pickle, CAIRN_PICKLE_TEXT, line, line_bytes));
}

static void
op_binpersid(struct machine *vm)
{
    push_persistent(vm, pop(vm));
}

/* ---- the stack and the memo ---- */

static void
op_stop(struct machine *vm)
{
    if (vm->stack_count != 1 || vm->mark_count != 0)
        fail(vm, vm->stack_count == 0 ? "the pickle has no value"
                                      : "the pickle has more values than its one");
    vm->stopped = true;
}

static void
op_mark(struct machine *vm)
{
    if (vm->mark_count == CAIRN_PICKLE_DEPTH_MAX) {
        fail(vm, too_deep);
        return;
    }
    vm->marks[vm->mark_count++] = vm->stack_count;
}

/* Python throws values away only when an object turns out to hold itself: it was made twice, and
 * the first one is then taken from the memo, behind at most two more POPs. Any other call whose
 * result is thrown away was made for its effect. */
static void
check_thrown(struct machine *vm, const struct cairn_pickle_node *node)
{
    size_t at = vm->at;

    if (node->kind != CAIRN_PICKLE_OBJECT || node->memoized)
        return;
    while (at < vm->at + 2 && at < vm->bytes_len && vm->bytes[at] == '0')
        at++;
    if (at >= vm->bytes_len)
        fail_cut(vm);
    else if (vm->bytes[at] != 'h' && vm->bytes[at] != 'j' && vm->bytes[at] != 'g')
        fail(vm, "it discards the result of a call");
}

static void
op_pop(struct machine *vm)
{
    struct cairn_pickle_node *node;

    if (vm->mark_count > 0 && vm->marks[vm->mark_count - 1] == vm->stack_count) {
        vm->mark_count--;
        return;
    }
    node = pop(vm);
    if (node)
        check_thrown(vm, node);
}

static void
op_pop_mark(struct machine *vm)
{
    size_t count;
    struct cairn_pickle_node **items = pop_mark(vm, &count);

    for (size_t i = 0; i < count; i++)
        check_thrown(vm, items[i]);
}

static void
op_dup(struct machine *vm)
{
    struct cairn_pickle_node **last = top(vm, 1);

    if (!last)
        return;
    share(*last);
    push(vm, *last);
}

/* Of vm->count bytes, or as a line of digits where that is 0. */
static uint64_t
memo_number(struct machine *vm)
{
    size_t digits;
    const uint8_t *line;
    uint64_t number = 0;

    if (vm->count > 0)
        return take_number(vm, vm->count);
    line = take_line(vm, &digits);
    if (digits == 0 || digits > MEMO_DIGITS_MAX)
        fail(vm, "this is not a memo number");
    for (size_t i = 0; i < digits && !vm->why; i++) {
        if (line[i] < '0' || line[i] > '9')
            fail(vm, "this is not a memo number");
        number = number * 10 + (line[i] & 15u);
    }
    return number;
}

static void
op_put(struct machine *vm)
{
    put(vm, memo_number(vm));
}

static void
op_memoize(struct machine *vm)
{
    put(vm, vm->memo_count);
}

static void
op_get(struct machine *vm)
{
    uint64_t number = memo_number(vm);

    if (vm->why)
        return;
    if (number >= vm->memo_room || !vm->memo[number])
        fail(vm, "this memo number is unset");
    else
        push(vm, vm->memo[number]);
}

static void
op_proto(struct machine *vm)
{
    if (take_number(vm, 1) > PROTOCOL_MAX)
        fail(vm, "a protocol later than 5");
}

/* A frame only says how much could be read ahead. */
static void
op_frame(struct machine *vm)
{
    uint64_t bytes = take_number(vm, 8);

    if (bytes > vm->bytes_len - vm->at)
        fail_cut(vm);
}

/* ---- the table ---- */

struct opcode {
    const char *name;
    void (*run)(struct machine *vm); /* NULL: refused */
    unsigned kind, count;
    const char *refusal;
};

static const char registry[] = "it stands for a class that only its writer's registry names";
static const char out_of_band[] = "its bytes are not in the pickle";

static const struct opcode opcodes[256] = {
    ['('] = {"MARK", op_mark, 0, 0, NULL},
    ['.'] = {"STOP", op_stop, 0, 0, NULL},
    ['0'] = {"POP", op_pop, 0, 0, NULL},
    ['1'] = {"POP_MARK", op_pop_mark, 0, 0, NULL},
    ['2'] = {"DUP", op_dup, 0, 0, NULL},
    ['F'] = {"FLOAT", op_line, 0, CAIRN_PICKLE_LINE_FLOAT, NULL},
    ['I'] = {"INT", op_line, 0, CAIRN_PICKLE_LINE_INT, NULL},
    ['J'] = {"BININT", op_binint, 0, 4, NULL},
    ['K'] = {"BININT1", op_binint, 0, 1, NULL},
    ['L'] = {"LONG", op_line, 0, CAIRN_PICKLE_LINE_LONG, NULL},
    ['M'] = {"BININT2", op_binint, 0, 2, NULL},
    ['N'] = {"NONE", op_none, 0, 0, NULL},
    ['P'] = {"PERSID", op_persid, 0, 0, NULL},
    ['Q'] = {"BINPERSID", op_binpersid, 0, 0, NULL},
    ['R'] = {"REDUCE", op_call, CAIRN_PICKLE_REDUCE, 0, NULL},
    ['S'] = {"STRING", op_line, 0, CAIRN_PICKLE_LINE_STRING, NULL},
    ['T'] = {"BINSTRING", op_bytes, CAIRN_PICKLE_TEXT8, 4, NULL},
    ['U'] = {"SHORT_BINSTRING", op_bytes, CAIRN_PICKLE_TEXT8, 1, NULL},
    ['V'] = {"UNICODE", op_line, 0, CAIRN_PICKLE_LINE_UNICODE, NULL},
    ['X'] = {"BINUNICODE", op_bytes, CAIRN_PICKLE_TEXT, 4, NULL},
    ['a'] = {"APPEND", op_append, CAIRN_PICKLE_LIST, 0, NULL},
    ['b'] = {"BUILD", op_build, 0, 0, NULL},
    ['c'] = {"GLOBAL", op_global, 0, 0, NULL},
    ['d'] = {"DICT", op_dict, CAIRN_PICKLE_DICT, 0, NULL},
    ['}'] = {"EMPTY_DICT", op_dict, 0, 0, NULL},
    ['e'] = {"APPENDS", op_appends, CAIRN_PICKLE_LIST, 0, NULL},
    ['g'] = {"GET", op_get, 0, 0, NULL},
    ['h'] = {"BINGET", op_get, 0, 1, NULL},
    ['i'] = {"INST", op_instance, CAIRN_PICKLE_REDUCE, 1, NULL},
    ['j'] = {"LONG_BINGET", op_get, 0, 4, NULL},
    ['l'] = {"LIST", op_marked_sequence, CAIRN_PICKLE_LIST, 0, NULL},
    [']'] = {"EMPTY_LIST", op_sequence, CAIRN_PICKLE_LIST, 0, NULL},
    ['o'] = {"OBJ", op_instance, CAIRN_PICKLE_REDUCE, 0, NULL},
    ['p'] = {"PUT", op_put, 0, 0, NULL},
    ['q'] = {"BINPUT", op_put, 0, 1, NULL},
    ['r'] = {"LONG_BINPUT", op_put, 0, 4, NULL},
    ['s'] = {"SETITEM", op_setitem, 0, 0, NULL},
    ['t'] = {"TUPLE", op_marked_sequence, CAIRN_PICKLE_TUPLE, 0, NULL},
    [')'] = {"EMPTY_TUPLE", op_sequence, CAIRN_PICKLE_TUPLE, 0, NULL},
    ['u'] = {"SETITEMS", op_setitems, 0, 0, NULL},
    ['G'] = {"BINFLOAT", op_binfloat, 0, 0, NULL},
    ['B'] = {"BINBYTES", op_bytes, CAIRN_PICKLE_BYTES, 4, NULL},
    ['C'] = {"SHORT_BINBYTES", op_bytes, CAIRN_PICKLE_BYTES, 1, NULL},
    [0x80] = {"PROTO", op_proto, 0, 0, NULL},
    [0x81] = {"NEWOBJ", op_call, CAIRN_PICKLE_NEWOBJ, 0, NULL},
    [0x82] = {"EXT1", NULL, 0, 0, registry},
    [0x83] = {"EXT2", NULL, 0, 0, registry},
    [0x84] = {"EXT4", NULL, 0, 0, registry},
    [0x85] = {"TUPLE1", op_sequence, CAIRN_PICKLE_TUPLE, 1, NULL},
    [0x86] = {"TUPLE2", op_sequence, CAIRN_PICKLE_TUPLE, 2, NULL},
    [0x87] = {"TUPLE3", op_sequence, CAIRN_PICKLE_TUPLE, 3, NULL},
    [0x88] = {"NEWTRUE", op_bool, 0, 1, NULL},
    [0x89] = {"NEWFALSE", op_bool, 0, 0, NULL},
    [0x8a] = {"LONG1", op_binlong, 0, 1, NULL},
    [0x8b] = {"LONG4", op_binlong, 0, 4, NULL},
    [0x8c] = {"SHORT_BINUNICODE", op_bytes, CAIRN_PICKLE_TEXT, 1, NULL},
    [0x8d] = {"BINUNICODE8", op_bytes, CAIRN_PICKLE_TEXT, 8, NULL},
    [0x8e] = {"BINBYTES8", op_bytes, CAIRN_PICKLE_BYTES, 8, NULL},
    [0x8f] = {"EMPTY_SET", op_sequence, CAIRN_PICKLE_SET, 0, NULL},
    [0x90] = {"ADDITEMS", op_appends, CAIRN_PICKLE_SET, 0, NULL},
    [0x91] = {"FROZENSET", op_marked_sequence, CAIRN_PICKLE_FROZENSET, 0, NULL},
    [0x92] = {"NEWOBJ_EX", op_call, CAIRN_PICKLE_NEWOBJ_EX, 0, NULL},
    [0x93] = {"STACK_GLOBAL", op_stack_global, 0, 0, NULL},
    [0x94] = {"MEMOIZE", op_memoize, 0, 0, NULL},
    [0x95] = {"FRAME", op_frame, 0, 0, NULL},
    [0x96] = {"BYTEARRAY8", op_bytes, CAIRN_PICKLE_BYTEARRAY, 8, NULL},
    [0x97] = {"NEXT_BUFFER", NULL, 0, 0, out_of_band},
    [0x98] = {"READONLY_BUFFER", NULL, 0, 0, out_of_band},
};

/* Runs one opcode; gives its name for messages. */
static const char *
step(struct machine *vm)
{
    const uint8_t *byte = take(vm, 1);
    const struct opcode *opcode = byte ? &opcodes[*byte] : NULL;

    if (!opcode)
        return "none";
    if (!opcode->name) {
        fail(vm, "unknown opcode; this is not a pickle");
        return "unknown";
    }
    if (!opcode->run) {
        fail(vm, opcode->refusal);
        return opcode->name;
    }
    vm->kind = opcode->kind;
    vm->count = opcode->count;
    opcode->run(vm);
    if (vm->pickle->err != CAIRN_OK)
        push(vm, NULL); /* says that memory ran out, if nothing else was
                                              * wrong */
    return opcode->name;
}

cairn_err
cairn_pickle_read_start(struct cairn_pickle *pickle, const char *where, const void *bytes,
                        size_t bytes_len, bool complete, struct cairn_pickle_node **root,
                        size_t *taken_bytes, struct cairn_complaint *complaint)
{
    struct machine vm = {.pickle = pickle, .bytes = bytes, .bytes_len = bytes_len};
    cairn_err err = CAIRN_OK;

    if (vm.bytes_len > CAIRN_PICKLE_BYTES_MAX) {
        vm.bytes_len = CAIRN_PICKLE_BYTES_MAX;
        complete = true;
    }
    if (!widen(&vm.stack, &vm.stack_room, 0))
        fail_memory(&vm);
    while (!vm.stopped && err == CAIRN_OK) {
        size_t at = vm.at;
        const char *name = vm.why ? "none" : step(&vm);

        if (!vm.why)
            continue;
        err = vm.exhausted ? CAIRN_NOMEM : CAIRN_CORRUPT;
        if (vm.cut && !complete)
            err = CAIRN_AGAIN;
        else
            (void)cairn_complain(complaint, err, "%s: byte %zu, opcode %s: %s", where, at, name,
                                 vm.why);
    }
    if (err == CAIRN_OK) {
        *root = vm.stack[0];
        *taken_bytes = vm.at;
    }
    free(vm.stack);
    free(vm.memo);
    return err;
}

cairn_err
cairn_pickle_read(struct cairn_pickle *pickle, const char *where, const void *bytes,
                  size_t bytes_len, struct cairn_pickle_node **root,
                  struct cairn_complaint *complaint)
{
    size_t taken_bytes = 0;
    cairn_err err = cairn_pickle_read_start(pickle, where, bytes, bytes_len, true, root,
                                            &taken_bytes, complaint);

    return !err && taken_bytes < bytes_len
               ? cairn_complain(complaint, CAIRN_CORRUPT,
                                "%s: %zu bytes follow the pickle; take another copy", where,
                                bytes_len - taken_bytes)
               : err;
}
