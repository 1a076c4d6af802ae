/* tests/unit/agent/service/test_operator.c - what operators are told: a node's view between agents,
 * health and its checks, the answers' JSON. */
#include "agent/process/credentials.h"
#include "agent/service/operator_coverage.h"
#include "agent/service/operator_files.h"
#include "agent/service/operator_health.h"
#include "agent/service/operator_launcher.h"
#include "agent/service/operator_node.h"
#include "agent/service/operator_replan.h"
#include "agent/service/operator_report.h"

#include "tools/tree.h"
#include "tests/support/cmocka.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NODES = 6, PARITY = 2 };

static const struct cairn_generation_id newest = {.epoch = UINT64_C(1) << OPERATOR_EPOCH_SHIFT,
                                                  .step = 30};

struct scene {
    struct cairn_config config;
    struct cairn_config_node configured[NODES];
    struct operator_node nodes[NODES];
    struct operator_files files;
    struct cairn_roster *roster;
    struct operator_job job;
    struct operator_health health;
};

/* Six healthy nodes, one group of 4 + 2, generation 1:30 committed everywhere, one step later. */
static int
set_up(void **state)
{
    struct scene *scene = calloc(1, sizeof *scene);
    uint32_t agents[NODES];

    if (!scene)
        return -1;
    scene->config.nodes = scene->configured;
    scene->config.node_count = NODES;
    scene->config.snapshot_every_steps = 1;
    scene->config.dead_after_ms = 1000;
    snprintf(scene->config.job, sizeof scene->config.job, "job \"quoted\"");
    for (uint32_t i = 0; i < NODES; i++) {
        struct operator_node *node = &scene->nodes[i];

        agents[i] = i;
        snprintf(scene->configured[i].address, sizeof scene->configured[i].address, "127.0.0.1:%u",
                 7000 + i);
        *node = (struct operator_node){.known = true,
                                       .alive = true,
                                       .member = i,
                                       .active = newest.epoch,
                                       .trainers = 1,
                                       .local_ranks = 1,
                                       .last_step = 31,
                                       .committed_epoch = newest.epoch,
                                       .committed_step = newest.step,
                                       .protect_ns = 500000000,
                                       .reserved_bytes = 100,
                                       .state_bytes = 10,
                                       .captured = 30,
                                       .fence_count = 30,
                                       .fence_ns_p99 = 1000 + i,
                                       .part_count = 1};
        node->parts[0] = (struct operator_part){.generation = newest,
                                                .member = i,
                                                .state = CAIRN_PART_COMPLETE,
                                                .committed = 1,
                                                .data_bytes = 65536,
                                                .age_ns = i == 3 ? 2000 : OPERATOR_UNKNOWN};
    }
    if (cairn_roster_build(agents, NULL, NODES, PARITY, NODES, &scene->roster) != CAIRN_OK)
        return -1;
    *state = scene;
    return 0;
}

static int
tear_down(void **state)
{
    struct scene *scene = *state;

    cairn_roster_drop(scene->roster);
    free(scene);
    return 0;
}

static const struct operator_health *
look(struct scene *scene)
{
    scene->job = (struct operator_job){.config = &scene->config,
                                       .nodes = scene->nodes,
                                       .roster = scene->roster,
                                       .files = &scene->files};
    scene->job.newest = operator_newest(scene->nodes, NODES, &scene->job.newest_from_files);
    operator_health_find(&scene->job, &scene->health);
    return &scene->health;
}

static const struct operator_check *
check_of(const struct operator_health *health, const char *code)
{
    for (uint32_t i = 0; i < health->check_count; i++)
        if (strcmp(health->checks[i].code, code) == 0)
            return &health->checks[i];
    return NULL;
}

static void
lose(struct scene *scene, uint32_t node)
{
    memset(&scene->nodes[node], 0, sizeof scene->nodes[node]);
}

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
    scene->files.configured = true;
    scene->files.err = CAIRN_DENIED;
    look(scene);
    assert_int_equal(scene->health.level, OPERATOR_WARN);
    assert_non_null(check_of(&scene->health, "restore-running"));
    assert_non_null(check_of(&scene->health, "memory-unkept"));
    assert_non_null(check_of(&scene->health, "peers-denied"));
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

