/*
 * tools/bench_transport.c - payloads between two processes over loopback, next to bare TCP.
 */
#include "base/limits.h"
#include "tools/bench.h"
#include "transport/measure.h"

#include <stdio.h>

enum { ROUND_BYTES_DEFAULT = 512 << 20 };

static cairn_err
measure(const struct cairn_bench_options *options, size_t message_bytes, double bound,
        struct cairn_bench_report *report)
{
    struct cairn_measure_options how = {.provider = "tcp",
                                        .message_bytes = message_bytes,
                                        .round_bytes =
                                            options->bytes ? options->bytes : ROUND_BYTES_DEFAULT,
                                        .rounds = options->rounds ? options->rounds : 7};
    struct cairn_bench_case value = {.unit = "GB/s",
                                     .threads = 2,
                                     .bound = bound,
                                     .bytes = how.round_bytes,
                                     .command =
                                         "blocking send and recv on a TCP socket, same sizes"};
    struct cairn_measure result;
    cairn_err err = cairn_transport_measure(&how, &result);

    if (err)
        return err;
    value.value = result.transport.bytes_per_s / 1e9;
    value.floor = result.bare.bytes_per_s / 1e9;
    value.cpu_seconds_per_gib =
        result.transport.sender_cpu_s_per_gib + result.transport.receiver_cpu_s_per_gib;
    (void)snprintf(value.name, sizeof value.name, "messages of %zu KiB", message_bytes / 1024);
    cairn_bench_add(report, &value);
    if (message_bytes != CAIRN_BULK_BYTES_MAX)
        return CAIRN_OK;
    cairn_bench_note(report, "bare_tcp_cpu_seconds_per_gib",
                     result.bare.sender_cpu_s_per_gib + result.bare.receiver_cpu_s_per_gib);
    cairn_bench_note(report, "sender_cpu_seconds_per_gib", result.transport.sender_cpu_s_per_gib);
    cairn_bench_note(report, "receiver_cpu_seconds_per_gib",
                     result.transport.receiver_cpu_s_per_gib);
    cairn_bench_note(report, "half_round_trip_us", result.half_round_trip_ns / 1e3);
    return CAIRN_OK;
}

cairn_err
cairn_bench_transport(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    cairn_err err;

    report->stage = "transport";
    err = measure(options, CAIRN_BULK_BYTES_MAX, 0.85, report);
    if (!err)
        err = measure(options, 4 * CAIRN_BLOCK_BYTES, 0, report);
    return err;
}
