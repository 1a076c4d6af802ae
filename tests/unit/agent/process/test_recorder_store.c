/*
 * tests/unit/agent/process/test_recorder_store.c - a history on a real disk: it comes back in
 * order, without records and stores that are damaged, and a disk that takes nothing costs nothing
 * but what is stored.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/process/recorder_store.h"
#include "base/clock.h"
#include "base/loop.h"
#include "snapshot/store.h"
#include "tests/support/cmocka.h"
#include "tests/support/remove_path.h"

enum { PUMPS_MAX = 2000, PUMP_MS = 10, PATH_BYTES = 256 };

static char dir[64];
static struct cairn_loop *loop;
static struct cairn_timer timer;

static void
stop(void *context)
{
    cairn_loop_stop(loop);
}

static int
setup(void **state)
{
    snprintf(dir, sizeof dir, "/tmp/cairn-history-XXXXXX");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(cairn_loop_create(NULL, &loop), CAIRN_OK);
    cairn_timer_init(&timer, stop, NULL);
    return 0;
}

static int
teardown(void **state)
{
    cairn_loop_destroy(loop);
    remove_path(dir);
    return 0;
}

static const char *
path_of(const char *name)
{
    static char path[PATH_BYTES];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void
turn_loop(void)
{
    struct cairn_clock clock = cairn_clock_system();

    cairn_timer_start(loop, &timer, cairn_clock_now_ns(&clock) + PUMP_MS * CAIRN_NS_PER_MS);
    assert_int_equal(cairn_loop_run(loop), CAIRN_OK);
}

static void
add(struct history_book *book, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct history_event event = history_event_of(HISTORY_CONFIG);

        event.text = "an option";
        assert_true(history_book_add(book, &event) > 0);
    }
}

static struct recorder_store *
open_store(struct history_book *book)
{
    struct recorder_store *store = NULL;

    history_book_init(book);
    assert_int_equal(recorder_store_open(loop, dir, book, &store), CAIRN_OK);
    return store;
}

static void
close_store(struct recorder_store *store, struct history_book *book)
{
    recorder_store_close(store, book);
    history_book_fini(book);
}

static void
test_events_come_back_in_order(void **state)
{
    struct history_book book;
    struct recorder_store *store = open_store(&book);

    add(&book, 3);
    close_store(store, &book);
    store = open_store(&book);
    assert_int_equal(book.count, 3);
    assert_int_equal(book.last_number, 3);
    assert_string_equal(book.events[2].text, "an option");
    book.events_max = 2; /* what has to make room goes from the disk, too */
    add(&book, 1);
    close_store(store, &book);
    store = open_store(&book);
    assert_int_equal(book.count, 2);
    assert_int_equal(book.events[0].number, 3);
    assert_int_equal(book.events[1].number, 4);
    close_store(store, &book);
}

static void
test_a_damaged_record_is_left_out(void **state)
{
    static const uint8_t key[8] = {0, 0, 0, 0, 0, 0, 0, 2}, stranger[] = "stranger";
    const struct cairn_store_change changes[] = {
        {.table = CAIRN_TABLE_FACTS, .key = key, .key_bytes = 8, .value = "bad", .value_bytes = 3},
        {.table = CAIRN_TABLE_FACTS,
         .key = stranger,
         .key_bytes = sizeof stranger,
         .value = "",
         .value_bytes = 0}};
    struct cairn_store *rocks = NULL;
    struct history_book book;
    struct recorder_store *store = open_store(&book);

    add(&book, 3);
    close_store(store, &book);
    assert_int_equal(cairn_store_rocksdb.open(path_of("history"), false, &rocks), CAIRN_OK);
    assert_int_equal(cairn_store_rocksdb.write(rocks, changes, 2), CAIRN_OK);
    cairn_store_rocksdb.close(rocks);
    store = open_store(&book);
    assert_int_equal(book.count, 2);
    assert_int_equal(book.events[0].number, 1);
    assert_int_equal(book.events[1].number, 3);
    add(&book, 1);
    assert_int_equal(book.last_number, 4);
    close_store(store, &book);
}

static void
damage(void)
{
    int fd = open(path_of("history/CURRENT"), O_WRONLY | O_TRUNC);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, "nothing\n", 8), 8);
    close(fd);
}

static void
test_a_damaged_store_is_set_aside(void **state)
{
    struct history_book book;
    struct recorder_store *store;

    for (int round = 0; round < 2; round++) { /* the second one takes the place of the first */
        store = open_store(&book);
        add(&book, 3);
        close_store(store, &book);
        damage();
        store = open_store(&book);
        assert_int_equal(book.count, 0);
        assert_int_equal(access(path_of("history.damaged/CURRENT"), F_OK), 0);
        add(&book, 2);
        close_store(store, &book);
        store = open_store(&book);
        assert_int_equal(book.count, 2);
        close_store(store, &book);
    }
}

static void
test_a_disk_that_takes_nothing(void **state)
{
    const uint64_t minute_ns = 60 * CAIRN_NS_PER_S;
    struct recorder_store *store;
    struct history_book book;
    int fd = open(path_of("history"), O_CREAT | O_WRONLY, 0600); /* a file stands in the way */

    assert_true(fd >= 0);
    close(fd);
    store = open_store(&book);
    add(&book, 3);
    assert_true(recorder_store_write(store, &book, 1));
    for (int i = 0; !history_book_has_changes(&book) && i < PUMPS_MAX; i++)
        turn_loop();
    assert_true(history_book_has_changes(&book)); /* nothing was stored, and nothing is lost */
    assert_int_equal(book.count, 3);
    assert_false(recorder_store_write(store, &book, 2)); /* not again at once */
    assert_int_equal(unlink(path_of("history")), 0);
    assert_true(recorder_store_write(store, &book, 2 * minute_ns));
    close_store(store, &book);
    store = open_store(&book);
    assert_int_equal(book.count, 3);
    close_store(store, &book);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_events_come_back_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_damaged_record_is_left_out, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_damaged_store_is_set_aside, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_disk_that_takes_nothing, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
