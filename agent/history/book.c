/* agent/history/book.c - the events of one node; see book.h. */
#include "agent/history/book.h"

#include <stdlib.h>
#include <string.h>

enum { ROOM_FIRST = 64 };

static const uint64_t range_ns_max = UINT64_C(3600) * 1000000000;

void
history_book_init(struct history_book *book)
{
    memset(book, 0, sizeof *book);
    book->events_max = HISTORY_EVENTS_MAX;
    book->bytes_max = HISTORY_BYTES_MAX;
}

void
history_book_fini(struct history_book *book)
{
    for (uint32_t i = 0; i < book->count; i++)
        free((char *)(uintptr_t)book->events[i].text);
    free(book->events);
    free(book->changed);
    memset(book, 0, sizeof *book);
}

static size_t
bytes_of(const struct history_event *event)
{
    return HISTORY_FIXED_BYTES + strlen(event->text);
}

/* ---- room ---- */

static bool
make_room(struct history_book *book)
{
    uint32_t room = book->room ? 2 * book->room : ROOM_FIRST;
    struct history_event *events;
    bool *changed;

    if (book->count < book->room)
        return true;
    events = realloc(book->events, room * sizeof *events);
    if (!events)
        return false;
    book->events = events;
    changed = realloc(book->changed, room * sizeof *changed);
    if (!changed)
        return false;
    book->changed = changed;
    book->room = room;
    return true;
}

static bool
append(struct history_book *book, const struct history_event *event, bool changed)
{
    char *text;

    if (!make_room(book))
        return false;
    text = strdup(event->text);
    if (!text)
        return false;
    book->events[book->count] = *event;
    book->events[book->count].text = text;
    book->changed[book->count++] = changed;
    book->bytes += bytes_of(event);
    book->last_number = event->number;
    return true;
}

static void
drop(struct history_book *book, uint32_t index)
{
    uint32_t behind = book->count - index - 1;

    if (book->removed_count < HISTORY_REMOVED_MAX)
        book->removed[book->removed_count++] = book->events[index].number;
    book->bytes -= bytes_of(&book->events[index]);
    free((char *)(uintptr_t)book->events[index].text);
    memmove(&book->events[index], &book->events[index + 1], behind * sizeof *book->events);
    memmove(&book->changed[index], &book->changed[index + 1], behind * sizeof *book->changed);
    book->count--;
}

static bool
is_same_run(const struct history_event *left, const struct history_event *right)
{
    return left->generation.epoch == right->generation.epoch &&
           left->generation.run == right->generation.run;
}

/* The kind that has the most events for its weight. */
static enum history_kind
largest_kind(const struct history_book *book)
{
    uint64_t counts[HISTORY_KIND_END] = {0};
    enum history_kind largest = book->events[0].kind;

    for (uint32_t i = 0; i < book->count; i++)
        counts[book->events[i].kind] += history_kind_weight(book->events[i].kind);
    for (int kind = 0; kind < HISTORY_KIND_END; kind++)
        if (counts[kind] > counts[largest])
            largest = (enum history_kind)kind;
    return largest;
}

/* Joins a range of commits to the next one of its run. */
static void
join_next(struct history_book *book, uint32_t index)
{
    const struct history_event *old = &book->events[index];

    for (uint32_t i = index + 1; i < book->count; i++) {
        struct history_event *next = &book->events[i];

        if (next->kind != old->kind || !is_same_run(old, next))
            continue;
        next->wall_ns = old->wall_ns;
        next->at = old->at;
        next->generation = old->generation;
        next->count += old->count;
        next->took_ns += old->took_ns;
        book->changed[i] = true;
        return;
    }
}

static void
shrink(struct history_book *book)
{
    while (book->count > book->events_max || book->bytes > book->bytes_max) {
        enum history_kind kind = largest_kind(book);
        uint32_t oldest = 0;

        while (book->events[oldest].kind != kind)
            oldest++;
        if (kind == HISTORY_COMMIT)
            join_next(book, oldest);
        drop(book, oldest);
    }
}

/* ---- adding ---- */

static bool
is_plenty(enum history_kind kind)
{
    return kind == HISTORY_COMMIT || kind == HISTORY_SKIP;
}

static bool
extends(const struct history_event *range, const struct history_event *event)
{
    return range->kind == event->kind && is_same_run(range, event) &&
           range->last_step < event->generation.step && event->wall_ns >= range->wall_ns &&
           event->wall_ns - range->wall_ns < range_ns_max &&
           (event->kind == HISTORY_COMMIT ||
            (range->change == event->change && range->node == event->node &&
             range->other == event->other && strcmp(range->text, event->text) == 0));
}

/* The range that an event extends; UINT32_MAX: none. */
static uint32_t
range_of(const struct history_book *book, const struct history_event *event)
{
    if (!is_plenty(event->kind))
        return UINT32_MAX;
    for (uint32_t i = book->count; i-- > 0 && is_plenty(book->events[i].kind);)
        if (book->events[i].kind == event->kind && is_same_run(&book->events[i], event))
            return extends(&book->events[i], event) ? i : UINT32_MAX;
    return UINT32_MAX;
}

uint64_t
history_book_add(struct history_book *book, const struct history_event *event)
{
    uint32_t index = range_of(book, event);
    struct history_event numbered = *event;

    if (index != UINT32_MAX) {
        struct history_event *range = &book->events[index];

        range->until_wall_ns = event->until_wall_ns;
        range->last_step = event->last_step;
        range->count += event->count;
        range->took_ns += event->took_ns;
        range->bytes = event->bytes;
        book->changed[index] = true;
        return range->number;
    }
    numbered.number = book->last_number + 1;
    if (!append(book, &numbered, true))
        return 0;
    shrink(book);
    return numbered.number;
}

cairn_err
history_book_load(struct history_book *book, const struct history_event *event)
{
    if (event->number <= book->last_number)
        return CAIRN_CORRUPT;
    if (!append(book, event, false))
        return CAIRN_NOMEM;
    shrink(book);
    return CAIRN_OK;
}

/* ---- finding and changing ---- */

static uint32_t
index_of(const struct history_book *book, uint64_t number)
{
    for (uint32_t i = book->count; i-- > 0 && book->events[i].number >= number;)
        if (book->events[i].number == number)
            return i;
    return UINT32_MAX;
}

const struct history_event *
history_book_find(const struct history_book *book, uint64_t number)
{
    uint32_t index = index_of(book, number);

    return index == UINT32_MAX ? NULL : &book->events[index];
}

void
history_book_update(struct history_book *book, const struct history_event *event)
{
    uint32_t index = index_of(book, event->number);
    struct history_event *kept;
    const char *text;

    if (index == UINT32_MAX || book->events[index].kind != event->kind)
        return;
    kept = &book->events[index];
    text = kept->text;
    *kept = *event;
    kept->text = text;
    book->changed[index] = true;
}

bool
history_book_has_changes(const struct history_book *book)
{
    bool any = book->removed_count > 0;

    for (uint32_t i = 0; i < book->count; i++)
        any |= book->changed[i];
    return any;
}

void
history_book_stored(struct history_book *book)
{
    memset(book->changed, 0, book->count * sizeof *book->changed);
    book->removed_count = 0;
}

void
history_book_unstored(struct history_book *book)
{
    for (uint32_t i = 0; i < book->count; i++)
        book->changed[i] = true;
}
