/*
 * agent/history/merge.c - merges histories; see merge.h.
 *
 * Each list is a queue. The next entry is the head with the least position; positions are made to
 * grow along each list. A head that must wait for another list's event is passed over. If all heads
 * wait, because clocks and rumors contradict each other, none does.
 */
#include "agent/history/merge.h"

#include <stdlib.h>
#include <string.h>

struct queue {
    const struct history_list *list;
    uint32_t head;
    struct cairn_generation_id at; /* the head's position, at least that of earlier events */
    uint32_t deaths_left;          /* head is a START: deaths of its earlier starts to come */
    uint32_t start_list;           /* head is a RETURN: waits for this event of … */
    uint32_t start_index;          /* … that list; UINT32_MAX: for none */
};

/* What makes two events of different nodes the same. */
struct identity {
    enum history_kind kind;
    uint64_t what[3];
};

struct merging {
    struct queue *queues;
    uint32_t queue_count;
    struct history_merge out;
    uint32_t *table; /* of entries by identity, index + 1; 0: free */
    size_t table_slots;
};

/* ---- the next head ---- */

static const struct history_event *
head_of(const struct queue *queue)
{
    return queue->head < queue->list->count ? &queue->list->events[queue->head] : NULL;
}

static uint32_t
deaths_left(const struct merging *merging, uint32_t node, uint64_t incarnation)
{
    uint32_t count = 0;

    for (uint32_t q = 0; q < merging->queue_count; q++) {
        const struct queue *queue = &merging->queues[q];

        for (uint32_t i = queue->head; queue->list->node != node && i < queue->list->count; i++)
            count += queue->list->events[i].kind == HISTORY_DEATH &&
                     queue->list->events[i].node == node &&
                     queue->list->events[i].subject < incarnation;
    }
    return count;
}

static void
find_start(const struct merging *merging, struct queue *queue, const struct history_event *back)
{
    for (uint32_t q = 0; q < merging->queue_count; q++) {
        const struct queue *other = &merging->queues[q];

        for (uint32_t i = other->head; other->list->node == back->node && i < other->list->count;
             i++)
            if (other->list->events[i].kind == HISTORY_START &&
                other->list->events[i].subject == back->subject) {
                queue->start_list = q;
                queue->start_index = i;
            }
    }
}

static void
head_changed(struct merging *merging, struct queue *queue)
{
    const struct history_event *head = head_of(queue);

    queue->deaths_left = 0;
    queue->start_index = UINT32_MAX;
    if (!head)
        return;
    if (cairn_generation_id_compare(head->at, queue->at) > 0)
        queue->at = head->at;
    if (head->kind == HISTORY_START)
        queue->deaths_left = deaths_left(merging, queue->list->node, head->subject);
    if (head->kind == HISTORY_RETURN)
        find_start(merging, queue, head);
}

static bool
waits(const struct merging *merging, const struct queue *queue)
{
    return queue->deaths_left > 0 ||
           (queue->start_index != UINT32_MAX &&
            merging->queues[queue->start_list].head <= queue->start_index);
}

/* Whether only the wall clock places the head. */
static bool
is_unplaced(const struct queue *queue)
{
    return queue->at.epoch == 0 || head_of(queue)->kind == HISTORY_START;
}

static bool
is_before(const struct queue *left, const struct queue *right)
{
    const struct history_event *a = head_of(left), *b = head_of(right);
    int order = cairn_generation_id_compare(left->at, right->at);

    if (is_unplaced(left) || is_unplaced(right) || order == 0)
        return a->wall_ns != b->wall_ns ? a->wall_ns < b->wall_ns
                                        : left->list->node < right->list->node;
    return order < 0;
}

/* Placed heads first, since only they have an order; then an earlier unplaced one. */
static struct queue *
next_of(const struct merging *merging, bool may_wait)
{
    struct queue *best = NULL;

    for (int unplaced = 0; unplaced < 2; unplaced++)
        for (uint32_t q = 0; q < merging->queue_count; q++) {
            struct queue *queue = &merging->queues[q];

            if (head_of(queue) && is_unplaced(queue) == (unplaced != 0) &&
                (may_wait || !waits(merging, queue)) && (!best || is_before(queue, best)))
                best = queue;
        }
    return best;
}

