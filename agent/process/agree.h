/*
 * agent/process/agree.h - the options that all agents of a job must set alike. Pure.
 *
 * When a session begins both sides send theirs as lines "name=value". A name that begins with '!'
 * must agree: groups, parity and memory are computed from it, so agents that differ could protect
 * nothing together, and the session is refused. Other names should agree. Names that one side does
 * not know are ignored.
 */
#ifndef CAIRN_AGENT_PROCESS_AGREE_H
#define CAIRN_AGENT_PROCESS_AGREE_H

#include "agent/process/config.h"

#include <stddef.h>

enum { AGREE_BYTES_MAX = 480, AGREE_TEXT_BYTES = 160 };

enum agreement { AGREE_SAME = 0, AGREE_DIFFERENT, AGREE_REFUSED };

/* Packs the options into out[AGREE_BYTES_MAX], ended by NUL; returns their length. */
size_t agree_pack(const struct cairn_config *config, char out[AGREE_BYTES_MAX]);

/*
 * Compares with what node `peer` has sent, bytes[len]. Unless all are the same, text names an
 * option that differs, with both values, preferably one that must agree.
 */
enum agreement agree_compare(const struct cairn_config *config, uint32_t peer, const char *bytes,
                             size_t len, char text[AGREE_TEXT_BYTES]);

#endif
