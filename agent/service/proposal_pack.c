/*
 * agent/service/proposal_pack.c - the book of placements as bytes, little-endian (base/wire.h):
 *
 *   u64 mark  u64 version  u64 last number
 *   offer, waiting, before    as below; only a u32 0 if there is none
 *   relaunch, shape           the same, then u32 tp  u32 count  u32 nodes[count]
 *   u64 relaunch_ns
 *   u32 all denied  u32 count  { u64 name  u64 until_wall_ns }[count]  slow
 *   u64 doubt_until_wall_ns
 *   u32 count  { u64 number  u32 end  u32 node  u64 token  u64 wall_ns }[count]
 *   u32 count  u64 away_wall_ns[count]
 *   u32 count  { u64 wall_ns  u64 standstill_ns }[count]
 *   u32 count  u64 standstills_ns[count]
 *   u32 count  story[count]
 *
 *   proposal  u32 replicas  u64 number  u32 shares[replicas]
 *             u32 stages  u32 layers[replicas][stages]
 *             u32 home  u32 action  f64 current_ms step_ms running_ms bound_ms cost_ms
 *             u64 payback_steps moved_layers moved_bytes made_wall_ns evidence_wall_ns
 *             u32 decided node  slow  { f64 step_ms  f64 cost_ms }[CAIRN_REPLAN_COUNT]
 *             u32 refusing gates  u64 refused_ns
 *   story     u64 number withdraws  u32 fate  u32 length  u8 text[length]
 *             u32 home relaunch action
 *             f64 current_ms running_ms step_ms bound_ms cost_ms  u64 moved_layers moved_bytes
 *             u32 decided node  slow  { f64 step_ms  f64 cost_ms }[CAIRN_REPLAN_COUNT]
 *             u32 refusing gates  u64 refused_ns  u64 offered_wall_ns taken_wall_ns ended_wall_ns
 *             f64 before_ms expected_ms after_ms  u64 standstill_ns
 *   slow      u32 count  { u64 rank  f64 rate }[the lesser of count and PROPOSAL_SLOW_MAX]
 */
#include "agent/service/proposal.h"

#include "base/wire.h"

#include <math.h>
#include <string.h>

static const uint64_t mark = UINT64_C(0x356b6f6f62706e63); /* "cnpbook5" */

/* ---- packing ---- */

static void
write_double(struct cairn_writer *writer, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    cairn_write_u64(writer, bits);
}

static uint32_t
listed(const struct proposal_slow *slow)
{
    return slow->count < PROPOSAL_SLOW_MAX ? slow->count : PROPOSAL_SLOW_MAX;
}

static void
pack_slow(struct cairn_writer *writer, const struct proposal_slow *slow)
{
    cairn_write_u32(writer, slow->count);
    for (uint32_t i = 0; i < listed(slow); i++) {
        cairn_write_u64(writer, slow->ranks[i]);
        write_double(writer, slow->rates[i]);
    }
}

static void
pack_alternatives(struct cairn_writer *writer, const struct cairn_offer *alternatives)
{
    for (uint32_t i = 0; i < CAIRN_REPLAN_COUNT; i++) {
        write_double(writer, alternatives[i].step_ms);
        write_double(writer, alternatives[i].cost_ms);
    }
}

static void
pack_refused(struct cairn_writer *writer, const struct proposal_refused *refused)
{
    cairn_write_u32(writer, refused->gates);
    cairn_write_u64(writer, refused->ns);
}

static void
pack_proposal(struct cairn_writer *writer, const struct proposal *proposal)
{
    const struct cairn_session_shares *placement = &proposal->placement;

    cairn_write_u32(writer, placement->count);
    if (placement->count == 0)
        return;
    cairn_write_u64(writer, placement->number);
    for (uint32_t i = 0; i < placement->count; i++)
        cairn_write_u32(writer, placement->parts[i]);
    cairn_write_u32(writer, placement->stages);
    for (uint32_t i = 0; i < placement->count * placement->stages; i++)
        cairn_write_u32(writer, placement->layers[i]);
    cairn_write_u32(writer, proposal->is_home);
    cairn_write_u32(writer, (uint32_t)proposal->action);
    write_double(writer, proposal->current_ms);
    write_double(writer, proposal->step_ms);
    write_double(writer, proposal->running_ms);
    write_double(writer, proposal->bound_ms);
    write_double(writer, proposal->cost_ms);
    cairn_write_u64(writer, proposal->payback_steps);
    cairn_write_u64(writer, proposal->moved_layers);
    cairn_write_u64(writer, proposal->moved_bytes);
    cairn_write_u64(writer, proposal->made_wall_ns);
    cairn_write_u64(writer, proposal->evidence_wall_ns);
    cairn_write_u32(writer, proposal->decided);
    cairn_write_u32(writer, proposal->node);
    pack_slow(writer, &proposal->slow);
    pack_alternatives(writer, proposal->alternatives);
    pack_refused(writer, &proposal->refused);
}

