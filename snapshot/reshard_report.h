/*
 * snapshot/reshard_report.h - the text that names wrong tensors and the reasons.
 *
 * The first few findings are spelt out, separated by "; ", the rest is counted. Internal to layout
 * and reshard.
 */
#ifndef CAIRN_SNAPSHOT_RESHARD_REPORT_H
#define CAIRN_SNAPSHOT_RESHARD_REPORT_H

#include "snapshot/reshard_boxes.h"

struct cairn_report {
    char *text; /* the caller's; NULL: only counts */
    size_t text_bytes;
    size_t used_bytes;
    uint64_t finding_count;
};

void cairn_report_init(struct cairn_report *report, char *text, size_t text_bytes);
/* Adds a finding. */
void cairn_report_add(struct cairn_report *report, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Says how many findings were not spelt out. */
void cairn_report_finish(struct cairn_report *report);

enum { CAIRN_BOX_TEXT_BYTES = CAIRN_DIMS_MAX * 44 };
/* Writes a box as "[0:4, 8:16]" into text[CAIRN_BOX_TEXT_BYTES] and returns text. */
const char *cairn_box_text(const struct cairn_box *box, uint32_t dims, char *text);
#endif
