/*
 * tests/unit/tools/convert/pickle/test_pickle.c - pickles of real Python in all protocols
 * (tests/fixtures/make_torch.py) read and written again; every opcode; and pickles that mean harm.
 *
 * For tests/interop it is a program, too: --rewrite FROM TO reads a pickle and writes it again.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/pickle/write.h"
#include "tests/support/cmocka.h"

#define FIXTURES "tests/fixtures/pickle/"
enum { FILE_BYTES_MAX = 1 << 20, ARENA_BYTES = 64 << 20 };

static struct cairn_complaint complaint;
static struct cairn_pickle pickle; /* of the test that runs */

static int
teardown(void **state)
{
    cairn_pickle_fini(&pickle);
    return 0;
}

static cairn_err
read_bytes(const void *bytes, size_t bytes_len, struct cairn_pickle_node **root)
{
    cairn_pickle_fini(&pickle);
    cairn_pickle_init(&pickle, ARENA_BYTES);
    complaint.text[0] = '\0';
    return cairn_pickle_read(&pickle, "a.pkl", bytes, bytes_len, root, &complaint);
}

/* ---- what Python wrote ---- */

static const char *const cases[] = {"ints",    "floats", "words",  "bytes", "lists",
                                    "dicts",   "given",  "tuples", "sets",  "numbers",
                                    "objects", "cycles", "deep",   "memo"};
enum { CASE_COUNT = sizeof(cases) / sizeof(cases[0]), PROTOCOLS = 6 };

static uint8_t *
load_case(size_t which, int protocol, size_t *bytes_len)
{
    uint8_t *bytes = NULL;
    char path[128];

    (void)snprintf(path, sizeof(path), FIXTURES "%s.p%d", cases[which], protocol);
    assert_int_equal(cairn_file_load(AT_FDCWD, path, FILE_BYTES_MAX, &bytes, bytes_len), CAIRN_OK);
    return bytes;
}

static void
protocol_2_is_written_byte_for_byte(void **state)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        struct cairn_pickle_node *root = NULL;
        size_t bytes_len, again_len = 0;
        uint8_t *bytes = load_case(i, 2, &bytes_len), *again = NULL;

        if (read_bytes(bytes, bytes_len, &root) != CAIRN_OK)
            fail_msg("%s: %s", cases[i], complaint.text);
        assert_int_equal(cairn_pickle_write(&pickle, root, &again, &again_len, NULL), CAIRN_OK);
        if (again_len != bytes_len || memcmp(bytes, again, bytes_len) != 0)
            fail_msg("%s is written differently", cases[i]);
        free(bytes);
        free(again);
    }
}

/* A pickle of another protocol, once rewritten, stays the same. */
static void
other_protocols_become_protocol_2(void **state)
{
    for (size_t i = 0; i < CASE_COUNT * PROTOCOLS; i++) {
        struct cairn_pickle_node *root = NULL;
        size_t bytes_len, once_len = 0, twice_len = 0;
        uint8_t *bytes = load_case(i / PROTOCOLS, (int)(i % PROTOCOLS), &bytes_len);
        uint8_t *once = NULL, *twice = NULL;

        if (read_bytes(bytes, bytes_len, &root) != CAIRN_OK)
            fail_msg("%s.p%zu: %s", cases[i / PROTOCOLS], i % PROTOCOLS, complaint.text);
        assert_int_equal(cairn_pickle_write(&pickle, root, &once, &once_len, NULL), CAIRN_OK);
        assert_int_equal(read_bytes(once, once_len, &root), CAIRN_OK);
        assert_int_equal(cairn_pickle_write(&pickle, root, &twice, &twice_len, NULL), CAIRN_OK);
        assert_int_equal(once_len, twice_len);
        assert_memory_equal(once, twice, once_len);
        free(bytes);
        free(once);
        free(twice);
    }
}

