/*
 * base/loop.h - the event loop: descriptors, timers, signals and calls posted by other threads.
 *
 * One thread runs a loop and owns everything that its callbacks reach, so they need no locks. Only
 * cairn_loop_post and cairn_loop_stop may be called from elsewhere. Every callback returns soon;
 * long work is a job for base/worker.h.
 *
 * One turn: ask the sources whether the loop may sleep; sleep until a descriptor is ready, a timer
 * is due, a call is posted or a source is pending; then run, in this order, descriptors
 * (level-triggered), pending sources, posted calls in order, due timers in the order of (deadline,
 * start). What a callback adds is served from the next turn on, so no callback can starve the
 * others.
 */
#ifndef CAIRN_BASE_LOOP_H
#define CAIRN_BASE_LOOP_H

#include "base/clock.h"
#include "base/timer.h"
#include "cairn/err.h"

#include <stdbool.h>
#include <stdint.h>

struct cairn_loop;

/* What a descriptor is watched for, and what it was found ready for. */
enum {
    CAIRN_LOOP_READ = 1,
    CAIRN_LOOP_WRITE = 2,
    CAIRN_LOOP_HANGUP =
        4 /* reported whether asked for or not: the other side is gone, or an error */
};

typedef void cairn_loop_fn(void *context);
typedef void cairn_loop_fd_fn(void *context, int fd, uint32_t ready);
typedef void cairn_loop_signal_fn(void *context, int signal_number);

struct cairn_loop_options {
    struct cairn_clock clock; /* ops NULL: the system's */
    uint32_t posts_max;       /* calls waiting at once; 0 means 4,096 */
    uint32_t fds_max;         /* descriptors watched are below this; 0 means 65,536 */
};

/* A source that the loop must ask before it sleeps on the descriptor, as libfabric's queues
 * require. At most CAIRN_LOOP_SOURCES_MAX. */
enum { CAIRN_LOOP_SOURCES_MAX = 32 };

struct cairn_loop_source {
    bool (*pending)(void *context); /* true: it has work now, so do not sleep; called once a turn */
    cairn_loop_fn *poll; /* does that work; called in the turn in which pending said true */
    void *context;
};

/* Makes a loop; `options` NULL means all defaults. CAIRN_NOMEM, CAIRN_IO. Ended by
 * cairn_loop_destroy. */
CAIRN_MUST_CHECK cairn_err cairn_loop_create(const struct cairn_loop_options *options,
                                             struct cairn_loop **out);

/* Frees a loop that is not running; NULL is allowed. Descriptors stay open and are their owners';
 * timers are stopped; posted calls that have not run are dropped; signals get their old mask back.
 */
void cairn_loop_destroy(struct cairn_loop *loop);

/* Runs turns until cairn_loop_stop. CAIRN_IO when the kernel refuses to wait. The calling thread is
 * the loop's thread from now on. */
CAIRN_MUST_CHECK cairn_err cairn_loop_run(struct cairn_loop *loop);

/* Runs one turn that sleeps at most timeout_ns (0: not at all). For tests and for waiting at
 * start-up. */
CAIRN_MUST_CHECK cairn_err cairn_loop_turn(struct cairn_loop *loop, uint64_t timeout_ns);

/* Ends cairn_loop_run after the current turn; before it, makes it return at once. Thread: any. Also
 * safe in a signal handler. */
void cairn_loop_stop(struct cairn_loop *loop);

/* The time at which this turn's callbacks began; outside a turn, of the last one. Thread: loop. */
uint64_t cairn_loop_now_ns(const struct cairn_loop *loop);

/*
 * Watches a descriptor for READ, WRITE, both or (0) hang-up alone. CAIRN_INVAL if it is watched
 * already or cannot be (a plain file), CAIRN_FULL at fds_max, CAIRN_NOMEM. The caller keeps the
 * descriptor and removes it before closing it. Thread: loop, or before it runs.
 */
CAIRN_MUST_CHECK cairn_err cairn_loop_fd_add(struct cairn_loop *loop, int fd, uint32_t events,
                                             cairn_loop_fd_fn *fn, void *context);

/* Changes what a descriptor is watched for. CAIRN_INVAL if it is not watched. */
CAIRN_MUST_CHECK cairn_err cairn_loop_fd_set(struct cairn_loop *loop, int fd, uint32_t events);

/* Stops watching; the callback is not called again, not even for events of this turn. A descriptor
 * that is not watched, or -1, is allowed. */
void cairn_loop_fd_remove(struct cairn_loop *loop, int fd);

/* Starts a timer, or moves a started one, to fire once at or after deadline_ns (0: in the next
 * turn). Never fails and never allocates. Thread: loop. */
void cairn_timer_start(struct cairn_loop *loop, struct cairn_timer *timer, uint64_t deadline_ns);

/* Stops a timer; a stopped one is allowed. Thread: loop. */
void cairn_timer_stop(struct cairn_loop *loop, struct cairn_timer *timer);

/*
 * Has fn(context) called once in the loop's thread. CAIRN_AGAIN if posts_max calls wait already.
 * Thread: any. Takes the loop's only lock for a few instructions; never blocks on the loop.
 */
CAIRN_MUST_CHECK cairn_err cairn_loop_post(struct cairn_loop *loop, cairn_loop_fn *fn,
                                           void *context);

/*
 * Has fn called in the loop for a signal, and blocks the signal in the calling thread and those
 * that it starts later: call it before starting threads. Signals that come together count once.
 * CAIRN_INVAL for a signal that is handled already or cannot be; CAIRN_IO. Thread: loop, or before
 * it runs.
 */
CAIRN_MUST_CHECK cairn_err cairn_loop_signal_add(struct cairn_loop *loop, int signal_number,
                                                 cairn_loop_signal_fn *fn, void *context);

/* Adds a source, borrowed until removed. CAIRN_FULL when there are eight. Thread: loop. */
CAIRN_MUST_CHECK cairn_err cairn_loop_source_add(struct cairn_loop *loop,
                                                 const struct cairn_loop_source *source);
void cairn_loop_source_remove(struct cairn_loop *loop, const struct cairn_loop_source *source);

#endif
