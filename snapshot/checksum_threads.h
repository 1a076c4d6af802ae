/*
 * snapshot/checksum_threads.h - threads that checksum what a device has brought, or share a copy on
 * the host while training stands still.
 *
 * A device brings bytes several times as fast as one core checksums them. Work is numbered items,
 * done in any order; the owner is one thread, which may help. Without threads (few cores, or no
 * device) the owner does all of it by helping.
 */
#ifndef CAIRN_SNAPSHOT_CHECKSUM_THREADS_H
#define CAIRN_SNAPSHOT_CHECKSUM_THREADS_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { CAIRN_CHECKSUM_THREADS_MAX = 3 };

struct cairn_checksum_threads;

/* Does one item; called by one thread per item, by several at a time for different items. */
typedef void cairn_checksum_item_fn(void *context, uint64_t item);

/* Makes the owner's side, without threads. CAIRN_NOMEM. The caller ends *out with destroy. */
CAIRN_MUST_CHECK cairn_err cairn_checksum_threads_create(cairn_checksum_item_fn *do_item,
                                                         void *context,
                                                         struct cairn_checksum_threads **out);

/* One thread for each four cores that this process may use, at most CAIRN_CHECKSUM_THREADS_MAX. */
uint32_t cairn_checksum_threads_for_this_host(void);

/* Starts threads until `wanted` run, at most CAIRN_CHECKSUM_THREADS_MAX. Those that cannot be
 * started are done without. */
void cairn_checksum_threads_start(struct cairn_checksum_threads *threads, uint32_t wanted);

/* Items [0, until) may be done; until never falls. wake: wakes sleeping threads. */
void cairn_checksum_threads_allow(struct cairn_checksum_threads *threads, uint64_t until,
                                  bool wake);

/* Does one item in the calling thread; false if all that are allowed were begun. */
bool cairn_checksum_threads_help(struct cairn_checksum_threads *threads);

/* Begins no more items, waits for those that were begun, and counts from 0 again. */
void cairn_checksum_threads_end(struct cairn_checksum_threads *threads);

/* Ends the threads and frees. NULL is allowed. */
void cairn_checksum_threads_destroy(struct cairn_checksum_threads *threads);

#endif
