/* tests/unit/agent/service/test_command.c - the operator's command as a process: what it gets, how
 * it ends, and that it ends. */
#include "agent/service/command.h"
#include "base/clock.h"
#include "tests/support/cmocka.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LONG_S = 60 };

static const char *const no_settings[] = {NULL};
static const char *const settings[] = {"CAIRN_VERDICT=7", "CAIRN_NODES=1 2", NULL};
static struct cairn_config_command what;
static struct cairn_command command;
static atomic_bool is_closing;

/* Runs /bin/sh with a script. */
static void
run(const char *script, uint64_t limit_ns)
{
    int used = snprintf(what.text, sizeof what.text, "/bin/sh%c-c%c%s", 0, 0, script);

    assert_true(used > 0 && (size_t)used < sizeof what.text);
    what.count = 3;
    command = (struct cairn_command){.what = &what,
                                     .settings = settings,
                                     .input = "{\"verdict\":7}",
                                     .input_bytes = 13,
                                     .limit_ns = limit_ns,
                                     .is_closing = &is_closing};
    cairn_command_run(&command);
}

static uint64_t
now_ns(void)
{
    struct cairn_clock clock = cairn_clock_system();

    return cairn_clock_now_ns(&clock);
}

static void
test_what_it_gets(void **state)
{
    int fd = open("/dev/null", O_RDONLY); /* without close-on-exec */

    assert_true(fd > 2);
    assert_int_equal(setenv("CAIRN_VERDICT", "of another job", 1), 0);
    run("cat; echo; echo $CAIRN_VERDICT, $CAIRN_NODES, ${PATH:+there}; echo too >&2; ls "
        "/proc/$$/fd; "
        "while read -r name mask; do case $name in SigBlk:|SigIgn:) echo $name $((0x$mask & "
        "0x7fffffff));; esac; done </proc/$$/status; "
        "read -r pid name state parent group rest </proc/$$/stat; [ $group = $$ ] && echo alone",
        LONG_S * CAIRN_NS_PER_S);
    close(fd);
    assert_int_equal(command.end, CAIRN_ENFORCEMENT_EXITED);
    assert_int_equal(command.value, 0);
    assert_false(command.is_cut);
    assert_string_equal(
        command.output,
        "{\"verdict\":7}\n7, 1 2, there\ntoo\n0\n1\n2\nSigBlk: 0\nSigIgn: 0\nalone\n");
}

static void
test_how_it_ends(void **state)
{
    run("exit 3", LONG_S * CAIRN_NS_PER_S);
    assert_int_equal(command.end, CAIRN_ENFORCEMENT_EXITED);
    assert_int_equal(command.value, 3);
    run("kill -SEGV $$", LONG_S * CAIRN_NS_PER_S);
    assert_int_equal(command.end, CAIRN_ENFORCEMENT_SIGNALLED);
    assert_int_equal(command.value, SIGSEGV);
    what.count = 1;
    (void)snprintf(what.text, sizeof what.text, "/nowhere/drain");
    command.settings = no_settings;
    cairn_command_run(&command);
    assert_int_equal(command.end, CAIRN_ENFORCEMENT_NOT_STARTED);
    assert_int_equal(command.value, ENOENT);
}

static void
test_output_is_bounded(void **state)
{
    run("head -c 1000000 /dev/zero | tr '\\0' x; echo end", LONG_S * CAIRN_NS_PER_S);
    /* it was read to its end, and did not wait */
    assert_int_equal(command.end, CAIRN_ENFORCEMENT_EXITED);
    assert_int_equal(command.value, 0);
    assert_true(command.is_cut);
    assert_int_equal(command.output_bytes, CAIRN_COMMAND_OUTPUT_BYTES);
    assert_int_equal(command.output[CAIRN_COMMAND_OUTPUT_BYTES - 1], 'x');
}

/* The pieces hold all of the output, and each fits in a line of the log. */
static void
test_pieces(void **state)
{
    static char joined[CAIRN_COMMAND_OUTPUT_BYTES + 1];
    struct cairn_command_piece piece;
    size_t at = 0, used = 0, count = 0;
    bool goes_on = false;

    run("echo short; echo; printf 'a\\0b\\n'; printf x; for i in 1 2 3 4 5 6 7 8 9 10; do for k in "
        "1 2 3 4 5 6 7 8 9 10; do printf "
        "'\\303\\274\\303\\274\\303\\274\\303\\274\\303\\274\\303\\274\\303\\274\\303\\274\\303\\27"
        "4\\303\\274'; done; done; echo; printf last",
        LONG_S * CAIRN_NS_PER_S);
    assert_int_equal(command.value, 0);
    while (cairn_command_next_piece(&command, &at, &piece)) {
        assert_in_range(piece.len, 1, CAIRN_COMMAND_PIECE_BYTES);
        assert_int_equal(piece.is_continuing, goes_on);
        assert_int_not_equal((unsigned char)piece.text[0] & 0xc0, 0x80); /* no character is torn */
        memcpy(joined + used, piece.text, piece.len);
        used += piece.len;
        if (!piece.is_continued)
            joined[used++] = '|';
        goes_on = piece.is_continued;
        count++;
    }
    assert_false(goes_on);
    assert_int_equal(count, 7); /* short, a, b, three of the long one, last */
    assert_int_equal(used, 6 + 2 + 2 + 2002 + 5);
    joined[used] = '\0';
    assert_memory_equal(joined, "short|a|b|x\303\274", 13);
    assert_string_equal(joined + used - 8, "\303\274|last|");
}

