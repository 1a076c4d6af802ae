/*
 * agent/core/part/encode.h - the own stripe: this agent folds its data chunks into all parity rows,
 * keeps row 0, and forwards the others to their owners.
 *
 * The stripe of a position is the one whose row 0 it keeps. So each block is sent once, to one
 * encoder, and (m - 1) / k finished blocks follow it: a group of k + m sends (k + m - 1) / k bytes
 * per byte of state.
 *
 *   fold      adds the blocks of each chunk strictly in order. So a count says exactly which are
 *             folded, and a repeat is recognized: folding it again would remove its bytes.
 *   compare   a chain of the folded blocks' checksums must equal that of the member's seal.
 *   forward   a line is finished when all chunks have it or end before it. The last line leaves
 *             only when the stripe equals all seals: an owner with all lines of a row knows that
 *             the row is right.
 *
 * Row 0 is folded where it stays, the other rows in a ring of `ring_lines`. A line keeps its place
 * there until every owner has reported it; `until` in RECEIVED holds members back that are a ring
 * ahead of the slowest. The part waits for all reports before it is complete, so a complete part
 * never needs the ring.
 */
#ifndef CAIRN_AGENT_CORE_PART_ENCODE_H
#define CAIRN_AGENT_CORE_PART_ENCODE_H

#include "agent/core/part/save.h"

enum folded { FOLDED_NOT_YET, FOLDED_ALL, FOLDED_WRONG };

/* Whether all of a member's chunk in the own stripe is folded and equals its seal. */
enum folded encode_compare(const struct part *part, uint32_t position);
/* Adds the blocks of a DATA message from `skip` on. */
void encode_fold(struct env *env, struct part *part, const struct cairn_message *message,
                 uint32_t position, uint32_t skip);
/* How far a member may send of its chunk now. */
uint64_t encode_until(const struct env *env, const struct part *part, uint32_t position);
/* Lines that every owner of a row has reported: their places in the ring are free. */
uint64_t encode_released(const struct part *part);
/* Lines whose parity is finished and may leave, of all rows but row 0. */
uint64_t encode_finished_lines(const struct env *env, const struct part *part);
/* Tells the sender of a chunk of the own stripe (row 0), or the encoder of a row, how far it has
 * arrived, and how far it may send. again: send again from there on. */
void encode_answer(struct env *env, struct part *part, uint32_t position, uint32_t row, bool again);
/* Lets members go on that the ring has held back. Others are answered when they send. */
void encode_let_go_on(struct env *env, struct part *part);

#endif
