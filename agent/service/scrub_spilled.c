/* agent/service/scrub_spilled.c - see scrub_spilled.h. */
#include "agent/service/scrub_spilled.h"

#include "erasure/roster.h"
#include "agent/process/agent_state.h"
#include "agent/process/recorder.h"
#include "agent/service/keep.h"
#include "agent/service/scrub_plan.h"
#include "agent/service/spill_pin.h"
#include "agent/service/spill_run.h"
#include "agent/service/spill_state.h"
#include "base/crc.h"
#include "base/file.h"
#include "base/log.h"
#include "base/wire.h"
#include "base/worker.h"
#include "snapshot/spill.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READ_BLOCKS = CAIRN_SPILL_CHECK_MAX };

enum { WHOLE = UINT32_MAX }; /* in place of a file: the index or a header is damaged */

enum work {
    WORK_LIST,   /* the own generations, and how many blocks they have */
    WORK_OPEN,   /* one of them, to be read */
    WORK_READ,   /* compares some of its blocks */
    WORK_COMMIT, /* all its files were written again */
    WORK_MARK    /* it is bad */
};

struct own {
    struct cairn_generation_id generation;
    uint64_t blocks; /* of all files */
};

/* The job of the disk's thread, which owns the opened generation meanwhile. */
struct spilled_job {
    struct cairn_job job;
    struct cairn_agent *agent;
    enum work work;
    char dir[CAIRN_CONFIG_PATH_BYTES_MAX];
    struct cairn_generation_id generation; /* but LIST */
    struct scrub_run run;                  /* READ */
    uint64_t cpu_ns;
    bool *alive; /* LIST: [node_count] */
    struct own *list;
    uint32_t count;
    bool damaged;                    /* OPEN, READ; LIST: `generation` is */
    uint32_t file;                   /* READ: of the first damaged block */
    uint32_t bad_blocks;             /* READ: in that file */
    struct cairn_generation_id left; /* MARK: the newest one that is left */
    struct cairn_universal plan;     /* COMMIT */
    cairn_err err;
    char text[SPILL_TEXT_BYTES];
};

/* The damage that was found last. A clean read of the same bytes forgets it. */
struct spilled_damage {
    struct cairn_generation_id generation; /* step 0: none */
    uint32_t file;                         /* or WHOLE */
    uint32_t blocks;
    uint32_t tries; /* repairs that were begun */
    char text[SPILL_TEXT_BYTES];
};

struct scrub_spilled {
    struct cairn_timer timer;
    uint64_t started_ns;
    struct scrub_course course;
    struct own *list;
    uint32_t count;
    bool listed; /* for the pass under way */
    bool works;  /* a job is under way */
    bool stopped;

    struct cairn_generation_id opened; /* step 0: none */
    int dir_fd;
    struct cairn_universal universal;

    struct spilled_damage damage;
    struct spill_run *repair; /* of the damage */
    struct cairn_generation_id in_memory;
    uint64_t request; /* its pins */
    uint64_t sent_ns; /* pins, last */

    uint64_t read_bytes;
    uint64_t found, repaired;
};

/* ---- the disk's thread ---- */

/* The live agent that reads the generation. A change of the live agents moves few generations. */
static uint32_t
keeper_of(const bool *alive, uint32_t node_count, struct cairn_generation_id generation)
{
    uint64_t highest = 0;
    uint32_t keeper = 0;

    for (uint32_t a = 0; a < node_count; a++) {
        uint8_t bytes[20];
        struct cairn_writer writer;
        uint64_t hash;

        cairn_writer_init(&writer, bytes, sizeof bytes);
        cairn_write_u32(&writer, a);
        cairn_write_u64(&writer, generation.epoch);
        cairn_write_u64(&writer, generation.step);
        hash = cairn_crc64(0, bytes, sizeof bytes);
        if (alive[a] && hash >= highest) {
            highest = hash;
            keeper = a;
        }
    }
    return keeper;
}

