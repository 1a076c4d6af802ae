/*
 * agent/service/operator_files.h - reads the directory of spilled generations. Thread: a worker.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_FILES_H
#define CAIRN_AGENT_SERVICE_OPERATOR_FILES_H

#include "agent/service/operator_view.h"

/* How closely a committed generation is looked at. */
enum operator_look {
    OPERATOR_LOOK_LIST,  /* not at all */
    OPERATOR_LOOK_OPEN,  /* its index is read, and its files have the sizes that it names */
    OPERATOR_LOOK_VERIFY /* every byte is read */
};

/*
 * Lists the directory, and looks at a committed generation of the job: `wanted`, with its epoch as
 * people name it, or the newest if its step is 0. out->verified: there was one. Blocks on the disk.
 */
void operator_files_read(const char *spill_dir, uint64_t job_id, enum operator_look look,
                         struct cairn_generation_id wanted, uint64_t wall_ns,
                         struct operator_files *out);

#endif