/* A node's view goes through its JSON unchanged, and numbers of a newer version are passed over. */
static void
views_travel(void **state)
{
    struct scene *scene = *state;
    struct operator_node out;
    struct cairn_json_writer writer;
    struct cairn_json_reader reader;
    char *text, *newer;
    size_t len;

    scene->nodes[3].member = UINT32_MAX;
    scene->nodes[3].uptime_ns = UINT64_MAX;
    snprintf(scene->nodes[3].spill_failure, sizeof scene->nodes[3].spill_failure, "/spill: \"a\"");
    snprintf(scene->nodes[3].launcher_note, sizeof scene->nodes[3].launcher_note, "[\"a\", 1]");
    scene->nodes[3].launcher = 1;
    cairn_json_writer_init(&writer);
    operator_node_write(&writer, &scene->nodes[3]);
    assert_int_equal(cairn_json_writer_done(&writer, &text, &len), CAIRN_OK);
    cairn_json_reader_init(&reader, text, len);
    assert_true(operator_node_read(&reader, &out));
    assert_int_equal(cairn_json_reader_done(&reader), CAIRN_OK);
    out.alive = true;
    assert_memory_equal(&out, &scene->nodes[3], sizeof out);
    newer = malloc(len + 64);
    assert_non_null(newer);
    len = (size_t)sprintf(newer, "{\"of_tomorrow\":5,%s", text + 1);
    cairn_json_reader_init(&reader, newer, len);
    assert_true(operator_node_read(&reader, &out));
    assert_int_equal(out.member, UINT32_MAX);
    for (size_t cut = 0; cut < len; cut++) { /* half a view is none */
        cairn_json_reader_init(&reader, newer, cut);
        assert_false(operator_node_read(&reader, &out) &&
                     cairn_json_reader_done(&reader) == CAIRN_OK);
    }
    free(newer);
    free(text);
}

/* ---- launchers ---- */

/* One session has the note until it ends; the note outlives it. */
static void
a_note_has_one_session(void **state)
{
    struct operator_launcher launcher = {0};

    (void)state;
    assert_true(operator_launcher_take(&launcher, 7, "joins"));
    assert_true(operator_launcher_take(&launcher, 7, "trains"));
    assert_false(operator_launcher_take(&launcher, 8, "another"));
    operator_launcher_leave(&launcher, 8);
    assert_false(operator_launcher_take(&launcher, 8, "another"));
    operator_launcher_leave(&launcher, 7);
    assert_int_equal(launcher.serial, 0);
    assert_string_equal(launcher.note, "trains");
    assert_true(operator_launcher_take(&launcher, 8, "another"));
    assert_string_equal(launcher.note, "another");
}

/* ---- what is covered ---- */

static struct operator_uncovered
thing(uint64_t kind, uint64_t rank, const char *name, const char *reason)
{
    struct operator_uncovered item = {.kind = kind, .rank = rank, .ranks = 1};

    snprintf(item.name, sizeof item.name, "%s", name);
    snprintf(item.reason, sizeof item.reason, "%s", reason);
    return item;
}

/* A node whose two ranks hold a parameter and two moments each. */
static void
cover(struct scene *scene, uint32_t node)
{
    struct operator_coverage *coverage = calloc(1, sizeof *coverage);

    assert_non_null(coverage);
    for (uint32_t r = 0; r < 2; r++)
        coverage->ranks[r] = (struct operator_rank){.rank = 2 * node + r,
                                                    .reports = 1,
                                                    .tensors = {0, 1, 2, 0, 0},
                                                    .bytes = {0, 100, 200, 0, 0}};
    coverage->rank_count = 2;
    scene->nodes[node].coverage = coverage;
}

static void
uncover(struct scene *scene, uint32_t node, const struct operator_uncovered *item)
{
    struct operator_uncovered_list *list = &scene->nodes[node].coverage->uncovered;

    list->items[list->count++] = *item;
    scene->nodes[node].coverage->ranks[0].uncovered += item->kind != 0;
    scene->nodes[node].coverage->ranks[0].refuses |= item->kind == 0;
}

static void
end_coverage(struct scene *scene)
{
    for (uint32_t i = 0; i < NODES; i++)
        operator_node_fini(&scene->nodes[i]);
}

static void
what_is_not_covered_warns(void **state)
{
    struct scene *scene = *state;
    struct operator_uncovered buffer = thing(CAIRN_BUFFER, 0, "mask", "it is on the meta device");
    struct operator_uncovered moment = thing(CAIRN_OPTIMIZER, 2, "m.w", "its layout is sparse");

    cover(scene, 0);
    cover(scene, 1);
    assert_int_equal(look(scene)->level, OPERATOR_OK);
    assert_int_equal(scene->health.ranks, 4);
    assert_int_equal(scene->health.tensors[CAIRN_OPTIMIZER], 8);
    assert_int_equal(scene->health.tensor_bytes[CAIRN_PARAM], 400);
    uncover(scene, 0, &buffer);
    assert_int_equal(look(scene)->level, OPERATOR_OK); /* worth knowing, no more */
    assert_int_equal(scene->health.uncovered.count, 1);
    uncover(scene, 1, &moment);
    moment.rank = 1;
    uncover(scene, 0, &moment);
    assert_int_equal(look(scene)->level, OPERATOR_WARN);
    assert_non_null(
        strstr(check_of(&scene->health, "not-covered")->what,
               "1 tensor of model or optimizer is not covered; m.w: its layout is sparse"));
    assert_int_equal(scene->health.uncovered.count, 2); /* two nodes say the same of one tensor */
    assert_int_equal(scene->health.uncovered.items[0].kind, CAIRN_OPTIMIZER);
    assert_int_equal(scene->health.uncovered.items[0].ranks, 2);
    assert_int_equal(scene->health.uncovered.items[0].rank, 1);
    end_coverage(scene);
}

