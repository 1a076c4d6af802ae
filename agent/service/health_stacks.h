/*
 * agent/service/health_stacks.h - the Python stacks of a hanging trainer, which the Python module
 * in that process writes on a signal (bindings/python/cairn/_stacks.py).
 *
 * A process that offers its stacks has a memfd named "cairn-stacks-NUMBER", the signal's number.
 * The agent sends that signal only if the process catches it, so that it cannot end the process.
 * The agent must run as the trainer's user or as root, in a PID namespace that holds the trainer.
 *
 * Blocks for half a second at most. Thread: one worker.
 */
#ifndef CAIRN_AGENT_SERVICE_HEALTH_STACKS_H
#define CAIRN_AGENT_SERVICE_HEALTH_STACKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Asks a process for its stacks. Fills out[out_bytes] with plain text, one frame a line, the
 * interrupted thread first if it is named; without addresses, so that equal stacks are equal texts.
 * False: it offers none, is stopped, or did not answer.
 */
bool health_stacks_ask(int64_t pid, char *out, size_t out_bytes);

#endif
