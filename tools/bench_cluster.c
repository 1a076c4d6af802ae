/* tools/bench_cluster.c - see bench_cluster.h. */
#include "tools/bench_cluster.h"

#include "tools/bench_measure.h"
#include "tools/bench_operator.h"
#include "tools/bench_trainer.h"
#include "tools/common.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    KEY_BYTES = 32,
    PATH_BYTES = 160,
    LINE_BYTES = 2048,
    START_S = 60,   /* for an agent to come up, for a trainer to register */
    COMMIT_S = 120, /* for a generation to be committed */
    STEPS_MAX = 64, /* tried until one is captured */
    RESTORE_S = 300
};

struct node {
    pid_t agent;
    pid_t trainer;
    int trainer_fd; /* -1: no trainer */
    uint16_t port;
    uint64_t log_start; /* of the agent's log: what its present process wrote */
    uint64_t log_read;
    uint64_t committed_step; /* the newest that its log says */
    uint64_t protect_ns;     /* of that one, from the first grant to the commit */
    uint64_t peers_up;       /* as a set, as its log says */
    bool serves;
    struct cairn_bench_answer answer;
};

struct cairn_bench_cluster {
    struct cairn_bench_cluster_options options;
    char executable[1024];
    char dir[64];
    struct node nodes[CAIRN_BENCH_NODES_MAX];
};

/* ---- files ---- */

/* "<dir>/<kind><node>" */
static void
path_of(const struct cairn_bench_cluster *cluster, const char *kind, uint32_t node,
        char out[PATH_BYTES])
{
    (void)snprintf(out, PATH_BYTES, "%s/%s%" PRIu32, cluster->dir, kind, node);
}

/* Ports that were free a moment ago; all are held until the last is chosen. */
static cairn_err
choose_ports(struct cairn_bench_cluster *cluster)
{
    int fds[CAIRN_BENCH_NODES_MAX];
    cairn_err err = CAIRN_OK;
    uint32_t open = 0;

    for (uint32_t i = 0; !err && i < cluster->options.nodes; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t address_len = sizeof address;

        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fds[i] < 0) {
            err = CAIRN_IO;
            break;
        }
        open++;
        if (bind(fds[i], (struct sockaddr *)&address, sizeof address) != 0 ||
            getsockname(fds[i], (struct sockaddr *)&address, &address_len) != 0)
            err = CAIRN_IO;
        cluster->nodes[i].port = ntohs(address.sin_port);
    }
    for (uint32_t i = 0; i < open; i++)
        (void)close(fds[i]);
    if (err)
        (void)fprintf(stderr, "cairn bench: no free port on 127.0.0.1: %s\n", strerror(errno));
    return err;
}

/* A key of the job, in a file that only we can read. */
static cairn_err
write_key(const struct cairn_bench_cluster *cluster)
{
    char path[PATH_BYTES];
    uint8_t key[KEY_BYTES];
    bool failed;
    int fd;

    path_of(cluster, "key", 0, path);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    failed = fd < 0 || getrandom(key, sizeof key, 0) != sizeof key ||
             write(fd, key, sizeof key) != sizeof key;
    if (fd >= 0)
        (void)close(fd);
    return failed ? CAIRN_IO : CAIRN_OK;
}

