/* agent/process/config_table.c - the options, and how one is set from a text. */
#include "agent/process/config_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name) offsetof(struct cairn_config, name)
#define NODE_FIELD(name) offsetof(struct cairn_config_node, name)
#define KIB UINT64_C(1024)

static const char *const hugepages_choices[] = {"auto", "never", NULL};
static const char *const protection_choices[] = {"auto", "none", "authenticate", "encrypt", NULL};
static const char *const policy_choices[] = {"observe", "advise", "enforce", NULL};
static const char *const poison_choices[] = {"keep_good", "allow", "stop", NULL};
static const char *const plan_choices[] = {"observe", "advise", "approve", "enforce", NULL};
static const char *const log_level_choices[] = {"error", "warn", "info", "debug", NULL};
static const char *const log_format_choices[] = {"text", "json", NULL}; /* cairn_log_format */

/* clang-format off */
const struct cairn_option cairn_options[] = {
    {"job", CAIRN_OPTION_TEXT, 1, CAIRN_CONFIG_JOB_BYTES_MAX - 1, "default", FIELD(job), NULL,
     "my-job", "name of the job: letters, digits and . _ -, the same on all of its nodes"},
    {"node", CAIRN_OPTION_U32, 0, CAIRN_NODES_MAX - 1, "0", FIELD(node), NULL,
     "0", "number of this node: its place in nodes, counted from 0"},
    {"nodes", CAIRN_OPTION_NODES, 1, CAIRN_NODES_MAX, NULL, 0, NULL,
     NULL, "all nodes of the job, in the same order on each of them"},
    {"socket", CAIRN_OPTION_PATH, 1, CAIRN_CONFIG_SOCKET_BYTES_MAX - 1, "/run/cairn/agent.sock",
     FIELD(socket), NULL, NULL, "Unix socket on which trainers and commands reach the agent"},
    {"dir", CAIRN_OPTION_PATH, 1, CAIRN_CONFIG_PATH_BYTES_MAX - 1, "/var/lib/cairn", FIELD(dir),
     NULL,
     NULL, "state directory of this node, for the catalog; on a local disk"},
    {"key_file", CAIRN_OPTION_PATH, 0, CAIRN_CONFIG_PATH_BYTES_MAX - 1, "", FIELD(key_file), NULL,
     "/etc/cairn/job.key",
     "the job's key: 16 to 4096 random bytes, mode 0600, owned by the agent's "
     "user; may be missing only where every node is on loopback"},
    {"second_key_file", CAIRN_OPTION_PATH, 0, CAIRN_CONFIG_PATH_BYTES_MAX - 1, "",
     FIELD(second_key_file), NULL,
     NULL,
     "a second key of the job: accepted from peers, never offered to them, while the key changes; "
     "the file may be missing; SIGHUP reads both again: docs/OPERATIONS.md"},
    {"certificate_file", CAIRN_OPTION_PATH, 0, CAIRN_CONFIG_PATH_BYTES_MAX - 1, "",
     FIELD(certificate_file), NULL,
     NULL,
     "this node's certificate for TLS (X.509, PEM), then those up to an authority's, "
     "instead of key_file; needs the next three, and SIGHUP reads all files again: "
     "docs/OPERATIONS.md"},
    {"private_key_file", CAIRN_OPTION_PATH, 0, CAIRN_CONFIG_PATH_BYTES_MAX - 1, "",
     FIELD(private_key_file), NULL,
     NULL, "the private key of that certificate (PEM, without a passphrase), mode 0600, owned by "
     "the agent's user"},
    {"ca_file", CAIRN_OPTION_PATH, 0, CAIRN_CONFIG_PATH_BYTES_MAX - 1, "", FIELD(ca_file), NULL,
     NULL, "certificates of the authorities (PEM) that sign those of all nodes; nobody but the "
     "agent's user and root may write to it"},
    {"identity", CAIRN_OPTION_TEXT, 0, CAIRN_CONFIG_IDENTITY_BYTES_MAX - 1, "", FIELD(identity),
     NULL,
     NULL,
     "the name in each node's certificate (subject alternative name), with {job} and {node}: a "
     "SPIFFE ID such as spiffe://example.org/cairn/{job}/{node}, or a DNS name such as "
     "{job}-{node}.cairn.example.org; the same on all nodes"},
    {"provider", CAIRN_OPTION_TEXT, 1, CAIRN_CONFIG_PROVIDER_BYTES_MAX - 1, "tcp",
     FIELD(provider), NULL,
     NULL, "network between agents: tcp, or a provider of libfabric such as verbs;ofi_rxm or "
     "libfabric-tcp for the blocks beside it, which needs network_is_closed and a key or "
     "certificates"},
    {"protection", CAIRN_OPTION_CHOICE, 0, 0, "auto", FIELD(protection), protection_choices,
     NULL,
     "what protects the state on its way between agents: none, authenticate (nobody can change it) "
     "or encrypt (nor read it); auto: none on loopback or a closed network, else authenticate"},
    {"network_is_closed", CAIRN_OPTION_BOOL, 0, 0, "false", FIELD(network_is_closed), NULL,
     NULL, "true: nobody but this job can reach the network between its agents"},
    {"parity", CAIRN_OPTION_U32, 0, CAIRN_SHARDS_MAX - 1, "2", FIELD(parity), NULL,
     NULL,
     "nodes that each erasure group may lose at once; if not set, jobs of fewer than 3 active "
     "nodes take less"},
    {"group_size", CAIRN_OPTION_U32, 0, CAIRN_SHARDS_MAX, "0", FIELD(group_size), NULL,
     NULL, "nodes of an erasure group, parity included; 0: groups as even as possible, up to 10"},
    {"state_bytes", CAIRN_OPTION_BYTES, 64 * KIB, 64 * KIB * KIB * KIB * KIB, "1GiB",
     FIELD(state_bytes),
     NULL, "64GiB",
     "memory reserved per slot, for one generation of the state of this node's ranks"},
    {"slots", CAIRN_OPTION_U32, 2, 4, "2", FIELD(slots), NULL,
     NULL, "generations held in memory at once, including the one in progress"},
    {"hugepages", CAIRN_OPTION_CHOICE, 0, 0, "auto", FIELD(hugepages), hugepages_choices,
     NULL, "back the reserved memory by huge pages where the system has them"},
    {"copy_kernel", CAIRN_OPTION_TEXT, 1, CAIRN_CONFIG_KERNEL_BYTES_MAX - 1, "auto",
     FIELD(copy_kernel), NULL,
     NULL,
     "code with which trainers copy their state, such as avx2_store; auto: the agent takes the "
     "fastest, measured at its start; `cairn doctor` lists all"},
    {"snapshot_every_steps", CAIRN_OPTION_U32, 1, 1000000, "1", FIELD(snapshot_every_steps), NULL,
     NULL, "training steps from one generation to the next"},
    {"on_poison", CAIRN_OPTION_CHOICE, 0, 0, "keep_good", FIELD(on_poison), poison_choices,
     NULL,
     "what happens to a generation in which a floating-point tensor that was finite holds an "
     "infinity or NaN: keep_good gives it up, so that the last good one stays; allow commits it "
     "and warns; stop gives it up and asks the trainer to stop. A step that a rank rejects itself "
     "is always given up: docs/OPERATIONS.md"},
    {"scrub_interval_ms", CAIRN_OPTION_U32, 0, 2592000000, "3600000", FIELD(scrub_interval_ms),
     NULL,
     NULL, "period of the background scrub, which compares all that this node holds, in memory and "
     "files, with its checksums; it takes at most 1 % of a processor, and longer if that is too "
     "little; 0: no scrub"},
    {"local_dir", CAIRN_OPTION_PATH, 0, CAIRN_CONFIG_PATH_BYTES_MAX - 1, "", FIELD(local_dir), NULL,
     NULL,
     "directory on a local disk of this node, for its part of some generations: agents that start "
     "without memory load it; empty: none; docs/OPERATIONS.md"},
    {"local_every_generations", CAIRN_OPTION_U32, 0, 1000000, "0", FIELD(local_every_generations),
     NULL,
     NULL,
     "write every N-th committed generation to local_dir; 0: only those of local_after_ms and of "
     "`cairn run --grace`"},
    {"local_keep", CAIRN_OPTION_U32, 1, 100, "2", FIELD(local_keep), NULL,
     NULL, "generations kept in local_dir; older generations are removed"},
    {"local_after_ms", CAIRN_OPTION_U32, 0, 86400000, "60000", FIELD(local_after_ms), NULL,
     NULL,
     "time without trainers on this node after which the agent writes its memory to local_dir; "
     "0: never"},
    {"spill_dir", CAIRN_OPTION_PATH, 0, CAIRN_CONFIG_PATH_BYTES_MAX - 1, "", FIELD(spill_dir), NULL,
     NULL,
     "directory for spilled generations, on durable storage shared by all nodes; empty: none"},
    {"spill_every_generations", CAIRN_OPTION_U32, 0, 1000000, "0", FIELD(spill_every_generations),
     NULL,
     NULL, "spill every N-th committed generation; 0: never"},
    {"spill_keep", CAIRN_OPTION_TEXT, 1, CAIRN_CONFIG_KEEP_BYTES - 1, "last=2", FIELD(spill_keep),
     NULL,
     NULL,
     "spilled generations kept, by a rule such as last=2,hourly=24,daily=7: the newest, and "
     "the newest of each of the newest hours and days (UTC) that have one; others are removed"},
    {"heartbeat_interval_ms", CAIRN_OPTION_U32, 10, 60000, "500", FIELD(heartbeat_interval_ms),
     NULL,
     NULL, "time between two heartbeats of an agent"},
    {"dead_after_ms", CAIRN_OPTION_U32, 50, 600000, "3000", FIELD(dead_after_ms), NULL,
     NULL,
     "silence after which an agent counts as dead; at least twice heartbeat_interval_ms; what it "
     "holds is rebuilt after three times as long"},
    {"repair_after_ms", CAIRN_OPTION_U32, 0, 86400000, "30000", FIELD(repair_after_ms), NULL,
     NULL, "time from a node's death until other nodes rebuild its part; 0: never"},
    {"keeper", CAIRN_OPTION_BOOL, 0, 0, "true", FIELD(keeper), NULL,
     NULL, "let a keeper process hold the memory, so that it outlives the agent"},
    {"keeper_linger_s", CAIRN_OPTION_U32, 0, 31536000, "3600", FIELD(keeper_linger_s), NULL,
     NULL, "time without an agent after which the keeper frees the memory; 0: for ever"},
    {"workers", CAIRN_OPTION_U32, 1, 256, "1", FIELD(workers), NULL,
     NULL, "threads of the agent for coding, checksums and disk"},
    {"trace_bytes", CAIRN_OPTION_BYTES, 0, 1024 * KIB * KIB, "4MiB", FIELD(trace_bytes), NULL,
     NULL,
     "memory for the last steps of each timed rank of this node, for `cairn trace --agent`; about "
     "50 bytes per operation; 0: none are kept"},
    {"nvml_library", CAIRN_OPTION_TEXT, 1, CAIRN_CONFIG_PATH_BYTES_MAX - 1, "libnvidia-ml.so.1",
     FIELD(nvml_library), NULL,
     NULL,
     "NVIDIA's management library, by name or path: if a verdict names a rank of this node, the "
     "agent reads the GPUs' clocks and errors with it; without it only other causes are found"},
    {"sysfs_dir", CAIRN_OPTION_PATH, 1, CAIRN_CONFIG_PATH_BYTES_MAX - 1, "/sys", FIELD(sysfs_dir),
     NULL,
     NULL,
     "where sysfs is mounted: the agent reads causes of verdicts there (PCIe, network, memory)"},
    {"verdict_policy", CAIRN_OPTION_CHOICE, 0, 0, "observe", FIELD(verdict_policy), policy_choices,
     NULL,
     "what a verdict on a slow or hanging rank leads to: observe reports it, advise also "
     "proposes what to do, enforce runs enforce_command if an exchange is proposed"},
    {"exchanges_per_day", CAIRN_OPTION_U32, 0, 100000, "2", FIELD(exchanges_per_day), NULL,
     NULL,
     "at most this many ranks and nodes per day that verdict_policy advise proposes to exchange, "
     "and for which enforce runs enforce_command: if more are slow, something else is wrong"},
    {"enforce_command", CAIRN_OPTION_COMMAND, 0, CAIRN_CONFIG_ARGUMENTS_MAX, NULL,
     FIELD(enforce_command), NULL,
     NULL,
     "program, with its arguments, that verdict_policy enforce runs once for a verdict whose "
     "exchange is proposed, without a shell: it gets the verdict as JSON on its standard input, "
     "and CAIRN_VERDICT, CAIRN_RANKS, CAIRN_NODES and CAIRN_HOSTS; docs/DETECTION.md has examples"},
    {"problem", CAIRN_OPTION_PATH, 0, CAIRN_CONFIG_PATH_BYTES_MAX - 1, "", FIELD(problem), NULL,
     NULL,
     "problem file of cairn plan, with the running plan as current and ranks as device ids: "
     "plan_policy needs it, and verdict_policy advise then proposes plans for slow ranks; empty: "
     "no plans"},
    {"plan_policy", CAIRN_OPTION_CHOICE, 0, 0, "advise", FIELD(plan_policy), plan_choices,
     NULL,
     "what a better plan for `problem` leads to: observe plans nothing, advise reports it, "
     "approve offers it to trainers that ask for their share once an operator approves it (cairn "
     "replan), enforce offers it without asking"},
    {"plans_per_day", CAIRN_OPTION_U32, 0, 1000, "4", FIELD(plans_per_day), NULL,
     NULL,
     "changes of the plan that plan_policy enforce offers within a day; going back to the plan "
     "of `problem` is always offered, and so is what an operator approves"},
    {"standstill_per_day_s", CAIRN_OPTION_U32, 0, 86400, "60", FIELD(standstill_per_day_s), NULL,
     NULL,
     "how long moves of layers may stop training within a day: offers of plan_policy enforce "
     "must fit in the rest; approved moves, ways back and failed moves count too, and are always "
     "allowed"},
    {"log_level", CAIRN_OPTION_CHOICE, 0, 0, "info", FIELD(log_level), log_level_choices,
     NULL, "most detailed level that is logged"},
    {"log_format", CAIRN_OPTION_CHOICE, 0, 0, "text", FIELD(log_format), log_format_choices,
     NULL, "text: lines for people; json: an object per line, with event and fields"},
};
const uint32_t cairn_option_count = sizeof cairn_options / sizeof cairn_options[0];
_Static_assert(sizeof cairn_options / sizeof cairn_options[0] <= CAIRN_CONFIG_OPTIONS_MAX,
               "every option has a line in struct cairn_config");

