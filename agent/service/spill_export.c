/*
 * agent/service/spill_export.c - one agent writes the whole ready generation as a universal
 * checkpoint; see spill.h.
 *
 *   PIN      every holder of a part confirms that it keeps the generation while it is read; the
 *            directory is made, or found empty (disk thread)
 *   WRITE    spill_run.h: this agent writes all files, and renews the holders' leases each second
 *   COMMIT   index and COMMIT are written and read back (disk thread)
 *
 * An export that fails or is forgotten removes what it wrote. It always ends from spill_export_tick
 * or a callback of the loop, so `done` is never called from inside spill_export.
 */
#include "agent/service/spill_export.h"

#include "agent/process/agent_state.h"
#include "agent/process/step.h"
#include "agent/service/spill.h"
#include "agent/service/spill_disk.h"
#include "agent/service/spill_pin.h"
#include "agent/service/spill_run.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum export_state { EXPORT_PIN = 0, EXPORT_WRITE, EXPORT_COMMIT };

enum holder { HOLDER_NONE = 0, HOLDER_ASKED, HOLDER_KEEPS };

struct spill_export {
    enum export_state state;
    uint64_t id; /* of its messages and jobs */
    uint64_t request;
    spill_export_done_fn *done;
    void *context;
    struct cairn_generation_id generation;
    bool from_files;
    bool dir_ready;
    bool made; /* the directory was not there before */
    char dir[SPILL_PATH_BYTES];
    uint8_t *holders; /* [node_count] enum holder */
    struct spill_run *run;
    uint64_t started_ns;
    uint64_t progress_ns;
    uint64_t sent_ns;
    cairn_err err;
    char text[SPILL_TEXT_BYTES];
};

static void __attribute__((format(printf, 3, 4)))
set_error(struct spill_export *export, cairn_err err, const char *format, ...)
{
    va_list list;

    if (export->err)
        return; /* the first one is the reason */
    export->err = err;
    va_start(list, format);
    vsnprintf(export->text, sizeof export->text, format, list);
    va_end(list);
}

static void
tell_holders(struct cairn_agent *agent, enum spill_row row)
{
    struct spill_export *export = agent->spill->export;

    export->sent_ns = agent_now_ns(agent);
    for (uint32_t a = 0; a < agent->config.node_count; a++)
        if (export->holders[a] != HOLDER_NONE && a != agent->config.node)
            spill_send(agent, a, row, export->id, export->generation, CAIRN_OK, "");
}

/* Ends the run and the pins, wipes after a failure, frees. The caller reports the result. */
static void
export_end(struct cairn_agent *agent, bool wipe)
{
    struct spill_export *export = agent->spill->export;
    struct spill_disk_job job = {
        .work = SPILL_DISK_WIPE, .generation = export->generation, .made = export->made};
    struct cairn_universal *plan = export->run ? spill_run_plan(export->run) : NULL;

    if (wipe && plan && export->state == EXPORT_WRITE) {
        job.plan = *plan;
        memset(plan, 0, sizeof *plan);
    }
    spill_run_end(export->run);
    if (wipe && export->dir_ready && export->state != EXPORT_COMMIT) {
        snprintf(job.dir, sizeof job.dir, "%s", export->dir);
        (void)!spill_disk_submit(agent, &job); /* without a COMMIT what stays is not a checkpoint */
    }
    if (!export->from_files)
        tell_holders(agent, SPILL_UNPIN);
    spill_unpin(agent, export->id);
    agent->spill->export = NULL;
    free(export->holders);
    free(export);
}

static void
export_say(struct cairn_agent *agent, uint64_t files, uint64_t bytes)
{
    struct spill_export *export = agent->spill->export;
    spill_export_done_fn *done = export->done;
    void *context = export->context;
    uint64_t request = export->request;
    struct spill_export_result result = {.err = export->err,
                                         .generation = export->generation,
                                         .files = files,
                                         .bytes = bytes,
                                         .took_ns = agent_now_ns(agent) - export->started_ns};

    snprintf(result.text, sizeof result.text, "%s", export->text);
    if (export->err)
        CAIRN_LOG_AT(WARN, "export: given up dir=%s: %s", export->dir, export->text);
    else
        CAIRN_LOG_AT(INFO,
                     "export: committed epoch=%" PRIu64 " step=%" PRIu64 " dir=%s files=%" PRIu64
                     " bytes=%" PRIu64 " seconds=%.3f",
                     cairn_epoch_number(export->generation.epoch), export->generation.step,
                     export->dir, files, bytes, (double)result.took_ns / (double)CAIRN_NS_PER_S);
    export_end(agent, export->err != CAIRN_OK);
    done(context, request, &result);
}

