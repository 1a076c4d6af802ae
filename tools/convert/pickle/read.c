/*
 * tools/convert/pickle/read.c - the opcodes of pickle, protocols 0 to 5: one table says for each
 * byte its name, its operands, and what it does or why it is refused. Calls, the memo and the stack
 * stand here, plain values in pickle/values.c.
 */
#include "tools/convert/pickle/read.h"

#include "tools/convert/pickle/machine.h"
#include "tools/convert/pickle/values.h"

enum { PROTOCOL_MAX = 5, MEMO_DIGITS_MAX = 10 };

/* ---- globals, calls, persistent ids ---- */

static void
push_global(struct cairn_pickle_machine *vm, const uint8_t *module, size_t module_bytes,
            const uint8_t *name, size_t name_bytes)
{
    struct cairn_pickle_node *node;

    if (vm->why)
        return;
    node = cairn_pickle_global_of(vm->pickle, module, module_bytes, name, name_bytes);
    if (vm->pickle->err == CAIRN_INVAL) {
        cairn_pickle_machine_fail(vm, "a module or name that cannot be one");
        return;
    }
    if (node)
        node->memoized = false;
    cairn_pickle_machine_push(vm, node);
}

static void
op_global(struct cairn_pickle_machine *vm)
{
    size_t module_bytes, name_bytes;
    const uint8_t *module = cairn_pickle_machine_line(vm, &module_bytes);
    const uint8_t *name = cairn_pickle_machine_line(vm, &name_bytes);

    push_global(vm, module, module_bytes, name, name_bytes);
}

static void
op_stack_global(struct cairn_pickle_machine *vm)
{
    struct cairn_pickle_node *name = cairn_pickle_machine_pop(vm);
    struct cairn_pickle_node *module = cairn_pickle_machine_pop(vm);

    if (vm->why)
        return;
    if (name->kind != CAIRN_PICKLE_TEXT || module->kind != CAIRN_PICKLE_TEXT)
        cairn_pickle_machine_fail(vm, "the module and the name are not strings");
    else
        push_global(vm, module->bytes, module->count, name->bytes, name->count);
}

static void
push_call(struct cairn_pickle_machine *vm, struct cairn_pickle_node *callable,
          struct cairn_pickle_node *args, struct cairn_pickle_node *kwargs)
{
    struct cairn_pickle_node *node;

    if (vm->why)
        return;
    if (args->kind != CAIRN_PICKLE_TUPLE || (kwargs && kwargs->kind != CAIRN_PICKLE_DICT)) {
        cairn_pickle_machine_fail(vm, "the arguments of a call are not a tuple (or not a dict)");
        return;
    }
    node = cairn_pickle_object(vm->pickle, vm->kind, callable, args);
    if (node) {
        node->memoized = false;
        node->object->kwargs = kwargs;
        if (kwargs && kwargs->depth >= node->depth)
            node->depth = (uint16_t)(kwargs->depth + 1);
    }
    cairn_pickle_machine_push(vm, node);
}

static void
op_call(struct cairn_pickle_machine *vm)
{
    struct cairn_pickle_node *kwargs =
        vm->kind == CAIRN_PICKLE_NEWOBJ_EX ? cairn_pickle_machine_pop(vm) : NULL;
    struct cairn_pickle_node *args = cairn_pickle_machine_pop(vm);
    struct cairn_pickle_node *callable = cairn_pickle_machine_pop(vm);

    push_call(vm, callable, args, kwargs);
}

/* INST names the class as text, OBJ has it below the arguments: both call it. */
static void
op_instance(struct cairn_pickle_machine *vm)
{
    size_t count;
    struct cairn_pickle_node **items;
    struct cairn_pickle_node *callable, *args;

    if (vm->count == 1) {
        op_global(vm);
        callable = cairn_pickle_machine_pop(vm);
        items = cairn_pickle_machine_pop_mark(vm, &count);
    } else {
        items = cairn_pickle_machine_pop_mark(vm, &count);
        if (count == 0)
            cairn_pickle_machine_fail(vm, "the class of the object is missing");
        if (vm->why)
            return;
        callable = *items++;
        count--;
    }
    if (vm->why)
        return;
    args = cairn_pickle_sequence(vm->pickle, CAIRN_PICKLE_TUPLE, items, count);
    if (!args)
        cairn_pickle_machine_push(vm, NULL); /* says that memory ran out */
    push_call(vm, callable, args, NULL);
}

