/* agent/service/keep.c - see keep.h. */
#include "agent/service/keep.h"

#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/service_message.h"
#include "agent/service/local.h"
#include "agent/service/spill.h"

void
keep_here(struct cairn_agent *agent)
{
    local_ask(agent);
    spill_ask(agent);
}

void
keep_everywhere(struct cairn_agent *agent)
{
    struct cairn_service_message message = {
        .kind = CAIRN_SERVICE_OPERATOR, .from = agent->config.node, .verb = KEEP_VERB};

    keep_here(agent);
    for (message.to = 0; message.to < agent->config.node_count; message.to++)
        if (message.to != agent->config.node)
            mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
}
