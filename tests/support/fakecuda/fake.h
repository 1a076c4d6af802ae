/*
 * tests/support/fakecuda/fake.h - what the files of the fake driver share: contexts, streams,
 * events, ranges of memory, and the faults that a test asks for.
 *
 * driver.c holds the entry points, stream.c the queues, memory.c the memory, control.c what tests
 * call.
 */
#ifndef FAKECUDA_FAKE_H
#define FAKECUDA_FAKE_H

#include "tests/support/fakecuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    FAKE_DEVICES = 2,
    FAKE_DEPTH_MAX = 16,
    FAKE_HANDLES_MAX = 256,
    FAKE_POISON = 0x5a, /* what an asynchronous copy leaves at its target until it has run */
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_READY = 600,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    CAPTURE_UNSUPPORTED = 900
};

struct fake_event {
    struct fake_context *context;
    _Atomic uint64_t recorded, reached;
    atomic_bool lost;
    atomic_int users; /* its owner, and the operations that are queued */
};

enum fake_op_kind { FAKE_COPY, FAKE_FILL, FAKE_WRITE, FAKE_RECORD, FAKE_WAIT, FAKE_STOP };

struct fake_op {
    enum fake_op_kind kind;
    void *to;
    const void *from;
    void *owned; /* freed with it */
    size_t bytes;
    uint64_t delay_us;
    struct fake_event *event;
    uint64_t number; /* of the record that is made or waited for; the value of a fill */
    struct fake_op *next;
};

struct fake_stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct fake_op *first, **last, *running;
    struct fake_context *context;
    atomic_bool captured; /* into a graph, at this moment */
};

struct fake_context {
    int device;
    int users;
    atomic_int error; /* sticky */
    struct fake_stream *default_stream;
};

/* control.c */
extern pthread_mutex_t fake_lock; /* guards all below, and what control.c and memory.c keep */
extern struct fake_context fake_contexts[FAKE_DEVICES];
extern struct fakecuda_state fake_state_now;
extern atomic_int fake_captures; /* streams that are being captured */
void fake_count(int64_t *live, int64_t change);
__attribute__((format(printf, 1, 2))) void fake_misuse(const char *format, ...);
/* The code injected for this call of `symbol`, 0 for none. */
int fake_injected(const char *symbol);
/* The code that the copy which runs now ends with, 0 for none. */
int fake_injected_async(void);
bool fake_event_is_lost(void);

/* driver.c */
/* What every call that needs a context begins with. */
int fake_enter(const char *symbol);
/* The same of a call that a capture in another thread forbids. */
int fake_enter_unsafe(const char *symbol);
struct fake_context *fake_current(void);

/* stream.c */
void fake_speed_set(uint64_t bytes_per_s, uint64_t delay_us);
void fake_hold_set(bool on);
struct fake_stream *fake_stream_make(struct fake_context *context);
void fake_stream_drop(struct fake_stream *stream);
/* The stream of a handle, NULL being the default one of the current context; NULL: there is
 * none. */
struct fake_stream *fake_stream_of(void *handle);
bool fake_stream_is_idle(struct fake_stream *stream);
void fake_stream_finish(struct fake_stream *stream);
void fake_context_finish(struct fake_context *context);
/* Is memory[bytes] read or written by what is queued on any stream? */
bool fake_memory_is_in_use(const void *memory, size_t bytes);
int fake_enqueue(struct fake_stream *stream, struct fake_op op);
struct fake_event *fake_event_make(struct fake_context *context);
bool fake_event_is_known(const struct fake_event *event);
void fake_event_drop(struct fake_event *event); /* by its owner */

/* memory.c */
/* The driver's own address of device memory; NULL where it is not all of one block. */
uint8_t *fake_view_of(uint64_t region, size_t bytes, struct fake_context **owner);

#endif
