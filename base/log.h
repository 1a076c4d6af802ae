/*
 * base/log.h - log lines of the form "subsystem: verb key=value …".
 *
 * The default sink prints them as text, or as JSON objects (log_json.h).
 *
 * error: an operator must act; warn: handled but degraded; info: state changes, a handful per save;
 * debug: off by default. The sink is set once per process, before threads start. Preserves errno.
 * A line is cut at 1023 bytes, and control characters in it become "?".
 */
#ifndef CAIRN_BASE_LOG_H
#define CAIRN_BASE_LOG_H

#include "cairn/client.h" /* levels and the sink's type */

#include <stdbool.h>

/* Sets the sink and the most verbose level kept. sink NULL: stderr with a UTC time. */
void cairn_log_setup(enum cairn_log_level level, cairn_log_fn *sink, void *context);

/* Changes the level alone. Thread: any. */
void cairn_log_level(enum cairn_log_level level);

enum cairn_log_format { CAIRN_LOG_TEXT, CAIRN_LOG_JSON };

/* Changes what the default sink prints; text at first. Thread: any. */
void cairn_log_format(enum cairn_log_format format);

/* Whether the default sink prints JSON. Thread: any. */
bool cairn_log_is_json(void);

/* The tag before each line of the default sink, such as "node 3". Copied, 31 bytes at most. */
void cairn_log_tag(const char *tag);

void cairn_log_line(enum cairn_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define CAIRN_LOG_AT(level, ...) cairn_log_line(CAIRN_LOG_##level, __VA_ARGS__)

#endif
