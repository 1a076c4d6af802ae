/* tests/unit/agent/core/test_message.c - messages: what is packed comes back, and nothing else is
 * taken.
 */
#include "agent/core/message.h"
#include "base/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROUNDS = 2000, BYTES_MAX = 300 };

static uint64_t state = 1;

static uint64_t
next(void)
{
    state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = (state ^ (state >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static struct cairn_message
some_message(uint8_t *bytes)
{
    struct cairn_message message = {
        .type = (enum cairn_message_type)(CAIRN_MSG_HEARTBEAT + next() % CAIRN_MESSAGE_TYPE_LAST),
        .from = (uint32_t)(next() % CAIRN_NODES_MAX),
        .to = (uint32_t)(next() % CAIRN_NODES_MAX),
        .epoch = next(),
        .generation = {next(), next()},
        .member = (uint32_t)next(),
        .area = (uint32_t)(next() % 3),
        .stripe = (uint32_t)next(),
        .row = (uint32_t)next(),
        .first_block = next(),
        .block_count = (uint32_t)(next() % (CAIRN_MESSAGE_BLOCKS_MAX + 1)),
        .err = (uint32_t)(next() % (CAIRN_INTERNAL + 1)),
        .request = next(),
        .offset = next(),
        .total = next(),
        .bytes = bytes,
        .bytes_len = (uint32_t)(next() % BYTES_MAX)};

    for (uint32_t i = 0; i < message.bytes_len; i++)
        bytes[i] = (uint8_t)next();
    return message;
}

static void
assert_same(const struct cairn_message *a, const struct cairn_message *b)
{
    assert_int_equal(a->type, b->type);
    assert_int_equal(a->from, b->from);
    assert_int_equal(a->to, b->to);
    assert_true(a->epoch == b->epoch);
    assert_int_equal(cairn_generation_compare(a->generation, b->generation), 0);
    assert_int_equal(a->member, b->member);
    assert_int_equal(a->area, b->area);
    assert_int_equal(a->stripe, b->stripe);
    assert_int_equal(a->row, b->row);
    assert_true(a->first_block == b->first_block);
    assert_int_equal(a->block_count, b->block_count);
    assert_int_equal(a->err, b->err);
    assert_true(a->request == b->request);
    assert_true(a->offset == b->offset);
    assert_true(a->total == b->total);
    assert_int_equal(a->bytes_len, b->bytes_len);
    if (a->bytes_len)
        assert_memory_equal(a->bytes, b->bytes, a->bytes_len);
}

static void
round_trip(void **unused)
{
    uint8_t bytes[BYTES_MAX], packed[CAIRN_MESSAGE_FIXED_BYTES + BYTES_MAX];

    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        struct cairn_message message = some_message(bytes), back;
        size_t used = 0;

        assert_int_equal(cairn_message_pack(&message, packed, sizeof packed, &used), CAIRN_OK);
        assert_int_equal(used, CAIRN_MESSAGE_FIXED_BYTES + message.bytes_len);
        assert_int_equal(cairn_message_unpack(packed, used, &back), CAIRN_OK);
        assert_same(&message, &back);
    }
}

/* Shorter or longer by any number of bytes is no message; `out` stays as it was. */
static void
truncated(void **unused)
{
    uint8_t bytes[BYTES_MAX], packed[CAIRN_MESSAGE_FIXED_BYTES + BYTES_MAX + 1] = {0};

    (void)unused;
    for (int i = 0; i < 20; i++) {
        struct cairn_message message = some_message(bytes), back = {.member = 77};
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
        assert_int_equal(back.member, 77);
    }
}

static void
no_room(void **unused)
{
    uint8_t bytes[BYTES_MAX], packed[CAIRN_MESSAGE_FIXED_BYTES + BYTES_MAX];
    struct cairn_message message = some_message(bytes);
    size_t used = 4711;

    (void)unused;
    for (size_t room = 0; room < CAIRN_MESSAGE_FIXED_BYTES + message.bytes_len; room++)
        assert_int_equal(cairn_message_pack(&message, packed, room, &used), CAIRN_FULL);
    assert_int_equal(used, 4711);
}

/* Each number that has a bound is refused just beyond it. */
static void
out_of_bounds(void **unused)
{
    uint8_t packed[CAIRN_MESSAGE_FIXED_BYTES];
    struct cairn_message good = {.type = CAIRN_MSG_READ, .from = 1, .to = 2}, back;
    struct cairn_message bad[8];
    size_t used;

    (void)unused;
    for (int i = 0; i < 8; i++)
        bad[i] = good;
    bad[0].type = (enum cairn_message_type)0;
    bad[1].type = (enum cairn_message_type)(CAIRN_MESSAGE_TYPE_LAST + 1);
    bad[2].from = CAIRN_NODES_MAX;
    bad[3].to = CAIRN_NODES_MAX;
    bad[4].area = CAIRN_AREA_SCRATCH + 1;
    bad[5].block_count = CAIRN_MESSAGE_BLOCKS_MAX + 1;
    bad[6].err = CAIRN_INTERNAL + 1;
    bad[7].from = UINT32_MAX;
    assert_int_equal(cairn_message_pack(&good, packed, sizeof packed, &used), CAIRN_OK);
    assert_int_equal(cairn_message_unpack(packed, used, &back), CAIRN_OK);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(cairn_message_pack(&bad[i], packed, sizeof packed, &used), CAIRN_OK);
        assert_int_equal(cairn_message_unpack(packed, used, &back), CAIRN_CORRUPT);
    }
}

/* Random bytes are refused, or are a message that packs to the same bytes. */
static void
random_bytes(void **unused)
{
    uint8_t bytes[CAIRN_MESSAGE_FIXED_BYTES + 20], again[CAIRN_MESSAGE_FIXED_BYTES + 20];
    uint32_t taken = 0;

    (void)unused;
    for (int i = 0; i < 20000; i++) {
        struct cairn_message message;
        size_t len = CAIRN_MESSAGE_FIXED_BYTES + next() % 20, used = 0;

        for (size_t b = 0; b < len; b++)
            bytes[b] = next() % 3 ? 0 : (uint8_t)next();
        bytes[0] = (uint8_t)(next() % 30);
        if (i % 2) { /* what has a bound within it, and the length of what follows, so that some are
                        whole */
            static const size_t bounded[] = {1, 5, 37, 57,
                                             61}; /* from, to, area, block_count, err */

            for (size_t f = 0; f < 5; f++) {
                memset(bytes + bounded[f], 0, 4);
                bytes[bounded[f]] = (uint8_t)(next() % 4);
            }
            memset(bytes + CAIRN_MESSAGE_FIXED_BYTES - 4, 0, 4);
            bytes[CAIRN_MESSAGE_FIXED_BYTES - 4] = (uint8_t)(len - CAIRN_MESSAGE_FIXED_BYTES);
        }
        if (cairn_message_unpack(bytes, len, &message) != CAIRN_OK)
            continue;
        taken++;
        assert_int_equal(cairn_message_pack(&message, again, sizeof again, &used), CAIRN_OK);
        assert_int_equal(used, len);
        assert_memory_equal(again, bytes, len);
    }
    assert_true(taken > 10);
}

static void
names(void **unused)
{
    (void)unused;
    for (int type = CAIRN_MSG_HEARTBEAT; type <= CAIRN_MESSAGE_TYPE_LAST; type++)
        for (int other = CAIRN_MSG_HEARTBEAT; other < type; other++)
            assert_string_not_equal(cairn_message_name((enum cairn_message_type)type),
                                    cairn_message_name((enum cairn_message_type)other));
    assert_string_equal(cairn_message_name(CAIRN_MSG_CLAIM), "claim");
    assert_string_equal(cairn_message_name((enum cairn_message_type)99), "?");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),    cmocka_unit_test(truncated),    cmocka_unit_test(no_room),
        cmocka_unit_test(out_of_bounds), cmocka_unit_test(random_bytes), cmocka_unit_test(names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