static void
op_build(struct cairn_pickle_machine *vm)
{
    struct cairn_pickle_node *state = cairn_pickle_machine_pop(vm);
    struct cairn_pickle_node **target = cairn_pickle_machine_top(vm, 1);

    if (vm->why)
        return;
    if ((*target)->kind != CAIRN_PICKLE_OBJECT)
        cairn_pickle_machine_fail(vm, "only an object can be given a state");
    else if ((*target)->object->state)
        cairn_pickle_machine_fail(vm, "the object has been given a state before");
    else
        cairn_pickle_build(vm->pickle, *target, state);
}

static void
push_persistent(struct cairn_pickle_machine *vm, struct cairn_pickle_node *id)
{
    if (!vm->why)
        cairn_pickle_machine_push(vm, cairn_pickle_persistent(vm->pickle, id));
}

static void
op_persid(struct cairn_pickle_machine *vm)
{
    size_t line_bytes;
    const uint8_t *line = cairn_pickle_machine_line(vm, &line_bytes);

    push_persistent(vm, cairn_pickle_borrow(vm->pickle, CAIRN_PICKLE_TEXT, line, line_bytes));
}

static void
op_binpersid(struct cairn_pickle_machine *vm)
{
    push_persistent(vm, cairn_pickle_machine_pop(vm));
}

/* ---- the stack and the memo ---- */

static void
op_stop(struct cairn_pickle_machine *vm)
{
    if (vm->stack_count != 1 || vm->mark_count != 0)
        cairn_pickle_machine_fail(vm, vm->stack_count == 0
                                          ? "the pickle has no value"
                                          : "the pickle has more values than its one");
    vm->stopped = true;
}

static void
op_mark(struct cairn_pickle_machine *vm)
{
    cairn_pickle_machine_mark(vm);
}

/* Python throws values away only when an object turns out to hold itself: it was made twice, and
 * the first one is then taken from the memo, behind at most two more POPs. Any other call whose
 * result is thrown away was made for its effect. */
static void
check_thrown(struct cairn_pickle_machine *vm, const struct cairn_pickle_node *node)
{
    size_t at = vm->at;

    if (node->kind != CAIRN_PICKLE_OBJECT || node->memoized)
        return;
    while (at < vm->at + 2 && at < vm->bytes_len && vm->bytes[at] == '0')
        at++;
    if (at >= vm->bytes_len)
        cairn_pickle_machine_fail_cut(vm);
    else if (vm->bytes[at] != 'h' && vm->bytes[at] != 'j' && vm->bytes[at] != 'g')
        cairn_pickle_machine_fail(vm, "it discards the result of a call");
}

static void
op_pop(struct cairn_pickle_machine *vm)
{
    struct cairn_pickle_node *node;

    if (vm->mark_count > 0 && vm->marks[vm->mark_count - 1] == vm->stack_count) {
        vm->mark_count--;
        return;
    }
    node = cairn_pickle_machine_pop(vm);
    if (node)
        check_thrown(vm, node);
}

static void
op_pop_mark(struct cairn_pickle_machine *vm)
{
    size_t count;
    struct cairn_pickle_node **items = cairn_pickle_machine_pop_mark(vm, &count);

    for (size_t i = 0; i < count; i++)
        check_thrown(vm, items[i]);
}

static void
op_dup(struct cairn_pickle_machine *vm)
{
    struct cairn_pickle_node **last = cairn_pickle_machine_top(vm, 1);

    if (!last)
        return;
    cairn_pickle_machine_share(*last);
    cairn_pickle_machine_push(vm, *last);
}

/* Of vm->count bytes, or as a line of digits where that is 0. */
static uint64_t
memo_number(struct cairn_pickle_machine *vm)
{
    size_t digits;
    const uint8_t *line;
    uint64_t number = 0;

    if (vm->count > 0)
        return cairn_pickle_machine_number(vm, vm->count);
    line = cairn_pickle_machine_line(vm, &digits);
    if (digits == 0 || digits > MEMO_DIGITS_MAX)
        cairn_pickle_machine_fail(vm, "this is not a memo number");
    for (size_t i = 0; i < digits && !vm->why; i++) {
        if (line[i] < '0' || line[i] > '9')
            cairn_pickle_machine_fail(vm, "this is not a memo number");
        number = number * 10 + (line[i] & 15u);
    }
    return number;
}

static void
op_put(struct cairn_pickle_machine *vm)
{
    cairn_pickle_machine_put(vm, memo_number(vm));
}

static void
op_memoize(struct cairn_pickle_machine *vm)
{
    cairn_pickle_machine_put(vm, vm->memo_count);
}

static void
op_get(struct cairn_pickle_machine *vm)
{
    uint64_t number = memo_number(vm);

    if (!vm->why)
        cairn_pickle_machine_get(vm, number);
}

