/*
 * examples/gpt/protect.c - the calls of the public C API.
 */
#include "protect.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "say.h"

enum { PER_TENSOR = 3 /* the parameter and its two moments */ };

struct gpt_protect {
    struct cairn_client *client;
    uint64_t number; /* of the placement that is computed by; 0: that of the start */
    uint64_t fence_ns;
};

static uint64_t
now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void
pass_on(void *context, enum cairn_log_level level, const char *line)
{
    (void)context;
    if (level <= CAIRN_LOG_INFO)
        gpt_say("cairn: %s", line);
}

static struct cairn_slice
tensor_slice(const struct gpt_tensor *tensor, const struct gpt_plan *plan, const char *name,
             enum cairn_kind kind, float *floats)
{
    struct cairn_slice slice = {
        CAIRN_SLICE_INIT,
        .name = name,
        .dtype = CAIRN_F32,
        .kind = kind,
        .dims = tensor->dims,
        .replica_index = plan->replica,
        .replica_count = plan->dp,
        .address = floats + tensor->begin,
        .device = -1,
    };

    for (uint32_t i = 0; i < tensor->dims; i++) {
        slice.shape[i] = tensor->extent[i];
        slice.extent[i] = tensor->extent[i];
    }
    return slice;
}

static struct cairn_slice
progress_slice(const struct gpt_progress *progress, const struct gpt_plan *plan)
{
    return (struct cairn_slice){
        CAIRN_SLICE_INIT,
        .name = "trainer.progress",
        .dtype = CAIRN_U8,
        .kind = CAIRN_OPAQUE,
        .dims = 1,
        .shape = {progress->count},
        .extent = {progress->count},
        .replica_index = plan->rank,
        .replica_count = plan->world,
        .address = progress->bytes,
        .device = -1,
    };
}

/* The slices of a state, and the names that they borrow. */
struct slices {
    struct cairn_slice *list;
    char (*names)[CAIRN_NAME_BYTES_MAX];
    uint32_t count;
};

static void
slices_fini(struct slices *slices)
{
    free(slices->list);
    free(slices->names);
    *slices = (struct slices){0};
}

static cairn_err
slices_init(const struct gpt_plan *plan, const struct gpt_state *state,
            const struct gpt_progress *progress, struct slices *out)
{
    const struct gpt_stage *stage = &state->stage;
    struct slices slices = {.count = stage->tensor_count * PER_TENSOR + 1};

    slices.list = calloc(slices.count, sizeof *slices.list);
    slices.names = calloc(slices.count, sizeof *slices.names);
    if (!slices.list || !slices.names) {
        gpt_say("no memory for the list of tensors");
        slices_fini(&slices);
        return CAIRN_NOMEM;
    }
    for (uint32_t i = 0; i < stage->tensor_count; i++) {
        const struct gpt_tensor *tensor = &stage->tensors[i];
        char(*names)[CAIRN_NAME_BYTES_MAX] = slices.names + (size_t)i * PER_TENSOR;
        struct cairn_slice *own = slices.list + (size_t)i * PER_TENSOR;

        (void)snprintf(names[0], sizeof names[0], "%s", tensor->name);
        (void)snprintf(names[1], sizeof names[1], "exp_avg.%s", tensor->name);
        (void)snprintf(names[2], sizeof names[2], "exp_avg_sq.%s", tensor->name);
        own[0] = tensor_slice(tensor, plan, names[0], CAIRN_PARAM, stage->param);
        own[1] = tensor_slice(tensor, plan, names[1], CAIRN_OPTIMIZER, state->exp_avg);
        own[2] = tensor_slice(tensor, plan, names[2], CAIRN_OPTIMIZER, state->exp_avg_sq);
    }
    slices.list[slices.count - 1] = progress_slice(progress, plan);
    *out = slices;
    return CAIRN_OK;
}

cairn_err
gpt_protect_register(struct gpt_protect *protect, const struct gpt_plan *plan,
                     const struct gpt_state *state, const struct gpt_progress *progress)
{
    struct slices slices = {0};
    cairn_err err = slices_init(plan, state, progress, &slices);

    if (err)
        return err;
    err = cairn_client_register(protect->client, slices.list, slices.count);
    slices_fini(&slices);
    if (err == CAIRN_NOMEM || err == CAIRN_TIMEOUT || err == CAIRN_PEER || err == CAIRN_AGAIN) {
        gpt_say("training goes on without protection: the agent took no tensors (%s)",
                cairn_err_text(err));
        return CAIRN_OK;
    }
    if (err)
        gpt_say("the agent refused the tensors: %s", cairn_err_text(err));
    return err;
}

cairn_err
gpt_protect_open(const struct gpt_protect_options *options, const struct gpt_plan *plan,
                 const struct gpt_state *state, struct gpt_progress *progress,
                 struct gpt_protect **out)
{
    const struct cairn_client_options client_options = {
        CAIRN_CLIENT_OPTIONS_INIT,
        .agent_socket = options->agent_socket,
        .job = options->job,
        .rank = plan->rank,
        .world = plan->world,
        .local_ranks = options->local_ranks,
        .fence_timeout_ms = options->fence_timeout_ms,
        .restore_timeout_ms = options->restore_timeout_ms,
        .log = pass_on,
    };
    struct gpt_protect *protect = calloc(1, sizeof *protect);
    cairn_err err = CAIRN_NOMEM;

