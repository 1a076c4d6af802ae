/* tests/traces/second/write.c - what each rank's source records, on the clock of its node. */
#include "tests/traces/second/state.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

static const char *const op_names[OPS] = {"all_reduce", "all_gather", "reduce_scatter",
                                          "all_to_all", "send",       "recv"};

static void
put(struct worker *worker, const char *format, ...)
{
    va_list args;
    int length;

    if (worker->text_size - worker->text_len < 512) {
        worker->text_size = worker->text_size * 2 + (1 << 16);
        worker->text = realloc(worker->text, worker->text_size);
    }
    va_start(args, format);
    length = vsnprintf(worker->text + worker->text_len, 512, format, args);
    va_end(args);
    worker->text_len += (size_t)length;
}

static uint64_t
own_clock(const struct run *run, uint32_t rank, double true_ns)
{
    const struct model *model = run->model;
    const struct worker *worker = &run->workers[rank];
    double ns = true_ns * (1 + worker->clock_drift) + worker->offset_ns;

    for (uint32_t i = 0; i < model->clock_step_count; i++)
        if (model->clock_steps[i].node == model_node(model, rank) &&
            run->tick >= model->clock_steps[i].tick && true_ns >= run->step_at_ns[i])
            ns += model->clock_steps[i].ns;
    return (uint64_t)ns;
}

static bool
is_lost(struct run *run, struct worker *worker)
{
    if (run->model->lost_runs && worker->lose_tick == run->tick && worker->lose_left == 0) {
        worker->lose_left = worker->lose_count;
        worker->lose_tick = UINT32_MAX;
    }
    if (worker->lose_left > 0) {
        worker->lose_left--;
        return true;
    }
    return run->model->lost > 0 && random_unit(run->random) < run->model->lost;
}

static const struct worker *sorted; /* whose items are being sorted */
static bool sorted_by_end;

static int
compare(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    const struct item *one = &sorted->items[left], *two = &sorted->items[right];
    double x = sorted_by_end && one->end_ns >= 0 ? one->end_ns : one->start_ns;
    double y = sorted_by_end && two->end_ns >= 0 ? two->end_ns : two->start_ns;

    if (sorted_by_end && (one->end_ns < 0) != (two->end_ns < 0))
        return one->end_ns < 0 ? 1 : -1;
    return x < y ? -1 : x > y ? 1 : left < right ? -1 : 1;
}

static void
write_item(struct run *run, uint32_t rank, const struct item *item)
{
    const struct model *model = run->model;
    struct worker *worker = &run->workers[rank];

    put(worker, "{\"rank\":%" PRIu32 ",\"comm\":\"%s\",\"op\":\"%s\"", rank,
        run->groups[item->group].name, op_names[item->op]);
    if (item->peer != UINT32_MAX)
        put(worker, ",\"peer\":%" PRIu32, item->peer);
    if (item->peer == UINT32_MAX || model->pair_seqs)
        put(worker, ",\"seq\":%" PRIu64, item->seq);
    if (model->bytes_named)
        put(worker, ",\"bytes\":%" PRIu64, item->bytes);
    if (model->steps_named)
        put(worker, ",\"step\":%" PRIu32, model_step(model, run->tick));
    if (model->work_named)
        put(worker, ",\"work\":%.4f", run->lengths[model_replica(model, rank)]);
    if (model->enters) { /* the host runs ahead of the stream, by up to 5 ms */
        worker->enter_ns =
            fmax(worker->enter_ns, item->start_ns - random_between(run->random, 0, 5e6));
        put(worker, ",\"enter_ns\":%" PRIu64,
            own_clock(run, rank, fmin(worker->enter_ns, item->start_ns)));
    }
    put(worker, ",\"%s\":%" PRIu64, model->enters_alone ? "enter_ns" : "start_ns",
        own_clock(run, rank, item->start_ns));
    if (item->end_ns >= 0)
        put(worker, ",\"end_ns\":%" PRIu64, own_clock(run, rank, item->end_ns));
    put(worker, "}\n");
}

void
model_write_tick(struct run *run, uint32_t rank)
{
    struct worker *worker = &run->workers[rank];
    uint32_t order[ITEMS_MAX] = {0}, count = 0;

    for (uint32_t i = 0; i < worker->count; i++)
        if (worker->items[i].kind >= ITEM_ALL && worker->items[i].start_ns >= 0)
            order[count++] = i;
    sorted = worker;
    sorted_by_end = run->model->by_end;
    qsort(order, count, sizeof *order, compare);
    for (uint32_t i = 0; i < count && rank != run->model->missing; i++)
        if (!is_lost(run, worker))
            write_item(run, rank, &worker->items[order[i]]);
    if (run->model->life && rank != run->model->missing)
        put(worker, "{\"rank\":%" PRIu32 ",\"now_ns\":%" PRIu64 "}\n", rank,
            own_clock(run, rank, worker->free_ns[STREAM_COMPUTE]));
}

void
model_write_header(const struct run *run)
{
    const struct model *model = run->model;
    FILE *out = run->out;

    fprintf(out, "{\"cairn_trace\":1,\"world\":%" PRIu32 ",\"nodes\":[", model->world);
    for (uint32_t rank = 0; rank < model->world; rank++)
        fprintf(out, "%s%" PRIu32, rank ? "," : "", model_node(model, rank));
    fputs("],\"comms\":{", out);
    for (uint32_t i = 0; i < run->group_count; i++) {
        const struct group *group = &run->groups[i];

        fprintf(out, "%s\"%s\":[", i ? "," : "", group->name);
        for (uint32_t k = 0; k < group->count; k++)
            fprintf(out, "%s%" PRIu32, k ? "," : "", group->ranks[k]);
        fputc(']', out);
    }
    fprintf(out, "},\"roles\":{\"tp\":%" PRIu32 ",\"pp\":%" PRIu32 ",\"dp\":%" PRIu32, model->tp,
            model->pp, model->dp);
    if (model->ep > 1)
        fprintf(out, ",\"ep\":%" PRIu32, model->ep);
    fputs("}}\n", out);
}

/* Signs of life of a job that stands still, from nodes that still live. */
void
model_write_life(struct run *run)
{
    double last_ns = 0;

    for (uint32_t rank = 0; rank < run->model->world; rank++)
        last_ns = fmax(last_ns, run->workers[rank].free_ns[STREAM_COMPUTE]);
    for (uint32_t rank = 0; rank < run->model->world; rank++) {
        struct worker *worker = &run->workers[rank];
        double end_ns = worker->dead ? worker->stopped_ns : last_ns + 40e9;

        for (double at_ns = worker->free_ns[STREAM_COMPUTE] + 0.4e9;
             at_ns < end_ns && rank != run->model->missing; at_ns += 1e9)
            put(worker, "{\"rank\":%" PRIu32 ",\"now_ns\":%" PRIu64 "}\n", rank,
                own_clock(run, rank, at_ns));
    }
}

/* Tick by tick, or one rank after the other. */
void
model_write_text(struct run *run, uint32_t ticks)
{
    uint32_t world = run->model->world;

    for (uint32_t i = 0; i < (run->model->rank_by_rank ? 1 : ticks + 1); i++)
        for (uint32_t rank = 0; rank < world; rank++) {
            const struct worker *worker = &run->workers[rank];
            size_t from = i > 0 ? worker->marks[i - 1] : 0;
            size_t to =
                i < ticks && !run->model->rank_by_rank ? worker->marks[i] : worker->text_len;

            if (to > from)
                fwrite(worker->text + from, 1, to - from, run->out);
        }
}
