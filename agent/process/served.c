/* agent/process/served.c - see served.h. */
#include "agent/process/served.h"

#include "agent/process/listing.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { LOCK_PATH_BYTES = CAIRN_CONFIG_PATH_BYTES_MAX + 8 };

static bool
lock_path_of(const char *socket_path, char path[LOCK_PATH_BYTES])
{
    int len = snprintf(path, LOCK_PATH_BYTES, "%s.lock", socket_path);

    return len > 0 && len < LOCK_PATH_BYTES;
}

/* Writes who serves the socket. A failure is only logged: the agent works without. */
static void
write_who(int fd, const struct cairn_config *config)
{
    char *source = config->source[0] ? realpath(config->source, NULL) : NULL;

    if (ftruncate(fd, 0) != 0 ||
        dprintf(fd, "pid %ld\nnode %" PRIu32 " of %" PRIu32 "\njob %s\nconfig %s\n", (long)getpid(),
                config->node, config->node_count, config->job, source ? source : "") < 0)
        CAIRN_LOG_AT(WARN, "session: cannot write who serves %s to its lock file: %s",
                     config->socket, strerror(errno));
    free(source);
}

cairn_err
cairn_served_claim(const struct cairn_config *config, int *lock_fd)
{
    char path[LOCK_PATH_BYTES];
    int fd = lock_path_of(config->socket, path)
                 ? open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)
                 : -1;

    if (fd < 0) {
        CAIRN_LOG_AT(ERROR, "session: cannot make %s: %s; check that its folder exists and is ours",
                     path, strerror(errno));
        return CAIRN_IO;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        CAIRN_LOG_AT(ERROR,
                     "session: another agent serves %s; stop it, or set `socket` to another path",
                     config->socket);
        close(fd);
        return CAIRN_AGAIN;
    }
    /* For readers: they can query this lock without taking it, so that they never block a start. */
    if (fcntl(fd, F_OFD_SETLK, &(struct flock){.l_type = F_WRLCK}) != 0)
        CAIRN_LOG_AT(WARN, "session: %s cannot be locked for readers: %s", path, strerror(errno));
    write_who(fd, config);
    cairn_listing_add(config->socket);
    *lock_fd = fd;
    return CAIRN_OK;
}

void
cairn_served_release(const struct cairn_config *config, int lock_fd)
{
    if (lock_fd < 0)
        return;
    cairn_listing_remove(config->socket); /* first: the next agent of this socket adds its own */
    close(lock_fd);
}

bool
cairn_served_look(const char *socket_path, struct cairn_served *out)
{
    char path[LOCK_PATH_BYTES], line[CAIRN_CONFIG_PATH_BYTES_MAX + 16];
    struct flock lock = {.l_type = F_WRLCK};
    struct cairn_served served = {0};
    FILE *file;

    if (!lock_path_of(socket_path, path))
        return false;
    file = fopen(path, "re");
    if (!file)
        return false;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "config ", 7) == 0)
            snprintf(served.config, sizeof served.config, "%.*s", CAIRN_CONFIG_PATH_BYTES_MAX - 1,
                     line + 7);
        else if (strncmp(line, "job ", 4) == 0)
            snprintf(served.job, sizeof served.job, "%.*s", CAIRN_CONFIG_JOB_BYTES_MAX - 1,
                     line + 4);
        else if (sscanf(line, "pid %" SCNu32, &served.pid) != 1)
            (void)sscanf(line, "node %" SCNu32 " of %" SCNu32, &served.node, &served.node_count);
    }
    served.lives = fcntl(fileno(file), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    fclose(file);
    *out = served;
    return true;
}
