/*
 * replan/detect/step.c - puts the ranks' parts of one step together.
 *
 * The rank that arrives last at an operation waits least, so the shortest part of any rank is the
 * transfer itself and what the others have beyond it is waiting. Clocks do not matter, since only
 * durations are compared.
 */
#include "replan/detect/detector.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A step's numbers lie close together. Reports hold the first few of a lane, and others do not make
 * memory grow. */
enum {
    SLOTS_MAX = 65536,
    SLOTS_OF_REPORTS_MAX = 64,
    SLOT_SLACK = 8,
    HASH_FIRST = 256,
    SLOTS_LOOKED_AT = 64,
    USUAL_STEPS = 8,
    SLOTS_FOR_MOST = 3
};
static const double held_up = 1.5;
static const double ends_apart_us = 200; /* more than clocks drift between two transfers */

static uint64_t
key_of(uint32_t rank, uint32_t lane)
{
    uint32_t peer = lane & CAIRN_LANE_PEER;

    if (!(lane & CAIRN_LANE_PAIR))
        return lane;
    return lane & CAIRN_LANE_SEND ? (uint64_t)1 << 63 | (uint64_t)rank << 24 | peer
                                  : (uint64_t)1 << 63 | (uint64_t)peer << 24 | rank;
}

static uint32_t
hash_of(uint64_t key)
{
    return (uint32_t)((key * 0x9e3779b97f4a7c15ull) >> 32);
}

static cairn_err
grow(struct cairn_detector *detector)
{
    uint32_t room = detector->channel_room ? 2 * detector->channel_room : HASH_FIRST / 4;
    struct cairn_channel *channels;
    uint32_t *index;

    if (detector->channel_count < detector->channel_room)
        return CAIRN_OK;
    channels = realloc(detector->channels, room * sizeof *channels);
    if (!channels)
        return CAIRN_NOMEM;
    detector->channels = channels;
    index = calloc((size_t)room * 4, sizeof *index);
    if (!index)
        return CAIRN_NOMEM;
    free(detector->channel_index);
    detector->channel_index = index;
    detector->channel_hash_room = room * 4;
    detector->channel_room = room;
    for (uint32_t i = 0; i < detector->channel_count; i++) {
        uint32_t at = hash_of(channels[i].key) & (detector->channel_hash_room - 1);

        while (index[at])
            at = (at + 1) & (detector->channel_hash_room - 1);
        index[at] = i + 1;
    }
    return CAIRN_OK;
}

/* Classes: pairs within a node and between nodes; collectives by kind of communicator, operation,
 * and whether they leave a node. */
static uint32_t
class_of(const struct cairn_topology *topology, const struct cairn_channel *channel)
{
    if (channel->comm == CAIRN_COMM_NONE)
        return cairn_topology_apart(topology, channel->source, channel->target);
    return 2 + ((uint32_t)(channel->key & 15) * 2 + topology->comms[channel->comm].crosses) * 64 +
           topology->comms[channel->comm].kind;
}

/* Where a channel's data goes: struct cairn_channel. */
static uint64_t
path_of(const struct cairn_topology *topology, const struct cairn_channel *channel)
{
    uint64_t path = 0;

    if (channel->comm == CAIRN_COMM_NONE)
        return channel->source < channel->target
                   ? (uint64_t)channel->source << 32 | channel->target
                   : (uint64_t)channel->target << 32 | channel->source;
    for (uint32_t i = 0; i < topology->comms[channel->comm].count; i++) {
        uint32_t node = topology->node[topology->comms[channel->comm].ranks[i]];

        /* a set: how many ranks does not matter */
        path |= (node * 0x9e3779b97f4a7c15ull) | 1ull << 63;
    }
    return path;
}

