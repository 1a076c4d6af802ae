/* tools/run_agent.c - see run_agent.h. */
#include "tools/run_agent.h"

#include "agent/process/served.h"
#include "base/clock.h"
#include "tools/ask.h"
#include "tools/common.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

enum {
    HELLO_MS = 2000,
    STARTING_SECONDS = 10,
    POLL_MS = 100,
    SHOWN_BYTES = CAIRN_CONFIG_PATH_BYTES_MAX
};

/* It was configured by whoever started it. */
static void
say_configured(const struct cairn_embedded *embedded, const char *socket_path)
{
    if (embedded->every || embedded->state)
        fprintf(stderr,
                "cairn run: an agent serves %s already: --every and --state change nothing, "
                "its configuration holds\n",
                socket_path);
}

static bool
is_named(const char *given)
{
    return (given && given[0]) || (getenv("CAIRN_AGENT") && getenv("CAIRN_AGENT")[0]);
}

/* Whether an agent that nobody here can replace served the socket: who it was, and what to do, in
 * text. */
static bool
is_of_another(const char *socket_path, char *text, size_t text_bytes)
{
    struct cairn_served served;
    struct stat status;
    char who[64] = "an agent", start[SHOWN_BYTES + 128] = "start it again",
         state[96] = "it has ended";
    bool known = cairn_served_look(socket_path, &served);

    if (!known && lstat(socket_path, &status) != 0)
        return false; /* nothing ever was there */
    if (known && cairn_embedded_is(socket_path, served.config))
        return false;
    if (!known && !S_ISSOCK(status.st_mode)) {
        snprintf(
            text, text_bytes,
            "%s is no socket\n  what to do: name an agent's socket, or a path where nothing is",
            socket_path);
        return true;
    }
    if (known && served.node_count > 1)
        snprintf(who, sizeof who, "the agent of node %" PRIu32 " in a cluster of %" PRIu32,
                 served.node, served.node_count);
    if (known && served.config[0])
        snprintf(start, sizeof start, "start it again: `cairn agent --config %s`", served.config);
    if (known && served.lives)
        snprintf(state, sizeof state,
                 "its process %" PRIu32 " is there and does not answer: look at its log, or end it",
                 served.pid);
    snprintf(text, text_bytes,
             "%s served %s, and nobody answers: %s. No other agent is started in its place, for "
             "that would know nothing of its snapshots\n"
             "  what to do: %s; or name another socket; or, where that agent is not to come back, "
             "remove %s and %s.lock",
             who, socket_path, state, start, socket_path, socket_path);
    return true;
}

/* An agent that is just starting, as after a reboot, has its lock and does not answer yet. */
static bool
await_starting(const char *socket_path)
{
    const struct timespec pause = {.tv_nsec = POLL_MS * (long)CAIRN_NS_PER_MS};
    const struct cairn_clock clock = cairn_clock_system();
    const uint64_t end_ns = cairn_clock_now_ns(&clock) + STARTING_SECONDS * CAIRN_NS_PER_S;
    struct cairn_served served;

    if (!cairn_served_look(socket_path, &served) || !served.lives)
        return false;
    fprintf(stderr, "cairn run: waits for the agent of %s to answer, for at most %d s\n",
            socket_path, STARTING_SECONDS);
    while (cairn_clock_now_ns(&clock) < end_ns) {
        nanosleep(&pause, NULL);
        if (cairn_agent_answers(socket_path, POLL_MS))
            return true;
    }
    return false;
}

/* How the user ends what was started. */
static void
say_started(const char *socket_path, const struct cairn_embedded_started *started)
{
    char keeper[32] = "";

    if (started->keeper_pid)
        snprintf(keeper, sizeof keeper, " %" PRIu32, started->keeper_pid);
    fprintf(stderr,
            "cairn run: no agent answered on this node: one was started at %s. It stays after the "
            "trainer; `kill %" PRIu32 "%s` ends it%s. It covers dead trainers and a dead agent; a "
            "lost node is not covered: for that run `cairn agent` on "
            "several nodes\n",
            socket_path, started->agent_pid, keeper, keeper[0] ? " and frees its memory" : "");
}

bool
cairn_run_agent_attach(const char *given, const struct cairn_embedded *embedded, char *socket_path,
                       size_t socket_bytes)
{
    struct cairn_embedded_started started = {0};
    char text[CAIRN_RUN_AGENT_TEXT_BYTES];
    bool named = is_named(given);

    snprintf(socket_path, socket_bytes, "%s", cairn_agent_socket(given));
    if (cairn_agent_answers(socket_path, HELLO_MS) || (named && await_starting(socket_path))) {
        say_configured(embedded, socket_path);
        return true;
    }
    if (named && is_of_another(socket_path, text, sizeof text)) {
        fprintf(stderr, "cairn run: %s\n", text);
        return false;
    }
    if (!named && !cairn_embedded_socket(socket_path, socket_bytes))
        return false;
    if (!named && cairn_agent_answers(socket_path, HELLO_MS)) {
        fprintf(stderr, "cairn run: goes on with the agent at %s\n", socket_path);
        say_configured(embedded, socket_path);
        return true;
    }
    if (cairn_embedded_start(embedded, socket_path, &started) != CAIRN_OK)
        return false;
    if (started.agent_pid)
        say_started(socket_path, &started);
    else
        fprintf(stderr, "cairn run: goes on with the agent at %s\n", socket_path);
    return true;
}

void
cairn_run_agent_foresee(const char *given, char *text, size_t text_bytes)
{
    const char *socket_path = cairn_agent_socket(given);

    if (cairn_agent_answers(socket_path, HELLO_MS))
        snprintf(text, text_bytes, "with the agent that answers");
    else if (!is_named(given) || !is_of_another(socket_path, text, text_bytes))
        snprintf(text, text_bytes,
                 "with an agent that would be started (a lost node is not covered)");
}
