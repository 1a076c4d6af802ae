/* tests/support/client_lines.h - keeps the lines that clients log, from any of their threads. */
#ifndef CAIRN_TESTS_CLIENT_LINES_H
#define CAIRN_TESTS_CLIENT_LINES_H

#include "cairn/client.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct lines {
    pthread_mutex_t lock;
    char text[16384];    /* all but debug */
    char warnings[8192]; /* warnings and errors alone */
    int warning_count;
};

static struct lines lines = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* For options.log. */
static inline void
note_line(void *context, enum cairn_log_level level, const char *line)
{
    size_t used;

    if (level == CAIRN_LOG_DEBUG)
        return;
    pthread_mutex_lock(&lines.lock);
    used = strlen(lines.text);
    snprintf(lines.text + used, sizeof lines.text - used, "%s\n", line);
    if (level <= CAIRN_LOG_WARN) {
        used = strlen(lines.warnings);
        snprintf(lines.warnings + used, sizeof lines.warnings - used, "%s\n", line);
        lines.warning_count++;
    }
    pthread_mutex_unlock(&lines.lock);
}

static inline void
forget_lines(void)
{
    pthread_mutex_lock(&lines.lock);
    lines.text[0] = lines.warnings[0] = '\0';
    lines.warning_count = 0;
    pthread_mutex_unlock(&lines.lock);
}

/* How often a text, which is not empty, is in lines.text or lines.warnings. */
static inline int
count_in(const char *kept, const char *part)
{
    int count = 0;

    pthread_mutex_lock(&lines.lock);
    for (const char *at = kept; (at = strstr(at, part)) != NULL; at++)
        count++;
    pthread_mutex_unlock(&lines.lock);
    return count;
}

#endif
