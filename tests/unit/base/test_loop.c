/* tests/unit/base/test_loop.c - the event loop and its timers, signals, posts and sources. */
#include "base/loop.h"
#include "tests/support/cmocka.h"
#include "tests/support/lost_writes.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TIMERS = 2000, THREADS = 4, POSTS_PER_THREAD = 2000 };

/* A clock that stands still until told. */
struct fake {
    uint64_t now_ns;
};

static uint64_t
fake_now(void *context)
{
    return ((struct fake *)context)->now_ns;
}

static const struct cairn_clock_ops fake_ops = {
    .name = "fake", .now_ns = fake_now, .wall_ns = fake_now};

static struct cairn_loop *
make_loop(struct fake *fake)
{
    struct cairn_loop_options options = {
        .clock = {.ops = fake ? &fake_ops : NULL, .context = fake}};
    struct cairn_loop *loop = NULL;

    assert_int_equal(cairn_loop_create(&options, &loop), CAIRN_OK);
    return loop;
}

static void
turn(struct cairn_loop *loop)
{
    assert_int_equal(cairn_loop_turn(loop, 0), CAIRN_OK);
}

static void
count_up(void *context)
{
    (*(int *)context)++;
}

/* ---- timers ---- */

struct fired {
    struct cairn_timer timer;
    struct cairn_loop *loop;
    struct fired **log;
    size_t *log_count;
    uint64_t started; /* as the test numbers the starts; 0: stopped */
};

static void
on_fire(void *context)
{
    struct fired *fired = context;

    fired->log[(*fired->log_count)++] = fired;
}

static int
by_deadline_then_start(const void *a, const void *b)
{
    const struct fired *left = *(struct fired *const *)a, *right = *(struct fired *const *)b;

    if (left->timer.deadline_ns != right->timer.deadline_ns)
        return left->timer.deadline_ns < right->timer.deadline_ns ? -1 : 1;
    return left->started < right->started ? -1 : left->started > right->started;
}

static void
timers_fire_in_order_whatever_was_started_stopped_and_moved(void **state)
{
    struct fake fake = {.now_ns = 1000};
    struct cairn_loop *loop = make_loop(&fake);
    struct fired *timers = calloc(TIMERS, sizeof *timers);
    struct fired **log = calloc(TIMERS, sizeof *log), **expected = calloc(TIMERS, sizeof *expected);
    size_t log_count = 0, expected_count = 0;
    uint64_t starts = 0;
    unsigned seed = 7;

    for (size_t i = 0; i < TIMERS; i++) {
        timers[i] = (struct fired){.loop = loop, .log = log, .log_count = &log_count};
        cairn_timer_init(&timers[i].timer, on_fire, &timers[i]);
    }
    for (size_t i = 0; i < 10 * TIMERS; i++) {
        struct fired *one = &timers[(size_t)rand_r(&seed) % TIMERS];

        if (rand_r(&seed) % 4 == 0) {
            cairn_timer_stop(loop, &one->timer);
            one->started = 0;
        } else {
            cairn_timer_start(loop, &one->timer, 2000 + (uint64_t)rand_r(&seed) % 300);
            one->started = ++starts;
        }
        assert_int_equal(cairn_timer_started(&one->timer), one->started != 0);
    }
    for (size_t i = 0; i < TIMERS; i++)
        if (timers[i].started)
            expected[expected_count++] = &timers[i];
    qsort(expected, expected_count, sizeof *expected, by_deadline_then_start);
    assert_true(expected_count > TIMERS / 2);
    turn(loop);
    assert_int_equal(log_count, 0);
    for (uint64_t now = 2000; now < 2300; now += 37) {
        fake.now_ns = now;
        turn(loop);
        for (size_t i = 0; i < expected_count; i++)
            if ((expected[i]->timer.deadline_ns <= now) != (i < log_count))
                fail_msg("timer %zu of %zu at %llu", i, log_count, (unsigned long long)now);
    }
    fake.now_ns = 2300;
    turn(loop);
    assert_int_equal(log_count, expected_count);
    assert_memory_equal(log, expected, expected_count * sizeof *log);
    cairn_loop_destroy(loop);
    free(timers);
    free(log);
    free(expected);
}

struct again {
    struct cairn_timer timer, other;
    struct cairn_loop *loop;
    int count, other_count;
    bool stop_other;
};

static void
start_again(void *context)
{
    struct again *again = context;

    again->count++;
    cairn_timer_start(again->loop, &again->timer, 0);
    cairn_timer_start(again->loop, &again->other, 0);
    if (again->stop_other)
        cairn_timer_stop(again->loop, &again->other);
}

