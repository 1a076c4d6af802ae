/* tests/unit/replan/trace/test_read.c - headers and lines of traces: taken whole, or refused with
 * why. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replan/trace/read.h"
#include "tests/support/cmocka.h"

static const char header[] =
    "{\"cairn_trace\": 1, \"world\": 4, \"nodes\": [0, 0, 1, 1], \"comms\": {\"tp0\": [0, 1], "
    "\"tp1\": [2, 3], \"pp0\": [0, 2], \"pp1\": [1, 3]}, \"roles\": {\"tp\": 2, \"pp\": 2}}";

static struct cairn_topology *
topology_of(const char *line)
{
    struct cairn_topology *topology = NULL;
    struct cairn_trace_fault fault = {NULL, 0};

    assert_int_equal(cairn_trace_read_header(line, strlen(line), &topology, &fault), CAIRN_OK);
    return topology;
}

static void
test_header(void **state)
{
    struct cairn_topology *topology = topology_of(header);

    assert_int_equal(topology->world, 4);
    assert_int_equal(topology->node_count, 2);
    assert_int_equal(topology->comm_count, 4);
    assert_int_equal(topology->stage_count, 2);
    assert_int_equal(topology->stage[0], 0);
    assert_int_equal(topology->stage[3], 1);
    assert_int_equal(topology->pipeline_count, 1);
    assert_int_equal(cairn_topology_find(topology, "pp1", 3), 3);
    assert_int_equal(cairn_topology_find(topology, "pp", 2), CAIRN_COMM_NONE);
    assert_true(cairn_topology_member(topology, 3, 3));
    assert_false(cairn_topology_member(topology, 0, 3));
    assert_false(topology->comms[0].crosses);
    assert_true(topology->comms[2].crosses);
    assert_true(topology->comms[0].kind == topology->comms[1].kind);
    assert_true(topology->comms[0].kind != topology->comms[2].kind);
    cairn_topology_destroy(topology);
}

static void
test_bad_headers(void **state)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{\"world\": 4}",
        "{\"cairn_trace\": 2, \"world\": 4}",
        "{\"cairn_trace\": 1}",
        "{\"cairn_trace\": 1, \"world\": 0}",
        "{\"cairn_trace\": 1, \"world\": 99999999999}",
        "{\"cairn_trace\": 1, \"world\": 4, \"nodes\": [0]}",
        "{\"cairn_trace\": 1, \"world\": 4, \"nodes\": [0, 0, 0, 0, 0]}",
        "{\"cairn_trace\": 1, \"world\": 4, \"comms\": {\"a\": []}}",
        "{\"cairn_trace\": 1, \"world\": 4, \"comms\": {\"a\": [0, 0]}}",
        "{\"cairn_trace\": 1, \"world\": 4, \"comms\": {\"a\": [4]}}",
        "{\"cairn_trace\": 1, \"world\": 4, \"comms\": {\"a\": [0], \"a\": [1]}}",
        "{\"cairn_trace\": 1, \"world\": 4, \"comms\": {\"a\": [0]}",
        "{\"cairn_trace\": 1, \"world\": 4} x"};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct cairn_topology *topology = NULL;
        struct cairn_trace_fault fault = {NULL, 0};

        assert_int_equal(cairn_trace_read_header(bad[i], strlen(bad[i]), &topology, &fault),
                         CAIRN_CORRUPT);
        assert_non_null(fault.why);
        assert_null(topology);
    }
}

static void
test_lines(void **state)
{
    struct cairn_topology *topology = topology_of(header);
    struct cairn_trace_fault fault;
    struct cairn_record record;
    const char *line;

    line = "{\"rank\": 3, \"comm\": \"tp1\", \"seq\": 18446744073709551615, \"op\": "
           "\"all_reduce\", \"bytes\": 8, \"step\": 12, "
           "\"enter_ns\": 1, \"start_ns\": 2, \"end_ns\": 9, \"work\": 1.5, \"later\": {\"a\": [1, "
           "\"}\"]}}";
    assert_int_equal(cairn_trace_read_line(topology, line, strlen(line), &record, &fault),
                     CAIRN_OK);
    assert_int_equal(record.rank, 3);
    assert_int_equal(record.comm, 1);
    assert_true(record.seq == UINT64_MAX && record.has_seq && record.has_step);
    assert_int_equal(record.op, CAIRN_ALL_REDUCE);
    assert_int_equal(record.start_ns, 2);
    assert_int_equal(record.end_ns, 9);
    assert_true(record.work == 1.5);
    line = "{\"rank\":1,\"op\":\"ncclReduceScatter\",\"comm\":\"tp0\",\"enter_ns\":5}";
    assert_int_equal(cairn_trace_read_line(topology, line, strlen(line), &record, &fault),
                     CAIRN_OK);
    assert_int_equal(record.op, CAIRN_REDUCE_SCATTER);
    assert_int_equal(record.end_ns, 0); /* open */
    assert_false(record.has_seq || record.has_step);
    line =
        "{\"rank\":1,\"op\":\"send\",\"peer\":3,\"start_ns\":5,\"end_ns\":6,\"nested\":{\"x\":{}}}";
    assert_int_equal(cairn_trace_read_line(topology, line, strlen(line), &record, &fault),
                     CAIRN_OK);
    assert_int_equal(record.peer, 3);
    assert_int_equal(record.comm, CAIRN_COMM_NONE);
    assert_false(record.is_backward);
    line = "{\"rank\":1,\"op\":\"send\",\"peer\":3,\"start_ns\":9,\"end_ns\":8}";
    assert_int_equal(cairn_trace_read_line(topology, line, strlen(line), &record, &fault),
                     CAIRN_OK);
    assert_true(record.is_backward); /* its clock was set back */
    line = "{\"rank\":2,\"now_ns\":77}";
    assert_int_equal(cairn_trace_read_line(topology, line, strlen(line), &record, &fault),
                     CAIRN_OK);
    assert_int_equal(record.op, 0);
    assert_int_equal(record.start_ns, 77);
    assert_int_equal(record.memory_bytes, 0);
    line = "{\"rank\":2,\"memory_bytes\":85899345920,\"later\":1}";
    assert_int_equal(cairn_trace_read_line(topology, line, strlen(line), &record, &fault),
                     CAIRN_OK);
    assert_int_equal(record.op, 0);
    assert_int_equal(record.rank, 2);
    assert_int_equal(record.memory_bytes, UINT64_C(85899345920));
    cairn_topology_destroy(topology);
}

