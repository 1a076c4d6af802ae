/* agent/service/local.c - see local.h. */
#include "agent/service/local.h"

#include "agent/process/agent_state.h"
#include "agent/process/memory.h"
#include "agent/process/part_file.h"
#include "agent/service/spill_pin.h"
#include "base/log.h"
#include "base/worker.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t patience_ns = 30 * CAIRN_NS_PER_S;
static const uint64_t pause_after_failure_ns = 60 * CAIRN_NS_PER_S;
/* The asker may know of a commit that others hear of a moment later. */
static const uint64_t asked_ns = 5 * CAIRN_NS_PER_S;

/* One write; owned by the disk's thread until it is done. */
struct write_job {
    struct cairn_job job;
    struct cairn_agent *agent;
    struct part_file part;
    uint8_t *record;
    uint32_t slot;
    uint32_t keep;
    uint64_t pin;
    char dir[CAIRN_CONFIG_PATH_BYTES_MAX];
    _Atomic uint64_t progress;
    atomic_bool stop;
    uint64_t started_ns;
    cairn_err err;
};

struct local_state {
    struct cairn_workers *disk;
    struct write_job *writing; /* NULL: nothing is written, or the write has been given up */
    struct cairn_generation_id newest;
    uint64_t asked_until_ns; /* 0: nobody asked */
    uint32_t commits;
    uint64_t epoch;       /* in which `newest` was found to be ready, or written */
    uint64_t trainers_ns; /* when trainers were seen last */
    uint64_t seen_bytes;  /* progress of the write, and when it was made */
    uint64_t progress_ns;
    uint64_t pause_ns; /* nothing is begun before */
    cairn_err err;
};

cairn_err
local_open(struct cairn_agent *agent)
{
    struct local_state *state;

    if (!agent->config.local_dir[0])
        return CAIRN_OK; /* no thread for nothing */
    state = calloc(1, sizeof *state);
    if (!state)
        return CAIRN_NOMEM;
    agent->local = state;
    state->newest = agent->local_loaded;
    state->trainers_ns = agent_now_ns(agent);
    return cairn_workers_start(agent->loop, 1, 2, &state->disk);
}

void
local_close(struct cairn_agent *agent)
{
    if (!agent->local)
        return;
    if (agent->local->writing)
        atomic_store(&agent->local->writing->stop, true);
    cairn_workers_stop(agent->local->disk); /* its answers are taken */
    free(agent->local);
    agent->local = NULL;
}

/* ---- the disk's side, and back ---- */

static void
write_run(struct cairn_job *base)
{
    struct write_job *job = (struct write_job *)base;

    job->err = part_file_write(job->dir, &job->part, job->keep, &job->progress, &job->stop);
}

static void
write_done(struct cairn_job *base)
{
    struct write_job *job = (struct write_job *)base;
    struct cairn_agent *agent = job->agent;
    struct local_state *state = agent->local;

    cairn_memory_unhold(agent->memory, job->slot);
    if (state->writing == job) {
        state->writing = NULL;
        state->err = job->err;
        spill_unpin(agent, job->pin);
        if (job->err) {
            state->pause_ns = agent_now_ns(agent) + pause_after_failure_ns;
            CAIRN_LOG_AT(WARN,
                         "local: not written step=%" PRIu64 " dir=%s: %s; commits go on, and it is "
                         "tried again in a minute",
                         job->part.generation.step, job->dir, cairn_err_text(job->err));
        } else {
            state->newest = job->part.generation;
            CAIRN_LOG_AT(INFO,
                         "local: written epoch=%" PRIu64 " step=%" PRIu64 " dir=%s seconds=%.3f",
                         cairn_epoch_number(job->part.generation.epoch), job->part.generation.step,
                         job->dir, (double)(agent_now_ns(agent) - job->started_ns) / 1e9);
        }
    }
    free(job->record);
    free(job);
}

/* ---- when ---- */

/* The own slot that holds the ready generation; UINT32_MAX: none does. */
static uint32_t
find_slot(const struct cairn_agent *agent, const struct cairn_core_view *view,
          struct cairn_part_view *out)
{
    if (view->ready.step == 0 || view->ready_from_files || view->fenced)
        return UINT32_MAX;
    for (uint32_t i = 0; i < agent->config.slots; i++)
        if (cairn_core_look_part(agent->core, i, out) && out->state == CAIRN_PART_COMPLETE &&
            cairn_generation_id_compare(out->generation, view->ready) == 0)
            return i;
    return UINT32_MAX;
}

