/*
 * tests/unit/agent/process/test_config.c - the configuration: what is taken, what is refused and
 * how.
 *
 * With CAIRN_WRITE_DOCS set, docs/CONFIG.md is written instead of compared.
 */
#include "agent/process/config.h"

#include "agent/process/credentials.h"
#include "agent/process/config_table.h"
#include "tests/support/cmocka.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BIG_BYTES = (1 << 20) + 1 };

static char error[CAIRN_CONFIG_ERROR_BYTES];

static cairn_err
parse(const char *text, struct cairn_config *config)
{
    memset(config, 0, sizeof *config);
    memset(error, 0, sizeof error);
    return cairn_config_parse(text, strlen(text), "a.yaml", config, error, sizeof error);
}

/* The text must be refused as "<object>: <what is wrong>; <what to do>", with these words. */
static void
refused_with(const char *text, const char *words)
{
    struct cairn_config config;

    assert_int_equal(parse(text, &config), CAIRN_CONFIG);
    if (!strstr(error, words))
        fail_msg("\"%s\" lacks \"%s\"", error, words);
    if (!strstr(error, "; "))
        fail_msg("\"%s\" lacks what to do", error);
    assert_null(config.nodes);
}

static void
defaults_are_a_job_of_one_node(void **state)
{
    struct cairn_config config;

    assert_int_equal(cairn_config_default(&config), CAIRN_OK);
    assert_int_equal(cairn_config_check(&config, error, sizeof error), CAIRN_OK);
    assert_string_equal(config.job, "default");
    assert_int_equal(config.node_count, 1);
    assert_int_equal(config.parity, 0);
    assert_int_equal(config.state_bytes, UINT64_C(1) << 30);
    assert_int_equal(config.slots, 2);
    assert_int_equal(config.snapshot_every_steps, 1);
    assert_string_equal(config.spill_keep, "last=2");
    assert_int_equal(config.heartbeat_interval_ms, 500);
    assert_int_equal(config.dead_after_ms, 3000);
    assert_int_equal(config.repair_after_ms, 30000);
    assert_int_equal(config.keeper_linger_s, 3600);
    assert_int_equal(config.workers, 1);
    assert_int_equal(config.verdict_policy, CAIRN_CONFIG_OBSERVE);
    assert_int_equal(config.exchanges_per_day, 2);
    assert_int_equal(config.log_level, CAIRN_LOG_INFO);
    assert_int_equal(config.hugepages, CAIRN_CONFIG_HUGEPAGES_AUTO);
    assert_string_equal(config.provider, "tcp");
    assert_string_equal(config.key_file, "");
    assert_string_equal(config.spill_dir, "");
    assert_true(config.keeper);
    assert_true(cairn_config_on_loopback(&config));
    assert_int_equal(cairn_config_line(&config, "job"), 0);
    cairn_config_fini(&config);
    cairn_config_fini(&config); /* the empty value is allowed */
}