/* Bytes that are not text are cut where it must be. */
static void
test_pieces_of_no_text(void **state)
{
    struct cairn_command_piece piece;
    size_t at = 0, sum = 0;

    run("head -c 3000 /dev/zero | tr '\\0' '\\200'", LONG_S * CAIRN_NS_PER_S);
    while (cairn_command_next_piece(&command, &at, &piece)) {
        assert_in_range(piece.len, 1, CAIRN_COMMAND_PIECE_BYTES);
        sum += piece.len;
    }
    assert_int_equal(sum, 3000);
}

/* The process of that number, from the command's output, is gone; one that nobody waits for may be
 * left for a moment. */
static void
await_gone(const char *text)
{
    uint64_t until_ns = now_ns() + LONG_S * CAIRN_NS_PER_S;
    long pid = strtol(text, NULL, 10);
    char path[64], line[256], state;
    bool is_gone = false;

    assert_true(pid > 1);
    (void)snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    while (!is_gone && now_ns() < until_ns) {
        FILE *file = fopen(path, "re");

        is_gone = !file || !fgets(line, sizeof line, file) ||
                  sscanf(strrchr(line, ')') + 1, " %c", &state) != 1 || state == 'Z';
        if (file)
            fclose(file);
        usleep(5000);
    }
    assert_true(is_gone);
}

/* It, and what it has started, is killed; that its output is closed already changes nothing. */
static void
test_it_does_not_hang(void **state)
{
    static const char *const scripts[] = {
        "sleep 1000 & echo $!; wait",
        "trap '' TERM INT HUP; sleep 1000 & echo $!; exec >&- 2>&-; wait"};

    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        run(scripts[i], CAIRN_NS_PER_S);
        assert_int_equal(command.end, CAIRN_ENFORCEMENT_TIMEOUT);
        await_gone(command.output);
    }
    atomic_store(&is_closing, true);
    run(scripts[0], LONG_S * CAIRN_NS_PER_S);
    atomic_store(&is_closing, false);
    assert_int_equal(command.end, CAIRN_ENFORCEMENT_UNKNOWN);
    if (command.output_bytes > 0) /* it may have been killed before it said anything */
        await_gone(command.output);
}

/* It has ended though a process that it leaves behind has its output still. */
static void
test_what_it_leaves_behind(void **state)
{
    long pid;

    run("sleep 1000 & echo $!", LONG_S * CAIRN_NS_PER_S);
    assert_int_equal(command.end, CAIRN_ENFORCEMENT_EXITED);
    pid = strtol(command.output, NULL, 10);
    assert_true(pid > 1);
    assert_int_equal(kill((pid_t)pid, SIGKILL), 0); /* it was there */
}

static void
test_check(void **state)
{
    static char error[CAIRN_CONFIG_ERROR_BYTES], text[256];
    char dir[] = "/tmp/cairn-command-XXXXXX", path[64];
    static const char *const reasons[] = {"No such file or directory",
                                          "the agent's user may not execute it", NULL,
                                          "expected a plain file"};
    FILE *file;

    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/drain", dir);
    for (int i = 0; i < 4; i++) {
        struct cairn_config config;
        cairn_err err;

        if (i == 1) {
            file = fopen(path, "we");
            assert_non_null(file);
            fclose(file);
        }
        if (i == 2)
            assert_int_equal(chmod(path, 0700), 0);
        (void)snprintf(text, sizeof text,
                       "verdict_policy: enforce\n\nenforce_command: [\"%s\", \"\"]\n",
                       i == 3 ? dir : path);
        assert_int_equal(
            cairn_config_parse(text, strlen(text), "a.yaml", &config, error, sizeof error),
            CAIRN_OK);
        assert_int_equal(config.enforce_command.count, 2);
        err = cairn_command_check(&config, error, sizeof error);
        assert_int_equal(err, reasons[i] ? CAIRN_CONFIG : CAIRN_OK);
        if (reasons[i] && (strncmp(error, "a.yaml:3: enforce_command: /tmp/", 32) != 0 ||
                           !strstr(error, reasons[i])))
            fail_msg("%s", error);
        cairn_config_fini(&config);
    }
    unlink(path);
    rmdir(dir);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_it_gets),          cmocka_unit_test(test_how_it_ends),
        cmocka_unit_test(test_output_is_bounded),     cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_pieces_of_no_text),     cmocka_unit_test(test_it_does_not_hang),
        cmocka_unit_test(test_what_it_leaves_behind), cmocka_unit_test(test_check)};

    signal(SIGPIPE, SIG_IGN); /* as in an agent */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
