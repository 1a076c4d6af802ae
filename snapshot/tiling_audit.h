/*
 * snapshot/tiling_audit.h - do parts on many nodes together hold every element of every tensor
 * exactly once? Takes at most three questions to all parts.
 *
 * If the sums of all parts (tiling.h) add up to 0, the question is for the keys of the tensors with
 * origins in a part; none may come twice. Else it is for the sums by division, and then for the
 * pieces of the tensors in the one wrong division, which explain. Pure: the caller carries
 * questions and answers, and knows who has answered.
 */
#ifndef CAIRN_SNAPSHOT_TILING_AUDIT_H
#define CAIRN_SNAPSHOT_TILING_AUDIT_H

#include "snapshot/tiling.h"

enum cairn_tiling_question {
    CAIRN_TILING_SUMS = 0, /* by division of the tensors' keys */
    CAIRN_TILING_ORIGINS,  /* keys of the tensors whose origin the part has */
    CAIRN_TILING_PIECES    /* of the tensors in one division */
};

enum cairn_tiling_verdict {
    CAIRN_TILING_OPEN = 0, /* a question must be answered first */
    CAIRN_TILING_GOOD,
    CAIRN_TILING_BAD
};

enum {
    CAIRN_TILING_ORIGINS_MAX = 1 << 21,    /* keys of all parts, and of one: above that, doubles */
    CAIRN_TILING_ORIGINS_OF_ONE = 1 << 15, /* are not looked for, so that it holds nothing up for
                                            * long, and so that one message carries an answer */
    CAIRN_TILING_ANSWER_BYTES_MAX = 8 * CAIRN_TILING_ORIGINS_OF_ONE
};

/* All zero: no audit is under way. */
struct cairn_tiling_audit {
    enum cairn_tiling_question asks;
    uint64_t prefix;   /* PIECES: the division */
    uint64_t *sums;    /* [CAIRN_TILING_FAN] */
    uint64_t *origins; /* keys received */
    size_t origin_count, origin_room;
    bool uncounted; /* there were too many keys to look for doubles */
    struct cairn_tiling_pieces pieces;
};

/* Begins with the sum of all parts, and sets the first question. CAIRN_NOMEM. The caller ends it
 * with cairn_tiling_audit_fini. */
CAIRN_MUST_CHECK cairn_err cairn_tiling_audit_begin(struct cairn_tiling_audit *audit, uint64_t sum);
void cairn_tiling_audit_fini(struct cairn_tiling_audit *audit);
/* Takes a part's answer; `cut` as the part says. CAIRN_CORRUPT: malformed; CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_tiling_audit_take(struct cairn_tiling_audit *audit,
                                                   const uint8_t *bytes, size_t bytes_len,
                                                   bool cut);
/* All parts have answered: the verdict, or OPEN with the next question set. BAD is explained in
 * text[text_bytes]. */
enum cairn_tiling_verdict cairn_tiling_audit_next(struct cairn_tiling_audit *audit, char *text,
                                                  size_t text_bytes);
/* A part's answer, packed into out[CAIRN_TILING_ANSWER_BYTES_MAX]; *cut: it has more keys. tiling
 * NULL: it has no tensors. Returns the bytes used. */
size_t cairn_tiling_answer(const struct cairn_tiling *tiling, enum cairn_tiling_question asks,
                           uint64_t prefix, uint8_t *out, bool *cut);

#endif
