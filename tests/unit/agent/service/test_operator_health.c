/* tests/unit/agent/service/test_operator_health.c - lost nodes, and what else `cairn status` warns
 * about. */
#include "agent/process/credentials.h"

#include "tests/support/operator_scene.h"

static void
healthy_is_ok(void **state)
{
    const struct operator_health *health = look(*state);

    assert_int_equal(health->level, OPERATOR_OK);
    assert_int_equal(health->check_count, 0);
    assert_int_equal(health->survives, PARITY);
    assert_true(health->survives_domain);
    assert_int_equal(health->missing, 0);
    assert_int_equal(health->lost_steps, 1);
    assert_int_equal(health->age_ns, 2000); /* the one node that saw the commit */
    assert_int_equal(health->bytes, NODES * 65536);
    assert_int_equal(health->fence_ns_p99, 1005); /* of the slowest */
    assert_true(health->restore_estimate_ns == UINT64_C(1500000000));
}

static void
losses_up_to_parity_warn(void **state)
{
    struct scene *scene = *state;
    const struct operator_health *health;

    lose(scene, 1);
    health = look(scene);
    assert_int_equal(health->level, OPERATOR_WARN);
    assert_int_equal(health->survives, 1);
    assert_non_null(strstr(check_of(health, "nodes-silent")->what, "node 1"));
    assert_non_null(check_of(health, "parts-missing"));
    lose(scene, 4);
    health = look(scene);
    assert_int_equal(health->level, OPERATOR_WARN);
    assert_int_equal(health->survives, 0);
    assert_null(check_of(health, "not-restorable"));
}

static void
one_loss_more_is_critical(void **state)
{
    struct scene *scene = *state;
    const struct operator_health *health;

    lose(scene, 1);
    lose(scene, 4);
    scene->nodes[5].parts[0].state = CAIRN_PART_REBUILDING; /* answers, but its part is not whole */
    health = look(scene);
    assert_int_equal(health->level, OPERATOR_CRITICAL);
    assert_int_equal(health->survives, -1);
    assert_non_null(check_of(health, "not-restorable"));
    assert_null(check_of(health, "no-majority")); /* four of six */
    lose(scene, 0);
    assert_non_null(check_of(look(scene), "no-majority")); /* half is not a majority */
}

static void
a_hosted_part_is_there(void **state)
{
    struct scene *scene = *state;
    const struct operator_health *health;

    scene->nodes[2].parts[1] = scene->nodes[1].parts[0];
    scene->nodes[2].part_count = 2;
    lose(scene, 1);
    health = look(scene);
    assert_int_equal(health->missing, 0);
    assert_int_equal(health->survives, 1); /* node 2 takes two parts along */
    assert_true(health->survives_domain);  /* and two may go */
    assert_non_null(check_of(health, "parts-together"));
    scene->nodes[2].parts[2] = scene->nodes[0].parts[0];
    scene->nodes[2].part_count = 3;
    lose(scene, 0);
    health = look(scene);
    assert_int_equal(health->missing, 0);
    assert_int_equal(health->survives, 0);
    assert_false(health->survives_domain);
}

static void
a_part_that_is_held_twice_is_lost_with_both(void **state)
{
    struct scene *scene = *state;
    const struct operator_health *health;

    scene->nodes[2].parts[1] = scene->nodes[1].parts[0];
    scene->nodes[2].part_count = 2;
    health = look(scene);
    assert_int_equal(health->missing, 0);
    assert_int_equal(health->survives, 2); /* nodes 1 and 2 take two parts along, as any two do */
    assert_null(check_of(health, "parts-together"));
    lose(scene, 1);
    assert_int_equal(look(scene)->survives, 1);
}

static void
who_blocks_a_commit_is_named(void **state)
{
    struct scene *scene = *state;
    const struct operator_health *health;
    const struct operator_check *check;

    scene->nodes[0].blocked_step = 120;
    scene->nodes[0].blocked_agent = 3;
    scene->nodes[0].blocked_for_agent = 5;
    scene->nodes[0].blocked_cause = CAIRN_WAIT_BLOCKS;
    scene->nodes[0].blocked_ms = 12000;
    health = look(scene);
    check = check_of(health, "commit-blocked");
    assert_non_null(check);
    assert_string_equal(check->what,
                        "step 120 is not committed since 12 s: node 3 waits for blocks of node 5");
    scene->nodes[0].blocked_ms = 1000; /* as long as a commit may take */
    assert_null(check_of(look(scene), "commit-blocked"));
}

