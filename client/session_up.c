/* client/session_up.c - the payloads of the frames from client to agent, packed and unpacked. */
#include "client/session.h"

#include "client/session_part.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { SLICE_BYTES_MIN = 44 }; /* of a packed slice: no name, no dimensions */

static void
pack_hello(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_hello *hello = value;

    cairn_write_u32(writer, hello->protocol);
    write_range(writer, hello->role, CAIRN_ROLE_TRAINER, CAIRN_ROLE_OPERATOR);
    write_text(writer, hello->job, sizeof hello->job);
    cairn_write_u32(writer, hello->rank);
    cairn_write_u32(writer, hello->world);
    cairn_write_u32(writer, hello->local_ranks);
    cairn_write_u64(writer, hello->pid);
    cairn_write_u64(writer, hello->epoch);
}

static void
unpack_hello(struct cairn_reader *reader, struct cairn_session_hello *hello)
{
    hello->protocol = cairn_read_u32(reader);
    hello->role = read_range(reader, CAIRN_ROLE_TRAINER, CAIRN_ROLE_OPERATOR);
    cairn_read_string(reader, hello->job, sizeof hello->job);
    hello->rank = cairn_read_u32(reader);
    hello->world = cairn_read_u32(reader);
    hello->local_ranks = cairn_read_u32(reader);
    hello->pid = cairn_read_u64(reader);
    hello->epoch = cairn_read_u64(reader);
}

static void
pack_slice(struct cairn_writer *writer, const struct cairn_slice *slice)
{
    write_text(writer, slice->name, CAIRN_NAME_BYTES_MAX);
    cairn_write_u32(writer, (uint32_t)slice->dtype);
    write_range(writer, (uint32_t)slice->kind, CAIRN_PARAM, CAIRN_OPAQUE);
    write_range(writer, slice->dims, 0, CAIRN_DIMS_MAX);
    for (uint32_t d = 0; d < slice->dims && d < CAIRN_DIMS_MAX; d++) {
        cairn_write_u64(writer, slice->shape[d]);
        cairn_write_u64(writer, slice->offset[d]);
        cairn_write_u64(writer, slice->extent[d]);
    }
    cairn_write_u64(writer, slice->flat_begin);
    cairn_write_u64(writer, slice->flat_end);
    cairn_write_u32(writer, slice->replica_index);
    cairn_write_u32(writer, slice->replica_count);
    cairn_write_u32(writer, (uint32_t)slice->device);
}

/* The name goes to `name`, CAIRN_NAME_BYTES_MAX long. */
static void
unpack_slice(struct cairn_reader *reader, struct cairn_slice *slice, char *name)
{
    cairn_read_string(reader, name, CAIRN_NAME_BYTES_MAX);
    slice->dtype = (enum cairn_dtype)cairn_read_u32(reader);
    if (cairn_dtype_bytes(slice->dtype) == 0)
        reader->failed = true;
    slice->kind = (enum cairn_kind)read_range(reader, CAIRN_PARAM, CAIRN_OPAQUE);
    slice->dims = read_range(reader, 0, CAIRN_DIMS_MAX);
    for (uint32_t d = 0; !reader->failed && d < slice->dims; d++) {
        slice->shape[d] = cairn_read_u64(reader);
        slice->offset[d] = cairn_read_u64(reader);
        slice->extent[d] = cairn_read_u64(reader);
    }
    slice->flat_begin = cairn_read_u64(reader);
    slice->flat_end = cairn_read_u64(reader);
    slice->replica_index = cairn_read_u32(reader);
    slice->replica_count = cairn_read_u32(reader);
    slice->device = (int32_t)cairn_read_u32(reader);
}

static void
pack_register(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_register *all = value;

    write_range(writer, all->request, 1, UINT32_MAX);
    cairn_write_u32(writer, all->count);
    cairn_write_u64(writer, all->launch);
    for (uint32_t i = 0; i < all->count; i++)
        pack_slice(writer, &all->slices[i]);
}

cairn_err
cairn_session_take_register(const struct cairn_session_frame *frame,
                            struct cairn_session_register *out)
{
    struct cairn_session_register value = {0};
    char name[CAIRN_NAME_BYTES_MAX];
    struct cairn_reader reader;
    size_t names_used = 0;
    cairn_err err = open_payload(frame, CAIRN_SESSION_REGISTER, &reader);

