/*
 * tests/unit/examples/gpt/test_model.c - forward and backward of examples/gpt/model.c.
 *
 * The gradient of every tensor is held against central differences of an independent loss in double
 * precision (reference.h), in a shape whose sizes are not multiples of a vector's width.
 */
#include <stdio.h>

#include "examples/gpt/kernels.h"
#include "examples/gpt/model.h"
#include "examples/gpt/random.h"
#include "reference.h"
#include "tests/support/cmocka.h"
#include "tests/support/cases.h"

enum { SAMPLES = (24 + CASE_STRIDE - 1) / CASE_STRIDE };

static const struct gpt_shape small = {
    .layers = 3, .d_model = 20, .heads = 2, .context = 37, .sequences = 2};

/* A model in one stage, with parameters large enough that nothing is nearly linear. */
struct whole {
    struct gpt_stage stage;
    float *stream;
    float *grad;
    uint8_t *tokens;
    float loss;
};

static void
fill_tokens(uint8_t *tokens, const struct gpt_shape *shape, uint64_t key)
{
    for (size_t i = 0; i < (size_t)shape->sequences * (shape->context + 1); i++)
        tokens[i] = (uint8_t)(gpt_random(key, i) % 11 + 60); /* few, so that rows are met often */
}

static void
roughen(struct gpt_stage *stage)
{
    gpt_stage_randomize(stage, 5);
    for (uint32_t i = 0; i < stage->tensor_count; i++) {
        const struct gpt_tensor *tensor = &stage->tensors[i];
        uint64_t key = 17;

        for (const char *c = tensor->name; *c; c++) /* by name, so that every division agrees */
            key = gpt_random(key, (uint8_t)*c);
        for (size_t j = 0; j < tensor->count; j++) {
            float noise = (float)(gpt_random(key, j) >> 40) / 16777216.0f - 0.5f;

            stage->param[tensor->begin + j] += 0.5f * noise;
        }
    }
}

static void
whole_init(struct whole *whole)
{
    size_t tokens = (size_t)small.sequences * (small.context + 1);

    assert_int_equal(gpt_stage_init(&small, 0, small.layers, 1, &whole->stage), CAIRN_OK);
    roughen(&whole->stage);
    whole->stream = calloc(gpt_stream_floats(&small), sizeof(float));
    whole->grad = calloc(whole->stage.float_count, sizeof(float));
    whole->tokens = malloc(tokens);
    assert_true(whole->stream && whole->grad && whole->tokens);
    fill_tokens(whole->tokens, &small, 3);
    whole->loss = gpt_stage_forward(&whole->stage, 0, whole->tokens, whole->stream);
    gpt_stage_backward(&whole->stage, 0, whole->tokens, whole->stream, whole->grad);
}

static void
whole_fini(struct whole *whole)
{
    gpt_stage_fini(&whole->stage);
    free(whole->stream);
    free(whole->grad);
    free(whole->tokens);
}

/* Where to look in a tensor: evenly, and in the embedding in rows of bytes that occur. */
static size_t
sample(const struct gpt_tensor *tensor, size_t i)
{
    size_t d = small.d_model;

    if (strcmp(tensor->name, "wte.weight") == 0)
        return (60 + i % 11) * d + i * 7 % d;
    return tensor->count <= SAMPLES ? i % tensor->count : i * (tensor->count - 1) / (SAMPLES - 1);
}

/*
 * The largest deviation of grad from the central differences of the reference, over the samples of
 * one tensor, relative to the largest gradient of that tensor.
 */
static double
deviation(const struct whole *whole, double *param, uint32_t tensor_index)
{
    const struct gpt_tensor *tensor = &whole->stage.tensors[tensor_index];
    struct reference reference = {&small, whole->stage.tensors, whole->stage.tensor_count, param};
    double worst = 0.0;
    double largest = 0.0;

    for (size_t i = 0; i < SAMPLES; i++) {
        size_t at = tensor->begin + sample(tensor, i);
        double kept = param[at];
        double step = 1e-4;
        double slope;

        param[at] = kept + step;
        slope = reference_loss(&reference, whole->tokens);
        param[at] = kept - step;
        slope = (slope - reference_loss(&reference, whole->tokens)) / (2.0 * step);
        param[at] = kept;
        worst = fmax(worst, fabs(slope - (double)whole->grad[at]));
        largest = fmax(largest, fabs(slope));
    }
    assert_true(largest > 1e-5); /* else nothing was looked at */
    return worst / largest;
}

static double *
doubles(const struct gpt_stage *stage)
{
    double *param = calloc(stage->float_count, sizeof *param);

    assert_non_null(param);
    for (size_t i = 0; i < stage->float_count; i++)
        param[i] = (double)stage->param[i];
    return param;
}

static void
test_loss_equals_the_reference(void **state)
{
    struct whole whole = {0};
    double *param;
    struct reference reference;

    whole_init(&whole);
    param = doubles(&whole.stage);
    reference = (struct reference){&small, whole.stage.tensors, whole.stage.tensor_count, param};
    assert_true(fabs(reference_loss(&reference, whole.tokens) - (double)whole.loss) < 1e-5);
    free(param);
    whole_fini(&whole);
}

static void
test_gradient_of_every_tensor(void **state)
{
    struct whole whole = {0};
    double *param;

    whole_init(&whole);
    param = doubles(&whole.stage);
    assert_int_equal(whole.stage.tensor_count, 2 + 12 * small.layers + 3);
    for (uint32_t i = 0; i < whole.stage.tensor_count; i++) {
        double found = deviation(&whole, param, i);

        if (strstr(whole.stage.tensors[i].name, "qkv.bias"))
            assert_true(found < 1e-3); /* its middle third, the keys' bias, has gradient 0 */
        else if (found >= 1e-4)
            fail_msg("%s: gradient deviates by %g", whole.stage.tensors[i].name, found);
    }
    free(param);
    whole_fini(&whole);
}

