/*
 * tools/run.c - `cairn run`: runs a trainer with an agent attached.
 *
 * If anything fails on our side, the command runs all the same: protection is never worth a
 * training run. Its environment gets CAIRN_AGENT, CAIRN_JOB, with --resume CAIRN_RESUME=1, on
 * PYTHONPATH the folder by which Python loads the binding (it acts when torch is imported), and
 * with CAIRN_TIMING=1 NCCL_PROFILER_PLUGIN, with the user's own plugin chained. Signals are passed
 * on to the command; if we are killed, so is the command. SIGUSR1 asks for a snapshot: if the
 * command does not handle it, as a shell or a launcher, we answer it here instead of letting it end
 * the command.
 *
 * If all ranks of the job are attached already, and some are on this node, another launch runs it,
 * and the command does not run: two launches would write to the same files. If all are on other
 * nodes, this node may be one that joins (torchrun starts its command before the others end
 * theirs). The command runs, and we report that its trainers are refused until the others end.
 *
 * With --relaunch the command is run by relaunch.h, which needs an agent: without one nothing runs.
 *
 * If no process of the command attaches, it trains unprotected. That is reported after a while, or
 * at its end; the agent's count of trainers tells.
 */
#include "agent/process/config.h"
#include "base/clock.h"
#include "tools/ask.h"
#include "tools/common.h"
#include "tools/embedded.h"
#include "tools/find_agent.h"
#include "tools/relaunch.h"
#include "tools/run_agent.h"
#include "tools/run_command.h"
#include "tools/run_report.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    STATUS_MS = 10000,
    TAKEN_TRIES = 6,
    RESTORE_MS = 3600 * 1000,
    TRIES_MAX = 120,
    WAIT_SECONDS = 600,
    RELAUNCHES_MAX = 1000,
    STATE_BYTES_MIN = 64 << 10 /* as the configuration's state_bytes, which it sets */
};
static const uint64_t STATE_BYTES_MAX = UINT64_C(64) << 40;

/* ---- the agent ---- */

/*
 * True if another launch runs the job. A launch that has just died may still look alive, so we look
 * again for three seconds.
 */
static bool
is_taken(const char *socket_path, struct cairn_run_look *look)
{
    const struct timespec pause = {.tv_nsec = 500 * (long)CAIRN_NS_PER_MS};

    for (uint32_t tries = 0; cairn_run_is_taken(look) && tries < TAKEN_TRIES; tries++) {
        nanosleep(&pause, NULL);
        *look = cairn_run_look(socket_path, STATUS_MS);
    }
    return cairn_run_is_taken(look);
}

/*
 * Restores, so that trainers find a generation. The commands of several nodes do this at once, and
 * a second restore would refuse the trainers of the first. So we keep a generation that is ready,
 * and wait while another node restores.
 */
static void
resume(const char *socket_path)
{
    struct cairn_question question = {
        .verb = "restore", .asker = "run", .socket = socket_path, .timeout_ms = RESTORE_MS};
    const struct timespec pause = {.tv_nsec = 500 * (long)CAIRN_NS_PER_MS};
    bool said_again = false;

    for (uint32_t tries = 0; tries < TRIES_MAX; tries++) {
        struct cairn_answer answer;
        char text[1024];
        bool ready;
        int exit_code;

        question.dry_run = !question.dry_run; /* ask, then act */
        question.progress = question.dry_run ? NULL : "restore";
        exit_code = cairn_ask_or_say(&question, &answer);
        if (exit_code)
            return;
        exit_code = answer.exit_code;
        ready = exit_code == 0 && cairn_tree_bool(&answer.tree, NULL, "ready", false);
        if (exit_code == 0 && cairn_tree_find(&answer.tree, NULL, "decided")) {
            ready = true; /* the last restore took an older generation: that decision holds */
            fprintf(stderr,
                    "cairn run: resumes from epoch %" PRIu64 " step %" PRIu64
                    ", which the last restore chose\n",
                    cairn_tree_u64(&answer.tree, NULL, "decided.epoch", 0),
                    cairn_tree_u64(&answer.tree, NULL, "decided.step", 0));
        } else if (ready)
            fprintf(stderr, "cairn run: resumes from epoch %" PRIu64 " step %" PRIu64 "\n",
                    cairn_tree_u64(&answer.tree, NULL, "generation.epoch", 0),
                    cairn_tree_u64(&answer.tree, NULL, "generation.step", 0));
        else if (exit_code == CAIRN_EXIT_LOST)
            fprintf(stderr,
                    "cairn run: nothing to resume from; the trainer starts from the beginning\n");
        else if (exit_code != 0 && exit_code != CAIRN_EXIT_AGAIN)
            fprintf(
                stderr,
                "cairn run: the restore failed: %s; the trainer starts and may find a snapshot\n",
                cairn_tree_text(&answer.tree, NULL, "error", text, sizeof text));
        else if (exit_code == CAIRN_EXIT_AGAIN && !said_again) {
            said_again = true;
            fprintf(stderr, "cairn run: cannot restore yet, retrying: %s\n",
                    cairn_tree_text(&answer.tree, NULL, "error", text, sizeof text));
        }
        cairn_answer_fini(&answer);
        if (ready || (exit_code != 0 && exit_code != CAIRN_EXIT_AGAIN))
            return;
        if (exit_code == CAIRN_EXIT_AGAIN) {
            question.dry_run = false; /* look again first */
            nanosleep(&pause, NULL);
        }
    }
    fprintf(stderr, "cairn run: the restore did not end in time; the trainer starts and may find a "
                    "snapshot\n");
}