static void
every_option_is_taken(void **state)
{
    struct cairn_config config;

    assert_int_equal(parse("# a comment\n"
                           "job: llama.7b_run-2\n"
                           "node: 4\n"
                           "nodes:\n"
                           "  - address: node0:7431\n"
                           "    domain: rack-0\n"
                           "  - {address: \"[fd00::1]:7431\", domain: rack-1}\n"
                           "  - {address: 10.0.0.3:7431}\n"
                           "  - {address: 10.0.0.4:1, domain: \"\"}\n"
                           "  - {spare: true, address: 10.0.0.5:65535}\n"
                           "socket: /tmp/s\n"
                           "dir: '/var/tmp/c'\n"
                           "key_file: /k\n"
                           "provider: verbs;ofi_rxm\n"
                           "network_is_closed: true\n"
                           "parity: 1\n"
                           "group_size: 2\n"
                           "state_bytes: 3GiB\n"
                           "slots: 4\n"
                           "hugepages: never\n"
                           "snapshot_every_steps: 10\n"
                           "spill_dir: /shared\n"
                           "spill_every_generations: 100\n"
                           "spill_keep: 5\n"
                           "heartbeat_interval_ms: 100\n"
                           "dead_after_ms: 200\n"
                           "repair_after_ms: 0\n"
                           "keeper: false\n"
                           "keeper_linger_s: 0\n"
                           "workers: 8\n"
                           "verdict_policy: advise\n"
                           "exchanges_per_day: 7\n"
                           "enforce_command: [/usr/local/sbin/drain]\n"
                           "log_level: debug\n",
                           &config),
                     CAIRN_OK);
    assert_string_equal(config.job, "llama.7b_run-2");
    assert_int_equal(config.node, 4);
    assert_int_equal(config.node_count, 5);
    assert_int_equal(cairn_config_active_count(&config), 4);
    assert_string_equal(config.nodes[0].address, "node0:7431");
    assert_string_equal(config.nodes[0].domain, "rack-0");
    assert_string_equal(config.nodes[1].address, "[fd00::1]:7431");
    assert_string_equal(config.nodes[3].domain, "");
    assert_true(config.nodes[4].spare);
    assert_int_equal(config.nodes[2].line, 8);
    assert_string_equal(config.socket, "/tmp/s");
    assert_string_equal(config.dir, "/var/tmp/c");
    assert_string_equal(config.key_file, "/k");
    assert_string_equal(config.provider, "verbs;ofi_rxm");
    assert_int_equal(config.parity, 1);
    assert_int_equal(config.group_size, 2);
    assert_int_equal(config.state_bytes, UINT64_C(3) << 30);
    assert_int_equal(config.slots, 4);
    assert_int_equal(config.hugepages, CAIRN_CONFIG_HUGEPAGES_NEVER);
    assert_int_equal(config.snapshot_every_steps, 10);
    assert_string_equal(config.spill_dir, "/shared");
    assert_int_equal(config.spill_every_generations, 100);
    assert_string_equal(config.spill_keep, "5");
    assert_int_equal(config.heartbeat_interval_ms, 100);
    assert_int_equal(config.dead_after_ms, 200);
    assert_int_equal(config.repair_after_ms, 0);
    assert_false(config.keeper);
    assert_int_equal(config.keeper_linger_s, 0);
    assert_int_equal(config.workers, 8);
    assert_int_equal(config.verdict_policy, CAIRN_CONFIG_ADVISE);
    assert_int_equal(config.exchanges_per_day, 7);
    assert_string_equal(config.enforce_command.text, "/usr/local/sbin/drain");
    assert_int_equal(config.log_level, CAIRN_LOG_DEBUG);
    assert_string_equal(config.source, "a.yaml");
    assert_int_equal(cairn_config_line(&config, "parity"), 16);
    assert_false(cairn_config_on_loopback(&config));
    cairn_config_fini(&config);
}

static void
empty_files_mean_all_defaults(void **state)
{
    static const char *const texts[] = {"", "# nothing\n", "---\n", "{}\n", "---\n...\n"};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct cairn_config config;

        assert_int_equal(parse(texts[i], &config), CAIRN_OK);
        assert_string_equal(config.job, "default");
        cairn_config_fini(&config);
    }
}

static void
errors_begin_with_line_and_option(void **state)
{
    refused_with("job: a\nparitty: 2\n", "a.yaml:2: paritty: ");
    refused_with("job: a\nparitty: 2\n", "\"parity\"");
    refused_with("nodes:\n  - {addres: a:1}\n", "a.yaml:2: addres: ");
    refused_with("nodes:\n  - {addres: a:1}\n", "\"address\"");
    refused_with("\nslots: 9\n", "a.yaml:2: slots: is \"9\"");
    refused_with("\nslots: 9\n", "2 to 4");
    refused_with("job: a\nslots: 2\njob: b\n", "a.yaml:3: job: ");
    refused_with("job: a\nslots: 2\njob: b\n", "line 1");
    refused_with("state_bytes: 1GB\n", "a.yaml:1: state_bytes: is \"1GB\"");
    refused_with("state_bytes: 1GB\n", "64KiB to 64TiB");
    refused_with("hugepages: yes\n", "a.yaml:1: hugepages: is \"yes\"");
    refused_with("hugepages: yes\n", "auto, never");
    refused_with("keeper: yes\n", "a.yaml:1: keeper: is \"yes\"");
    refused_with("keeper: yes\n", "true or false");
    refused_with("dir: relative\n", "a.yaml:1: dir: is \"relative\"");
    refused_with("dir: relative\n", "absolute path");
    refused_with("job:\n", "a.yaml:1: job: ");
    refused_with("job:\n", "default");
    refused_with("job: [a]\n", "a.yaml:1: job: is a list");
    refused_with("job: {a: b}\n", "a.yaml:1: job: is a map");
}

