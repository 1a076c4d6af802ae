/* agent/process/session_frame.c - takes the frames that trainers and operators send; see
 * session_frame.h. */
#include "agent/process/session_frame.h"

#include "agent/process/agent_state.h"
#include "agent/process/cutting.h"
#include "agent/process/handlers.h"
#include "agent/process/mail.h"
#include "agent/process/recorder.h"
#include "agent/process/session.h"
#include "agent/process/session_region.h"
#include "agent/process/step.h"
#include "base/log.h"
#include "snapshot/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LAST_READS_MAX = 4096 };

static struct cairn_agent *
session_agent(struct session *session)
{
    return (struct cairn_agent *)(void *)((char *)(session - session->index) -
                                          offsetof(struct cairn_agent, sessions));
}

/* CAIRN_OK, or the error that refuses a HELLO, with the reason in text. */
static cairn_err
check_hello(const struct cairn_agent *agent, const struct cairn_session_hello *hello, char *text,
            size_t text_bytes)
{
    struct cairn_core_view view;

    cairn_core_look(agent->core, &view);
    if (hello->protocol != CAIRN_SESSION_PROTOCOL) {
        snprintf(
            text, text_bytes,
            "libcairn speaks version %u of the session protocol, this agent %u; upgrade the older",
            hello->protocol, (unsigned)CAIRN_SESSION_PROTOCOL);
        return CAIRN_VERSION;
    }
    if (hello->role != CAIRN_ROLE_TRAINER)
        return CAIRN_OK;
    if (strcmp(hello->job, agent->config.job) != 0) {
        snprintf(text, text_bytes, "this agent serves job \"%s\", not \"%s\"", agent->config.job,
                 hello->job);
        return CAIRN_DENIED;
    }
    if (hello->local_ranks == 0 || hello->local_ranks > CAIRN_RANKS_PER_NODE_MAX ||
        hello->rank >= hello->world || hello->local_ranks > hello->world) {
        snprintf(text, text_bytes,
                 "rank %u of %u with %u ranks on this node: impossible; ranks count from 0, and a "
                 "node has 1 to %u of them",
                 hello->rank, hello->world, hello->local_ranks, (unsigned)CAIRN_RANKS_PER_NODE_MAX);
        return CAIRN_INVAL;
    }
    if (!view.met) { /* it may be an epoch behind: a trainer would be evicted as soon as it hears of
                      * that */
        snprintf(text, text_bytes,
                 "this agent has just started and has not met the job's other agents yet");
        return CAIRN_AGAIN;
    }
    if (hello->epoch != 0 && hello->epoch < view.restart_epoch) {
        /* repairs since then make it no younger */
        snprintf(text, text_bytes,
                 "this trainer belongs to epoch %" PRIu64 "; a restore has begun epoch %" PRIu64
                 "; end it",
                 cairn_epoch_number(hello->epoch), cairn_epoch_number(view.restart_epoch));
        return CAIRN_STALE;
    }
    return CAIRN_OK;
}