/* ---- the command ---- */

static void
set(const char *name, const char *value)
{
    if (setenv(name, value, 1) != 0)
        fprintf(stderr, "cairn run: %s: cannot set it in the environment: %s\n", name,
                strerror(errno));
}

/*
 * Names our NCCL plugin if CAIRN_TIMING=1. NCCL loads only one plugin, so ours loads the one that
 * the user named, or else NCCL's default. "none" stays.
 */
static void
set_plugin(void)
{
    const char *timing = getenv("CAIRN_TIMING"), *named = getenv("NCCL_PROFILER_PLUGIN");
    char path[CAIRN_PLACED_PATH_BYTES];

    if (!timing || strcmp(timing, "1") != 0 || (named && strcmp(named, "none") == 0))
        return;
    if (!cairn_find_library("libnccl-profiler-cairn.so", path)) {
        fprintf(stderr,
                "cairn run: libnccl-profiler-cairn.so: not found beside this program, so NCCL's "
                "collectives are not timed; install it or unset CAIRN_TIMING\n");
        return;
    }
    if (named && strcmp(named, path) == 0)
        return;
    if (!getenv("CAIRN_NCCL_PROFILER_CHAIN"))
        set("CAIRN_NCCL_PROFILER_CHAIN", named && named[0] ? named : "libnccl-profiler.so");
    set("NCCL_PROFILER_PLUGIN", path);
}

/* Puts our folder first on PYTHONPATH: Python runs its sitecustomize at the start. False if the
 * folder is missing. */
static bool
set_python(void)
{
    static const char *const packages[CAIRN_PLACES_MAX] = {
        "/bindings/python/", "/../../bindings/python/", "/../lib/cairn/python/"};
    static const char file[] = "/sitecustomize.py";
    const char *before = getenv("PYTHONPATH");
    char path[CAIRN_PLACED_PATH_BYTES], *all;

    if (cairn_own_path(path, sizeof path))
        set("CAIRN_COMMAND", path); /* what it asks for a snapshot with */
    if (!getenv("CAIRN_LIBRARY") && cairn_find_library("libcairn.so.1", path))
        set("CAIRN_LIBRARY", path);
    if (!cairn_find_beside(packages, "cairn/autoload/sitecustomize.py", path))
        return false;
    path[strlen(path) - strlen(file)] = '\0';
    if (asprintf(&all, "%s%s%s", path, before && before[0] ? ":" : "", before ? before : "") < 0)
        return false;
    set("PYTHONPATH", all);
    free(all);
    return true;
}

static bool
is_number(const char *text)
{
    size_t digits = strspn(text, "0123456789");

    return digits > 0 && digits < 8 && text[digits] == '\0' && text[0] != '0';
}

static const char about[] =
    "Runs a trainer with an agent attached. The command's environment names the agent and the "
    "job (CAIRN_AGENT, CAIRN_JOB), loads PyTorch's hooks and, with CAIRN_TIMING=1, NCCL's "
    "profiler plugin.\n"
    "\n"
    "If no agent runs on this node, one is started: for a single node, without parity. It stays "
    "when the trainer ends; the first message shows how to end it. If the agent of SOCKET has "
    "ended, no replacement is started.\n"
    "\n"
    "A job has one launch at a time: while all its ranks are attached, a second launch on their "
    "nodes exits 75 and runs nothing.\n"
    "\n"
    "With --grace 20s, SIGTERM (Slurm, Kubernetes, a spot instance) takes a snapshot at the next "
    "step, writes it to local_dir or spill_dir, and ends the command. Without --grace the "
    "command gets the signal at once.\n"
    "\n"
    "With --relaunch N, given on each node, a command that fails or loses a node starts again "
    "from memory on the nodes that are left, at most N times. Each start fills in these words: "
    "{nodes}, {node_rank}, {master_addr}, {master_port}, {peers} (host:port of each node) and "
    "{relaunch}; the environment has them too, such as CAIRN_NODES. A command without {nodes} "
    "and {peers} waits for as many nodes as before. Exits 75 if a node was lost and no relaunch "
    "was left.\n"
    "\n"
    "If the agent fails, the command runs unprotected. The exit code is the command's, or 128 + "
    "the signal that ended it.";

