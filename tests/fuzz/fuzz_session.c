/*
 * tests/fuzz/fuzz_session.c - any bytes as a session: frames come out whole or the stream is
 * refused.
 *
 * The first byte chooses the side and how the rest is cut into feeds. Every frame is unpacked; what
 * was taken is put again and must be taken again to the same bytes.
 */
#include "client/session.h"

#include "base/text.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

/* Put and taken again, a frame is the same: packing is the inverse of unpacking. */
static void
same_again(const struct cairn_session_frame *frame, const struct cairn_session_writer *writer)
{
    require(cairn_session_writer_queued(writer) ==
            CAIRN_SESSION_HEADER_BYTES + frame->payload_bytes);
    require(frame->payload_bytes == 0 || memcmp(writer->bytes + CAIRN_SESSION_HEADER_BYTES,
                                                frame->payload, frame->payload_bytes) == 0);
}

#define TRY(name, type)                                                                            \
    do {                                                                                           \
        type value;                                                                                \
                                                                                                   \
        if (cairn_session_take_##name(frame, &value) == CAIRN_OK) {                                \
            require(cairn_session_put_##name(&writer, &value) == CAIRN_OK);                        \
            same_again(frame, &writer);                                                            \
        }                                                                                          \
    } while (0)

static void
try_up(const struct cairn_session_frame *frame)
{
    static struct cairn_session_piece piece;
    static struct cairn_session_fetch fetch;
    static struct cairn_session_coverage coverage;
    struct cairn_session_register all = {0};
    struct cairn_session_writer writer;

    cairn_session_writer_init(&writer, SIZE_MAX);
    if (frame->type == CAIRN_SESSION_PIECE) {
        if (cairn_session_take_piece(frame, &piece) == CAIRN_OK) {
            require(piece.count >= 1 && piece.count <= CAIRN_SESSION_PIECE_BLOCKS_MAX);
            require(cairn_session_put_piece(&writer, &piece) == CAIRN_OK);
            same_again(frame, &writer);
        }
    } else if (frame->type == CAIRN_SESSION_FETCH) {
        if (cairn_session_take_fetch(frame, &fetch) == CAIRN_OK) {
            require(cairn_session_put_fetch(&writer, &fetch) == CAIRN_OK);
            same_again(frame, &writer);
        }
    } else if (frame->type == CAIRN_SESSION_COVERAGE) {
        if (cairn_session_take_coverage(frame, &coverage) == CAIRN_OK) {
            require(coverage.count <= CAIRN_UNCOVERED_MAX);
            require(cairn_text_plain(coverage.refusal, strlen(coverage.refusal)));
            for (uint32_t i = 0; i < coverage.count; i++)
                require(
                    cairn_text_plain(coverage.items[i].name, strlen(coverage.items[i].name)) &&
                    cairn_text_plain(coverage.items[i].reason, strlen(coverage.items[i].reason)));
            require(cairn_session_put_coverage(&writer, &coverage) == CAIRN_OK);
            same_again(frame, &writer);
        }
    } else if (frame->type == CAIRN_SESSION_REGISTER) {
        if (cairn_session_take_register(frame, &all) == CAIRN_OK) {
            for (uint32_t i = 0; i < all.count; i++)
                require(strlen(all.slices[i].name) < CAIRN_NAME_BYTES_MAX &&
                        all.slices[i].dims <= CAIRN_DIMS_MAX && !all.slices[i].address);
            require(cairn_session_put_register(&writer, &all) == CAIRN_OK);
            same_again(frame, &writer);
        }
        cairn_session_register_fini(&all);
    } else if (frame->type == CAIRN_SESSION_HELLO) {
        TRY(hello, struct cairn_session_hello);
    } else if (frame->type == CAIRN_SESSION_BEGIN) {
        TRY(begin, struct cairn_session_begin);
    } else if (frame->type == CAIRN_SESSION_DONE) {
        TRY(done, struct cairn_session_done);
    } else if (frame->type == CAIRN_SESSION_CANCEL) {
        TRY(cancel, struct cairn_session_cancel);
    } else if (frame->type == CAIRN_SESSION_RESTORE) {
        TRY(restore, struct cairn_session_restore);
    } else if (frame->type == CAIRN_SESSION_RESTORED) {
        TRY(restored, struct cairn_session_restored);
    } else if (frame->type == CAIRN_SESSION_STATS) {
        TRY(stats, struct cairn_client_stats);
    } else if (frame->type == CAIRN_SESSION_TIMING) {
        struct cairn_session_timing timing;

        if (cairn_session_take_timing(frame, &timing) == CAIRN_OK)
            require(timing.index < CAIRN_SESSION_RINGS_MAX && frame->fd_count == 1);
    } else if (frame->type == CAIRN_SESSION_SHARES) {
        TRY(shares, struct cairn_session_shares);
    } else if (frame->type == CAIRN_SESSION_UNWATCHED) {
        TRY(unwatched, struct cairn_session_unwatched);
    } else if (frame->type == CAIRN_SESSION_POISON) {
        TRY(poison, struct cairn_session_poison);
    } else if (frame->type == CAIRN_SESSION_MOVED) {
        TRY(moved, struct cairn_session_moved);
    } else if (frame->type == CAIRN_SESSION_LEAVE) {
        if (cairn_session_take_leave(frame) == CAIRN_OK)
            require(frame->payload_bytes == 0);
    } else {
        require(frame->type == CAIRN_SESSION_OPERATOR);
        TRY(operator, struct cairn_session_operator);
    }
    cairn_session_writer_fini(&writer);
}

static void
try_down(struct cairn_session_frame *frame)
{
    struct cairn_session_restore_info info = {0};
    struct cairn_session_registered registered;
    struct cairn_session_writer writer;

    cairn_session_writer_init(&writer, SIZE_MAX);
    if (frame->type == CAIRN_SESSION_RESTORE_INFO) {
        if (cairn_session_take_restore_info(frame, &info) == CAIRN_OK && info.err)
            require(cairn_session_put_restore_info(&writer, &info, -1) == CAIRN_OK);
        cairn_session_restore_info_fini(&info);
        frame->fd_count = 1; /* as if its window had come along */
        if (cairn_session_take_restore_info(frame, &info) == CAIRN_OK)
            require(!info.err && (info.count == 0 || info.manifests));
        cairn_session_restore_info_fini(&info);
        frame->fd_count = 0;
    } else if (frame->type == CAIRN_SESSION_REGISTERED) {
        for (frame->fd_count = 0; frame->fd_count <= CAIRN_SESSION_FDS_MAX; frame->fd_count++)
            if (cairn_session_take_registered(frame, &registered) == CAIRN_OK)
                require(registered.slot_count == frame->fd_count);
        frame->fd_count = 0;
    } else if (frame->type == CAIRN_SESSION_WELCOME) {
        TRY(welcome, struct cairn_session_welcome);
    } else if (frame->type == CAIRN_SESSION_REFUSED) {
        TRY(refused, struct cairn_session_refused);
    } else if (frame->type == CAIRN_SESSION_GRANT) {
        TRY(grant, struct cairn_session_grant);
    } else if (frame->type == CAIRN_SESSION_SKIP) {
        TRY(skip, struct cairn_session_skip);
    } else if (frame->type == CAIRN_SESSION_DROP) {
        TRY(drop, struct cairn_session_drop);
    } else if (frame->type == CAIRN_SESSION_EPOCH) {
        TRY(epoch, struct cairn_session_epoch);
    } else if (frame->type == CAIRN_SESSION_COMMITTED) {
        TRY(committed, struct cairn_session_committed);
    } else if (frame->type == CAIRN_SESSION_OFFER) {
        TRY(offer, struct cairn_session_shares);
    } else if (frame->type == CAIRN_SESSION_FETCHED) {
        TRY(fetched, struct cairn_session_fetched);
    } else {
        require(frame->type == CAIRN_SESSION_OPERATOR_REPLY);
        TRY(operator_reply, struct cairn_session_operator_reply);
    }
    cairn_session_writer_fini(&writer);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_session_reader reader;
    struct cairn_session_frame frame;
    enum cairn_session_side side;
    cairn_err err = CAIRN_AGAIN;
    size_t step;

    if (bytes_len == 0)
        return 0;
    side = bytes[0] & 1 ? CAIRN_SESSION_CLIENT : CAIRN_SESSION_AGENT;
    step = bytes[0] / 2 + 1u;
    cairn_session_reader_init(&reader, side);
    for (size_t at = 1; at < bytes_len && err == CAIRN_AGAIN; at += step) {
        size_t part = bytes_len - at < step ? bytes_len - at : step;

        require(cairn_session_reader_feed(&reader, bytes + at, part, NULL, 0) == CAIRN_OK);
        while ((err = cairn_session_reader_next(&reader, &frame)) == CAIRN_OK) {
            if (side == CAIRN_SESSION_CLIENT)
                try_up(&frame);
            else
                try_down(&frame);
            cairn_session_frame_fini(&frame);
        }
    }
    require(err == CAIRN_AGAIN || err == CAIRN_CORRUPT || err == CAIRN_VERSION);
    cairn_session_reader_fini(&reader);
    return 0;
}
