/* tests/unit/client/test_client.c - open, register, snapshots. */
#include "tests/support/client_model.h"

#include "cairn/timing.h"

#include "snapshot/copy.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- without an agent ---- */

static void
test_open_refuses(void **state)
{
    struct cairn_client_options options = options_for(NULL);
    struct cairn_client *client = NULL;
    char long_path[200];

    assert_int_equal(cairn_client_open(NULL, &client), CAIRN_INVAL);
    options.rank = 4;
    assert_int_equal(cairn_client_open(&options, &client), CAIRN_INVAL);
    options.rank = 0;
    memset(long_path, 'x', sizeof long_path);
    long_path[199] = '\0';
    options.agent_socket = long_path;
    assert_int_equal(cairn_client_open(&options, &client), CAIRN_INVAL);
    assert_int_equal(count_lines("longer than 107 bytes"), 1);
    options.agent_socket = NULL;
    options.job = long_path;
    assert_int_equal(cairn_client_open(&options, &client), CAIRN_INVAL);
    assert_null(client);
    cairn_client_close(NULL);
}

/* A trainer's whole life without an agent: every call returns, with one line of log. */
static void
train_without(struct cairn_client *client, cairn_err restore)
{
    struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT};
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};
    struct model model;

    model_init(&model);
    assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_OK);
    assert_int_equal(cairn_client_report_coverage(client, "none", NULL, 0), CAIRN_OK);
    assert_int_equal(cairn_client_restore(client, &restored), restore);
    for (uint64_t step = 1; step <= 20; step++) {
        assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_OK);
        assert_int_equal(cairn_snapshot_fence(client, 2), CAIRN_OK);
        assert_int_equal(cairn_snapshot_begin(client, step), CAIRN_AGAIN);
    }
    assert_int_equal(cairn_snapshot_fence(client, TENSORS), CAIRN_INVAL);
    assert_int_equal(cairn_client_stats_read(client, &stats), CAIRN_OK);
    assert_int_equal(stats.snapshots_begun, 0);
    assert_int_equal(stats.snapshots_skipped, 20);
    assert_int_equal(stats.fence_count, 40);
    assert_int_equal(stats.attached, 0);
    cairn_client_close(client);
    model_fini(&model);
}

static void
test_no_agent_configured(void **state)
{
    struct cairn_client_options options = options_for(NULL);
    struct cairn_client *client = NULL;
    uint64_t start_ms = fake_now_ms();

    assert_int_equal(cairn_client_open(&options, &client), CAIRN_OK);
    train_without(client, CAIRN_NOT_FOUND);
    assert_int_equal(count_lines("unprotected"), 1);
    assert_true(fake_now_ms() - start_ms < options.connect_timeout_ms); /* nobody is waited for */
}

static void
test_no_agent_answers(void **state)
{
    struct cairn_client_options options = options_for("/tmp/cairn-no-such-agent");
    struct cairn_client *client = NULL;
    uint64_t start_ms = fake_now_ms();

    options.connect_timeout_ms = SHORT_MS;
    assert_int_equal(cairn_client_open(&options, &client), CAIRN_OK);
    train_without(client, CAIRN_PEER); /* not from nothing: there may be a state */
    assert_int_equal(count_lines("unprotected"), 1);
    assert_true(fake_now_ms() - start_ms < options.restore_timeout_ms);
}

static void
test_environment(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client_options options = options_for(NULL);
    struct cairn_client *client = NULL;
    struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT};

    fake_agent_start(agent);
    assert_int_equal(setenv("CAIRN_AGENT", agent->path, 1), 0);
    options.job = NULL;
    assert_int_equal(cairn_client_open(&options, &client), CAIRN_OK);
    assert_int_equal(cairn_client_stats_read(client, &stats), CAIRN_OK);
    assert_int_equal(stats.attached, 1);
    assert_int_equal(stats.epoch, 1);
    assert_int_equal(stats.takes_offers, 0);
    assert_int_equal(agent->hello_pid, getpid());
    end_all(client, agent, NULL);
}

