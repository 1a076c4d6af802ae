/* tools/run_command.c - see run_command.h. */
#include "tools/run_command.h"

#include "base/clock.h"
#include "tools/ask.h"
#include "tools/run_grace.h"
#include "tools/run_report.h"
#include "tools/verb.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    LOOK_MS = 3000, /* at the end, when nobody should have to wait */
    SNAPSHOT_MS = 5000,
    POLL_MS = 50,
    SWEEPS_MAX = 200,        /* through children that die and leave us theirs */
    UNATTACHED_SECONDS = 600 /* a first step may take minutes */
};

/* Reports if no process has attached; true if it did. */
static bool
say_unattached(const struct cairn_run_attachment *attachment, const char *when)
{
    const char *off = getenv("CAIRN_PYTHON");
    const char *why;
    struct cairn_run_look now;

    if (attachment->attached_before == UINT64_MAX)
        return false;
    now = cairn_run_look(attachment->socket_path, LOOK_MS);
    if (now.attached != attachment->attached_before) /* or unknown, or the agent restarted */
        return false;
    if (!attachment->has_binding)
        why = "the Python binding is not installed beside this program";
    else if (off && strcmp(off, "0") == 0)
        why = "CAIRN_PYTHON=0 turns PyTorch's hooks off";
    else
        why = "a PyTorch script attaches at its second step, if it has a torch.optim optimizer "
              "and Python was not started with -I, -E or -S (otherwise call cairn.attach); any "
              "other trainer must use libcairn";
    fprintf(
        stderr,
        "cairn run: %s no process of the command has attached; it is NOT protected. Likely reason: "
        "%s\n",
        when, why);
    return true;
}

/* Reports if another launch, on other nodes, runs the job now; true if so. */
static bool
say_elsewhere(const struct cairn_run_attachment *attachment)
{
    struct cairn_run_look now = cairn_run_look(attachment->socket_path, LOOK_MS);

    if (!cairn_run_is_elsewhere(&now))
        return false;
    cairn_run_say_taken(&now, "nothing of this command was kept");
    return true;
}

/* Whether the process catches or ignores the signal. A blocked signal does not count: shells block
 * signals for a moment while they start a command. */
static bool
takes_signal(pid_t pid, int signal_number)
{
    uint64_t taken = 0, mask;
    char path[64], line[256];
    FILE *file;

    snprintf(path, sizeof path, "/proc/%ld/status", (long)pid);
    file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "SigIgn: %" SCNx64, &mask) == 1 ||
            sscanf(line, "SigCgt: %" SCNx64, &mask) == 1)
            taken |= mask;
    if (file)
        fclose(file);
    return taken >> (signal_number - 1) & 1;
}

/* What `cairn snapshot` does. */
static void
ask_for_snapshot(const struct cairn_run_attachment *attachment)
{
    struct cairn_question question = {
        .verb = "snapshot", .asker = "run", .timeout_ms = SNAPSHOT_MS};
    struct cairn_answer answer;

    if (!attachment) {
        fprintf(
            stderr,
            "cairn run: SIGUSR1: cannot take a snapshot, for the command runs without an agent\n");
        return;
    }
    question.socket = attachment->socket_path;
    if (cairn_ask_or_say(&question, &answer) != 0)
        return;
    if (!cairn_answer_refused("run", &answer))
        fprintf(stderr, "cairn run: asked for a snapshot at step %" PRIu64 " or soon after\n",
                cairn_tree_u64(&answer.tree, NULL, "step", 0));
    cairn_answer_fini(&answer);
}

/* Signals from the terminal (SI_KERNEL) have reached the command already: it is in our process
 * group. */
static void
hand_on(pid_t child, const siginfo_t *info, const struct cairn_run_attachment *attachment)
{
    if (info->si_code == SI_KERNEL)
        return;
    if (info->si_signo == SIGUSR1 && !takes_signal(child, SIGUSR1))
        ask_for_snapshot(attachment);
    else
        kill(child, info->si_signo);
}

/* ---- its end ---- */

/* Waits a moment, or until a signal comes. */
static void
pause_a_moment(const sigset_t *held, uint32_t moment_ms)
{
    const struct timespec moment = {.tv_sec = moment_ms / 1000,
                                    .tv_nsec = moment_ms % 1000 * (long)CAIRN_NS_PER_MS};

    (void)sigtimedwait(held, NULL, &moment);
}

/* SIGTERM, and SIGKILL after the grace. */
static void
end_command(pid_t child, const sigset_t *held, uint64_t grace_ns, int *status)
{
    const struct cairn_clock clock = cairn_clock_system();
    const uint64_t end_ns = cairn_clock_now_ns(&clock) + grace_ns;

    kill(child, SIGTERM);
    while (waitpid(child, status, WNOHANG) == 0) {
        if (cairn_clock_now_ns(&clock) < end_ns) {
            pause_a_moment(held, POLL_MS);
            continue;
        }
        fprintf(stderr,
                "cairn run: the command did not end within %" PRIu64 " s of SIGTERM: "
                "it is killed\n",
                grace_ns / CAIRN_NS_PER_S);
        kill(child, SIGKILL);
        (void)waitpid(child, status, 0);
        return;
    }
}

