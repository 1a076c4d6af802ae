/*
 * replan/live/recording.h - the last steps of one rank, kept on its node: the operations that its
 * reduction took, for `cairn trace` and the verbs that read a trace.
 *
 * A ring of operations and a ring of steps, both of fixed size. New operations replace the oldest,
 * and a step counts only while all its operations are there. When records were lost, everything
 * before is forgotten and the step under way is left out, since a trace cannot tell a lost
 * operation from computation.
 *
 * Packed by base/wire.h, one rank after the other:
 *
 *   u32 rank, u32 world, u32 presence (enum cairn_presence), u64 now_ns
 *   u32 communicators:  u64 hash, u32 ranks (0 unknown), u32 place (CAIRN_PLACE_NONE)
 *   u32 steps:          u32 step, u8 enum cairn_recorded_compute, u64 compute_ns (the bits of a
 *                       double), u64 work (the same; 0 unknown), u32 operations
 *       each operation: u8 op, u8 flags, u16 communicator, u32 peer, u64 seq, u64 bytes,
 *                       u64 start_ns, u64 end_ns (0: still open)
 *
 * Times are those of the node's clock, which is compared with no other.
 */
#ifndef CAIRN_REPLAN_LIVE_RECORDING_H
#define CAIRN_REPLAN_LIVE_RECORDING_H

#include "base/wire.h"
#include "replan/live/report.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    CAIRN_RECORDED_STEPS_MAX = 1024,
    CAIRN_RECORDED_COMMS_MAX = 256,
    CAIRN_RECORDED_OP_BYTES = 40 /* packed */
};

/* Where a step's computation comes from. */
enum cairn_recorded_compute {
    CAIRN_RECORDED_GAPS = 0,    /* the gaps between operations */
    CAIRN_RECORDED_TOLD = 1,    /* the trainer recorded it */
    CAIRN_RECORDED_UNKNOWN = 2, /* it cannot be known */
    CAIRN_RECORDED_COMPUTES
};

struct cairn_recorded_comm {
    uint64_t hash;
    uint32_t ranks; /* 0 unknown */
    uint32_t place; /* of the rank in it, CAIRN_PLACE_NONE */
};

struct cairn_recorded_op {
    uint64_t seq, bytes;
    uint64_t start_ns, end_ns; /* end 0: still open */
    uint32_t peer;             /* of send and recv, else CAIRN_PEER_NONE */
    uint16_t comm;             /* index in the rank's communicators */
    uint8_t op;                /* enum cairn_collective */
    bool has_seq;
    bool is_place; /* the peer is a place in the communicator, not a global rank */
};

struct cairn_recorded_step {
    uint32_t step;
    enum cairn_recorded_compute compute;
    double compute_ns; /* where it was told */
    double work;       /* 0 unknown */
    uint32_t op_count;
};

/* What stands in front of a rank's communicators. */
struct cairn_recorded_rank {
    uint32_t rank, world;
    enum cairn_presence presence;
    uint64_t now_ns;
};

struct cairn_recording;

/* Keeps at most bytes_max of operations. CAIRN_NOMEM; CAIRN_INVAL: there is no room for one. The
 * caller ends *out with cairn_recording_destroy. */
CAIRN_MUST_CHECK cairn_err cairn_recording_create(uint64_t bytes_max, struct cairn_recording **out);
void cairn_recording_destroy(struct cairn_recording *recording); /* NULL is allowed */

/* Takes an operation that has ended, of `step`, which never decreases. */
void cairn_recording_take(struct cairn_recording *recording, uint32_t step,
                          const struct cairn_recorded_op *op);

/* Tells what a step's computation was, if the step is kept; until then it is unknown. */
void cairn_recording_tell(struct cairn_recording *recording, uint32_t step,
                          enum cairn_recorded_compute compute, double compute_ns, double work);

/* Records were lost, in `step` or before it. */
void cairn_recording_lose(struct cairn_recording *recording, uint32_t step);

/* The newest step that is kept; 0: none. */
uint32_t cairn_recording_newest(const struct cairn_recording *recording);

/*
 * Packs the steps that are named until - steps + 1 to `until` (0: the newest). open[open_count]
 * are the operations under way, in step `open_step`; they are packed with that step if `until`
 * allows it.
 */
void cairn_recording_pack(const struct cairn_recording *recording, uint32_t steps, uint32_t until,
                          uint32_t open_step, const struct cairn_recorded_op *open,
                          uint32_t open_count, struct cairn_writer *writer);

/* ---- the parts of what is packed, in their order ---- */

void cairn_recorded_pack_rank(const struct cairn_recorded_rank *rank, struct cairn_writer *writer);
void cairn_recorded_pack_comm(const struct cairn_recorded_comm *comm, struct cairn_writer *writer);

/* What is out of bounds is the reader's failure, and *out is then of no use. */
void cairn_recorded_unpack_rank(struct cairn_reader *reader, struct cairn_recorded_rank *out);
void cairn_recorded_unpack_comm(struct cairn_reader *reader, struct cairn_recorded_comm *out);
void cairn_recorded_unpack_step(struct cairn_reader *reader, struct cairn_recorded_step *out);
void cairn_recorded_unpack_op(struct cairn_reader *reader, struct cairn_recorded_op *out);

#endif