/* The nodes that a channel touches: struct cairn_channel. */
static uint64_t
nodes_of(const struct cairn_topology *topology, const struct cairn_channel *channel)
{
    uint64_t nodes = 0;

    if (channel->comm == CAIRN_COMM_NONE)
        return 1ull << topology->node[channel->source] % 64 |
               1ull << topology->node[channel->target] % 64;
    for (uint32_t i = 0; i < topology->comms[channel->comm].count; i++)
        nodes |= 1ull << topology->node[topology->comms[channel->comm].ranks[i]] % 64;
    return nodes;
}

static cairn_err
find_channel(struct cairn_detector *detector, uint32_t rank, uint32_t lane,
             struct cairn_channel **out)
{
    uint64_t key = key_of(rank, lane);
    struct cairn_channel *channel;
    uint32_t at;
    cairn_err err = grow(detector);

    if (err)
        return err;
    at = hash_of(key) & (detector->channel_hash_room - 1);
    while (detector->channel_index[at]) {
        channel = &detector->channels[detector->channel_index[at] - 1];
        if (channel->key == key) {
            *out = channel;
            return CAIRN_OK;
        }
        at = (at + 1) & (detector->channel_hash_room - 1);
    }
    channel = &detector->channels[detector->channel_count++];
    detector->channel_index[at] = detector->channel_count;
    *channel = (struct cairn_channel){
        .key = key, .comm = CAIRN_COMM_NONE, .members = 2, .normal = NAN, .verdict = UINT32_MAX};
    if (key >> 63) {
        channel->source = (uint32_t)(key >> 24 & 0xffffff);
        channel->target = (uint32_t)(key & 0xffffff);
    } else {
        channel->comm = lane / 16;
        channel->members = detector->topology->comms[channel->comm].count;
        if (channel->members == 2) { /* a ring of two is a pair */
            channel->source = detector->topology->comms[channel->comm].ranks[0];
            channel->target = detector->topology->comms[channel->comm].ranks[1];
        }
    }
    channel->path = path_of(detector->topology, channel);
    channel->nodes = nodes_of(detector->topology, channel);
    channel->class_index = class_of(detector->topology, channel);
    *out = channel;
    return CAIRN_OK;
}

/* The slot of a sample; NULL where its number is far from those around it. *nth counts the samples
 * of a lane that have no number. */
static struct cairn_slot *
slot_of(struct cairn_channel *channel, const struct cairn_sample *sample, uint32_t nth,
        uint32_t slots_max)
{
    uint32_t at = nth;

    if (sample->seq != CAIRN_SEQ_NONE) {
        if (channel->slot_count == 0)
            channel->seq_base = sample->seq - SLOT_SLACK;
        at = sample->seq - channel->seq_base;
    }
    if (at >= slots_max)
        return NULL;
    if (at >= channel->slot_room) {
        uint32_t room = channel->slot_room ? channel->slot_room : 16;
        struct cairn_slot *slots;

        while (room <= at)
            room *= 2;
        slots = realloc(channel->slots, room * sizeof *slots);
        if (!slots)
            return NULL;
        channel->slots = slots;
        channel->slot_room = room;
    }
    while (channel->slot_count <= at)
        channel->slots[channel->slot_count++] = (struct cairn_slot){.least_ns = INFINITY};
    return &channel->slots[at];
}

/* How many samples of the same lane stand before one of a rank. Lanes of a step are few and
 * repeat. */
struct lanes {
    uint32_t lane[64], count[64], used;
};

static uint32_t
count_lane(struct lanes *lanes, uint32_t lane)
{
    for (uint32_t i = 0; i < lanes->used; i++)
        if (lanes->lane[i] == lane)
            return lanes->count[i]++;
    if (lanes->used == 64)
        return SLOTS_MAX;
    lanes->lane[lanes->used] = lane;
    lanes->count[lanes->used++] = 1;
    return 0;
}

/*
 * A transfer that both wait for ends for both at the same time. If one ends long before the other,
 * and not always by the same (the clocks are apart), its data was buffered: the receiver then finds
 * it there, and only the sender shows how long it took.
 */
