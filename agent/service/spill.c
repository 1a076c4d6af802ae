/* agent/service/spill.c - spilling: start and end, messages and ticks; see spill_state.h. */
#include "agent/service/spill.h"

#include "agent/process/agent_state.h"
#include "agent/process/step.h"
#include "agent/service/spill_disk.h"
#include "agent/service/spill_export.h"
#include "agent/service/spill_lead.h"
#include "agent/service/spill_part.h"
#include "agent/service/spill_pin.h"
#include "agent/service/spill_run.h"
#include "agent/service/spill_state.h"
#include "base/log.h"
#include "base/worker.h"
#include "snapshot/spill.h"

#include <inttypes.h>
#include <stdlib.h>

cairn_err
spill_open(struct cairn_agent *agent)
{
    struct cairn_generation_id newest = {0};
    cairn_err err;

    agent->spill = calloc(1, sizeof *agent->spill);
    if (!agent->spill)
        return CAIRN_NOMEM;
    agent->spill->part_over = spill_lead_own;
    err = cairn_workers_start(agent->loop, 1, SPILL_DISK_JOBS, &agent->spill->disk);
    if (err || !agent->config.spill_dir[0])
        return err;
    newest = spill_disk_newest(agent->config.spill_dir, agent->job_id);
    if (newest.step) {
        CAIRN_LOG_AT(INFO, "spill: found epoch=%" PRIu64 " step=%" PRIu64 " dir=%s",
                     cairn_epoch_number(newest.epoch), newest.step, agent->config.spill_dir);
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
spill_stuck_read(const struct cairn_agent *agent, uint64_t *stuck_ms, uint64_t *given_up)
{
    const struct spill_state *state = agent->spill;

    *stuck_ms = *given_up = 0;
    if (!state)
        return;
    *given_up = state->given_up;
    if (state->stuck_ns)
        *stuck_ms = (agent_now_ns(agent) - state->stuck_ns) / CAIRN_NS_PER_MS + 1;
}

void
spill_failure_read(const struct cairn_agent *agent, uint64_t *failed_ms, const char **why)
{
    const struct spill_state *state = agent->spill;

    *failed_ms = 0;
    *why = "";
    if (!state || !state->failed_ns)
        return;
    *failed_ms = (agent_now_ns(agent) - state->failed_ns) / CAIRN_NS_PER_MS + 1;
    *why = state->failure;
}

void
spill_committed(struct cairn_agent *agent, struct cairn_generation_id generation)
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
spill_ask(struct cairn_agent *agent)
{
    struct cairn_core_view view;

    cairn_core_look(agent->core, &view);
    if (!agent->spill || !agent->config.spill_dir[0] || view.ready.step == 0 ||
        view.ready_from_files || cairn_spill_compare(view.ready, agent->spill->newest) <= 0)
        return;
    agent->spill->commits = 0;
    spill_lead_committed(agent, view.ready);
}

void
spill_message(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    if (message->verb < SPILL_START || !agent->spill || agent->stopping)
        return;
    switch (message->verb) {
    case SPILL_START:
        spill_part_start(agent, message);
        break;
    case SPILL_CRCS_ACK:
        spill_part_ack(agent, message);
        break;
    case SPILL_END:
        spill_part_ended(agent, message);
        break;
    case SPILL_PROGRESS:
    case SPILL_CRCS:
    case SPILL_ENDED:
        spill_lead_message(agent, message);
        break;
    case SPILL_PIN:
        spill_pin_asked(agent, message);
        break;
    case SPILL_UNPIN:
        spill_unpin(agent, message->request);
        break;
    case SPILL_BAD:
        spill_bad_told(agent, message);
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
    spill_part_tick(agent);
    spill_lead_tick(agent);
    spill_export_tick(agent);
    spill_pins_tick(agent);
}
