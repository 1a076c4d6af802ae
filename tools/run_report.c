/* tools/run_report.c - see run_report.h. */
#include "tools/run_report.h"

#include "base/clock.h"
#include "tools/ask.h"
#include "tools/common.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NOTE_BYTES = CAIRN_CONFIG_PATH_BYTES_MAX + 128 };

static bool
ask_status(const char *socket_path, uint32_t timeout_ms, struct cairn_answer *answer)
{
    struct cairn_question question = {
        .verb = "status", .socket = socket_path, .timeout_ms = timeout_ms};

    return cairn_ask(&question, answer) == CAIRN_OK;
}

static void
add_node(const struct cairn_tree *tree, const struct cairn_tree_value *node,
         struct cairn_run_look *look)
{
    uint64_t trainers = cairn_tree_u64(tree, node, "trainers", 0);
    uint64_t world = cairn_tree_u64(tree, node, "world", 0);
    struct cairn_run_holder holder = {.node = cairn_tree_u64(tree, node, "node", 0),
                                      .rank = cairn_tree_u64(tree, node, "holder_rank", 0),
                                      .pid = cairn_tree_u64(tree, node, "holder_pid", 0),
                                      .for_ms = cairn_tree_u64(tree, node, "holder_ms", 0)};

    if (trainers && (look->ranks == 0 || holder.rank < look->holder.rank))
        look->holder = holder;
    look->ranks += trainers;
    look->world = world > look->world ? world : look->world;
}

struct cairn_run_look
cairn_run_look(const char *socket_path, uint32_t timeout_ms)
{
    struct cairn_run_look look = {.attached = UINT64_MAX};
    const struct cairn_tree_value *nodes, *node = NULL;
    struct cairn_answer answer;
    uint64_t self;

    if (!ask_status(socket_path, timeout_ms, &answer))
        return look;
    look.answered = true;
    cairn_tree_text(&answer.tree, NULL, "job", look.job, sizeof look.job);
    self = cairn_tree_u64(&answer.tree, NULL, "node", UINT64_MAX);
    nodes = cairn_tree_find(&answer.tree, NULL, "nodes");
    while ((node = cairn_tree_next(&answer.tree, nodes, node))) {
        if (cairn_tree_u64(&answer.tree, node, "node", UINT64_MAX - 1) == self) {
            look.attached =
                cairn_tree_u64(&answer.tree, node, "trainers_attached_total", UINT64_MAX);
            look.own_ranks = cairn_tree_u64(&answer.tree, node, "trainers", 0);
        }
        add_node(&answer.tree, node, &look);
    }
    cairn_answer_fini(&answer);
    return look;
}

bool
cairn_run_is_taken(const struct cairn_run_look *look)
{
    return look->world != 0 && look->ranks >= look->world && look->own_ranks > 0;
}

bool
cairn_run_is_elsewhere(const struct cairn_run_look *look)
{
    return look->world != 0 && look->ranks >= look->world && look->own_ranks == 0;
}

void
cairn_run_say_taken(const struct cairn_run_look *look, const char *so)
{
    char age[CAIRN_SHOWN_BYTES];

    fprintf(stderr,
            "cairn run: job \"%s\" already runs: all %" PRIu64 " ranks are attached, rank %" PRIu64
            " as process %" PRIu64 " on node %" PRIu64 " for %s; %s\n",
            look->job, look->world, look->holder.rank, look->holder.pid, look->holder.node,
            cairn_show_duration(look->holder.for_ms * CAIRN_NS_PER_MS, age), so);
}

/* ---- what protects it ---- */

static void
print_checks(const struct cairn_tree *tree)
{
    const struct cairn_tree_value *checks = cairn_tree_find(tree, NULL, "checks"), *check = NULL;
    char level[16], what[NOTE_BYTES];

    while ((check = cairn_tree_next(tree, checks, check))) {
        cairn_tree_text(tree, check, "level", level, sizeof level);
        if (strcmp(level, "OK") != 0)
            fprintf(stderr, "cairn run: %s: %s\n", level,
                    cairn_tree_text(tree, check, "what", what, sizeof what));
    }
}

