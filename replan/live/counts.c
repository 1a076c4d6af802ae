/* replan/live/counts.c - who waits for whom, from counts of operations; see counts.h. */
#include "replan/live/counts.h"

#include <stdlib.h>
#include <string.h>

/* What somebody waits in: the others must have entered as many. */
struct live_wait {
    uint32_t comm; /* index */
    uint32_t peer; /* of sends and receives: his place */
    uint64_t needed;
    uint8_t op;
    bool is_running; /* the device was seen to begin it, and not to end */
};

static const uint64_t recent_ns = 8000000000; /* no rank goes on so long behind an operation that
                                               * does not end */

/* ---- what ranks have said ---- */

void
live_progress_destroy(struct live_progress *progress)
{
    if (progress)
        free(progress->counts);
    free(progress);
}

static int
compare_counts(const void *left, const void *right)
{
    const struct cairn_report_count *a = left, *b = right;

    if (a->lane.comm != b->lane.comm)
        return a->lane.comm < b->lane.comm ? -1 : 1;
    if (a->lane.op != b->lane.op)
        return a->lane.op < b->lane.op ? -1 : 1;
    return (a->lane.peer > b->lane.peer) - (a->lane.peer < b->lane.peer);
}

cairn_err
live_take_counts(struct live_rank *rank, const struct cairn_report *report)
{
    struct live_progress *progress = rank->progress;

    if (!progress) {
        progress = rank->progress = calloc(1, sizeof *progress);
        if (!progress)
            return CAIRN_NOMEM;
    }
    if (report->count_count > progress->room) {
        struct cairn_report_count *counts =
            realloc(progress->counts, report->count_count * sizeof *counts);

        if (!counts)
            return CAIRN_NOMEM;
        progress->counts = counts;
        progress->room = report->count_count;
    }
    progress->count_count = report->count_count;
    progress->counted = report->entered;
    progress->active_ns = report->active_ns;
    progress->gap_ns = report->gap_ns;
    progress->is_whole = report->counts_whole;
    if (report->count_count > 0) {
        memcpy(progress->counts, report->counts, report->count_count * sizeof *report->counts);
        qsort(progress->counts, progress->count_count, sizeof *progress->counts, compare_counts);
    }
    return CAIRN_OK;
}

void
live_take_quiet(struct live_rank *rank, const struct cairn_report *report)
{
    if (rank->progress) {
        rank->progress->quiet_ns = report->quiet_ns;
        rank->progress->entered = report->entered;
    }
}

/* ---- how a rank stands ---- */

static const struct live_rank *
rank_of(const struct live_look *look, uint32_t rank)
{
    return &look->live->ranks[rank];
}

static bool
is_dead(const struct live_look *look, uint32_t rank)
{
    return rank_of(look, rank)->presence == CAIRN_PRESENCE_GONE ||
           live_is_silent(rank_of(look, rank), look->now_ns);
}

static bool
has_stood(const struct live_look *look, uint32_t rank, double for_ns)
{
    const struct live_progress *progress = rank_of(look, rank)->progress;

    return progress && progress->entered == progress->counted &&
           (double)progress->quiet_ns >= for_ns;
}

static const struct cairn_report_count *
count_in(const struct live_look *look, uint32_t rank, uint64_t comm, uint8_t op, uint32_t peer)
{
    const struct live_progress *progress = rank_of(look, rank)->progress;
    struct cairn_report_count wanted = {.lane = {.comm = comm, .peer = peer, .op = op}};

    return progress && progress->count_count > 0
               ? bsearch(&wanted, progress->counts, progress->count_count, sizeof wanted,
                         compare_counts)
               : NULL;
}

static bool
is_running(const struct cairn_report_count *count)
{
    return count->running_seq > 0 && count->running_age_ns <= recent_ns;
}

/* The number of the operation that a rank waits in, if it is this lane that it waits in; 0. */
static uint64_t
waits_for(const struct live_look *look, uint32_t rank, const struct cairn_report_count *count)
{
    if (!count || !count->is_known || is_dead(look, rank) ||
        rank_of(look, rank)->presence != CAIRN_PRESENCE_RUNS ||
        !has_stood(look, rank, look->limit_ns) || count->age_ns > recent_ns)
        return 0;
    if (look->sights[rank].marks & LIVE_RUNNING)
        return is_running(count) ? count->running_seq : 0;
    return count->count;
}

/* How many operations of a lane a rank has entered. False: nobody knows, or it is about to enter
 * more. */
static bool
has_entered(const struct live_look *look, uint32_t rank, const struct cairn_report_count *count,
            uint64_t *out)
{
    if (!has_stood(look, rank, look->limit_ns / 2) ||
        !(count ? count->is_known : rank_of(look, rank)->progress->is_whole))
        return false;
    *out = count ? count->count : 0;
    return true;
}

/* ---- one communicator ---- */

/* True where a process that is gone has entered all that somebody else has: it may have finished,
 * while the other saves. One that has not said that it leaves has not. */
static bool
may_have_finished(const struct live_look *look, uint32_t rank,
                  const struct cairn_report_count *count, uint64_t needed)
{
    const struct live_rank *gone = rank_of(look, rank);

    return gone->presence == CAIRN_PRESENCE_GONE && !gone->has_died && count && count->is_known &&
           count->count >= needed && gone->progress->entered == gone->progress->counted;
}

/* Of a rank that somebody waits for, in an operation that was seen to begin or in any. True where
 * that is why he waits. */
static bool
look_at_awaited(struct live_look *look, uint32_t rank, const struct live_wait *wait,
                uint64_t *entered)
{
    const struct cairn_report_count *count =
        count_in(look, rank, look->live->comms.items[wait->comm].hash, wait->op, wait->peer);
    struct live_sight *sight = &look->sights[rank];

    *entered = 0;
    if (is_dead(look, rank)) {
        if (!wait->is_running && may_have_finished(look, rank, count, wait->needed)) {
            *entered = count->count;
            return false;
        }
        sight->marks |= LIVE_DEAD;
        return true;
    }
    if (rank_of(look, rank)->presence != CAIRN_PRESENCE_STOPPED) {
        if (!has_entered(look, rank, count, entered)) {
            look->has_unknown = true;
            return true;
        }
        if (*entered >= wait->needed)
            return false;
    }
    sight->marks |= LIVE_BEHIND;
    if (sight->needed == 0) {
        sight->comm = wait->comm;
        sight->op = wait->op;
        sight->count = *entered;
        sight->needed = wait->needed;
    }
    return true;
}

static void
look_at_collective(struct live_look *look, uint32_t index, uint8_t op)
{
    const struct live_comm *comm = &look->live->comms.items[index];
    uint64_t needed = 0, running = 0, least = UINT64_MAX;
    struct live_wait wait;
    bool all_arrived = true;

    for (uint32_t i = 0; i < comm->member_count; i++) {
        uint32_t rank = comm->members[i].rank;
        const struct cairn_report_count *count =
            count_in(look, rank, comm->hash, op, CAIRN_PEER_NONE);
        uint64_t own = waits_for(look, rank, count);

        needed = own > needed ? own : needed;
        if (own > 0 && is_running(count) && count->running_seq > running)
            running = count->running_seq;
    }
    if (running > 0) /* what was entered after it waits for it */
        needed = running;
    wait = (struct live_wait){.comm = index,
                              .op = op,
                              .peer = CAIRN_PEER_NONE,
                              .needed = needed,
                              .is_running = running > 0};
    for (uint32_t i = 0; needed > 0 && i < comm->member_count; i++) {
        uint64_t entered;

        all_arrived &= !look_at_awaited(look, comm->members[i].rank, &wait, &entered);
        least = entered < least ? entered : least;
    }
    for (uint32_t i = 0; needed > 0 && i < comm->member_count; i++) {
        uint32_t rank = comm->members[i].rank;
        uint64_t own = waits_for(look, rank, count_in(look, rank, comm->hash, op, CAIRN_PEER_NONE));

        own = own < needed ? own : needed;
        if (own > least)
            look->sights[rank].marks |= LIVE_WAITS;
    }
    if (running == 0 || !all_arrived)
        return;
    /* for the transfer, which is nobody's fault */
    for (uint32_t i = 0; i < comm->member_count; i++)
        look->sights[comm->members[i].rank].marks |= LIVE_WAITS;
    if (look->link_comm == UINT32_MAX) {
        look->link_comm = index;
        look->link_op = op;
        look->link_seq = running;
    }
}

