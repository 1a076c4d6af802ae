/* tests/unit/agent/service/test_operator_report.c - the JSON of status, snapshots and restores. */
#include "agent/service/operator_report.h"

#include "tests/support/operator_scene.h"

static void
status_is_json(void **state)
{
    struct scene *scene = *state;
    struct cairn_json_writer writer;
    struct cairn_tree tree;
    char *text, out[64];

    lose(scene, 1);
    look(scene);
    cairn_json_writer_init(&writer);
    operator_write_status(&writer, &scene->job, &scene->health, 0);
    tree = parse(&writer, &text);
    assert_string_equal(cairn_tree_text(&tree, NULL, "job", out, sizeof out), "job \"quoted\"");
    assert_string_equal(cairn_tree_text(&tree, NULL, "health", out, sizeof out), "WARN");
    assert_int_equal(cairn_tree_u64(&tree, NULL, "newest.epoch", 0), 1); /* as people name it */
    assert_int_equal(cairn_tree_u64(&tree, NULL, "newest.step", 0), 30);
    assert_int_equal(cairn_tree_i64(&tree, NULL, "protection.survives_nodes_per_group", 9), 1);
    assert_int_equal(cairn_tree_find(&tree, NULL, "nodes")->count, NODES);
    assert_null(cairn_tree_find(&tree, NULL, "spilled"));
    cairn_tree_fini(&tree);
    free(text);
}

/* Two open verdicts and one that is over. */
static void
judge(struct scene *scene, struct cairn_ledger *ledger)
{
    cairn_ledger_init(ledger);
    ledger->count = 3;
    for (uint32_t i = 0; i < 3; i++) {
        struct cairn_ledger_entry *entry = &ledger->entries[i];

        entry->number = i + 1;
        entry->kind = CAIRN_SLOW_COMPUTE;
        entry->rank_count = 1;
        entry->ranks[0] = 10 + i;
        entry->since_step = 40;
        entry->until_step = CAIRN_STEP_NONE;
        entry->rate = 1.5;
        entry->evidence_kinds = CAIRN_EVIDENCE_COMPUTE | CAIRN_EVIDENCE_WAITING;
    }
    ledger->entries[1].closed_wall_ns = 9;
    ledger->entries[1].until_step = 60;
    ledger->entries[2].kind = CAIRN_HANG_COMPUTE;
    scene->nodes[2].analyses = 1;
    scene->nodes[2].analysis_world = 12;
    scene->nodes[2].analysis_ranks = 11;
    scene->nodes[4].timing_records = 5;
    scene->nodes[5].timing_records = 6;
}