static void
op_proto(struct cairn_pickle_machine *vm)
{
    if (cairn_pickle_machine_number(vm, 1) > PROTOCOL_MAX)
        cairn_pickle_machine_fail(vm, "a protocol later than 5");
}

/* A frame only says how much could be read ahead. */
static void
op_frame(struct cairn_pickle_machine *vm)
{
    uint64_t bytes = cairn_pickle_machine_number(vm, 8);

    if (bytes > vm->bytes_len - vm->at)
        cairn_pickle_machine_fail_cut(vm);
}

/* ---- the table ---- */

struct opcode {
    const char *name;
    void (*run)(struct cairn_pickle_machine *vm); /* NULL: refused */
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
    ['F'] = {"FLOAT", cairn_pickle_op_line, 0, CAIRN_PICKLE_LINE_FLOAT, NULL},
    ['I'] = {"INT", cairn_pickle_op_line, 0, CAIRN_PICKLE_LINE_INT, NULL},
    ['J'] = {"BININT", cairn_pickle_op_binint, 0, 4, NULL},
    ['K'] = {"BININT1", cairn_pickle_op_binint, 0, 1, NULL},
    ['L'] = {"LONG", cairn_pickle_op_line, 0, CAIRN_PICKLE_LINE_LONG, NULL},
    ['M'] = {"BININT2", cairn_pickle_op_binint, 0, 2, NULL},
    ['N'] = {"NONE", cairn_pickle_op_none, 0, 0, NULL},
    ['P'] = {"PERSID", op_persid, 0, 0, NULL},
    ['Q'] = {"BINPERSID", op_binpersid, 0, 0, NULL},
    ['R'] = {"REDUCE", op_call, CAIRN_PICKLE_REDUCE, 0, NULL},
    ['S'] = {"STRING", cairn_pickle_op_line, 0, CAIRN_PICKLE_LINE_STRING, NULL},
    ['T'] = {"BINSTRING", cairn_pickle_op_bytes, CAIRN_PICKLE_TEXT8, 4, NULL},
    ['U'] = {"SHORT_BINSTRING", cairn_pickle_op_bytes, CAIRN_PICKLE_TEXT8, 1, NULL},
    ['V'] = {"UNICODE", cairn_pickle_op_line, 0, CAIRN_PICKLE_LINE_UNICODE, NULL},
    ['X'] = {"BINUNICODE", cairn_pickle_op_bytes, CAIRN_PICKLE_TEXT, 4, NULL},
    ['a'] = {"APPEND", cairn_pickle_op_append, CAIRN_PICKLE_LIST, 0, NULL},
    ['b'] = {"BUILD", op_build, 0, 0, NULL},
    ['c'] = {"GLOBAL", op_global, 0, 0, NULL},
    ['d'] = {"DICT", cairn_pickle_op_dict, CAIRN_PICKLE_DICT, 0, NULL},
    ['}'] = {"EMPTY_DICT", cairn_pickle_op_dict, 0, 0, NULL},
    ['e'] = {"APPENDS", cairn_pickle_op_appends, CAIRN_PICKLE_LIST, 0, NULL},
    ['g'] = {"GET", op_get, 0, 0, NULL},
    ['h'] = {"BINGET", op_get, 0, 1, NULL},
    ['i'] = {"INST", op_instance, CAIRN_PICKLE_REDUCE, 1, NULL},
    ['j'] = {"LONG_BINGET", op_get, 0, 4, NULL},
    ['l'] = {"LIST", cairn_pickle_op_marked_sequence, CAIRN_PICKLE_LIST, 0, NULL},
    [']'] = {"EMPTY_LIST", cairn_pickle_op_sequence, CAIRN_PICKLE_LIST, 0, NULL},
    ['o'] = {"OBJ", op_instance, CAIRN_PICKLE_REDUCE, 0, NULL},
    ['p'] = {"PUT", op_put, 0, 0, NULL},
    ['q'] = {"BINPUT", op_put, 0, 1, NULL},
    ['r'] = {"LONG_BINPUT", op_put, 0, 4, NULL},
    ['s'] = {"SETITEM", cairn_pickle_op_setitem, 0, 0, NULL},
    ['t'] = {"TUPLE", cairn_pickle_op_marked_sequence, CAIRN_PICKLE_TUPLE, 0, NULL},
    [')'] = {"EMPTY_TUPLE", cairn_pickle_op_sequence, CAIRN_PICKLE_TUPLE, 0, NULL},
    ['u'] = {"SETITEMS", cairn_pickle_op_setitems, 0, 0, NULL},
    ['G'] = {"BINFLOAT", cairn_pickle_op_binfloat, 0, 0, NULL},
    ['B'] = {"BINBYTES", cairn_pickle_op_bytes, CAIRN_PICKLE_BYTES, 4, NULL},
    ['C'] = {"SHORT_BINBYTES", cairn_pickle_op_bytes, CAIRN_PICKLE_BYTES, 1, NULL},
    [0x80] = {"PROTO", op_proto, 0, 0, NULL},
    [0x81] = {"NEWOBJ", op_call, CAIRN_PICKLE_NEWOBJ, 0, NULL},
    [0x82] = {"EXT1", NULL, 0, 0, registry},
    [0x83] = {"EXT2", NULL, 0, 0, registry},
    [0x84] = {"EXT4", NULL, 0, 0, registry},
    [0x85] = {"TUPLE1", cairn_pickle_op_sequence, CAIRN_PICKLE_TUPLE, 1, NULL},
    [0x86] = {"TUPLE2", cairn_pickle_op_sequence, CAIRN_PICKLE_TUPLE, 2, NULL},
    [0x87] = {"TUPLE3", cairn_pickle_op_sequence, CAIRN_PICKLE_TUPLE, 3, NULL},
    [0x88] = {"NEWTRUE", cairn_pickle_op_bool, 0, 1, NULL},
    [0x89] = {"NEWFALSE", cairn_pickle_op_bool, 0, 0, NULL},
    [0x8a] = {"LONG1", cairn_pickle_op_binlong, 0, 1, NULL},
    [0x8b] = {"LONG4", cairn_pickle_op_binlong, 0, 4, NULL},
    [0x8c] = {"SHORT_BINUNICODE", cairn_pickle_op_bytes, CAIRN_PICKLE_TEXT, 1, NULL},
    [0x8d] = {"BINUNICODE8", cairn_pickle_op_bytes, CAIRN_PICKLE_TEXT, 8, NULL},
    [0x8e] = {"BINBYTES8", cairn_pickle_op_bytes, CAIRN_PICKLE_BYTES, 8, NULL},
    [0x8f] = {"EMPTY_SET", cairn_pickle_op_sequence, CAIRN_PICKLE_SET, 0, NULL},
    [0x90] = {"ADDITEMS", cairn_pickle_op_appends, CAIRN_PICKLE_SET, 0, NULL},
    [0x91] = {"FROZENSET", cairn_pickle_op_marked_sequence, CAIRN_PICKLE_FROZENSET, 0, NULL},
    [0x92] = {"NEWOBJ_EX", op_call, CAIRN_PICKLE_NEWOBJ_EX, 0, NULL},
    [0x93] = {"STACK_GLOBAL", op_stack_global, 0, 0, NULL},
    [0x94] = {"MEMOIZE", op_memoize, 0, 0, NULL},
    [0x95] = {"FRAME", op_frame, 0, 0, NULL},
    [0x96] = {"BYTEARRAY8", cairn_pickle_op_bytes, CAIRN_PICKLE_BYTEARRAY, 8, NULL},
    [0x97] = {"NEXT_BUFFER", NULL, 0, 0, out_of_band},
    [0x98] = {"READONLY_BUFFER", NULL, 0, 0, out_of_band},
};

