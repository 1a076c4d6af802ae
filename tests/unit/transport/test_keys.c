/*
 * tests/unit/transport/test_keys.c - the ring of the job's keys: which one is offered, which are
 * accepted, and that what is derived differs by key, job, direction and node.
 */
#include "transport/keys.h"
#include "tests/support/cmocka.h"

#include <string.h>

static const struct cairn_transport_key one = {"the first key of this job", 25};
static const struct cairn_transport_key two = {"the second key of this job", 26};
static const struct cairn_transport_key none;

static struct cairn_keys *
ring_make(uint64_t job_id, struct cairn_transport_key first, struct cairn_transport_key second)
{
    struct cairn_keys *keys;

    assert_int_equal(cairn_keys_create(job_id, &keys), CAIRN_OK);
    assert_int_equal(cairn_keys_set(keys, (struct cairn_transport_key[]){first, second}), CAIRN_OK);
    return keys;
}

static uint32_t
offered(const struct cairn_keys *keys)
{
    uint32_t id;

    assert_true(cairn_keys_id(keys, 0, &id));
    return id;
}

static void
derived_keys_differ(void **state)
{
    struct cairn_keys *keys = ring_make(7, one, two), *other_job = ring_make(8, one, none);
    uint8_t psk[6][CAIRN_KEYS_PSK_BYTES];
    struct cairn_ports ports[4];
    uint32_t first, second;

    assert_true(cairn_keys_id(keys, 0, &first));
    assert_true(cairn_keys_id(keys, 1, &second));
    assert_int_not_equal(first, second);
    assert_int_equal(offered(keys), first);
    assert_int_equal(cairn_keys_psk(keys, first, 0, 1, psk[0]), CAIRN_OK);
    assert_int_equal(cairn_keys_psk(keys, first, 1, 0, psk[1]), CAIRN_OK);
    assert_int_equal(cairn_keys_psk(keys, first, 0, 2, psk[2]), CAIRN_OK);
    assert_int_equal(cairn_keys_psk(keys, second, 0, 1, psk[3]), CAIRN_OK);
    assert_int_equal(cairn_keys_psk(other_job, offered(other_job), 0, 1, psk[4]), CAIRN_OK);
    memset(psk[5], 0, sizeof psk[5]);
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(psk[i], psk[j], CAIRN_KEYS_PSK_BYTES);
    assert_int_equal(cairn_keys_psk(keys, first ^ second ^ 1, 0, 1, psk[0]), CAIRN_NOT_FOUND);
    assert_true(cairn_keys_ports(keys, 0, 1, &ports[0]));
    assert_true(cairn_keys_ports(keys, 0, 2, &ports[1]));
    assert_true(cairn_keys_ports(keys, 1, 1, &ports[2]));
    assert_true(cairn_keys_ports(other_job, 0, 1, &ports[3]));
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(&ports[i], &ports[j], sizeof *ports);
    assert_false(cairn_keys_ports(other_job, 1, 1, &ports[0])); /* no such key */
    cairn_keys_destroy(keys);
    cairn_keys_destroy(other_job);
}

/* Node by node: accepted first, then offered, then alone. Agents one step apart know each other's
 * offered key at every step. */
static void
rotation_never_parts_two_agents(void **state)
{
    const struct cairn_transport_key steps[][2] = {
        {one, none}, {one, two}, {two, one}, {two, none}};
    uint8_t psk[CAIRN_KEYS_PSK_BYTES];

    for (int i = 0; i < 4; i++)
        for (int j = i ? i - 1 : 0; j < 4 && j <= i + 1; j++) {
            struct cairn_keys *keys = ring_make(7, steps[i][0], steps[i][1]);
            struct cairn_keys *peer = ring_make(7, steps[j][0], steps[j][1]);

            assert_int_equal(cairn_keys_psk(keys, offered(peer), 0, 1, psk), CAIRN_OK);
            assert_int_equal(cairn_keys_psk(peer, offered(keys), 0, 1, psk), CAIRN_OK);
            cairn_keys_destroy(keys);
            cairn_keys_destroy(peer);
        }
}

static void
a_replaced_key_is_forgotten(void **state)
{
    struct cairn_keys *keys = ring_make(7, one, none);
    uint32_t first = offered(keys), id;
    uint8_t psk[CAIRN_KEYS_PSK_BYTES];

    assert_false(cairn_keys_id(keys, 1, &id));
    assert_false(cairn_keys_id(keys, CAIRN_KEYS_MAX, &id));
    assert_int_equal(cairn_keys_set(keys, (struct cairn_transport_key[]){two, none}), CAIRN_OK);
    assert_int_not_equal(offered(keys), first);
    assert_int_equal(cairn_keys_psk(keys, first, 0, 1, psk), CAIRN_NOT_FOUND);
    cairn_keys_destroy(keys);
}

static void
the_same_key_twice_is_refused(void **state)
{
    struct cairn_keys *keys = ring_make(7, one, two);
    uint32_t first = offered(keys), second;

    assert_int_equal(cairn_keys_set(keys, (struct cairn_transport_key[]){two, two}), CAIRN_CONFIG);
    assert_int_equal(offered(keys), first); /* as before */
    assert_true(cairn_keys_id(keys, 1, &second));
    cairn_keys_destroy(keys);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(derived_keys_differ),
        cmocka_unit_test(rotation_never_parts_two_agents),
        cmocka_unit_test(a_replaced_key_is_forgotten),
        cmocka_unit_test(the_same_key_twice_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
