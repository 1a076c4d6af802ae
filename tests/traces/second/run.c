/* tests/traces/second/run.c - runs a job tick by tick, in true time; see model.h. */
#include "tests/traces/second/state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void
make_ready(struct run *run, uint32_t rank)
{
    if (run->workers[rank].queued)
        return;
    run->workers[rank].queued = true;
    run->ready[run->ready_count++] = rank;
}

static void
end_item(struct run *run, uint32_t rank, struct item *item, double end_ns)
{
    struct worker *worker = &run->workers[rank];

    item->end_ns = end_ns;
    worker->free_ns[item->stream] = fmax(worker->free_ns[item->stream], end_ns);
    worker->at[item->stream]++;
    make_ready(run, rank);
}

static struct item *
head_of(struct run *run, uint32_t rank, uint32_t stream)
{
    struct worker *worker = &run->workers[rank];

    return &worker->items[worker->order[stream][worker->at[stream]]];
}

static void
join(struct run *run, struct item *item)
{
    struct group *group = &run->groups[item->group];
    double ns, end_ns;

    item->seq = group->seqs[run->model->op_seqs ? item->op : 0];
    group->last_ns = group->arrived ? fmax(group->last_ns, item->start_ns) : item->start_ns;
    if (++group->arrived < group->count)
        return;
    if (model_stops(run, group->ranks, group->count)) {
        run->stopped = true;
        return;
    }
    ns = item->ns * (item->op == OP_ALL_REDUCE ? 2.0 : 1.0) * (group->count - 1) / group->count;
    ns = model_channel_ns(run, &group->wander, ns * model_stretch(run, group->ranks, group->count),
                          group->far);
    end_ns = group->last_ns + ns;
    group->arrived = 0;
    group->seqs[run->model->op_seqs ? item->op : 0]++;
    for (uint32_t i = 0; i < group->count; i++)
        for (uint32_t s = 0; s < STREAMS; s++) {
            struct worker *other = &run->workers[group->ranks[i]];
            struct item *head;

            if (other->at[s] >= other->length[s])
                continue;
            head = head_of(run, group->ranks[i], s);
            if (head->kind == ITEM_ALL && head->group == item->group && head->start_ns >= 0 &&
                head->end_ns < 0) {
                end_item(run, group->ranks[i], head, end_ns + random_between(run->random, 0, 15e3));
                break;
            }
        }
}

static void
meet(struct run *run, uint32_t source, uint32_t target)
{
    const struct model *model = run->model;
    struct pair *pair = &run->pairs[source * model->world + target];
    uint32_t ranks[2] = {source, target};
    struct item *send, *recv;
    bool far = model_node(model, source) != model_node(model, target);
    double ns, begin_ns;

    while (pair->send_head < pair->send_tail && pair->recv_head < pair->recv_tail) {
        send = &run->workers[source].items[pair->sends[pair->send_head % QUEUE_MAX]];
        recv = &run->workers[target].items[pair->recvs[pair->recv_head % QUEUE_MAX]];
        if (model_stops(run, ranks, 2)) {
            run->stopped = true;
            return;
        }
        pair->send_head++;
        pair->recv_head++;
        if (model->sends == SENDS_BUFFERED) { /* its data has been under way since it was sent */
            end_item(run, target, recv, fmax(recv->start_ns + 20e3, send->end_ns));
            continue;
        }
        begin_ns = fmax(send->start_ns, recv->start_ns);
        ns = model_channel_ns(run, &pair->wander,
                              send->ns * (far ? 1 : 0.4) * model_stretch(run, ranks, 2), far);
        end_item(run, target, recv, begin_ns + ns);
        end_item(run, source, send, begin_ns + ns + random_between(run->random, 0, 10e3));
    }
}

static void
send_out(struct run *run, uint32_t rank, struct item *item, uint32_t index)
{
    const struct model *model = run->model;
    struct pair *pair = &run->pairs[rank * model->world + item->peer];
    uint32_t ranks[2] = {rank, item->peer};
    bool far = model_node(model, rank) != model_node(model, item->peer);

    item->seq = pair->seq_sent++;
    if (model->sends == SENDS_BUFFERED && model_stops(run, ranks, 2)) {
        run->stopped = true;
        return;
    }
    pair->sends[pair->send_tail++ % QUEUE_MAX] = index;
    if (model->sends == SENDS_BUFFERED)
        end_item(run, rank, item,
                 item->start_ns +
                     model_channel_ns(run, &pair->wander,
                                      item->ns * (far ? 1 : 0.4) * model_stretch(run, ranks, 2),
                                      far));
    meet(run, rank, item->peer);
}

