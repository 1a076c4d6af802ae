/* agent/service/spill_part.c - the part of a member in a spill; see spill_part.h. */
#include "agent/service/spill_part.h"

#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/step.h"
#include "agent/service/spill_pin.h"
#include "agent/service/spill_run.h"
#include "base/log.h"
#include "base/wire.h"
#include "snapshot/spill.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sends the checksums of the file that is due, as many as fit a message. */
static void
tell_crcs(struct cairn_agent *agent, const struct cairn_universal_file *file)
{
    struct spill_part *part = &agent->spill->part;
    uint64_t left = file->block_count - part->told;
    uint32_t count = left < SPILL_PART_CRCS ? (uint32_t)left : SPILL_PART_CRCS;
    uint8_t *bytes = malloc(8 * (size_t)count + 1);
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_SPILL,
                                            .from = agent->config.node,
                                            .to = part->leader,
                                            .generation = part->generation,
                                            .verb = SPILL_CRCS,
                                            .item = part->file,
                                            .request = part->request,
                                            .offset = part->told,
                                            .total = file->block_count,
                                            .bytes = bytes,
                                            .bytes_len = 8 * count};
    struct cairn_writer writer;

    if (!bytes)
        return; /* tried again in a second */
    cairn_writer_init(&writer, bytes, 8 * (size_t)count);
    for (uint32_t i = 0; i < count; i++)
        cairn_write_u64(&writer, file->block_crcs[part->told + i]);
    mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
    free(bytes);
}

static void
tell_progress(struct cairn_agent *agent)
{
    struct spill_part *part = &agent->spill->part;
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_SPILL,
                                            .from = agent->config.node,
                                            .to = part->leader,
                                            .generation = part->generation,
                                            .verb = SPILL_PROGRESS,
                                            .err = part->err,
                                            .request = part->request,
                                            .bytes = (const uint8_t *)part->text,
                                            .bytes_len = (uint32_t)strlen(part->text)};

    if (part->run)
        spill_run_progress(part->run, &message.offset, &message.total);
    mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
}

/* The next own file from `file` on; the number of files if there is none. */
static uint32_t
own_file(const struct cairn_agent *agent, const struct cairn_universal *plan, uint32_t file)
{
    while (file < plan->file_count && plan->files[file].writer != agent->spill->part.writer)
        file++;
    return file;
}

/* Sends what the leader does not know yet. */
static void
tell_leader(struct cairn_agent *agent)
{
    struct spill_part *part = &agent->spill->part;
    const struct cairn_universal *plan = part->run ? spill_run_plan(part->run) : NULL;

    part->sent_ns = agent_now_ns(agent);
    if (part->leader == agent->config.node)
        return;
    if (!part->err && part->written && plan && part->file < plan->file_count)
        tell_crcs(agent, &plan->files[part->file]);
    else
        tell_progress(agent);
}

static void
part_done(void *context, cairn_err err, const char *text)
{
    struct cairn_agent *agent = context;
    struct spill_part *part = &agent->spill->part;

    part->err = err;
    snprintf(part->text, sizeof part->text, "%s", err ? text : "");
    part->written = !err;
    if (err == CAIRN_TIMEOUT)
        spill_stuck(agent, agent_now_ns(agent) - spill_patience_ns(agent, part->generation));
    else if (!err)
        spill_unstuck(agent);
    if (err) {
        spill_run_end(part->run);
        part->run = NULL;
    } else {
        part->file = own_file(agent, spill_run_plan(part->run), 0);
    }
    if (part->leader == agent->config.node)
        agent->spill->part_over(agent, err, part->text);
    else
        tell_leader(agent);
}

void
spill_part_ack(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct spill_part *part = &agent->spill->part;
    const struct cairn_universal *plan = part->run ? spill_run_plan(part->run) : NULL;

    if (message->request != part->request || message->from != part->leader || !part->written ||
        !plan || message->item != part->file || part->file >= plan->file_count ||
        message->offset > plan->files[part->file].block_count)
        return;
    part->told = message->offset;
    if (part->told == plan->files[part->file].block_count) {
        part->told = 0;
        part->file = own_file(agent, plan, part->file + 1);
    }
    tell_leader(agent);
}

