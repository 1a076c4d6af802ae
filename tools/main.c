/* tools/main.c - the `cairn` command: a table of verbs, the help over all of them, and the way into
 * one. */
#include "agent/core/message.h"
#include "client/session.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { VERBS_MAX = 32 };

static const char release[] = "0.1.0"; /* as bindings/python/pyproject.toml says */

static const struct cairn_verb verbs[] = {
    {"demo", "the whole system on this machine: a job, faults, restores, a report",
     cairn_verb_demo},
    {"agent", "run this node's agent in the foreground", cairn_verb_agent},
    {"run", "start a trainer with everything attached", cairn_verb_run},
    {"snapshot", "take a generation at the next step", cairn_verb_snapshot},
    {"status", "protected against what, how old, what would be lost now, what to do",
     cairn_verb_status},
    {"snapshots", "list generations", cairn_verb_snapshots},
    {"restore", "pick, verify and rebuild a generation after a failure", cairn_verb_restore},
    {"verify", "checksum every byte, repair what is repairable", cairn_verb_verify},
    {"inspect", "what a checkpoint is, without reading its data", cairn_verb_inspect},
    {"convert", "any checkpoint format and parallelism to any other, proven equal",
     cairn_verb_convert},
    {"diff", "the tensors that differ between two checkpoints", cairn_verb_diff},
    {"fingerprint", "what state a checkpoint holds, whatever its format", cairn_verb_fingerprint},
    {"detect", "who is slow, who hangs, and why, from a trace of collective timing",
     cairn_verb_detect},
    {"explain", "a verdict of detect as a story in seconds, with its evidence", cairn_verb_explain},
    {"heatmap", "who computes how long, pipeline stage by pipeline, for the terminal and as PNG",
     cairn_verb_heatmap},
    {"trace", "the last steps of all ranks as a timeline for Perfetto", cairn_verb_trace},
    {"profile", "a problem with the times and rates that a trace of timing shows",
     cairn_verb_profile},
    {"plan", "pipelines for the devices that are left, and how good they are at most",
     cairn_verb_plan},
    {"simulate", "a plan's step, replayed operation by operation", cairn_verb_simulate},
    {"assign", "sequences of different length to pipelines of different speed", cairn_verb_assign},
    {"doctor", "preflight of this node, each finding with its fix", cairn_verb_doctor},
    {"bench", "measure one stage against its floor, both in the same run", cairn_verb_bench},
    {"keeper", NULL, cairn_verb_keeper},
};

static void
print_help(FILE *out)
{
    fprintf(out, "usage: cairn VERB [OPTIONS]\n\n"
                 "Keeps a distributed training job alive: snapshots its state into the nodes' "
                 "memory, protects it\n"
                 "by erasure coding, restores it after failures.\n\nverbs:\n");
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (verbs[i].help)
            fprintf(out, "  %-11s %s\n", verbs[i].name, verbs[i].help);
    fprintf(out, "\nexamples:\n"
                 "  cairn agent --sample > cairn.yaml     # a configuration to start from\n"
                 "  cairn run -- ./train                  # a trainer with an agent beside it\n"
                 "  cairn status                          # is the job protected?\n\n"
                 "Help on one verb: cairn VERB --help; the version: cairn --version\n");
}

static int
unknown_verb(const char *word)
{
    const char *names[VERBS_MAX];
    const char *near;
    size_t count = 0;

    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (verbs[i].help)
            names[count++] = verbs[i].name;
    near = cairn_nearest(word, names, count);
    fprintf(stderr, "cairn: there is no verb \"%s\"%s%s%s\nAll verbs: cairn --help\n", word,
            near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
    return CAIRN_EXIT_USAGE;
}

/* Data that did not reach stdout is a failure, or a script would take half an answer for a whole
 * one. */
static int
finish(int exit_code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return exit_code;
    fprintf(
        stderr,
        "cairn: the output could not be written whole: is the disk full, or the pipe closed?\n");
    return exit_code == CAIRN_EXIT_OK ? CAIRN_EXIT_IO : exit_code;
}

int
main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); /* whoever starts us may ignore it, and then nobody learns how a child
                               * of ours ended */
    if (argc < 2) {
        print_help(stderr);
        return CAIRN_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return finish(CAIRN_EXIT_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("cairn %s (protocols: session %d, agents %d)\n", release, CAIRN_SESSION_PROTOCOL,
               CAIRN_MESSAGE_VERSION);
        return finish(CAIRN_EXIT_OK);
    }
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (strcmp(argv[1], verbs[i].name) == 0)
            return finish(verbs[i].run(argc - 1, argv + 1));
    return unknown_verb(argv[1]);
}
