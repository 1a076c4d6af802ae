/* replan/live/recording.c - the last steps of one rank; see recording.h. */
#include "replan/live/recording.h"

#include "replan/trace/read.h"
#include "replan/trace/record.h"
#include "replan/trace/topology.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HAS_SEQ = 1, IS_PLACE = 2 };

struct kept_step {
    uint32_t step;
    uint64_t first; /* of its operations, counted from the begin */
    enum cairn_recorded_compute compute;
    double compute_ns, work;
};

struct cairn_recording {
    struct cairn_recorded_op *ops; /* [room], by number modulo the size */
    uint64_t room;
    uint64_t taken;                                   /* operations, from the begin */
    struct kept_step steps[CAIRN_RECORDED_STEPS_MAX]; /* by number modulo the size */
    uint64_t begun;                                   /* steps, from the begin */
    uint64_t from;                                    /* the first one that was not forgotten */
    uint32_t lost_step;                               /* up to which nothing is taken */
};

cairn_err
cairn_recording_create(uint64_t bytes_max, struct cairn_recording **out)
{
    uint64_t room = bytes_max / sizeof(struct cairn_recorded_op);
    struct cairn_recording *recording;

    if (room == 0 || room > SIZE_MAX / sizeof(struct cairn_recorded_op))
        return CAIRN_INVAL;
    recording = calloc(1, sizeof *recording);
    if (!recording)
        return CAIRN_NOMEM;
    recording->room = room;
    recording->ops = calloc(room, sizeof *recording->ops); /* pages come as they are used */
    if (!recording->ops) {
        free(recording);
        return CAIRN_NOMEM;
    }
    *out = recording;
    return CAIRN_OK;
}

void
cairn_recording_destroy(struct cairn_recording *recording)
{
    if (!recording)
        return;
    free(recording->ops);
    free(recording);
}

static struct kept_step *
step_at(struct cairn_recording *recording, uint64_t number)
{
    return &recording->steps[number % CAIRN_RECORDED_STEPS_MAX];
}

static const struct kept_step *
look_at(const struct cairn_recording *recording, uint64_t number)
{
    return &recording->steps[number % CAIRN_RECORDED_STEPS_MAX];
}

void
cairn_recording_take(struct cairn_recording *recording, uint32_t step,
                     const struct cairn_recorded_op *op)
{
    if (step <= recording->lost_step)
        return;
    if (recording->begun == recording->from ||
        look_at(recording, recording->begun - 1)->step < step)
        *step_at(recording, recording->begun++) = (struct kept_step){
            .step = step, .first = recording->taken, .compute = CAIRN_RECORDED_UNKNOWN};
    recording->ops[recording->taken++ % recording->room] = *op;
}

void
cairn_recording_tell(struct cairn_recording *recording, uint32_t step,
                     enum cairn_recorded_compute compute, double compute_ns, double work)
{
    for (uint64_t at = recording->begun; at > recording->from; at--) {
        struct kept_step *kept = step_at(recording, at - 1);

        if (kept->step > step)
            continue;
        if (kept->step == step) {
            kept->compute = compute;
            kept->compute_ns = compute_ns;
            kept->work = work;
        }
        return;
    }
}

void
cairn_recording_lose(struct cairn_recording *recording, uint32_t step)
{
    recording->from = recording->begun;
    if (step > recording->lost_step)
        recording->lost_step = step;
}

uint32_t
cairn_recording_newest(const struct cairn_recording *recording)
{
    return recording->begun > recording->from ? look_at(recording, recording->begun - 1)->step : 0;
}

/* ---- packing ---- */

static void
write_double(struct cairn_writer *writer, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    cairn_write_u64(writer, bits);
}

