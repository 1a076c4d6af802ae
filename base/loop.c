/*
 * base/loop.c - the event loop on epoll and eventfd.
 *
 * Invariants:
 * 1. An epoll event carries (generation << 32 | fd). It is served only while watches[fd] has that
 *    generation, so an event that was ready for a descriptor removed (and perhaps opened again) in
 *    the same turn is dropped.
 * 2. Timers that are started while timers fire go into a second heap that is merged in afterwards,
 *    so a timer that starts itself again cannot keep the loop in one turn.
 * 3. `wake_sent` is true exactly while the wake eventfd has been written for the posts and not yet
 *    read. Posts without it have lost their wake-up: any turn serves them. It and the queue of
 *    posts are guarded by `lock`, which is taken last and held for a few instructions; nothing else
 *    is shared between threads but the atomic `stop`.
 */
#include "base/loop.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/signals.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { POSTS_DEFAULT = 4096, FDS_DEFAULT = 65536, FDS_FIRST = 64, EVENTS_PER_TURN = 64 };

struct watch {
    cairn_loop_fd_fn *fn; /* NULL: not watched */
    void *context;
    uint32_t generation;
};

struct post {
    cairn_loop_fn *fn;
    void *context;
};

struct cairn_loop {
    struct cairn_clock clock;
    int epoll_fd;
    int wake_fd;
    bool coarse_wait; /* the kernel has no epoll_pwait2 */
    bool turning;     /* inside a turn, which `thread` runs */
    bool firing;      /* timers' callbacks are being called */
    bool woken;       /* the wake eventfd was ready in this turn */
    pthread_t thread;
    uint64_t now_ns;

    struct watch *watches; /* [watch_count], by descriptor */
    uint32_t watch_count;
    uint32_t fds_max;
    uint32_t generation;

    struct cairn_timer_heap timers;
    struct cairn_timer_heap late; /* those started while timers fire */
    uint64_t timer_order;         /* of the last start */
    uint64_t firing_order;        /* timer_order when firing began */

    const struct cairn_loop_source *sources[CAIRN_LOOP_SOURCES_MAX];
    uint32_t source_count;

    struct cairn_signals signals;

    atomic_bool stop;
    pthread_mutex_t lock; /* guards the five below */
    struct post *posts;   /* [posts_max], a ring */
    uint32_t posts_max;
    uint32_t post_first;
    uint32_t post_count;
    bool wake_sent;
};

/* Only the loop's thread touches its state, once that thread exists. */
static bool
in_thread(const struct cairn_loop *loop)
{
    return !loop->turning || pthread_equal(pthread_self(), loop->thread);
}

/* ---- timers ---- */

/* The heap that a started timer is in. */
static struct cairn_timer_heap *
heap_of(struct cairn_loop *loop, const struct cairn_timer *timer)
{
    return loop->firing && timer->order > loop->firing_order ? &loop->late : &loop->timers;
}

void
cairn_timer_stop(struct cairn_loop *loop, struct cairn_timer *timer)
{
    CAIRN_ASSERT(in_thread(loop));
    if (timer->order == 0)
        return;
    cairn_timer_heap_remove(heap_of(loop, timer), timer);
    timer->order = 0;
}

void
cairn_timer_start(struct cairn_loop *loop, struct cairn_timer *timer, uint64_t deadline_ns)
{
    CAIRN_ASSERT(timer->fn);
    cairn_timer_stop(loop, timer);
    timer->deadline_ns = deadline_ns;
    timer->order = ++loop->timer_order;
    cairn_timer_heap_insert(heap_of(loop, timer), timer);
}

static void
fire_timers(struct cairn_loop *loop)
{
    loop->firing = true;
    loop->firing_order = loop->timer_order;
    while (loop->timers.root && loop->timers.root->deadline_ns <= loop->now_ns) {
        struct cairn_timer *timer = loop->timers.root;

        cairn_timer_stop(loop, timer);
        timer->fn(timer->context); /* may free the timer */
    }
    loop->firing = false;
    cairn_timer_heap_merge(&loop->timers, &loop->late);
}

/* ---- descriptors ---- */

static uint32_t
to_epoll(uint32_t events)
{
    return (events & CAIRN_LOOP_READ ? (uint32_t)EPOLLIN : 0) |
           (events & CAIRN_LOOP_WRITE ? (uint32_t)EPOLLOUT : 0);
}

static uint32_t
from_epoll(uint32_t events)
{
    return (events & EPOLLIN ? CAIRN_LOOP_READ : 0u) | (events & EPOLLOUT ? CAIRN_LOOP_WRITE : 0u) |
           (events & (EPOLLHUP | EPOLLERR) ? CAIRN_LOOP_HANGUP : 0u);
}