static void
test_bad_lines(void **state)
{
    static const struct {
        const char *line, *why;
    } bad[] = {
        {"", "object"},
        {"{}", "rank"},
        {"{\"rank\":0}", "neither"},
        {"{\"rank\":4,\"now_ns\":1}", "out of range"},
        {"{\"rank\":-1,\"now_ns\":1}", "whole number"},
        {"{\"rank\":0,\"now_ns\":1.5}", "whole number"},
        {"{\"rank\":0,\"now_ns\":99999999999999999999}", "too large"},
        {"{\"rank\":0,\"now_ns\":9999999999999999999}", "out of range"},
        {"{\"rank\":0,\"now_ns\":1", "cut"},
        {"{\"rank\":0,\"now_ns\":1}}", "unexpected text"},
        {"{\"rank\":0,\"now_ns\"", "colon"},
        {"{\"rank", "unterminated"},
        {"{\"rank\":0,\"op\":\"all_reduce\",\"comm\":\"tp0\"}", "start_ns"},
        {"{\"rank\":0,\"op\":\"all_reduce\",\"start_ns\":1}", "lacks \"comm\""},
        {"{\"rank\":0,\"op\":\"all_reduce\",\"comm\":\"dp0\",\"start_ns\":1}",
         "no such communicator"},
        {"{\"rank\":0,\"op\":\"all_reduce\",\"comm\":\"tp1\",\"start_ns\":1}", "not a member"},
        {"{\"rank\":0,\"op\":\"all_reduced\",\"comm\":\"tp0\",\"start_ns\":1}",
         "unknown operation"},
        {"{\"rank\":0,\"op\":\"send\",\"start_ns\":1}", "peer"},
        {"{\"rank\":0,\"op\":\"send\",\"peer\":0,\"start_ns\":1}", "own peer"},
        {"{\"rank\":0,\"now_ns\":1,\"work\":-1}", "not negative"},
        {"{\"rank\":0,\"now_ns\":1,\"work\":1e999}", "not negative"},
        {"{\"rank\":0,\"memory_bytes\":0}", "above 0"},
        {"{\"rank\":0,\"now_ns\":1,\"compute_ns\":nul}", "or null"},
        {"{\"rank\":0,\"now_ns\":1,\"compute_ns\":-1}", "whole number"},
        {"{\"rank\":0,\"memory_bytes\":-1}", "whole number"},
        {"{\"rank\":0,\"memory_bytes\":1125899906842625}", "out of range"},
        {"{\"rank\":4,\"memory_bytes\":1}", "out of range"},
        {"{\"memory_bytes\":1}", "lacks \"rank\""},
        {"{\"rank\":0,\"memory_bytes\":1,\"now_ns\":1}", "line of its own"},
        {"{\"rank\":0,\"comm\":\"t\\u0070\"}", "escapes"}};
    struct cairn_topology *topology = topology_of(header);

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct cairn_trace_fault fault = {"", 0};
        struct cairn_record record;

        assert_int_equal(
            cairn_trace_read_line(topology, bad[i].line, strlen(bad[i].line), &record, &fault),
            CAIRN_CORRUPT);
        if (!strstr(fault.why, bad[i].why))
            fail_msg("%s: \"%s\" does not say \"%s\"", bad[i].line, fault.why, bad[i].why);
        assert_true(fault.column <= strlen(bad[i].line));
    }
    cairn_topology_destroy(topology);
}

/* However a number is written, it is read as strtod reads it. */
static void
test_decimals(void **state)
{
    static const char *const good[] = {"0",
                                       "7",
                                       "0.1",
                                       "1.0003",
                                       "0.9999",
                                       "123456.789",
                                       "0.000000000000001",
                                       "99999999999999.9",
                                       "0.12345678901234567890",
                                       "12345678901234567890",
                                       "1e3",
                                       "2.5E-7",
                                       "4.",
                                       "01.50"};
    static const char *const bad[] = {"1.2.3", "1-", ".", "1e", "+", "1.5.", "..1"};
    struct cairn_topology *topology = topology_of(header);
    struct cairn_trace_fault fault;
    struct cairn_record record;
    char line[128];

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(line, sizeof line,
                 "{\"rank\":1,\"op\":\"barrier\",\"comm\":\"tp0\",\"work\":%s,\"start_ns\":5}",
                 good[i]);
        assert_int_equal(cairn_trace_read_line(topology, line, strlen(line), &record, &fault),
                         CAIRN_OK);
        assert_true(record.work == strtod(good[i], NULL) && record.start_ns == 5);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(line, sizeof line,
                 "{\"rank\":1,\"op\":\"barrier\",\"comm\":\"tp0\",\"work\":%s,\"start_ns\":5}",
                 bad[i]);
        assert_int_not_equal(cairn_trace_read_line(topology, line, strlen(line), &record, &fault),
                             CAIRN_OK);
    }
    cairn_topology_destroy(topology);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header), cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_lines), cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_decimals)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