    if (err)
        return err;
    value.request = read_range(&reader, 1, UINT32_MAX);
    value.count = cairn_read_u32(&reader);
    value.launch = cairn_read_u64(&reader);
    if (reader.failed || value.count > cairn_reader_left(&reader) / SLICE_BYTES_MIN)
        return CAIRN_CORRUPT;
    /* Each name takes its length field in the payload and its NUL here, so the payload bounds their
     * sum. */
    value.slices = calloc(value.count ? value.count : 1, sizeof *value.slices);
    value.names = malloc(frame->payload_bytes);
    if (!value.slices || !value.names) {
        err = CAIRN_NOMEM;
        goto done;
    }
    for (uint32_t i = 0; i < value.count; i++) {
        size_t name_bytes;

        unpack_slice(&reader, &value.slices[i], name);
        if (reader.failed)
            break;
        name_bytes = strlen(name) + 1;
        memcpy(value.names + names_used, name, name_bytes);
        value.slices[i].name = value.names + names_used;
        names_used += name_bytes;
    }
    err = cairn_reader_done(&reader);
    if (err)
        goto done;
    *out = value;
    memset(&value, 0, sizeof value);
done:
    cairn_session_register_fini(&value);
    return err;
}

void
cairn_session_register_fini(struct cairn_session_register *value)
{
    free(value->slices);
    free(value->names);
    memset(value, 0, sizeof *value);
}

static void
pack_begin(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_begin *begin = value;

    cairn_write_u64(writer, begin->step);
    write_range(writer, begin->last, 0, 1);
}

static void
unpack_begin(struct cairn_reader *reader, struct cairn_session_begin *begin)
{
    begin->step = cairn_read_u64(reader);
    begin->last = read_range(reader, 0, 1) == 1;
}

static void
pack_piece(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_piece *piece = value;

    write_generation(writer, &piece->generation);
    cairn_write_u64(writer, piece->first_block);
    write_range(writer, piece->count, 1, CAIRN_SESSION_PIECE_BLOCKS_MAX);
    for (uint32_t i = 0; !writer->failed && i < piece->count; i++)
        cairn_write_u64(writer, piece->crcs[i]);
}

static void
unpack_piece(struct cairn_reader *reader, struct cairn_session_piece *piece)
{
    read_generation(reader, &piece->generation);
    piece->first_block = cairn_read_u64(reader);
    piece->count = read_range(reader, 1, CAIRN_SESSION_PIECE_BLOCKS_MAX);
    for (uint32_t i = 0; !reader->failed && i < piece->count; i++)
        piece->crcs[i] = cairn_read_u64(reader);
}

static void
pack_done(struct cairn_writer *writer, const void *value)
{
    write_generation(writer, &((const struct cairn_session_done *)value)->generation);
}

static void
unpack_done(struct cairn_reader *reader, struct cairn_session_done *done)
{
    read_generation(reader, &done->generation);
}

static void
pack_cancel(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_cancel *cancel = value;

    cairn_write_u64(writer, cancel->step);
    write_range(writer, cancel->reason, CAIRN_REASON_NOT_DUE, CAIRN_REASON_OTHER);
}

static void
unpack_cancel(struct cairn_reader *reader, struct cairn_session_cancel *cancel)
{
    cancel->step = cairn_read_u64(reader);
    cancel->reason = read_range(reader, CAIRN_REASON_NOT_DUE, CAIRN_REASON_OTHER);
}

static void
pack_restore(struct cairn_writer *writer, const void *value)
{
    cairn_write_u32(writer, ((const struct cairn_session_restore *)value)->request);
}

static void
unpack_restore(struct cairn_reader *reader, struct cairn_session_restore *restore)
{
    restore->request = cairn_read_u32(reader);
}

static void
pack_fetch(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_fetch *fetch = value;

    cairn_write_u32(writer, fetch->request);
    write_range(writer, fetch->count, 1, CAIRN_SESSION_FETCH_ITEMS_MAX);
    for (uint32_t i = 0; !writer->failed && i < fetch->count; i++) {
        cairn_write_u32(writer, fetch->items[i].container);
        write_range(writer, fetch->items[i].block_count, 1, UINT32_MAX);
        cairn_write_u64(writer, fetch->items[i].first_block);
        cairn_write_u64(writer, fetch->items[i].window_offset);
    }
}

