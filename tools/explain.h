/* tools/explain.h - what the files of `cairn explain` share. */
#ifndef CAIRN_TOOLS_EXPLAIN_H
#define CAIRN_TOOLS_EXPLAIN_H

#include <stdbool.h>
#include <stdint.h>

/* Explains a verdict of the running job that `agent` serves, the value of --agent or NULL. Returns
 * the exit code. */
int cairn_explain_live(const char *agent, uint32_t number, bool json);

/* The same of an offer of another placement. */
int cairn_explain_plan(const char *agent, uint64_t number, bool json);

/* The same of an event of the history, "NODE.NUMBER". */
int cairn_explain_event(const char *agent, const char *id, bool json);

#endif
