/*
 * agent/core/tiling.h - before a generation is committed: do all parts together hold every tensor
 * exactly once? The state of it in the core, and what the core's files call. tiling.c has the whole
 * way.
 */
#ifndef CAIRN_AGENT_CORE_TILING_H
#define CAIRN_AGENT_CORE_TILING_H

#include "agent/core/core.h"
#include "snapshot/tiling.h"

struct facts;
struct seal;

enum {
    TILINGS_KNOWN = 8,      /* combinations of layouts whose verdicts are remembered */
    TILING_TEXT_BYTES = 256 /* of what is wrong with one */
};

/* Whether a combination of the members' layouts holds every tensor exactly once. */
struct tiling_verdict {
    uint64_t combination; /* 0: unused */
    bool good;
    char text[TILING_TEXT_BYTES]; /* of a bad one: which tensors, and how */
};

/* The first member's look at all layouts of one generation (tiling.c). */
struct tiling_audit {
    struct cairn_generation generation; /* step 0: none is under way */
    uint64_t combination;
    uint32_t *layouts;  /* [member_count] */
    uint32_t *received; /* [member_count]: keys */
    uint64_t *answered; /* bitset of members: all of this question */
    uint32_t level;     /* of the question */
    uint64_t prefix;
    uint64_t sums[CAIRN_TILING_FAN];
    uint64_t *origins; /* [origin_count] keys */
    size_t origin_count;
    size_t origin_room;
    bool uncounted; /* there were too many keys */
    struct cairn_tiling_pieces pieces;
    uint64_t sent_ns;
    uint64_t progress_ns; /* when it began, or something of an answer was taken last */
};

struct tiling_state {
    struct tiling_verdict known[TILINGS_KNOWN]; /* a ring */
    uint32_t known_next;
    bool awaited;      /* all said yes to something that there is no verdict on */
    bool unknown;      /* so it was when it was looked at last */
    uint64_t asked_ns; /* when the first member was asked last, or that began */
    uint32_t own_digest;
    struct cairn_tiling *own;        /* of the part with that digest; NULL: it has no manifest */
    struct cairn_generation refused; /* newest that was given up for its tiling since the last
                                      * commit; step 0: none */
    uint64_t told;                   /* local ranks that have heard of it */
    char refusal[TILING_TEXT_BYTES]; /* why, until something is committed */
    struct tiling_audit audit;
};

/* ---- tiling.c ---- */
/* The name of the layouts of a group's parts, by position; and of a combination of layouts, from 0
 * on group after group. Never 0. */
uint64_t tiling_of_group(const uint32_t *digests, uint32_t count);
uint64_t tiling_with_group(uint64_t combination, uint64_t group);
enum tiling_word { TILING_UNKNOWN = 0, TILING_GOOD, TILING_BAD };
/* Whether the parts of a generation, to which all said yes, hold every tensor exactly once. Where
 * it is not known it is found out. */
enum tiling_word tiling_look(struct cairn_core *core, const struct facts *facts);
/* A generation is given up for its tiling. */
void tiling_refused(struct cairn_core *core, const struct facts *facts);
/* A step that is not captured here, because one before it was given up for its tiling: the next due
 * one of each local rank, which is told why. */
bool tiling_skips(struct cairn_core *core, uint32_t rank, uint64_t step);
/* The sum of a packed manifest of the own part; 0 of what is none. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err tiling_sum_of(struct cairn_core *core, const uint8_t *manifest,
                                         size_t len, uint64_t *sum);
void tiling_message(struct cairn_core *core, const struct cairn_message *message);
void tiling_tick(struct cairn_core *core);
/* A new epoch: what is under way ends. Verdicts stay true. */
void tiling_clear(struct cairn_core *core);
void tiling_fini(struct cairn_core *core);

/* ---- between tiling.c and tiling_audit.c ---- */
/* NULL where none is known. */
const struct tiling_verdict *tiling_verdict_on(const struct cairn_core *core, uint64_t combination);
void tiling_remember(struct cairn_core *core, uint64_t combination, bool good, const char *text);
void tiling_send_verdict(struct cairn_core *core, uint32_t to, struct cairn_generation generation,
                         const struct tiling_verdict *verdict);
/* The own sealed part of a generation, NULL where there is none. */
const struct seal *tiling_own_seal(struct cairn_core *core, struct cairn_generation generation);
/* What the own part with that manifest holds; NULL of a manifest that is none. CAIRN_NOMEM: it may
 * be tried again. */
CAIRN_MUST_CHECK cairn_err tiling_own(struct cairn_core *core, const uint8_t *manifest, size_t len,
                                      const struct cairn_tiling **out);
/* The answer to a question about the own part, with bytes[CAIRN_MESSAGE_PART_BYTES_MAX]. */
void tiling_answer(const struct cairn_core *core, const struct cairn_message *ask,
                   const struct cairn_tiling *tiling, uint8_t *bytes, struct cairn_message *answer);
bool tiling_audit_runs(const struct tiling_audit *audit);
/*
 * Begins to find out about a combination that has no verdict, unless another generation is being
 * looked at. One whose members do not answer makes way for a newer one.
 */
void tiling_audit_begin(struct cairn_core *core, const struct facts *facts, uint64_t combination);
void tiling_audit_end(struct tiling_audit *audit);
/* A LAYOUT. */
void tiling_audit_message(struct cairn_core *core, const struct cairn_message *message);
void tiling_audit_tick(struct cairn_core *core);

#endif