static cairn_err
begin(struct cairn_agent *agent, uint32_t slot, const struct cairn_part_view *view)
{
    struct write_job *job = calloc(1, sizeof *job);
    size_t record_bytes = 0;
    cairn_err err;

    if (!job)
        return CAIRN_NOMEM;
    err = cairn_memory_record_load(agent->memory, slot, &job->record, &record_bytes);
    if (!err && !job->record)
        err = CAIRN_NOT_FOUND;
    if (err)
        goto failed;
    job->job = (struct cairn_job){.run = write_run, .done = write_done};
    job->agent = agent;
    job->slot = slot;
    job->keep = agent->config.local_keep;
    job->started_ns = agent_now_ns(agent);
    job->part = (struct part_file){
        .job_id = agent->job_id,
        .generation = view->generation,
        .record = job->record,
        .record_bytes = record_bytes,
        .data = cairn_memory_data(agent->memory, slot, 0, view->data_blocks),
        .data_blocks = view->data_blocks,
        .parity = cairn_memory_parity(agent->memory, slot, 0, 1, 0, agent->parity_blocks),
        .parity_blocks = agent->parity_blocks};
    memcpy(job->dir, agent->config.local_dir, sizeof job->dir);
    job->pin = spill_request_next(agent);
    err = spill_pin(agent, job->pin, view->generation, 0);
    if (err)
        goto failed;
    cairn_memory_hold(agent->memory, slot);
    err = cairn_workers_submit(agent->local->disk, &job->job);
    if (err) {
        cairn_memory_unhold(agent->memory, slot);
        spill_unpin(agent, job->pin);
        goto failed;
    }
    agent->local->writing = job;
    agent->local->seen_bytes = 0;
    agent->local->progress_ns = agent_now_ns(agent);
    return CAIRN_OK;
failed:
    free(job->record);
    free(job);
    return err;
}

/* A disk that hangs: the next generations may need the slot. */
static void
look_at_progress(struct cairn_agent *agent, uint64_t now_ns)
{
    struct local_state *state = agent->local;
    uint64_t bytes = atomic_load(&state->writing->progress);

    if (bytes != state->seen_bytes) {
        state->seen_bytes = bytes;
        state->progress_ns = now_ns;
    }
    if (now_ns - state->progress_ns < patience_ns)
        return;
    CAIRN_LOG_AT(
        WARN,
        "local: the disk of %s does not answer: look at it; commits go on, and it is tried "
        "again when it answers",
        agent->config.local_dir);
    atomic_store(&state->writing->stop, true);
    spill_unpin(agent, state->writing->pin);
    state->writing = NULL; /* its job ends by itself */
    state->err = CAIRN_TIMEOUT;
}

static bool
is_due(const struct cairn_agent *agent, const struct cairn_core_view *view, uint64_t now_ns)
{
    const struct local_state *state = agent->local;
    const struct cairn_config *config = &agent->config;

    bool asked = now_ns < state->asked_until_ns;

    if (now_ns < state->pause_ns && !asked)
        return false;
    return asked || (state->newest.step != 0 && view->active != state->epoch) ||
           (config->local_every_generations && state->commits >= config->local_every_generations) ||
           (config->local_after_ms && agent->regions.registered_ranks == 0 &&
            now_ns - state->trainers_ns >= config->local_after_ms * CAIRN_NS_PER_MS);
}

void
local_tick(struct cairn_agent *agent)
{
    struct local_state *state = agent->local;
    uint64_t now_ns = agent_now_ns(agent);
    struct cairn_core_view core;
    struct cairn_part_view view;
    uint32_t slot;
    cairn_err err;

    if (!state || !agent->config.local_dir[0] || agent->stopping)
        return;
    if (agent->regions.registered_ranks > 0)
        state->trainers_ns = now_ns;
    if (state->writing) {
        look_at_progress(agent, now_ns);
        return;
    }
    cairn_core_look(agent->core, &core);
    if (!is_due(agent, &core, now_ns) || cairn_workers_busy(state->disk) > 0)
        return;
    slot = find_slot(agent, &core, &view);
    if (slot == UINT32_MAX)
        return;
    state->commits = 0;
    state->epoch = core.active;
    if (cairn_generation_id_compare(view.generation, state->newest) == 0)
        return;
    err = begin(agent, slot, &view);
    if (err) {
        state->err = err;
        state->pause_ns = now_ns + pause_after_failure_ns;
        CAIRN_LOG_AT(WARN, "local: not begun step=%" PRIu64 ": %s", view.generation.step,
                     cairn_err_text(err));
    }
}

void
local_committed(struct cairn_agent *agent)
{
    if (agent->local)
        agent->local->commits++;
}

void
local_ask(struct cairn_agent *agent)
{
    if (agent->local)
        agent->local->asked_until_ns = agent_now_ns(agent) + asked_ns;
}

void
local_forget(struct cairn_agent *agent, struct cairn_generation_id generation)
{
    if (agent->local && cairn_generation_id_compare(agent->local->newest, generation) == 0)
        agent->local->newest = (struct cairn_generation_id){0};
}

bool
local_is_idle(const struct cairn_agent *agent)
{
    return !agent->local || cairn_workers_busy(agent->local->disk) == 0;
}

void
local_read(const struct cairn_agent *agent, struct cairn_generation_id *newest, cairn_err *err)
{
    *newest = agent->local ? agent->local->newest : (struct cairn_generation_id){0};
    *err = agent->local ? agent->local->err : CAIRN_OK;
}
