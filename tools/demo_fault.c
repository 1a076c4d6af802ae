/*
 * tools/demo_fault.c - what is killed, who notices it, and the way back.
 *
 * After the loss of a node or a trainer: the other ranks leave by themselves (their exit code asks
 * for a restart), blank agents take the places of lost agents, `cairn restore` picks and rebuilds a
 * generation, all ranks start again with --resume. After the loss of an agent alone training goes
 * on, and a new agent takes the memory over from the keeper. Nothing is killed before there is a
 * generation to return to: on a busy machine the first one takes many steps.
 */
#include "tools/demo.h"

#include "tools/common.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NOTICE_TIMEOUT_S = 10,
    LEAVE_TIMEOUT_S = 30,
    RESTORE_TIMEOUT_S = 60,
    RETRY_MS = 200,
    RESUME_TIMEOUT_S = 150,
    STARTS_MAX = 5,
    COMMAND_WORDS_MAX = 12
};

/* ---- when ---- */

/* Faults of one step happen together, those of a later one after the recovery from it, however late
 * we look. UINT64_MAX: none is left. */
static uint64_t
next_step(const struct demo *demo)
{
    uint64_t step = UINT64_MAX;

    for (uint32_t i = 0; i < demo->options.fault_count; i++)
        if (!demo->options.faults[i].done && !demo->options.faults[i].point &&
            demo->options.faults[i].step < step)
            step = demo->options.faults[i].step;
    return step;
}

/* The trainer has come to its point of a move, and died. */
static bool
died_at_point(const struct demo *demo, const struct demo_fault *fault)
{
    const struct demo_process *process = &demo->job.ranks[fault->target].process;

    return fault->point && !fault->done && !process->running && process->exit_code == 128 + SIGKILL;
}

/* More nodes at once than the parity covers: only spilled files lead back. */
static bool
needs_files(const struct demo *demo, uint64_t step)
{
    uint32_t lost = 0;

    for (uint32_t i = 0; i < demo->options.fault_count; i++)
        lost += demo->options.faults[i].kind == DEMO_FAULT_NODE && !demo->options.faults[i].done &&
                demo->options.faults[i].step == step;
    return demo->options.spill_every > 0 && lost > demo->options.parity;
}

bool
demo_faults_due(struct demo *demo)
{
    uint64_t step = next_step(demo);
    bool restorable;

    for (uint32_t i = 0; i < demo->options.fault_count; i++)
        if (died_at_point(demo, &demo->options.faults[i]))
            return true;
    if (step == UINT64_MAX || demo->job.step < step)
        return false;
    restorable = needs_files(demo, step) ? demo->spilled_count > 0 : demo->committed_count > 0;
    demo->faults_waited = demo->faults_waited || !restorable;
    return restorable;
}

int
demo_faults_left(struct demo *demo)
{
    uint64_t step = next_step(demo);

    for (uint32_t i = 0; i < demo->options.fault_count; i++)
        if (demo->options.faults[i].point && !demo->options.faults[i].done) {
            demo_say(&demo->view, DEMO_BAD,
                     "training has ended, and no move of layers came to the point \"%s\" at which "
                     "trainer %u was to die; give --slow more steps",
                     demo->options.faults[i].point, demo->options.faults[i].target);
            return CAIRN_EXIT_FAILED;
        }
    if (step == UINT64_MAX)
        return 0;
    demo_say(&demo->view, DEMO_BAD,
             "training has ended, and nothing was killed at step %" PRIu64 " or later%s; "
             "give more --steps",
             step, demo->faults_waited ? ", for no generation was there to be restored" : "");
    return CAIRN_EXIT_FAILED;
}

/* ---- who notices ---- */

static bool
tells_of(const struct demo_fault *fault, const char *who, uint32_t number, const char *line)
{
    char words[64];
    uint64_t node;

    if (strcmp(who, "agent") == 0)
        return fault->kind != DEMO_FAULT_TRAINER && number != fault->target &&
               strstr(line, "down") && demo_log_u64(line, "node", &node) && node == fault->target;
    if (number == fault->target)
        return fault->kind == DEMO_FAULT_AGENT && strstr(line, "the agent is gone");
    snprintf(words, sizeof words, "lost rank %u ", fault->target);
    return fault->kind != DEMO_FAULT_AGENT && strstr(line, words) != NULL;
}

void
demo_fault_notice(struct demo *demo, const char *who, uint32_t number, const char *line)
{
    for (uint32_t i = 0; i < demo->options.fault_count; i++) {
        struct demo_fault *fault = &demo->options.faults[i];

        if (!fault->done || fault->noticed_ns || !tells_of(fault, who, number, line))
            continue;
        fault->noticed_ns = demo_now_ns(demo);
        demo_say(&demo->view, DEMO_PLAIN, "%s %u noticed after %.0f ms that %s %u is gone", who,
                 number, (double)(fault->noticed_ns - fault->at_ns) * 1e-6,
                 demo_fault_names[fault->kind], fault->target);
    }
}

