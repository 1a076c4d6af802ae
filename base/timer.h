/*
 * base/timer.h - a timer, and the heap of timers by deadline.
 *
 * A timer lives in its owner's struct, so starting one never allocates and never fails. It is
 * started and stopped through base/loop.h. The heap is a pairing heap threaded through the timers
 * (Fredman, Sedgewick, Sleator, Tarjan: The pairing heap, 1986): insert and merge are O(1), remove
 * is O(log n) amortised, nothing recurses.
 */
#ifndef CAIRN_BASE_TIMER_H
#define CAIRN_BASE_TIMER_H

#include <stdbool.h>
#include <stdint.h>

/* Stopped when zeroed. Must be stopped before its memory goes. The fields are the loop's own. */
struct cairn_timer {
    void (*fn)(void *context);
    void *context;
    uint64_t deadline_ns;
    uint64_t order; /* of starts: equal deadlines fire first come, first served; 0: stopped */
    struct cairn_timer *child, *next, *prev; /* prev: left sibling, or parent of a first child */
};

/* Ordered by (deadline, order). Empty when zeroed. */
struct cairn_timer_heap {
    struct cairn_timer *root; /* the next to fire, NULL when empty */
};

/* Sets a timer's callback. The timer is stopped. */
void cairn_timer_init(struct cairn_timer *timer, void (*fn)(void *context), void *context);

bool cairn_timer_started(const struct cairn_timer *timer);

/* Adds a timer that is in no heap, with its deadline and order set. */
void cairn_timer_heap_insert(struct cairn_timer_heap *heap, struct cairn_timer *timer);

/* Takes a timer out of the heap that it is in. */
void cairn_timer_heap_remove(struct cairn_timer_heap *heap, struct cairn_timer *timer);

/* Moves all timers of `from` into `heap`. */
void cairn_timer_heap_merge(struct cairn_timer_heap *heap, struct cairn_timer_heap *from);

#endif
