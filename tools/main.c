/* tools/main.c - the `cairn` command: the table of verbs, their common help, the dispatch. */
#include "agent/process/protocol.h"
#include "base/output.h"
#include "base/secret.h"
#include "client/session.h"
#include "tools/manual.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const char release[] = "0.1.0"; /* as bindings/python/pyproject.toml says */

/* In the order of the help. A row without a function begins a group. */
static const struct cairn_verb verbs[] = {
    {"Protect a job", NULL, NULL},
    {"run", "run a trainer with an agent attached", cairn_verb_run},
    {"agent", "run this node's agent", cairn_verb_agent},
    {"status", "show what is protected, its age, and what to do", cairn_verb_status},
    {"metrics", "print or serve the status as OpenMetrics", cairn_verb_metrics},
    {"snapshot", "take a snapshot at the next step", cairn_verb_snapshot},
    {"snapshots", "list the snapshots", cairn_verb_snapshots},
    {"verify", "checksum every byte and repair damage", cairn_verb_verify},
    {"drill", "prove that the loss of nodes is survivable", cairn_verb_drill},
    {"After a failure", NULL, NULL},
    {"history", "show what happened to the job, in causal order", cairn_verb_history},
    {"report", "show where the job's time went, and the best interval", cairn_verb_report},
    {"restore", "rebuild the newest complete snapshot", cairn_verb_restore},
    {"node", "replace a dead node by another machine, or remove it", cairn_verb_node},
    {"Find slow ranks", NULL, NULL},
    {"detect", "find slow and hanging ranks, nodes and links", cairn_verb_detect},
    {"explain", "explain one verdict, plan or event", cairn_verb_explain},
    {"heatmap", "draw each rank's compute time", cairn_verb_heatmap},
    {"trace", "export the last steps for Perfetto", cairn_verb_trace},
    {"Plan", NULL, NULL},
    {"replan", "show proposed plan changes; approve or deny them", cairn_verb_replan},
    {"plan", "plan pipelines for the devices that are left", cairn_verb_plan},
    {"simulate", "replay one step of a plan", cairn_verb_simulate},
    {"assign", "assign sequences to pipelines", cairn_verb_assign},
    {"profile", "measure a planning problem from a trace", cairn_verb_profile},
    {"Checkpoints", NULL, NULL},
    {"inspect", "show a checkpoint's metadata", cairn_verb_inspect},
    {"convert", "convert a checkpoint to another format or parallelism", cairn_verb_convert},
    {"diff", "list the tensors that differ between two checkpoints", cairn_verb_diff},
    {"fingerprint", "print a checkpoint's fingerprint, equal in every format",
     cairn_verb_fingerprint},
    {"This machine", NULL, NULL},
    {"doctor", "check this node before a job starts", cairn_verb_doctor},
    {"demo", "run a cluster here, kill nodes, and restore", cairn_verb_demo},
    {"bench", "measure each stage against its floor", cairn_verb_bench},
    {"keeper", NULL, cairn_verb_keeper},
};
enum { ROWS = sizeof verbs / sizeof *verbs };

/* `cairn manual …` */
static int
write_manual(int argc, char **argv)
{
    const struct cairn_verbs all = {verbs, ROWS, release};

    return cairn_manual_run(&all, argc, argv);
}

static void
print_help(FILE *out)
{
    fprintf(out, "usage: cairn VERB [OPTIONS]\n\n"
                 "Keeps a distributed training job alive: snapshots its state into the memory of\n"
                 "its nodes, protects the snapshots with erasure coding, and restores them after\n"
                 "failures.\n");
    for (size_t i = 0; i < ROWS; i++)
        if (!verbs[i].run)
            fprintf(out, "\n%s:\n", verbs[i].name);
        else if (verbs[i].help)
            fprintf(out, "  %-12s %s\n", verbs[i].name, verbs[i].help);
    fprintf(out,
            "\nHelp:\n"
            "  %-12s show the help of a verb: cairn help VERB, cairn VERB --help\n"
            "  %-12s print the version\n"
            "\nexamples:\n"
            "  cairn run -- ./train                # protect a trainer on this node\n"
            "  cairn status                        # show what is protected\n"
            "  cairn run --resume -- ./train       # restart it after a failure\n",
            "help", "version");
}

static const struct cairn_verb *
find_verb(const char *word)
{
    for (size_t i = 0; i < ROWS; i++)
        if (verbs[i].run && strcmp(word, verbs[i].name) == 0)
            return &verbs[i];
    return NULL;
}

static int
unknown_verb(const char *word)
{
    const char *names[ROWS + 2];
    const char *near;
    size_t count = 0;

    for (size_t i = 0; i < ROWS; i++)
        if (verbs[i].run && verbs[i].help)
            names[count++] = verbs[i].name;
    names[count++] = "help";
    names[count++] = "version";
    near = cairn_nearest(word, names, count);
    fprintf(stderr, "cairn: unknown verb \"%s\"; ", word);
    if (near)
        fprintf(stderr, "did you mean \"%s\"?\n", near);
    else
        fprintf(stderr, "see `cairn help`\n");
    return CAIRN_EXIT_USAGE;
}

/* `cairn help [VERB]` */
static int
help(int argc, char **argv)
{
    static char option[] = "--help";
    const struct cairn_verb *verb = argc > 1 ? find_verb(argv[1]) : NULL;
    char *words[] = {argc > 1 ? argv[1] : NULL, option, NULL};

    if (argc > 2) {
        fprintf(stderr, "cairn help: unexpected argument \"%s\"; name one verb\n", argv[2]);
        return CAIRN_EXIT_USAGE;
    }
    if (argc > 1 && strcmp(argv[1], "help") != 0 && strcmp(argv[1], "version") != 0)
        return verb && verb->help ? verb->run(2, words) : unknown_verb(argv[1]);
    print_help(stdout);
    return CAIRN_EXIT_OK;
}

static void
print_version(void)
{
    printf("cairn %s (protocols: session %d, agents %d)\n", release, CAIRN_SESSION_PROTOCOL,
           CAIRN_PROTOCOL_NEWEST);
}

/* Fails if stdout did not take everything: a script must not mistake a part for the whole. */
static int
finish(int exit_code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return exit_code;
    fprintf(stderr, "cairn: stdout: cannot write all of the output; is the disk full or the pipe "
                    "closed?\n");
    return exit_code == CAIRN_EXIT_OK ? CAIRN_EXIT_IO : exit_code;
}

int
main(int argc, char **argv)
{
    const struct cairn_verb *verb;

    cairn_output_setup();
    (void)cairn_secret_erase_freed();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); /* if our parent ignores it, we could not wait for our children */
    if (argc < 2) {
        print_help(stderr);
        return CAIRN_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0)
        return finish(help(argc - 1, argv + 1));
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
        if (argc > 2 && strcmp(argv[2], "--help") != 0 && strcmp(argv[2], "-h") != 0) {
            fprintf(stderr, "cairn version: unexpected argument \"%s\"; remove it\n", argv[2]);
            return CAIRN_EXIT_USAGE;
        }
        print_version();
        return finish(CAIRN_EXIT_OK);
    }
    if (strcmp(argv[1], "manual") == 0)
        return finish(write_manual(argc - 1, argv + 1));
    verb = find_verb(argv[1]);
    return verb ? finish(verb->run(argc - 1, argv + 1)) : unknown_verb(argv[1]);
}
