/*
 * tools/demo.c - `cairn demo`: the whole system on this machine, with faults, and a report.
 *
 * The story: agents start; the job trains with protection, and in turns with it the same job
 * without (the reference); faults happen and are recovered from; at the end losses and state of
 * both must be the same bits.
 */
#include "tools/demo.h"

#include "base/clock.h"
#include "tools/common.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TICK_MS = 3, STALL_TIMEOUT_S = 120, QUIET_MS = 500 };

static volatile sig_atomic_t interrupted;

static void
on_signal(int number)
{
    interrupted = number;
}

uint64_t
demo_now_ns(const struct demo *demo)
{
    return cairn_clock_now_ns(&demo->clock);
}

static void
show_progress(struct demo *demo)
{
    struct demo_progress progress = {.step = demo->job.step,
                                     .steps = demo->options.steps,
                                     .loss = demo->job.loss,
                                     .committed = demo->committed_step};

    if (demo->job.step > 0)
        demo_view_progress(&demo->view, &progress, demo_now_ns(demo));
}

bool
demo_tick(struct demo *demo)
{
    (void)poll(NULL, 0, TICK_MS);
    demo_agents_look(demo);
    demo_job_look(demo, &demo->job);
    demo_job_look(demo, &demo->reference);
    show_progress(demo);
    return !interrupted;
}

/* ---- turns ---- */

struct turns {
    uint64_t until; /* the job trains up to this step, then the reference follows */
    bool reference; /* it is the reference's turn */
    int code;
};

/* With emulated devices a pause would look like a slow device: the reference comes last. */
static uint64_t
end_of_turn(const struct demo *demo, uint64_t step)
{
    return demo->options.slow.text ? UINT64_MAX : step + DEMO_TURN_STEPS;
}

static void
take_turns(struct demo *demo, struct turns *turns)
{
    struct demo_job *job = &demo->job, *reference = &demo->reference;
    uint64_t step = demo_job_step_least(job);
    bool done = demo_job_done(job);

    if (!demo->options.reference || demo_job_done(reference))
        return;
    if (!turns->reference) {
        if (!done && (step < turns->until || step == 0))
            return;
        if (!done && demo_job_step_least(reference) >= step) {
            turns->until = end_of_turn(demo, step);
            return;
        }
        demo_job_pause(job, true);
        if (!reference->started)
            turns->code = demo_job_start(demo, reference, false);
        else
            demo_job_pause(reference, false);
        turns->reference = true;
        return;
    }
    if (done || demo_job_step_least(reference) < step)
        return;
    demo_job_pause(reference, true);
    demo_job_pause(job, false);
    turns->until = end_of_turn(demo, step);
    turns->reference = false;
}

/* ---- the end ---- */

/* A rank or an agent ended that should not have. */
static int
find_failure(struct demo *demo)
{
    struct demo_job *jobs[] = {&demo->job, &demo->reference};

    for (uint32_t i = 0; i < demo->options.nodes; i++)
        if (demo_process_ended(&demo->nodes[i].agent)) {
            demo_say(&demo->view, DEMO_BAD,
                     "the agent of node %u ended by itself with exit code %d: %s", i,
                     demo->nodes[i].agent.exit_code, demo->nodes[i].error);
            return CAIRN_EXIT_FAILED;
        }
    for (size_t j = 0; j < 2; j++) {
        uint32_t rank = demo_job_failed(jobs[j]);
        int code;

        if (rank == UINT32_MAX)
            continue;
        (void)demo_tick(demo);     /* its last words */
        if (demo_faults_due(demo)) /* it saw a death that is due before us */
            return 0;
        rank = demo_job_failed(jobs[j]);
        code = jobs[j]->ranks[rank].process.exit_code;
        demo_say(&demo->view, DEMO_BAD, "rank %u of the %s ended with exit code %d: %s", rank,
                 jobs[j]->name, code, jobs[j]->ranks[rank].last);
        return code >= CAIRN_EXIT_USAGE && code <= CAIRN_EXIT_CONFIG && code != CAIRN_EXIT_AGAIN
                   ? code
                   : CAIRN_EXIT_FAILED;
    }
    return 0;
}

static int
train(struct demo *demo)
{
    struct turns turns = {.until = end_of_turn(demo, 0)};
    uint64_t seen = 0, seen_ns = demo_now_ns(demo);

    for (;;) {
        uint64_t steps = demo_job_step_least(&demo->job) + demo_job_step_least(&demo->reference);
        int code;

        if (!demo_tick(demo))
            return 128 + SIGINT;
        if (!turns.reference && demo_faults_due(demo)) {
            code = demo_faults_do(demo);
            if (code)
                return code;
            demo_view_rate_reset(&demo->view, demo->job.step, demo_now_ns(demo));
            turns.until = end_of_turn(demo, demo->job.step);
            seen_ns = demo_now_ns(demo);
        }
        code = find_failure(demo);
        if (code)
            return code;
        if (demo_job_done(&demo->job) &&
            (!demo->options.reference || demo_job_done(&demo->reference)))
            return demo_faults_left(demo);
        take_turns(demo, &turns);
        if (turns.code)
            return turns.code;
        if (steps != seen)
            seen_ns = demo_now_ns(demo);
        seen = steps;
        if (demo_now_ns(demo) - seen_ns > STALL_TIMEOUT_S * CAIRN_NS_PER_S) {
            demo_say(&demo->view, DEMO_BAD, "no step was done for %d s: given up", STALL_TIMEOUT_S);
            return CAIRN_EXIT_FAILED;
        }
    }
}