static void
test_agent_that_offers(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client_options options = options_for(agent->path);
    struct cairn_client *client = NULL;
    struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT};

    agent->welcome_flags = CAIRN_WELCOME_OFFERS;
    fake_agent_start(agent);
    assert_int_equal(cairn_client_open(&options, &client), CAIRN_OK);
    assert_int_equal(cairn_client_stats_read(client, &stats), CAIRN_OK);
    assert_int_equal(stats.takes_offers, 1);
    end_all(client, agent, NULL);
}

/* Attaches to an agent with these flags, and returns the kernel that this process copies with. */
static const char *
kernel_after_welcome(uint32_t flags)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);

    agent->welcome_flags = (int)flags;
    fake_agent_start(agent);
    cairn_client_close(open_client(agent));
    fake_agent_stop(agent);
    fake_agent_destroy(agent);
    return cairn_copy_name();
}

static void
test_agent_chooses_the_copy_kernel(void **state)
{
    const struct cairn_copy_kernel *kernels = cairn_copy_kernels();
    const char *last = "portable";
    uint32_t count = 0;

    for (; kernels[count].name; count++) {
        last = kernels[count].name;
        assert_string_equal(
            kernel_after_welcome(CAIRN_WELCOME_COPIES | (count + 1) << CAIRN_WELCOME_COPY_SHIFT),
            last);
    }
    /* A kernel that this processor has not, and an agent that chooses none, change nothing. */
    assert_string_equal(
        kernel_after_welcome(CAIRN_WELCOME_COPIES | (count + 1) << CAIRN_WELCOME_COPY_SHIFT), last);
    assert_string_equal(kernel_after_welcome(0), last);
    assert_string_equal(kernel_after_welcome(CAIRN_WELCOME_COPIES), "portable");
    if (count > 0)
        assert_true(cairn_copy_use(kernels[0].name));
}

/* A client that closes sends LEAVE; one that ends by an error does not. */
static void
test_leave(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client_options options = options_for(agent->path);
    struct cairn_client *client = NULL;

    fake_agent_start(agent);
    assert_int_equal(cairn_client_open(&options, &client), CAIRN_OK);
    cairn_client_abandon(client);
    assert_int_equal(cairn_client_open(&options, &client), CAIRN_OK);
    cairn_client_close(client);
    assert_true(fake_reaches(&agent->leaves, 1));
    fake_agent_stop(agent);
    assert_int_equal(agent->leaves, 1);
    assert_int_equal(agent->damaged, 0);
    fake_agent_destroy(agent);
}

enum { BY_UNDERSCORE_EXIT = -1, WITHOUT_THE_LIBRARY = -2 };

struct child {
    pid_t pid;
    int go; /* it begins when that is closed */
};

/* A trainer that opens the library at run time, and closes it before it ends. */
static void
end_without_the_library(const struct cairn_client_options *options)
{
    cairn_err (*open_it)(const struct cairn_client_options *, struct cairn_client **);
    void (*close_at_exit)(struct cairn_client *);
    struct cairn_client *client = NULL;
    char path[4096];
    ssize_t len = readlink("/proc/self/exe", path, sizeof path - 64);
    void *library, *symbol;

    if (len < 0)
        _exit(98);
    path[len] = '\0';
    for (int i = 0; i < 4; i++)
        *strrchr(path, '/') = '\0';
    strcat(path, "/libcairn.so");
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library || !(symbol = dlsym(library, "cairn_client_open")))
        _exit(97);
    memcpy(&open_it, &symbol, sizeof symbol);
    if (!(symbol = dlsym(library, "cairn_client_close_at_exit")))
        _exit(96);
    memcpy(&close_at_exit, &symbol, sizeof symbol);
    if (open_it(options, &client) != CAIRN_OK)
        _exit(95);
    close_at_exit(client);
    dlclose(library);
    exit(0);
}