const struct cairn_option cairn_node_options[] = {
    {"address", CAIRN_OPTION_TEXT, 1, CAIRN_CONFIG_ADDRESS_BYTES_MAX - 1, NULL,
     NODE_FIELD(address), NULL,
     NULL, "host:port of the node's agent; an IPv6 address in brackets; required"},
    {"domain", CAIRN_OPTION_TEXT, 0, CAIRN_CONFIG_DOMAIN_BYTES_MAX - 1, "", NODE_FIELD(domain),
     NULL,
     NULL, "failure domain, such as a rack: nodes of one domain share an erasure group as "
     "little as possible; empty: a domain of its own"},
    {"spare", CAIRN_OPTION_BOOL, 0, 0, "false", NODE_FIELD(spare), NULL,
     NULL, "the node runs no ranks and takes over for one that is lost"},
};
/* clang-format on */
const uint32_t cairn_node_option_count = sizeof cairn_node_options / sizeof cairn_node_options[0];

const struct cairn_option *
cairn_option_find(const struct cairn_option *options, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(options[i].name, name) == 0)
            return &options[i];
    return NULL;
}

/* Levenshtein's distance between an option's name and the first bytes of a text. */
static size_t
distance(const char *name, const char *text)
{
    enum { TEXT_MAX = 64 };
    size_t row[TEXT_MAX + 1], text_len = strnlen(text, TEXT_MAX);

    for (size_t j = 0; j <= text_len; j++)
        row[j] = j;
    for (size_t i = 1; name[i - 1]; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= text_len; j++) {
            size_t changed = diagonal + (name[i - 1] != text[j - 1]);
            size_t shorter = row[j - 1] < row[j] ? row[j - 1] : row[j];

            diagonal = row[j];
            row[j] = changed < shorter + 1 ? changed : shorter + 1;
        }
    }
    return row[text_len];
}

