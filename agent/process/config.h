/*
 * agent/process/config.h - the configuration of an agent: one YAML file, read by one table of
 * options.
 *
 * The table in config_table.c gives each option its name (with its unit), type, bounds, default,
 * place in the struct and one line of help; the parser, the help text, the sample file and
 * docs/CONFIG.md come from it. Unknown keys, duplicate keys and values out of bounds stop the
 * start. Every error is one text of the form "file:line: what, why, what to do".
 */
#ifndef CAIRN_AGENT_PROCESS_CONFIG_H
#define CAIRN_AGENT_PROCESS_CONFIG_H

#include "base/limits.h"
#include "cairn/client.h" /* enum cairn_log_level */
#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
    CAIRN_CONFIG_JOB_BYTES_MAX = 64, /* NUL included, as in all of these */
    CAIRN_CONFIG_PATH_BYTES_MAX = 1024,
    CAIRN_CONFIG_SOCKET_BYTES_MAX = 100, /* leaves room for a suffix within the kernel's 108 */
    CAIRN_CONFIG_PROVIDER_BYTES_MAX = 64,
    CAIRN_CONFIG_KERNEL_BYTES_MAX = 32,
    CAIRN_CONFIG_KEEP_BYTES = 64,
    CAIRN_CONFIG_ADDRESS_BYTES_MAX = 264, /* host, colon, port */
    CAIRN_CONFIG_DOMAIN_BYTES_MAX = 64,
    CAIRN_CONFIG_ERROR_BYTES = 1024, /* enough for any error text */
    CAIRN_CONFIG_IDENTITY_BYTES_MAX = 256,
    CAIRN_CONFIG_OPTIONS_MAX = 64,
    CAIRN_CONFIG_ARGUMENTS_MAX = 32,
    CAIRN_CONFIG_COMMAND_BYTES_MAX = 2048
};

/* What follows from a generation that is worse than the one before. */
enum cairn_on_poison { CAIRN_POISON_KEEP_GOOD = 0, CAIRN_POISON_ALLOW, CAIRN_POISON_STOP };

enum cairn_config_hugepages { CAIRN_CONFIG_HUGEPAGES_AUTO = 0, CAIRN_CONFIG_HUGEPAGES_NEVER = 1 };

/* The protection of the state on its way between agents; transport/transport.h has the levels. */
enum cairn_config_protection {
    CAIRN_CONFIG_PROTECTION_AUTO = 0, /* none on loopback or a closed network, else authenticate */
    CAIRN_CONFIG_PROTECTION_NONE = 1,
    CAIRN_CONFIG_PROTECTION_AUTHENTICATE = 2,
    CAIRN_CONFIG_PROTECTION_ENCRYPT = 3
};

/* What follows from a verdict on a slow or hanging rank. */
enum cairn_config_policy {
    CAIRN_CONFIG_OBSERVE = 0,
    CAIRN_CONFIG_ADVISE = 1,
    CAIRN_CONFIG_ENFORCE = 2
};

/* What follows from a better plan. */
enum cairn_plan_policy {
    CAIRN_PLAN_OBSERVE = 0,
    CAIRN_PLAN_ADVISE = 1,
    CAIRN_PLAN_APPROVE = 2, /* offer what an operator approves */
    CAIRN_PLAN_ENFORCE = 3
};

struct cairn_config_node {
    char address[CAIRN_CONFIG_ADDRESS_BYTES_MAX]; /* "host:port", an IPv6 host in brackets */
    char domain[CAIRN_CONFIG_DOMAIN_BYTES_MAX];   /* failure domain; empty: a domain of its own */
    bool spare;                                   /* runs no ranks; takes over for a lost node */
    bool replaced;                                /* by another machine: fleet.h has its address */
    bool removed;                                 /* from the job, by an operator */
    uint32_t line;                                /* in the file; 0: not from a file */
};

/* A program and its arguments. */
struct cairn_config_command {
    uint32_t count;                            /* 0: none */
    char text[CAIRN_CONFIG_COMMAND_BYTES_MAX]; /* one behind the other, each ended by NUL; the first
                                                * is an absolute path */
};

