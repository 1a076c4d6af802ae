/*
 * agent/service/timing_rings.c - rings of timing records that trainers handed over: mapped, read,
 * released; see timing_rings.h.
 *
 * A ring is read only from its mapping; its file cannot shrink. When a process has ended, its rings
 * are read to their ends, across the holes that a killed writer may have left.
 */
#include "agent/service/timing_rings.h"

#include "agent/process/agent_state.h"
#include "agent/process/session.h"
#include "agent/process/step.h"
#include "agent/service/timing.h"
#include "agent/service/timing_process.h"
#include "agent/service/timing_state.h"
#include "agent/service/watch.h"
#include "base/log.h"
#include "replan/trace/topology.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BATCH = 128 };
static const uint64_t look_every_ns = 500 * CAIRN_NS_PER_MS;
static const uint64_t remember_gone_ns = 60 * CAIRN_NS_PER_S;
/* While a rank is suspected, writers are asked to record all operations for so long. */
static const uint64_t wish_ns = 10 * CAIRN_NS_PER_S;

/* ---- ranks ---- */

static void
emit(void *context, const struct cairn_report *report)
{
    struct cairn_agent *agent = context;
    struct timing_state *timing = agent->timing;
    struct cairn_writer writer;

    cairn_writer_init(&writer, timing->packed, sizeof timing->packed);
    cairn_report_pack(report, &writer);
    if (cairn_writer_done(&writer) == CAIRN_OK)
        cairn_watch_report(timing->watch, timing->packed, writer.used_bytes);
}

static void
ring_release(struct timing_state *timing, struct timing_ring *ring)
{
    munmap(ring->memory, ring->memory_bytes);
    memset(ring, 0, sizeof *ring);
    timing->ring_count--;
}

static void
rank_release(struct timing_state *timing, struct timing_rank *rank)
{
    struct cairn_reduce_counts counts = cairn_reduce_count(rank->reduce);
    uint32_t index = (uint32_t)(rank - timing->ranks);

    for (uint32_t i = 0; i < TIMING_RINGS_MAX; i++)
        if (timing->rings[i].memory && timing->rings[i].rank == index)
            ring_release(timing, &timing->rings[i]);
    timing->records_before += counts.records;
    timing->lost_before += counts.lost;
    timing->refused_before += counts.refused;
    cairn_reduce_destroy(rank->reduce);
    memset(rank, 0, sizeof *rank);
}

static bool
same_process(const struct timing_rank *rank, const struct timing_process *process, uint64_t serial)
{
    if (process->pid == 0 || rank->process.pid == 0)
        return rank->serial == serial;
    return rank->process.pid == process->pid && rank->process.start_ticks == process->start_ticks;
}

/* The entry of a session's process, made if necessary; an older process of the same rank is
 * released. NULL: no room. */
static struct timing_rank *
rank_of(struct cairn_agent *agent, const struct session *session)
{
    struct timing_state *timing = agent->timing;
    struct cairn_reduce_options options = {.rank = session->hello.rank,
                                           .world = session->hello.world,
                                           .recording_bytes = agent->config.trace_bytes,
                                           .emit = emit,
                                           .context = agent};
    struct timing_process process = {0, 0};
    struct timing_rank *rank = NULL;
    struct ucred peer;
    socklen_t peer_len = sizeof peer;

    if (getsockopt(session->fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_len) == 0)
        (void)timing_process_find(peer.pid, &process); /* else its session alone tells */
    for (uint32_t i = 0; i < TIMING_RANKS_MAX; i++) {
        if (!timing->ranks[i].used || timing->ranks[i].rank != session->hello.rank)
            continue;
        if (same_process(&timing->ranks[i], &process, session->serial)) {
            timing->ranks[i].serial = session->serial;
            timing->ranks[i].is_cut = false;
            return &timing->ranks[i];
        }
        rank_release(timing, &timing->ranks[i]);
    }
    for (uint32_t i = 0; i < TIMING_RANKS_MAX && !rank; i++)
        if (!timing->ranks[i].used)
            rank = &timing->ranks[i];
    /* The same as long as the process lives: so an agent that starts again takes no trainer for a
     * new one. */
    options.attachment = process.pid ? process.start_ticks << 22 ^ (uint64_t)process.pid
                                     : cairn_clock_wall_ns(&agent->clock);
    if (!rank || cairn_reduce_create(&options, &rank->reduce) != CAIRN_OK)
        return NULL;
    rank->used = true;
    rank->rank = session->hello.rank;
    rank->serial = session->serial;
    rank->process = process;
    rank->presence = CAIRN_PRESENCE_RUNS;
    return rank;
}

/* ---- taking a ring ---- */

static struct timing_ring *
find_ring(struct timing_state *timing, const struct stat *status)
{
    for (uint32_t i = 0; i < TIMING_RINGS_MAX; i++)
        if (timing->rings[i].memory && timing->rings[i].device == status->st_dev &&
            timing->rings[i].inode == status->st_ino)
            return &timing->rings[i];
    return NULL;
}

