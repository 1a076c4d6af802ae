/*
 * snapshot/reshard_bytes.h - whether pieces share bytes of a container. Internal to reshard.
 */
#ifndef CAIRN_SNAPSHOT_RESHARD_BYTES_H
#define CAIRN_SNAPSHOT_RESHARD_BYTES_H

#include "snapshot/reshard_report.h"

/*
 * Checks that no byte of a container belongs to two pieces of the layout, or twice to one. Else
 * adds to the report and returns CAIRN_CORRUPT; CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_bytes_check_disjoint(const struct cairn_layout *layout,
                                                      struct cairn_report *report);
#endif
