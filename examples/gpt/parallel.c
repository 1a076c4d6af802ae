/*
 * examples/gpt/parallel.c - the schedule of a step, and its sums in their fixed order.
 */
#include "parallel.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/client.h"
#include "holders.h"
#include "kernels.h"
#include "say.h"

enum { VOTE_FLOATS = sizeof(uint64_t) / sizeof(float) };

cairn_err
gpt_parallel_init(const struct gpt_plan *plan, const struct gpt_data *data, struct gpt_stage *stage,
                  struct gpt_net *net, struct gpt_device *device, uint64_t seed,
                  struct gpt_parallel *out)
{
    struct gpt_parallel parallel = {
        .plan = plan, .data = data, .stage = stage, .net = net, .device = device, .seed = seed};
    size_t window = (size_t)stage->shape.sequences * (stage->shape.context + 1);

    parallel.tokens = calloc(plan->micro_room, window);
    parallel.stream = calloc(gpt_stream_floats(&stage->shape), sizeof(float));
    parallel.grads = calloc(plan->micro_room, (stage->float_count + 1) * sizeof(float));
    parallel.total = calloc(stage->float_count + 1, sizeof(float));
    parallel.piece = calloc(stage->float_count + 1 + VOTE_FLOATS, sizeof(float));
    if (!parallel.tokens || !parallel.stream || !parallel.grads || !parallel.total ||
        !parallel.piece) {
        gpt_say("no memory for the gradients of %u micro-batches", plan->micro_room);
        gpt_parallel_fini(&parallel);
        return CAIRN_NOMEM;
    }
    *out = parallel;
    return CAIRN_OK;
}

void
gpt_parallel_fini(struct gpt_parallel *parallel)
{
    free(parallel->tokens);
    free(parallel->stream);
    free(parallel->grads);
    free(parallel->total);
    free(parallel->piece);
    *parallel = (struct gpt_parallel){0};
}

static uint8_t *
tokens_of(const struct gpt_parallel *parallel, uint32_t micro)
{
    const struct gpt_shape *shape = &parallel->stage->shape;

    return parallel->tokens + micro * (size_t)shape->sequences * (shape->context + 1);
}

static float *
grad_of(const struct gpt_parallel *parallel, uint32_t micro)
{
    return parallel->grads + micro * (parallel->stage->float_count + 1);
}

/* Sends to, or receives from, a stage of the pipeline, and records it. */
static cairn_err
pass(struct gpt_parallel *parallel, enum gpt_link link, enum gpt_kind kind,
     enum cairn_collective operation, uint64_t step, uint32_t index)
{
    size_t bytes = gpt_stream_floats(&parallel->stage->shape) * sizeof(float);
    uint32_t rank = parallel->plan->rank;
    uint64_t begin_ns = gpt_device_now_ns();
    cairn_err err;

    if (!gpt_net_has(parallel->net, link))
        return CAIRN_OK;
    err = operation == CAIRN_SEND
              ? gpt_net_send(parallel->net, link, kind, step, index, parallel->stream, bytes)
              : gpt_net_receive(parallel->net, link, kind, step, index, parallel->stream, bytes);
    if (!err)
        gpt_device_transferred(parallel->device, begin_ns, operation,
                               link == GPT_LINK_STAGE_BEFORE ? rank - 1 : rank + 1, bytes);
    return err;
}

static uint32_t
layers_of(const struct gpt_parallel *parallel)
{
    return parallel->plan->layer_end - parallel->plan->layer_begin;
}

static cairn_err
forward(struct gpt_parallel *parallel, uint64_t step, uint32_t micro)
{
    const struct gpt_plan *plan = parallel->plan;
    const struct gpt_shape *shape = &parallel->stage->shape;
    uint32_t index = plan->micro_begin + micro;
    float *grad = grad_of(parallel, micro);
    uint64_t begin_ns;
    cairn_err err;

    gpt_data_draw(parallel->data, parallel->seed, step, index, shape->sequences, shape->context,
                  tokens_of(parallel, micro));
    err = pass(parallel, GPT_LINK_STAGE_BEFORE, GPT_KIND_ACTIVATION, CAIRN_RECV, step, index);
    if (err)
        return err;
    begin_ns = gpt_device_now_ns();
    memset(grad, 0, parallel->stage->float_count * sizeof *grad);
    grad[parallel->stage->float_count] =
        gpt_stage_forward(parallel->stage, micro, tokens_of(parallel, micro), parallel->stream);
    gpt_device_computed(parallel->device, begin_ns, layers_of(parallel), GPT_UNITS_FORWARD);
    return pass(parallel, GPT_LINK_STAGE_AFTER, GPT_KIND_ACTIVATION, CAIRN_SEND, step, index);
}