/* The user's options, as texts and parsed. */
struct options {
    const char *agent, *every, *state, *grace, *relaunch, *nodes, *wait;
    bool resumed, dry_run, verbose;
    uint64_t grace_ns;
    struct cairn_relaunch_options relaunches;
};

/* False if an option has a bad value or needs another one: reported, *exit_code is set. */
static bool
check_options(const struct cairn_usage *usage, struct options *options, int *exit_code)
{
    const struct options *o = options;
    struct cairn_relaunch_options *relaunches = &options->relaunches;
    uint64_t state_bytes;

    *exit_code = CAIRN_EXIT_OK;
    if (o->every && !is_number(o->every))
        *exit_code = cairn_usage_error(usage, "--every %s: expected a number of steps, at least 1",
                                       o->every);
    else if (o->state && (cairn_parse_bytes(o->state, &state_bytes) != CAIRN_OK ||
                          state_bytes < STATE_BYTES_MIN || state_bytes > STATE_BYTES_MAX))
        *exit_code = cairn_usage_error(
            usage, "--state %s: expected a size such as 4GiB, from 64KiB to 64TiB", o->state);
    else if (o->grace && (cairn_parse_duration_ns(o->grace, &options->grace_ns) != CAIRN_OK ||
                          o->grace_ns < CAIRN_NS_PER_S))
        *exit_code = cairn_usage_error(
            usage, "--grace %s: expected a time such as 20s, at least 1s", o->grace);
    else if (o->relaunch &&
             (!is_number(o->relaunch) || strtoul(o->relaunch, NULL, 10) > RELAUNCHES_MAX))
        *exit_code = cairn_usage_error(usage, "--relaunch %s: expected a number from 1 to %d",
                                       o->relaunch, RELAUNCHES_MAX);
    else if (!o->relaunch && (o->nodes || o->wait || relaunches->batch_may_change))
        *exit_code = cairn_usage_error(usage, "--%s needs --relaunch",
                                       o->nodes  ? "nodes"
                                       : o->wait ? "wait"
                                                 : "batch-may-change");
    else if (o->nodes &&
             !cairn_relaunch_parse_nodes(o->nodes, &relaunches->least, &relaunches->most))
        *exit_code =
            cairn_usage_error(usage, "--nodes %s: expected MIN:MAX or one number", o->nodes);
    else if (o->wait && (cairn_parse_duration_ns(o->wait, &relaunches->wait_ns) != CAIRN_OK ||
                         relaunches->wait_ns < CAIRN_NS_PER_S))
        *exit_code = cairn_usage_error(usage, "--wait %s: expected a time such as 10m, at least 1s",
                                       o->wait);
    return *exit_code == CAIRN_EXIT_OK;
}

/* Reads the command line; *operand is the index of the command. False if there is nothing to run:
 * reported, *exit_code is set. */
static bool
read_options(int argc, char **argv, struct options *o, int *operand, int *exit_code)
{
    const struct cairn_flag flags[] = {
        {"agent", 'a', "SOCKET", CAIRN_AGENT_HELP, &o->agent, NULL},
        {"every", 'e', "N", "take a snapshot every N steps, if an agent is started", &o->every,
         NULL},
        {"state", 's', "SIZE",
         "reserve this much memory per snapshot, if an agent is started (default: 1GiB)", &o->state,
         NULL},
        {"resume", 'r', NULL, "restore the newest snapshot first", NULL, &o->resumed},
        {"grace", 'g', "TIME",
         "at SIGTERM, take a snapshot, keep it on disks, end the command within TIME, and exit 75",
         &o->grace, NULL},
        {"relaunch", 0, "N", "start the command again at most N times, on the nodes that are left",
         &o->relaunch, NULL},
        {"nodes", 0, "MIN:MAX",
         "with --relaunch: how many nodes train (default: 1 to all but the spares)", &o->nodes,
         NULL},
        {"wait", 0, "TIME", "with --relaunch: how long to wait for nodes (default: 10m)", &o->wait,
         NULL},
        {"batch-may-change", 0, NULL,
         "with --relaunch: replicas keep their micro-batches if no shape keeps the global batch",
         NULL, &o->relaunches.batch_may_change},
        {"dry-run", 'n', NULL, "show what would run and with which agent", NULL, &o->dry_run},
        {"verbose", 'v', NULL, "also show what is wrong with the protection at the start", NULL,
         &o->verbose},
    };
    const struct cairn_usage usage = {
        "run",
        "[--agent SOCKET] [--every N] [--state SIZE] [--resume] [--grace TIME] "
        "[--relaunch N [--nodes MIN:MAX] [--wait TIME] [--batch-may-change]] [--dry-run] [-v] "
        "-- CMD [ARGUMENT]...",
        about,
        "  cairn run -- ./train --steps 1000\n"
        "  cairn run --resume -- torchrun --nproc-per-node 8 train.py\n"
        "  cairn run --relaunch 5 -- ./train --rank {node_rank} --peers {peers}\n",
        flags,
        sizeof flags / sizeof *flags,
        "CMD",
        NULL};

    if (!cairn_usage_parse(&usage, argc, argv, operand, exit_code))
        return false;
    if (*operand >= argc) {
        *exit_code = cairn_usage_error(&usage, "which command? name it after --");
        return false;
    }
    if (!check_options(&usage, o, exit_code))
        return false;
    return !o->relaunch || cairn_relaunch_check(argv + *operand, exit_code);
}

