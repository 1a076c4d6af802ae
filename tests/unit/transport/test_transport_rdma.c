/*
 * What a peer that is proved may do over a fabric, and what it may not: the backend `rdma` over two
 * backends that exist in memory alone.
 */
#include "tests/support/cmocka.h"
#include "tests/support/fabric.h"

enum { PAYLOAD_BYTES = CAIRN_BLOCK_BYTES + 1000, SEED = 7 };

static struct cairn_cipher *cipher;
static uint8_t frame[FABRIC_FRAME_BYTES_MAX];

static bool
filled(uint32_t index, size_t bytes_len)
{
    return fabric.rdma->ops->filled(fabric.rdma, index, bytes_len) == CAIRN_BACKEND_WHOLE;
}

/* Node 1 is there, and may write into buffer 0. */
static void
start(enum cairn_protection protection)
{
    assert_int_equal(fabric_open(protection), CAIRN_OK);
    fabric_deliver(1, frame, fabric_offer(protection, SEED, frame));
    fabric_region_open(0);
    for (uint32_t i = 0; i < PAYLOAD_BYTES; i++)
        fabric_pool[0][i] = (uint8_t)(i * 7 + (i >> 9));
    assert_false(filled(0, PAYLOAD_BYTES));
}

static int
stop(void **state)
{
    fabric_test_close();
    return 0;
}

static void
refused(const char *why)
{
    assert_false(filled(0, PAYLOAD_BYTES));
    assert_int_equal(fabric.broken_count[1], 1);
    assert_non_null(strstr(fabric.why, why));
}

/* The payload does not count, and the session goes on. */
static void
torn(void)
{
    assert_int_equal(fabric.rdma->ops->filled(fabric.rdma, 0, PAYLOAD_BYTES), CAIRN_BACKEND_TORN);
    assert_int_equal(fabric.broken_count[1], 0);
}

static void
a_payload_counts_once_its_tags_are_right(void **state)
{
    start(CAIRN_PROTECTION_AUTHENTICATE);
    fabric_deliver(1, frame, fabric_tags(cipher, SEED, 0, PAYLOAD_BYTES, 0, frame));
    assert_true(filled(0, PAYLOAD_BYTES));
    assert_false(filled(0, PAYLOAD_BYTES - 1));
    assert_false(filled(1, PAYLOAD_BYTES));
    assert_int_equal(fabric.broken_count[1], 0);
    fabric_region_open(0);
    assert_false(filled(0, PAYLOAD_BYTES));
}

static void
a_payload_without_tags_is_refused(void **state)
{
    start(CAIRN_PROTECTION_AUTHENTICATE);
    fabric_deliver(1, frame, fabric_tags(cipher, 0, 0, PAYLOAD_BYTES, 0, frame));
    refused("malformed");
}

static void
any_changed_byte_is_refused(void **state)
{
    size_t len;

    start(CAIRN_PROTECTION_AUTHENTICATE);
    len = fabric_tags(cipher, SEED, 0, PAYLOAD_BYTES, 0, frame);
    for (size_t at = 1; at < len + 4; at++) {
        fabric_test_close();
        start(CAIRN_PROTECTION_AUTHENTICATE);
        len = fabric_tags(cipher, SEED, 0, PAYLOAD_BYTES, 0, frame);
        if (at < len)
            frame[at] ^= 1;
        else /* in the payload: its first and last bytes, and those where blocks meet */
            fabric_pool[0][(size_t[]){0, PAYLOAD_BYTES - 1, CAIRN_BLOCK_BYTES - 1,
                                      CAIRN_BLOCK_BYTES}[at - len]] ^= 0x80;
        fabric_deliver(1, frame, len);
        assert_false(filled(0, PAYLOAD_BYTES));
        /* Its length, its number, its tags, or itself: no tag fits. */
        if ((at >= 4 && at < 16) || at >= FABRIC_TAGS_BYTES)
            assert_true(fabric.broken_count[1] == 0 || (at >= 4 && at < 8));
        else
            refused("malformed");
    }
}

static void
a_short_frame_is_refused(void **state)
{
    for (size_t len = 1; len < FABRIC_TAGS_BYTES + 2 * CAIRN_CIPHER_TAG_BYTES; len++) {
        start(CAIRN_PROTECTION_AUTHENTICATE);
        (void)fabric_tags(cipher, SEED, 0, PAYLOAD_BYTES, 0, frame);
        fabric_deliver(1, frame, len);
        refused("malformed");
        fabric_test_close();
    }
}

static void
tags_of_another_key_or_payload_are_refused(void **state)
{
    start(CAIRN_PROTECTION_AUTHENTICATE);
    fabric_deliver(1, frame, fabric_tags(cipher, SEED + 1, 0, PAYLOAD_BYTES, 0, frame));
    torn();
    fabric_test_close();
    start(CAIRN_PROTECTION_AUTHENTICATE);
    (void)fabric_tags(cipher, SEED, 0, PAYLOAD_BYTES, 1, frame);
    fabric_number(frame + 8, 2, 8); /* another payload's number */
    fabric_deliver(1, frame, FABRIC_TAGS_BYTES + 2 * CAIRN_CIPHER_TAG_BYTES);
    torn();
}

static void
a_closed_buffer_takes_no_payload(void **state)
{
    size_t len;

    start(CAIRN_PROTECTION_AUTHENTICATE);
    len = fabric_tags(cipher, SEED, 0, PAYLOAD_BYTES, 0, frame);
    assert_int_equal(fabric.rdma->ops->region(fabric.rdma, 0, NULL), CAIRN_OK);
    fabric_deliver(1, frame, len);
    refused("malformed");
}

