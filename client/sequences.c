/* client/sequences.c - the call of cairn/client.h that assigns the sequences of a step. */
#include "cairn/client.h"
#include "replan/assign/pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Whether the arguments can be a step's. */
static bool
is_step(const uint64_t *tokens, uint32_t count, const uint32_t *shares, uint32_t replicas,
        uint64_t cap_tokens, const double *cost)
{
    double cap = (double)cap_tokens;

    if (!tokens || count == 0 || count > CAIRN_ASSIGN_SEQUENCES_MAX || !shares || replicas == 0 ||
        replicas > CAIRN_REPLICAS_MAX || !cost)
        return false;
    if (!(cost[0] >= 0 && cost[1] >= 0 && cost[2] >= 0 && cost[0] + cost[1] + cost[2] > 0) ||
        !isfinite((cost[0] * cap * cap + cost[1] * cap + cost[2]) * count))
        return false;
    for (uint32_t i = 0; i < replicas; i++)
        if (shares[i] == 0)
            return false;
    for (uint32_t i = 0; i < count; i++)
        if (tokens[i] == 0 || tokens[i] > cap_tokens)
            return false;
    return true;
}

/* Packs the sequences of one replica. own[count] and own_tokens[count] are working memory. */
static cairn_err
pack_replica(const struct cairn_assign_problem *problem, const uint32_t *replica_of,
             uint32_t replica, uint64_t cap_tokens, uint32_t *own, uint64_t *own_tokens,
             uint32_t *microbatch_of)
{
    struct cairn_packing packing = {0};
    uint32_t own_count = 0;
    cairn_err err;

    for (uint32_t i = 0; i < problem->sequence_count; i++)
        if (replica_of[i] == replica) {
            own_tokens[own_count] = problem->tokens[i];
            own[own_count++] = i;
        }
    err = cairn_pack(problem, own_tokens, own_count, cap_tokens, &packing);
    for (uint32_t i = 0; !err && i < packing.piece_count; i++) /* one of each: none is cut */
        microbatch_of[own[packing.pieces[i].sequence]] = packing.pieces[i].microbatch;
    cairn_packing_fini(&packing);
    return err;
}

cairn_err
cairn_sequences_assign(const uint64_t *tokens, uint32_t count, const uint32_t *shares,
                       uint32_t replicas, uint64_t cap_tokens, const double cost[3],
                       uint32_t *replica_of, uint32_t *microbatch_of)
{
    struct cairn_assign_problem problem = {.sequence_count = count, .pipeline_count = replicas};
    struct cairn_assignment made = {0};
    struct cairn_fault fault;
    uint32_t *own = NULL, *packed = NULL;
    cairn_err err = CAIRN_NOMEM;

    if (!replica_of || !microbatch_of ||
        !is_step(tokens, count, shares, replicas, cap_tokens, cost))
        return CAIRN_INVAL;
    problem.square = cost[0];
    problem.linear = cost[1];
    problem.constant = cost[2];
    problem.tokens = malloc(2 * (size_t)count * sizeof *problem.tokens);
    problem.pipelines = calloc(replicas, sizeof *problem.pipelines);
    own = calloc(2 * (size_t)count, sizeof *own);
    if (!problem.tokens || !problem.pipelines || !own)
        goto done;
    packed = own + count;
    memcpy(problem.tokens, tokens, count * sizeof *tokens);
    for (uint32_t i = 0; i < replicas; i++)
        problem.pipelines[i] = (struct cairn_assign_pipeline){1.0 / shares[i], 1, cap_tokens};
    err = cairn_assign_by_rules(&problem, &made, &fault);
    for (uint32_t i = 0; !err && i < replicas; i++)
        err = pack_replica(&problem, made.pipelines, i, cap_tokens, own, problem.tokens + count,
                           packed);
    if (err)
        goto done;
    memcpy(replica_of, made.pipelines, count * sizeof *replica_of);
    memcpy(microbatch_of, packed, count * sizeof *microbatch_of);
done:
    free(made.pipelines);
    free(own);
    cairn_assign_problem_fini(&problem);
    return err;
}