static cairn_err
write_config(const struct cairn_bench_cluster *cluster, uint32_t node)
{
    char path[PATH_BYTES], socket_path[PATH_BYTES], state_path[PATH_BYTES], key_path[PATH_BYTES];
    bool failed;
    FILE *file;

    path_of(cluster, "config", node, path);
    path_of(cluster, "socket", node, socket_path);
    path_of(cluster, "state", node, state_path);
    path_of(cluster, "key", 0, key_path);
    file = fopen(path, "we");
    if (!file)
        return CAIRN_IO;
    (void)fprintf(file,
                  "job: bench\nnode: %" PRIu32 "\nsocket: %s\ndir: %s\nparity: %" PRIu32
                  "\ngroup_size: %" PRIu32 "\nstate_bytes: %" PRIu64
                  "\nheartbeat_interval_ms: %d\ndead_after_ms: 6000\nkeeper_linger_s: 1"
                  "\nrepair_after_ms: 0\nlog_level: debug\n",
                  node, socket_path, state_path, cluster->options.parity, cluster->options.nodes,
                  cluster->options.state_bytes,
                  cluster->options.moves ? 500 : 2000); /* a blank agent does not repair at once */
    if (cluster->options.authenticate)
        (void)fprintf(file, "key_file: %s\nprotection: authenticate\n", key_path);
    (void)fprintf(file, "nodes:\n");
    for (uint32_t i = 0; i < cluster->options.nodes; i++)
        (void)fprintf(file, "  - address: 127.0.0.1:%u\n", (unsigned)cluster->nodes[i].port);
    failed = ferror(file) != 0;
    return fclose(file) != 0 || failed ? CAIRN_IO : CAIRN_OK;
}

/* Removes a directory of plain files, sockets and directories, at most three deep. */
static void
remove_tree(const char *path, uint32_t depth)
{
    DIR *dir = opendir(path);
    struct dirent *entry;

    while (dir && (entry = readdir(dir)) != NULL) {
        char child[2 * PATH_BYTES + 256];

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        (void)snprintf(child, sizeof child, "%s/%s", path, entry->d_name);
        if (unlink(child) != 0 && depth > 0)
            remove_tree(child, depth - 1);
    }
    if (dir)
        (void)closedir(dir);
    (void)rmdir(path);
}

/* ---- agents ---- */

static void
become_agent(const struct cairn_bench_cluster *cluster, uint32_t node)
{
    char config[PATH_BYTES], log[PATH_BYTES];
    int fd;

    path_of(cluster, "config", node, config);
    path_of(cluster, "log", node, log);
    fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0 || dup2(fd, STDOUT_FILENO) < 0)
        _exit(1);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setenv("XDG_RUNTIME_DIR", cluster->dir, 1); /* not in the user's list of agents */
    (void)execl(cluster->executable, "cairn", "agent", "--config", config, (char *)NULL);
    _exit(1);
}

static cairn_err
start_agent(struct cairn_bench_cluster *cluster, uint32_t node)
{
    struct node *self = &cluster->nodes[node];
    char log[PATH_BYTES];
    struct stat status;

    path_of(cluster, "log", node, log);
    self->log_start = stat(log, &status) == 0 ? (uint64_t)status.st_size : 0;
    self->log_read = self->log_start;
    self->serves = false;
    self->peers_up = 0;
    self->committed_step = 0;
    self->agent = fork();
    if (self->agent == 0)
        become_agent(cluster, node);
    return self->agent < 0 ? CAIRN_IO : CAIRN_OK;
}

static void
take_line(struct node *node, const char *line)
{
    uint64_t epoch, step, bytes, protect_ns;
    const char *at = strstr(line, "save: committed epoch=");
    unsigned peer;

    if (at &&
        sscanf(at,
               "save: committed epoch=%" SCNu64 " step=%" SCNu64 " bytes=%" SCNu64
               " protect_ns=%" SCNu64,
               &epoch, &step, &bytes, &protect_ns) == 4 &&
        step > node->committed_step) {
        node->committed_step = step;
        node->protect_ns = protect_ns;
    }
    at = strstr(line, "peer: up node=");
    if (at && sscanf(at, "peer: up node=%u", &peer) == 1 && peer < 64)
        node->peers_up |= UINT64_C(1) << peer;
    at = strstr(line, "peer: down node=");
    if (at && sscanf(at, "peer: down node=%u", &peer) == 1 && peer < 64)
        node->peers_up &= ~(UINT64_C(1) << peer);
    if (strstr(line, "agent: serves"))
        node->serves = true;
}

