/*
 * agent/service/keep.h - has agents write the ready generation to their disks (local_dir) and to
 * spill_dir, now rather than when it is due. Thread: loop.
 */
#ifndef CAIRN_AGENT_SERVICE_KEEP_H
#define CAIRN_AGENT_SERVICE_KEEP_H

struct cairn_agent;

enum { KEEP_VERB = 5 }; /* in an OPERATOR message's `verb` */

/* This agent does. */
void keep_here(struct cairn_agent *agent);
/* Asks all agents: one part alone is useless. */
void keep_everywhere(struct cairn_agent *agent);

#endif