const struct cairn_option *
cairn_option_nearest(const struct cairn_option *options, uint32_t count, const char *name)
{
    const struct cairn_option *nearest = options;
    size_t nearest_distance = SIZE_MAX;

    for (uint32_t i = 0; i < count; i++) {
        size_t d = distance(options[i].name, name);

        if (d < nearest_distance) {
            nearest = &options[i];
            nearest_distance = d;
        }
    }
    return nearest;
}

/* A plain decimal number at the start of text; *end is where it ends. No sign, no leading zeros
 * (some read them as octal), no overflow. */
static bool
parse_number(const char *text, uint64_t *out, const char **end)
{
    uint64_t value = 0;
    const char *at = text;

    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
            return false;
    if (at == text || (text[0] == '0' && at != text + 1))
        return false;
    *out = value;
    *end = at;
    return true;
}

struct unit {
    const char *name;
    uint64_t factor;
};

/* A number and one of the units; *out = number * factor. */
static cairn_err
parse_with_unit(const char *text, const struct unit *units, size_t unit_count, uint64_t *out)
{
    uint64_t value;
    const char *end;

    if (!parse_number(text, &value, &end))
        return CAIRN_INVAL;
    for (size_t i = 0; i < unit_count; i++)
        if (strcmp(end, units[i].name) == 0) {
            if (__builtin_mul_overflow(value, units[i].factor, &value))
                return CAIRN_INVAL;
            *out = value;
            return CAIRN_OK;
        }
    return CAIRN_INVAL;
}

