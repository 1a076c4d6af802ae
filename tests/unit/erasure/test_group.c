/* tests/unit/erasure/test_group.c - placement against brute force over all placements. */
#include "erasure/group.h"
#include "tests/support/cmocka.h"
#include "tests/support/random.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SMALL_MAX = 9 };

static uint64_t random_state = 3;

/* What a group of `count` has of a domain, counted from the result alone. */
static uint32_t
members_of(const struct cairn_groups *groups, uint32_t g, const struct cairn_group_node *nodes,
           uint32_t node_count, const struct cairn_group_node *like)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < groups->groups[g].n; i++)
        for (uint32_t j = 0; j < node_count; j++)
            if (nodes[j].node == groups->members[groups->groups[g].member_first + i])
                count += &nodes[j] == like ||
                         (nodes[j].domain && nodes[j].domain[0] && like->domain &&
                          like->domain[0] && strcmp(nodes[j].domain, like->domain) == 0);
    return count;
}

/* The group of a node that has exactly one place. */
static uint32_t
group_of(const struct cairn_groups *groups, uint32_t node)
{
    uint32_t group = UINT32_MAX;

    for (uint32_t g = 0; g < groups->group_count; g++)
        for (uint32_t i = 0; i < groups->groups[g].n; i++)
            if (groups->members[groups->groups[g].member_first + i] == node) {
                assert_int_equal(group, UINT32_MAX);
                group = g;
            }
    assert_int_not_equal(group, UINT32_MAX);
    return group;
}

/* Everything that group.h promises of any result. */
static void
check_promises(const struct cairn_groups *groups, const struct cairn_group_node *nodes,
               uint32_t node_count, uint32_t group_nodes, uint32_t parity)
{
    uint32_t smallest = UINT32_MAX, largest = 0, total = 0, worst = 0, worst_group = 0;

    for (uint32_t g = 0; g < groups->group_count; g++) {
        const struct cairn_group *group = &groups->groups[g];

        assert_int_equal(group->member_first, total);
        assert_int_equal(group->n, group->k + group->m);
        assert_int_equal(group->m, groups->parity);
        assert_true(group->k >= 1);
        assert_true(group->n <= CAIRN_SHARDS_MAX);
        total += group->n;
        smallest = group->n < smallest ? group->n : smallest;
        largest = group->n > largest ? group->n : largest;
        for (uint32_t j = 0; j < node_count; j++) {
            uint32_t count = members_of(groups, g, nodes, node_count, &nodes[j]);

            if (count > worst) {
                worst = count;
                worst_group = g;
            }
        }
    }
    assert_int_equal(total, node_count);
    assert_true(largest - smallest <= 1);
    assert_true(groups->parity <= parity);
    assert_int_equal(groups->reduced, groups->parity < parity);
    if (groups->reduced)
        assert_int_equal(groups->parity, smallest - 1);
    if (groups->group_count != (node_count + group_nodes - 1) / group_nodes) {
        /* only where that many groups would be too small for the parity */
        assert_true(node_count / ((node_count + group_nodes - 1) / group_nodes) <= parity);
        assert_false(groups->reduced);
    }
    assert_int_equal(groups->domain_members_max, worst);
    assert_int_equal(groups->worst_group, worst_group);
    assert_int_equal(groups->any_domain, worst <= groups->parity);
    for (uint32_t j = 0; j < node_count; j++) {
        uint32_t group = group_of(groups, nodes[j].node);

        if (nodes[j].node == groups->worst_node) {
            assert_int_equal(group, groups->worst_group);
            assert_int_equal(members_of(groups, group, nodes, node_count, &nodes[j]), worst);
        }
    }
}

/* The least possible domain_members_max, over all placements into `count` even groups. */
struct search {
    uint32_t node_count, count;
    uint32_t domain[SMALL_MAX];
    uint32_t used[SMALL_MAX];
    uint32_t cell[SMALL_MAX][SMALL_MAX];
    uint32_t best;
};

static void
search_from(struct search *search, uint32_t at, uint32_t most)
{
    uint32_t small = search->node_count / search->count, large = 0;

    if (most >= search->best)
        return;
    if (at == search->node_count) {
        search->best = most;
        return;
    }
    for (uint32_t g = 0; g < search->count; g++)
        large += search->used[g] > small;
    for (uint32_t g = 0; g < search->count; g++) {
        uint32_t *cell = &search->cell[search->domain[at]][g];

        if (search->used[g] > small ||
            (search->used[g] == small && large == search->node_count % search->count))
            continue;
        search->used[g]++;
        ++*cell;
        search_from(search, at + 1, *cell > most ? *cell : most);
        --*cell;
        search->used[g]--;
    }
}

