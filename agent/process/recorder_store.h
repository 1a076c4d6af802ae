/*
 * agent/process/recorder_store.h - the store of a node's history, on the disk; see recorder.h.
 */
#ifndef CAIRN_AGENT_PROCESS_RECORDER_STORE_H
#define CAIRN_AGENT_PROCESS_RECORDER_STORE_H

#include "agent/history/book.h"

struct cairn_loop;
struct recorder_store;

enum { RECORDER_VALUE_BYTES_MAX = HISTORY_PACKED_BYTES_MAX + 8 };

/* Packs the record of an event; returns its length, 0: it cannot be packed. */
size_t recorder_record_pack(const struct history_event *event, uint8_t key[8],
                            uint8_t value[RECORDER_VALUE_BYTES_MAX]);

/* CAIRN_CORRUPT, CAIRN_VERSION: no record of ours, *out is untouched. */
CAIRN_MUST_CHECK cairn_err recorder_record_unpack(const void *key, size_t key_bytes,
                                                  const void *value, size_t value_bytes, char *text,
                                                  struct history_event *out);

/* Opens the store in `<dir>/history` and loads its events into the book. CAIRN_NOMEM, CAIRN_AGAIN;
 * a store that cannot be used is tried again later. */
CAIRN_MUST_CHECK cairn_err recorder_store_open(struct cairn_loop *loop, const char *dir,
                                               struct history_book *book,
                                               struct recorder_store **out);

/* Has the changes of the book written. False: a write is pending, or a failed one is too recent:
 * ask again. */
bool recorder_store_write(struct recorder_store *store, struct history_book *book, uint64_t now_ns);

/* Writes what has changed, and closes. Waits for the disk. */
void recorder_store_close(struct recorder_store *store, struct history_book *book);

#endif
