/* replan/live/reduce.c - one rank's timing records: which are believed, and what each of them says;
 * see reduce.h. */
#include "replan/live/reduce_state.h"

#include "replan/trace/topology.h"

#include <stdlib.h>

enum { OUTSTANDING_MAX = 64 };  /* with more of a lane under way its ends are not being looked at */
#define RANK_UNKNOWN UINT32_MAX /* of a source that has not learned it */

cairn_err
cairn_reduce_create(const struct cairn_reduce_options *options, struct cairn_reduce **out)
{
    struct cairn_reduce *reduce = calloc(1, sizeof *reduce);

    if (!reduce)
        return CAIRN_NOMEM;
    reduce->options = *options;
    if (options->recording_bytes > 0) {
        cairn_err err = cairn_recording_create(options->recording_bytes, &reduce->recording);

        if (err) {
            cairn_reduce_destroy(reduce);
            return err;
        }
    }
    *out = reduce;
    return CAIRN_OK;
}

void
cairn_reduce_destroy(struct cairn_reduce *reduce)
{
    if (!reduce)
        return;
    cairn_intake_fini(&reduce->intake);
    cairn_recording_destroy(reduce->recording);
    free(reduce);
}

/* ---- names ---- */

/* The number of a communicator, CAIRN_REDUCE_COMMS_MAX where there is no room for another. */
static uint32_t
comm_of(struct cairn_reduce *reduce, const struct cairn_timing_record *record)
{
    uint32_t ranks = record->ranks == CAIRN_COMM_RANKS_MAX ? 0 : record->ranks;
    uint32_t at = 0;

    while (at < reduce->comm_count && reduce->comms[at].hash != record->comm)
        at++;
    if (at == reduce->comm_count) {
        if (at == CAIRN_REDUCE_COMMS_MAX)
            return at;
        reduce->comms[reduce->comm_count++] =
            (struct reduce_comm){.hash = record->comm, .ranks = ranks, .place = CAIRN_PLACE_NONE};
        if (record->op != CAIRN_TIMING_MEMBER)
            reduce_emit_member(reduce, &reduce->comms[at]);
    } else if (reduce->comms[at].ranks == 0 && ranks > 0) {
        reduce->comms[at].ranks = ranks;
        reduce_emit_member(reduce, &reduce->comms[at]);
    }
    return at;
}

/* The number of a peer, CAIRN_REDUCE_PAIRS_MAX where there is no room for another. */
static uint32_t
pair_of(struct cairn_reduce *reduce, uint32_t comm, uint32_t peer)
{
    bool is_place = reduce->comms[comm].place != CAIRN_PLACE_NONE;
    uint32_t at = 0;

    while (at < reduce->pair_count &&
           (reduce->pairs[at].comm != comm || reduce->pairs[at].peer != peer ||
            reduce->pairs[at].is_place != is_place))
        at++;
    if (at == reduce->pair_count && at < CAIRN_REDUCE_PAIRS_MAX)
        reduce->pairs[reduce->pair_count++] = (struct reduce_pair){comm, peer, is_place};
    return at;
}

/* ---- records ---- */

/* An operation is not taken in: the step under way says nothing of computation. */
static void
leave_out(struct cairn_reduce *reduce, uint64_t count)
{
    reduce->counts.lost += count;
    reduce->lossy = true;
    if (reduce->recording)
        cairn_recording_lose(reduce->recording, reduce->intake.step);
}

static bool
has_possible_times(const struct cairn_timing_record *record, uint64_t now_ns)
{
    return record->enter_ns > 0 && record->enter_ns <= now_ns && record->start_ns <= now_ns &&
           record->end_ns <= now_ns &&
           (record->end_ns == 0 || record->end_ns >= record->enter_ns) &&
           (record->end_ns == 0 || record->start_ns == 0 || record->end_ns >= record->start_ns);
}

/* False where a record cannot be one of this rank's. */
static bool
is_possible(const struct cairn_reduce *reduce, const struct cairn_timing_record *record,
            uint64_t now_ns)
{
    if (record->rank != reduce->options.rank && record->rank != RANK_UNKNOWN)
        return false;
    if (record->op == CAIRN_TIMING_WORK)
        return record->bytes > 0 && record->step < UINT32_MAX - 1;
    if (record->op == CAIRN_TIMING_COMPUTE)
        return record->end_ns > 0 && record->step < UINT32_MAX - 1 &&
               has_possible_times(record, now_ns);
    if (record->comm == 0)
        return false;
    if (record->op == CAIRN_TIMING_MEMBER)
        return record->peer < CAIRN_COMM_RANKS_MAX;
    if (record->op == 0 || record->op >= CAIRN_OPS || record->step >= UINT32_MAX - 1)
        return false;
    if (record->op >= CAIRN_SEND && record->peer >= reduce->options.world)
        return false;
    return has_possible_times(record, now_ns);
}

