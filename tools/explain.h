/* tools/explain.h - what the files of `cairn explain` share. */
#ifndef CAIRN_TOOLS_EXPLAIN_H
#define CAIRN_TOOLS_EXPLAIN_H

#include <stdbool.h>
#include <stdint.h>

/* Tells a verdict that the agents of a running job have; socket NULL: $CAIRN_AGENT, else the
 * default. Returns the exit code. */
int cairn_explain_live(const char *socket, uint32_t number, bool json);

#endif
