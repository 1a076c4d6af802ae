/* tests/unit/base/test_worker.c - the pool of workers. */
#include "base/worker.h"
#include "tests/support/cmocka.h"
#include "tests/support/lost_writes.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { JOBS = 5000, JOBS_MAX = 32 };

struct world {
    struct cairn_loop *loop;
    struct cairn_workers *workers;
    pthread_t loop_thread;
    uint32_t done_count;
    uint32_t refused;
    bool ordered; /* one thread: jobs must finish in the order of submit */
};

struct task {
    struct cairn_job job; /* first, so that the job is the task */
    struct world *world;
    uint32_t number;
    uint32_t input;
    uint32_t output; /* plain memory: the pool's locks must order it */
};

static struct task *
task_of(struct cairn_job *job)
{
    return (struct task *)job;
}

static void
run_task(struct cairn_job *job)
{
    struct task *task = task_of(job);

    if (pthread_equal(pthread_self(), task->world->loop_thread))
        abort(); /* cmocka's checks must not be used outside the main thread */
    task->output = task->input * 2654435761u + 1;
}

static void
end_task(struct cairn_job *job)
{
    struct task *task = task_of(job);
    struct world *world = task->world;

    assert_true(pthread_equal(pthread_self(), world->loop_thread));
    assert_int_equal(task->output, task->input * 2654435761u + 1);
    if (world->ordered)
        assert_int_equal(task->number, world->done_count);
    task->output = 0;
    world->done_count++;
}

static void
start(struct world *world, uint32_t threads, uint32_t jobs_max)
{
    memset(world, 0, sizeof *world);
    world->loop_thread = pthread_self();
    assert_int_equal(cairn_loop_create(NULL, &world->loop), CAIRN_OK);
    assert_int_equal(cairn_workers_start(world->loop, threads, jobs_max, &world->workers),
                     CAIRN_OK);
}

static struct task *
make_tasks(struct world *world, uint32_t count)
{
    struct task *tasks = calloc(count, sizeof *tasks);

    for (uint32_t i = 0; i < count; i++)
        tasks[i] = (struct task){.job = {.run = run_task, .done = end_task},
                                 .world = world,
                                 .number = i,
                                 .input = i * 7 + 3};
    return tasks;
}

static void
run_all(uint32_t threads)
{
    struct world world;
    struct task *tasks;

    start(&world, threads, JOBS_MAX);
    tasks = make_tasks(&world, JOBS);
    world.ordered = threads == 1;
    for (uint32_t i = 0; i < JOBS; i++)
        while (cairn_workers_submit(world.workers, &tasks[i].job)) {
            assert_int_equal(cairn_workers_busy(world.workers), JOBS_MAX);
            world.refused++;
            assert_int_equal(cairn_loop_turn(world.loop, 10 * CAIRN_NS_PER_S), CAIRN_OK);
        }
    while (cairn_workers_busy(world.workers))
        assert_int_equal(cairn_loop_turn(world.loop, 10 * CAIRN_NS_PER_S), CAIRN_OK);
    assert_int_equal(world.done_count, JOBS);
    assert_true(world.refused > 0);
    cairn_workers_stop(world.workers);
    cairn_loop_destroy(world.loop);
    free(tasks);
}

static void
every_job_runs_once_and_comes_back(void **state)
{
    run_all(1);
    run_all(4);
}

static void
stop_runs_what_is_queued(void **state)
{
    struct world world;
    struct task *tasks;

    start(&world, 2, JOBS);
    tasks = make_tasks(&world, JOBS);
    for (uint32_t i = 0; i < JOBS; i++)
        assert_int_equal(cairn_workers_submit(world.workers, &tasks[i].job), CAIRN_OK);
    cairn_workers_stop(world.workers);
    assert_int_equal(world.done_count, JOBS);
    cairn_loop_destroy(world.loop);
    free(tasks);
}

