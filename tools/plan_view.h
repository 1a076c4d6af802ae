/* tools/plan_view.h - a plan as a picture: for the terminal, and as SVG. */
#ifndef CAIRN_TOOLS_PLAN_VIEW_H
#define CAIRN_TOOLS_PLAN_VIEW_H

#include "replan/search/answer.h"

#include <stdio.h>

/* Each stage as a bar as long as its time for one micro-batch, with its layers, devices, and slow
 * devices; unused devices; and where the time of the longest pipeline goes. */
void cairn_plan_explain(const struct cairn_problem *problem, const struct cairn_answer_plan *answer,
                        FILE *out);

/* The same bars as a drawing. CAIRN_IO, with errno, if the file could not be written whole. */
CAIRN_MUST_CHECK cairn_err cairn_plan_draw(const struct cairn_problem *problem,
                                           const struct cairn_answer_plan *answer,
                                           const char *path);

#endif
