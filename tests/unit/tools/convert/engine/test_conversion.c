/* tests/unit/tools/convert/engine/test_conversion.c - conversions between random layouts against a
 * slow reference: element by element, killed in the middle, with damaged and changed sources. */
#include <ftw.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/support/cases.h"
#include "tests/support/marker_conversion.h"
#include "tools/convert/compare/difference.h"
#include "tools/convert/engine/target.h"

enum { SEEDS = 150 };

static cairn_err
convert(struct cairn_conversion_report *report, struct cairn_complaint *complaint)
{
    struct cairn_conversion_options options = options_of(2);

    return convert_by(&options, report, complaint);
}

static void
start(struct marker *marker, uint64_t seed, uint64_t scale, bool replicas)
{
    remove_path(source);
    remove_path(target);
    marker_init(marker, seed, scale, replicas);
    marker_now = marker;
    marker_write(marker, source);
}

static void
every_element_arrives(void **state)
{
    static struct marker marker;
    struct cairn_complaint complaint = {""};

    for (uint64_t seed = 1; seed <= SEEDS; seed += CASE_STRIDE) {
        struct cairn_conversion_report report;
        cairn_err err;

        start(&marker, seed, 1 + seed % 5, seed % 2);
        err = convert(&report, &complaint);
        if (err || marker_check(&marker, target) != 0)
            fail_msg("seed %llu: %s, %llu wrong: %s", (unsigned long long)seed, cairn_err_name(err),
                     (unsigned long long)marker_check(&marker, target), complaint.text);
        assert_int_equal(report.proved, MARKER_TENSORS);
        assert_string_equal(report.source_state, report.target_state);
        assert_true(is_there("DONE"));
        assert_false(is_there(".cairn-journal"));
    }
}

/* ---- killed ---- */

static int writes_left;

static ssize_t
deadly_write(int fd, const void *bytes, size_t bytes_len, off_t at)
{
    if (__atomic_sub_fetch(&writes_left, 1, __ATOMIC_RELAXED) == 0) {
        (void)!pwrite(fd, bytes, bytes_len / 2, at); /* torn as well */
        (void)raise(SIGKILL);
    }
    return pwrite(fd, bytes, bytes_len, at);
}

/* A process that is killed at its n-th write. */
static bool
killed_at(int n)
{
    struct cairn_complaint complaint = {""};
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        static struct cairn_file_ops ops;

        ops = cairn_file_ops_os;
        ops.write = deadly_write;
        writes_left = n;
        cairn_file_setup(&ops);
        _exit(convert(NULL, &complaint) ? 1 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static void
a_killed_run_goes_on(void **state)
{
    static struct marker marker;
    struct cairn_complaint complaint = {""};
    bool kept = false, all_kept = false;
    struct stat first, again;
    char path[400];
    int n = 1;

    start(&marker, 17, 60, true);
    for (; n < 100; n++) {
        struct cairn_conversion_report report;

        remove_path(target);
        if (!killed_at(n))
            break;
        assert_false(is_there("DONE"));
        (void)snprintf(path, sizeof(path), "%s/part/0.bin", target);
        all_kept = stat(path, &first) == 0; /* killed while it finished: files have their names */
        assert_int_equal(convert(&report, &complaint), CAIRN_OK);
        assert_int_equal(marker_check(&marker, target), 0);
        assert_true(is_there("DONE"));
        assert_false(is_there(".cairn-journal"));
        assert_false(is_there("part/0.bin.cairn-part"));
        kept = kept || report.kept_bytes > 0;
        if (all_kept) { /* and are not made a second time */
            assert_int_equal(report.kept_bytes, report.target_bytes);
            assert_int_equal(stat(path, &again), 0);
            assert_int_equal(again.st_ino, first.st_ino);
        }
    }
    assert_true(all_kept); /* that of the last write, which is the marker's */
    assert_true(n > 10);
    assert_true(kept); /* some run found tiles of the one before */
}

/* What an earlier run wrote is verified: a part that changed since is made again. */
static void
a_changed_part_is_made_again(void **state)
{
    static struct marker marker;
    struct cairn_complaint complaint = {""};
    struct cairn_conversion_report report;
    char path[400];
    int fd;

    start(&marker, 17, 60, false);
    for (int n = 14; n > 0; n--) { /* late, so that some tiles are there */
        remove_path(target);
        if (killed_at(n) && is_there("part/0.bin.cairn-part"))
            break;
    }
    (void)snprintf(path, sizeof(path), "%s/part/0.bin.cairn-part", target);
    fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "damaged", 7, 3), 7);
    (void)close(fd);
    assert_int_equal(convert(&report, &complaint), CAIRN_OK);
    assert_int_equal(marker_check(&marker, target), 0);
}

