/* agent/service/command.c - the operator's command as a process; see command.h. */
#include "agent/service/command.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOOK_MS = 100, READS_MAX = 64, READ_BYTES = 4096 };
/* what does not end then is not waited for */
static const uint64_t killed_within_ns = 5 * CAIRN_NS_PER_S;

extern char **environ;

cairn_err
cairn_command_check(const struct cairn_config *config, char *error, size_t error_bytes)
{
    const char *program = config->enforce_command.text, *why = NULL;
    struct stat status;

    if (config->enforce_command.count == 0)
        return CAIRN_OK;
    if (stat(program, &status) != 0)
        why = strerror(errno);
    else if (!S_ISREG(status.st_mode))
        why = "expected a plain file";
    else if (faccessat(AT_FDCWD, program, X_OK, AT_EACCESS) != 0)
        why = "the agent's user may not execute it";
    if (!why)
        return CAIRN_OK;
    (void)snprintf(error, error_bytes,
                   "%s:%u: enforce_command: %s: %s; name a program that is on every node and can "
                   "be executed there, or set verdict_policy to advise",
                   config->source[0] ? config->source : "configuration",
                   cairn_config_line(config, "enforce_command"), program, why);
    return CAIRN_CONFIG;
}

/* ---- the start ---- */

/* A descriptor that is read from its begin; -1 with errno. */
static int
make_input(const char *bytes, size_t bytes_len)
{
    int fd = memfd_create("cairn-verdict", MFD_CLOEXEC);
    size_t put = 0;

    while (fd >= 0 && put < bytes_len) {
        ssize_t now = pwrite(fd, bytes + put, bytes_len - put, (off_t)put);

        if (now < 0 && errno == EINTR)
            continue;
        if (now <= 0) {
            close(fd);
            return -1;
        }
        put += (size_t)now;
    }
    return fd;
}

static bool
sets_same_name(const char *const *settings, const char *variable)
{
    for (; *settings; settings++) {
        size_t name_len = strcspn(*settings, "=") + 1;

        if (strncmp(*settings, variable, name_len) == 0)
            return true;
    }
    return false;
}

/* The settings, and this process's other environment; the caller frees the array, not the strings.
 * NULL without memory. */
static char **
make_environment(const char *const *settings)
{
    size_t count = 1, used = 0;
    char **all;

    for (size_t i = 0; settings[i]; i++)
        count++;
    for (size_t i = 0; environ && environ[i]; i++)
        count++;
    all = calloc(count, sizeof *all);
    for (size_t i = 0; all && settings[i]; i++)
        all[used++] = (char *)settings[i];
    for (size_t i = 0; all && environ && environ[i]; i++)
        if (!sets_same_name(settings, environ[i]))
            all[used++] = environ[i];
    return all;
}

/* 0 or an errno. */
static int
spawn(const struct cairn_command *command, char *const *arguments, char *const *environment,
      int input_fd, int output_fd, pid_t *out)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    int failed = posix_spawn_file_actions_init(&actions);

    if (failed)
        return failed;
    failed = posix_spawnattr_init(&attributes);
    if (failed) {
        posix_spawn_file_actions_destroy(&actions);
        return failed;
    }
    sigemptyset(&none);
    sigfillset(&all);
    failed = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                                       POSIX_SPAWN_SETSIGDEF);
    if (!failed)
        failed = posix_spawnattr_setsigmask(&attributes, &none);
    if (!failed)
        failed = posix_spawnattr_setsigdefault(&attributes, &all);
    if (!failed)
        failed = posix_spawn_file_actions_adddup2(&actions, input_fd, 0);
    if (!failed)
        failed = posix_spawn_file_actions_adddup2(&actions, output_fd, 1);
    if (!failed)
        failed = posix_spawn_file_actions_adddup2(&actions, output_fd, 2);
    if (!failed)
        failed = posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    if (!failed)
        failed =
            posix_spawn(out, command->what->text, &actions, &attributes, arguments, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return failed;
}

/* ---- until its end ---- */

/* Reads pending output; drops what does not fit. The descriptor is -1 afterwards if no more
 * comes. */
static void
take_output(struct cairn_command *command, int *fd)
{
    char bytes[READ_BYTES];

    for (int i = 0; *fd >= 0 && i < READS_MAX; i++) { /* bounded: it may write without end */
        ssize_t got = read(*fd, bytes, sizeof bytes);
        size_t room = CAIRN_COMMAND_OUTPUT_BYTES - command->output_bytes, take;

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return;
        if (got <= 0) {
            close(*fd);
            *fd = -1;
            return;
        }
        take = (size_t)got < room ? (size_t)got : room;
        memcpy(command->output + command->output_bytes, bytes, take);
        command->output_bytes += take;
        command->is_cut |= take < (size_t)got;
    }
}