static void
numbers_are_plain_decimals_within_bounds(void **state)
{
    static const char *const wrong[] = {
        "-1",        "+1",   "01",  "1.0", "0x1", "1_0",     "a",
        "1 ",        "\"\"", "1e3", "2 3", "0",   "1000001", "18446744073709551617",
        "4294967297"};
    struct cairn_config config;
    char text[128];

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        snprintf(text, sizeof text, "snapshot_every_steps: \"%s\"\n",
                 wrong[i][0] == '"' ? "" : wrong[i]);
        refused_with(text, "must be a whole number from 1 to 1000000");
    }
    assert_int_equal(parse("snapshot_every_steps: \"1000000\"", &config), CAIRN_OK);
    assert_int_equal(config.snapshot_every_steps, 1000000);
    cairn_config_fini(&config);
}

static void
only_policies_are_policies(void **state)
{
    struct cairn_config config;

    assert_int_equal(parse("verdict_policy: advise\nproblem: /etc/cairn/problem.json\n", &config),
                     CAIRN_OK);
    assert_int_equal(config.verdict_policy, CAIRN_CONFIG_ADVISE);
    assert_string_equal(config.problem, "/etc/cairn/problem.json");
    assert_int_equal(config.enforce_command.count, 0);
    cairn_config_fini(&config);
    refused_with("verdict_policy: off\n", "must be one of observe, advise, enforce");
    refused_with("problem: problem.json\n", "must be empty or an absolute path");
    assert_int_equal(parse("plan_policy: approve\n", &config), CAIRN_OK);
    assert_int_equal(config.plan_policy, CAIRN_PLAN_APPROVE);
    cairn_config_fini(&config);
    assert_int_equal(parse("plan_policy: enforce\n", &config), CAIRN_OK);
    assert_int_equal(config.plan_policy, CAIRN_PLAN_ENFORCE);
    cairn_config_fini(&config);
    refused_with("spill_keep: weekly=2\n", "spill_keep: is \"weekly=2\"");
    refused_with("plan_policy: act\n", "must be one of observe, advise, approve, enforce");
    refused_with("verdict_policy: approve\n", "must be one of observe, advise, enforce");
}

/* To enforce there must be a command: a list of texts, whose first is found without a
 * shell. */
static void
a_command_is_a_list(void **state)
{
    static const char text[] = "/usr/bin/env\0\0drain node";
    struct cairn_config config;
    char list[3 * CAIRN_CONFIG_COMMAND_BYTES_MAX];
    size_t used;

    assert_int_equal(
        parse(
            "job: a\nverdict_policy: enforce\nenforce_command: [/usr/bin/env, \"\", drain node]\n",
            &config),
        CAIRN_OK);
    assert_int_equal(config.verdict_policy, CAIRN_CONFIG_ENFORCE);
    assert_int_equal(config.enforce_command.count, 3);
    assert_memory_equal(config.enforce_command.text, text, sizeof text);
    assert_int_equal(cairn_config_line(&config, "enforce_command"), 3);
    cairn_config_fini(&config);
    /* for a policy of another day */
    assert_int_equal(parse("enforce_command:\n- /bin/true\n", &config), CAIRN_OK);
    cairn_config_fini(&config);
    refused_with("job: a\nverdict_policy: enforce\n", "a.yaml:2: verdict_policy: is enforce");
    refused_with("\nenforce_command: /bin/true\n", "a.yaml:2: enforce_command: must be a list");
    refused_with("enforce_command: []\nverdict_policy: enforce\n",
                 "a.yaml:2: verdict_policy: is enforce");
    refused_with("enforce_command:\n", "a.yaml:1: enforce_command: must be a list");
    refused_with("enforce_command:\n  - /bin/true\n  - [a]\n",
                 "a.yaml:3: enforce_command: an entry");
    refused_with("enforce_command:\n  - drain\n",
                 "a.yaml:2: enforce_command: begins with \"drain\"");
    used = (size_t)snprintf(list, sizeof list, "enforce_command: [");
    for (int i = 0; i < CAIRN_CONFIG_ARGUMENTS_MAX; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "/%063d%s", i,
                                 i + 1 < CAIRN_CONFIG_ARGUMENTS_MAX ? ", " : "]\n");
    refused_with(list, "enforce_command: is longer than 2048 bytes"); /* 32 times 65 */
    used = (size_t)snprintf(list, sizeof list, "enforce_command: [");
    for (int i = 0; i <= CAIRN_CONFIG_ARGUMENTS_MAX; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "/a%s",
                                 i < CAIRN_CONFIG_ARGUMENTS_MAX ? ", " : "]\n");
    refused_with(list, "at most 32 texts");
}