/* A trainer that closes its client before it is known how it ends. */
static void
end_as_child(const char *path, int begin, int exit_status)
{
    struct cairn_client_options options = options_for(path);
    struct cairn_client *client = NULL;
    pid_t own_child;
    char byte;
    int status;

    if (read(begin, &byte, 1) != 0)
        _exit(99);
    if (exit_status == WITHOUT_THE_LIBRARY)
        end_without_the_library(&options);
    if (cairn_client_open(&options, &client) != CAIRN_OK)
        _exit(99);
    cairn_client_close_at_exit(client);
    own_child = fork(); /* whose end is its own */
    if (own_child == 0)
        exit(0);
    if (own_child < 0 || waitpid(own_child, &status, 0) != own_child)
        _exit(99);
    if (exit_status == BY_UNDERSCORE_EXIT)
        _exit(0);
    exit(exit_status);
}

/* To be called while this process has no threads. The last one made is the first to begin: it holds
 * the others' pipes. */
static struct child
make_child(const char *path, int exit_status)
{
    struct child child;
    int ends[2];

    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    child.pid = fork();
    assert_true(child.pid >= 0);
    if (child.pid == 0) {
        close(ends[1]);
        end_as_child(path, ends[0], exit_status);
    }
    close(ends[0]);
    child.go = ends[1];
    return child;
}

static void
await_child(const struct child *child, int exit_status)
{
    int status;

    close(child->go);
    assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), exit_status);
}

/* What is closed before the exit status is known is a leave where that is 0, and nowhere else. */
static void
test_leave_at_exit(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct child good = make_child(agent->path, 0), failed = make_child(agent->path, 1),
                 cut = make_child(agent->path, BY_UNDERSCORE_EXIT),
                 closed = make_child(agent->path, WITHOUT_THE_LIBRARY);
    struct cairn_client_options options = options_for(NULL);
    struct cairn_client *client = NULL;

    fake_agent_start(agent);
    await_child(&closed, 0);
    assert_true(fake_reaches(&agent->leaves, 1));
    await_child(&cut, 0);
    await_child(&failed, 1);
    await_child(&good, 0);
    assert_true(fake_reaches(&agent->leaves, 2));
    fake_agent_stop(agent);
    assert_int_equal(agent->leaves, 2);
    assert_int_equal(agent->damaged, 0);
    fake_agent_destroy(agent);
    assert_int_equal(cairn_client_open(&options, &client), CAIRN_OK); /* without an agent */
    cairn_client_close_at_exit(client);
    cairn_client_close_at_exit(NULL);
}

static void
open_refused(struct fake_agent *agent, cairn_err expected)
{
    struct cairn_client_options options = options_for(agent->path);
    struct cairn_client *client = NULL;

    assert_int_equal(cairn_client_open(&options, &client), expected);
    assert_null(client);
}

static void
test_refused(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client_options options = options_for(agent->path);
    struct cairn_client *client = NULL;

    fake_agent_start(agent);
    agent->hello_err = CAIRN_DENIED;
    open_refused(agent, CAIRN_DENIED);
    agent->hello_err = CAIRN_STALE;
    open_refused(agent, CAIRN_STALE);
    agent->hello_err = CAIRN_VERSION;
    open_refused(agent, CAIRN_VERSION);
    agent->hello_err = 0;
    agent->protocol = CAIRN_SESSION_PROTOCOL + 1;
    open_refused(agent, CAIRN_VERSION);
    agent->protocol = CAIRN_SESSION_PROTOCOL;
    agent->hello_err = CAIRN_AGAIN; /* not now: open goes on without, and attaches later */
    options.connect_timeout_ms = SHORT_MS;
    assert_int_equal(cairn_client_open(&options, &client), CAIRN_OK);
    agent->hello_err = 0;
    wait_attached(client, 1);
    cairn_client_close(client);
    assert_int_equal(count_lines("busy or full"), 1);
    fake_agent_stop(agent);
    fake_agent_destroy(agent);
}

/* ---- rings of timing records ---- */

