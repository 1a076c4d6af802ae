/*
 * tools/bench_floor.h - the CPU time of each stage of protect and restore, measured alone.
 */
#ifndef CAIRN_TOOLS_BENCH_FLOOR_H
#define CAIRN_TOOLS_BENCH_FLOOR_H

#include "cairn/err.h"

#include <stdint.h>

/* CPU seconds per GiB of bytes that go through the stage. */
struct cairn_bench_floor {
    double capture;          /* copy and checksum through the capture engine */
    double transport_sender; /* a payload of CAIRN_BULK_BYTES_MAX */
    double transport_receiver;
    double fold;   /* one parity row, per GiB of source */
    double check;  /* CRC-64 of each block */
    double decode; /* `lost` shards from k, per GiB of rebuilt bytes; 0 where lost is
                                * 0 */
    double transport_bytes_per_s;
    double bare_tcp; /* sender and receiver of bare TCP together, for comparison */
};

/*
 * Measures all of them for a code of k + m and `lost` lost shards of each stripe. Medians over
 * rounds. Forks, so the caller must have no other thread. Blocks for seconds. Errors as the
 * stages'.
 */
CAIRN_MUST_CHECK cairn_err cairn_bench_floor_measure(uint32_t k, uint32_t m, uint32_t lost,
                                                     uint32_t rounds,
                                                     struct cairn_bench_floor *out);

/* ---- the stages' parts, each in the file of its stage ---- */

/* bench_capture.c: bytes is a multiple of a block. */
CAIRN_MUST_CHECK cairn_err cairn_bench_capture_cost(uint64_t bytes, uint32_t rounds,
                                                    double *cpu_s_per_gib);
/* bench_erasure.c: out of cache. */
CAIRN_MUST_CHECK cairn_err cairn_bench_fold_cost(uint32_t k, uint32_t m, uint64_t bytes,
                                                 uint32_t rounds, double *cpu_s_per_gib);
CAIRN_MUST_CHECK cairn_err cairn_bench_decode_cost(uint32_t k, uint32_t m, uint32_t lost,
                                                   uint64_t bytes, uint32_t rounds,
                                                   double *cpu_s_per_gib);

#endif
