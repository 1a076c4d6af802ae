/* tests/unit/replan/fleet/test_preset.c - presets against the sizes that models are known by, and
 * problems that use them. */
#include <math.h>
#include <string.h>

#include "replan/fleet/preset.h"
#include "tests/support/cmocka.h"

#define DEVICES                                                                                    \
    "\"devices\": [{\"id\": 0, \"node\": 0, \"rate\": 1, \"memory_bytes\": 85899345920}]"
#define PRESET(model, gpu, more)                                                                   \
    "\"preset\": {\"model\": \"" model "\", \"gpu\": \"" gpu "\", " more "}"

/* Parameters as published, in 10^9. */
static const struct {
    const char *model;
    double parameters;
} published[] = {
    {"gpt3-175b", 175},   {"llama2-7b", 6.74},   {"llama2-13b", 13.0},  {"llama2-70b", 69.0},
    {"llama3-8b", 8.03},  {"llama3-70b", 70.6},  {"llama3-405b", 405},  {"mistral-7b", 7.24},
    {"qwen2.5-7b", 7.61}, {"qwen2.5-72b", 72.7}, {"qwen1.5-110b", 111}, {"llama-32b", 32.5},
};

static void
test_sizes(void **state)
{
    assert_int_equal(cairn_model_shape_count, sizeof(published) / sizeof(*published));
    for (uint32_t i = 0; i < cairn_model_shape_count; i++) {
        const struct cairn_model_shape *model = cairn_model_shape_find(published[i].model);
        struct cairn_preset preset = {model, &cairn_device_sheets[0], 4096, 0.5};
        struct cairn_problem problem = {0};
        double parameters;

        assert_non_null(model);
        cairn_preset_apply(&preset, 8, &problem);
        parameters = (double)problem.layer_bytes / 18 * model->layers;
        /* Two vocabulary matrices; GPT-3 shares one. */
        parameters += (model->matrices == 2 ? 1.0 : 2.0) * model->vocabulary * model->width;
        if (fabs(parameters / (published[i].parameters * 1e9) - 1) > 0.01)
            fail_msg("%s has %.3g parameters, not %.3g", published[i].model, parameters,
                     published[i].parameters * 1e9);
    }
}

/* All work of a micro-batch, at the peak: 6 operations per parameter and token, and attention. */
static void
test_time(void **state)
{
    struct cairn_preset preset = {cairn_model_shape_find("llama2-7b"),
                                  cairn_device_sheet_find("a100-80g"), 4096, 1};
    struct cairn_problem problem = {0};
    double all_ms, expected_ms = (6 * 6.607e9 + 12.0 * 32 * 4096 * 4096) * 4096 / 312e12 * 1e3;

    cairn_preset_apply(&preset, 1, &problem);
    all_ms = problem.layer_ms * (problem.layers + problem.head_layers);
    assert_true(fabs(all_ms / expected_ms - 1) < 0.01);
    assert_int_equal(problem.size_count, 1);
    cairn_preset_apply(&preset, 8, &problem);
    assert_int_equal(problem.size_count, 4);
    assert_true(fabs(problem.layer_ms * 8 * (problem.layers + problem.head_layers) / all_ms - 1) <
                1e-9);
    assert_true(fabs(problem.sizes[0].cost - 8) < 1e-9 && fabs(problem.sizes[3].cost - 1) < 1e-9);
}

static void
test_in_problem(void **state)
{
    static const char text[] = "{\"microbatches\": 64, \"layers\": 40, " PRESET(
        "llama3-70b", "h100-sxm", "\"sequence_tokens\": 8192") ", " DEVICES "}";
    struct cairn_problem problem = {0};
    struct cairn_fault fault = {""};

    if (cairn_problem_read(text, strlen(text), &problem, &fault))
        fail_msg("%s", fault.text);
    assert_int_equal(problem.layers, 40); /* the problem's own word counts */
    assert_int_equal(problem.tp, 8);
    assert_int_equal(problem.size_count, 4);
    assert_true(problem.layer_ms > 1 && problem.layer_ms < 100);
    assert_true(problem.head_layers > 0.5 && problem.head_layers < 3);
    assert_true(problem.inter_gbps > 399 && problem.layer_bytes > UINT64_C(10000000000));
    cairn_problem_fini(&problem);
}

static const struct {
    const char *text;
    const char *said;
} bad[] = {
    {"{\"microbatches\": 4, " PRESET("gpt9", "h100-sxm", "\"sequence_tokens\": 1") "}",
     "no model of that name"},
    {"{\"microbatches\": 4, " PRESET("llama3-8b", "h9", "\"sequence_tokens\": 1") "}",
     "no gpu of that name"},
    {"{\"microbatches\": 4, " PRESET("llama3-8b", "h100-sxm", "\"reached\": 0.5") "}",
     "must have model, gpu and"},
    {"{\"microbatches\": 4, " PRESET("llama3-8b", "h100-sxm", "\"sequence_tokens\": 0") "}",
     "sequence_tokens must be"},
    {"{\"microbatches\": 4, " PRESET("llama3-8b", "h100-sxm", "\"reached\": 2") "}",
     "reached must be"},
    {"{\"microbatches\": 4, " PRESET("llama3-8b", "h100-sxm", "\"tokens\": 2") "}",
     "an unknown key"},
    {"{\"microbatches\": 4, \"tp\": 6, " PRESET("llama3-8b", "h100-sxm",
                                                "\"sequence_tokens\": 9") ", " DEVICES "}",
     "a power of two, not 6"},
    {"{" PRESET("llama3-8b", "h100-sxm", "\"sequence_tokens\": 9") ", " DEVICES "}",
     "no \"microbatches\""},
    {"{\"microbatches\": 4, " PRESET("llama3-8b", "h100-sxm", "\"sequence_tokens\": 9") "}",
     "no \"devices\""},
};

static void
test_bad(void **state)
{
    for (uint32_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct cairn_problem problem = {0};
        struct cairn_fault fault = {""};

        assert_int_equal(cairn_problem_read(bad[i].text, strlen(bad[i].text), &problem, &fault),
                         CAIRN_CORRUPT);
        if (!strstr(fault.text, bad[i].said))
            fail_msg("%s: \"%s\" should say \"%s\"", bad[i].text, fault.text, bad[i].said);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_time),
        cmocka_unit_test(test_in_problem),
        cmocka_unit_test(test_bad),
    };

    return cmocka_run_group_tests_name("replan/preset", tests, NULL, NULL);
}