/* CAIRN_OK, and pins the generation, or the error why this agent cannot take part. */
static cairn_err
check_start(struct cairn_agent *agent, const struct cairn_service_message *message, char *text)
{
    struct spill_state *state = agent->spill;
    struct cairn_core_view view;
    cairn_err err;

    cairn_core_look(agent->core, &view);
    text[0] = '\0';
    if (!agent->config.spill_dir[0]) {
        snprintf(text, SPILL_TEXT_BYTES,
                 "node %u has no spill_dir; give all nodes the same "
                 "configuration",
                 agent->config.node);
        return CAIRN_CONFIG;
    }
    if (spill_disk_is_stuck(agent)) {
        snprintf(
            text, SPILL_TEXT_BYTES,
            "the disk of %.300s still has not answered node %u for an earlier spill; look at it",
            agent->config.spill_dir, agent->config.node);
        return CAIRN_TIMEOUT;
    }
    if (view.fenced || view.self_member == UINT32_MAX || state->part.request)
        err = CAIRN_AGAIN;
    else if (cairn_generation_id_compare(message->generation, state->tried) <= 0)
        err = CAIRN_STALE;
    else
        err = spill_pin(agent, message->request, message->generation, 0);
    if (err)
        snprintf(text, SPILL_TEXT_BYTES, "node %u %s", agent->config.node,
                 err == CAIRN_NOT_FOUND ? "has dropped it for a newer one"
                 : err == CAIRN_STALE   ? "took part in a newer spill"
                                        : "is busy");
    return err;
}

void
spill_part_start(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct spill_state *state = agent->spill;
    struct spill_part *part = &state->part;
    struct spill_run_options options = {.generation = message->generation,
                                        .disk = state->disk,
                                        .done = part_done,
                                        .context = agent};
    char dir[SPILL_PATH_BYTES + CAIRN_SPILL_DIR_NAME_BYTES], name[CAIRN_SPILL_DIR_NAME_BYTES];
    char text[SPILL_TEXT_BYTES];
    struct cairn_core_view view;
    cairn_err err;

    if (message->request == 0 || message->request == part->request)
        return;
    err = check_start(agent, message, text);
    if (err) {
        if (message->from == agent->config.node)
            agent->spill->part_over(agent, err, text);
        else
            spill_send(agent, message->from, SPILL_PROGRESS, message->request, message->generation,
                       err, text);
        return;
    }
    cairn_core_look(agent->core, &view);
    state->commits = 0;
    state->tried = message->generation;
    *part = (struct spill_part){.request = message->request,
                                .leader = message->from,
                                .generation = message->generation,
                                .epoch = view.active,
                                .writer = view.self_member};
    cairn_spill_dir_name(message->generation, name);
    snprintf(dir, sizeof dir, "%s/%s", agent->config.spill_dir, name);
    options.dir = dir;
    options.writer_count = view.roster->member_count;
    options.own_writer = view.self_member;
    err = spill_run_start(agent, &options, &part->run);
    if (err)
        part_done(agent, err, "the generation cannot be read here any more");
    else
        tell_leader(agent);
}

void
spill_part_end(struct cairn_agent *agent)
{
    struct spill_part *part = &agent->spill->part;

    spill_run_end(part->run);
    spill_unpin(agent, part->request);
    *part = (struct spill_part){0};
}

void
spill_part_ended(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct spill_part *part = &agent->spill->part;

    if (part->request == message->request && part->leader == message->from) {
        if (message->err == CAIRN_TIMEOUT && !part->err)
            spill_stuck(agent, agent_now_ns(agent) - spill_patience_ns(agent, part->generation));
        spill_part_end(agent);
    }
    spill_unpin(agent, message->request);
    if (!message->err)
        spill_learn(agent, message->generation);
    spill_send(agent, message->from, SPILL_ENDED, message->request, message->generation, CAIRN_OK,
               "");
}

void
spill_part_tick(struct cairn_agent *agent)
{
    struct spill_part *part = &agent->spill->part;
    struct cairn_core_view view;

    if (part->request == 0)
        return;
    if (part->run)
        spill_run_tick(part->run, spill_patience_ns(agent, part->generation));
    if (part->request == 0)
        return;
    cairn_core_look(agent->core, &view);
    if (!cairn_core_alive(agent->core, part->leader) || view.active != part->epoch) {
        CAIRN_LOG_AT(INFO, "spill: left epoch=%" PRIu64 " step=%" PRIu64 ": %s",
                     cairn_epoch_number(part->generation.epoch), part->generation.step,
                     view.active != part->epoch
                         ? "a new epoch began"
                         : "its leader is gone; the next one begins another");
        spill_part_end(agent);
        return;
    }
    if (!part->written && !part->err && !spill_is_complete(agent, part->generation)) {
        part_done(agent, CAIRN_NOT_FOUND, "the generation is not held here any more");
        return;
    }
    if (agent_now_ns(agent) - part->sent_ns >= SPILL_RESEND_NS)
        tell_leader(agent);
}