/* Reads what an agent has logged since the last call, whole lines alone. */
static void
read_log(const struct cairn_bench_cluster *cluster, uint32_t index, struct node *node)
{
    char path[PATH_BYTES], line[LINE_BYTES];
    FILE *file;

    path_of(cluster, "log", index, path);
    file = fopen(path, "re");
    if (!file)
        return;
    if (fseek(file, (long)node->log_read, SEEK_SET) == 0)
        while (fgets(line, sizeof line, file)) {
            size_t len = strlen(line);

            if (line[len - 1] != '\n' && len + 1 < sizeof line)
                break;
            node->log_read += len;
            take_line(node, line);
        }
    (void)fclose(file);
}

/* Prints an agent's last log lines after an unexpected outcome. */
static void
show_log(const struct cairn_bench_cluster *cluster, uint32_t index)
{
    char path[PATH_BYTES], line[LINE_BYTES], last[LINE_BYTES] = "nothing\n";
    FILE *file;

    path_of(cluster, "log", index, path);
    file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        memcpy(last, line, sizeof last);
    if (file)
        (void)fclose(file);
    (void)fprintf(stderr, "cairn bench: agent %" PRIu32 " said last: %s", index, last);
}

enum wait_for { WAIT_SERVES, WAIT_PEERS, WAIT_COMMIT };

static bool
is_there(const struct cairn_bench_cluster *cluster, uint32_t index, enum wait_for what,
         uint64_t step)
{
    const struct node *node = &cluster->nodes[index];
    switch (what) {
    case WAIT_SERVES:
        return node->serves;
    case WAIT_PEERS:
        return index != 0 || (node->peers_up | 1) == (UINT64_C(1) << cluster->options.nodes) - 1;
    case WAIT_COMMIT:
        return node->committed_step >= step;
    }
    return false;
}

/* Waits until all agents have logged something. */
static cairn_err
await(struct cairn_bench_cluster *cluster, enum wait_for what, uint64_t step, double limit_s)
{
    static const char *const names[] = {"did not start", "does not reach all others",
                                        "did not commit the generation"};
    const struct timespec pause = {.tv_nsec = 1000000};
    double give_up = cairn_bench_now_s() + limit_s;
    uint32_t index = 0;

    while (index < cluster->options.nodes) {
        read_log(cluster, index, &cluster->nodes[index]);
        if (is_there(cluster, index, what, step)) {
            index++;
            continue;
        }
        if (waitpid(cluster->nodes[index].agent, NULL, WNOHANG) == cluster->nodes[index].agent) {
            cluster->nodes[index].agent = -1;
            (void)fprintf(stderr, "cairn bench: agent %" PRIu32 " ended\n", index);
            show_log(cluster, index);
            return CAIRN_PEER;
        }
        if (cairn_bench_now_s() > give_up) {
            (void)fprintf(stderr, "cairn bench: agent %" PRIu32 " %s within %.0f s\n", index,
                          names[what], limit_s);
            show_log(cluster, index);
            return CAIRN_TIMEOUT;
        }
        (void)nanosleep(&pause, NULL);
    }
    return CAIRN_OK;
}

static cairn_err
await_all_alive(struct cairn_bench_cluster *cluster)
{
    cairn_err err = await(cluster, WAIT_SERVES, 0, START_S);

    if (!err)
        err = await(cluster, WAIT_PEERS, 0, START_S);
    return err;
}

static void
kill_process(pid_t *pid)
{
    if (*pid <= 0)
        return;
    (void)kill(*pid, SIGKILL);
    (void)waitpid(*pid, NULL, 0);
    *pid = -1;
}

/* ---- trainers ---- */

static void
end_trainer(struct node *node)
{
    if (node->trainer_fd >= 0)
        (void)close(node->trainer_fd);
    node->trainer_fd = -1;
    kill_process(&node->trainer);
}

