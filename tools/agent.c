/* tools/agent.c - `cairn agent`: runs this node's agent; and the hidden `cairn keeper`, which an
 * agent starts for itself. */
#include "agent/agent.h"
#include "agent/service/command.h"
#include "agent/process/keeper.h"
#include "agent/service/problem_file.h"
#include "base/json.h"
#include "base/log.h"
#include "tools/common.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char about[] =
    "Runs this node's agent in the foreground until SIGTERM or SIGINT. A keeper process holds its "
    "memory, so that the next agent of this node takes the snapshots over. Logs go to stderr.";

static const char examples[] =
    "  cairn agent --sample > cairn.yaml        # write a configuration to edit\n"
    "  cairn agent --config cairn.yaml --check  # check it\n"
    "  cairn agent --config cairn.yaml          # run\n";

static int
check_json(const struct cairn_config *config)
{
    struct cairn_json_writer writer;

    cairn_json_begin(&writer);
    cairn_json_put_string(&writer, "config", config->source);
    cairn_json_put_string(&writer, "job", config->job);
    cairn_json_put_u64(&writer, "node", config->node);
    cairn_json_put_u64(&writer, "nodes", config->node_count);
    cairn_json_put_u64(&writer, "parity", config->parity);
    cairn_json_put_string(&writer, "socket", config->socket);
    cairn_json_write_object_end(&writer);
    return cairn_json_finish("agent", &writer);
}

static int
check(const struct cairn_config *config, bool json)
{
    if (json)
        return check_json(config);
    printf("%s is right: job %s, node %u of %u, m = %u, socket %s\n", config->source, config->job,
           config->node, config->node_count, config->parity, config->socket);
    return CAIRN_EXIT_OK;
}

int
cairn_verb_agent(int argc, char **argv)
{
    const char *path = NULL, *output = NULL;
    bool check_only = false, sample = false, json;
    const struct cairn_flag flags[] = {
        {"config", 'c', "FILE", "read this configuration", &path, NULL},
        {"check", 0, NULL, "check the configuration and exit", NULL, &check_only},
        {"sample", 0, NULL, "print a commented configuration to start from", NULL, &sample},
        {"output", 'o', "table|json", "print the result of --check as text (default) or JSON",
         &output, NULL},
    };
    const struct cairn_usage usage = {"agent", "--config FILE [--check [-o table|json]] | --sample",
                                      about,   examples,
                                      flags,   sizeof flags / sizeof *flags,
                                      NULL,    cairn_config_help};
    char error[CAIRN_CONFIG_ERROR_BYTES], executable[CAIRN_CONFIG_PATH_BYTES_MAX];
    struct cairn_adviser *adviser = NULL;
    struct cairn_config config;
    int exit_code;
    cairn_err err;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    if (output && !check_only)
        return cairn_usage_error(&usage, "-o %s is for --check; omit it, or add --check", output);
    if (sample) {
        cairn_config_sample(stdout);
        return CAIRN_EXIT_OK;
    }
    if (!path)
        return cairn_usage_error(&usage,
                                 "which configuration? Give --config FILE; --sample prints one");
    err = cairn_config_load(path, &config, error, sizeof error);
    if (err) {
        fprintf(stderr, "cairn agent: %s\n", error);
        return err == CAIRN_NOT_FOUND ? CAIRN_EXIT_CONFIG : cairn_exit_code(err);
    }
    cairn_log_setup((enum cairn_log_level)config.log_level, NULL, NULL);
    cairn_log_format((enum cairn_log_format)config.log_format);
    /* a wrong one is reported before anything begins */
    err = cairn_problem_file_load(&config, &adviser, error, sizeof error);
    cairn_adviser_destroy(adviser);
    if (!err && config.verdict_policy == CAIRN_CONFIG_ENFORCE)
        err = cairn_command_check(&config, error, sizeof error);
    if (err) {
        if (cairn_log_is_json() && !check_only)
            CAIRN_LOG_AT(ERROR, "agent: refuses its configuration: %s", error);
        else
            fprintf(stderr, "cairn agent: %s\n", error);
        cairn_config_fini(&config);
        return cairn_exit_code(err);
    }
    if (check_only)
        exit_code = check(&config, json);
    else if (!cairn_own_path(executable, sizeof executable))
        exit_code = CAIRN_EXIT_FAILED;
    else
        exit_code = cairn_agent_run(&config, executable);
    cairn_config_fini(&config);
    return exit_code;
}

int
cairn_verb_keeper(int argc, char **argv)
{
    unsigned long linger_s;
    char *end;
    cairn_err err;

    if (argc < 3 || argc > 4 || argv[1][0] != '/' || (argc == 4 && strcmp(argv[3], "json") != 0)) {
        fprintf(stderr, "usage: cairn keeper SOCKET LINGER_SECONDS [json]   (an agent starts it "
                        "for itself)\n");
        return CAIRN_EXIT_USAGE;
    }
    errno = 0;
    linger_s = strtoul(argv[2], &end, 10);
    if (errno || *end || end == argv[2] || linger_s > UINT32_MAX) {
        fprintf(stderr, "cairn keeper: \"%s\" is not a number of seconds\n", argv[2]);
        return CAIRN_EXIT_USAGE;
    }
    if (argc == 4)
        cairn_log_format(CAIRN_LOG_JSON);
    err = cairn_keeper_run(argv[1], (uint32_t)linger_s);
    return cairn_exit_code(err);
}