/* Those that no line named: noticed when all ranks had left. */
static void
notice_rest(struct demo *demo)
{
    for (uint32_t i = 0; i < demo->options.fault_count; i++) {
        struct demo_fault *fault = &demo->options.faults[i];

        if (fault->done && !fault->noticed_ns && fault->kind != DEMO_FAULT_AGENT)
            fault->noticed_ns = demo_now_ns(demo);
    }
}

/* ---- killing ---- */

static void
kill_one(struct demo *demo, struct demo_fault *fault, bool *agents, bool *agent_only)
{
    uint32_t n = fault->target;

    fault->done = true;
    fault->step = demo->job.step;
    fault->at_ns = demo_now_ns(demo);
    switch (fault->kind) {
    case DEMO_FAULT_NODE:
        *agent_only = false;
        agents[n] = true;
        demo_process_signal(&demo->job.ranks[n].process, SIGKILL);
        demo_node_destroy(demo, n);
        demo_process_kill(&demo->job.ranks[n].process);
        break;
    case DEMO_FAULT_TRAINER:
        *agent_only = false;
        demo_process_kill(&demo->job.ranks[n].process);
        break;
    case DEMO_FAULT_AGENT:
        agents[n] = true;
        demo_process_kill(&demo->nodes[n].agent);
        break;
    }
}

/* Kills by the next faults; prints one line per kind. */
static void
kill_due(struct demo *demo, bool *agents, bool *agent_only)
{
    static const char *const what[] = {[DEMO_FAULT_NODE] = "agent, trainer and memory are gone",
                                       [DEMO_FAULT_TRAINER] = "its node and agent live on",
                                       [DEMO_FAULT_AGENT] = "its trainer and the memory live on"};
    uint64_t step = demo->job.step, asked = next_step(demo);
    char waited[96] = "";

    if (demo->faults_waited)
        snprintf(waited, sizeof waited, " (not at step %" PRIu64 ", when no generation was %s yet)",
                 asked, needs_files(demo, asked) ? "in files" : "committed");
    demo->faults_waited = false;
    for (uint32_t kind = 0; kind <= DEMO_FAULT_AGENT; kind++) {
        char targets[DEMO_FAULTS_MAX * 24] = "";
        size_t used = 0;
        uint32_t count = 0;

        for (uint32_t i = 0; i < demo->options.fault_count; i++) {
            struct demo_fault *fault = &demo->options.faults[i];

            if (fault->kind != kind ||
                !(died_at_point(demo, fault) || (!fault->done && fault->step == asked)))
                continue;
            kill_one(demo, fault, agents, agent_only);
            used += (size_t)snprintf(targets + used, sizeof targets - used, "%s%u%s%s",
                                     count++ ? ", " : "", fault->target, fault->point ? " at " : "",
                                     fault->point ? fault->point : "");
        }
        if (count)
            demo_say(&demo->view, DEMO_BAD, "step %" PRIu64 ": killed %s%s %s: %s%s", step,
                     demo_fault_names[kind], count > 1 ? "s" : "", targets, what[kind], waited);
    }
}

/* ---- running our own command ---- */

int
demo_command(struct demo *demo, const char *const *words, uint32_t seconds, char **text)
{
    char *argv[COMMAND_WORDS_MAX + 2] = {demo->cairn};
    char out[DEMO_PATH_BYTES + 64], log[DEMO_PATH_BYTES + 64];
    uint64_t deadline_ns = demo_now_ns(demo) + seconds * CAIRN_NS_PER_S;
    struct demo_process process;

    *text = NULL;
    for (uint32_t i = 0; i < COMMAND_WORDS_MAX && words[i]; i++)
        argv[i + 1] = (char *)(uintptr_t)words[i]; /* execv reads them only */
    demo->commands++;
    snprintf(out, sizeof out, "%s/command-%u.json", demo->dir, demo->commands);
    snprintf(log, sizeof log, "%s/command-%u.log", demo->dir, demo->commands);
    if (demo_process_start(&process, argv, out, log) != CAIRN_OK)
        return CAIRN_EXIT_IO;
    while (!demo_process_ended(&process)) {
        bool go_on = demo_tick(demo);

        if (go_on && demo_now_ns(demo) < deadline_ns)
            continue;
        demo_process_kill(&process);
        return go_on ? CAIRN_EXIT_PEER : 128 + SIGINT;
    }
    *text = demo_file_text(out);
    if (process.exit_code != 0 && (!*text || !**text)) {
        free(*text);
        *text = demo_file_text(log);
    }
    return process.exit_code;
}

