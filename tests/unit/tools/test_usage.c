/* tests/unit/tools/test_usage.c - options of verbs: forms, mistakes and their exit codes, the
 * nearest name. */
#include "tools/usage.h"

#include "tools/verb.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *to, *output;
static bool dry_run;

static const struct cairn_flag flags[] = {{"to", 't', "DIR", "where", &to, NULL},
                                          {"dry-run", 'n', NULL, "only say", NULL, &dry_run},
                                          {"output", 'o', "table|json", "form", &output, NULL}};
static const struct cairn_usage plain = {
    "verb", "[--to DIR]", "About.", "  cairn verb\n  cairn verb --to x\n", flags, 3, NULL, NULL};
static const struct cairn_usage command = {
    "verb", "-- CMD", "About.", "  cairn verb\n  cairn verb --to x\n", flags, 3, "CMD", NULL};

/* What the last parse said on stdout and stderr. */
static char said[4096];

static bool
parse(const struct cairn_usage *usage, int *operand, int *exit_code, const char *const *words)
{
    char *argv[16] = {(char *)"verb"};
    FILE *file = tmpfile();
    int argc = 1, keep_out = dup(1), keep_err = dup(2);
    size_t got;
    bool right;

    assert_non_null(file);
    while (words[argc - 1]) {
        argv[argc] = (char *)words[argc - 1];
        argc++;
    }
    to = output = NULL;
    dry_run = false;
    *exit_code = -1;
    fflush(stdout);
    dup2(fileno(file), 1);
    dup2(fileno(file), 2);
    right = cairn_usage_parse(usage, argc, argv, operand, exit_code);
    fflush(stdout);
    dup2(keep_out, 1);
    dup2(keep_err, 2);
    close(keep_out);
    close(keep_err);
    rewind(file);
    got = fread(said, 1, sizeof said - 1, file);
    said[got] = '\0';
    fclose(file);
    return right;
}

#define PARSE(usage, ...)                                                                          \
    parse(usage, &operand, &exit_code, (const char *const[]){__VA_ARGS__, NULL})

static void
takes_every_form(void **state)
{
    int operand, exit_code;

    assert_true(PARSE(&plain, "--to", "a", "-n", "-o", "json"));
    assert_string_equal(to, "a");
    assert_string_equal(output, "json");
    assert_true(dry_run);
    assert_int_equal(operand, 6);
    assert_true(PARSE(&plain, "--to=b=c", "-ojson"));
    assert_string_equal(to, "b=c");
    assert_string_equal(output, "json");
    assert_false(dry_run);
    assert_true(PARSE(&plain, "--to", "--dry-run")); /* a value may look like an option */
    assert_string_equal(to, "--dry-run");
    assert_true(PARSE(&plain, "--to", "first", "--to", "last"));
    assert_string_equal(to, "last");
    assert_string_equal(said, "");
}

static void
stops_at_the_command(void **state)
{
    int operand, exit_code;

    assert_true(PARSE(&command, "--dry-run", "--", "--to", "x"));
    assert_int_equal(operand, 3);
    assert_null(to);
    assert_true(PARSE(&command, "ls", "--to", "x"));
    assert_int_equal(operand, 1);
    assert_null(to);
    assert_true(PARSE(&command, "-n"));
    assert_int_equal(operand, 2); /* nothing left */
}

