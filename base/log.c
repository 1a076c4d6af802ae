/* base/log.c - one line per event to the sink, stderr by default; and failed assertions. */
#include "base/log.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log_json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 1024 };

static struct {
    _Atomic(enum cairn_log_level) level;
    _Atomic(enum cairn_log_format) format;
    cairn_log_fn *sink;
    void *context;
    char tag[32];
} setup = {.level = CAIRN_LOG_INFO};

void
cairn_log_setup(enum cairn_log_level level, cairn_log_fn *sink, void *context)
{
    setup.level = level;
    setup.sink = sink;
    setup.context = context;
}

void
cairn_log_level(enum cairn_log_level level)
{
    setup.level = level;
}

void
cairn_log_tag(const char *tag)
{
    snprintf(setup.tag, sizeof setup.tag, "%s", tag);
}

void
cairn_log_format(enum cairn_log_format format)
{
    setup.format = format;
}

bool
cairn_log_is_json(void)
{
    return setup.format == CAIRN_LOG_JSON && !setup.sink;
}

static void
print_stderr(enum cairn_log_level level, const char *line, const char *format, va_list arguments)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    struct cairn_clock clock = cairn_clock_system();
    int error = errno; /* a format's %m */
    char time[CAIRN_CLOCK_TEXT_BYTES], object[CAIRN_LOG_JSON_BYTES];
    const struct cairn_log_json json = {time, names[level], setup.tag, line};

    cairn_clock_format(cairn_clock_wall_ns(&clock), time, sizeof time);
    if (cairn_log_is_json()) {
        errno = error;
        cairn_log_json_write(&json, format, arguments, object);
        fprintf(stderr, "%s\n", object);
    } else {
        fprintf(stderr, "%s %-5s %s%s%s\n", time, names[level], setup.tag, setup.tag[0] ? ": " : "",
                line);
    }
}

void
cairn_log_line(enum cairn_log_level level, const char *format, ...)
{
    int saved_errno = errno;
    char line[LINE_BYTES];
    va_list arguments;

    if (level > setup.level)
        return;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    /* Names come from files and peers: none of them may start a line of its own. */
    for (char *at = line; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            *at = '?';
    va_start(arguments, format);
    errno = saved_errno; /* %m is a field too */
    if (setup.sink)
        setup.sink(setup.context, level, line);
    else
        print_stderr(level, line, format, arguments);
    va_end(arguments);
    errno = saved_errno;
}

_Noreturn void
cairn_assert_failed(const char *condition, const char *file, int line)
{
    if (cairn_log_is_json())
        CAIRN_LOG_AT(ERROR, "cairn: internal error condition=%s file=%s line=%d; please report it",
                     condition, file, line);
    else
        fprintf(stderr, "cairn: internal error: %s does not hold (%s:%d). Please report it.\n",
                condition, file, line);
    abort();
}