cairn_err
cairn_parse_bytes(const char *text, uint64_t *out)
{
    static const struct unit units[] = {
        {"", 1},
        {"B", 1},
        {"KiB", KIB},
        {"MiB", KIB * KIB},
        {"GiB", KIB * KIB * KIB},
        {"TiB", KIB * KIB * KIB * KIB},
    };

    return parse_with_unit(text, units, sizeof units / sizeof units[0], out);
}

cairn_err
cairn_parse_duration_ns(const char *text, uint64_t *out)
{
    static const struct unit units[] = {
        {"ns", 1},
        {"us", UINT64_C(1000)},
        {"ms", UINT64_C(1000000)},
        {"s", UINT64_C(1000000000)},
        {"m", UINT64_C(60000000000)},
        {"h", UINT64_C(3600000000000)},
    };

    return parse_with_unit(text, units, sizeof units / sizeof units[0], out);
}

/* Writes a number of bytes with the largest suffix that leaves it whole. */
static void
format_bytes(uint64_t bytes, char *out, size_t out_bytes)
{
    static const char *const suffixes[] = {"", "KiB", "MiB", "GiB", "TiB"};
    size_t i = 0;

    for (; i + 1 < sizeof suffixes / sizeof suffixes[0] && bytes && bytes % KIB == 0; i++)
        bytes /= KIB;
    snprintf(out, out_bytes, "%llu%s", (unsigned long long)bytes, suffixes[i]);
}

