/*
 * tools/doctor.c - `cairn doctor`: preflight of this node, each finding with its fix.
 *
 * Findings are collected in a list and printed at the end, so that table and JSON agree.
 * doctor_probe.c probes the machine, doctor_wire.c the network between agents; here are the command
 * and the checks of a configuration against the machine.
 */
#include "tools/doctor.h"

#include "agent/service/command.h"
#include "agent/service/problem_file.h"
#include "agent/process/sizes.h"
#include "base/json.h"
#include "snapshot/budget.h"
#include "base/file_queue.h"
#include "snapshot/copy.h"
#include "snapshot/slot.h"
#include "tools/ask.h"
#include "tools/common.h"
#include "tools/find_agent.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HELLO_MS = 2000, STATUS_MS = 10000, PROBE_BYTES = 64 * 1024 };

/* ---- the configuration against the machine ---- */

static uint64_t
huge_pages(uint64_t bytes)
{
    return (bytes + DOCTOR_HUGE_PAGE_BYTES - 1) / DOCTOR_HUGE_PAGE_BYTES;
}

/* Of all arenas: each begins at a huge page of its own. */
static uint64_t
huge_pages_of(const struct cairn_config *config, const struct cairn_sizes *sizes)
{
    return config->slots * (huge_pages(sizes->slot_blocks * CAIRN_BLOCK_BYTES) +
                            huge_pages(sizes->parity_blocks * CAIRN_BLOCK_BYTES)) +
           huge_pages(cairn_slot_memory_bytes(config->slots, sizes->record_bytes));
}

static void
check_memory(struct doctor *doctor, const struct cairn_config *config, bool agent_runs)
{
    struct cairn_budget_demand demand = {.slots = config->slots};
    struct cairn_budget_free memory;
    struct cairn_budget budget;
    struct cairn_sizes sizes;
    char sum[512];
    cairn_err err;

    if (cairn_sizes_of(config, &sizes) != CAIRN_OK) {
        doctor_find(doctor, DOCTOR_CRITICAL, "memory", "correct nodes, parity and group_size",
                    "the nodes cannot form erasure groups");
        return;
    }
    if (cairn_budget_free_read("/", &memory) != CAIRN_OK) {
        doctor_find(doctor, DOCTOR_WARN, "memory", "see whether /proc is mounted",
                    "free memory cannot be read");
        return;
    }
    demand.state_bytes = sizes.slot_blocks * CAIRN_BLOCK_BYTES;
    demand.data_count = sizes.data_count;
    demand.parity_count = sizes.parity_count;
    demand.fixed_bytes =
        cairn_slot_memory_bytes(config->slots, sizes.record_bytes) + sizes.ring_bytes;
    err = cairn_budget_check(&demand, &memory, CAIRN_BUDGET_MARGIN_BYTES, &budget);
    if (err == CAIRN_INVAL) {
        doctor_find(doctor, DOCTOR_CRITICAL, "memory", "lower state_bytes or slots",
                    "the sum overflows");
        return;
    }
    doctor->need_bytes = budget.need_bytes;
    doctor->huge_pages = huge_pages_of(config, &sizes);
    cairn_budget_text(&demand, &memory, &budget, sum, sizeof sum);
    if (err && agent_runs)
        doctor_find(doctor, DOCTOR_OK, "memory", NULL,
                    "the agent that runs has reserved its memory (%s)", sum);
    else if (err)
        doctor_find(
            doctor, DOCTOR_CRITICAL, "memory",
            "lower state_bytes, parity or slots; free memory; or raise the container's limit", "%s",
            sum);
    else
        doctor_find(doctor, DOCTOR_OK, "memory", NULL, "%s", sum);
}

/* Writes and removes a small file, since a full or failing disk passes access(). Returns 0, or the
 * errno of the call that failed. */
static int
try_write(const char *directory)
{
    static const char bytes[PROBE_BYTES];
    char path[CAIRN_CONFIG_PATH_BYTES_MAX + 32];
    ssize_t written;
    int fd, failed = 0;

    snprintf(path, sizeof path, "%s/.cairn-doctor-%ld", directory, (long)getpid());
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno;
    written = write(fd, bytes, sizeof bytes);
    if (written < 0 || fsync(fd) != 0)
        failed = errno;
    else if (written < (ssize_t)sizeof bytes)
        failed = ENOSPC;
    if (close(fd) != 0 && !failed)
        failed = errno;
    if (unlink(path) != 0 && !failed)
        failed = errno;
    return failed;
}