static void
take_status(struct cairn_command *command, int status)
{
    if (WIFEXITED(status)) {
        command->end = CAIRN_ENFORCEMENT_EXITED;
        command->value = (uint32_t)WEXITSTATUS(status);
    } else {
        command->end = CAIRN_ENFORCEMENT_SIGNALLED;
        command->value = (uint32_t)WTERMSIG(status);
    }
}

static void
await(struct cairn_command *command, pid_t pid, int *output_fd)
{
    struct cairn_clock clock = cairn_clock_system();
    uint64_t until_ns = cairn_clock_now_ns(&clock) + command->limit_ns;
    bool is_killed = false;

    for (;;) {
        struct pollfd poll_fd = {.fd = *output_fd, .events = POLLIN};
        bool is_closing = atomic_load(command->is_closing);
        uint64_t now_ns;
        int status;
        pid_t ended;

        (void)poll(&poll_fd, 1, LOOK_MS); /* of -1 it waits alone */
        take_output(command, output_fd);
        ended = waitpid(pid, &status, WNOHANG);
        if (ended == pid && !is_killed)
            take_status(command, status);
        if (ended == pid || (ended < 0 && errno != EINTR))
            return; /* in the second case somebody discards exit states: unknown */
        now_ns = cairn_clock_now_ns(&clock);
        if (!is_killed && (is_closing || now_ns >= until_ns)) {
            (void)kill(-pid, SIGKILL); /* the group exists until it is waited for */
            command->end =
                now_ns >= until_ns ? CAIRN_ENFORCEMENT_TIMEOUT : CAIRN_ENFORCEMENT_UNKNOWN;
            is_killed = true;
            until_ns = now_ns + killed_within_ns;
        } else if (is_killed && now_ns >= until_ns) {
            return;
        }
    }
}

void
cairn_command_run(struct cairn_command *command)
{
    char *arguments[CAIRN_CONFIG_ARGUMENTS_MAX + 1] = {NULL},
                                                 **environment =
                                                     make_environment(command->settings);
    const char *at = command->what->text;
    int input_fd = -1, output_fds[2] = {-1, -1}, failed = environment ? 0 : ENOMEM;
    pid_t pid = -1;

    command->end = CAIRN_ENFORCEMENT_UNKNOWN;
    command->value = 0;
    command->is_cut = false;
    command->output_bytes = 0;
    for (uint32_t i = 0; i < command->what->count; i++, at += strlen(at) + 1)
        arguments[i] = (char *)at;
    if (!failed && (input_fd = make_input(command->input, command->input_bytes)) < 0)
        failed = errno;
    if (!failed &&
        (pipe2(output_fds, O_CLOEXEC) != 0 || fcntl(output_fds[0], F_SETFL, O_NONBLOCK) != 0))
        failed = errno;
    if (!failed)
        failed = spawn(command, arguments, environment, input_fd, output_fds[1], &pid);
    if (output_fds[1] >= 0)
        close(output_fds[1]); /* the command alone has it */
    if (failed) {
        command->end = CAIRN_ENFORCEMENT_NOT_STARTED;
        command->value = (uint32_t)failed;
    } else {
        await(command, pid, &output_fds[0]);
        take_output(command, &output_fds[0]); /* what a child of its own writes later is nobody's */
    }
    command->output[command->output_bytes] = '\0';
    if (output_fds[0] >= 0)
        close(output_fds[0]);
    if (input_fd >= 0)
        close(input_fd);
    free(environment);
}

/* ---- what it said ---- */

/* How much of a line that is too long is taken: no character of more than one byte is torn. */
static size_t
whole_characters(const char *text, size_t len)
{
    size_t whole = len;

    while (whole > len - 4 && ((unsigned char)text[whole] & 0xc0) == 0x80)
        whole--;
    return whole > len - 4 ? whole : len; /* else it is not UTF-8 */
}

bool
cairn_command_next_piece(const struct cairn_command *command, size_t *at,
                         struct cairn_command_piece *out)
{
    const char *text = command->output + *at;
    size_t len = strcspn(text, "\n");

    /* behind the end of a line, or a zero that it wrote */
    while (*at < command->output_bytes && len == 0) {
        text = command->output + ++*at;
        len = strcspn(text, "\n");
    }
    if (*at >= command->output_bytes)
        return false;
    out->text = text;
    out->is_continued = len > CAIRN_COMMAND_PIECE_BYTES;
    out->is_continuing = *at > 0 && text[-1] != '\n' && text[-1] != '\0';
    out->len = out->is_continued ? whole_characters(text, CAIRN_COMMAND_PIECE_BYTES) : len;
    *at += out->len;
    return true;
}