static void
await_rings(struct fake_agent *agent, int count)
{
    uint64_t until_ms = fake_now_ms() + 60000;

    while (agent->rings < count) {
        assert_true(fake_now_ms() < until_ms);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}

/* Each ring of the process is handed over once per connection, whenever it was made. */
static void
test_rings(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_timing *first = NULL, *second = NULL;
    struct cairn_client *client;
    uint64_t inode;

    assert_int_equal(cairn_timing_open(16, &first), CAIRN_OK);
    fake_agent_start(agent);
    client = open_client(agent);
    await_rings(agent, 1);
    inode = agent->ring_inode;
    assert_int_equal(cairn_timing_open(16, &second), CAIRN_OK);
    await_rings(agent, 2);
    assert_true(agent->ring_inode != inode);
    nanosleep(&(struct timespec){1, 500000000}, NULL); /* longer than from one look to the next */
    assert_int_equal(agent->rings, 2);
    cairn_client_close(client);
    client = open_client(agent);
    await_rings(agent, 4);
    assert_int_equal(agent->damaged, 0);
    cairn_client_close(client);
    cairn_timing_close(first);
    cairn_timing_close(second);
    fake_agent_stop(agent);
    fake_agent_destroy(agent);
}

/* ---- what is not covered ---- */

/* Waits for the n-th report, and returns the last one. */
static struct cairn_session_coverage
await_coverage(struct fake_agent *agent, int count)
{
    uint64_t until_ms = fake_now_ms() + 60000;
    struct cairn_session_coverage coverage;

    while (agent->coverages < count) {
        assert_true(fake_now_ms() < until_ms);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    pthread_mutex_lock(&agent->coverage_lock);
    coverage = agent->coverage;
    pthread_mutex_unlock(&agent->coverage_lock);
    return coverage;
}

static void
test_coverage(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_uncovered items[CAIRN_UNCOVERED_MAX + 8],
        one = {CAIRN_UNCOVERED_INIT, .kind = CAIRN_OPTIMIZER, .name = "m", .reason = "sparse"};
    struct cairn_session_coverage told;
    struct cairn_client *client;
    char huge[5000];

    fake_agent_start(agent);
    client = open_client(agent);
    assert_int_equal(cairn_client_report_coverage(client, NULL, &one, 1), CAIRN_OK);
    told = await_coverage(agent, 1);
    assert_int_equal(told.count, 1);
    assert_int_equal(told.items[0].kind, CAIRN_OPTIMIZER);
    assert_string_equal(told.items[0].name, "m");
    assert_string_equal(told.items[0].reason, "sparse");
    assert_string_equal(told.refusal, "");
    assert_int_equal(cairn_client_report_coverage(client, "", &one, 1), CAIRN_OK); /* no news */

    memset(huge, 'y', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    for (uint32_t i = 0; i < CAIRN_UNCOVERED_MAX + 8; i++)
        items[i] = (struct cairn_uncovered){CAIRN_UNCOVERED_INIT,
                                            .kind = i < 10 ? CAIRN_BUFFER : CAIRN_PARAM,
                                            .name = huge, .reason = "\x1b[2J\xff\n"};
    assert_int_equal(cairn_client_report_coverage(client, huge, items, CAIRN_UNCOVERED_MAX + 8),
                     CAIRN_OK);
    told = await_coverage(agent, 2);
    assert_int_equal(told.count, CAIRN_UNCOVERED_MAX);
    assert_int_equal(told.left_out, 8);
    assert_int_equal(strlen(told.refusal), CAIRN_REASON_BYTES_MAX - 1);
    assert_int_equal(strlen(told.items[0].name), CAIRN_NAME_BYTES_MAX - 1);
    assert_string_equal(told.items[0].reason, "?[2J??");
    for (uint32_t i = 0; i < 30; i++) /* what matters most is told first */
        assert_int_equal(told.items[i].kind, CAIRN_PARAM);
    assert_int_equal(told.items[30].kind, CAIRN_BUFFER);

    fake_agent_stop(agent); /* the next agent is told what holds now */
    wait_attached(client, 0);
    assert_int_equal(cairn_client_report_coverage(client, NULL, NULL, 0), CAIRN_OK);
    fake_agent_start(agent);
    wait_attached(client, 1);
    told = await_coverage(agent, 3);
    assert_int_equal(told.count, 0);
    assert_int_equal(told.left_out, 0);
    assert_string_equal(told.refusal, "");

    one.kind = (enum cairn_kind)9;
    assert_int_equal(cairn_client_report_coverage(client, NULL, &one, 1), CAIRN_INVAL);
    assert_int_equal(cairn_client_report_coverage(client, NULL, NULL, 1), CAIRN_INVAL);
    assert_int_equal(cairn_client_report_coverage(NULL, NULL, NULL, 0), CAIRN_INVAL);
    cairn_client_close(client);
    assert_int_equal(agent->coverages, 3);
    assert_int_equal(agent->damaged, 0);
    fake_agent_stop(agent);
    fake_agent_destroy(agent);
}

/* What is told just before the end is still heard. */
static void
test_coverage_at_close(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client *client;

    fake_agent_start(agent);
    client = open_client(agent);
    assert_int_equal(cairn_client_report_coverage(client, "the end", NULL, 0), CAIRN_OK);
    cairn_client_close(client);
    assert_string_equal(await_coverage(agent, 1).refusal, "the end");
    fake_agent_stop(agent);
    fake_agent_destroy(agent);
}

/* ---- snapshots ---- */

static void
test_snapshots(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT};
    struct cairn_client *client;
    struct model model;

    client = attach_model(agent, &model, TENSORS);
    for (int step = 1; step <= 5; step++) {
        assert_int_equal(cairn_snapshot_begin(client, (uint64_t)step), CAIRN_OK);
        assert_true(fake_reaches(&agent->pieces, 1)); /* granted */
        for (uint32_t i = 0; i < TENSORS; i++) {
            assert_int_equal(cairn_snapshot_fence(client, i), CAIRN_OK);
            if (i == 2)
                break; /* the rest in one */
        }
        assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_OK);
        assert_true(fake_reaches(&agent->dones, step));
        assert_int_equal(agent->last_slot, (step - 1) % FAKE_SLOTS);
        check_region(agent, &model, agent->last_slot);
        for (int i = 0; i < TENSORS; i++) /* the update */
            for (size_t b = 0; b < model.sizes[i]; b += 13)
                model.bytes[i][b] ^= (uint8_t)step;
        agent->pieces = 0;
    }
    assert_int_equal(agent->cancels, 0);
    assert_int_equal(agent->damaged, 0);
    assert_true(fake_reaches(&agent->stats, 1));
    assert_int_equal(cairn_client_stats_read(client, &stats), CAIRN_OK);
    assert_int_equal(stats.snapshots_begun, 5);
    assert_int_equal(stats.snapshots_captured, 5);
    assert_int_equal(stats.snapshots_skipped + stats.snapshots_failed, 0);
    assert_true(stats.captured_bytes > 5 * 100000 && stats.capture_ns > 0);
    assert_true(stats.fence_ns_p50 <= stats.fence_ns_p99);
    assert_true(stats.fence_ns_p99 <= stats.fence_ns_max);
    assert_int_equal(stats.fence_count, 5 * 4);
    end_all(client, agent, &model);
}

/* The last snapshot before close is reported to its end. */
static void
test_close_reports(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client *client;
    struct model model;

    client = attach_model(agent, &model, TENSORS);
    assert_int_equal(cairn_snapshot_begin(client, 9), CAIRN_OK);
    assert_true(fake_reaches(&agent->pieces, 1));
    cairn_client_close(client);
    assert_true(fake_reaches(&agent->dones, 1));
    check_region(agent, &model, agent->last_slot);
    fake_agent_stop(agent);
    fake_agent_destroy(agent);
    model_fini(&model);
}

/* Not granted by the fence: given up without waiting, and the late grant does no harm. */
static void
test_fence_before_grant(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT};
    struct cairn_client *client;
    struct model model;

    client = attach_model(agent, &model, TENSORS);
    agent->hold_grants = 1;
    assert_int_equal(cairn_snapshot_begin(client, 1), CAIRN_OK);
    assert_true(fake_reaches(&agent->begins, 1));
    assert_int_equal(cairn_snapshot_fence(client, 3), CAIRN_OK); /* this rank captures nothing */
    assert_int_equal(cairn_snapshot_fence(client, 0), CAIRN_AGAIN);
    assert_int_equal(cairn_snapshot_fence(client, 1), CAIRN_AGAIN);
    assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_AGAIN);
    assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_OK); /* said once */
    assert_true(fake_reaches(&agent->cancels, 1));
    assert_int_equal(agent->cancel_reason, CAIRN_REASON_FENCE);
    agent->hold_grants = 0;
    assert_int_equal(cairn_snapshot_begin(client, 2), CAIRN_OK);
    assert_true(fake_reaches(&agent->dones, 1));
    assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_OK);
    check_region(agent, &model, agent->last_slot);
    assert_int_equal(cairn_client_stats_read(client, &stats), CAIRN_OK);
    assert_int_equal(stats.snapshots_begun, 2);
    assert_int_equal(stats.snapshots_captured, 1);
    assert_int_equal(stats.snapshots_skipped, 1);
    end_all(client, agent, &model);
}

