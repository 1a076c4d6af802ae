/* replan/live/reduce_record.c - the recording of one rank: the operations that its reduction took,
 * and those under way; see recording.h. */
#include "replan/live/reduce_state.h"

/* An operation by the recording's numbers. */
static struct cairn_recorded_op
op_of(const struct cairn_reduce *reduce, uint32_t comm, uint32_t peer, uint8_t op)
{
    struct cairn_recorded_op out = {.op = op, .peer = CAIRN_PEER_NONE, .comm = (uint16_t)comm};

    if (op >= CAIRN_SEND) {
        const struct reduce_pair *pair = &reduce->pairs[peer];

        out.comm = (uint16_t)pair->comm;
        out.peer = pair->peer;
        out.is_place = pair->is_place;
    }
    return out;
}

void
reduce_record(struct cairn_reduce *reduce, const struct cairn_record *record)
{
    struct cairn_recorded_op op = op_of(reduce, record->comm, record->peer, record->op);

    op.seq = record->seq;
    op.has_seq = record->has_seq;
    op.bytes = record->bytes;
    op.start_ns = record->start_ns;
    op.end_ns = record->end_ns;
    cairn_recording_take(reduce->recording, record->step, &op);
}

void
cairn_reduce_pack_recording(const struct cairn_reduce *reduce, uint32_t steps, uint32_t until,
                            enum cairn_presence presence, uint64_t now_ns,
                            struct cairn_writer *writer)
{
    struct cairn_recorded_rank rank = {.rank = reduce->options.rank,
                                       .world = reduce->options.world,
                                       .presence = presence,
                                       .now_ns = now_ns};
    struct cairn_recorded_op open[CAIRN_INTAKE_OPEN];
    uint32_t open_count = presence == CAIRN_PRESENCE_GONE ? 0 : reduce->intake.open_count;

    cairn_recorded_pack_rank(&rank, writer);
    cairn_write_u32(writer, reduce->comm_count);
    for (uint32_t i = 0; i < reduce->comm_count; i++)
        cairn_recorded_pack_comm(&(struct cairn_recorded_comm){.hash = reduce->comms[i].hash,
                                                               .ranks = reduce->comms[i].ranks,
                                                               .place = reduce->comms[i].place},
                                 writer);
    for (uint32_t i = 0; i < open_count; i++) {
        const struct cairn_open *from = &reduce->intake.open[i];

        open[i] = op_of(reduce, from->comm, from->peer, from->op);
        open[i].seq = from->seq;
        open[i].has_seq = from->seq > 0;
        open[i].start_ns = from->start_ns;
    }
    if (!reduce->recording)
        cairn_write_u32(writer, 0);
    else
        cairn_recording_pack(reduce->recording, steps, until, reduce->intake.step, open, open_count,
                             writer);
}