static cairn_err
backward(struct gpt_parallel *parallel, uint64_t step, uint32_t micro)
{
    uint32_t index = parallel->plan->micro_begin + micro;
    uint64_t begin_ns;
    cairn_err err;

    err = pass(parallel, GPT_LINK_STAGE_AFTER, GPT_KIND_GRADIENT, CAIRN_RECV, step, index);
    if (err)
        return err;
    begin_ns = gpt_device_now_ns();
    gpt_stage_backward(parallel->stage, micro, tokens_of(parallel, micro), parallel->stream,
                       grad_of(parallel, micro));
    gpt_device_computed(parallel->device, begin_ns, layers_of(parallel), GPT_UNITS_BACKWARD);
    return pass(parallel, GPT_LINK_STAGE_BEFORE, GPT_KIND_GRADIENT, CAIRN_SEND, step, index);
}

/* A piece of the total as a message: its floats, the losses behind the head's, and the vote. */
static size_t
piece_floats(const struct gpt_piece *piece)
{
    return piece->count + (piece->head ? 1 : 0);
}

static cairn_err
send_piece(struct gpt_parallel *parallel, enum gpt_link replica, const struct gpt_piece *piece,
           enum gpt_kind kind, uint64_t step, uint64_t vote)
{
    size_t floats = piece_floats(piece);

    memcpy(parallel->piece, parallel->total + piece->begin, floats * sizeof(float));
    memcpy(parallel->piece + floats, &vote, sizeof vote);
    return gpt_net_send(parallel->net, gpt_link_of(replica, piece->stage), kind, step, 0,
                        parallel->piece, (floats + VOTE_FLOATS) * sizeof(float));
}

static cairn_err
receive_piece(struct gpt_parallel *parallel, enum gpt_link replica, const struct gpt_piece *piece,
              enum gpt_kind kind, uint64_t step, uint64_t *vote)
{
    size_t floats = piece_floats(piece);
    uint64_t other;
    cairn_err err;

    err = gpt_net_receive(parallel->net, gpt_link_of(replica, piece->stage), kind, step, 0,
                          parallel->piece, (floats + VOTE_FLOATS) * sizeof(float));
    if (err)
        return err;
    memcpy(parallel->total + piece->begin, parallel->piece, floats * sizeof(float));
    memcpy(&other, parallel->piece + floats, sizeof other);
    *vote = cairn_placement_agree(*vote, other);
    return CAIRN_OK;
}

/*
 * The partial sums run up the replicas, each rank adds its micro-batches one by one; the totals run
 * back down. Each tensor goes along the ranks that hold it. Messages between two replicas go in the
 * order of the layers on both sides, so no two ranks wait for each other. A vote goes with every
 * piece: all votes reach the last replica, and what it joins comes back to all.
 */
static cairn_err
reduce(struct gpt_parallel *parallel, uint64_t step, uint64_t *vote)
{
    const struct gpt_plan *plan = parallel->plan;
    struct gpt_piece before[GPT_PARTS_MAX], after[GPT_PARTS_MAX];
    uint32_t before_count = 0, after_count = 0;
    size_t floats = parallel->stage->float_count + 1;
    cairn_err err = CAIRN_OK;

    if (plan->replica > 0)
        before_count = gpt_pieces(plan, parallel->stage, plan->replica - 1, before);
    if (!gpt_plan_is_last_replica(plan))
        after_count = gpt_pieces(plan, parallel->stage, plan->replica + 1, after);
    memset(parallel->total, 0, floats * sizeof(float));
    for (uint32_t i = 0; i < before_count && !err; i++)
        err = receive_piece(parallel, GPT_LINK_REPLICA_BEFORE, &before[i], GPT_KIND_PARTIAL, step,
                            vote);
    for (uint32_t micro = 0; micro < plan->micro_count && !err; micro++)
        gpt_add(parallel->total, grad_of(parallel, micro), floats);
    for (uint32_t i = 0; i < after_count && !err; i++)
        err =
            send_piece(parallel, GPT_LINK_REPLICA_AFTER, &after[i], GPT_KIND_PARTIAL, step, *vote);
    for (uint32_t i = 0; i < after_count && !err; i++)
        err =
            receive_piece(parallel, GPT_LINK_REPLICA_AFTER, &after[i], GPT_KIND_TOTAL, step, vote);
    for (uint32_t i = 0; i < before_count && !err; i++)
        err =
            send_piece(parallel, GPT_LINK_REPLICA_BEFORE, &before[i], GPT_KIND_TOTAL, step, *vote);
    return err;
}

/* Sums the squares over the stages, joins the votes, and brings both and the loss from the last
 * stage to all. */
