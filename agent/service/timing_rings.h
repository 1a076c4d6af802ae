/*
 * agent/service/timing_rings.h - the rings of timing records that trainers handed over: mapped,
 * read, released.
 *
 * agent->timing owns the mappings. Rings are untrusted: base/ring.h checks every record.
 */
#ifndef CAIRN_AGENT_SERVICE_TIMING_RINGS_H
#define CAIRN_AGENT_SERVICE_TIMING_RINGS_H

#include "base/wire.h"

#include <stdint.h>

struct cairn_agent;

/* Reads waiting records, and twice a second looks at the trainers' processes. */
void timing_rings_read(struct cairn_agent *agent, uint64_t now_ns);

/* Writes the recordings of this node's ranks; see timing_pack_recordings. */
void timing_rings_pack(const struct cairn_agent *agent, uint32_t steps, uint32_t until,
                       uint64_t now_ns, struct cairn_writer *writer);

/* The ranks report again which communicators they take part in. */
void timing_rings_announce(struct cairn_agent *agent);
void timing_rings_close(struct cairn_agent *agent);

#endif