static void
compare_ends(struct cairn_detector *detector, struct cairn_channel *channel,
             struct cairn_slot *slot, const struct cairn_sample *sample, bool is_send)
{
    int32_t apart_us;

    if (sample->end_us == 0)
        return;
    if (slot->parts == 0) {
        slot->end_us = sample->end_us;
        slot->first_ns = sample->duration_ns;
        return;
    }
    if (slot->parts != 1 || slot->end_us == 0)
        return;
    apart_us = (int32_t)(is_send ? slot->end_us - sample->end_us : sample->end_us - slot->end_us);
    if (channel->ends_known) {
        double send_us = (double)(is_send ? sample->duration_ns : slot->first_ns) / 1e3;
        double changed_us = fabs((double)apart_us - channel->apart_us);

        detector->ends_apart += changed_us > fmax(ends_apart_us, send_us / 4);
        detector->ends++;
    }
    channel->ends_known = true;
    channel->apart_us = apart_us;
}

/* Adds a rank's part to the channels. From then on its samples say the channel and the slot in it
 * in place of the lane and the number, CAIRN_SEQ_NONE where they have no slot. */
static cairn_err
take_parts(struct cairn_detector *detector, uint32_t rank, struct cairn_rank_step *part)
{
    struct lanes lanes = {.used = 0};

    for (uint32_t i = 0; i < part->sample_count; i++) {
        struct cairn_sample *sample = &part->samples[i];
        struct cairn_channel *channel;
        struct cairn_slot *slot;
        bool is_send = (sample->lane & CAIRN_LANE_PAIR) && (sample->lane & CAIRN_LANE_SEND);
        cairn_err err = find_channel(detector, rank, sample->lane, &channel);

        if (err)
            return err;
        slot = slot_of(channel, sample, count_lane(&lanes, sample->lane),
                       detector->by_reports ? SLOTS_OF_REPORTS_MAX : SLOTS_MAX);
        sample->lane = (uint32_t)(channel - detector->channels);
        sample->seq = slot ? (uint32_t)(slot - channel->slots) : CAIRN_SEQ_NONE;
        if (!slot)
            continue;
        if (!detector->calibrated && channel->comm == CAIRN_COMM_NONE)
            compare_ends(detector, channel, slot, sample, is_send);
        slot->parts++;
        if (is_send)
            slot->send_ns = sample->duration_ns;
        if (sample->duration_ns < slot->least_ns)
            slot->least_ns = sample->duration_ns;
        if (sample->bytes > slot->bytes)
            slot->bytes = sample->bytes;
    }
    return CAIRN_OK;
}

/* What a rank waited beyond the transfers. After take_parts. */
static double
sum_waits(const struct cairn_detector *detector, const struct cairn_rank_step *part)
{
    double wait_ns = 0;

    for (uint32_t i = 0; i < part->sample_count; i++) {
        const struct cairn_sample *sample = &part->samples[i];
        const struct cairn_channel *channel = &detector->channels[sample->lane];

        if (sample->seq != CAIRN_SEQ_NONE && channel->slots[sample->seq].parts >= channel->members)
            wait_ns += (double)(sample->duration_ns - channel->slots[sample->seq].least_ns);
    }
    return wait_ns;
}

static int
compare_floats(const void *left, const void *right)
{
    float a = *(const float *)left, b = *(const float *)right;

    return (a > b) - (a < b);
}

/* The most that a transfer takes per byte that is not held up alone: by far more than most others
 * of its step. */
static double
most_of(const struct cairn_channel *channel)
{
    float rates[SLOTS_LOOKED_AT];
    uint32_t count = 0;

    for (uint32_t i = 0; i < channel->slot_count && count < SLOTS_LOOKED_AT; i++)
        if (channel->slots[i].parts == channel->members)
            rates[count++] = channel->slots[i].least_ns / fmaxf(channel->slots[i].bytes, 1);
    if (count < SLOTS_FOR_MOST)
        return (double)INFINITY;
    qsort(rates, count, sizeof *rates, compare_floats);
    return held_up * (double)rates[count / 2];
}