/* ---- the way back ---- */

/* A live agent to talk to. */
static const char *
any_socket(const struct demo *demo)
{
    for (uint32_t i = 0; i < demo->options.nodes; i++)
        if (demo->nodes[i].agent.running && demo->nodes[i].serves)
            return demo->nodes[i].socket;
    return demo->nodes[0].socket;
}

/* Until all ranks have ended; those that do not are killed. */
static int
wait_ranks_gone(struct demo *demo)
{
    uint64_t deadline_ns = demo_now_ns(demo) + LEAVE_TIMEOUT_S * CAIRN_NS_PER_S;

    while (demo_job_running(&demo->job)) {
        if (!demo_tick(demo))
            return 128 + SIGINT;
        if (demo_now_ns(demo) > deadline_ns) {
            demo_say(&demo->view, DEMO_BAD, "not all ranks have left after %d s: they are killed",
                     LEAVE_TIMEOUT_S);
            demo_job_kill(&demo->job);
        }
    }
    demo_job_look(demo, &demo->job);
    demo_agents_look(demo);
    notice_rest(demo);
    demo_say(&demo->view, DEMO_PLAIN,
             "the other ranks have left by themselves, to be started again");
    return 0;
}

static void
say_lines(struct demo *demo, enum demo_tone tone, const char *text)
{
    while (*text) {
        size_t len = strcspn(text, "\n");

        if (len)
            demo_say(&demo->view, tone, "  %.*s", (int)len, text);
        text += len + (text[len] == '\n');
    }
}

static void
read_restore(struct demo *demo, const char *text, struct demo_restore *restore)
{
    const char *generation = strstr(text, "\"generation\"");
    char from[16] = "";

    if (generation) {
        (void)demo_json_u64(generation, "epoch", &restore->generation.epoch);
        (void)demo_json_u64(generation, "step", &restore->generation.step);
    }
    (void)demo_json_u64(text, "rebuilt_bytes", &restore->rebuilt_bytes);
    (void)demo_json_text(text, "from", from, sizeof from);
    restore->from_files = strcmp(from, "files") == 0;
    if (!demo_json_lines(text, "considered", demo->reasons, sizeof demo->reasons))
        snprintf(demo->reasons, sizeof demo->reasons, "%s", text);
}

static int
run_restore(struct demo *demo, struct demo_restore *restore)
{
    const char *const words[] = {"restore", "--agent", any_socket(demo), "-o", "json", NULL};
    uint64_t deadline_ns = demo_now_ns(demo) + RESTORE_TIMEOUT_S * CAIRN_NS_PER_S;
    char shown[CAIRN_SHOWN_BYTES], repaired[32 + CAIRN_SHOWN_BYTES] = "";
    int code;

    for (;;) {
        uint64_t again_ns = demo_now_ns(demo) + RETRY_MS * CAIRN_NS_PER_MS;
        char *text;

        code = demo_command(demo, words, RESTORE_TIMEOUT_S, &text);
        if (text)
            read_restore(demo, text, restore);
        free(text);
        /* New agents may not have met the others yet; then a little later it works. */
        if ((code != CAIRN_EXIT_AGAIN && code != CAIRN_EXIT_PEER) ||
            demo_now_ns(demo) > deadline_ns)
            break;
        while (demo_now_ns(demo) < again_ns)
            if (!demo_tick(demo))
                return 128 + SIGINT;
    }
    demo_agents_look(demo);
    restore->rebuilt_bytes += demo->repaired_bytes;
    if (demo->repaired_bytes)
        snprintf(repaired, sizeof repaired, ", %s before the restore",
                 cairn_show_bytes(demo->repaired_bytes, shown));
    demo->repaired_bytes = 0;
    if (code == CAIRN_EXIT_LOST)
        demo_say(&demo->view, DEMO_BAD, "nothing can be restored:");
    else if (code)
        demo_say(&demo->view, DEMO_BAD, "the restore failed with exit code %d:", code);
    else
        demo_say(&demo->view, DEMO_GOOD,
                 "restore: generation of step %" PRIu64 " (epoch %" PRIu64 "), %s rebuilt%s%s",
                 restore->generation.step, restore->generation.epoch,
                 cairn_show_bytes(restore->rebuilt_bytes, shown), repaired,
                 restore->from_files ? ", from spilled files" : "");
    say_lines(demo, code ? DEMO_BAD : DEMO_PLAIN, demo->reasons);
    return code;
}

