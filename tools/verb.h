/*
 * tools/verb.h - the verbs of the `cairn` command: one function each, and their exit codes.
 *
 * A verb gets its own name as argv[0] and returns the process's exit code. It writes data to stdout
 * and messages to stderr.
 */
#ifndef CAIRN_TOOLS_VERB_H
#define CAIRN_TOOLS_VERB_H

#include <stdbool.h>

enum cairn_exit {
    CAIRN_EXIT_OK = 0,
    CAIRN_EXIT_FAILED = 1,
    CAIRN_EXIT_WARN = 2,     /* done with warnings; verify: repaired */
    CAIRN_EXIT_CRITICAL = 3, /* critical state; verify: loss found */
    CAIRN_EXIT_LOST = 4,     /* nothing restorable; replan: nothing is proposed or changed */
    CAIRN_EXIT_USAGE = 64,
    CAIRN_EXIT_INPUT = 65, /* a bad input file */
    CAIRN_EXIT_PEER = 69,  /* an agent or peer cannot be reached */
    CAIRN_EXIT_IO = 74,
    CAIRN_EXIT_AGAIN = 75,
    CAIRN_EXIT_DENIED = 77,
    CAIRN_EXIT_CONFIG = 78
};

struct cairn_verb {
    const char *name;
    const char *help; /* one line, an imperative; NULL: not listed */
    int (*run)(int argc, char **argv);
};

int cairn_verb_agent(int argc, char **argv);
int cairn_verb_assign(int argc, char **argv);
int cairn_verb_bench(int argc, char **argv);
int cairn_verb_convert(int argc, char **argv);
int cairn_verb_demo(int argc, char **argv);
int cairn_verb_detect(int argc, char **argv);
int cairn_verb_diff(int argc, char **argv);
int cairn_verb_doctor(int argc, char **argv);
int cairn_verb_explain(int argc, char **argv);
int cairn_verb_fingerprint(int argc, char **argv);
int cairn_verb_heatmap(int argc, char **argv);
int cairn_verb_history(int argc, char **argv);
int cairn_verb_inspect(int argc, char **argv);
int cairn_verb_keeper(int argc, char **argv);
int cairn_verb_metrics(int argc, char **argv);
int cairn_verb_drill(int argc, char **argv);
int cairn_verb_node(int argc, char **argv);
int cairn_verb_plan(int argc, char **argv);
int cairn_verb_profile(int argc, char **argv);
int cairn_verb_replan(int argc, char **argv);
int cairn_verb_report(int argc, char **argv);
int cairn_verb_restore(int argc, char **argv);
int cairn_verb_run(int argc, char **argv);
int cairn_verb_simulate(int argc, char **argv);
int cairn_verb_snapshot(int argc, char **argv);
int cairn_verb_snapshots(int argc, char **argv);
int cairn_verb_status(int argc, char **argv);
int cairn_verb_trace(int argc, char **argv);
int cairn_verb_verify(int argc, char **argv);

#endif