static void
no_placement_is_better(void **state)
{
    static const char *labels[] = {"r1", "r2", "r3", "r4"};

    for (uint32_t n = 1; n <= SMALL_MAX; n++)
        for (uint32_t size = 1; size <= n; size++)
            for (uint32_t parity = 0; parity < size; parity++)
                for (int round = 0; round < 12; round++) {
                    struct cairn_group_node nodes[SMALL_MAX];
                    struct cairn_groups groups;
                    struct search search = {.node_count = n, .best = UINT32_MAX};
                    uint32_t domains = 1 + (uint32_t)(splitmix(&random_state) % 4);

                    for (uint32_t i = 0; i < n; i++) {
                        search.domain[i] = (uint32_t)(splitmix(&random_state) % domains);
                        nodes[i] = (struct cairn_group_node){.node = 100 - i,
                                                             .domain = labels[search.domain[i]]};
                    }
                    assert_int_equal(cairn_groups_init(nodes, n, size, parity, &groups), CAIRN_OK);
                    check_promises(&groups, nodes, n, size, parity);
                    search.count = groups.group_count;
                    search_from(&search, 0, 0);
                    assert_int_equal(groups.domain_members_max, search.best);
                    cairn_groups_fini(&groups);
                }
}

static void
the_order_of_the_input_does_not_matter(void **state)
{
    for (int round = 0; round < 200; round++) {
        struct cairn_group_node nodes[40];
        struct cairn_groups first, second;
        uint32_t n = 1 + (uint32_t)(splitmix(&random_state) % 40);
        char labels[40][8];

        for (uint32_t i = 0; i < n; i++) {
            (void)snprintf(labels[i], sizeof labels[i], "r%u",
                           (unsigned)(splitmix(&random_state) % 6));
            nodes[i] = (struct cairn_group_node){
                .node = i * 7 % 41, .domain = splitmix(&random_state) % 8 ? labels[i] : NULL};
        }
        assert_int_equal(cairn_groups_init(nodes, n, 6, 2, &first), CAIRN_OK);
        check_promises(&first, nodes, n, 6, 2);
        for (uint32_t i = n; i > 1; i--) {
            uint32_t other = (uint32_t)(splitmix(&random_state) % i);
            struct cairn_group_node kept = nodes[i - 1];

            nodes[i - 1] = nodes[other];
            nodes[other] = kept;
        }
        assert_int_equal(cairn_groups_init(nodes, n, 6, 2, &second), CAIRN_OK);
        assert_int_equal(first.group_count, second.group_count);
        assert_memory_equal(first.groups, second.groups, first.group_count * sizeof *first.groups);
        assert_memory_equal(first.members, second.members, n * sizeof *first.members);
        assert_int_equal(first.worst_node, second.worst_node);
        assert_int_equal(first.worst_group, second.worst_group);
        assert_int_equal(first.domain_count, second.domain_count);
        cairn_groups_fini(&first);
        cairn_groups_fini(&second);
    }
}

/* Places `n` nodes of no domain and returns the result's count of groups and parity. */
static void
place_plain(uint32_t n, uint32_t size, uint32_t parity, uint32_t groups_wanted,
            uint32_t parity_wanted)
{
    struct cairn_group_node nodes[CAIRN_SHARDS_MAX * 3] = {{0}};
    struct cairn_groups groups;

    for (uint32_t i = 0; i < n; i++)
        nodes[i].node = i;
    assert_int_equal(cairn_groups_init(nodes, n, size, parity, &groups), CAIRN_OK);
    check_promises(&groups, nodes, n, size, parity);
    assert_int_equal(groups.group_count, groups_wanted);
    assert_int_equal(groups.parity, parity_wanted);
    assert_int_equal(groups.domain_count, n); /* unlabelled nodes fail alone */
    assert_int_equal(groups.domain_members_max, 1);
    cairn_groups_fini(&groups);
}

static void
small_groups_are_merged_before_parity_is_reduced(void **state)
{
    place_plain(6, 6, 2, 1, 2);
    place_plain(12, 6, 2, 2, 2);
    place_plain(8, 6, 2, 2, 2); /* 4 + 4 */
    place_plain(7, 6, 2, 2, 2); /* 4 + 3 */
    place_plain(4, 3, 2, 1, 2); /* not 2 + 2, which could carry one parity only */
    place_plain(7, 5, 4, 1, 4); /* not 4 + 3 */
    place_plain(2, 6, 2, 1, 1); /* fewer nodes than m + 1 */
    place_plain(1, 6, 2, 1, 0);
    place_plain(81, 64, 40, 2, 39); /* one group of 81 would be too large */
    place_plain(65, 64, 2, 2, 2);
    place_plain(3, 1, 0, 3, 0);
}