/* ---- refused ---- */

static void
another_source_does_not_go_on(void **state)
{
    static struct marker marker;
    struct cairn_complaint complaint = {""};
    char path[400];

    start(&marker, 17, 60, false);
    assert_true(killed_at(8));
    (void)snprintf(path, sizeof(path), "touch %s/part/1.bin", source);
    assert_int_equal(system(path), 0);
    assert_int_equal(convert(NULL, &complaint), CAIRN_INVAL);
    assert_non_null(strstr(complaint.text, "unfinished conversion from another source"));
    assert_false(is_there("DONE"));
}

static char changed_path[400];

/* A write of the target, before which a file of the source is changed in place and its times are
 * set back: later than it was made, by the clock of the file system, which may stand still for some
 * milliseconds. */
static ssize_t
write_behind_a_change(int fd, const void *bytes, size_t bytes_len, off_t at)
{
    if (__atomic_sub_fetch(&writes_left, 1, __ATOMIC_RELAXED) == 0) {
        struct stat before, after;
        int changed = open(changed_path, O_RDWR);

        if (fstat(changed, &before) != 0)
            abort(); /* on a thread that cannot fail the test in another way */
        do {
            if (pwrite(changed, "x", 1, before.st_size - 1) != 1 ||
                futimens(changed, (struct timespec[2]){before.st_atim, before.st_mtim}) != 0 ||
                fstat(changed, &after) != 0)
                abort();
        } while (after.st_ctim.tv_sec == before.st_ctim.tv_sec &&
                 after.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
        (void)close(changed);
    }
    return pwrite(fd, bytes, bytes_len, at);
}

static void
a_source_that_changes_is_refused(void **state)
{
    static struct marker marker;
    static struct cairn_file_ops ops;
    struct cairn_complaint complaint = {""};
    char name[32];

    start(&marker, 17, 60, false);
    marker_name(marker.source.pieces[0].container, name);
    (void)snprintf(changed_path, sizeof(changed_path), "%s/%s", source, name);
    ops = cairn_file_ops_os;
    ops.write = write_behind_a_change;
    writes_left = 8;
    cairn_file_setup(&ops);
    assert_int_equal(convert(NULL, &complaint), CAIRN_CORRUPT);
    cairn_file_setup(NULL);
    assert_non_null(strstr(complaint.text, "changed after"));
    assert_non_null(strstr(complaint.text, name));
    assert_false(is_there("DONE"));
    complaint.text[0] = '\0'; /* and what was read of the file as it was is not completed */
    assert_int_equal(convert(NULL, &complaint), CAIRN_INVAL);
    assert_non_null(strstr(complaint.text, "unfinished conversion from another source"));
    assert_false(is_there("DONE"));
}

/* A read of a file that is written and has its other times set back afterwards. */
static ssize_t
read_before_a_change(int fd, const struct iovec *parts, int count, off_t at)
{
    ssize_t got = preadv(fd, parts, count, at);
    struct stat read, before, after;

    if (changed_path[0] && fstat(fd, &read) == 0 && stat(changed_path, &before) == 0 &&
        read.st_ino == before.st_ino) {
        do {
            if (utimensat(AT_FDCWD, changed_path,
                          (struct timespec[2]){before.st_atim, before.st_mtim}, 0) != 0 ||
                stat(changed_path, &after) != 0)
                abort();
        } while (after.st_ctim.tv_sec == before.st_ctim.tv_sec &&
                 after.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
        changed_path[0] = '\0';
    }
    return got;
}

/* What two sides that were not changed say of each other; a file of the first one is changed where
 * changed_path names it. */
static cairn_err
find_differences(size_t *count, struct cairn_complaint *complaint)
{
    struct cairn_difference_options options = {.thread_count = 1, .memory_limit_bytes = 1 << 30};
    struct cairn_checkpoint checkpoints[2] = {{.place.dir_fd = -1}, {.place.dir_fd = -1}};
    struct cairn_whole wholes[2] = {{0}, {0}};
    struct cairn_difference_side sides[2];
    struct cairn_difference *differences = NULL;
    uint32_t compared = 0;
    uint64_t bytes = 0;
    cairn_err err;

    for (int side = 0; side < 2; side++) {
        assert_int_equal(cairn_checkpoint_open(side ? target : source, &marker_format, 0,
                                               &checkpoints[side], complaint),
                         CAIRN_OK);
        assert_int_equal(cairn_whole_init(&checkpoints[side], &wholes[side]), CAIRN_OK);
        sides[side] = (struct cairn_difference_side){&checkpoints[side], wholes[side].layout};
    }
    *count = 0;
    err = cairn_difference_find(sides, &options, &differences, count, &compared, &bytes, complaint);
    cairn_differences_free(differences, *count);
    for (int side = 0; side < 2; side++) {
        cairn_whole_fini(&wholes[side]);
        cairn_checkpoint_close(&checkpoints[side]);
    }
    return err;
}

static void
a_side_that_changes_is_refused(void **state)
{
    static struct marker marker;
    static struct cairn_file_ops ops;
    struct cairn_complaint complaint = {""};
    char name[32], command[700];
    size_t count;

    start(&marker, 17, 60, false);
    (void)snprintf(command, sizeof(command), "cp -r %s %s", source, target);
    assert_int_equal(system(command), 0);
    changed_path[0] = '\0';
    assert_int_equal(find_differences(&count, &complaint), CAIRN_OK);
    assert_int_equal(count, 0);
    marker_name(marker.source.pieces[0].container, name);
    (void)snprintf(changed_path, sizeof(changed_path), "%s/%s", source, name);
    ops = cairn_file_ops_os;
    ops.readv = read_before_a_change;
    cairn_file_setup(&ops);
    assert_int_equal(find_differences(&count, &complaint), CAIRN_CORRUPT);
    cairn_file_setup(NULL);
    assert_string_equal(changed_path, "");
    assert_non_null(strstr(complaint.text, "changed after"));
}

static bool numbers_change;

/* The C library's, of a file system that gives a file another number of its inode each time that it
 * is asked. */
int
fstat(int fd, struct stat *out)
{
    static uint32_t asked;
    int failed = fstatat(fd, "", out, AT_EMPTY_PATH);

    if (!failed && numbers_change)
        out->st_ino += __atomic_add_fetch(&asked, 1, __ATOMIC_RELAXED);
    return failed;
}

static void
numbers_of_inodes_are_nothing_to_go_by(void **state)
{
    static struct marker marker;
    struct cairn_complaint complaint = {""};
    cairn_err err;

    start(&marker, 17, 60, true);
    numbers_change = true;
    err = convert(NULL, &complaint);
    numbers_change = false;
    if (err)
        fail_msg("%s", complaint.text);
    assert_int_equal(marker_check(&marker, target), 0);
}

static void
a_full_target_is_left_alone(void **state)
{
    static struct marker marker;
    struct cairn_complaint complaint = {""};
    char command[800];

    start(&marker, 3, 2, false);
    (void)snprintf(command, sizeof(command), "mkdir -p %s && echo mine > %s/mine", target, target);
    assert_int_equal(system(command), 0);
    assert_int_equal(convert(NULL, &complaint), CAIRN_INVAL);
    assert_non_null(strstr(complaint.text, "not empty"));
    assert_true(is_there("mine"));
    assert_false(is_there(".cairn-journal"));
}

static void
unequal_replicas_are_found(void **state)
{
    static struct marker marker;
    struct cairn_complaint complaint = {""};
    uint32_t found = 0;

    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint32_t last;
        char path[400], name[32];
        uint8_t byte;
        int fd;

        start(&marker, seed, 2, true);
        last = marker.source.piece_count - 1; /* a replica, where the last tensor has one */
        if (last == 0 ||
            memcmp(marker.source.pieces[last].start, marker.source.pieces[last - 1].start,
                   sizeof(marker.source.pieces[last].start)) != 0 ||
            memcmp(marker.source.pieces[last].extent, marker.source.pieces[last - 1].extent,
                   sizeof(marker.source.pieces[last].extent)) != 0)
            continue;
        marker_name(marker.source.pieces[last].container, name);
        (void)snprintf(path, sizeof(path), "%s/%s", source, name);
        fd = open(path, O_RDWR);
        assert_int_equal(pread(fd, &byte, 1, (off_t)marker.source.pieces[last].offset_bytes), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)marker.source.pieces[last].offset_bytes), 1);
        (void)close(fd);
        assert_int_equal(convert(NULL, &complaint), CAIRN_CORRUPT);
        assert_non_null(strstr(complaint.text, "not the same in all its replicas"));
        assert_false(is_there(".")); /* nothing was written, so nothing stays */
        found++;
    }
    assert_true(found > 2);
}

