/* tools/find_agent.c - see find_agent.h. */
#include "tools/find_agent.h"

#include "agent/process/listing.h"
#include "agent/process/served.h"
#include "tools/common.h"
#include "tools/verb.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ANSWER_MS = 2000 };

/* The socket that the configuration's default names. */
static const char *
default_socket(void)
{
    static char path[CAIRN_CONFIG_SOCKET_BYTES_MAX];
    struct cairn_config config;

    if (!path[0] && cairn_config_default(&config) == CAIRN_OK) {
        memcpy(path, config.socket, sizeof path);
        cairn_config_fini(&config);
    }
    return path;
}

static bool
is_refused(const char *socket_path)
{
    return access(socket_path, R_OK | W_OK) != 0 && (errno == EACCES || errno == EPERM);
}

/* Adds the agent of a socket if it lives, may be reached, and was not found by another path. */
static void
add(struct cairn_found *found, const char *socket_path)
{
    char lock_path[CAIRN_CONFIG_SOCKET_BYTES_MAX + 8];
    struct cairn_found_agent *agent = &found->agents[found->count];
    struct cairn_served served = {0};
    struct stat status;

    if (found->count == CAIRN_FOUND_MAX) {
        found->complete = false;
        return;
    }
    *agent = (struct cairn_found_agent){0};
    snprintf(agent->socket, sizeof agent->socket, "%s", socket_path);
    snprintf(lock_path, sizeof lock_path, "%s.lock", agent->socket);
    if (is_refused(agent->socket))
        return;
    if (!(cairn_served_look(agent->socket, &served) && served.lives) &&
        !cairn_agent_answers(agent->socket, ANSWER_MS))
        return;
    if (stat(lock_path, &status) == 0) {
        agent->lock[0] = (uint64_t)status.st_dev;
        agent->lock[1] = (uint64_t)status.st_ino;
    }
    for (uint32_t i = 0; i < found->count; i++)
        if (strcmp(agent->socket, found->agents[i].socket) == 0 ||
            (agent->lock[1] && memcmp(agent->lock, found->agents[i].lock, sizeof agent->lock) == 0))
            return;
    memcpy(agent->job, served.job, sizeof agent->job);
    agent->node = served.node;
    agent->node_count = served.node_count;
    agent->pid = served.pid;
    found->count++;
}

static int
compare(const void *a, const void *b)
{
    const struct cairn_found_agent *left = a, *right = b;
    int by_job = strcmp(left->job, right->job);

    if (by_job)
        return by_job;
    if (left->node != right->node)
        return left->node < right->node ? -1 : 1;
    return strcmp(left->socket, right->socket);
}

static const char *
text_of(const char *given, const char *variable)
{
    const char *value = given && given[0] ? given : getenv(variable);

    return value && value[0] ? value : NULL;
}

enum cairn_find
cairn_find_agents(const char *given, const char *job, struct cairn_found *out)
{
    static char sockets[CAIRN_FOUND_MAX][CAIRN_CONFIG_SOCKET_BYTES_MAX];
    const struct cairn_found_agent *of_job = NULL;
    uint32_t of_job_count = 0, listed;

    *out = (struct cairn_found){.complete = true, .socket = text_of(given, "CAIRN_AGENT")};
    if (out->socket)
        return CAIRN_FIND_NAMED;
    add(out, default_socket());
    listed = cairn_listing_read(sockets, CAIRN_FOUND_MAX, &out->complete);
    for (uint32_t i = 0; i < listed; i++)
        add(out, sockets[i]);
    if (out->count == 0) {
        out->socket = default_socket();
        return CAIRN_FIND_NONE;
    }
    qsort(out->agents, out->count, sizeof out->agents[0], compare);
    job = text_of(job, "CAIRN_JOB");
    for (uint32_t i = 0; job && i < out->count; i++)
        if (strcmp(out->agents[i].job, job) == 0) {
            of_job = &out->agents[i];
            of_job_count++;
        }
    if (out->count == 1)
        out->socket = out->agents[0].socket;
    else if (of_job_count == 1)
        out->socket = of_job->socket;
    return out->socket ? CAIRN_FIND_ONE : CAIRN_FIND_SEVERAL;
}

void
cairn_find_print_several(const char *verb, const struct cairn_found *found)
{
    fprintf(stderr,
            "cairn %s: %s%" PRIu32 " agents run on this node; name one with --agent SOCKET\n", verb,
            found->complete ? "" : "more than ", found->count);
    for (uint32_t i = 0; i < found->count; i++) {
        const struct cairn_found_agent *agent = &found->agents[i];

        fprintf(stderr, "  job %s  node %" PRIu32 " of %" PRIu32 "  socket %s  pid %" PRIu32 "\n",
                agent->job[0] ? agent->job : "?", agent->node, agent->node_count, agent->socket,
                agent->pid);
    }
}

int
cairn_find_agent(const char *verb, const char *given, const char *job, struct cairn_found *out)
{
    switch (cairn_find_agents(given, job, out)) {
    case CAIRN_FIND_NAMED:
    case CAIRN_FIND_ONE:
        return CAIRN_EXIT_OK;
    case CAIRN_FIND_SEVERAL:
        cairn_find_print_several(verb, out);
        return CAIRN_EXIT_USAGE;
    case CAIRN_FIND_NONE:
        break;
    }
    if (is_refused(out->socket)) {
        fprintf(stderr,
                "cairn %s: %s: the agent belongs to another user; run this as that user or as "
                "root\n",
                verb, out->socket);
        return CAIRN_EXIT_DENIED;
    }
    fprintf(stderr,
            "cairn %s: no agent runs on this node for this user; start one with `cairn run -- "
            "CMD` or `cairn agent --config FILE`, or name one with --agent SOCKET\n",
            verb);
    return CAIRN_EXIT_PEER;
}

int
cairn_find_and_ask(const char *verb, const char *given, struct cairn_question *question,
                   struct cairn_answer *answer)
{
    struct cairn_found found;
    int exit_code = cairn_find_agent(verb, given, NULL, &found);

    if (exit_code)
        return exit_code;
    question->socket = found.socket;
    exit_code = cairn_ask_or_say(question, answer);
    question->socket = NULL;
    if (exit_code || !cairn_answer_refused(verb, answer))
        return exit_code;
    exit_code = answer->exit_code;
    cairn_answer_fini(answer);
    return exit_code;
}