static void
refuses_mistakes(void **state)
{
    int operand = 0, exit_code;

    assert_false(PARSE(&plain, "--dry-rum"));
    assert_int_equal(exit_code, CAIRN_EXIT_USAGE);
    assert_non_null(strstr(said, "did you mean --dry-run?"));
    assert_false(PARSE(&plain, "--completely-else"));
    assert_int_equal(exit_code, CAIRN_EXIT_USAGE);
    assert_null(strstr(said, "did you mean"));
    assert_false(PARSE(&plain, "-x"));
    assert_int_equal(exit_code, CAIRN_EXIT_USAGE);
    assert_false(PARSE(&plain, "--to"));
    assert_int_equal(exit_code, CAIRN_EXIT_USAGE);
    assert_non_null(strstr(said, "needs a value"));
    assert_false(PARSE(&plain, "--dry-run=yes"));
    assert_int_equal(exit_code, CAIRN_EXIT_USAGE);
    assert_false(PARSE(&plain, "extra"));
    assert_int_equal(exit_code, CAIRN_EXIT_USAGE);
    assert_non_null(strstr(said, "\"extra\""));
    assert_false(PARSE(
        &plain, "--d")); /* no prefixes: a script must not change its meaning by a new option */
    assert_int_equal(exit_code, CAIRN_EXIT_USAGE);
    assert_false(PARSE(&plain, "---to", "x"));
    assert_int_equal(exit_code, CAIRN_EXIT_USAGE);
}

static void
helps(void **state)
{
    int operand, exit_code;

    assert_false(PARSE(&plain, "--to", "x", "--help"));
    assert_int_equal(exit_code, CAIRN_EXIT_OK);
    assert_non_null(strstr(said, "usage: cairn verb [--to DIR]"));
    assert_non_null(strstr(said, "examples:\n  cairn verb\n"));
    assert_non_null(strstr(said, "-n, --dry-run"));
}

/* The columns of the longest printed line. */
static size_t
widest(void)
{
    size_t most = 0;

    for (const char *line = said; *line; line += strcspn(line, "\n") + 1) {
        size_t columns = strcspn(line, "\n");

        most = columns > most ? columns : most;
    }
    return most;
}

static void
wraps_at_80_columns(void **state)
{
    static const char words[] = "word word word word word word word word word word word word word "
                                "word word word word word word word word";
    static const struct cairn_flag wide[] = {
        {"option-with-a-long-name", 'x', "LONG-VALUE", words, &to, NULL}};
    static const struct cairn_usage wrapped = {
        "verb",
        words,
        "Exactly eighty columns are in this line, which therefore stays as it is, a line.\n"
        "\n"
        "  name  word word word word word word word word word word word word word word word",
        "  cairn verb\n  cairn verb --to x\n",
        wide,
        1,
        NULL,
        NULL};
    int operand, exit_code;

    assert_false(PARSE(&wrapped, "--help"));
    assert_int_equal(widest(), 80);
    assert_non_null(strstr(said, "\nExactly eighty columns are in this line, which therefore stays "
                                 "as it is, a line.\n\n  name  word"));
    assert_non_null(strstr(said, "word\n        word"));           /* below the second column */
    assert_non_null(strstr(said, "word\n                  word")); /* the synopsis */
    assert_non_null(strstr(said, "  -x, --option-with-a-long-name LONG-VALUE\n"
                                 "                             word"));
}

static void
finds_the_nearest(void **state)
{
    static const char *const verbs[] = {"demo",      "agent",   "run",    "snapshot", "status",
                                        "snapshots", "restore", "verify", "doctor"};
    const size_t count = sizeof verbs / sizeof *verbs;
    char longest[200];

    assert_string_equal(cairn_nearest("statsu", verbs, count),
                        "status"); /* swapped letters are one mistake */
    assert_string_equal(cairn_nearest("restor", verbs, count), "restore");
    assert_string_equal(cairn_nearest("snapshos", verbs, count), "snapshot");
    assert_string_equal(cairn_nearest("ru", verbs, count), "run");
    assert_string_equal(cairn_nearest("agent", verbs, count), "agent");
    assert_null(cairn_nearest("banana", verbs, count));
    assert_null(cairn_nearest("", verbs, count));
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_null(cairn_nearest(longest, verbs, count));
    assert_null(cairn_nearest("agent", verbs, 0));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_every_form),    cmocka_unit_test(stops_at_the_command),
        cmocka_unit_test(refuses_mistakes),    cmocka_unit_test(helps),
        cmocka_unit_test(wraps_at_80_columns), cmocka_unit_test(finds_the_nearest)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