/* Starts all ranks and waits for a step. CAIRN_EXIT_AGAIN if a rank asks for another start. */
static int
resume_once(struct demo *demo)
{
    uint64_t deadline_ns;
    int code = demo_job_start(demo, &demo->job, true);

    deadline_ns = demo_now_ns(demo) + RESUME_TIMEOUT_S * CAIRN_NS_PER_S;
    while (code == 0 && demo->job.resumed_ns == 0 && !demo_job_done(&demo->job)) {
        uint32_t failed = demo_job_failed(&demo->job);

        if (!demo_tick(demo))
            return 128 + SIGINT;
        if (demo->job.fresh) {
            demo_say(&demo->view, DEMO_BAD,
                     "a rank found nothing to restore and began from nothing: that is a bug");
            return CAIRN_EXIT_FAILED;
        }
        if (failed == UINT32_MAX && demo_now_ns(demo) <= deadline_ns)
            continue;
        failed = failed == UINT32_MAX ? 0 : failed;
        demo_say(&demo->view, DEMO_BAD, "training did not resume: rank %u: %s", failed,
                 demo->job.ranks[failed].last);
        code = demo->job.ranks[failed].process.exit_code == CAIRN_EXIT_AGAIN ? CAIRN_EXIT_AGAIN
                                                                             : CAIRN_EXIT_FAILED;
    }
    return code;
}

/* An agent that is behind the others refuses a rank for a moment; a launcher starts the job again
 * then. */
static int
resume_job(struct demo *demo)
{
    int code = resume_once(demo);

    for (int i = 1; code == CAIRN_EXIT_AGAIN && i < STARTS_MAX; i++) {
        demo_job_kill(&demo->job);
        code = resume_once(demo);
    }
    return code;
}

/* From a fault at at_ns, with job.step as far as training had come, to the first step after it. */
static int
recover(struct demo *demo, uint64_t at_ns, const bool *agents)
{
    struct demo_restore restore = {.rebuilt_bytes = 0};
    uint64_t gone_ns, served_ns, restored_ns, reached;
    int code = wait_ranks_gone(demo);

    gone_ns = demo_now_ns(demo);
    reached = demo->job.step;
    if (code == 0)
        code = demo_agents_start(demo, agents);
    if (code == 0)
        code = demo_agents_wait(demo, agents);
    served_ns = demo_now_ns(demo);
    if (code == 0)
        code = run_restore(demo, &restore);
    restored_ns = demo_now_ns(demo);
    if (code == 0 && demo->options.slow.text)
        demo_slow_take_restart(demo, restore.generation.step);
    if (code == 0)
        code = resume_job(demo);
    if (code)
        return code;
    restore.lost_steps = reached > restore.generation.step ? reached - restore.generation.step : 0;
    restore.detect_ns = gone_ns - at_ns;
    restore.restart_ns = served_ns - gone_ns;
    restore.restore_ns = restored_ns - served_ns;
    restore.resume_ns = demo->job.resumed_ns > restored_ns ? demo->job.resumed_ns - restored_ns : 0;
    if (demo->restore_count < DEMO_RESTORES_MAX)
        demo->restores[demo->restore_count++] = restore;
    demo_say(
        &demo->view, DEMO_GOOD,
        "training is back at step %" PRIu64 ", %.1f s after the fault; %" PRIu64 " step%s lost",
        demo->job.step,
        (double)(restore.detect_ns + restore.restart_ns + restore.restore_ns + restore.resume_ns) *
            1e-9,
        restore.lost_steps, restore.lost_steps == 1 ? " was" : "s were");
    return 0;
}

/* Training goes on meanwhile. */
static int
replace_agents(struct demo *demo, const bool *agents)
{
    uint64_t deadline_ns = demo_now_ns(demo) + NOTICE_TIMEOUT_S * CAIRN_NS_PER_S;
    int code;

    for (uint32_t i = 0; i < demo->options.fault_count; i++) {
        struct demo_fault *fault = &demo->options.faults[i];

        while (fault->done && fault->kind == DEMO_FAULT_AGENT && !fault->noticed_ns &&
               demo_now_ns(demo) < deadline_ns)
            if (!demo_tick(demo))
                return 128 + SIGINT;
    }
    code = demo_agents_start(demo, agents);
    if (code == 0)
        code = demo_agents_wait(demo, agents);
    for (uint32_t i = 0; code == 0 && i < demo->options.nodes; i++)
        if (agents[i])
            demo_say(&demo->view, DEMO_GOOD,
                     "a new agent serves node %u and has %s; training did not stop", i,
                     demo->nodes[i].adopted ? "adopted the memory that the keeper held"
                                            : "begun with empty memory");
    return code;
}

int
demo_faults_do(struct demo *demo)
{
    bool agents[DEMO_NODES_MAX] = {false};
    bool agent_only = true;
    uint64_t at_ns = demo_now_ns(demo);

    kill_due(demo, agents, &agent_only);
    return agent_only ? replace_agents(demo, agents) : recover(demo, at_ns, agents);
}