static void
test_skip_and_drop(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT};
    struct cairn_client *client;
    struct model model;
    uint64_t until_ms;

    client = attach_model(agent, &model, TENSORS);
    agent->skip_reason = CAIRN_REASON_BUSY;
    assert_int_equal(cairn_snapshot_begin(client, 1), CAIRN_OK);
    until_ms = fake_now_ms() + 60000;
    do { /* the answer is on its way */
        assert_true(fake_now_ms() < until_ms);
        assert_int_equal(cairn_client_stats_read(client, &stats), CAIRN_OK);
    } while (stats.snapshots_skipped == 0);
    assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_AGAIN);
    agent->skip_reason = CAIRN_REASON_NOT_DUE;
    assert_int_equal(cairn_snapshot_begin(client, 2), CAIRN_OK);
    until_ms = fake_now_ms() + 60000;
    while (cairn_snapshot_begin(client, 3) != CAIRN_OK) /* the answer to 2 makes room for 3 */
        assert_true(fake_now_ms() < until_ms);
    assert_true(fake_reaches(&agent->begins, 3));
    agent->skip_reason = 0;
    while (cairn_snapshot_begin(client, 4) != CAIRN_OK)
        assert_true(fake_now_ms() < until_ms);
    assert_true(fake_reaches(&agent->dones, 1));
    assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_OK);
    assert_int_equal(cairn_client_stats_read(client, &stats), CAIRN_OK);
    assert_int_equal(stats.snapshots_skipped, 1); /* what was not due was not missed */
    assert_int_equal(stats.snapshots_captured, 1);
    agent->drop_at_grant = 1;
    assert_int_equal(cairn_snapshot_begin(client, 5), CAIRN_OK);
    until_ms = fake_now_ms() + 60000;
    while (agent->cancels + agent->dones < 2) /* the copy may have been faster than the DROP */
        assert_true(fake_now_ms() < until_ms);
    (void)cairn_snapshot_fence(client, CAIRN_FENCE_ALL);
    agent->drop_at_grant = 0;
    assert_int_equal(cairn_snapshot_begin(client, 6), CAIRN_OK);
    assert_true(fake_reaches(&agent->begins, 6));
    cairn_client_close(client);
    assert_int_equal(agent->damaged, 0);
    fake_agent_stop(agent);
    fake_agent_destroy(agent);
    model_fini(&model);
}

