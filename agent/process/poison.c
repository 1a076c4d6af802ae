/* agent/process/poison.c - see poison.h. */
#include "agent/process/poison.h"

#include "agent/process/agent_state.h"
#include "base/log.h"

#include <inttypes.h>

static void
say(const struct poison *poison)
{
    const struct cairn_session_poison *first = &poison->first;

    CAIRN_LOG_AT(WARN, "poison: step=%" PRIu64 " rank=%u kept=%s tensors=%u first=\"%s\"%s%s",
                 first->generation.step, poison->rank, poison->is_kept ? "yes" : "no",
                 first->tensors, first->name, first->is_rejected ? " rejected: " : "",
                 first->reason);
}

/* A generation is the first of its run, or since one that is as late as the first was committed. */
static bool
is_first(const struct cairn_agent *agent, struct cairn_generation_id generation)
{
    struct cairn_generation_id first = agent->poison.first.generation;
    struct cairn_core_view view;

    cairn_core_look(agent->core, &view);
    return first.epoch != generation.epoch || first.run != generation.run ||
           cairn_generation_id_compare(view.committed, first) >= 0;
}

cairn_err
poison_take(struct cairn_agent *agent, uint32_t rank, const struct cairn_session_poison *found)
{
    enum cairn_on_poison policy = (enum cairn_on_poison)agent->config.on_poison;
    struct poison *poison = &agent->poison;
    /* what a rank rejects itself is never kept */
    bool is_kept = policy == CAIRN_POISON_ALLOW && !found->is_rejected;
    bool is_next = cairn_generation_id_compare(poison->last, found->generation) != 0;

    poison->is_kept = is_kept && (is_next || poison->is_kept);
    poison->last = found->generation;
    if (is_first(agent, found->generation)) {
        poison->first = *found;
        poison->rank = rank;
        say(poison);
    }
    if (is_kept)
        return CAIRN_OK;
    return policy == CAIRN_POISON_STOP ? CAIRN_CORRUPT : CAIRN_AGAIN;
}