static void
verdicts_are_shown(void **state)
{
    struct scene *scene = *state;
    static struct cairn_ledger ledger;
    const struct cairn_tree_value *list, *entry;
    const struct operator_check *check;
    struct cairn_json_writer writer;
    struct cairn_tree tree;
    char *text, out[256];

    judge(scene, &ledger);
    look(scene);
    scene->job.ledger = &ledger;
    operator_health_find(&scene->job, &scene->health);
    assert_int_equal(scene->health.level, OPERATOR_CRITICAL); /* the job stands still */
    assert_int_equal(scene->health.check_count, 2);
    check = check_of(&scene->health, "slow-rank");
    assert_non_null(check);
    assert_int_equal(check->level, OPERATOR_WARN);
    assert_non_null(strstr(check->what, "rank 10 computes 1.50 times"));
    assert_null(strstr(check->fix, "exchange")); /* the policy is to observe */
    assert_non_null(check_of(&scene->health, "rank-hangs"));
    scene->config.verdict_policy = CAIRN_CONFIG_ADVISE;
    scene->config.exchanges_per_day = 1;
    operator_health_find(&scene->job, &scene->health);
    assert_non_null(strstr(check_of(&scene->health, "slow-rank")->fix, "exchange the rank"));
    assert_non_null(strstr(check_of(&scene->health, "rank-hangs")->fix, "(exchanges_per_day)"));
    cairn_json_writer_init(&writer);
    operator_write_status(&writer, &scene->job, &scene->health, 0);
    tree = parse(&writer, &text);
    assert_string_equal(cairn_tree_text(&tree, NULL, "detection.policy", out, sizeof out),
                        "advise");
    assert_int_equal(cairn_tree_u64(&tree, NULL, "detection.analyst", 99), 2);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "detection.world", 0), 12);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "detection.ranks_seen", 0), 11);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "detection.records", 0), 11);
    list = cairn_tree_find(&tree, NULL, "detection.verdicts");
    assert_int_equal(list->count, 3);
    entry = cairn_tree_next(&tree, list, NULL);
    assert_true(cairn_tree_bool(&tree, entry, "open", false));
    assert_null(cairn_tree_find(&tree, entry, "until_step"));
    assert_int_equal(cairn_tree_find(&tree, entry, "evidence_kinds")->count, 2);
    assert_string_equal(cairn_tree_text(&tree, entry, "kind", out, sizeof out), "slow_compute");
    entry = cairn_tree_next(&tree, list, entry);
    assert_false(cairn_tree_bool(&tree, entry, "open", true));
    assert_int_equal(cairn_tree_u64(&tree, entry, "until_step", 0), 60);
    assert_null(cairn_tree_find(&tree, entry, "advice"));
    assert_null(cairn_tree_find(&tree, entry, "enforcement"));
    cairn_tree_fini(&tree);
    free(text);
}

/* What became of the operator's command: with its verdict, in the check, and counted. */
static void
enforcement_is_shown(void **state)
{
    struct scene *scene = *state;
    static struct cairn_ledger ledger;
    const struct cairn_tree_value *list, *entry;
    struct cairn_json_writer writer;
    struct cairn_tree tree;
    char *text, out[256];

    judge(scene, &ledger);
    look(scene);
    scene->job.ledger = &ledger;
    scene->config.verdict_policy = CAIRN_CONFIG_ENFORCE;
    ledger.entries[0].enforcement = (struct cairn_enforcement){.state = CAIRN_ENFORCEMENT_EXITED,
                                                               .value = 3,
                                                               .node = 2,
                                                               .exchanges = 1,
                                                               .begun_wall_ns = 5,
                                                               .ended_wall_ns = 6};
    ledger.entries[2].enforcement =
        (struct cairn_enforcement){.state = CAIRN_ENFORCEMENT_RUNNING, .node = 2, .exchanges = 1};
    ledger.enforced_before[CAIRN_ENFORCED_TIMEOUT] = 4;
    scene->nodes[2].timing_dropped = 9;
    operator_health_find(&scene->job, &scene->health);
    assert_non_null(strstr(check_of(&scene->health, "slow-rank")->what,
                           "; enforce_command failed on node 2 with exit status 3"));
    assert_non_null(
        strstr(check_of(&scene->health, "rank-hangs")->what, "; enforce_command runs on node 2"));
    cairn_json_writer_init(&writer);
    operator_write_status(&writer, &scene->job, &scene->health, 0);
    tree = parse(&writer, &text);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "detection.reports_dropped", 0), 9);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "detection.enforcements.timeout", 0), 4);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "detection.enforcements.failed", 0), 1);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "detection.enforcements.succeeded", 9), 0);
    list = cairn_tree_find(&tree, NULL, "detection.verdicts");
    entry = cairn_tree_next(&tree, list, NULL);
    assert_string_equal(cairn_tree_text(&tree, entry, "enforcement.result", out, sizeof out),
                        "failed");
    assert_int_equal(cairn_tree_u64(&tree, entry, "enforcement.exit_status", 0), 3);
    assert_int_equal(cairn_tree_u64(&tree, entry, "enforcement.ended_wall_ns", 0), 6);
    entry = cairn_tree_next(&tree, list, cairn_tree_next(&tree, list, entry));
    assert_string_equal(cairn_tree_text(&tree, entry, "enforcement.result", out, sizeof out),
                        "running");
    assert_null(cairn_tree_find(&tree, entry, "enforcement.ended_wall_ns"));
    cairn_tree_fini(&tree);
    free(text);
}