static void
what_keeps_a_run_from_starting_is_shown(void **state)
{
    struct scene *scene = *state;
    const struct operator_health *health;

    snprintf(scene->nodes[0].refusal, sizeof scene->nodes[0].refusal, "w: no rank holds it");
    snprintf(scene->nodes[1].mismatch, sizeof scene->nodes[1].mismatch,
             "parity: 1 on node 4, 2 on node 1");
    scene->nodes[1].refused_peers = 1;
    scene->nodes[2].version_peers = 1;
    scene->nodes[3].blank = 1;
    health = look(scene);
    assert_int_equal(health->level, OPERATOR_CRITICAL);
    assert_string_equal(check_of(health, "run-not-assembled")->what, "w: no rank holds it");
    assert_string_equal(check_of(health, "options-differ")->what,
                        "parity: 1 on node 4, 2 on node 1");
    scene->nodes[1].refused_peers = 1;
    assert_non_null(check_of(health, "versions-differ"));
    assert_non_null(check_of(health, "node-blank"));
}

static void
a_failing_spill_is_named(void **state)
{
    struct scene *scene = *state;
    const struct operator_check *check;

    assert_null(check_of(look(scene), "spill-failed"));
    scene->nodes[1].spill_failed_ms = 9000;
    snprintf(scene->nodes[1].spill_failure, sizeof scene->nodes[1].spill_failure, "/old");
    scene->nodes[4].spill_failed_ms = 5000; /* it leads now */
    snprintf(scene->nodes[4].spill_failure, sizeof scene->nodes[4].spill_failure,
             "/new cannot be written to (errno 30: Read-only file system)");
    assert_int_equal(look(scene)->level, OPERATOR_WARN);
    check = check_of(&scene->health, "spill-failed");
    assert_non_null(check);
    assert_int_equal(check->level, OPERATOR_WARN);
    assert_string_equal(check->what,
                        "node 4: trouble with spills since 5 s: /new cannot be written to "
                        "(errno 30: Read-only file system)");
}

static void
domains_are_counted(void **state)
{
    struct scene *scene = *state;

    for (uint32_t i = 0; i < 2; i++)
        snprintf(scene->configured[i].domain, sizeof scene->configured[i].domain, "rack a");
    assert_true(look(scene)->survives_domain);
    snprintf(scene->configured[2].domain, sizeof scene->configured[2].domain, "rack a");
    assert_false(look(scene)->survives_domain);
    assert_int_equal(scene->health.level, OPERATOR_WARN);
}

static void
each_trouble_has_its_check(void **state)
{
    struct scene *scene = *state;

    scene->nodes[0].fenced = 1;
    scene->nodes[1].local_ranks = 2;
    scene->nodes[2].parts[0].bad_blocks = 3;
    scene->nodes[3].failed = 1;
    scene->nodes[4].skipped = 1000;
    scene->nodes[5].last_step = 40;
    scene->nodes[0].unkept = 1;
    scene->nodes[3].parts[0].age_ns = 2000000000;
    scene->nodes[1].denied_peers = 2;
    scene->nodes[2].ignored_addresses = 1;
    scene->files.configured = true;
    scene->files.err = CAIRN_DENIED;
    look(scene);
    assert_int_equal(scene->health.level, OPERATOR_WARN);
    assert_non_null(check_of(&scene->health, "restore-running"));
    assert_non_null(check_of(&scene->health, "memory-unkept"));
    assert_non_null(check_of(&scene->health, "peers-denied"));
    assert_non_null(check_of(&scene->health, "strangers-ignored"));
    assert_null(check_of(&scene->health, "not-a-member"));
    assert_non_null(check_of(&scene->health, "ranks-missing"));
    assert_non_null(check_of(&scene->health, "damaged-blocks"));
    assert_non_null(check_of(&scene->health, "snapshots-failed"));
    assert_non_null(check_of(&scene->health, "snapshots-skipped"));
    assert_non_null(check_of(&scene->health, "commits-behind"));
    assert_non_null(check_of(&scene->health, "spill-unreadable"));
    for (uint32_t i = 0; i < scene->health.check_count; i++)
        assert_true(scene->health.checks[i].fix[0] != '\0'); /* each finding with its fix */
}

