/*
 * tests/unit/examples/gpt/test_options.c - the command line, the plan it gives, and the blob of
 * progress.
 */
#include <stdlib.h>
#include <string.h>

#include "examples/gpt/options.h"
#include "examples/gpt/progress.h"
#include "tests/support/cmocka.h"

enum { ARGUMENTS_MAX = 24 };

/* Parses a command line written as one string. */
static cairn_err
parse(const char *line, struct gpt_options *out)
{
    static char words[512];
    char *argv[ARGUMENTS_MAX] = {words};
    int argc = 0;

    strncpy(words, line, sizeof words - 1);
    for (char *word = strtok(words, " "); word && argc < ARGUMENTS_MAX; word = strtok(NULL, " "))
        argv[argc++] = word;
    return gpt_options_parse(argc, argv, out);
}

static void
test_defaults_are_a_whole_job(void **state)
{
    struct gpt_options options;

    assert_int_equal(parse("gpt", &options), CAIRN_OK);
    assert_int_equal(options.plan.world, 1);
    assert_int_equal(options.plan.layer_end, options.shape.layers);
    assert_int_equal(options.plan.micro_count, options.plan.micro_total);
    assert_false(options.resume);
}

static void
test_a_slow_device_is_emulated(void **state)
{
    static const char *const wrong[] = {
        "gpt --emulate-slow 0:2@1-9", /* nothing is emulated */
        "gpt --emulate-layer-ms 8 --emulate-slow 1:2@1-9",
        "gpt --emulate-layer-ms 8 --emulate-slow 0:2@9-1",
        "gpt --emulate-layer-ms 8 --emulate-slow 0:0@1-9",
        "gpt --emulate-layer-ms 8 --emulate-slow 0:nan@1-9",
        "gpt --emulate-layer-ms 8 --emulate-slow 0:2@1",
        "gpt --emulate-layer-ms 8 --emulate-slow 0:2@1-9,",
        "gpt --emulate-layer-ms 8 --emulate-slow 0:2@1-9x",
    };
    struct gpt_options options, plain;

    assert_int_equal(parse("gpt --dp 2 --rank 1 --peers a:1,b:2 --emulate-layer-ms 8 "
                           "--emulate-slow 1:2@20-120,0:3@1-9,1:1.5@200-300",
                           &options),
                     CAIRN_OK);
    assert_int_equal(options.device.layer_ns, 8000000);
    assert_int_equal(options.device.slow_count, 2);
    assert_true(options.device.slow[0].factor == 2 && options.device.slow[1].factor == 1.5);
    assert_int_equal(options.device.slow[0].first, 20);
    assert_int_equal(options.device.slow[1].last, 300);
    /* ranks with and without emulation, and their snapshots, belong together */
    assert_int_equal(parse("gpt --dp 2 --rank 1 --peers a:1,b:2", &plain), CAIRN_OK);
    assert_true(gpt_options_fingerprint(&options, 1, true) ==
                gpt_options_fingerprint(&plain, 1, true));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(parse(wrong[i], &options), CAIRN_INVAL);
}

static void
test_cairn_run_resumes(void **state)
{
    struct gpt_options options;

    assert_int_equal(setenv("CAIRN_RESUME", "1", 1), 0);
    assert_int_equal(parse("gpt", &options), CAIRN_OK);
    assert_true(options.resume);
    assert_int_equal(setenv("CAIRN_RESUME", "0", 1), 0);
    assert_int_equal(parse("gpt", &options), CAIRN_OK);
    assert_false(options.resume);
    assert_int_equal(unsetenv("CAIRN_RESUME"), 0);
}

