/*
 * agent/history/event.h - one event of a job's history: what happened, when, and at which epoch,
 * run and step of its node. Pure.
 *
 * Packed (base/wire.h): u8 version, u8 kind, the fields of struct history_event in their order, the
 * text as a string. A store adds a checksum of its own.
 */
#ifndef CAIRN_AGENT_HISTORY_EVENT_H
#define CAIRN_AGENT_HISTORY_EVENT_H

#include "base/wire.h"
#include "cairn/err.h"
#include "snapshot/generation.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    HISTORY_TEXT_BYTES = 1024, /* of a text, its NUL included */
    HISTORY_FIXED_BYTES = 154, /* packed, without the text */
    HISTORY_PACKED_BYTES_MAX = HISTORY_FIXED_BYTES + HISTORY_TEXT_BYTES,
    HISTORY_NONE = UINT32_MAX /* in `node`, `other` and `rank` */
};

/*
 * X(symbol, value, name, weight, shared)
 *
 * weight: a kind with twice the weight of another keeps half as many events when room is short
 * (book.h). shared: all nodes see the same event, so that a merged history has it once (merge.h).
 */
#define HISTORY_KIND_LIST(X)                                                                       \
    X(START, 1, "start", 1, false)                                                                 \
    X(STOP, 2, "stop", 1, false)                                                                   \
    X(DEATH, 3, "death", 1, true)                                                                  \
    X(RETURN, 4, "return", 1, true)                                                                \
    X(EPOCH, 5, "epoch", 1, true)                                                                  \
    X(REPAIR, 6, "repair", 1, false)                                                               \
    X(RESTORE, 7, "restore", 1, false)                                                             \
    X(VERIFY, 8, "verify", 1, false)                                                               \
    X(COMMIT, 9, "commit", 8, true)                                                                \
    X(SKIP, 10, "skip", 8, false)                                                                  \
    X(TRAINING, 11, "training", 1, true)                                                           \
    X(TRAINER, 12, "trainer", 2, false)                                                            \
    X(RESUME, 13, "resume", 2, true)                                                               \
    X(VERDICT, 14, "verdict", 2, true)                                                             \
    X(PLACEMENT, 15, "placement", 2, true)                                                         \
    X(OPERATOR, 16, "operator", 2, false)                                                          \
    X(CONFIG, 17, "config", 1, false)                                                              \
    X(POISON, 18, "poison", 2, false)                                                              \
    X(SPILL, 19, "spill", 2, false)                                                                \
    X(CAUSE, 20, "cause", 2, false)

enum history_kind {
#define HISTORY_KIND_ENUM(symbol, value, name, weight, shared) HISTORY_##symbol = value,
    HISTORY_KIND_LIST(HISTORY_KIND_ENUM)
#undef HISTORY_KIND_ENUM
        HISTORY_KIND_END = 21
};

/* `change` of VERDICT, PLACEMENT and TRAINING. */
enum history_verdict { HISTORY_OPENED = 1, HISTORY_RETURNED, HISTORY_CLOSED };
enum history_placement {
    HISTORY_PROPOSED = 1,
    HISTORY_OFFERED,
    HISTORY_TAKEN,
    HISTORY_KEPT,
    HISTORY_TAKEN_BACK,
    HISTORY_FAILED,
    HISTORY_DENIED
};
enum history_training {
    HISTORY_RUNS = 0,  /* its trainers run, or another TRAINING continues it */
    HISTORY_LEFT = 1,  /* they ended in good order */
    HISTORY_ENDED = 2, /* they died or were evicted */
    HISTORY_GONE = 3   /* the agent ended first, so nobody knows */
};

/* A field without a meaning here is 0, or HISTORY_NONE. */
struct history_event {
    enum history_kind kind;
    uint64_t number;        /* order in its node, from 1; the next start goes on */
    uint64_t wall_ns;       /* when it began */
    uint64_t until_wall_ns; /* COMMIT, SKIP, TRAINING: when the newest step was; else wall_ns */
    struct cairn_generation_id at; /* the node's epoch, run and newest step */
    struct cairn_generation_id
        generation;     /* of the event; of a COMMIT, SKIP or TRAINING the first */
    uint64_t last_step; /* COMMIT, SKIP, TRAINING: the newest; 0 else */
    uint64_t count;    /* COMMIT, SKIP: generations; TRAINING: steps; REPAIR, RESTORE: lost parts */
    uint64_t captures; /* TRAINING: snapshots that the slowest rank copied */
    uint64_t subject;  /* DEATH, RETURN, START: incarnation; VERDICT, PLACEMENT: number; CAUSE: of a
                        * verdict; TRAINER, OPERATOR: process */
    uint64_t bytes;    /* COMMIT: of this node's part; REPAIR, RESTORE: rebuilt */
    uint64_t took_ns;  /* COMMIT: to protect all of `count`; TRAINING: its slowest rank waited for
                        * snapshots; VERDICT: lost so far; REPAIR, RESTORE, VERIFY: it took */
    double rate;       /* VERDICT: times slower */
    uint32_t change;   /* VERDICT, PLACEMENT, TRAINING: above; EPOCH: trainers start again; SKIP:
                        * enum cairn_abort; START: memory was adopted */
    uint32_t node;     /* DEATH, RETURN: which; SKIP: the blocking one; PLACEMENT, OPERATOR: the
                        * asked one */
    uint32_t other;    /* SKIP: whom `node` waited for; OPERATOR: user */
    uint32_t rank;     /* TRAINER, POISON, CAUSE */
    uint32_t err;      /* cairn_err of REPAIR, RESTORE, VERIFY, RESUME, SPILL */
    const char *text;  /* plain (base/text.h); why and how; never NULL; borrowed or owned */
};

const char *history_kind_name(enum history_kind kind);
uint32_t history_kind_weight(enum history_kind kind);
bool history_kind_is_shared(enum history_kind kind);

/* An event of a kind, about nobody. */
struct history_event history_event_of(enum history_kind kind);

/* Packs into out[HISTORY_PACKED_BYTES_MAX]; returns the length, 0: the text is too long. */
size_t history_event_pack(const struct history_event *event, uint8_t *out);

/* Unpacks one whole event; its text goes to text[HISTORY_TEXT_BYTES], which *out borrows.
 * CAIRN_CORRUPT: malformed; CAIRN_VERSION: of another version. *out is untouched then. */
CAIRN_MUST_CHECK cairn_err history_event_unpack(const void *bytes, size_t bytes_len, char *text,
                                                struct history_event *out);

/* Writes what happened as one plain line: "committed steps 20 to 60 (5 generations)". Returns
 * out. */
const char *history_event_describe(const struct history_event *event, char *out, size_t out_bytes);

#endif