/* ---- entries ---- */

static struct identity
identity_of(const struct history_event *event)
{
    struct identity identity = {.kind = event->kind};

    switch (event->kind) {
    case HISTORY_DEATH:
    case HISTORY_RETURN:
        identity.what[0] = event->node;
        identity.what[1] = event->subject;
        break;
    case HISTORY_EPOCH:
        identity.what[0] = event->at.epoch;
        break;
    case HISTORY_VERDICT:
    case HISTORY_PLACEMENT:
        identity.what[0] = event->subject;
        identity.what[1] = event->change;
        break;
    case HISTORY_COMMIT:
        identity.what[0] = event->generation.epoch;
        identity.what[1] = event->generation.run;
        break;
    case HISTORY_TRAINING:
        identity.what[0] = event->at.epoch;
        break;
    default: /* RESUME */
        identity.what[0] = event->at.epoch;
        identity.what[1] = event->generation.epoch;
        identity.what[2] = event->generation.step;
        break;
    }
    return identity;
}

static bool
is_same(struct identity left, struct identity right)
{
    return left.kind == right.kind && memcmp(left.what, right.what, sizeof left.what) == 0;
}

static size_t
slot_of(const struct merging *merging, struct identity identity)
{
    uint64_t hash = (uint64_t)identity.kind;

    for (int i = 0; i < 3; i++)
        hash = (hash ^ identity.what[i]) * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(hash >> 32) % merging->table_slots;
}

static bool
has_seen(const struct history_entry *entry, uint32_t q)
{
    return entry->seen[q / 64] >> q % 64 & 1;
}

static void
mark_seen(struct history_entry *entry, uint32_t q)
{
    entry->seen[q / 64] |= UINT64_C(1) << q % 64;
}

static bool
is_range(enum history_kind kind)
{
    return kind == HISTORY_COMMIT || kind == HISTORY_TRAINING;
}

/* The first entry of this identity that list q has not seen; of ranges the last one. NULL: none.
 * *slot gets a new one's place. */
static struct history_entry *
find(const struct merging *merging, struct identity identity, uint32_t q, size_t *slot)
{
    struct history_entry *found = NULL;
    size_t at = slot_of(merging, identity);

    for (; merging->table[at]; at = (at + 1) % merging->table_slots) {
        struct history_entry *entry = &merging->out.entries[merging->table[at] - 1];

        if (!is_same(identity_of(&entry->event), identity))
            continue;
        if (is_range(identity.kind))
            found = entry;
        else if (!found && !has_seen(entry, q))
            found = entry;
    }
    *slot = at;
    return found;
}

static struct history_entry *
add_entry(struct merging *merging, uint32_t q, const struct history_event *event)
{
    struct history_merge *out = &merging->out;
    struct history_entry *entry = &out->entries[out->count];

    *entry = (struct history_entry){.node = merging->queues[q].list->node,
                                    .event = *event,
                                    .seen = out->seen + (size_t)out->count * out->seen_words};
    out->count++;
    mark_seen(entry, q);
    return entry;
}

/* How many of a range's generations come after a step. */
static uint64_t
count_after(const struct history_event *range, uint64_t step)
{
    double each;

    if (range->count < 2 || range->last_step <= range->generation.step)
        return 1;
    each = (double)(range->last_step - range->generation.step) / (double)(range->count - 1);
    return (uint64_t)((double)(range->last_step - step) / each + 0.5);
}