static void
unpack_fetch(struct cairn_reader *reader, struct cairn_session_fetch *fetch)
{
    fetch->request = cairn_read_u32(reader);
    fetch->count = read_range(reader, 1, CAIRN_SESSION_FETCH_ITEMS_MAX);
    for (uint32_t i = 0; !reader->failed && i < fetch->count; i++) {
        fetch->items[i].container = cairn_read_u32(reader);
        fetch->items[i].block_count = read_range(reader, 1, UINT32_MAX);
        fetch->items[i].first_block = cairn_read_u64(reader);
        fetch->items[i].window_offset = cairn_read_u64(reader);
    }
}

static void
pack_restored(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_restored *restored = value;

    write_generation(writer, &restored->generation);
    cairn_write_u64(writer, restored->bytes);
    write_range(writer, restored->err, CAIRN_OK, CAIRN_INTERNAL);
}

static void
unpack_restored(struct cairn_reader *reader, struct cairn_session_restored *restored)
{
    read_generation(reader, &restored->generation);
    restored->bytes = cairn_read_u64(reader);
    restored->err = read_err(reader, CAIRN_OK);
}

/* The u64 counters of cairn_client_stats up to `epoch`, in its order, then `attached`. */
enum {
    STATS_AT = offsetof(struct cairn_client_stats, snapshots_begun),
    STATS_U64S = (offsetof(struct cairn_client_stats, epoch) - STATS_AT) / sizeof(uint64_t) + 1
};
_Static_assert(STATS_U64S == 12, "a new counter is packed too, and needs a new protocol number");

static void
pack_stats(struct cairn_writer *writer, const void *value)
{
    uint64_t counters[STATS_U64S];

    memcpy(counters, (const uint8_t *)value + STATS_AT, sizeof counters);
    for (size_t i = 0; i < STATS_U64S; i++)
        cairn_write_u64(writer, counters[i]);
    cairn_write_u32(writer, ((const struct cairn_client_stats *)value)->attached);
}

static void
unpack_stats(struct cairn_reader *reader, struct cairn_client_stats *stats)
{
    uint64_t counters[STATS_U64S] = {0};

    for (size_t i = 0; i < STATS_U64S; i++)
        counters[i] = cairn_read_u64(reader);
    memcpy((uint8_t *)stats + STATS_AT, counters, sizeof counters);
    stats->attached = read_range(reader, 0, 1);
}

static void
write_plain(struct cairn_writer *writer, const char *text, size_t text_bytes)
{
    if (!cairn_text_plain(text, strnlen(text, text_bytes)))
        writer->failed = true;
    write_text(writer, text, text_bytes);
}

static void
read_plain(struct cairn_reader *reader, char *text, size_t text_bytes)
{
    cairn_read_string(reader, text, text_bytes);
    if (!reader->failed && !cairn_text_plain(text, strlen(text)))
        reader->failed = true;
}

static void
pack_poison(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_poison *poison = value;

    write_generation(writer, &poison->generation);
    write_range(writer, poison->is_rejected, 0, 1);
    write_range(writer, poison->tensors, poison->is_rejected ? 0 : 1, UINT32_MAX);
    write_plain(writer, poison->name, sizeof poison->name);
    write_plain(writer, poison->reason, sizeof poison->reason);
}

static void
unpack_poison(struct cairn_reader *reader, struct cairn_session_poison *poison)
{
    read_generation(reader, &poison->generation);
    poison->is_rejected = read_range(reader, 0, 1) == 1;
    poison->tensors = read_range(reader, poison->is_rejected ? 0 : 1, UINT32_MAX);
    read_plain(reader, poison->name, sizeof poison->name);
    read_plain(reader, poison->reason, sizeof poison->reason);
}

static void
pack_unwatched(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_unwatched *unwatched = value;

    cairn_write_u32(writer, unwatched->tensors);
    write_plain(writer, unwatched->name, sizeof unwatched->name);
}

static void
unpack_unwatched(struct cairn_reader *reader, struct cairn_session_unwatched *unwatched)
{
    unwatched->tensors = cairn_read_u32(reader);
    read_plain(reader, unwatched->name, sizeof unwatched->name);
}

