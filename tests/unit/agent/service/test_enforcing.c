/* tests/unit/agent/service/test_enforcing.c - verdict_policy enforce in a whole agent: a rank dies,
 * and the operator's command is run for it once. */
#include "agent/process/agent_state.h"
#include "agent/service/enforcing.h"
#include "agent/service/timing_state.h"
#include "tests/unit/agent/rings.h"

#include <errno.h>

enum { RANKS = 3 };

static char text[1 << 16];

struct job {
    struct ring_file files[RANKS];
    struct trainer trainer; /* rank 0, which waits for rank 2 */
};

/* A node whose agent runs a script, with the node's folder as $0. */
static int
make_enforcing(void **state, const char *script)
{
    struct node *node;
    struct cairn_config_command *command;
    int used;

    make_node(state);
    node = *state;
    node->config.verdict_policy = CAIRN_CONFIG_ENFORCE;
    command = &node->config.enforce_command;
    used = snprintf(command->text, sizeof command->text, "/bin/sh%c-c%c%s%c%s", 0, 0, script, 0,
                    node->dir);
    assert_true(used > 0 && (size_t)used < sizeof command->text);
    command->count = 4;
    node->pid = start_process(node);
    await_log(node, "agent: serves");
    return 0;
}

static int
start_succeeding(void **state)
{
    return make_enforcing(
        state, "cat >$0/input; echo $CAIRN_VERDICT/$CAIRN_RANKS/$CAIRN_NODES/$CAIRN_HOSTS "
               ">>$0/runs; echo drained; echo two >&2; printf %01200d 1");
}

static int
start_failing(void **state)
{
    return make_enforcing(state, "echo run >>$0/runs; echo no such node; exit 3");
}

static int
start_hanging(void **state)
{
    return make_enforcing(state, "echo $$ >>$0/runs; exec sleep 1000");
}

/* Three ranks count operations; ranks 1 and 2 end, rank 1 with a word: the end of rank 2 is what
 * rank 0 waits for. Two kinds of evidence. */
static void
lose_a_rank(const struct node *node, struct job *job)
{
    uint64_t now_ns = now_ms() * CAIRN_NS_PER_MS;

    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct cairn_timing_record record = {.comm = 7,
                                             .enter_ns = now_ns - 60 * CAIRN_NS_PER_S,
                                             .rank = rank,
                                             .peer = rank,
                                             .ranks = RANKS,
                                             .op = CAIRN_TIMING_MEMBER};

        job->files[rank] = make_ring();
        assert_true(cairn_ring_write(&job->files[rank].ring, &record));
        record.op = CAIRN_ALL_REDUCE;
        record.peer = CAIRN_PEER_NONE;
        for (record.seq = 1; record.seq <= 100; record.seq++) {
            /* half a second apart, until ten seconds ago */
            record.enter_ns += CAIRN_NS_PER_S / 2;
            assert_true(cairn_ring_write(&job->files[rank].ring, &record));
        }
    }
    attach(node, &job->trainer, 0, RANKS);
    for (uint32_t rank = 1; rank < RANKS; rank++) {
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
            struct trainer child;

            attach(node, &child, rank, RANKS);
            hand_over(&child, job->files[rank].fd);
            await_log(node, rank == 1 ? "timing: reads rank=1" : "timing: reads rank=2");
            if (rank == 1) {
                assert_int_equal(cairn_session_put_leave(&child.writer), CAIRN_OK);
                assert_int_equal(cairn_session_writer_send(&child.writer, child.fd), CAIRN_OK);
            }
            _exit(0);
        }
        assert_int_equal(wait_exit(pid), 0);
        await_log(node,
                  rank == 1 ? "session: trainer left rank=1" : "session: trainer left rank=2");
    }
    hand_over(&job->trainer, job->files[0].fd);
    await_log(node, "opened: rank 2 is gone");
}

static void
end_job(struct job *job)
{
    hang_up(&job->trainer);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        end_ring(&job->files[rank]);
}