static uint32_t
count_rings(const struct timing_state *timing, const struct timing_rank *rank)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < TIMING_RINGS_MAX; i++)
        count +=
            timing->rings[i].memory && timing->rings[i].rank == (uint32_t)(rank - timing->ranks);
    return count;
}

/* Maps a ring and opens it for reading. On failure *why is the reason. */
static cairn_err
map_ring(int fd, struct timing_ring *out, const char **why)
{
    uint64_t bytes;
    cairn_err err = cairn_session_fd_check(fd, cairn_ring_bytes(CAIRN_RING_RECORDS_MIN), &bytes);

    *why = "it is not a memfd sealed against shrinking, or too small for a ring";
    if (err)
        return err;
    *why = "it is larger than a ring may be";
    if (bytes > 2 * cairn_ring_bytes(TIMING_RING_RECORDS_MAX))
        return CAIRN_INVAL;
    *why = "it cannot be mapped";
    out->memory_bytes = (size_t)bytes;
    out->memory = mmap(NULL, out->memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (out->memory == MAP_FAILED) {
        out->memory = NULL;
        return CAIRN_NOMEM;
    }
    *why = "there is no ring of timing records in it, or one of another version";
    err = cairn_ring_open(out->memory, out->memory_bytes, &out->ring);
    if (err) {
        munmap(out->memory, out->memory_bytes);
        out->memory = NULL;
    }
    return err;
}

/* Takes the descriptor over in every case. */
static void
take_ring(struct cairn_agent *agent, const struct session *session, int ring_fd)
{
    struct timing_state *timing = agent->timing;
    struct timing_ring ring = {0}, *slot = NULL;
    const char *why = "too many rings or ranks are being read, or memory ran out";
    struct timing_rank *rank = NULL;
    struct stat status;

    if (fstat(ring_fd, &status) != 0) {
        close(ring_fd);
        return;
    }
    if (session->hello.world > CAIRN_TOPOLOGY_WORLD_MAX)
        why = "its job has more ranks than a report can say";
    else
        rank = rank_of(agent, session);
    slot = find_ring(timing, &status);
    if (rank && slot) { /* its trainer has come back, or it was inherited by a child with a session
                         * of its own */
        close(ring_fd);
        return;
    }
    if (rank && count_rings(timing, rank) >= CAIRN_SESSION_RINGS_MAX)
        why = "its process has handed over as many as are read of one";
    else
        for (uint32_t i = 0; i < TIMING_RINGS_MAX && !slot; i++)
            if (!timing->rings[i].memory)
                slot = &timing->rings[i];
    if (!rank || !slot || map_ring(ring_fd, &ring, &why) != CAIRN_OK) {
        CAIRN_LOG_AT(WARN, "timing: a ring of rank=%u is not read: %s", session->hello.rank, why);
        close(ring_fd);
        return;
    }
    close(ring_fd);
    ring.device = status.st_dev;
    ring.inode = status.st_ino;
    ring.rank = (uint32_t)(rank - timing->ranks);
    *slot = ring;
    if (!cairn_ring_is_unread(&ring.ring)) /* this agent, or its trainer's session, is not the
                                            * first */
        cairn_reduce_begin_late(rank->reduce);
    timing->ring_count++;
    CAIRN_LOG_AT(INFO, "timing: reads rank=%u records=%" PRIu64, rank->rank, ring.ring.mask + 1);
}

bool
timing_frame(struct cairn_agent *agent, struct session *session, struct cairn_session_frame *frame)
{
    char text[CAIRN_SESSION_TEXT_BYTES];
    struct cairn_session_timing timing;
    cairn_err err;

    if (!session->trainer || cairn_session_take_timing(frame, &timing) != CAIRN_OK)
        return false;
    if (!session->stale) { /* another trainer has its rank now */
        err = session_claim_rank(agent, session, text, sizeof text);
        if (err) {
            session_refuse(session, CAIRN_SESSION_RINGS_REQUEST, err, text);
            return true;
        }
        take_ring(agent, session, frame->fds[0]);
        frame->fds[0] = -1;
    }
    return true;
}

/* ---- reading ---- */

/* Takes what waits in a ring, at most TIMING_READ_MAX records; returns how many that was. */
static uint32_t
read_ring(struct cairn_agent *agent, struct timing_ring *ring)
{
    struct cairn_timing_record records[BATCH];
    struct cairn_reduce *reduce = agent->timing->ranks[ring->rank].reduce;
    uint64_t dropped = cairn_ring_dropped(&ring->ring), older = 0;
    uint32_t total = 0, count;

    if (dropped > ring->dropped) { /* else the count goes back: no ring does that */
        cairn_reduce_lose(reduce, dropped - ring->dropped);
        older = cairn_ring_waiting(&ring->ring);
    }
    ring->dropped = dropped;
    do {
        uint64_t read_ns;

        count = cairn_ring_read(&ring->ring, records, BATCH);
        read_ns = agent_now_ns(agent); /* afterwards: no record is from later */
        for (uint32_t i = 0; i < count; i++)
            if (cairn_reduce_take(reduce, &records[i], read_ns) != CAIRN_OK)
                cairn_reduce_lose(reduce, 1);
        total += count;
    } while (count == BATCH && (total < TIMING_READ_MAX || total < older));
    if (older > 0)
        cairn_reduce_lose(reduce, 0); /* what has waited in the full ring is from before the loss */
    return total;
}

/* Reads a ring without writers, across holes. Reads one round at most, since the head may be
 * wrong. */
static void
read_to_the_end(struct cairn_agent *agent, struct timing_ring *ring)
{
    uint64_t taken = 0;

    while (taken <= ring->ring.mask) {
        uint32_t count = read_ring(agent, ring);

        if (count == 0 && !cairn_ring_skip(&ring->ring))
            return;
        taken += count ? count : 1;
    }
}

static bool
has_session(const struct cairn_agent *agent, uint64_t serial)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++)
        if (agent->sessions[i].used && agent->sessions[i].serial == serial)
            return true;
    return false;
}

