/* tests/unit/replan/trace/test_progress.c - counts from NCCL's RAS and PyTorch's Flight Recorder,
 * and texts that are neither. */
#include "replan/trace/progress.h"

#include "cairn/timing.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

enum { VALUES_MAX = 32 };

struct values {
    struct cairn_op_count all[VALUES_MAX];
    size_t count;
    size_t wanted; /* then the sink says that it has enough; 0: never */
};

/* As NCCL 2.28.9 writes it, the comma after a missing rank's "nvml_dev" left out. */
static const char ras[] =
    "{\n  \"nccl_version\": \"2.28.9\",\n  \"cuda_runtime_version\": 13000,\n  "
    "\"communicators_count\": 1,\n"
    "  \"communicators\": [\n    {\n      \"hash\": \"0x9c2ff1d8a1b2c3d4\",\n      "
    "\"secondary_hash\": \"0x1:0x2\",\n"
    "      \"size\": 3,\n      \"ranks_count\": 2,\n      \"missing_ranks_count\": 1,\n      "
    "\"ranks\": [\n"
    "        {\n          \"rank\": 0,\n          \"host\": \"n0\",\n          \"pid\": 17,\n      "
    "    \"cuda_dev\": 0,\n"
    "          \"nvml_dev\": -1,\n          \"status\": {\n            \"init_state\": 0,\n"
    "            \"async_error\": 0,\n            \"abort_flag\": false\n          },\n"
    "          \"collective_counts\": {\n            \"Broadcast\": 1,\n            \"Reduce\": "
    "0,\n"
    "            \"AllGather\": 2,\n            \"ReduceScatter\": 3,\n            \"AllReduce\": "
    "18446744073709551614\n"
    "          }\n        },\n        {\n          \"rank\": 2,\n          \"collective_counts\": "
    "{\n"
    "            \"AllReduce\": 41,\n            \"SomethingNew\": 7\n          }\n        }\n     "
    " ],\n"
    "      \"missing_ranks\": [\n        {\n          \"rank\": 1,\n          \"host\": \"n1\",\n  "
    "        \"nvml_dev\": 3\n"
    "          \"status\": {\n            \"unresponsive\": true,\n            "
    "\"considered_dead\": true\n          }\n"
    "        }\n      ]\n    }\n  ],\n  \"ras\": {\n    \"collection_time_sec\": 0.123,\n    "
    "\"timeouts_count\": 1\n  }\n}\n";

/* As PyTorch 2.13 writes it with gloo, shortened. */
static const char flight_recorder[] = "{\"comm_lib_version\":\"\",\"entries\":[{\"collective_seq_"
                                      "id\":1,\"input_sizes\":[[10]],\"is_p2p\":false,"
                                      "\"process_group\":[\"0\",\"default_pg\"],\"profiling_name\":"
                                      "\"gloo:all_reduce\",\"state\":\"scheduled\"}],"
                                      "\"nccl_comm_state\":{},\"pg_config\":{\"\":{\"desc\":\"\","
                                      "\"name\":\"\",\"ranks\":\"[]\"}},\"pg_status\":{"
                                      "\"0\":{\"last_completed_collective\":\"4\",\"last_enqueued_"
                                      "collective\":\"5\",\"last_started_collective\":\"-1\"},"
                                      "\"1\":{\"last_completed_collective\":\"1\",\"last_enqueued_"
                                      "collective\":\"1\",\"last_started_collective\":\"1\"}},"
                                      "\"version\":\"2.10\"}";

static bool
keep(void *context, const struct cairn_op_count *progress)
{
    struct values *values = context;

    assert_true(values->count < VALUES_MAX);
    values->all[values->count++] = *progress;
    return values->count != values->wanted;
}

/* Both readers want text without a NUL after it. */
static cairn_err
read_copy(bool is_ras, const char *text, size_t text_bytes, struct values *values,
          struct cairn_progress_fault *fault)
{
    char *copy = malloc(text_bytes ? text_bytes : 1);
    cairn_err err;

    assert_non_null(copy);
    memcpy(copy, text, text_bytes);
    err = is_ras ? cairn_progress_read_ras(copy, text_bytes, keep, values, fault)
                 : cairn_progress_read_flight_recorder(copy, text_bytes, keep, values, fault);
    free(copy);
    return err;
}

