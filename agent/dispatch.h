/* agent/dispatch.h - passes the process's reports (agent/process/handlers.h) on to the services. */
#ifndef CAIRN_AGENT_DISPATCH_H
#define CAIRN_AGENT_DISPATCH_H

#include "agent/process/handlers.h"

extern const struct agent_handlers cairn_agent_handlers;

#endif
