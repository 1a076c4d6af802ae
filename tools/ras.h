/* tools/ras.h - asks NCCL's RAS port for its counts. */
#ifndef CAIRN_TOOLS_RAS_H
#define CAIRN_TOOLS_RAS_H

#include "cairn/err.h"

#include <stddef.h>

/*
 * Asks the RAS that listens at "HOST:PORT" (an IPv6 address in brackets) for the status of its
 * whole job, as JSON; the caller frees *text[*text_bytes]. Takes at most 15 s in all. CAIRN_INVAL:
 * wrong address; CAIRN_PEER: nobody listens there, or went away; CAIRN_TIMEOUT; CAIRN_VERSION:
 * without JSON (NCCL before 2.28.7); CAIRN_CORRUPT: not a RAS, or too long; CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_ras_ask(const char *address, char **text, size_t *text_bytes);

#endif