static bool
has_unread(const struct session *session)
{
    char byte;

    return session->state != SESSION_CLOSING &&
           recv(session->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* Watches the process too: if a trainer forked, the child keeps its socket open. */
static void
pid_ready(void *context, int fd, uint32_t ready)
{
    struct session *session = context;
    /* an ended session does not know it any more */
    struct cairn_agent *agent = session_agent(session);

    (void)fd;
    (void)ready;
    for (uint32_t i = 0;
         i < LAST_READS_MAX && session->used && session->pid_fd >= 0 && has_unread(session); i++)
        session_ready(session, session->fd, CAIRN_LOOP_READ); /* what it said last */
    if (session->used) {
        session->writing = 0;
        session_end(agent, session);
        sessions_reap(agent);
    }
}

static void
watch_process(struct cairn_agent *agent, struct session *session)
{
    struct ucred peer;
    socklen_t peer_len = sizeof peer;

    /* The kernel's number of the process, not the trainer's, which may live in another
     * namespace. */
    if (getsockopt(session->fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_len) != 0 || peer.pid <= 0)
        return;
    session->pid = peer.pid;
    session->pid_fd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
    if (session->pid_fd < 0)
        return; /* an old kernel: the socket alone tells */
    if (cairn_loop_fd_add(agent->loop, session->pid_fd, CAIRN_LOOP_READ, pid_ready, session) !=
        CAIRN_OK) {
        close(session->pid_fd);
        session->pid_fd = -1;
    }
}

static void
take_hello(struct cairn_agent *agent, struct session *session,
           const struct cairn_session_frame *frame)
{
    struct cairn_session_welcome welcome = {.protocol = CAIRN_SESSION_PROTOCOL,
                                            .node = agent->config.node};
    struct cairn_session_hello hello;
    struct cairn_core_view view;
    char text[CAIRN_SESSION_TEXT_BYTES] = "";
    cairn_err err;

    if (session->state != SESSION_NEW || cairn_session_take_hello(frame, &hello) != CAIRN_OK) {
        session->state = SESSION_CLOSING;
        return;
    }
    session->hello = hello;
    err = check_hello(agent, &hello, text, sizeof text);
    if (err) {
        session_refuse(session, 0, err, text);
        return;
    }
    cairn_core_look(agent->core, &view);
    session->trainer = hello.role == CAIRN_ROLE_TRAINER;
    session->state = SESSION_WELCOME;
    welcome.epoch = view.active;
    welcome.flags = CAIRN_WELCOME_COPIES | CAIRN_WELCOME_POISON |
                    cairn_copy_number() << CAIRN_WELCOME_COPY_SHIFT;
    if (view.ready.step)
        welcome.flags |= CAIRN_WELCOME_RESTORABLE;
    if (agent->config.plan_policy >= CAIRN_PLAN_APPROVE)
        welcome.flags |= CAIRN_WELCOME_OFFERS | CAIRN_WELCOME_MOVES;
    if (cairn_session_put_welcome(&session->writer, &welcome) != CAIRN_OK)
        session->state = SESSION_CLOSING;
    if (!session->trainer)
        return;
    agent->attached_total++;
    watch_process(agent, session);
    CAIRN_LOG_AT(INFO, "session: trainer attached rank=%u world=%u pid=%" PRIu64, hello.rank,
                 hello.world, hello.pid);
}

/* Evicts older sessions of the process, whose rank this one takes over. */
static void
show_out_own(struct cairn_agent *agent, const struct session *fresh)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *session = &agent->sessions[i];

        if (session != fresh && session_is_rank(session) && session->pid &&
            session->pid == fresh->pid && session->hello.rank == fresh->hello.rank)
            session_show_out(agent, session);
    }
}

/* Has all other trainers of this node register again, so that their regions are close together. */
static void
show_out_ranks(struct cairn_agent *agent, const struct session *self)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++)
        if (&agent->sessions[i] != self && session_is_rank(&agent->sessions[i]))
            session_show_out(agent, &agent->sessions[i]);
}

static void
take_register(struct cairn_agent *agent, struct session *session,
              const struct cairn_session_frame *frame)
{
    bool again = session->registered, was_packed = agent->regions.is_packed;
    char text[CAIRN_SESSION_TEXT_BYTES] = "";
    cairn_err err;

    if (again) {
        cutting_forget(agent, session);
        session_forget_region(session);
        session_tell_ranks(agent);
    }
    err = cairn_session_take_register(frame, &session->slices);
    if (err) {
        session->state = SESSION_CLOSING;
        return;
    }
    if (session->stale) { /* another process has its rank by now */
        err = CAIRN_STALE;
        snprintf(text, sizeof text, "a restore has begun a new epoch; end this trainer");
    } else {
        show_out_own(agent, session);
        session->stands_still = again; /* its memory is cut at its next step */
        err = session_claim_rank(agent, session, text, sizeof text);
        if (!err)
            err = session_plan_region(agent, session, text, sizeof text);
        if (!err)
            err = cutting_claim(agent, session, text, sizeof text);
    }
    if (err) {
        uint32_t request = session->slices.request;

        cutting_forget(agent, session);
        session_forget_region(session);
        if (agent->regions.is_packed && !was_packed)
            show_out_ranks(agent, session);
        session_refuse(session, request, err, text[0] ? text : cairn_err_text(err));
        return;
    }
    session->registered = true;
    session->is_answered = false;
    session->registered_ns = agent_now_ns(agent);
    session->said_refused = false;
    if (!again)
        session_claim_elsewhere(agent, session);
    session_tell_ranks(agent);
    sessions_answer(agent);
}

