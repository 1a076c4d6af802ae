/* tests/unit/agent/process/test_listing.c - the list of agents: what is added is read until it is
 * removed, and nothing that somebody else could have put there is believed. */
#include "agent/process/listing.h"

#include "base/crc.h"
#include "base/log.h"
#include "tests/support/cmocka.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SOCKETS_MAX = 8, PATH_BYTES = 128 };

struct list {
    char dir[32], folder[PATH_BYTES];
    char sockets[SOCKETS_MAX][CAIRN_CONFIG_SOCKET_BYTES_MAX];
    bool complete;
};

static int
setup(void **state)
{
    struct list *list = calloc(1, sizeof *list);

    assert_non_null(list);
    snprintf(list->dir, sizeof list->dir, "/tmp/cairn-listing-XXXXXX");
    assert_non_null(mkdtemp(list->dir));
    snprintf(list->folder, sizeof list->folder, "%s/cairn/agents", list->dir);
    assert_int_equal(setenv("XDG_RUNTIME_DIR", list->dir, 1), 0);
    *state = list;
    return 0;
}

static int
teardown(void **state)
{
    struct list *list = *state;
    char command[PATH_BYTES];

    snprintf(command, sizeof command, "rm -r %s", list->dir);
    assert_int_equal(system(command), 0);
    free(list);
    return 0;
}

/* A socket in the list's folder, with its lock file. */
static const char *
claim(struct list *list, const char *name)
{
    static char path[PATH_BYTES];
    char lock_path[PATH_BYTES + 8];
    int fd;

    snprintf(path, sizeof path, "%s/%s", list->dir, name);
    snprintf(lock_path, sizeof lock_path, "%s.lock", path);
    fd = open(lock_path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
    return path;
}

static uint32_t
read_list(struct list *list, uint32_t max)
{
    return cairn_listing_read(list->sockets, max, &list->complete);
}

static void
what_is_added_is_read(void **state)
{
    struct list *list = *state;

    assert_int_equal(read_list(list, SOCKETS_MAX), 0);
    assert_true(list->complete);
    cairn_listing_remove(claim(list, "a")); /* there is no list yet */
    cairn_listing_add(claim(list, "a"));
    cairn_listing_add(claim(list, "a")); /* again, after a crash */
    assert_int_equal(read_list(list, SOCKETS_MAX), 1);
    assert_string_equal(list->sockets[0], claim(list, "a"));
    cairn_listing_add(claim(list, "b"));
    assert_int_equal(read_list(list, SOCKETS_MAX), 2);
    assert_true(list->complete);
    assert_int_equal(read_list(list, 1), 1);
    assert_false(list->complete);
    cairn_listing_remove(claim(list, "a"));
    cairn_listing_remove(claim(list, "a"));
    assert_int_equal(read_list(list, SOCKETS_MAX), 1);
    assert_string_equal(list->sockets[0], claim(list, "b"));
}

static void
what_lost_its_lock_file_is_removed(void **state)
{
    struct list *list = *state;

    cairn_listing_add("/gone/a.sock");
    assert_int_equal(read_list(list, SOCKETS_MAX), 1);
    cairn_listing_add(claim(list, "b"));
    cairn_listing_add(claim(list, "c"));
    assert_int_equal(read_list(list, SOCKETS_MAX), 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_string_not_equal(list->sockets[i], "/gone/a.sock");
}

static void
a_folder_of_others_is_not_used(void **state)
{
    struct list *list = *state;
    char moved[PATH_BYTES];

    cairn_log_setup(CAIRN_LOG_ERROR, NULL, NULL); /* no warning in the test's output */
    cairn_listing_add("/a.sock");
    assert_int_equal(chmod(list->folder, 0770), 0);
    assert_int_equal(read_list(list, SOCKETS_MAX), 0);
    cairn_listing_add("/b.sock");
    cairn_listing_remove("/a.sock");
    assert_int_equal(chmod(list->folder, 0700), 0);
    assert_int_equal(read_list(list, SOCKETS_MAX), 1);
    assert_string_equal(list->sockets[0], "/a.sock");
    snprintf(moved, sizeof moved, "%s/moved", list->dir);
    assert_int_equal(rename(list->folder, moved), 0);
    assert_int_equal(symlink(moved, list->folder), 0);
    assert_int_equal(read_list(list, SOCKETS_MAX), 0);
    assert_int_equal(unlink(list->folder), 0);
    if (geteuid() == 0) {
        assert_int_equal(rename(moved, list->folder), 0);
        assert_int_equal(chown(list->folder, 12345, (gid_t)-1), 0);
        assert_int_equal(read_list(list, SOCKETS_MAX), 0);
    }
}

/* Writes a file of the list under the name of `named`'s entry. */
static void
write_file(const struct list *list, const char *named, const char *text, size_t text_len)
{
    char path[PATH_BYTES + 24];
    int fd;

    snprintf(path, sizeof path, "%s/%016" PRIx64, list->folder,
             cairn_crc64(0, named, strlen(named)));
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, text_len), (ssize_t)text_len);
    close(fd);
}

static void
files_that_are_no_entries_are_skipped(void **state)
{
    struct list *list = *state;
    char path[PATH_BYTES + 24], longest[CAIRN_CONFIG_SOCKET_BYTES_MAX + 2] = "/";

    cairn_listing_add("/a.sock");
    write_file(list, "/b.sock", "", 0);
    write_file(list, "/b.sock", "/b.sock", 7);   /* cut */
    write_file(list, "/c.sock", "/d.sock\n", 8); /* another's name */
    write_file(list, "e.sock", "e.sock\n", 7);   /* not from the root */
    write_file(list, "/f", "/f\0hidden\n", 10);  /* a NUL inside */
    memset(longest + 1, 'x', sizeof longest - 2);
    longest[sizeof longest - 1] = '\0';
    write_file(list, longest, longest, sizeof longest - 1);
    snprintf(path, sizeof path, "%s/0123456789abcdef", list->folder);
    assert_int_equal(mkfifo(path, 0600), 0); /* opening it must not block */
    snprintf(path, sizeof path, "%s/%016" PRIx64, list->folder, cairn_crc64(0, "/g.sock", 7));
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_int_equal(read_list(list, SOCKETS_MAX), 1);
    assert_true(list->complete);
    assert_string_equal(list->sockets[0], "/a.sock");
}

static void
a_list_without_end_is_not_read_whole(void **state)
{
    struct list *list = *state;

    cairn_listing_add("/a.sock");
    for (uint32_t i = 0; i < CAIRN_LISTING_FILES_MAX; i++) {
        char name[32];

        snprintf(name, sizeof name, "/%u", i);
        write_file(list, name, "nothing", 7);
    }
    assert_in_range(read_list(list, SOCKETS_MAX), 0, 1);
    assert_false(list->complete);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_added_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(what_lost_its_lock_file_is_removed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_folder_of_others_is_not_used, setup, teardown),
        cmocka_unit_test_setup_teardown(files_that_are_no_entries_are_skipped, setup, teardown),
        cmocka_unit_test_setup_teardown(a_list_without_end_is_not_read_whole, setup, teardown),
    };

    return cmocka_run_group_tests_name("agent/listing", tests, NULL, NULL);
}