static void
missing_elements_are_named(void **state)
{
    static struct marker marker;
    struct cairn_complaint complaint = {""};

    start(&marker, 5, 2, false);
    marker.source.piece_count--;
    assert_int_equal(convert(NULL, &complaint), CAIRN_CORRUPT);
    assert_non_null(strstr(complaint.text, "layers.4.weight"));
    assert_false(is_there("."));
}

static void
a_truncated_file_is_named(void **state)
{
    static struct marker marker;
    struct cairn_complaint complaint = {""};
    const struct cairn_piece *last;
    char path[400], name[32];

    start(&marker, 6, 2, false);
    last = &marker.source.pieces[marker.source.piece_count - 1];
    marker_name(last->container, name);
    (void)snprintf(path, sizeof(path), "%s/%s", source, name);
    assert_int_equal(truncate(path, (off_t)last->offset_bytes), 0);
    assert_int_equal(convert(NULL, &complaint), CAIRN_CORRUPT);
    assert_non_null(strstr(complaint.text, name));
}

/* Small files need room as well, and those that are made at the end are expected. */
static void
too_little_room_is_said(void **state)
{
    struct cairn_output output = {.format = &marker_format, .small_bytes = UINT64_C(1) << 60};
    const uint8_t digest[CAIRN_SHA256_BYTES] = {0};
    struct cairn_complaint complaint = {""};
    struct cairn_target *opened = NULL;

    assert_int_equal(cairn_target_open(target, &output, false, digest, &opened, &complaint),
                     CAIRN_FULL);
    assert_non_null(strstr(complaint.text, "has room for"));
    assert_null(opened);
    output.small_bytes = 0;
    assert_int_equal(cairn_target_open(target, &output, false, digest, &opened, &complaint),
                     CAIRN_OK);
    cairn_target_close(opened);
}

