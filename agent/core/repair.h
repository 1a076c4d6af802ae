/*
 * agent/core/repair.h - taking part in a repair: as worker (reads, decodes, sends) and as target
 * (receives, checks, keeps).
 *
 * A coordinator's plan says for each member of one generation who holds its part and who gets it.
 * Every agent that holds a part of a group with work iterates the same schedule (erasure/repair.h)
 * and carries out the items that name its position: READ the source blocks from their holders,
 * decode, WRITE each rebuilt block to its target. The lowest intact position of a group also sends
 * all seals of the group to each target that has nothing (SEAL with the attempt's number). A target
 * compares each data block with its member's seal before it keeps it, so a wrong decode is never
 * taken.
 *
 * A session keeps order and loses nothing. When a new one begins, what was asked for and not
 * answered is asked for again; writing a block twice changes nothing.
 */
#ifndef CAIRN_AGENT_CORE_REPAIR_H
#define CAIRN_AGENT_CORE_REPAIR_H

#include "agent/core/part.h"

enum { REPAIR_ITEMS_MAX = 4 }; /* decoded at the same time by one agent */

/* A plan, packed and unpacked by plan.c. Bad blocks' positions are MEMBER numbers here. */
struct plan {
    struct cairn_roster *roster;
    uint32_t *holders; /* [member_count]: who holds the part now, UINT32_MAX nobody */
    uint32_t *targets; /* [member_count]: who gets it (or its bad blocks), UINT32_MAX nobody */
    struct cairn_bad_block *bad;
    uint32_t bad_count;
};

void plan_fini(struct plan *plan);
void plan_write(const struct plan *plan, struct cairn_writer *writer);
CAIRN_MUST_CHECK cairn_err plan_read(struct cairn_reader *reader, uint32_t agent_count,
                                     struct plan *out);

/* An item being carried out by this agent. */
struct repair_item {
    bool used;
    uint32_t worker;
    uint64_t request; /* tells answers to this item from those to its predecessors */
    struct cairn_repair_item plan;
    uint64_t needed;    /* positions still to be read, as a set */
    uint64_t unwritten; /* positions whose WRITTEN is missing, as a set */
    bool decoding;
    bool decoded;
    uint32_t refused; /* damaged answers in a row */
};

/* One part of this agent that works for the repair of its group. */
struct repair_worker {
    uint32_t part;
    bool exhausted;
    struct cairn_stripes stripes;
    struct cairn_repair schedule;
    struct cairn_bad_block *bad; /* of the group, by position; owned */
    struct flow *pushes; /* [n * n]: target position * n + seal position; NULL: another pushes */
};

struct repair {
    bool active;
    uint32_t coordinator;
    uint64_t attempt;
    uint64_t number; /* of the plan */
    struct cairn_generation generation;
    struct plan plan;
    struct repair_worker workers[CAIRN_PARTS_MAX];
    uint32_t worker_count;
    struct repair_item items[REPAIR_ITEMS_MAX];
    bool decoding[REPAIR_ITEMS_MAX]; /* DECODED has not come: the scratch is in use, even if the
                                        item is gone */
    bool failed;
};

/* Ends the part that this agent takes. Parts that are complete stay; REBUILDING ones stay for the
 * next plan of the same generation, and are dropped with drop_parts. */
void repair_stop(struct env *env, struct repair *repair, struct parts *parts, bool drop_parts);
/* Takes REBUILD. */
void repair_begin(struct env *env, struct repair *repair, struct parts *parts,
                  const struct cairn_message *message);
/* Takes READ, BLOCKS, WRITE, WRITTEN, and SEAL and RECEIVED that carry an attempt. */
void repair_message(struct env *env, struct repair *repair, struct parts *parts,
                    const struct cairn_message *message, bool payload_ok);
/* Takes OPENED or FINISHED of a REBUILDING part. */
void repair_opened(struct env *env, struct repair *repair, struct parts *parts,
                   const struct cairn_event_answer *answer);
void repair_finished(struct env *env, struct repair *repair, struct parts *parts,
                     const struct cairn_event_answer *answer);
void repair_decoded(struct env *env, struct repair *repair, struct parts *parts,
                    const struct cairn_event_decoded *decoded);
void repair_peer_up(struct env *env, struct repair *repair, struct parts *parts, uint32_t agent);

#endif
