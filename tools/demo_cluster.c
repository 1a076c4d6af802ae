/*
 * tools/demo_cluster.c - the nodes of `cairn demo`: their directory, configurations and agents.
 *
 * Below the directory: nodeN.yaml, nodeN.sock, nodeN.log, stateN/ per node, spill/, and what the
 * jobs write.
 */
#include "tools/demo.h"

#include "base/file.h"
#include "base/limits.h"
#include "tools/common.h"
#include "tools/verb.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    VOCABULARY = 256,
    STATE_PER_PARAMETER = 12, /* bytes: the parameter and two moments */
    BLOCK_BYTES = 65536,
    AGENT_BYTES = 128 << 20, /* beside what it reserves for the state */
    TRAINER_BYTES = 64 << 20,
    START_TIMEOUT_S = 60
};

/* ---- sizes ---- */

void
demo_shape(uint32_t nodes, uint32_t *dp, uint32_t *pp)
{
    *pp = nodes % 3 == 0 ? 3 : nodes % 2 == 0 ? 2 : nodes <= 6 ? nodes : 1;
    *dp = nodes / *pp;
}

/* The most that one rank captures, with room for alignment; and the whole state. As examples/gpt
 * divides its model. */
static void
size_state(struct demo *demo)
{
    const bool is_slow = demo->options.slow.text != NULL, is_quick = demo->options.quick;
    const uint64_t d = is_slow    ? 16
                       : is_quick ? 32
                                  : 96,
                   context = is_slow    ? 16
                             : is_quick ? 32
                                        : 128;
    const uint64_t layers = is_slow ? demo_slow_layers(demo) : 6, layer = 12 * d * d + 13 * d;
    uint64_t stage =
        ((layers + demo->pp - 1) / demo->pp + is_slow) * layer + (VOCABULARY + context + 2) * d;
    uint64_t progress = 8 * demo->options.steps + 4096;

    if (demo->pp == 1)
        stage += VOCABULARY * d;
    demo->model_bytes = STATE_PER_PARAMETER * (layers * layer + (2 * VOCABULARY + context + 2) * d);
    demo->slot_bytes = STATE_PER_PARAMETER * stage / demo->dp;
    demo->slot_bytes += demo->slot_bytes / 4 + progress + 2 * BLOCK_BYTES;
    demo->slot_bytes = (demo->slot_bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
}

static uint64_t
available_bytes(void)
{
    char *text = demo_file_text("/proc/meminfo");
    const char *at = text ? strstr(text, "MemAvailable:") : NULL;
    uint64_t kib = at ? strtoull(at + strlen("MemAvailable:"), NULL, 10) : 0;

    free(text);
    return kib * 1024;
}

static int
check_memory(struct demo *demo)
{
    uint32_t n = demo->options.nodes, m = demo->options.parity;
    uint64_t slots = 2 * (demo->slot_bytes + demo->slot_bytes * m / (n - m));
    uint32_t trainers = demo->options.reference ? 2 * n : n;
    uint64_t needed = n * (slots + AGENT_BYTES) + (uint64_t)trainers * TRAINER_BYTES;
    uint64_t available = available_bytes();
    char shown[4][CAIRN_SHOWN_BYTES];

    if (available == 0 || needed <= available)
        return 0;
    fprintf(stderr,
            "cairn demo: memory: too little for %u agents x (2 x (1 + %u/%u) x %s + %s) + %u "
            "trainers x 64 MiB = %s, and %s are free; give fewer --nodes, or --no-reference\n",
            n, m, n - m, cairn_show_bytes(demo->slot_bytes, shown[0]),
            cairn_show_bytes(AGENT_BYTES, shown[1]), trainers, cairn_show_bytes(needed, shown[2]),
            cairn_show_bytes(available, shown[3]));
    return CAIRN_EXIT_FAILED;
}

/* ---- the directory ---- */

static int
refuse_dir(const char *dir, const char *why)
{
    fprintf(stderr,
            "cairn demo: --dir: %s cannot be the demo's directory: %s; give --dir a new or empty "
            "directory of ours with a short path\n",
            dir, why);
    return CAIRN_EXIT_USAGE;
}

static int
open_given_dir(struct demo *demo)
{
    char path[PATH_MAX];
    char **names = NULL;
    size_t count = 0;
    int fd = -1;
    cairn_err err;

    if (mkdir(demo->options.dir, 0700) != 0 && errno != EEXIST)
        return refuse_dir(demo->options.dir, strerror(errno));
    if (!realpath(demo->options.dir, path))
        return refuse_dir(demo->options.dir, strerror(errno));
    if (strlen(path) > DEMO_DIR_BYTES_MAX)
        return refuse_dir(path, "its path is too long for the sockets below it");
    err = cairn_file_open(AT_FDCWD, path, CAIRN_FILE_DIRECTORY, &fd);
    if (!err)
        err = cairn_dir_list(fd, &names, &count);
    cairn_file_close(fd);
    cairn_dir_list_free(names, count);
    if (err)
        return refuse_dir(path, cairn_err_text(err));
    if (count > 0)
        return refuse_dir(path, "it is not empty");
    snprintf(demo->dir, sizeof demo->dir, "%s", path);
    return 0;
}

static int
open_temporary_dir(struct demo *demo)
{
    static const char name[] = "/cairn-demo-XXXXXX";
    const char *base = getenv("TMPDIR");

    if (!base || base[0] != '/' || strlen(base) + strlen(name) > DEMO_DIR_BYTES_MAX)
        base = "/tmp";
    snprintf(demo->dir, sizeof demo->dir, "%s%s", base, name);
    if (mkdtemp(demo->dir))
        return 0;
    fprintf(stderr, "cairn demo: no directory can be made in %s: %s\n", base, strerror(errno));
    return CAIRN_EXIT_IO;
}

static int
find_programs(struct demo *demo)
{
    static const char *const places[] = {"gpt", "../libexec/cairn/gpt", "../lib/cairn/gpt"};
    char path[2 * DEMO_PATH_BYTES];
    char *slash;

    if (!cairn_own_path(demo->cairn, sizeof demo->cairn))
        return CAIRN_EXIT_FAILED;
    slash = strrchr(demo->cairn, '/');
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char *real;

        snprintf(path, sizeof path, "%.*s/%s", (int)(slash - demo->cairn), demo->cairn, places[i]);
        real = access(path, X_OK) == 0 ? realpath(path, NULL) : NULL;
        if (!real)
            continue;
        snprintf(demo->trainer, sizeof demo->trainer, "%s", real);
        free(real);
        return 0;
    }
    fprintf(stderr,
            "cairn demo: gpt: the example trainer is not beside %s; run make, which builds both\n",
            demo->cairn);
    return CAIRN_EXIT_FAILED;
}