/* A channel's time per byte in this step, from the operations that all its ranks reported. */
static void
finish_channel(struct cairn_channel *channel)
{
    double least_ns = 0, bytes = 0, send_ns = 0, most = most_of(channel);
    uint32_t count = 0;

    for (uint32_t i = 0; i < channel->slot_count; i++)
        if (channel->slots[i].parts == channel->members) {
            send_ns += (double)channel->slots[i].send_ns;
            least_ns += fmin((double)channel->slots[i].least_ns,
                             most * fmax((double)channel->slots[i].bytes, 1));
            bytes += (double)channel->slots[i].bytes;
            count++;
        }
    channel->transfer = count == 0 || least_ns <= 0 ? (double)NAN
                        : bytes > 0                 ? least_ns / bytes
                                                    : least_ns / count;
    channel->send = count == 0 || send_ns <= 0 ? (double)NAN
                    : bytes > 0                ? send_ns / bytes
                                               : send_ns / count;
    channel->slot_count = 0;
}

/* A rank that did less than its peers in the stage lost records, and the time of what is lost would
 * count as computation. Where ranks record their computation it means nothing: a replica may have
 * been given fewer micro-batches. */
static void
leave_out_lossy(struct cairn_detector *detector, const struct cairn_flight *flight)
{
    const struct cairn_topology *topology = detector->topology;
    float *most = detector->scratch; /* by stage */

    memset(most, 0, topology->world * sizeof *most);
    for (uint32_t rank = 0; rank < topology->world; rank++)
        if (flight->ranks[rank] &&
            (float)flight->ranks[rank]->sample_count > most[topology->stage[rank]])
            most[topology->stage[rank]] = (float)flight->ranks[rank]->sample_count;
    for (uint32_t rank = 0; rank < topology->world; rank++)
        if (flight->ranks[rank] && !flight->ranks[rank]->is_measured &&
            (float)flight->ranks[rank]->sample_count < most[topology->stage[rank]])
            detector->now.compute_ns[rank] = (double)NAN;
}

/* Whether sends keep their ranks waiting is one thing for the whole job, and stays once normals are
 * known: what is measured must not change with it. */
static void
learn_sends(struct cairn_detector *detector, const struct cairn_flight *flight)
{
    bool aside = detector->sends_aside;

    for (uint32_t rank = 0; rank < detector->topology->world && !detector->calibrated; rank++)
        if (flight->ranks[rank]) {
            aside |= flight->ranks[rank]->sends_aside;
            detector->ranks[rank].gap_jumps_ns = flight->ranks[rank]->gap_jumps_ns;
            detector->ranks[rank].interval_jumps_ns = flight->ranks[rank]->interval_jumps_ns;
            for (int i = 0; i < CAIRN_GAPS; i++)
                detector->sends_jumps_ns[i] += flight->ranks[rank]->jumps_ns[i];
        }
    if (aside != detector->sends_aside)
        detector->calibrate_count = 0; /* begin again */
    detector->sends_aside = aside;
}

/* The time that a rank was in operations, and what it gave in all-to-alls. Before take_parts. */
static void
sum_operations(struct cairn_detector *detector, uint32_t rank, const struct cairn_rank_step *part)
{
    for (uint32_t i = 0; i < part->sample_count; i++) {
        const struct cairn_sample *sample = &part->samples[i];

        detector->now.operations_ns[rank] += (double)sample->duration_ns;
        if (!(sample->lane & CAIRN_LANE_PAIR) && sample->lane % 16 == CAIRN_ALL_TO_ALL)
            detector->now.dealt[rank] += (double)sample->bytes;
    }
}

/*
 * A rank that did less than it does in a step lost records, and the time of what is lost would
 * count as computation, in the next step too if the last record is lost. A rank that goes on with
 * fewer operations is known again after a few steps. Before take_parts.
 */