static void
pack_shaped(struct cairn_writer *writer, const struct proposal *proposal)
{
    pack_proposal(writer, proposal);
    if (proposal->placement.count == 0)
        return;
    cairn_write_u32(writer, proposal->shape.tp);
    cairn_write_u32(writer, proposal->shape.node_count);
    for (uint32_t i = 0; i < proposal->shape.node_count; i++)
        cairn_write_u32(writer, proposal->shape.nodes[i]);
}

static void
pack_story(struct cairn_writer *writer, const struct proposal_story *story)
{
    uint32_t length = (uint32_t)strnlen(story->text, PROPOSAL_TEXT_BYTES - 1);

    cairn_write_u64(writer, story->number);
    cairn_write_u64(writer, story->withdraws);
    cairn_write_u32(writer, (uint32_t)story->fate);
    cairn_write_u32(writer, length);
    cairn_write_bytes(writer, story->text, length);
    cairn_write_u32(writer, story->is_home);
    cairn_write_u32(writer, story->is_relaunch);
    cairn_write_u32(writer, (uint32_t)story->action);
    write_double(writer, story->current_ms);
    write_double(writer, story->running_ms);
    write_double(writer, story->step_ms);
    write_double(writer, story->bound_ms);
    write_double(writer, story->cost_ms);
    cairn_write_u64(writer, story->moved_layers);
    cairn_write_u64(writer, story->moved_bytes);
    cairn_write_u32(writer, story->decided);
    cairn_write_u32(writer, story->node);
    pack_slow(writer, &story->slow);
    pack_alternatives(writer, story->alternatives);
    pack_refused(writer, &story->refused);
    cairn_write_u64(writer, story->offered_wall_ns);
    cairn_write_u64(writer, story->taken_wall_ns);
    cairn_write_u64(writer, story->ended_wall_ns);
    write_double(writer, story->before_ms);
    write_double(writer, story->expected_ms);
    write_double(writer, story->after_ms);
    cairn_write_u64(writer, story->standstill_ns);
}

size_t
proposal_pack(const struct proposal_book *book, uint8_t bytes[PROPOSAL_BOOK_BYTES_MAX])
{
    struct cairn_writer writer;

    cairn_writer_init(&writer, bytes, PROPOSAL_BOOK_BYTES_MAX);
    cairn_write_u64(&writer, mark);
    cairn_write_u64(&writer, book->version);
    cairn_write_u64(&writer, book->last_number);
    pack_proposal(&writer, &book->offer);
    pack_proposal(&writer, &book->waiting);
    pack_proposal(&writer, &book->before);
    pack_shaped(&writer, &book->relaunch);
    pack_shaped(&writer, &book->shape);
    cairn_write_u64(&writer, book->relaunch_ns);
    cairn_write_u32(&writer, book->is_all_denied);
    cairn_write_u32(&writer, book->denied_count);
    for (uint32_t i = 0; i < book->denied_count; i++) {
        cairn_write_u64(&writer, book->denied[i].name);
        cairn_write_u64(&writer, book->denied[i].until_wall_ns);
    }
    pack_slow(&writer, &book->denied_at);
    cairn_write_u64(&writer, book->doubt_until_wall_ns);
    cairn_write_u32(&writer, book->ended_count);
    for (uint32_t i = 0; i < book->ended_count; i++) {
        const struct proposal_ended *ended = &book->ended[i];

        cairn_write_u64(&writer, ended->number);
        cairn_write_u32(&writer, (uint32_t)ended->end);
        cairn_write_u32(&writer, ended->node);
        cairn_write_u64(&writer, ended->token);
        cairn_write_u64(&writer, ended->wall_ns);
    }
    cairn_write_u32(&writer, book->away_count);
    for (uint32_t i = 0; i < book->away_count; i++)
        cairn_write_u64(&writer, book->away_wall_ns[i]);
    cairn_write_u32(&writer, book->spent_count);
    for (uint32_t i = 0; i < book->spent_count; i++) {
        cairn_write_u64(&writer, book->spent[i].wall_ns);
        cairn_write_u64(&writer, book->spent[i].standstill_ns);
    }
    cairn_write_u32(&writer, book->standstill_count);
    for (uint32_t i = 0; i < book->standstill_count; i++)
        cairn_write_u64(&writer, book->standstills_ns[i]);
    cairn_write_u32(&writer, book->story_count);
    for (uint32_t i = 0; i < book->story_count; i++)
        pack_story(&writer, &book->stories[i]);
    return cairn_writer_done(&writer) == CAIRN_OK ? writer.used_bytes : 0;
}

/* ---- unpacking ---- */

