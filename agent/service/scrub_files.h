/*
 * agent/service/scrub_files.h - compares the files in local_dir with their checksums in the
 * background, and has damaged files replaced from memory.
 *
 * Pace and period are those of the scrub of memory (scrub_plan.h), with a thread of its own,
 * because a disk may hang. A damaged file of the ready generation is written again. An older one
 * cannot be: all agents write the ready generation, and once this node's is on its disk, the
 * damaged file is marked as bad, so that no agent loads it. Until then it stays: its good blocks
 * still count, because an agent that loads it compares each block with its record.
 *
 * Thread: loop.
 */
#ifndef CAIRN_AGENT_SERVICE_SCRUB_FILES_H
#define CAIRN_AGENT_SERVICE_SCRUB_FILES_H

#include "agent/service/scrub.h"

CAIRN_MUST_CHECK cairn_err scrub_files_open(struct cairn_agent *agent);
void scrub_files_close(struct cairn_agent *agent);
/* found and repaired count blocks; repaired are also those of files that were replaced. */
void scrub_files_read(const struct cairn_agent *agent, struct scrub_report *out);

#endif