static void
every_cut_of_a_pickle_is_refused(void **state)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        size_t bytes_len;
        uint8_t *bytes = load_case(i, 4, &bytes_len);

        for (size_t cut = 0; cut < bytes_len; cut += bytes_len < 500 ? 1 : 101) {
            struct cairn_pickle_node *root = NULL;
            size_t taken;

            assert_int_equal(read_bytes(bytes, cut, &root), CAIRN_CORRUPT);
            assert_non_null(strstr(complaint.text, "truncated"));
            cairn_pickle_fini(&pickle);
            cairn_pickle_init(&pickle, ARENA_BYTES);
            complaint.text[0] = '\0';
            assert_int_equal(cairn_pickle_read_start(&pickle, "a.pkl", bytes, cut, false, &root,
                                                     &taken, &complaint),
                             CAIRN_AGAIN);
            assert_string_equal(complaint.text, "");
        }
        free(bytes);
    }
}

/* ---- opcodes ---- */

/* What a value is, as Python would nearly print it; "…" below a certain depth. */
static void
describe(FILE *out, const struct cairn_pickle_node *node, int depth)
{
    const struct cairn_pickle_object *object = node->object;
    static const char *const brackets[] = {
        [CAIRN_PICKLE_LIST] = "[]", [CAIRN_PICKLE_TUPLE] = "()",
        [CAIRN_PICKLE_SET] = "{}",  [CAIRN_PICKLE_FROZENSET] = "<>",
        [CAIRN_PICKLE_DICT] = "{}", [CAIRN_PICKLE_PERSISTENT] = "@@"};
    uint32_t slots = node->kind == CAIRN_PICKLE_DICT         ? 2 * node->count
                     : node->kind == CAIRN_PICKLE_PERSISTENT ? 1
                                                             : node->count;

    if (depth == 0) {
        (void)fprintf(out, "…");
        return;
    }
    switch (node->kind) {
    case CAIRN_PICKLE_NONE:
        (void)fprintf(out, "None");
        break;
    case CAIRN_PICKLE_BOOL:
        (void)fprintf(out, node->truth ? "True" : "False");
        break;
    case CAIRN_PICKLE_INT:
        (void)fprintf(out, "%lld", (long long)node->integer);
        break;
    case CAIRN_PICKLE_FLOAT:
        (void)fprintf(out, "%g", node->real);
        break;
    case CAIRN_PICKLE_BIG_INT:
        for (uint32_t i = node->count; i-- > 0;)
            (void)fprintf(out, "%02x", node->bytes[i]);
        break;
    case CAIRN_PICKLE_TEXT:
    case CAIRN_PICKLE_TEXT8:
    case CAIRN_PICKLE_BYTES:
    case CAIRN_PICKLE_BYTEARRAY:
        (void)fprintf(out, "%s'%.*s'",
                      node->kind == CAIRN_PICKLE_TEXT    ? ""
                      : node->kind == CAIRN_PICKLE_TEXT8 ? "8"
                      : node->kind == CAIRN_PICKLE_BYTES ? "b"
                                                         : "ba",
                      (int)node->count, (const char *)node->bytes);
        break;
    case CAIRN_PICKLE_GLOBAL:
        (void)fprintf(out, "%s:%s", node->global->module, node->global->name);
        break;
    case CAIRN_PICKLE_OBJECT:
        (void)fprintf(out, object->call == CAIRN_PICKLE_REDUCE ? "call " : "new ");
        describe(out, object->callable, depth - 1);
        describe(out, object->args, depth - 1);
        if (object->kwargs)
            describe(out, object->kwargs, depth - 1);
        if (object->items)
            describe(out, object->items, depth - 1);
        if (object->pairs)
            describe(out, object->pairs, depth - 1);
        if (object->state) {
            (void)fprintf(out, "/");
            describe(out, object->state, depth - 1);
        }
        break;
    default:
        (void)fputc(brackets[node->kind][0], out);
        for (uint32_t i = 0; i < slots; i++) {
            (void)fputs(i == 0                                          ? ""
                        : node->kind == CAIRN_PICKLE_DICT && i % 2 == 1 ? ": "
                                                                        : ", ",
                        out);
            describe(out, node->items[i], depth - 1);
        }
        (void)fputc(brackets[node->kind][1], out);
    }
}

/* A string literal without its NUL, so that pickles may hold NULs. */
#define PICKLE(text) (text), sizeof(text) - 1