/* Looks at the job that the agent has, restores if that is asked for, and gives the command its
 * environment. False if another launch runs the job: reported. */
static bool
join(const struct options *o, const char *job, bool started,
     struct cairn_run_attachment *attachment)
{
    struct cairn_run_look look = cairn_run_look(attachment->socket_path, STATUS_MS);

    if (is_taken(attachment->socket_path, &look)) {
        cairn_run_say_taken(&look, "end that launch, or give this one another job name and "
                                   "agents of its own");
        return false;
    }
    if (cairn_run_is_elsewhere(&look) && !o->relaunch)
        cairn_run_say_taken(&look, "until that launch ends, the command's trainers are refused "
                                   "and run WITHOUT protection");
    else if (!started || o->verbose)
        cairn_run_say_protection(attachment->socket_path, STATUS_MS, o->verbose);
    set("CAIRN_AGENT", attachment->socket_path);
    attachment->has_binding = set_python();
    attachment->attached_before = look.attached;
    if (!job && look.job[0])
        set("CAIRN_JOB", look.job);
    if (o->resumed && !o->relaunch)
        resume(attachment->socket_path);
    return true;
}

int
cairn_verb_run(int argc, char **argv)
{
    struct options o = {.relaunches = {.least = 1, .wait_ns = WAIT_SECONDS * CAIRN_NS_PER_S}};
    const char *named = getenv("CAIRN_JOB"), *job = named && named[0] ? named : NULL;
    char socket_path[CAIRN_CONFIG_PATH_BYTES_MAX], plan[CAIRN_RUN_AGENT_TEXT_BYTES];
    struct cairn_run_attachment attachment = {.socket_path = socket_path};
    struct cairn_embedded embedded;
    struct cairn_run_end end;
    enum cairn_run_agent how;
    bool attached, started = false;
    int operand, exit_code;

    if (!read_options(argc, argv, &o, &operand, &exit_code))
        return exit_code;
    if (o.dry_run) {
        if (cairn_run_agent_foresee(o.agent, plan, sizeof plan) == CAIRN_RUN_AGENT_SEVERAL)
            return CAIRN_EXIT_USAGE;
        printf("would run %s%s: %s\n", argv[operand], o.resumed ? " after a restore" : "", plan);
        return CAIRN_EXIT_OK;
    }
    embedded =
        (struct cairn_embedded){.job = job ? job : "default", .every = o.every, .state = o.state};
    how = cairn_run_agent_attach(o.agent, &embedded, socket_path, sizeof socket_path, &started);
    if (how == CAIRN_RUN_AGENT_SEVERAL)
        return CAIRN_EXIT_USAGE;
    attached = how == CAIRN_RUN_AGENT_ATTACHED;
    if (!attached && o.relaunch) {
        fprintf(stderr, "cairn run: --relaunch: no agent answers on this node; start one on each "
                        "node with `cairn agent --config FILE`, or omit --relaunch\n");
        return CAIRN_EXIT_PEER;
    }
    if (!attached)
        fprintf(stderr, "cairn run: the command runs WITHOUT protection\n");
    else if (!join(&o, job, started, &attachment))
        return CAIRN_EXIT_AGAIN;
    if (o.resumed)
        set("CAIRN_RESUME", "1");
    set_plugin();
    attachment.named = o.agent;
    attachment.command = argv + operand;
    attachment.grace_ns = o.grace_ns;
    if (o.relaunch) {
        o.relaunches.budget = strtoul(o.relaunch, NULL, 10);
        o.relaunches.resumes = o.resumed;
        attachment.relaunch = o.relaunch;
        return cairn_relaunch_run(argv + operand, &attachment, &o.relaunches);
    }
    if (!cairn_run_command(argv + operand, attached ? &attachment : NULL, NULL, &end))
        return CAIRN_EXIT_FAILED;
    if (attached)
        cairn_run_say_end(&attachment, &end);
    return end.preempted ? CAIRN_EXIT_AGAIN : end.exit_code;
}
