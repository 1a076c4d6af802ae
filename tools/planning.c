/* tools/planning.c - files and time limits of the planner's verbs. */
#include "tools/planning.h"

#include "base/clock.h"
#include "tools/common.h"
#include "tools/verb.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 65536, FILE_BYTES_MAX = 64 * 1024 * 1024, LIMIT_MS_MAX = 3600000 };

static bool
fail(const char *verb, const char *path, const char *why, const char *fix, int code, int *exit_code)
{
    cairn_tool_error(verb, path, why, fix);
    *exit_code = code;
    return false;
}

bool
cairn_planning_load(const char *verb, const char *path, uint8_t **text, size_t *text_bytes,
                    int *exit_code)
{
    FILE *file = fopen(path, "re");
    size_t used = 0, room = 0;
    uint8_t *bytes = NULL;
    int read_errno = errno;

    while (file && !feof(file) && !ferror(file) && used <= FILE_BYTES_MAX) {
        if (room - used < READ_BYTES) {
            uint8_t *grown = realloc(bytes, 2 * room + READ_BYTES);

            if (!grown)
                break;
            room = 2 * room + READ_BYTES;
            bytes = grown;
        }
        used += fread(bytes + used, 1, room - used, file);
        read_errno = errno;
    }
    if (file && feof(file) && !ferror(file) && used <= FILE_BYTES_MAX) {
        (void)fclose(file);
        *text = bytes;
        *text_bytes = used;
        return true;
    }
    free(bytes);
    if (!file)
        return fail(verb, path, strerror(read_errno), "name a file that can be read",
                    read_errno == EACCES ? CAIRN_EXIT_DENIED : CAIRN_EXIT_INPUT, exit_code);
    if (used > FILE_BYTES_MAX) {
        (void)fclose(file);
        return fail(verb, path, "it is larger than 64 MiB",
                    "a problem of 65536 devices takes 6 MiB", CAIRN_EXIT_INPUT, exit_code);
    }
    read_errno = ferror(file) ? read_errno : ENOMEM;
    (void)fclose(file);
    return fail(verb, path, strerror(read_errno),
                read_errno == EISDIR ? "name a file that can be read" : NULL,
                read_errno == EISDIR ? CAIRN_EXIT_INPUT : CAIRN_EXIT_IO, exit_code);
}

bool
cairn_planning_problem(const char *verb, const char *path, struct cairn_problem *out,
                       int *exit_code)
{
    struct cairn_fault fault = {""};
    uint8_t *text = NULL;
    size_t text_bytes = 0;
    cairn_err err;

    if (!cairn_planning_load(verb, path, &text, &text_bytes, exit_code))
        return false;
    err = cairn_problem_read(text, text_bytes, out, &fault);
    free(text);
    if (!err)
        return true;
    return fail(verb, path, err == CAIRN_CORRUPT ? fault.text : cairn_err_text(err),
                err == CAIRN_CORRUPT ? "docs/PLANNER.md has the format" : NULL,
                cairn_exit_code(err), exit_code);
}

bool
cairn_deadline_parse(const char *text, struct cairn_deadline *out)
{
    char *end;
    unsigned long limit_ms;

    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    limit_ms = strtoul(text, &end, 10);
    if (*end != '\0' || errno != 0 || limit_ms < 1 || limit_ms > LIMIT_MS_MAX)
        return false;
    out->started_ns = cairn_clock_thread_cpu_ns();
    out->limit_ns = limit_ms * CAIRN_NS_PER_MS;
    return true;
}

bool
cairn_deadline_over(void *deadline)
{
    const struct cairn_deadline *own = deadline;

    return cairn_clock_thread_cpu_ns() - own->started_ns >= own->limit_ns;
}

double
cairn_deadline_elapsed_ms(const struct cairn_deadline *deadline)
{
    return (double)(cairn_clock_thread_cpu_ns() - deadline->started_ns) / (double)CAIRN_NS_PER_MS;
}
