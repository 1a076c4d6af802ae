/* erasure/group.c - deals the nodes, sorted by domain, to the groups in turn. */
#include "erasure/group.h"

#include <stdlib.h>
#include <string.h>

static const char *
label(const struct cairn_group_node *node)
{
    return node->domain ? node->domain : "";
}

/* Whether two nodes fail together: the same label, or one unlabelled node. */
static bool
same_domain(const struct cairn_group_node *a, const struct cairn_group_node *b)
{
    if (strcmp(label(a), label(b)) != 0)
        return false;
    return label(a)[0] != '\0' || a->node == b->node;
}

static int
by_domain(const void *left, const void *right)
{
    const struct cairn_group_node *a = left, *b = right;
    int order = strcmp(label(a), label(b));

    if (order != 0)
        return order;
    return (a->node > b->node) - (a->node < b->node);
}

static int
by_number(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

    return (a > b) - (a < b);
}

/* Rules 1 and 2 of group.h: how many groups, and with which parity. */
static void
choose_count(uint32_t node_count, uint32_t group_nodes, uint32_t parity, uint32_t *group_count,
             uint32_t *parity_kept)
{
    uint32_t count = (node_count + group_nodes - 1) / group_nodes;
    uint32_t fewer = node_count / (parity + 1); /* groups, if each has more than `parity` members */

    if (node_count / count <= parity && fewer > 0 &&
        (node_count + fewer - 1) / fewer <= CAIRN_SHARDS_MAX)
        count = fewer;
    *group_count = count;
    *parity_kept = node_count / count > parity ? parity : node_count / count - 1;
}

/*
 * Counts members per domain and group over nodes sorted by domain: node i is in group i mod count,
 * so of a run of one domain, the group of its first node gets the most.
 */
static void
measure(const struct cairn_group_node *sorted, struct cairn_groups *groups)
{
    uint32_t count = groups->group_count;

    for (uint32_t i = 0, end; i < groups->member_count; i = end) {
        uint32_t most;

        for (end = i + 1; end < groups->member_count && same_domain(&sorted[i], &sorted[end]);)
            end++;
        most = (end - i + count - 1) / count;
        groups->domain_count++;
        /* Names the lowest group of equals, which a run may reach later than its first. */
        for (uint32_t j = i; j < end && j < i + count && j + (most - 1) * count < end; j++)
            if (most > groups->domain_members_max ||
                (most == groups->domain_members_max && j % count < groups->worst_group)) {
                groups->domain_members_max = most;
                groups->worst_group = j % count;
                groups->worst_node = sorted[j].node;
            }
    }
    groups->any_domain = groups->domain_members_max <= groups->parity;
}

static bool
numbers_differ(const struct cairn_group_node *nodes, uint32_t node_count, uint32_t *scratch)
{
    for (uint32_t i = 0; i < node_count; i++)
        scratch[i] = nodes[i].node;
    qsort(scratch, node_count, sizeof *scratch, by_number);
    for (uint32_t i = 1; i < node_count; i++)
        if (scratch[i] == scratch[i - 1])
            return false;
    return true;
}

cairn_err
cairn_groups_init(const struct cairn_group_node *nodes, uint32_t node_count, uint32_t group_nodes,
                  uint32_t parity, struct cairn_groups *out)
{
    struct cairn_groups made = {0};
    struct cairn_group_node *sorted = NULL;
    cairn_err err = CAIRN_NOMEM;

    if (node_count < 1 || node_count > CAIRN_NODES_MAX || group_nodes > CAIRN_SHARDS_MAX ||
        group_nodes <= parity)
        return CAIRN_INVAL;
    choose_count(node_count, group_nodes, parity, &made.group_count, &made.parity);
    made.reduced = made.parity < parity;
    made.member_count = node_count;
    made.groups = calloc(made.group_count, sizeof *made.groups);
    made.members = calloc(node_count, sizeof *made.members);
    sorted = malloc(node_count * sizeof *sorted);
    if (!made.groups || !made.members || !sorted)
        goto done;
    if (!numbers_differ(nodes, node_count, made.members)) {
        err = CAIRN_INVAL;
        goto done;
    }
    memcpy(sorted, nodes, node_count * sizeof *sorted);
    qsort(sorted, node_count, sizeof *sorted, by_domain);
    for (uint32_t g = 0, first = 0; g < made.group_count; g++) {
        struct cairn_group *group = &made.groups[g];

        group->member_first = first;
        for (uint32_t i = g; i < node_count; i += made.group_count)
            made.members[first++] = sorted[i].node;
        group->n = first - group->member_first;
        group->m = made.parity;
        group->k = group->n - group->m;
        qsort(made.members + group->member_first, group->n, sizeof *made.members, by_number);
    }
    measure(sorted, &made);
    *out = made;
    made = (struct cairn_groups){0};
    err = CAIRN_OK;
done:
    free(sorted);
    cairn_groups_fini(&made);
    return err;
}

void
cairn_groups_fini(struct cairn_groups *groups)
{
    free(groups->groups);
    free(groups->members);
    *groups = (struct cairn_groups){0};
}