static cairn_err
control(struct cairn_loop *loop, int operation, int fd, uint32_t events)
{
    struct epoll_event event = {
        .events = to_epoll(events),
        .data.u64 = (uint64_t)loop->watches[fd].generation << 32 | (uint32_t)fd,
    };

    if (epoll_ctl(loop->epoll_fd, operation, fd, &event) == 0)
        return CAIRN_OK;
    switch (errno) {
    case ENOMEM:
        return CAIRN_NOMEM;
    case ENOSPC:
        CAIRN_LOG_AT(ERROR, "loop: cannot watch fd=%d: %m; raise fs.epoll.max_user_watches", fd);
        return CAIRN_FULL;
    default:
        CAIRN_LOG_AT(ERROR, "loop: cannot watch fd=%d: %m", fd);
        return CAIRN_INVAL;
    }
}

/* Makes room for watches[fd]. */
static cairn_err
grow_watches(struct cairn_loop *loop, uint32_t fd)
{
    uint32_t count = loop->watch_count ? loop->watch_count : FDS_FIRST;
    struct watch *watches;

    while (count <= fd)
        count *= 2;
    if (count == loop->watch_count)
        return CAIRN_OK;
    watches = realloc(loop->watches, count * sizeof *watches);
    if (!watches)
        return CAIRN_NOMEM;
    memset(watches + loop->watch_count, 0, (count - loop->watch_count) * sizeof *watches);
    loop->watches = watches;
    loop->watch_count = count;
    return CAIRN_OK;
}

static bool
is_watched(const struct cairn_loop *loop, int fd)
{
    return fd >= 0 && (uint32_t)fd < loop->watch_count && loop->watches[fd].fn;
}

cairn_err
cairn_loop_fd_add(struct cairn_loop *loop, int fd, uint32_t events, cairn_loop_fd_fn *fn,
                  void *context)
{
    cairn_err err;

    CAIRN_ASSERT(in_thread(loop));
    CAIRN_ASSERT(fn);
    if (fd < 0 || is_watched(loop, fd))
        return CAIRN_INVAL;
    if ((uint32_t)fd >= loop->fds_max)
        return CAIRN_FULL;
    err = grow_watches(loop, (uint32_t)fd);
    if (err)
        return err;
    loop->watches[fd].generation = ++loop->generation;
    err = control(loop, EPOLL_CTL_ADD, fd, events);
    if (err)
        return err;
    loop->watches[fd].fn = fn;
    loop->watches[fd].context = context;
    return CAIRN_OK;
}

cairn_err
cairn_loop_fd_set(struct cairn_loop *loop, int fd, uint32_t events)
{
    CAIRN_ASSERT(in_thread(loop));
    if (!is_watched(loop, fd))
        return CAIRN_INVAL;
    return control(loop, EPOLL_CTL_MOD, fd, events);
}

void
cairn_loop_fd_remove(struct cairn_loop *loop, int fd)
{
    CAIRN_ASSERT(in_thread(loop));
    if (!is_watched(loop, fd))
        return;
    loop->watches[fd].fn = NULL;
    epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, fd, NULL); /* fails only if it was closed before */
}

static void
serve_fd(struct cairn_loop *loop, const struct epoll_event *event)
{
    int fd = (int)(uint32_t)event->data.u64;
    uint32_t generation = (uint32_t)(event->data.u64 >> 32);
    struct watch watch;

    if (!is_watched(loop, fd) || loop->watches[fd].generation != generation)
        return;
    watch = loop->watches[fd]; /* the callback may move the array */
    watch.fn(watch.context, fd, from_epoll(event->events));
}

/* ---- signals ---- */

cairn_err
cairn_loop_signal_add(struct cairn_loop *loop, int signal_number, cairn_loop_signal_fn *fn,
                      void *context)
{
    bool was_open;
    cairn_err err;

    CAIRN_ASSERT(in_thread(loop));
    CAIRN_ASSERT(fn);
    was_open = loop->signals.fd >= 0;
    err = cairn_signals_add(&loop->signals, signal_number, fn, context);
    if (err || was_open)
        return err;
    err = cairn_loop_fd_add(loop, loop->signals.fd, CAIRN_LOOP_READ, cairn_signals_ready,
                            &loop->signals);
    if (err) {
        cairn_signals_fini(&loop->signals);
        cairn_signals_init(&loop->signals);
    }
    return err;
}

/* ---- posted calls ---- */

