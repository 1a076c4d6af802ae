/*
 * tests/fault/test_spill.c - a generation is spilled and the older one removed, with the n-th call
 * failing, for every n, once and for good.
 *
 * After any failure at least one generation in the directory is committed, opens and verifies to
 * the bytes that were written; and when the spill said that it succeeded, the new one does. Leaks
 * are seen by the address sanitizer's build.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "snapshot/spill.h"
#include "tests/support/cmocka.h"
#include "tests/support/folder.h"
#include "tests/support/failing_calls.h"
#include "tests/support/quiet_log.h"

enum { CALLS_MAX = 5000 };

static int spill_fd = -1;
static int descriptor_count;

static uint8_t
byte_at(uint64_t step, uint32_t file, uint64_t at)
{
    return (uint8_t)((at * 2654435761u + step * 97 + file) >> 7);
}

static cairn_err
make_layout(struct cairn_layout **out)
{
    static const struct {
        const char *name;
        enum cairn_kind kind;
        uint64_t elements;
    } members[] = {
        {"w", CAIRN_PARAM, 30000}, {"m", CAIRN_OPTIMIZER, 20001}, {"r", CAIRN_OPAQUE, 7}};
    struct cairn_layout *layout = NULL;
    cairn_err err = cairn_layout_create(&layout);

    for (size_t i = 0; err == CAIRN_OK && i < 3; i++) {
        struct cairn_slice slice = {.name = members[i].name,
                                    .dtype = members[i].kind == CAIRN_OPAQUE ? CAIRN_U8 : CAIRN_F32,
                                    .kind = members[i].kind,
                                    .dims = 1,
                                    .shape = {members[i].elements},
                                    .extent = {members[i].elements},
                                    .device = -1};

        err = cairn_layout_add(layout, 0, &slice, 0, 0, i << 20, NULL);
    }
    if (err) {
        cairn_layout_destroy(layout);
        return err;
    }
    *out = layout;
    return CAIRN_OK;
}

static cairn_err
write_file(int dir_fd, struct cairn_universal *universal, uint32_t f)
{
    struct cairn_universal_file *file = &universal->files[f];
    struct cairn_spill *spill = NULL;
    uint64_t *crcs = NULL, count = 0;
    uint8_t *header = NULL;
    size_t header_bytes = 0;
    cairn_err err = cairn_universal_header_pack(universal, f, &header, &header_bytes);

    if (err)
        return err;
    err = cairn_spill_open(dir_fd, file->name, header, header_bytes, file->data_bytes, &spill);
    free(header);
    while (err == CAIRN_OK) {
        struct pollfd wait = {.events = POLLIN};
        uint8_t *buffer;
        uint64_t offset;
        size_t bytes;

        wait.fd = cairn_spill_event_fd(spill);
        err = cairn_spill_acquire(spill, &buffer, &offset, &bytes);
        if (err == CAIRN_OK) {
            for (size_t i = 0; i < bytes; i++)
                buffer[i] = byte_at(universal->generation.step, f, offset + i);
            err = cairn_spill_commit(spill);
        } else if (err == CAIRN_NOT_FOUND) {
            err = cairn_spill_finish(spill, &crcs, &count);
            if (err == CAIRN_OK)
                break;
        }
        if (err == CAIRN_AGAIN) {
            assert_int_equal(poll(&wait, 1, 20000), 1);
            err = CAIRN_OK;
        }
    }
    cairn_spill_close(spill);
    if (err == CAIRN_OK)
        err = cairn_universal_crcs_set(universal, f, crcs, count);
    return err;
}

static cairn_err
spill_generation(uint64_t step)
{
    struct cairn_generation_id generation = {.epoch = 1, .step = step};
    struct cairn_universal universal = {0};
    struct cairn_layout *layout = NULL;
    const struct cairn_spill_keep keep = {.last = 1};
    uint32_t writer = 0, removed;
    int dir_fd = -1;
    cairn_err err = make_layout(&layout);

    if (err == CAIRN_OK)
        err = cairn_universal_plan(layout, &writer, 1, "job", 1, generation, &universal);
    if (err == CAIRN_OK)
        err = cairn_spill_dir_begin(spill_fd, generation, &dir_fd);
    for (uint32_t f = 0; err == CAIRN_OK && f < universal.file_count; f++)
        err = write_file(dir_fd, &universal, f);
    if (err == CAIRN_OK)
        err = cairn_universal_dir_commit(dir_fd, &universal);
    (void)cairn_file_close(dir_fd); /* a directory */
    if (err == CAIRN_OK)
        err = cairn_spill_retain(spill_fd, &keep, &removed);
    cairn_universal_fini(&universal);
    cairn_layout_destroy(layout);
    return err;
}

/* The writer's thread ends by itself after a failure. */
static void
wait_for_threads(void)
{
    for (int ms = 0; ms < 20000; ms++) {
        DIR *dir = opendir("/proc/self/task");
        int count = 0;

        while (readdir(dir))
            count++;
        (void)closedir(dir);
        if (count == 3) /* ".", ".." and this one */
            return;
        (void)usleep(200);
    }
    fail_msg("a thread does not end");
}