/* A rank that captures nothing takes part all the same. */
static void
test_nothing_to_capture(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client *client;

    fake_agent_start(agent);
    client = open_client(agent);
    assert_int_equal(cairn_client_register(client, NULL, 0), CAIRN_OK);
    assert_int_equal(cairn_snapshot_begin(client, 1), CAIRN_OK);
    assert_true(fake_reaches(&agent->dones, 1));
    assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_OK);
    end_all(client, agent, NULL);
}

/* How often this process maps a file. */
static int
count_maps(int fd)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long long inode;
    struct stat status;
    char line[4096];
    int count = 0;

    assert_non_null(maps);
    assert_int_equal(fstat(fd, &status), 0);
    while (fgets(line, sizeof line, maps))
        count += sscanf(line, "%*s %*s %*s %*s %llu", &inode) == 1 && inode == status.st_ino;
    fclose(maps);
    return count;
}

/* Memory that the agent has not given its pages yet is not touched before a grant. */
static void
test_slot_without_pages(void **state)
{
    struct fake_agent *agent = fake_agent_create(1 << 20);
    struct cairn_client *client;
    struct stat status;
    struct model model;

    model_init(&model);
    assert_int_equal(fallocate(agent->slot_fds[1], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                               FAKE_SLOT_BYTES),
                     0);
    fake_agent_start(agent);
    client = open_client(agent);
    assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_OK);
    for (int step = 1; step <= 4; step++) {
        assert_int_equal(count_maps(agent->slot_fds[0]), 2); /* the client's and the test's */
        assert_int_equal(count_maps(agent->slot_fds[1]), step <= 2 ? 1 : 2);
        if (step <= 2) {
            assert_int_equal(fstat(agent->slot_fds[1], &status), 0);
            assert_int_equal(status.st_blocks, 0);
        }
        while (cairn_snapshot_begin(client, (uint64_t)step) != CAIRN_OK)
            usleep(1000);
        assert_true(fake_reaches(&agent->dones, step));
        assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_OK);
        assert_int_equal(agent->last_slot, (step - 1) % 2);
        check_region(agent, &model, agent->last_slot);
    }
    assert_int_equal(agent->damaged, 0);
    cairn_client_close(client);
    assert_int_equal(count_maps(agent->slot_fds[1]), 1);
    fake_agent_stop(agent);
    fake_agent_destroy(agent);
    model_fini(&model);
}

