/*
 * replan/profile/transfers.h - how long the last operations of each channel took to carry their
 * bytes.
 *
 * A channel is an ordered pair of ranks, or a communicator with an operation. Of an operation's
 * parts the shortest counts: the rank that arrives last waits least, so that is the transfer
 * itself, and times of two clocks are never compared. Only operations all of whose parts have
 * ended, and say the same bytes, count. Parts belong together by their number (seq) where there is
 * one, else by their order on each rank. Memory is bounded by the number of channels. Pure.
 */
#ifndef CAIRN_REPLAN_PROFILE_TRANSFERS_H
#define CAIRN_REPLAN_PROFILE_TRANSFERS_H

#include "replan/trace/record.h"
#include "replan/trace/topology.h"

enum { CAIRN_TRANSFERS_KEPT = 32 }; /* of each channel: the last transfers */

struct cairn_transfer_channel {
    uint32_t ends[2]; /* of a pair: from which rank to which */
    uint32_t comm;    /* else; CAIRN_COMM_NONE of a pair */
    uint8_t op;       /* of a pair CAIRN_SEND */
};

struct cairn_transfer {
    uint64_t bytes; /* as the records say them (cairn/timing.h) */
    uint64_t ns;
};

struct cairn_transfers;

/* Makes an empty collection; the topology is borrowed until the destroy. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_transfers_create(const struct cairn_topology *topology,
                                                  struct cairn_transfers **out);
void cairn_transfers_destroy(struct cairn_transfers *transfers); /* NULL is allowed */

/* Takes a record; one rank's in their order, ranks in any. Records that are not ended operations
 * are passed over. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_transfers_feed(struct cairn_transfers *transfers,
                                                const struct cairn_record *record);

uint32_t cairn_transfers_channel_count(const struct cairn_transfers *transfers);

/* A channel by its index, and its transfers out[CAIRN_TRANSFERS_KEPT] in any order; returns how
 * many those are. */
uint32_t cairn_transfers_of(const struct cairn_transfers *transfers, uint32_t index,
                            struct cairn_transfer_channel *channel, struct cairn_transfer *out);

#endif