static cairn_err
conclude(struct gpt_parallel *parallel, uint64_t step, struct gpt_total *out)
{
    const struct gpt_stage *stage = parallel->stage;
    struct gpt_verdict {
        double squares;
        uint64_t vote;
        double loss; /* the sum over the micro-batches; a float, widened */
    } verdict = {.vote = out->vote};
    const size_t sums_bytes = offsetof(struct gpt_verdict, loss);
    cairn_err err;

    if (gpt_net_has(parallel->net, GPT_LINK_STAGE_BEFORE)) {
        err = gpt_net_receive(parallel->net, GPT_LINK_STAGE_BEFORE, GPT_KIND_NORM, step, 0,
                              &verdict, sums_bytes);
        if (err)
            return err;
        verdict.vote = cairn_placement_agree(verdict.vote, out->vote);
    }
    for (uint32_t i = 0; i < stage->tensor_count; i++)
        verdict.squares +=
            gpt_square_sum(parallel->total + stage->tensors[i].begin, stage->tensors[i].count);
    verdict.loss = (double)parallel->total[stage->float_count];
    if (gpt_net_has(parallel->net, GPT_LINK_STAGE_AFTER)) {
        err = gpt_net_send(parallel->net, GPT_LINK_STAGE_AFTER, GPT_KIND_NORM, step, 0, &verdict,
                           sums_bytes);
        if (err)
            return err;
        err = gpt_net_receive(parallel->net, GPT_LINK_STAGE_AFTER, GPT_KIND_VERDICT, step, 0,
                              &verdict, sizeof verdict);
        if (err)
            return err;
    }
    if (gpt_net_has(parallel->net, GPT_LINK_STAGE_BEFORE)) {
        err = gpt_net_send(parallel->net, GPT_LINK_STAGE_BEFORE, GPT_KIND_VERDICT, step, 0,
                           &verdict, sizeof verdict);
        if (err)
            return err;
    }
    out->vote = verdict.vote;
    out->mean_factor = 1.0f / (float)parallel->plan->micro_total;
    out->loss = (float)verdict.loss * out->mean_factor;
    out->norm = sqrt(verdict.squares) * (double)out->mean_factor;
    return CAIRN_OK;
}

cairn_err
gpt_parallel_gradient(struct gpt_parallel *parallel, uint64_t step)
{
    cairn_err err;

    parallel->device->step = step;
    for (uint32_t micro = 0; micro < parallel->plan->micro_count; micro++) {
        err = forward(parallel, step, micro);
        if (err)
            return err;
    }
    for (uint32_t micro = 0; micro < parallel->plan->micro_count; micro++) {
        err = backward(parallel, step, micro);
        if (err)
            return err;
    }
    return CAIRN_OK;
}

cairn_err
gpt_parallel_sum(struct gpt_parallel *parallel, uint64_t step, struct gpt_total *out)
{
    uint64_t begin_ns = gpt_device_now_ns();
    cairn_err err = reduce(parallel, step, &out->vote);

    if (err)
        return err;
    gpt_device_reduced(parallel->device, begin_ns, parallel->stage->float_count * sizeof(float));
    return conclude(parallel, step, out);
}

cairn_err
gpt_parallel_agree(struct gpt_parallel *parallel, uint64_t step)
{
    cairn_err err;

    for (int link = 0; link < GPT_LINKS; link++) {
        if (!gpt_net_has(parallel->net, (enum gpt_link)link))
            continue;
        err = gpt_net_send(parallel->net, (enum gpt_link)link, GPT_KIND_READY, 0, 0, &step,
                           sizeof step);
        if (err)
            return err;
    }
    for (int link = 0; link < GPT_LINKS; link++) {
        uint64_t other;

        if (!gpt_net_has(parallel->net, (enum gpt_link)link))
            continue;
        err = gpt_net_receive(parallel->net, (enum gpt_link)link, GPT_KIND_READY, 0, 0, &other,
                              sizeof other);
        if (err)
            return err;
        if (other != step) {
            gpt_say(
                "a neighbour starts after step %llu and this rank after step %llu: they did not "
                "restore the same generation",
                (unsigned long long)other, (unsigned long long)step);
            return CAIRN_INTERNAL;
        }
    }
    return CAIRN_OK;
}

/* Joins the votes of a chain of ranks: up to its end, and the result back. A link that is not there
 * is an end. */
static cairn_err
join_chain(struct gpt_parallel *parallel, enum gpt_link before, enum gpt_link after, uint64_t step,
           uint64_t *vote)
{
    struct gpt_net *net = parallel->net;
    uint64_t other;
    cairn_err err = CAIRN_OK;

    if (gpt_net_has(net, before)) {
        err = gpt_net_receive(net, before, GPT_KIND_VOTE, step, 0, &other, sizeof other);
        if (!err)
            *vote = cairn_placement_agree(*vote, other);
    }
    if (!err && gpt_net_has(net, after))
        err = gpt_net_send(net, after, GPT_KIND_VOTE, step, 0, vote, sizeof *vote);
    if (!err && gpt_net_has(net, after))
        err = gpt_net_receive(net, after, GPT_KIND_VOTE, step, 1, vote, sizeof *vote);
    if (!err && gpt_net_has(net, before))
        err = gpt_net_send(net, before, GPT_KIND_VOTE, step, 1, vote, sizeof *vote);
    return err;
}

cairn_err
gpt_parallel_vote(struct gpt_parallel *parallel, uint64_t step, uint64_t *vote)
{
    uint32_t stage = parallel->plan->stage;
    cairn_err err = join_chain(parallel, gpt_link_of(GPT_LINK_REPLICA_BEFORE, stage),
                               gpt_link_of(GPT_LINK_REPLICA_AFTER, stage), step, vote);

    return err ? err
               : join_chain(parallel, GPT_LINK_STAGE_BEFORE, GPT_LINK_STAGE_AFTER, step, vote);
}
