/* tests/unit/tools/convert/compare/test_difference_opaque.c - which differences in bytes of opaque
 * state stay differences. */
#include <stdlib.h>

#include "tools/convert/compare/difference.h"
#include "tests/support/cmocka.h"

#define LIST                                                                                       \
    "\x80\x02]K\x01"                                                                               \
    "a."
#define LIST_WITH_MEMO                                                                             \
    "\x80\x02]q\x00K\x01"                                                                          \
    "a."

/* What becomes of the difference between two states called `name`; CAIRN_SAME: it is none. */
static enum cairn_difference_kind
compare(const char *name, const char *left, size_t left_bytes, const char *right,
        size_t right_bytes)
{
    struct cairn_checkpoint checkpoints[2] = {{.place.dir_fd = -1}, {.place.dir_fd = -1}};
    struct cairn_difference_side sides[2] = {{NULL}, {NULL}};
    struct cairn_difference differences[1] = {{.kind = CAIRN_OTHER_SHAPE}};
    enum cairn_difference_kind kind;
    size_t count = 1;

    for (int i = 0; i < 2; i++) {
        assert_int_equal(cairn_layout_create(&checkpoints[i].layout), CAIRN_OK);
        assert_int_equal(cairn_checkpoint_add_opaque(&checkpoints[i], name, i ? right : left,
                                                     i ? right_bytes : left_bytes),
                         CAIRN_OK);
        sides[i].checkpoint = &checkpoints[i];
        sides[i].layout = checkpoints[i].layout;
    }
    assert_int_equal(cairn_difference_opaque(sides, false, differences, &count), CAIRN_OK);
    kind = count ? differences[0].kind : CAIRN_SAME;
    if (count)
        free(differences[0].path);
    for (int i = 0; i < 2; i++)
        cairn_checkpoint_close(&checkpoints[i]);
    return kind;
}

#define COMPARE(name, left, right) compare(name, left, sizeof(left) - 1, right, sizeof(right) - 1)

static void
pickles_are_compared_by_what_they_say(void **state)
{
    assert_int_equal(COMPARE("a.pickle", LIST, LIST_WITH_MEMO), CAIRN_SAME);
    assert_int_equal(COMPARE("a.pickle", LIST,
                             "\x80\x02]K\x02"
                             "a."),
                     CAIRN_OTHER_VALUE);
}

static void
other_bytes_are_not(void **state)
{
    assert_int_equal(COMPARE("a", LIST, LIST_WITH_MEMO), CAIRN_OTHER_SHAPE);
    assert_int_equal(COMPARE("a.pickle", LIST, "no pickle"), CAIRN_OTHER_SHAPE);
    /* a pickle says nothing of the bytes after its end */
    assert_int_equal(COMPARE("a.pickle", LIST, LIST_WITH_MEMO "more"), CAIRN_OTHER_SHAPE);
    assert_int_equal(COMPARE("a.pickle", LIST "more", LIST_WITH_MEMO "less"), CAIRN_OTHER_SHAPE);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pickles_are_compared_by_what_they_say),
        cmocka_unit_test(other_bytes_are_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
