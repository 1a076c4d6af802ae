/*
 * bindings/nccl/sampler.h - which operations have their kernels timed.
 *
 * The start and stop of an operation on the device cost more than its count: NCCL writes timers
 * from the kernel and calls back once for every channel. So they are asked for in some operations
 * only. Which, is decided by the numbers that all ranks of a communicator give its operations, so
 * that they look at the same ones: what is compared between ranks must have been seen on all of
 * them. Of each SAMPLER_PERIOD operations of one kind in a communicator, the first few are looked
 * at.
 *
 * The bound: at most `percent` of 100 of all operations of the process, and besides
 * SAMPLER_PER_SECOND a second, which lets jobs with few operations be seen whole. While a reader
 * wishes so, all of them.
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
    uint32_t percent; /* 0: kernels are never timed, whatever a reader wishes; 100: always */
    _Atomic uint64_t operations;
    _Atomic uint64_t on_until;      /* a number of operations */
    _Atomic int64_t share_credit;   /* in hundredths of an operation */
    _Atomic int64_t time_credit_ns; /* 1 s / SAMPLER_PER_SECOND is an operation */
    _Atomic uint64_t last_ns;
};

/* A sampler whose first operations are looked at. */
void cairn_sampler_init(struct cairn_sampler *sampler, uint32_t percent, uint64_t now_ns);

/*
 * Whether the operation after this one is to be timed on the device. next_number is the number that
 * the next operation of the same kind in the same communicator has, from 0; wanted_until_ns is a
 * reader's wish. Both times are of one clock. Wait-free.
 */
bool cairn_sampler_next(struct cairn_sampler *sampler, uint64_t next_number, uint64_t now_ns,
                        uint64_t wanted_until_ns);

#endif
