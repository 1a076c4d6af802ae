/*
 * tools/embedded.c - starts an agent with the embedded default.
 *
 * Its files are in a private directory, $XDG_RUNTIME_DIR/cairn or /tmp/cairn-UID (mode 0700, ours,
 * not a link), under a name made from the socket's path: NAME.yaml is the configuration, NAME.log
 * the log, NAME.lock is held while the agent starts, NAME/ is its state.
 *
 * Files of `cairn run --grace` must survive a reboot, and these places often do not: they go to
 * NAME/ in $XDG_STATE_HOME/cairn or $HOME/.local/state/cairn. Nothing else is written there,
 * because a home may be small.
 */
#include "tools/embedded.h"

#include "agent/process/config.h"
#include "base/clock.h"
#include "base/crc.h"
#include "tools/ask.h"
#include "tools/common.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { START_SECONDS = 30, POLL_MS = 50, HELLO_MS = 2000 };

/* Makes the private directory. Refuses one that another user could have made. */
static bool
private_directory(char *path, size_t path_bytes)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat status;
    int len;

    if (runtime && runtime[0] == '/')
        len = snprintf(path, path_bytes, "%s/cairn", runtime);
    else
        len = snprintf(path, path_bytes, "/tmp/cairn-%u", geteuid());
    if (len < 0 || (size_t)len >= path_bytes) {
        fprintf(stderr, "cairn run: $XDG_RUNTIME_DIR: the path is too long; set a shorter one\n");
        return false;
    }
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        fprintf(stderr,
                "cairn run: %s: cannot make this directory: %s; set $XDG_RUNTIME_DIR to one of "
                "yours\n",
                path, strerror(errno));
        return false;
    }
    if (lstat(path, &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid() ||
        (status.st_mode & 077)) {
        fprintf(stderr,
                "cairn run: %s: expected a directory of yours with mode 0700; remove it, or set "
                "$XDG_RUNTIME_DIR\n",
                path);
        return false;
    }
    return true;
}

bool
cairn_embedded_socket(char *path, size_t path_bytes)
{
    char directory[CAIRN_EMBEDDED_PATH_BYTES];
    int len;

    if (!private_directory(directory, sizeof directory))
        return false;
    len = snprintf(path, path_bytes, "%s/agent.sock", directory);
    return len > 0 && (size_t)len < path_bytes;
}

/* The common beginning of the paths of a socket's agent. */
static void
base_of(const char *directory, const char *socket_path, char base[CAIRN_EMBEDDED_PATH_BYTES])
{
    snprintf(base, CAIRN_EMBEDDED_PATH_BYTES, "%.*s/agent-%016" PRIx64,
             CAIRN_EMBEDDED_PATH_BYTES - 64, directory,
             cairn_crc64(0, socket_path, strlen(socket_path)));
}

bool
cairn_embedded_is(const char *socket_path, const char *config_path)
{
    char directory[CAIRN_EMBEDDED_PATH_BYTES - 64], base[CAIRN_EMBEDDED_PATH_BYTES],
        path[CAIRN_EMBEDDED_PATH_BYTES + 64];
    struct stat ours, theirs;

    if (!private_directory(directory, sizeof directory))
        return false;
    base_of(directory, socket_path, base);
    snprintf(path, sizeof path, "%s.yaml", base);
    return stat(path, &ours) == 0 && stat(config_path, &theirs) == 0 &&
           ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

/* The pid in the lock file of the agent's keeper, 0 without one. */
static uint32_t
keeper_pid(const char *base)
{
    char path[CAIRN_EMBEDDED_PATH_BYTES + 64];
    uint32_t pid = 0;
    FILE *file;

    snprintf(path, sizeof path, "%s/keeper.sock.lock", base);
    file = fopen(path, "re");
    if (file && fscanf(file, "pid %" SCNu32, &pid) != 1)
        pid = 0;
    if (file)
        fclose(file);
    return pid;
}

/* True for text that needs no escape between double quotes in YAML. */
static bool
is_plain(const char *text)
{
    for (; *text; text++)
        if (*text == '"' || *text == '\\' || (unsigned char)*text < 0x20)
            return false;
    return true;
}

/* Makes the folders above a local_dir and writes its path; "" without a home. */
static void
local_directory(const char *base, char *path, size_t path_bytes)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    const char *name = strrchr(base, '/') + 1;
    bool has_state = state && state[0] == '/';
    int len;

    path[0] = '\0';
    if (!has_state && (!home || home[0] != '/'))
        return;
    len = snprintf(path, path_bytes, "%s%s/cairn/%s", has_state ? state : home,
                   has_state ? "" : "/.local/state", name);
    if (len < 0 || (size_t)len >= path_bytes || !is_plain(path)) {
        path[0] = '\0';
        return;
    }
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0700) != 0 && errno != EEXIST && errno != EROFS && errno != EACCES) {
            path[0] = '\0';
            return;
        }
        *slash = '/';
    }
}

