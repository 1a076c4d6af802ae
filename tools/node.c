/* tools/node.c - `cairn node`: replaces a dead node by another machine, or removes it. */
#include "agent/process/config.h"
#include "tools/ask.h"
#include "tools/common.h"
#include "tools/find_agent.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_MS = 120000, WORDS_MAX = 3 };

static const char about[] =
    "Changes which machines belong to the job, while it runs. One agent is told; it tells the "
    "others, and agents that are away learn it when they are back. No file needs an edit.\n"
    "\n"
    "  replace NODE ADDRESS\n"
    "            Node NODE is another machine from now on: its agent listens at ADDRESS "
    "(host:port). Start that agent with a file that lists the same nodes in the same order, with "
    "ADDRESS as its own. It gets the parts that the dead node held.\n"
    "  remove NODE\n"
    "            Node NODE does not come back. Nobody waits for it; majorities still count all "
    "nodes of the file. Its number is not used again.\n"
    "\n"
    "NODE is a number, or the address that `cairn status` prints.\n"
    "\n"
    "Exits 64 if there is no such node or the address cannot be used, 77 if the node's agent "
    "runs, 75 if too few agents answer.";

static const char examples[] =
    "  cairn node replace 3 10.0.0.17:7431   # the agent of node 3 is now there\n"
    "  cairn node remove 5                   # go on without node 5\n";

static void
print_changed(const struct cairn_tree *tree, bool removes)
{
    char address[CAIRN_CONFIG_ADDRESS_BYTES_MAX];
    uint64_t node = cairn_tree_u64(tree, NULL, "node", 0);

    if (cairn_tree_bool(tree, NULL, "dry_run", false))
        printf("would %s node %" PRIu64 "\n", removes ? "remove" : "replace", node);
    else if (removes)
        printf("node %" PRIu64 " is removed (epoch %" PRIu64 ")\n", node,
               cairn_tree_u64(tree, NULL, "epoch", 0));
    else
        printf("node %" PRIu64 " is at %s from now on (epoch %" PRIu64 ")\n", node,
               cairn_tree_text(tree, NULL, "address", address, sizeof address),
               cairn_tree_u64(tree, NULL, "epoch", 0));
}

int
cairn_verb_node(int argc, char **argv)
{
    const char *agent = NULL, *output = NULL;
    bool force = false, dry_run = false, json, removes;
    const struct cairn_flag flags[] = {
        {"force", 0, NULL, "change it although its agent runs; that agent stops", NULL, &force},
        {"dry-run", 'n', NULL, "check the change, and do nothing", NULL, &dry_run},
        {"agent", 'a', "SOCKET", CAIRN_AGENT_HELP, &agent, NULL},
        {"output", 'o', "table|json", "print a line (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {
        "node",
        "[--force] [--dry-run] [--agent SOCKET] [-o table|json] replace NODE ADDRESS | remove NODE",
        about,
        examples,
        flags,
        sizeof flags / sizeof *flags,
        "replace|remove",
        NULL};
    struct cairn_question question = {.verb = "node", .timeout_ms = TIMEOUT_MS, .progress = "node"};
    struct cairn_found found;
    struct cairn_answer answer;
    const char *word[WORDS_MAX];
    int at, words, operand, exit_code;

    for (words = at = 0;; word[words++] = argv[at]) { /* options may stand among the words */
        if (!cairn_usage_parse(&usage, argc - at, argv + at, &operand, &exit_code))
            return exit_code;
        at += operand;
        if (at >= argc)
            break;
        if (words == WORDS_MAX)
            return cairn_usage_error(&usage, "%s: unexpected argument; omit it", argv[at]);
    }
    removes = words > 0 && strcmp(word[0], "remove") == 0;
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    if (words == 0)
        return cairn_usage_error(&usage, "which action? name replace or remove");
    if (!removes && strcmp(word[0], "replace") != 0)
        return cairn_usage_error(&usage, "\"%s\": expected replace or remove", word[0]);
    if (words != (removes ? 2 : 3))
        return cairn_usage_error(&usage, "%s takes %s", word[0],
                                 removes ? "one node" : "a node and its new address");
    for (int i = 1; i < words; i++)
        if (strlen(word[i]) >= CAIRN_CONFIG_ADDRESS_BYTES_MAX)
            return cairn_usage_error(&usage, "%.20s…: the address is too long", word[i]);
    exit_code = cairn_find_agent("node", agent, NULL, &found);
    if (exit_code)
        return exit_code;
    question.socket = found.socket;
    question.change = word[0];
    question.node = word[1];
    question.address = removes ? NULL : word[2];
    question.force = force;
    question.dry_run = dry_run;
    exit_code = cairn_ask_or_say(&question, &answer);
    if (exit_code)
        return exit_code;
    exit_code = answer.exit_code;
    if (json)
        printf("%s\n", answer.text);
    if (!cairn_answer_refused("node", &answer) && !json)
        print_changed(&answer.tree, removes);
    cairn_answer_fini(&answer);
    return exit_code;
}