static void
a_refusal_warns(void **state)
{
    struct scene *scene = *state;
    struct operator_uncovered refusal = thing(0, 5, "", "LBFGS keeps one state");

    cover(scene, 2);
    uncover(scene, 2, &refusal);
    assert_int_equal(look(scene)->level, OPERATOR_WARN);
    assert_non_null(strstr(check_of(&scene->health, "snapshots-refused")->what,
                           "1 rank takes no snapshots; rank 5: LBFGS keeps one state"));
    assert_null(check_of(&scene->health, "not-covered"));
    end_coverage(scene);
}

/* More than there is room for: the refusal and the model's tensors are kept, the others counted. */
static void
the_worst_is_kept(void **state)
{
    struct scene *scene = *state;
    char name[32];

    cover(scene, 0);
    cover(scene, 1);
    for (uint32_t i = 0; i < OPERATOR_UNCOVERED_MAX; i++) {
        struct operator_uncovered item;

        snprintf(name, sizeof name, "b%u", i);
        item = thing(CAIRN_BUFFER, 0, name, "x");
        uncover(scene, 0, &item);
    }
    for (uint32_t i = 0; i < 3; i++) {
        struct operator_uncovered item;

        snprintf(name, sizeof name, "p%u", i);
        item = thing(i ? CAIRN_PARAM : 0, 2, name, "x");
        uncover(scene, 1, &item);
    }
    look(scene);
    assert_int_equal(scene->health.uncovered.count, OPERATOR_UNCOVERED_MAX);
    assert_int_equal(scene->health.uncovered.left_out, 3);
    assert_int_equal(scene->health.uncovered.items[0].kind, 0);
    assert_int_equal(scene->health.uncovered.items[2].kind, CAIRN_PARAM);
    assert_int_equal(scene->health.uncovered.items[3].kind, CAIRN_BUFFER);
    end_coverage(scene);
}

static bool
reads(const char *text, struct operator_node *out)
{
    struct cairn_json_reader reader;

    memset(out, 0, sizeof *out);
    cairn_json_reader_init(&reader, text, strlen(text));
    if (!operator_node_read(&reader, out))
        return false;
    if (cairn_json_reader_done(&reader) == CAIRN_OK)
        return true;
    operator_node_fini(out);
    return false;
}

static void
coverage_travels(void **state)
{
    struct scene *scene = *state;
    struct operator_uncovered moment = thing(CAIRN_OPTIMIZER, 0, "m \"q\"", "\xc3\xbc");
    struct operator_uncovered refusal = thing(0, 0, "", "why");
    struct cairn_json_writer writer;
    struct operator_node out;
    char *text, *cut;
    size_t len;

    cover(scene, 0);
    uncover(scene, 0, &refusal);
    uncover(scene, 0, &moment);
    scene->nodes[0].coverage->uncovered.left_out = 7;
    cairn_json_writer_init(&writer);
    operator_node_write(&writer, &scene->nodes[0]);
    assert_int_equal(cairn_json_writer_done(&writer, &text, &len), CAIRN_OK);
    assert_true(reads(text, &out));
    assert_memory_equal(out.coverage, scene->nodes[0].coverage, sizeof *out.coverage);
    operator_node_fini(&out);
    cut = strdup(text);
    assert_non_null(cut);
    for (size_t at = 0; at < len; at++) { /* half a view is none, and leaves nothing behind */
        memcpy(cut, text, len);
        cut[at] = '\0';
        assert_false(reads(cut, &out));
    }
    free(cut);
    free(text);
    end_coverage(scene);
}