static int
count_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    while (readdir(dir))
        count++;
    (void)closedir(dir);
    return count;
}

/* Opens and verifies a generation, and compares every byte. */
static void
check_generation(uint64_t step)
{
    struct cairn_universal universal = {0};
    char name[CAIRN_SPILL_DIR_NAME_BYTES], report[256];
    int dir_fd;

    cairn_spill_dir_name((struct cairn_generation_id){.epoch = 1, .step = step}, name);
    assert_int_equal(cairn_file_open(spill_fd, name, CAIRN_FILE_DIRECTORY, &dir_fd), CAIRN_OK);
    assert_int_equal(cairn_universal_dir_open(dir_fd, &universal, report, sizeof(report)),
                     CAIRN_OK);
    assert_int_equal(cairn_universal_dir_verify(dir_fd, &universal, report, sizeof(report)),
                     CAIRN_OK);
    assert_int_equal(universal.generation.step, step);
    for (uint32_t f = 0; f < universal.file_count; f++) {
        const struct cairn_universal_file *file = &universal.files[f];
        uint8_t *data = malloc(file->data_bytes);

        assert_int_equal(cairn_spill_read(dir_fd, file, 0, data, file->data_bytes), CAIRN_OK);
        for (uint64_t i = 0; i < file->data_bytes; i++)
            if (data[i] != byte_at(step, f, i))
                fail_msg("step %llu file %u byte %llu differs", (unsigned long long)step, f,
                         (unsigned long long)i);
        free(data);
    }
    cairn_universal_fini(&universal);
    assert_int_equal(cairn_file_close(dir_fd), CAIRN_OK);
}

/* Every committed generation is whole, there is one at least; gives the newest. */
static uint64_t
check_all(void)
{
    struct cairn_spilled *list = NULL;
    size_t count = 0;
    uint64_t newest = 0;

    assert_int_equal(cairn_spill_list(spill_fd, &list, &count), CAIRN_OK);
    for (size_t i = 0; i < count; i++) {
        if (!list[i].committed)
            continue;
        check_generation(list[i].generation.step);
        newest = newest ? newest : list[i].generation.step;
    }
    free(list);
    assert_int_not_equal(newest, 0);
    return newest;
}

static void
every_failure(enum kind kind, bool ever)
{
    static uint64_t step = 10; /* steps grow over all rounds */
    long call;

    step++;
    assert_int_equal(spill_generation(step), CAIRN_OK);
    wait_for_threads();
    for (call = 0; call < CALLS_MAX; call++) {
        uint64_t newest;
        cairn_err err;

        step++;
        arm(kind, call, ever);
        err = spill_generation(step);
        wait_for_threads(); /* still armed: a writer that was given up may fail, too */
        disarm();
        newest = check_all();
        if (err == CAIRN_OK)
            assert_int_equal(newest, step);
        if (failures == 0) {
            assert_int_equal(err, CAIRN_OK);
            break;
        }
        assert_int_equal(count_descriptors(), descriptor_count);
        if (err == CAIRN_OK && newest == step)
            continue;
        assert_int_equal(spill_generation(step), CAIRN_OK); /* the same again, over what is left */
        wait_for_threads();
        assert_int_equal(check_all(), step);
    }
    assert_in_range(call, 20, CALLS_MAX - 1);
    print_message("%ld calls failed in turn\n", call);
}

static void
test_every_file_call(void **state)
{
    static const int codes[] = {EIO, ENOSPC, EACCES};

    for (size_t i = 0; i < 3; i++) {
        file_errno = codes[i];
        every_failure(FILES, false);
        every_failure(FILES, true);
    }
}

static void
test_every_allocation(void **state)
{
    every_failure(MEMORY, false);
    every_failure(MEMORY, true);
}

/* A writer that is killed at any instant leaves every committed generation whole, and one at least.
 */
static void
test_killed_writer(void **state)
{
    uint64_t step = 1000000, interrupted = 0;

    assert_int_equal(spill_generation(step), CAIRN_OK);
    for (int round = 0; round < 60; round++) {
        struct cairn_spilled *list = NULL;
        size_t count = 0;
        int status;
        pid_t child;

        wait_for_threads(); /* a fork copies none of them */
        child = fork();
        if (child == 0) {
            while (spill_generation(++step) == CAIRN_OK)
                continue;
            _exit(1);
        }
        (void)usleep((useconds_t)(1000 + 171 * round));
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(cairn_spill_list(spill_fd, &list, &count), CAIRN_OK);
        interrupted += count > 0 && !list[0].committed;
        free(list);
        step = check_all();
    }
    assert_int_not_equal(interrupted, 0); /* else the test saw nothing */
}

static int
setup(void **state)
{
    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    if (root_make("fault"))
        return -1;
    spill_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cairn_file_setup(&fault_ops);
    descriptor_count = count_descriptors();
    return spill_fd < 0;
}

static int
teardown(void **state)
{
    cairn_file_setup(NULL);
    (void)close(spill_fd);
    return root_remove(state);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_file_call),
        cmocka_unit_test(test_every_allocation),
        cmocka_unit_test(test_killed_writer),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
