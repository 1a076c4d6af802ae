/*
 * tests/unit/agent/core/env/test_message.c - messages: what is packed comes back, and nothing else
 * is taken.
 */
#include "agent/core/env/message.h"

#include "erasure/stripe.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROUNDS = 200,
    BYTES_MAX = 8 * CAIRN_MESSAGE_BLOCKS_MAX,
    HEAD = CAIRN_MESSAGE_HEAD_BYTES_MAX
};

static uint64_t state = 1;

static uint64_t
next(void)
{
    state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = (state ^ (state >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Brings the numbers that have a bound within it. */
static void
bound(struct cairn_message *message)
{
    uint32_t count = (uint32_t)(1 + next() % CAIRN_MESSAGE_BLOCKS_MAX);

    switch (message->kind) {
    case CAIRN_MSG_REPORT:
        message->as.report.agent %= CAIRN_NODES_MAX;
        message->as.report.reason %= CAIRN_ABORT_FORGOTTEN + 1;
        message->as.report.for_agent = count % 2 ? UINT32_MAX : count;
        message->as.report.cause %= CAIRN_WAIT_SILENT + 1;
        break;
    case CAIRN_MSG_AUDIT:
        message->as.audit.answer %= 2;
        message->as.audit.agent %= CAIRN_NODES_MAX;
        message->as.audit.asks %= CAIRN_TILING_PIECES + 1;
        message->as.audit.cut %= 2;
        break;
    case CAIRN_MSG_DATA:
        message->as.data.count = count;
        message->bytes_len = 8 * count;
        break;
    case CAIRN_MSG_RECEIVED:
        message->as.received.again %= 2;
        break;
    case CAIRN_MSG_ASK:
        message->as.ask.mode %= CAIRN_ASK_RELEASE + 1;
        break;
    case CAIRN_MSG_REBUILT:
        message->as.rebuilt.finished %= 2;
        message->as.rebuilt.proved %= 2;
        message->as.rebuilt.err %= CAIRN_INTERNAL + 1;
        break;
    case CAIRN_MSG_READ:
        message->as.read.count = count;
        break;
    case CAIRN_MSG_BLOCKS:
        message->as.blocks.count = count - 1;
        message->as.blocks.err %= CAIRN_INTERNAL + 1;
        message->bytes_len = 8 * (count - 1);
        break;
    case CAIRN_MSG_WRITE:
        message->as.write.count = count;
        message->bytes_len = 8 * count;
        break;
    case CAIRN_MSG_WRITTEN:
        message->as.written.again %= 2;
        break;
    case CAIRN_MSG_PROMISE:
        message->as.promise.err %= CAIRN_INTERNAL + 1;
        break;
    default:
        break;
    }
}

/* A message of a kind with any numbers that it may have. */
static struct cairn_message
some_message(enum cairn_message_kind kind, uint8_t *bytes)
{
    struct cairn_message message;
    uint8_t *raw = (uint8_t *)&message.as;

    memset(&message, 0, sizeof message);
    for (size_t i = 0; i < sizeof message.as; i++)
        raw[i] = (uint8_t)next();
    message.kind = kind;
    message.from = (uint32_t)(next() % CAIRN_NODES_MAX);
    message.to = (uint32_t)(next() % CAIRN_NODES_MAX);
    message.epoch = next();
    message.bytes = bytes;
    message.bytes_len = (uint32_t)(next() % BYTES_MAX);
    bound(&message);
    for (uint32_t i = 0; i < message.bytes_len; i++)
        bytes[i] = (uint8_t)next();
    return message;
}

static void
round_trip(void **unused)
{
    uint8_t bytes[BYTES_MAX], packed[HEAD + BYTES_MAX], again[HEAD + BYTES_MAX];

    for (int kind = 1; kind <= (int)CAIRN_MESSAGE_KIND_LAST; kind++)
        for (int i = 0; i < ROUNDS; i++) {
            struct cairn_message message = some_message((enum cairn_message_kind)kind, bytes), back;
            size_t used = 0, used_again = 0;

            assert_int_equal(cairn_message_pack(&message, packed, sizeof packed, &used), CAIRN_OK);
            assert_true(used <= (size_t)HEAD + message.bytes_len);
            assert_int_equal(cairn_message_unpack(packed, used, &back), CAIRN_OK);
            assert_int_equal(back.kind, kind);
            assert_int_equal(back.from, message.from);
            assert_int_equal(back.to, message.to);
            assert_true(back.epoch == message.epoch);
            assert_int_equal(back.bytes_len, message.bytes_len);
            if (message.bytes_len)
                assert_memory_equal(back.bytes, bytes, message.bytes_len);
            assert_int_equal(cairn_message_pack(&back, again, sizeof again, &used_again), CAIRN_OK);
            assert_int_equal(used_again, used);
            assert_memory_equal(again, packed, used);
            assert_int_equal(cairn_message_block_count(&back),
                             cairn_message_has_blocks(&back) ? back.bytes_len / 8 : 0);
        }
}

static void
fields_come_back(void **unused)
{
    static const uint8_t crcs[16] = {1, 2, 3};
    struct cairn_generation_id generation = {.epoch = 1, .step = 2, .run = 3};
    struct cairn_message message = {.kind = CAIRN_MSG_DATA, .bytes = crcs, .bytes_len = 16}, back;
    uint8_t packed[HEAD + 16];
    size_t used;

    message.as.data = (struct cairn_message_data){.decision = {4, 5, 6, {7, 8, 9}},
                                                  .generation = generation,
                                                  .member = 10,
                                                  .stripe = 11,
                                                  .row = 12,
                                                  .line = 14,
                                                  .count = 2};
    assert_int_equal(cairn_message_pack(&message, packed, sizeof packed, &used), CAIRN_OK);
    assert_int_equal(cairn_message_unpack(packed, used, &back), CAIRN_OK);
    assert_true(back.as.data.decision.serial == 4 && back.as.data.decision.run == 5);
    assert_true(back.as.data.decision.next == 6);
    assert_true(back.as.data.decision.committed.epoch == 7);
    assert_true(back.as.data.decision.committed.step == 8);
    assert_true(back.as.data.decision.committed.run == 9);
    assert_int_equal(cairn_generation_id_compare(back.as.data.generation, generation), 0);
    assert_int_equal(back.as.data.member, 10);
    assert_int_equal(back.as.data.stripe, 11);
    assert_int_equal(back.as.data.row, 12);
    assert_true(back.as.data.line == 14);
    assert_int_equal(back.as.data.count, 2);
}

/* Shorter or longer by any number of bytes is not a message; `out` stays as it was. */
static void
truncated(void **unused)
{
    uint8_t bytes[BYTES_MAX], packed[HEAD + BYTES_MAX + 1] = {0};

    for (int kind = 1; kind <= (int)CAIRN_MESSAGE_KIND_LAST; kind++) {
        struct cairn_message message = some_message((enum cairn_message_kind)kind, bytes);
        struct cairn_message back = {.from = 77};
        size_t used = 0;

        assert_int_equal(cairn_message_pack(&message, packed, sizeof packed, &used), CAIRN_OK);
        for (size_t len = 0; len < used; len++) {
            uint8_t *exact = malloc(len + 1); /* so that a sanitizer sees a read beyond */

            assert_non_null(exact);
            memcpy(exact, packed, len);
            assert_int_equal(cairn_message_unpack(exact, len, &back), CAIRN_CORRUPT);
            free(exact);
        }
        assert_int_equal(cairn_message_unpack(packed, used + 1, &back), CAIRN_CORRUPT);
        assert_int_equal(back.from, 77);
    }
}

static void
no_room(void **unused)
{
    uint8_t bytes[BYTES_MAX], packed[HEAD + BYTES_MAX];
    struct cairn_message message = some_message(CAIRN_MSG_DATA, bytes);
    size_t needed = 0, used = 4711;

    assert_int_equal(cairn_message_pack(&message, packed, sizeof packed, &needed), CAIRN_OK);
    for (size_t room = 0; room < needed; room++)
        assert_int_equal(cairn_message_pack(&message, packed, room, &used), CAIRN_FULL);
    assert_int_equal(used, 4711);
}

static void
assert_refused(const struct cairn_message *message)
{
    uint8_t packed[2 * HEAD + BYTES_MAX];
    struct cairn_message back;
    size_t used;

    assert_int_equal(cairn_message_pack(message, packed, sizeof packed, &used), CAIRN_OK);
    assert_int_equal(cairn_message_unpack(packed, used, &back), CAIRN_CORRUPT);
}

#define REFUSED(kind_, field, value)                                                               \
    do {                                                                                           \
        struct cairn_message bad = some_message(kind_, bytes);                                     \
                                                                                                   \
        bad.field = value;                                                                         \
        assert_refused(&bad);                                                                      \
    } while (0)

/* Each number that has a bound is refused just beyond it. */
static void
out_of_bounds(void **unused)
{
    uint8_t bytes[BYTES_MAX + 8] = {0};

    REFUSED(CAIRN_MSG_REPORT, kind, (enum cairn_message_kind)0);
    REFUSED(CAIRN_MSG_REPORT, kind, (enum cairn_message_kind)(CAIRN_MESSAGE_KIND_LAST + 1));
    REFUSED(CAIRN_MSG_REPORT, from, CAIRN_NODES_MAX);
    REFUSED(CAIRN_MSG_REPORT, to, UINT32_MAX);
    REFUSED(CAIRN_MSG_REPORT, as.report.agent, CAIRN_NODES_MAX);
    REFUSED(CAIRN_MSG_AUDIT, as.audit.agent, CAIRN_NODES_MAX);
    REFUSED(CAIRN_MSG_AUDIT, as.audit.asks, CAIRN_TILING_PIECES + 1);
    REFUSED(CAIRN_MSG_DATA, as.data.count, 0);
    REFUSED(CAIRN_MSG_DATA, as.data.count, CAIRN_MESSAGE_BLOCKS_MAX + 1);
    REFUSED(CAIRN_MSG_DATA, bytes_len, 7);
    REFUSED(CAIRN_MSG_RECEIVED, as.received.again, 2);
    REFUSED(CAIRN_MSG_REPORT, as.report.reason, CAIRN_ABORT_FORGOTTEN + 1);
    REFUSED(CAIRN_MSG_REPORT, as.report.cause, CAIRN_WAIT_SILENT + 1);
    REFUSED(CAIRN_MSG_REPORT, as.report.for_agent, CAIRN_NODES_MAX);
    REFUSED(CAIRN_MSG_ASK, as.ask.mode, CAIRN_ASK_RELEASE + 1);
    REFUSED(CAIRN_MSG_REBUILT, as.rebuilt.err, CAIRN_INTERNAL + 1);
    REFUSED(CAIRN_MSG_READ, as.read.count, CAIRN_MESSAGE_BLOCKS_MAX + 1);
    REFUSED(CAIRN_MSG_BLOCKS, bytes_len, BYTES_MAX + 8);
    REFUSED(CAIRN_MSG_BLOCKS, as.blocks.err, CAIRN_INTERNAL + 1);
    REFUSED(CAIRN_MSG_WRITE, as.write.count, 0);
    REFUSED(CAIRN_MSG_WRITTEN, as.written.again, 2);
    REFUSED(CAIRN_MSG_PROMISE, as.promise.err, CAIRN_INTERNAL + 1);
}

/* Any bytes are refused, or are a message that packs to the same bytes. */
static void
changed_bytes(void **unused)
{
    uint8_t bytes[BYTES_MAX], packed[HEAD + BYTES_MAX], again[HEAD + BYTES_MAX];
    uint32_t taken = 0;

    for (int i = 0; i < 20000; i++) {
        int kind = 1 + i % (int)CAIRN_MESSAGE_KIND_LAST;
        struct cairn_message message = some_message((enum cairn_message_kind)kind, bytes), back;
        size_t used = 0, used_again = 0;

        assert_int_equal(cairn_message_pack(&message, packed, sizeof packed, &used), CAIRN_OK);
        for (uint64_t changes = 1 + next() % 3; changes > 0; changes--)
            packed[next() % used] = (uint8_t)next();
        if (cairn_message_unpack(packed, used, &back) != CAIRN_OK)
            continue;
        taken++;
        assert_int_equal(cairn_message_pack(&back, again, sizeof again, &used_again), CAIRN_OK);
        assert_int_equal(used_again, used);
        assert_memory_equal(again, packed, used);
    }
    assert_true(taken > 1000);
}

static void
names(void **unused)
{
    for (int kind = 1; kind <= (int)CAIRN_MESSAGE_KIND_LAST; kind++)
        for (int other = 1; other < kind; other++)
            assert_string_not_equal(cairn_message_name((enum cairn_message_kind)kind),
                                    cairn_message_name((enum cairn_message_kind)other));
    assert_string_equal(cairn_message_name(CAIRN_MSG_CLAIM), "claim");
    assert_string_equal(cairn_message_name((enum cairn_message_kind)99), "?");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),    cmocka_unit_test(fields_come_back),
        cmocka_unit_test(truncated),     cmocka_unit_test(no_room),
        cmocka_unit_test(out_of_bounds), cmocka_unit_test(changed_bytes),
        cmocka_unit_test(names),
    };

    return cmocka_run_group_tests_name("agent/core/message", tests, NULL, NULL);
}