/* A peer that is not what it should be. */
static void
hostile_coverage_is_refused(void **state)
{
    static const char *const hostile[] = {
        "{\"coverage\":{\"ranks\":[[1,2]]}}",
        "{\"coverage\":5}",
        "{\"coverage\":{\"uncovered\":[{\"kind\":5}]}}",
        "{\"coverage\":{\"uncovered\":[{\"kind\":1,\"name\":\"a\\u001b[31m\"}]}}",
        "{\"coverage\":{\"uncovered\":[{\"kind\":1,\"reason\":\"a\\nb\"}]}}",
        "{\"coverage\":{\"uncovered\":[{\"kind\":1,\"reason\":\"\\u009b\"}]}}",
        "{\"coverage\":{\"uncovered\":[{\"kind\":1,\"name\":7}]}}",
        "{\"coverage\":{},\"coverage\":{}}"};
    struct operator_node out;
    char longer[1024];

    (void)state;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++)
        assert_false(reads(hostile[i], &out));
    snprintf(longer, sizeof longer,
             "{\"coverage\":{\"uncovered\":[{\"kind\":1,\"name\":\"%0300d\"}]}}", 1);
    assert_false(reads(longer, &out));
    assert_true(reads(
        "{\"coverage\":{\"uncovered\":[{\"kind\":1,\"name\":\"a\",\"of_tomorrow\":3}]}}", &out));
    assert_int_equal(out.coverage->uncovered.count, 1);
    operator_node_fini(&out);
}

/* Additions of a newer agent are passed over. */
static void
newer_views_are_read(void **state)
{
    struct operator_node out;

    (void)state;
    assert_true(reads(
        "{\"of_tomorrow\":{\"a\":[1,{\"b\":null}],\"c\":\"}\"},\"coverage\":{\"totals\":{\"x\":[1."
        "5,true]},"
        "\"uncovered\":[{\"since\":{\"step\":3},\"kind\":2,\"name\":\"m\",\"why\":\"text\"}]}}",
        &out));
    assert_int_equal(out.coverage->uncovered.count, 1);
    assert_string_equal(out.coverage->uncovered.items[0].name, "m");
    operator_node_fini(&out);
    assert_false(reads("{\"of_tomorrow\":{\"a\":[1,}}", &out));
}

static struct cairn_tree
parse(struct cairn_json_writer *writer, char **text)
{
    struct cairn_tree tree;
    size_t len;

    assert_int_equal(cairn_json_writer_done(writer, text, &len), CAIRN_OK);
    assert_int_equal(cairn_tree_parse(*text, len, &tree), CAIRN_OK);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "schema", 0), 1);
    return tree;
}

static void
launchers_are_listed(void **state)
{
    struct scene *scene = *state;
    const struct cairn_tree_value *nodes, *node = NULL;
    struct cairn_json_writer writer;
    struct cairn_tree tree;
    char *text, note[64];

    lose(scene, 0);
    scene->nodes[1].launcher = 1;
    snprintf(scene->nodes[1].launcher_note, sizeof scene->nodes[1].launcher_note, "\"x\"");
    scene->nodes[2].member = UINT32_MAX; /* a spare holds nothing, nor who has forgotten it */
    scene->nodes[3].blank = 1;
    look(scene);
    cairn_json_writer_init(&writer);
    operator_write_launchers(&writer, &scene->job, 1);
    tree = parse(&writer, &text);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "node", 9), 1);
    nodes = cairn_tree_find(&tree, NULL, "nodes");
    for (uint32_t i = 0; i < NODES; i++) {
        node = cairn_tree_next(&tree, nodes, node);
        assert_non_null(node);
        assert_int_equal(cairn_tree_u64(&tree, node, "node", 9), i);
        assert_int_equal(cairn_tree_bool(&tree, node, "answered", false), i != 0);
        assert_int_equal(cairn_tree_bool(&tree, node, "holds", false), i == 1 || i > 3);
        assert_int_equal(cairn_tree_bool(&tree, node, "launcher", false), i == 1);
        cairn_tree_text(&tree, node, "note", note, sizeof note);
        assert_string_equal(note, i == 1 ? "\"x\"" : "");
    }
    assert_null(cairn_tree_next(&tree, nodes, node));
    cairn_tree_fini(&tree);
    free(text);
    cairn_json_writer_fini(&writer);
}

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

