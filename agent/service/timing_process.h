/*
 * agent/service/timing_process.h - whether a trainer's process runs, is stopped, or is gone.
 */
#ifndef CAIRN_AGENT_SERVICE_TIMING_PROCESS_H
#define CAIRN_AGENT_SERVICE_TIMING_PROCESS_H

#include "replan/live/report.h"

#include <stdbool.h>
#include <stdint.h>

/* A process as the kernel knows it. */
struct timing_process {
    int64_t pid;          /* 0: unknown */
    uint64_t start_ticks; /* tells it from a later process with the same number */
};

/* The process with this number, as it is now. False: none. */
bool timing_process_find(int64_t pid, struct timing_process *out);

/* GONE if it has ended, even if another process has its number now. */
enum cairn_presence timing_process_look(const struct timing_process *process);

#endif
