/* tests/unit/tools/convert/engine/test_select.c - which parameters become what the optimizer has
 * of them. */
#include <stdlib.h>
#include <string.h>

#include "tools/convert/engine/select.h"
#include "tests/support/cmocka.h"

static struct cairn_checkpoint checkpoint;

static void
begin(void)
{
    checkpoint = (struct cairn_checkpoint){.place = {.path = strdup("place"), .dir_fd = -1}};
    assert_int_equal(cairn_layout_create(&checkpoint.layout), CAIRN_OK);
    assert_int_equal(cairn_checkpoint_add_opaque(&checkpoint, "bytes", "0123456789abcdef", 16),
                     CAIRN_OK);
}

static void
add(const char *name, enum cairn_dtype dtype, enum cairn_kind kind, uint64_t elements)
{
    uint32_t tensor;

    assert_int_equal(
        cairn_checkpoint_add_tensor(&checkpoint, name, dtype, kind, 1, &elements, &tensor),
        CAIRN_OK);
    assert_int_equal(cairn_checkpoint_add_box(&checkpoint, tensor, 0, NULL, NULL, 0, NULL),
                     CAIRN_OK);
}

static uint32_t
find(const char *name)
{
    uint32_t tensor = cairn_layout_tensor_find(checkpoint.layout, name);

    assert_int_not_equal(tensor, UINT32_MAX);
    return tensor;
}

/* What a tensor is an alias of, "" for nothing; its dtype is stated, and it has a piece where it is
 * none. */
static const char *
tied_to(const char *name, enum cairn_dtype dtype)
{
    uint32_t tensor = find(name), pieces = 0;
    const char *of = "";

    assert_int_equal(cairn_layout_tensor(checkpoint.layout, tensor)->dtype, dtype);
    for (size_t i = 0; i < cairn_layout_piece_count(checkpoint.layout); i++)
        pieces += cairn_layout_piece(checkpoint.layout, i)->tensor == tensor;
    for (uint32_t i = 0; i < checkpoint.alias_count; i++)
        if (checkpoint.aliases[i].tensor == tensor) {
            assert_string_equal(of, ""); /* once */
            of = cairn_layout_tensor(checkpoint.layout, checkpoint.aliases[i].of)->name;
        }
    assert_int_equal(pieces, of[0] ? 0 : 1);
    return of;
}

static void
masters_are_taken(void **state)
{
    uint32_t taken;

    begin();
    add("a", CAIRN_BF16, CAIRN_PARAM, 4);
    add("fp32.a", CAIRN_F32, CAIRN_OPTIMIZER, 4);
    assert_int_equal(cairn_checkpoint_add_alias(&checkpoint, "a.tied", find("a")), CAIRN_OK);
    add("b", CAIRN_F16, CAIRN_PARAM, 4); /* its master has another one's elements */
    assert_int_equal(cairn_checkpoint_add_alias(&checkpoint, "fp32.b", find("fp32.a")), CAIRN_OK);
    add("c", CAIRN_BF16, CAIRN_PARAM, 3); /* of another shape; a buffer; nothing; float32 itself */
    add("fp32.c", CAIRN_F32, CAIRN_OPTIMIZER, 4);
    add("d", CAIRN_BF16, CAIRN_BUFFER, 4);
    add("fp32.d", CAIRN_F32, CAIRN_OPTIMIZER, 4);
    add("e", CAIRN_BF16, CAIRN_PARAM, 4);
    add("f", CAIRN_F32, CAIRN_PARAM, 4);
    add("fp32.f", CAIRN_F32, CAIRN_OPTIMIZER, 4);
    assert_int_equal(cairn_checkpoint_take_masters(&checkpoint, &taken), CAIRN_OK);
    assert_int_equal(taken, 3);
    assert_string_equal(tied_to("a", CAIRN_F32), "fp32.a");
    assert_string_equal(tied_to("a.tied", CAIRN_F32), "fp32.a");
    assert_string_equal(tied_to("b", CAIRN_F32), "fp32.a");
    assert_string_equal(tied_to("fp32.b", CAIRN_F32), "fp32.a");
    assert_string_equal(tied_to("fp32.a", CAIRN_F32), "");
    assert_string_equal(tied_to("c", CAIRN_BF16), "");
    assert_string_equal(tied_to("d", CAIRN_BF16), "");
    assert_string_equal(tied_to("e", CAIRN_BF16), "");
    assert_string_equal(tied_to("f", CAIRN_F32), "");
    assert_int_equal(checkpoint.alias_count, 4);
    cairn_checkpoint_close(&checkpoint);
}

/* The master alone knows a parameter that is tied to it under another name. */
static void
a_tied_ones_master_is_taken(void **state)
{
    uint32_t taken;

    begin();
    add("a", CAIRN_BF16, CAIRN_PARAM, 4);
    assert_int_equal(cairn_checkpoint_add_alias(&checkpoint, "b", find("a")), CAIRN_OK);
    add("fp32.b", CAIRN_F32, CAIRN_OPTIMIZER, 4);
    assert_int_equal(cairn_checkpoint_take_masters(&checkpoint, &taken), CAIRN_OK);
    assert_int_equal(taken, 2);
    assert_string_equal(tied_to("a", CAIRN_F32), "fp32.b");
    assert_string_equal(tied_to("b", CAIRN_F32), "fp32.b");
    cairn_checkpoint_close(&checkpoint);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masters_are_taken),
        cmocka_unit_test(a_tied_ones_master_is_taken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
