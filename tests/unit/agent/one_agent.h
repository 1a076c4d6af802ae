/*
 * tests/unit/agent/one_agent.h - the agent of a job of one node as a real process, and
 * trainers that send it single frames. A program that includes this is also the keeper's
 * executable: main calls keeper_main first.
 */
#ifndef ONE_AGENT_H
#define ONE_AGENT_H

#include "agent/agent.h"
#include "agent/process/keeper.h"
#include "base/clock.h"
#include "base/crc.h"
#include "base/limits.h"
#include "base/log.h"
#include "client/session.h"
#include "tests/support/cmocka.h"
#include "tests/support/loopback.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define HELPER __attribute__((unused)) static

enum {
    TIMEOUT_MS = 15000,
    STATE_BYTES = 1 << 20,
    TENSOR_BYTES = 3 * CAIRN_BLOCK_BYTES,
    REGION_BLOCKS = 3
};

static char executable[512];

struct node {
    char dir[64];
    char log_path[96];
    struct cairn_config config;
    pid_t pid;
};

/* ---- the agent ---- */

HELPER uint64_t
now_ms(void)
{
    struct cairn_clock clock = cairn_clock_system();

    return cairn_clock_now_ns(&clock) / CAIRN_NS_PER_MS;
}

HELPER pid_t
start_process(const struct node *node)
{
    pid_t pid = fork();
    int fd;

    assert_true(pid >= 0);
    if (pid)
        return pid;
    for (int number = 1; number < 32; number++)
        signal(number, SIG_DFL); /* a crash is the agent's, not the test's */
    fd = open(node->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(fd, 2);
    (void)setenv("XDG_RUNTIME_DIR", node->dir, 1); /* not in the user's list of agents */
    _exit(cairn_agent_run(&node->config, executable));
}

HELPER int
wait_exit(pid_t pid)
{
    int status;

    for (uint64_t end = now_ms() + TIMEOUT_MS; now_ms() < end; usleep(5000))
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    kill(pid, SIGKILL);
    fail_msg("the agent does not end");
    return -1;
}

HELPER bool
logged(const struct node *node, const char *text)
{
    static char bytes[1 << 18];
    int fd = open(node->log_path, O_RDONLY | O_CLOEXEC);
    ssize_t len = fd < 0 ? 0 : read(fd, bytes, sizeof bytes - 1);

    if (fd >= 0)
        close(fd);
    bytes[len > 0 ? len : 0] = 0;
    return strstr(bytes, text) != NULL;
}

/* What the agent said last, before a test fails: its folder may go with the test. */
HELPER void
show_log(const struct node *node)
{
    char bytes[4096];
    int fd = open(node->log_path, O_RDONLY | O_CLOEXEC);
    off_t length = fd < 0 ? 0 : lseek(fd, 0, SEEK_END),
          begin = length > (off_t)sizeof bytes ? length - (off_t)sizeof bytes : 0;
    ssize_t len = fd < 0 ? 0 : pread(fd, bytes, sizeof bytes, begin);

    if (fd >= 0)
        close(fd);
    print_error("the end of %s:\n%.*s\n", node->log_path, (int)(len > 0 ? len : 0), bytes);
}

HELPER void
await_log(const struct node *node, const char *text)
{
    for (uint64_t end = now_ms() + TIMEOUT_MS; !logged(node, text); usleep(5000))
        if (now_ms() > end) {
            show_log(node);
            fail_msg("the agent does not say \"%s\"", text);
        }
}

HELPER int
make_node(void **state)
{
    struct node *node = calloc(1, sizeof *node);
    struct cairn_config *config;

    assert_non_null(node);
    snprintf(node->dir, sizeof node->dir, "%s/cairn-agent-XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(node->dir));
    snprintf(node->log_path, sizeof node->log_path, "%s/log", node->dir);
    config = &node->config;
    assert_int_equal(cairn_config_default(config), CAIRN_OK);
    snprintf(config->job, sizeof config->job, "test");
    snprintf(config->socket, sizeof config->socket, "%s/agent.sock", node->dir);
    snprintf(config->dir, sizeof config->dir, "%s/state", node->dir);
    loopback_address(config->nodes[0].address);
    config->state_bytes = STATE_BYTES;
    config->heartbeat_interval_ms = 50;
    config->hugepages = CAIRN_CONFIG_HUGEPAGES_NEVER;
    *state = node;
    return 0;
}

HELPER int
start_node(void **state)
{
    struct node *node;

    make_node(state);
    node = *state;
    node->pid = start_process(node);
    await_log(node, "agent: serves");
    return 0;
}

HELPER int
end_node(void **state)
{
    struct node *node = *state;
    struct cairn_keeper *keeper = NULL;
    char path[128], command[128];
    int exit_code = 0;

    if (node->pid) {
        kill(node->pid, SIGTERM);
        exit_code = wait_exit(node->pid);
    }
    snprintf(path, sizeof path, "%s/state/keeper.sock", node->dir);
    if (cairn_keeper_connect(path, 1000, &keeper) == CAIRN_OK)
        exit_code |= cairn_keeper_shutdown(keeper) != CAIRN_OK;
    cairn_keeper_close(keeper);
    cairn_config_fini(&node->config);
    snprintf(command, sizeof command, "rm -rf %s", node->dir);
    exit_code |= system(command);
    free(node);
    return exit_code;
}

/* ---- trainers ---- */

struct trainer {
    const struct node *node;
    int fd;
    struct cairn_session_reader reader;
    struct cairn_session_writer writer;
    struct cairn_session_frame frame; /* the last one taken */
    struct cairn_session_registered registered;
    int slot_fds[CAIRN_SESSION_FDS_MAX];
};

HELPER struct cairn_session_hello
hello_of(uint32_t rank, uint32_t local_ranks)
{
    struct cairn_session_hello hello = {.protocol = CAIRN_SESSION_PROTOCOL,
                                        .role = CAIRN_ROLE_TRAINER,
                                        .rank = rank,
                                        .world = rank < local_ranks ? local_ranks : rank + 1,
                                        .local_ranks = local_ranks,
                                        .pid = (uint64_t)getpid()};

    snprintf(hello.job, sizeof hello.job, "test");
    return hello;
}

/* False where no agent listens; nothing must be closed then. */
HELPER bool
dial_once(const struct node *node, struct trainer *trainer)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memset(trainer, 0, sizeof *trainer);
    trainer->node = node;
    for (int i = 0; i < CAIRN_SESSION_FDS_MAX; i++)
        trainer->slot_fds[i] = -1;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", node->config.socket);
    trainer->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(trainer->fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(trainer->fd);
        return false;
    }
    assert_int_equal(fcntl(trainer->fd, F_SETFL, O_NONBLOCK), 0);
    cairn_session_reader_init(&trainer->reader, CAIRN_SESSION_AGENT);
    cairn_session_writer_init(&trainer->writer, 8 << 20);
    return true;
}

HELPER void
dial(const struct node *node, struct trainer *trainer)
{
    for (uint64_t end = now_ms() + TIMEOUT_MS; !dial_once(node, trainer); usleep(5000))
        assert_true(now_ms() < end); /* an agent that starts again is not there at once */
}

HELPER void
hang_up(struct trainer *trainer)
{
    for (int i = 0; i < CAIRN_SESSION_FDS_MAX; i++)
        if (trainer->slot_fds[i] >= 0)
            close(trainer->slot_fds[i]);
    cairn_session_frame_fini(&trainer->frame);
    cairn_session_reader_fini(&trainer->reader);
    cairn_session_writer_fini(&trainer->writer);
    close(trainer->fd);
}

/* The next frame; 0 when the agent has closed. */
HELPER int
receive(struct trainer *trainer)
{
    uint64_t end = now_ms() + TIMEOUT_MS;
    bool gone = false;

    cairn_session_frame_fini(&trainer->frame);
    memset(&trainer->frame, 0, sizeof trainer->frame);
    while (now_ms() < end) {
        struct pollfd poll_fd = {.fd = trainer->fd, .events = POLLIN};
        cairn_err err = cairn_session_writer_send(&trainer->writer, trainer->fd);

        if (err == CAIRN_AGAIN)
            poll_fd.events |= POLLOUT;
        err = cairn_session_reader_next(&trainer->reader, &trainer->frame);
        if (err == CAIRN_OK)
            return (int)trainer->frame.type;
        assert_int_equal(err, CAIRN_AGAIN);
        if (gone)
            return 0;
        poll(&poll_fd, 1, 50);
        gone = cairn_session_reader_receive(&trainer->reader, trainer->fd) == CAIRN_PEER;
    }
    fail_msg("the agent says nothing");
    return -1;
}

/* The next frame that is not an EPOCH. */
HELPER void
expect(struct trainer *trainer, int type)
{
    int got;

    do
        got = receive(trainer);
    while (got == CAIRN_SESSION_EPOCH);
    assert_int_equal(got, type);
}

HELPER void
expect_refused(struct trainer *trainer, cairn_err err, const char *text)
{
    struct cairn_session_refused refused;

    expect(trainer, CAIRN_SESSION_REFUSED);
    assert_int_equal(cairn_session_take_refused(&trainer->frame, &refused), CAIRN_OK);
    assert_int_equal(refused.err, err);
    if (!strstr(refused.text, text))
        fail_msg("refused with \"%s\", which does not say \"%s\"", refused.text, text);
}

HELPER void
greet(const struct node *node, struct trainer *trainer, const struct cairn_session_hello *hello)
{
    dial(node, trainer);
    assert_int_equal(cairn_session_put_hello(&trainer->writer, hello), CAIRN_OK);
}

HELPER void
attach(const struct node *node, struct trainer *trainer, uint32_t rank, uint32_t local_ranks)
{
    struct cairn_session_hello hello = hello_of(rank, local_ranks);

    greet(node, trainer, &hello);
    expect(trainer, CAIRN_SESSION_WELCOME);
}

/* Asks to register `count` tensors of `bytes` bytes with names of name_len characters. */
HELPER void
ask_register(struct trainer *trainer, uint32_t rank, uint32_t count, uint64_t bytes, int name_len)
{
    struct cairn_slice *slices = calloc(count, sizeof *slices);
    struct cairn_session_register request = {.request = 7, .count = count, .slices = slices};
    char *names = calloc(count, (size_t)name_len + 1);

    assert_non_null(slices);
    assert_non_null(names);
    for (uint32_t i = 0; i < count; i++) {
        char *name = names + (size_t)i * ((size_t)name_len + 1);

        memset(name, 'x', (size_t)name_len);
        snprintf(name + name_len - 12, 13, "%04u%08u", rank, i);
        slices[i].name = name;
        slices[i].dtype = CAIRN_U8;
        slices[i].kind = CAIRN_PARAM;
        slices[i].dims = 1;
        slices[i].shape[0] = slices[i].extent[0] = bytes;
        slices[i].replica_count = 1;
        slices[i].device = -1;
    }
    assert_int_equal(cairn_session_put_register(&trainer->writer, &request), CAIRN_OK);
    free(slices);
    free(names);
}

HELPER void
enlist(struct trainer *trainer, uint32_t rank)
{
    ask_register(trainer, rank, 1, TENSOR_BYTES, 40);
    expect(trainer, CAIRN_SESSION_REGISTERED);
    assert_int_equal(cairn_session_take_registered(&trainer->frame, &trainer->registered),
                     CAIRN_OK);
    assert_int_equal(trainer->registered.region_bytes, TENSOR_BYTES);
    for (uint32_t i = 0; i < trainer->registered.slot_count; i++) {
        trainer->slot_fds[i] = trainer->frame.fds[i];
        trainer->frame.fds[i] = -1;
    }
}

/* Waits until the agent has assembled a run of all ranks that are registered. */
HELPER void
await_run(const struct node *node)
{
    static const char ask[] = "{\"verb\":\"status\"}";
    const struct cairn_session_operator operation = {ask, sizeof ask - 1};
    struct cairn_session_hello hello = {.protocol = CAIRN_SESSION_PROTOCOL,
                                        .role = CAIRN_ROLE_OPERATOR};
    bool assembled = false;

    for (uint64_t end = now_ms() + TIMEOUT_MS; !assembled; usleep(10000)) {
        struct cairn_session_operator_reply reply = {0};
        struct trainer status;
        char text[1 << 16] = "";

        greet(node, &status, &hello);
        expect(&status, CAIRN_SESSION_WELCOME);
        assert_int_equal(cairn_session_put_operator(&status.writer, &operation), CAIRN_OK);
        while (!reply.final) {
            expect(&status, CAIRN_SESSION_OPERATOR_REPLY);
            assert_int_equal(cairn_session_take_operator_reply(&status.frame, &reply), CAIRN_OK);
            snprintf(text + strlen(text), sizeof text - strlen(text), "%.*s", (int)reply.text_bytes,
                     reply.text);
        }
        hang_up(&status);
        assembled =
            strstr(text, "\"run\":") && !strstr(text, "\"run\":0,") && !strstr(text, "\"run\": 0,");
        if (now_ms() > end)
            fail_msg("no run is assembled: %s", text);
    }
}

/* The agent forms its epoch and assembles a run before it grants a step. */
HELPER struct cairn_session_grant
begin(struct trainer *trainer, uint64_t step)
{
    struct cairn_session_begin frame = {.step = step};
    struct cairn_session_grant grant;
    struct cairn_session_skip skip;
    int got;

    await_run(trainer->node);
    assert_int_equal(cairn_session_put_begin(&trainer->writer, &frame), CAIRN_OK);
    do
        got = receive(trainer);
    while (got == CAIRN_SESSION_EPOCH);
    if (got == CAIRN_SESSION_SKIP && cairn_session_take_skip(&trainer->frame, &skip) == CAIRN_OK)
        fail_msg("step %u is not granted: reason %u: %s", (unsigned)step, skip.reason, skip.text);
    assert_int_equal(got, CAIRN_SESSION_GRANT);
    assert_int_equal(cairn_session_take_grant(&trainer->frame, &grant), CAIRN_OK);
    return grant;
}

/* Copies blocks of `fill` and reports them, then DONE. */
HELPER void
capture(struct trainer *trainer, const struct cairn_session_grant *grant, uint8_t fill)
{
    struct cairn_session_piece piece = {.generation = grant->generation, .count = REGION_BLOCKS};
    struct cairn_session_done done = {grant->generation};
    cairn_err err;
    uint8_t block[CAIRN_BLOCK_BYTES];

    memset(block, fill, sizeof block);
    for (uint32_t i = 0; i < REGION_BLOCKS; i++) {
        off_t at = (off_t)(trainer->registered.region_offset + i * sizeof block);

        assert_int_equal(pwrite(trainer->slot_fds[grant->slot], block, sizeof block, at),
                         (ssize_t)sizeof block);
        piece.crcs[i] = cairn_crc64(0, block, sizeof block);
    }
    assert_int_equal(cairn_session_put_piece(&trainer->writer, &piece), CAIRN_OK);
    assert_int_equal(cairn_session_put_done(&trainer->writer, &done), CAIRN_OK);
    err = cairn_session_writer_send(&trainer->writer, trainer->fd);
    assert_true(err == CAIRN_OK || err == CAIRN_PEER); /* it may have died meanwhile */
}

/* True when a generation of that step is what a restore would give. */
HELPER bool
is_ready(const struct node *node, uint64_t step)
{
    struct cairn_session_restore ask = {.request = 1};
    struct cairn_session_restore_info info = {0};
    struct trainer trainer;
    bool there;

    attach(node, &trainer, 3, 1);
    assert_int_equal(cairn_session_put_restore(&trainer.writer, &ask), CAIRN_OK);
    expect(&trainer, CAIRN_SESSION_RESTORE_INFO);
    assert_int_equal(cairn_session_take_restore_info(&trainer.frame, &info), CAIRN_OK);
    there = info.err == CAIRN_OK && info.generation.step == step;
    cairn_session_restore_info_fini(&info);
    hang_up(&trainer);
    return there;
}

/* Waits until it is. */
HELPER void
await_ready(const struct node *node, uint64_t step)
{
    for (uint64_t end = now_ms() + TIMEOUT_MS; !is_ready(node, step); usleep(20000))
        if (now_ms() > end)
            fail_msg("the generation of step %u is never committed", (unsigned)step);
}

/* True when this process had to be the keeper, and was; sets `executable` otherwise. */
HELPER bool
keeper_main(int argc, char **argv, int *exit_code)
{
    ssize_t len = readlink("/proc/self/exe", executable, sizeof executable - 1);

    *exit_code = 1;
    if (argc == 4 && strcmp(argv[1], "keeper") == 0) {
        *exit_code = (int)cairn_keeper_run(argv[2], (uint32_t)strtoul(argv[3], NULL, 10));
        return true;
    }
    return len < 0;
}

/* An operator's question and its answer, in text[text_bytes]. */
HELPER void
ask(const struct node *node, const char *question, char *text, size_t text_bytes)
{
    struct cairn_session_hello hello = {.protocol = CAIRN_SESSION_PROTOCOL,
                                        .role = CAIRN_ROLE_OPERATOR};
    struct cairn_session_operator request = {.text = question,
                                             .text_bytes = (uint32_t)strlen(question)};
    struct cairn_session_operator_reply reply = {0};
    struct trainer operator;
    size_t used = 0;

    greet(node, &operator, & hello);
    expect(&operator, CAIRN_SESSION_WELCOME);
    assert_int_equal(cairn_session_put_operator(&operator.writer, &request), CAIRN_OK);
    while (!reply.final) {
        expect(&operator, CAIRN_SESSION_OPERATOR_REPLY);
        assert_int_equal(cairn_session_take_operator_reply(&operator.frame, &reply), CAIRN_OK);
        assert_true(reply.text_bytes < text_bytes - used);
        memcpy(text + used, reply.text, reply.text_bytes);
        used += reply.text_bytes;
    }
    text[used] = '\0';
    hang_up(&operator);
}

#undef HELPER
#endif
