/*
 * transport/measure.h - how fast payloads travel between two processes of this machine, next to
 * bare TCP with the same sizes in the same run.
 */
#ifndef CAIRN_TRANSPORT_MEASURE_H
#define CAIRN_TRANSPORT_MEASURE_H

#include "transport/transport.h"

#include <stddef.h>
#include <stdint.h>

struct cairn_measure_options {
    const char *provider;             /* NULL: tcp */
    bool keyed;                       /* with a key: messages go over TLS */
    enum cairn_protection protection; /* of payloads, with a key */
    bool beside_unprotected;          /* `bare` is the transport without protection, not bare TCP */
    size_t message_bytes; /* payload of one message, 1 … CAIRN_BULK_BYTES_MAX; 0: the maximum */
    uint64_t round_bytes; /* sent in one round; 0: 2 GiB */
    uint32_t rounds;      /* of each kind, alternating; 0: 5. At most 64 */
};

/* One kind's median round. */
struct cairn_measure_side {
    double bytes_per_s;
    double sender_cpu_s_per_gib;
    double receiver_cpu_s_per_gib;
};

struct cairn_measure {
    struct cairn_measure_side transport;
    struct cairn_measure_side bare; /* blocking send and recv on a TCP socket */
    double ratio;                   /* median of transport / bare of each pair of rounds */
    double ratio_min;
    double ratio_max;
    double half_round_trip_ns; /* of a message of 64 bytes, median */
};

/*
 * Measures over 127.0.0.1. Forks one process per round, so the caller must have no other thread.
 * Blocks for seconds. CAIRN_INVAL, CAIRN_IO (no port, no process), CAIRN_TIMEOUT, and the errors of
 * cairn_transport_open.
 */
CAIRN_MUST_CHECK cairn_err cairn_transport_measure(const struct cairn_measure_options *options,
                                                   struct cairn_measure *out);

#endif