/* Sends and receives of a member: each of its peers must have entered as many of the opposite. */
static void
look_at_transfers(struct live_look *look, uint32_t index, const struct live_member *member)
{
    const struct live_comm *comm = &look->live->comms.items[index];
    const struct live_progress *progress = rank_of(look, member->rank)->progress;

    for (uint32_t i = 0; progress && i < progress->count_count; i++) {
        const struct cairn_report_count *count = &progress->counts[i];
        struct live_wait wait = {.comm = index, .peer = member->place};
        uint64_t entered;
        uint32_t peer;

        if (count->lane.comm != comm->hash || count->lane.op < CAIRN_SEND || !count->is_known)
            continue;
        wait.op = count->lane.op == CAIRN_SEND ? CAIRN_RECV : CAIRN_SEND;
        wait.needed = waits_for(look, member->rank, count);
        peer = live_comm_rank_at(comm, count->lane.peer);
        if (wait.needed == 0 || peer == UINT32_MAX || peer == member->rank)
            continue;
        if (look_at_awaited(look, peer, &wait, &entered))
            look->sights[member->rank].marks |= LIVE_WAITS;
    }
}

/* Operations that some member has entered: a bit each. */
static uint32_t
ops_of(const struct live_look *look, const struct live_comm *comm)
{
    uint32_t ops = 0;

    for (uint32_t i = 0; i < comm->member_count; i++)
        for (uint8_t op = 1; op < CAIRN_SEND; op++)
            if (!(ops & 1u << op) &&
                count_in(look, comm->members[i].rank, comm->hash, op, CAIRN_PEER_NONE))
                ops |= 1u << op;
    return ops;
}

void
live_look_at_comm(struct live_look *look, uint32_t index)
{
    const struct live_comm *comm = &look->live->comms.items[index];
    uint32_t ops = ops_of(look, comm);

    if (comm->ranks < 2)
        return;
    if (!live_comm_is_complete(comm)) { /* who else is in it may be who is waited for */
        for (uint32_t i = 0; i < comm->member_count; i++)
            for (uint8_t op = 1; op < CAIRN_SEND; op++)
                if (waits_for(
                        look, comm->members[i].rank,
                        count_in(look, comm->members[i].rank, comm->hash, op, CAIRN_PEER_NONE))) {
                    look->sights[comm->members[i].rank].marks |= LIVE_WAITS;
                    look->has_unknown = true;
                }
        return;
    }
    for (uint8_t op = 1; op < CAIRN_SEND; op++)
        if (ops & 1u << op)
            look_at_collective(look, index, op);
    for (uint32_t i = 0; i < comm->member_count; i++)
        look_at_transfers(look, index, &comm->members[i]);
}

/* ---- the job ---- */

double
live_look_stood_ns(const struct live_look *look, uint32_t rank)
{
    if (is_dead(look, rank) || !has_stood(look, rank, look->limit_ns))
        return 0;
    return (double)rank_of(look, rank)->progress->quiet_ns;
}

bool
live_look_for_waiting(struct live_look *look)
{
    bool found = false;

    for (uint32_t rank = 0; rank < look->live->world; rank++) {
        const struct live_progress *progress = rank_of(look, rank)->progress;

        if (live_look_stood_ns(look, rank) <= 0)
            continue;
        found |= progress->count_count > 0;
        for (uint32_t i = 0; i < progress->count_count; i++)
            if (is_running(&progress->counts[i]))
                look->sights[rank].marks |= LIVE_RUNNING;
    }
    return found;
}

/* The lane that a rank has used last, NULL. */
static const struct cairn_report_count *
last_used(const struct live_look *look, uint32_t rank)
{
    const struct live_progress *progress = rank_of(look, rank)->progress;
    const struct cairn_report_count *last = NULL;

    for (uint32_t i = 0; progress && i < progress->count_count; i++)
        if (!last || progress->counts[i].age_ns < last->age_ns)
            last = &progress->counts[i];
    return last;
}

bool
live_look_is_level(const struct live_look *look, const struct live_comm *comm)
{
    const struct cairn_report_count *first = NULL;

    for (uint32_t i = 0; i < comm->member_count; i++) {
        const struct cairn_report_count *last = last_used(look, comm->members[i].rank);

        if (!last || last->lane.comm != comm->hash || last->lane.op >= CAIRN_SEND ||
            !last->is_known)
            return false;
        first = first ? first : last;
        if (last->lane.op != first->lane.op || last->count != first->count)
            return false;
    }
    return live_comm_is_complete(comm) && comm->ranks > 1;
}
