/*
 * tools/bench_operator.h - asks an agent for a restore, as an operator.
 */
#ifndef CAIRN_TOOLS_BENCH_OPERATOR_H
#define CAIRN_TOOLS_BENCH_OPERATOR_H

#include "cairn/err.h"

#include <stddef.h>
#include <stdint.h>

/*
 * Asks the agent at socket_path to restore and waits at most limit_s for its answer, whose text is
 * put into text[text_bytes] in every case. CAIRN_PEER, CAIRN_TIMEOUT; CAIRN_LOST when it could not.
 */
CAIRN_MUST_CHECK cairn_err cairn_bench_operator_restore(const char *socket_path, double limit_s,
                                                        uint64_t *rebuilt_bytes, char *text,
                                                        size_t text_bytes);

#endif
