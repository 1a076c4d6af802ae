/*
 * tools/bench_transport.c - payloads between two processes over loopback, next to bare TCP.
 */
#include "base/limits.h"
#include "tools/bench.h"
#include "transport/cipher.h"
#include "transport/measure.h"

#include <stdio.h>

enum { ROUND_BYTES_DEFAULT = 512 << 20 };

static cairn_err
measure(const struct cairn_bench_options *options, size_t message_bytes,
        enum cairn_protection protection, struct cairn_measure *out)
{
    struct cairn_measure_options how = {.provider = "tcp",
                                        .keyed = protection != CAIRN_PROTECTION_NONE,
                                        .protection = protection,
                                        .beside_unprotected = protection != CAIRN_PROTECTION_NONE,
                                        .message_bytes = message_bytes,
                                        .round_bytes =
                                            options->bytes ? options->bytes : ROUND_BYTES_DEFAULT,
                                        .rounds = options->rounds ? options->rounds : 7};

    return cairn_transport_measure(&how, out);
}

static void
add(const struct cairn_bench_options *options, const char *name,
    const struct cairn_measure *measured, double floor, const char *command, double bound,
    struct cairn_bench_report *report)
{
    struct cairn_bench_case value = {.unit = "GB/s",
                                     .threads = 2,
                                     .bound = bound,
                                     .bytes = options->bytes ? options->bytes : ROUND_BYTES_DEFAULT,
                                     .command = command,
                                     .value = measured->transport.bytes_per_s / 1e9,
                                     .floor = floor / 1e9,
                                     .cpu_seconds_per_gib =
                                         measured->transport.sender_cpu_s_per_gib +
                                         measured->transport.receiver_cpu_s_per_gib};

    (void)snprintf(value.name, sizeof value.name, "%s", name);
    cairn_bench_add(report, &value);
}

/* Payloads that are protected, in turns with those that are not. */
static cairn_err
add_protected(const struct cairn_bench_options *options, enum cairn_protection protection,
              const char *name, double bound, struct cairn_bench_report *report)
{
    struct cairn_measure measured;
    cairn_err err = measure(options, CAIRN_BULK_BYTES_MAX, protection, &measured);

    if (!err)
        add(options, name, &measured, measured.bare.bytes_per_s, "the transport without protection",
            bound, report);
    return err;
}

/* The libraries that protection chooses from, as a sender in a core's cache. */
static cairn_err
note_ciphers(struct cairn_bench_report *report)
{
    static const char *const names[2][CAIRN_CIPHER_LIBRARIES] = {
        {"openssl_authenticates_gb_per_s", "ipsec_mb_authenticates_gb_per_s"},
        {"openssl_encrypts_gb_per_s", "ipsec_mb_encrypts_gb_per_s"}};

    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct cairn_cipher *cipher = NULL;
        struct cairn_cipher_speeds speeds;
        cairn_err err = cairn_cipher_choose(encrypt, &cipher, &speeds);

        if (err)
            return err;
        cairn_cipher_close(cipher);
        for (int i = 0; i < CAIRN_CIPHER_LIBRARIES; i++)
            cairn_bench_note(report, names[encrypt][i], speeds.bytes_per_s[i] / 1e9);
    }
    return CAIRN_OK;
}

cairn_err
cairn_bench_transport(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    static const char bare[] = "blocking send and recv on a TCP socket, same sizes";
    struct cairn_measure none, small;
    cairn_err err;

    report->stage = "transport";
    err = measure(options, CAIRN_BULK_BYTES_MAX, CAIRN_PROTECTION_NONE, &none);
    if (err)
        return err;
    add(options, "messages of 1024 KiB", &none, none.bare.bytes_per_s, bare, 0.95, report);
    cairn_bench_note(report, "bare_tcp_cpu_seconds_per_gib",
                     none.bare.sender_cpu_s_per_gib + none.bare.receiver_cpu_s_per_gib);
    cairn_bench_note(report, "sender_cpu_seconds_per_gib", none.transport.sender_cpu_s_per_gib);
    cairn_bench_note(report, "receiver_cpu_seconds_per_gib", none.transport.receiver_cpu_s_per_gib);
    cairn_bench_note(report, "half_round_trip_us", none.half_round_trip_ns / 1e3);
    err = add_protected(options, CAIRN_PROTECTION_AUTHENTICATE, "authenticated", 0.80, report);
    if (!err)
        err = add_protected(options, CAIRN_PROTECTION_ENCRYPT, "encrypted", 0.55, report);
    if (!err)
        err = measure(options, 4 * CAIRN_BLOCK_BYTES, CAIRN_PROTECTION_NONE, &small);
    if (!err)
        add(options, "messages of 256 KiB", &small, small.bare.bytes_per_s, bare, 0, report);
    return err ? err : note_ciphers(report);
}
