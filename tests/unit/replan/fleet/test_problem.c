/* tests/unit/replan/fleet/test_problem.c - problem, plan and assignment files: valid files, and
 * what is refused, with the reason. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replan/assign/assign.h"
#include "replan/fleet/plan.h"
#include "tests/support/cmocka.h"

#define DEVICES                                                                                    \
    "\"devices\": [{\"id\": 4, \"node\": 0, \"rate\": 2.5, \"memory_bytes\": 1000},"               \
    " {\"id\": 1, \"node\": 0, \"rate\": null, \"memory_bytes\": 900}]"
#define COSTS "\"tp_cost\": {\"8\": 1.0, \"1\": 8.0}, \"layer_bytes\": 10"
#define PROBLEM(layers, more)                                                                      \
    "{\"layers\": " layers ", \"layer_ms\": 10.0, \"microbatches\": 4, " COSTS ", " DEVICES more "}"
#define PLAN(microbatches)                                                                         \
    "{\"pipelines\": [{\"microbatches\": " microbatches                                            \
    ", \"stages\": [{\"devices\": [4], \"layers\": [0, 3]}]}], \"unused\": [1], \"step_ms\": 1.0}"

static void
test_read(void **state)
{
    static const char text[] = PROBLEM(
        "3", ", \"tp\": 8, \"embed_layers\": 0.5, \"head_layers\": 5.4, \"activation_bytes\": 2,"
             " \"reserved_bytes\": 7, \"link_gbps\": {\"intra\": 3600, \"inter\": 400.5},"
             " \"current\": " PLAN("4"));
    struct cairn_problem problem = {0};
    struct cairn_fault fault = {""};

    if (cairn_problem_read(text, strlen(text), &problem, &fault))
        fail_msg("%s", fault.text);
    assert_int_equal(problem.layers, 3);
    assert_int_equal(problem.size_count, 2);
    assert_int_equal(problem.sizes[0].size, 1); /* ascending, in any order of the file */
    assert_int_equal(problem.device_count, 2);
    assert_int_equal(problem.devices[0].id, 1);
    assert_true(problem.devices[0].rate <= 0 && problem.devices[1].rate > 2.4);
    assert_true(problem.inter_gbps > 400 && problem.head_layers > 5.3 &&
                problem.embed_layers > 0.4);
    assert_int_equal(problem.current->pipelines[0].microbatches, 4);
    assert_int_equal(cairn_problem_device_find(&problem, 4), 1);
    assert_int_equal(cairn_problem_device_find(&problem, 2), 2);
    assert_int_equal(cairn_plan_check(problem.current, &problem, &fault), CAIRN_OK);
    cairn_problem_fini(&problem);
}

/* What is written is read as the same, which is written as the same. */
static void
test_write(void **state)
{
    static const char text[] = PROBLEM(
        "3", ", \"tp\": 8, \"embed_layers\": 0.1, \"head_layers\": 5.4, \"activation_bytes\": 2,"
             " \"reserved_bytes\": 7, \"link_gbps\": {\"intra\": 3600, \"inter\": 400.5},"
             " \"current\": " PLAN("4"));
    char *written[2] = {NULL, NULL};
    const char *from = text;
    size_t bytes = strlen(text);
    struct cairn_fault fault = {""};

    for (uint32_t i = 0; i < 2; i++) {
        struct cairn_problem problem = {0};
        struct cairn_json_writer writer;

        if (cairn_problem_read(from, bytes, &problem, &fault))
            fail_msg("%s", fault.text);
        assert_true(problem.embed_layers >= 0.1 && problem.embed_layers <= 0.1 &&
                    problem.reserved_bytes == 7);
        assert_int_equal(problem.current->pipelines[0].microbatches, 4);
        cairn_json_writer_init(&writer);
        assert_int_equal(cairn_problem_write(&problem, &writer), CAIRN_OK);
        assert_int_equal(cairn_json_writer_done(&writer, &written[i], &bytes), CAIRN_OK);
        cairn_json_writer_fini(&writer);
        cairn_problem_fini(&problem);
        from = written[i];
    }
    assert_string_equal(written[0], written[1]);
    free(written[0]);
    free(written[1]);
}

