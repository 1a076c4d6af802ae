/*
 * tests/unit/tools/convert/dcp/test_dcp.c - checkpoints of torch.distributed.checkpoint: what
 * PyTorch saved is found element by element (tests/fixtures/make_dcp.py), laid out again, and
 * broken in many ways.
 */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "tools/convert/dcp/dcp.h"
#include "tools/convert/formats.h"
#include "tools/convert/state/param_groups.h"
#include "tests/support/cmocka.h"
#include "tests/support/quiet_log.h"
#include "tests/unit/tools/convert/check_piece.h"

#define FIXTURE "tests/fixtures/dcp/mesh"

static void
open_fixture(struct cairn_checkpoint *checkpoint)
{
    struct cairn_complaint complaint = {{0}};
    cairn_err err = cairn_checkpoint_detect(FIXTURE, cairn_formats, 0, checkpoint, &complaint);

    if (err)
        fail_msg("%s", complaint.text);
    assert_ptr_equal(checkpoint->format, &cairn_format_dcp);
    checkpoint->complaint = NULL;
}

static void
finds_every_element(void **unused)
{
    static const char *const names[] = {"rows",
                                        "columns",
                                        "both",
                                        "short",
                                        "same",
                                        "turned",
                                        "empty",
                                        "exp_avg.rows",
                                        "step.rows",
                                        "mixed.1",
                                        "epoch.pickle",
                                        "mixed.pickle",
                                        CAIRN_PARAM_GROUPS_NAME};
    struct cairn_checkpoint checkpoint;
    char report[512] = "";
    uint64_t elements = 0;

    (void)unused;
    open_fixture(&checkpoint);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (cairn_layout_tensor_find(checkpoint.layout, names[i]) == UINT32_MAX)
            fail_msg("%s was not found", names[i]);
    assert_int_equal(cairn_layout_check_tiling(checkpoint.layout, true, report, sizeof(report)), 0);
    for (size_t i = 0; i < cairn_layout_piece_count(checkpoint.layout); i++) {
        const struct cairn_piece *piece = cairn_layout_piece(checkpoint.layout, i);

        if (cairn_layout_tensor(checkpoint.layout, piece->tensor)->dtype == CAIRN_F32)
            elements += check_piece(&checkpoint, piece, NULL, NULL);
    }
    assert_int_equal(elements, 15 + 24 + 60 + 3 + 4 + 12 + 15 + 1 + 6);
    assert_int_equal(checkpoint.parallelism.dp, 4);
    cairn_checkpoint_close(&checkpoint);
}

static void
keeps_groups(void **unused)
{
    struct cairn_checkpoint checkpoint;
    struct cairn_opaque_tree groups;
    const struct cairn_pickle_node *members;

    (void)unused;
    open_fixture(&checkpoint);
    assert_int_equal(cairn_param_groups_open(&checkpoint, &groups), CAIRN_OK);
    assert_int_equal(groups.root->count, 1);
    members = cairn_pickle_get(groups.root->items[0], "params");
    assert_true(members && members->count == 1 && cairn_pickle_is_text(members->items[0], "rows"));
    assert_true(cairn_pickle_get(groups.root->items[0], "lr")->real == 0.5);
    cairn_opaque_tree_close(&groups);
    cairn_checkpoint_close(&checkpoint);
}

/* Nothing overlaps, nothing is forgotten, and the index says the same again. */
static void
lays_out(void **unused)
{
    struct cairn_checkpoint checkpoint;
    char report[512] = "";

    (void)unused;
    open_fixture(&checkpoint);
    for (uint32_t ranks = 1; ranks <= 7; ranks++) {
        struct cairn_output_options options = {.parallelism.dp = ranks};
        struct cairn_output output = {.format = &cairn_format_dcp};
        struct cairn_dcp_metadata metadata;
        uint8_t *copy;

        assert_int_equal(cairn_dcp_plan(&checkpoint, &options, &output), CAIRN_OK);
        assert_true(output.file_count <= ranks);
        assert_int_equal(cairn_layout_check_tiling(output.layout, true, report, sizeof(report)), 0);
        assert_int_equal(cairn_layout_tensor_count(output.layout) + output.carried_count,
                         cairn_layout_tensor_count(checkpoint.layout));
        assert_int_equal(cairn_dcp_finish(&checkpoint, &output), CAIRN_OK);
        assert_int_equal(output.small_count, 1);
        for (uint32_t i = 0; i < output.literal_count; i++)
            assert_true(output.literals[i].offset_bytes + output.literals[i].bytes_len <=
                        output.files[output.literals[i].file].bytes);
        copy = malloc(output.smalls[0].bytes_len);
        assert_non_null(copy);
        memcpy(copy, output.smalls[0].bytes, output.smalls[0].bytes_len);
        assert_int_equal(
            cairn_dcp_metadata_parse(copy, output.smalls[0].bytes_len, "out", &metadata, NULL),
            CAIRN_OK);
        assert_int_equal(metadata.entry_count, 14);
        cairn_dcp_metadata_fini(&metadata);
        cairn_output_fini(&output);
    }
    cairn_checkpoint_close(&checkpoint);
}

static uint8_t *
load(size_t *bytes_len)
{
    uint8_t *bytes = calloc(1, 1 << 16);
    int fd = open(FIXTURE "/.metadata", O_RDONLY);
    ssize_t got;

    assert_non_null(bytes);
    got = read(fd, bytes, 1 << 16);
    assert_true(got > 0 && got < 1 << 16);
    close(fd);
    *bytes_len = (size_t)got;
    return bytes;
}

