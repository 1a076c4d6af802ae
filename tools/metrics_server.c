/*
 * tools/metrics_server.c - `cairn metrics`: a status as OpenMetrics, once or over HTTP.
 *
 * The server is a process of its own beside the agent, so that no HTTP is parsed in the process
 * that holds training state. It listens on the loopback address alone; libmicrohttpd reads the
 * requests. Each scrape asks the agent, and fails if that does not answer.
 */
#include "tools/ask.h"
#include "tools/find_agent.h"
#include "tools/metrics.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ANSWER_MS = 10000,
    CONNECTIONS_MAX = 16, /* more wait */
    SILENT_S = 10,        /* an idle connection is closed after this time */
    REQUEST_BYTES_MAX = 16 << 10
};

static const char openmetrics_type[] = "application/openmetrics-text; version=1.0.0; charset=utf-8";
static const char prometheus_type[] = "text/plain; version=0.0.4; charset=utf-8";

static cairn_err
ask_status(const char *socket, struct cairn_answer *answer)
{
    const struct cairn_question question = {
        .verb = "status", .asker = "metrics", .socket = socket, .timeout_ms = ANSWER_MS};
    cairn_err err = cairn_ask(&question, answer);

    if (!err && !cairn_tree_find(&answer->tree, NULL, "health")) {
        cairn_answer_fini(answer);
        err = CAIRN_PEER; /* it refuses to say it */
    }
    return err;
}

/* ---- one request ---- */

static enum MHD_Result
respond(struct MHD_Connection *connection, unsigned status, const char *type, char *text,
        size_t text_bytes, enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(text_bytes, text, mode);
    enum MHD_Result result;

    if (!response) {
        if (mode == MHD_RESPMEM_MUST_FREE)
            free(text);
        return MHD_NO; /* closes the connection */
    }
    result = MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (result == MHD_YES && status == MHD_HTTP_METHOD_NOT_ALLOWED)
        result = MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    if (result == MHD_YES)
        result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result
refuse(struct MHD_Connection *connection, unsigned status, const char *text)
{
    return respond(connection, status, prometheus_type, (char *)(uintptr_t)text, strlen(text),
                   MHD_RESPMEM_PERSISTENT);
}

static enum MHD_Result
give_page(struct MHD_Connection *connection, const char *socket)
{
    const char *accept =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT);
    bool openmetrics = accept && strstr(accept, "application/openmetrics-text");
    struct cairn_answer answer;
    char *text = NULL;
    size_t text_bytes = 0;
    FILE *stream;
    bool written;

    if (ask_status(socket, &answer) != CAIRN_OK)
        return refuse(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                      "the agent does not answer; see `cairn status` on this node\n");
    stream = open_memstream(&text, &text_bytes);
    if (stream)
        cairn_metrics_print(stream, &answer.tree,
                            openmetrics ? CAIRN_METRICS_OPENMETRICS : CAIRN_METRICS_PROMETHEUS);
    cairn_answer_fini(&answer);
    written = stream && !ferror(stream);
    if (stream && fclose(stream) != 0)
        written = false;
    if (!written) {
        free(text);
        return refuse(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "out of memory\n");
    }
    return respond(connection, MHD_HTTP_OK, openmetrics ? openmetrics_type : prometheus_type, text,
                   text_bytes, MHD_RESPMEM_MUST_FREE);
}

/* Called once for the head of a request, and once at its end. */
static enum MHD_Result
on_request(void *context, struct MHD_Connection *connection, const char *url, const char *method,
           const char *version, const char *upload, size_t *upload_bytes, void **seen)
{
    (void)version;
    (void)upload;
    if (!*seen) {
        *seen = context;
        return MHD_YES;
    }
    if (*upload_bytes > 0) {
        *upload_bytes = 0; /* a body says nothing */
        return MHD_YES;
    }
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET /metrics is served\n");
    if (strcmp(url, "/metrics") != 0)
        return refuse(connection, MHD_HTTP_NOT_FOUND, "only GET /metrics is served\n");
    return give_page(connection, context);
}

/* ---- the server ---- */