/* Starts what can start at the head of a stream; true where something moved. */
static bool
advance(struct run *run, uint32_t rank, uint32_t stream)
{
    struct worker *worker = &run->workers[rank];
    struct item *item;
    uint32_t index;
    double start_ns = fmax(worker->free_ns[stream], worker->begun_ns);
    struct pair *pair;

    if (worker->dead || worker->at[stream] >= worker->length[stream])
        return false;
    index = worker->order[stream][worker->at[stream]];
    item = &worker->items[index];
    if (item->start_ns >= 0)
        return false; /* under way */
    for (uint32_t i = 0; item->after == -2 && i < index; i++) {
        if (worker->items[i].end_ns < 0)
            return false;
        start_ns = fmax(start_ns, worker->items[i].end_ns);
    }
    if (item->after >= 0) {
        if (worker->items[item->after].end_ns < 0)
            return false;
        start_ns = fmax(start_ns, worker->items[item->after].end_ns);
    }
    item->start_ns = start_ns;
    switch (item->kind) {
    case ITEM_WAIT:
    case ITEM_COMPUTE:
        if (isinf(item->ns)) {
            worker->stuck = run->stopped = true;
            worker->stopped_ns = start_ns + 1e6;
            for (uint32_t i = 0; i < run->model->fault_count; i++)
                worker->dead |= run->model->faults[i].cause == CAUSE_CRASH &&
                                run->model->faults[i].rank == rank;
            return false;
        }
        end_item(run, rank, item, start_ns + item->ns);
        return true;
    case ITEM_ALL:
        join(run, item);
        return true;
    case ITEM_SEND:
        send_out(run, rank, item, index);
        return true;
    case ITEM_RECV:
        pair = &run->pairs[item->peer * run->model->world + rank];
        item->seq = pair->seq_received++;
        pair->recvs[pair->recv_tail++ % QUEUE_MAX] = index;
        meet(run, item->peer, rank);
        return true;
    }
    return false;
}

static void
run_ready(struct run *run)
{
    while (run->ready_count > 0) {
        uint32_t rank = run->ready[--run->ready_count];
        bool moved = true;

        run->workers[rank].queued = false;
        while (moved) {
            moved = false;
            for (uint32_t stream = 0; stream < STREAMS; stream++)
                moved |= advance(run, rank, stream);
        }
    }
}

static bool
finished(const struct worker *worker)
{
    for (uint32_t i = 0; i < STREAMS; i++)
        if (worker->at[i] < worker->length[i])
            return false;
    return !worker->dead;
}

/* ---- the whole ---- */

static void
begin(struct run *run)
{
    const struct model *model = run->model;
    struct random *random = run->random;
    uint32_t node_count = (model->world + model->ranks_per_node - 1) / model->ranks_per_node;

    run->workers = calloc(model->world, sizeof *run->workers);
    run->pairs =
        model->pp > 1 ? calloc((size_t)model->world * model->world, sizeof *run->pairs) : NULL;
    run->ready = calloc(model->world, sizeof *run->ready);
    run->nodes = calloc(node_count, sizeof *run->nodes);
    run->lengths = calloc(model->dp, sizeof *run->lengths);
    model_groups(run);
    for (uint32_t rank = 0; rank < model->world; rank++) {
        struct worker *worker = &run->workers[rank];
        bool same = rank % model->ranks_per_node != 0; /* ranks of a node share its clock */

        worker->offset_ns =
            same ? run->workers[rank - 1].offset_ns : random_between(random, 2e13, 4e13);
        worker->clock_drift =
            same ? run->workers[rank - 1].clock_drift : random_between(random, -80e-6, 80e-6);
        worker->expert = exp(0.02 * random_normal(random));
        worker->collect_every = 8 + random_below(random, 16);
        worker->collect_phase = random_below(random, worker->collect_every);
        worker->lose_tick = model->lost_runs ? random_below(random, model->ticks) : UINT32_MAX;
        worker->lose_count = 5 + random_below(random, 60);
    }
}