static void
every_opcode_makes_its_node(void **state)
{
    static const struct {
        const char *bytes;
        size_t bytes_len;
        const char *meaning;
    } good[] = {
        {PICKLE("N."), "None"},
        {PICKLE("I01\nI00\n\x86."), "(True, False)"},
        {PICKLE("I-12\n."), "-12"},
        {PICKLE("I9223372036854775808\n."), "008000000000000000"},
        {PICKLE("L12L\n."), "12"},
        {PICKLE("L-9223372036854775808L\n."), "-9223372036854775808"},
        {PICKLE("L-9223372036854775809L\n."), "ff7fffffffffffffff"},
        {PICKLE("F1.5e3\n."), "1500"},
        {PICKLE("F-inf\n."), "-inf"},
        {PICKLE("S'a\\x41\\101\\n\\q'\n."), "8'aAA\n\\q'"},
        {PICKLE("Va\\u20ac\xe9\\U0001f600\\n\n."), "'a€é\U0001f600\\n'"},
        {PICKLE("J\xff\xff\xff\xff."), "-1"},
        {PICKLE("K\xff."), "255"},
        {PICKLE("M\x01\x02."), "513"},
        {PICKLE("G\x3f\xf8\0\0\0\0\0\0."), "1.5"},
        {PICKLE("\x8a\x00."), "0"},
        {PICKLE("\x8a\x02\x00\x80."), "-32768"},
        {PICKLE("\x8a\x0a\x01\0\0\0\0\0\0\0\0\0."), "1"},
        {PICKLE("\x8b\x02\0\0\0\xff\x7f."), "32767"},
        {PICKLE("T\2\0\0\0abU\1c\x86."), "(8'ab', 8'c')"},
        {PICKLE("X\2\0\0\0ab\x8c\1c\x8d\1\0\0\0\0\0\0\0d\x87."), "('ab', 'c', 'd')"},
        {PICKLE("B\2\0\0\0abC\1c\x8e\1\0\0\0\0\0\0\0d\x87."), "(b'ab', b'c', b'd')"},
        {PICKLE("\x96\1\0\0\0\0\0\0\0d."), "ba'd'"},
        {PICKLE("\x88\x89\x86."), "(True, False)"},
        {PICKLE(")."), "()"},
        {PICKLE("K\1\x85."), "(1)"},
        {PICKLE("K\1K\2\x86."), "(1, 2)"},
        {PICKLE("K\1K\2K\3\x87."), "(1, 2, 3)"},
        {PICKLE("(K\1K\2K\3K\4t."), "(1, 2, 3, 4)"},
        {PICKLE("(K\1l."), "[1]"},
        {PICKLE("]K\1a(K\2K\3e."), "[1, 2, 3]"},
        {PICKLE("(K\1K\2d."), "{1: 2}"},
        {PICKLE("}K\1K\2s(K\3K\4K\5K\6u."), "{1: 2, 3: 4, 5: 6}"},
        {PICKLE("\x8f(K\1K\2\x90."), "{1, 2}"},
        {PICKLE("(K\1\x91."), "<1>"},
        {PICKLE("cos\nsystem\n."), "os:system"},
        {PICKLE("\x8c\2os\x8c\6system\x93."), "os:system"},
        {PICKLE("cos\nsystem\nX\4\0\0\0true\x85R."), "call os:system('true')"},
        {PICKLE("ca\nb\n)\x81}K\1K\2sb."), "new a:b()/{1: 2}"},
        {PICKLE("ca\nb\n)}K\1K\2s\x92."), "new a:b(){1: 2}"},
        {PICKLE("ca\nb\n)R]K\1ae(K\1e(K\2K\3u."), ""},
        {PICKLE("ca\nb\n)R(K\1e(K\2K\3u."), "call a:b()[1]{2: 3}"},
        {PICKLE("(K\1ia\nb\n."), "call a:b(1)"},
        {PICKLE("(ca\nb\nK\1o."), "call a:b(1)"},
        {PICKLE("Pabc\n."), "@'abc'@"},
        {PICKLE("K\7Q."), "@7@"},
        {PICKLE("K\1p7\n0g7\n."), "1"},
        {PICKLE("K\1q\7K\2r\0\0\0\0"
                "00h\7j\0\0\0\0\x86."),
         "(1, 2)"},
        {PICKLE("K\1\x94"
                "0K\2\x94"
                "0h\1h\0\x86."),
         "(2, 1)"},
        {PICKLE("K\1(K\2K\3"
                "1."),
         "1"},
        {PICKLE("K\1(0."), "1"},
        {PICKLE("]2a."), "[[[[…]]]]"},
        {PICKLE("]q\0h\0a."), "[[[[…]]]]"},
        {PICKLE("\x80\5\x95\2\0\0\0\0\0\0\0N."), "None"},
    };

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct cairn_pickle_node *root = NULL;
        char *text = NULL;
        size_t text_bytes = 0;
        FILE *out;

        if (good[i].meaning[0] == '\0') { /* one that only looks right */
            assert_int_equal(read_bytes(good[i].bytes, good[i].bytes_len, &root), CAIRN_CORRUPT);
            continue;
        }
        if (read_bytes(good[i].bytes, good[i].bytes_len, &root) != CAIRN_OK)
            fail_msg("%s: %s", good[i].meaning, complaint.text);
        out = open_memstream(&text, &text_bytes);
        assert_non_null(out);
        describe(out, root, 4);
        assert_int_equal(fclose(out), 0);
        assert_string_equal(text, good[i].meaning);
        free(text);
    }
}