/* ---- configurations ---- */

static int
write_config(struct demo *demo, uint32_t index)
{
    const struct demo_options *options = &demo->options;
    struct demo_node *node = &demo->nodes[index];
    FILE *file = fopen(node->config, "we");
    bool failed;

    if (!file) {
        fprintf(stderr, "cairn demo: %s cannot be written: %s\n", node->config, strerror(errno));
        return CAIRN_EXIT_IO;
    }
    fprintf(file,
            "job: demo\nnode: %u\nsocket: %s\ndir: %s\nparity: %u\ngroup_size: %u\n"
            "state_bytes: %" PRIu64 "KiB\nheartbeat_interval_ms: 200\ndead_after_ms: 2000\n"
            "keeper_linger_s: 60\nlog_level: debug\n",
            index, node->socket, node->state, options->parity, options->nodes,
            demo->slot_bytes / 1024);
    if (options->spill_every)
        fprintf(file, "spill_dir: %s/spill\nspill_every_generations: %u\n", demo->dir,
                options->spill_every);
    if (options->slow.text)
        fprintf(file, "problem: %s\nplan_policy: enforce\n", demo->slow.problem_path);
    fprintf(file, "nodes:\n");
    for (uint32_t i = 0; i < options->nodes; i++)
        fprintf(file, "  - {address: \"127.0.0.1:%u\"}\n", demo->nodes[i].port);
    failed = ferror(file) != 0;
    failed = fclose(file) != 0 || failed;
    if (failed)
        fprintf(stderr, "cairn demo: %s: cannot write it; make room on the disk\n", node->config);
    return failed ? CAIRN_EXIT_IO : 0;
}

static int
write_configs(struct demo *demo)
{
    uint16_t ports[DEMO_NODES_MAX];
    uint32_t n = demo->options.nodes;
    int code = 0;

    if (demo_ports_find(ports, n) != CAIRN_OK) {
        fprintf(stderr, "cairn demo: no %u free ports are found on loopback\n", n);
        return CAIRN_EXIT_FAILED;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct demo_node *node = &demo->nodes[i];
        int dir_chars = DEMO_DIR_BYTES_MAX;

        node->port = ports[i];
        snprintf(node->config, sizeof node->config, "%.*s/node%u.yaml", dir_chars, demo->dir, i);
        snprintf(node->socket, sizeof node->socket, "%.*s/node%u.sock", dir_chars, demo->dir, i);
        snprintf(node->state, sizeof node->state, "%.*s/state%u", dir_chars, demo->dir, i);
        snprintf(node->log, sizeof node->log, "%.*s/node%u.log", dir_chars, demo->dir, i);
        demo_tail_init(&node->tail, node->log);
    }
    for (uint32_t i = 0; i < n && code == 0; i++)
        code = write_config(demo, i);
    return code;
}