static void
start_tick(struct run *run)
{
    const struct model *model = run->model;
    uint32_t node_count = (model->world + model->ranks_per_node - 1) / model->ranks_per_node;

    model_move(run, &run->common, 0.5);
    for (uint32_t i = 0; i < node_count; i++)
        model_move(run, &run->nodes[i], model->correlation);
    for (uint32_t i = 0; i < run->group_count; i++)
        model_move(run, &run->groups[i].wander, 0.9);
    for (uint32_t i = 0; run->pairs && i < model->world * model->world; i++)
        if (run->pairs[i].seq_sent > 0 || run->tick == 0)
            model_move(run, &run->pairs[i].wander, 0.9);
    for (uint32_t i = 0; i < model->dp; i++)
        run->lengths[i] = model_length(run);
    for (uint32_t i = 0; i < model->clock_step_count; i++)
        if (model->clock_steps[i].tick == run->tick) {
            uint32_t rank = model->clock_steps[i].node * model->ranks_per_node;

            run->step_at_ns[i] = run->workers[rank].free_ns[STREAM_COMPUTE] +
                                 random_between(run->random, 0, model_usual_ns(model));
        }
}

/* The job has stopped and all start again, after the time that takes; one node may be another
 * machine now. */
static void
restart(struct run *run)
{
    const struct model *model = run->model;
    double last_ns = 0, wait_ns = random_between(run->random, 20e9, 90e9);

    for (uint32_t rank = 0; rank < model->world; rank++)
        for (uint32_t s = 0; s < STREAMS; s++)
            last_ns = fmax(last_ns, run->workers[rank].free_ns[s]);
    for (uint32_t rank = 0; rank < model->world; rank++) {
        struct worker *worker = &run->workers[rank];

        for (uint32_t s = 0; s < STREAMS; s++)
            worker->free_ns[s] = last_ns + wait_ns + random_between(run->random, 0, 1e9);
        if (model_node(model, rank) == model->replaced)
            worker->offset_ns += model->replaced_clock_ns;
    }
    for (uint32_t i = 0; i < run->group_count; i++)
        memset(run->groups[i].seqs, 0, sizeof run->groups[i].seqs);
    for (uint32_t i = 0; run->pairs && i < model->world * model->world; i++)
        run->pairs[i].seq_sent = run->pairs[i].seq_received = 0;
}

/* Lets everybody who is through with the steps before take the next; writes it. */
static void
one_tick(struct run *run)
{
    uint32_t world = run->model->world, count = 0;
    uint32_t *began = calloc(world, sizeof *began);

    start_tick(run);
    for (uint32_t rank = 0; rank < world; rank++)
        if (finished(&run->workers[rank])) {
            model_make_step(run, rank);
            make_ready(run, rank);
            began[count++] = rank;
        }
    run_ready(run);
    for (uint32_t i = 0; i < count; i++)
        model_write_tick(run, began[i]);
    for (uint32_t rank = 0; rank < world; rank++)
        run->workers[rank].marks[run->tick] = run->workers[rank].text_len;
    free(began);
}

void
model_run(const struct model *model, struct random *random, FILE *out)
{
    struct run run = {.model = model, .random = random, .out = out};
    uint32_t written = 0;

    begin(&run);
    model_write_header(&run);
    for (run.tick = 0; run.tick < model->ticks && !run.stopped; run.tick++) {
        if (model->restart && run.tick == model->restart)
            restart(&run);
        one_tick(&run);
        written = run.tick + 1;
    }
    if (run.stopped) {
        for (uint32_t more = 0; more < 3; more++, run.tick++, written++)
            one_tick(&run);
        model_write_life(&run);
    }
    model_write_text(&run, written);
    for (uint32_t rank = 0; rank < model->world; rank++)
        free(run.workers[rank].text);
    free(run.workers);
    free(run.groups);
    free(run.pairs);
    free(run.ready);
    free(run.nodes);
    free(run.lengths);
}