/*
 * The check must see an error of one percent in a single element of any tensor's largest gradient.
 */
static void
test_a_wrong_gradient_is_seen(void **state)
{
    struct whole whole = {0};
    double *param;

    whole_init(&whole);
    param = doubles(&whole.stage);
    for (uint32_t i = 0; i < whole.stage.tensor_count; i += 4) {
        const struct gpt_tensor *tensor = &whole.stage.tensors[i];
        size_t largest = tensor->begin + sample(tensor, 0);

        for (size_t k = 1; k < SAMPLES; k++) {
            size_t at = tensor->begin + sample(tensor, k);

            if (fabsf(whole.grad[at]) > fabsf(whole.grad[largest]))
                largest = at;
        }
        whole.grad[largest] *= 1.01f;
        assert_true(deviation(&whole, param, i) > 5e-3);
    }
    free(param);
    whole_fini(&whole);
}

static void
test_future_tokens_change_nothing_before_them(void **state)
{
    struct whole whole = {0};
    size_t bytes = (size_t)small.sequences * small.context * GPT_VOCAB * sizeof(float);
    float *before = malloc(bytes);

    assert_non_null(before);
    whole_init(&whole);
    gpt_stage_forward(&whole.stage, 0, whole.tokens, whole.stream);
    memcpy(before, gpt_stage_probabilities(&whole.stage, 0), bytes);
    for (size_t changed = 0; changed < small.context; changed++) {
        const float *after;

        whole.tokens[changed] ^= 0x55;
        gpt_stage_forward(&whole.stage, 0, whole.tokens, whole.stream);
        after = gpt_stage_probabilities(&whole.stage, 0);
        assert_memory_equal(before, after, changed * GPT_VOCAB * sizeof(float));
        assert_memory_not_equal(before + changed * GPT_VOCAB, after + changed * GPT_VOCAB,
                                GPT_VOCAB * sizeof(float));
        /* nor does one sequence see another */
        assert_memory_equal(before + small.context * GPT_VOCAB, after + small.context * GPT_VOCAB,
                            small.context * GPT_VOCAB * sizeof(float));
        whole.tokens[changed] ^= 0x55;
    }
    free(before);
    whole_fini(&whole);
}

/* Runs the model in the given stages; grads are put at the whole model's places. */
static float
run_divided(const uint32_t *ends, size_t stage_count, const uint8_t *tokens,
            const struct whole *whole, float *grad)
{
    struct gpt_stage stages[4];
    float *stream = calloc(gpt_stream_floats(&small), sizeof *stream);
    float loss = 0.0f;
    size_t at = whole->stage.float_count;

    assert_non_null(stream);
    for (size_t i = 0; i < stage_count; i++) {
        assert_int_equal(gpt_stage_init(&small, i == 0 ? 0 : ends[i - 1], ends[i], 1, &stages[i]),
                         CAIRN_OK);
        roughen(&stages[i]);
        loss = gpt_stage_forward(&stages[i], 0, tokens, stream);
    }
    for (size_t i = stage_count; i-- > 0;) {
        at -= stages[i].float_count;
        assert_memory_equal(stages[i].param, whole->stage.param + at,
                            stages[i].float_count * sizeof(float));
        gpt_stage_backward(&stages[i], 0, tokens, stream, grad + at);
    }
    assert_int_equal(at, 0);
    for (size_t i = 0; i < stage_count; i++)
        gpt_stage_fini(&stages[i]);
    free(stream);
    return loss;
}

static void
test_division_into_stages_changes_no_bit(void **state)
{
    static const uint32_t divisions[][3] = {{3, 0, 0}, {1, 3, 0}, {2, 3, 0}, {1, 2, 3}};
    static const size_t stage_counts[] = {1, 2, 2, 3};
    struct whole whole = {0};

    whole_init(&whole);
    for (size_t i = 0; i < 4; i++) {
        float *grad = calloc(whole.stage.float_count, sizeof *grad);
        float loss = run_divided(divisions[i], stage_counts[i], whole.tokens, &whole, grad);

        assert_memory_equal(&loss, &whole.loss, sizeof loss);
        assert_memory_equal(grad, whole.grad, whole.stage.float_count * sizeof *grad);
        free(grad);
    }
    whole_fini(&whole);
}

static void
test_instruction_sets_agree_to_the_bit(void **state)
{
    struct whole best = {0};

    gpt_kernels_limit(2);
    whole_init(&best);
    for (int level = 1; level >= 0; level--) {
        struct whole other = {0};

        gpt_kernels_limit(level);
        whole_init(&other);
        assert_memory_equal(&other.loss, &best.loss, sizeof best.loss);
        assert_memory_equal(other.grad, best.grad, best.stage.float_count * sizeof(float));
        whole_fini(&other);
    }
    gpt_kernels_limit(2);
    whole_fini(&best);
}

static void
test_log_is_the_logarithm(void **state)
{
    for (double x = 1e-30; x < 1e30; x *= 1.37)
        assert_true(fabs(gpt_log(x) - log(x)) <= 1e-15 * fabs(log(x)) + 1e-15);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_equals_the_reference),
        cmocka_unit_test(test_gradient_of_every_tensor),
        cmocka_unit_test(test_a_wrong_gradient_is_seen),
        cmocka_unit_test(test_future_tokens_change_nothing_before_them),
        cmocka_unit_test(test_division_into_stages_changes_no_bit),
        cmocka_unit_test(test_instruction_sets_agree_to_the_bit),
        cmocka_unit_test(test_log_is_the_logarithm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
