/*
 * tests/traces/simulate.c - one job of hybrid parallelism, step by step, in true time; each rank
 * writes what it sees on a clock of its own that is seconds off and drifts.
 *
 * Each rank has a program per step: forward and backward of each micro-batch in the order of 1F1B,
 * with a collective of its tensor-parallel group in each, data from and to its neighbours, then the
 * gradients over its data-parallel group. A collective ends for all when the last has come and the
 * data has gone round. A receive waits for its sender.
 */
#include "tests/traces/job.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS_MAX = 1024, QUEUE_MAX = 64 };

enum item_kind { ITEM_COMPUTE, ITEM_TP, ITEM_GRADIENTS, ITEM_PARAMETERS, ITEM_SEND, ITEM_RECV };

struct item {
    enum item_kind kind;
    uint32_t peer;
    double ns;
};

struct line {
    double start_ns, end_ns; /* true time; end < 0: open */
    uint64_t seq;
    uint32_t comm, peer;
    const char *op;
    uint64_t bytes;
};

/* A time of congestion on a channel. */
struct spell {
    uint32_t step, left; /* the step that was looked at last, and steps to go, this one included */
    double factor;
};

struct group { /* a communicator */
    uint32_t ranks[1024], count;
    char kind[4];
    uint32_t number;
    uint32_t arrived;
    double last_ns;
    uint64_t seq;
    struct spell spell;
};

struct worker {
    struct item items[ITEMS_MAX];
    uint32_t item_count, at;
    struct line lines[ITEMS_MAX];
    uint32_t line_count;
    double now_ns, offset_ns, drift;
    double stopped_ns; /* when it stopped for good; < 0: it runs */
    bool blocked, dead;
    uint32_t tp_group, dp_group, pp_group;
};

/* What has been sent and not received, or the other way round, from one rank to a neighbour. */
struct mailbox {
    double posted_ns[QUEUE_MAX];
    uint32_t line[QUEUE_MAX];
    uint32_t head, tail;
    bool receiver_waits;
    double receiver_ns;
    bool stuck;
    struct spell spell;
};

struct world {
    const struct job *job;
    struct random *random, *spikes;
    struct worker *workers;
    struct group *groups;
    uint32_t group_count;
    struct mailbox *boxes; /* [world][2]: to the next stage, to the one before */
    uint32_t *ready, *moving;
    uint32_t ready_count;
    uint32_t step;
    double *lengths; /* [dp] */
    double *kept;    /* [dp] what stays of them from step to step, in standard deviations */
    FILE *out;
    bool stopped;
};

uint32_t
job_rank(const struct job *job, uint32_t tp, uint32_t pp, uint32_t dp)
{
    return job->data_before_stages ? tp + job->tp * (dp + job->dp * pp)
                                   : tp + job->tp * (pp + job->pp * dp);
}

uint32_t
job_stage(const struct job *job, uint32_t rank)
{
    return job->data_before_stages ? rank / (job->tp * job->dp) : rank / job->tp % job->pp;
}

uint32_t
job_pipeline(const struct job *job, uint32_t rank)
{
    return job->data_before_stages ? rank / job->tp % job->dp : rank / (job->tp * job->pp);
}

static bool
active(const struct fault *fault, uint32_t step)
{
    return step >= fault->since && step < fault->until;
}

static uint32_t
node_of(const struct job *job, uint32_t rank)
{
    return rank / job->ranks_per_node;
}

/* A time with a coefficient of variation, never below a fifth. */
static double
vary(struct world *world, double ns, double cov)
{
    double spread = sqrt(log(1 + cov * cov));

    return ns * fmax(0.2, exp(spread * random_normal(world->random) - spread * spread / 2));
}

/* ---- computation ---- */

static double
slowness(const struct world *world, uint32_t rank)
{
    const struct job *job = world->job;
    double factor = 1;

    for (uint32_t i = 0; i < job->fault_count; i++) {
        const struct fault *fault = &job->faults[i];

        if (!active(fault, world->step))
            continue;
        if ((fault->kind == FAULT_SLOW_RANK && fault->rank == rank) ||
            (fault->kind == FAULT_SLOW_NODE && fault->node == node_of(job, rank)) ||
            (fault->kind == FAULT_LONG_STAGE && fault->stage == job_stage(job, rank)))
            factor *= fault->factor;
    }
    return factor;
}

