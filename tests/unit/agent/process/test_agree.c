/* tests/unit/agent/process/test_agree.c - options that all agents must set alike, and services'
 * messages. */
#include "agent/process/agree.h"
#include "agent/process/service_message.h"
#include "tests/support/cmocka.h"

#include <string.h>

static void
options_that_differ_are_named(void **state)
{
    struct cairn_config_node nodes[2] = {{.domain = "a"}, {.domain = "b"}}, others[2];
    struct cairn_config own = {
        .node_count = 2, .nodes = nodes, .parity = 1, .state_bytes = 1 << 20};
    struct cairn_config theirs = own;
    char packed[AGREE_BYTES_MAX], text[AGREE_TEXT_BYTES];
    size_t len = agree_pack(&theirs, packed);

    assert_true(len > 0);
    assert_int_equal(agree_compare(&own, 1, packed, len, text), AGREE_SAME);
    theirs.dead_after_ms = 7;
    len = agree_pack(&theirs, packed);
    assert_int_equal(agree_compare(&own, 1, packed, len, text), AGREE_DIFFERENT);
    assert_string_equal(text, "dead_after_ms: 7 on node 1, 0 on node 0");
    theirs.state_bytes = 5; /* what must agree comes first */
    len = agree_pack(&theirs, packed);
    assert_int_equal(agree_compare(&own, 1, packed, len, text), AGREE_REFUSED);
    assert_string_equal(text, "state_bytes: 5 on node 1, 1048576 on node 0");
    theirs = own;
    memcpy(others, nodes, sizeof others);
    theirs.nodes = others;
    memset(others[1].address, 'x', 5); /* an address may change */
    len = agree_pack(&theirs, packed);
    assert_int_equal(agree_compare(&own, 1, packed, len, text), AGREE_SAME);
    others[1].spare = true;
    len = agree_pack(&theirs, packed);
    assert_int_equal(agree_compare(&own, 1, packed, len, text), AGREE_REFUSED);
    assert_memory_equal(text, "domains and spares: ", 20);
}

static void
any_bytes_are_compared(void **state)
{
    static const char hostile[] = "!parity=\x1b[31m0123456789012345678901234567890123456789\n=\n\n";
    struct cairn_config_node node = {.domain = ""};
    const struct cairn_config own = {.node_count = 1, .nodes = &node};
    char text[AGREE_TEXT_BYTES];

    assert_int_equal(agree_compare(&own, 1, "", 0, text), AGREE_SAME);
    assert_int_equal(agree_compare(&own, 1, "!parity", 7, text), AGREE_SAME);
    assert_int_equal(agree_compare(&own, 1, "!parity=0", 9, text), AGREE_SAME);
    assert_int_equal(agree_compare(&own, 1, "an_option_of_later=1\n", 21, text), AGREE_SAME);
    assert_int_equal(agree_compare(&own, 1, hostile, sizeof hostile - 1, text), AGREE_REFUSED);
    assert_null(strchr(text, 0x1b));
    for (size_t len = 0; len < sizeof hostile; len++)
        (void)agree_compare(&own, 1, hostile, len, text);
}

static void
messages_of_services_come_back(void **state)
{
    const struct cairn_service_message message = {.kind = CAIRN_SERVICE_SPILL,
                                                  .from = 3,
                                                  .to = 4,
                                                  .verb = 5,
                                                  .generation = {6, 7, 8},
                                                  .item = 9,
                                                  .block_count = 10,
                                                  .err = CAIRN_PEER,
                                                  .request = 11,
                                                  .offset = 12,
                                                  .total = 13,
                                                  .bytes = (const uint8_t *)"bytes",
                                                  .bytes_len = 5};
    uint8_t packed[CAIRN_SERVICE_HEAD_BYTES + 5], again[sizeof packed];
    struct cairn_service_message got;
    size_t used = 0;

    assert_int_equal(cairn_service_pack(&message, packed, sizeof packed - 1, &used), CAIRN_FULL);
    assert_int_equal(cairn_service_pack(&message, packed, sizeof packed, &used), CAIRN_OK);
    assert_int_equal(used, sizeof packed);
    assert_int_equal(cairn_service_unpack(packed, used, &got), CAIRN_OK);
    assert_int_equal(cairn_service_pack(&got, again, sizeof again, &used), CAIRN_OK);
    assert_memory_equal(packed, again, sizeof packed);
    assert_int_equal(got.generation.run, 8);
    for (size_t len = 0; len < sizeof packed; len++)
        assert_int_equal(cairn_service_unpack(packed, len, &got), CAIRN_CORRUPT);
    for (int kind = 0; kind < 256; kind++) {
        packed[0] = (uint8_t)kind;
        assert_int_equal(cairn_service_unpack(packed, sizeof packed, &got),
                         kind >= 1 && kind <= CAIRN_SERVICE_KIND_LAST ? CAIRN_OK : CAIRN_CORRUPT);
    }
    assert_string_equal(cairn_service_name(CAIRN_SERVICE_FETCH), "fetch");
    assert_string_equal(cairn_service_name((enum cairn_service_kind)99), "?");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_that_differ_are_named),
        cmocka_unit_test(any_bytes_are_compared),
        cmocka_unit_test(messages_of_services_come_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
