/* Which connection that is not proved gives way to a newcomer. */
#include "transport/crowd.h"
#include "tests/support/cmocka.h"

#include <string.h>

enum { SOURCES = CAIRN_CROWD_MAX / CAIRN_CROWD_PER_SOURCE };

static struct stream streams[2 * CAIRN_CROWD_MAX];
static struct cairn_crowd crowd;
static uint32_t added;

static int
begin(void **state)
{
    memset(streams, 0, sizeof streams);
    crowd = (struct cairn_crowd){0};
    added = 0;
    return 0;
}

static struct in6_addr
address(uint8_t last)
{
    return (struct in6_addr){{{0x20, 0x01, [15] = last}}};
}

static struct stream *
add(uint8_t source, bool known)
{
    struct stream *stream = &streams[added];

    stream->source = address(source);
    stream->known = known;
    stream->deadline_ns = 1000 + added++;
    cairn_crowd_add(&crowd, stream);
    return stream;
}

static struct stream *
worst(uint8_t source)
{
    struct in6_addr newcomer = address(source);

    return cairn_crowd_worst(&crowd, &newcomer);
}

static void
test_the_oldest_of_an_address(void **state)
{
    struct stream *oldest;

    add(2, false);
    oldest = add(1, false);
    for (uint32_t i = 2; i < CAIRN_CROWD_PER_SOURCE; i++)
        add(1, false);
    assert_null(worst(1));
    add(1, false);
    assert_ptr_equal(worst(1), oldest);
    assert_null(worst(2));
    cairn_crowd_remove(&crowd, oldest);
    assert_null(worst(1));
    cairn_crowd_remove(&crowd, oldest); /* no effect */
    add(1, false);
    assert_ptr_equal(worst(1), oldest + 1);
}

/* No address has too many, but all together. */
static void
test_the_oldest_of_all(void **state)
{
    for (uint32_t i = 0; i < CAIRN_CROWD_MAX - 1; i++)
        add((uint8_t)(i % (SOURCES + 1)), false);
    assert_null(worst(100));
    add(SOURCES, false);
    assert_ptr_equal(worst(100), &streams[0]);
}

/* Known callers stay while strangers can go, but not in more than half of the places. */
static void
test_known_callers_go_last(void **state)
{
    struct stream *known = add(1, true), *stranger = add(1, false);

    for (uint32_t i = 2; i < CAIRN_CROWD_PER_SOURCE; i++)
        add(1, false);
    assert_ptr_equal(worst(1), stranger);
    for (uint32_t i = 0; i < CAIRN_CROWD_PER_SOURCE / 2 - 1; i++)
        add(1, true);
    assert_ptr_equal(worst(1), stranger);
    add(1, true);
    assert_ptr_equal(worst(1), known);
}

static void
test_deadlines(void **state)
{
    assert_null(cairn_crowd_overdue(&crowd, UINT64_MAX));
    add(1, false);
    add(1, false);
    assert_null(cairn_crowd_overdue(&crowd, 999));
    assert_ptr_equal(cairn_crowd_overdue(&crowd, 1000), &streams[0]);
    cairn_crowd_remove(&crowd, &streams[0]);
    assert_null(cairn_crowd_overdue(&crowd, 1000));
    assert_ptr_equal(cairn_crowd_overdue(&crowd, 1001), &streams[1]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_the_oldest_of_an_address, begin),
        cmocka_unit_test_setup(test_the_oldest_of_all, begin),
        cmocka_unit_test_setup(test_known_callers_go_last, begin),
        cmocka_unit_test_setup(test_deadlines, begin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
