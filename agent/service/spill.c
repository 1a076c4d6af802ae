/* agent/service/spill.c - spilling: start and end, who reads what (pins), and the part of a member;
 * see spill_state.h. */
#include "agent/service/spill_state.h"

#include "base/log.h"
#include "base/wire.h"
#include "snapshot/spill.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t
spill_request_next(struct cairn_agent *agent)
{
    return agent->incarnation +
           ++agent->spill->requests; /* wall time in ns: no two starts are so near */
}

void
spill_send(struct cairn_agent *agent, uint32_t to, enum spill_row row, uint64_t request,
           struct cairn_generation generation, cairn_err err, const char *text)
{
    struct cairn_message message = {.type = CAIRN_MSG_SERVICE,
                                    .from = agent->config.node,
                                    .to = to,
                                    .generation = generation,
                                    .row = row,
                                    .err = err,
                                    .request = request,
                                    .bytes = (const uint8_t *)text,
                                    .bytes_len = (uint32_t)strlen(text)};

    mail_send(agent, &message, NULL, 0, UINT32_MAX, NULL);
}

struct cairn_generation
spill_newest(const struct cairn_agent *agent)
{
    return agent->spill ? agent->spill->newest : (struct cairn_generation){0, 0};
}

bool
spill_running(const struct cairn_agent *agent)
{
    return agent->spill && (agent->spill->part.request || agent->spill->lead.state != LEAD_NONE);
}

void
spill_learn(struct cairn_agent *agent, struct cairn_generation generation)
{
    struct cairn_event event = {.type = CAIRN_EVENT_SPILLED, .generation = generation};

    if (cairn_generation_compare(generation, agent->spill->newest) <= 0)
        return;
    agent->spill->newest = generation;
    agent_step(agent, &event, NULL);
}

/* ---- pins ---- */

/* A part of the generation is complete here. */
static bool
is_complete(const struct cairn_agent *agent, struct cairn_generation generation)
{
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        struct cairn_holding_view view;

        if (cairn_core_look_holding(agent->core, i, &view) &&
            view.state == CAIRN_HOLDING_COMPLETE &&
            cairn_generation_compare(view.generation, generation) == 0)
            return true;
    }
    return false;
}

static void
tell_core(struct cairn_agent *agent, struct cairn_generation generation, bool keep)
{
    struct cairn_event event = {
        .type = CAIRN_EVENT_PIN, .generation = generation, .count = keep ? 1 : 0};

    agent_step(agent, &event, NULL);
}

cairn_err
spill_pin(struct cairn_agent *agent, uint64_t request, struct cairn_generation generation,
          uint64_t lease_ns)
{
    struct spill_pin *pins = agent->spill->pins, *pin = NULL;

    if (!is_complete(agent, generation))
        return CAIRN_NOT_FOUND;
    for (uint32_t i = 0; i < SPILL_PINS_MAX; i++)
        if (pins[i].request == request ||
            (pins[i].request == 0 && (!pin || pin->request != request)))
            pin = &pins[i];
    if (!pin)
        return CAIRN_FULL;
    *pin = (struct spill_pin){request, generation, lease_ns ? agent_now_ns(agent) + lease_ns : 0};
    tell_core(agent, generation, true);
    return CAIRN_OK;
}

void
spill_unpin(struct cairn_agent *agent, uint64_t request)
{
    struct spill_pin *pins = agent->spill->pins;
    struct cairn_generation generation = {0, 0};
    bool others = false;

    for (uint32_t i = 0; request && i < SPILL_PINS_MAX; i++)
        if (pins[i].request == request) {
            generation = pins[i].generation;
            pins[i] = (struct spill_pin){0};
        }
    for (uint32_t i = 0; i < SPILL_PINS_MAX; i++)
        others |= pins[i].request && cairn_generation_compare(pins[i].generation, generation) == 0;
    if (generation.step && !others)
        tell_core(agent, generation, false);
}

static void
take_pin(struct cairn_agent *agent, const struct cairn_message *message)
{
    cairn_err err = message->request
                        ? spill_pin(agent, message->request, message->generation, SPILL_LEASE_NS)
                        : CAIRN_INVAL;

    spill_send(agent, message->from, SPILL_PINNED, message->request, message->generation, err, "");
}

