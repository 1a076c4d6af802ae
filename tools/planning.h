/* tools/planning.h - shared by the planner's verbs: reading their files, and a time limit. */
#ifndef CAIRN_TOOLS_PLANNING_H
#define CAIRN_TOOLS_PLANNING_H

#include "base/json.h"
#include "replan/search/pipelines.h"
#include "replan/fleet/plan.h"
#include "tools/usage.h"

/* Reads a whole file; the caller frees *text. On failure false, with a message and *exit_code. */
bool cairn_planning_load(const char *verb, const char *path, uint8_t **text, size_t *text_bytes,
                         int *exit_code);

/* Reads a problem; the caller ends *out. On failure false, with a message. */
bool cairn_planning_problem(const char *verb, const char *path, struct cairn_problem *out,
                            int *exit_code);

/* A deadline on the calling thread's processor time, which other programs do not use up. */
struct cairn_deadline {
    uint64_t started_ns;
    uint64_t limit_ns;
};
/* "1000" milliseconds of work from now; false for all but whole numbers from 1 to 3,600,000. */
bool cairn_deadline_parse(const char *text, struct cairn_deadline *out);
bool cairn_deadline_over(void *deadline); /* as cairn_stop asks */
double cairn_deadline_elapsed_ms(const struct cairn_deadline *deadline);

#endif