    if (!protect) {
        gpt_say("no memory for the client");
        goto done;
    }
    err = cairn_client_open(&client_options, &protect->client);
    if (err) {
        gpt_say("no client of the agent could be opened: %s", cairn_err_text(err));
        goto done;
    }
    err = gpt_protect_register(protect, plan, state, progress);
    if (err)
        goto done;
    *out = protect;
    protect = NULL;
done:
    gpt_protect_close(protect);
    return err;
}

void
gpt_protect_close(struct gpt_protect *protect)
{
    if (!protect)
        return;
    cairn_client_close(protect->client);
    free(protect);
}

cairn_err
gpt_protect_restore(struct gpt_protect *protect, struct cairn_restored *out)
{
    cairn_err err = cairn_client_restore(protect->client, out);

    if (err && err != CAIRN_NOT_FOUND)
        gpt_say("the restore failed: %s", cairn_err_text(err));
    return err;
}

static void
fence(struct gpt_protect *protect, uint32_t slice_index)
{
    uint64_t begin_ns = now_ns();

    /* Training may go on after every result; the client counts and says what was given up. */
    (void)cairn_snapshot_fence(protect->client, slice_index);
    protect->fence_ns += now_ns() - begin_ns;
}

void
gpt_protect_fence_tensor(struct gpt_protect *protect, uint32_t index)
{
    for (uint32_t i = 0; i < PER_TENSOR; i++)
        fence(protect, index * PER_TENSOR + i);
}

void
gpt_protect_fence_all(struct gpt_protect *protect)
{
    fence(protect, CAIRN_FENCE_ALL);
}

uint64_t
gpt_protect_fence_ns(struct gpt_protect *protect)
{
    uint64_t fence_ns = protect->fence_ns;

    protect->fence_ns = 0;
    return fence_ns;
}

bool
gpt_protect_begin(struct gpt_protect *protect, uint64_t step)
{
    return cairn_snapshot_begin(protect->client, step) == CAIRN_OK;
}

bool
gpt_protect_commit(struct gpt_protect *protect, uint64_t step)
{
    /* a "last" snapshot: it ignores the interval, and no fence cancels it */
    return cairn_snapshot_begin_last(protect->client, step) == CAIRN_OK &&
           cairn_snapshot_confirm(protect->client, true) == CAIRN_OK;
}

/* Stages whose layers may move; more than the client can name stay where they are. */
static uint32_t
movable_stages(const struct gpt_plan *plan)
{
    return plan->world <= CAIRN_STAGES_MAX ? plan->pp : 0;
}

uint64_t
gpt_protect_vote(struct gpt_protect *protect, const struct gpt_plan *plan)
{
    uint32_t layers[CAIRN_STAGES_MAX], stages = movable_stages(plan);

    for (uint32_t i = 0; i < plan->dp * stages; i++)
        layers[i] = plan->stage_layers[i / stages][i % stages];
    return cairn_placement_vote_layers(protect->client, protect->number, plan->dp,
                                       plan->micro_batches, stages, layers);
}

enum cairn_placement_change
gpt_protect_take(struct gpt_protect *protect, uint64_t agreed, const struct gpt_plan *plan,
                 struct gpt_plan *next)
{
    uint32_t shares[GPT_PARTS_MAX], layers[CAIRN_STAGES_MAX], stages = movable_stages(plan);
    uint32_t stage_layers[GPT_PARTS_MAX][GPT_PARTS_MAX] = {{0}};
    enum cairn_placement_change change;
    uint64_t number = protect->number;

    change =
        cairn_placement_take(protect->client, agreed, &number, plan->dp, shares, stages, layers);
    if (change != CAIRN_PLACEMENT_TAKEN && change != CAIRN_PLACEMENT_ENTER)
        return change;
    *next = *plan;
    gpt_plan_share(next, shares);
    for (uint32_t i = 0; i < plan->dp * stages; i++)
        stage_layers[i / stages][i % stages] = layers[i];
    if (stages)
        gpt_plan_place(next, stage_layers);
    if (change == CAIRN_PLACEMENT_TAKEN)
        protect->number = number;
    return change;
}

cairn_err
gpt_protect_fill(struct gpt_protect *protect, uint64_t step, const struct gpt_plan *plan,
                 const struct gpt_state *state, const struct gpt_progress *progress,
                 uint32_t timeout_ms, struct cairn_restored *out)
{
    struct slices slices = {0};
    cairn_err err = slices_init(plan, state, progress, &slices);

    if (!err)
        err =
            cairn_placement_fill(protect->client, step, slices.list, slices.count, timeout_ms, out);
    slices_fini(&slices);
    return err;
}

struct cairn_client_stats
gpt_protect_stats(const struct gpt_protect *protect)
{
    struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT};
    cairn_err err = cairn_client_stats_read(protect->client, &stats);

    if (err)
        gpt_say("the counters cannot be read: %s", cairn_err_text(err));
    return stats;
}
