/*
 * agent/service/problem_file.h - the problem that `problem` in the configuration names, read at the
 * start.
 */
#ifndef CAIRN_AGENT_SERVICE_PROBLEM_FILE_H
#define CAIRN_AGENT_SERVICE_PROBLEM_FILE_H

#include "agent/process/config.h"
#include "replan/advise/adviser.h"

/*
 * Reads it and makes an adviser, which the caller ends; *out is NULL if the configuration names
 * none. CAIRN_CONFIG with the text in error[error_bytes]: unreadable, malformed, or without a plan
 * for its devices. CAIRN_NOMEM. Blocks on the disk.
 */
CAIRN_MUST_CHECK cairn_err cairn_problem_file_load(const struct cairn_config *config,
                                                   struct cairn_adviser **out, char *error,
                                                   size_t error_bytes);

#endif