static int
serve(const char *socket, uint16_t port)
{
    const struct sockaddr_in loopback = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const union MHD_DaemonInfo *bound;
    struct MHD_Daemon *daemon;
    sigset_t ends;
    int signal_number;

    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, NULL); /* the server's thread inherits it */
    daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD, port, NULL, NULL, on_request, (void *)(uintptr_t)socket,
        MHD_OPTION_SOCK_ADDR, (const struct sockaddr *)&loopback, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)SILENT_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_BYTES_MAX, MHD_OPTION_END);
    bound = daemon ? MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT) : NULL;
    if (!bound) {
        fprintf(stderr,
                "cairn metrics: 127.0.0.1:%u: cannot listen there (%s); name a free port with "
                "--listen\n",
                port, strerror(errno));
        if (daemon)
            MHD_stop_daemon(daemon);
        return CAIRN_EXIT_IO;
    }
    fprintf(stderr, "cairn metrics: serves http://127.0.0.1:%u/metrics\n", bound->port);
    sigwait(&ends, &signal_number);
    MHD_stop_daemon(daemon);
    return CAIRN_EXIT_OK;
}

static int
print_once(const char *socket, enum cairn_metrics_format format)
{
    struct cairn_question question = {
        .verb = "status", .asker = "metrics", .socket = socket, .timeout_ms = ANSWER_MS};
    struct cairn_answer answer;
    int exit_code = cairn_ask_or_say(&question, &answer);

    if (exit_code)
        return exit_code;
    exit_code = CAIRN_EXIT_OK;
    if (cairn_answer_refused("metrics", &answer))
        exit_code = answer.exit_code;
    else
        cairn_metrics_print(stdout, &answer.tree, format);
    cairn_answer_fini(&answer);
    return exit_code;
}

int
cairn_verb_metrics(int argc, char **argv)
{
    const char *agent = NULL, *job = NULL, *output = NULL, *listen = NULL;
    const struct cairn_flag flags[] = {
        {"job", 'j', "JOB", "ask the agent of this job", &job, NULL},
        {"agent", 'a', "SOCKET", CAIRN_AGENT_HELP, &agent, NULL},
        {"output", 'o', "openmetrics|prometheus",
         "print OpenMetrics (default), or Prometheus' older text format", &output, NULL},
        {"listen", 0, "PORT", "serve http://127.0.0.1:PORT/metrics until SIGTERM; 0: any port",
         &listen, NULL},
    };
    const struct cairn_usage usage = {
        "metrics",
        "[--job JOB] [--agent SOCKET] [-o openmetrics|prometheus] [--listen PORT]",
        "Prints what `cairn status` knows as metrics, or serves it to Prometheus.\n"
        "\n"
        "Every agent knows the whole job: scrape one. A dashboard for Grafana is in\n"
        "examples/deploy/grafana-dashboard.json.",
        "  cairn metrics\n  cairn metrics --listen 9469 --agent /run/cairn/agent.sock\n",
        flags,
        sizeof flags / sizeof *flags,
        NULL,
        NULL};
    enum cairn_metrics_format format = CAIRN_METRICS_OPENMETRICS;
    struct cairn_found found;
    unsigned long port = 0;
    char *end = NULL;
    int exit_code;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (output && strcmp(output, "prometheus") == 0)
        format = CAIRN_METRICS_PROMETHEUS;
    else if (output && strcmp(output, "openmetrics") != 0)
        return cairn_usage_error(&usage, "-o %s: expected openmetrics or prometheus", output);
    if (output && listen)
        return cairn_usage_error(&usage, "the scraper of --listen chooses the format; omit -o");
    if (listen)
        port = strtoul(listen, &end, 10);
    if (listen && (*listen < '0' || *listen > '9' || *end || port > UINT16_MAX))
        return cairn_usage_error(&usage, "--listen %s: expected a port from 0 to 65535", listen);
    exit_code = cairn_find_agent("metrics", agent, job, &found);
    if (exit_code)
        return exit_code;
    return listen ? serve(found.socket, (uint16_t)port) : print_once(found.socket, format);
}