/* Opens a generation. CAIRN_CORRUPT: its index or a header is damaged, or a file is not there. */
static cairn_err
open_spilled(const struct spilled_job *job, struct cairn_generation_id generation, int *dir_fd,
             struct cairn_universal *universal, char text[SPILL_TEXT_BYTES])
{
    char name[CAIRN_SPILL_DIR_NAME_BYTES], path[SPILL_PATH_BYTES + CAIRN_SPILL_DIR_NAME_BYTES];
    cairn_err err = CAIRN_CORRUPT;

    cairn_spill_dir_name(generation, name);
    snprintf(path, sizeof path, "%s/%s", job->dir, name);
    for (int tries = 0; err == CAIRN_CORRUPT && tries < 2; tries++) {
        (void)cairn_file_close(*dir_fd);
        *dir_fd = -1;
        err = cairn_file_open(AT_FDCWD, path, CAIRN_FILE_DIRECTORY, dir_fd);
        if (!err)
            err = cairn_universal_dir_open(*dir_fd, universal, text, SPILL_TEXT_BYTES);
    }
    if (!err && universal->job_id != job->agent->job_id) {
        cairn_universal_fini(universal);
        err = CAIRN_NOT_FOUND; /* another job's */
    }
    return err;
}

static cairn_err
list_own(struct spilled_job *job)
{
    struct cairn_spilled *list = NULL;
    size_t count = 0;
    int spill_fd = -1;
    cairn_err err = cairn_file_open(AT_FDCWD, job->dir, CAIRN_FILE_DIRECTORY_LINKED, &spill_fd);

    if (!err)
        err = cairn_spill_list(spill_fd, &list, &count);
    (void)cairn_file_close(spill_fd); /* a directory */
    job->list = err ? NULL : calloc(count + 1, sizeof *job->list);
    for (size_t i = 0; job->list && !job->damaged && i < count; i++) {
        struct cairn_universal universal = {0};
        struct own own = {.generation = list[i].generation};
        int dir_fd = -1;
        cairn_err opened;

        if (!list[i].committed || keeper_of(job->alive, job->agent->config.node_count,
                                            own.generation) != job->agent->config.node)
            continue;
        opened = open_spilled(job, own.generation, &dir_fd, &universal, job->text);
        (void)cairn_file_close(dir_fd); /* a directory */
        for (uint32_t f = 0; f < universal.file_count; f++)
            own.blocks += universal.files[f].block_count;
        cairn_universal_fini(&universal);
        if (opened == CAIRN_OK)
            job->list[job->count++] = own;
        job->damaged = opened == CAIRN_CORRUPT;
        job->generation = own.generation;
    }
    free(list);
    return err;
}

/* The file, and the block in it, of a block of the whole generation. */
static uint32_t
locate(const struct cairn_universal *universal, uint64_t *block)
{
    uint32_t file = 0;

    while (file < universal->file_count && *block >= universal->files[file].block_count)
        *block -= universal->files[file++].block_count;
    return file;
}

/* Compares the run's blocks, up to the end of the first file with damaged blocks. */
static cairn_err
read_blocks(struct spilled_job *job, int dir_fd, const struct cairn_universal *universal)
{
    uint64_t block = job->run.first;
    uint32_t file = locate(universal, &block), left = job->run.count;
    cairn_err err = CAIRN_OK;

    while (!err && left > 0 && !job->damaged && file < universal->file_count) {
        uint64_t here = universal->files[file].block_count - block;
        uint32_t count = here < left ? (uint32_t)here : left;
        uint32_t bad = 0;

        if (count > 0)
            err = cairn_spill_check(dir_fd, &universal->files[file], block, count, &bad);
        if (!err && bad) /* a second time: the bytes may have been damaged on their way here */
            err = cairn_spill_check(dir_fd, &universal->files[file], block, count, &bad);
        if (!err && bad) {
            job->damaged = true;
            job->file = file;
            job->bad_blocks = (uint32_t)__builtin_popcount(bad);
        }
        left -= count;
        block = 0;
        file++;
    }
    return err;
}