/* Kills the command's leftovers: its orphans are our children. Each may leave us some more. */
static void
end_orphans(void)
{
    char path[64];
    long pid;

    snprintf(path, sizeof path, "/proc/self/task/%ld/children", (long)getpid());
    for (uint32_t sweep = 0; sweep < SWEEPS_MAX; sweep++) {
        FILE *file = fopen(path, "re");
        bool found = false;

        while (file && fscanf(file, "%ld", &pid) == 1) {
            found = true;
            kill((pid_t)pid, SIGKILL);
        }
        if (file)
            fclose(file);
        if (!found)
            return;
        while (waitpid(-1, NULL, WNOHANG) > 0)
            continue;
        if (sweep > 0) { /* they need a moment to die */
            const struct timespec moment = {.tv_nsec = (long)CAIRN_NS_PER_MS};

            nanosleep(&moment, NULL);
        }
    }
}

/* ---- the command ---- */

static bool
ends_us(int number)
{
    return number == SIGTERM || number == SIGINT || number == SIGHUP || number == SIGQUIT;
}

/* Waits for the command with the signals in `held` blocked, and reports once if it is not
 * protected. `attachment` NULL: already reported. */
static bool
wait_command(pid_t child, const sigset_t *held, const struct cairn_run_attachment *attachment,
             const struct cairn_run_watch *watch, struct cairn_run_end *out)
{
    struct cairn_run_end end = {.reported = !attachment};
    const struct cairn_clock clock = cairn_clock_system();
    const uint64_t period_ns = watch ? watch->period_ms * CAIRN_NS_PER_MS : 0;
    uint64_t look_ns = cairn_clock_now_ns(&clock) + period_ns;
    int status = 0;
    pid_t ended;

    if (!end.reported)
        alarm(UNATTACHED_SECONDS);
    while ((ended = waitpid(child, &status, WNOHANG)) == 0) {
        siginfo_t info = {0};
        uint64_t now_ns = cairn_clock_now_ns(&clock);
        uint64_t wait_ns = look_ns > now_ns ? look_ns - now_ns : 0;
        const struct timespec wait = {.tv_sec = (time_t)(wait_ns / CAIRN_NS_PER_S),
                                      .tv_nsec = (long)(wait_ns % CAIRN_NS_PER_S)};
        int number = watch ? sigtimedwait(held, &info, &wait) : sigwaitinfo(held, &info);

        if (number == SIGTERM && attachment && attachment->grace_ns && info.si_code != SI_KERNEL) {
            cairn_run_preempt(attachment->socket_path, child, held, attachment->grace_ns, &status);
            end.preempted = end.was_signalled = true;
            ended = child;
            break;
        }
        if (watch && wait_ns == 0 && !end.was_signalled) {
            if (watch->is_over(watch->context)) {
                end_command(child, held, watch->grace_ns, &status);
                end.was_ended = true;
                ended = child;
                break;
            }
            look_ns = cairn_clock_now_ns(&clock) + period_ns;
        }
        if (number == SIGALRM && !end.reported)
            end.reported = say_unattached(attachment, "so far");
        else if (number > 0 && number != SIGCHLD && number != SIGALRM)
            hand_on(child, &info, attachment);
        end.was_signalled = end.was_signalled || (number > 0 && ends_us(number));
    }
    alarm(0);
    if (ended < 0) { /* somebody else has waited for it */
        fprintf(stderr, "cairn run: cannot learn how the command ended: %s\n", strerror(errno));
        return false;
    }
    end.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    *out = end;
    return true;
}

void
cairn_run_say_end(const struct cairn_run_attachment *attachment, const struct cairn_run_end *end)
{
    if (end->exit_code != CAIRN_COMMAND_CANNOT_START && end->exit_code != CAIRN_COMMAND_NOT_FOUND &&
        (end->reported || !say_unattached(attachment, "it has ended, and")) &&
        !say_elsewhere(attachment))
        cairn_run_say_kept(attachment->socket_path, LOOK_MS, attachment->named,
                           attachment->relaunch, attachment->command);
}

bool
cairn_run_command(char **command, const struct cairn_run_attachment *attachment,
                  const struct cairn_run_watch *watch, struct cairn_run_end *out)
{
    static const int signals[] = {SIGTERM, SIGINT,  SIGHUP,  SIGQUIT,
                                  SIGUSR1, SIGUSR2, SIGALRM, SIGCHLD};
    pid_t parent = getpid(), child;
    sigset_t held, before;
    bool known;

    sigemptyset(&held);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaddset(&held, signals[i]);
    sigprocmask(SIG_BLOCK, &held, &before); /* they are waited for, beside the command */
    if (watch)
        prctl(PR_SET_CHILD_SUBREAPER, 1);
    fflush(NULL);
    child = fork();
    if (child == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        signal(SIGPIPE, SIG_DFL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) /* it died before that call */
            _exit(CAIRN_EXIT_FAILED);
        execvp(command[0], command);
        fprintf(stderr, "cairn run: %s: cannot start it: %s\n", command[0], strerror(errno));
        _exit(errno == ENOENT ? CAIRN_COMMAND_NOT_FOUND : CAIRN_COMMAND_CANNOT_START);
    }
    if (child < 0) {
        fprintf(stderr, "cairn run: cannot start a process: %s\n", strerror(errno));
        return false;
    }
    known = wait_command(child, &held, attachment, watch, out);
    if (watch) {
        end_orphans();
        sigprocmask(SIG_SETMASK, &before, NULL);
    }
    return known;
}
