/*
 * agent/process/config_file.h - opens and reads the files of a configuration, and writes the texts
 * of their errors.
 */
#ifndef CAIRN_AGENT_PROCESS_CONFIG_FILE_H
#define CAIRN_AGENT_PROCESS_CONFIG_FILE_H

#include "agent/process/config.h"

#include <sys/stat.h>

/* Where an error's text goes. */
struct cairn_config_error {
    const char *source; /* the configuration's file */
    char *text;
    size_t text_bytes;
};

struct cairn_config_error cairn_config_error_of(const struct cairn_config *config, char *text,
                                                size_t text_bytes);

/* Writes "file:line: …", without the line if it is 0. Returns CAIRN_CONFIG. */
cairn_err cairn_config_refuse(const struct cairn_config_error *error, uint32_t line,
                              const char *format, ...) __attribute__((format(printf, 3, 4)));

/*
 * Opens a plain file; `what` names it in an error. Follows symbolic links: a mounted ConfigMap or
 * Secret consists of them. CAIRN_NOT_FOUND, CAIRN_DENIED, CAIRN_IO. The caller closes *out.
 */
CAIRN_MUST_CHECK cairn_err cairn_config_open(const struct cairn_config_error *error, uint32_t line,
                                             const char *what, const char *path, int *out,
                                             struct stat *status);

/* Reads up to `room` bytes. CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_config_read(const struct cairn_config_error *error, uint32_t line,
                                             const char *path, int fd, void *bytes, size_t room,
                                             size_t *out);

#endif