/* ---- register ---- */

static void
register_refused(struct cairn_client *client, struct model *model, const char *named)
{
    assert_int_equal(cairn_client_register(client, model->slices, TENSORS), CAIRN_INVAL);
    assert_true(count_lines(named) >= 1);
}

static void
test_register_wrong(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client *client;
    struct model model;

    model_init(&model);
    fake_agent_start(agent);
    client = open_client(agent);
    model.slices[2].extent[0] = 1 << 30;
    register_refused(client, &model, "\"moment\"");
    model.slices[2].extent[0] = 90000;
    model.slices[4].address = NULL;
    register_refused(client, &model, "\"flat\" is refused: it has no address");
    model.slices[4].address = model.bytes[4];
    model.slices[1].replica_index = 9;
    register_refused(client, &model, "\"bias\"");
    model.slices[1].replica_index = 0;
    model.slices[5].name = NULL;
    assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_INVAL);
    assert_int_equal(cairn_client_register(client, NULL, 1), CAIRN_INVAL);
    model.slices[5].name = "rng";
    agent->register_err = CAIRN_NOMEM;
    assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_NOMEM);
    assert_int_equal(count_lines("needs 9 GiB, has 4 GiB"), 1);
    assert_int_equal(cairn_snapshot_begin(client, 1), CAIRN_AGAIN); /* goes on unprotected */
    /* Another launch has the rank: said once, tried again in the background. */
    agent->register_err = CAIRN_AGAIN;
    assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_AGAIN);
    assert_int_equal(count_lines("the agent refuses the tensors: busy"), 1);
    agent->register_err = 0;
    for (uint64_t end_ms = fake_now_ms() + 20000; cairn_snapshot_begin(client, 1) != CAIRN_OK;) {
        assert_true(fake_now_ms() < end_ms);
        usleep(20000);
    }
    assert_int_equal(count_lines("the agent refuses the tensors: busy"), 1);
    agent->unsealed = 1;
    assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_CORRUPT);
    assert_int_equal(count_lines("not sealed against shrinking"), 1);
    agent->unsealed = 0;
    agent->region_lie = 1;
    assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_VERSION);
    agent->region_lie = 2;
    assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_CORRUPT);
    agent->region_lie = 0;
    assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_OK);
    assert_int_equal(cairn_snapshot_begin(client, 2), CAIRN_OK);
    assert_true(fake_reaches(&agent->dones, 1));
    check_region(agent, &model, agent->last_slot);
    end_all(client, agent, &model);
}