/* For every number in the table: both bounds are taken by its setter, one beyond is not. */
static void
every_bound_of_the_table_holds(void **state)
{
    struct cairn_config config;
    char text[64], why[256];
    uint32_t checked = 0;

    for (uint32_t i = 0; i < cairn_option_count; i++) {
        const struct cairn_option *option = &cairn_options[i];

        if (option->type != CAIRN_OPTION_U32 && option->type != CAIRN_OPTION_BYTES)
            continue;
        for (int edge = 0; edge < 2; edge++) {
            uint64_t bound = edge ? option->max : option->min;

            snprintf(text, sizeof text, "%llu", (unsigned long long)bound);
            assert_true(cairn_option_set(option, text, &config, why, sizeof why));
            if (bound == 0)
                continue;
            snprintf(text, sizeof text, "%llu", (unsigned long long)(edge ? bound + 1 : bound - 1));
            assert_false(cairn_option_set(option, text, &config, why, sizeof why));
        }
        checked++;
    }
    assert_int_equal(checked, 20);
}

static void
texts_that_are_not_our_yaml_are_refused(void **state)
{
    char deep[64] = "job: ", *big = malloc(BIG_BYTES);
    struct cairn_config config;

    refused_with("job: &a x\n", "anchor or alias \"a\"");
    refused_with("job: *a\n", "anchor or alias \"a\"");
    refused_with("job: !!str x\n", "tag \"");
    refused_with("job: !x y\n", "tag \"");
    refused_with("--- {}\n--- {}\n", "a.yaml:2: a second document");
    refused_with("- a\n", "expected a map");
    refused_with("just words\n", "expected a map");
    refused_with("\"\"\n", "expected a map");
    refused_with("? [a]\n: b\n", "a name is a list or a map");
    refused_with("\"\": b\n", "no name");
    refused_with("job: \"a\\nb\"\n", "control character");
    refused_with("job: \"a\\0b\"\n", "control character");
    refused_with("job: |\n  two\n  lines\n", "line break");
    refused_with("job: a\n  b: c\n", "a.yaml:2: not YAML");
    refused_with("job: [a\n", "not YAML");
    refused_with("job: \"\xff\xfe\"\n", "not YAML");
    refused_with("\tjob: a\n", "not YAML");
    memset(deep + 5, '[', 40);
    refused_with(deep, "nested deeper than 8");
    memset(big, ' ', BIG_BYTES);
    assert_int_equal(cairn_config_parse(big, BIG_BYTES, "a.yaml", &config, error, sizeof error),
                     CAIRN_CONFIG);
    assert_non_null(strstr(error, "longer than"));
    memset(big, 'x', 5000);
    memcpy(big, "job: ", 5);
    big[5000] = '\0';
    refused_with(big, "longer than 4096 bytes");
    free(big);
}

