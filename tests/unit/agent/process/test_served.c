/* tests/unit/agent/process/test_served.c - who serves a socket, and who did: told by the lock, not
 * by a number that another process may have by now. */
#include "agent/process/served.h"

#include "agent/process/listing.h"
#include "tests/support/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct place {
    struct cairn_config config;
    char dir[32], lock_path[64];
};

static int
setup(void **state)
{
    struct place *place = calloc(1, sizeof *place);

    assert_non_null(place);
    snprintf(place->dir, sizeof place->dir, "/tmp/cairn-served-XXXXXX");
    assert_non_null(mkdtemp(place->dir));
    snprintf(place->config.socket, sizeof place->config.socket, "%s/agent.sock", place->dir);
    /* some path that there is */
    snprintf(place->config.source, sizeof place->config.source, "%s", place->dir);
    snprintf(place->lock_path, sizeof place->lock_path, "%s/agent.sock.lock", place->dir);
    snprintf(place->config.job, sizeof place->config.job, "a job");
    assert_int_equal(setenv("XDG_RUNTIME_DIR", place->dir, 1), 0); /* its list of agents */
    place->config.node = 2;
    place->config.node_count = 5;
    *state = place;
    return 0;
}

static int
teardown(void **state)
{
    struct place *place = *state;
    char path[64];

    unlink(place->lock_path);
    snprintf(path, sizeof path, "%s/cairn/agents", place->dir);
    assert_int_equal(rmdir(path), 0); /* empty */
    *strrchr(path, '/') = '\0';
    rmdir(path);
    rmdir(place->dir);
    free(place);
    return 0;
}

static void
who_holds_the_lock_lives(void **state)
{
    struct place *place = *state;
    struct cairn_served served;
    char sockets[2][CAIRN_CONFIG_SOCKET_BYTES_MAX];
    int fd = -1, other = -1;
    bool complete;

    assert_false(cairn_served_look(place->config.socket, &served));
    assert_int_equal(cairn_served_claim(&place->config, &fd), CAIRN_OK);
    for (int i = 0; i < 2; i++) { /* looking changes nothing */
        assert_true(cairn_served_look(place->config.socket, &served));
        assert_true(served.lives);
        assert_int_equal(served.pid, getpid());
        assert_int_equal(served.node, 2);
        assert_int_equal(served.node_count, 5);
        assert_string_equal(served.job, "a job");
        assert_string_equal(served.config, place->dir);
    }
    assert_int_equal(cairn_listing_read(sockets, 2, &complete), 1);
    assert_string_equal(sockets[0], place->config.socket);
    assert_int_equal(cairn_served_claim(&place->config, &other), CAIRN_AGAIN);
    assert_int_equal(other, -1);
    close(fd); /* as when it crashes */
    assert_int_equal(cairn_listing_read(sockets, 2, &complete), 1);
    assert_true(cairn_served_look(place->config.socket, &served)); /* who it was is still known */
    /* though there is a process of that number */
    assert_false(served.lives);
    assert_int_equal(served.pid, getpid());
    assert_int_equal(cairn_served_claim(&place->config, &fd), CAIRN_OK);
    cairn_served_release(&place->config, fd);
    assert_int_equal(cairn_listing_read(sockets, 2, &complete), 0);
    assert_true(cairn_served_look(place->config.socket, &served));
    assert_false(served.lives);
    cairn_served_release(&place->config, -1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(who_holds_the_lock_lives, setup, teardown),
    };

    return cmocka_run_group_tests_name("agent/served", tests, NULL, NULL);
}
