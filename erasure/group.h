/*
 * erasure/group.h - placement of a job's nodes into erasure groups over failure domains.
 *
 * A failure domain fails as a whole: a rack, a power feed, a switch. A group survives the loss of m
 * members, so no group should have more than m members of one domain.
 *
 * Rules, in this order:
 *  1. The number of groups is ceil(nodes / group_nodes), and their sizes differ by one at most.
 *  2. Every group has more than m members. Where rule 1 gives smaller groups, there are fewer and
 *     larger groups instead (up to CAIRN_SHARDS_MAX members). If that is impossible, as with fewer
 *     than m + 1 nodes in all, the parity is reduced to what the smallest group allows, and
 *     `reduced` is set.
 *  3. Members of one domain are spread as evenly as possible: each group gets the floor or ceiling
 *     of (members of the domain / groups), which no other placement into as many groups can better.
 *
 * Method: nodes are sorted by domain, then by number, and dealt to the groups in turn. A domain is
 * a run of consecutive nodes, so dealing gives rules 1 and 3 at once. The result depends only on
 * the set of nodes and labels, not on their order: every agent computes the same. Costs one sort.
 */
#ifndef CAIRN_ERASURE_GROUP_H
#define CAIRN_ERASURE_GROUP_H

#include "base/limits.h"
#include "cairn/err.h"

#include <stdbool.h>
#include <stdint.h>

struct cairn_group_node {
    uint32_t node;      /* its number in the job; no two alike */
    uint32_t reserved;  /* 0 */
    const char *domain; /* label of what it fails with; NULL or "": it fails alone */
};

/* Its members are members[member_first … member_first + n - 1] of struct cairn_groups. */
struct cairn_group {
    uint32_t k;
    uint32_t m;
    uint32_t n; /* k + m */
    uint32_t member_first;
};

struct cairn_groups {
    struct cairn_group *groups;
    uint32_t *members; /* node numbers, group by group, ascending; place in its group = position */
    uint32_t group_count;
    uint32_t member_count;
    uint32_t parity; /* m of every group */
    bool reduced;    /* it is less than what was asked for */
    bool any_domain; /* the loss of any one whole domain is survived */
    uint32_t domain_count;
    uint32_t domain_members_max; /* of one domain in one group; any_domain: <= parity */
    uint32_t worst_group;        /* where that is (the first one) */
    uint32_t worst_node;         /* a node of that domain in that group */
};

/*
 * Places nodes[node_count] (borrowed for the call) into groups of at most group_nodes = k + m, m =
 * parity. CAIRN_INVAL: no node or more than CAIRN_NODES_MAX, two with one number, group_nodes above
 * CAIRN_SHARDS_MAX or not above parity. CAIRN_NOMEM. On success the caller ends *out with
 * cairn_groups_fini.
 */
CAIRN_MUST_CHECK cairn_err cairn_groups_init(const struct cairn_group_node *nodes,
                                             uint32_t node_count, uint32_t group_nodes,
                                             uint32_t parity, struct cairn_groups *out);

/* Frees what it owns and zeroes it; all zero is allowed. */
void cairn_groups_fini(struct cairn_groups *groups);

#endif