static void
timer_that_starts_itself_waits_for_the_next_turn(void **state)
{
    struct fake fake = {.now_ns = 50};
    struct again again = {.loop = make_loop(&fake)};

    cairn_timer_init(&again.timer, start_again, &again);
    cairn_timer_init(&again.other, count_up, &again.other_count);
    cairn_timer_start(again.loop, &again.timer, 10);
    turn(again.loop);
    assert_int_equal(again.count, 1);
    assert_int_equal(again.other_count, 0);
    turn(again.loop); /* the first timer moves the second one before it is due: again next turn */
    assert_int_equal(again.count, 2);
    again.stop_other = true;
    turn(again.loop);
    assert_int_equal(again.count, 3);
    assert_false(cairn_timer_started(&again.other));
    assert_int_equal(again.other_count, 0);
    cairn_timer_stop(again.loop, &again.timer);
    turn(again.loop);
    assert_int_equal(again.count, 3);
    cairn_loop_destroy(again.loop);
}

static void
loop_sleeps_until_the_timer(void **state)
{
    struct cairn_loop *loop = make_loop(NULL);
    struct cairn_clock clock = cairn_clock_system();
    struct cairn_timer timer;
    uint64_t begin_ns = cairn_clock_now_ns(&clock);
    int count = 0, turns = 0;

    cairn_timer_init(&timer, count_up, &count);
    cairn_timer_start(loop, &timer, begin_ns + 20 * CAIRN_NS_PER_MS);
    for (; count == 0; turns++)
        assert_int_equal(cairn_loop_turn(loop, UINT64_MAX), CAIRN_OK);
    assert_true(cairn_clock_now_ns(&clock) - begin_ns >= 20 * CAIRN_NS_PER_MS);
    assert_true(cairn_loop_now_ns(loop) >= begin_ns + 20 * CAIRN_NS_PER_MS);
    assert_true(turns <= 3); /* it slept, it did not spin */
    cairn_loop_destroy(loop);
}

/* ---- descriptors ---- */

struct pair {
    struct cairn_loop *loop;
    int fds[2][2]; /* two socket pairs; [i][0] is watched */
    int calls[2];
    uint32_t ready[2];
    bool remove_other, reopen_other;
};

static void on_pair(void *context, int fd, uint32_t ready);

static void
reopen(struct pair *pair, int which)
{
    int old = pair->fds[which][0], fresh[2];

    close(pair->fds[which][0]);
    close(pair->fds[which][1]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fresh), 0);
    assert_int_equal(fresh[0] == old || fresh[1] == old, 1); /* the number is used again */
    pair->fds[which][0] = old;
    pair->fds[which][1] = fresh[0] == old ? fresh[1] : fresh[0];
    assert_int_equal(cairn_loop_fd_add(pair->loop, old, CAIRN_LOOP_READ, on_pair, pair), CAIRN_OK);
}

static void
on_pair(void *context, int fd, uint32_t ready)
{
    struct pair *pair = context;
    int which = fd == pair->fds[1][0];

    pair->calls[which]++;
    pair->ready[which] = ready;
    if (pair->remove_other)
        cairn_loop_fd_remove(pair->loop, pair->fds[!which][0]);
    if (pair->reopen_other)
        reopen(pair, !which);
    pair->remove_other = pair->reopen_other = false;
}

static void
open_pairs(struct pair *pair)
{
    *pair = (struct pair){.loop = make_loop(NULL)};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair->fds[i]), 0);
        assert_int_equal(
            cairn_loop_fd_add(pair->loop, pair->fds[i][0], CAIRN_LOOP_READ, on_pair, pair),
            CAIRN_OK);
    }
}

static void
close_pairs(struct pair *pair)
{
    for (int i = 0; i < 4; i++) {
        if (i % 2 == 0)
            cairn_loop_fd_remove(pair->loop, pair->fds[i / 2][0]);
        close(pair->fds[i / 2][i % 2]);
    }
    cairn_loop_destroy(pair->loop);
}

