/* tools/ras.h - asking NCCL's RAS port what it counts. */
#ifndef CAIRN_TOOLS_RAS_H
#define CAIRN_TOOLS_RAS_H

#include "cairn/err.h"

#include <stddef.h>

/*
 * Asks the RAS that listens at "HOST:PORT" (an IPv6 address in brackets) for the status of its
 * whole job, as JSON: *text[*text_bytes] is the caller's to free. All of it takes at most 15 s.
 * CAIRN_INVAL: no such address; CAIRN_PEER: nobody listens there, or went away; CAIRN_TIMEOUT;
 * CAIRN_VERSION: it has no JSON (NCCL before 2.28.7); CAIRN_CORRUPT: it is not a RAS, or sends too
 * much; CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_ras_ask(const char *address, char **text, size_t *text_bytes);

#endif