static bool
has_lost(struct cairn_detector *detector, uint32_t rank, const struct cairn_rank_step *part)
{
    struct cairn_rank_state *state = &detector->ranks[rank];
    uint32_t last_lane = part->sample_count ? part->samples[part->sample_count - 1].lane : 0;
    uint32_t of_last_lane = 0;
    bool lost_before = state->lost_last;

    if (detector->by_reports || part->is_measured)
        return false;
    for (uint32_t i = 0; i < part->sample_count; i++)
        of_last_lane += part->samples[i].lane == last_lane;
    if (part->sample_count < state->usual_samples && state->usual_age < USUAL_STEPS) {
        state->usual_age++;
        state->lost_last =
            last_lane != state->usual_last_lane || of_last_lane < state->usual_of_last_lane;
        return true;
    }
    state->usual_samples = part->sample_count;
    state->usual_last_lane = last_lane;
    state->usual_of_last_lane = of_last_lane;
    state->usual_age = 0;
    state->lost_last = false;
    return lost_before;
}

/* Where all operations go on behind the computation, no other reading holds. */
static void
read_behind(struct cairn_detector *detector, uint32_t rank, const struct cairn_rank_step *part)
{
    struct cairn_observation *now = &detector->now;
    bool is_shown;

    now->compute_ns[rank] = now->aside_ns[rank] = cairn_detect_behind_ns(detector, part, &is_shown);
    now->is_hidden[rank] = !is_shown;
    now->most_ns[rank] = now->hidden_ns[rank] = (double)NAN;
}

cairn_err
cairn_detect_match(struct cairn_detector *detector, const struct cairn_flight *flight)
{
    uint32_t world = detector->topology->world;
    cairn_err err = CAIRN_OK;
    int gaps;

    detector->now.step = flight->step;
    detector->now.all_behind = false;
    learn_sends(detector, flight);
    if (cairn_detect_learn_behind(detector, flight))
        detector->calibrate_count = 0; /* begin again */
    gaps = detector->sends_aside ? CAIRN_GAPS_SENDS_ASIDE : CAIRN_GAPS_SENDS_WAIT;
    for (uint32_t rank = 0; !err && rank < world; rank++) {
        struct cairn_rank_step *part = flight->ranks[rank];

        bool lost = part && has_lost(detector, rank, part);

        detector->now.compute_ns[rank] =
            part && !lost && part->compute_ns[gaps] > 0 ? part->compute_ns[gaps] : (double)NAN;
        detector->now.aside_ns[rank] =
            part && !detector->sends_aside && part->compute_ns[CAIRN_GAPS_SENDS_ASIDE] > 0
                ? part->compute_ns[CAIRN_GAPS_SENDS_ASIDE]
                : (double)NAN;
        detector->now.most_ns[rank] = part && part->most_ns > 0 ? part->most_ns : (double)NAN;
        detector->now.first_ns[rank] = part && part->first_ns > 0 ? part->first_ns : (double)NAN;
        detector->now.hidden_ns[rank] = part ? part->hidden_ns : (double)NAN;
        detector->now.all_behind |= part && part->all_behind;
        detector->now.work[rank] = part ? part->work : 0;
        detector->now.wait_ns[rank] = 0;
        detector->now.operations_ns[rank] = 0;
        detector->now.dealt[rank] = 0;
        detector->now.is_hidden[rank] = false;
        if (part && !lost && detector->behind.is_found)
            read_behind(detector, rank, part);
        if (part)
            sum_operations(detector, rank, part);
        if (part)
            err = take_parts(detector, rank, part);
    }
    for (uint32_t rank = 0; !err && rank < world; rank++)
        if (flight->ranks[rank])
            detector->now.wait_ns[rank] = sum_waits(detector, flight->ranks[rank]);
    for (uint32_t i = 0; i < detector->channel_count; i++)
        finish_channel(&detector->channels[i]);
    leave_out_lossy(detector, flight);
    return err;
}