static void
what_cannot_be_said_is_refused_by_opcode_and_byte(void **state)
{
    static const struct {
        const char *bytes;
        size_t bytes_len;
        const char *why;
    } bad[] = {
        {PICKLE("\x82\1."), "byte 0, opcode EXT1:"},
        {PICKLE("N\x83\1\0."), "byte 1, opcode EXT2:"},
        {PICKLE("N\x84\1\0\0\0."), "opcode EXT4:"},
        {PICKLE("\x97."), "opcode NEXT_BUFFER:"},
        {PICKLE("N\x98."), "opcode READONLY_BUFFER:"},
        {PICKLE("\x80\6N."), "opcode PROTO:"},
        {PICKLE("?"), "byte 0, opcode unknown:"},
        {PICKLE("\xff"), "opcode unknown"},
        {PICKLE("."), "opcode STOP:"},
        {PICKLE("NN."), "opcode STOP:"},
        {PICKLE("(N."), "opcode STOP:"},
        {PICKLE("0."), "opcode POP:"},
        {PICKLE("N(N0"
                "000."),
         "opcode POP:"},
        {PICKLE("1."), "opcode POP_MARK:"},
        {PICKLE("e."), "opcode APPENDS:"},
        {PICKLE("(e."), "opcode APPENDS:"},
        {PICKLE("N(NN\x87."), "opcode TUPLE3:"},
        {PICKLE("2."), "opcode DUP:"},
        {PICKLE("N(Ne."), "opcode APPENDS:"},
        {PICKLE("]NNs."), "opcode SETITEM:"},
        {PICKLE("}(Nu."), "opcode SETITEMS:"},
        {PICKLE("(Nd."), "opcode DICT:"},
        {PICKLE("](N\x90."), "opcode ADDITEMS:"},
        {PICKLE("ca\nb\n)R(N\x90."), "opcode ADDITEMS:"},
        {PICKLE("ca\nb\nNR."), "opcode REDUCE:"},
        {PICKLE("ca\nb\n)N\x92."), "opcode NEWOBJ_EX:"},
        {PICKLE("ca\nb\n)RNbNb."), "opcode BUILD:"},
        {PICKLE("ca\nb\n)RNbNa."), "opcode APPEND:"},
        {PICKLE("ca\nb\n)RNNsNa."), "opcode APPEND:"},
        {PICKLE("NNb."), "opcode BUILD:"},
        {PICKLE("ca\nb\nNb."), "opcode BUILD:"},
        {PICKLE("Ncos\nsystem\n)R0."), "opcode POP:"},
        {PICKLE("NNcos\nsystem\n)R00."), "opcode POP:"},
        {PICKLE("N(cos\nsystem\n)R1."), "opcode POP_MARK:"},
        {PICKLE("h\0."), "opcode BINGET:"},
        {PICKLE("g99999999999\n."), "opcode GET:"},
        {PICKLE("g-1\n."), "opcode GET:"},
        {PICKLE("j\xff\xff\xff\xff."), "opcode LONG_BINGET:"},
        {PICKLE("Nr\xff\xff\xff\xff."), "opcode LONG_BINPUT:"},
        {PICKLE("c\nb\n."), "opcode GLOBAL:"},
        {PICKLE("ca\0a\nb\n."), "opcode GLOBAL:"},
        {PICKLE("c\xff\nb\n."), "opcode GLOBAL:"},
        {PICKLE("NX\1\0\0\0b\x93."), "opcode STACK_GLOBAL:"},
        {PICKLE("\x8c\3a\nb\x8c\1c\x93."), "opcode STACK_GLOBAL:"},
        {PICKLE("(o."), "opcode OBJ:"},
        {PICKLE("I1x\n."), "opcode INT:"},
        {PICKLE("L\n."), "opcode LONG:"},
        {PICKLE("F0x10\n."), "opcode FLOAT:"},
        {PICKLE("S'a\n."), "opcode STRING:"},
        {PICKLE("S'\\x4'\n."), "opcode STRING:"},
        {PICKLE("V\\u12\n."), "opcode UNICODE:"},
        {PICKLE("V\\Uffffffff\n."), "opcode UNICODE:"},
        {PICKLE("\x8b\xff\xff\xff\xff."), "opcode LONG4:"},
        {PICKLE("\x8d\xff\xff\xff\xff\xff\xff\xff\x7f."), "opcode BINUNICODE8:"},
        {PICKLE("\x8e\xff\xff\xff\xff\xff\xff\xff\xff."), "opcode BINBYTES8:"},
        {PICKLE("\x95\xff\xff\xff\xff\xff\xff\xff\xffN."), "opcode FRAME:"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct cairn_pickle_node *root = NULL;

        if (read_bytes(bad[i].bytes, bad[i].bytes_len, &root) != CAIRN_CORRUPT)
            fail_msg("it was taken: %s", bad[i].why);
        if (!strstr(complaint.text, bad[i].why) || !strstr(complaint.text, "a.pkl"))
            fail_msg("it said: %s, and not: %s", complaint.text, bad[i].why);
    }
}

/* ---- harm ---- */

static void
repeated(const char *part, size_t part_bytes, size_t count, const char *end, const char *why)
{
    size_t bytes_len = part_bytes * count + strlen(end);
    uint8_t *bytes = malloc(bytes_len);
    struct cairn_pickle_node *root = NULL;

    assert_non_null(bytes);
    for (size_t i = 0; i < count; i++)
        memcpy(bytes + i * part_bytes, part, part_bytes);
    memcpy(bytes + part_bytes * count, end, strlen(end));
    assert_int_not_equal(read_bytes(bytes, bytes_len, &root), CAIRN_OK);
    if (!strstr(complaint.text, why))
        fail_msg("it said: %s, and not: %s", complaint.text, why);
    free(bytes);
}

static void
nesting_has_a_limit(void **state)
{
    repeated("(", 1, 1001, ".", "byte 1000, opcode MARK:");
    repeated("]", 1, 2000, "aaa", "truncated");
}

static void
deep_values_are_refused_without_deep_calls(void **state)
{
    enum { DEEP = 100000 };
    uint8_t *bytes = malloc(DEEP + 2);
    struct cairn_pickle_node *root = NULL;

    assert_non_null(bytes);
    bytes[0] = ')';
    memset(bytes + 1, 0x85, DEEP); /* ((((…),),),) */
    bytes[DEEP + 1] = '.';
    assert_int_equal(read_bytes(bytes, DEEP + 2, &root), CAIRN_CORRUPT);
    assert_non_null(strstr(complaint.text, "opcode TUPLE1:"));
    free(bytes);
}

/*
 * 2^40 elements in a pickle of 200 bytes: shared here, and no larger than their pickle when
 * written.
 */
static void
a_bomb_of_shared_lists_stays_small(void **state)
{
    uint8_t bytes[256] = "]\x94";
    struct cairn_pickle_node *root = NULL;
    uint8_t *again = NULL;
    size_t bytes_len = 2, again_len = 0;

    for (uint8_t i = 0; i < 40; i++) {
        memcpy(bytes + bytes_len, "2\x86\x94", 3); /* DUP, TUPLE2, MEMOIZE: the last value twice */
        bytes_len += 3;
    }
    bytes[bytes_len++] = '.';
    assert_int_equal(read_bytes(bytes, bytes_len, &root), CAIRN_OK);
    assert_true(pickle.node_count < 100);
    assert_int_equal(cairn_pickle_write(&pickle, root, &again, &again_len, NULL), CAIRN_OK);
    assert_true(again_len < 4 * bytes_len);
    free(again);
}

static void
memory_has_a_limit(void **state)
{
    static const char *const parts[] = {"]", "}", ")\x85", "J\1\1\1\1", "]2a", "ca\nb\n)R", "C\1x"};
    enum { COUNT = 100000 };

    for (size_t p = 0; p < sizeof(parts) / sizeof(parts[0]); p++) {
        size_t part_bytes = strlen(parts[p]), bytes_len = part_bytes * COUNT;
        uint8_t *bytes = malloc(bytes_len);
        struct cairn_pickle_node *root = NULL;

        assert_non_null(bytes);
        for (size_t i = 0; i < COUNT; i++)
            memcpy(bytes + i * part_bytes, parts[p], part_bytes);
        cairn_pickle_fini(&pickle);
        cairn_pickle_init(&pickle, 1 << 20);
        complaint.text[0] = '\0';
        assert_int_equal(cairn_pickle_read(&pickle, "a.pkl", bytes, bytes_len, &root, &complaint),
                         CAIRN_NOMEM);
        assert_non_null(strstr(complaint.text, "more memory"));
        assert_true(pickle.used_bytes <= 1 << 20);
        /* and none needs more than the factor that callers may rely on */
        cairn_pickle_fini(&pickle);
        cairn_pickle_init(&pickle, (uint64_t)CAIRN_PICKLE_ARENA_FACTOR * bytes_len);
        complaint.text[0] = '\0';
        assert_int_equal(cairn_pickle_read(&pickle, "a.pkl", bytes, bytes_len, &root, &complaint),
                         CAIRN_CORRUPT);
        assert_non_null(strstr(complaint.text, "truncated"));
        free(bytes);
    }
}

/* ---- building and asking ---- */

static void
what_is_built_is_found(void **state)
{
    struct cairn_pickle_node *dict, *object, *args[2], *state_node;
    uint64_t number = 0;
    char text[8];

    cairn_pickle_init(&pickle, ARENA_BYTES);
    dict = cairn_pickle_dict(&pickle);
    cairn_pickle_put(&pickle, dict, cairn_pickle_text(&pickle, "a"), cairn_pickle_int(&pickle, 1));
    cairn_pickle_put(&pickle, dict, cairn_pickle_text(&pickle, "a"), cairn_pickle_int(&pickle, 2));
    assert_true(cairn_pickle_u64(cairn_pickle_get(dict, "a"), &number) && number == 2);
    assert_null(cairn_pickle_get(dict, "b"));
    args[0] = cairn_pickle_text(&pickle, "words");
    args[1] = cairn_pickle_int(&pickle, -1);
    object =
        cairn_pickle_object(&pickle, CAIRN_PICKLE_REDUCE, cairn_pickle_global(&pickle, "m", "C"),
                            cairn_pickle_sequence(&pickle, CAIRN_PICKLE_TUPLE, args, 2));
    state_node = cairn_pickle_dict(&pickle);
    cairn_pickle_put(&pickle, state_node, cairn_pickle_text(&pickle, "field"), dict);
    cairn_pickle_build(&pickle, object, state_node);
    assert_true(cairn_pickle_is_call(object, "m", "C"));
    assert_false(cairn_pickle_is_call(object, "m", "D"));
    assert_ptr_equal(cairn_pickle_attribute(object, "field"), dict);
    assert_true(cairn_pickle_is_text(cairn_pickle_arg(object, 0), "words"));
    assert_false(cairn_pickle_u64(cairn_pickle_arg(object, 1), &number));
    assert_null(cairn_pickle_arg(object, 2));
    assert_true(cairn_pickle_copy_text(args[0], text, 6));
    assert_string_equal(text, "words");
    assert_false(cairn_pickle_copy_text(args[0], text, 5));
    assert_int_equal(cairn_pickle_done(&pickle), CAIRN_OK);
    cairn_pickle_append(&pickle, dict, args[0]);
    assert_int_equal(cairn_pickle_done(&pickle), CAIRN_INVAL);
    assert_null(cairn_pickle_none(&pickle)); /* sticky */
}

/* bytes as protocol 2 says them: a call with text of U+0000 … U+00FF, which is what is found again;
 * anything else is none. */
static void
bytes_are_found_in_the_call_that_says_them(void **state)
{
    static const struct {
        const char *module, *text, *encoding;
        size_t text_bytes;
        const char *bytes; /* NULL: none */
        size_t bytes_len;
    } calls[] = {
        {"_codecs", "a\0\xc2\x80\xc3\xbf", "latin1", 6, "a\0\x80\xff", 4},
        {"_codecs", "", "latin1", 0, "", 0},
        {"_codecs", "\xc4\x80", "latin1", 2, NULL, 0},
        {"_codecs", "\xc3", "latin1", 1, NULL, 0},
        {"_codecs",
         "\xc3"
         "a",
         "latin1", 2, NULL, 0},
        {"_codecs", "\x80", "latin1", 1, NULL, 0},
        {"_codecs", "a", "utf-8", 1, NULL, 0},
        {"codecs", "a", "latin1", 1, NULL, 0},
    };
    const uint8_t *bytes = NULL;
    size_t bytes_len = 0;

    cairn_pickle_init(&pickle, ARENA_BYTES);
    for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
        struct cairn_pickle_node *args[2], *call;
        bool found;

        args[0] =
            cairn_pickle_borrow(&pickle, CAIRN_PICKLE_TEXT, calls[i].text, calls[i].text_bytes);
        args[1] = cairn_pickle_text(&pickle, calls[i].encoding);
        call = cairn_pickle_object(&pickle, CAIRN_PICKLE_REDUCE,
                                   cairn_pickle_global(&pickle, calls[i].module, "encode"),
                                   cairn_pickle_sequence(&pickle, CAIRN_PICKLE_TUPLE, args, 2));
        found = cairn_pickle_read_bytes(&pickle, call, &bytes, &bytes_len);
        assert_int_equal(found, calls[i].bytes != NULL);
        if (found) {
            assert_int_equal(bytes_len, calls[i].bytes_len);
            assert_memory_equal(bytes, calls[i].bytes, bytes_len);
        }
    }
    assert_false(
        cairn_pickle_read_bytes(&pickle, cairn_pickle_text(&pickle, "a"), &bytes, &bytes_len));
    assert_false(cairn_pickle_read_bytes(&pickle, NULL, &bytes, &bytes_len));
}