static void
options_must_agree_with_each_other(void **state)
{
#define THREE                                                                                      \
    "nodes: [{address: \"127.0.0.1:1\"}, {address: \"127.0.0.1:2\"}, {address: "                   \
    "\"127.0.0.1:3\"}]\n"
    struct cairn_config config;

    refused_with(THREE "node: 3\n", "a.yaml:2: node: is 3");
    refused_with(THREE "parity: 3\n", "a.yaml:2: parity: is 3");
    refused_with(THREE "parity: 1\ngroup_size: 1\n", "a.yaml:3: group_size: is 1");
    refused_with(THREE "group_size: 4\n", "a.yaml:2: group_size: is 4");
    refused_with("nodes: []\n", "a.yaml:1: nodes: must be a list");
    refused_with("nodes: a\n", "a.yaml:1: nodes: must be a list");
    refused_with("nodes:\n", "a.yaml:1: nodes: must be a list");
    refused_with("nodes:\n  - a\n", "a.yaml:2: nodes: an entry is not a map");
    refused_with("nodes:\n  - {domain: a}\n", "a.yaml:2: nodes: an entry has no address");
    refused_with("nodes:\n  - {address: \"localhost:1\", spare: true}\n", "every node is a spare");
    refused_with("nodes:\n - {address: \"localhost:1\"}\n - {address: \"a:1\"}\n"
                 " - {address: \"LocalHost:1\"}\n",
                 "a.yaml:4: nodes: 0 and 2");
    refused_with("nodes:\n - {address: \"localhost:1\", domain: \"a b\"}\n",
                 "a.yaml:2: nodes: the domain \"a b\"");
    refused_with("job: a/b\n", "a.yaml:1: job: is \"a/b\"");
    refused_with("dead_after_ms: 999\n", "a.yaml:1: dead_after_ms: is 999");
    refused_with("heartbeat_interval_ms: 1501\n", "at least 3002");
    /* the line that asks too much of the default */
    refused_with("job: j\nheartbeat_interval_ms: 1501\n", "a.yaml:2: dead_after_ms: is 3000");
    refused_with("spill_every_generations: 1\n", "set spill_dir");
    refused_with("nodes:\n - {address: \"node1:1\"}\n", "a.yaml:1: nodes: reached off loopback");
    assert_int_equal(parse(THREE, &config), CAIRN_OK);
    assert_int_equal(config.parity, 2);
    cairn_config_fini(&config);
    assert_int_equal(parse(THREE "parity: 0\n", &config), CAIRN_OK);
    assert_int_equal(config.parity, 0);
    cairn_config_fini(&config);
    assert_int_equal(
        parse("nodes: [{address: \"[::1]:1\"}, {address: \"localhost:1\"}]\n", &config), CAIRN_OK);
    assert_int_equal(config.parity, 1);
    assert_true(cairn_config_on_loopback(&config));
    cairn_config_fini(&config);
}

static void
addresses_are_host_and_port(void **state)
{
    static const char *const wrong[] = {
        "host",    "host:",   ":1",       "host:0",     "host:65536",  "host:1x", "host:01",
        "[::1]",   "[::1:1",  "::1:1",    "[zz]:1",     "[]:1",        "h st:1",  "h/s:1",
        "host:-1", "host: 1", "[::1]x:1", "host:99999", "[1.2.3.4]:1", "a:1:2",
    };
    char text[128];

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        snprintf(text, sizeof text, "key_file: /k\nnodes:\n  - {address: \"%s\"}\n", wrong[i]);
        refused_with(text, "is not host:port");
    }
}

/* A certificate is all four options or none, over tcp, and does what a key does off loopback. */
static void
certificate_options_go_together(void **state)
{
#define FILES "certificate_file: /c\nprivate_key_file: /k\nca_file: /a\n"
#define NODES "nodes: [{address: \"node0:1\"}]\n"
#define IDENTITY "identity: \"spiffe://a/{job}/{node}\"\n"
    struct cairn_config config;

    assert_int_equal(parse(NODES FILES IDENTITY, &config), CAIRN_OK);
    assert_true(cairn_config_has_credentials(&config));
    assert_int_equal(cairn_config_protection(&config), CAIRN_CONFIG_PROTECTION_AUTHENTICATE);
    cairn_config_fini(&config);
    assert_int_equal(parse(NODES FILES IDENTITY "key_file: /j\nprotection: encrypt\n", &config),
                     CAIRN_OK);
    cairn_config_fini(&config);
    refused_with(NODES FILES, "certificate_file, private_key_file, ca_file");
    refused_with(NODES IDENTITY "key_file: /j\n", "identity: is set and ca_file is not");
    refused_with(NODES "certificate_file: /c\nca_file: /a\n" IDENTITY,
                 "identity: is set and private_key_file is not");
    refused_with(NODES FILES "identity: \"spiffe://a/{node}\"\n", "{job} and {node} once");
    refused_with(NODES FILES "job: Llama\nidentity: \"{job}-{node}.a\"\n", "lower-case");
    assert_int_equal(
        parse(NODES FILES IDENTITY "provider: verbs\nnetwork_is_closed: true\n", &config),
        CAIRN_OK);
    cairn_config_fini(&config);
    refused_with("nodes: [{address: \"localhost:1\"}]\nprovider: shm\nnetwork_is_closed: true\n",
                 "provider: is shm");
    refused_with(NODES FILES IDENTITY "provider: shm\nnetwork_is_closed: true\n",
                 "set protection to authenticate");
    assert_int_equal(parse(NODES FILES IDENTITY "provider: shm\nnetwork_is_closed: true\n"
                                                "protection: authenticate\n",
                           &config),
                     CAIRN_OK);
    cairn_config_fini(&config);
}

