/*
 * agent/service/operator_files.h - reads the directory of spilled generations. Thread: a worker.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_FILES_H
#define CAIRN_AGENT_SERVICE_OPERATOR_FILES_H

#include "agent/service/operator_view.h"

/*
 * Lists the directory. With `verify` reads every byte of a committed generation: `wanted`, with its
 * epoch as people name it, or the newest if its step is 0. Blocks on the disk.
 */
void operator_files_read(const char *spill_dir, bool verify, struct cairn_generation_id wanted,
                         uint64_t wall_ns, struct operator_files *out);

#endif
