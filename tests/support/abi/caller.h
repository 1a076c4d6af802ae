/*
 * tests/support/abi/caller.h - a trainer that loads libcairn at run time, compiled twice: with
 * today's headers, and with the headers of a later version (larger.py).
 *
 * No public struct crosses this header: its two sides may know different versions.
 */
#ifndef CAIRN_TESTS_CALLER_H
#define CAIRN_TESTS_CALLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CALLER_TENSORS = 3,
    CALLER_ELEMENTS = 100000, /* of each tensor, f32 */
    CALLER_STEP = 7,
    CALLER_LOG_BYTES = 8192
};

struct caller_log {
    char text[CALLER_LOG_BYTES];
};

/* The structs in which a caller may break a rule. */
enum caller_struct {
    CALLER_OPTIONS,
    CALLER_SLICES, /* in the second of three elements */
    CALLER_UNCOVERED,
    CALLER_RESTORED,
    CALLER_STATS,
    CALLER_STRUCTS
};

enum caller_fault {
    CALLER_NO_FAULT,
    CALLER_SIZE_ZERO,
    CALLER_SIZE_SMALL, /* 8 below the first version */
    CALLER_SIZE_ODD,   /* not a multiple of 8 */
    CALLER_SIZE_HUGE,
    CALLER_SIZE_OTHER, /* a possible size, but not that of element 0 */
    CALLER_RESERVED,   /* not 0 */
    CALLER_TAIL,       /* a field that only a newer caller knows is not 0 */
    CALLER_FAULTS
};

struct caller {
    const char *name;
    size_t slice_bytes;
    const char *const *tensor_names; /* [CALLER_TENSORS] */

    /*
     * Opens, registers, reports coverage, takes one snapshot and reads the counters. Everything is
     * asserted. marks[CALLER_TENSORS][CALLER_ELEMENTS] is captured.
     */
    void (*protect)(void *library, const char *agent_path, float *marks, struct caller_log *log);

    /* Opens, registers and restores into marks; everything is asserted. */
    void (*restore)(void *library, const char *agent_path, float *marks, struct caller_log *log);

    /*
     * Breaks one rule in one struct and makes its call: returns the call's cairn_err. *possible is
     * false if this caller or that struct cannot have the fault.
     */
    int (*err_of)(void *library, const char *agent_path, enum caller_struct which,
                  enum caller_fault fault, struct caller_log *log, bool *possible);
};

extern const struct caller caller_today, caller_newer;

#endif