static void
sizes_and_durations_are_whole_numbers_with_units(void **state)
{
    static const char *const wrong_sizes[] = {"",           "GiB",    "1GB", "1 GiB",
                                              "1gib",       "1.5GiB", "-1",  "1KiBx",
                                              "0x10",       "010",    "1K",  "18446744073709551616",
                                              "16777216TiB"};
    static const char *const wrong_times[] = {"",    "1",  "s",  "1 s",          "1.5s",
                                              "-1s", "1S", "1d", "20000000000s", "5124096h"};
    uint64_t value = 77;

    for (size_t i = 0; i < sizeof wrong_sizes / sizeof wrong_sizes[0]; i++)
        assert_int_equal(cairn_parse_bytes(wrong_sizes[i], &value), CAIRN_INVAL);
    for (size_t i = 0; i < sizeof wrong_times / sizeof wrong_times[0]; i++)
        assert_int_equal(cairn_parse_duration_ns(wrong_times[i], &value), CAIRN_INVAL);
    assert_int_equal(value, 77);
    assert_int_equal(cairn_parse_bytes("0", &value), CAIRN_OK);
    assert_int_equal(value, 0);
    assert_int_equal(cairn_parse_bytes("18446744073709551615", &value), CAIRN_OK);
    assert_true(value == UINT64_MAX);
    assert_int_equal(cairn_parse_bytes("64B", &value), CAIRN_OK);
    assert_int_equal(value, 64);
    assert_int_equal(cairn_parse_bytes("512MiB", &value), CAIRN_OK);
    assert_int_equal(value, UINT64_C(512) << 20);
    assert_int_equal(cairn_parse_bytes("16777215TiB", &value), CAIRN_OK);
    assert_int_equal(cairn_parse_duration_ns("500ms", &value), CAIRN_OK);
    assert_int_equal(value, 500000000);
    assert_int_equal(cairn_parse_duration_ns("2h", &value), CAIRN_OK);
    assert_int_equal(value, UINT64_C(7200000000000));
    assert_int_equal(cairn_parse_duration_ns("5124095h", &value), CAIRN_OK);
    assert_int_equal(cairn_parse_duration_ns("3m", &value), CAIRN_OK);
    assert_int_equal(cairn_parse_duration_ns("7us", &value), CAIRN_OK);
    assert_int_equal(value, 7000);
}

/* ---- what the table prints ---- */