static void
take_piece(struct cairn_agent *agent, struct session *session,
           const struct cairn_session_frame *frame)
{
    struct cairn_session_piece piece;
    struct cairn_event event = {.type = CAIRN_EVENT_BLOCKS};

    if (cairn_session_take_piece(frame, &piece) != CAIRN_OK) {
        session->state = SESSION_CLOSING;
        return;
    }
    if (!session_is_rank(session) ||
        cairn_generation_id_compare(session->granted, piece.generation) != 0)
        return; /* given up meanwhile */
    if (piece.first_block > session->region_blocks ||
        piece.count > session->region_blocks - piece.first_block) {
        session->state = SESSION_CLOSING;
        return;
    }
    event.as.blocks =
        (struct cairn_event_blocks){.generation = piece.generation,
                                    .first_block = session->region_block + piece.first_block,
                                    .count = piece.count,
                                    .crcs = piece.crcs};
    agent_step(agent, &event, NULL);
}

/* Why a trainer gives up a snapshot, for the log. */
static const char *
reason_text(uint32_t reason)
{
    switch (reason) {
    case CAIRN_REASON_FENCE:
        return "its next update came before the grant";
    case CAIRN_REASON_TIMEOUT:
        return "the copy took longer than a fence may wait";
    case CAIRN_REASON_DEVICE:
        return "the copy failed";
    case CAIRN_REASON_CLOSING:
        return "it closes, or registers again";
    default:
        return "it was told to, or refuses what was copied";
    }
}

static void
take_begin(struct cairn_agent *agent, struct session *session,
           const struct cairn_session_frame *frame)
{
    struct cairn_event event = {.type = CAIRN_EVENT_BEGIN};
    struct cairn_session_begin begin;
    struct cairn_session_skip skip = {.reason = CAIRN_REASON_NOT_READY};

    if (cairn_session_take_begin(frame, &begin) != CAIRN_OK) {
        session->state = SESSION_CLOSING;
        return;
    }
    session->last_step = begin.last ? begin.step : 0;
    session->stands_still = false;
    session->begun = (struct cairn_begun_step){
        .step = begin.step, .before = session->begun.step, .waiting = true, .last = begin.last};
    if (session_is_rank(session) && agent->regions.registered_ranks == session->hello.local_ranks) {
        event.as.step = (struct cairn_event_step){
            .rank = session->local_rank, .step = begin.step, .last = begin.last};
        recorder_trained(agent, begin.step);
        agent_step(agent, &event, NULL);
        return;
    }
    if (session_is_rank(session) && begin.last)
        return; /* until the other ranks of this node have registered */
    session->begun.waiting = false;
    skip.step = begin.step;
    snprintf(skip.text, sizeof skip.text, "%s",
             session->stale ? "a restore has begun a new epoch; end this trainer"
                            : "not all ranks of this node are registered");
    if (cairn_session_put_skip(&session->writer, &skip) != CAIRN_OK)
        session->state = SESSION_CLOSING;
}

/* Handles the end of a trainer's copying. */
static void
stop_copying(struct cairn_agent *agent, struct session *session, struct cairn_event *event)
{
    session->granted = (struct cairn_generation_id){0};
    session->held_back.step = 0;
    session->writing = 0;
    if (event && session_is_rank(session))
        agent_step(agent, event, NULL);
    session_release_grants(agent);
}