static double
pause_ns(struct world *world, uint32_t rank, double step_ns)
{
    const struct job *job = world->job;

    for (uint32_t i = 0; i < job->fault_count; i++) {
        const struct fault *fault = &job->faults[i];

        if (fault->kind == FAULT_PAUSE && fault->rank == rank && fault->since == world->step)
            return 5e9;
        if (fault->kind == FAULT_PAUSES && active(fault, world->step) &&
            random_unit(world->random) < 0.5 / job->world)
            return step_ns * fault->factor * random_between(world->random, 0.7, 1.3);
    }
    return 0;
}

static void
add(struct worker *worker, enum item_kind kind, uint32_t peer, double ns)
{
    if (worker->item_count < ITEMS_MAX)
        worker->items[worker->item_count++] = (struct item){kind, peer, ns};
}

/* Forward (or backward) of one micro-batch on a stage. */
static void
add_pass(struct world *world, uint32_t rank, bool backward, double ns)
{
    const struct job *job = world->job;
    struct worker *worker = &world->workers[rank];
    uint32_t stage = job_stage(job, rank);
    uint32_t distance = job->data_before_stages ? job->tp * job->dp : job->tp;
    bool has_before = stage > 0, has_next = stage + 1 < job->pp;

    if (backward ? has_next : has_before)
        add(worker, ITEM_RECV, backward ? rank + distance : rank - distance, 0);
    add(worker, ITEM_COMPUTE, 0, vary(world, backward ? 2 * ns : ns, 0.01));
    if (job->tp > 1)
        add(worker, ITEM_TP, 0, 0);
    if (backward ? has_before : has_next)
        add(worker, ITEM_SEND, backward ? rank - distance : rank + distance, 0);
}

static void
make_program(struct world *world, uint32_t rank)
{
    const struct job *job = world->job;
    struct worker *worker = &world->workers[rank];
    double length = world->lengths[job_pipeline(job, rank)];
    double factor = slowness(world, rank) * vary(world, 1, job->noise);
    double ns = job->forward_ns * length * factor;
    uint32_t m = job->microbatches, warm = job->pp - 1 - job_stage(job, rank);

    warm = warm < m ? warm : m;
    worker->item_count = worker->at = worker->line_count = 0;
    add(worker, ITEM_COMPUTE, 0, 0.2 * ns + pause_ns(world, rank, 3 * m * job->forward_ns));
    for (uint32_t i = 0; i < warm; i++)
        add_pass(world, rank, false, ns);
    for (uint32_t i = warm; i < m; i++) {
        add_pass(world, rank, false, ns);
        add_pass(world, rank, true, ns);
    }
    for (uint32_t i = 0; i < warm; i++)
        add_pass(world, rank, true, ns);
    if (job->dp > 1)
        add(worker, ITEM_GRADIENTS, 0, 0);
    add(worker, ITEM_COMPUTE, 0, job->optimizer_ns * factor);
    if (job->dp > 1 && job->sharded)
        add(worker, ITEM_PARAMETERS, 0, 0);
}

/* ---- transfers ---- */

/* By how much congestion stretches a transfer. */
static double
spike(struct world *world, struct spell *spell, bool far)
{
    const struct spikes *spikes = &world->job->spikes;
    uint32_t steps = spikes->steps > 0 ? spikes->steps : 1;

    if (spikes->share <= 0 || (!far && !spikes->near))
        return 1;
    if (spikes->steps > 0 && spell->step == world->step + 1)
        return spell->left > 0 ? spell->factor : 1;
    spell->step = world->step + 1; /* 0: never */
    if (spell->left > 0)
        spell->left--;
    if (spikes->steps == 0)
        spell->left = 0;
    if (spell->left == 0 && random_unit(world->spikes) <
                                spikes->share / (steps * (1 - spikes->share) + spikes->share)) {
        spell->left = 1 + random_below(world->spikes, 2 * steps - 1);
        spell->factor = random_between(world->spikes, 1, spikes->most);
    }
    return spell->left > 0 ? spell->factor : 1;
}

static bool
crosses(const struct job *job, const struct group *group)
{
    for (uint32_t i = 1; i < group->count; i++)
        if (node_of(job, group->ranks[i]) != node_of(job, group->ranks[0]))
            return true;
    return false;
}