/* `spills`: it is spill_dir; the agent also starts and protects without it. */
static void
check_directory(struct doctor *doctor, const char *code, const char *path, bool spills)
{
    enum doctor_level bad = spills ? DOCTOR_WARN : DOCTOR_CRITICAL;
    struct stat status;
    char parent[CAIRN_CONFIG_PATH_BYTES_MAX], *slash;
    int failed;

    if (!path[0])
        return;
    if (stat(path, &status) == 0) {
        failed = access(path, R_OK | W_OK | X_OK) != 0 ? errno : 0;
        if (!failed && S_ISDIR(status.st_mode))
            failed = try_write(path);
        if (!S_ISDIR(status.st_mode))
            doctor_find(doctor, bad, code, "name a directory", "%s is not a directory", path);
        else if (failed)
            doctor_find(doctor, bad, code,
                        failed == ENOSPC || failed == EDQUOT
                            ? "free space there, or name another directory"
                            : "give it to the agent's user, or name another directory",
                        "%s cannot be written: errno %d (%s)", path, failed, strerror(failed));
        else
            doctor_find(doctor, DOCTOR_OK, code, NULL, "%s can be written", path);
        return;
    }
    snprintf(parent, sizeof parent, "%s", path);
    slash = strrchr(parent, '/');
    if (slash)
        slash[slash == parent] = '\0';
    if (slash && access(parent, W_OK | X_OK) == 0 && !spills)
        doctor_find(doctor, DOCTOR_OK, code, NULL, "%s does not exist yet; %s can be written", path,
                    parent);
    else
        doctor_find(doctor, bad, code, "make the directory, for the agent's user",
                    "%s does not exist%s", path, spills ? "" : " and cannot be made");
}

/* What only the running agent knows: failing spills where a small file can be written, and a
 * poisoned newest state. */
static void
check_running(struct doctor *doctor, const char *socket)
{
    const struct cairn_question question = {
        .verb = "status", .socket = socket, .timeout_ms = STATUS_MS};
    const struct cairn_tree_value *checks, *check = NULL;
    struct cairn_answer answer = {0};

    if (cairn_ask(&question, &answer) != CAIRN_OK)
        return; /* `agent` says whether it answers */
    checks = cairn_tree_find(&answer.tree, NULL, "checks");
    while ((check = cairn_tree_next(&answer.tree, checks, check)) != NULL) {
        struct doctor_finding found;
        char code[32];
        bool spills, poisoned;

        cairn_tree_text(&answer.tree, check, "code", code, sizeof code);
        spills = strcmp(code, "spill-failed") == 0 || strcmp(code, "spill-stuck") == 0;
        poisoned = strcmp(code, "poisoned") == 0;
        if (!spills && !poisoned && strcmp(code, "poisoned-kept") != 0)
            continue;
        cairn_tree_text(&answer.tree, check, "what", found.what, sizeof found.what);
        cairn_tree_text(&answer.tree, check, "fix", found.fix, sizeof found.fix);
        doctor_find(doctor, poisoned ? DOCTOR_CRITICAL : DOCTOR_WARN, spills ? "spill" : "state",
                    found.fix, "%s", found.what);
    }
    cairn_answer_fini(&answer);
}

/* How local_dir and spill_dir are written and read. */
static void
check_engine(struct doctor *doctor)
{
    char why[128];
    enum cairn_file_engine engine = cairn_file_engine_best(why, sizeof why);

    doctor_find(doctor, DOCTOR_OK, "disk-engine", NULL,
                "local_dir and spill_dir are written and read by %s%s%s%s",
                cairn_file_engine_name(engine), why[0] ? " (" : "", why, why[0] ? ")" : "");
}