static void
descriptors_report_what_they_are_ready_for(void **state)
{
    struct pair pair;
    char byte;

    open_pairs(&pair);
    turn(pair.loop);
    assert_int_equal(pair.calls[0] + pair.calls[1], 0);
    assert_int_equal(write(pair.fds[0][1], "x", 1), 1);
    turn(pair.loop);
    turn(pair.loop); /* level-triggered: told again until it is read */
    assert_int_equal(pair.calls[0], 2);
    assert_int_equal(pair.ready[0], CAIRN_LOOP_READ);
    assert_int_equal(read(pair.fds[0][0], &byte, 1), 1);
    assert_int_equal(cairn_loop_fd_set(pair.loop, pair.fds[0][0], CAIRN_LOOP_WRITE), CAIRN_OK);
    turn(pair.loop);
    assert_int_equal(pair.ready[0], CAIRN_LOOP_WRITE);
    assert_int_equal(cairn_loop_fd_set(pair.loop, pair.fds[0][0], 0), CAIRN_OK);
    turn(pair.loop);
    assert_int_equal(pair.calls[0], 3);
    shutdown(pair.fds[0][1], SHUT_RDWR);
    turn(pair.loop);
    assert_int_equal(pair.ready[0], CAIRN_LOOP_HANGUP);
    assert_int_equal(pair.calls[1], 0);
    close_pairs(&pair);
}

static void
removed_descriptor_is_silent_even_in_the_same_turn(void **state)
{
    struct pair pair;

    for (int reopen_it = 0; reopen_it < 2; reopen_it++) {
        open_pairs(&pair);
        assert_int_equal(write(pair.fds[0][1], "x", 1), 1);
        assert_int_equal(write(pair.fds[1][1], "x", 1), 1);
        pair.remove_other = true;
        pair.reopen_other = reopen_it;
        turn(pair.loop);
        assert_int_equal(pair.calls[0] + pair.calls[1], 1);
        close_pairs(&pair);
    }
}

static void
on_nothing(void *context, int fd, uint32_t ready)
{
}

static void
wrong_descriptors_are_refused(void **state)
{
    struct cairn_loop_options options = {.fds_max = 16};
    struct cairn_loop *loop = NULL;
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), fds[2], high;

    assert_int_equal(cairn_loop_create(&options, &loop), CAIRN_OK);
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(cairn_loop_fd_add(loop, -1, CAIRN_LOOP_READ, on_nothing, NULL), CAIRN_INVAL);
    assert_int_equal(cairn_loop_fd_add(loop, file, CAIRN_LOOP_READ, on_nothing, NULL), CAIRN_INVAL);
    assert_int_equal(cairn_loop_fd_set(loop, fds[0], CAIRN_LOOP_READ), CAIRN_INVAL);
    assert_int_equal(cairn_loop_fd_add(loop, fds[0], CAIRN_LOOP_READ, on_nothing, NULL), CAIRN_OK);
    assert_int_equal(cairn_loop_fd_add(loop, fds[0], CAIRN_LOOP_READ, on_nothing, NULL),
                     CAIRN_INVAL);
    high = fcntl(fds[1], F_DUPFD_CLOEXEC, 16);
    assert_true(high >= 16);
    assert_int_equal(cairn_loop_fd_add(loop, high, CAIRN_LOOP_WRITE, on_nothing, NULL), CAIRN_FULL);
    cairn_loop_fd_remove(loop, high);
    cairn_loop_fd_remove(loop, -1);
    close(high);
    close(file);
    close(fds[0]);
    close(fds[1]);
    cairn_loop_destroy(loop);
    cairn_loop_destroy(NULL);
}

/* ---- posts ---- */

struct posting {
    struct cairn_loop *loop;
    uint32_t sent[THREADS];
    uint32_t seen[THREADS];
    uint32_t total;
    atomic_uint full;
};

struct message {
    struct posting *posting;
    uint32_t thread;
    uint32_t number;
};

static void
on_message(void *context)
{
    struct message *message = context;
    struct posting *posting = message->posting;

    if (message->number != posting->seen[message->thread])
        fail_msg("message %u of thread %u came as %u", message->number, message->thread,
                 posting->seen[message->thread]);
    posting->seen[message->thread]++;
    if (++posting->total == THREADS * POSTS_PER_THREAD)
        cairn_loop_stop(posting->loop);
}

static void *
post_many(void *context)
{
    struct message *messages = context;

    for (uint32_t i = 0; i < POSTS_PER_THREAD; i++)
        while (cairn_loop_post(messages[i].posting->loop, on_message, &messages[i])) {
            atomic_fetch_add(&messages[i].posting->full, 1);
            usleep(100);
        }
    return NULL;
}

