/* tests/support/operator_scene.h - a job that operators ask about, for tests to change: six healthy
 * nodes, one group of 4 + 2, generation 1:30 committed everywhere, one step later. */
#ifndef CAIRN_TESTS_OPERATOR_SCENE_H
#define CAIRN_TESTS_OPERATOR_SCENE_H

#include "agent/service/operator_coverage.h"
#include "agent/service/operator_files.h"
#include "agent/service/operator_health.h"
#include "agent/service/operator_node.h"

#include "tools/tree.h"
#include "tests/support/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static inline int
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

static inline int
tear_down(void **state)
{
    struct scene *scene = *state;

    cairn_roster_drop(scene->roster);
    free(scene);
    return 0;
}

static inline const struct operator_health *
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

static inline const struct operator_check *
check_of(const struct operator_health *health, const char *code)
{
    for (uint32_t i = 0; i < health->check_count; i++)
        if (strcmp(health->checks[i].code, code) == 0)
            return &health->checks[i];
    return NULL;
}

static inline void
lose(struct scene *scene, uint32_t node)
{
    memset(&scene->nodes[node], 0, sizeof scene->nodes[node]);
}

static inline struct cairn_tree
parse(struct cairn_json_writer *writer, char **text)
{
    struct cairn_tree tree;
    size_t len;

    assert_int_equal(cairn_json_writer_done(writer, text, &len), CAIRN_OK);
    assert_int_equal(cairn_tree_parse(*text, len, &tree), CAIRN_OK);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "schema", 0), 1);
    return tree;
}

static inline struct operator_uncovered
thing(uint64_t kind, uint64_t rank, const char *name, const char *reason)
{
    struct operator_uncovered item = {.kind = kind, .rank = rank, .ranks = 1};

    snprintf(item.name, sizeof item.name, "%s", name);
    snprintf(item.reason, sizeof item.reason, "%s", reason);
    return item;
}

/* A node whose two ranks hold a parameter and two moments each. */
static inline void
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

static inline void
uncover(struct scene *scene, uint32_t node, const struct operator_uncovered *item)
{
    struct operator_uncovered_list *list = &scene->nodes[node].coverage->uncovered;

    list->items[list->count++] = *item;
    scene->nodes[node].coverage->ranks[0].uncovered += item->kind != 0;
    scene->nodes[node].coverage->ranks[0].refuses |= item->kind == 0;
}

static inline void
end_coverage(struct scene *scene)
{
    for (uint32_t i = 0; i < NODES; i++)
        operator_node_fini(&scene->nodes[i]);
}

/* A test in a scene of its own. */
#define SCENE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif
