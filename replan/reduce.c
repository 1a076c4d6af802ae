/* replan/reduce.c - one rank's timing records become reports. */
#include "replan/reduce.h"

#include "replan/tally.h"
#include "replan/topology.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLLECTIVE_LANES = CAIRN_REDUCE_COMMS_MAX * 16, LANES = COLLECTIVE_LANES + 2 * CAIRN_REDUCE_PAIRS_MAX,
       OUTSTANDING_MAX = 64, /* with more of a lane under way its ends are not being looked at */
       WORK_STEPS = 4 };
_Static_assert(LANES <= UINT16_MAX, "a lane's number is short");
static const uint64_t quiet_ns = 2000000000;
#define RANK_UNKNOWN UINT32_MAX /* of a source that has not learned it */

struct comm {
    uint64_t hash;
    uint32_t ranks;
    uint32_t place;
    bool shows_ends; /* of some operation */
};

struct pair {
    uint32_t comm;
    uint32_t peer;
    bool is_place;
};

/* What a rank has to compute in a step. */
struct work {
    uint32_t step;
    double amount;
};

/* What is known of a lane of operations. */
struct lane {
    uint32_t outstanding;            /* entered since the last end */
    uint32_t step_begun, step_ended; /* in the step under way */
    uint32_t next_begun;             /* in the one after it, of which nothing was taken in yet */
    bool is_used, shows_ends, on_device;
};

struct cairn_reduce {
    struct cairn_reduce_options options;
    struct cairn_reduce_counts counts;
    struct cairn_intake intake;
    struct comm comms[CAIRN_REDUCE_COMMS_MAX];
    uint32_t comm_count;
    struct pair pairs[CAIRN_REDUCE_PAIRS_MAX];
    uint32_t pair_count;
    bool pairs_show_ends; /* some do */
    struct lane lanes[LANES];
    uint16_t used_lanes[LANES]; /* [used_count] those that a record has named */
    uint32_t used_count;
    bool lossy;        /* the step under way has lost records */
    bool before_whole; /* the step before it had not */
    uint64_t last_ns;  /* when something was last done */
    enum cairn_presence said; /* in the last standing, 0: none was worth it */
    bool has_said, has_taken; /* a report was made, a record taken, since it was last looked at what the rank does */
    uint64_t said_ns;         /* when that was seen of a report */
    uint64_t gone_ns;
    struct work work[WORK_STEPS]; /* by step modulo the size: threads may speak of several in turn */
    bool has_work;       /* it was said at all */
    struct cairn_tally tally;
    bool said_counts; /* nothing was taken since */
    struct cairn_report report; /* room to make one */
};

cairn_err
cairn_reduce_create(const struct cairn_reduce_options *options, struct cairn_reduce **out)
{
    struct cairn_reduce *reduce = calloc(1, sizeof *reduce);

    if (!reduce)
        return CAIRN_NOMEM;
    reduce->options = *options;
    *out = reduce;
    return CAIRN_OK;
}

void
cairn_reduce_destroy(struct cairn_reduce *reduce)
{
    if (!reduce)
        return;
    cairn_intake_fini(&reduce->intake);
    free(reduce);
}

/* ---- reports ---- */

static struct cairn_report *
begin_report(struct cairn_reduce *reduce, enum cairn_report_kind kind)
{
    struct cairn_report *report = &reduce->report;

    reduce->has_said = true;
    report->kind = kind;
    report->rank = reduce->options.rank;
    report->world = reduce->options.world;
    report->attachment = reduce->options.attachment;
    report->step = reduce->counts.step;
    report->end_ns = reduce->intake.end_ns;
    return report;
}

static void
emit_member(struct cairn_reduce *reduce, const struct comm *comm)
{
    struct cairn_report *report = begin_report(reduce, CAIRN_REPORT_MEMBER);

    if (comm->ranks == 0 || comm->ranks > reduce->options.world)
        return; /* nobody can tell when all of it were seen */
    report->comm = comm->hash;
    report->comm_ranks = comm->ranks;
    report->place = comm->place < comm->ranks ? comm->place : CAIRN_PLACE_NONE;
    reduce->options.emit(reduce->options.context, report);
}

/* The lane of a sample or an open operation, by the numbers of the intake. */
static struct cairn_report_lane
lane_named(const struct cairn_reduce *reduce, uint32_t comm, uint8_t op, uint32_t peer)
{
    const struct pair *pair;

    if (op < CAIRN_SEND)
        return (struct cairn_report_lane){.comm = reduce->comms[comm].hash, .peer = CAIRN_PEER_NONE, .op = op};
    pair = &reduce->pairs[peer];
    return (struct cairn_report_lane){
        .comm = reduce->comms[pair->comm].hash, .peer = pair->peer, .op = op, .is_place = pair->is_place};
}

static struct cairn_report_lane
lane_of_sample(const struct cairn_reduce *reduce, uint32_t lane)
{
    if (lane & CAIRN_LANE_PAIR)
        return lane_named(reduce, 0, lane & CAIRN_LANE_SEND ? CAIRN_SEND : CAIRN_RECV, lane & CAIRN_LANE_PEER);
    return lane_named(reduce, lane / 16, (uint8_t)(lane % 16), 0);
}

/* Copies the first samples of each lane. */
static void
fill_samples(const struct cairn_reduce *reduce, const struct cairn_rank_step *done, struct cairn_report *report)
{
    uint32_t lanes[CAIRN_REPORT_LANES_MAX], counts[CAIRN_REPORT_LANES_MAX] = {0};

    report->lane_count = report->sample_count = 0;
    for (uint32_t i = 0; i < done->sample_count; i++) {
        const struct cairn_sample *sample = &done->samples[i];
        uint32_t at = 0;

        while (at < report->lane_count && lanes[at] != sample->lane)
            at++;
        if (at == CAIRN_REPORT_LANES_MAX)
            continue;
        if (at == report->lane_count) {
            lanes[at] = sample->lane;
            report->lanes[report->lane_count++] = lane_of_sample(reduce, sample->lane);
        }
        if (counts[at]++ >= CAIRN_REPORT_LANE_SAMPLES_MAX)
            continue;
        report->samples[report->sample_count++] = (struct cairn_report_sample){
            .lane = at, .seq = sample->seq, .duration_ns = sample->duration_ns, .bytes = sample->bytes};
    }
}

static double
work_in(const struct cairn_reduce *reduce, uint32_t step)
{
    const struct work *work = &reduce->work[step % WORK_STEPS];

    return work->step == step ? work->amount : 0;
}

static void
emit_step(struct cairn_reduce *reduce, const struct cairn_rank_step *done, bool known, uint64_t end_ns)
{
    struct cairn_report *report = begin_report(reduce, CAIRN_REPORT_STEP);
    double work = work_in(reduce, done->step);

    known = known && (work > 0 || !reduce->has_work); /* computation for nobody knows how much is no measure */
    report->step = done->step;
    report->end_ns = end_ns;
    for (int i = 0; i < CAIRN_GAPS; i++)
        report->compute_ns[i] = known ? done->compute_ns[i] : (double)NAN;
    report->span_ns = done->span_ns;
    report->work = work;
    report->sends_aside = done->sends_aside;
    fill_samples(reduce, done, report);
    reduce->options.emit(reduce->options.context, report);
}

void
cairn_reduce_announce(struct cairn_reduce *reduce)
{
    reduce->said = 0;
    reduce->said_counts = false;
    for (uint32_t i = 0; i < reduce->comm_count; i++)
        emit_member(reduce, &reduce->comms[i]);
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
        reduce->comms[reduce->comm_count++] = (struct comm){.hash = record->comm, .ranks = ranks, .place = CAIRN_PLACE_NONE};
        if (record->op != CAIRN_TIMING_MEMBER)
            emit_member(reduce, &reduce->comms[at]);
    } else if (reduce->comms[at].ranks == 0 && ranks > 0) {
        reduce->comms[at].ranks = ranks;
        emit_member(reduce, &reduce->comms[at]);
    }
    return at;
}

/* The number of a peer, CAIRN_REDUCE_PAIRS_MAX where there is no room for another. */
static uint32_t
pair_of(struct cairn_reduce *reduce, uint32_t comm, uint32_t peer)
{
    bool is_place = reduce->comms[comm].place != CAIRN_PLACE_NONE;
    uint32_t at = 0;

    while (at < reduce->pair_count && (reduce->pairs[at].comm != comm || reduce->pairs[at].peer != peer ||
                                       reduce->pairs[at].is_place != is_place))
        at++;
    if (at == reduce->pair_count && at < CAIRN_REDUCE_PAIRS_MAX)
        reduce->pairs[reduce->pair_count++] = (struct pair){comm, peer, is_place};
    return at;
}

/* ---- records ---- */

/* An operation is not taken in: the step under way says nothing of computation. */
static void
leave_out(struct cairn_reduce *reduce, uint64_t count)
{
    reduce->counts.lost += count;
    reduce->lossy = true;
}

/* False where a record cannot be one of this rank's. */
static bool
is_possible(const struct cairn_reduce *reduce, const struct cairn_timing_record *record, uint64_t now_ns)
{
    if (record->rank != reduce->options.rank && record->rank != RANK_UNKNOWN)
        return false;
    if (record->op == CAIRN_TIMING_WORK)
        return record->bytes > 0 && record->step < UINT32_MAX - 1;
    if (record->comm == 0)
        return false;
    if (record->op == CAIRN_TIMING_MEMBER)
        return record->peer < CAIRN_COMM_RANKS_MAX;
    if (record->op == 0 || record->op >= CAIRN_OPS || record->step >= UINT32_MAX - 1)
        return false;
    if (record->op >= CAIRN_SEND && record->peer >= reduce->options.world)
        return false;
    return record->enter_ns > 0 && record->enter_ns <= now_ns && record->start_ns <= now_ns && record->end_ns <= now_ns &&
           (record->end_ns == 0 || record->end_ns >= record->enter_ns) &&
           (record->end_ns == 0 || record->start_ns == 0 || record->end_ns >= record->start_ns);
}

/*
 * Whether the rank may have waited in a lane of which nobody sees the ends: some of its communicator do end, or it is a transfer, and
 * of no transfer an end is seen. (Otherwise it is what the host sees of a device, whose ends another source sees.)
 */
static bool
hides_waiting(const struct cairn_reduce *reduce, uint32_t number)
{
    return number < COLLECTIVE_LANES ? reduce->comms[number / 16].shows_ends : !reduce->pairs_show_ends;
}

/* Whether the step under way, which is over now, has an end for each operation that the rank may have waited in. */
static bool
close_step(struct cairn_reduce *reduce)
{
    bool whole = !reduce->lossy;

    for (uint32_t i = 0; i < reduce->used_count; i++) {
        struct lane *lane = &reduce->lanes[reduce->used_lanes[i]];

        if (lane->shows_ends || hides_waiting(reduce, reduce->used_lanes[i]))
            whole &= lane->step_begun <= lane->step_ended;
        lane->step_begun = lane->next_begun;
        lane->step_ended = lane->next_begun = 0;
    }
    reduce->lossy = false;
    return whole;
}

/* True where a record is to be taken in: its operation has ended, or is open and its end will be seen. */
static bool
is_telling(const struct lane *lane, const struct cairn_timing_record *record)
{
    return record->end_ns > 0 || record->start_ns > 0 ||
           (lane->shows_ends && !lane->on_device && lane->outstanding < OUTSTANDING_MAX);
}

/* `next`: it is of the step after the one under way, which stays so. */
static void
count_to_lane(struct lane *lane, const struct cairn_timing_record *record, bool next)
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

/* Operations that are open because their end was lost: one of the same lane that began later has ended, or the job has gone on. */
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
take_in(struct cairn_reduce *reduce, const struct cairn_record *record, struct lane *lane,
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
        emit_step(reduce, done, whole && reduce->before_whole, end_ns);
        free(done);
    }
    if (next)
        reduce->before_whole = whole;
    forget_passed(intake, record);
    return err;
}

static void
note_work(struct cairn_reduce *reduce, const struct cairn_timing_record *record)
{
    uint32_t step = record->step ? record->step : reduce->counts.step;
    struct work *work = &reduce->work[step % WORK_STEPS];

    if (work->step != step)
        *work = (struct work){.step = step};
    work->amount += (double)record->bytes;
    reduce->has_work = true;
}

cairn_err
cairn_reduce_take(struct cairn_reduce *reduce, const struct cairn_timing_record *record, uint64_t now_ns)
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
    if (record->op == CAIRN_TIMING_WORK) {
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
            emit_member(reduce, &reduce->comms[comm]);
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
        lane = COLLECTIVE_LANES + 2 * value.peer + (value.op == CAIRN_RECV);
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

/* ---- standings ---- */

/* Before the standing that says that the rank is quiet, so that it is known what its counts are when that is. */
static void
emit_counts(struct cairn_reduce *reduce)
{
    struct cairn_report *report = begin_report(reduce, CAIRN_REPORT_COUNTS);

    cairn_tally_fill(&reduce->tally, report);
    reduce->said_counts = true;
    reduce->options.emit(reduce->options.context, report);
}

/* True where something is counted: what ranks enter of communicators in which they have a place. */
static bool
knows_a_place(const struct cairn_reduce *reduce)
{
    for (uint32_t i = 0; i < reduce->comm_count; i++)
        if (reduce->comms[i].place != CAIRN_PLACE_NONE)
            return true;
    return false;
}

void
cairn_reduce_stand(struct cairn_reduce *reduce, enum cairn_presence presence, uint64_t now_ns)
{
    bool quiet = reduce->last_ns > 0 && now_ns > reduce->last_ns + quiet_ns, busy;
    struct cairn_report *report;

    if (reduce->has_said) {
        reduce->said_ns = now_ns;
        reduce->has_said = reduce->has_taken = false;
    }
    busy = (reduce->has_taken || (reduce->tally.is_late && reduce->last_ns == 0)) && now_ns > reduce->said_ns + quiet_ns;
    if (presence == CAIRN_PRESENCE_GONE ? reduce->said == CAIRN_PRESENCE_GONE
                                        : presence == CAIRN_PRESENCE_RUNS && !quiet && !busy && reduce->said == 0)
        return;
    if (presence != CAIRN_PRESENCE_GONE)
        reduce->gone_ns = 0;
    else if (reduce->gone_ns == 0)
        reduce->gone_ns = now_ns;
    if ((quiet || presence != CAIRN_PRESENCE_RUNS) && !reduce->said_counts && knows_a_place(reduce))
        emit_counts(reduce);
    report = begin_report(reduce, CAIRN_REPORT_STANDING);
    report->quiet_ns = quiet ? now_ns - reduce->last_ns : 0;
    report->entered = reduce->tally.entered;
    report->presence = presence;
    report->life_ns = presence == CAIRN_PRESENCE_GONE ? reduce->gone_ns : now_ns;
    report->open_count = presence == CAIRN_PRESENCE_GONE ? 0 : reduce->intake.open_count;
    for (uint32_t i = 0; i < report->open_count; i++) {
        const struct cairn_open *open = &reduce->intake.open[i];

        report->open[i] = (struct cairn_report_open){
            .lane = lane_named(reduce, open->comm, open->op, open->peer), .seq = open->seq, .start_ns = open->start_ns};
    }
    reduce->said = presence == CAIRN_PRESENCE_RUNS && !quiet ? 0 : presence;
    reduce->options.emit(reduce->options.context, report);
}

struct cairn_reduce_counts
cairn_reduce_count(const struct cairn_reduce *reduce)
{
    return reduce->counts;
}
