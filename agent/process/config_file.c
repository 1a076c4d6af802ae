/* agent/process/config_file.c - see config_file.h. */
#include "agent/process/config_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

cairn_err
cairn_config_refuse(const struct cairn_config_error *error, uint32_t line, const char *format, ...)
{
    va_list arguments;
    int used;

    used = line ? snprintf(error->text, error->text_bytes, "%s:%u: ", error->source, line)
                : snprintf(error->text, error->text_bytes, "%s: ", error->source);
    if (used < 0 || (size_t)used >= error->text_bytes)
        return CAIRN_CONFIG;
    va_start(arguments, format);
    vsnprintf(error->text + used, error->text_bytes - (size_t)used, format, arguments);
    va_end(arguments);
    return CAIRN_CONFIG;
}

struct cairn_config_error
cairn_config_error_of(const struct cairn_config *config, char *error, size_t error_bytes)
{
    return (struct cairn_config_error){.source =
                                           config->source[0] ? config->source : "configuration",
                                       .text = error,
                                       .text_bytes = error_bytes};
}

cairn_err
cairn_config_open(const struct cairn_config_error *error, uint32_t line, const char *what,
                  const char *path, int *out, struct stat *status)
{
    /* O_NONBLOCK: a named pipe must not hold up the start */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    cairn_err err = CAIRN_OK;

    if (fd < 0) {
        err = errno == ENOENT || errno == ENOTDIR ? CAIRN_NOT_FOUND
              : errno == EACCES || errno == EPERM ? CAIRN_DENIED
                                                  : CAIRN_IO;
        (void)cairn_config_refuse(
            error, line, "%s: cannot open %s: %m; check the path and its permissions", what, path);
    } else if (fstat(fd, status) || !S_ISREG(status->st_mode)) {
        err = CAIRN_IO;
        (void)cairn_config_refuse(error, line, "%s: %s: expected a plain file; name one", what,
                                  path);
    }
    if (err && fd >= 0)
        close(fd);
    if (!err)
        *out = fd;
    return err;
}

cairn_err
cairn_config_read(const struct cairn_config_error *error, uint32_t line, const char *path, int fd,
                  void *bytes, size_t room, size_t *out)
{
    size_t used = 0;

    while (used < room) {
        ssize_t got = read(fd, (char *)bytes + used, room - used);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            (void)cairn_config_refuse(error, line, "%s: cannot read it: %m; look at the disk",
                                      path);
            return CAIRN_IO;
        }
        if (got == 0)
            break;
        used += (size_t)got;
    }
    *out = used;
    return CAIRN_OK;
}