static cairn_err
start_trainer(struct cairn_bench_cluster *cluster, uint32_t index)
{
    struct timeval limit = {.tv_sec = COMMIT_S};
    struct node *node = &cluster->nodes[index];
    char path[PATH_BYTES];
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return CAIRN_IO;
    path_of(cluster, "socket", index, path);
    node->trainer = fork();
    if (node->trainer == 0) {
        struct cairn_bench_trainer trainer = {.agent_socket = path,
                                              .rank = index,
                                              .world = cluster->options.nodes,
                                              .state_bytes = cluster->options.state_bytes,
                                              .moves = cluster->options.moves,
                                              .fd = fds[1]};

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (uint32_t i = 0; i < cluster->options.nodes; i++) /* so that each sees its own end */
            if (cluster->nodes[i].trainer_fd >= 0)
                (void)close(cluster->nodes[i].trainer_fd);
        (void)close(fds[0]);
        _exit(cairn_bench_trainer_run(&trainer));
    }
    (void)close(fds[1]);
    node->trainer_fd = fds[0];
    (void)setsockopt(fds[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return node->trainer < 0 ? CAIRN_IO : CAIRN_OK;
}

static cairn_err
take_answer(struct cairn_bench_cluster *cluster, uint32_t index, const char *what)
{
    struct node *node = &cluster->nodes[index];

    if (recv(node->trainer_fd, &node->answer, sizeof node->answer, MSG_WAITALL) !=
        sizeof node->answer) {
        (void)fprintf(stderr, "cairn bench: trainer %" PRIu32 " does not answer to %s\n", index,
                      what);
        return CAIRN_TIMEOUT;
    }
    if (node->answer.err)
        (void)fprintf(stderr, "cairn bench: trainer %" PRIu32 ": %s: %s\n", index, what,
                      cairn_err_text(node->answer.err));
    return node->answer.err;
}

static cairn_err
order_all(struct cairn_bench_cluster *cluster, enum cairn_bench_order order, uint64_t step,
          uint64_t step_ns, const char *what)
{
    struct cairn_bench_command command = {.order = order, .step = step, .step_ns = step_ns};
    cairn_err err = CAIRN_OK, first = CAIRN_OK;

    for (uint32_t i = 0; i < cluster->options.nodes; i++)
        if (send(cluster->nodes[i].trainer_fd, &command, sizeof command, MSG_NOSIGNAL) !=
            sizeof command)
            return CAIRN_PEER;
    for (uint32_t i = 0; i < cluster->options.nodes; i++) {
        err = take_answer(cluster, i, what);
        first = first ? first : err;
    }
    return first;
}

static void
read_cpu(const struct cairn_bench_cluster *cluster, struct cairn_bench_cpu *out)
{
    *out = (struct cairn_bench_cpu){0, 0};
    for (uint32_t i = 0; i < cluster->options.nodes; i++) {
        const struct node *node = &cluster->nodes[i];
        double agent = node->agent > 0 ? cairn_bench_process_cpu_s(node->agent) : 0;
        double trainer = node->trainer > 0 ? cairn_bench_process_cpu_s(node->trainer) : 0;

        out->agents += agent > 0 ? agent : 0;
        out->trainers += trainer > 0 ? trainer : 0;
    }
}

/* ---- the cluster ---- */

cairn_err
cairn_bench_cluster_open(const struct cairn_bench_cluster_options *options,
                         struct cairn_bench_cluster **out)
{
    struct cairn_bench_cluster *cluster = calloc(1, sizeof *cluster);
    const char *temporary = getenv("TMPDIR");
    cairn_err err = CAIRN_OK;

    if (!cluster)
        return CAIRN_NOMEM;
    cluster->options = *options;
    for (uint32_t i = 0; i < CAIRN_BENCH_NODES_MAX; i++) {
        cluster->nodes[i].trainer_fd = -1;
        cluster->nodes[i].agent = cluster->nodes[i].trainer = -1;
    }
    if (!temporary || temporary[0] != '/' || strlen(temporary) > 40)
        temporary = "/tmp";
    (void)snprintf(cluster->dir, sizeof cluster->dir, "%s/cairn-bench-XXXXXX", temporary);
    if (!mkdtemp(cluster->dir)) {
        (void)fprintf(stderr, "cairn bench: cannot make a directory in %s: %s\n", temporary,
                      strerror(errno));
        free(cluster);
        return CAIRN_IO;
    }
    if (!cairn_own_path(cluster->executable, sizeof cluster->executable))
        err = CAIRN_IO;
    if (!err)
        err = choose_ports(cluster);
    if (!err && options->authenticate)
        err = write_key(cluster);
    for (uint32_t i = 0; !err && i < options->nodes; i++)
        err = write_config(cluster, i);
    for (uint32_t i = 0; !err && i < options->nodes; i++)
        err = start_agent(cluster, i);
    if (!err)
        err = await_all_alive(cluster);
    if (err) {
        cairn_bench_cluster_close(cluster);
        return err;
    }
    *out = cluster;
    return CAIRN_OK;
}

/* The keepers of agents that were killed end, and give their memory back: another cluster may need
 * as much at once. */
static void
await_keepers(void)
{
    const struct timespec linger = {.tv_sec = 1, .tv_nsec = 500000000};

    (void)nanosleep(&linger, NULL);
}

void
cairn_bench_cluster_close(struct cairn_bench_cluster *cluster)
{
    if (!cluster)
        return;
    for (uint32_t i = 0; i < cluster->options.nodes; i++) {
        end_trainer(&cluster->nodes[i]);
        kill_process(&cluster->nodes[i].agent);
    }
    await_keepers();
    if (cluster->options.keep)
        (void)fprintf(stderr, "cairn bench: configurations and logs are in %s\n", cluster->dir);
    else
        remove_tree(cluster->dir, 3);
    free(cluster);
}

cairn_err
cairn_bench_cluster_train(struct cairn_bench_cluster *cluster)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; !err && i < cluster->options.nodes; i++)
        err = start_trainer(cluster, i);
    for (uint32_t i = 0; !err && i < cluster->options.nodes; i++)
        err = take_answer(cluster, i, "register");
    return err;
}

