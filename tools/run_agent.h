/* tools/run_agent.h - the agent for a command of `cairn run`: a running one, a new one, or none. */
#ifndef CAIRN_TOOLS_RUN_AGENT_H
#define CAIRN_TOOLS_RUN_AGENT_H

#include "tools/embedded.h"

enum { CAIRN_RUN_AGENT_TEXT_BYTES = 4 * 1024 };

enum cairn_run_agent {
    CAIRN_RUN_AGENT_ATTACHED,
    CAIRN_RUN_AGENT_NONE,   /* run the command without protection */
    CAIRN_RUN_AGENT_SEVERAL /* do not run it: the user must name an agent */
};

/*
 * Finds the agent by the rule of tools/find_agent.h, or starts one. socket_path[socket_bytes] gets
 * its socket. If the user named the socket of an agent that has ended, a new one takes its place
 * only if `cairn run` had started that one too. *started: it is new, and what it protects against
 * is reported. All failures are reported on stderr.
 */
enum cairn_run_agent cairn_run_agent_attach(const char *given,
                                            const struct cairn_embedded *embedded,
                                            char *socket_path, size_t socket_bytes, bool *started);

/* Starts nothing: describes in text[text_bytes] what attach would do. ATTACHED or SEVERAL. */
enum cairn_run_agent cairn_run_agent_foresee(const char *given, char *text, size_t text_bytes);

#endif
