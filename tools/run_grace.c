/* tools/run_grace.c - see run_grace.h. */
#include "tools/run_grace.h"

#include "agent/process/config.h"
#include "base/clock.h"
#include "tools/ask.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>

enum { LOOK_MS = 2000, POLL_MS = 50 };

struct preemption {
    const char *socket_path;
    pid_t child;
    const sigset_t *held;
    uint64_t begun_ns, grace_ns;
    bool ended; /* the command has, with this status */
    int status;
};

static uint64_t
passed_ns(const struct preemption *preemption)
{
    struct cairn_clock clock = cairn_clock_system();

    return cairn_clock_now_ns(&clock) - preemption->begun_ns;
}

/* True if the command has ended. */
static bool
look_at_child(struct preemption *preemption)
{
    if (!preemption->ended)
        preemption->ended =
            waitpid(preemption->child, &preemption->status, WNOHANG) == preemption->child;
    return preemption->ended;
}

/* Waits a moment, or until a signal comes. */
static void
pause_a_moment(const struct preemption *preemption)
{
    const struct timespec moment = {.tv_nsec = POLL_MS * (long)CAIRN_NS_PER_MS};

    (void)sigtimedwait(preemption->held, NULL, &moment);
}

/* True if this part of the grace, in percent, is not over. */
static bool
may_wait(const struct preemption *preemption, uint32_t percent)
{
    return passed_ns(preemption) < preemption->grace_ns / 100 * percent;
}

static bool
ask(const struct preemption *preemption, const char *verb, struct cairn_answer *answer)
{
    struct cairn_question question = {
        .verb = verb, .asker = "run", .socket = preemption->socket_path, .timeout_ms = LOOK_MS};

    return cairn_ask(&question, answer) == CAIRN_OK;
}

/* The newest committed step; 0: none, or unknown. */
static uint64_t
committed_step(const struct preemption *preemption)
{
    struct cairn_answer answer;
    uint64_t step;

    if (!ask(preemption, "status", &answer))
        return 0;
    step = cairn_tree_u64(&answer.tree, NULL, "newest.step", 0);
    cairn_answer_fini(&answer);
    return step;
}

static void
take_snapshot(struct preemption *preemption)
{
    struct cairn_answer answer;
    uint64_t step = 0;

    if (!ask(preemption, "snapshot", &answer))
        return;
    if (answer.exit_code == 0)
        step = cairn_tree_u64(&answer.tree, NULL, "step", 0);
    cairn_answer_fini(&answer);
    while (step && may_wait(preemption, 50) && !look_at_child(preemption) &&
           committed_step(preemption) < step)
        pause_a_moment(preemption);
}

static void
end_command(struct preemption *preemption)
{
    if (!look_at_child(preemption))
        kill(preemption->child, SIGTERM);
    while (may_wait(preemption, 75) && !look_at_child(preemption))
        pause_a_moment(preemption);
    if (look_at_child(preemption))
        return;
    kill(preemption->child, SIGKILL);
    if (waitpid(preemption->child, &preemption->status, 0) != preemption->child)
        preemption->status = 0;
    preemption->ended = true;
}

/* True if this step or the same later one is on the disks of all nodes that hold a part, or in the
 * spill directory. */
static bool
is_on_disks(const struct preemption *preemption, uint64_t *step, bool *has_local, bool *has_spill)
{
    const struct cairn_tree_value *nodes, *node = NULL;
    char dir[CAIRN_CONFIG_PATH_BYTES_MAX];
    uint64_t least = UINT64_MAX, most = 0;
    struct cairn_answer answer;
    bool local, spilled;

    if (!ask(preemption, "status", &answer))
        return false;
    cairn_tree_text(&answer.tree, NULL, "configured.local_dir", dir, sizeof dir);
    *has_local = dir[0] != '\0';
    cairn_tree_text(&answer.tree, NULL, "configured.spill_dir", dir, sizeof dir);
    *has_spill = dir[0] != '\0';
    spilled = *has_spill && cairn_tree_u64(&answer.tree, NULL, "spilled.step", 0) >= *step;
    nodes = cairn_tree_find(&answer.tree, NULL, "nodes");
    while ((node = cairn_tree_next(&answer.tree, nodes, node)))
        if (cairn_tree_u64(&answer.tree, node, "complete.step", 0)) {
            uint64_t on_disk = cairn_tree_u64(&answer.tree, node, "local.step", 0);

            least = on_disk < least ? on_disk : least;
            most = on_disk > most ? on_disk : most;
        }
    cairn_answer_fini(&answer);
    local = *has_local && least == most && least >= *step;
    if (local)
        *step = least;
    return local || spilled || (!*has_local && !*has_spill);
}

static void
keep(struct preemption *preemption)
{
    bool kept = false, has_local = false, has_spill = false;
    struct cairn_answer answer;
    uint64_t step = 0;

    if (ask(preemption, "keep", &answer)) {
        if (answer.exit_code == 0)
            step = cairn_tree_u64(&answer.tree, NULL, "step", 0);
        cairn_answer_fini(&answer);
    }
    while (step && may_wait(preemption, 100) &&
           !(kept = is_on_disks(preemption, &step, &has_local, &has_spill)))
        pause_a_moment(preemption);
    if (!step)
        fprintf(stderr, "cairn run: preempted; no snapshot is there to keep\n");
    else if (!kept)
        fprintf(stderr,
                "cairn run: preempted; step %" PRIu64
                " is in memory, but not on every disk; give a longer --grace\n",
                step);
    else if (!has_local && !has_spill)
        fprintf(stderr,
                "cairn run: preempted; step %" PRIu64
                " is in memory only, and lost with the machines; set local_dir or spill_dir\n",
                step);
    else
        fprintf(stderr, "cairn run: preempted; step %" PRIu64 " is on %s\n", step,
                has_local ? "the disks of its nodes" : "shared storage");
}

void
cairn_run_preempt(const char *socket_path, pid_t child, const sigset_t *held, uint64_t grace_ns,
                  int *status)
{
    struct cairn_clock clock = cairn_clock_system();
    struct preemption preemption = {.socket_path = socket_path,
                                    .child = child,
                                    .held = held,
                                    .begun_ns = cairn_clock_now_ns(&clock),
                                    .grace_ns = grace_ns};

    take_snapshot(&preemption);
    end_command(&preemption);
    keep(&preemption);
    *status = preemption.status;
}