/* A session is cut only if the trainer's end closed it without LEAVE: an end by this agent says
 * nothing about the trainer. */
void
timing_session_ended(struct cairn_agent *agent, const struct session *session)
{
    struct timing_state *timing = agent->timing;

    for (uint32_t i = 0; timing && i < TIMING_RANKS_MAX; i++)
        if (timing->ranks[i].used && timing->ranks[i].serial == session->serial) {
            timing->ranks[i].is_cut = session->state == SESSION_WELCOME && !session->leaves &&
                                      !session->stale && !agent->stopping;
            if (timing->ranks[i].is_cut && timing->ranks[i].presence == CAIRN_PRESENCE_GONE)
                cairn_reduce_die(timing->ranks[i].reduce);
        }
}

static void
look_at_rank(struct cairn_agent *agent, struct timing_rank *rank, uint64_t now_ns)
{
    struct timing_state *timing = agent->timing;
    uint32_t index = (uint32_t)(rank - timing->ranks);

    if (rank->presence == CAIRN_PRESENCE_GONE) {
        if (now_ns > rank->gone_ns + remember_gone_ns)
            rank_release(timing, rank);
        else
            /* where a new analyst does not know it */
            cairn_reduce_stand(rank->reduce, rank->presence, now_ns);
        return;
    }
    rank->presence = rank->process.pid                  ? timing_process_look(&rank->process)
                     : has_session(agent, rank->serial) ? CAIRN_PRESENCE_RUNS
                                                        : CAIRN_PRESENCE_GONE;
    if (rank->presence == CAIRN_PRESENCE_GONE) {
        rank->gone_ns = now_ns;
        if (rank->is_cut)
            cairn_reduce_die(rank->reduce);
        for (uint32_t i = 0; i < TIMING_RINGS_MAX; i++)
            if (timing->rings[i].memory && timing->rings[i].rank == index) {
                read_to_the_end(agent, &timing->rings[i]);
                ring_release(timing, &timing->rings[i]);
            }
    }
    cairn_reduce_stand(rank->reduce, rank->presence, now_ns);
}

void
timing_rings_read(struct cairn_agent *agent, uint64_t now_ns)
{
    struct timing_state *timing = agent->timing;
    bool wants_all = cairn_ledger_suspects(&timing->ledger);

    for (uint32_t i = 0; i < TIMING_RINGS_MAX; i++)
        if (timing->rings[i].memory)
            (void)read_ring(agent, &timing->rings[i]);
    if (now_ns < timing->looked_ns + look_every_ns)
        return;
    timing->looked_ns = now_ns;
    for (uint32_t i = 0; i < TIMING_RINGS_MAX && wants_all; i++)
        if (timing->rings[i].memory)
            cairn_ring_set_wish(&timing->rings[i].ring, now_ns + wish_ns);
    for (uint32_t i = 0; i < TIMING_RANKS_MAX; i++)
        if (timing->ranks[i].used)
            look_at_rank(agent, &timing->ranks[i], now_ns);
}

void
timing_rings_pack(const struct cairn_agent *agent, uint32_t steps, uint32_t until, uint64_t now_ns,
                  struct cairn_writer *writer)
{
    for (uint32_t i = 0; i < TIMING_RANKS_MAX; i++) {
        const struct timing_rank *rank = &agent->timing->ranks[i];

        if (rank->used)
            cairn_reduce_pack_recording(rank->reduce, steps, until, rank->presence, now_ns, writer);
    }
}

void
timing_rings_announce(struct cairn_agent *agent)
{
    for (uint32_t i = 0; i < TIMING_RANKS_MAX; i++)
        if (agent->timing->ranks[i].used)
            cairn_reduce_announce(agent->timing->ranks[i].reduce);
}

void
timing_rings_close(struct cairn_agent *agent)
{
    for (uint32_t i = 0; i < TIMING_RANKS_MAX; i++)
        if (agent->timing->ranks[i].used)
            rank_release(agent->timing, &agent->timing->ranks[i]);
}