/* One check for each state of certificates, by what ends first. */
static void
certificates_that_end_are_reported(void **state)
{
    struct scene *scene = *state;
    const struct operator_check *check;

    for (uint32_t i = 0; i < 6; i++) {
        scene->nodes[i].certificate_state = CAIRN_CERTIFICATE_VALID;
        scene->nodes[i].certificate_left_s = 3600;
    }
    look(scene);
    assert_null(check_of(&scene->health, "certificate-ends"));
    assert_null(check_of(&scene->health, "certificate-invalid"));
    scene->nodes[2].certificate_state = CAIRN_CERTIFICATE_DUE;
    scene->nodes[4].certificate_state = CAIRN_CERTIFICATE_DUE;
    scene->nodes[4].certificate_left_s = 300;
    look(scene);
    check = check_of(&scene->health, "certificate-ends");
    assert_non_null(check);
    assert_int_equal(check->level, OPERATOR_WARN);
    assert_non_null(strstr(check->what, "2 nodes"));
    assert_non_null(strstr(check->what, "node 4 in 5 minutes"));
    assert_null(check_of(&scene->health, "certificate-invalid"));
    scene->nodes[1].certificate_state = CAIRN_CERTIFICATE_EXPIRED;
    scene->nodes[3].certificate_state = CAIRN_CERTIFICATE_EARLY;
    scene->nodes[1].certificate_left_s = 0;
    look(scene);
    check = check_of(&scene->health, "certificate-invalid");
    assert_non_null(check);
    assert_int_equal(check->level, OPERATOR_CRITICAL);
    assert_non_null(strstr(check->what, "2 nodes"));
    assert_non_null(strstr(check->what, "first node 1"));
}

/* With steps of a millisecond most are skipped and many are not in the newest generation, which is
 * young all the same. */
static void
a_young_generation_is_enough(void **state)
{
    struct scene *scene = *state;

    scene->nodes[4].skipped = 1000;
    scene->nodes[5].last_step = 400;
    look(scene);
    assert_null(check_of(&scene->health, "snapshots-skipped"));
    assert_null(check_of(&scene->health, "commits-behind"));
}

/* A job that began again without restoring is unprotected until it passes what is held. */
static void
a_job_that_has_not_restored_is_warned(void **state)
{
    struct scene *scene = *state;

    for (uint32_t i = 0; i < NODES; i++)
        scene->nodes[i].last_step = 3;
    scene->nodes[3].parts[0].age_ns = 2000000000;
    look(scene);
    assert_non_null(check_of(&scene->health, "not-restored"));
    assert_int_equal(scene->health.level, OPERATOR_WARN);
    scene->nodes[1].last_step = 30;
    look(scene);
    assert_null(check_of(&scene->health, "not-restored"));
}

static void
trainers_outside_the_epoch_are_critical(void **state)
{
    struct scene *scene = *state;

    scene->nodes[4].trainers = 0;
    scene->nodes[4].member = UINT32_MAX;
    look(scene);
    assert_null(check_of(&scene->health, "not-a-member")); /* a spare */
    scene->nodes[4].trainers = 1;
    look(scene);
    assert_int_equal(scene->health.level, OPERATOR_CRITICAL);
    assert_non_null(check_of(&scene->health, "not-a-member"));
}

static void
nothing_committed_warns(void **state)
{
    struct scene *scene = *state;

    for (uint32_t i = 0; i < NODES; i++) {
        scene->nodes[i].committed_step = scene->nodes[i].committed_epoch = 0;
        scene->nodes[i].part_count = 0;
    }
    assert_int_equal(look(scene)->level, OPERATOR_WARN);
    assert_non_null(check_of(&scene->health, "nothing-committed"));
    assert_int_equal(scene->health.lost_steps, 31);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {SCENE(healthy_is_ok),
                                       SCENE(losses_up_to_parity_warn),
                                       SCENE(one_loss_more_is_critical),
                                       SCENE(a_hosted_part_is_there),
                                       SCENE(a_part_that_is_held_twice_is_lost_with_both),
                                       SCENE(who_blocks_a_commit_is_named),
                                       SCENE(what_keeps_a_run_from_starting_is_shown),
                                       SCENE(a_failing_spill_is_named),
                                       SCENE(domains_are_counted),
                                       SCENE(each_trouble_has_its_check),
                                       SCENE(certificates_that_end_are_reported),
                                       SCENE(a_young_generation_is_enough),
                                       SCENE(a_job_that_has_not_restored_is_warned),
                                       SCENE(trainers_outside_the_epoch_are_critical),
                                       SCENE(nothing_committed_warns)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
