/* tools/detect_counts.h - `cairn detect` of jobs without timed collectives: from the counts of
 * others. */
#ifndef CAIRN_TOOLS_DETECT_COUNTS_H
#define CAIRN_TOOLS_DETECT_COUNTS_H

#include <stdbool.h>
#include <stdint.h>

/* Asks NCCL's RAS at "HOST:PORT" twice, this many seconds apart, and prints what hangs. Returns the
 * exit code. */
int cairn_detect_ras(const char *address, uint32_t seconds, bool json);

/* The same from a folder of dumps of PyTorch's Flight Recorder as JSON, one file per rank, named by
 * the rank's number at the end (with ".json" or without). */
int cairn_detect_dumps(const char *folder, bool json);

#endif
