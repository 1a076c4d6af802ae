/*
 * tools/find_agent.h - which agent a verb talks to: one rule for all verbs.
 *
 *   1. `--agent SOCKET`, or else $CAIRN_AGENT, names an agent: that one and no other.
 *   2. Otherwise all live agents are found on this node that this user may reach: those in the
 *      list that agents keep (agent/process/listing.h), and the agent of the default socket. An
 *      agent lives if it holds the lock beside its socket, or answers.
 *   3. If one is found, it is used. If several are found, and --job, or else $CAIRN_JOB, names a
 *      job that exactly one of them serves, that one is used; otherwise they are printed and the
 *      verb ends with exit code 64. If none is found, `cairn run` starts one (tools/embedded.h),
 *      other verbs end with exit code 69.
 *
 * The clusters that `cairn demo` and `cairn bench` start for themselves are not in the list.
 */
#ifndef CAIRN_TOOLS_FIND_AGENT_H
#define CAIRN_TOOLS_FIND_AGENT_H

#include "agent/process/config.h"
#include "tools/ask.h"

#include <stdbool.h>
#include <stdint.h>

enum { CAIRN_FOUND_MAX = 64 };

/* The help of --agent, for all verbs that have it. */
#define CAIRN_AGENT_HELP "use this agent (default: $CAIRN_AGENT, or the only agent found)"

enum cairn_find {
    CAIRN_FIND_NAMED, /* `socket` is what the user named; it was not probed */
    CAIRN_FIND_ONE,   /* `socket` is the agent's */
    CAIRN_FIND_SEVERAL,
    CAIRN_FIND_NONE /* `socket` is the default one */
};

struct cairn_found_agent {
    char socket[CAIRN_CONFIG_SOCKET_BYTES_MAX];
    char job[CAIRN_CONFIG_JOB_BYTES_MAX]; /* empty: unknown */
    uint32_t node;
    uint32_t node_count; /* 0: unknown */
    uint32_t pid;        /* 0: unknown */
    uint64_t lock[2];    /* device and inode of the lock file; 0: none */
};

struct cairn_found {
    const char *socket; /* of the agent to talk to; NULL: several. Points into this struct, to
                         * `given`, or to the environment */
    uint32_t count;
    bool complete; /* false: there are more than `agents` */
    struct cairn_found_agent agents[CAIRN_FOUND_MAX];
};

/* Applies the rule. `given` is the value of --agent and `job` that of --job; each may be NULL.
 * Prints nothing. Blocks for at most two seconds per agent that does not answer. */
enum cairn_find cairn_find_agents(const char *given, const char *job, struct cairn_found *out);

/* Prints on stderr, under the verb's name, which agents were found and how to name one. */
void cairn_find_print_several(const char *verb, const struct cairn_found *found);

/*
 * Applies the rule for a verb that needs an agent. Returns 0 and sets out->socket, or prints what
 * is wrong and what to do and returns the exit code.
 */
int cairn_find_agent(const char *verb, const char *given, const char *job, struct cairn_found *out);

/*
 * Finds the agent and asks it; question->socket is set for the call. 0: *answer has the answer, and
 * the caller ends it. Otherwise prints the error under the verb's name, and returns the exit code.
 */
int cairn_find_and_ask(const char *verb, const char *given, struct cairn_question *question,
                       struct cairn_answer *answer);

#endif