/* With which code trainers will copy their state, and how fast each of them is here. */
static void
check_copy(struct doctor *doctor, const struct cairn_config *config)
{
    const struct cairn_copy_kernel *kernels = cairn_copy_kernels();
    double bytes_per_s[CAIRN_COPY_KERNELS_MAX];
    char text[512] = "";
    bool found = true;

    if (cairn_copy_choose(bytes_per_s) != CAIRN_OK) {
        doctor_find(doctor, DOCTOR_WARN, "copy", "free some memory",
                    "out of memory to measure the speed of copies");
        return;
    }
    for (size_t i = 0, used = 0; kernels[i].name && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %.1f GB/s", i ? ", " : " (",
                                 kernels[i].name, bytes_per_s[i] / 1e9);
    if (strcmp(config->copy_kernel, "auto") != 0)
        found = cairn_copy_use(config->copy_kernel);
    if (!found)
        doctor_find(doctor, DOCTOR_WARN, "copy",
                    "set copy_kernel to auto, or to one that this processor has",
                    "this processor has no copy_kernel %s; %s copies state%s%s",
                    config->copy_kernel, cairn_copy_name(), text, text[0] ? ")" : "");
    else
        doctor_find(doctor, DOCTOR_OK, "copy", NULL, "%s copies state%s%s", cairn_copy_name(), text,
                    text[0] ? ")" : "");
}

/* The files that an agent reads beside the configuration: a wrong one keeps it from starting. */
static void
check_files(struct doctor *doctor, const struct cairn_config *config)
{
    struct cairn_adviser *adviser = NULL;
    char error[CAIRN_CONFIG_ERROR_BYTES];

    if (cairn_problem_file_load(config, &adviser, error, sizeof error) != CAIRN_OK)
        doctor_find(doctor, DOCTOR_CRITICAL, "problem", "fix the file, or omit `problem`", "%s",
                    error);
    else if (adviser)
        doctor_find(doctor, DOCTOR_OK, "problem", NULL, "%s can be planned for: %u devices%s",
                    config->problem, cairn_adviser_device_count(adviser),
                    config->verdict_policy == CAIRN_CONFIG_OBSERVE
                        ? "; with verdict_policy observe nothing is"
                        : "");
    cairn_adviser_destroy(adviser);
    if (config->enforce_command.count == 0)
        return;
    if (cairn_command_check(config, error, sizeof error) != CAIRN_OK)
        doctor_find(
            doctor, config->verdict_policy == CAIRN_CONFIG_ENFORCE ? DOCTOR_CRITICAL : DOCTOR_WARN,
            "command", "put the program there, executable for the agent's user", "%s", error);
    else if (config->verdict_policy != CAIRN_CONFIG_ENFORCE)
        doctor_find(doctor, DOCTOR_WARN, "command",
                    "set verdict_policy to enforce, or omit `enforce_command`",
                    "enforce_command %s is never run: verdict_policy is not enforce",
                    config->enforce_command.text);
    else
        doctor_find(doctor, DOCTOR_OK, "command", NULL, "enforce_command %s can be executed",
                    config->enforce_command.text);
}

static bool
check_agent(struct doctor *doctor, const char *socket_path)
{
    bool answers = cairn_agent_answers(socket_path, HELLO_MS);

    doctor_find(doctor, DOCTOR_OK, "agent", NULL,
                answers ? "an agent answers at %s" : "no agent runs at %s yet", socket_path);
    return answers;
}

/* False if the file is wrong: then only the machine is checked. */
static bool
check_config(struct doctor *doctor, const char *path, struct cairn_config *config)
{
    char error[CAIRN_CONFIG_ERROR_BYTES];

    if (!path) {
        doctor_find(doctor, DOCTOR_OK, "config", NULL, "no --config: the defaults are checked");
        return cairn_config_default(config) == CAIRN_OK;
    }
    if (cairn_config_load(path, config, error, sizeof error) != CAIRN_OK) {
        doctor_find(doctor, DOCTOR_CRITICAL, "config",
                    "correct the file; `cairn agent --help` lists the options", "%s", error);
        return false;
    }
    doctor_find(doctor, DOCTOR_OK, "config", NULL, "%s is right: job %s, node %u of %u, m = %u",
                path, config->job, config->node, config->node_count, config->parity);
    return true;
}

/* ---- the command ---- */

static const char *const level_names[] = {"OK", "WARN", "CRITICAL"};

static void
print_json(const struct doctor *doctor)
{
    struct cairn_json_writer writer;

    cairn_json_begin(&writer);
    cairn_json_put_string(&writer, "health", level_names[doctor->level]);
    cairn_json_put_array(&writer, "findings");
    for (uint32_t i = 0; i < doctor->count; i++) {
        cairn_json_write_line(&writer);
        cairn_json_write_object_begin(&writer);
        cairn_json_put_string(&writer, "level", level_names[doctor->findings[i].level]);
        cairn_json_put_string(&writer, "code", doctor->findings[i].code);
        cairn_json_put_string(&writer, "what", doctor->findings[i].what);
        cairn_json_write_key(&writer, "fix");
        if (doctor->findings[i].fix[0])
            cairn_json_write_string(&writer, doctor->findings[i].fix);
        else
            cairn_json_write_null(&writer);
        cairn_json_write_object_end(&writer);
    }
    cairn_json_write_array_end(&writer);
    cairn_json_write_object_end(&writer);
    (void)cairn_json_finish("doctor", &writer);
}

static void
print_table(const struct doctor *doctor)
{
    static const char *const colours[] = {"32", "33", "1;31"};

    for (uint32_t i = 0; i < doctor->count; i++) {
        const struct doctor_finding *finding = &doctor->findings[i];
        char level[16];

        snprintf(level, sizeof level, "%-8s", level_names[finding->level]);
        cairn_print_coloured(stdout, colours[finding->level], level);
        printf(" %-11s %s\n", finding->code, finding->what);
        if (finding->fix[0])
            printf("%21sdo: %s\n", "", finding->fix);
    }
}

static const char about[] =
    "Checks this node before a job starts: memory, limits, kernel, network, key and certificate, "
    "directories, "
    "problem file, command, accelerator driver, coding speed, clock. If the agent runs, it also "
    "looks at the other agents: who answers, round trips, bandwidth, options that differ. Each "
    "finding comes with its fix.\n"
    "\n"
    "Exits 0 if all is fine, 2 for warnings, 3 if an agent would not start or not protect.";

int
cairn_verb_doctor(int argc, char **argv)
{
    static const int exit_codes[] = {CAIRN_EXIT_OK, CAIRN_EXIT_WARN, CAIRN_EXIT_CRITICAL};
    const char *path = NULL, *agent = NULL, *output = NULL;
    const struct cairn_flag flags[] = {
        {"config", 'c', "FILE", "check against this agent's configuration", &path, NULL},
        {"agent", 'a', "SOCKET", "look for the agent at this socket (default: the configuration's)",
         &agent, NULL},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {
        "doctor", "[--config FILE] [--agent SOCKET] [-o table|json]",
        about,    "  cairn doctor\n  cairn doctor --config cairn.yaml -o json\n",
        flags,    sizeof flags / sizeof *flags,
        NULL,     NULL};
    static struct doctor doctor;
    struct cairn_found found;
    struct cairn_config config;
    int exit_code;
    bool json;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    memset(&doctor, 0, sizeof doctor);
    if (check_config(&doctor, path, &config)) {
        bool runs;

        if (!agent && path)
            agent = config.socket;
        (void)cairn_find_agents(agent, NULL, &found);
        runs = check_agent(&doctor, found.socket ? found.socket : found.agents[0].socket);

        check_memory(&doctor, &config, runs);
        doctor_wire(&doctor, &config, runs);
        if (runs)
            doctor_peers(&doctor, found.socket ? found.socket : found.agents[0].socket);
        check_copy(&doctor, &config);
        check_engine(&doctor);
        if (path) {
            check_directory(&doctor, "dir", config.dir, false);
            check_directory(&doctor, "spill_dir", config.spill_dir, true);
            if (runs && config.spill_dir[0])
                check_running(&doctor, found.socket ? found.socket : found.agents[0].socket);
            check_files(&doctor, &config);
        }
        doctor.pinning =
            strncmp(config.provider, "efa", 3) == 0 || strncmp(config.provider, "verbs", 5) == 0;
        doctor.hugepages = config.hugepages == CAIRN_CONFIG_HUGEPAGES_AUTO;
        cairn_config_fini(&config);
    }
    doctor_probe(&doctor);
    if (json)
        print_json(&doctor);
    else
        print_table(&doctor);
    return exit_codes[doctor.level];
}
