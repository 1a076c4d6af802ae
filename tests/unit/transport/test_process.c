/*
 * Peers that are other processes: killed, stopped and started again in the middle of payloads.
 * Every wait is bounded by a deadline of the transport, and none of them is a sleep that must be
 * long enough.
 */
#include "ends.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { SENDS_MAX = 4 };

/* The provider net of libfabric 1.17 itself leaks a few hundred bytes with every connection whose
 * other end is killed. */
const char *__lsan_default_suppressions(void);
const char *
__lsan_default_suppressions(void)
{
    return "leak:libfabric.so";
}

static uint8_t payloads[SENDS_MAX][CAIRN_BULK_BYTES_MAX];
static pid_t children[ENDS_MAX];

/* A peer: takes what comes; a message of number N > 0 makes it send N payloads back to node 0. */
static void
child_run(uint32_t node)
{
    uint64_t to_send = 0, sent = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    cairn_log_setup(CAIRN_LOG_ERROR, NULL, NULL);
    if (cairn_transport_open(&ends[node].options, &ends[node].transport) != CAIRN_OK)
        _exit(3);
    for (;;) {
        ends_turn();
        if (ends[node].messages) {
            if (ends[node].last_body_len == sizeof(uint64_t))
                to_send += ends[node].next_message - 1;
            ends[node].messages = 0;
        }
        if (!ends[node].intact)
            _exit(4);
        while (sent < to_send &&
               end_send(node, 0, 0, payloads[0], CAIRN_BULK_BYTES_MAX) == CAIRN_OK)
            sent++;
    }
}

/*
 * Starts this program again as a peer, with none of the descriptors of the transport that is open
 * here: "child node incarnation provider key address …".
 */
static void
child_exec(uint32_t node)
{
    static char numbers[3][24];
    char *arguments[7 + ENDS_MAX] = {(char *)"/proc/self/exe", numbers[0], numbers[1]};

    snprintf(numbers[0], sizeof numbers[0], "%u", node);
    snprintf(numbers[1], sizeof numbers[1], "%llu",
             (unsigned long long)ends[node].options.incarnation);
    arguments[3] = (char *)provider;
    arguments[4] = (char *)(ends_key ? ends_key : "");
    snprintf(numbers[2], sizeof numbers[2], "%d", (int)ends_protection);
    arguments[5] = numbers[2];
    for (uint32_t i = 0; i < ends[node].options.node_count; i++)
        arguments[6 + i] = addresses[i];
    (void)close_range(3, ~0u, 0);
    execv("/proc/self/exe", arguments);
    _exit(5);
}

/* The other side of child_exec. */
static void
child_main(int count, char **arguments)
{
    uint32_t node = (uint32_t)strtoul(arguments[1], NULL, 10);

    use(arguments[3], arguments[4][0] ? arguments[4] : NULL);
    ends_protection = (enum cairn_protection)strtoul(arguments[5], NULL, 10);
    ends_prepare((uint32_t)count - 6);
    for (int i = 6; i < count; i++)
        snprintf(addresses[i - 6], sizeof addresses[0], "%s", arguments[i]);
    ends[node].options.incarnation = strtoull(arguments[2], NULL, 10);
    payload_fill(payloads[0], CAIRN_BULK_BYTES_MAX, 0);
    child_run(node);
}

static void
child_start(uint32_t node, uint64_t incarnation)
{
    ends[node].options.incarnation = incarnation;
    children[node] = fork();
    assert_true(children[node] >= 0);
    if (children[node] == 0)
        child_exec(node);
}

static void
child_kill(uint32_t node)
{
    if (children[node] <= 0)
        return;
    kill(children[node], SIGKILL);
    waitpid(children[node], NULL, 0);
    children[node] = 0;
}

static int
stop(void **state)
{
    ends_close(state);
    for (uint32_t i = 0; i < ENDS_MAX; i++)
        child_kill(i);
    return 0;
}

/* Node 0 here, the others as processes, all up. */
static void
cluster_open(uint32_t count, uint64_t timeout_ns)
{
    ends_prepare(count);
    for (uint32_t i = 0; i < SENDS_MAX; i++)
        payload_fill(payloads[i], CAIRN_BULK_BYTES_MAX, 0);
    ends[0].options.timeout_ns = timeout_ns;
    for (uint32_t i = 1; i < count; i++)
        child_start(i, 500);
    end_open(0);
    for (uint32_t i = 1; i < count; i++) {
        cairn_transport_connect(ends[0].transport, i);
        TURN_UNTIL(state_of(0, i) == CAIRN_PEER_UP, 10);
    }
}