/* Replaces the damaged index.json by one made from the written files. */
static cairn_err
commit(const struct spilled_job *job)
{
    char name[CAIRN_SPILL_DIR_NAME_BYTES], path[SPILL_PATH_BYTES + CAIRN_SPILL_DIR_NAME_BYTES];
    int dir_fd = -1;
    cairn_err err;

    cairn_spill_dir_name(job->generation, name);
    snprintf(path, sizeof path, "%s/%s", job->dir, name);
    err = cairn_file_open(AT_FDCWD, path, CAIRN_FILE_DIRECTORY, &dir_fd);
    if (!err)
        err = cairn_universal_dir_commit(dir_fd, &job->plan);
    (void)cairn_file_close(dir_fd); /* a directory */
    return err;
}

/* A mark as bad stays, even if `left` cannot be determined. */
static cairn_err
mark(struct spilled_job *job)
{
    struct cairn_spilled *list = NULL;
    size_t count = 0;
    int spill_fd = -1;
    cairn_err err = cairn_file_open(AT_FDCWD, job->dir, CAIRN_FILE_DIRECTORY_LINKED, &spill_fd);

    if (!err)
        err = cairn_spill_mark_bad(spill_fd, job->generation);
    if (!err && cairn_spill_list(spill_fd, &list, &count) == CAIRN_OK)
        for (size_t i = 0; job->left.step == 0 && i < count; i++)
            if (list[i].committed)
                job->left = list[i].generation;
    free(list);
    (void)cairn_file_close(spill_fd); /* a directory */
    return err;
}

static void
job_run(struct cairn_job *base)
{
    struct spilled_job *job = (struct spilled_job *)base;
    struct scrub_spilled *state = job->agent->scrub_spilled;
    uint64_t begun_ns = cairn_clock_thread_cpu_ns();

    switch (job->work) {
    case WORK_LIST:
        job->err = list_own(job);
        break;
    case WORK_OPEN:
        job->err = open_spilled(job, job->generation, &state->dir_fd, &state->universal, job->text);
        job->damaged = job->err == CAIRN_CORRUPT;
        break;
    case WORK_READ:
        job->err = read_blocks(job, state->dir_fd, &state->universal);
        break;
    case WORK_COMMIT:
        job->err = commit(job);
        break;
    case WORK_MARK:
        job->err = mark(job);
        break;
    }
    job->cpu_ns = cairn_clock_thread_cpu_ns() - begun_ns;
}

/* ---- back in the loop ---- */

static void job_done(struct cairn_job *base);

static void
job_free(struct spilled_job *job)
{
    free(job->alive);
    free(job->list);
    cairn_universal_fini(&job->plan);
    free(job);
}

static void
submit(struct cairn_agent *agent, struct spilled_job *job)
{
    struct scrub_spilled *state = agent->scrub_spilled;

    job->job = (struct cairn_job){.run = job_run, .done = job_done};
    job->agent = agent;
    memcpy(job->dir, agent->config.spill_dir, sizeof job->dir);
    state->works = cairn_workers_submit(agent->spill->disk, &job->job) == CAIRN_OK;
    if (!state->works) {
        if (job->work == WORK_READ)
            scrub_course_took(&state->course, 0, agent_now_ns(agent));
        job_free(job);
    }
}

static void
close_opened(struct scrub_spilled *state)
{
    cairn_universal_fini(&state->universal);
    (void)cairn_file_close(state->dir_fd); /* a directory */
    state->dir_fd = -1;
    state->opened = (struct cairn_generation_id){0};
}

/* The generation cannot be repaired. */
static void
mark_bad(struct cairn_agent *agent)
{
    struct scrub_spilled *state = agent->scrub_spilled;
    struct spilled_job *job = calloc(1, sizeof *job);

    state->listed = false;
    if (job) { /* otherwise the next pass finds it again */
        job->work = WORK_MARK;
        job->generation = state->damage.generation;
        memcpy(job->text, state->damage.text, sizeof job->text);
        submit(agent, job);
    }
    state->damage = (struct spilled_damage){0};
}