/* False: the wake-up is lost. */
static bool
wake(struct cairn_loop *loop)
{
    uint64_t one = 1;

    /* EAGAIN: the loop is being woken anyway */
    return write(loop->wake_fd, &one, sizeof one) == sizeof one || errno == EAGAIN;
}

cairn_err
cairn_loop_post(struct cairn_loop *loop, cairn_loop_fn *fn, void *context)
{
    cairn_err err = CAIRN_OK;

    pthread_mutex_lock(&loop->lock);
    if (loop->post_count == loop->posts_max) {
        err = CAIRN_AGAIN;
    } else {
        uint64_t at = ((uint64_t)loop->post_first + loop->post_count) % loop->posts_max;

        loop->posts[at] = (struct post){.fn = fn, .context = context};
        loop->post_count++;
        if (!loop->wake_sent)
            loop->wake_sent = wake(loop);
    }
    pthread_mutex_unlock(&loop->lock);
    return err;
}

static void
on_wake(void *context, int fd, uint32_t ready)
{
    struct cairn_loop *loop = context;

    (void)fd;
    (void)ready;
    loop->woken = true;
}

static void
serve_posts(struct cairn_loop *loop)
{
    uint64_t value;
    uint32_t count = 0;
    ssize_t got = 0;

    pthread_mutex_lock(&loop->lock);
    if (loop->woken)
        got = read(loop->wake_fd, &value, sizeof value);
    if (loop->woken || !loop->wake_sent)
        count = loop->post_count;
    loop->wake_sent = loop->wake_sent && !loop->woken;
    loop->woken = false;
    pthread_mutex_unlock(&loop->lock);
    (void)got;
    for (uint32_t i = 0; i < count; i++) {
        struct post post;

        pthread_mutex_lock(&loop->lock);
        post = loop->posts[loop->post_first];
        loop->post_first = (loop->post_first + 1) % loop->posts_max;
        loop->post_count--;
        pthread_mutex_unlock(&loop->lock);
        post.fn(post.context);
    }
}

/* ---- sources ---- */

cairn_err
cairn_loop_source_add(struct cairn_loop *loop, const struct cairn_loop_source *source)
{
    CAIRN_ASSERT(in_thread(loop));
    CAIRN_ASSERT(source->pending && source->poll);
    if (loop->source_count == CAIRN_LOOP_SOURCES_MAX)
        return CAIRN_FULL;
    loop->sources[loop->source_count++] = source;
    return CAIRN_OK;
}

static uint32_t
find_source(const struct cairn_loop *loop, const struct cairn_loop_source *source)
{
    uint32_t i = 0;

    while (i < loop->source_count && loop->sources[i] != source)
        i++;
    return i;
}

void
cairn_loop_source_remove(struct cairn_loop *loop, const struct cairn_loop_source *source)
{
    uint32_t i = find_source(loop, source);

    CAIRN_ASSERT(in_thread(loop));
    if (i == loop->source_count)
        return;
    loop->source_count--;
    memmove(loop->sources + i, loop->sources + i + 1,
            (loop->source_count - i) * sizeof loop->sources[0]);
}

/* Collects the sources that have work now. */
static uint32_t
ask_sources(struct cairn_loop *loop,
            const struct cairn_loop_source *pending[CAIRN_LOOP_SOURCES_MAX])
{
    const struct cairn_loop_source *all[CAIRN_LOOP_SOURCES_MAX];
    uint32_t all_count = loop->source_count, count = 0;

    memcpy(all, loop->sources, sizeof all);
    for (uint32_t i = 0; i < all_count; i++)
        if (find_source(loop, all[i]) < loop->source_count && all[i]->pending(all[i]->context))
            pending[count++] = all[i];
    return count;
}

/* ---- turns ---- */

/* Waits for events, at most timeout_ns (UINT64_MAX: for ever). Returns their number or -1. */
static int
wait_events(struct cairn_loop *loop, struct epoll_event *events, uint64_t timeout_ns)
{
    struct timespec timeout = {
        .tv_sec = (time_t)(timeout_ns / CAIRN_NS_PER_S),
        .tv_nsec = (long)(timeout_ns % CAIRN_NS_PER_S),
    };
    uint64_t timeout_ms = timeout_ns / CAIRN_NS_PER_MS + (timeout_ns % CAIRN_NS_PER_MS != 0);
    int count;

    if (!loop->coarse_wait) {
        count = epoll_pwait2(loop->epoll_fd, events, EVENTS_PER_TURN,
                             timeout_ns == UINT64_MAX ? NULL : &timeout, NULL);
        if (count >= 0 || (errno != ENOSYS && errno != EPERM))
            return count;
        loop->coarse_wait = true; /* an old kernel, or a sandbox that does not know the call */
    }
    return epoll_wait(loop->epoll_fd, events, EVENTS_PER_TURN,
                      timeout_ns == UINT64_MAX ? -1
                      : timeout_ms > 86400000u ? 86400000
                                               : (int)timeout_ms);
}