static int
rewrite(const char *from, const char *to)
{
    struct cairn_pickle_node *root = NULL;
    uint8_t *bytes = NULL, *again = NULL;
    size_t bytes_len = 0, again_len = 0;
    int fd = -1;

    if (cairn_file_load(AT_FDCWD, from, FILE_BYTES_MAX, &bytes, &bytes_len) != CAIRN_OK ||
        read_bytes(bytes, bytes_len, &root) != CAIRN_OK ||
        cairn_pickle_write(&pickle, root, &again, &again_len, NULL) != CAIRN_OK ||
        cairn_file_open(AT_FDCWD, to, CAIRN_FILE_CREATE, &fd) != CAIRN_OK ||
        cairn_file_write_at(fd, 0, again, again_len) != CAIRN_OK ||
        cairn_file_close(fd) != CAIRN_OK)
        return 1;
    free(bytes);
    free(again);
    cairn_pickle_fini(&pickle);
    return 0;
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(protocol_2_is_written_byte_for_byte, teardown),
        cmocka_unit_test_teardown(other_protocols_become_protocol_2, teardown),
        cmocka_unit_test_teardown(every_cut_of_a_pickle_is_refused, teardown),
        cmocka_unit_test_teardown(every_opcode_makes_its_node, teardown),
        cmocka_unit_test_teardown(what_cannot_be_said_is_refused_by_opcode_and_byte, teardown),
        cmocka_unit_test_teardown(nesting_has_a_limit, teardown),
        cmocka_unit_test_teardown(deep_values_are_refused_without_deep_calls, teardown),
        cmocka_unit_test_teardown(a_bomb_of_shared_lists_stays_small, teardown),
        cmocka_unit_test_teardown(memory_has_a_limit, teardown),
        cmocka_unit_test_teardown(what_is_built_is_found, teardown),
        cmocka_unit_test_teardown(bytes_are_found_in_the_call_that_says_them, teardown),
    };

    if (argc == 4 && strcmp(argv[1], "--rewrite") == 0)
        return rewrite(argv[2], argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