/* ---- commit ---- */

/* The commit is done. If it failed, or nobody waits for it any more, removes the plan's files. */
static void
export_committed(struct spill_disk_job *job)
{
    struct cairn_agent *agent = job->agent;
    struct spill_export *export = agent->spill->export;
    struct spill_disk_job wipe = {.work = SPILL_DISK_WIPE, .generation = job->generation};
    bool awaited = export && export->id == job->request && export->state == EXPORT_COMMIT;

    if (job->err || !awaited) {
        wipe.plan = job->plan;
        wipe.made = job->made;
        memset(&job->plan, 0, sizeof job->plan);
        snprintf(wipe.dir, sizeof wipe.dir, "%s", job->dir);
        (void)!spill_disk_submit(agent, &wipe);
    }
    if (!awaited)
        return;
    if (job->err)
        set_error(export, job->err, "%s", job->text);
    export_say(agent, job->err ? 0 : job->plan.file_count, job->err ? 0 : job->bytes);
}

static void
export_written(void *context, cairn_err err, const char *text)
{
    struct cairn_agent *agent = context;
    struct spill_export *export = agent->spill->export;
    struct spill_disk_job job = {.work = SPILL_DISK_COMMIT,
                                 .request = export->id,
                                 .generation = export->generation,
                                 .made = export->made,
                                 .done = export_committed};
    struct cairn_universal *plan;

    if (err) {
        set_error(export, err, "%s", text);
        export_say(agent, 0, 0);
        return;
    }
    plan = spill_run_plan(export->run);
    job.plan = *plan;
    memset(plan, 0, sizeof *plan);
    snprintf(job.dir, sizeof job.dir, "%s", export->dir);
    err = spill_disk_submit(agent, &job);
    if (err) {
        set_error(export, err, "the disk thread takes no more: an earlier disk still hangs");
        export_say(agent, 0, 0);
        return;
    }
    export->state = EXPORT_COMMIT;
    export->progress_ns = agent_now_ns(agent);
}

/* ---- the beginning ---- */

static void
write_when_kept(struct cairn_agent *agent)
{
    struct spill_export *export = agent->spill->export;
    struct spill_run_options options = {.generation = export->generation,
                                        .from_files = export->from_files,
                                        .dir = export->dir,
                                        .writer_count = 1,
                                        .own_writer = SPILL_ALL_FILES,
                                        .disk = agent->spill->disk,
                                        .done = export_written,
                                        .context = agent};
    cairn_err err;

    if (export->state != EXPORT_PIN || !export->dir_ready || export->err)
        return;
    for (uint32_t a = 0; a < agent->config.node_count; a++)
        if (export->holders[a] == HOLDER_ASKED)
            return;
    export->state = EXPORT_WRITE;
    err = spill_run_start(agent, &options, &export->run);
    if (err)
        set_error(export, err, "the generation cannot be read: %s", cairn_err_text(err));
}

static void
export_dir_ready(struct spill_disk_job *job)
{
    struct cairn_agent *agent = job->agent;
    struct spill_export *export = agent->spill->export;

    if (!export || export->id != job->request || agent->stopping)
        return;
    export->made = job->made;
    if (job->err)
        set_error(export, job->err, "%s", job->text);
    else
        export->dir_ready = true;
    write_when_kept(agent);
}

void
spill_export_message(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct spill_export *export = agent->spill->export;

    if (!export || export->id != message->request || export->holders[message->from] == HOLDER_NONE)
        return;
    if (message->err) {
        set_error(export, CAIRN_AGAIN,
                  "step %" PRIu64
                  " was replaced by a newer generation before node %u could keep it; try again",
                  export->generation.step, message->from);
        return;
    }
    export->holders[message->from] = HOLDER_KEEPS;
    write_when_kept(agent);
}

/* Notes which agents hold the generation, and asks them to keep it. */
static cairn_err
ask_holders(struct cairn_agent *agent, struct spill_export *export)
{
    struct cairn_core_view view;

    cairn_core_look(agent->core, &view);
    for (uint32_t m = 0; view.ready_roster && m < view.ready_roster->member_count; m++) {
        uint32_t holder = cairn_core_holder(agent->core, export->generation, m);

        if (holder >= agent->config.node_count)
            return CAIRN_LOST;
        export->holders[holder] = HOLDER_ASKED;
    }
    if (export->holders[agent->config.node] == HOLDER_ASKED) {
        cairn_err err = spill_pin(agent, export->id, export->generation, 0);

        if (err)
            return err;
        export->holders[agent->config.node] = HOLDER_KEEPS;
    }
    return CAIRN_OK;
}