/* Tries one step; false in *captured if a trainer was not asked for it. */
static cairn_err
try_step(struct cairn_bench_cluster *cluster, uint64_t step, uint64_t step_ns,
         struct cairn_bench_cpu *before, bool *captured)
{
    cairn_err err = order_all(cluster, CAIRN_BENCH_ORDER_FILL, step, 0, "fill");

    if (err)
        return err;
    read_cpu(cluster, before);
    err = order_all(cluster, CAIRN_BENCH_ORDER_STEP, step, step_ns, "snapshot");
    *captured = !err;
    for (uint32_t i = 0; i < cluster->options.nodes; i++)
        *captured &= cluster->nodes[i].answer.right;
    return err;
}

cairn_err
cairn_bench_cluster_step(struct cairn_bench_cluster *cluster, uint64_t *step, uint64_t step_ns,
                         struct cairn_bench_cpu *cpu, double *seconds)
{
    struct cairn_bench_cpu before, after;
    uint64_t longest_ns = 0;
    bool captured = false;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; !err && !captured && i < STEPS_MAX; i++)
        err = try_step(cluster, ++*step, step_ns, &before, &captured);
    if (!err && !captured) {
        (void)fprintf(stderr, "cairn bench: none of %d steps was captured\n", STEPS_MAX);
        err = CAIRN_TIMEOUT;
    }
    if (!err)
        err = await(cluster, WAIT_COMMIT, *step, COMMIT_S);
    if (err)
        return err;
    read_cpu(cluster, &after);
    for (uint32_t i = 0; i < cluster->options.nodes; i++)
        if (cluster->nodes[i].protect_ns > longest_ns)
            longest_ns = cluster->nodes[i].protect_ns;
    *seconds = (double)longest_ns / 1e9;
    cpu->agents = after.agents - before.agents;
    cpu->trainers = after.trainers - before.trainers;
    return CAIRN_OK;
}

cairn_err
cairn_bench_cluster_move(struct cairn_bench_cluster *cluster, uint64_t step,
                         struct cairn_bench_cpu *cpu)
{
    struct cairn_bench_answer moved[CAIRN_BENCH_NODES_MAX] = {{0}};
    struct cairn_bench_cpu before, after;
    cairn_err err = order_all(cluster, CAIRN_BENCH_ORDER_FILL, step, 0, "fill");

