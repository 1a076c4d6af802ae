/*
 * bindings/nccl/sampler.h - which operations have their kernels timed.
 *
 * Timing an operation on the device costs more than counting it: NCCL writes timers from the kernel
 * and calls back once per channel. So we time a sample. Ranks can only be compared on operations
 * that all of them timed, so the sample follows the numbers that all ranks of a communicator share:
 * the first few of each SAMPLER_PERIOD operations of one kind in a communicator.
 *
 * The bound: at most `percent` per cent of the process's operations, plus SAMPLER_PER_SECOND a
 * second, so that jobs with few operations are timed fully. All operations, while a reader asks.
 *
 * Pure: no clock, no memory of its own. A value may be shared by threads: its counters are atomic,
 * and a lost race moves the bound by an operation.
 */
#ifndef CAIRN_NCCL_SAMPLER_H
#define CAIRN_NCCL_SAMPLER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    CAIRN_SAMPLER_PERIOD = 4096,
    CAIRN_SAMPLER_PER_SECOND = 20,
    CAIRN_SAMPLER_PERCENT_DEFAULT = 5
};

struct cairn_sampler {
    uint32_t percent; /* 0: never time kernels, even if a reader asks; 100: always */
    _Atomic uint64_t operations;
    _Atomic uint64_t on_until;      /* a number of operations */
    _Atomic int64_t share_credit;   /* in hundredths of an operation */
    _Atomic int64_t time_credit_ns; /* 1 s / SAMPLER_PER_SECOND is an operation */
    _Atomic uint64_t last_ns;
};

/* Makes a sampler that times the first operations. */
void cairn_sampler_init(struct cairn_sampler *sampler, uint32_t percent, uint64_t now_ns);

/*
 * True if the next operation should be timed on the device. next_number is the number of the next
 * operation of the same kind in the same communicator, from 0; a reader asks for all until
 * wanted_until_ns. Both times are of one clock. Wait-free.
 */
bool cairn_sampler_next(struct cairn_sampler *sampler, uint64_t next_number, uint64_t now_ns,
                        uint64_t wanted_until_ns);

#endif
