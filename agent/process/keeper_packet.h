/*
 * agent/process/keeper_packet.h - one packet between an agent and its keeper: bytes and
 * descriptors.
 *
 * Little-endian by base/wire.h, one packet per sendmsg on a SOCK_SEQPACKET socket.
 *   request:  magic u32, version u16, type u16, body
 *   reply:    magic u32, version u16, type u16 (the request's | 0x8000), cairn_err u32, body
 * Bodies; a reply with an error has none:
 *   PING, SHUTDOWN  nothing; reply nothing
 *   PUT             name string, bytes u64, and one descriptor; reply nothing
 *   DROP            name string; reply nothing
 *   LIST, GET       after string; reply: more u8 (0 or 1), count u32, count × (name string, bytes
 *                   u64): the first names behind `after`, sorted by bytes; with GET a descriptor
 *                   each, in the same order
 */
#ifndef CAIRN_AGENT_PROCESS_KEEPER_PACKET_H
#define CAIRN_AGENT_PROCESS_KEEPER_PACKET_H

#include "agent/process/keeper.h"
#include "base/wire.h"

enum {
    CAIRN_KEEPER_MAGIC = 0x4b4e5243, /* "CRNK" */
    CAIRN_KEEPER_VERSION = 1,
    CAIRN_KEEPER_REPLY = 0x8000,
    CAIRN_KEEPER_PACKET_BYTES_MAX = 64 + CAIRN_KEEPER_BATCH_MAX * (CAIRN_KEEPER_NAME_BYTES_MAX + 12)
};

enum cairn_keeper_type {
    CAIRN_KEEPER_PING = 1,
    CAIRN_KEEPER_PUT = 2,
    CAIRN_KEEPER_LIST = 3,
    CAIRN_KEEPER_GET = 4,
    CAIRN_KEEPER_DROP = 5,
    CAIRN_KEEPER_SHUTDOWN = 6
};

struct cairn_keeper_packet {
    uint8_t bytes[CAIRN_KEEPER_PACKET_BYTES_MAX];
    size_t bytes_len;
    int fds[CAIRN_KEEPER_BATCH_MAX];
    uint32_t fd_count;
    bool fds_cut; /* received with fewer descriptors than were sent: this process has no room */
};

/* Sends without waiting; the descriptors stay the caller's. CAIRN_AGAIN: the socket is full.
 * CAIRN_PEER, CAIRN_FULL (too many descriptors under way for this user), CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_keeper_packet_send(int socket,
                                                    const struct cairn_keeper_packet *packet);

/* Receives without waiting; the descriptors are close-on-exec and now the caller's. CAIRN_AGAIN:
 * nothing there. CAIRN_PEER: the other side is gone. CAIRN_CORRUPT: longer than any packet; its
 * descriptors are closed. */
CAIRN_MUST_CHECK cairn_err cairn_keeper_packet_receive(int socket,
                                                       struct cairn_keeper_packet *packet);

/* Closes the received descriptors that are still in the packet (set those that are kept to -1). */
void cairn_keeper_packet_close(struct cairn_keeper_packet *packet);

#endif
