/*
 * tests/unit/tools/convert/deepspeed/markers.h - the elements of the checkpoints of
 * tests/fixtures/make_deepspeed.py, which say where they belong: for tests of what is read and made
 * of them.
 */
#ifndef CAIRN_TESTS_UNIT_TOOLS_CONVERT_DEEPSPEED_MARKERS_H
#define CAIRN_TESTS_UNIT_TOOLS_CONVERT_DEEPSPEED_MARKERS_H

#include "tools/convert/formats.h"
#include "tests/support/cmocka.h"
#include "tests/unit/tools/convert/check_piece.h"

#include <string.h>
#include <unistd.h>

/* The trained parameters in the order of their names, as the fixtures number them. */
static const char *const names[] = {"conv.bias",    "conv.weight", "down.weight",
                                    "embed.weight", "norm.bias",   "norm.weight",
                                    "scale",        "up.bias",     "up.weight"};
enum { NAME_COUNT = sizeof(names) / sizeof(names[0]) };

/* What element `index` of "<key>.<parameter>" is; false where the tensor has no markers. */
static bool
expected_value(const char *name, uint64_t index, float *value)
{
    const char *dot = strchr(name, '.');

    for (size_t i = 0; dot && i < NAME_COUNT; i++) {
        float marker = (float)(i * 1000 + index);

        if (strcmp(dot + 1, names[i]) != 0)
            continue;
        *value = strncmp(name, "fp32.", 5) == 0      ? marker
                 : strncmp(name, "exp_avg.", 8) == 0 ? -marker
                                                     : marker + 0.5f;
        return strncmp(name, "step.", 5) != 0;
    }
    return false;
}

/* Every marked tensor is there, with each element once. */
static void
check_markers(const char *path, const char *format)
{
    struct cairn_complaint complaint = {""};
    struct cairn_checkpoint checkpoint;
    uint32_t marked = 0;
    float value;

    if (cairn_checkpoint_open(path, cairn_format_find(format), 0, &checkpoint, &complaint))
        fail_msg("%s", complaint.text);
    for (uint32_t t = 0; t < cairn_layout_tensor_count(checkpoint.layout); t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint.layout, t);

        if (tensor->kind != CAIRN_OPTIMIZER || !expected_value(tensor->name, 0, &value))
            continue;
        marked++;
        check_elements(&checkpoint, t, expected_value, true);
    }
    assert_int_equal(marked, 3 * NAME_COUNT);
    assert_int_equal(checkpoint.step, 2);
    cairn_checkpoint_close(&checkpoint);
}

#endif
