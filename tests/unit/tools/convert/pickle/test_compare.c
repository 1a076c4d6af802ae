/* tests/unit/tools/convert/pickle/test_compare.c - pickles that say the same in other bytes, and
 * paths to what differs. */
#include <string.h>

#include "tools/convert/pickle/compare.h"
#include "tools/convert/pickle/read.h"
#include "tests/support/cmocka.h"

struct compared {
    bool same;
    char path[64];
};

static struct compared
compare(const char *left, size_t left_bytes, const char *right, size_t right_bytes, bool bits)
{
    struct compared result = {false, ""};
    struct cairn_pickle trees[2];
    struct cairn_pickle_node *a = NULL, *b = NULL;

    cairn_pickle_init(&trees[0], 1 << 20);
    cairn_pickle_init(&trees[1], 1 << 20);
    assert_int_equal(
        cairn_pickle_read(&trees[0], "left", (const uint8_t *)left, left_bytes, &a, NULL),
        CAIRN_OK);
    assert_int_equal(
        cairn_pickle_read(&trees[1], "right", (const uint8_t *)right, right_bytes, &b, NULL),
        CAIRN_OK);
    assert_int_equal(
        cairn_pickle_compare(&trees[0], a, b, bits, result.path, sizeof(result.path), &result.same),
        CAIRN_OK);
    cairn_pickle_fini(&trees[0]);
    cairn_pickle_fini(&trees[1]);
    return result;
}

#define COMPARE(left, right) compare(left, sizeof(left) - 1, right, sizeof(right) - 1, false)

static void
says_the_same_in_other_bytes(void **state)
{
    /* {'a': 1, 'b': [2]} of protocol 0, and the other way round of protocol 2 with memo and a
     * longer int */
    assert_true(COMPARE("(dVa\nI1\nsVb\n(lI2\nas.", "\x80\x02}q\x00(X\x01\x00\x00\x00"
                                                    "bq\x01]q\x02K\x02"
                                                    "aX\x01\x00\x00\x00"
                                                    "aM\x01\x00u.")
                    .same);
    /* a list that holds one list twice, and one that holds two equal lists */
    assert_true(COMPARE("\x80\x02]q\x00(]q\x01h\x01"
                        "e.",
                        "\x80\x02](]]e.")
                    .same);
    /* a list that holds itself */
    assert_true(COMPARE("\x80\x02]q\x00h\x00"
                        "a.",
                        "\x80\x02]q\x05h\x05"
                        "a.")
                    .same);
    assert_true(COMPARE("F0.0\n.", "F-0.0\n.").same);
    /* a set of protocol 4, in two orders */
    assert_true(
        COMPARE("\x80\x04\x8f(K\x01K\x02K\x03\x90.", "\x80\x04\x8f(K\x03K\x02K\x01\x90.").same);
    /* the same as protocol 2 has it, which torch.save writes */
    assert_true(COMPARE("\x80\x02"
                        "c__builtin__\nset\n](Va\nVb\nVc\ne\x85R.",
                        "\x80\x02"
                        "c__builtin__\nset\n](Vc\nVa\nVb\ne\x85R.")
                    .same);
    /* keys that are calls: {torch.device('cpu'): 1} */
    assert_true(COMPARE("(dctorch\ndevice\n(Vcpu\ntRI1\ns.",
                        "\x80\x02}ctorch\ndevice\nX\x03\x00\x00\x00"
                        "cpu\x85RK\x01s.")
                    .same);
    assert_false(compare("F0.0\n.", 6, "F-0.0\n.", 7, true).same);
}

static void
says_where_it_differs(void **state)
{
    static const struct {
        const char *left, *right, *path;
    } cases[] = {
        {"(dVa\n(lI1\naI2\nas.", "(dVa\n(lI1\naI3\nas.", "a[1]"},
        {"(dVa\n(dVb\nI1\nss.", "(dVa\n(dVc\nI1\nss.", "a.b"},
        {"(dI7\n(I1\nI2\nts.", "(dI7\n(I1\nF2.0\nts.", "[7][1]"},
        {"(lI1\na.", "(lI1\naI1\na.", ""},
        {"I1\n.", "I01\n.", ""},
        {"(dVx\nI1\nsVy\n(lI1\nas.", "(dVy\n(lI2\nasVx\nI1\ns.", "y[0]"},
        {"(dVm\ncos\nsystem\ns.", "(dVm\ncos\nsysten\ns.", "m"},
        /* a duplicate on one side does not stand for what is missing there */
        {"(dVa\nI1\nsVa\nI1\ns.", "(dVa\nI1\nsVb\nI2\ns.", "a"},
        {"(dVa\nI1\nsVb\nI2\ns.", "(dVa\nI1\nsVa\nI1\ns.", "b"},
        {"(dVa\nI2\nsVb\nI5\nsVb\nI5\ns.", "(dVa\nI2\nsVb\nI5\nsVa\nI1\ns.", "b"},
        {"\x80\x04\x8f(K\x01K\x01K\x02\x90.", "\x80\x04\x8f(K\x01K\x02K\x03\x90.", "[1]"},
        {"c__builtin__\nset\n((lVa\naVb\natR.", "c__builtin__\nset\n((lVb\naVc\natR.", "[0]"},
        /* a list that a set is made from is a list elsewhere: [set([a, b]), the same list] */
        {"(lc__builtin__\nset\n((lVa\naVb\nap1\ntRag1\na.",
         "(lc__builtin__\nset\n((lVb\naVa\nap1\ntRag1\na.", "[1][0]"},
        /* the order of an OrderedDict counts, that of a dict does not */
        {"ccollections\nOrderedDict\n(tRVa\nI1\nsVb\nI1\ns.",
         "ccollections\nOrderedDict\n(tRVb\nI1\nsVa\nI1\ns.", "a"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct compared result = compare(cases[i].left, strlen(cases[i].left), cases[i].right,
                                         strlen(cases[i].right), false);

        assert_false(result.same);
        assert_string_equal(result.path, cases[i].path);
    }
}

/* A tuple of twice the one before, 60 times: 2^60 places of one node. */
static void
ends_where_much_is_shared(void **state)
{
    char bytes[512] = "\x80\x02N";
    size_t count = 3;
    struct compared result;

    for (int i = 0; i < 60; i++) {
        bytes[count++] = 'q';
        bytes[count++] = (char)i;
        bytes[count++] = 'h';
        bytes[count++] = (char)i;
        bytes[count++] = '\x86';
    }
    bytes[count++] = '.';
    result = compare(bytes, count, bytes, count, false);
    assert_true(result.same);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_the_same_in_other_bytes),
        cmocka_unit_test(says_where_it_differs),
        cmocka_unit_test(ends_where_much_is_shared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