static void
tick_pins(struct cairn_agent *agent)
{
    uint64_t now_ns = agent_now_ns(agent);

    for (uint32_t i = 0; i < SPILL_PINS_MAX; i++) {
        const struct spill_pin *pin = &agent->spill->pins[i];

        if (pin->request && pin->expires_ns && now_ns >= pin->expires_ns)
            spill_unpin(agent,
                        pin->request); /* whoever reads has not said for long that it still does */
    }
}

/* ---- the part of a member ---- */

/* Tells the checksums of the file that is due, as many as fit a message. */
static void
tell_crcs(struct cairn_agent *agent, const struct cairn_universal_file *file)
{
    struct spill_part *part = &agent->spill->part;
    uint64_t left = file->block_count - part->told;
    uint32_t count = left < SPILL_PART_CRCS ? (uint32_t)left : SPILL_PART_CRCS;
    uint8_t *bytes = malloc(8 * (size_t)count + 1);
    struct cairn_message message = {.type = CAIRN_MSG_SERVICE,
                                    .from = agent->config.node,
                                    .to = part->leader,
                                    .generation = part->generation,
                                    .row = SPILL_CRCS,
                                    .stripe = part->file,
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
    mail_send(agent, &message, NULL, 0, UINT32_MAX, NULL);
    free(bytes);
}

static void
tell_progress(struct cairn_agent *agent)
{
    struct spill_part *part = &agent->spill->part;
    struct cairn_message message = {.type = CAIRN_MSG_SERVICE,
                                    .from = agent->config.node,
                                    .to = part->leader,
                                    .generation = part->generation,
                                    .row = SPILL_PROGRESS,
                                    .err = part->err,
                                    .request = part->request,
                                    .bytes = (const uint8_t *)part->text,
                                    .bytes_len = (uint32_t)strlen(part->text)};

    if (part->run)
        spill_run_progress(part->run, &message.offset, &message.total);
    mail_send(agent, &message, NULL, 0, UINT32_MAX, NULL);
}

/* The next own file from `file` on; the number of files where there is none. */
static uint32_t
own_file(const struct cairn_agent *agent, const struct cairn_universal *plan, uint32_t file)
{
    while (file < plan->file_count && plan->files[file].writer != agent->spill->part.writer)
        file++;
    return file;
}

/* Says what the leader does not know yet. */
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
    if (err) {
        spill_run_end(part->run);
        part->run = NULL;
    } else {
        part->file = own_file(agent, spill_run_plan(part->run), 0);
    }
    if (part->leader == agent->config.node)
        spill_lead_own(agent, err, part->text);
    else
        tell_leader(agent);
}

static void
take_ack(struct cairn_agent *agent, const struct cairn_message *message)
{
    struct spill_part *part = &agent->spill->part;
    const struct cairn_universal *plan = part->run ? spill_run_plan(part->run) : NULL;

    if (message->request != part->request || message->from != part->leader || !part->written ||
        !plan || message->stripe != part->file || part->file >= plan->file_count ||
        message->offset > plan->files[part->file].block_count)
        return;
    part->told = message->offset;
    if (part->told == plan->files[part->file].block_count) {
        part->told = 0;
        part->file = own_file(agent, plan, part->file + 1);
    }
    tell_leader(agent);
}

/* Why this agent cannot take part; CAIRN_OK: it can, and keeps the generation. */
static cairn_err
check_start(struct cairn_agent *agent, const struct cairn_message *message, char *text)
{
    struct spill_state *state = agent->spill;
    struct cairn_core_view view;
    cairn_err err;

    cairn_core_look(agent->core, &view);
    text[0] = '\0';
    if (!agent->config.spill_dir[0]) {
        snprintf(text, SPILL_TEXT_BYTES,
                 "node %u has no spill_dir: give all nodes the same "
                 "configuration",
                 agent->config.node);
        return CAIRN_CONFIG;
    }
    if (view.frozen || view.self_member == UINT32_MAX || state->part.request)
        err = CAIRN_AGAIN;
    else if (cairn_generation_compare(message->generation, state->tried) <= 0)
        err = CAIRN_STALE;
    else
        err = spill_pin(agent, message->request, message->generation, 0);
    if (err)
        snprintf(text, SPILL_TEXT_BYTES, "node %u %s", agent->config.node,
                 err == CAIRN_NOT_FOUND ? "has let it go already for a newer one"
                 : err == CAIRN_STALE   ? "took part in a newer spill"
                                        : "is busy");
    return err;
}