void
cairn_option_describe(const struct cairn_option *option, char *out, size_t out_bytes)
{
    char min[32], max[32];
    size_t used;

    switch (option->type) {
    case CAIRN_OPTION_TEXT:
        snprintf(out, out_bytes, "a text of %llu to %llu bytes", (unsigned long long)option->min,
                 (unsigned long long)option->max);
        break;
    case CAIRN_OPTION_PATH:
        snprintf(out, out_bytes, "%s of at most %llu bytes",
                 option->min ? "an absolute path" : "empty or an absolute path",
                 (unsigned long long)option->max);
        break;
    case CAIRN_OPTION_U32:
        snprintf(out, out_bytes, "a whole number from %llu to %llu",
                 (unsigned long long)option->min, (unsigned long long)option->max);
        break;
    case CAIRN_OPTION_BYTES:
        format_bytes(option->min, min, sizeof min);
        format_bytes(option->max, max, sizeof max);
        snprintf(out, out_bytes, "a size from %s to %s, such as 512MiB", min, max);
        break;
    case CAIRN_OPTION_BOOL:
        snprintf(out, out_bytes, "true or false");
        break;
    case CAIRN_OPTION_CHOICE:
        used = (size_t)snprintf(out, out_bytes, "one of");
        for (size_t i = 0; option->choices[i] && used < out_bytes; i++)
            used += (size_t)snprintf(out + used, out_bytes - used, "%s %s", i ? "," : "",
                                     option->choices[i]);
        break;
    case CAIRN_OPTION_NODES:
        snprintf(out, out_bytes, "a list of %llu to %llu nodes", (unsigned long long)option->min,
                 (unsigned long long)option->max);
        break;
    case CAIRN_OPTION_COMMAND:
        snprintf(out, out_bytes,
                 "a list of at most %llu texts, the first an absolute path, of %d bytes in all",
                 (unsigned long long)option->max, CAIRN_CONFIG_COMMAND_BYTES_MAX);
        break;
    }
}