/* Waits for the commit soon after the last step, if trainers waited for it, and adds the agents'
 * memory. */
static void
settle(struct demo *demo)
{
    uint64_t committed = demo->committed_step, quiet_ns = demo_now_ns(demo);

    while (committed < demo->options.steps &&
           demo_now_ns(demo) - quiet_ns < QUIET_MS * CAIRN_NS_PER_MS && demo_tick(demo)) {
        if (committed != demo->committed_step)
            quiet_ns = demo_now_ns(demo);
        committed = demo->committed_step;
    }
    for (uint32_t i = 0; i < demo->options.nodes; i++) {
        char path[64];
        char *text;
        const char *at;

        snprintf(path, sizeof path, "/proc/%d/status", (int)demo->nodes[i].agent.pid);
        text = demo_file_text(path);
        at = text ? strstr(text, "VmHWM:") : NULL;
        demo->nodes[i].rss_bytes = at ? strtoull(at + strlen("VmHWM:"), NULL, 10) * 1024 : 0;
        free(text);
    }
}

/* Everything that lies in memory is read, checked and coded again. */
static int
verify(struct demo *demo)
{
    const char *const words[] = {"verify", "--agent", demo->nodes[0].socket, "-o", "json", NULL};
    char *text;
    int code = demo_command(demo, words, STALL_TIMEOUT_S, &text);

    if (code == CAIRN_EXIT_OK)
        demo_say(&demo->view, DEMO_GOOD, "verify: every byte in the agents' memory is right");
    else if (code == CAIRN_EXIT_WARN) /* a fault late in the run: what was missing is there again */
        demo_say(&demo->view, DEMO_GOOD, "verify: repaired what the fault had left incomplete");
    else
        demo_say(&demo->view, DEMO_BAD, "verify ended with exit code %d: %s", code,
                 text ? text : "");
    free(text);
    return code == CAIRN_EXIT_WARN ? CAIRN_EXIT_OK : code;
}

static int
tell(struct demo *demo)
{
    const struct demo_options *options = &demo->options;
    bool all[DEMO_NODES_MAX];
    int code;

    for (uint32_t i = 0; i < DEMO_NODES_MAX; i++)
        all[i] = true;
    demo_say(&demo->view, DEMO_PLAIN, "%u nodes start, each with an agent%s%s", options->nodes,
             options->dir ? "; files are in " : "", options->dir ? demo->dir : "");
    code = demo_agents_start(demo, all);
    if (code == 0)
        code = demo_agents_wait(demo, all);
    if (code)
        return code;
    demo_say(&demo->view, DEMO_PLAIN, "memory of each: %s", demo->nodes[0].memory);
    demo_say(&demo->view, DEMO_PLAIN,
             "training begins: %u replicas x %u stages, %" PRIu64
             " steps; a generation at every step by which the one before is committed, each "
             "survives the loss of any %u of %u nodes",
             demo->dp, demo->pp, options->steps, options->parity, options->nodes);
    if (options->slow.text)
        demo_slow_announce(demo);
    demo_view_rate_reset(&demo->view, 0, demo_now_ns(demo));
    code = demo_job_start(demo, &demo->job, false);
    if (code == 0)
        code = train(demo);
    if (code)
        return code;
    settle(demo);
    demo_say(&demo->view, DEMO_GOOD, "done: loss %.3f to %.3f", demo->job.loss_first,
             demo->job.loss_last);
    code = verify(demo);
    if (options->reference && !demo_identical(demo))
        code = CAIRN_EXIT_FAILED;
    if (options->slow.text)
        demo_slow_ask_story(demo);
    if (code == 0 && options->slow.text)
        code = demo_slow_judge(demo);
    return code;
}

static void
handle_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
}

int
cairn_verb_demo(int argc, char **argv)
{
    struct demo *demo = calloc(1, sizeof *demo);
    int code = CAIRN_EXIT_FAILED;

    if (!demo) {
        fprintf(stderr, "cairn demo: no memory\n");
        return code;
    }
    if (!demo_options_parse(argc, argv, &demo->options, &code)) {
        free(demo);
        return code;
    }
    handle_signals();
    demo->clock = cairn_clock_system();
    demo_view_init(&demo->view, demo_now_ns(demo));
    code = demo_cluster_open(demo);
    if (code == 0) {
        demo_job_init(demo, &demo->job, "job", true);
        demo_job_init(demo, &demo->reference, "reference", false);
        code = tell(demo);
        demo_job_kill(&demo->job); /* those that have ended stay as they are */
        demo_job_kill(&demo->reference);
        for (uint32_t i = 0; i < demo->options.nodes; i++)
            demo_process_kill(&demo->nodes[i].agent);
        demo_view_clear(&demo->view);
        if (interrupted) {
            code = 128 + interrupted;
            fprintf(stderr, "cairn demo: interrupted; everything that it started is ended\n");
        } else if (demo->options.json) {
            code = demo_report_json(demo, code);
        } else if (demo_job_done(&demo->job)) {
            demo_report_table(demo);
        }
        demo_job_fini(&demo->job);
        demo_job_fini(&demo->reference);
        for (uint32_t i = 0; i < demo->options.nodes; i++)
            demo_tail_fini(&demo->nodes[i].tail);
    }
    demo_slow_fini(&demo->slow);
    demo_guard_end(&demo->guard);
    free(demo);
    return code;
}