static void
take_done(struct cairn_agent *agent, struct session *session,
          const struct cairn_session_frame *frame)
{
    struct cairn_session_done done;
    struct cairn_event event = {.type = CAIRN_EVENT_CAPTURED};
    bool wanted;

    if (cairn_session_take_done(frame, &done) != CAIRN_OK) {
        session->state = SESSION_CLOSING;
        return;
    }
    wanted = cairn_generation_id_compare(session->granted, done.generation) == 0;
    event.as.captured = (struct cairn_event_captured){done.generation, session->local_rank};
    stop_copying(agent, session, wanted ? &event : NULL); /* else it was given up meanwhile */
}

/* A rank has copied what should not replace a good generation. */
static void
take_poison(struct cairn_agent *agent, struct session *session,
            const struct cairn_session_frame *frame)
{
    struct cairn_session_poison poison;
    struct cairn_session_drop drop;
    struct cairn_event event;
    bool wanted;
    cairn_err err;

    if (cairn_session_take_poison(frame, &poison) != CAIRN_OK) {
        session->state = SESSION_CLOSING;
        return;
    }
    wanted = cairn_generation_id_compare(session->granted, poison.generation) == 0;
    if (!wanted) { /* given up meanwhile */
        stop_copying(agent, session, NULL);
        return;
    }
    err = poison_take(agent, session->hello.rank, &poison);
    if (!err) {
        event = (struct cairn_event){.type = CAIRN_EVENT_CAPTURED,
                                     .as.captured = {poison.generation, session->local_rank}};
    } else {
        event = (struct cairn_event){
            .type = CAIRN_EVENT_CANCEL,
            .as.step = {.rank = session->local_rank, .step = poison.generation.step}};
        drop = (struct cairn_session_drop){
            poison.generation, err == CAIRN_AGAIN ? CAIRN_REASON_POISONED : CAIRN_REASON_STOP};
        if (cairn_session_put_drop(&session->writer, &drop) != CAIRN_OK)
            session->state = SESSION_CLOSING;
    }
    stop_copying(agent, session, &event);
}

static void
take_cancel(struct cairn_agent *agent, struct session *session,
            const struct cairn_session_frame *frame)
{
    struct cairn_session_cancel cancel;
    struct cairn_event event = {.type = CAIRN_EVENT_CANCEL};

    if (cairn_session_take_cancel(frame, &cancel) != CAIRN_OK) {
        session->state = SESSION_CLOSING;
        return;
    }
    CAIRN_LOG_AT(DEBUG, "session: rank=%u gives up step=%" PRIu64 " why=%s", session->hello.rank,
                 cancel.step, reason_text(cancel.reason));
    event.as.step = (struct cairn_event_step){.rank = session->local_rank, .step = cancel.step};
    if (session->begun.step == cancel.step)
        session->begun.waiting = false;
    stop_copying(agent, session, &event);
}

static void
take_coverage(struct session *session, const struct cairn_session_frame *frame)
{
    struct cairn_session_coverage *coverage = malloc(sizeof *coverage);
    bool refused_before = session->coverage && session->coverage->refusal[0];

    if (!session->trainer || !coverage ||
        cairn_session_take_coverage(frame, coverage) != CAIRN_OK) {
        free(coverage);
        session->state = SESSION_CLOSING;
        return;
    }
    if (coverage->refusal[0] && !refused_before)
        CAIRN_LOG_AT(WARN, "session: rank=%u takes no snapshots: %s", session->hello.rank,
                     coverage->refusal);
    free(session->coverage);
    session->coverage = coverage;
}