/* Adds the part of a range of commits that is beyond `told`, the newest entry of its run. */
static void
add_commits(struct merging *merging, uint32_t q, struct history_entry *told,
            const struct history_event *range, size_t slot)
{
    struct history_event rest = *range;

    if (told && range->last_step <= told->event.last_step) {
        mark_seen(told, q);
        return;
    }
    if (told && range->generation.step <= told->event.last_step) {
        rest.count = count_after(range, told->event.last_step);
        rest.took_ns = range->count ? range->took_ns / range->count * rest.count : 0;
        rest.generation.step = told->event.last_step + 1;
        if (rest.count < 2)
            rest.generation.step = range->last_step;
        rest.count += rest.count == 0;
    }
    if (told && told == &merging->out.entries[merging->out.count - 1]) {
        told->event.last_step = rest.last_step;
        told->event.count += rest.count;
        told->event.took_ns += rest.took_ns;
        if (rest.until_wall_ns > told->event.until_wall_ns)
            told->event.until_wall_ns = rest.until_wall_ns;
        mark_seen(told, q);
        return;
    }
    add_entry(merging, q, &rest);
    merging->table[slot] = merging->out.count;
}

static void
take(struct merging *merging, uint32_t q, const struct history_event *event)
{
    struct history_entry *entry;
    size_t slot;

    if (!history_kind_is_shared(event->kind)) {
        add_entry(merging, q, event);
        return;
    }
    entry = find(merging, identity_of(event), q, &slot);
    if (event->kind == HISTORY_COMMIT) {
        add_commits(merging, q, entry, event, slot);
        return;
    }
    if (entry && event->kind == HISTORY_TRAINING && event->wall_ns > entry->event.until_wall_ns)
        entry = NULL; /* another life of the job */
    if (!entry) {
        add_entry(merging, q, event);
        merging->table[slot] = merging->out.count;
        return;
    }
    mark_seen(entry, q);
    if (event->kind != HISTORY_TRAINING)
        return;
    if (event->last_step > entry->event.last_step) {
        entry->event.last_step = event->last_step;
        entry->event.count = event->last_step - entry->event.generation.step + 1;
    }
    if (event->until_wall_ns > entry->event.until_wall_ns)
        entry->event.until_wall_ns = event->until_wall_ns;
    if (event->change > entry->event.change)
        entry->event.change = event->change;
}

/* One death has been merged: counts it off for the starts that waited for it. */
static void
count_death(struct merging *merging, const struct history_event *death)
{
    for (uint32_t q = 0; q < merging->queue_count; q++) {
        struct queue *queue = &merging->queues[q];
        const struct history_event *head = head_of(queue);

        if (head && head->kind == HISTORY_START && queue->list->node == death->node &&
            death->subject < head->subject && queue->deaths_left > 0)
            queue->deaths_left--;
    }
}

cairn_err
history_merge(const struct history_list *lists, uint32_t list_count, struct history_merge *out)
{
    struct merging merging = {.queue_count = list_count};
    struct queue *queue;
    size_t total = 1;
    cairn_err err = CAIRN_NOMEM;

    for (uint32_t q = 0; q < list_count; q++)
        total += lists[q].count;
    merging.table_slots = 2 * total;
    merging.out.seen_words = (list_count + 63) / 64;
    merging.queues = calloc(list_count + 1u, sizeof *merging.queues);
    merging.table = calloc(merging.table_slots, sizeof *merging.table);
    merging.out.entries = calloc(total, sizeof *merging.out.entries);
    merging.out.seen = calloc(total * merging.out.seen_words + 1, sizeof *merging.out.seen);
    if (!merging.queues || !merging.table || !merging.out.entries || !merging.out.seen)
        goto done;
    for (uint32_t q = 0; q < list_count; q++)
        merging.queues[q].list = &lists[q];
    for (uint32_t q = 0; q < list_count; q++)
        head_changed(&merging, &merging.queues[q]);
    while ((queue = next_of(&merging, false)) != NULL ||
           (queue = next_of(&merging, true)) != NULL) {
        const struct history_event *event = head_of(queue);

        take(&merging, (uint32_t)(queue - merging.queues), event);
        queue->head++;
        if (event->kind == HISTORY_DEATH)
            count_death(&merging, event);
        head_changed(&merging, queue);
    }
    *out = merging.out;
    memset(&merging.out, 0, sizeof merging.out);
    err = CAIRN_OK;
done:
    history_merge_fini(&merging.out);
    free(merging.queues);
    free(merging.table);
    return err;
}

void
history_merge_fini(struct history_merge *merge)
{
    free(merge->entries);
    free(merge->seen);
    memset(merge, 0, sizeof *merge);
}