static void
too_little_memory_is_said(void **state)
{
    static struct marker marker;
    struct cairn_conversion_options options = options_of(2);
    struct cairn_complaint complaint = {""};
    struct cairn_conversion conversion;

    start(&marker, 7, 1, false);
    options.memory_limit_bytes = 1 << 20;
    assert_int_equal(cairn_conversion_open(&options, &conversion, &complaint), CAIRN_INVAL);
    cairn_conversion_close(&conversion);
    assert_non_null(strstr(complaint.text, "--memory-limit"));
}

/* ---- what is durable ---- */

enum { SYNCED_MAX = 256 };

/* What a file or directory was like when it was last synced. */
static struct {
    ino_t file;
    mode_t mode;
} synced[SYNCED_MAX];
static size_t synced_count;

static int
noting_sync(int fd)
{
    struct stat found;
    size_t at = 0;

    assert_int_equal(fstat(fd, &found), 0);
    while (at < synced_count && synced[at].file != found.st_ino)
        at++;
    assert_true(at < SYNCED_MAX);
    synced[at].file = found.st_ino;
    synced[at].mode = found.st_mode;
    synced_count += at == synced_count;
    return 0;
}

static int files_seen, directories_seen;

static int
see_synced(const char *path, const struct stat *found, int kind, struct FTW *where)
{
    mode_t wanted = kind == FTW_D ? 0750 : 0640;
    size_t at = 0;

    (void)where;
    while (at < synced_count && synced[at].file != found->st_ino)
        at++;
    if (at == synced_count)
        fail_msg("%s was never synced", path);
    if ((found->st_mode & 0777) != wanted || synced[at].mode != found->st_mode)
        fail_msg("%s has mode %o, and had %o when it was synced", path, (unsigned)found->st_mode,
                 (unsigned)synced[at].mode);
    files_seen += kind == FTW_F;
    directories_seen += kind == FTW_D;
    return 0;
}

/* Permissions included: a crash after the commit must not leave files that only their maker
 * reads. */
static void
what_is_committed_was_synced(void **state)
{
    static struct marker marker;
    struct cairn_complaint complaint = {""};
    struct cairn_file_ops ops = cairn_file_ops_os;
    mode_t mask;

    start(&marker, 8, 2, false);
    ops.sync = noting_sync;
    synced_count = 0;
    mask = umask(027);
    cairn_file_setup(&ops);
    assert_int_equal(convert(NULL, &complaint), CAIRN_OK);
    cairn_file_setup(NULL);
    (void)umask(mask);
    assert_int_equal(nftw(target, see_synced, 8, FTW_PHYS), 0);
    assert_true(files_seen > 2 && directories_seen > 1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_arrives),
        cmocka_unit_test(a_killed_run_goes_on),
        cmocka_unit_test(a_changed_part_is_made_again),
        cmocka_unit_test(another_source_does_not_go_on),
        cmocka_unit_test(a_source_that_changes_is_refused),
        cmocka_unit_test(a_side_that_changes_is_refused),
        cmocka_unit_test(numbers_of_inodes_are_nothing_to_go_by),
        cmocka_unit_test(a_full_target_is_left_alone),
        cmocka_unit_test(unequal_replicas_are_found),
        cmocka_unit_test(missing_elements_are_named),
        cmocka_unit_test(a_truncated_file_is_named),
        cmocka_unit_test(too_little_memory_is_said),
        cmocka_unit_test(too_little_room_is_said),
        cmocka_unit_test(what_is_committed_was_synced),
    };

    return cmocka_run_group_tests(tests, make_places, remove_places);
}