/* Runs one opcode; gives its name for messages. */
static const char *
step(struct cairn_pickle_machine *vm)
{
    const uint8_t *byte = cairn_pickle_machine_take(vm, 1);
    const struct opcode *opcode = byte ? &opcodes[*byte] : NULL;

    if (!opcode)
        return "none";
    if (!opcode->name) {
        cairn_pickle_machine_fail(vm, "unknown opcode; this is not a pickle");
        return "unknown";
    }
    if (!opcode->run) {
        cairn_pickle_machine_fail(vm, opcode->refusal);
        return opcode->name;
    }
    vm->kind = opcode->kind;
    vm->count = opcode->count;
    opcode->run(vm);
    if (vm->pickle->err != CAIRN_OK)
        cairn_pickle_machine_push(vm, NULL); /* says that memory ran out, if nothing else was
                                              * wrong */
    return opcode->name;
}

cairn_err
cairn_pickle_read_start(struct cairn_pickle *pickle, const char *where, const void *bytes,
                        size_t bytes_len, bool complete, struct cairn_pickle_node **root,
                        size_t *taken_bytes, struct cairn_complaint *complaint)
{
    struct cairn_pickle_machine vm = {.pickle = pickle, .bytes = bytes, .bytes_len = bytes_len};
    cairn_err err = CAIRN_OK;

    if (vm.bytes_len > CAIRN_PICKLE_BYTES_MAX) {
        vm.bytes_len = CAIRN_PICKLE_BYTES_MAX;
        complete = true;
    }
    cairn_pickle_machine_init(&vm);
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
    cairn_pickle_machine_fini(&vm);
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
