/*
 * replan/detect/verdict.h - what a detector says: one verdict per cause, with its evidence.
 *
 * A rank that only waits for the cause is a victim, not a culprit. A list owns its verdicts and
 * everything in them; the indices of verdicts stay, their addresses do not.
 */
#ifndef CAIRN_REPLAN_DETECT_VERDICT_H
#define CAIRN_REPLAN_DETECT_VERDICT_H

#include "cairn/err.h"

#include <stddef.h>
#include <stdint.h>

/* X(symbol, text) */
#define CAIRN_VERDICT_LIST(X)                                                                      \
    X(CAIRN_SLOW_COMPUTE, "slow_compute")                                                          \
    X(CAIRN_SLOW_NODE, "slow_node")                                                                \
    X(CAIRN_SLOW_LINK, "slow_link")                                                                \
    X(CAIRN_HANG_COMPUTE, "hang_compute")                                                          \
    X(CAIRN_HANG_LINK, "hang_link")                                                                \
    X(CAIRN_CRASH, "crash")                                                                        \
    X(CAIRN_STRUCTURAL, "structural")

enum cairn_verdict_kind {
#define CAIRN_VERDICT_ENUM(symbol, text) symbol,
    CAIRN_VERDICT_LIST(CAIRN_VERDICT_ENUM)
#undef CAIRN_VERDICT_ENUM
};

enum { CAIRN_EVIDENCE_BYTES = 320 };
#define CAIRN_STEP_NONE UINT32_MAX

struct cairn_u32_list {
    uint32_t *items; /* in ascending order; of links: pairs, one after the other */
    uint32_t count, room;
};

struct cairn_verdict {
    enum cairn_verdict_kind kind;
    struct cairn_u32_list ranks, links, nodes, victims;
    uint32_t since_step, until_step, detected_step; /* until_step: CAIRN_STEP_NONE while it lasts */
    double rate;         /* the culprit's time over what is normal for it */
    double confidence;   /* 0 … 1 */
    const char *pattern; /* of structural; NULL */
    char evidence[CAIRN_EVIDENCE_BYTES];
};

struct cairn_verdicts {
    struct cairn_verdict *items;
    uint32_t count;
};

const char *cairn_verdict_kind_text(enum cairn_verdict_kind kind);

/* Appends an empty verdict of a kind, lasting; its index in *out. It has the memory to name some
 * ranks, nodes and links: no verdict stays that names nobody. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_verdicts_add(struct cairn_verdicts *verdicts,
                                              enum cairn_verdict_kind kind, uint32_t *out);
/* Takes a verdict out, the others keep their order. */
void cairn_verdicts_remove(struct cairn_verdicts *verdicts, uint32_t index);
/* Ends what a single verdict owns. */
void cairn_verdict_fini(struct cairn_verdict *verdict);
void cairn_verdicts_fini(struct cairn_verdicts *verdicts);

CAIRN_MUST_CHECK cairn_err cairn_list_add(struct cairn_u32_list *list, uint32_t item);
/* Gives `list` the items of `from`, which is empty afterwards; ends what `list` held. */
void cairn_list_take(struct cairn_u32_list *list, struct cairn_u32_list *from);
/* Puts the items in order, taken `width` (1 or 2) at a time, and leaves each one once. */
void cairn_list_sort(struct cairn_u32_list *list, uint32_t width);

#endif