static void
test_ras(void **state)
{
    struct cairn_progress_fault fault = {NULL, 0};
    struct values values = {.count = 0};
    const struct cairn_op_count *last;

    assert_int_equal(read_copy(true, ras, sizeof ras - 1, &values, &fault), CAIRN_OK);
    assert_int_equal(values.count, 7);
    assert_int_equal(values.all[0].op, CAIRN_BROADCAST);
    assert_int_equal(values.all[0].entered, 1);
    assert_int_equal(values.all[4].op, CAIRN_ALL_REDUCE);
    assert_true(values.all[4].entered == UINT64_MAX - 1 &&
                values.all[4].completed == CAIRN_PROGRESS_UNKNOWN);
    assert_true(values.all[5].rank == 2 && values.all[5].entered == 41);
    last = &values.all[6];
    assert_true(last->rank == 1 && last->presence == CAIRN_CONSIDERED_DEAD &&
                last->entered == CAIRN_PROGRESS_UNKNOWN);
    for (size_t i = 0; i < values.count; i++) {
        assert_string_equal(values.all[i].comm, "0x9c2ff1d8a1b2c3d4");
        assert_true(values.all[i].ranks == 3 &&
                    (i == 6 || values.all[i].presence == CAIRN_PRESENT));
    }
    values = (struct values){.wanted = 3};
    assert_int_equal(read_copy(true, ras, sizeof ras - 1, &values, &fault), CAIRN_OK);
    assert_int_equal(values.count, 3);
}

static void
test_flight_recorder(void **state)
{
    struct cairn_progress_fault fault = {NULL, 0};
    struct values values = {.count = 0};

    assert_int_equal(read_copy(false, flight_recorder, sizeof flight_recorder - 1, &values, &fault),
                     CAIRN_OK);
    assert_int_equal(values.count, 2);
    assert_string_equal(values.all[0].comm, "0");
    assert_true(values.all[0].entered == 5 && values.all[0].completed == 4);
    assert_true(values.all[0].started == CAIRN_PROGRESS_UNKNOWN &&
                values.all[0].rank == UINT32_MAX);
    assert_true(values.all[1].entered == 1 && values.all[1].started == 1);
}

/* Every beginning of a good text is refused with a reason and a place, and nothing beyond it is
 * read. */
static void
test_cut_off(void **state)
{
    struct cairn_progress_fault fault = {NULL, 0};

    for (size_t bytes = 0; bytes < sizeof ras - 2; bytes++) {
        struct values values = {.count = 0};

        fault.why = NULL;
        assert_int_equal(read_copy(true, ras, bytes, &values, &fault), CAIRN_CORRUPT);
        assert_true(fault.why && fault.at <= bytes);
    }
    for (size_t bytes = 0; bytes < sizeof flight_recorder - 1; bytes++) {
        struct values values = {.count = 0};

        fault.why = NULL;
        assert_int_equal(read_copy(false, flight_recorder, bytes, &values, &fault), CAIRN_CORRUPT);
        assert_true(fault.why && fault.at <= bytes);
    }
}

static void
test_wrong(void **state)
{
    static const struct {
        bool is_ras;
        const char *text, *why;
    } wrong[] = {
        {true, "{}", "not an answer of NCCL's RAS"},
        {false, "{}", "not a dump of PyTorch's Flight Recorder"},
        {true, "ERROR: busy\n", ""},
        {true, "{\"communicators\":[{\"ranks\":[{\"rank\":1}]}]}", "no hash before its ranks"},
        {true, "{\"communicators\":[{\"hash\":\"0x1\",\"ranks\":[{\"pid\":1}]}]}", "has no number"},
        {true, "{\"communicators\":[{\"hash\":\"0x1\",\"ranks\":[{\"rank\":-1}]}]}", ""},
        {true,
         "{\"communicators\":[{\"hash\":\"0x1\",\"missing_ranks\":[{\"rank\":1,\"status\":{"
         "\"considered_dead\":1}}]}]}",
         "true or false"},
        {true,
         "{\"communicators\":[{\"hash\":\"0x1\",\"ranks\":[{\"rank\":1,\"collective_counts\":{"
         "\"Reduce\":18446744073709551616}}]}]}",
         ""},
        {false, "{\"pg_status\":{\"0\":{\"last_enqueued_collective\":5}}}", ""},
        {false, "{\"pg_status\":{\"0\":{\"last_enqueued_collective\":\"five\"}}}", "as a text"},
        {false, "{\"pg_status\":{\"0\":{\"last_enqueued_collective\":\"9999999999999999999\"}}}",
         "as a text"},
        {false, "{\"pg_status\":[]}", ""},
    };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct cairn_progress_fault fault = {NULL, 0};
        struct values values = {.count = 0};

        assert_int_equal(
            read_copy(wrong[i].is_ras, wrong[i].text, strlen(wrong[i].text), &values, &fault),
            CAIRN_CORRUPT);
        if (!strstr(fault.why, wrong[i].why))
            fail_msg("%s: says \"%s\"", wrong[i].text, fault.why);
        assert_int_equal(values.count, 0);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ras),
        cmocka_unit_test(test_flight_recorder),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
