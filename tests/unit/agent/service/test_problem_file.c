/* tests/unit/agent/service/test_problem_file.c - the problem that a configuration names: taken, or
 * refused with file, line and reason. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/service/problem_file.h"
#include "tests/support/cmocka.h"

static const char right[] =
    "{\"layers\": 4, \"layer_ms\": 10, \"microbatches\": 4, \"tp_cost\": {\"1\": 1}, "
    "\"layer_bytes\": 1000,\n"
    " \"devices\": [{\"id\": 0, \"node\": 0, \"rate\": 1, \"memory_bytes\": 100000}],\n"
    " \"current\": {\"pipelines\": [{\"microbatches\": 4, \"stages\": [{\"devices\": [0], "
    "\"layers\": [0, 4]}]}]}}";

/* Loads a file of this text; NULL: there is no such file. */
static cairn_err
load(const char *text, bool *has_adviser, char error[CAIRN_CONFIG_ERROR_BYTES])
{
    char path[] = "/tmp/cairn-problem-XXXXXX", yaml[256];
    struct cairn_adviser *adviser = NULL;
    struct cairn_config config;
    int fd = mkstemp(path);
    cairn_err err;

    assert_true(fd >= 0);
    if (text)
        assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    if (!text)
        unlink(path);
    (void)snprintf(yaml, sizeof yaml, "job: j\nproblem: %s\n", path);
    assert_int_equal(cairn_config_parse(yaml, strlen(yaml), "cairn.yaml", &config, error,
                                        CAIRN_CONFIG_ERROR_BYTES),
                     CAIRN_OK);
    error[0] = '\0';
    err = cairn_problem_file_load(&config, &adviser, error, CAIRN_CONFIG_ERROR_BYTES);
    *has_adviser = adviser != NULL;
    cairn_adviser_destroy(adviser);
    cairn_config_fini(&config);
    unlink(path);
    return err;
}

static void
test_right(void **state)
{
    char error[CAIRN_CONFIG_ERROR_BYTES];
    struct cairn_adviser *adviser = NULL;
    struct cairn_config config;
    bool has_adviser;

    if (load(right, &has_adviser, error) || !has_adviser)
        fail_msg("%s", error);
    assert_int_equal(cairn_config_default(&config), CAIRN_OK);
    /* none is named */
    assert_int_equal(cairn_problem_file_load(&config, &adviser, error, sizeof error), CAIRN_OK);
    assert_null(adviser);
    cairn_config_fini(&config);
}

static void
test_wrong(void **state)
{
    static const struct {
        const char *text, *why;
    } wrong[] = {{NULL, "No such file or directory"},
                 {"", "line 1"},
                 {"{\"layers\": 4,\n \"layer_ms\": -1}", "line 2"},
                 {"{\"layers\": 4, \"layer_ms\": 10, \"microbatches\": 4, \"tp_cost\": {\"1\": 1}, "
                  "\"layer_bytes\": 1, \"devices\": []}",
                  "it has no \"current\""}};
    char error[CAIRN_CONFIG_ERROR_BYTES];
    bool has_adviser;

    for (uint32_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(load(wrong[i].text, &has_adviser, error), CAIRN_CONFIG);
        assert_false(has_adviser);
        if (strncmp(error, "cairn.yaml:2: problem: /tmp/cairn-problem-", 42) != 0 ||
            !strstr(error, wrong[i].why))
            fail_msg("%s", error);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_right), cmocka_unit_test(test_wrong)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