/* Sends payloads to a node as long as they are taken, for at most `count`. */
static uint64_t
pour(uint32_t node, uint64_t count)
{
    uint64_t sent = 0;

    while (sent < count &&
           end_send(0, node, 0, payloads[sent % SENDS_MAX], CAIRN_BULK_BYTES_MAX) == CAIRN_OK)
        sent++;
    return sent;
}

static uint64_t
ended(void)
{
    return ends[0].sent_ok + ends[0].sent_failed;
}

static void
test_killed_while_receiving(void **state)
{
    uint64_t sent = 0;
    uint64_t started_ns;

    cluster_open(2, 3000000000u);
    for (uint64_t life = 1; life <= 3; life++) {
        uint64_t ok, downs;

        while (sent < life * 40) {
            sent += pour(1, 8);
            ends_turn();
        }
        child_kill(1);
        downs = ends[0].downs; /* more than one per life where the endpoint was opened again */
        sent += pour(1, 8);    /* into the gap */
        started_ns = clock_now_ns();
        while (ends[0].downs == downs && clock_now_ns() - started_ns < PATIENCE * 6000000000u) {
            sent += end_send(0, 1, 0, NULL, 0) == CAIRN_OK; /* a heartbeat */
            ends_turn_for(0.02);
        }
        assert_true(ends[0].downs > downs);
        TURN_UNTIL(ended() == sent, 6); /* every send ends, and none twice */
        ends_turn_for(0.1);
        assert_int_equal(ended(), sent);
        assert_int_equal(stats_of(0).operations_free, 1024);
        child_start(1, 500 + life);
        TURN_UNTIL(state_of(0, 1) == CAIRN_PEER_UP && ends[0].incarnation_up == 500 + life, 3);
        ok = ends[0].sent_ok;
        started_ns = clock_now_ns();
        while (ends[0].sent_ok < ok + 20 && clock_now_ns() - started_ns < PATIENCE * 10000000000u) {
            sent += pour(1, 8);
            ends_turn();
        }
        assert_true(ends[0].sent_ok >= ok + 20);
        TURN_UNTIL(ended() == sent, 10);
        sent = life * 40;
        ends[0].sent_ok = sent;
        ends[0].sent_failed = 0;
    }
}

/*
 * A stopped peer goes down by the deadline, once the kernel's buffers (which may take tens of MiB
 * in its name) are full; another one is served all the time; continued, it is back.
 */
static void
test_stopped_while_receiving(void **state)
{
    uint64_t sent_to_stopped = 0, sent = 0, held_up = 0;
    uint64_t begin_ns, stopped_ns;

    cluster_open(3, 3000000000u);
    while (sent_to_stopped < 20) {
        sent_to_stopped += pour(1, 8);
        ends_turn();
    }
    kill(children[1], SIGSTOP);
    stopped_ns = clock_now_ns();
    while (state_of(0, 1) == CAIRN_PEER_UP &&
           clock_now_ns() - stopped_ns < PATIENCE * 10000000000u) {
        uint64_t before;

        sent_to_stopped += pour(1, 8);
        for (int i = 0; i < 1000; i++)
            sent_to_stopped +=
                cairn_transport_send(ends[0].transport, 1, payloads[0],
                                     CAIRN_TRANSPORT_BODY_BYTES_MAX, NULL, 0, 0) == CAIRN_OK;
        before = ends[0].ended_of[2];
        begin_ns = clock_now_ns();
        /* Down for a moment where the whole endpoint is opened again: providers without rxm. */
        while (end_send(0, 2, 0, payloads[0], 65536) != CAIRN_OK &&
               clock_now_ns() - begin_ns < PATIENCE * 5000000000u)
            ends_turn();
        sent++;
        TURN_UNTIL(ends[0].ended_of[2] > before, 5);
        held_up += clock_now_ns() - begin_ns > 500000000u;
    }
    assert_int_equal(state_of(0, 1) == CAIRN_PEER_UP, false);
    assert_true(held_up <= sent / 2); /* a machine that is busy holds some up, a peer that is
                                       * stopped all */
    assert_int_equal(stats_of(0).timeouts, 1);
    /* Within the grace every send has ended, though the process still exists. */
    TURN_UNTIL(ended() == sent + sent_to_stopped, 3);
    assert_true(ends[0].sent_failed > 0);
    kill(children[1], SIGCONT);
    TURN_UNTIL(state_of(0, 1) == CAIRN_PEER_UP && state_of(0, 2) == CAIRN_PEER_UP, 10);
    while (sent_to_stopped < 60) {
        sent_to_stopped += pour(1, 8);
        ends_turn();
    }
    TURN_UNTIL(ended() == sent + sent_to_stopped, 10);
    assert_int_equal(waitpid(children[1], NULL, WNOHANG), 0); /* it found every payload intact */
}