static void
a_concentrated_domain_is_reported(void **state)
{
    struct cairn_group_node nodes[12];
    struct cairn_groups groups;

    for (uint32_t i = 0; i < 12; i++)
        nodes[i] = (struct cairn_group_node){.node = i, .domain = i < 5 ? "rack a" : NULL};
    assert_int_equal(cairn_groups_init(nodes, 12, 6, 2, &groups), CAIRN_OK);
    assert_int_equal(groups.domain_members_max, 3); /* 5 in 2 groups: 3 and 2 */
    assert_false(groups.any_domain);
    assert_true(groups.worst_node < 5);
    assert_int_equal(groups.domain_count, 8);
    cairn_groups_fini(&groups);
    nodes[4].domain = "";
    assert_int_equal(cairn_groups_init(nodes, 12, 6, 2, &groups), CAIRN_OK);
    assert_int_equal(groups.domain_members_max, 2);
    assert_true(groups.any_domain);
    cairn_groups_fini(&groups);
    assert_int_equal(cairn_groups_init(nodes, 12, 6, 0, &groups), CAIRN_OK);
    assert_false(groups.any_domain); /* no parity: no loss is survived */
    cairn_groups_fini(&groups);
}

static void
wrong_input_is_refused(void **state)
{
    static struct cairn_group_node many[CAIRN_NODES_MAX + 1];
    struct cairn_group_node nodes[2] = {{.node = 5}, {.node = 5}};
    struct cairn_groups groups = {0};

    assert_int_equal(cairn_groups_init(nodes, 2, 2, 1, &groups), CAIRN_INVAL); /* twice the same */
    assert_int_equal(cairn_groups_init(nodes, 0, 2, 1, &groups), CAIRN_INVAL);
    assert_int_equal(cairn_groups_init(nodes, 1, 2, 2, &groups), CAIRN_INVAL);
    assert_int_equal(cairn_groups_init(nodes, 1, 65, 2, &groups), CAIRN_INVAL);
    assert_int_equal(cairn_groups_init(nodes, 1, 0, 0, &groups), CAIRN_INVAL);
    for (uint32_t i = 0; i <= CAIRN_NODES_MAX; i++)
        many[i].node = i;
    assert_int_equal(cairn_groups_init(many, CAIRN_NODES_MAX + 1, 6, 2, &groups), CAIRN_INVAL);
    cairn_groups_fini(&groups);
    assert_int_equal(cairn_groups_init(nodes, 1, 2, 1, &groups), CAIRN_OK);
    cairn_groups_fini(&groups);
}

static void
the_largest_job_is_placed_at_once(void **state)
{
    static struct cairn_group_node nodes[CAIRN_NODES_MAX];
    static char labels[CAIRN_NODES_MAX / 16][12];
    struct cairn_groups groups;
    struct timespec before, after;
    int64_t took_ns;

    for (uint32_t i = 0; i < CAIRN_NODES_MAX; i++) {
        (void)snprintf(labels[i / 16], sizeof labels[0], "rack %u", (unsigned)i / 16);
        nodes[i] = (struct cairn_group_node){.node = i, .domain = labels[i / 16]};
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    assert_int_equal(cairn_groups_init(nodes, CAIRN_NODES_MAX, 10, 2, &groups), CAIRN_OK);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    took_ns = (after.tv_sec - before.tv_sec) * 1000000000 + (after.tv_nsec - before.tv_nsec);
    print_message("nodes=%d groups=%u place_us=%lld\n", CAIRN_NODES_MAX, groups.group_count,
                  (long long)took_ns / 1000);
    assert_true(took_ns < 1000000000); /* of the processor: wide enough for a sanitizer */
    assert_int_equal(groups.group_count, (CAIRN_NODES_MAX + 9) / 10);
    assert_int_equal(groups.domain_members_max, 1); /* 16 of a rack in 1639 groups */
    assert_true(groups.any_domain);
    cairn_groups_fini(&groups);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_placement_is_better),
        cmocka_unit_test(the_order_of_the_input_does_not_matter),
        cmocka_unit_test(small_groups_are_merged_before_parity_is_reduced),
        cmocka_unit_test(a_concentrated_domain_is_reported),
        cmocka_unit_test(wrong_input_is_refused),
        cmocka_unit_test(the_largest_job_is_placed_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