static void
posts_from_threads_all_arrive_in_order(void **state)
{
    struct cairn_loop_options options = {.posts_max = 64};
    struct message *messages = calloc(THREADS * POSTS_PER_THREAD, sizeof *messages);
    struct posting posting = {0};
    pthread_t threads[THREADS];

    assert_int_equal(cairn_loop_create(&options, &posting.loop), CAIRN_OK);
    for (uint32_t t = 0; t < THREADS; t++) {
        for (uint32_t i = 0; i < POSTS_PER_THREAD; i++)
            messages[t * POSTS_PER_THREAD + i] =
                (struct message){.posting = &posting, .thread = t, .number = i};
        pthread_create(&threads[t], NULL, post_many, messages + (size_t)t * POSTS_PER_THREAD);
    }
    assert_int_equal(cairn_loop_run(posting.loop), CAIRN_OK);
    for (uint32_t t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        assert_int_equal(posting.seen[t], POSTS_PER_THREAD);
    }
    cairn_loop_destroy(posting.loop);
    free(messages);
}

struct reposting {
    struct cairn_loop *loop;
    int count;
};

static void
post_again(void *context)
{
    struct reposting *reposting = context;

    reposting->count++;
    assert_int_equal(cairn_loop_post(reposting->loop, post_again, reposting), CAIRN_OK);
}

static void
post_from_a_post_waits_for_the_next_turn(void **state)
{
    struct reposting reposting = {.loop = make_loop(NULL)};

    assert_int_equal(cairn_loop_post(reposting.loop, post_again, &reposting), CAIRN_OK);
    for (int i = 1; i <= 5; i++) {
        assert_int_equal(cairn_loop_turn(reposting.loop, CAIRN_NS_PER_S), CAIRN_OK);
        assert_int_equal(reposting.count, i);
    }
    cairn_loop_destroy(reposting.loop);
}

static void
a_lost_wake_up_costs_no_post(void **state)
{
    struct reposting reposting = {.loop = make_loop(NULL)};

    lost_writes = 2; /* the first post's, and that of the post from it */
    assert_int_equal(cairn_loop_post(reposting.loop, post_again, &reposting), CAIRN_OK);
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(cairn_loop_turn(reposting.loop, 0), CAIRN_OK);
        assert_int_equal(reposting.count, i);
    }
    assert_int_equal(lost_writes, 0);
    cairn_loop_destroy(reposting.loop);
}

static void
full_queue_says_again_and_loses_nothing(void **state)
{
    struct cairn_loop_options options = {.posts_max = 3};
    struct cairn_loop *loop = NULL;
    int count = 0;

    assert_int_equal(cairn_loop_create(&options, &loop), CAIRN_OK);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++)
            assert_int_equal(cairn_loop_post(loop, count_up, &count), CAIRN_OK);
        assert_int_equal(cairn_loop_post(loop, count_up, &count), CAIRN_AGAIN);
        turn(loop);
        assert_int_equal(count, 3 * (round + 1));
    }
    cairn_loop_destroy(loop);
}

/* ---- stop, signals, sources ---- */

static void
stop_before_run_returns_at_once_and_only_once(void **state)
{
    struct cairn_loop *loop = make_loop(NULL);
    int count = 0;

    cairn_loop_stop(loop);
    assert_int_equal(cairn_loop_post(loop, count_up, &count), CAIRN_OK);
    assert_int_equal(cairn_loop_run(loop), CAIRN_OK);
    assert_int_equal(count, 0);
    turn(loop);
    assert_int_equal(count, 1);
    cairn_loop_destroy(loop);
}

struct signalled {
    int count, last;
};

static void
on_signal(void *context, int number)
{
    struct signalled *signalled = context;

    signalled->count++;
    signalled->last = number;
}

static void
signals_come_through_the_loop(void **state)
{
    struct cairn_loop *loop = make_loop(NULL);
    struct signalled one = {0}, two = {0};
    sigset_t before, during, after;

    pthread_sigmask(SIG_BLOCK, NULL, &before);
    assert_int_equal(cairn_loop_signal_add(loop, SIGUSR1, on_signal, &one), CAIRN_OK);
    assert_int_equal(cairn_loop_signal_add(loop, SIGTERM, on_signal, &two), CAIRN_OK);
    assert_int_equal(cairn_loop_signal_add(loop, SIGTERM, on_signal, &two), CAIRN_INVAL);
    assert_int_equal(cairn_loop_signal_add(loop, SIGKILL, on_signal, &two), CAIRN_INVAL);
    assert_int_equal(cairn_loop_signal_add(loop, SIGSEGV, on_signal, &two), CAIRN_INVAL);
    assert_int_equal(cairn_loop_signal_add(loop, 0, on_signal, &two), CAIRN_INVAL);
    assert_int_equal(cairn_loop_signal_add(loop, 65, on_signal, &two), CAIRN_INVAL);
    assert_int_equal(cairn_loop_signal_add(loop, 32, on_signal, &two), CAIRN_INVAL);
    pthread_sigmask(SIG_BLOCK, NULL, &during);
    assert_int_equal(sigismember(&during, SIGTERM), 1);
    kill(getpid(), SIGTERM);
    kill(getpid(), SIGUSR1);
    turn(loop);
    assert_int_equal(one.count, 1);
    assert_int_equal(one.last, SIGUSR1);
    assert_int_equal(two.count, 1);
    assert_int_equal(two.last, SIGTERM);
    cairn_loop_destroy(loop);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    assert_int_equal(sigismember(&after, SIGTERM), sigismember(&before, SIGTERM));
    assert_int_equal(sigismember(&after, SIGUSR1), sigismember(&before, SIGUSR1));
}