static bool
has_neighbours(const struct group *group, uint32_t left, uint32_t right)
{
    for (uint32_t i = 0; i < group->count; i++) {
        uint32_t a = group->ranks[i], b = group->ranks[(i + 1) % group->count];

        if ((a == left && b == right) || (a == right && b == left))
            return true;
    }
    return false;
}

static bool
on_node(const struct job *job, const struct group *group, uint32_t node)
{
    for (uint32_t i = 0; i < group->count; i++)
        if (node_of(job, group->ranks[i]) == node)
            return true;
    return false;
}

/* A ring is as slow as its slowest link; a tree likewise. */
static double
group_ns(struct world *world, struct group *group, double ns)
{
    const struct job *job = world->job;
    bool far = crosses(job, group);
    double factor = 1, rounds = 2.0 * (group->count - 1) / group->count;

    if (job->tree)
        rounds = ceil(log2(group->count)) / 2 + 0.5;
    for (uint32_t i = 0; i < job->fault_count; i++) {
        const struct fault *fault = &job->faults[i];

        if (!active(fault, world->step))
            continue;
        if ((fault->kind == FAULT_SLOW_LINK && has_neighbours(group, fault->rank, fault->peer)) ||
            (fault->kind == FAULT_SLOW_NIC && far && on_node(job, group, fault->node)))
            factor = fmax(factor, fault->factor);
    }
    return vary(world, ns * rounds * factor, far ? job->noise_far : job->noise_near) *
           spike(world, &group->spell, far);
}

static struct mailbox *
box_of(struct world *world, uint32_t source, uint32_t target)
{
    return &world->boxes[2 * source + (target < source)];
}

static double
pair_ns(struct world *world, uint32_t source, uint32_t target)
{
    const struct job *job = world->job;
    bool far = node_of(job, source) != node_of(job, target);
    double factor = 1;

    for (uint32_t i = 0; i < job->fault_count; i++) {
        const struct fault *fault = &job->faults[i];

        if (!active(fault, world->step))
            continue;
        if ((fault->kind == FAULT_SLOW_LINK && fault->rank == source && fault->peer == target) ||
            (fault->kind == FAULT_SLOW_NIC && far &&
             (node_of(job, source) == fault->node || node_of(job, target) == fault->node)))
            factor = fmax(factor, fault->factor);
    }
    return vary(world, job->pair_ns * (far ? 1 : 0.3) * factor,
                far ? job->noise_far : job->noise_near) *
           spike(world, &box_of(world, source, target)->spell, far);
}

/* ---- running ---- */

static struct line *
open_line(struct worker *worker, const char *op, uint32_t comm, uint32_t peer, uint64_t seq,
          uint64_t bytes)
{
    struct line *line = &worker->lines[worker->line_count++];

    *line = (struct line){worker->now_ns, -1, seq, comm, peer, op, bytes};
    return line;
}

static void
wake(struct world *world, uint32_t rank, double now_ns)
{
    world->workers[rank].now_ns = now_ns;
    world->workers[rank].blocked = false;
    world->workers[rank].at++;
    world->ready[world->ready_count++] = rank;
}

/* True where a fault stops this transfer for good. */
static bool
transfer_stops(const struct world *world, uint32_t rank, uint32_t peer)
{
    for (uint32_t i = 0; i < world->job->fault_count; i++) {
        const struct fault *fault = &world->job->faults[i];

        if (fault->kind == FAULT_HANG_LINK && fault->since == world->step &&
            ((fault->rank == rank && fault->peer == peer) ||
             (fault->rank == peer && fault->peer == rank)))
            return true;
    }
    return false;
}

static void
join(struct world *world, uint32_t rank, uint32_t index, const char *op, double ns, uint64_t bytes)
{
    struct group *group = &world->groups[index];
    struct worker *worker = &world->workers[rank];
    double end_ns;

    open_line(worker, op, index, UINT32_MAX, group->seq, bytes);
    worker->blocked = true;
    group->arrived++;
    group->last_ns = group->arrived == 1 ? worker->now_ns : fmax(group->last_ns, worker->now_ns);
    if (group->arrived < group->count)
        return;
    for (uint32_t i = 0; i < group->count; i++)
        if (transfer_stops(world, group->ranks[i], group->ranks[(i + 1) % group->count])) {
            world->stopped = true;
            return;
        }
    end_ns = group->last_ns + group_ns(world, group, ns);
    group->arrived = 0;
    group->seq++;
    for (uint32_t i = 0; i < group->count; i++) {
        struct worker *other = &world->workers[group->ranks[i]];
        double own_end_ns = end_ns + random_between(world->random, 0, 20e3);

        other->lines[other->line_count - 1].end_ns = own_end_ns;
        wake(world, group->ranks[i], own_end_ns);
    }
}

