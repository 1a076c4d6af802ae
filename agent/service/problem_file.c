/* agent/service/problem_file.c - reads the problem that the configuration names. */
#include "agent/service/problem_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 64 << 20 }; /* 65,536 devices take 6 MiB */

static cairn_err
refuse(const struct cairn_config *config, const char *why, char *error, size_t error_bytes)
{
    (void)snprintf(
        error, error_bytes,
        "%s:%u: problem: %s: %s; fix the file (docs/PLANNER.md has the format) or omit `problem`",
        config->source[0] ? config->source : "configuration", cairn_config_line(config, "problem"),
        config->problem, why);
    return CAIRN_CONFIG;
}

/* Reads a plain file whole; on failure *why has the reason. */
static cairn_err
read_whole(const char *path, char **out, size_t *out_bytes, const char **why)
{
    /* O_NONBLOCK: a named pipe must not hold up the start */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat status = {0};
    char *bytes = NULL;
    size_t used = 0;

    *why = NULL;
    if (fd < 0 || fstat(fd, &status) != 0)
        *why = strerror(errno);
    else if (!S_ISREG(status.st_mode))
        *why = "expected a plain file";
    else if (status.st_size > FILE_BYTES_MAX)
        *why = "it is larger than 64 MiB";
    else if (!(bytes = malloc((size_t)status.st_size + 1)))
        *why = "out of memory";
    while (!*why && used < (size_t)status.st_size) {
        ssize_t got = read(fd, bytes + used, (size_t)status.st_size - used);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            *why = strerror(errno);
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    if (fd >= 0)
        close(fd);
    if (*why) {
        free(bytes);
        return CAIRN_CONFIG;
    }
    *out = bytes;
    *out_bytes = used;
    return CAIRN_OK;
}

cairn_err
cairn_problem_file_load(const struct cairn_config *config, struct cairn_adviser **out, char *error,
                        size_t error_bytes)
{
    struct cairn_problem problem = {0};
    struct cairn_fault fault = {""};
    size_t text_bytes = 0;
    const char *why = NULL;
    char *text = NULL;
    cairn_err err;

    *out = NULL;
    if (!config->problem[0])
        return CAIRN_OK;
    err = read_whole(config->problem, &text, &text_bytes, &why);
    if (err)
        return refuse(config, why, error, error_bytes);
    err = cairn_problem_read(text, text_bytes, &problem, &fault);
    free(text);
    if (!err)
        err = cairn_adviser_create(&problem, out, &fault);
    cairn_problem_fini(&problem);
    if (err == CAIRN_NOMEM) {
        (void)snprintf(error, error_bytes, "problem %s: out of memory", config->problem);
        return err;
    }
    return err ? refuse(config, fault.text, error, error_bytes) : CAIRN_OK;
}
