/* Which addresses are ignored, and until when. */
#include "transport/strangers.h"
#include "tests/support/cmocka.h"

#include <string.h>

static const uint64_t second_ns = 1000000000;
static const uint64_t ignored_ns = CAIRN_STRANGERS_IGNORED_S * UINT64_C(1000000000);
static struct cairn_strangers strangers;
static struct in6_addr list[CAIRN_STRANGERS_MAX];

static int
begin(void **state)
{
    memset(&strangers, 0, sizeof strangers);
    return 0;
}

static struct in6_addr
address(uint8_t last)
{
    struct in6_addr out = {{{0x20, 0x01, [15] = last}}};

    return out;
}

/* One connection of an address fails and makes it due; it is ignored. Returns whether to log. */
static bool
ignore(uint8_t last, uint64_t now_ns)
{
    struct in6_addr source = address(last);

    assert_true(cairn_strangers_failed(&strangers, &source, CAIRN_STRANGERS_COST_NS, now_ns));
    return cairn_strangers_ignore(&strangers, &source, now_ns);
}

static bool
ignores(uint8_t last)
{
    struct in6_addr source = address(last);

    return cairn_strangers_ignores(&strangers, &source);
}

/* What counts is the cost within a second. */
static void
test_cost_within_a_second(void **state)
{
    struct in6_addr a = address(1), b = address(2);
    uint64_t part_ns = CAIRN_STRANGERS_COST_NS / 4, now_ns = 7 * second_ns;

    for (int i = 0; i < 100; i++) /* three quarters in each second */
        assert_false(cairn_strangers_failed(&strangers, &a, part_ns,
                                            now_ns + (uint64_t)i * (second_ns / 3 + 1)));
    now_ns += 100 * second_ns;
    for (int i = 0; i < 3; i++) {
        assert_false(cairn_strangers_failed(&strangers, &a, part_ns, now_ns));
        assert_false(cairn_strangers_failed(&strangers, &b, part_ns, now_ns));
    }
    assert_true(cairn_strangers_failed(&strangers, &a, part_ns, now_ns + second_ns - 1));
    assert_false(ignores(1)); /* that is the caller's decision, who knows the peers */
    assert_false(cairn_strangers_failed(&strangers, &a, part_ns, now_ns + second_ns - 1));
}

/* An address is ignored for its time, costs nothing meanwhile, and is judged again after it. */
static void
test_ignored_and_forgotten(void **state)
{
    struct in6_addr a = address(1);
    uint64_t now_ns = 7 * second_ns;

    assert_true(ignore(1, now_ns));
    assert_true(ignores(1));
    assert_false(ignores(2));
    assert_int_equal(cairn_strangers_list(&strangers, list), 1);
    assert_memory_equal(&list[0], &a, sizeof a);
    assert_false(cairn_strangers_failed(&strangers, &a, 9 * CAIRN_STRANGERS_COST_NS, now_ns));
    assert_false(cairn_strangers_expire(&strangers, now_ns + ignored_ns - 1));
    assert_true(ignores(1));
    assert_true(cairn_strangers_expire(&strangers, now_ns + ignored_ns));
    assert_false(ignores(1));
    assert_int_equal(strangers.ignored, 0);
    assert_int_equal(cairn_strangers_list(&strangers, list), 0);
    assert_false(cairn_strangers_expire(&strangers, now_ns + ignored_ns));
    assert_false(cairn_strangers_failed(&strangers, &a, 1, now_ns + ignored_ns));
}

/* One line per address in a flood that goes on; another one when it comes back much later. */
static void
test_logged_once(void **state)
{
    uint64_t now_ns = 7 * second_ns;

    assert_true(ignore(1, now_ns));
    for (int i = 0; i < 20; i++) {
        now_ns += ignored_ns;
        assert_true(cairn_strangers_expire(&strangers, now_ns));
        now_ns += 20 * second_ns;
        assert_false(ignore(1, now_ns));
    }
    assert_true(ignore(2, now_ns));
    now_ns += ignored_ns;
    assert_true(cairn_strangers_expire(&strangers, now_ns));
    assert_true(ignore(1, now_ns + 60 * second_ns));
}

/* A peer's address is forgotten, ignored or not. */
static void
test_forget(void **state)
{
    uint64_t now_ns = 7 * second_ns;
    struct in6_addr a = address(1), b = address(2), c = address(3);

    ignore(1, now_ns);
    ignore(2, now_ns);
    assert_false(cairn_strangers_failed(&strangers, &c, CAIRN_STRANGERS_COST_NS / 2, now_ns));
    assert_true(cairn_strangers_forget(&strangers, &a));
    assert_false(cairn_strangers_forget(&strangers, &a));
    assert_false(ignores(1));
    assert_true(ignores(2));
    assert_int_equal(strangers.ignored, 1);
    assert_false(cairn_strangers_forget(&strangers, &c));
    assert_false(cairn_strangers_failed(&strangers, &c, CAIRN_STRANGERS_COST_NS / 2, now_ns));
    assert_true(cairn_strangers_forget(&strangers, &b));
    assert_int_equal(cairn_strangers_list(&strangers, list), 0);
}

/* The list is full: the one that failed longest ago makes room, but nobody who is ignored. */
static void
test_full(void **state)
{
    uint64_t now_ns = 7 * second_ns;
    uint64_t half_ns = CAIRN_STRANGERS_COST_NS / 2;
    struct in6_addr source, other = address(200);

    for (uint8_t i = 0; i < CAIRN_STRANGERS_MAX; i++) {
        source = address(i);
        assert_false(cairn_strangers_failed(&strangers, &source, half_ns, now_ns + i));
    }
    source = address(0); /* now 1 is the oldest */
    assert_true(cairn_strangers_failed(&strangers, &source, half_ns, now_ns + 100));
    assert_false(cairn_strangers_failed(&strangers, &other, half_ns, now_ns + 101));
    source = address(1);
    assert_false(cairn_strangers_failed(&strangers, &source, half_ns, now_ns + 102));
    source = address(3);
    assert_true(cairn_strangers_failed(&strangers, &source, half_ns, now_ns + 103));

    begin(state);
    for (uint8_t i = 0; i < CAIRN_STRANGERS_MAX; i++)
        ignore(i, now_ns + i);
    for (int i = 0; i < 10; i++)
        assert_false(
            cairn_strangers_failed(&strangers, &other, CAIRN_STRANGERS_COST_NS, now_ns + 100));
    assert_int_equal(cairn_strangers_list(&strangers, list), CAIRN_STRANGERS_MAX);
    assert_true(cairn_strangers_expire(&strangers, now_ns + ignored_ns));
    assert_int_equal(strangers.ignored, CAIRN_STRANGERS_MAX - 1);
    assert_true(ignore(200, now_ns + ignored_ns));
    assert_false(ignores(0));
    assert_int_equal(strangers.count, CAIRN_STRANGERS_MAX);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_cost_within_a_second, begin),
        cmocka_unit_test_setup(test_ignored_and_forgotten, begin),
        cmocka_unit_test_setup(test_logged_once, begin),
        cmocka_unit_test_setup(test_forget, begin),
        cmocka_unit_test_setup(test_full, begin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
