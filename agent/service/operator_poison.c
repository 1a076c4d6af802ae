/* agent/service/operator_poison.c - see operator_poison.h. */
#include "agent/service/operator_poison.h"

#include "agent/process/config.h"

#include <inttypes.h>
#include <stdio.h>

struct cairn_generation_id
operator_poison_of(const struct operator_node *node)
{
    return (struct cairn_generation_id){node->poison_epoch, node->poison_step, node->poison_run};
}

static bool
matters(const struct operator_node *node, struct cairn_generation_id newest)
{
    int order = cairn_generation_id_compare(operator_poison_of(node), newest);

    return node->known && node->poison_step != 0 && order >= 0;
}

const struct operator_node *
operator_poison_find(const struct operator_job *job)
{
    const struct operator_node *found = NULL;

    for (uint32_t i = 0; i < job->config->node_count; i++) {
        const struct operator_node *node = &job->nodes[i];
        int order = 1;

        if (!matters(node, job->newest))
            continue;
        if (found)
            order =
                cairn_generation_id_compare(operator_poison_of(node), operator_poison_of(found));
        if (order > 0 || (order == 0 && node->poison_first_step < found->poison_first_step))
            found = node;
    }
    return found;
}

void
operator_poison_describe(const struct operator_node *node, char out[OPERATOR_POISON_BYTES])
{
    uint64_t first = node->poison_first_step, last = node->poison_step;
    char steps[64], what[256];
    bool is_one = first == last;

    snprintf(steps, sizeof steps, is_one ? "step %" PRIu64 : "steps %" PRIu64 " to %" PRIu64, first,
             last);
    if (node->poison_tensors == 0)
        snprintf(what, sizeof what, "which rejected it: %.150s", node->poison_reason);
    else if (node->poison_tensors == 1)
        snprintf(what, sizeof what, "whose tensor %.120s holds values that are not finite",
                 node->poison_name);
    else
        snprintf(what, sizeof what,
                 "whose tensor %.120s and %" PRIu64 " more hold values that are not finite",
                 node->poison_name, node->poison_tensors - 1);
    snprintf(
        out, OPERATOR_POISON_BYTES, "%s %s poisoned and %s; first found by rank %" PRIu64 ", %s",
        steps, is_one ? "is" : "are",
        node->poison_kept ? "kept, since on_poison is allow" : "not kept", node->poison_rank, what);
}