/* A number of at most `max`; a larger one is a failure, and 0. */
static uint32_t
read_up_to(struct cairn_reader *reader, uint32_t max)
{
    uint32_t value = cairn_read_u32(reader);

    if (value > max)
        reader->failed = true;
    return reader->failed ? 0 : value;
}

/* 1 or more. */
static uint32_t
read_part(struct cairn_reader *reader)
{
    uint32_t value = cairn_read_u32(reader);

    if (value == 0)
        reader->failed = true;
    return value;
}

/* A time or a rate: no number below 0. */
static double
read_double(struct cairn_reader *reader)
{
    uint64_t bits = cairn_read_u64(reader);
    double value;

    memcpy(&value, &bits, sizeof value);
    if (!(value >= 0))
        reader->failed = true;
    return value;
}

static void
unpack_slow(struct cairn_reader *reader, struct proposal_slow *out)
{
    out->count = cairn_read_u32(reader);
    for (uint32_t i = 0; !reader->failed && i < listed(out); i++) {
        out->ranks[i] = cairn_read_u64(reader);
        out->rates[i] = read_double(reader);
        if (i > 0 && out->ranks[i] <= out->ranks[i - 1])
            reader->failed = true;
    }
}

static void
unpack_alternatives(struct cairn_reader *reader, struct cairn_offer *out)
{
    for (uint32_t i = 0; i < CAIRN_REPLAN_COUNT; i++) {
        out[i].step_ms = read_double(reader);
        out[i].cost_ms = read_double(reader);
    }
}

static void
unpack_refused(struct cairn_reader *reader, struct proposal_refused *out)
{
    out->gates = read_up_to(reader, (1u << PROPOSAL_GATES) - 1);
    out->ns = cairn_read_u64(reader);
}

static void
unpack_proposal(struct cairn_reader *reader, struct proposal *out)
{
    struct cairn_session_shares *placement = &out->placement;

    placement->count = read_up_to(reader, CAIRN_REPLICAS_MAX);
    if (placement->count == 0)
        return;
    placement->number = cairn_read_u64(reader);
    for (uint32_t i = 0; !reader->failed && i < placement->count; i++)
        placement->parts[i] = read_part(reader);
    placement->stages = read_up_to(reader, CAIRN_STAGES_MAX / placement->count);
    for (uint32_t i = 0; !reader->failed && i < placement->count * placement->stages; i++)
        placement->layers[i] = read_part(reader);
    out->is_home = read_up_to(reader, 1) != 0;
    out->action = (enum cairn_replan_action)read_up_to(reader, CAIRN_REPLAN_NONE);
    out->current_ms = read_double(reader);
    out->step_ms = read_double(reader);
    out->running_ms = read_double(reader);
    out->bound_ms = read_double(reader);
    out->cost_ms = read_double(reader);
    out->payback_steps = cairn_read_u64(reader);
    out->moved_layers = cairn_read_u64(reader);
    out->moved_bytes = cairn_read_u64(reader);
    out->made_wall_ns = cairn_read_u64(reader);
    out->evidence_wall_ns = cairn_read_u64(reader);
    out->decided = read_up_to(reader, PROPOSAL_BACK);
    out->node = cairn_read_u32(reader);
    unpack_slow(reader, &out->slow);
    unpack_alternatives(reader, out->alternatives);
    unpack_refused(reader, &out->refused);
}

static void
unpack_shaped(struct cairn_reader *reader, struct proposal *out)
{
    unpack_proposal(reader, out);
    if (out->placement.count == 0)
        return;
    out->shape.tp = read_part(reader);
    out->shape.node_count = read_up_to(reader, CAIRN_SHAPE_NODES_MAX);
    if (out->shape.node_count == 0 || out->placement.stages == 0 ||
        out->placement.count > CAIRN_SHAPE_PARTS_MAX ||
        out->placement.stages > CAIRN_SHAPE_PARTS_MAX)
        reader->failed = true;
    for (uint32_t i = 0; !reader->failed && i < out->shape.node_count; i++)
        out->shape.nodes[i] = cairn_read_u32(reader);
}

