/* tests/unit/agent/test_served.c - who serves a socket, and who did, by the lock beside it. */
#include "agent/served.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[64];
static struct cairn_config config;

static int
set_up(void **state)
{
    (void)state;
    (void)snprintf(directory, sizeof directory, "/tmp/cairn-served-XXXXXX");
    if (!mkdtemp(directory))
        return -1;
    memset(&config, 0, sizeof config);
    (void)snprintf(config.socket, sizeof config.socket, "%s/agent.sock", directory);
    config.node = 3;
    config.node_count = 5;
    return 0;
}

static int
tear_down(void **state)
{
    char path[128];

    (void)state;
    (void)snprintf(path, sizeof path, "%s.lock", config.socket);
    (void)unlink(path);
    return rmdir(directory);
}

static void
says_who_serves_and_who_did(void **state)
{
    struct cairn_served served;
    int lock_fd = -1, other_fd = -1;

    (void)state;
    assert_false(cairn_served_look(config.socket, &served));
    assert_int_equal(cairn_served_claim(&config, &lock_fd), CAIRN_OK);
    assert_true(cairn_served_look(config.socket, &served));
    assert_true(served.lives);
    assert_int_equal(served.pid, getpid());
    assert_int_equal(served.node, 3);
    assert_int_equal(served.node_count, 5);
    assert_int_equal(cairn_served_claim(&config, &other_fd), CAIRN_AGAIN);
    close(lock_fd);
    /* the process of that number is there, and is another one after a reboot */
    assert_true(cairn_served_look(config.socket, &served));
    assert_false(served.lives);
    assert_int_equal(served.pid, getpid());
    assert_int_equal(cairn_served_claim(&config, &lock_fd), CAIRN_OK); /* looking leaves no lock */
    close(lock_fd);
}

static void
a_look_does_not_keep_an_agent_away(void **state)
{
    char path[128], byte;
    int ready[2], lock_fd = -1, status;
    pid_t looks;

    (void)state;
    (void)snprintf(path, sizeof path, "%s.lock", config.socket);
    assert_int_equal(pipe(ready), 0);
    looks = fork();
    assert_true(looks >= 0);
    if (looks == 0) {
        int fd = open(path, O_RDONLY | O_CREAT, 0600);

        if (fd < 0 || flock(fd, LOCK_SH) != 0 || write(ready[1], "r", 1) != 1)
            _exit(1);
        usleep(20000);
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(cairn_served_claim(&config, &lock_fd), CAIRN_OK);
    close(lock_fd);
    assert_int_equal(waitpid(looks, &status, 0), looks);
    assert_int_equal(status, 0);
    close(ready[0]);
    close(ready[1]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(says_who_serves_and_who_did, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_look_does_not_keep_an_agent_away, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
