/* Receive buffers: what is open under which key, and where a payload goes. */
#include "transport/buffers.h"
#include "tests/support/cmocka.h"

#include <string.h>

enum { COUNT = 3, KEYS = 200, LEN = 5000 };

static uint8_t pool[COUNT * CAIRN_BULK_BYTES_MAX], place[2 * LEN];
static struct cairn_buffers *buffers;

static int
begin(void **state)
{
    memset(pool, 0, sizeof pool);
    memset(place, 0, sizeof place);
    return cairn_buffers_create(pool, COUNT, &buffers);
}

static int
end(void **state)
{
    cairn_buffers_destroy(buffers);
    return 0;
}

static struct cairn_backend_remote
open_one(uint32_t index)
{
    struct cairn_backend_remote out = {0};

    assert_int_equal(cairn_buffers_open(buffers, index, &out), CAIRN_OK);
    return out;
}

static bool
is_open(uint64_t address, uint64_t key)
{
    const struct cairn_backend_remote remote = {.address = address, .key = key};
    uint32_t index = UINT32_MAX;

    if (!cairn_buffers_find(buffers, &remote, &index))
        return false;
    assert_int_equal(index, address / CAIRN_BULK_BYTES_MAX);
    return true;
}

/* A buffer is open under its own key, at its own address, until it is closed or opened again. */
static void
test_only_what_was_granted_is_open(void **state)
{
    struct cairn_backend_remote first = open_one(0), last = open_one(COUNT - 1), again;

    assert_true(is_open(first.address, first.key) && is_open(last.address, last.key));
    assert_false(is_open(first.address, last.key));
    assert_false(is_open(first.address + 1, first.key));
    assert_false(is_open(CAIRN_BULK_BYTES_MAX, 0)); /* closed */
    assert_false(is_open((uint64_t)COUNT * CAIRN_BULK_BYTES_MAX, first.key));
    assert_false(is_open(UINT64_MAX / CAIRN_BULK_BYTES_MAX * CAIRN_BULK_BYTES_MAX, first.key));
    again = open_one(0);
    assert_false(is_open(first.address, first.key));
    assert_true(is_open(again.address, again.key));
    cairn_buffers_close(buffers, 0);
    assert_false(is_open(again.address, again.key));
}

/* More than are drawn at a time: none is 0, none comes twice. */
static void
test_keys_differ(void **state)
{
    uint64_t keys[KEYS];

    for (uint32_t i = 0; i < KEYS; i++) {
        keys[i] = open_one(1).key;
        assert_int_not_equal(keys[i], 0);
        for (uint32_t j = 0; j < i; j++)
            assert_int_not_equal(keys[i], keys[j]);
    }
}

static void
test_what_a_payload_leaves(void **state)
{
    struct cairn_backend_remote remote = open_one(1);

    assert_int_equal(cairn_buffers_filled(buffers, 1, LEN), CAIRN_BACKEND_EMPTY);
    assert_ptr_equal(cairn_buffers_begin(buffers, 1, LEN, NULL), pool + CAIRN_BULK_BYTES_MAX);
    assert_int_equal(cairn_buffers_filled(buffers, 1, LEN), CAIRN_BACKEND_WHOLE);
    assert_int_equal(cairn_buffers_filled(buffers, 1, LEN - 1), CAIRN_BACKEND_EMPTY);
    cairn_buffers_tear(buffers, remote.address);
    assert_int_equal(cairn_buffers_filled(buffers, 1, LEN), CAIRN_BACKEND_TORN);
    assert_ptr_equal(cairn_buffers_begin(buffers, 1, LEN, place), place);
    assert_int_equal(cairn_buffers_filled(buffers, 1, LEN), CAIRN_BACKEND_WHOLE);
    assert_ptr_equal(cairn_buffers_placed(buffers, 1), place);
    open_one(1);
    assert_int_equal(cairn_buffers_filled(buffers, 1, LEN), CAIRN_BACKEND_EMPTY);
    assert_null(cairn_buffers_placed(buffers, 1));
}

/* Memory that touches a place moves it; memory that only borders on it does not. */
static void
test_places_that_are_taken_back(void **state)
{
    struct cairn_buffers_move move;
    uint8_t *payload = place + LEN / 2;

    open_one(2);
    cairn_buffers_begin(buffers, 2, LEN, payload);
    memset(payload, 7, LEN);
    assert_false(cairn_buffers_unplace(buffers, 1, place, sizeof place, &move));
    assert_false(cairn_buffers_unplace(buffers, 2, place, LEN / 2, &move));
    assert_false(cairn_buffers_unplace(buffers, 2, payload + LEN, 1, &move));
    assert_true(cairn_buffers_unplace(buffers, 2, payload + LEN - 1, 1, &move));
    assert_int_equal(move.address, 2 * CAIRN_BULK_BYTES_MAX);
    assert_ptr_equal(move.from, payload);
    assert_ptr_equal(move.to, pool + 2 * CAIRN_BULK_BYTES_MAX);
    assert_memory_equal(move.to, payload, LEN);
    assert_int_equal(move.to[LEN], 0);
    assert_null(cairn_buffers_placed(buffers, 2));
    assert_false(cairn_buffers_unplace(buffers, 2, place, sizeof place, &move));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_only_what_was_granted_is_open, begin, end),
        cmocka_unit_test_setup_teardown(test_keys_differ, begin, end),
        cmocka_unit_test_setup_teardown(test_what_a_payload_leaves, begin, end),
        cmocka_unit_test_setup_teardown(test_places_that_are_taken_back, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
