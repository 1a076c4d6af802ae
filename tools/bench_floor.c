/* tools/bench_floor.c - see bench_floor.h. */
#include "tools/bench_floor.h"

#include "base/crc.h"
#include "base/limits.h"
#include "tools/bench.h"
#include "tools/bench_measure.h"
#include "transport/measure.h"

#include <stdbool.h>

enum { STAGE_BYTES = 256 << 20 }; /* larger than any cache */

/* The checksums of a receiver: block by block. */
static cairn_err
check_cost(uint32_t rounds, double *cpu_s_per_gib)
{
    double cpu[CAIRN_BENCH_ROUNDS_MAX];
    uint8_t *bytes = cairn_bench_map(STAGE_BYTES);
    volatile uint64_t sink = 0; /* so that no compiler leaves the work out */

    if (!bytes)
        return CAIRN_NOMEM;
    for (uint32_t round = 0; round < rounds; round++) {
        double begin = cairn_bench_thread_cpu_s();

        for (uint64_t at = 0; at < STAGE_BYTES; at += CAIRN_BLOCK_BYTES)
            sink ^= cairn_crc64(0, bytes + at, CAIRN_BLOCK_BYTES);
        cpu[round] = cairn_bench_thread_cpu_s() - begin;
    }
    (void)sink;
    cairn_bench_unmap(bytes, STAGE_BYTES);
    *cpu_s_per_gib = cairn_bench_median(cpu, rounds) / (STAGE_BYTES / 1073741824.0);
    return CAIRN_OK;
}

cairn_err
cairn_bench_floor_measure(uint32_t k, uint32_t m, uint32_t lost, uint32_t rounds,
                          struct cairn_bench_floor *out)
{
    struct cairn_measure_options how = {
        .provider = "tcp", .round_bytes = 2 * (uint64_t)STAGE_BYTES, .rounds = rounds};
    struct cairn_bench_floor floor = {0};
    struct cairn_measure transport;
    cairn_err err = cairn_transport_measure(&how, &transport);

    if (!err)
        err = cairn_bench_capture_cost(STAGE_BYTES, rounds, &floor.capture);
    if (!err)
        err = cairn_bench_fold_cost(k, m, STAGE_BYTES, rounds, &floor.fold);
    if (!err)
        err = check_cost(rounds, &floor.check);
    if (!err && lost > 0)
        err = cairn_bench_decode_cost(k, m, lost, STAGE_BYTES, rounds, &floor.decode);
    if (err)
        return err;
    floor.transport_sender = transport.transport.sender_cpu_s_per_gib;
    floor.transport_receiver = transport.transport.receiver_cpu_s_per_gib;
    floor.transport_bytes_per_s = transport.transport.bytes_per_s;
    floor.bare_tcp = transport.bare.sender_cpu_s_per_gib + transport.bare.receiver_cpu_s_per_gib;
    *out = floor;
    return CAIRN_OK;
}