/* The loop turns for other reasons, too, such as the agent's tick. */
static void
a_lost_wake_up_costs_no_job(void **state)
{
    struct world world;
    struct task *tasks;

    start(&world, 2, JOBS_MAX);
    tasks = make_tasks(&world, JOBS_MAX);
    lost_writes = JOBS_MAX;
    for (uint32_t i = 0; i < JOBS_MAX; i++)
        assert_int_equal(cairn_workers_submit(world.workers, &tasks[i].job), CAIRN_OK);
    for (int turns = 0; cairn_workers_busy(world.workers); turns++) {
        assert_true(turns < 60 * 1000);
        assert_int_equal(cairn_loop_turn(world.loop, CAIRN_NS_PER_MS), CAIRN_OK);
    }
    assert_int_equal(world.done_count, JOBS_MAX);
    lost_writes = 0;
    cairn_workers_stop(world.workers);
    cairn_loop_destroy(world.loop);
    free(tasks);
}

struct chain {
    struct cairn_job job;
    struct world *world;
    cairn_err resubmitted;
};

static void
run_chain(struct cairn_job *job)
{
}

static void
end_chain(struct cairn_job *job)
{
    struct chain *chain = (struct chain *)job;

    chain->world->done_count++;
    chain->resubmitted = cairn_workers_submit(chain->world->workers, job);
}

static void
done_may_submit_again_but_not_while_stopping(void **state)
{
    struct world world;
    struct chain chain;

    start(&world, 1, 1);
    chain = (struct chain){.job = {.run = run_chain, .done = end_chain}, .world = &world};
    assert_int_equal(cairn_workers_submit(world.workers, &chain.job), CAIRN_OK);
    assert_int_equal(cairn_workers_submit(world.workers, &chain.job), CAIRN_AGAIN);
    while (world.done_count < 10)
        assert_int_equal(cairn_loop_turn(world.loop, 10 * CAIRN_NS_PER_S), CAIRN_OK);
    assert_int_equal(chain.resubmitted, CAIRN_OK);
    cairn_workers_stop(world.workers);
    assert_int_equal(world.done_count, 11);
    assert_int_equal(chain.resubmitted, CAIRN_AGAIN);
    cairn_loop_destroy(world.loop);
}

struct masked {
    struct cairn_job job;
    bool term_blocked, segv_blocked;
};

static void
read_mask(struct cairn_job *job)
{
    struct masked *masked = (struct masked *)job;
    sigset_t mask;

    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    masked->term_blocked = sigismember(&mask, SIGTERM) == 1;
    masked->segv_blocked = sigismember(&mask, SIGSEGV) == 1;
}

static void
ignore_done(struct cairn_job *job)
{
}

static void
workers_leave_signals_to_the_loop(void **state)
{
    struct masked masked = {.job = {.run = read_mask, .done = ignore_done}};
    struct world world;
    sigset_t mask;

    start(&world, 1, 1);
    assert_int_equal(cairn_workers_submit(world.workers, &masked.job), CAIRN_OK);
    cairn_workers_stop(world.workers);
    assert_true(masked.term_blocked);
    assert_false(masked.segv_blocked);
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    assert_int_equal(sigismember(&mask, SIGTERM), 0);
    cairn_loop_destroy(world.loop);
}

static void
wrong_counts_are_refused(void **state)
{
    struct cairn_workers *workers = NULL;
    struct cairn_loop *loop = NULL;

    assert_int_equal(cairn_loop_create(NULL, &loop), CAIRN_OK);
    assert_int_equal(cairn_workers_start(loop, 0, 1, &workers), CAIRN_INVAL);
    assert_int_equal(cairn_workers_start(loop, CAIRN_WORKERS_MAX + 1, 1, &workers), CAIRN_INVAL);
    assert_int_equal(cairn_workers_start(loop, 1, 0, &workers), CAIRN_INVAL);
    assert_null(workers);
    cairn_workers_stop(NULL);
    cairn_loop_destroy(loop);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_job_runs_once_and_comes_back),
        cmocka_unit_test(stop_runs_what_is_queued),
        cmocka_unit_test(a_lost_wake_up_costs_no_job),
        cmocka_unit_test(done_may_submit_again_but_not_while_stopping),
        cmocka_unit_test(workers_leave_signals_to_the_loop),
        cmocka_unit_test(wrong_counts_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
