/*
 * agent/core/part/save.h - the own part of a generation: captured blocks and the seal go to the
 * group; the parity that this agent keeps for the group is folded, compared and finished.
 *
 *   capture   blocks arrive in order per rank; each is sent at once to the encoder of its stripe
 *             (capture.c, outflow.h)
 *   seal      when all local ranks are done: checksums and manifest go to every member of the group
 *   encode    the blocks of the own stripe are folded into all its parity rows, and the rows that
 *             others keep are forwarded (encode.c)
 *   finish    own part sealed, all seals here, the own stripe equal to them, all other rows here;
 *             own blocks, seal and rows reported by all that need them: checksum the parity, store
 *             the record (fold.c). So nobody needs anything from a complete part any more.
 */
#ifndef CAIRN_AGENT_CORE_PART_SAVE_H
#define CAIRN_AGENT_CORE_PART_SAVE_H

#include "agent/core/part/part.h"

enum {
    WINDOW_BLOCKS = 64, /* of one flow, sent and not acknowledged, where there is room */
    SEAL_PART_BYTES = 49152,
    SEAL_WINDOW_BYTES = 4 * SEAL_PART_BYTES, /* the same of a seal */
    CORRUPT_DATA_MAX = 8 /* damaged messages in a row before the generation is aborted */
};

/* Those that return a reason have found that the part cannot be completed, and the caller drops it;
 * 0: it can. */

/* ---- capture.c: the local trainers ---- */
/* Prepares a part opened for capture. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err save_prepare(const struct env *env, struct part *part, uint64_t blocks);
/* Whether the group's members have memory for the parity of a part of that many blocks. */
bool save_parity_fits(const struct cairn_core_options *options,
                      const struct cairn_roster_group *group, uint64_t blocks);
/* Takes captured blocks, and sends. */
void save_blocks(struct env *env, struct part *part, const struct cairn_event_blocks *blocks);
/* A rank is done (UINT32_MAX: there are none); everyone: the set of all local ranks. Asks for the
 * seal after the last. */
enum cairn_abort save_captured(struct env *env, struct part *part, uint32_t rank,
                               uint64_t everyone);
/* Takes SEALED, and sends the seal. */
enum cairn_abort save_sealed(struct env *env, struct part *part,
                             const struct cairn_event_answer *answer);
/* ---- outflow.c: what goes out ---- */
/* A session with a member of the group begins, and it is level: goes back to what it has
 * acknowledged, and sends. */
void save_peer_up(struct env *env, struct part *part, uint32_t agent);

/* ---- fold.c: the group's parity comes in ---- */
/* Takes DATA, and answers RECEIVED. */
enum cairn_abort save_data(struct env *env, struct part *part, const struct cairn_message *message,
                           bool payload_ok);
/* Takes SEAL, and answers RECEIVED. */
enum cairn_abort save_seal(struct env *env, struct part *part, const struct cairn_message *message);
/* Takes a piece of the seal of a member of the part's group, and answers RECEIVED; false if it was
 * damaged or did not follow what is here. */
bool save_take_seal(struct env *env, struct part *part, const struct cairn_message *message,
                    bool *damaged);
/* Takes RECEIVED of the own part or of a row that it encodes, and sends more. */
enum cairn_abort save_received(struct env *env, struct part *part,
                               const struct cairn_message *message);
/* Asks for the parity's checksums once everything is folded and equals the seals. */
enum cairn_abort save_try_finish(struct env *env, struct part *part);
/* Takes FINISHED: stores the record. */
enum cairn_abort save_finished(struct env *env, struct part *part,
                               const struct cairn_event_answer *answer);
/* What the part waits for, 0 for nothing; for_agent UINT32_MAX: this agent. */
enum cairn_wait save_waits_for(const struct env *env, struct part *part, uint64_t everyone,
                               uint32_t *for_agent);

#endif