static void
status_shows_coverage(void **state)
{
    struct scene *scene = *state;
    struct operator_uncovered buffer = thing(CAIRN_BUFFER, 0, "mask", "it is on the meta device");
    struct operator_uncovered refusal = thing(0, 1, "", "why");
    const struct cairn_tree_value *list, *entry;
    struct cairn_json_writer writer;
    struct cairn_tree tree;
    char *text, out[64];

    cover(scene, 0);
    uncover(scene, 0, &refusal);
    uncover(scene, 0, &buffer);
    look(scene);
    cairn_json_writer_init(&writer);
    operator_write_status(&writer, &scene->job, &scene->health, 0);
    tree = parse(&writer, &text);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "coverage.ranks_known", 0), 2);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "coverage.ranks_refusing", 0), 1);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "coverage.tensors.optimizer", 0), 4);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "coverage.bytes.parameter", 0), 200);
    list = cairn_tree_find(&tree, NULL, "coverage.uncovered");
    assert_int_equal(list->count, 1);
    entry = cairn_tree_next(&tree, list, NULL);
    assert_string_equal(cairn_tree_text(&tree, entry, "kind", out, sizeof out), "buffer");
    assert_string_equal(cairn_tree_text(&tree, entry, "name", out, sizeof out), "mask");
    assert_string_equal(cairn_tree_text(&tree, entry, "reason", out, sizeof out),
                        "it is on the meta device");
    list = cairn_tree_find(&tree, NULL, "coverage.refusals");
    assert_int_equal(list->count, 1);
    assert_string_equal(
        cairn_tree_text(&tree, cairn_tree_next(&tree, list, NULL), "reason", out, sizeof out),
        "why");
    list = cairn_tree_find(&tree, NULL, "coverage.ranks");
    assert_int_equal(list->count, 2);
    entry = cairn_tree_next(&tree, list, NULL);
    assert_true(cairn_tree_bool(&tree, entry, "refuses", false));
    assert_int_equal(cairn_tree_u64(&tree, entry, "uncovered", 0), 1);
    assert_int_equal(cairn_tree_u64(&tree, entry, "bytes.optimizer", 0), 200);
    cairn_tree_fini(&tree);
    free(text);
    end_coverage(scene);
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

/* What the analyst advises about the plan; numbers of another version that mean nothing here are
 * not advice. */
static void
advice_is_shown(void **state)
{
    static const char *const actions[] = {
        [0] = NULL, [1] = "microbatches", [3] = "groups", [9] = NULL};
    struct scene *scene = *state;
    struct operator_node *analyst = &scene->nodes[2];

    analyst->analyses = 1;
    analyst->advice_current_ns = OPERATOR_UNKNOWN; /* the plan that runs cannot go on */
    analyst->advice_step_ns = 200000000;
    analyst->advice_cost_ns = 10000000000;
    for (uint64_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        struct cairn_json_writer writer;
        struct cairn_tree tree;
        char *text, out[512];

        if (i != 0 && i != 9 && !actions[i])
            continue;
        analyst->advice_action = i;
        look(scene);
        cairn_json_writer_init(&writer);
        operator_write_status(&writer, &scene->job, &scene->health, 0);
        tree = parse(&writer, &text);
        if (!actions[i]) {
            assert_null(cairn_tree_find(&tree, NULL, "replan.advice.action"));
        } else {
            assert_string_equal(
                cairn_tree_text(&tree, NULL, "replan.advice.action", out, sizeof out), actions[i]);
            assert_non_null(
                strstr(cairn_tree_text(&tree, NULL, "replan.advice.what", out, sizeof out),
                       "the plan that runs cannot go on; steps of 200 ms then, for 10 s of "
                       "standing still"));
            assert_true(fabs(cairn_tree_double(&tree, NULL, "replan.advice.cost_ms", 0) - 10000) <
                        1e-6);
            assert_true(isnan(cairn_tree_double(&tree, NULL, "replan.advice.current_ms", NAN)));
        }
        assert_false(cairn_tree_bool(&tree, NULL, "replan.enforced", true));
        cairn_tree_fini(&tree);
        free(text);
    }
}

static void
offered_shares_are_reported(void **state)
{
    struct scene *scene = *state;
    static const struct proposal_book book = {
        .offer.placement = {
            .number = 7, .count = 2, .parts = {8, 4}, .stages = 2, .layers = {4, 4, 1, 7}}};
    const struct cairn_tree_value *parts, *part = NULL, *layers;
    struct cairn_json_writer writer;
    struct cairn_tree tree;
    uint64_t sum = 0;
    char *text;

    scene->nodes[0].offer_number = scene->nodes[2].offer_number = 7;
    scene->nodes[1].offer_number = 6; /* does not know the offer yet */
    for (uint32_t i = 0; i < 3; i++)
        scene->nodes[i].offer_askers = scene->nodes[i].offer_takers = 2;
    scene->nodes[2].offer_takers = 1;
    scene->nodes[0].offer_changes = scene->nodes[2].offer_changes = 3;
    scene->nodes[1].offer_changes = 2;
    look(scene);
    scene->job.book = &book;
    cairn_json_writer_init(&writer);
    operator_write_status(&writer, &scene->job, &scene->health, 0);
    tree = parse(&writer, &text);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "replan.offer.number", 0), 7);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "replan.offer.ranks_asking", 0), 6);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "replan.offer.ranks_taken", 0), 3);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "replan.offer.changes_today", 0), 3);
    parts = cairn_tree_find(&tree, NULL, "replan.offer.micro_batches");
    while ((part = cairn_tree_next(&tree, parts, part)) != NULL)
        sum += cairn_tree_u64(&tree, part, "", 0);
    assert_int_equal(sum, 12);
    sum = 0;
    parts = cairn_tree_find(&tree, NULL, "replan.offer.layers");
    while ((part = cairn_tree_next(&tree, parts, part)) != NULL)
        for (layers = NULL; (layers = cairn_tree_next(&tree, part, layers)) != NULL;)
            sum = sum * 10 + cairn_tree_u64(&tree, layers, "", 0);
    assert_int_equal(sum, 4417);
    cairn_tree_fini(&tree);
    free(text);
}