    if (!err) /* before all stand still: the first to have room would wait for the others */
        err = order_all(cluster, CAIRN_BENCH_ORDER_ROOM, step, 0, "make room");
    read_cpu(cluster, &before);
    if (!err)
        err = order_all(cluster, CAIRN_BENCH_ORDER_MOVE, step, 0, "move");
    read_cpu(cluster, &after);
    cpu->agents = after.agents - before.agents;
    cpu->trainers = after.trainers - before.trainers;
    for (uint32_t i = 0; i < cluster->options.nodes; i++)
        moved[i] = cluster->nodes[i].answer;
    if (!err)
        err = order_all(cluster, CAIRN_BENCH_ORDER_SETTLE, step, 0, "settle");
    for (uint32_t i = 0; !err && i < cluster->options.nodes; i++) {
        if (!cluster->nodes[i].answer.right) {
            (void)fprintf(stderr, "cairn bench: rank %" PRIu32 " has wrong bytes after a move\n",
                          i);
            err = CAIRN_CORRUPT;
        }
        cluster->nodes[i].answer = moved[i];
    }
    return err;
}

cairn_err
cairn_bench_cluster_lose(struct cairn_bench_cluster *cluster, uint64_t lost)
{
    char path[PATH_BYTES];
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < cluster->options.nodes; i++)
        end_trainer(&cluster->nodes[i]);
    for (uint32_t i = 0; i < cluster->options.nodes; i++)
        if ((lost >> i) & 1) {
            kill_process(&cluster->nodes[i].agent);
            path_of(cluster, "state", i, path);
            remove_tree(path, 3); /* with the keeper's socket: its memory cannot be found again */
        }
    await_keepers(); /* and others see the agents gone */
    for (uint32_t i = 0; !err && i < cluster->options.nodes; i++) {
        read_log(cluster, i, &cluster->nodes[i]);
        cluster->nodes[i].peers_up &= ~lost;
        if ((lost >> i) & 1)
            err = start_agent(cluster, i);
    }
    if (!err)
        err = await_all_alive(cluster);
    return err;
}

cairn_err
cairn_bench_cluster_restore(struct cairn_bench_cluster *cluster, struct cairn_bench_cpu *cpu,
                            double *seconds, uint64_t *rebuilt_bytes)
{
    struct cairn_bench_cpu before, after;
    char path[PATH_BYTES], text[1024];
    double begin;
    cairn_err err;

    path_of(cluster, "socket", 0, path);
    read_cpu(cluster, &before);
    begin = cairn_bench_now_s();
    err = cairn_bench_operator_restore(path, RESTORE_S, rebuilt_bytes, text, sizeof text);
    *seconds = cairn_bench_now_s() - begin;
    read_cpu(cluster, &after);
    if (err) {
        (void)fprintf(stderr, "cairn bench: the restore failed: %s\n", text);
        return err;
    }
    cpu->agents = after.agents - before.agents;
    cpu->trainers = after.trainers - before.trainers;
    return CAIRN_OK;
}

cairn_err
cairn_bench_cluster_check(struct cairn_bench_cluster *cluster, uint64_t step)
{
    cairn_err err = order_all(cluster, CAIRN_BENCH_ORDER_RESTORE, step, 0, "restore");

    for (uint32_t i = 0; !err && i < cluster->options.nodes; i++)
        if (!cluster->nodes[i].answer.right) {
            (void)fprintf(stderr, "cairn bench: rank %" PRIu32 " got wrong bytes back\n", i);
            err = CAIRN_CORRUPT;
        }
    return err;
}

const struct cairn_bench_answer *
cairn_bench_cluster_answer(const struct cairn_bench_cluster *cluster, uint32_t rank)
{
    return &cluster->nodes[rank].answer;
}

uint64_t
cairn_bench_cluster_agent_bytes(const struct cairn_bench_cluster *cluster, uint32_t node)
{
    char path[64], line[256];
    uint64_t kib = 0;
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/%ld/status", (long)cluster->nodes[node].agent);
    file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %" SCNu64 " kB", &kib) == 1)
            break;
    if (file)
        (void)fclose(file);
    return kib * 1024;
}
