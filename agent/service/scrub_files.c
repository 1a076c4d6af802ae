/* agent/service/scrub_files.c - see scrub_files.h. */
#include "agent/service/scrub_files.h"

#include "agent/process/agent_state.h"
#include "agent/process/part_file.h"
#include "agent/service/keep.h"
#include "agent/service/local.h"
#include "agent/service/scrub_plan.h"
#include "base/log.h"
#include "base/worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t look_ns = 500 * CAIRN_NS_PER_MS; /* between looks at damage */

enum work { WORK_LIST, WORK_READ, WORK_LOOK };

/* What the disk's thread does. */
struct files_job {
    struct cairn_job job;
    struct cairn_agent *agent;
    enum work work;
    char dir[CAIRN_CONFIG_PATH_BYTES_MAX];
    cairn_err err;
    uint64_t cpu_ns;
    struct part_file_units list[PART_FILES_MAX]; /* LIST */
    uint32_t count;
    struct cairn_generation_id generation; /* READ */
    struct scrub_run run;
    uint32_t bad;
    struct scrub_damage damage[SCRUB_DAMAGE_MAX]; /* LOOK; as many as count */
    enum scrub_fate fates[SCRUB_DAMAGE_MAX];
    struct cairn_generation_id newest; /* that is on the disk: damaged older files are bad now */
};

struct scrub_files {
    struct cairn_workers *disk;
    struct cairn_timer timer;
    struct scrub_course course;
    struct scrub_ledger ledger;
    struct part_file_units list[PART_FILES_MAX];
    uint32_t count;
    bool listed; /* for the pass under way */
    bool works;  /* a job is under way */
    uint64_t read_bytes;
};

/* ---- the disk's thread ---- */

/* What became of damage. A damaged file that a newer one replaces is marked as bad. */
static enum scrub_fate
look_at(const struct files_job *job, const struct scrub_damage *damage)
{
    uint32_t bad = 0;
    cairn_err err = part_file_check(job->dir, damage->generation, damage->unit, 1, &bad);

    if (err == CAIRN_NOT_FOUND)
        return SCRUB_GONE;
    if (err || bad == 0)
        return err ? SCRUB_STILL : SCRUB_GOOD;
    if (cairn_generation_id_compare(damage->generation, job->newest) >= 0 ||
        part_file_mark_bad(job->dir, damage->generation) != CAIRN_OK)
        return SCRUB_STILL;
    CAIRN_LOG_AT(WARN, "scrub: marked as bad epoch=%" PRIu64 " step=%" PRIu64 " dir=%s",
                 cairn_epoch_number(damage->generation.epoch), damage->generation.step, job->dir);
    return SCRUB_GOOD; /* in a newer file */
}

static void
job_run(struct cairn_job *base)
{
    struct files_job *job = (struct files_job *)base;
    uint64_t begun_ns = cairn_clock_thread_cpu_ns();

    if (job->work == WORK_LIST)
        job->err = part_files_list(job->dir, job->list, &job->count);
    else if (job->work == WORK_READ)
        job->err =
            part_file_check(job->dir, job->generation, job->run.first, job->run.count, &job->bad);
    for (uint32_t i = 0; job->work == WORK_LOOK && i < job->count; i++)
        job->fates[i] = look_at(job, &job->damage[i]);
    job->cpu_ns = cairn_clock_thread_cpu_ns() - begun_ns;
}

/* ---- back in the loop ---- */

static void
take_read(struct scrub_files *state, const struct files_job *job, uint64_t now_ns)
{
    scrub_course_took(&state->course, job->cpu_ns, now_ns);
    if (!job->err)
        state->read_bytes += (uint64_t)job->run.count * CAIRN_BLOCK_BYTES;
    for (uint32_t i = 0; !job->err && i < job->run.count; i++)
        if (((job->bad >> i) & 1) &&
            scrub_ledger_add(&state->ledger, job->generation, 0, job->run.first + i))
            CAIRN_LOG_AT(ERROR,
                         "scrub: damaged file epoch=%" PRIu64 " step=%" PRIu64
                         " dir=%s unit=%" PRIu64 ": it is replaced from memory; look at the disk",
                         cairn_epoch_number(job->generation.epoch), job->generation.step, job->dir,
                         job->run.first + i);
}

static void
take_look(struct cairn_agent *agent, const struct files_job *job)
{
    struct scrub_ledger *ledger = &agent->scrub_files->ledger;
    bool tried = ledger->asked && local_is_idle(agent);

    for (uint32_t i = job->count; i-- > 0;) /* the list is as it was: only this changes it */
        scrub_ledger_look(ledger, i, job->fates[i], tried);
    if (tried)
        scrub_ledger_tried(ledger);
}

static void
job_done(struct cairn_job *base)
{
    struct files_job *job = (struct files_job *)base;
    struct cairn_agent *agent = job->agent;
    struct scrub_files *state = agent->scrub_files;
    uint64_t now_ns = agent_now_ns(agent);

    state->works = false;
    if (job->work == WORK_LIST) {
        state->count = job->err ? 0 : job->count;
        memcpy(state->list, job->list, sizeof state->list);
        state->listed = true;
    } else if (job->work == WORK_READ) {
        take_read(state, job, now_ns);
        state->listed = !state->course.rests;
    } else {
        take_look(agent, job);
    }
    if (!agent->stopping)
        cairn_timer_start(agent->loop, &state->timer,
                          job->work == WORK_LOOK && state->ledger.count ? now_ns + look_ns : 0);
    free(job);
}