int
demo_cluster_open(struct demo *demo)
{
    const char *programs[2] = {demo->cairn, demo->trainer};
    int code;

    demo_shape(demo->options.nodes, &demo->dp, &demo->pp);
    size_state(demo);
    code = find_programs(demo);
    if (code == 0)
        code = check_memory(demo);
    if (code == 0)
        code = demo->options.dir ? open_given_dir(demo) : open_temporary_dir(demo);
    if (code)
        return code;
    if (setenv("XDG_RUNTIME_DIR", demo->dir, 1) != 0) /* not in the user's list of agents */
        return CAIRN_EXIT_FAILED;
    if (demo_guard_start(&demo->guard, programs, demo->dir, !demo->options.dir) != CAIRN_OK)
        return CAIRN_EXIT_IO;
    code = demo->options.slow.text ? demo_slow_open(demo) : 0;
    return code ? code : write_configs(demo);
}

/* ---- agents ---- */

int
demo_agents_start(struct demo *demo, const bool *which)
{
    for (uint32_t i = 0; i < demo->options.nodes; i++) {
        struct demo_node *node = &demo->nodes[i];
        char *argv[] = {demo->cairn, (char[]){"agent"}, (char[]){"--config"}, node->config, NULL};

        if (!which[i])
            continue;
        node->serves = false;
        node->adopted = false;
        node->error[0] = '\0';
        if (demo_process_start(&node->agent, argv, NULL, node->log) != CAIRN_OK)
            return CAIRN_EXIT_IO;
    }
    return 0;
}

int
demo_agents_wait(struct demo *demo, const bool *which)
{
    uint64_t deadline_ns = demo_now_ns(demo) + START_TIMEOUT_S * CAIRN_NS_PER_S;

    for (;;) {
        bool all = true;

        for (uint32_t i = 0; i < demo->options.nodes; i++) {
            struct demo_node *node = &demo->nodes[i];

            if (which[i] && demo_process_ended(&node->agent)) {
                demo_agents_look(demo);
                demo_say(&demo->view, DEMO_BAD, "the agent of node %u ended with exit code %d: %s",
                         i, node->agent.exit_code, node->error);
                return node->agent.exit_code ? node->agent.exit_code : CAIRN_EXIT_FAILED;
            }
            all = all && (!which[i] || node->serves);
        }
        if (all)
            return 0;
        if (!demo_tick(demo))
            return 128 + SIGINT;
        if (demo_now_ns(demo) > deadline_ns) {
            demo_say(&demo->view, DEMO_BAD, "not all agents serve after %d s", START_TIMEOUT_S);
            return CAIRN_EXIT_PEER;
        }
    }
}

void
demo_node_destroy(struct demo *demo, uint32_t index)
{
    const char *programs[2] = {demo->cairn, demo->trainer};
    struct demo_node *node = &demo->nodes[index];

    demo_process_kill(&node->agent);
    (void)demo_kill_below(programs, node->state); /* the keeper */
    (void)demo_remove(node->state);
    node->serves = false;
}

/* ---- what agents say ---- */

static void
take_commit(struct demo *demo, const char *line)
{
    uint64_t epoch, step, protect_ns;

    if (!demo_log_u64(line, "epoch", &epoch) || !demo_log_u64(line, "step", &step))
        return;
    if (epoch < demo->epoch || (epoch == demo->epoch && step <= demo->committed_step))
        return; /* another agent has said so */
    demo->epoch = epoch;
    demo->committed_step = step;
    demo->committed_count++;
    if (demo_log_u64(line, "protect_ns", &protect_ns) && protect_ns > 0)
        demo->protect_ns = protect_ns;
}

/* An agent that starts without its memory repairs itself, often before the demo's restore. */
static void
take_repair(struct demo *demo, const char *line)
{
    uint64_t blocks;

    if (strstr(line, "result=\"done\"") && demo_log_u64(line, "rebuilt_blocks", &blocks))
        demo->repaired_bytes += blocks * CAIRN_BLOCK_BYTES;
}

static void
take_line(struct demo *demo, uint32_t index, const char *line)
{
    static const char reserve[] = "memory: reserve ";
    struct demo_node *node = &demo->nodes[index];
    const char *at;

    if (strstr(line, "save: committed "))
        take_commit(demo, line);
    else if (strstr(line, "repair: ended "))
        take_repair(demo, line);
    else if (strstr(line, "spill: committed "))
        demo->spilled_count++;
    else if (demo->options.slow.text && strstr(line, "replan: offer "))
        demo_slow_take_log(demo, line);
    else if (strstr(line, "agent: serves "))
        node->serves = true;
    else if ((at = strstr(line, reserve)))
        snprintf(node->memory, sizeof node->memory, "%.250s", at + sizeof reserve - 1);
    else if (demo_log_u64(line, "reserved_bytes", &node->reserved_bytes))
        node->adopted = strstr(line, "memory: adopted") != NULL;
    else if (strstr(line, " error "))
        snprintf(node->error, sizeof node->error, "%.500s", strstr(line, " error ") + 7);
    demo_fault_notice(demo, "agent", index, line);
}

void
demo_agents_look(struct demo *demo)
{
    for (uint32_t i = 0; i < demo->options.nodes; i++) {
        const char *line;

        while ((line = demo_tail_line(&demo->nodes[i].tail)))
            take_line(demo, i, line);
    }
}
