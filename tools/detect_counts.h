/* tools/detect_counts.h - `cairn detect` of jobs whose collectives are not timed: from what others
 * count. */
#ifndef CAIRN_TOOLS_DETECT_COUNTS_H
#define CAIRN_TOOLS_DETECT_COUNTS_H

#include <stdbool.h>
#include <stdint.h>

/* Asks NCCL's RAS at "HOST:PORT" twice, so many seconds apart, and prints who hangs. Returns the
 * exit code. */
int cairn_detect_ras(const char *address, uint32_t seconds, bool json);

/* The same from a folder of dumps of PyTorch's Flight Recorder as JSON, one file per rank, whose
 * names end with the rank's number (and ".json", or not). */
int cairn_detect_dumps(const char *folder, bool json);

#endif
