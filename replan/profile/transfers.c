/*
 * replan/profile/transfers.c - the operations with the highest numbers of each channel. They are
 * found by their number, from any rank first: a trace may give one rank after the other, and the
 * last operations of each are put together. Which numbers a channel has does not matter: a
 * communicator counts all that it does, so those of one kind of operation may be 32 apart, always.
 */
#include "replan/profile/transfers.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

struct operation {
    uint64_t number; /* plus 1; 0: the place is free */
    uint64_t bytes, ns;
    uint32_t parts;
    bool differs; /* its parts do not say the same bytes */
};

struct channel {
    uint64_t key;
    struct cairn_transfer_channel what;
    uint64_t ended[2]; /* of a pair: sends, receives */
    struct operation operations[CAIRN_TRANSFERS_KEPT];
};

struct cairn_transfers {
    const struct cairn_topology *topology;
    uint64_t *next; /* [sum of all communicators' ranks][CAIRN_OPS]: the number of a rank's next
                     * operation */
    struct channel **channels;
    uint32_t channel_count;
    uint32_t *table; /* open hash of keys: index of a channel plus 1, 0 for none */
    uint32_t table_room;
};

static const uint64_t pair_bit = (uint64_t)1 << 63;

cairn_err
cairn_transfers_create(const struct cairn_topology *topology, struct cairn_transfers **out)
{
    struct cairn_transfers *transfers = calloc(1, sizeof *transfers);

    if (!transfers)
        return CAIRN_NOMEM;
    transfers->topology = topology;
    transfers->next = calloc((size_t)topology->comms_begin[topology->world] * CAIRN_OPS + 1,
                             sizeof *transfers->next);
    if (!transfers->next) {
        free(transfers);
        return CAIRN_NOMEM;
    }
    *out = transfers;
    return CAIRN_OK;
}

void
cairn_transfers_destroy(struct cairn_transfers *transfers)
{
    if (!transfers)
        return;
    for (uint32_t i = 0; i < transfers->channel_count; i++)
        free(transfers->channels[i]);
    free(transfers->channels);
    free(transfers->table);
    free(transfers->next);
    free(transfers);
}

