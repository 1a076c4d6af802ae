/*
 * agent/core/repair/repair.h - taking part in a repair: as worker (reads, decodes, sends) and as
 * target (receives, checks, keeps).
 *
 * A coordinator's plan says for each member of one generation who holds its part and who gets it.
 * Every agent that holds a part of a group with work iterates the same schedule (erasure/repair.h)
 * and carries out the items that name its position: READ the source blocks from their holders,
 * decode, WRITE each rebuilt block to its target. A target that has nothing first asks one holder
 * of its group for all seals of the group, piece by piece (RECEIVED and SEAL with the attempt's
 * number). It compares each data block with its member's seal before it keeps it, so a wrong decode
 * is never taken.
 *
 * A session keeps order and loses nothing. When a new one begins, what was asked for and not
 * answered is asked for again; a block that comes twice is written once. A target that is not ready
 * yet takes nothing, and tells the group when it is. So nothing here needs a timer.
 *
 * repair.c begins and ends it, worker.c and target.c are the two roles, plan.c packs plans and
 * tells the coordinator how far this agent is.
 */
#ifndef CAIRN_AGENT_CORE_REPAIR_REPAIR_H
#define CAIRN_AGENT_CORE_REPAIR_REPAIR_H

#include "agent/core/part/save.h"

/* Decoded at the same time by one agent: one is read while another is written. With more, what lies
 * in sockets and buffers falls out of the processors' caches. */
enum { REPAIR_ITEMS_MAX = 2 };

/* A plan, packed and unpacked by plan.c. Bad blocks' positions are MEMBER numbers here. */
struct plan {
    struct cairn_roster *roster;
    uint32_t *holders; /* [member_count]: who holds the part now, UINT32_MAX nobody */
    uint32_t *targets; /* [member_count]: who gets it (or its bad blocks), UINT32_MAX nobody */
    struct cairn_bad_block *bad;
    uint32_t bad_count;
};

void plan_fini(struct plan *plan);
CAIRN_MUST_CHECK cairn_err plan_pack(const struct plan *plan, uint8_t **bytes, size_t *len);
CAIRN_MUST_CHECK cairn_err plan_read(const void *bytes, size_t len, uint32_t agent_count,
                                     struct plan *out);

/* An item being carried out by this agent. */
struct repair_item {
    bool used;
    uint32_t worker;
    uint64_t request; /* tells answers to this item from those to its predecessors */
    struct cairn_repair_item plan;
    uint64_t needed;    /* positions still to be read, as a set */
    uint64_t unwritten; /* positions whose WRITTEN is missing, as a set */
    bool decoded;
    uint32_t refused; /* damaged answers in a row */
};

/* One part of this agent that works for the repair of its group. */
struct repair_worker {
    uint32_t part;
    uint32_t member;
    struct cairn_stripes stripes;
    struct cairn_repair schedule;
    struct cairn_bad_block *bad; /* of the group, by position; owned */
};

struct repair {
    bool active;
    uint32_t coordinator;
    uint64_t attempt;
    struct cairn_generation_id generation;
    struct plan plan;
    struct repair_worker workers[CAIRN_PARTS_MAX];
    uint32_t worker_count;
    struct repair_item items[REPAIR_ITEMS_MAX];
    bool decoding[REPAIR_ITEMS_MAX]; /* DECODED has not come: the scratch is in use, even if the
                                        item is gone */
    bool failed;
};

/* Ends the part that this agent takes, and drops what is not complete. */
void repair_stop(struct env *env, struct repair *repair);
/* The same if that agent is its coordinator. */
void repair_end(struct env *env, struct repair *repair, uint32_t coordinator);
/* Takes REBUILD. */
void repair_begin(struct env *env, struct repair *repair, const struct cairn_message *message);
/* Takes READ, BLOCKS, WRITE, WRITTEN, and SEAL and RECEIVED that carry an attempt. READ and
 * RECEIVED ask for what any complete part here has, whether a repair is known here or not. */
void repair_message(struct env *env, struct repair *repair, const struct cairn_message *message,
                    bool payload_ok);
/* Takes OPENED of a REBUILDING part. */
void repair_opened(struct env *env, struct repair *repair, struct part *part,
                   const struct cairn_event_answer *answer);
void repair_decoded(struct env *env, struct repair *repair,
                    const struct cairn_event_decoded *decoded);
void repair_peer_up(struct env *env, struct repair *repair, uint32_t agent);

/* ---- between the files of the repair ---- */

/* True if the packed checksums of `count` blocks are those. */
bool crcs_match(const uint64_t *crcs, uint32_t count, const uint8_t *packed);
/* True if a part of the group of a member is lost or damaged. */
bool plan_has_work(const struct plan *plan, uint32_t member);
/* Tells the coordinator how far a part is. */
void repair_report(struct env *env, const struct repair *repair, const struct part *part);
/* Tells it that this agent cannot go on; nothing new is begun. */
void repair_fail(struct env *env, struct repair *repair, uint32_t member, cairn_err err,
                 bool proved);

/* Makes a complete part a worker of its group. */
CAIRN_MUST_CHECK cairn_err worker_add(const struct env *env, struct repair *repair,
                                      struct part *part);
/* Begins items while there is scratch. */
void worker_run(struct env *env, struct repair *repair);
void worker_stop(struct env *env, struct repair *repair);
void worker_blocks(struct env *env, struct repair *repair, const struct cairn_message *message,
                   bool payload_ok);
void worker_written(struct env *env, struct repair *repair, const struct cairn_message *message);
void worker_peer_up(struct env *env, struct repair *repair, uint32_t agent);

/* Opens the part of a member that this agent gets, or marks its damaged blocks. */
CAIRN_MUST_CHECK cairn_err target_open(struct env *env, struct repair *repair, uint32_t member);
/* Ends the writing of a part; what it wrote stays. */
void target_end(struct part *part);
void target_seal(struct env *env, struct repair *repair, const struct cairn_message *message);
/* cairn_core_place. */
bool target_place(const struct env *env, const struct repair *repair, uint32_t from, uint64_t place,
                  uint32_t count, struct cairn_action_place *out);
/* Asks again for seals that are missing. */
void target_peer_up(struct env *env, const struct repair *repair);
void target_write(struct env *env, struct repair *repair, const struct cairn_message *message,
                  bool payload_ok);

#endif
