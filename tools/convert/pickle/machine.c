/* tools/convert/pickle/machine.c - bounded stack, memo and input of the pickle reader. */
#include "tools/convert/pickle/machine.h"

#include <stdlib.h>
#include <string.h>

#include "base/wire.h"

enum { LINE_BYTES_MAX = 1 << 20, ROOM_MIN = 256 };

static const char too_deep[] = "it is nested more than 1000 deep";

void
cairn_pickle_machine_fini(struct cairn_pickle_machine *vm)
{
    free(vm->stack);
    free(vm->memo);
}

void
cairn_pickle_machine_fail(struct cairn_pickle_machine *vm, const char *why)
{
    if (!vm->why)
        vm->why = why;
}

void
cairn_pickle_machine_fail_cut(struct cairn_pickle_machine *vm)
{
    if (!vm->why)
        vm->cut = true;
    cairn_pickle_machine_fail(vm, "the pickle is truncated here");
}

static void
fail_memory(struct cairn_pickle_machine *vm)
{
    if (!vm->why)
        vm->exhausted = true;
    cairn_pickle_machine_fail(vm, "it needs more memory than there is for it");
}

const uint8_t *
cairn_pickle_machine_take(struct cairn_pickle_machine *vm, uint64_t bytes)
{
    const uint8_t *at = vm->bytes + vm->at;

    if (bytes > vm->bytes_len - vm->at) {
        cairn_pickle_machine_fail_cut(vm);
        return NULL;
    }
    vm->at += (size_t)bytes;
    return at;
}

uint64_t
cairn_pickle_machine_number(struct cairn_pickle_machine *vm, size_t bytes)
{
    const uint8_t *at = cairn_pickle_machine_take(vm, bytes);

    return at ? cairn_little_get(at, bytes) : 0;
}

const uint8_t *
cairn_pickle_machine_line(struct cairn_pickle_machine *vm, size_t *line_bytes)
{
    size_t left = vm->bytes_len - vm->at;
    const uint8_t *line = vm->bytes + vm->at;
    const uint8_t *end = memchr(line, '\n', left < LINE_BYTES_MAX ? left : LINE_BYTES_MAX);

    *line_bytes = 0;
    if (!end) {
        if (left < LINE_BYTES_MAX)
            cairn_pickle_machine_fail_cut(vm);
        cairn_pickle_machine_fail(vm, "a line of more than 1 MiB");
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

void
cairn_pickle_machine_init(struct cairn_pickle_machine *vm)
{
    if (!widen(&vm->stack, &vm->stack_room, 0))
        fail_memory(vm);
}

void
cairn_pickle_machine_push(struct cairn_pickle_machine *vm, struct cairn_pickle_node *node)
{
    if (!node || !widen(&vm->stack, &vm->stack_room, vm->stack_count)) {
        fail_memory(vm);
        return;
    }
    if (node->depth > CAIRN_PICKLE_DEPTH_MAX)
        cairn_pickle_machine_fail(vm, too_deep);
    vm->stack[vm->stack_count++] = node;
}

struct cairn_pickle_node **
cairn_pickle_machine_top(struct cairn_pickle_machine *vm, size_t count)
{
    size_t floor = vm->mark_count > 0 ? vm->marks[vm->mark_count - 1] : 0;

    if (vm->stack_count - floor < count) {
        cairn_pickle_machine_fail(vm, "it needs more values than there are on the stack");
        return NULL;
    }
    return vm->stack + vm->stack_count - count;
}

struct cairn_pickle_node *
cairn_pickle_machine_pop(struct cairn_pickle_machine *vm)
{
    struct cairn_pickle_node **last = cairn_pickle_machine_top(vm, 1);

    if (!last)
        return NULL;
    vm->stack_count--;
    return *last;
}

void
cairn_pickle_machine_mark(struct cairn_pickle_machine *vm)
{
    if (vm->mark_count == CAIRN_PICKLE_DEPTH_MAX) {
        cairn_pickle_machine_fail(vm, too_deep);
        return;
    }
    vm->marks[vm->mark_count++] = vm->stack_count;
}

struct cairn_pickle_node **
cairn_pickle_machine_pop_mark(struct cairn_pickle_machine *vm, size_t *count)
{
    *count = 0;
    if (vm->mark_count == 0) {
        cairn_pickle_machine_fail(vm, "there is no mark before it");
        return NULL;
    }
    vm->mark_count--;
    *count = vm->stack_count - vm->marks[vm->mark_count];
    vm->stack_count = vm->marks[vm->mark_count];
    return vm->stack + vm->stack_count;
}

void
cairn_pickle_machine_share(struct cairn_pickle_node *node)
{
    bool empty = node->kind == CAIRN_PICKLE_TUPLE && node->count == 0;

    if (node->kind != CAIRN_PICKLE_NONE && node->kind != CAIRN_PICKLE_BOOL &&
        node->kind != CAIRN_PICKLE_INT && !empty)
        node->memoized = true;
}

void
cairn_pickle_machine_put(struct cairn_pickle_machine *vm, uint64_t number)
{
    struct cairn_pickle_node **last = cairn_pickle_machine_top(vm, 1);

    /* picklers count up from 0 or 1, and each number costs bytes of the input */
    if (number > vm->bytes_len)
        cairn_pickle_machine_fail_cut(vm);
    if (vm->why)
        return;
    if (!widen(&vm->memo, &vm->memo_room, (size_t)number)) {
        fail_memory(vm);
        return;
    }
    if (!vm->memo[number])
        vm->memo_count++;
    vm->memo[number] = *last;
    cairn_pickle_machine_share(*last);
}

void
cairn_pickle_machine_get(struct cairn_pickle_machine *vm, uint64_t number)
{
    if (number >= vm->memo_room || !vm->memo[number])
        cairn_pickle_machine_fail(vm, "this memo number is unset");
    else
        cairn_pickle_machine_push(vm, vm->memo[number]);
}
