/*
 * snapshot/walk.h - one walk over a region: what the capture thread does for one capture.
 *
 * Inside snapshot/: capture.c owns the thread and the waiting, walk.c the copying. The walk's
 * fields above the line belong to its owner.
 */
#ifndef CAIRN_SNAPSHOT_WALK_H
#define CAIRN_SNAPSHOT_WALK_H

#include "snapshot/capture.h"
#include "snapshot/checksum_threads.h"
#include "snapshot/mem.h"

#include <stdatomic.h>

enum {
    CAIRN_WALK_DEVICES_MAX = 16,
    CAIRN_WALK_SPANS = 4096,         /* open at a time: 16 GiB that checksums may lie behind */
    CAIRN_WALK_SPAN_BLOCKS_MAX = 64, /* 4 MiB, and a bit each in a word */
    /* A part of a span is checksummed and reported at once. */
    CAIRN_WALK_SPAN_PARTS = CAIRN_WALK_SPAN_BLOCKS_MAX / CAIRN_MESSAGE_BLOCKS_MAX
};

struct cairn_walk_device {
    int32_t index;
    struct cairn_mem *mem; /* NULL: failed and closed */
    uint64_t last_ticket;
};

struct cairn_walk_span {
    uint64_t first_block;
    uint64_t device_blocks; /* bit per block: holds device bytes, checksum when landed */
    uint32_t block_count;
    uint32_t reported_blocks;
    bool is_shared;           /* its bytes come with the sum of each part */
    atomic_uint summed_parts; /* bit per part: crcs[] of all its blocks are set */
    uint64_t crcs[CAIRN_WALK_SPAN_BLOCKS_MAX];
    uint64_t tickets[CAIRN_WALK_DEVICES_MAX]; /* 0: none of this device */
};

/* A batch that is being filled for one device; issued when full, or at the end of a span. */
struct cairn_walk_batch {
    uint32_t count;
    uint32_t device;   /* in devices[] */
    uint32_t last_run; /* whose bytes copies[count - 1] brings */
    uint64_t bytes;
    struct cairn_mem_copy copies[CAIRN_MEM_BATCH_COPIES_MAX];
};

struct cairn_walk {
    struct cairn_capture_job job;
    atomic_bool cancelled;                         /* set by any thread: end soon */
    _Atomic uint64_t give_up_ns;                   /* set by any thread: from then on no device is
                                                    * waited for */
    void (*landed)(void *context, uint64_t bytes); /* sources below `bytes` have been read */
    void *landed_context;
    uint32_t device_count;
    struct cairn_walk_device devices[CAIRN_WALK_DEVICES_MAX];
    struct cairn_checksum_threads *threads; /* that do cairn_walk_sum_part */
    /* ---- the walk's own ---- */
    uint64_t next_block;   /* first that no span has */
    uint64_t mapped_bytes; /* of the region, from its beginning: mapped ahead */
    uint64_t open_first;   /* spans [open_first, open_next) are fetched and not wholly reported */
    uint64_t land_next;    /* the first of them that has not landed */
    uint64_t open_next;
    struct cairn_walk_span spans[CAIRN_WALK_SPANS];
    struct cairn_walk_batch batch;
};

/* The device of that CUDA ordinal, NULL where there is none. */
struct cairn_walk_device *cairn_walk_device_find(struct cairn_walk *walk, int32_t index);

/*
 * Waits until nothing of an open device is in flight: CAIRN_OK; CAIRN_DEVICE if it has failed;
 * CAIRN_TIMEOUT at deadline_ns, or when it is given up.
 */
CAIRN_MUST_CHECK cairn_err cairn_walk_rest(const struct cairn_walk *walk,
                                           const struct cairn_walk_device *device,
                                           uint64_t deadline_ns);

/* Checksums one part, and copies it if that is shared: item is its span, counted from the capture's
 * beginning, times CAIRN_WALK_SPAN_PARTS, plus its place. A cairn_checksum_item_fn; context is the
 * walk. */
void cairn_walk_sum_part(void *context, uint64_t item);

/*
 * Maps the next part of memory[bytes] that this process has not touched yet, and gives its length.
 * Its pages exist. The kernel maps pages that are read in groups, also for writing; a first write
 * maps one page, and each costs a fault. Without the advice (Linux before 5.14) that happens.
 */
uint64_t cairn_walk_map(uint8_t *memory, uint64_t bytes);

/*
 * Captures walk->job, which was checked. The first walk->mapped_bytes of its region are mapped.
 * Returns CAIRN_OK, CAIRN_AGAIN when cancelled, CAIRN_DEVICE; then no source is read any more. A
 * device that failed is closed. Does not allocate.
 */
CAIRN_MUST_CHECK cairn_err cairn_walk_run(struct cairn_walk *walk);

#endif