static void
deliver(struct world *world, uint32_t source, uint32_t target)
{
    struct mailbox *box = box_of(world, source, target);
    uint32_t at = box->head % QUEUE_MAX;
    struct worker *sender = &world->workers[source], *receiver = &world->workers[target];
    double end_ns;

    if (box->head == box->tail || !box->receiver_waits)
        return;
    if (transfer_stops(world, source, target)) {
        world->stopped = box->stuck = true;
        return;
    }
    end_ns = fmax(box->posted_ns[at], box->receiver_ns) + pair_ns(world, source, target);
    box->head++;
    box->receiver_waits = false;
    sender->lines[box->line[at]].end_ns = end_ns;
    receiver->lines[receiver->line_count - 1].end_ns = end_ns;
    wake(world, target, end_ns);
}

/* True where the rank stops here for good. */
static bool
stops_here(const struct world *world, uint32_t rank)
{
    const struct worker *worker = &world->workers[rank];

    for (uint32_t i = 0; i < world->job->fault_count; i++) {
        const struct fault *fault = &world->job->faults[i];

        if ((fault->kind == FAULT_HANG_RANK || fault->kind == FAULT_CRASH) && fault->rank == rank &&
            fault->since == world->step && worker->at >= worker->item_count / 2 &&
            worker->items[worker->at].kind == ITEM_COMPUTE)
            return true;
    }
    return false;
}

static void
run(struct world *world, uint32_t rank)
{
    const struct job *job = world->job;
    struct worker *worker = &world->workers[rank];

    while (worker->at < worker->item_count && !worker->blocked) {
        const struct item *item = &worker->items[worker->at];
        struct mailbox *box;

        if (stops_here(world, rank)) {
            worker->stopped_ns = worker->now_ns + 0.3 * item->ns;
            for (uint32_t i = 0; i < job->fault_count; i++)
                worker->dead |= job->faults[i].kind == FAULT_CRASH && job->faults[i].rank == rank;
            world->stopped = worker->blocked = true;
            return;
        }
        switch (item->kind) {
        case ITEM_COMPUTE:
            worker->now_ns += item->ns;
            worker->at++;
            break;
        case ITEM_TP:
            join(world, rank, worker->tp_group, "all_reduce", job->tp_ns, 16 << 20);
            return; /* where it was the last, it is in the list of the ready */
        case ITEM_GRADIENTS:
            join(world, rank, worker->dp_group, job->sharded ? "reduce_scatter" : "all_reduce",
                 job->dp_ns, 256 << 20);
            return;
        case ITEM_PARAMETERS:
            join(world, rank, worker->dp_group, "all_gather", job->dp_ns, 256 << 20);
            return;
        case ITEM_SEND:
            box = box_of(world, rank, item->peer);
            box->posted_ns[box->tail % QUEUE_MAX] = worker->now_ns;
            box->line[box->tail % QUEUE_MAX] = worker->line_count;
            box->tail++;
            open_line(worker, "send", worker->pp_group, item->peer, 0, 4 << 20);
            worker->at++;
            deliver(world, rank, item->peer);
            break;
        case ITEM_RECV:
            box = box_of(world, item->peer, rank);
            open_line(worker, "recv", worker->pp_group, item->peer, 0, 4 << 20);
            box->receiver_waits = worker->blocked = true;
            box->receiver_ns = worker->now_ns;
            deliver(world, item->peer, rank);
            return;
        }
    }
}

/* ---- writing ---- */

static uint64_t
own_clock(const struct worker *worker, double true_ns)
{
    return (uint64_t)(true_ns * (1 + worker->drift) + worker->offset_ns);
}

/* Text is put together by hand here: most of a long trace's time was fprintf's. */
static char *
put_text(char *at, const char *text)
{
    size_t length = strlen(text);

    memcpy(at, text, length);
    return at + length;
}