static bool
set_text(const struct cairn_option *option, const char *text, char *field)
{
    size_t text_len = strlen(text);

    if (text_len < option->min || text_len > option->max)
        return false;
    if (option->type == CAIRN_OPTION_PATH && text_len && text[0] != '/')
        return false;
    memset(field, 0, option->max + 1);
    memcpy(field, text, text_len);
    return true;
}

static bool
set_number(const struct cairn_option *option, const char *text, void *field)
{
    uint64_t value = 0;
    const char *end = "";

    if (option->type == CAIRN_OPTION_BYTES ? cairn_parse_bytes(text, &value) != CAIRN_OK
                                           : !parse_number(text, &value, &end) || *end)
        return false;
    if (value < option->min || value > option->max)
        return false;
    if (option->type == CAIRN_OPTION_BYTES)
        *(uint64_t *)field = value;
    else
        *(uint32_t *)field = (uint32_t)value;
    return true;
}

static bool
set_choice(const struct cairn_option *option, const char *text, uint32_t *field)
{
    for (uint32_t i = 0; option->choices[i]; i++)
        if (strcmp(option->choices[i], text) == 0) {
            *field = i;
            return true;
        }
    return false;
}

bool
cairn_option_set(const struct cairn_option *option, const char *text, void *base, char *why,
                 size_t why_bytes)
{
    void *field = (char *)base + option->offset;
    bool done = false;
    int used;

    switch (option->type) {
    case CAIRN_OPTION_TEXT:
    case CAIRN_OPTION_PATH:
        done = set_text(option, text, field);
        break;
    case CAIRN_OPTION_U32:
    case CAIRN_OPTION_BYTES:
        done = set_number(option, text, field);
        break;
    case CAIRN_OPTION_BOOL:
        done = strcmp(text, "true") == 0 || strcmp(text, "false") == 0;
        if (done)
            *(bool *)field = text[0] == 't';
        break;
    case CAIRN_OPTION_CHOICE:
        done = set_choice(option, text, field);
        break;
    case CAIRN_OPTION_NODES:
    case CAIRN_OPTION_COMMAND:
        break;
    }
    if (!done) {
        used = snprintf(why, why_bytes, "must be ");
        if (used > 0 && (size_t)used < why_bytes)
            cairn_option_describe(option, why + used, why_bytes - (size_t)used);
    }
    return done;
}