static void
test_uneven_plan(void **state)
{
    struct gpt_options options;

    assert_int_equal(parse("gpt --rank 4 --dp 2 --pp=3 --peers a:1 --stage-layers 1,3,2 "
                           "--micro-batches 1,4 --resume",
                           &options),
                     CAIRN_OK);
    assert_int_equal(options.plan.world, 6);
    assert_int_equal(options.plan.replica, 1);
    assert_int_equal(options.plan.stage, 1);
    assert_int_equal(options.plan.layer_begin, 1);
    assert_int_equal(options.plan.layer_end, 4);
    assert_int_equal(options.plan.micro_begin, 1);
    assert_int_equal(options.plan.micro_count, 4);
    assert_int_equal(options.plan.micro_total, 5);
    assert_true(options.resume);
    assert_int_equal(
        parse("gpt --rank 4 --dp 2 --pp 3 --peers a:1 --stage-layers 1,3,2/4,1,1", &options),
        CAIRN_OK);
    assert_int_equal(options.plan.layer_begin, 4);
    assert_int_equal(options.plan.layer_end, 5);
}

static void
test_even_division(void **state)
{
    uint32_t parts[GPT_PARTS_MAX] = {0};

    for (uint32_t count = 1; count <= 7; count++) {
        uint32_t sum = 0;

        gpt_plan_even(10, count, parts);
        for (uint32_t i = 0; i < count; i++) {
            assert_in_range(parts[i], 10 / count, (10 + count - 1) / count);
            sum += parts[i];
        }
        assert_int_equal(sum, 10);
    }
}

static void
test_wrong_usage(void **state)
{
    static const char *const lines[] = {
        "gpt --no-such-option 1",
        "gpt steps",
        "gpt --steps",
        "gpt --steps 0",
        "gpt --steps -3",
        "gpt --steps 3x",
        "gpt --steps 99999999999999999999999",
        "gpt --lr nan",
        "gpt --lr -1",
        "gpt --resume=1",
        "gpt --rank 1",
        "gpt --dp 0",
        "gpt --dp 65",
        "gpt --world 4 --dp 2 --pp 1 --peers a:1,b:2",
        "gpt --dp 2",
        "gpt --d-model 10 --heads 3",
        "gpt --pp 2 --peers a:1,b:1 --stage-layers 6",
        "gpt --pp 2 --peers a:1,b:1 --stage-layers 6,0",
        "gpt --pp 2 --peers a:1,b:1 --stage-layers 3,4",
        "gpt --pp 2 --peers a:1,b:1 --stage-layers 3,3,",
        "gpt --pp 2 --peers a:1,b:1 --stage-layers 3,-3",
        "gpt --pp 2 --peers a:1,b:1 --stage-layers 3,3/",
        "gpt --pp 2 --peers a:1,b:1 --stage-layers 3,3/2,4",
        "gpt --pp 2 --dp 2 --peers a:1,b:1 --stage-layers 3,3/",
        "gpt --pp 2 --dp 2 --peers a:1,b:1 --stage-layers 3,3/2,5",
        "gpt --pp 2 --dp 2 --peers a:1,b:1 --stage-layers 3,3,2,4",
        "gpt --pp 7 --peers a:1,b:1",
        "gpt --dp 2 --peers a:1,b:1 --micro-batches 0,2",
        "gpt --dp 2 --peers a:1,b:1 --micro-batches 2",
    };
    struct gpt_options options;

    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        if (parse(lines[i], &options) != CAIRN_INVAL)
            fail_msg("was accepted: %s", lines[i]);
    }
}

static uint64_t
fingerprint(const char *line, uint64_t text, bool plan)
{
    struct gpt_options options;

    assert_int_equal(parse(line, &options), CAIRN_OK);
    return gpt_options_fingerprint(&options, text, plan);
}