static char *
printed(void (*print)(FILE *))
{
    char *text = NULL;
    size_t text_len;
    FILE *out = open_memstream(&text, &text_len);

    print(out);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void
help_names_every_option(void **state)
{
    char *help = printed(cairn_config_help), *markdown = printed(cairn_config_markdown);

    for (uint32_t i = 0; i < cairn_option_count; i++) {
        char words[128];

        snprintf(words, sizeof words, "\n  %s: ", cairn_options[i].name);
        assert_non_null(strstr(help, words));
        snprintf(words, sizeof words, "\n| `%s` |", cairn_options[i].name);
        assert_non_null(strstr(markdown, words));
    }
    free(help);
    free(markdown);
}

/* The sample parses as it is, and with every default's "#" taken away; then it sets all options. */
static void
sample_parses_commented_and_not(void **state)
{
    char *sample = printed(cairn_config_sample);
    struct cairn_config config, same;

    assert_int_equal(parse(sample, &config), CAIRN_OK);
    assert_int_equal(config.node_count, 5);
    assert_int_equal(config.parity, 2);
    for (char *at = sample; at; at = strchr(at + 1, '\n'))
        if (at[0] == '\n' && at[1] == '#' && at[2] != ' ')
            at[1] = ' ', memmove(at + 1, at + 2, strlen(at + 2) + 1);
    if (parse(sample, &same))
        fail_msg("%s", error);
    for (uint32_t i = 0; i < cairn_option_count; i++)
        if (same.lines[i] == 0)
            fail_msg("the sample does not show %s", cairn_options[i].name);
    free(config.nodes);
    free(same.nodes);
    memset(config.lines, 0, sizeof config.lines);
    memset(same.lines, 0, sizeof same.lines);
    config.nodes = same.nodes = NULL;
    assert_memory_equal(&config, &same, sizeof config);
    free(sample);
}

static void
docs_are_what_the_table_prints(void **state)
{
    char *markdown = printed(cairn_config_markdown), *page = NULL;
    size_t page_bytes = 0;
    FILE *file;

    if (getenv("CAIRN_WRITE_DOCS")) {
        file = fopen("docs/CONFIG.md", "w");
        assert_non_null(file);
        fputs(markdown, file);
        assert_int_equal(fclose(file), 0);
    }
    file = fopen("docs/CONFIG.md", "r");
    if (!file)
        fail_msg("docs/CONFIG.md is not there: run this from the top of the tree");
    assert_true(getdelim(&page, &page_bytes, '\0', file) > 0);
    fclose(file);
    if (strcmp(page, markdown) != 0)
        fail_msg("docs/CONFIG.md is old: run this test once with CAIRN_WRITE_DOCS=1");
    free(page);
    free(markdown);
}

/* ---- files ---- */

struct files {
    char dir[64], config[96], key[96];
};

static void
write_file(const char *path, const char *text, size_t text_len, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, text_len), text_len);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void
make_files(struct files *files, size_t key_len, mode_t key_mode)
{
    char text[256], key[CAIRN_CREDENTIALS_KEY_BYTES_MAX + 1];

    /* cppcheck-suppress ctuuninitvar ; this function fills it */
    snprintf(files->dir, sizeof files->dir, "/tmp/cairn-config-XXXXXX");
    assert_non_null(mkdtemp(files->dir));
    snprintf(files->config, sizeof files->config, "%s/a.yaml", files->dir);
    snprintf(files->key, sizeof files->key, "%s/key", files->dir);
    snprintf(text, sizeof text, "nodes: [{address: \"node0:1\"}]\nkey_file: %s\n", files->key);
    write_file(files->config, text, strlen(text), 0644);
    memset(key, 'k', sizeof key);
    if (key_len)
        write_file(files->key, key, key_len, key_mode);
}

static void
remove_files(struct files *files)
{
    unlink(files->key);
    unlink(files->config);
    assert_int_equal(rmdir(files->dir), 0);
}

/* Loads a configuration whose key has this length and mode. */
static cairn_err
load_with_key(size_t key_len, mode_t key_mode)
{
    struct cairn_config config = {0};
    struct files files;
    struct cairn_credentials *keys = NULL;
    cairn_err err;

    make_files(&files, key_len, key_mode);
    memset(error, 0, sizeof error);
    err = cairn_config_load(files.config, &config, error, sizeof error);
    if (!err) {
        assert_int_equal(cairn_credentials_read(&config, &keys, error, sizeof error), CAIRN_OK);
        assert_int_equal(keys->first.len, key_len <= 256 ? key_len : 32); /* else its digest */
        assert_int_equal(keys->first.bytes[15] == 'k', key_len <= 256);
        assert_int_equal(keys->second.len, 0);
        cairn_credentials_free(keys);
    } else {
        assert_non_null(strstr(error, "a.yaml:2: "));
    }
    cairn_config_fini(&config);
    remove_files(&files);
    return err;
}

