/* tools/convert/pickle/values.c - the opcodes of pickle that make plain values and containers. */
#include "tools/convert/pickle/values.h"

#include <string.h>

/* ---- scalars ---- */

void
cairn_pickle_op_none(struct cairn_pickle_machine *vm)
{
    if (!vm->none)
        vm->none = cairn_pickle_none(vm->pickle);
    cairn_pickle_machine_push(vm, vm->none);
}

void
cairn_pickle_op_bool(struct cairn_pickle_machine *vm)
{
    if (!vm->truths[vm->count])
        vm->truths[vm->count] = cairn_pickle_bool(vm->pickle, vm->count == 1);
    cairn_pickle_machine_push(vm, vm->truths[vm->count]);
}

void
cairn_pickle_op_binint(struct cairn_pickle_machine *vm)
{
    uint64_t value = cairn_pickle_machine_number(vm, vm->count);
    int64_t integer = vm->count == 4 ? (int32_t)(uint32_t)value : (int64_t)value;

    if (integer < 0 || integer >= CAIRN_PICKLE_SMALL_INTS) {
        cairn_pickle_machine_push(vm, cairn_pickle_int(vm->pickle, integer));
        return;
    }
    if (!vm->small[integer])
        vm->small[integer] = cairn_pickle_int(vm->pickle, integer);
    cairn_pickle_machine_push(vm, vm->small[integer]);
}

/* The length of LONG4 has a sign; a negative one is larger than any input. */
void
cairn_pickle_op_binlong(struct cairn_pickle_machine *vm)
{
    uint64_t bytes = cairn_pickle_machine_number(vm, vm->count);
    const uint8_t *value = cairn_pickle_machine_take(vm, bytes);

    if (value)
        cairn_pickle_machine_push(vm, cairn_pickle_big_int(vm->pickle, value, (size_t)bytes));
}

void
cairn_pickle_op_binfloat(struct cairn_pickle_machine *vm)
{
    const uint8_t *at = cairn_pickle_machine_take(vm, 8);
    uint64_t bits = 0;
    double real;

    for (size_t i = 0; at && i < 8; i++)
        bits = bits << 8 | at[i];
    memcpy(&real, &bits, sizeof(real));
    cairn_pickle_machine_push(vm, cairn_pickle_float(vm->pickle, real));
}

/* A length of vm->count bytes, and as many bytes. */
void
cairn_pickle_op_bytes(struct cairn_pickle_machine *vm)
{
    uint64_t bytes = cairn_pickle_machine_number(vm, vm->count);
    const uint8_t *at = vm->why ? NULL : cairn_pickle_machine_take(vm, bytes);
    struct cairn_pickle_node *node;

    if (!at)
        return;
    node = cairn_pickle_borrow(vm->pickle, vm->kind, at, (size_t)bytes);
    if (node)
        node->memoized = false; /* until a PUT */
    cairn_pickle_machine_push(vm, node);
}

/* ---- containers ---- */

static void
push_sequence(struct cairn_pickle_machine *vm, struct cairn_pickle_node *const items[],
              size_t count)
{
    struct cairn_pickle_node *node;

    if (vm->why)
        return;
    node = cairn_pickle_sequence(vm->pickle, vm->kind, items, count);
    if (node)
        node->memoized = false;
    cairn_pickle_machine_push(vm, node);
}

/* Of the last vm->count values. */
void
cairn_pickle_op_sequence(struct cairn_pickle_machine *vm)
{
    struct cairn_pickle_node **items = NULL;

    if (vm->count > 0)
        items = cairn_pickle_machine_top(vm, vm->count);
    if (vm->why)
        return;
    if (vm->count == 0 && vm->kind == CAIRN_PICKLE_TUPLE) {
        if (!vm->empty)
            vm->empty = cairn_pickle_sequence(vm->pickle, CAIRN_PICKLE_TUPLE, NULL, 0);
        cairn_pickle_machine_push(vm, vm->empty);
        return;
    }
    vm->stack_count -= vm->count;
    push_sequence(vm, items, vm->count);
}