cairn_err
cairn_loop_turn(struct cairn_loop *loop, uint64_t timeout_ns)
{
    const struct cairn_loop_source *pending[CAIRN_LOOP_SOURCES_MAX];
    struct epoll_event events[EVENTS_PER_TURN];
    uint32_t pending_count;
    int count;

    CAIRN_ASSERT(!loop->turning);
    loop->thread = pthread_self();
    loop->turning = true;
    pending_count = ask_sources(loop, pending);
    if (loop->timers.root) {
        uint64_t now_ns = cairn_clock_now_ns(&loop->clock);
        uint64_t deadline_ns = loop->timers.root->deadline_ns;
        uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;

        timeout_ns = left_ns < timeout_ns ? left_ns : timeout_ns;
    }
    count = wait_events(loop, events, pending_count ? 0 : timeout_ns);
    if (count < 0 && errno != EINTR) {
        CAIRN_LOG_AT(ERROR, "loop: cannot wait for events: %m");
        loop->turning = false;
        return CAIRN_IO;
    }
    loop->now_ns = cairn_clock_now_ns(&loop->clock);
    for (int i = 0; i < count; i++)
        serve_fd(loop, &events[i]);
    for (uint32_t i = 0; i < pending_count; i++)
        if (find_source(loop, pending[i]) < loop->source_count)
            pending[i]->poll(pending[i]->context);
    serve_posts(loop);
    fire_timers(loop);
    loop->turning = false;
    return CAIRN_OK;
}

cairn_err
cairn_loop_run(struct cairn_loop *loop)
{
    cairn_err err = CAIRN_OK;

    while (!err && !atomic_exchange_explicit(&loop->stop, false, memory_order_acquire))
        err = cairn_loop_turn(loop, UINT64_MAX);
    return err;
}

void
cairn_loop_stop(struct cairn_loop *loop)
{
    int saved_errno = errno; /* a signal handler must leave it alone */

    atomic_store_explicit(&loop->stop, true, memory_order_release);
    wake(loop);
    errno = saved_errno;
}

uint64_t
cairn_loop_now_ns(const struct cairn_loop *loop)
{
    return loop->now_ns;
}

/* ---- life ---- */

static cairn_err
open_fds(struct cairn_loop *loop)
{
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->epoll_fd < 0 || loop->wake_fd < 0) {
        CAIRN_LOG_AT(ERROR, "loop: cannot open its descriptors: %m");
        return CAIRN_IO;
    }
    return cairn_loop_fd_add(loop, loop->wake_fd, CAIRN_LOOP_READ, on_wake, loop);
}

cairn_err
cairn_loop_create(const struct cairn_loop_options *options, struct cairn_loop **out)
{
    struct cairn_loop *loop = calloc(1, sizeof *loop);
    cairn_err err = CAIRN_NOMEM;

    if (!loop)
        return CAIRN_NOMEM;
    loop->epoll_fd = loop->wake_fd = -1;
    loop->clock = options && options->clock.ops ? options->clock : cairn_clock_system();
    loop->posts_max = options && options->posts_max ? options->posts_max : POSTS_DEFAULT;
    loop->fds_max = options && options->fds_max ? options->fds_max : FDS_DEFAULT;
    cairn_signals_init(&loop->signals);
    atomic_init(&loop->stop, false);
    pthread_mutex_init(&loop->lock, NULL); /* cannot fail with default attributes */
    loop->now_ns = cairn_clock_now_ns(&loop->clock);
    loop->posts = calloc(loop->posts_max, sizeof *loop->posts);
    if (!loop->posts)
        goto done;
    err = open_fds(loop);
    if (err)
        goto done;
    *out = loop;
    loop = NULL;
done:
    cairn_loop_destroy(loop);
    return err;
}

void
cairn_loop_destroy(struct cairn_loop *loop)
{
    if (!loop)
        return;
    CAIRN_ASSERT(!loop->turning);
    while (loop->timers.root)
        cairn_timer_stop(loop, loop->timers.root);
    cairn_signals_fini(&loop->signals);
    if (loop->wake_fd >= 0)
        close(loop->wake_fd);
    if (loop->epoll_fd >= 0)
        close(loop->epoll_fd);
    pthread_mutex_destroy(&loop->lock);
    free(loop->posts);
    free(loop->watches);
    free(loop);
}
