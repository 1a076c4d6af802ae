/*
 * transport/ports.h - source ports that only holders of the job's key can name.
 *
 * A flood from a peer's own address cannot be told from the peer by its address, but by the port it
 * comes from: agents call from keyed ports, a 512th of all, which differ by key and callee. So a
 * callee can have the kernel drop everything else of an address, and still hear the peer.
 *
 * A port proves nothing: readers of the network see it. It only decides who is worth an answer.
 * Pure. Thread: any.
 */
#ifndef CAIRN_TRANSPORT_PORTS_H
#define CAIRN_TRANSPORT_PORTS_H

#include <stdbool.h>
#include <stdint.h>

enum { CAIRN_PORTS_COUNT = 128 };

/* The ports p with (factor p + shift) mod 2^16 < CAIRN_PORTS_COUNT; the factor is odd. */
struct cairn_ports {
    uint16_t factor, shift;
};

/* Of a number that a key gives: any. */
struct cairn_ports cairn_ports_make(uint32_t number);

bool cairn_ports_has(const struct cairn_ports *ports, uint16_t port);

/* The port of this place, place < CAIRN_PORTS_COUNT. */
uint16_t cairn_ports_at(const struct cairn_ports *ports, uint32_t place);

#endif