/* Of what is above the mark. */
void
cairn_pickle_op_marked_sequence(struct cairn_pickle_machine *vm)
{
    size_t count;
    struct cairn_pickle_node **items = cairn_pickle_machine_pop_mark(vm, &count);

    push_sequence(vm, items, count);
}

/*
 * Whether the value on top may grow. The tree says in which order an object was given items, pairs
 * and state; another order would mean something else and cannot be expressed.
 */
static struct cairn_pickle_node *
growing(struct cairn_pickle_machine *vm, enum cairn_pickle_kind kind)
{
    struct cairn_pickle_node **last = cairn_pickle_machine_top(vm, 1);
    const struct cairn_pickle_object *object;

    if (vm->why)
        return NULL;
    if ((*last)->kind == kind)
        return *last;
    if ((*last)->kind != CAIRN_PICKLE_OBJECT || kind == CAIRN_PICKLE_SET) {
        cairn_pickle_machine_fail(vm, "it adds to a value of another kind");
        return NULL;
    }
    object = (*last)->object;
    if (object->state || (kind == CAIRN_PICKLE_LIST && object->pairs)) {
        cairn_pickle_machine_fail(vm, "it adds to an object that was complete");
        return NULL;
    }
    return *last;
}

static void
append_all(struct cairn_pickle_machine *vm, struct cairn_pickle_node *const items[], size_t count)
{
    struct cairn_pickle_node *target = vm->why ? NULL : growing(vm, vm->kind);

    cairn_pickle_reserve(vm->pickle, target, count);
    for (size_t i = 0; target && i < count; i++)
        cairn_pickle_append(vm->pickle, target, items[i]);
}

static void
put_all(struct cairn_pickle_machine *vm, struct cairn_pickle_node *target,
        struct cairn_pickle_node *const items[], size_t count)
{
    if (count % 2 != 0)
        cairn_pickle_machine_fail(vm, "a key without a value");
    cairn_pickle_reserve(vm->pickle, target, count / 2);
    for (size_t i = 0; target && !vm->why && i < count; i += 2)
        cairn_pickle_put(vm->pickle, target, items[i], items[i + 1]);
}

void
cairn_pickle_op_append(struct cairn_pickle_machine *vm)
{
    struct cairn_pickle_node *item = cairn_pickle_machine_pop(vm);

    append_all(vm, &item, 1);
}

void
cairn_pickle_op_appends(struct cairn_pickle_machine *vm)
{
    size_t count;
    struct cairn_pickle_node **items = cairn_pickle_machine_pop_mark(vm, &count);

    append_all(vm, items, count);
}

void
cairn_pickle_op_setitem(struct cairn_pickle_machine *vm)
{
    struct cairn_pickle_node **pair = cairn_pickle_machine_top(vm, 2);

    if (!pair)
        return;
    vm->stack_count -= 2;
    put_all(vm, growing(vm, CAIRN_PICKLE_DICT), pair, 2);
}

void
cairn_pickle_op_setitems(struct cairn_pickle_machine *vm)
{
    size_t count;
    struct cairn_pickle_node **items = cairn_pickle_machine_pop_mark(vm, &count);

    put_all(vm, growing(vm, CAIRN_PICKLE_DICT), items, count);
}

void
cairn_pickle_op_dict(struct cairn_pickle_machine *vm)
{
    size_t count = 0;
    struct cairn_pickle_node **items = NULL;
    struct cairn_pickle_node *dict = cairn_pickle_dict(vm->pickle);

    if (vm->kind == CAIRN_PICKLE_DICT)
        items = cairn_pickle_machine_pop_mark(vm, &count);
    if (dict)
        dict->memoized = false;
    put_all(vm, dict, items, count);
    cairn_pickle_machine_push(vm, dict);
}