/* What the command has left in a file of the node's folder. */
static const char *
left(const struct node *node, const char *name)
{
    static char bytes[1 << 14];
    char path[128];
    ssize_t len;
    int fd;

    (void)snprintf(path, sizeof path, "%s/%s", node->dir, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    len = fd < 0 ? 0 : read(fd, bytes, sizeof bytes - 1);
    if (fd >= 0)
        close(fd);
    bytes[len > 0 ? len : 0] = '\0';
    return bytes;
}

static void
says(const char *what)
{
    if (!strstr(text, what))
        fail_msg("not said: %s\n%s", what, text);
}

static void
start_again(struct node *node, int how)
{
    assert_int_equal(kill(node->pid, how), 0);
    assert_int_equal(wait_exit(node->pid), how == SIGKILL ? 128 + SIGKILL : 0);
    assert_int_equal(unlink(node->log_path), 0);
    node->pid = start_process(node);
    await_log(node, "agent: serves");
}

static void
test_once(void **state)
{
    struct node *node = *state;
    const char *address = node->config.nodes[0].address;
    int host_len = (int)strcspn(address, ":");
    struct job job;

    lose_a_rank(node, &job);
    await_status(node, "\"enforcement\":{\"result\":\"succeeded\",\"what\":\"enforce_command "
                       "succeeded on node 0\",\"node\":0,\"exit_status\":0,");
    (void)snprintf(text, sizeof text,
                   "enforce: verdict=1: runs /bin/sh; CAIRN_RANKS=2 CAIRN_NODES=0 CAIRN_HOSTS=%.*s",
                   host_len, address);
    await_log(node, text);
    await_log(node, "enforce: verdict=1 says: drained");
    await_log(node, "enforce: verdict=1 says: two");
    await_log(node, "000 ...\n"); /* a line longer than those of the log is continued */
    await_log(node, "001\n");
    await_log(node, "enforce: verdict=1 says on: 000");
    await_log(node, "enforce: verdict=1: enforce_command succeeded on node 0; took_ms=");
    (void)snprintf(text, sizeof text, "%s", left(node, "input"));
    says("{\"verdict\":1,\"kind\":\"crash\",\"open\":true,");
    says("\"ranks\":[2],");
    says("\"enforcement\":{\"result\":\"running\",");
    ask_status(node, text, sizeof text);
    says("is gone while the others wait; since step 0; enforce_command succeeded on node 0\"");
    says("\"enforcements\":{\"succeeded\":1,\"failed\":0,\"timeout\":0,\"not_started\":0,"
         "\"unknown\":0}");
    start_again(node, SIGKILL); /* it is kept, and not done again */
    await_status(node, "\"enforcement\":{\"result\":\"succeeded\",");
    (void)snprintf(text, sizeof text, "1/2/0/%.*s\n", host_len, address);
    assert_string_equal(left(node, "runs"), text);
    end_job(&job);
}

static void
test_a_failure(void **state)
{
    struct node *node = *state;
    struct job job;

    lose_a_rank(node, &job);
    await_log(node, "enforce: verdict=1 says: no such node");
    await_log(node, "enforce: verdict=1: enforce_command failed on node 0 with exit status 3");
    await_status(node, "\"enforcement\":{\"result\":\"failed\",\"what\":\"enforce_command failed "
                       "on node 0 with exit status 3\",\"node\":0,\"exit_status\":3,");
    ask_status(node, text, sizeof text);
    assert_string_equal(left(node, "runs"), "run\n");
    end_job(&job);
}

static pid_t
await_command(const struct node *node)
{
    for (uint64_t until = now_ms() + TIMEOUT_MS; now_ms() < until; usleep(5000)) {
        const char *runs = left(node, "runs");

        if (strchr(runs, '\n'))
            return (pid_t)strtol(runs, NULL, 10);
    }
    fail_msg("the command is not run");
    return -1;
}

/* An agent that is killed leaves its command behind; the one after it does not know how that
 * ended, reports that, and does not run it again. */
static void
test_an_agent_that_dies_meanwhile(void **state)
{
    struct node *node = *state;
    struct job job;
    pid_t pid;

    lose_a_rank(node, &job);
    pid = await_command(node);
    await_status(
        node,
        "\"enforcement\":{\"result\":\"running\",\"what\":\"enforce_command runs on node 0\"");
    start_again(node, SIGKILL);
    await_status(node, "\"enforcement\":{\"result\":\"unknown\",\"what\":\"enforce_command: "
                       "unknown: the agent of node 0 ended before it");
    ask_status(node, text, sizeof text);
    says("\"timeout\":0,\"not_started\":0,\"unknown\":1}");
    assert_int_equal(kill(-pid, SIGKILL), 0);
    await_status(node, "\"analyst\":0,");
    assert_int_equal((int)strtol(left(node, "runs"), NULL, 10), pid);
    assert_null(strchr(strchr(left(node, "runs"), '\n') + 1, '\n'));
    end_job(&job);
}

/* One that is told to stop ends it, at once. */
static void
test_an_agent_that_stops_meanwhile(void **state)
{
    struct node *node = *state;
    struct job job;
    pid_t pid;

    lose_a_rank(node, &job);
    pid = await_command(node);
    start_again(node, SIGTERM);
    assert_int_equal(kill(-pid, 0), -1);
    assert_int_equal(errno, ESRCH);
    await_status(node, "\"enforcement\":{\"result\":\"unknown\",");
    end_job(&job);
}

/* A command that cannot run stops the start; one that never runs is reported. */
static void
test_the_start(void **state)
{
    struct node *node = *state;

    node->config.verdict_policy = CAIRN_CONFIG_ENFORCE;
    node->config.enforce_command =
        (struct cairn_config_command){.count = 1, .text = "/nowhere/drain"};
    assert_int_equal(wait_exit(start_process(node)), 78);
    assert_true(logged(node, "enforce_command: /nowhere/drain: No such file"));
    node->config.verdict_policy = CAIRN_CONFIG_ADVISE;
    node->pid = start_process(node);
    await_log(node,
              "there is an enforce_command, but verdict_policy is not enforce: it is never run");
    await_log(node, "agent: serves");
}

/* A node died as it ran the command. The analyst then reports that nobody knows how it ended, also
 * where it runs no command itself. */
static void
test_whoever_analyses_settles(void **state)
{
    struct cairn_agent *agent = calloc(1, sizeof *agent);
    struct timing_state *timing = calloc(1, sizeof *timing);
    bool eligible = true;

    assert_true(agent && timing);
    agent->clock = cairn_clock_system();
    agent->config.verdict_policy = CAIRN_CONFIG_ADVISE;
    agent->config.node_count = 1; /* the other one is not in this configuration, and so nobody is
                                   * told */
    agent->timing = timing;
    timing->eligible = &eligible;
    cairn_ledger_init(&timing->ledger);
    timing->ledger.count = 1;
    timing->ledger.entries[0] = (struct cairn_ledger_entry){
        .number = 1,
        .enforcement = {.state = CAIRN_ENFORCEMENT_RUNNING,
                        .node = 1,
                        .begun_wall_ns = cairn_clock_wall_ns(&agent->clock)}};
    enforcing_turn(agent);
    assert_int_equal(timing->ledger.entries[0].enforcement.state, CAIRN_ENFORCEMENT_UNKNOWN);
    free(timing);
    free(agent);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_once, start_succeeding, end_node),
        cmocka_unit_test_setup_teardown(test_a_failure, start_failing, end_node),
        cmocka_unit_test_setup_teardown(test_an_agent_that_dies_meanwhile, start_hanging, end_node),
        cmocka_unit_test_setup_teardown(test_an_agent_that_stops_meanwhile, start_hanging,
                                        end_node),
        cmocka_unit_test(test_whoever_analyses_settles),
        cmocka_unit_test_setup_teardown(test_the_start, make_node, end_node),
    };
    int exit_code;

    if (keeper_main(argc, argv, &exit_code))
        return exit_code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