static cairn_err
check_export(struct cairn_agent *agent, const char *dir, bool from_files,
             const struct cairn_core_view *view, char *text, size_t text_bytes)
{
    if (dir[0] != '/' || strlen(dir) >= CAIRN_CONFIG_PATH_BYTES_MAX) {
        snprintf(text, text_bytes, "the directory must be an absolute path below %d bytes",
                 (int)CAIRN_CONFIG_PATH_BYTES_MAX);
        return CAIRN_INVAL;
    }
    if ((view->fenced && !from_files) || agent->spill->export) {
        snprintf(text, text_bytes, "%s: try again when it is over",
                 !agent->spill->export ? "a restore of the job is under way"
                                       : "another export is under way");
        return CAIRN_AGAIN;
    }
    if (view->ready.step == 0 && !from_files) {
        snprintf(text, text_bytes,
                 "no generation is held ready; take one with `cairn snapshot`, or restore one");
        return CAIRN_NOT_FOUND;
    }
    return CAIRN_OK;
}

cairn_err
spill_export(struct cairn_agent *agent, const char *dir, struct cairn_generation_id spilled,
             uint64_t request, spill_export_done_fn *done, void *context, char *text,
             size_t text_bytes)
{
    struct spill_disk_job job = {.work = SPILL_DISK_EMPTY, .done = export_dir_ready};
    struct spill_export *export;
    struct cairn_core_view view;
    cairn_err err;

    cairn_core_look(agent->core, &view);
    err = check_export(agent, dir, spilled.step != 0, &view, text, text_bytes);
    if (err)
        return err;
    export = calloc(1, sizeof *export);
    if (export)
        export->holders = calloc(agent->config.node_count, sizeof *export->holders);
    if (!export || !export->holders) {
        free(export);
        snprintf(text, text_bytes, "the agent is out of memory");
        return CAIRN_NOMEM;
    }
    export->id = job.request = spill_request_next(agent);
    export->request = request;
    export->done = done;
    export->context = context;
    export->generation = spilled.step ? spilled : view.ready;
    export->from_files = spilled.step != 0 || view.ready_from_files;
    export->started_ns = export->progress_ns = agent_now_ns(agent);
    snprintf(export->dir, sizeof export->dir, "%s", dir);
    snprintf(job.dir, sizeof job.dir, "%s", dir);
    if (!export->from_files)
        err = ask_holders(agent, export);
    if (!err)
        err = spill_disk_submit(agent, &job);
    if (err) {
        snprintf(text, text_bytes, "step %" PRIu64 " cannot be exported: %s",
                 export->generation.step, cairn_err_text(err));
        spill_unpin(agent, export->id);
        free(export->holders);
        free(export);
        return err == CAIRN_NOT_FOUND ? CAIRN_AGAIN : err;
    }
    agent->spill->export = export;
    if (!export->from_files)
        tell_holders(agent, SPILL_PIN);
    return CAIRN_OK;
}

void
spill_export_forget(struct cairn_agent *agent, uint64_t request)
{
    if (agent->spill && agent->spill->export && agent->spill->export->request == request)
        export_end(agent, true);
}

/* ---- time ---- */

static void
look_for_dead(struct cairn_agent *agent)
{
    struct spill_export *export = agent->spill->export;

    for (uint32_t a = 0; a < agent->config.node_count; a++)
        if (export->holders[a] != HOLDER_NONE && !cairn_core_alive(agent->core, a))
            set_error(export, CAIRN_PEER,
                      "node %u, which holds a part, died; restore the generation first", a);
}

void
spill_export_tick(struct cairn_agent *agent)
{
    struct spill_export *export = agent->spill->export;
    uint64_t now_ns = agent_now_ns(agent);

    if (!export)
        return;
    if (export->state != EXPORT_COMMIT && !export->from_files) {
        look_for_dead(agent);
        if (now_ns - export->sent_ns >= SPILL_RESEND_NS)
            tell_holders(agent, SPILL_PIN);
    }
    if (export->state != EXPORT_WRITE && now_ns - export->progress_ns > SPILL_PATIENCE_NS)
        set_error(export, CAIRN_TIMEOUT,
                  "no progress for 30 s: a node or the disk of %s does not answer", export->dir);
    if (export->err) {
        export_say(agent, 0, 0);
        return;
    }
    if (export->state == EXPORT_WRITE && export->run)
        spill_run_tick(export->run, SPILL_PATIENCE_NS); /* may end the export */
}

void
spill_export_close(struct cairn_agent *agent)
{
    if (agent->spill->export)
        export_end(agent, false);
}
