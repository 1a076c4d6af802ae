/*
 * snapshot/arena.h - memory reserved once: a sealed memfd, pre-faulted and mapped.
 *
 * Agent, keeper and trainer share arenas. The size is sealed (F_SEAL_SHRINK, F_SEAL_GROW,
 * F_SEAL_SEAL), so no holder of the descriptor can make another's access end in SIGBUS. Every page
 * exists before create returns, so no later access can fail for lack of memory. Arenas are left out
 * of core dumps. Contents begin as zeros.
 */
#ifndef CAIRN_SNAPSHOT_ARENA_H
#define CAIRN_SNAPSHOT_ARENA_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CAIRN_ARENA_REPORT_BYTES = 512 };

enum cairn_hugepages {
    CAIRN_HUGEPAGES_TRY = 0, /* reserved, else transparent huge pages, else small pages */
    CAIRN_HUGEPAGES_NEVER = 1
};

struct cairn_arena_options {
    enum cairn_hugepages hugepages;
    uint64_t margin_bytes; /* refuse when less than this would stay free after the reservation */
};

struct cairn_arena;

/*
 * Reserves an arena of at least `bytes` (> 0) bytes, rounded up to the page size. `name` (borrowed)
 * is what /proc shows. Checks first that bytes + margin is free (MemAvailable, memory cgroups):
 * CAIRN_NOMEM otherwise, or if the kernel refuses; CAIRN_INVAL for bytes = 0 or a sum that
 * overflows; CAIRN_IO without support for memfds or sealing. On failure `report` (report_bytes
 * long, may be NULL) says what and how much. Logs once per process that no huge pages were reserved
 * and that RLIMIT_MEMLOCK is too small to pin the arena, with what to do. Blocks while the kernel
 * supplies pages (1 to 4 GB/s). `options` NULL: all zero. On success the caller owns *out and ends
 * it with cairn_arena_destroy. Thread: any. Not for the trainer (it logs).
 */
CAIRN_MUST_CHECK cairn_err cairn_arena_create(const char *name, uint64_t bytes,
                                              const struct cairn_arena_options *options,
                                              struct cairn_arena **out, char *report,
                                              size_t report_bytes);

/* Bytes [begin, end) of an arena. */
struct cairn_arena_range {
    uint64_t begin, end;
};

/*
 * Takes over an arena that another process made. Checks that `fd` is a memfd with the three seals
 * and at least bytes_min bytes long (0: any length), makes sure that every page exists, and maps it
 * with its contents. away[away_count], by place, are ranges with pages in other files (region.h):
 * they stay holes, and the caller maps those files before anybody reads there. CAIRN_CORRUPT: no
 * arena, or too short; CAIRN_NOMEM; CAIRN_IO; `report` as above. On success the descriptor belongs
 * to the arena and is close-on-exec, on failure to the caller. Prints and logs nothing. Thread:
 * any.
 */
CAIRN_MUST_CHECK cairn_err cairn_arena_adopt(int fd, uint64_t bytes_min,
                                             const struct cairn_arena_range *away,
                                             uint32_t away_count, struct cairn_arena **out,
                                             char *report, size_t report_bytes);

/* Unmaps and closes; the bytes live on while another process holds the descriptor. NULL is allowed.
 */
void cairn_arena_destroy(struct cairn_arena *arena);

/* The mapping, its length, its descriptor (borrowed), and whether reserved huge pages back it. */
uint8_t *cairn_arena_base(const struct cairn_arena *arena);
uint64_t cairn_arena_bytes(const struct cairn_arena *arena);
int cairn_arena_fd(const struct cairn_arena *arena);
bool cairn_arena_has_hugepages(const struct cairn_arena *arena);
/* True if the kernel gives transparent huge pages on request alone, and was asked. */
bool cairn_arena_is_advised(const struct cairn_arena *arena);

#endif
