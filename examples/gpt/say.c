/*
 * examples/gpt/say.c - lines on stderr, each in one write so that the ranks' lines do not mix.
 */
#include "say.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char prefix[24] = "gpt: "; /* until the rank is known */

void
gpt_say_as(uint32_t rank)
{
    (void)snprintf(prefix, sizeof prefix, "gpt[%u]: ", rank);
}

void
gpt_say(const char *format, ...)
{
    char line[1024];
    va_list arguments;
    size_t length = strlen(prefix);
    ssize_t written;
    int body;

    memcpy(line, prefix, length);
    va_start(arguments, format);
    body = vsnprintf(line + length, sizeof line - length - 1, format, arguments);
    va_end(arguments);
    if (body > 0)
        length += (size_t)body;
    if (length > sizeof line - 2)
        length = sizeof line - 2; /* cut, like the text */
    line[length++] = '\n';
    written = write(STDERR_FILENO, line, length);
    (void)written; /* nowhere else to say it */
}
