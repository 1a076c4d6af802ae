/*
 * tests/traces/second/step.c - what a rank does in a step, as items on its streams. Layouts follow
 * PyTorch DDP and FSDP, Megatron-LM's tensor parallelism and 1F1B, and expert parallelism with
 * two all-to-alls per layer.
 */
#include "tests/traces/second/state.h"

#include <math.h>

static int32_t
add(struct worker *worker, struct item item)
{
    int32_t index = (int32_t)worker->count;

    item.start_ns = item.end_ns = -1;
    worker->items[worker->count++] = item;
    worker->order[item.stream][worker->length[item.stream]++] = (uint32_t)index;
    return index;
}

static int32_t
compute(struct run *run, struct worker *worker, double ns, int32_t after)
{
    return add(worker, (struct item){.kind = ITEM_COMPUTE,
                                     .after = after,
                                     .ns = model_jitter(run, ns, run->model->micro)});
}

static int32_t
wait_for(struct worker *worker, int32_t after)
{
    return add(worker, (struct item){.kind = ITEM_WAIT, .after = after});
}

static int32_t
all(struct worker *worker, uint32_t group, enum op op, uint32_t stream, int32_t after, double ns,
    double bytes)
{
    return add(worker, (struct item){.kind = ITEM_ALL,
                                     .op = op,
                                     .stream = stream,
                                     .group = group,
                                     .peer = UINT32_MAX,
                                     .after = after,
                                     .bytes = (uint64_t)bytes,
                                     .ns = ns});
}

static int32_t
send_to(struct run *run, struct worker *worker, uint32_t peer, bool backward, int32_t after)
{
    return add(worker, (struct item){.kind = ITEM_SEND,
                                     .op = OP_SEND,
                                     .stream = backward ? STREAM_BACKWARD : STREAM_FORWARD,
                                     .group = worker->stages,
                                     .peer = peer,
                                     .after = after,
                                     .bytes = 8 << 20,
                                     .ns = run->model->pair_ns});
}

static int32_t
recv_from(struct worker *worker, uint32_t peer)
{
    return add(worker, (struct item){.kind = ITEM_RECV,
                                     .op = OP_RECV,
                                     .group = worker->stages,
                                     .peer = peer,
                                     .after = -1,
                                     .bytes = 8 << 20});
}

/* The end of every step: the rest of the gradients, the norm, the optimizer. */
static void
finish(struct run *run, struct worker *worker, double factor)
{
    const struct model *model = run->model;

    wait_for(worker, -2);
    if (model->norm)
        all(worker, run->everybody, OP_ALL_REDUCE, STREAM_COMPUTE, -1, 0.1e6, 8);
    compute(run, worker, model->optimizer_ns * factor, -1);
}

static void
step_data(struct run *run, struct worker *worker, double ns, double factor)
{
    const struct model *model = run->model;
    uint32_t stream = model->overlapped ? STREAM_GRADIENTS : STREAM_COMPUTE;

    compute(run, worker, ns * model->layers, -1);
    for (uint32_t i = 0; i < model->layers; i++) {
        int32_t piece = compute(run, worker, 2 * ns, -1);

        if (model->overlapped)
            all(worker, worker->replicas, OP_ALL_REDUCE, stream, piece, model->gradients_ns, 64e6);
    }
    for (uint32_t i = 0; i < model->layers && !model->overlapped; i++)
        all(worker, worker->replicas, OP_ALL_REDUCE, stream, -1, model->gradients_ns, 64e6);
    finish(run, worker, factor);
}

/* All of a group's collectives share a stream. The next layer's parameters are gathered while this
 * one computes, so they are asked for before this one's gradients are scattered. */
static void
step_sharded(struct run *run, struct worker *worker, double ns, double factor)
{
    const struct model *model = run->model;
    double gather = model->gradients_ns / 2, bytes = 64e6 / model->dp;
    int32_t gathered, next, before = -1;

    for (uint32_t pass = 0; pass < 2; pass++) {
        next =
            all(worker, worker->replicas, OP_ALL_GATHER, STREAM_GRADIENTS, before, gather, bytes);
        for (uint32_t i = 0; i < model->layers; i++) {
            gathered = next;
            if (i + 1 < model->layers)
                next = all(worker, worker->replicas, OP_ALL_GATHER, STREAM_GRADIENTS, before,
                           gather, bytes);
            before = compute(run, worker, (pass + 1) * ns, gathered);
            if (pass == 1)
                all(worker, worker->replicas, OP_REDUCE_SCATTER, STREAM_GRADIENTS, before, gather,
                    64e6);
        }
    }
    finish(run, worker, factor);
}

static void
step_tensor(struct run *run, struct worker *worker, double ns, double factor)
{
    const struct model *model = run->model;
    uint32_t stream = model->overlapped ? STREAM_GRADIENTS : STREAM_COMPUTE;

    for (uint32_t m = 0; m < model->microbatches; m++)
        for (uint32_t pass = 0; pass < 2; pass++)
            for (uint32_t i = 0; i < model->layers; i++) {
                int32_t piece = compute(run, worker, (pass + 1) * ns, -1);

                all(worker, worker->tensor, OP_ALL_REDUCE, STREAM_COMPUTE, -1, model->tensor_ns,
                    16e6);
                if (pass && m + 1 == model->microbatches && model->dp > 1)
                    all(worker, worker->replicas, OP_ALL_REDUCE, stream, piece, model->gradients_ns,
                        64e6);
            }
    finish(run, worker, factor);
}