/* Logs, records and tells all agents that a generation was marked as bad. */
static void
marked(struct cairn_agent *agent, const struct spilled_job *job)
{
    struct history_event event = history_event_of(HISTORY_SPILL);
    char name[CAIRN_SPILL_DIR_NAME_BYTES], text[SPILL_TEXT_BYTES];

    if (job->err) {
        if (job->err != CAIRN_NOT_FOUND)
            CAIRN_LOG_AT(ERROR,
                         "scrub: damaged epoch=%" PRIu64 " step=%" PRIu64
                         " dir=%s cannot be marked as bad: %s",
                         cairn_epoch_number(job->generation.epoch), job->generation.step, job->dir,
                         cairn_err_text(job->err));
        return;
    }
    cairn_spill_dir_name(job->generation, name);
    snprintf(text, sizeof text, "%.200s/%s is damaged, and is named %s.bad now: %.150s", job->dir,
             name, name, job->text);
    CAIRN_LOG_AT(WARN,
                 "scrub: marked as bad epoch=%" PRIu64 " step=%" PRIu64
                 " path=%s/%s.bad: it is damaged (%s), and no restore takes it; look at that "
                 "storage",
                 cairn_epoch_number(job->generation.epoch), job->generation.step, job->dir, name,
                 job->text);
    event.generation = job->generation;
    event.err = CAIRN_CORRUPT;
    event.text = text;
    recorder_add(agent, &event);
    spill_forget_everywhere(agent, job->generation, job->left, text);
    keep_everywhere(agent); /* memory may hold a newer one */
}

/* ---- repair ---- */

static void
tell_pins(struct cairn_agent *agent, enum spill_row row)
{
    struct scrub_spilled *state = agent->scrub_spilled;

    state->sent_ns = agent_now_ns(agent);
    for (uint32_t a = 0; a < agent->config.node_count; a++)
        if (a != agent->config.node && cairn_core_alive(agent->core, a))
            spill_send(agent, a, row, state->request, state->in_memory, CAIRN_OK, "");
}

static void
end_repair(struct cairn_agent *agent)
{
    struct scrub_spilled *state = agent->scrub_spilled;

    spill_run_end(state->repair);
    state->repair = NULL;
    spill_unpin(agent, state->request);
    tell_pins(agent, SPILL_UNPIN);
}

static void
repair_failed(struct cairn_agent *agent, cairn_err err, const char *text)
{
    struct spilled_damage *damage = &agent->scrub_spilled->damage;

    snprintf(damage->text, sizeof damage->text, "%s", text);
    CAIRN_LOG_AT(WARN,
                 "scrub: not repaired epoch=%" PRIu64 " step=%" PRIu64
                 " dir=%s: %s (%s); it is read again",
                 cairn_epoch_number(damage->generation.epoch), damage->generation.step,
                 agent->config.spill_dir, damage->text, cairn_err_text(err));
}

static void
repaired(struct cairn_agent *agent, const char *name)
{
    struct scrub_spilled *state = agent->scrub_spilled;
    const struct spilled_damage *damage = &state->damage;

    state->repaired += damage->blocks;
    CAIRN_LOG_AT(INFO,
                 "scrub: repaired epoch=%" PRIu64 " step=%" PRIu64 " dir=%s file=%s blocks=%u",
                 cairn_epoch_number(damage->generation.epoch), damage->generation.step,
                 agent->config.spill_dir, name, damage->blocks);
}

/* All files were written again: makes them a checkpoint. */
static void
commit_all(struct cairn_agent *agent, struct cairn_universal *plan)
{
    struct scrub_spilled *state = agent->scrub_spilled;
    struct spilled_job *job = calloc(1, sizeof *job);

    if (!job)
        return; /* it is read again */
    job->work = WORK_COMMIT;
    job->generation = state->damage.generation;
    job->plan = *plan;
    memset(plan, 0, sizeof *plan);
    submit(agent, job);
}