static char *
put_number(char *at, const char *before, uint64_t number)
{
    char digits[20];
    uint32_t count = 0;

    at = put_text(at, before);
    do
        digits[count++] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    while (count > 0)
        *at++ = digits[--count];
    return at;
}

static void
write_lines(struct world *world, uint32_t rank)
{
    const struct job *job = world->job;
    const struct worker *worker = &world->workers[rank];
    char tail[64] = "", text[512];

    if (job->steps_named)
        snprintf(tail, sizeof tail, ",\"step\":%" PRIu32, world->step);
    if (job->work_named)
        snprintf(tail + strlen(tail), sizeof tail - strlen(tail), ",\"work\":%.4f",
                 world->lengths[job_pipeline(job, rank)]);
    for (uint32_t i = 0; i < worker->line_count; i++) {
        const struct line *line = &worker->lines[i];
        const struct group *group = &world->groups[line->comm];
        char *at = put_number(text, "{\"rank\":", rank);

        at = put_text(put_text(at, ",\"comm\":\""), group->kind);
        at = put_text(put_number(at, "", group->number), "\",\"op\":\"");
        at = put_number(put_text(at, line->op), "\",\"bytes\":", line->bytes);
        if (line->peer != UINT32_MAX)
            at = put_number(at, ",\"peer\":", line->peer);
        else
            at = put_number(at, ",\"seq\":", line->seq);
        at = put_number(put_text(at, tail), ",\"start_ns\":", own_clock(worker, line->start_ns));
        if (line->end_ns >= 0)
            at = put_number(at, ",\"end_ns\":", own_clock(worker, line->end_ns));
        at = put_text(at, "}\n");
        fwrite(text, 1, (size_t)(at - text), world->out);
    }
}

static void
write_header(const struct world *world)
{
    const struct job *job = world->job;
    FILE *out = world->out;

    fprintf(out, "{\"cairn_trace\":1,\"world\":%" PRIu32 ",\"nodes\":[", job->world);
    for (uint32_t rank = 0; rank < job->world; rank++)
        fprintf(out, "%s%" PRIu32, rank ? "," : "", node_of(job, rank));
    fputs("],\"comms\":{", out);
    for (uint32_t i = 0; i < world->group_count; i++) {
        const struct group *group = &world->groups[i];

        fprintf(out, "%s\"%s%" PRIu32 "\":[", i ? "," : "", group->kind, group->number);
        for (uint32_t k = 0; k < group->count; k++)
            fprintf(out, "%s%" PRIu32, k ? "," : "", group->ranks[k]);
        fputc(']', out);
    }
    fprintf(out, "},\"roles\":{\"tp\":%" PRIu32 ",\"pp\":%" PRIu32 ",\"dp\":%" PRIu32 "}}\n",
            job->tp, job->pp, job->dp);
}

/* Signs of life, once a second, of those that still live. */
static void
write_life(struct world *world)
{
    const struct job *job = world->job;
    double last_ns = 0, wait_ns = 20e9;

    for (uint32_t i = 0; i < job->fault_count; i++)
        if (job->faults[i].kind == FAULT_PAUSE)
            wait_ns = 5e9;
    for (uint32_t rank = 0; rank < job->world; rank++)
        last_ns = fmax(last_ns, world->workers[rank].now_ns);
    for (uint32_t rank = 0; rank < job->world; rank++) {
        const struct worker *worker = &world->workers[rank];
        double end_ns = worker->dead ? worker->stopped_ns : last_ns + wait_ns;

        for (double at_ns = worker->now_ns + 0.5e9; at_ns < end_ns; at_ns += 1e9)
            fprintf(world->out, "{\"rank\":%" PRIu32 ",\"now_ns\":%" PRIu64 "}\n", rank,
                    own_clock(worker, at_ns));
    }
}

/* ---- the whole ---- */

