/* agent/service/operator_protection.c - see operator_protection.h. */
#include "agent/service/operator_protection.h"

#include <stdlib.h>
#include <string.h>

static bool
same_domain(const struct cairn_config *config, uint32_t a, uint32_t b)
{
    return a == b || (config->nodes[a].domain[0] &&
                      strcmp(config->nodes[a].domain, config->nodes[b].domain) == 0);
}

/* The holders of the parts of the newest generation. A part may be held twice. */
struct held {
    uint32_t node, member;
};

struct holders {
    struct held *list;
    uint32_t count;
    uint32_t *copies; /* [member_count] */
};

enum { COPY_WEIGHT = 840, COPIES_MAX = 8 }; /* divisible by 1 … COPIES_MAX */

static void
holders_free(struct holders *holders)
{
    free(holders->list);
    free(holders->copies);
}

static bool
find_holders(const struct operator_job *job, struct holders *out)
{
    uint32_t members = job->roster->member_count, room = 0;

    for (uint32_t i = 0; i < job->config->node_count; i++)
        room += job->nodes[i].part_count;
    out->list = calloc(room + 1u, sizeof *out->list);
    out->copies = calloc(members + 1u, sizeof *out->copies);
    if (!out->list || !out->copies) {
        holders_free(out);
        return false;
    }
    for (uint32_t i = 0; i < job->config->node_count; i++)
        for (uint32_t h = 0; job->nodes[i].known && h < job->nodes[i].part_count; h++) {
            const struct operator_part *part = &job->nodes[i].parts[h];

            if (part->member >= members || part->state != CAIRN_PART_COMPLETE ||
                cairn_generation_id_compare(part->generation, job->newest) != 0)
                continue;
            out->list[out->count++] = (struct held){i, (uint32_t)part->member};
            out->copies[part->member]++;
        }
    return true;
}

/* True if every group still has k parts after all nodes of the failure domain of `node` are
 * lost. */
static bool
survives_domain_of(const struct operator_job *job, const struct holders *holders, uint32_t *left,
                   uint32_t *lost, uint32_t node)
{
    const struct cairn_roster *roster = job->roster;

    memcpy(left, holders->copies, roster->member_count * sizeof *left);
    memset(lost, 0, roster->group_count * sizeof *lost);
    for (uint32_t i = 0; i < holders->count; i++)
        left[holders->list[i].member] -= same_domain(job->config, holders->list[i].node, node);
    for (uint32_t m = 0; m < roster->member_count; m++)
        lost[roster->members[m].group] += left[m] == 0;
    for (uint32_t g = 0; g < roster->group_count; g++)
        if (lost[g] > roster->groups[g].parity)
            return false;
    return true;
}

/*
 * How many further nodes a group survives, in the worst case: two parts on one node are lost
 * together. A part that h nodes hold counts 1/h for each of them, so the sum over lost nodes is
 * never less than the parts lost.
 */
static int32_t
group_survives(const struct operator_job *job, const struct holders *holders, uint32_t group,
               uint32_t *weights)
{
    const struct cairn_roster_group *members = &job->roster->groups[group];
    int32_t left = (int32_t)members->parity, survives = 0;
    uint64_t lost = 0;

    memset(weights, 0, job->config->node_count * sizeof *weights);
    for (uint32_t p = 0; p < members->count; p++)
        left -= holders->copies[members->members[p]] == 0;
    if (left < 0)
        return left;
    for (uint32_t i = 0; i < holders->count; i++) {
        uint32_t member = holders->list[i].member, copies = holders->copies[member];

        if (job->roster->members[member].group == group)
            weights[holders->list[i].node] +=
                COPY_WEIGHT / (copies < COPIES_MAX ? copies : COPIES_MAX);
    }
    for (;; survives++) {
        uint32_t worst = 0;

        for (uint32_t i = 1; i < job->config->node_count; i++)
            if (weights[i] > weights[worst])
                worst = i;
        lost += weights[worst];
        if (weights[worst] == 0 || lost / COPY_WEIGHT > (uint64_t)left)
            return survives;
        weights[worst] = 0;
    }
}

void
operator_protection_find(const struct operator_job *job, struct operator_health *out)
{
    const struct cairn_roster *roster = job->roster;
    struct holders holders = {0};
    uint32_t *scratch;

    out->survives = -1;
    if (!roster || job->newest.step == 0 || job->newest_from_files || !find_holders(job, &holders))
        return;
    scratch = calloc(roster->member_count + roster->group_count + job->config->node_count,
                     sizeof *scratch);
    if (!scratch) {
        holders_free(&holders);
        return;
    }
    out->parts = roster->member_count;
    out->group_count = roster->group_count;
    for (uint32_t m = 0; m < roster->member_count; m++)
        out->missing += holders.copies[m] == 0;
    out->survives = INT32_MAX;
    out->parity = UINT32_MAX;
    for (uint32_t g = 0; g < roster->group_count; g++) {
        int32_t survives = group_survives(job, &holders, g, scratch);

        if (survives < out->survives)
            out->survives = survives;
        if (roster->groups[g].parity < out->parity)
            out->parity = roster->groups[g].parity;
    }
    out->survives_domain = true;
    for (uint32_t i = 0; out->survives_domain && i < job->config->node_count; i++)
        if (job->nodes[i].known)
            out->survives_domain =
                survives_domain_of(job, &holders, scratch, scratch + roster->member_count, i);
    free(scratch);
    holders_free(&holders);
}
