/* tests/unit/agent/service/test_operator_files.c - the spill directory as operators see it. */
#include "agent/service/operator_files.h"

#include "tests/support/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void
files_that_are_not_there(void **state)
{
    struct operator_files *files = malloc(sizeof *files);
    char folder[] = "/tmp/cairn-test-XXXXXX", path[64];
    FILE *file;

    assert_non_null(files);
    operator_files_read("", 1, OPERATOR_LOOK_VERIFY, (struct cairn_generation_id){0}, 1, files);
    assert_false(files->configured);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/none", folder);
    operator_files_read(path, 1, OPERATOR_LOOK_VERIFY, (struct cairn_generation_id){0}, 1,
                        files); /* made by the first spill */
    assert_int_equal(files->err, CAIRN_OK);
    assert_int_equal(files->count, 0);
    snprintf(path, sizeof path, "%s/e65536-s7", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/e65536-s7/COMMIT", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs("no commit", file) >= 0);
    assert_int_equal(fclose(file), 0);
    operator_files_read(folder, 1, OPERATOR_LOOK_VERIFY, (struct cairn_generation_id){0},
                        UINT64_MAX, files);
    assert_int_equal(files->err, CAIRN_OK);
    assert_int_equal(files->count, 1);
    assert_int_equal(files->spilled[0].generation.step, 7);
    assert_false(files->spilled[0].committed); /* not the form of one */
    assert_false(files->verified);
    assert_int_equal(files->spilled[0].bytes, 9);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/e65536-s7", folder);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(folder), 0);
    free(files);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(files_that_are_not_there)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