static void
written(void *context, cairn_err err, const char *text)
{
    struct cairn_agent *agent = context;
    struct scrub_spilled *state = agent->scrub_spilled;
    uint32_t f = state->damage.file;
    struct cairn_universal *plan = spill_run_plan(state->repair);

    if (!err && f == WHOLE) {
        commit_all(agent, plan);
    } else if (!err) {
        const struct cairn_universal_file *file = &state->universal.files[f];

        if (memcmp(plan->files[f].block_crcs, file->block_crcs,
                   file->block_count * sizeof *file->block_crcs) == 0)
            repaired(agent, file->name);
        else
            repair_failed(agent, CAIRN_CORRUPT, "memory and its index differ");
    } else {
        repair_failed(agent, err, text);
    }
    end_repair(agent);
}

static bool
is_in_memory(const struct cairn_core_view *core, struct cairn_generation_id generation)
{
    return core->ready.step != 0 && !core->ready_from_files && core->roster &&
           cairn_spill_compare(core->ready, generation) == 0;
}

/* Writes the damaged file again from memory, or all files. */
static void
begin_repair(struct cairn_agent *agent, const struct cairn_core_view *core)
{
    struct scrub_spilled *state = agent->scrub_spilled;
    struct spilled_damage *damage = &state->damage;
    struct spill_run_options options = {.again = damage->file == WHOLE ? NULL : &state->universal,
                                        .own_file = damage->file,
                                        .own_writer = SPILL_ALL_FILES,
                                        .disk = agent->spill->disk,
                                        .done = written,
                                        .context = agent};
    char dir[SPILL_PATH_BYTES + CAIRN_SPILL_DIR_NAME_BYTES], name[CAIRN_SPILL_DIR_NAME_BYTES];
    cairn_err err;

    damage->tries++;
    state->in_memory = core->ready;
    state->request = spill_request_next(agent);
    err = spill_pin(agent, state->request, core->ready, 0);
    if (err) {
        repair_failed(agent, err, "the generation is not held here any more");
        return;
    }
    tell_pins(agent, SPILL_PIN);
    cairn_spill_dir_name(damage->generation, name);
    snprintf(dir, sizeof dir, "%s/%s", agent->config.spill_dir, name);
    options.dir = dir;
    options.generation = core->ready;
    options.writer_count = core->roster->member_count;
    err = spill_run_start(agent, &options, &state->repair);
    if (err) {
        repair_failed(agent, err, "its blocks cannot be read");
        end_repair(agent);
    }
}

/*
 * Damage was found: in blocks of a file of the opened generation, or in the index or a header. It
 * is read again unless it is marked.
 */
static void
treat(struct cairn_agent *agent, struct cairn_generation_id generation, uint32_t file,
      uint32_t blocks, const char *why)
{
    struct scrub_spilled *state = agent->scrub_spilled;
    struct spilled_damage *damage = &state->damage;
    uint64_t age_ns = agent_now_ns(agent) - state->started_ns;
    struct cairn_core_view core;
    enum scrub_remedy remedy;
    bool known = cairn_spill_compare(damage->generation, generation) == 0 && damage->file == file;

    cairn_core_look(agent->core, &core);
    remedy = scrub_remedy(core.met && !core.fenced && !core.busy &&
                              age_ns >= agent->config.dead_after_ms * CAIRN_NS_PER_MS,
                          is_in_memory(&core, generation), known ? damage->tries : 0);
    if (remedy == SCRUB_WAIT)
        return;
    if (!known) {
        *damage = (struct spilled_damage){.generation = generation, .file = file, .blocks = blocks};
        snprintf(damage->text, sizeof damage->text, "%s", why);
        state->found += blocks;
        CAIRN_LOG_AT(
            ERROR, "scrub: damaged spill epoch=%" PRIu64 " step=%" PRIu64 " dir=%s: %s: it is %s",
            cairn_epoch_number(generation.epoch), generation.step, agent->config.spill_dir, why,
            remedy == SCRUB_REPAIR ? "repaired from memory"
                                   : "not in memory, and is marked as bad");
    }
    if (remedy == SCRUB_REPAIR)
        begin_repair(agent, &core);
    else
        mark_bad(agent);
}