static void
unpack_story(struct cairn_reader *reader, struct proposal_story *out)
{
    uint32_t length;

    out->number = cairn_read_u64(reader);
    out->withdraws = cairn_read_u64(reader);
    out->fate = (enum proposal_fate)read_up_to(reader, PROPOSAL_AGED);
    if (out->fate < PROPOSAL_OFFERED)
        reader->failed = true;
    length = read_up_to(reader, PROPOSAL_TEXT_BYTES - 1);
    cairn_read_bytes(reader, out->text, length);
    if (!reader->failed && strlen(out->text) != length)
        reader->failed = true;
    for (uint32_t i = 0; !reader->failed && i < length; i++)
        if (out->text[i] < ' ' || out->text[i] > '~')
            reader->failed = true;
    out->is_home = read_up_to(reader, 1) != 0;
    out->is_relaunch = read_up_to(reader, 1) != 0;
    out->action = (enum cairn_replan_action)read_up_to(reader, CAIRN_REPLAN_NONE);
    out->current_ms = read_double(reader);
    out->running_ms = read_double(reader);
    out->step_ms = read_double(reader);
    out->bound_ms = read_double(reader);
    out->cost_ms = read_double(reader);
    out->moved_layers = cairn_read_u64(reader);
    out->moved_bytes = cairn_read_u64(reader);
    out->decided = read_up_to(reader, PROPOSAL_BACK);
    out->node = cairn_read_u32(reader);
    unpack_slow(reader, &out->slow);
    unpack_alternatives(reader, out->alternatives);
    unpack_refused(reader, &out->refused);
    out->offered_wall_ns = cairn_read_u64(reader);
    out->taken_wall_ns = cairn_read_u64(reader);
    out->ended_wall_ns = cairn_read_u64(reader);
    out->before_ms = read_double(reader);
    out->expected_ms = read_double(reader);
    out->after_ms = read_double(reader);
    out->standstill_ns = cairn_read_u64(reader);
}

static void
unpack_spent(struct cairn_reader *reader, struct proposal_book *book)
{
    book->spent_count = read_up_to(reader, PROPOSAL_SPENT_MAX);
    for (uint32_t i = 0; !reader->failed && i < book->spent_count; i++) {
        book->spent[i].wall_ns = cairn_read_u64(reader);
        book->spent[i].standstill_ns = cairn_read_u64(reader);
    }
    book->standstill_count = read_up_to(reader, PROPOSAL_STANDSTILLS);
    for (uint32_t i = 0; !reader->failed && i < book->standstill_count; i++)
        book->standstills_ns[i] = cairn_read_u64(reader);
}

static void
unpack_ended(struct cairn_reader *reader, struct proposal_book *book)
{
    book->ended_count = read_up_to(reader, PROPOSAL_ENDED_MAX);
    for (uint32_t i = 0; !reader->failed && i < book->ended_count; i++) {
        struct proposal_ended *ended = &book->ended[i];

        ended->number = cairn_read_u64(reader);
        ended->end = (enum proposal_end)read_up_to(reader, PROPOSAL_BACK);
        if (ended->end < PROPOSAL_APPROVED)
            reader->failed = true;
        ended->node = cairn_read_u32(reader);
        ended->token = cairn_read_u64(reader);
        ended->wall_ns = cairn_read_u64(reader);
    }
}

cairn_err
proposal_unpack(const void *bytes, size_t bytes_len, struct proposal_book *out)
{
    struct proposal_book book = {0};
    struct cairn_reader reader;
    cairn_err err;

    cairn_reader_init(&reader, bytes, bytes_len);
    if (cairn_read_u64(&reader) != mark)
        return reader.failed ? CAIRN_CORRUPT : CAIRN_VERSION;
    book.version = cairn_read_u64(&reader);
    book.last_number = cairn_read_u64(&reader);
    unpack_proposal(&reader, &book.offer);
    unpack_proposal(&reader, &book.waiting);
    unpack_proposal(&reader, &book.before);
    unpack_shaped(&reader, &book.relaunch);
    unpack_shaped(&reader, &book.shape);
    book.relaunch_ns = cairn_read_u64(&reader);
    book.is_all_denied = read_up_to(&reader, 1) != 0;
    book.denied_count = read_up_to(&reader, PROPOSAL_DENIED_MAX);
    for (uint32_t i = 0; !reader.failed && i < book.denied_count; i++) {
        book.denied[i].name = cairn_read_u64(&reader);
        book.denied[i].until_wall_ns = cairn_read_u64(&reader);
    }
    unpack_slow(&reader, &book.denied_at);
    book.doubt_until_wall_ns = cairn_read_u64(&reader);
    unpack_ended(&reader, &book);
    book.away_count = read_up_to(&reader, PROPOSAL_AWAY_MAX);
    for (uint32_t i = 0; !reader.failed && i < book.away_count; i++)
        book.away_wall_ns[i] = cairn_read_u64(&reader);
    unpack_spent(&reader, &book);
    book.story_count = read_up_to(&reader, PROPOSAL_STORIES_MAX);
    for (uint32_t i = 0; !reader.failed && i < book.story_count; i++)
        unpack_story(&reader, &book.stories[i]);
    err = cairn_reader_done(&reader);
    if (!err && (book.last_number < book.offer.placement.number ||
                 book.last_number < book.waiting.placement.number ||
                 book.last_number < book.relaunch.placement.number ||
                 book.last_number < book.shape.placement.number))
        err = CAIRN_CORRUPT;
    if (!err)
        *out = book;
    return err;
}
