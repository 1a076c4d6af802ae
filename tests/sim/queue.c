/* tests/sim/queue.c - events in time order: a binary heap; events of one instant come in the order
 * in which they were due first, then of their pushing. So what waits for a paused agent reaches it
 * in order, even if it is paused again meanwhile. */
#include "tests/sim/sim.h"

#include <stdlib.h>

static bool
before(const struct sim_event *a, const struct sim_event *b)
{
    if (a->at_ns != b->at_ns)
        return a->at_ns < b->at_ns;
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

void
queue_push(struct queue *queue, const struct sim_event *event)
{
    size_t at = queue->count;

    if (queue->count == queue->room) {
        queue->room = queue->room ? queue->room * 2 : 1024;
        queue->heap = realloc(queue->heap, queue->room * sizeof *queue->heap);
        if (!queue->heap)
            abort();
    }
    queue->count++;
    queue->heap[at] = *event;
    queue->heap[at].order = queue->order++;
    if (event->due_ns == 0)
        queue->heap[at].due_ns = event->at_ns;
    while (at > 0) {
        size_t parent = (at - 1) / 2;
        struct sim_event moved = queue->heap[at];

        if (!before(&moved, &queue->heap[parent]))
            break;
        queue->heap[at] = queue->heap[parent];
        queue->heap[parent] = moved;
        at = parent;
    }
}

bool
queue_pop(struct queue *queue, struct sim_event *out)
{
    struct sim_event last;
    size_t at = 0;

    if (queue->count == 0)
        return false;
    *out = queue->heap[0];
    last = queue->heap[--queue->count];
    while (2 * at + 1 < queue->count) {
        size_t child = 2 * at + 1;

        if (child + 1 < queue->count && before(&queue->heap[child + 1], &queue->heap[child]))
            child++;
        if (!before(&queue->heap[child], &last))
            break;
        queue->heap[at] = queue->heap[child];
        at = child;
    }
    if (queue->count > 0)
        queue->heap[at] = last;
    return true;
}

void
sim_event_fini(struct sim_event *event)
{
    switch (event->kind) {
    case EVENT_ANSWER:
        if (event->as.answer) {
            free(event->as.answer->crcs);
            free(event->as.answer->bad);
        }
        free(event->as.answer);
        break;
    case EVENT_TOLD:
        free(event->as.told);
        break;
    case EVENT_LOCAL:
        if (event->as.local)
            free(event->as.local->manifest);
        free(event->as.local);
        break;
    default:
        break;
    }
}

void
queue_fini(struct queue *queue)
{
    for (size_t i = 0; i < queue->count; i++)
        sim_event_fini(&queue->heap[i]);
    free(queue->heap);
    *queue = (struct queue){0};
}