/*
 * Whether the rank may have waited in a lane whose ends nobody sees: some of its communicator do
 * end, or it is a transfer, and of no transfer an end is seen. (Otherwise it is what the host sees
 * of a device, whose ends another source sees.)
 */
static bool
hides_waiting(const struct cairn_reduce *reduce, uint32_t number)
{
    return number < REDUCE_COLLECTIVE_LANES ? reduce->comms[number / 16].shows_ends
                                            : !reduce->pairs_show_ends;
}

/* Whether the step under way, which is over now, has an end for each operation that the rank may
 * have waited in. */
static bool
close_step(struct cairn_reduce *reduce)
{
    bool whole = !reduce->lossy;

    reduce->done_lossy = reduce->lossy;
    for (uint32_t i = 0; i < reduce->used_count; i++) {
        struct reduce_lane *lane = &reduce->lanes[reduce->used_lanes[i]];

        if (lane->shows_ends || hides_waiting(reduce, reduce->used_lanes[i]))
            whole &= lane->step_begun <= lane->step_ended;
        lane->step_begun = lane->next_begun;
        lane->step_ended = lane->next_begun = 0;
    }
    reduce->lossy = false;
    return whole;
}

/* True if a record counts: its operation has ended, or is open and its end will be seen. */
static bool
is_telling(const struct reduce_lane *lane, const struct cairn_timing_record *record)
{
    return record->end_ns > 0 || record->start_ns > 0 ||
           (lane->shows_ends && !lane->on_device && lane->outstanding < OUTSTANDING_MAX);
}

/* `next`: it is of the step after the one under way, which stays so. */
static void
count_to_lane(struct reduce_lane *lane, const struct cairn_timing_record *record, bool next)
{
    if (record->end_ns > 0) {
        lane->shows_ends = true;
        lane->step_ended++;
        lane->outstanding = 0;
    } else if (record->start_ns > 0) {
        lane->on_device = true;
    } else {
        lane->step_begun += !next;
        lane->next_begun += next;
        lane->outstanding++;
    }
}

/* Operations that are open because their end was lost: one of the same lane that began later has
 * ended, or the job has gone on. */
static void
forget_passed(struct cairn_intake *intake, const struct cairn_record *record)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < intake->open_count; i++) {
        const struct cairn_open *open = &intake->open[i];
        bool passed = record->end_ns > 0 && open->op == record->op && open->comm == record->comm &&
                      open->peer == record->peer && open->start_ns < record->start_ns;

        if (!passed && open->step + 1 >= record->step)
            intake->open[kept++] = *open;
    }
    intake->open_count = kept;
}

static cairn_err
take_in(struct cairn_reduce *reduce, const struct cairn_record *record, struct reduce_lane *lane,
        const struct cairn_timing_record *original)
{
    struct cairn_intake *intake = &reduce->intake;
    bool next = intake->any && record->step > intake->step, whole = false;
    uint64_t end_ns = intake->end_ns;
    struct cairn_rank_step *done;
    cairn_err err;

    if (intake->any && record->step < intake->step) {
        reduce->counts.lost++; /* the end of something that outlived its step */
        return CAIRN_OK;
    }
    if (!next && intake->sample_count >= CAIRN_REDUCE_STEP_RECORDS_MAX && record->end_ns > 0) {
        leave_out(reduce, 1);
        return CAIRN_OK;
    }
    reduce->has_taken = true;
    if (!is_telling(lane, original)) {
        count_to_lane(lane, original, next);
        return CAIRN_OK;
    }
    if (next)
        whole = close_step(reduce);
    count_to_lane(lane, original, false);
    if (record->end_ns > 0 && record->comm == CAIRN_COMM_NONE)
        reduce->pairs_show_ends = true;
    else if (record->end_ns > 0)
        reduce->comms[record->comm].shows_ends = true;
    err = cairn_intake_take(intake, record, &done);
    if (done) {
        reduce_emit_step(reduce, done, whole && reduce->before_whole, end_ns);
        free(done);
    }
    if (next)
        reduce->before_whole = whole;
    if (reduce->recording && record->end_ns > 0)
        reduce_record(reduce, record);
    forget_passed(intake, record);
    return err;
}

