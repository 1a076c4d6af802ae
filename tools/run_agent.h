/* tools/run_agent.h - which agent a command of `cairn run` gets: one that answers, one that is
 * started, or none. */
#ifndef CAIRN_TOOLS_RUN_AGENT_H
#define CAIRN_TOOLS_RUN_AGENT_H

#include "tools/embedded.h"

enum { CAIRN_RUN_AGENT_TEXT_BYTES = 3 * 1024 };

/*
 * Finds the agent at the socket that is `given`, or named by the environment, or the default, or
 * starts one; socket_path[socket_bytes] gets where it answers. False, and said: the command runs
 * without. Where somebody named the socket of an agent that has ended, and that `cairn run` did not
 * start, none is started in its place.
 */
bool cairn_run_agent_attach(const char *given, const struct cairn_embedded *embedded,
                            char *socket_path, size_t socket_bytes);

/* What attach would find, in text[text_bytes]; nothing is started. */
void cairn_run_agent_foresee(const char *given, char *text, size_t text_bytes);

#endif