static void
key_must_be_ours_alone_and_long_enough(void **state)
{
    assert_int_equal(load_with_key(16, 0600), CAIRN_OK);
    assert_int_equal(load_with_key(4096, 0400), CAIRN_OK);
    assert_int_equal(load_with_key(15, 0600), CAIRN_CONFIG);
    assert_non_null(strstr(error, "fewer"));
    assert_int_equal(load_with_key(4097, 0600), CAIRN_CONFIG);
    assert_non_null(strstr(error, "more"));
    assert_int_equal(load_with_key(16, 0640), CAIRN_DENIED);
    assert_non_null(strstr(error, "chmod 600"));
    assert_int_equal(load_with_key(16, 0602), CAIRN_DENIED);
    assert_int_equal(load_with_key(0, 0), CAIRN_NOT_FOUND);
    assert_non_null(strstr(error, "No such file"));
}

/* It may be missing; where it is there, the same rules hold as for the first. */
static void
second_key_may_be_missing(void **state)
{
    struct cairn_config config = {0};
    struct cairn_credentials *keys = NULL;
    struct files files;

    make_files(&files, 16, 0600);
    assert_int_equal(cairn_config_load(files.config, &config, error, sizeof error), CAIRN_OK);
    snprintf(config.second_key_file, sizeof config.second_key_file, "%s/second", files.dir);
    assert_int_equal(cairn_credentials_read(&config, &keys, error, sizeof error), CAIRN_OK);
    assert_int_equal(keys->second.len, 0);
    cairn_credentials_free(keys);
    write_file(config.second_key_file, "sixteen bytes or more", 21, 0600);
    assert_int_equal(cairn_credentials_read(&config, &keys, error, sizeof error), CAIRN_OK);
    assert_int_equal(keys->first.len, 16);
    assert_int_equal(keys->second.len, 21);
    cairn_credentials_free(keys);
    assert_int_equal(chmod(config.second_key_file, 0644), 0);
    assert_int_equal(cairn_credentials_read(&config, &keys, error, sizeof error), CAIRN_DENIED);
    assert_non_null(strstr(error, "second_key_file"));
    unlink(config.second_key_file);
    cairn_config_fini(&config);
    remove_files(&files);
}

static void
key_of_another_user_is_refused(void **state)
{
    struct cairn_config config = {0};
    struct files files;

    if (geteuid() != 0) {
        print_message("skipped: only root can give a file to another user\n");
        skip();
    }
    make_files(&files, 32, 0600);
    assert_int_equal(chown(files.key, 65534, 65534), 0);
    assert_int_equal(cairn_config_load(files.config, &config, error, sizeof error), CAIRN_DENIED);
    assert_non_null(strstr(error, "belongs to user 65534"));
    remove_files(&files);
}

static void
files_that_cannot_be_read_are_said(void **state)
{
    struct cairn_config config = {0};

    assert_int_equal(cairn_config_load("/nonexistent/a", &config, error, sizeof error),
                     CAIRN_NOT_FOUND);
    assert_non_null(strstr(error, "/nonexistent/a: No such file"));
    assert_int_equal(cairn_config_load("/dev", &config, error, sizeof error), CAIRN_IO);
    assert_non_null(strstr(error, "expected a plain file"));
    assert_null(config.nodes);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_a_job_of_one_node),
        cmocka_unit_test(every_option_is_taken),
        cmocka_unit_test(empty_files_mean_all_defaults),
        cmocka_unit_test(errors_begin_with_line_and_option),
        cmocka_unit_test(numbers_are_plain_decimals_within_bounds),
        cmocka_unit_test(every_bound_of_the_table_holds),
        cmocka_unit_test(only_policies_are_policies),
        cmocka_unit_test(a_command_is_a_list),
        cmocka_unit_test(texts_that_are_not_our_yaml_are_refused),
        cmocka_unit_test(options_must_agree_with_each_other),
        cmocka_unit_test(addresses_are_host_and_port),
        cmocka_unit_test(certificate_options_go_together),
        cmocka_unit_test(sizes_and_durations_are_whole_numbers_with_units),
        cmocka_unit_test(help_names_every_option),
        cmocka_unit_test(sample_parses_commented_and_not),
        cmocka_unit_test(docs_are_what_the_table_prints),
        cmocka_unit_test(key_must_be_ours_alone_and_long_enough),
        cmocka_unit_test(second_key_may_be_missing),
        cmocka_unit_test(key_of_another_user_is_refused),
        cmocka_unit_test(files_that_cannot_be_read_are_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