static void
note_work(struct cairn_reduce *reduce, const struct cairn_timing_record *record)
{
    uint32_t step = record->step ? record->step : reduce->counts.step;
    struct reduce_work *work = &reduce->work[step % REDUCE_WORK_STEPS];

    if (work->step != step)
        *work = (struct reduce_work){.step = step};
    if (record->op == CAIRN_TIMING_WORK) {
        work->amount += (double)record->bytes;
        reduce->has_work = true;
        return;
    }
    work->compute_ns +=
        (double)(record->end_ns - (record->start_ns ? record->start_ns : record->enter_ns));
    work->units += (double)record->bytes;
    if (record->end_ns > reduce->last_ns)
        reduce->last_ns = record->end_ns;
}

cairn_err
cairn_reduce_take(struct cairn_reduce *reduce, const struct cairn_timing_record *record,
                  uint64_t now_ns)
{
    struct cairn_record value = {.start_ns = record->start_ns ? record->start_ns : record->enter_ns,
                                 .end_ns = record->end_ns,
                                 .seq = record->seq,
                                 .bytes = record->bytes,
                                 .rank = record->rank,
                                 .peer = CAIRN_PEER_NONE,
                                 .has_seq = record->seq > 0,
                                 .has_step = true};
    uint32_t comm, lane;

    reduce->counts.records++;
    if (!is_possible(reduce, record, now_ns)) {
        reduce->counts.refused++;
        return CAIRN_OK;
    }
    if (record->op == CAIRN_TIMING_WORK || record->op == CAIRN_TIMING_COMPUTE) {
        note_work(reduce, record);
        return CAIRN_OK;
    }
    comm = comm_of(reduce, record);
    if (comm == CAIRN_REDUCE_COMMS_MAX) {
        leave_out(reduce, 1); /* the rank may have waited in it */
        return CAIRN_OK;
    }
    if (record->op == CAIRN_TIMING_MEMBER) { /* which a source repeats */
        if (reduce->comms[comm].place != record->peer) {
            reduce->comms[comm].place = record->peer;
            reduce_emit_member(reduce, &reduce->comms[comm]);
        }
        if (reduce->last_ns == 0) /* it is there, and has entered nothing so far */
            reduce->last_ns = record->enter_ns < now_ns ? record->enter_ns : now_ns;
        return CAIRN_OK;
    }
    reduce->said_counts = false;
    if (reduce->comms[comm].place != CAIRN_PLACE_NONE)
        cairn_tally_take(&reduce->tally, record);
    reduce->last_ns = record->end_ns > value.start_ns ? record->end_ns : value.start_ns;
    if (record->step > reduce->counts.step)
        reduce->counts.step = record->step;
    value.step = record->step ? record->step : reduce->counts.step;
    if (value.step == 0) { /* before the first update, or in a job that names no steps */
        reduce->has_taken = true;
        return CAIRN_OK;
    }
    value.op = (uint8_t)record->op;
    value.comm = comm;
    lane = comm * 16 + value.op;
    if (value.op >= CAIRN_SEND) {
        value.comm = CAIRN_COMM_NONE;
        value.peer = pair_of(reduce, comm, record->peer);
        if (value.peer == CAIRN_REDUCE_PAIRS_MAX) {
            leave_out(reduce, 1);
            return CAIRN_OK;
        }
        lane = REDUCE_COLLECTIVE_LANES + 2 * value.peer + (value.op == CAIRN_RECV);
    }
    if (!reduce->lanes[lane].is_used)
        reduce->used_lanes[reduce->used_count++] = (uint16_t)lane;
    reduce->lanes[lane].is_used = true;
    return take_in(reduce, &value, &reduce->lanes[lane], record);
}

void
cairn_reduce_lose(struct cairn_reduce *reduce, uint64_t count)
{
    leave_out(reduce, count);
    cairn_tally_lose(&reduce->tally, count);
}

void
cairn_reduce_begin_late(struct cairn_reduce *reduce)
{
    reduce->tally.is_late = true;
}

struct cairn_reduce_counts
cairn_reduce_count(const struct cairn_reduce *reduce)
{
    return reduce->counts;
}