static void
pack_coverage(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_coverage *coverage = value;

    write_plain(writer, coverage->refusal, sizeof coverage->refusal);
    cairn_write_u32(writer, coverage->left_out);
    write_range(writer, coverage->count, 0, CAIRN_UNCOVERED_MAX);
    for (uint32_t i = 0; !writer->failed && i < coverage->count; i++) {
        const struct cairn_session_uncovered *item = &coverage->items[i];

        write_range(writer, item->kind, CAIRN_PARAM, CAIRN_OPAQUE);
        write_plain(writer, item->name, sizeof item->name);
        write_plain(writer, item->reason, sizeof item->reason);
    }
}

static void
unpack_coverage(struct cairn_reader *reader, struct cairn_session_coverage *coverage)
{
    read_plain(reader, coverage->refusal, sizeof coverage->refusal);
    coverage->left_out = cairn_read_u32(reader);
    coverage->count = read_range(reader, 0, CAIRN_UNCOVERED_MAX);
    for (uint32_t i = 0; !reader->failed && i < coverage->count; i++) {
        struct cairn_session_uncovered *item = &coverage->items[i];

        item->kind = read_range(reader, CAIRN_PARAM, CAIRN_OPAQUE);
        read_plain(reader, item->name, sizeof item->name);
        read_plain(reader, item->reason, sizeof item->reason);
    }
}

static void
pack_operator(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_operator *request = value;

    cairn_write_bytes(writer, request->text, request->text_bytes);
}

static void
unpack_operator(struct cairn_reader *reader, struct cairn_session_operator *request)
{
    request->text_bytes = cairn_reader_left(reader);
    request->text = (const char *)cairn_read_borrow(reader, request->text_bytes);
}

static void
pack_timing(struct cairn_writer *writer, const void *value)
{
    write_range(writer, ((const struct cairn_session_timing *)value)->index, 0,
                CAIRN_SESSION_RINGS_MAX - 1);
}

cairn_err
cairn_session_put_timing(struct cairn_session_writer *writer,
                         const struct cairn_session_timing *value, int ring_fd)
{
    return put(writer, CAIRN_SESSION_TIMING, pack_timing, value, &ring_fd, 1);
}

cairn_err
cairn_session_take_timing(const struct cairn_session_frame *frame, struct cairn_session_timing *out)
{
    struct cairn_session_timing value = {0};
    struct cairn_reader reader;
    cairn_err err = open_payload(frame, CAIRN_SESSION_TIMING, &reader);

    if (err)
        return err;
    value.index = read_range(&reader, 0, CAIRN_SESSION_RINGS_MAX - 1);
    err = cairn_reader_done(&reader);
    if (err)
        return err;
    if (frame->fd_count != 1)
        return CAIRN_CORRUPT;
    *out = value;
    return CAIRN_OK;
}

void
cairn_session_shares_pack(const struct cairn_session_shares *shares, struct cairn_writer *writer)
{
    cairn_write_u64(writer, shares->number);
    write_range(writer, shares->count, 1, CAIRN_REPLICAS_MAX);
    for (uint32_t i = 0; i < shares->count && i < CAIRN_REPLICAS_MAX; i++)
        write_range(writer, shares->parts[i], 1, UINT32_MAX);
    write_range(writer, shares->stages, 0, CAIRN_STAGES_MAX / (shares->count ? shares->count : 1));
    for (uint32_t i = 0; !writer->failed && i < shares->count * shares->stages; i++)
        write_range(writer, shares->layers[i], 1, UINT32_MAX);
}

void
cairn_session_shares_unpack(struct cairn_reader *reader, struct cairn_session_shares *out)
{
    *out = (struct cairn_session_shares){.number = cairn_read_u64(reader)};
    out->count = read_range(reader, 1, CAIRN_REPLICAS_MAX);
    for (uint32_t i = 0; !reader->failed && i < out->count; i++)
        out->parts[i] = read_range(reader, 1, UINT32_MAX);
    out->stages = read_range(reader, 0, CAIRN_STAGES_MAX / (out->count ? out->count : 1));
    for (uint32_t i = 0; !reader->failed && i < out->count * out->stages; i++)
        out->layers[i] = read_range(reader, 1, UINT32_MAX);
}

static void
pack_shares(struct cairn_writer *writer, const void *value)
{
    cairn_session_shares_pack(value, writer);
}

static void
unpack_shares(struct cairn_reader *reader, struct cairn_session_shares *shares)
{
    cairn_session_shares_unpack(reader, shares);
}

