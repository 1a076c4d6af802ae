/* tests/unit/tools/convert/megatron/test_args.c - what carried arguments of a training job say, and
 * when they say nothing. */
#include "tools/convert/megatron/args.h"
#include "tests/support/cmocka.h"

#include <string.h>

/* The answer where "args.pickle" is these bytes of this kind; NULL: there is none. */
static cairn_err
ask(const char *bytes, enum cairn_kind kind, bool *local)
{
    struct cairn_complaint complaint = {""};
    struct cairn_checkpoint checkpoint = {.place.dir_fd = -1, .complaint = &complaint};
    uint64_t shape = bytes ? strlen(bytes) : 0;
    uint32_t tensor;
    cairn_err err;

    assert_int_equal(cairn_layout_create(&checkpoint.layout), CAIRN_OK);
    if (bytes && kind == CAIRN_OPAQUE)
        assert_int_equal(
            cairn_checkpoint_add_opaque(&checkpoint, "args.pickle", bytes, strlen(bytes)),
            CAIRN_OK);
    else if (bytes)
        assert_int_equal(cairn_checkpoint_add_tensor(&checkpoint, "args.pickle", CAIRN_U8, kind, 1,
                                                     &shape, &tensor),
                         CAIRN_OK);
    err = cairn_megatron_args_spec(&checkpoint, local);
    assert_true(!err || complaint.text[0] != '\0');
    cairn_checkpoint_close(&checkpoint);
    return err;
}

static void
the_spec_is_said_or_not(void **state)
{
    bool local = false;

    assert_int_equal(
        ask("cargparse\nNamespace\n(tR(dVtransformer_impl\nVlocal\nsb.", CAIRN_OPAQUE, &local),
        CAIRN_OK);
    assert_true(local);
    assert_int_equal(ask(NULL, CAIRN_OPAQUE, &local), CAIRN_OK);
    assert_false(local);
    assert_int_equal(ask("no pickle", CAIRN_OPAQUE, &local), CAIRN_OK);
    assert_false(local);
    assert_int_equal(ask("not opaque", CAIRN_BUFFER, &local), CAIRN_CORRUPT);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_spec_is_said_or_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