static cairn_err
write_config(const struct cairn_embedded *embedded, const char *socket_path, const char *base)
{
    char path[CAIRN_EMBEDDED_PATH_BYTES + 64], error[CAIRN_CONFIG_ERROR_BYTES];
    char local_dir[CAIRN_CONFIG_PATH_BYTES_MAX];
    struct cairn_config config;
    uint16_t port = cairn_free_port();
    cairn_err err;
    FILE *file;
    bool written;
    int fd;

    if (!port || !is_plain(embedded->job) || !is_plain(socket_path)) {
        fprintf(stderr, "cairn run: cannot start an agent: %s\n",
                port ? "the job's name or the socket's path has quotes or control characters; "
                       "rename it"
                     : "no port of 127.0.0.1 is free");
        return CAIRN_INVAL;
    }
    snprintf(path, sizeof path, "%s.yaml", base);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file) {
        fprintf(stderr, "cairn run: %s: cannot write it: %s\n", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return CAIRN_IO;
    }
    fprintf(file,
            "# Made by `cairn run`: one node, without parity.\njob: \"%s\"\nnode: 0\nnodes:\n"
            "  - address: \"127.0.0.1:%u\"\nsocket: \"%s\"\ndir: \"%s\"\nparity: 0\nkeeper: true\n",
            embedded->job, port, socket_path, base);
    local_directory(base, local_dir, sizeof local_dir);
    if (local_dir[0]) /* for --grace alone */
        fprintf(file, "local_dir: \"%s\"\nlocal_after_ms: 0\nlocal_keep: 1\n", local_dir);
    if (embedded->every)
        fprintf(file, "snapshot_every_steps: %s\n", embedded->every);
    if (embedded->state)
        fprintf(file, "state_bytes: %s\n", embedded->state);
    written = !ferror(file);
    written &= fclose(file) == 0;
    if (!written) {
        fprintf(stderr, "cairn run: %s: cannot write all of it; make room on the disk\n", path);
        return CAIRN_IO;
    }
    err = cairn_config_load(path, &config, error, sizeof error);
    if (err)
        fprintf(stderr, "cairn run: %s\n", error);
    else
        cairn_config_fini(&config);
    return err;
}

/* In the child: becomes the agent. */
static _Noreturn void
become_agent(const char *executable, const char *base)
{
    char config[CAIRN_EMBEDDED_PATH_BYTES + 64], log[CAIRN_EMBEDDED_PATH_BYTES + 64];
    sigset_t none;
    int null_fd, log_fd;

    snprintf(config, sizeof config, "%s.yaml", base);
    snprintf(log, sizeof log, "%s.log", base);
    null_fd = open("/dev/null", O_RDONLY);
    log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    if (setsid() < 0 || null_fd < 0 || log_fd < 0 || dup2(null_fd, 0) < 0 || dup2(log_fd, 1) < 0 ||
        dup2(log_fd, 2) < 0)
        _exit(1);
    if (null_fd > 2)
        close(null_fd);
    if (log_fd > 2)
        close(log_fd);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execl(executable, executable, "agent", "--config", config, (char *)NULL);
    _exit(127);
}

static cairn_err
await_agent(pid_t child, const char *socket_path, const char *base)
{
    const struct timespec pause = {.tv_nsec = POLL_MS * (long)CAIRN_NS_PER_MS};

    for (uint32_t waited_ms = 0; waited_ms < START_SECONDS * 1000; waited_ms += POLL_MS) {
        int status;

        if (cairn_agent_answers(socket_path, HELLO_MS))
            return CAIRN_OK;
        if (waitpid(child, &status, WNOHANG) == child) {
            fprintf(stderr,
                    "cairn run: the new agent ended at once with exit code %d; read %s.log\n",
                    WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), base);
            return CAIRN_PEER;
        }
        nanosleep(&pause, NULL);
    }
    fprintf(stderr, "cairn run: the new agent did not answer within %d s; read %s.log\n",
            START_SECONDS, base);
    return CAIRN_TIMEOUT;
}

cairn_err
cairn_embedded_start(const struct cairn_embedded *embedded, const char *socket_path,
                     struct cairn_embedded_started *started)
{
    char directory[CAIRN_EMBEDDED_PATH_BYTES - 64], base[CAIRN_EMBEDDED_PATH_BYTES];
    char executable[CAIRN_CONFIG_PATH_BYTES_MAX], lock_path[CAIRN_EMBEDDED_PATH_BYTES + 64];
    cairn_err err;
    pid_t child;
    int lock_fd;

    if (!private_directory(directory, sizeof directory) ||
        !cairn_own_path(executable, sizeof executable))
        return CAIRN_DENIED;
    base_of(directory, socket_path, base);
    snprintf(lock_path, sizeof lock_path, "%s.lock", base);
    lock_fd = open(lock_path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock_fd < 0 || flock(lock_fd, LOCK_EX) != 0) {
        fprintf(stderr, "cairn run: %s: cannot lock it: %s\n", lock_path, strerror(errno));
        err = CAIRN_IO;
        goto done;
    }
    err = CAIRN_OK;
    if (cairn_agent_answers(socket_path, HELLO_MS)) /* another one that started was faster */
        goto done;
    err = write_config(embedded, socket_path, base);
    if (err)
        goto done;
    fflush(NULL);
    child = fork();
    if (child == 0)
        become_agent(executable, base);
    if (child < 0) {
        fprintf(stderr, "cairn run: cannot start a process for the agent: %s\n", strerror(errno));
        err = CAIRN_AGAIN;
        goto done;
    }
    err = await_agent(child, socket_path, base);
    if (!err)
        *started = (struct cairn_embedded_started){.agent_pid = (uint32_t)child,
                                                   .keeper_pid = keeper_pid(base)};
done:
    if (lock_fd >= 0)
        close(lock_fd);
    return err;
}
