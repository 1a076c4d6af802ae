/* tools/drill.c - `cairn drill`: would the job survive the loss of these nodes? */
#include "agent/process/config.h"
#include "tools/ask.h"
#include "tools/common.h"
#include "tools/find_agent.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { TIMEOUT_MS = 24 * 3600 * 1000, NODES_BYTES = 64 };

static const char about[] =
    "Rehearses the loss of nodes while the job runs. The other nodes decode what these nodes hold "
    "of the newest generation into scratch memory and compare it with its checksums. Nothing of "
    "the job changes: no epoch, no generation, no memory of a node. Training goes on.\n"
    "\n"
    "Exits 0 if the loss is survivable, 4 if it is not, with the reason, 75 if it cannot be found "
    "out now.";

static const char examples[] = "  cairn drill --node 3\n"
                               "  cairn drill --node 3,5 --rate 1GiB\n";

static void
print_result(const struct cairn_tree *tree, const char *nodes)
{
    bool survivable = cairn_tree_bool(tree, NULL, "survivable", false);
    uint64_t first = cairn_tree_u64(tree, NULL, "first_step", 0);
    uint64_t step = cairn_tree_u64(tree, NULL, "step", 0);
    uint64_t damaged = cairn_tree_u64(tree, NULL, "damaged_blocks", 0);
    char reason[512], decoded[CAIRN_SHOWN_BYTES], read[CAIRN_SHOWN_BYTES], took[CAIRN_SHOWN_BYTES];

    cairn_tree_text(tree, NULL, "reason", reason, sizeof reason);
    cairn_print_coloured(stdout, survivable ? "32" : "1;31",
                         survivable ? "survivable" : "NOT survivable");
    printf(": the loss of node %s at epoch %" PRIu64 " step %" PRIu64 "\n  %s\n", nodes,
           cairn_tree_u64(tree, NULL, "epoch", 0), step, reason);
    printf("  decoded %s from %s of the other nodes in %s\n",
           cairn_show_bytes(cairn_tree_u64(tree, NULL, "decoded_bytes", 0), decoded),
           cairn_show_bytes(cairn_tree_u64(tree, NULL, "read_bytes", 0), read),
           cairn_show_duration(cairn_tree_u64(tree, NULL, "took_ns", 0), took));
    if (first && first != step)
        printf("  newer generations were committed meanwhile: the drill began at step %" PRIu64
               " and went on in each\n",
               first);
    if (damaged)
        printf("  %" PRIu64 " blocks of the other nodes are damaged and were left out; `cairn "
               "verify` repairs them\n",
               damaged);
}

int
cairn_verb_drill(int argc, char **argv)
{
    const char *agent = NULL, *job = NULL, *output = NULL, *nodes = NULL, *rate = NULL;
    bool json;
    const struct cairn_flag flags[] = {
        {"node", 'n', "LIST", "nodes that are lost, with commas between them", &nodes, NULL},
        {"rate", 0, "SIZE", "read so many bytes per second at most (default: 256MiB)", &rate, NULL},
        {"job", 'j', "JOB", "ask the agent of this job, and fail if there is none", &job, NULL},
        {"agent", 'a', "SOCKET", CAIRN_AGENT_HELP, &agent, NULL},
        {"output", 'o', "table|json", "print text (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {
        "drill", "--node LIST [--rate SIZE] [--job JOB] [--agent SOCKET] [-o table|json]",
        about,   examples,
        flags,   sizeof flags / sizeof *flags,
        NULL,    NULL};
    struct cairn_question question = {
        .verb = "drill", .timeout_ms = TIMEOUT_MS, .progress = "drill"};
    struct cairn_found found;
    struct cairn_answer answer;
    int exit_code;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    if (!nodes || !nodes[0] || strlen(nodes) >= NODES_BYTES)
        return cairn_usage_error(&usage,
                                 "--node: missing; name the lost nodes, such as --node 3,5");
    if (rate && (cairn_parse_bytes(rate, &question.rate) != CAIRN_OK || question.rate == 0))
        return cairn_usage_error(&usage, "--rate %s: expected a size such as 512MiB", rate);
    exit_code = cairn_find_agent("drill", agent, job, &found);
    if (exit_code)
        return exit_code;
    question.socket = found.socket;
    question.node = nodes;
    exit_code = cairn_ask_or_say(&question, &answer);
    if (exit_code)
        return exit_code;
    exit_code = answer.exit_code;
    if (json)
        printf("%s\n", answer.text);
    if (!cairn_answer_refused("drill", &answer) && !json)
        print_result(&answer.tree, nodes);
    cairn_answer_fini(&answer);
    return exit_code;
}