static void
test_fingerprint_sees_what_ranks_must_share(void **state)
{
    static const char *const others[] = {
        "gpt --layers 7",       "gpt --d-model 100",        "gpt --heads 2",
        "gpt --context 64",     "gpt --lr 0.001",           "gpt --beta1 0.8",
        "gpt --beta2 0.9",      "gpt --epsilon 1e-7",       "gpt --steps 61",
        "gpt --seed 2",         "gpt --micro-batch-size 9", "gpt --clip 2",
        "gpt --warmup-steps 9", "gpt --weight-decay 0",     "gpt --micro-batches 5",
    };
    uint64_t base = fingerprint("gpt", 1, false);

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_true(fingerprint(others[i], 1, false) != base);
    assert_true(fingerprint("gpt", 2, false) != base);
    /* what may differ between restarts, or between ranks */
    assert_true(fingerprint("gpt --resume --log-every 3", 1, false) == base);
    assert_true(fingerprint("gpt --dp 2 --pp 3 --peers x:1", 1, false) == base);
    assert_true(fingerprint("gpt --dp 2 --pp 3 --peers x:1", 1, true) !=
                fingerprint("gpt --dp 3 --pp 2 --peers x:1", 1, true));
    assert_true(fingerprint("gpt --rank 5 --dp 2 --pp 3 --peers x:1", 1, true) ==
                fingerprint("gpt --rank 0 --dp 2 --pp 3 --peers x:1", 1, true));
    assert_true(fingerprint("gpt --pp 2 --peers x:1 --stage-layers 2,4", 1, true) !=
                fingerprint("gpt --pp 2 --peers x:1 --stage-layers 4,2", 1, true));
    assert_true(fingerprint("gpt --pp 2 --dp 2 --peers x:1 --stage-layers 2,4/4,2", 1, true) !=
                fingerprint("gpt --pp 2 --dp 2 --peers x:1 --stage-layers 2,4", 1, true));
    assert_true(fingerprint("gpt --dp 2 --peers x:1 --micro-batches 2,4", 1, true) !=
                fingerprint("gpt --dp 2 --peers x:1 --micro-batches 4,2", 1, true));
}

static void
test_progress(void **state)
{
    struct gpt_progress progress;
    char digest[GPT_SHA256_TEXT];

    assert_int_equal(gpt_progress_init(5, 11, 22, &progress), CAIRN_OK);
    assert_int_equal(progress.count, 64 + 20);
    assert_int_equal(gpt_progress_step(&progress), 0);
    gpt_progress_digest(&progress, digest); /* of nothing */
    assert_string_equal(digest, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    gpt_progress_note(&progress, 1, 1.5f);
    gpt_progress_note(&progress, 2, -0.25f);
    assert_int_equal(gpt_progress_step(&progress), 2);
    assert_true(gpt_progress_loss(&progress, 1) == 1.5f);
    assert_true(gpt_progress_loss(&progress, 2) == -0.25f);
    assert_memory_equal(progress.bytes + 64, "\x00\x00\xc0\x3f\x00\x00\x80\xbe", 8);
    gpt_progress_digest(&progress, digest); /* sha256 of these 8 bytes */
    assert_string_equal(digest, "abb24382fb190a25ddc6a44c79d3e13ccab2fae15f97bd4d31e59396a4cd6a58");
    assert_int_equal(gpt_progress_check(&progress, 2, 11, 22), CAIRN_OK);
    assert_int_equal(gpt_progress_check(&progress, 1, 11, 22), CAIRN_CORRUPT);
    assert_int_equal(gpt_progress_check(&progress, 2, 12, 22), CAIRN_CONFIG);
    assert_int_equal(gpt_progress_check(&progress, 2, 11, 23), CAIRN_CONFIG);
    progress.bytes[16] = 6; /* a step beyond the end */
    assert_int_equal(gpt_progress_check(&progress, 6, 11, 22), CAIRN_CORRUPT);
    progress.bytes[16] = 2;
    progress.bytes[0] ^= 1;
    assert_int_equal(gpt_progress_check(&progress, 2, 11, 22), CAIRN_CORRUPT);
    gpt_progress_fini(&progress);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_a_whole_job),
        cmocka_unit_test(test_cairn_run_resumes),
        cmocka_unit_test(test_a_slow_device_is_emulated),
        cmocka_unit_test(test_uneven_plan),
        cmocka_unit_test(test_even_division),
        cmocka_unit_test(test_wrong_usage),
        cmocka_unit_test(test_fingerprint_sees_what_ranks_must_share),
        cmocka_unit_test(test_progress),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