/* ---- `cairn replan` ---- */

static struct cairn_tree
write_replan(struct scene *scene, char **text, int exit_code)
{
    struct cairn_json_writer writer;

    cairn_json_writer_init(&writer);
    assert_int_equal(operator_replan_write(&writer, &scene->job), exit_code);
    return parse(&writer, text);
}

static void
a_proposal_is_shown_with_its_reasons(void **state)
{
    static struct proposal_book book;
    static struct cairn_ledger ledger;
    const struct proposal home = {.placement = {.count = 2, .parts = {6, 6}}, .is_home = true};
    struct scene *scene = *state;
    const struct cairn_tree_value *slow;
    struct cairn_tree tree;
    char *text, out[256];

    look(scene);
    cairn_ledger_init(&ledger);
    /* it has come back with step 20; its link, slow since before, is another matter */
    ledger.entries[ledger.count++] = (struct cairn_ledger_entry){.kind = CAIRN_SLOW_COMPUTE,
                                                                 .rank_count = 1,
                                                                 .ranks = {4},
                                                                 .since_step = 9,
                                                                 .run_since_step = 20,
                                                                 .returns = 1,
                                                                 .until_step = CAIRN_STEP_NONE};
    ledger.entries[ledger.count++] = (struct cairn_ledger_entry){.kind = CAIRN_SLOW_LINK,
                                                                 .rank_count = 2,
                                                                 .ranks = {4, 5},
                                                                 .since_step = 10,
                                                                 .run_since_step = 10,
                                                                 .until_step = CAIRN_STEP_NONE};
    book = (struct proposal_book){.offer = {.placement = {.number = 2, .count = 2, .parts = {8, 4}},
                                            .action = CAIRN_REPLAN_MICROBATCHES,
                                            .step_ms = 320,
                                            .decided = PROPOSAL_APPROVED,
                                            .node = 1,
                                            .slow = {.count = 1, .ranks = {4}, .rates = {2}}},
                                  .waiting = {.placement = {.number = 3,
                                                            .count = 2,
                                                            .parts = {7, 5},
                                                            .stages = 2,
                                                            .layers = {4, 4, 5, 3}},
                                              .action = CAIRN_REPLAN_LAYERS,
                                              .current_ms = 448,
                                              .step_ms = 288,
                                              .bound_ms = 288,
                                              .cost_ms = 1000,
                                              .payback_steps = 7,
                                              .moved_layers = 1,
                                              .moved_bytes = 1 << 20,
                                              .made_wall_ns = 5,
                                              .slow = {.count = 1, .ranks = {4}, .rates = {2.1}}},
                                  .ended_count = 1,
                                  .ended = {{2, PROPOSAL_APPROVED, 1, 77, 4}},
                                  .is_all_denied = true};
    scene->config.plan_policy = CAIRN_PLAN_APPROVE;
    scene->job.book = &book;
    scene->job.home = &home;
    scene->job.ledger = &ledger;
    scene->job.wall_ns = 9;
    scene->nodes[2].analyses = 1;
    scene->nodes[2].analysis_step_ns = 325000000;
    tree = write_replan(scene, &text, 0);
    assert_string_equal(cairn_tree_text(&tree, NULL, "policy", out, sizeof out), "approve");
    assert_int_equal(cairn_tree_u64(&tree, NULL, "proposal.number", 0), 3);
    assert_string_equal(cairn_tree_text(&tree, NULL, "proposal.action", out, sizeof out), "layers");
    assert_true(fabs(cairn_tree_double(&tree, NULL, "proposal.step_ms", 0) - 288) < 1e-9);
    assert_true(fabs(cairn_tree_double(&tree, NULL, "proposal.running_ms", 0) - 320) < 1e-9);
    assert_true(fabs(cairn_tree_double(&tree, NULL, "proposal.price_ms", 0) - 1000) < 1e-9);
    assert_true(fabs(cairn_tree_double(&tree, NULL, "measured_ms", 0) - 325) < 1e-9);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "proposal.moved_layers", 0), 1);
    slow = cairn_tree_next(&tree, cairn_tree_find(&tree, NULL, "proposal.slow"), NULL);
    assert_int_equal(cairn_tree_u64(&tree, slow, "rank", 0), 4);
    assert_int_equal(cairn_tree_u64(&tree, slow, "since_step", 0), 20);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "offer.number", 0), 2);
    assert_string_equal(cairn_tree_text(&tree, NULL, "offer.decided", out, sizeof out), "approved");
    assert_int_equal(cairn_tree_u64(&tree, NULL, "offer.decided_node", 0), 1);
    assert_true(cairn_tree_bool(&tree, NULL, "denied.all", false));
    assert_int_equal(cairn_tree_find(&tree, NULL, "ended")->count, 1);
    assert_int_equal(cairn_tree_find(&tree, NULL, "home.micro_batches")->count, 2);
    assert_null(cairn_tree_find(&tree, NULL, "nothing"));
    cairn_tree_fini(&tree);
    free(text);
    /* under other evidence what was offered cannot be compared, and nobody knows since when */
    book.offer.slow.rates[0] = 4;
    ledger.entries[0].closed_wall_ns = 1;
    tree = write_replan(scene, &text, 0);
    assert_null(cairn_tree_find(&tree, NULL, "proposal.running_ms"));
    slow = cairn_tree_next(&tree, cairn_tree_find(&tree, NULL, "proposal.slow"), NULL);
    assert_null(cairn_tree_find(&tree, slow, "since_step"));
    cairn_tree_fini(&tree);
    free(text);
    /* what is away from home is worth a look */
    book.waiting.placement.count = 0;
    tree = write_replan(scene, &text, 0);
    assert_null(cairn_tree_find(&tree, NULL, "proposal"));
    cairn_tree_fini(&tree);
    free(text);
    book.offer.is_home = true;
    tree = write_replan(scene, &text, 4);
    cairn_tree_fini(&tree);
    free(text);
}

