/*
 * tests/fault/test_map.c - a map whose n-th allocation fails, for every n until none does: it
 * complains, leaks nothing, and the same map afterwards comes out right.
 */
#include "tools/convert/maps/map.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/engine/whole.h"
#include "tests/support/cmocka.h"
#include "tests/support/failing_calls.h"
#include "tests/support/quiet_log.h"

enum { ATTEMPTS_MAX = 100000, CONTAINER_BYTES = 4096 };

static void
add(struct cairn_checkpoint *checkpoint, const char *name, enum cairn_kind kind, uint64_t rows,
    uint64_t columns)
{
    const uint64_t shape[2] = {rows, columns};
    uint32_t tensor;

    assert_int_equal(cairn_checkpoint_add_tensor(checkpoint, name, CAIRN_F32, kind,
                                                 rows == 0 ? 0 : 2, shape, &tensor),
                     0);
    assert_int_equal(cairn_checkpoint_add_box(checkpoint, tensor, 0, NULL, NULL, 0, NULL), 0);
}

/* Fused projections with a moment and a step, stacked experts, tied weights, groups, padding. */
static void
make(struct cairn_checkpoint *checkpoint)
{
    static const char parameter[] = "model.layers.0.self_attn.q_proj.weight";
    static const char group[] = "(lp0\nS'model.layers.0.self_attn.q_proj.weight'\np1\na.";
    const struct cairn_group_value values[] = {{.group = 0,
                                                .key = "params",
                                                .bytes = (const uint8_t *)group,
                                                .bytes_len = sizeof(group) - 1}};
    bool added = false;

    *checkpoint = (struct cairn_checkpoint){.place.dir_fd = -1};
    assert_int_equal(cairn_place_open("tests/fault", &checkpoint->place, NULL), 0);
    assert_int_equal(cairn_layout_create(&checkpoint->layout), 0);
    assert_true(cairn_array_grow(&checkpoint->containers, 0, sizeof(*checkpoint->containers)));
    memset(checkpoint->containers, 0, sizeof(*checkpoint->containers));
    checkpoint->container_count = 1;
    checkpoint->containers[0].bytes = CONTAINER_BYTES;
    checkpoint->containers[0].literal = calloc(1, CONTAINER_BYTES);
    assert_non_null(checkpoint->containers[0].literal);
    add(checkpoint, "model.embed_tokens.weight", CAIRN_PARAM, 10, 4);
    assert_int_equal(cairn_checkpoint_add_alias(checkpoint, "lm_head.weight", 0), 0);
    for (int kind = 0; kind < 3; kind++) {
        static const char *const keys[] = {"", "exp_avg.", "step."};
        static const char *const parts[] = {"q", "k", "v"};

        for (int part = 0; part < 3; part++) {
            char name[CAIRN_NAME_BYTES_MAX];

            (void)strcat(strcpy(name, keys[kind]), parameter);
            *strstr(name, "q_proj") = parts[part][0];
            add(checkpoint, name, kind ? CAIRN_OPTIMIZER : CAIRN_PARAM,
                kind == 2   ? 0
                : part == 0 ? 16
                            : 8,
                4);
        }
    }
    for (int e = 0; e < 2; e++) {
        add(checkpoint,
            e ? "model.layers.0.mlp.experts.1.gate_proj.weight"
              : "model.layers.0.mlp.experts.0.gate_proj.weight",
            CAIRN_PARAM, 6, 4);
        add(checkpoint,
            e ? "model.layers.0.mlp.experts.1.up_proj.weight"
              : "model.layers.0.mlp.experts.0.up_proj.weight",
            CAIRN_PARAM, 6, 4);
    }
    assert_int_equal(cairn_param_groups_add(checkpoint, values, 1, NULL, 0, &added), 0);
    assert_true(added);
}

static void
every_allocation(void **state)
{
    static const char *const sets[] = {"heads=4", "groups=2", "padded_vocab=16"};

    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    for (int64_t call = 0; call < ATTEMPTS_MAX; call++) {
        struct cairn_complaint complaint = {""};
        struct cairn_checkpoint checkpoint;
        struct cairn_map_report report;
        struct cairn_whole whole;
        cairn_err err;

        make(&checkpoint);
        checkpoint.complaint = &complaint;
        arm(MEMORY, call, false);
        err = cairn_checkpoint_map(&checkpoint, "qwen3-moe", sets, 3, &report);
        disarm();
        if (err != CAIRN_OK && complaint.text[0] == '\0')
            fail_msg("allocation %lld fails without a word", (long long)call);
        if (err == CAIRN_OK) { /* what could do without is allowed to */
            assert_int_equal(report.made, 7);
            assert_int_equal(checkpoint.alias_count, 1);
            assert_int_equal(cairn_whole_init(&checkpoint, &whole), CAIRN_OK);
            cairn_whole_fini(&whole);
        } else {
            assert_true(failures);
            assert_int_equal(err, CAIRN_NOMEM);
        }
        cairn_checkpoint_close(&checkpoint);
        if (!failures)
            return;
    }
    fail_msg("no end of allocations");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
