/*
 * agent/process/reload.h - SIGHUP: reads the configuration again, and applies what can change while
 * the agent runs.
 *
 *   applied at once    log_level, log_format, spill_every_generations, spill_keep,
 *                      exchanges_per_day, the addresses of other nodes, the files of keys and
 *                      certificates and their contents, and identity
 *   after a restart    everything else: memory, groups, threads and the core's times are made from
 *                      it at the start
 *
 * Each option that differs from the running one is logged with both values and which of the two it
 * is. A wrong file changes nothing.
 */
#ifndef CAIRN_AGENT_PROCESS_RELOAD_H
#define CAIRN_AGENT_PROCESS_RELOAD_H

struct cairn_agent;

/* Reads the file in a worker, and applies it in the loop. */
void reload_start(struct cairn_agent *agent);

#endif
