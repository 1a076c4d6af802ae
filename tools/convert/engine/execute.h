/*
 * tools/convert/engine/execute.h - runs moves from a checkpoint's files into tiles, several at
 * once.
 *
 * Driven by the output: a tile is a range of a target container, filled in memory by one gather and
 * then handed to its consumer (a file, a comparison, a fingerprint). Every byte of the source that
 * a tile needs is read once for it; memory is the same for any size of checkpoint.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_EXECUTE_H
#define CAIRN_TOOLS_CONVERT_ENGINE_EXECUTE_H

#include "snapshot/reshard.h"
#include "tools/convert/core/checkpoint.h"
#include "tools/convert/engine/handles.h"
#include "tools/convert/engine/source_sums.h"

/* A tile is read, checksummed and written while it is in the second or third cache: with 8 MiB a
 * conversion took three times as long. */
enum { CAIRN_EXECUTE_THREADS_MAX = 256, CAIRN_TILE_BYTES_MAX = 1 << 20 };

/* A range of a target container to be filled; sorted by container, then begin, disjoint. */
struct cairn_stretch {
    uint32_t container;
    uint64_t begin, end;
};

struct cairn_tile {
    uint32_t container;
    uint64_t begin, end;
    uint8_t *bytes; /* [end - begin]: what the first feed brought; zero where nothing was */
    uint8_t
        *spare; /* [spare_bytes of the execution]: the same of the second feed, or the taker's */
    bool had;   /* the bytes come from `have` */
    /* What lies where: the first feed's moves cut to the tile, by tensor and target offset (which
     * counts from the tile's first byte, unlike in a plan). */
    const struct cairn_move *clips;
    size_t clip_count;
};

/* What brings bytes into tiles. All zero brings none. */
struct cairn_feed {
    const struct cairn_checkpoint *source;
    struct cairn_handles *handles;  /* of the source's containers */
    struct cairn_moves moves;       /* planned by cairn_feed_plan */
    struct cairn_source_sums *sums; /* what is read is held against them; NULL: nothing is */
};

enum { CAIRN_FEEDS = 2 };

struct cairn_execution {
    const struct cairn_feed *feeds[CAIRN_FEEDS]; /* the second may be NULL */
    const struct cairn_stretch *stretches;
    size_t stretch_count;
    uint64_t tile_bytes; /* tiles begin at its multiples, or where a stretch does */
    uint64_t spare_bytes;
    uint32_t thread_count;

    /* Asked before the first feed is gathered: true with the tile's bytes filled where they need no
     * gathering. May be NULL. Thread: workers, as take. */
    cairn_err (*have)(void *context, const struct cairn_tile *tile, bool *have,
                      struct cairn_complaint *complaint);
    /* Gets a tile; its bytes may be changed. Tiles come in no order. */
    cairn_err (*take)(void *context, const struct cairn_tile *tile,
                      struct cairn_complaint *complaint);
    /* Called now and then in the caller's thread with the bytes of tiles taken. May be NULL. */
    void (*progress)(void *context, uint64_t done_bytes);
    void *context;
};

/* Plans the moves from a layout of the feed's source into another, sorted by target container, then
 * target offset; the caller ends them with cairn_moves_fini. Errors of cairn_reshard_plan,
 * complained about. */
CAIRN_MUST_CHECK cairn_err cairn_feed_plan(struct cairn_feed *feed, const struct cairn_layout *from,
                                           const struct cairn_layout *to,
                                           struct cairn_complaint *complaint);

/* Bytes that one thread will allocate. */
uint64_t cairn_execute_thread_bytes(const struct cairn_execution *execution);

/* Runs until all stretches are taken or the first failure, which is complained about. CAIRN_NOMEM,
 * CAIRN_AGAIN (no thread), the errors of gathering, have and take. */
CAIRN_MUST_CHECK cairn_err cairn_execute(const struct cairn_execution *execution,
                                         struct cairn_complaint *complaint);

/* For cairn_handles_create: opens a checkpoint's container, and refuses a file that has changed. */
cairn_err cairn_execute_open(void *checkpoint, uint32_t container, int *fd,
                             struct cairn_complaint *complaint);

/* After all was read: CAIRN_CORRUPT where a file is not any more what it was when it was opened
 * first; complained about. */
CAIRN_MUST_CHECK cairn_err cairn_execute_check_unchanged(const struct cairn_checkpoint *checkpoint);

#endif