static const struct {
    const char *text;
    const char *said; /* a part of the message */
} bad_problems[] = {
    {"", "expected an object"},
    {"[]", "expected an object"},
    {"{}", "no \"layers\""},
    {PROBLEM("0", ""), "layers must be from 1 to 10000"},
    {PROBLEM("3", ", \"slow_links\": [{\"nodes\": [0, 0], \"gbps\": 1}]"), "joins two nodes"},
    {PROBLEM("3", ", \"slow_links\": [{\"nodes\": [0], \"gbps\": 1}]"), "joins two nodes"},
    {PROBLEM("3", ", \"slow_links\": [{\"nodes\": [0, 1, 2], \"gbps\": 1}]"), "joins two nodes"},
    {PROBLEM("3", ", \"slow_links\": [{\"nodes\": [0, 9]}]"), "must have nodes and gbps"},
    {PROBLEM("3", ", \"slow_links\": [{\"nodes\": [0, 9], \"gbps\": 0}]"), "gbps must be"},
    {PROBLEM("3", ", \"slow_links\": [{\"nodes\": [0, 9], \"gbps\": 1}]"), "names node 9"},
    {"{\"layers\": 3, \"layer_ms\": 10.0, \"microbatches\": 4, " COSTS
     ", \"devices\": [{\"id\": 4, \"node\": 0, \"rate\": 1, \"memory_bytes\": 9},"
     " {\"id\": 1, \"node\": 2, \"rate\": 1, \"memory_bytes\": 9}], \"slow_links\": [{\"nodes\": "
     "[0, 2], \"gbps\": 1}, {\"nodes\": [2, 0], \"gbps\": 2}]}",
     "the link of nodes 2 and 0 twice"},
    {PROBLEM("-1", ""), "whole number"},
    {PROBLEM("10001", ""), "layers must be"},
    {PROBLEM("1e99", ""), "whole number"},
    {PROBLEM("NaN", ""), "whole number"},
    {PROBLEM("3", ", \"layer_ms\": 1"), "duplicate key"},
    {PROBLEM("3", ", \"colour\": 1"), "unknown key"},
    {PROBLEM("3", ", \"head_layers\": -1"), "from 0 to 1e6"},
    {PROBLEM("3", ", \"head_layers\": NaN"), "expected a number"},
    {PROBLEM("3", ", \"head_layers\": 1e999"), "too large"},
    {PROBLEM("3", ", \"head_layers\": 01"), "expected a number"},
    {PROBLEM("3", ", \"reserved_bytes\": 9999999999999999"), "2^50"},
    {PROBLEM("3", ", \"link_gbps\": {\"intra\": 1}"), "intra and inter"},
    {PROBLEM("3", ", \"current\": {\"pipelines\": []}"), "a plan must have pipelines"},
    {PROBLEM("3", ", \"current\": {\"pipelines\": [{\"microbatches\": 1, \"stages\": []}]}"),
     "a micro-batch and a stage"},
    {PROBLEM("3", "") " x", "unexpected text"},
    {"{\"layers\": 1, \"layer_ms\": 1, \"microbatches\": 1, \"tp_cost\": {}}", "no size"},
    {"{\"tp_cost\": {\"0\": 1}}", "from 1 to 1024"},
    {"{\"tp_cost\": {\"2\": 1, \"2\": 1}}", "duplicate size"},
    {"{\"tp_cost\": {\"2x\": 1}}", "from 1 to 1024"},
    {"{\"tp_cost\": {\"2\": 0}}", "1e-6"},
    {"{\"devices\": [{\"id\": 1, \"node\": 0, \"rate\": -2, \"memory_bytes\": 1}]}",
     "a rate must be"},
    {"{\"devices\": [{\"id\": 1, \"node\": 0, \"rate\": 0, \"memory_bytes\": 1}]}",
     "a rate must be"},
    {"{\"devices\": [{\"id\": 1, \"node\": 0, \"rate\": 1}]}", "must have id"},
    {"{\"layers\": 1, \"layer_ms\": 1, \"microbatches\": 1, " COSTS ", \"devices\": ["
     "{\"id\": 7, \"node\": 0, \"rate\": 1, \"memory_bytes\": 1},"
     "{\"id\": 7, \"node\": 1, \"rate\": 1, \"memory_bytes\": 1}]}",
     "two devices have the id 7"},
};

static void
test_bad_problems(void **state)
{
    for (size_t i = 0; i < sizeof(bad_problems) / sizeof(*bad_problems); i++) {
        struct cairn_problem problem = {0};
        struct cairn_fault fault = {""};
        const char *text = bad_problems[i].text;

        if (cairn_problem_read(text, strlen(text), &problem, &fault) != CAIRN_CORRUPT)
            fail_msg("accepted: %s", text);
        if (!strstr(fault.text, bad_problems[i].said))
            fail_msg("%s\n  said \"%s\", not \"%s\"", text, fault.text, bad_problems[i].said);
        assert_null(problem.devices);
    }
}