static double
read_double(struct cairn_reader *reader)
{
    uint64_t bits = cairn_read_u64(reader);
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

void
cairn_recorded_pack_rank(const struct cairn_recorded_rank *rank, struct cairn_writer *writer)
{
    cairn_write_u32(writer, rank->rank);
    cairn_write_u32(writer, rank->world);
    cairn_write_u32(writer, (uint32_t)rank->presence);
    cairn_write_u64(writer, rank->now_ns);
}

void
cairn_recorded_pack_comm(const struct cairn_recorded_comm *comm, struct cairn_writer *writer)
{
    cairn_write_u64(writer, comm->hash);
    cairn_write_u32(writer, comm->ranks);
    cairn_write_u32(writer, comm->place);
}

static void
pack_op(const struct cairn_recorded_op *op, struct cairn_writer *writer)
{
    cairn_write_u8(writer, op->op);
    cairn_write_u8(writer, (uint8_t)((op->has_seq ? HAS_SEQ : 0) | (op->is_place ? IS_PLACE : 0)));
    cairn_write_u16(writer, op->comm);
    cairn_write_u32(writer, op->peer);
    cairn_write_u64(writer, op->seq);
    cairn_write_u64(writer, op->bytes);
    cairn_write_u64(writer, op->start_ns);
    cairn_write_u64(writer, op->end_ns);
}

static void
pack_step(const struct kept_step *step, uint32_t op_count, struct cairn_writer *writer)
{
    cairn_write_u32(writer, step->step);
    cairn_write_u8(writer, (uint8_t)step->compute);
    write_double(writer, step->compute_ns);
    write_double(writer, step->work);
    cairn_write_u32(writer, op_count);
}

/* The numbers of the first step to pack, and of the first after them: those with the names
 * (until - steps, until]. */
static void
choose_steps(const struct cairn_recording *recording, uint32_t steps, uint32_t until,
             uint64_t *first, uint64_t *end)
{
    uint64_t oldest = recording->from;

    if (recording->begun - oldest > CAIRN_RECORDED_STEPS_MAX)
        oldest = recording->begun - CAIRN_RECORDED_STEPS_MAX;
    while (oldest < recording->begun &&
           look_at(recording, oldest)->first + recording->room < recording->taken)
        oldest++; /* its first operations are overwritten */
    *end = recording->begun;
    while (*end > oldest && look_at(recording, *end - 1)->step > until)
        --*end;
    *first = *end;
    while (*first > oldest && until - look_at(recording, *first - 1)->step < steps)
        --*first;
}

void
cairn_recording_pack(const struct cairn_recording *recording, uint32_t steps, uint32_t until,
                     uint32_t open_step, const struct cairn_recorded_op *open, uint32_t open_count,
                     struct cairn_writer *writer)
{
    struct kept_step alone = {.step = open_step, .compute = CAIRN_RECORDED_UNKNOWN};
    uint64_t first, end;
    bool joins, adds;

    if (until == 0)
        until = open_count > 0 && open_step > cairn_recording_newest(recording)
                    ? open_step
                    : cairn_recording_newest(recording);
    if (open_step == 0 || open_step > until)
        open_count = 0;
    adds = open_count > 0 && cairn_recording_newest(recording) < open_step;
    choose_steps(recording, steps, until, &first, &end);
    joins = open_count > 0 && end > first && look_at(recording, end - 1)->step == open_step;
    cairn_write_u32(writer, (uint32_t)(end - first) + adds);
    for (uint64_t at = first; at < end; at++) {
        uint64_t op = look_at(recording, at)->first;
        uint64_t last =
            at + 1 < recording->begun ? look_at(recording, at + 1)->first : recording->taken;
        bool with_open = joins && at + 1 == end;

        pack_step(look_at(recording, at), (uint32_t)(last - op) + (with_open ? open_count : 0),
                  writer);
        for (; op < last; op++)
            pack_op(&recording->ops[op % recording->room], writer);
        for (uint32_t i = 0; with_open && i < open_count; i++)
            pack_op(&open[i], writer);
    }
    if (!adds)
        return;
    pack_step(&alone, open_count, writer);
    for (uint32_t i = 0; i < open_count; i++)
        pack_op(&open[i], writer);
}

/* ---- unpacking ---- */

void
cairn_recorded_unpack_rank(struct cairn_reader *reader, struct cairn_recorded_rank *out)
{
    uint32_t presence;

    out->rank = cairn_read_u32(reader);
    out->world = cairn_read_u32(reader);
    presence = cairn_read_u32(reader);
    out->now_ns = cairn_read_u64(reader);
    if (out->world == 0 || out->world > CAIRN_TOPOLOGY_WORLD_MAX || out->rank >= out->world ||
        presence < CAIRN_PRESENCE_RUNS || presence > CAIRN_PRESENCE_GONE ||
        out->now_ns > CAIRN_TRACE_NS_MAX)
        reader->failed = true;
    out->presence = (enum cairn_presence)presence;
}

void
cairn_recorded_unpack_comm(struct cairn_reader *reader, struct cairn_recorded_comm *out)
{
    out->hash = cairn_read_u64(reader);
    out->ranks = cairn_read_u32(reader);
    out->place = cairn_read_u32(reader);
    if (out->ranks > CAIRN_TOPOLOGY_WORLD_MAX ||
        (out->place != CAIRN_PLACE_NONE && out->place >= CAIRN_TOPOLOGY_WORLD_MAX))
        reader->failed = true;
}

void
cairn_recorded_unpack_step(struct cairn_reader *reader, struct cairn_recorded_step *out)
{
    uint8_t compute;

    out->step = cairn_read_u32(reader);
    compute = cairn_read_u8(reader);
    out->compute_ns = read_double(reader);
    out->work = read_double(reader);
    out->op_count = cairn_read_u32(reader);
    if (out->step == 0 || out->step >= UINT32_MAX - 1 || compute >= CAIRN_RECORDED_COMPUTES ||
        !(out->compute_ns >= 0 && out->compute_ns <= (double)CAIRN_TRACE_NS_MAX) ||
        !(out->work >= 0 && isfinite(out->work)) ||
        out->op_count > cairn_reader_left(reader) / CAIRN_RECORDED_OP_BYTES)
        reader->failed = true;
    out->compute = (enum cairn_recorded_compute)compute;
}

void
cairn_recorded_unpack_op(struct cairn_reader *reader, struct cairn_recorded_op *out)
{
    uint8_t flags;

    out->op = cairn_read_u8(reader);
    flags = cairn_read_u8(reader);
    out->comm = cairn_read_u16(reader);
    out->peer = cairn_read_u32(reader);
    out->seq = cairn_read_u64(reader);
    out->bytes = cairn_read_u64(reader);
    out->start_ns = cairn_read_u64(reader);
    out->end_ns = cairn_read_u64(reader);
    out->has_seq = (flags & HAS_SEQ) != 0;
    out->is_place = (flags & IS_PLACE) != 0;
    if (out->op == 0 || out->op >= CAIRN_OPS || flags > (HAS_SEQ | IS_PLACE) ||
        out->start_ns > CAIRN_TRACE_NS_MAX || out->end_ns > CAIRN_TRACE_NS_MAX)
        reader->failed = true;
}
