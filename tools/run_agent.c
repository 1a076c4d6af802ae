/* tools/run_agent.c - see run_agent.h. */
#include "tools/run_agent.h"

#include "agent/process/served.h"
#include "base/clock.h"
#include "tools/ask.h"
#include "tools/find_agent.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

enum {
    HELLO_MS = 2000,
    STARTING_SECONDS = 10,
    POLL_MS = 100,
    SHOWN_BYTES = CAIRN_CONFIG_PATH_BYTES_MAX
};

/* Options for a new agent do not change a running one. */
static void
say_configured(const struct cairn_embedded *embedded, const char *socket_path)
{
    if (embedded->every || embedded->state)
        fprintf(stderr,
                "cairn run: %s: --every and --state are ignored: the agent runs already; change "
                "its configuration instead\n",
                socket_path);
}

/* True if `cairn run` did not start the agent that served the socket, and therefore must not
 * replace it. `text` tells who did and what to do. */
static bool
is_of_another(const char *socket_path, char *text, size_t text_bytes)
{
    struct cairn_served served;
    struct stat status;
    char who[64] = "the agent", start[SHOWN_BYTES + 128] = "start it again",
         state[96] = "has ended";
    bool known = cairn_served_look(socket_path, &served);

    if (!known && lstat(socket_path, &status) != 0)
        return false; /* no agent was ever there */
    if (known && cairn_embedded_is(socket_path, served.config))
        return false;
    if (!known && !S_ISSOCK(status.st_mode)) {
        snprintf(text, text_bytes,
                 "%s: not a socket; name an agent's socket, or a path that does not exist",
                 socket_path);
        return true;
    }
    if (known && served.node_count > 1)
        snprintf(who, sizeof who, "the agent of node %" PRIu32 " in a cluster of %" PRIu32,
                 served.node, served.node_count);
    if (known && served.config[0])
        snprintf(start, sizeof start, "start it again with `cairn agent --config %s`",
                 served.config);
    if (known && served.lives) {
        snprintf(state, sizeof state, "does not answer");
        snprintf(start, sizeof start, "look at its log, or end its process %" PRIu32, served.pid);
    }
    snprintf(text, text_bytes,
             "%s: %s %s, and a new one would not have its snapshots; %s, name another socket, or "
             "remove %s and %s.lock to give that agent up",
             socket_path, who, state, start, socket_path, socket_path);
    return true;
}

/* Waits for an agent that is starting, as after a reboot: it holds its lock and does not answer. */
static bool
await_starting(const char *socket_path)
{
    const struct timespec pause = {.tv_nsec = POLL_MS * (long)CAIRN_NS_PER_MS};
    const struct cairn_clock clock = cairn_clock_system();
    const uint64_t end_ns = cairn_clock_now_ns(&clock) + STARTING_SECONDS * CAIRN_NS_PER_S;
    struct cairn_served served;

    if (!cairn_served_look(socket_path, &served) || !served.lives)
        return false;
    fprintf(stderr, "cairn run: %s: wait up to %d s for the agent to answer\n", socket_path,
            STARTING_SECONDS);
    while (cairn_clock_now_ns(&clock) < end_ns) {
        nanosleep(&pause, NULL);
        if (cairn_agent_answers(socket_path, POLL_MS))
            return true;
    }
    return false;
}

/* Tells how to end the new agent, and what it does not protect against. */
static void
say_started(const char *socket_path, const struct cairn_embedded_started *started)
{
    char keeper[32] = "";

    if (started->keeper_pid)
        snprintf(keeper, sizeof keeper, " %" PRIu32, started->keeper_pid);
    fprintf(stderr,
            "cairn run: started an agent at %s; it stays when the trainer ends, and `kill %" PRIu32
            "%s` ends it%s. A lost node is not covered; for that, run `cairn agent` on several "
            "nodes\n",
            socket_path, started->agent_pid, keeper, keeper[0] ? " and frees its memory" : "");
}

/* Starts an agent at the private socket, or at the socket that the user named. */
static enum cairn_run_agent
start(const char *named, const struct cairn_embedded *embedded, char *socket_path,
      size_t socket_bytes, bool *is_new)
{
    struct cairn_embedded_started started = {0};

    if (named)
        snprintf(socket_path, socket_bytes, "%s", named);
    else if (!cairn_embedded_socket(socket_path, socket_bytes))
        return CAIRN_RUN_AGENT_NONE;
    if (cairn_embedded_start(embedded, socket_path, &started) != CAIRN_OK)
        return CAIRN_RUN_AGENT_NONE;
    *is_new = started.agent_pid != 0; /* else another `cairn run` started it meanwhile */
    if (*is_new)
        say_started(socket_path, &started);
    return CAIRN_RUN_AGENT_ATTACHED;
}

enum cairn_run_agent
cairn_run_agent_attach(const char *given, const struct cairn_embedded *embedded, char *socket_path,
                       size_t socket_bytes, bool *started)
{
    char text[CAIRN_RUN_AGENT_TEXT_BYTES];
    struct cairn_found found;
    enum cairn_find how = cairn_find_agents(given, NULL, &found);

    *started = false;
    if (how == CAIRN_FIND_SEVERAL) {
        cairn_find_print_several("run", &found);
        return CAIRN_RUN_AGENT_SEVERAL;
    }
    if (how == CAIRN_FIND_NONE)
        return start(NULL, embedded, socket_path, socket_bytes, started);
    snprintf(socket_path, socket_bytes, "%s", found.socket);
    if (cairn_agent_answers(socket_path, HELLO_MS) || await_starting(socket_path)) {
        say_configured(embedded, socket_path);
        return CAIRN_RUN_AGENT_ATTACHED;
    }
    if (is_of_another(socket_path, text, sizeof text)) {
        fprintf(stderr, "cairn run: %s\n", text);
        return CAIRN_RUN_AGENT_NONE;
    }
    return start(found.socket, embedded, socket_path, socket_bytes, started);
}

enum cairn_run_agent
cairn_run_agent_foresee(const char *given, char *text, size_t text_bytes)
{
    struct cairn_found found;
    enum cairn_find how = cairn_find_agents(given, NULL, &found);

    if (how == CAIRN_FIND_SEVERAL) {
        cairn_find_print_several("run", &found);
        return CAIRN_RUN_AGENT_SEVERAL;
    }
    if (how != CAIRN_FIND_NONE && cairn_agent_answers(found.socket, HELLO_MS))
        snprintf(text, text_bytes, "with the agent at %s", found.socket);
    else if (how == CAIRN_FIND_NONE || !is_of_another(found.socket, text, text_bytes))
        snprintf(text, text_bytes, "with a new agent (a lost node is not covered)");
    return CAIRN_RUN_AGENT_ATTACHED;
}
