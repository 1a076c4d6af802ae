/* tools/verdict_view.h - a verdict of the detector, as JSON and for people. */
#ifndef CAIRN_TOOLS_VERDICT_VIEW_H
#define CAIRN_TOOLS_VERDICT_VIEW_H

#include "base/json.h"
#include "replan/detect/verdict.h"

#include <stdbool.h>
#include <stdio.h>

/* An object with the fields of the contract. */
void cairn_verdict_write(struct cairn_json_writer *writer, const struct cairn_verdict *verdict);

/* What a person would do next, as the end of a sentence; nothing here acts by itself. pattern: of
 * structural, else NULL or "". Mentions an exchange only if two kinds of evidence agree. */
const char *cairn_verdict_advice(enum cairn_verdict_kind kind, const char *pattern,
                                 bool two_kinds_agree);

/* " ranks 1, 2, 3" with the first `shown_max` items and the number of the rest; nothing for an
 * empty list. */
void cairn_verdict_print_list(FILE *out, const char *what, const struct cairn_u32_list *list,
                              uint32_t shown_max);

#endif
