/*
 * agent/history/book.h - the events that one node keeps, bounded by count and bytes. Pure.
 *
 * Each commit or skipped generation extends the newest range of its kind and run, for at most an
 * hour, while only commits and skips came after it. If there is no room, the kind with the most
 * events, each counted by its weight (event.h), gives up its oldest. So many commits thin out, and
 * rare events stay. The oldest range of commits is joined to the next one of its run, if there is
 * one.
 *
 * Invariants:
 *  1. Numbers grow along `events`, and no number is given twice.
 *  2. An entry is `changed` until history_book_stored; a number that was removed is in `removed`.
 *
 * The book owns the texts of its events.
 */
#ifndef CAIRN_AGENT_HISTORY_BOOK_H
#define CAIRN_AGENT_HISTORY_BOOK_H

#include "agent/history/event.h"

#include <stddef.h>

enum {
    HISTORY_EVENTS_MAX = 1024,
    HISTORY_BYTES_MAX = 256 << 10, /* of all events, packed */
    HISTORY_REMOVED_MAX = 2048     /* beyond it, removals are forgotten: the next load drops them */
};

struct history_book {
    struct history_event *events; /* [count] */
    bool *changed;                /* [count]: since history_book_stored */
    uint32_t count, room;
    size_t bytes;
    uint64_t last_number;
    uint64_t removed[HISTORY_REMOVED_MAX];
    uint32_t removed_count;
    uint32_t events_max; /* tests set smaller bounds; else those above */
    size_t bytes_max;
};

void history_book_init(struct history_book *book);
void history_book_fini(struct history_book *book);

/* Appends an event that was stored, with its number. CAIRN_CORRUPT: the number does not grow;
 * CAIRN_NOMEM. The book is as before then. */
CAIRN_MUST_CHECK cairn_err history_book_load(struct history_book *book,
                                             const struct history_event *event);

/* Adds an event; its number is ignored. Returns the number that it has, or that of the range that
 * it extends; 0: out of memory, and the book is as before. */
uint64_t history_book_add(struct history_book *book, const struct history_event *event);

/* The event with this number, NULL: not kept. Valid until the next add. */
const struct history_event *history_book_find(const struct history_book *book, uint64_t number);

/* Replaces the event with this number, except for number, kind and text. Nothing if it is not
 * kept. */
void history_book_update(struct history_book *book, const struct history_event *event);

bool history_book_has_changes(const struct history_book *book);
/* Everything that has changed is being stored. */
void history_book_stored(struct history_book *book);
/* Stored events may be lost: all have changed. */
void history_book_unstored(struct history_book *book);

#endif