/* Plans of the problem above, with 3 layers and 4 micro-batches, that are none. */
static const struct {
    const char *stages;
    const char *said;
} bad_plans[] = {
    {"{\"devices\": [4], \"layers\": [0, 2]}", "has 2 layers, the model 3"},
    {"{\"devices\": [4], \"layers\": [1, 3]}", "do not follow"},
    {"{\"devices\": [1], \"layers\": [0, 3]}", "device 1 is dead"},
    {"{\"devices\": [9], \"layers\": [0, 3]}", "no device 9"},
    {"{\"devices\": [4, 4], \"layers\": [0, 3]}", "tp_cost does not have"},
    {"{\"devices\": [4], \"layers\": [0, 1]}, {\"devices\": [4], \"layers\": [1, 3]}",
     "used twice"},
};

static void
test_bad_plans(void **state)
{
    static const char problem_text[] = PROBLEM("3", "");
    struct cairn_problem problem = {0};
    struct cairn_fault fault = {""};
    struct cairn_plan *plan = NULL;
    char text[512];

    assert_int_equal(cairn_problem_read(problem_text, strlen(problem_text), &problem, &fault),
                     CAIRN_OK);
    for (size_t i = 0; i < sizeof(bad_plans) / sizeof(*bad_plans); i++) {
        (void)snprintf(text, sizeof(text),
                       "{\"pipelines\": [{\"microbatches\": 4, \"stages\": [%s]}]}",
                       bad_plans[i].stages);
        if (cairn_plan_read_text(text, strlen(text), &plan, &fault))
            fail_msg("%s: %s", text, fault.text);
        assert_int_equal(cairn_plan_check(plan, &problem, &fault), CAIRN_INVAL);
        if (!strstr(fault.text, bad_plans[i].said))
            fail_msg("%s\n  said \"%s\", not \"%s\"", text, fault.text, bad_plans[i].said);
        cairn_plan_destroy(plan);
    }
    /* Memory: 3 layers of 10 + 330 bytes on a device of 1000. */
    problem.activation_bytes = 330;
    assert_int_equal(cairn_plan_read_text(PLAN("4"), strlen(PLAN("4")), &plan, &fault), CAIRN_OK);
    assert_int_equal(cairn_plan_check(plan, &problem, &fault), CAIRN_INVAL);
    assert_non_null(strstr(fault.text, "1020 bytes per device, 20 too many"));
    cairn_plan_destroy(plan);
    problem.activation_bytes = 0;
    assert_int_equal(cairn_plan_read_text(PLAN("3"), strlen(PLAN("3")), &plan, &fault), CAIRN_OK);
    assert_int_equal(cairn_plan_check(plan, &problem, &fault), CAIRN_INVAL);
    assert_non_null(strstr(fault.text, "have 3 micro-batches, the problem 4"));
    cairn_plan_destroy(plan);
    cairn_problem_fini(&problem);
}

static void
test_bad_assignments(void **state)
{
    static const char *const texts[] = {
        "{}",
        "{\"sequences\": [0]}",
        "{\"sequences\": [1], \"cost\": {\"a\": 0, \"b\": 0, \"c\": 0}}",
        "{\"sequences\": [1], \"cost\": {\"a\": -1, \"b\": 0, \"c\": 0}}",
        "{\"sequences\": [1], \"cost\": {\"a\": 1, \"b\": 0}}",
        "{\"sequences\": [1], \"cost\": {\"a\": 1, \"b\": 0, \"c\": 0}, \"pipelines\": []}",
        "{\"pipelines\": [{\"time_scale\": 0, \"stages\": 1, \"max_tokens\": 1}]}",
        "{\"pipelines\": [{\"time_scale\": 1, \"stages\": 0, \"max_tokens\": 1}]}",
    };

    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        struct cairn_assign_problem problem = {0};
        struct cairn_fault fault = {""};

        if (cairn_assign_problem_read(texts[i], strlen(texts[i]), &problem, &fault) !=
            CAIRN_CORRUPT)
            fail_msg("accepted: %s", texts[i]);
        assert_true(strlen(fault.text) > 20);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_bad_problems),
        cmocka_unit_test(test_bad_plans),
        cmocka_unit_test(test_bad_assignments),
    };

    return cmocka_run_group_tests_name("replan/problem", tests, NULL, NULL);
}
