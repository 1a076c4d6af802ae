/* replan/detect/node.c - ranks of one node that are slow alike are one cause: the node. */
#include "replan/detect/detector.h"

#include <math.h>
#include <stdio.h>

/* A rank of a node whose other ranks are slow needs less evidence than alone (slow.c has 7 and
 * 6 %): standard errors, and ln(1.03). */
static const double sibling_score_min = 4, sibling_size_min = 0.03;
enum { STEPS_MIN = 4 };
/* Ranks slow for one reason differ at most so much: ln of their rates, relative, and steps. */
static const double rate_spread = 0.3;
enum { ONSET_SPREAD = 8 };

/* True where a rank is slow like `verdict`, or at the end nearly surely so. */
static bool
slow_alike(struct cairn_detector *detector, uint32_t rank, const struct cairn_verdict *verdict,
           bool last)
{
    const struct cairn_rank_state *state = &detector->ranks[rank];
    struct cairn_shift_limits limits = {.sigma = state->sigma,
                                        .base = state->base,
                                        .base_values = state->normal_steps,
                                        .first_values = CAIRN_CALIBRATE_STEPS,
                                        .score_min = sibling_score_min,
                                        .size_min = sibling_size_min,
                                        .steps_min = STEPS_MIN};
    struct cairn_shift_found found;
    double size = log(verdict->rate);

    if (state->verdict != UINT32_MAX) {
        const struct cairn_verdict *other = &detector->verdicts.items[state->verdict];

        return other->kind == CAIRN_SLOW_COMPUTE &&
               (other->since_step > verdict->since_step
                    ? other->since_step - verdict->since_step
                    : verdict->since_step - other->since_step) <= ONSET_SPREAD &&
               fabs(log(other->rate) - size) <= fmax(rate_spread * size, 0.05);
    }
    return last && cairn_shift_find(&state->shift, &limits, &found) &&
           fabs(found.size - size) <= fmax(rate_spread * size, 0.05);
}

static cairn_err
merge_node(struct cairn_detector *detector, uint32_t node)
{
    const struct cairn_topology *topology = detector->topology;
    uint32_t kept = UINT32_MAX;
    struct cairn_verdict *verdict;
    double size = 0;
    uint32_t count = 0;
    cairn_err err;

    for (uint32_t rank = 0; rank < topology->world; rank++) {
        uint32_t index = detector->ranks[rank].verdict;

        if (topology->node[rank] != node || !detector->seen[rank])
            continue;
        if (index != UINT32_MAX) {
            size += log(detector->verdicts.items[index].rate);
            count++;
            if (kept == UINT32_MAX || index < kept)
                kept = index;
        }
    }
    verdict = &detector->verdicts.items[kept];
    verdict->kind = CAIRN_SLOW_NODE;
    verdict->ranks.count = 0;
    verdict->rate = exp(size / count);
    err = cairn_list_add(&verdict->nodes, node);
    for (uint32_t rank = 0; !err && rank < topology->world; rank++) {
        uint32_t index = detector->ranks[rank].verdict;

        if (topology->node[rank] != node || !detector->seen[rank])
            continue;
        detector->ranks[rank].verdict = kept;
        if (index != UINT32_MAX && index != kept) {
            if (detector->verdicts.items[index].detected_step >
                detector->verdicts.items[kept].detected_step)
                detector->verdicts.items[kept].detected_step =
                    detector->verdicts.items[index].detected_step;
            cairn_detect_drop(detector, index);
        }
        err = cairn_list_add(&detector->verdicts.items[kept].ranks, rank);
    }
    verdict = &detector->verdicts.items[kept];
    snprintf(
        verdict->evidence, sizeof verdict->evidence,
        "all %u ranks of node %u compute %.2f times as long as is normal for them since about the "
        "same step",
        verdict->ranks.count, node, verdict->rate);
    return err;
}

/* Nodes whose ranks are all slow alike. */
cairn_err
cairn_detect_nodes(struct cairn_detector *detector, bool last)
{
    const struct cairn_topology *topology = detector->topology;

    for (uint32_t i = 0; i < detector->verdicts.count; i++) {
        const struct cairn_verdict *verdict = &detector->verdicts.items[i];
        uint32_t ranks = 0, alike = 0, node;
        cairn_err err;

        if (verdict->kind != CAIRN_SLOW_COMPUTE || verdict->ranks.count != 1 ||
            detector->ranks[verdict->ranks.items[0]].verdict != i)
            continue;
        node = topology->node[verdict->ranks.items[0]];
        for (uint32_t rank = 0; node != CAIRN_NODE_UNKNOWN && rank < topology->world; rank++)
            if (topology->node[rank] == node && detector->seen[rank]) {
                ranks++;
                alike += slow_alike(detector, rank, verdict, last) ? 1 : 0;
            }
        if (ranks < 2 || alike < ranks)
            continue;
        err = merge_node(detector, node);
        if (err)
            return err;
    }
    return CAIRN_OK;
}