void
spill_part_start(struct cairn_agent *agent, const struct cairn_message *message)
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
            spill_lead_own(agent, err, text);
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
    options.writer_count = view.table->member_count;
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

static void
take_end(struct cairn_agent *agent, const struct cairn_message *message)
{
    struct spill_part *part = &agent->spill->part;

    if (part->request == message->request && part->leader == message->from)
        spill_part_end(agent);
    spill_unpin(agent, message->request);
    if (!message->err)
        spill_learn(agent, message->generation);
    spill_send(agent, message->from, SPILL_ENDED, message->request, message->generation, CAIRN_OK,
               "");
}

/* What makes going on useless: the leader that would commit is gone, or the generation is. */
static void
tick_part(struct cairn_agent *agent)
{
    struct spill_part *part = &agent->spill->part;
    struct cairn_core_view view;

    if (part->request == 0)
        return;
    if (part->run)
        spill_run_tick(part->run);
    if (part->request == 0)
        return;
    cairn_core_look(agent->core, &view);
    if (!cairn_core_alive(agent->core, part->leader) || view.active != part->epoch) {
        CAIRN_LOG_AT(INFO, "spill: left epoch=%" PRIu64 " step=%" PRIu64 ": %s",
                     part->generation.epoch >> 16, part->generation.step,
                     view.active != part->epoch
                         ? "a new epoch began"
                         : "its leader is gone; the next one begins another");
        spill_part_end(agent);
        return;
    }
    if (!part->written && !part->err && !is_complete(agent, part->generation)) {
        part_done(agent, CAIRN_NOT_FOUND, "the generation is not held here any more");
        return;
    }
    if (agent_now_ns(agent) - part->sent_ns >= SPILL_RESEND_NS)
        tell_leader(agent);
}

/* ---- the agent's side ---- */

cairn_err
spill_open(struct cairn_agent *agent)
{
    struct cairn_generation newest = {0, 0};
    cairn_err err;

    agent->spill = calloc(1, sizeof *agent->spill);
    if (!agent->spill)
        return CAIRN_NOMEM;
    err = cairn_workers_start(agent->loop, 1, SPILL_DISK_JOBS, &agent->spill->disk);
    if (err || !agent->config.spill_dir[0])
        return err;
    newest = spill_disk_newest(agent->config.spill_dir, agent->job_id);
    if (newest.step) {
        CAIRN_LOG_AT(INFO, "spill: found epoch=%" PRIu64 " step=%" PRIu64 " dir=%s",
                     newest.epoch >> 16, newest.step, agent->config.spill_dir);
        spill_learn(agent, newest);
    }
    return CAIRN_OK;
}

void
spill_close(struct cairn_agent *agent)
{
    struct spill_state *state = agent->spill;

    if (!state)
        return;
    spill_run_end(state->part.run);
    state->part = (struct spill_part){0};
    spill_export_close(agent);
    cairn_workers_stop(state->disk); /* what it still does is done, and its answers are taken */
    spill_lead_fini(agent);
    free(state);
    agent->spill = NULL;
}

void
spill_committed(struct cairn_agent *agent, struct cairn_generation generation)
{
    struct spill_state *state = agent->spill;

    if (!state || !agent->config.spill_dir[0] || agent->config.spill_every_generations == 0)
        return;
    if (++state->commits < agent->config.spill_every_generations)
        return;
    state->commits = 0;
    spill_lead_committed(agent, generation);
}

void
spill_message(struct cairn_agent *agent, const struct cairn_message *message)
{
    if (message->row < SPILL_START || !agent->spill || agent->stopping)
        return;
    switch (message->row) {
    case SPILL_START:
        spill_part_start(agent, message);
        break;
    case SPILL_CRCS_ACK:
        take_ack(agent, message);
        break;
    case SPILL_END:
        take_end(agent, message);
        break;
    case SPILL_PROGRESS:
    case SPILL_CRCS:
    case SPILL_ENDED:
        spill_lead_message(agent, message);
        break;
    case SPILL_PIN:
        take_pin(agent, message);
        break;
    case SPILL_UNPIN:
        spill_unpin(agent, message->request);
        break;
    case SPILL_PINNED:
        spill_export_message(agent, message);
        break;
    default:
        break; /* of a later version */
    }
}

void
spill_tick(struct cairn_agent *agent)
{
    if (!agent->spill || agent->stopping)
        return;
    tick_part(agent);
    spill_lead_tick(agent);
    spill_export_tick(agent);
    tick_pins(agent);
}