static void
nothing_is_proposed_for_a_reason(void **state)
{
    static struct proposal_book book;
    static const char *const reasons[] = {
        "set `problem`",           "plan_policy is advise",      "no trainer asks",
        "the job is not timed",    "what is normal is being",    "no other plan gains enough",
        "what is advised is runn", "what is advised was denied",
    };
    struct scene *scene = *state;
    struct operator_node *analyst = &scene->nodes[2];
    char *text, out[256];

    memset(&book, 0, sizeof book);
    look(scene);
    scene->job.book = &book;
    for (uint32_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        struct cairn_tree tree;

        if (i == 1) {
            snprintf(scene->config.problem, sizeof scene->config.problem, "/p.json");
            scene->config.plan_policy = CAIRN_PLAN_ADVISE;
        }
        scene->config.plan_policy = i >= 2 ? CAIRN_PLAN_APPROVE : scene->config.plan_policy;
        scene->nodes[4].offer_askers = i >= 3;
        analyst->analyses = analyst->analysis_ranks = i >= 4;
        analyst->analysis_calibrated = i >= 5;
        analyst->advice_action = i >= 6;
        book.denied_count = i >= 7;
        tree = write_replan(scene, &text, 4);
        cairn_tree_text(&tree, NULL, "nothing", out, sizeof out);
        if (!strstr(out, reasons[i]))
            fail_msg("\"%s\" does not say \"%s\"", out, reasons[i]);
        cairn_tree_fini(&tree);
        free(text);
    }
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
poison(struct operator_node *node, uint64_t step, uint64_t first_step)
{
    node->poison_epoch = newest.epoch;
    node->poison_step = step;
    node->poison_first_step = first_step;
    node->poison_rank = 7;
    node->poison_tensors = 2;
    snprintf(node->poison_name, sizeof node->poison_name, "layer.weight");
}

/* What was not kept is critical until a later generation is committed; it names rank, tensor, step.
 */
static void
poison_that_was_not_kept_is_critical(void **state)
{
    struct scene *scene = *state;
    const struct operator_check *check;

    poison(&scene->nodes[1], 29, 28);
    assert_null(check_of(look(scene), "poisoned")); /* 30 is committed */
    poison(&scene->nodes[1], 31, 31);
    check = check_of(look(scene), "poisoned");
    assert_non_null(check);
    assert_int_equal(scene->health.level, OPERATOR_CRITICAL);
    assert_non_null(strstr(check->what, "step 31 is"));
    assert_non_null(strstr(check->what, "rank 7"));
    assert_non_null(strstr(check->what, "layer.weight and 1 more"));
    assert_non_null(strstr(check->fix, "step 30"));
    poison(&scene->nodes[1], 33, 32); /* of two that know the last, who knows the first */
    poison(&scene->nodes[2], 33, 31);
    poison(&scene->nodes[3], 32, 31);
    scene->nodes[2].poison_rank = 8;
    check = check_of(look(scene), "poisoned");
    assert_non_null(strstr(check->what, "steps 31 to 33 are"));
    assert_non_null(strstr(check->what, "rank 8"));
    scene->nodes[2].poison_tensors = 0;
    snprintf(scene->nodes[2].poison_reason, sizeof scene->nodes[2].poison_reason, "loss spike");
    assert_non_null(strstr(check_of(look(scene), "poisoned")->what, "rejected it: loss spike"));
    scene->nodes[0].committed_step = 34;
    assert_null(check_of(look(scene), "poisoned"));
}

/* What was kept is a warning while it is the newest. */
static void
poison_that_was_kept_warns(void **state)
{
    struct scene *scene = *state;

    poison(&scene->nodes[1], newest.step, newest.step);
    scene->nodes[1].poison_kept = 1;
    assert_non_null(check_of(look(scene), "poisoned-kept"));
    assert_null(check_of(&scene->health, "poisoned"));
    assert_int_equal(scene->health.level, OPERATOR_WARN);
    scene->nodes[0].committed_step = newest.step + 1;
    assert_null(check_of(look(scene), "poisoned-kept"));
}

static void
what_never_was_finite_warns(void **state)
{
    struct scene *scene = *state;
    const struct operator_check *check;

    scene->nodes[4].unwatched_tensors = 3;
    scene->nodes[4].unwatched_rank = 9;
    snprintf(scene->nodes[4].unwatched_name, sizeof scene->nodes[4].unwatched_name, "head.bias");
    check = check_of(look(scene), "never-finite");
    assert_non_null(check);
    assert_int_equal(scene->health.level, OPERATOR_WARN);
    assert_non_null(strstr(check->what, "rank 9: 3 tensors"));
    assert_non_null(strstr(check->what, "head.bias"));
}

static void
poisoned_generations_are_listed(void **state)
{
    struct scene *scene = *state;
    const struct cairn_tree_value *list, *entry;
    struct cairn_json_writer writer;
    struct cairn_tree tree;
    char *text, out[512];

    for (int kept = 0; kept < 2; kept++) {
        poison(&scene->nodes[1], newest.step + 1 - (uint64_t)kept, newest.step);
        scene->nodes[1].poison_kept = (uint64_t)kept;
        look(scene);
        cairn_json_writer_init(&writer);
        operator_write_snapshots(&writer, &scene->job);
        tree = parse(&writer, &text);
        list = cairn_tree_find(&tree, NULL, "generations");
        assert_int_equal(list->count, 2 - kept);
        entry = cairn_tree_next(&tree, list, NULL);
        assert_string_equal(cairn_tree_text(&tree, entry, "state", out, sizeof out),
                            kept ? "committed" : "poisoned");
        assert_non_null(
            strstr(cairn_tree_text(&tree, entry, "why", out, sizeof out), "layer.weight"));
        cairn_tree_fini(&tree);
        free(text);
    }
}

static void
restores_say_what_and_why(void **state)
{
    struct operator_restored restored = {.lost_steps = OPERATOR_UNKNOWN, .took_ns = 1500000000};
    const struct cairn_tree_value *lines;
    struct cairn_json_writer writer;
    struct cairn_tree tree;
    char *text, out[64];

    (void)state;
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

static void
files_that_are_not_there(void **state)
{
    struct operator_files *files = malloc(sizeof *files);
    char folder[] = "/tmp/cairn-test-XXXXXX", path[64];
    FILE *file;

    (void)state;
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

#define SCENE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

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
                                       SCENE(a_job_that_has_not_restored_is_warned),
                                       SCENE(trainers_outside_the_epoch_are_critical),
                                       SCENE(a_young_generation_is_enough),
                                       SCENE(nothing_committed_warns),
                                       SCENE(views_travel),
                                       SCENE(a_note_has_one_session),
                                       SCENE(launchers_are_listed),
                                       SCENE(status_is_json),
                                       SCENE(what_is_not_covered_warns),
                                       SCENE(a_refusal_warns),
                                       SCENE(the_worst_is_kept),
                                       SCENE(coverage_travels),
                                       SCENE(hostile_coverage_is_refused),
                                       SCENE(newer_views_are_read),
                                       SCENE(status_shows_coverage),
                                       SCENE(verdicts_are_shown),
                                       SCENE(enforcement_is_shown),
                                       SCENE(advice_is_shown),
                                       SCENE(offered_shares_are_reported),
                                       SCENE(a_proposal_is_shown_with_its_reasons),
                                       SCENE(nothing_is_proposed_for_a_reason),
                                       SCENE(snapshots_are_listed_newest_first),
                                       SCENE(poison_that_was_not_kept_is_critical),
                                       SCENE(poison_that_was_kept_warns),
                                       SCENE(what_never_was_finite_warns),
                                       SCENE(poisoned_generations_are_listed),
                                       cmocka_unit_test(restores_say_what_and_why),
                                       cmocka_unit_test(files_that_are_not_there)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
