/*
 * tests/support/fakecuda.h - the control functions of the fake CUDA driver, libfakecuda.so.
 *
 * Tests open the library by path (fakecuda_path) and look these up with dlsym; the code under test
 * opens the same path as its driver. The library calls itself libcuda.so.1: a process that has
 * loaded it by path gets it wherever the driver is opened by that name, so that whole trainers run
 * with it too.
 *
 * It is stricter than hardware where hardware forgives by luck. What would be a bug on a real
 * device and cannot be answered with an error is counted as a misuse, and said on stderr.
 */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <stddef.h>
#include <stdint.h>

/* What exists at this moment, and what was counted since the last reset. */
struct fakecuda_state {
    int64_t contexts, streams, events, registered, host_allocated, device_allocated; /* live */
    uint64_t register_calls, pageable_copies, async_copies, copied_bytes, context_creations;
    uint64_t batches; /* calls of cuMemcpyBatchAsync */
    uint64_t misuses;
    uint64_t failed_calls; /* as a test has asked */
};

/* X(name, result, arguments): the library exports fakecuda_<name>. */
#define FAKECUDA_LIST(X)                                                                           \
    /* Undoes every injection and zeroes the counters, not what lives. */                          \
    X(reset, void, (void))                                                                         \
    /* Modelled speed of a stream's copies (0: memcpy's) and a delay before each. */               \
    X(speed, void, (uint64_t bytes_per_s, uint64_t delay_us))                                      \
    /* The nth next call (1: the next) of a symbol returns `code`; 0 turns it off. */              \
    X(fail, void, (const char *symbol, uint64_t nth, int code))                                    \
    /* The nth next copy fails when the stream executes it, as a sticky error of its context. */   \
    X(fail_async, void, (uint64_t nth, int code))                                                  \
    /* cuEventQuery never sees the nth next recorded event. */                                     \
    X(lose_event, void, (uint64_t nth))                                                            \
    X(state, void, (struct fakecuda_state * out))                                                  \
    /* Memory of a device, without a current context. The result is that of cuMemAlloc. */         \
    X(alloc, int, (int device, uint64_t *region, size_t bytes))                                    \
    X(free, int, (uint64_t region))                                                                \
    /* A "kernel": after delay_us, stream (NULL: the default one) fills device memory. */          \
    X(fill, int, (void *stream, uint64_t region, uint8_t value, size_t bytes, uint64_t delay_us))  \
    /* The same with bytes that are copied now. */                                                 \
    X(write, int,                                                                                  \
      (void *stream, uint64_t region, const void *from, size_t bytes, uint64_t delay_us))          \
    /* Not 0: no stream begins anything more, until 0. */                                          \
    X(hold, void, (int on))                                                                        \
    /* Not 0: the stream is being captured into a graph, in the mode that is unsafe for others. */ \
    X(capture, int, (void *stream, int on))                                                        \
    /* The CPU's view of device memory, which a trainer never has. */                              \
    X(view, uint8_t *, (uint64_t region))                                                          \
    /* Contexts pushed on the calling thread. */                                                   \
    X(depth, int, (void))

#endif