struct sourced {
    struct cairn_loop *loop;
    struct cairn_loop_source source;
    int asked, polled, work;
    bool leave;
};

static bool
is_pending(void *context)
{
    struct sourced *sourced = context;

    sourced->asked++;
    return sourced->work > 0;
}

static void
do_poll(void *context)
{
    struct sourced *sourced = context;

    sourced->polled++;
    sourced->work--;
    if (sourced->leave)
        cairn_loop_source_remove(sourced->loop, &sourced->source);
}

static void
pending_source_keeps_the_loop_awake(void **state)
{
    struct cairn_loop *loop = make_loop(NULL);
    struct sourced sourced = {.loop = loop, .work = 2};
    struct cairn_loop_source others[CAIRN_LOOP_SOURCES_MAX];

    sourced.source = (struct cairn_loop_source){is_pending, do_poll, &sourced};
    assert_int_equal(cairn_loop_source_add(loop, &sourced.source), CAIRN_OK);
    assert_int_equal(cairn_loop_turn(loop, UINT64_MAX), CAIRN_OK); /* would sleep for ever */
    assert_int_equal(cairn_loop_turn(loop, UINT64_MAX), CAIRN_OK);
    assert_int_equal(sourced.polled, 2);
    turn(loop);
    assert_int_equal(sourced.asked, 3);
    assert_int_equal(sourced.polled, 2);
    sourced.work = 1;
    sourced.leave = true;
    turn(loop);
    turn(loop);
    assert_int_equal(sourced.asked, 4);
    assert_int_equal(sourced.polled, 3);
    for (size_t i = 0; i < CAIRN_LOOP_SOURCES_MAX; i++) {
        others[i] = sourced.source;
        assert_int_equal(cairn_loop_source_add(loop, &others[i]), CAIRN_OK);
    }
    assert_int_equal(cairn_loop_source_add(loop, &sourced.source), CAIRN_FULL);
    cairn_loop_destroy(loop);
}

static void
wall_time_is_formatted_in_utc(void **state)
{
    char text[CAIRN_CLOCK_TEXT_BYTES];

    cairn_clock_format(UINT64_C(1767225599123456789), text, sizeof text);
    assert_string_equal(text, "2025-12-31T23:59:59.123Z");
    cairn_clock_format(0, text, sizeof text);
    assert_string_equal(text, "1970-01-01T00:00:00.000Z");
    cairn_clock_format(UINT64_MAX, text, sizeof text);
    assert_string_equal(text, "2554-07-21T23:34:33.709Z");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timers_fire_in_order_whatever_was_started_stopped_and_moved),
        cmocka_unit_test(timer_that_starts_itself_waits_for_the_next_turn),
        cmocka_unit_test(loop_sleeps_until_the_timer),
        cmocka_unit_test(descriptors_report_what_they_are_ready_for),
        cmocka_unit_test(removed_descriptor_is_silent_even_in_the_same_turn),
        cmocka_unit_test(wrong_descriptors_are_refused),
        cmocka_unit_test(posts_from_threads_all_arrive_in_order),
        cmocka_unit_test(post_from_a_post_waits_for_the_next_turn),
        cmocka_unit_test(a_lost_wake_up_costs_no_post),
        cmocka_unit_test(full_queue_says_again_and_loses_nothing),
        cmocka_unit_test(stop_before_run_returns_at_once_and_only_once),
        cmocka_unit_test(signals_come_through_the_loop),
        cmocka_unit_test(pending_source_keeps_the_loop_awake),
        cmocka_unit_test(wall_time_is_formatted_in_utc),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