static void
take_frame(struct cairn_agent *agent, struct session *session, struct cairn_session_frame *frame)
{
    if (frame->type != CAIRN_SESSION_HELLO && session->state != SESSION_WELCOME) {
        session->state = SESSION_CLOSING;
        return;
    }
    switch (frame->type) {
    case CAIRN_SESSION_HELLO:
        take_hello(agent, session, frame);
        break;
    case CAIRN_SESSION_REGISTER:
        take_register(agent, session, frame);
        break;
    case CAIRN_SESSION_PIECE:
        take_piece(agent, session, frame);
        break;
    case CAIRN_SESSION_BEGIN:
        take_begin(agent, session, frame);
        break;
    case CAIRN_SESSION_DONE:
        take_done(agent, session, frame);
        break;
    case CAIRN_SESSION_CANCEL:
        take_cancel(agent, session, frame);
        break;
    case CAIRN_SESSION_POISON:
        take_poison(agent, session, frame);
        break;
    case CAIRN_SESSION_UNWATCHED:
        if (cairn_session_take_unwatched(frame, &session->unwatched) != CAIRN_OK)
            session->state = SESSION_CLOSING;
        break;
    case CAIRN_SESSION_RESTORE:
    case CAIRN_SESSION_FETCH:
    case CAIRN_SESSION_RESTORED:
    case CAIRN_SESSION_TIMING:
    case CAIRN_SESSION_OPERATOR:
    case CAIRN_SESSION_SHARES:
    case CAIRN_SESSION_MOVED:
        if (!agent->handlers->frame(agent, session, frame))
            session->state = SESSION_CLOSING;
        break;
    case CAIRN_SESSION_STATS:
        if (cairn_session_take_stats(frame, &session->stats) != CAIRN_OK)
            session->state = SESSION_CLOSING;
        break;
    case CAIRN_SESSION_COVERAGE:
        take_coverage(session, frame);
        break;
    case CAIRN_SESSION_LEAVE:
        if (session->trainer && cairn_session_take_leave(frame) == CAIRN_OK)
            session->leaves = true;
        else
            session->state = SESSION_CLOSING;
        break;
    default:
        session->state = SESSION_CLOSING;
        break;
    }
}

/* Reads and drops an evicted trainer's frames, until its connection ends. */
static void
drain(struct cairn_agent *agent, struct session *session)
{
    uint8_t dropped[4096];
    ssize_t got;

    do
        got = read(session->fd, dropped, sizeof dropped);
    while (got > 0);
    if (got == 0 || (errno != EAGAIN && errno != EINTR))
        session_end(agent, session);
}

void
session_ready(void *context, int fd, uint32_t ready)
{
    struct session *session = context;
    struct cairn_agent *agent = session_agent(session);
    cairn_err received = CAIRN_OK, err = CAIRN_OK;

    (void)fd;
    if (session->state == SESSION_DRAINING) {
        drain(agent, session);
        return;
    }
    if (session->state == SESSION_CLOSING && (ready & CAIRN_LOOP_HANGUP))
        session->ending = true; /* nobody is there to read what is still queued */
    if (session->state != SESSION_CLOSING && (ready & (CAIRN_LOOP_READ | CAIRN_LOOP_HANGUP)))
        received = cairn_session_reader_receive(&session->reader, session->fd);
    while (!err && session->state != SESSION_CLOSING && !session->ending) {
        struct cairn_session_frame frame;

        err = cairn_session_reader_next(&session->reader, &frame);
        if (err)
            break;
        take_frame(agent, session, &frame);
        cairn_session_frame_fini(&frame);
    }
    if (err && err != CAIRN_AGAIN) {
        CAIRN_LOG_AT(WARN, "session: closed rank=%u: %s", session->hello.rank, cairn_err_text(err));
        session->ending = true;
    } else if (received == CAIRN_PEER) {
        session->writing = 0; /* a trainer that closes has stopped copying, or has died */
        session->ending = true;
    } else if (received != CAIRN_OK && received != CAIRN_AGAIN) {
        session->ending = true;
    } else {
        session_flush(agent, session);
    }
    sessions_reap(agent);
    mail_deliver_self(agent);
}