/* Where a key stands in the table, or should. */
static uint32_t
place_of(const struct cairn_transfers *transfers, uint64_t key)
{
    uint32_t mask = transfers->table_room - 1;
    uint32_t at = (uint32_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & mask;

    while (transfers->table[at] && transfers->channels[transfers->table[at] - 1]->key != key)
        at = (at + 1) & mask;
    return at;
}

/* Room for one channel more, in the list and in the table, which stays at most half full. */
static cairn_err
make_room(struct cairn_transfers *transfers)
{
    uint32_t room = transfers->table_room ? 2 * transfers->table_room : 128;
    uint32_t *table;

    if (!cairn_array_grow(&transfers->channels, transfers->channel_count,
                          sizeof *transfers->channels))
        return CAIRN_NOMEM;
    if (2 * transfers->channel_count < transfers->table_room)
        return CAIRN_OK;
    table = calloc(room, sizeof *table);
    if (!table)
        return CAIRN_NOMEM;
    free(transfers->table);
    transfers->table = table;
    transfers->table_room = room;
    for (uint32_t i = 0; i < transfers->channel_count; i++)
        table[place_of(transfers, transfers->channels[i]->key)] = i + 1;
    return CAIRN_OK;
}

static cairn_err
find_channel(struct cairn_transfers *transfers, uint64_t key, struct cairn_transfer_channel what,
             struct channel **out)
{
    cairn_err err = make_room(transfers);
    struct channel *channel;
    uint32_t at;

    if (err)
        return err;
    at = place_of(transfers, key);
    if (transfers->table[at] == 0) {
        channel = calloc(1, sizeof *channel);
        if (!channel)
            return CAIRN_NOMEM;
        channel->key = key;
        channel->what = what;
        transfers->channels[transfers->channel_count++] = channel;
        transfers->table[at] = transfers->channel_count;
    }
    *out = transfers->channels[transfers->table[at] - 1];
    return CAIRN_OK;
}

/* Where an operation stands, or should: a free place, or that of the lowest number. */
static struct operation *
operation_at(struct channel *channel, uint64_t number)
{
    struct operation *place = &channel->operations[number % CAIRN_TRANSFERS_KEPT];

    if (place->number == number + 1)
        return place;
    for (uint32_t i = 0; i < CAIRN_TRANSFERS_KEPT; i++) {
        struct operation *own = &channel->operations[i];

        if (own->number == number + 1)
            return own;
        if (own->number < place->number)
            place = own;
    }
    return place;
}

static void
add_part(struct channel *channel, uint64_t number, const struct cairn_record *record)
{
    struct operation *operation = operation_at(channel, number);
    uint64_t ns = record->end_ns - record->start_ns;

    if (operation->number > number + 1)
        return; /* another rank is so far beyond it that its place is taken */
    if (operation->number < number + 1)
        *operation = (struct operation){number + 1, record->bytes, ns, 0, false};
    operation->parts++;
    operation->differs |= operation->bytes != record->bytes;
    if (ns < operation->ns)
        operation->ns = ns;
}

static cairn_err
take_pair(struct cairn_transfers *transfers, const struct cairn_record *record)
{
    bool send = record->op == CAIRN_SEND;
    uint32_t source = send ? record->rank : record->peer,
             target = send ? record->peer : record->rank;
    struct channel *channel;
    cairn_err err = find_channel(
        transfers, pair_bit | (uint64_t)source << 24 | target,
        (struct cairn_transfer_channel){{source, target}, CAIRN_COMM_NONE, CAIRN_SEND}, &channel);

    if (!err)
        add_part(channel, channel->ended[!send]++, record);
    return err;
}

static cairn_err
take_collective(struct cairn_transfers *transfers, const struct cairn_record *record)
{
    const struct cairn_topology *topology = transfers->topology;
    uint32_t at = topology->comms_begin[record->rank];
    struct channel *channel;
    uint64_t number, *next;
    cairn_err err;

    /* it is one: cairn_trace_read_line has checked */
    while (topology->comms_of_rank[at] != record->comm)
        at++;
    next = &transfers->next[(size_t)at * CAIRN_OPS + record->op];
    number = record->has_seq ? record->seq : *next;
    if (number < *next || number >= UINT64_MAX - 1)
        return CAIRN_OK; /* said twice, or no number of an operation */
    *next = number + 1;
    err = find_channel(transfers, (uint64_t)record->comm << 4 | record->op,
                       (struct cairn_transfer_channel){{0, 0}, record->comm, record->op}, &channel);
    if (!err)
        add_part(channel, number, record);
    return err;
}

cairn_err
cairn_transfers_feed(struct cairn_transfers *transfers, const struct cairn_record *record)
{
    if (record->op == 0 || record->end_ns == 0)
        return CAIRN_OK;
    return record->op == CAIRN_SEND || record->op == CAIRN_RECV
               ? take_pair(transfers, record)
               : take_collective(transfers, record);
}

uint32_t
cairn_transfers_channel_count(const struct cairn_transfers *transfers)
{
    return transfers->channel_count;
}

uint32_t
cairn_transfers_of(const struct cairn_transfers *transfers, uint32_t index,
                   struct cairn_transfer_channel *what, struct cairn_transfer *out)
{
    const struct channel *channel = transfers->channels[index];
    uint32_t parts = channel->what.comm == CAIRN_COMM_NONE
                         ? 2
                         : transfers->topology->comms[channel->what.comm].count;
    uint32_t count = 0;

    for (uint32_t i = 0; i < CAIRN_TRANSFERS_KEPT; i++) {
        const struct operation *operation = &channel->operations[i];

        if (operation->number > 0 && operation->parts == parts && !operation->differs &&
            operation->bytes > 0 && operation->ns > 0)
            out[count++] = (struct cairn_transfer){operation->bytes, operation->ns};
    }
    *what = channel->what;
    return count;
}
