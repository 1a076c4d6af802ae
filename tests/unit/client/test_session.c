/* tests/unit/client/test_session.c - frames: there and back, in pieces, with descriptors, and
 * hostile. */
#include "client/session.h"

#include "base/limits.h"
#include "base/wire.h"
#include "tests/support/cmocka.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* A writer whose bytes are moved into a reader without a socket. */
struct pair {
    struct cairn_session_writer writer;
    struct cairn_session_reader reader;
};

static void
pair_init(struct pair *pair, enum cairn_session_side from)
{
    cairn_session_writer_init(&pair->writer, 1 << 20);
    cairn_session_reader_init(&pair->reader, from);
}

static void
pair_fini(struct pair *pair)
{
    cairn_session_writer_fini(&pair->writer);
    cairn_session_reader_fini(&pair->reader);
}

/* Moves all that is queued, `step` bytes at a time, and takes the one frame that it is. */
static void
pair_move(struct pair *pair, size_t step, struct cairn_session_frame *frame)
{
    size_t queued = cairn_session_writer_queued(&pair->writer);

    for (size_t at = 0; at < queued; at += step) {
        size_t bytes = queued - at < step ? queued - at : step;

        assert_int_equal(cairn_session_reader_next(&pair->reader, frame), CAIRN_AGAIN);
        assert_int_equal(cairn_session_reader_feed(&pair->reader,
                                                   pair->writer.bytes + pair->writer.begin + at,
                                                   bytes, NULL, 0),
                         CAIRN_OK);
    }
    pair->writer.begin = pair->writer.used;
    assert_int_equal(cairn_session_reader_next(&pair->reader, frame), CAIRN_OK);
}

/*
 * Every frame: what is put is what is taken, whole or byte by byte; each shorter payload and one
 * byte more are refused.
 */