/* ---- what is done next ---- */

static void
submit(struct cairn_agent *agent, struct files_job *job)
{
    struct scrub_files *state = agent->scrub_files;

    job->job = (struct cairn_job){.run = job_run, .done = job_done};
    job->agent = agent;
    memcpy(job->dir, agent->config.local_dir, sizeof job->dir);
    state->works = cairn_workers_submit(state->disk, &job->job) == CAIRN_OK;
    if (!state->works) {
        if (job->work == WORK_READ)
            scrub_course_took(&state->course, 0, agent_now_ns(agent));
        free(job);
    }
}

/* Has damaged files replaced, and looks at what became of them. */
static void
mind_damage(struct cairn_agent *agent, struct files_job *job)
{
    struct scrub_ledger *ledger = &agent->scrub_files->ledger;
    struct cairn_core_view core;
    cairn_err unused;

    if (scrub_ledger_ask(ledger, agent_now_ns(agent))) {
        cairn_core_look(agent->core, &core);
        local_forget(agent, core.ready); /* if its file is the damaged one, it is written again */
        keep_everywhere(agent);
    }
    job->work = WORK_LOOK;
    job->count = ledger->count;
    memcpy(job->damage, ledger->list, sizeof job->damage);
    local_read(agent, &job->newest, &unused);
    submit(agent, job);
}

/* False: nothing is due before *due_ns. */
static bool
read_next(struct cairn_agent *agent, struct files_job *job, uint64_t *due_ns)
{
    struct scrub_files *state = agent->scrub_files;
    uint64_t extents[PART_FILES_MAX], total = 0, now_ns = agent_now_ns(agent);
    uint64_t interval_ns = agent->config.scrub_interval_ms * CAIRN_NS_PER_MS;

    if (state->course.rests && now_ns - state->course.begun_ns < interval_ns)
        return false;
    if (!state->listed) { /* each pass reads what is there when it begins */
        job->work = WORK_LIST;
        submit(agent, job);
        return true;
    }
    for (uint32_t i = 0; i < state->count; i++)
        total += extents[i] = state->list[i].units;
    state->listed = total > 0;
    if (!scrub_course_next(&state->course, extents, state->count, PART_FILE_CHECK_MAX, interval_ns,
                           now_ns, &job->run, due_ns))
        return false;
    job->work = WORK_READ;
    job->generation = state->list[job->run.extent].generation;
    submit(agent, job);
    return true;
}

static void
on_timer(void *context)
{
    struct cairn_agent *agent = context;
    struct scrub_files *state = agent->scrub_files;
    uint64_t now_ns = agent_now_ns(agent), due_ns = now_ns + CAIRN_NS_PER_S;
    struct files_job *job = NULL;

    if (state->works)
        return; /* its end starts the timer */
    if (agent->config.local_dir[0] && agent->config.scrub_interval_ms > 0)
        job = calloc(1, sizeof *job);
    if (job && (state->ledger.count > 0 || state->ledger.asked))
        mind_damage(agent, job);
    else if (job && !read_next(agent, job, &due_ns))
        free(job);
    if (due_ns > now_ns + CAIRN_NS_PER_S) /* the interval may be changed, and files come and go */
        due_ns = now_ns + CAIRN_NS_PER_S;
    if (!state->works)
        cairn_timer_start(agent->loop, &state->timer, due_ns);
}

/* ---- the service ---- */

cairn_err
scrub_files_open(struct cairn_agent *agent)
{
    struct scrub_files *state;

    if (!agent->config.local_dir[0])
        return CAIRN_OK; /* no thread for nothing */
    state = calloc(1, sizeof *state);
    if (!state)
        return CAIRN_NOMEM;
    agent->scrub_files = state;
    scrub_course_init(&state->course, agent_now_ns(agent));
    cairn_timer_init(&state->timer, on_timer, agent);
    cairn_timer_start(agent->loop, &state->timer, 0);
    return cairn_workers_start(agent->loop, 1, 1, &state->disk);
}

void
scrub_files_close(struct cairn_agent *agent)
{
    if (!agent->scrub_files)
        return;
    cairn_timer_stop(agent->loop, &agent->scrub_files->timer);
    cairn_workers_stop(agent->scrub_files->disk); /* its answer is taken */
    free(agent->scrub_files);
    agent->scrub_files = NULL;
}

void
scrub_files_read(const struct cairn_agent *agent, struct scrub_report *out)
{
    const struct scrub_files *state = agent->scrub_files;

    *out = (struct scrub_report){.pass_age_ns = UINT64_MAX};
    if (!state)
        return;
    out->read_bytes = state->read_bytes;
    out->passes = state->course.passes;
    if (state->course.passes)
        out->pass_age_ns = agent_now_ns(agent) - state->course.ended_ns;
    out->found = state->ledger.found;
    out->repaired = state->ledger.repaired;
    out->unrepairable = scrub_ledger_unrepairable(&state->ledger);
}
