/* tests/unit/agent/process/test_fleet.c - changes of nodes, packed and applied. */
#include "agent/process/fleet.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

static const char three[] =
    "job: a\nparity: 1\nnodes:\n  - {address: \"127.0.0.1:1001\"}\n"
    "  - {address: \"127.0.0.1:1002\"}\n  - {address: \"127.0.0.1:1003\"}\n";
static uint32_t told[64], told_count;

static void
tell(void *context, uint32_t node)
{
    told[told_count++] = node;
}

static struct cairn_config
config_of_three(void)
{
    struct cairn_config config;
    char error[CAIRN_CONFIG_ERROR_BYTES];

    assert_int_equal(
        cairn_config_parse(three, sizeof three - 1, "three", &config, error, sizeof error),
        CAIRN_OK);
    told_count = 0;
    return config;
}

static void
changes_add_up(void **state)
{
    struct cairn_config told_first = config_of_three(), told_last = config_of_three();
    uint8_t *bytes;
    size_t len;

    assert_int_equal(cairn_fleet_pack(&told_first,
                                      &(struct cairn_fleet_change){1, false, "127.0.0.9:2002"},
                                      &bytes, &len),
                     CAIRN_OK);
    assert_int_equal(cairn_fleet_apply(&told_first, bytes, len, tell, NULL), CAIRN_OK);
    assert_int_equal(told_count, 1);
    assert_int_equal(told[0], 1);
    assert_string_equal(told_first.nodes[1].address, "127.0.0.9:2002");
    /* the same again changes nothing */
    assert_int_equal(cairn_fleet_apply(&told_first, bytes, len, tell, NULL), CAIRN_OK);
    assert_int_equal(told_count, 1);
    free(bytes);
    assert_int_equal(
        cairn_fleet_pack(&told_first, &(struct cairn_fleet_change){2, true, NULL}, &bytes, &len),
        CAIRN_OK);
    /* an agent that was away learns both */
    assert_int_equal(cairn_fleet_apply(&told_last, bytes, len, tell, NULL), CAIRN_OK);
    assert_int_equal(told_count, 3);
    assert_string_equal(told_last.nodes[1].address, "127.0.0.9:2002");
    assert_false(told_last.nodes[1].removed);
    assert_true(told_last.nodes[2].removed);
    assert_string_equal(told_last.nodes[2].address, "127.0.0.1:1003");
    assert_string_equal(told_last.nodes[0].address, "127.0.0.1:1001");
    free(bytes);
    cairn_config_fini(&told_first);
    cairn_config_fini(&told_last);
}

static void
wrong_changes(void **state)
{
    struct cairn_config config = config_of_three();
    char address[CAIRN_CONFIG_ADDRESS_BYTES_MAX + 1];
    uint8_t *bytes;
    size_t len;

    memset(address, 'a', sizeof address - 1);
    address[sizeof address - 1] = '\0';
    assert_int_equal(
        cairn_fleet_pack(&config, &(struct cairn_fleet_change){3, true, NULL}, &bytes, &len),
        CAIRN_INVAL);
    assert_int_equal(
        cairn_fleet_pack(&config, &(struct cairn_fleet_change){0, false, address}, &bytes, &len),
        CAIRN_INVAL);
    cairn_config_fini(&config);
}

/* Every prefix, and every changed byte, either is refused or leaves a configuration that is
 * whole. */
static void
damaged_changes(void **state)
{
    struct cairn_config config = config_of_three();
    uint8_t *bytes, damaged[128];
    size_t len;

    assert_int_equal(cairn_fleet_pack(&config,
                                      &(struct cairn_fleet_change){1, true, "127.0.0.9:2002"},
                                      &bytes, &len),
                     CAIRN_OK);
    assert_true(len <= sizeof damaged);
    assert_int_equal(cairn_fleet_apply(&config, bytes, 0, tell, NULL), CAIRN_OK);
    for (size_t cut = 1; cut < len; cut++)
        assert_int_not_equal(cairn_fleet_apply(&config, bytes, cut, tell, NULL), CAIRN_OK);
    assert_int_equal(told_count, 0);
    bytes[0]++;
    assert_int_equal(cairn_fleet_apply(&config, bytes, len, tell, NULL), CAIRN_VERSION);
    bytes[0]--;
    for (size_t at = 4; at < len; at++) {
        memcpy(damaged, bytes, len);
        damaged[at] ^= 0xff;
        told_count = 0;
        if (cairn_fleet_apply(&config, damaged, len, tell, NULL) == CAIRN_OK)
            for (uint32_t i = 0; i < told_count; i++)
                assert_true(told[i] < 3);
    }
    free(bytes);
    cairn_config_fini(&config);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(changes_add_up),
                                       cmocka_unit_test(wrong_changes),
                                       cmocka_unit_test(damaged_changes)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