static void
pack_moved(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_moved *moved = value;

    cairn_write_u64(writer, moved->number);
    write_range(writer, moved->is_adopted, 0, 1);
    cairn_write_u64(writer, moved->standstill_ns);
}

static void
unpack_moved(struct cairn_reader *reader, struct cairn_session_moved *moved)
{
    moved->number = cairn_read_u64(reader);
    moved->is_adopted = read_range(reader, 0, 1) != 0;
    moved->standstill_ns = cairn_read_u64(reader);
}

DEFINE_PUT(moved, CAIRN_SESSION_MOVED, struct cairn_session_moved)
DEFINE_TAKE(moved, CAIRN_SESSION_MOVED, struct cairn_session_moved)
DEFINE_PUT(shares, CAIRN_SESSION_SHARES, struct cairn_session_shares)
DEFINE_TAKE(shares, CAIRN_SESSION_SHARES, struct cairn_session_shares)
DEFINE_PUT(hello, CAIRN_SESSION_HELLO, struct cairn_session_hello)
DEFINE_TAKE(hello, CAIRN_SESSION_HELLO, struct cairn_session_hello)
DEFINE_PUT(register, CAIRN_SESSION_REGISTER, struct cairn_session_register)
DEFINE_PUT(begin, CAIRN_SESSION_BEGIN, struct cairn_session_begin)
DEFINE_TAKE(begin, CAIRN_SESSION_BEGIN, struct cairn_session_begin)
DEFINE_PUT(piece, CAIRN_SESSION_PIECE, struct cairn_session_piece)
DEFINE_TAKE(piece, CAIRN_SESSION_PIECE, struct cairn_session_piece)
DEFINE_PUT(done, CAIRN_SESSION_DONE, struct cairn_session_done)
DEFINE_TAKE(done, CAIRN_SESSION_DONE, struct cairn_session_done)
DEFINE_PUT(cancel, CAIRN_SESSION_CANCEL, struct cairn_session_cancel)
DEFINE_TAKE(cancel, CAIRN_SESSION_CANCEL, struct cairn_session_cancel)
DEFINE_PUT(poison, CAIRN_SESSION_POISON, struct cairn_session_poison)
DEFINE_TAKE(poison, CAIRN_SESSION_POISON, struct cairn_session_poison)
DEFINE_PUT(unwatched, CAIRN_SESSION_UNWATCHED, struct cairn_session_unwatched)
DEFINE_TAKE(unwatched, CAIRN_SESSION_UNWATCHED, struct cairn_session_unwatched)
DEFINE_PUT(restore, CAIRN_SESSION_RESTORE, struct cairn_session_restore)
DEFINE_TAKE(restore, CAIRN_SESSION_RESTORE, struct cairn_session_restore)
DEFINE_PUT(fetch, CAIRN_SESSION_FETCH, struct cairn_session_fetch)
DEFINE_TAKE(fetch, CAIRN_SESSION_FETCH, struct cairn_session_fetch)
DEFINE_PUT(restored, CAIRN_SESSION_RESTORED, struct cairn_session_restored)
DEFINE_TAKE(restored, CAIRN_SESSION_RESTORED, struct cairn_session_restored)
DEFINE_PUT(stats, CAIRN_SESSION_STATS, struct cairn_client_stats)
DEFINE_TAKE(stats, CAIRN_SESSION_STATS, struct cairn_client_stats)
DEFINE_PUT(coverage, CAIRN_SESSION_COVERAGE, struct cairn_session_coverage)
DEFINE_TAKE(coverage, CAIRN_SESSION_COVERAGE, struct cairn_session_coverage)
DEFINE_PUT(operator, CAIRN_SESSION_OPERATOR, struct cairn_session_operator)
DEFINE_TAKE(operator, CAIRN_SESSION_OPERATOR, struct cairn_session_operator)

static void
pack_nothing(struct cairn_writer *writer, const void *value)
{
    (void)writer;
    (void)value;
}

cairn_err
cairn_session_put_leave(struct cairn_session_writer *writer)
{
    return put(writer, CAIRN_SESSION_LEAVE, pack_nothing, NULL, NULL, 0);
}

cairn_err
cairn_session_take_leave(const struct cairn_session_frame *frame)
{
    struct cairn_reader reader;
    cairn_err err = open_payload(frame, CAIRN_SESSION_LEAVE, &reader);

    return err ? err : cairn_reader_done(&reader);
}
