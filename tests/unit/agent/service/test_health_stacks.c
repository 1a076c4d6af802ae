/*
 * tests/unit/agent/service/test_health_stacks.c - stacks of processes that offer them, and of some
 * that must not get a signal; equal stacks of several nodes are one group.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/service/health_stacks.h"
#include "agent/service/operator_node.h"
#include "agent/service/operator_stacks.h"
#include "tests/support/cmocka.h"

enum { TEXT_BYTES = 512 };

static int dump_fd;
static const char dump[] =
    "Thread 0x00007f00aa (most recent call first):\n  File \"a.py\", line 1 in "
    "b\n\nCurrent thread 0x0000abcd (most recent call first):\n  File "
    "\"c.py\", line 2 in d\n";

static void
answer(int number)
{
    ssize_t written = write(dump_fd, dump, sizeof dump - 1);

    (void)written;
}

/* A process with a memfd of this name (NULL: none), and a handler for `number` (0: none). */
static pid_t
start(const char *name, int number)
{
    int ready[2];
    char byte;
    pid_t pid;

    assert_int_equal(pipe(ready), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (name)
            dump_fd = memfd_create(name, 0);
        if (number)
            (void)signal(number, answer);
        if (write(ready[1], "x", 1) == 1)
            for (;;)
                (void)pause();
        _exit(1);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

/* Ends the process, which must be alive. */
static void
end(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

static void
test_a_process_that_answers(void **state)
{
    char name[64], text[TEXT_BYTES];
    pid_t pid;

    (void)snprintf(name, sizeof name, "cairn-stacks-%d", SIGRTMIN + 5);
    pid = start(name, SIGRTMIN + 5);
    for (int i = 0; i < 2; i++) { /* again, behind the first answer */
        assert_true(health_stacks_ask(pid, text, sizeof text));
        assert_string_equal(text,
                            "Current thread  (most recent call first):\n  File \"c.py\", line "
                            "2 in d\nThread  (most recent call first):\n  File \"a.py\", line "
                            "1 in b\n");
    }
    end(pid);
}

static void
test_others_get_no_signal(void **state)
{
    char name[64], text[TEXT_BYTES];
    pid_t pid;

    (void)snprintf(name, sizeof name, "cairn-stacks-%d", SIGRTMIN + 5);
    pid = start(NULL, SIGRTMIN + 5); /* offers nothing */
    assert_false(health_stacks_ask(pid, text, sizeof text));
    end(pid);
    pid = start(name, 0); /* would be ended by it */
    assert_false(health_stacks_ask(pid, text, sizeof text));
    end(pid);
    pid = start("cairn-stacks-9", SIGRTMIN + 5); /* names a signal that ends processes */
    assert_false(health_stacks_ask(pid, text, sizeof text));
    end(pid);
    pid = start(name, SIGRTMIN + 5);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
    assert_false(health_stacks_ask(pid, text, sizeof text));
    end(pid);
    assert_false(health_stacks_ask(INT32_MAX, text, sizeof text));
}

/* A node's view, with these stacks of its ranks, as it arrives at another agent. */
static struct operator_node
sent(uint32_t first_rank, const char *const *texts, uint32_t count)
{
    struct operator_node node = {.known = true}, arrived;
    struct cairn_json_writer writer;
    struct cairn_json_reader reader;
    char *text = NULL;
    size_t len;

    operator_stacks_begin(&node, count);
    for (uint32_t i = 0; i < count; i++)
        operator_stacks_add(&node, first_rank + i, texts[i]);
    cairn_json_writer_init(&writer);
    operator_node_write(&writer, &node);
    assert_int_equal(cairn_json_writer_done(&writer, &text, &len), CAIRN_OK);
    cairn_json_reader_init(&reader, text, len);
    assert_true(operator_node_read(&reader, &arrived));
    assert_int_equal(cairn_json_reader_done(&reader), CAIRN_OK);
    free(text);
    operator_node_fini(&node);
    return arrived;
}

static void
test_equal_stacks_are_one_group(void **state)
{
    static const char *const first[] = {"waits\nmain\n", "hangs\n"};
    static const char *const second[] = {"waits\nmain\n", "waits\nmain\n"};
    struct operator_node nodes[] = {sent(0, first, 2), sent(2, second, 2), {.known = false}};
    struct cairn_config config = {.node_count = 3};
    struct operator_job job = {.config = &config, .nodes = nodes};
    struct cairn_json_writer writer;
    char *text = NULL;
    size_t len;

    cairn_json_writer_init(&writer);
    operator_stacks_report(&writer, &job);
    assert_int_equal(cairn_json_writer_done(&writer, &text, &len), CAIRN_OK);
    assert_non_null(strstr(text, "\"ranks\":[1],\"lines\":[\"hangs\"]"));
    assert_non_null(
        strstr(text, "\"rank_count\":3,\"ranks\":[0,2,3],\"lines\":[\"waits\",\"main\"]"));
    assert_true(strstr(text, "hangs") < strstr(text, "waits"));
    free(text);
    operator_node_fini(&nodes[0]);
    operator_node_fini(&nodes[1]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_process_that_answers),
        cmocka_unit_test(test_others_get_no_signal),
        cmocka_unit_test(test_equal_stacks_are_one_group),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