static void
snapshots_are_listed_newest_first(void **state)
{
    struct scene *scene = *state;
    const struct cairn_generation_id open = {.epoch = newest.epoch, .step = 31};
    const struct cairn_tree_value *list, *entry;
    struct cairn_json_writer writer;
    struct cairn_tree tree;
    char *text, out[64];

    scene->nodes[0].parts[1] = (struct operator_part){.generation = open,
                                                      .state = CAIRN_PART_OPEN,
                                                      .data_bytes = 65536,
                                                      .age_ns = OPERATOR_UNKNOWN};
    scene->nodes[0].part_count = 2;
    scene->files = (struct operator_files){.configured = true, .count = 1};
    scene->files.spilled[0] =
        (struct operator_spilled){.generation = {newest.epoch, 20}, .committed = true, .bytes = 9};
    snprintf(scene->config.spill_dir, sizeof scene->config.spill_dir, "/spill");
    look(scene);
    cairn_json_writer_init(&writer);
    operator_write_snapshots(&writer, &scene->job);
    tree = parse(&writer, &text);
    list = cairn_tree_find(&tree, NULL, "generations");
    assert_int_equal(list->count, 3);
    entry = cairn_tree_next(&tree, list, NULL);
    assert_int_equal(cairn_tree_u64(&tree, entry, "step", 0), 31);
    assert_string_equal(cairn_tree_text(&tree, entry, "state", out, sizeof out), "open");
    entry = cairn_tree_next(&tree, list, entry);
    assert_string_equal(cairn_tree_text(&tree, entry, "state", out, sizeof out), "committed");
    assert_int_equal(cairn_tree_u64(&tree, entry, "parts", 0), NODES);
    assert_int_equal(cairn_tree_u64(&tree, entry, "bytes", 0), NODES * 65536);
    entry = cairn_tree_next(&tree, list, entry);
    assert_string_equal(cairn_tree_text(&tree, entry, "state", out, sizeof out), "spilled");
    assert_string_equal(cairn_tree_text(&tree, entry, "where", out, sizeof out), "/spill");
    cairn_tree_fini(&tree);
    free(text);
}

static void
restores_say_what_and_why(void **state)
{
    struct operator_restored restored = {.lost_steps = OPERATOR_UNKNOWN, .took_ns = 1500000000};
    const struct cairn_tree_value *lines;
    struct cairn_json_writer writer;
    struct cairn_tree tree;
    char *text, out[64];

    restored.outcome.generation = newest;
    restored.outcome.rebuilt_blocks = 3;
    snprintf(restored.outcome.text, sizeof restored.outcome.text, "line one\nline two\n");
    cairn_json_writer_init(&writer);
    operator_write_restore(&writer, &restored);
    tree = parse(&writer, &text);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "generation.epoch", 0), 1);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "rebuilt_bytes", 0), 3 * 65536);
    assert_true(cairn_tree_double(&tree, NULL, "seconds", 0) == 1.5);
    assert_null(cairn_tree_find(&tree, NULL, "lost_steps"));
    assert_null(cairn_tree_find(&tree, NULL, "directory"));
    lines = cairn_tree_find(&tree, NULL, "considered");
    assert_int_equal(lines->count, 2);
    assert_string_equal(
        cairn_tree_text(&tree, cairn_tree_next(&tree, lines, NULL), "", out, sizeof out),
        "line one");
    cairn_tree_fini(&tree);
    free(text);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(status_is_json), SCENE(verdicts_are_shown), SCENE(enforcement_is_shown),
        SCENE(snapshots_are_listed_newest_first), cmocka_unit_test(restores_say_what_and_why)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