static void
make_groups(struct world *world)
{
    const struct job *job = world->job;
    uint32_t counts[3] = {job->pp * job->dp, job->tp * job->dp, job->tp * job->pp};
    static const char *const kinds[3] = {"tp", "pp", "dp"};

    world->groups = calloc(counts[0] + counts[1] + counts[2], sizeof *world->groups);
    for (int kind = 0; kind < 3; kind++)
        for (uint32_t i = 0; i < counts[kind]; i++) {
            struct group *group = &world->groups[world->group_count];
            uint32_t size = kind == 0 ? job->tp : kind == 1 ? job->pp : job->dp;

            snprintf(group->kind, sizeof group->kind, "%s", kinds[kind]);
            group->number = i;
            for (uint32_t k = 0; k < size; k++) {
                uint32_t rank = kind == 0   ? job_rank(job, k, i % job->pp, i / job->pp)
                                : kind == 1 ? job_rank(job, i % job->tp, k, i / job->tp)
                                            : job_rank(job, i % job->tp, i / job->tp, k);
                struct worker *worker = &world->workers[rank];

                group->ranks[group->count++] = rank;
                *(kind == 0   ? &worker->tp_group
                  : kind == 1 ? &worker->pp_group
                              : &worker->dp_group) = world->group_count;
            }
            world->group_count++;
        }
}

/* A length that wanders from step to step. */
static double
kept_length(struct world *world, uint32_t pipeline, double spread)
{
    double kept = world->step > 0 ? world->job->length_kept : 0;

    world->kept[pipeline] =
        kept * world->kept[pipeline] + sqrt(1 - kept * kept) * random_normal(world->random);
    return fmax(0.2, exp(spread * world->kept[pipeline] - spread * spread / 2));
}

static void
draw_lengths(struct world *world)
{
    const struct job *job = world->job;
    double spread = job->length_spread;

    for (uint32_t i = 0; i < job->fault_count; i++)
        if (job->faults[i].kind == FAULT_LENGTHS && active(&job->faults[i], world->step))
            spread = job->faults[i].factor;
    for (uint32_t i = 0; i < job->dp; i++)
        world->lengths[i] =
            job->length_kept > 0 ? kept_length(world, i, spread) : vary(world, 1, spread);
}

/* Something has stopped: ranks that had finished the step go on until they wait, too. */
static void
run_into_stop(struct world *world)
{
    for (uint32_t more = 0; more < world->job->pp + 2; more++, world->step++) {
        uint32_t first = world->ready_count, count = 0;

        draw_lengths(world);
        for (uint32_t rank = 0; rank < world->job->world; rank++)
            if (!world->workers[rank].blocked &&
                world->workers[rank].at == world->workers[rank].item_count) {
                make_program(world, rank);
                world->moving[count++] = rank;
                world->ready[world->ready_count++] = rank;
            }
        while (world->ready_count > first)
            run(world, world->ready[--world->ready_count]);
        for (uint32_t i = 0; i < count; i++)
            write_lines(world, world->moving[i]);
    }
}

void
job_simulate(const struct job *job, struct random *random, struct random *spikes, FILE *out)
{
    struct world world = {.job = job, .random = random, .spikes = spikes, .out = out};

    world.workers = calloc(job->world, sizeof *world.workers);
    world.boxes = calloc((size_t)job->world * 2, sizeof *world.boxes);
    world.ready = calloc((size_t)job->world * 2, sizeof *world.ready);
    world.moving = calloc(job->world, sizeof *world.moving);
    world.lengths = calloc(job->dp, sizeof *world.lengths);
    world.kept = calloc(job->dp, sizeof *world.kept);
    make_groups(&world);
    for (uint32_t rank = 0; rank < job->world; rank++) {
        world.workers[rank].offset_ns = random_between(random, 1e9, 20e9);
        world.workers[rank].drift = random_between(random, -50e-6, 50e-6);
        world.workers[rank].stopped_ns = -1;
    }
    write_header(&world);
    for (world.step = 0; world.step < job->steps && !world.stopped; world.step++) {
        draw_lengths(&world);
        for (uint32_t rank = 0; rank < job->world; rank++) {
            make_program(&world, rank);
            world.ready[world.ready_count++] = rank;
        }
        while (world.ready_count > 0)
            run(&world, world.ready[--world.ready_count]);
        for (uint32_t rank = 0; rank < job->world; rank++)
            write_lines(&world, rank);
    }
    if (world.stopped) {
        run_into_stop(&world);
        write_life(&world);
    }
    free(world.workers);
    free(world.groups);
    free(world.boxes);
    free(world.ready);
    free(world.moving);
    free(world.lengths);
    free(world.kept);
}
