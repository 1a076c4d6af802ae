/* base/timer.c - the pairing heap of timers. */
#include "base/timer.h"

#include <stddef.h>

void
cairn_timer_init(struct cairn_timer *timer, void (*fn)(void *context), void *context)
{
    *timer = (struct cairn_timer){.fn = fn, .context = context};
}

bool
cairn_timer_started(const struct cairn_timer *timer)
{
    return timer->order != 0;
}

static bool
timer_before(const struct cairn_timer *a, const struct cairn_timer *b)
{
    return a->deadline_ns != b->deadline_ns ? a->deadline_ns < b->deadline_ns : a->order < b->order;
}

/* Joins two heaps (either may be NULL) whose roots have no siblings. */
static struct cairn_timer *
heap_join(struct cairn_timer *a, struct cairn_timer *b)
{
    struct cairn_timer *top, *under;

    if (!a || !b)
        return a ? a : b;
    top = timer_before(b, a) ? b : a;
    under = top == a ? b : a;
    under->prev = top;
    under->next = top->child;
    if (top->child)
        top->child->prev = under;
    top->child = under;
    return top;
}

/* Makes one heap of a list of siblings: pairs from left to right, then all pairs from the right. */
static struct cairn_timer *
heap_join_list(struct cairn_timer *first)
{
    struct cairn_timer *pairs = NULL, *root = NULL;

    while (first) {
        struct cairn_timer *a = first, *b = first->next, *pair;

        first = b ? b->next : NULL;
        a->next = a->prev = NULL;
        if (b)
            b->next = b->prev = NULL;
        pair = heap_join(a, b);
        pair->next = pairs;
        pairs = pair;
    }
    while (pairs) {
        struct cairn_timer *pair = pairs;

        pairs = pair->next;
        pair->next = NULL;
        root = heap_join(root, pair);
    }
    return root;
}

void
cairn_timer_heap_insert(struct cairn_timer_heap *heap, struct cairn_timer *timer)
{
    timer->child = timer->next = timer->prev = NULL;
    heap->root = heap_join(heap->root, timer);
}

void
cairn_timer_heap_remove(struct cairn_timer_heap *heap, struct cairn_timer *timer)
{
    struct cairn_timer *rest = heap_join_list(timer->child);

    timer->child = NULL;
    if (timer == heap->root) {
        heap->root = rest;
        return;
    }
    if (timer->prev->child == timer)
        timer->prev->child = timer->next;
    else
        timer->prev->next = timer->next;
    if (timer->next)
        timer->next->prev = timer->prev;
    timer->next = timer->prev = NULL;
    heap->root = heap_join(heap->root, rest);
}

void
cairn_timer_heap_merge(struct cairn_timer_heap *heap, struct cairn_timer_heap *from)
{
    heap->root = heap_join(heap->root, from->root);
    from->root = NULL;
}
