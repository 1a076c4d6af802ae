/*
 * tests/fault/test_agent.c - a trainer attaches, registers, has a generation made and asks to
 * restore it, with the agent's n-th allocation failing, for every n, once and three times in a row.
 *
 * After any failure the agent goes on, or ends itself with exit 1 and a message; it never crashes
 * and never hangs; and when memory is back, the next trainer has a generation made.
 */
#include "tests/support/failing_allocations.h"
#include "tests/unit/agent/one_agent.h"

#include <stdatomic.h>
#include <sys/mman.h>

enum { ROUNDS_MAX = 3000, QUIET_ROUNDS = 3 };

/* Shared with the agent's process. */
static struct {
    _Atomic pid_t agent;
    atomic_long left; /* allocations until one fails; negative: none does */
    atomic_int in_a_row;
    atomic_int failures;
} * faults;

static bool
fails(void)
{
    long left;

    if (!faults || faults->agent != getpid() || atomic_load(&faults->left) < 0)
        return false;
    left = atomic_fetch_sub(&faults->left, 1);
    if (left > faults->in_a_row - 1)
        return false;
    if (left < 0)
        return false;
    faults->failures++;
    return true;
}

static bool (*allocation_fails)(void) = fails;

/* The next frame that matters, 0 when the session has ended or nothing came for a while. */
static int
hear(struct trainer *trainer)
{
    for (uint64_t end = now_ms() + 300; now_ms() < end;) {
        struct pollfd poll_fd = {.fd = trainer->fd, .events = POLLIN};
        cairn_err err = cairn_session_writer_send(&trainer->writer, trainer->fd);

        if (err == CAIRN_PEER)
            return 0;
        cairn_session_frame_fini(&trainer->frame);
        memset(&trainer->frame, 0, sizeof trainer->frame);
        err = cairn_session_reader_next(&trainer->reader, &trainer->frame);
        if (err == CAIRN_OK && trainer->frame.type != CAIRN_SESSION_EPOCH)
            return (int)trainer->frame.type;
        if (err == CAIRN_OK)
            continue;
        poll(&poll_fd, 1, 20);
        if (cairn_session_reader_receive(&trainer->reader, trainer->fd) == CAIRN_PEER &&
            cairn_session_reader_next(&trainer->reader, &trainer->frame) != CAIRN_OK)
            return 0;
    }
    return 0;
}

/* Whether the agent's process has ended; await_agent learns how. */
static bool
is_gone(const struct node *node)
{
    siginfo_t info = {.si_pid = 0};

    return waitid(P_PID, (id_t)node->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid != 0;
}

/* One trainer's life, as far as it comes: an agent may end itself just when it has begun to
 * serve. */
static void
live(const struct node *node, uint64_t step)
{
    struct cairn_session_hello hello = hello_of(0, 1);
    struct cairn_session_begin frame = {.step = step};
    struct cairn_session_restore ask = {.request = 1};
    struct cairn_session_grant grant;
    struct trainer trainer;

    for (uint64_t end = now_ms() + TIMEOUT_MS; !dial_once(node, &trainer); usleep(2000)) {
        if (is_gone(node))
            return;
        assert_true(now_ms() < end);
    }
    if (cairn_session_put_hello(&trainer.writer, &hello) != CAIRN_OK ||
        hear(&trainer) != CAIRN_SESSION_WELCOME)
        goto done;
    ask_register(&trainer, 0, 1, TENSOR_BYTES, 40);
    if (hear(&trainer) != CAIRN_SESSION_REGISTERED ||
        cairn_session_take_registered(&trainer.frame, &trainer.registered) != CAIRN_OK)
        goto done;
    for (uint32_t i = 0; i < trainer.registered.slot_count; i++) {
        trainer.slot_fds[i] = trainer.frame.fds[i];
        trainer.frame.fds[i] = -1;
    }
    if (cairn_session_put_begin(&trainer.writer, &frame) != CAIRN_OK ||
        hear(&trainer) != CAIRN_SESSION_GRANT ||
        cairn_session_take_grant(&trainer.frame, &grant) != CAIRN_OK)
        goto done;
    capture(&trainer, &grant, (uint8_t)step);
    usleep(5000);
    if (cairn_session_put_restore(&trainer.writer, &ask) == CAIRN_OK)
        hear(&trainer);
done:
    hang_up(&trainer);
}

static bool
ended(const struct node *node, int *exit_code)
{
    int status;

    if (waitpid(node->pid, &status, WNOHANG) != node->pid)
        return false;
    *exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
}

/* Starts the agent again where it has ended; returns when one listens. Counts what it had to
 * start. */
static void
await_agent(struct node *node, int *restarts)
{
    for (uint64_t end = now_ms() + TIMEOUT_MS; now_ms() < end; usleep(2000)) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int exit_code, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), rc;

        snprintf(address.sun_path, sizeof address.sun_path, "%s", node->config.socket);
        rc = connect(fd, (struct sockaddr *)&address, sizeof address);
        close(fd);
        if (ended(node, &exit_code)) {
            node->pid = 0;
            if (exit_code != 1) {
                show_log(node);
                fail_msg("the agent ended with %d", exit_code);
            }
            ++*restarts;
            node->pid = start_process(node);
        } else if (rc == 0) {
            return;
        }
    }
    fail_msg("no agent listens");
}

static void
test_every_allocation(void **state)
{
    struct node *node = *state;
    uint64_t step = 1;

    for (int in_a_row = 1; in_a_row <= 3; in_a_row += 2) {
        int quiet = 0, restarts = 0;
        long n;

        for (n = 0; n < ROUNDS_MAX && quiet < QUIET_ROUNDS; n++) {
            int before = faults->failures;

            await_agent(node, &restarts);
            faults->in_a_row = in_a_row;
            faults->agent = node->pid;
            faults->left = n + in_a_row - 1;
            live(node, step++);
            quiet = faults->left >= 0 && faults->failures == before ? quiet + 1 : 0;
            faults->left = -1;
        }
        assert_in_range(n, 10, ROUNDS_MAX - 1);
        printf("%ld allocations failed %d at a time; the agent ended itself %d times\n", n,
               in_a_row, restarts);
        step += 10;
        for (uint64_t end = now_ms() + TIMEOUT_MS;;) { /* memory is back: so is protection */
            bool there = false;

            await_agent(node, &restarts);
            live(node, step);
            for (int look = 0; look < 25 && !there; look++, usleep(20000))
                there = is_ready(node, step);
            step++;
            if (there)
                break;
            if (now_ms() > end) {
                show_log(node);
                fail_msg("no generation is made any more");
            }
        }
    }
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_allocation, start_node, end_node),
    };
    int exit_code;

    if (keeper_main(argc, argv, &exit_code))
        return exit_code;
    faults = mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (faults == MAP_FAILED)
        return 1;
    faults->left = -1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
