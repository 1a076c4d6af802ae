/*
 * tools/convert/megatron_dist/read.h - the whole of a checkpoint of Megatron-Core, read; for
 * megatron_dist/format.c.
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_DIST_READ_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_DIST_READ_H

#include "tools/convert/megatron_dist/mdist.h"

/* Reads it, once checkpoint, metadata and complaint are set. The errors of `read` in format.h. */
CAIRN_MUST_CHECK cairn_err cairn_mdist_read_all(struct cairn_mdist_reading *reading);

/* Frees what was read into it, the metadata included; also after a failure. */
void cairn_mdist_read_end(struct cairn_mdist_reading *reading);

#endif