/* Registering again in the middle of a snapshot gives that one up; the next is of the new tensors.
 */
static void
test_register_again(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client *client;
    struct model model;

    client = attach_model(agent, &model, 1);
    for (uint64_t step = 1; step <= 10; step++) {
        assert_int_equal(cairn_snapshot_begin(client, step), CAIRN_OK);
        assert_int_equal(cairn_client_register(client, model.slices, step == 10 ? TENSORS : 3),
                         CAIRN_OK);
    }
    agent->dones = 0;
    assert_int_equal(cairn_snapshot_begin(client, 11), CAIRN_OK);
    assert_true(fake_reaches(&agent->dones, 1));
    assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_OK);
    check_region(agent, &model, agent->last_slot);
    assert_int_equal(agent->damaged, 0);
    end_all(client, agent, &model);
}

/* Unmapping takes long, and between two placements training stands still: it waits for the next
 * step, and no more than one former mapping of a slot is left. */
static void
test_former_slots_go_with_the_next_step(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client *client;
    struct model model;

    client = attach_model(agent, &model, 1);
    for (uint64_t round = 1; round <= 3; round++) {
        for (int slot = 0; slot < FAKE_SLOTS; slot++)
            assert_int_equal(count_maps(agent->slot_fds[slot]), 2); /* the client's, the test's */
        for (int times = 0; times < 3; times++) {
            assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_OK);
            for (int slot = 0; slot < FAKE_SLOTS; slot++)
                assert_int_equal(count_maps(agent->slot_fds[slot]), 3);
        }
        assert_int_equal(cairn_snapshot_begin(client, round), CAIRN_OK);
        assert_true(fake_reaches(&agent->dones, (int)round));
        assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_OK);
        check_region(agent, &model, agent->last_slot);
    }
    assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_OK);
    cairn_client_close(client);
    for (int slot = 0; slot < FAKE_SLOTS; slot++)
        assert_int_equal(count_maps(agent->slot_fds[slot]), 1);
    fake_agent_stop(agent);
    fake_agent_destroy(agent);
    model_fini(&model);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_open_refuses, reset),
        cmocka_unit_test_setup(test_no_agent_configured, reset),
        cmocka_unit_test_setup(test_no_agent_answers, reset),
        cmocka_unit_test_setup(test_environment, reset),
        cmocka_unit_test_setup(test_agent_that_offers, reset),
        cmocka_unit_test_setup(test_agent_chooses_the_copy_kernel, reset),
        cmocka_unit_test_setup(test_leave, reset),
        cmocka_unit_test_setup(test_leave_at_exit, reset),
        cmocka_unit_test_setup(test_refused, reset),
        cmocka_unit_test_setup(test_rings, reset),
        cmocka_unit_test_setup(test_coverage, reset),
        cmocka_unit_test_setup(test_coverage_at_close, reset),
        cmocka_unit_test_setup(test_snapshots, reset),
        cmocka_unit_test_setup(test_close_reports, reset),
        cmocka_unit_test_setup(test_fence_before_grant, reset),
        cmocka_unit_test_setup(test_skip_and_drop, reset),
        cmocka_unit_test_setup(test_nothing_to_capture, reset),
        cmocka_unit_test_setup(test_slot_without_pages, reset),
        cmocka_unit_test_setup(test_register_wrong, reset),
        cmocka_unit_test_setup(test_register_again, reset),
        cmocka_unit_test_setup(test_former_slots_go_with_the_next_step, reset),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