static void
take_read(struct cairn_agent *agent, const struct spilled_job *job)
{
    struct scrub_spilled *state = agent->scrub_spilled;
    uint64_t now_ns = agent_now_ns(agent);
    char why[SPILL_TEXT_BYTES];

    if (!job->err)
        state->read_bytes += (uint64_t)job->run.count * CAIRN_BLOCK_BYTES;
    if (job->err || !job->damaged) {
        scrub_course_took(&state->course, job->cpu_ns, now_ns);
        state->listed = !state->course.rests;
        state->damage = (struct spilled_damage){0};
        if (job->err) /* removed since, or the disk fails: the next pass reads what is there */
            close_opened(state);
        return;
    }
    scrub_course_again(&state->course, &job->run, job->cpu_ns, now_ns);
    snprintf(why, sizeof why, "%u blocks of %s differ from their checksums", job->bad_blocks,
             state->universal.files[job->file].name);
    treat(agent, state->opened, job->file, job->bad_blocks, why);
}

static void
take_list(struct scrub_spilled *state, struct spilled_job *job)
{
    free(state->list);
    state->list = job->list;
    state->count = job->count;
    job->list = NULL;
    state->listed = !job->damaged;
}

static void
take_open(struct scrub_spilled *state, const struct spilled_job *job)
{
    if (job->err) {
        close_opened(state);
        state->listed = false;
        return;
    }
    state->opened = job->generation;
    if (state->damage.file == WHOLE)
        state->damage = (struct spilled_damage){0};
}

static void
job_done(struct cairn_job *base)
{
    struct spilled_job *job = (struct spilled_job *)base;
    struct cairn_agent *agent = job->agent;
    struct scrub_spilled *state = agent->scrub_spilled;
    uint64_t pause_ns = job->err || job->damaged ? CAIRN_NS_PER_S : 0;

    state->works = false;
    if (state->stopped)
        goto done;
    switch (job->work) {
    case WORK_LIST:
        take_list(state, job);
        break;
    case WORK_OPEN:
        take_open(state, job);
        break;
    case WORK_READ:
        take_read(agent, job);
        break;
    case WORK_COMMIT:
        if (job->err)
            repair_failed(agent, job->err, "index.json cannot be written");
        else
            repaired(agent, "index.json");
        break;
    case WORK_MARK:
        close_opened(state);
        marked(agent, job);
        break;
    }
    if (job->damaged && job->work != WORK_READ)
        treat(agent, job->generation, WHOLE, 1, job->text);
    if (!state->works)
        cairn_timer_start(agent->loop, &state->timer, agent_now_ns(agent) + pause_ns);
done:
    job_free(job);
}

/* ---- what is done next ---- */

static void
list_next(struct cairn_agent *agent, struct spilled_job *job)
{
    job->work = WORK_LIST;
    job->alive = calloc(agent->config.node_count, sizeof *job->alive);
    if (!job->alive) {
        free(job);
        return;
    }
    for (uint32_t a = 0; a < agent->config.node_count; a++)
        job->alive[a] = a == agent->config.node || cairn_core_alive(agent->core, a);
    submit(agent, job);
}