/* Against what: by the configuration, since a job that begins holds nothing yet. */
static void
describe_cover(const struct cairn_tree *tree, char *out, size_t out_bytes)
{
    uint64_t nodes = cairn_tree_u64(tree, NULL, "nodes_configured", 0);
    uint64_t answering = cairn_tree_u64(tree, NULL, "nodes_answering", 0);
    uint64_t parity = cairn_tree_u64(tree, NULL, "configured.parity", 0);
    char some[48] = "";

    if (answering < nodes)
        snprintf(some, sizeof some, " (%" PRIu64 " answer now)", answering);
    if (nodes < 2)
        snprintf(out, out_bytes,
                 "its snapshots, in this node's memory, outlive the trainer, but not the node");
    else if (parity == 0)
        snprintf(out, out_bytes,
                 "its snapshots, in the memory of %" PRIu64
                 " nodes%s, outlive the trainers, but not a lost node",
                 nodes, some);
    else
        snprintf(out, out_bytes,
                 "its snapshots, in the memory of %" PRIu64
                 " nodes%s, outlive the trainers and the loss of any %" PRIu64
                 " node%s of each group",
                 nodes, some, parity, parity == 1 ? "" : "s");
}

void
cairn_run_say_protection(const char *socket_path, uint32_t timeout_ms, bool verbose)
{
    char job[CAIRN_CONFIG_JOB_BYTES_MAX], cover[256];
    char spill_dir[CAIRN_CONFIG_PATH_BYTES_MAX];
    struct cairn_answer answer;

    if (!ask_status(socket_path, timeout_ms, &answer)) {
        fprintf(stderr, "cairn run: %s: the agent does not answer; see `cairn status`\n",
                socket_path);
        return;
    }
    describe_cover(&answer.tree, cover, sizeof cover);
    cairn_tree_text(&answer.tree, NULL, "configured.spill_dir", spill_dir, sizeof spill_dir);
    fprintf(stderr, "cairn run: %s: this agent protects job \"%s\": %s%s%s\n", socket_path,
            cairn_tree_text(&answer.tree, NULL, "job", job, sizeof job), cover,
            spill_dir[0] ? "; some go to files in " : "", spill_dir);
    if (verbose)
        print_checks(&answer.tree);
    cairn_answer_fini(&answer);
}

/* ---- what was kept ---- */

static bool
is_plain(const char *word)
{
    return word[0] &&
           word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                             "_-./=:,@%+")] == '\0';
}

/* Prints a word so that a shell reads it as one. */
static void
print_word(const char *word)
{
    if (is_plain(word)) {
        fprintf(stderr, " %s", word);
        return;
    }
    fprintf(stderr, " '");
    for (; *word; word++)
        fprintf(stderr, *word == '\'' ? "'\\''" : "%c", *word);
    fprintf(stderr, "'");
}

void
cairn_run_say_kept(const char *socket_path, uint32_t timeout_ms, const char *named,
                   const char *relaunch, char *const *command)
{
    char bytes[CAIRN_SHOWN_BYTES], from[16], files[NOTE_BYTES] = "";
    char spill_dir[CAIRN_CONFIG_PATH_BYTES_MAX];
    struct cairn_answer answer;

    if (!ask_status(socket_path, timeout_ms, &answer))
        return;
    if (cairn_tree_u64(&answer.tree, NULL, "newest.step", 0) == 0) {
        fprintf(stderr, "cairn run: nothing was kept: no snapshot was committed\n");
        cairn_answer_fini(&answer);
        return;
    }
    if (cairn_tree_u64(&answer.tree, NULL, "spilled.step", 0))
        snprintf(files, sizeof files, ", step %" PRIu64 " in %s",
                 cairn_tree_u64(&answer.tree, NULL, "spilled.step", 0),
                 cairn_tree_text(&answer.tree, NULL, "configured.spill_dir", spill_dir,
                                 sizeof spill_dir));
    fprintf(stderr,
            "cairn run: kept epoch %" PRIu64 " step %" PRIu64 " (%s) in %s%s; go on with:"
            " cairn run",
            cairn_tree_u64(&answer.tree, NULL, "newest.epoch", 0),
            cairn_tree_u64(&answer.tree, NULL, "newest.step", 0),
            cairn_show_bytes(cairn_tree_u64(&answer.tree, NULL, "newest.bytes", 0), bytes),
            cairn_tree_text(&answer.tree, NULL, "newest.from", from, sizeof from), files);
    if (relaunch)
        fprintf(stderr, " --relaunch %s", relaunch);
    if (named) {
        fprintf(stderr, " --agent");
        print_word(named);
    }
    fprintf(stderr, " --resume --");
    for (; *command; command++)
        print_word(*command);
    fprintf(stderr, "\n");
    cairn_answer_fini(&answer);
}
