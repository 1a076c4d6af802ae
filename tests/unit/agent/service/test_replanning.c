/* tests/unit/agent/service/test_replanning.c - advice about the plan that an agent gave before it
 * died is given by the one after it. */
#include "tests/unit/agent/rings.h"

#include "agent/service/problem_file.h"
#include "replan/live/ledger.h"
#include "snapshot/catalog.h"

static const char problem[] =
    "{\"layers\": 4, \"layer_ms\": 10, \"microbatches\": 16, \"tp_cost\": {\"1\": 1}, "
    "\"layer_bytes\": 1000,\n"
    " \"devices\": [{\"id\": 0, \"node\": 0, \"rate\": 1, \"memory_bytes\": 100000}, {\"id\": 1, "
    "\"node\": 0, \"rate\": 1, \"memory_bytes\": 100000}],\n"
    " \"current\": {\"pipelines\": [{\"microbatches\": 8, \"stages\": [{\"devices\": [0], "
    "\"layers\": [0, 4]}]},\n"
    "  {\"microbatches\": 8, \"stages\": [{\"devices\": [1], \"layers\": [0, 4]}]}]}}";

static void
write_problem(struct node *node)
{
    FILE *file;

    (void)snprintf(node->config.problem, sizeof node->config.problem, "%s/problem.json", node->dir);
    file = fopen(node->config.problem, "we");
    assert_non_null(file);
    assert_true(fputs(problem, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void
put(struct cairn_catalog *catalog, const char *key, const struct cairn_writer *writer,
    const uint8_t *bytes)
{
    assert_int_equal(cairn_writer_done(writer), CAIRN_OK);
    assert_int_equal(cairn_catalog_put(catalog, CAIRN_TABLE_VERDICTS, key, strlen(key), bytes,
                                       writer->used_bytes),
                     CAIRN_OK);
}

/* What an agent has kept: a verdict, and advice for the problem (of the one that is `away` from
 * it). */
static void
keep(struct node *node, bool is_open, uint64_t away)
{
    static struct cairn_ledger ledger;
    static uint8_t bytes[CAIRN_LEDGER_BYTES_MAX];
    struct cairn_advice_kept kept = {.given_wall_ns = 1234567,
                                     .advice = {CAIRN_REPLAN_MICROBATCHES, 320, 200, 0, 0}};
    char error[CAIRN_CONFIG_ERROR_BYTES], path[CAIRN_CONFIG_PATH_BYTES_MAX + 16];
    struct cairn_catalog *catalog = NULL;
    struct cairn_adviser *adviser = NULL;
    struct cairn_writer writer;

    assert_int_equal(cairn_problem_file_load(&node->config, &adviser, error, sizeof error),
                     CAIRN_OK);
    kept.fingerprint = cairn_adviser_fingerprint(adviser) + away;
    cairn_adviser_destroy(adviser);
    (void)mkdir(node->config.dir, 0700);
    (void)snprintf(path, sizeof path, "%s/catalog", node->config.dir);
    assert_int_equal(cairn_catalog_open(&cairn_store_rocksdb, path, &catalog), CAIRN_OK);
    cairn_ledger_init(&ledger);
    ledger.entries[ledger.count++] = (struct cairn_ledger_entry){.number = ledger.next_number++,
                                                                 .run = 1,
                                                                 .kind = CAIRN_SLOW_COMPUTE,
                                                                 .rank_count = 1,
                                                                 .ranks = {1},
                                                                 .rate = 2,
                                                                 .until_step = CAIRN_STEP_NONE,
                                                                 .opened_wall_ns = 5,
                                                                 .closed_wall_ns = is_open ? 0 : 6};
    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_ledger_pack(&ledger, &writer);
    put(catalog, "ledger", &writer, bytes);
    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_advice_pack(&kept, &writer);
    put(catalog, "advice", &writer, bytes);
    cairn_catalog_close(catalog);
}

static void
test_kept(void **state)
{
    struct node *node = *state;

    node->config.verdict_policy = CAIRN_CONFIG_ADVISE;
    write_problem(node);
    for (int i = 0; i < 3; i++) {
        keep(node, i != 1, i == 2); /* in the second case nothing is slow any more, in the third the
                                     * plan is another one */
        node->pid = start_process(node);
        await_status(node, "\"analyst\":0,");
        await_status(node, i == 0 ? "\"advice\":{\"action\":\"microbatches\",\"what\":\"give slow "
                                    "pipelines fewer micro-batches: steps of 200 ms instead of 320"
                                  : "\"enforced\":false,\"advice\":null");
        if (i == 0)
            await_status(node, "\"given_wall_ns\":1234567");
        kill(node->pid, SIGTERM);
        assert_int_equal(wait_exit(node->pid), 0);
        node->pid = 0;
    }
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_kept, make_node, end_node)};
    int exit_code;

    if (keeper_main(argc, argv, &exit_code))
        return exit_code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