/*
 * The sender is stopped (or killed) in the middle of writing into our buffers. Declared dead, its
 * buffers are free again and are not written to any more.
 */
static void
sender_lost(int signal_number)
{
    uint64_t seen;

    cluster_open(3, 2000000000u);
    for (int i = 0; i < 5; i++) {
        end_send_soon(0, 1, 100000, NULL, 0); /* "send me so many" */
        seen = ends[0].payloads;
        TURN_UNTIL(ends[0].payloads > seen + 20, 10);
        kill(children[1], signal_number);
        if (signal_number == SIGKILL)
            child_kill(1);
        ends_turn_for(0.02);
        cairn_transport_disconnect(ends[0].transport, 1);
        TURN_UNTIL(state_of(0, 1) != CAIRN_PEER_UP, 5);
        seen = ends[0].payloads;
        if (signal_number == SIGKILL)
            child_start(1, 600 + (uint64_t)i);
        end_send_soon(0, 2, 50, NULL, 0); /* another one fills the same buffers */
        TURN_UNTIL(ends[0].payloads >= seen + 50, 10);
        if (signal_number == SIGSTOP) {
            kill(children[1], SIGCONT);
            child_kill(1);
            child_start(1, 700 + (uint64_t)i);
        }
        TURN_UNTIL(state_of(0, 1) == CAIRN_PEER_UP, 10);
        assert_true(ends[0].intact);
    }
    child_kill(1);
    child_kill(2);
    cairn_transport_disconnect(ends[0].transport, 1);
    cairn_transport_disconnect(ends[0].transport, 2);
    TURN_UNTIL(stats_of(0).buffers_free == 16, 5);
}

static void
test_sender_stopped(void **state)
{
    sender_lost(SIGSTOP);
}

static void
test_sender_killed(void **state)
{
    sender_lost(SIGKILL);
}

/* Closing and opening again while payloads arrive and leave. */
static void
test_closed_in_the_middle(void **state)
{
    cluster_open(2, 2000000000u);
    for (uint64_t i = 0; i < 5; i++) {
        uint64_t seen = ends[0].payloads;

        end_send_soon(0, 1, 100000, NULL, 0);
        TURN_UNTIL(ends[0].payloads > seen + 10, 10);
        (void)pour(1, 8);
        end_close(0);
        ends[0].options.incarnation = 900 + i;
        child_kill(1);
        child_start(1, 900 + i);
        end_open(0);
        cairn_transport_connect(ends[0].transport, 1);
        TURN_UNTIL(state_of(0, 1) == CAIRN_PEER_UP, 10);
    }
    assert_true(ends[0].intact);
}

static int
use_net(void **state)
{
    return use("net", "a key of more than sixteen bytes");
}

#define CASE(backend, function)                                                                    \
    {                                                                                              \
#backend ": " #function, function, use_##backend, stop, NULL                               \
    }

int
main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        CASE(tcp, test_killed_while_receiving),
        CASE(tcp, test_stopped_while_receiving),
        CASE(tcp, test_sender_stopped),
        CASE(tcp, test_sender_killed),
        CASE(tcp, test_closed_in_the_middle),
        CASE(tls, test_killed_while_receiving),
        CASE(tls, test_stopped_while_receiving),
        CASE(tls, test_sender_killed),
        CASE(libfabric, test_killed_while_receiving),
        CASE(libfabric, test_sender_killed),
        CASE(rdma, test_killed_while_receiving),
        CASE(rdma, test_sender_killed),
        CASE(net, test_stopped_while_receiving),
    };

    if (count > 6)
        child_main(count, arguments);
    cairn_log_setup(CAIRN_LOG_WARN, log_keep, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