/* A plain value, but for `nodes`, which it owns: ended by cairn_config_fini. */
struct cairn_config {
    char job[CAIRN_CONFIG_JOB_BYTES_MAX];
    uint32_t node;                   /* this node's index in nodes */
    struct cairn_config_node *nodes; /* [node_count] */
    uint32_t node_count;
    char socket[CAIRN_CONFIG_SOCKET_BYTES_MAX];
    char dir[CAIRN_CONFIG_PATH_BYTES_MAX];
    /* Without a key and a certificate only loopback is allowed. Empty: none. */
    char key_file[CAIRN_CONFIG_PATH_BYTES_MAX];
    char second_key_file[CAIRN_CONFIG_PATH_BYTES_MAX];
    char certificate_file[CAIRN_CONFIG_PATH_BYTES_MAX]; /* and the next three: all or none */
    char private_key_file[CAIRN_CONFIG_PATH_BYTES_MAX];
    char ca_file[CAIRN_CONFIG_PATH_BYTES_MAX];
    char identity[CAIRN_CONFIG_IDENTITY_BYTES_MAX]; /* pattern of the nodes' names */
    char provider[CAIRN_CONFIG_PROVIDER_BYTES_MAX];
    char copy_kernel[CAIRN_CONFIG_KERNEL_BYTES_MAX]; /* "auto": the fastest one here */
    uint32_t protection;                             /* enum cairn_config_protection */
    bool network_is_closed; /* nobody else can reach it, the operator says */
    uint32_t parity;        /* m */
    uint32_t group_size;    /* k + m; 0: as even as possible, up to 10 */
    uint64_t state_bytes;
    uint32_t slots;
    uint32_t hugepages; /* enum cairn_config_hugepages */
    uint32_t snapshot_every_steps;
    uint32_t on_poison;                          /* enum cairn_on_poison */
    uint32_t scrub_interval_ms;                  /* 0: never */
    char local_dir[CAIRN_CONFIG_PATH_BYTES_MAX]; /* empty: no local files */
    uint32_t local_every_generations;            /* 0: never */
    uint32_t local_keep;
    uint32_t local_after_ms;                     /* 0: never */
    char spill_dir[CAIRN_CONFIG_PATH_BYTES_MAX]; /* empty: no spill */
    uint32_t spill_every_generations;            /* 0: never */
    char spill_keep[CAIRN_CONFIG_KEEP_BYTES];    /* a rule: cairn_spill_keep_parse */
    uint32_t heartbeat_interval_ms;
    uint32_t dead_after_ms;
    uint32_t repair_after_ms; /* 0: never */
    bool keeper;
    uint32_t keeper_linger_s; /* 0: for ever */
    uint32_t workers;
    uint32_t verdict_policy;    /* enum cairn_config_policy */
    uint32_t exchanges_per_day; /* that may be proposed */
    struct cairn_config_command enforce_command;
    char nvml_library[CAIRN_CONFIG_PATH_BYTES_MAX];
    char sysfs_dir[CAIRN_CONFIG_PATH_BYTES_MAX];
    uint64_t trace_bytes; /* of the last steps of each rank, 0: none are kept */
    char problem[CAIRN_CONFIG_PATH_BYTES_MAX]; /* what plans are made for; empty: none are */
    uint32_t plan_policy;                      /* enum cairn_plan_policy */
    uint32_t plans_per_day;                    /* that may be offered */
    uint32_t standstill_per_day_s;             /* for changes of the plan */
    uint32_t log_level;                        /* enum cairn_log_level */
    uint32_t log_format;                       /* enum cairn_log_format */

    char source[CAIRN_CONFIG_PATH_BYTES_MAX]; /* name of the file; empty: built in */
    uint32_t lines[CAIRN_CONFIG_OPTIONS_MAX]; /* per option, where the file sets it; 0: default */
};

/* Gives every option its default: a job of one node on loopback, without parity. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_config_default(struct cairn_config *out);

/*
 * Reads and checks a file. If the file does not set `parity`, it becomes less than 2 for jobs of
 * fewer than three active nodes. On failure error[error_bytes] gets the text and *out is untouched.
 * CAIRN_CONFIG for wrong contents, also of the key and certificate files, CAIRN_NOT_FOUND,
 * CAIRN_DENIED (unreadable, or a key file that others can read), CAIRN_IO, CAIRN_NOMEM. The caller
 * ends *out with cairn_config_fini. Blocks on the disk. Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_config_load(const char *path, struct cairn_config *out,
                                             char *error, size_t error_bytes);

/* The same from text[text_len] in memory; errors call the file `name`. Does not look at the key
 * file. */
CAIRN_MUST_CHECK cairn_err cairn_config_parse(const char *text, size_t text_len, const char *name,
                                              struct cairn_config *out, char *error,
                                              size_t error_bytes);

/*
 * Checks what the table cannot: that options agree with each other, addresses are addresses and
 * differ, and off loopback there is a key or a certificate. For configurations built in code;
 * cairn_config_load has called it. Does not touch the disk or resolve names: a host name other than
 * "localhost" counts as off loopback. CAIRN_CONFIG with the text.
 */
CAIRN_MUST_CHECK cairn_err cairn_config_check(const struct cairn_config *config, char *error,
                                              size_t error_bytes);

/* Frees the nodes and zeroes the struct. A zeroed struct is allowed. */
void cairn_config_fini(struct cairn_config *config);

/* Nodes that are not spares. */
uint32_t cairn_config_active_count(const struct cairn_config *config);

/* Every node's address is on loopback (127.0.0.0/8, ::1 or "localhost"). */
bool cairn_config_on_loopback(const struct cairn_config *config);

/* Agents prove themselves to each other, by a key or a certificate. */
bool cairn_config_has_credentials(const struct cairn_config *config);

/* The protection that is in effect: never AUTO. */
enum cairn_config_protection cairn_config_protection(const struct cairn_config *config);

/* The line of the file that set an option, 0 for a default or an unknown name. */
uint32_t cairn_config_line(const struct cairn_config *config, const char *option_name);

/* All options with type, bounds, default and help: as text for --help, as a commented sample file
 * that parses, as docs/CONFIG.md. The caller checks the stream for errors. */
void cairn_config_help(FILE *out);
void cairn_config_sample(FILE *out);
void cairn_config_markdown(FILE *out);

/* Parses "4096", "64B", "512KiB", "3MiB", "1GiB", "2TiB": a whole number and an optional binary
 * suffix. CAIRN_INVAL for other text or an overflow. Thread: any. */
CAIRN_MUST_CHECK cairn_err cairn_parse_bytes(const char *text, uint64_t *out);

/* Parses "500ms", "30s", "5m", "2h", "10us", "7ns": a whole number and a suffix that is required.
 * CAIRN_INVAL. */
CAIRN_MUST_CHECK cairn_err cairn_parse_duration_ns(const char *text, uint64_t *out);

#endif