/* Cut anywhere it is refused; with any byte changed it is refused or read, and nothing breaks. */
static void
survives_damage(void **unused)
{
    size_t bytes_len = 0;
    uint8_t *bytes = load(&bytes_len);
    struct cairn_dcp_metadata metadata;

    (void)unused;
    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    for (size_t cut = 0; cut < bytes_len; cut += 7) {
        struct cairn_complaint complaint = {{0}};
        uint8_t *copy = malloc(cut + 1);

        assert_non_null(copy);
        memcpy(copy, bytes, cut);
        assert_int_equal(cairn_dcp_metadata_parse(copy, cut, "cut", &metadata, &complaint),
                         CAIRN_CORRUPT);
        assert_true(complaint.text[0] != '\0');
    }
    for (size_t at = 0; at < bytes_len; at += 3) {
        uint8_t *copy = malloc(bytes_len);

        assert_non_null(copy);
        memcpy(copy, bytes, bytes_len);
        copy[at] ^= 0x55;
        if (cairn_dcp_metadata_parse(copy, bytes_len, "changed", &metadata, NULL) == CAIRN_OK)
            cairn_dcp_metadata_fini(&metadata);
    }
    free(bytes);
}

/* An object's archive with a damaged beginning is not taken for an object that is plain bytes; one
 * that is has no checksum. */
static void
objects_are_archives_or_plain(void **unused)
{
    char folder[] = "/tmp/cairn-dcp-XXXXXX", command[200];
    struct cairn_checkpoint checkpoint;
    struct cairn_complaint complaint = {{0}};
    uint8_t byte;
    int fd;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(command, sizeof(command), "cp -r " FIXTURE "/. %s", folder);
    assert_int_equal(system(command), 0);
    /* "epoch" lies first, with 1261 bytes */
    (void)snprintf(command, sizeof(command), "%s/__1_0.distcp", folder);
    fd = open(command, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, 0) == 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, 0), 1);
    assert_int_equal(cairn_checkpoint_detect(folder, cairn_formats, 0, &checkpoint, &complaint),
                     CAIRN_CORRUPT);
    assert_non_null(strstr(complaint.text, "does not begin as one"));
    assert_int_equal(pwrite(fd, "bytes", 5, 1261 - 22), 5);
    assert_int_equal(cairn_checkpoint_detect(folder, cairn_formats, 0, &checkpoint, &complaint),
                     CAIRN_OK);
    assert_int_equal(checkpoint.unsummed_count, 1);
    assert_int_equal(checkpoint.warning_count, 1);
    assert_int_not_equal(cairn_layout_tensor_find(checkpoint.layout, "epoch"), UINT32_MAX);
    cairn_checkpoint_close(&checkpoint);
    (void)close(fd);
    (void)snprintf(command, sizeof(command), "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static char ahead_path[200];

/* Before the last file is opened first, one whose chunks were opened already is written, and has
 * its times of before but for the ctime, which the clock of the file system may need some
 * milliseconds for. */
static int
open_behind_a_change(int dir_fd, const char *name, int flags, mode_t mode)
{
    if (ahead_path[0] && strcmp(name, "__3_0.distcp") == 0) {
        struct stat before, after;
        uint8_t byte;
        int fd = open(ahead_path, O_RDWR);

        assert_true(fd >= 0 && fstat(fd, &before) == 0 && pread(fd, &byte, 1, 0) == 1);
        do {
            assert_int_equal(pwrite(fd, &byte, 1, 0), 1);
            assert_int_equal(futimens(fd, (struct timespec[2]){before.st_atim, before.st_mtim}), 0);
            assert_int_equal(fstat(fd, &after), 0);
        } while (after.st_ctim.tv_sec == before.st_ctim.tv_sec &&
                 after.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
        (void)close(fd);
        ahead_path[0] = '\0';
    }
    return cairn_file_ops_os.open(dir_fd, name, flags, mode);
}

/* Chunks are opened ahead of who takes them, so their file may be another one by then. */
static void
a_file_that_changes_ahead_is_refused(void **unused)
{
    char folder[] = "/tmp/cairn-dcp-XXXXXX", command[200];
    struct cairn_checkpoint checkpoint;
    struct cairn_complaint complaint = {{0}};
    struct cairn_file_ops ops = cairn_file_ops_os;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(command, sizeof(command), "cp -r " FIXTURE "/. %s", folder);
    assert_int_equal(system(command), 0);
    (void)snprintf(ahead_path, sizeof(ahead_path), "%s/__1_0.distcp", folder);
    ops.open = open_behind_a_change;
    cairn_file_setup(&ops);
    assert_int_equal(cairn_checkpoint_detect(folder, cairn_formats, 1, &checkpoint, &complaint),
                     CAIRN_CORRUPT);
    cairn_file_setup(NULL);
    assert_non_null(strstr(complaint.text, "__1_0.distcp: changed after"));
    assert_string_equal(ahead_path, "");
    (void)snprintf(command, sizeof(command), "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_every_element),
        cmocka_unit_test(keeps_groups),
        cmocka_unit_test(lays_out),
        cmocka_unit_test(survives_damage),
        cmocka_unit_test(objects_are_archives_or_plain),
        cmocka_unit_test(a_file_that_changes_ahead_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