#define CHECK_FRAME(name, constant, form, side, same, ...)                                         \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        form value = __VA_ARGS__, out;                                                             \
        struct cairn_session_frame frame, cut;                                                     \
        struct pair pair;                                                                          \
                                                                                                   \
        (void)state;                                                                               \
        for (size_t step = 1; step < 8192; step += 4095) {                                         \
            pair_init(&pair, side);                                                                \
            assert_int_equal(cairn_session_put_##name(&pair.writer, &value), CAIRN_OK);            \
            pair_move(&pair, step, &frame);                                                        \
            assert_int_equal(frame.type, constant);                                                \
            memset(&out, 0x5a, sizeof out);                                                        \
            assert_int_equal(cairn_session_take_##name(&frame, &out), CAIRN_OK);                   \
            assert_true(same);                                                                     \
            cut = frame;                                                                           \
            cut.type = (enum cairn_session_type)(frame.type + 1);                                  \
            assert_int_equal(cairn_session_take_##name(&cut, &out), CAIRN_CORRUPT);                \
            pair_fini(&pair);                                                                      \
        }                                                                                          \
    }

/* Frames of fixed fields: no shorter payload is taken, nor one with a byte more. */
#define CHECK_STRICT(name, form)                                                                   \
    static void strict_##name(const form *value, enum cairn_session_side side)                     \
    {                                                                                              \
        struct cairn_session_frame frame, cut;                                                     \
        struct pair pair;                                                                          \
        form out, before;                                                                          \
        uint8_t *room;                                                                             \
                                                                                                   \
        pair_init(&pair, side);                                                                    \
        assert_int_equal(cairn_session_put_##name(&pair.writer, value), CAIRN_OK);                 \
        pair_move(&pair, 1 << 20, &frame);                                                         \
        room = malloc(frame.payload_bytes + 1);                                                    \
        assert_non_null(room);                                                                     \
        memset(room, 0, frame.payload_bytes + 1);                                                  \
        memcpy(room, frame.payload, frame.payload_bytes);                                          \
        cut = frame;                                                                               \
        cut.payload = room;                                                                        \
        memset(&before, 0x5a, sizeof before);                                                      \
        for (size_t bytes = 0; bytes <= frame.payload_bytes + 1; bytes++) {                        \
            if (bytes == frame.payload_bytes)                                                      \
                continue;                                                                          \
            cut.payload_bytes = bytes;                                                             \
            out = before;                                                                          \
            assert_int_equal(cairn_session_take_##name(&cut, &out), CAIRN_CORRUPT);                \
            assert_memory_equal(&out, &before, sizeof out);                                        \
        }                                                                                          \
        free(room);                                                                                \
        pair_fini(&pair);                                                                          \
    }

CHECK_FRAME(hello, CAIRN_SESSION_HELLO, struct cairn_session_hello, CAIRN_SESSION_CLIENT,
            out.protocol == 1 && out.role == 2 && strcmp(out.job, "job") == 0 && out.rank == 3 &&
                out.world == 4 && out.local_ranks == 5 && out.pid == 6 && out.epoch == 7,
            {1, 2, "job", 3, 4, 5, 6, 7})
CHECK_FRAME(begin, CAIRN_SESSION_BEGIN, struct cairn_session_begin, CAIRN_SESSION_CLIENT,
            out.step == UINT64_MAX && out.last, {UINT64_MAX, true})
CHECK_FRAME(done, CAIRN_SESSION_DONE, struct cairn_session_done, CAIRN_SESSION_CLIENT,
            out.generation.epoch == 8 && out.generation.step == 9 && out.generation.run == 3,
            {{8, 9, 3}})
CHECK_FRAME(cancel, CAIRN_SESSION_CANCEL, struct cairn_session_cancel, CAIRN_SESSION_CLIENT,
            out.step == 10 && out.reason == CAIRN_REASON_DEVICE, {10, CAIRN_REASON_DEVICE})
CHECK_FRAME(poison, CAIRN_SESSION_POISON, struct cairn_session_poison, CAIRN_SESSION_CLIENT,
            out.generation.epoch == 1 && out.generation.step == 2 && out.generation.run == 3 &&
                out.is_rejected && out.tensors == 4 && strcmp(out.name, "w") == 0 &&
                strcmp(out.reason, "spike") == 0,
            {{1, 2, 3}, true, 4, "w", "spike"})
CHECK_FRAME(unwatched, CAIRN_SESSION_UNWATCHED, struct cairn_session_unwatched,
            CAIRN_SESSION_CLIENT, out.tensors == 5 && strcmp(out.name, "mask") == 0, {5, "mask"})
CHECK_FRAME(restore, CAIRN_SESSION_RESTORE, struct cairn_session_restore, CAIRN_SESSION_CLIENT,
            out.request == 11, {11})
CHECK_FRAME(restored, CAIRN_SESSION_RESTORED, struct cairn_session_restored, CAIRN_SESSION_CLIENT,
            out.generation.epoch == 1 && out.generation.step == 2 && out.generation.run == 4 &&
                out.bytes == 3 && out.err == CAIRN_PEER,
            {{1, 2, 4}, 3, CAIRN_PEER})
CHECK_FRAME(stats, CAIRN_SESSION_STATS, struct cairn_client_stats, CAIRN_SESSION_CLIENT,
            out.snapshots_begun == 1 && out.fence_ns_max == 11 && out.epoch == 12 &&
                out.attached == 1,
            {.snapshots_begun = 1, .fence_ns_max = 11, .epoch = 12, .attached = 1})
CHECK_FRAME(welcome, CAIRN_SESSION_WELCOME, struct cairn_session_welcome, CAIRN_SESSION_AGENT,
            out.protocol == 1 && out.epoch == 2 && out.node == 3 && out.flags == 1, {1, 2, 3, 1})
CHECK_FRAME(refused, CAIRN_SESSION_REFUSED, struct cairn_session_refused, CAIRN_SESSION_AGENT,
            out.request == 1 && out.err == CAIRN_NOMEM && strcmp(out.text, "no") == 0,
            {1, CAIRN_NOMEM, "no"})
CHECK_FRAME(grant, CAIRN_SESSION_GRANT, struct cairn_session_grant, CAIRN_SESSION_AGENT,
            out.step == 5 && out.generation.epoch == 4 && out.generation.step == 5 &&
                out.generation.run == 6 && out.slot == 1,
            {5, {4, 5, 6}, 1})
CHECK_FRAME(skip, CAIRN_SESSION_SKIP, struct cairn_session_skip, CAIRN_SESSION_AGENT,
            out.step == 5 && out.reason == CAIRN_REASON_BUSY && strcmp(out.text, "busy") == 0,
            {5, CAIRN_REASON_BUSY, "busy"})
CHECK_FRAME(drop, CAIRN_SESSION_DROP, struct cairn_session_drop, CAIRN_SESSION_AGENT,
            out.generation.epoch == 1 && out.generation.step == 2 && out.generation.run == 3 &&
                out.reason == 8,
            {{1, 2, 3}, CAIRN_REASON_OTHER})
CHECK_FRAME(epoch, CAIRN_SESSION_EPOCH, struct cairn_session_epoch, CAIRN_SESSION_AGENT,
            out.epoch == 77, {77})
CHECK_FRAME(shares, CAIRN_SESSION_SHARES, struct cairn_session_shares, CAIRN_SESSION_CLIENT,
            out.number == 7 && out.count == 2 && out.parts[0] == 8 && out.parts[1] == 4 &&
                out.parts[2] == 0 && out.stages == 3 && out.layers[0] == 4 && out.layers[4] == 2 &&
                out.layers[5] == 5 && out.layers[6] == 0,
            {7, 2, {8, 4}, 3, {4, 4, 4, 5, 2, 5}})
CHECK_FRAME(moved, CAIRN_SESSION_MOVED, struct cairn_session_moved, CAIRN_SESSION_CLIENT,
            out.number == 9 && out.is_adopted && out.standstill_ns == 1234567, {9, true, 1234567})
CHECK_FRAME(offer, CAIRN_SESSION_OFFER, struct cairn_session_shares, CAIRN_SESSION_AGENT,
            out.number == UINT64_MAX && out.count == 1 && out.parts[0] == UINT32_MAX &&
                out.stages == 0 && out.layers[0] == 0,
            {UINT64_MAX, 1, {UINT32_MAX}, 0, {0}})
CHECK_FRAME(committed, CAIRN_SESSION_COMMITTED, struct cairn_session_committed, CAIRN_SESSION_AGENT,
            out.generation.epoch == 1 && out.generation.step == 2 && out.generation.run == 3,
            {{1, 2, 3}})
CHECK_FRAME(fetched, CAIRN_SESSION_FETCHED, struct cairn_session_fetched, CAIRN_SESSION_AGENT,
            out.request == 3 && out.err == CAIRN_LOST && strcmp(out.text, "lost") == 0,
            {3, CAIRN_LOST, "lost"})
CHECK_FRAME(operator, CAIRN_SESSION_OPERATOR, struct cairn_session_operator, CAIRN_SESSION_CLIENT,
            out.text_bytes == 2 && memcmp(out.text, "{}", 2) == 0, {"{}", 2})
CHECK_FRAME(operator_reply, CAIRN_SESSION_OPERATOR_REPLY, struct cairn_session_operator_reply,
            CAIRN_SESSION_AGENT,
            out.exit_code == -3 && out.final == 1 && out.text_bytes == 4 &&
                memcmp(out.text, "text", 4) == 0,
            {-3, 1, "text", 4})

CHECK_FRAME(coverage, CAIRN_SESSION_COVERAGE, struct cairn_session_coverage, CAIRN_SESSION_CLIENT,
            strcmp(out.refusal, "no optimizer") == 0 && out.left_out == 4 && out.count == 2 &&
                out.items[0].kind == CAIRN_OPTIMIZER &&
                strcmp(out.items[0].name, "exp_avg.w") == 0 &&
                strcmp(out.items[0].reason, "it is on the meta device") == 0 &&
                out.items[1].kind == CAIRN_OPAQUE && strcmp(out.items[1].name, "\xc3\xbc") == 0 &&
                out.items[1].reason[0] == '\0',
            {"no optimizer",
             4,
             2,
             {{CAIRN_OPTIMIZER, "exp_avg.w", "it is on the meta device"},
              {CAIRN_OPAQUE, "\xc3\xbc", ""}}})

CHECK_STRICT(coverage, struct cairn_session_coverage)
CHECK_STRICT(hello, struct cairn_session_hello)
CHECK_STRICT(begin, struct cairn_session_begin)
CHECK_STRICT(piece, struct cairn_session_piece)
CHECK_STRICT(fetch, struct cairn_session_fetch)
CHECK_STRICT(restored, struct cairn_session_restored)
CHECK_STRICT(stats, struct cairn_client_stats)
CHECK_STRICT(welcome, struct cairn_session_welcome)
CHECK_STRICT(refused, struct cairn_session_refused)
CHECK_STRICT(grant, struct cairn_session_grant)
CHECK_STRICT(skip, struct cairn_session_skip)
CHECK_STRICT(drop, struct cairn_session_drop)
CHECK_STRICT(fetched, struct cairn_session_fetched)

static void
test_strict(void **state)
{
    static struct cairn_session_piece piece = {{1, 2, 3}, 3, 5, {1, 2, 3, 4, 5}};
    static struct cairn_session_fetch fetch = {1, 2, {{1, 2, 3, 4}, {5, 6, 7, 8}}};

    strict_hello(&(struct cairn_session_hello){1, 1, "j", 0, 1, 1, 2, 0}, CAIRN_SESSION_CLIENT);
    strict_begin(&(struct cairn_session_begin){.step = 1}, CAIRN_SESSION_CLIENT);
    strict_coverage(&(struct cairn_session_coverage){"r", 0, 1, {{CAIRN_PARAM, "name", "why"}}},
                    CAIRN_SESSION_CLIENT);
    strict_piece(&piece, CAIRN_SESSION_CLIENT);
    strict_fetch(&fetch, CAIRN_SESSION_CLIENT);
    strict_restored(&(struct cairn_session_restored){{1, 2, 4}, 3, CAIRN_OK}, CAIRN_SESSION_CLIENT);
    strict_stats(&(struct cairn_client_stats){.epoch = 1}, CAIRN_SESSION_CLIENT);
    strict_welcome(&(struct cairn_session_welcome){1, 2, 3, 0}, CAIRN_SESSION_AGENT);
    strict_refused(&(struct cairn_session_refused){0, CAIRN_STALE, "x"}, CAIRN_SESSION_AGENT);
    strict_grant(&(struct cairn_session_grant){1, {1, 1, 1}, 0}, CAIRN_SESSION_AGENT);
    strict_skip(&(struct cairn_session_skip){1, CAIRN_REASON_NOT_DUE, ""}, CAIRN_SESSION_AGENT);
    strict_drop(&(struct cairn_session_drop){{1, 1, 1}, CAIRN_REASON_BUSY}, CAIRN_SESSION_AGENT);
    strict_fetched(&(struct cairn_session_fetched){1, CAIRN_OK, ""}, CAIRN_SESSION_AGENT);
}

static void
test_piece_and_fetch(void **state)
{
    static struct cairn_session_piece piece, piece_out;
    static struct cairn_session_fetch fetch, fetch_out;
    struct cairn_session_frame frame;
    struct pair pair;

    pair_init(&pair, CAIRN_SESSION_CLIENT);
    piece.generation = (struct cairn_generation_id){.epoch = 3, .step = 4};
    piece.first_block = UINT64_C(1) << 40;
    piece.count = CAIRN_SESSION_PIECE_BLOCKS_MAX;
    for (uint32_t i = 0; i < piece.count; i++)
        piece.crcs[i] = i * UINT64_C(0x123456789abcdef);
    assert_int_equal(cairn_session_put_piece(&pair.writer, &piece), CAIRN_OK);
    pair_move(&pair, 100, &frame);
    assert_int_equal(cairn_session_take_piece(&frame, &piece_out), CAIRN_OK);
    assert_int_equal(piece_out.count, piece.count);
    assert_int_equal(piece_out.first_block, piece.first_block);
    assert_memory_equal(piece_out.crcs, piece.crcs, sizeof piece.crcs);
    piece.count = 0;
    assert_int_equal(cairn_session_put_piece(&pair.writer, &piece), CAIRN_INVAL);
    piece.count = CAIRN_SESSION_PIECE_BLOCKS_MAX + 1;
    assert_int_equal(cairn_session_put_piece(&pair.writer, &piece), CAIRN_INVAL);

    fetch.request = 9;
    fetch.count = CAIRN_SESSION_FETCH_ITEMS_MAX;
    for (uint32_t i = 0; i < fetch.count; i++)
        fetch.items[i] = (struct cairn_session_fetch_item){i, i + 1, i * 3, i * 4};
    assert_int_equal(cairn_session_put_fetch(&pair.writer, &fetch), CAIRN_OK);
    pair_move(&pair, 100, &frame);
    assert_int_equal(cairn_session_take_fetch(&frame, &fetch_out), CAIRN_OK);
    assert_int_equal(fetch_out.count, fetch.count);
    assert_int_equal(fetch_out.items[255].container, 255);
    assert_int_equal(fetch_out.items[255].block_count, 256);
    assert_int_equal(fetch_out.items[255].first_block, 765);
    assert_int_equal(fetch_out.items[255].window_offset, 1020);
    fetch.items[0].block_count = 0;
    assert_int_equal(cairn_session_put_fetch(&pair.writer, &fetch), CAIRN_INVAL);
    pair_fini(&pair);
}

/* A farewell carries nothing. */
static void
test_leave(void **state)
{
    uint8_t payload[1] = {0};
    struct cairn_session_frame frame = {
        .type = CAIRN_SESSION_LEAVE, .payload = payload, .payload_bytes = 1};
    struct cairn_session_writer writer;

    assert_int_equal(cairn_session_take_leave(&frame), CAIRN_CORRUPT);
    frame.payload_bytes = 0;
    assert_int_equal(cairn_session_take_leave(&frame), CAIRN_OK);
    frame.type = CAIRN_SESSION_TIMING;
    assert_int_equal(cairn_session_take_leave(&frame), CAIRN_CORRUPT);
    cairn_session_writer_init(&writer, SIZE_MAX);
    assert_int_equal(cairn_session_put_leave(&writer), CAIRN_OK);
    assert_int_equal(writer.pending_count, 0); /* descriptors */
    cairn_session_writer_fini(&writer);
}

/* A ring's frame has one descriptor and an index within bounds, or it is refused. */
static void
test_timing(void **state)
{
    uint8_t payload[5] = {CAIRN_SESSION_RINGS_MAX - 1, 0, 0, 0, 0};
    struct cairn_session_frame frame = {
        .type = CAIRN_SESSION_TIMING, .payload = payload, .payload_bytes = 4, .fd_count = 1};
    struct cairn_session_timing out = {.index = 77}, value = {.index = CAIRN_SESSION_RINGS_MAX};
    struct cairn_session_writer writer;

    frame.fd_count = 0;
    assert_int_equal(cairn_session_take_timing(&frame, &out), CAIRN_CORRUPT);
    frame.fd_count = 1;
    frame.payload_bytes = 5;
    assert_int_equal(cairn_session_take_timing(&frame, &out), CAIRN_CORRUPT);
    frame.payload_bytes = 4;
    payload[0]++;
    assert_int_equal(cairn_session_take_timing(&frame, &out), CAIRN_CORRUPT);
    assert_int_equal(out.index, 77);
    payload[0]--;
    assert_int_equal(cairn_session_take_timing(&frame, &out), CAIRN_OK);
    assert_int_equal(out.index, CAIRN_SESSION_RINGS_MAX - 1);
    cairn_session_writer_init(&writer, SIZE_MAX);
    assert_int_equal(cairn_session_put_timing(&writer, &value, STDIN_FILENO), CAIRN_INVAL);
    value.index = 1;
    assert_int_equal(cairn_session_put_timing(&writer, &value, STDIN_FILENO), CAIRN_OK);
    assert_int_equal(writer.pending_count, 1);
    cairn_session_writer_fini(&writer);
}

static void
test_register(void **state)
{
    struct cairn_slice slices[3] = {
        {.name = "w",
         .dtype = CAIRN_BF16,
         .kind = CAIRN_PARAM,
         .dims = 2,
         .shape = {4, 6},
         .offset = {1, 2},
         .extent = {3, 4},
         .flat_begin = 1,
         .flat_end = 7,
         .replica_index = 1,
         .replica_count = 2,
         .device = -1,
         .address = (void *)0x1000},
        {.name = "scalar", .dtype = CAIRN_F64, .kind = CAIRN_BUFFER, .device = 3},
        {.name = "blob",
         .dtype = CAIRN_U8,
         .kind = CAIRN_OPAQUE,
         .dims = 1,
         .shape = {9},
         .extent = {9},
         .device = -1}};
    struct cairn_session_register all = {.request = 5, .count = 3, .slices = slices}, out;
    struct cairn_session_frame frame;
    char long_name[CAIRN_NAME_BYTES_MAX + 1];
    struct pair pair;

    pair_init(&pair, CAIRN_SESSION_CLIENT);
    assert_int_equal(cairn_session_put_register(&pair.writer, &all), CAIRN_OK);
    pair_move(&pair, 7, &frame);
    assert_int_equal(cairn_session_take_register(&frame, &out), CAIRN_OK);
    assert_int_equal(out.request, 5);
    assert_int_equal(out.count, 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(out.slices[i].name, slices[i].name);
        assert_int_equal(out.slices[i].dtype, slices[i].dtype);
        assert_int_equal(out.slices[i].kind, slices[i].kind);
        assert_int_equal(out.slices[i].dims, slices[i].dims);
        assert_memory_equal(out.slices[i].shape, slices[i].shape, sizeof slices[i].shape);
        assert_memory_equal(out.slices[i].offset, slices[i].offset, sizeof slices[i].offset);
        assert_memory_equal(out.slices[i].extent, slices[i].extent, sizeof slices[i].extent);
        assert_int_equal(out.slices[i].flat_begin, slices[i].flat_begin);
        assert_int_equal(out.slices[i].flat_end, slices[i].flat_end);
        assert_int_equal(out.slices[i].replica_index, slices[i].replica_index);
        assert_int_equal(out.slices[i].replica_count, slices[i].replica_count);
        assert_int_equal(out.slices[i].device, slices[i].device);
        assert_null(out.slices[i].address);
    }
    cairn_session_register_fini(&out);
    cairn_session_register_fini(&out);

    /* A count that the payload cannot hold costs no memory; each cut is refused. */
    for (size_t bytes = 0; bytes < frame.payload_bytes; bytes++) {
        struct cairn_session_frame cut = frame;

        cut.payload_bytes = bytes;
        assert_int_equal(cairn_session_take_register(&cut, &out), CAIRN_CORRUPT);
    }
    memset(long_name, 'x', sizeof long_name);
    long_name[CAIRN_NAME_BYTES_MAX] = '\0';
    slices[0].name = long_name;
    assert_int_equal(cairn_session_put_register(&pair.writer, &all), CAIRN_INVAL);
    slices[0].name = "w";
    slices[0].dims = CAIRN_DIMS_MAX + 1;
    assert_int_equal(cairn_session_put_register(&pair.writer, &all), CAIRN_INVAL);
    slices[0].dims = 2;
    all.request = 0;
    assert_int_equal(cairn_session_put_register(&pair.writer, &all), CAIRN_INVAL);
    pair_fini(&pair);
}

static void
test_out_of_range(void **state)
{
    struct cairn_session_writer writer;

    cairn_session_writer_init(&writer, 1 << 20);
    assert_int_equal(
        cairn_session_put_grant(&writer, &(struct cairn_session_grant){1, {1, 2, 1}, 0}),
        CAIRN_INVAL);
    assert_int_equal(
        cairn_session_put_grant(&writer,
                                &(struct cairn_session_grant){1, {1, 1, 1}, CAIRN_SESSION_FDS_MAX}),
        CAIRN_INVAL);
    assert_int_equal(
        cairn_session_put_refused(&writer, &(struct cairn_session_refused){0, CAIRN_OK, ""}),
        CAIRN_INVAL);
    assert_int_equal(cairn_session_put_cancel(&writer, &(struct cairn_session_cancel){1, 0}),
                     CAIRN_INVAL);
    assert_int_equal(cairn_session_put_frame(&writer, CAIRN_SESSION_BEGIN, NULL, 0, (int[]){0}, 1),
                     CAIRN_INVAL); /* carries no descriptors */
    assert_int_equal(cairn_session_writer_queued(&writer), 0);
    cairn_session_writer_fini(&writer);
}

/* ---- over a socket ---- */

static void
socket_pair(int fds[2])
{
    int small = 4096;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
}

static int
sealed_memfd(size_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static ino_t
inode_of(int fd)
{
    struct stat status;

    assert_int_equal(fstat(fd, &status), 0);
    return status.st_ino;
}

static int
open_fd_count(void)
{
    int count = 0;

    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Sends until empty while receiving; hands every frame to `take`. */
static void
pump(struct cairn_session_writer *writer, int sender, struct cairn_session_reader *reader,
     int receiver, void (*take)(struct cairn_session_frame *, void *), void *context)
{
    struct cairn_session_frame frame;
    cairn_err sent, got;

    do {
        sent = cairn_session_writer_send(writer, sender);
        assert_true(sent == CAIRN_OK || sent == CAIRN_AGAIN);
        do {
            got = cairn_session_reader_receive(reader, receiver);
            assert_true(got == CAIRN_OK || got == CAIRN_AGAIN);
            while (cairn_session_reader_next(reader, &frame) == CAIRN_OK) {
                take(&frame, context);
                cairn_session_frame_fini(&frame);
            }
        } while (got == CAIRN_OK);
    } while (sent == CAIRN_AGAIN);
    assert_int_equal(reader->failed, CAIRN_OK);
}

struct expected {
    ino_t inodes[3];
    int seen;
};

static void
take_mixed(struct cairn_session_frame *frame, void *context)
{
    struct expected *expected = context;
    struct cairn_session_registered registered;

    if (frame->type == CAIRN_SESSION_SKIP) {
        assert_int_equal(frame->fd_count, 0);
    } else {
        assert_int_equal(cairn_session_take_registered(frame, &registered), CAIRN_OK);
        assert_int_equal(frame->fd_count, registered.request);
        for (uint32_t i = 0; i < frame->fd_count; i++) {
            assert_int_equal(inode_of(frame->fds[i]), expected->inodes[i]);
            assert_int_equal(fcntl(frame->fds[i], F_GETFD), FD_CLOEXEC);
        }
    }
    expected->seen++;
}

/* Descriptors arrive with their own frame, however the socket cuts and joins. */
static void
test_descriptors(void **state)
{
    int fds[2], memory[3], before = open_fd_count();
    struct cairn_session_writer writer;
    struct cairn_session_reader reader;
    struct expected expected = {.seen = 0};

    socket_pair(fds);
    cairn_session_writer_init(&writer, 1 << 20);
    cairn_session_reader_init(&reader, CAIRN_SESSION_AGENT);
    for (int i = 0; i < 3; i++) {
        memory[i] = sealed_memfd(4096, F_SEAL_SHRINK);
        expected.inodes[i] = inode_of(memory[i]);
    }
    for (uint32_t round = 0; round < 3; round++) {
        struct cairn_session_registered registered = {round + 1, 0, CAIRN_BLOCK_BYTES, round + 1};
        struct cairn_session_skip skip = {1, CAIRN_REASON_OTHER, "some text"};

        for (int i = 0; i < 300; i++) /* more than the socket takes at once */
            assert_int_equal(cairn_session_put_skip(&writer, &skip), CAIRN_OK);
        assert_int_equal(cairn_session_put_registered(&writer, &registered, memory), CAIRN_OK);
        assert_int_equal(cairn_session_put_skip(&writer, &skip), CAIRN_OK);
    }
    for (int i = 0; i < 3; i++)
        close(memory[i]); /* the queue has its own */
    pump(&writer, fds[0], &reader, fds[1], take_mixed, &expected);
    assert_int_equal(expected.seen, 3 * 302);
    cairn_session_writer_fini(&writer);
    cairn_session_reader_fini(&reader);
    close(fds[0]);
    close(fds[1]);
    assert_int_equal(open_fd_count(), before);
}

static void
test_descriptors_refused(void **state)
{
    int before = open_fd_count(), fd = sealed_memfd(4096, F_SEAL_SHRINK), extra[40];
    struct cairn_session_registered registered = {1, 0, CAIRN_BLOCK_BYTES, 1};
    struct cairn_session_reader reader;
    struct cairn_session_writer writer;
    struct cairn_session_frame frame;

    /* A frame that says it has one and comes without. */
    cairn_session_reader_init(&reader, CAIRN_SESSION_AGENT);
    cairn_session_writer_init(&writer, 1 << 20);
    assert_int_equal(cairn_session_put_registered(&writer, &registered, &fd), CAIRN_OK);
    assert_int_equal(cairn_session_reader_feed(&reader, writer.bytes,
                                               cairn_session_writer_queued(&writer), NULL, 0),
                     CAIRN_OK);
    assert_int_equal(cairn_session_reader_next(&reader, &frame), CAIRN_CORRUPT);
    cairn_session_writer_fini(&writer);
    cairn_session_reader_fini(&reader);
    /* More than any frame would take: all are closed. */
    cairn_session_reader_init(&reader, CAIRN_SESSION_AGENT);
    for (int i = 0; i < 40; i++)
        extra[i] = dup(fd);
    assert_int_equal(cairn_session_reader_feed(&reader, "", 0, extra, 20), CAIRN_OK);
    assert_int_equal(cairn_session_reader_feed(&reader, "", 0, extra + 20, 20), CAIRN_CORRUPT);
    assert_int_equal(cairn_session_reader_next(&reader, &frame), CAIRN_CORRUPT);
    cairn_session_reader_fini(&reader);
    close(fd);
    assert_int_equal(open_fd_count(), before);
}

/* Which slots a RESTORE_INFO may name, with a container there and without. */
static void
expect_own_slots(void)
{
    static const struct {
        uint32_t container, slot;
        cairn_err err;
    } cases[] = {
        {0, 0, CAIRN_OK},
        {0, CAIRN_SESSION_FDS_MAX - 1, CAIRN_OK},
        {0, CAIRN_SESSION_FDS_MAX, CAIRN_CORRUPT},
        {0, CAIRN_SLOT_OF_REGION, CAIRN_CORRUPT},
        {CAIRN_CONTAINER_NONE, 0, CAIRN_OK},
        {CAIRN_CONTAINER_NONE, 1, CAIRN_CORRUPT},
        {CAIRN_CONTAINER_NONE, CAIRN_SLOT_OF_REGION - 1, CAIRN_CORRUPT},
        {CAIRN_CONTAINER_NONE, CAIRN_SLOT_OF_REGION, CAIRN_OK},
        {CAIRN_CONTAINER_NONE, CAIRN_SLOT_OF_REGION + CAIRN_SESSION_FDS_MAX - 1, CAIRN_OK},
        {CAIRN_CONTAINER_NONE, CAIRN_SLOT_OF_REGION + CAIRN_SESSION_FDS_MAX, CAIRN_CORRUPT},
    };
    int fd = sealed_memfd(1 << 20, F_SEAL_SHRINK);

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cairn_session_restore_info info = {.request = 4,
                                                  .generation = {2, 30},
                                                  .source = CAIRN_SOURCE_MEMORY,
                                                  .window_bytes = 1 << 20,
                                                  .own_container = cases[i].container,
                                                  .own_slot = cases[i].slot};
        struct cairn_session_restore_info out = {0};
        struct cairn_session_frame frame;
        struct cairn_session_writer writer;
        struct cairn_session_reader reader;
        int fds[2];

        socket_pair(fds);
        cairn_session_writer_init(&writer, 1 << 20);
        cairn_session_reader_init(&reader, CAIRN_SESSION_AGENT);
        assert_int_equal(cairn_session_put_restore_info(&writer, &info, fd), CAIRN_OK);
        assert_int_equal(cairn_session_writer_send(&writer, fds[0]), CAIRN_OK);
        assert_int_equal(cairn_session_reader_receive(&reader, fds[1]), CAIRN_OK);
        assert_int_equal(cairn_session_reader_next(&reader, &frame), CAIRN_OK);
        assert_int_equal(cairn_session_take_restore_info(&frame, &out), cases[i].err);
        cairn_session_restore_info_fini(&out);
        cairn_session_frame_fini(&frame);
        cairn_session_reader_fini(&reader);
        cairn_session_writer_fini(&writer);
        close(fds[0]);
        close(fds[1]);
    }
    close(fd);
}

static void
test_restore_info(void **state)
{
    struct cairn_session_bytes manifests[3] = {
        {(const uint8_t *)"one", 3}, {NULL, 0}, {(const uint8_t *)"three", 5}};
    struct cairn_session_restore_info info = {.request = 4,
                                              .text = "newest",
                                              .generation = {2, 30},
                                              .source = CAIRN_SOURCE_FILES,
                                              .window_bytes = 1 << 20,
                                              .own_container = 1,
                                              .own_slot = 1,
                                              .count = 3,
                                              .manifests = manifests};
    struct cairn_session_restore_info out;
    struct cairn_session_frame frame;
    struct cairn_session_writer writer;
    struct cairn_session_reader reader;
    int fd = sealed_memfd(1 << 20, F_SEAL_SHRINK), fds[2];

    socket_pair(fds);
    cairn_session_writer_init(&writer, 1 << 20);
    cairn_session_reader_init(&reader, CAIRN_SESSION_AGENT);
    assert_int_equal(cairn_session_put_restore_info(&writer, &info, -1), CAIRN_INVAL);
    assert_int_equal(cairn_session_put_restore_info(&writer, &info, fd), CAIRN_OK);
    assert_int_equal(cairn_session_writer_send(&writer, fds[0]), CAIRN_OK);
    assert_int_equal(cairn_session_reader_receive(&reader, fds[1]), CAIRN_OK);
    assert_int_equal(cairn_session_reader_next(&reader, &frame), CAIRN_OK);
    assert_int_equal(cairn_session_take_restore_info(&frame, &out), CAIRN_OK);
    assert_int_equal(out.request, 4);
    assert_string_equal(out.text, "newest");
    assert_int_equal(out.generation.step, 30);
    assert_int_equal(out.source, CAIRN_SOURCE_FILES);
    assert_int_equal(out.window_bytes, 1 << 20);
    assert_int_equal(out.own_container, 1);
    assert_int_equal(out.own_slot, 1);
    assert_int_equal(out.count, 3);
    assert_int_equal(out.manifests[0].bytes_len, 3);
    assert_memory_equal(out.manifests[2].bytes, "three", 5);
    assert_int_equal(out.manifests[1].bytes_len, 0);
    cairn_session_restore_info_fini(&out);
    expect_own_slots();
    for (size_t bytes = 0; bytes < frame.payload_bytes; bytes++) {
        struct cairn_session_frame cut = frame;

        cut.payload_bytes = bytes;
        assert_int_equal(cairn_session_take_restore_info(&cut, &out), CAIRN_CORRUPT);
    }
    frame.fd_count = 0;
    assert_int_equal(cairn_session_take_restore_info(&frame, &out), CAIRN_CORRUPT);
    frame.fd_count = 1;
    cairn_session_frame_fini(&frame);
    memset(&info, 0, sizeof info);
    info.err = CAIRN_NOT_FOUND;
    assert_int_equal(cairn_session_put_restore_info(&writer, &info, -1), CAIRN_OK);
    assert_int_equal(cairn_session_writer_send(&writer, fds[0]), CAIRN_OK);
    assert_int_equal(cairn_session_reader_receive(&reader, fds[1]), CAIRN_OK);
    assert_int_equal(cairn_session_reader_next(&reader, &frame), CAIRN_OK);
    assert_int_equal(cairn_session_take_restore_info(&frame, &out), CAIRN_OK);
    assert_int_equal(out.err, CAIRN_NOT_FOUND);
    cairn_session_restore_info_fini(&out);
    cairn_session_writer_fini(&writer);
    cairn_session_reader_fini(&reader);
    close(fds[0]);
    close(fds[1]);
    close(fd);
}

static void
take_count(struct cairn_session_frame *frame, void *context)
{
    const uint8_t *expected = ((void **)context)[0];

    assert_int_equal(frame->payload_bytes, 3000000);
    assert_memory_equal(frame->payload, expected, 3000000);
    (*(int *)((void **)context)[1])++;
}

/* A frame much larger than the socket and the kept buffers; memory is given back afterwards. */
static void
test_large(void **state)
{
    struct cairn_session_writer writer;
    struct cairn_session_reader reader;
    uint8_t *payload = malloc(3000000);
    int fds[2], seen = 0;
    void *context[2] = {payload, &seen};

    assert_non_null(payload);
    for (size_t i = 0; i < 3000000; i++)
        payload[i] = (uint8_t)(i * 7 + i / 256);
    socket_pair(fds);
    cairn_session_writer_init(&writer, 1 << 20);
    cairn_session_reader_init(&reader, CAIRN_SESSION_CLIENT);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            cairn_session_put_frame(&writer, CAIRN_SESSION_REGISTER, payload, 3000000, NULL, 0),
            CAIRN_OK);
        assert_int_equal(cairn_session_put_begin(&writer, &(struct cairn_session_begin){.step = 1}),
                         CAIRN_AGAIN); /* the queue is full until this is sent */
        pump(&writer, fds[0], &reader, fds[1], take_count, context);
    }
    assert_int_equal(seen, 3);
    assert_int_equal(writer.room, 0);
    assert_true(reader.room <= 1 << 20);
    assert_int_equal(
        cairn_session_put_frame(&writer, CAIRN_SESSION_OPERATOR, payload, 3000000, NULL, 0),
        CAIRN_FULL);
    cairn_session_writer_fini(&writer);
    cairn_session_reader_fini(&reader);
    close(fds[0]);
    close(fds[1]);
    free(payload);
}

static void
test_bounded(void **state)
{
    struct cairn_session_begin begin = {.step = 1};
    struct cairn_session_writer writer;
    int queued = 0;

    cairn_session_writer_init(&writer, 1000);
    while (cairn_session_put_begin(&writer, &begin) == CAIRN_OK)
        queued++;
    assert_int_equal(queued, 50); /* 20 bytes each: the 50th reaches 1000 */
    assert_int_equal(cairn_session_writer_queued(&writer), 50 * 20);
    cairn_session_writer_fini(&writer);
}

static void
test_peer_gone(void **state)
{
    struct cairn_session_writer writer;
    struct cairn_session_reader reader;
    struct cairn_session_frame frame;
    int fds[2];

    socket_pair(fds);
    signal(SIGPIPE, SIG_DFL); /* would end this test */
    cairn_session_writer_init(&writer, 1000);
    cairn_session_reader_init(&reader, CAIRN_SESSION_CLIENT);
    assert_int_equal(cairn_session_put_begin(&writer, &(struct cairn_session_begin){.step = 7}),
                     CAIRN_OK);
    assert_int_equal(cairn_session_writer_send(&writer, fds[0]), CAIRN_OK);
    close(fds[0]);
    /* Frames sent before the end are still read. */
    assert_int_equal(cairn_session_reader_receive(&reader, fds[1]), CAIRN_OK);
    assert_int_equal(cairn_session_reader_receive(&reader, fds[1]), CAIRN_PEER);
    assert_int_equal(reader.os_error, 0);
    assert_int_equal(cairn_session_reader_next(&reader, &frame), CAIRN_OK);
    assert_int_equal(frame.type, CAIRN_SESSION_BEGIN);
    assert_int_equal(cairn_session_put_begin(&writer, &(struct cairn_session_begin){.step = 8}),
                     CAIRN_OK);
    assert_int_equal(cairn_session_writer_send(&writer, fds[1]), CAIRN_PEER);
    assert_int_equal(writer.os_error, EPIPE);
    cairn_session_writer_fini(&writer);
    cairn_session_reader_fini(&reader);
    close(fds[1]);
}

/* ---- hostile bytes ---- */

static cairn_err
next_of(const uint8_t header[8], enum cairn_session_side from)
{
    struct cairn_session_reader reader;
    struct cairn_session_frame frame;
    cairn_err err;

    cairn_session_reader_init(&reader, from);
    assert_int_equal(cairn_session_reader_feed(&reader, header, 8, NULL, 0), CAIRN_OK);
    err = cairn_session_reader_next(&reader, &frame);
    if (err != CAIRN_OK && err != CAIRN_AGAIN) /* sticky */
        assert_int_equal(cairn_session_reader_next(&reader, &frame), err);
    assert_true(reader.room <= 4096);
    cairn_session_reader_fini(&reader);
    return err;
}

static void
test_headers(void **state)
{
    assert_int_equal(next_of((uint8_t[8]){8, 0, 0, 0, 3, 0, 1, 0}, CAIRN_SESSION_CLIENT),
                     CAIRN_AGAIN);
    assert_int_equal(next_of((uint8_t[8]){8, 0, 0, 0, 3, 0, 1, 0}, CAIRN_SESSION_AGENT),
                     CAIRN_CORRUPT);
    assert_int_equal(next_of((uint8_t[8]){8, 0, 0, 0, 67, 0, 1, 0}, CAIRN_SESSION_CLIENT),
                     CAIRN_CORRUPT);
    assert_int_equal(next_of((uint8_t[8]){8, 0, 0, 0, 3, 0, 2, 0}, CAIRN_SESSION_CLIENT),
                     CAIRN_VERSION);
    assert_int_equal(next_of((uint8_t[8]){8, 0, 0, 0, 3, 0, 1, 1}, CAIRN_SESSION_CLIENT),
                     CAIRN_CORRUPT);
    assert_int_equal(next_of((uint8_t[8]){1, 0, 16, 0, 3, 0, 1, 0}, CAIRN_SESSION_CLIENT),
                     CAIRN_CORRUPT);
    assert_int_equal(next_of((uint8_t[8]){0, 0, 16, 0, 3, 0, 1, 0}, CAIRN_SESSION_CLIENT),
                     CAIRN_AGAIN);
    assert_int_equal(next_of((uint8_t[8]){0, 0, 0, 16, 2, 0, 1, 0}, CAIRN_SESSION_CLIENT),
                     CAIRN_AGAIN);
    assert_int_equal(next_of((uint8_t[8]){1, 0, 0, 16, 2, 0, 1, 0}, CAIRN_SESSION_CLIENT),
                     CAIRN_CORRUPT);
    assert_int_equal(next_of((uint8_t[8]){8, 0, 0, 0, 0, 0, 1, 0}, CAIRN_SESSION_CLIENT),
                     CAIRN_CORRUPT);
    assert_int_equal(next_of((uint8_t[8]){8, 0, 0, 0, 3, 1, 1, 0}, CAIRN_SESSION_CLIENT),
                     CAIRN_CORRUPT);
    assert_int_equal(next_of((uint8_t[8]){0, 0, 0, 0, 66, 0, 1, 16}, CAIRN_SESSION_AGENT),
                     CAIRN_CORRUPT);
    assert_int_equal(next_of((uint8_t[8]){0, 0, 0, 0, 66, 0, 1, 17}, CAIRN_SESSION_AGENT),
                     CAIRN_CORRUPT);
    assert_int_equal(next_of((uint8_t[8]){0, 0, 0, 0, 71, 0, 1, 2}, CAIRN_SESSION_AGENT),
                     CAIRN_CORRUPT);
}

/* A COVERAGE of one thing with these texts, as a peer without our writer may send it. */
static cairn_err
take_coverage_of(const char *text, uint32_t text_bytes, int field, uint32_t kind, uint32_t count)
{
    uint8_t payload[1024];
    struct cairn_writer writer;
    struct cairn_session_frame frame = {.type = CAIRN_SESSION_COVERAGE, .payload = payload};
    struct cairn_session_coverage out;

    cairn_writer_init(&writer, payload, sizeof payload);
    for (int i = 0; i < 3; i++) {
        if (i == 1) {
            cairn_write_u32(&writer, 0);
            cairn_write_u32(&writer, count);
            cairn_write_u32(&writer, kind);
        }
        cairn_write_u32(&writer, i == field ? text_bytes : 2);
        cairn_write_bytes(&writer, i == field ? text : "ok", i == field ? text_bytes : 2);
    }
    assert_int_equal(cairn_writer_done(&writer), CAIRN_OK);
    frame.payload_bytes = writer.used_bytes;
    return cairn_session_take_coverage(&frame, &out);
}

static void
test_hostile_coverage(void **state)
{
    static const struct {
        const char *text;
        uint32_t bytes;
    } hostile[] = {{"a\0b", 3},
                   {"\x1b]0;title\x07", 10},
                   {"\x1b[2J", 4},
                   {"line\nbreak", 10},
                   {"\xff\xfe", 2},
                   {"\xc3", 1},
                   {"\xc2\x9b"
                    "31m",
                    5}};
    static struct cairn_session_coverage value;
    struct cairn_session_writer writer;
    char longest[CAIRN_NAME_BYTES_MAX];

    memset(longest, 'x', sizeof longest);
    for (int field = 0; field < 3; field++) {
        assert_int_equal(take_coverage_of("fine", 4, field, CAIRN_PARAM, 1), CAIRN_OK);
        for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++)
            assert_int_equal(
                take_coverage_of(hostile[i].text, hostile[i].bytes, field, CAIRN_PARAM, 1),
                CAIRN_CORRUPT);
        assert_int_equal(take_coverage_of(longest, sizeof longest - 1, field, CAIRN_PARAM, 1),
                         CAIRN_OK);
        assert_int_equal(take_coverage_of(longest, sizeof longest, field, CAIRN_PARAM, 1),
                         CAIRN_CORRUPT); /* no room for its NUL */
    }
    assert_int_equal(take_coverage_of("ok", 2, 0, 0, 1), CAIRN_CORRUPT);
    assert_int_equal(take_coverage_of("ok", 2, 0, CAIRN_OPAQUE + 1, 1), CAIRN_CORRUPT);
    assert_int_equal(take_coverage_of("ok", 2, 0, CAIRN_PARAM, 0), CAIRN_CORRUPT); /* bytes left */
    assert_int_equal(take_coverage_of("ok", 2, 0, CAIRN_PARAM, CAIRN_UNCOVERED_MAX + 1),
                     CAIRN_CORRUPT);
    assert_int_equal(take_coverage_of("ok", 2, 0, CAIRN_PARAM, UINT32_MAX), CAIRN_CORRUPT);
    cairn_session_writer_init(&writer, 1 << 20); /* nor does our own side send such a thing */
    value.count = 1;
    value.items[0].kind = CAIRN_PARAM;
    strcpy(value.items[0].reason, "\x1b[31m");
    assert_int_equal(cairn_session_put_coverage(&writer, &value), CAIRN_INVAL);
    memset(value.items[0].reason, 'x', sizeof value.items[0].reason);
    assert_int_equal(cairn_session_put_coverage(&writer, &value), CAIRN_INVAL);
    cairn_session_writer_fini(&writer);
}

static void
test_fd_check(void **state)
{
    int good = sealed_memfd(8192, F_SEAL_SHRINK | F_SEAL_GROW),
        bad = sealed_memfd(8192, F_SEAL_GROW);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    uint64_t bytes = 0;

    assert_int_equal(cairn_session_fd_check(good, 8192, &bytes), CAIRN_OK);
    assert_int_equal(bytes, 8192);
    assert_int_equal(cairn_session_fd_check(good, 8193, &bytes), CAIRN_INVAL);
    assert_int_equal(cairn_session_fd_check(bad, 8192, &bytes), CAIRN_DENIED);
    assert_int_equal(cairn_session_fd_check(null, 0, &bytes), CAIRN_DENIED);
    assert_int_equal(cairn_session_fd_check(-1, 0, &bytes), CAIRN_DENIED);
    close(good);
    close(bad);
    close(null);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hello),        cmocka_unit_test(test_begin),
        cmocka_unit_test(test_done),         cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_poison),       cmocka_unit_test(test_unwatched),
        cmocka_unit_test(test_restore),      cmocka_unit_test(test_restored),
        cmocka_unit_test(test_stats),        cmocka_unit_test(test_welcome),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_grant),
        cmocka_unit_test(test_skip),         cmocka_unit_test(test_drop),
        cmocka_unit_test(test_epoch),        cmocka_unit_test(test_committed),
        cmocka_unit_test(test_shares),       cmocka_unit_test(test_moved),
        cmocka_unit_test(test_offer),        cmocka_unit_test(test_fetched),
        cmocka_unit_test(test_operator),     cmocka_unit_test(test_operator_reply),
        cmocka_unit_test(test_strict),       cmocka_unit_test(test_piece_and_fetch),
        cmocka_unit_test(test_leave),        cmocka_unit_test(test_timing),
        cmocka_unit_test(test_register),     cmocka_unit_test(test_out_of_range),
        cmocka_unit_test(test_descriptors),  cmocka_unit_test(test_descriptors_refused),
        cmocka_unit_test(test_restore_info), cmocka_unit_test(test_large),
        cmocka_unit_test(test_bounded),      cmocka_unit_test(test_peer_gone),
        cmocka_unit_test(test_headers),      cmocka_unit_test(test_fd_check),
        cmocka_unit_test(test_coverage),     cmocka_unit_test(test_hostile_coverage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
