/*
 * snapshot/budget.h - does the memory that Cairn would reserve fit into what is free?
 *
 * The arithmetic is pure and printed: need = state x slots x (1 + m/k), against the smaller of the
 * kernel's MemAvailable and what the memory cgroups (version 1 or 2, every level up to the root)
 * still allow, less a margin for the job.
 */
#ifndef CAIRN_SNAPSHOT_BUDGET_H
#define CAIRN_SNAPSHOT_BUDGET_H

#include "cairn/err.h"

#include <stddef.h>
#include <stdint.h>

/* What an agent leaves to the job of the memory that is free. */
enum { CAIRN_BUDGET_MARGIN_BYTES = 256 << 20 };

/* What a node wants to reserve. */
struct cairn_budget_demand {
    uint64_t state_bytes;  /* of all ranks of this node, one generation */
    uint32_t slots;        /* generations held at the same time, 2 at least */
    uint32_t data_count;   /* k of the erasure group, >= 1 */
    uint32_t parity_count; /* m of the erasure group */
    uint64_t fixed_bytes;  /* message buffers, headers, manifests */
};

/* What the machine has. UINT64_MAX: unknown or unlimited. */
struct cairn_budget_free {
    uint64_t available_bytes; /* MemAvailable */
    uint64_t cgroup_bytes;    /* the least that any memory cgroup above this process still allows */
};

struct cairn_budget {
    uint64_t state_bytes;  /* slots x state */
    uint64_t parity_bytes; /* slots x state x m/k, each generation rounded up to a block */
    uint64_t fixed_bytes;
    uint64_t need_bytes;   /* the sum */
    uint64_t free_bytes;   /* the smaller of the two limits */
    uint64_t margin_bytes; /* of the free bytes, left to the job */
};

/*
 * Does the sum. `margin_bytes` is kept free. CAIRN_OK: it fits. CAIRN_NOMEM: it does not. Both fill
 * *out. CAIRN_INVAL: k or slots is 0, or the sum overflows; *out is untouched. Pure. Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_budget_check(const struct cairn_budget_demand *demand,
                                              const struct cairn_budget_free *memory,
                                              uint64_t margin_bytes, struct cairn_budget *out);

/*
 * Writes a sum that cairn_budget_check filled as one line, such as "2 x 6.00 GiB state + 2 x 3.00
 * GiB parity (4+2) + 64.00 MiB buffers = 18.06 GiB needed; 15.40 GiB free (memory cgroup), 1.00 GiB
 * reserved for the job: 3.66 GiB short". text[text_bytes] always ends with NUL. Thread: any.
 */
void cairn_budget_text(const struct cairn_budget_demand *demand,
                       const struct cairn_budget_free *memory, const struct cairn_budget *budget,
                       char *text, size_t text_bytes);

/*
 * Reads what is free under `root` ("/" outside tests): proc/meminfo, proc/self/cgroup,
 * sys/fs/cgroup. Unreadable values are UINT64_MAX; CAIRN_IO if all are. Opens and closes a few
 * small files. Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_budget_free_read(const char *root, struct cairn_budget_free *out);

#endif