/* True: a job was submitted. False: nothing is due before *due_ns. */
static bool
read_next(struct cairn_agent *agent, struct spilled_job *job, uint64_t *due_ns)
{
    struct scrub_spilled *state = agent->scrub_spilled;
    uint64_t now_ns = agent_now_ns(agent);
    uint64_t interval_ns = agent->config.scrub_interval_ms * CAIRN_NS_PER_MS;
    uint64_t *extents;
    uint32_t next;
    bool due;

    if (state->course.rests && now_ns - state->course.begun_ns < interval_ns)
        return false;
    if (!state->listed) { /* each pass reads what is there when it begins */
        close_opened(state);
        list_next(agent, job);
        return true;
    }
    extents = calloc(state->count + (size_t)1, sizeof *extents);
    if (!extents)
        return false;
    for (uint32_t i = 0; i < state->count; i++)
        extents[i] = state->list[i].blocks;
    next = scrub_course_extent(&state->course, extents, state->count);
    if (next < state->count &&
        cairn_spill_compare(state->opened, state->list[next].generation) != 0) {
        free(extents);
        close_opened(state);
        job->work = WORK_OPEN;
        job->generation = state->list[next].generation;
        submit(agent, job);
        return true;
    }
    due = scrub_course_next(&state->course, extents, state->count, READ_BLOCKS, interval_ns, now_ns,
                            &job->run, due_ns);
    free(extents);
    if (!due) {
        state->listed &= state->count > 0 && !state->course.rests;
        return false;
    }
    job->work = WORK_READ;
    submit(agent, job);
    return true;
}

static void
on_timer(void *context)
{
    struct cairn_agent *agent = context;
    struct scrub_spilled *state = agent->scrub_spilled;
    uint64_t now_ns = agent_now_ns(agent), due_ns = now_ns + CAIRN_NS_PER_S;
    struct spilled_job *job = NULL;

    if (state->works)
        return; /* its end starts the timer */
    if (state->repair) {
        if (now_ns - state->sent_ns >= SPILL_RESEND_NS)
            tell_pins(agent, SPILL_PIN);
        spill_run_tick(state->repair, SPILL_PATIENCE_NS);
    } else if (agent->config.spill_dir[0] && agent->config.scrub_interval_ms > 0 &&
               !spill_disk_is_stuck(agent)) {
        job = calloc(1, sizeof *job);
    }
    if (job && !read_next(agent, job, &due_ns))
        job_free(job);
    if (due_ns > now_ns + CAIRN_NS_PER_S) /* the interval may be changed, and files come and go */
        due_ns = now_ns + CAIRN_NS_PER_S;
    if (!state->works)
        cairn_timer_start(agent->loop, &state->timer, due_ns);
}

/* ---- the service ---- */

cairn_err
scrub_spilled_open(struct cairn_agent *agent)
{
    struct scrub_spilled *state = calloc(1, sizeof *state);

    if (!state)
        return CAIRN_NOMEM;
    agent->scrub_spilled = state;
    state->dir_fd = -1;
    state->started_ns = agent_now_ns(agent);
    scrub_course_init(&state->course, state->started_ns);
    cairn_timer_init(&state->timer, on_timer, agent);
    cairn_timer_start(agent->loop, &state->timer, 0);
    return CAIRN_OK;
}

void
scrub_spilled_stop(struct cairn_agent *agent)
{
    struct scrub_spilled *state = agent->scrub_spilled;

    if (!state)
        return;
    state->stopped = true;
    cairn_timer_stop(agent->loop, &state->timer);
    spill_run_end(state->repair);
    state->repair = NULL;
}

void
scrub_spilled_close(struct cairn_agent *agent)
{
    struct scrub_spilled *state = agent->scrub_spilled;

    if (!state)
        return;
    close_opened(state);
    free(state->list);
    free(state);
    agent->scrub_spilled = NULL;
}

void
scrub_spilled_read(const struct cairn_agent *agent, struct scrub_report *out)
{
    const struct scrub_spilled *state = agent->scrub_spilled;

    *out = (struct scrub_report){.pass_age_ns = UINT64_MAX};
    if (!state)
        return;
    out->read_bytes = state->read_bytes;
    out->passes = state->course.passes;
    if (state->course.passes)
        out->pass_age_ns = agent_now_ns(agent) - state->course.ended_ns;
    out->found = state->found;
    out->repaired = state->repaired;
}