/* One that is full is closed: what has been checked can no longer change. */
static void
a_payload_comes_once(void **state)
{
    size_t len;

    start(CAIRN_PROTECTION_AUTHENTICATE);
    len = fabric_tags(cipher, SEED, 0, PAYLOAD_BYTES, 0, frame);
    fabric_deliver(1, frame, len);
    assert_true(filled(0, PAYLOAD_BYTES));
    fabric_deliver(1, frame, len);
    assert_int_equal(fabric.broken_count[1], 1);
}

static void
without_protection_there_are_no_tags(void **state)
{
    start(CAIRN_PROTECTION_NONE);
    fabric_deliver(1, frame, fabric_tags(cipher, SEED, 0, PAYLOAD_BYTES, 0, frame));
    refused("malformed");
    fabric_test_close();
    start(CAIRN_PROTECTION_NONE);
    fabric_deliver(1, frame, fabric_tags(cipher, 0, 0, PAYLOAD_BYTES, 0, frame));
    assert_true(filled(0, PAYLOAD_BYTES));
}

static void
the_offer_comes_first_and_once(void **state)
{
    start(CAIRN_PROTECTION_AUTHENTICATE);
    fabric_deliver(2, frame, fabric_tags(cipher, SEED, 0, PAYLOAD_BYTES, 0, frame));
    assert_int_equal(fabric.broken_count[2], 1);
    assert_false(filled(0, PAYLOAD_BYTES));
    fabric_deliver(2, (const uint8_t *)"CRN", 3);
    assert_int_equal(fabric.received_count, 0);
    assert_int_equal(fabric.broken_count[2], 2);
    fabric_deliver(1, (const uint8_t *)"CRN", 3);
    assert_int_equal(fabric.received_count, 1);
    fabric_deliver(1, frame, fabric_offer(CAIRN_PROTECTION_AUTHENTICATE, SEED, frame));
    assert_int_equal(fabric.broken_count[1], 1);
}

static void
another_protection_is_refused(void **state)
{
    start(CAIRN_PROTECTION_AUTHENTICATE);
    fabric_deliver(2, frame, fabric_offer(CAIRN_PROTECTION_NONE, SEED, frame));
    assert_int_equal(fabric.broken_count[2], 1);
}

/* What node 0 sends: its offer first, then a payload once both may write, and its tags after that,
 * under nonces that never come twice. */
static void
a_payload_on_its_way_out(void **state)
{
    static uint8_t first[FABRIC_FRAME_BYTES_MAX];
    struct cairn_backend_part parts[3];

    start(CAIRN_PROTECTION_AUTHENTICATE);
    assert_int_equal(fabric.rdma->ops->write(fabric.rdma, 1, fabric_pool[0], PAYLOAD_BYTES,
                                             fabric.remotes[0], &parts[0]),
                     CAIRN_AGAIN);
    assert_int_equal(fabric.rdma->ops->send(fabric.rdma, 1, "CRN", 3, &parts[0]), CAIRN_OK);
    assert_int_equal(fabric.control.sent_count, 2); /* the offer came before it */
    for (int turn = 0; turn < 4; turn++) /* the fabric's connection: this node is the lower one */
        (void)fabric.rdma->ops->progress(fabric.rdma);
    assert_int_equal(fabric.bulk.sent_count, 1);
    assert_int_equal(fabric.ok_count, 1);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(fabric.rdma->ops->write(fabric.rdma, 1, fabric_pool[0], PAYLOAD_BYTES,
                                                 fabric.remotes[0], &parts[1 + i]),
                         CAIRN_OK);
        assert_int_equal(fabric.bulk.written_count, 1 + i);
        (void)fabric.rdma->ops->progress(fabric.rdma);
        (void)fabric.rdma->ops->progress(fabric.rdma);
        assert_int_equal(fabric.ok_count, 2 + i);
        assert_int_equal(fabric.control.sent[0], 'T');
        assert_int_equal(fabric.control.sent_len, FABRIC_TAGS_BYTES + 2 * CAIRN_CIPHER_TAG_BYTES);
        if (i == 0)
            memcpy(first, fabric.control.sent, sizeof first);
    }
    assert_memory_not_equal(first + 8, fabric.control.sent + 8, 8); /* the count of payloads */
    assert_memory_not_equal(first + FABRIC_TAGS_BYTES, fabric.control.sent + FABRIC_TAGS_BYTES,
                            CAIRN_CIPHER_TAG_BYTES);
}

static int
ciphers(void **state)
{
    return cairn_cipher_openssl.open(&cipher) != CAIRN_OK;
}

static int
ciphers_end(void **state)
{
    cairn_cipher_close(cipher);
    return 0;
}

int
main(void)
{
#define TEST(function) cmocka_unit_test_teardown(function, stop)
    const struct CMUnitTest tests[] = {
        TEST(a_payload_counts_once_its_tags_are_right),
        TEST(a_payload_without_tags_is_refused),
        TEST(any_changed_byte_is_refused),
        TEST(a_short_frame_is_refused),
        TEST(tags_of_another_key_or_payload_are_refused),
        TEST(a_closed_buffer_takes_no_payload),
        TEST(a_payload_comes_once),
        TEST(without_protection_there_are_no_tags),
        TEST(the_offer_comes_first_and_once),
        TEST(another_protection_is_refused),
        TEST(a_payload_on_its_way_out),
    };

    return cmocka_run_group_tests_name("rdma", tests, ciphers, ciphers_end);
}
