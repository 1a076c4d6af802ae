/* tests/support/kept_lines.h - sinks for cairn_log_setup that keep what is logged. */
#ifndef CAIRN_TESTS_KEPT_LINES_H
#define CAIRN_TESTS_KEPT_LINES_H

#include "base/log.h"

#include <stdio.h>
#include <string.h>

static char lines[4096]; /* "<level> <line>\n", one behind the other */
static char last_line[1024];

__attribute__((unused)) static void
keep_line(void *context, enum cairn_log_level level, const char *line)
{
    size_t used = strlen(lines);

    (void)snprintf(lines + used, sizeof(lines) - used, "%d %s\n", (int)level, line);
    (void)snprintf(last_line, sizeof(last_line), "%s", line);
}

#endif