static void
step_experts(struct run *run, struct worker *worker, double ns, double factor, double load)
{
    const struct model *model = run->model;
    uint32_t stream = model->overlapped ? STREAM_GRADIENTS : STREAM_COMPUTE;
    double expert = model->expert_ns * factor * load;
    int32_t piece = -1;

    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < model->layers; i++) {
            compute(run, worker, (pass + 1) * ns, -1);
            all(worker, worker->experts, OP_ALL_TO_ALL, STREAM_COMPUTE, -1, model->shuffle_ns,
                32e6);
            piece = compute(run, worker, (pass + 1) * expert, -1);
            all(worker, worker->experts, OP_ALL_TO_ALL, STREAM_COMPUTE, -1, model->shuffle_ns,
                32e6 * load);
        }
    all(worker, worker->replicas, OP_ALL_REDUCE, stream, piece, 2 * model->gradients_ns, 128e6);
    if (model->ep < model->world)
        all(worker, worker->expert_replicas, OP_ALL_REDUCE, stream, piece, model->gradients_ns,
            64e6);
    finish(run, worker, factor);
}

/* Forward or backward of one micro-batch, without what comes from and goes to neighbours. */
static int32_t
one_pass(struct run *run, struct worker *worker, bool backward, double ns)
{
    const struct model *model = run->model;
    int32_t last = -1;

    for (uint32_t i = 0; i < model->layers; i++) {
        last = compute(run, worker, backward ? 2 * ns : ns, -1);
        if (model->tp > 1)
            last = all(worker, worker->tensor, OP_ALL_REDUCE, STREAM_COMPUTE, -1, model->tensor_ns,
                       16e6);
    }
    return last;
}

/* 1F1B (Narayanan et al., 2021). What is sent and what is received at the same time is one batch:
 * under SENDS_BLOCK computation goes on after both. */
static void
step_stages(struct run *run, uint32_t rank, double ns, double factor)
{
    const struct model *model = run->model;
    struct worker *worker = &run->workers[rank];
    uint32_t stage = model_stage(model, rank), m = model->microbatches;
    uint32_t distance = model->stages_outside ? model->tp * model->dp : model->tp;
    uint32_t warm = model->pp - 1 - stage < m ? model->pp - 1 - stage : m;
    bool first = stage == 0, end = stage + 1 == model->pp, block = model->sends == SENDS_BLOCK;
    int32_t last, sent;

    for (uint32_t i = 0; i < warm; i++) {
        if (!first)
            recv_from(worker, rank - distance);
        last = one_pass(run, worker, false, ns);
        sent = send_to(run, worker, rank + distance, false, last);
        if (block)
            wait_for(worker, sent);
    }
    if (m > warm && !first)
        recv_from(worker, rank - distance);
    for (uint32_t i = warm; i < m; i++) {
        last = one_pass(run, worker, false, ns);
        if (!end) {
            sent = send_to(run, worker, rank + distance, false, last);
            recv_from(worker, rank + distance);
            if (block)
                wait_for(worker, sent);
        }
        last = one_pass(run, worker, true, ns);
        if (!first) {
            sent = send_to(run, worker, rank - distance, true, last);
            if (i + 1 < m)
                recv_from(worker, rank - distance);
            if (block)
                wait_for(worker, sent);
        }
    }
    for (uint32_t i = 0; i < warm; i++) {
        recv_from(worker, rank + distance);
        last = one_pass(run, worker, true, ns);
        if (!first) {
            sent = send_to(run, worker, rank - distance, true, last);
            if (block)
                wait_for(worker, sent);
        }
    }
    if (model->dp > 1)
        all(worker, worker->replicas, OP_ALL_REDUCE, STREAM_COMPUTE, -1, 4 * model->gradients_ns,
            256e6);
    finish(run, worker, factor);
}

void
model_make_step(struct run *run, uint32_t rank)
{
    const struct model *model = run->model;
    struct worker *worker = &run->workers[rank];
    double factor = model_speed(run, rank), length = run->lengths[model_replica(model, rank)];
    double ns = model->layer_ns * factor * length;
    double load = worker->expert * exp(0.02 * model_move(run, &worker->load, 0.8)), lost;

    worker->count = 0;
    for (uint32_t i = 0; i < STREAMS; i++)
        worker->at[i] = worker->length[i] = 0;
    worker->begun_ns = worker->free_ns[STREAM_COMPUTE];
    lost = model_lost_ns(run, rank);
    compute(run, worker, 0.1 * ns * model->layers, -1); /* loading, embedding */
    worker->items[0].ns += lost;
    for (uint32_t i = 0; i < model->fault_count; i++)
        if (model->faults[i].cause == CAUSE_EXPERT && model_active(&model->faults[i], run->tick) &&
            model->faults[i].rank == rank)
            load *= model->faults[i].factor;
    switch (model->layout) {
    case LAYOUT_DATA:
        step_data(run, worker, ns, factor);
        break;
    case LAYOUT_SHARDED:
        step_sharded(run, worker, ns, factor);
        break;
    case LAYOUT_TENSOR:
        step_tensor(run, worker, ns, factor);
        break;
    case LAYOUT_STAGES:
        step_stages(run, rank, ns, factor);
        break;
    case LAYOUT_EXPERTS:
        step_experts(run, worker, ns, factor, load);
        break;
    }
    for (uint32_t i = 0; i < model->fault_count; i++) {
        const struct model_fault *fault = &model->faults[i];
        uint32_t at = worker->count / 3;

        if ((fault->cause != CAUSE_HANG && fault->cause != CAUSE_CRASH) || fault->rank != rank ||
            fault->since != run->tick)
            continue;
        while (worker->items[at].kind != ITEM_COMPUTE)
            at++;
        worker->items[at].ns = INFINITY;
    }
}
