/* agent/service/spill_pin.c - who reads which generation, and small parts that all of spilling
 * uses; see spill_pin.h. */
#include "agent/service/spill_pin.h"

#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/step.h"
#include "base/worker.h"
#include "snapshot/spill.h"

#include <stdio.h>
#include <string.h>

uint64_t
spill_request_next(struct cairn_agent *agent)
{
    return agent->incarnation +
           ++agent->spill->requests; /* wall time in ns: no two starts are so near */
}

void
spill_send(struct cairn_agent *agent, uint32_t to, enum spill_row row, uint64_t request,
           struct cairn_generation_id generation, cairn_err err, const char *text)
{
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_SPILL,
                                            .from = agent->config.node,
                                            .to = to,
                                            .generation = generation,
                                            .verb = row,
                                            .err = err,
                                            .request = request,
                                            .bytes = (const uint8_t *)text,
                                            .bytes_len = (uint32_t)strlen(text)};

    mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
}

void
spill_learn(struct cairn_agent *agent, struct cairn_generation_id generation)
{
    struct cairn_event event = {.type = CAIRN_EVENT_SPILLED, .as.pin = {.generation = generation}};

    agent->spill->failed_ns = 0;
    if (cairn_spill_compare(generation, agent->spill->newest) <= 0)
        return;
    agent->spill->newest = generation;
    agent_step(agent, &event, NULL);
}

static void
forget(struct cairn_agent *agent, struct cairn_generation_id bad, struct cairn_generation_id left)
{
    struct cairn_event event = {.type = CAIRN_EVENT_SPILLED, .as.pin = {.generation = left}};

    if (cairn_spill_compare(bad, agent->spill->newest) != 0)
        return;
    agent->spill->newest = left;
    agent_step(agent, &event, NULL);
}

void
spill_forget_everywhere(struct cairn_agent *agent, struct cairn_generation_id bad,
                        struct cairn_generation_id left, const char *text)
{
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_SPILL,
                                            .from = agent->config.node,
                                            .generation = bad,
                                            .verb = SPILL_BAD,
                                            .offset = left.epoch,
                                            .total = left.step};

    forget(agent, bad, left);
    if (!agent->spill->failed_ns)
        agent->spill->failed_ns = agent_now_ns(agent);
    snprintf(agent->spill->failure, sizeof agent->spill->failure, "%s", text);
    for (message.to = 0; message.to < agent->config.node_count; message.to++)
        if (message.to != agent->config.node)
            mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
}

void
spill_bad_told(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    forget(agent, message->generation,
           (struct cairn_generation_id){.epoch = message->offset, .step = message->total});
}

/* ---- a disk that hangs ---- */

uint64_t
spill_patience_ns(const struct cairn_agent *agent, struct cairn_generation_id generation)
{
    struct cairn_core_view core;
    bool in_the_way = false;

    cairn_core_look(agent->core, &core);
    for (uint32_t i = 0; i < agent->config.slots; i++) {
        struct cairn_part_view view;

        if (!cairn_core_look_part(agent->core, i, &view) || view.state == CAIRN_PART_FREE)
            return SPILL_PATIENCE_NS;
        in_the_way |= cairn_generation_id_compare(view.generation, generation) == 0 &&
                      cairn_generation_id_compare(view.generation, core.committed) < 0;
    }
    return in_the_way ? SPILL_HURRY_NS : SPILL_PATIENCE_NS;
}

void
spill_stuck(struct cairn_agent *agent, uint64_t since_ns)
{
    struct spill_state *state = agent->spill;

    if (cairn_workers_busy(state->disk) > 0) {
        state->given_up++;
        if (state->stuck_ns == 0)
            state->stuck_ns = since_ns;
    }
    state->pause_step_ns = state->pause_step_ns ? 2 * state->pause_step_ns : SPILL_PAUSE_NS;
    if (state->pause_step_ns > SPILL_PAUSE_NS_MAX)
        state->pause_step_ns = SPILL_PAUSE_NS_MAX;
    state->pause_ns = agent_now_ns(agent) + state->pause_step_ns;
}

void
spill_unstuck(struct cairn_agent *agent)
{
    agent->spill->stuck_ns = agent->spill->pause_step_ns = 0;
}

bool
spill_disk_is_stuck(const struct cairn_agent *agent)
{
    const struct spill_state *state = agent->spill;

    return state->stuck_ns != 0 && cairn_workers_busy(state->disk) > 0;
}

/* ---- pins ---- */

bool
spill_is_complete(const struct cairn_agent *agent, struct cairn_generation_id generation)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        struct cairn_part_view view;

        if (cairn_core_look_part(agent->core, i, &view) && view.state == CAIRN_PART_COMPLETE &&
            cairn_generation_id_compare(view.generation, generation) == 0)
            return true;
    }
    return false;
}

static void
tell_core(struct cairn_agent *agent, struct cairn_generation_id generation, bool keep)
{
    struct cairn_event event = {.type = CAIRN_EVENT_PIN,
                                .as.pin = {.generation = generation, .keep = keep}};

    agent_step(agent, &event, NULL);
}

cairn_err
spill_pin(struct cairn_agent *agent, uint64_t request, struct cairn_generation_id generation,
          uint64_t lease_ns)
{
    struct spill_pin *pins = agent->spill->pins, *pin = NULL;

    if (!spill_is_complete(agent, generation))
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
    struct cairn_generation_id generation = {0};
    bool others = false;

    for (uint32_t i = 0; request && i < SPILL_PINS_MAX; i++)
        if (pins[i].request == request) {
            generation = pins[i].generation;
            pins[i] = (struct spill_pin){0};
        }
    for (uint32_t i = 0; i < SPILL_PINS_MAX; i++)
        others |=
            pins[i].request && cairn_generation_id_compare(pins[i].generation, generation) == 0;
    if (generation.step && !others)
        tell_core(agent, generation, false);
}

void
spill_pin_asked(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    cairn_err err = message->request && !spill_disk_is_stuck(agent)
                        ? spill_pin(agent, message->request, message->generation, SPILL_LEASE_NS)
                        : CAIRN_INVAL;

    spill_send(agent, message->from, SPILL_PINNED, message->request, message->generation, err, "");
}

void
spill_pins_tick(struct cairn_agent *agent)
{
    uint64_t now_ns = agent_now_ns(agent);

    for (uint32_t i = 0; i < SPILL_PINS_MAX; i++) {
        const struct spill_pin *pin = &agent->spill->pins[i];

        if (pin->request && pin->expires_ns && now_ns >= pin->expires_ns)
            spill_unpin(agent, pin->request); /* its reader has not renewed the lease */
    }
}
