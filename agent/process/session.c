/* agent/process/session.c - frames to trainers, and the ends of sessions; see session.h. */
#include "agent/process/session.h"

#include "agent/process/agent_state.h"
#include "agent/process/cutting.h"
#include "agent/process/handlers.h"
#include "agent/process/memory.h"
#include "agent/process/recorder.h"
#include "agent/process/session_region.h"
#include "agent/process/step.h"
#include "base/crc.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A trainer that does not stop copying holds back the next grant of its slot for so long. */
static const uint64_t held_back_max_ns = 10 * CAIRN_NS_PER_S;

/* REGISTERED waits so long for the memory: a trainer that restores must not give up meanwhile. */
static const uint64_t answer_max_ns = 2 * CAIRN_NS_PER_S;

/* Releases everything except the socket. */
static void
strip(struct cairn_agent *agent, struct session *session)
{
    bool was_rank = session_is_rank(session);

    agent->handlers->session_leaves(agent, session);
    cutting_forget(agent, session);
    session_forget_region(session);
    session->granted = (struct cairn_generation_id){0};
    session->held_back.step = 0;
    session->holds_rank = false;
    if (was_rank && !agent->stopping)
        session_tell_ranks(agent);
}

void
session_end(struct cairn_agent *agent, struct session *session)
{
    bool trainer = session->trainer;

    if (!session->used)
        return;
    session->ending = false; /* what strip sets off may reap */
    if (trainer) {
        recorder_trainer_ended(agent, session);
        agent->handlers->trainer_ended(agent, session);
    }
    strip(agent, session);
    cairn_loop_fd_remove(agent->loop, session->fd);
    cairn_loop_fd_remove(agent->loop, session->pid_fd);
    close(session->fd);
    if (session->pid_fd >= 0)
        close(session->pid_fd);
    cairn_session_reader_fini(&session->reader);
    cairn_session_writer_fini(&session->writer);
    free(session->coverage);
    if (trainer)
        CAIRN_LOG_AT(INFO, "session: trainer left rank=%u pid=%" PRIu64 " in_good_order=%d",
                     session->hello.rank, session->hello.pid, session->leaves);
    memset(session, 0, sizeof *session);
    session->fd = session->pid_fd = -1;
    session_release_grants(agent);
}

/*
 * Ends a session whose other end is still there. If the trainer may be copying into a slot, we wait
 * for its end of the socket to close: the trainer closes it when its copy has stopped, the kernel
 * when the trainer has died.
 */
void
session_show_out(struct cairn_agent *agent, struct session *session)
{
    if (session->writing == 0 || agent->stopping) {
        session_end(agent, session);
        return;
    }
    session->ending = false; /* what strip sets off may reap */
    session->state = SESSION_DRAINING;
    strip(agent, session);
    shutdown(session->fd, SHUT_WR);
    if (cairn_loop_fd_set(agent->loop, session->fd, CAIRN_LOOP_READ) != CAIRN_OK)
        session_end(agent, session);
}

void
session_flush(struct cairn_agent *agent, struct session *session)
{
    cairn_err err;

    if (!session->used || session->ending || session->state == SESSION_DRAINING)
        return;
    if (session->state == SESSION_CLOSING && session->closing_ns == 0)
        session->closing_ns = agent_now_ns(agent);
    err = cairn_session_writer_send(&session->writer, session->fd);
    if (err == CAIRN_PEER || (err == CAIRN_OK && session->state == SESSION_CLOSING)) {
        session->ending = true;
        return;
    }
    if (cairn_loop_fd_set(agent->loop, session->fd,
                          (session->state == SESSION_CLOSING ? 0 : CAIRN_LOOP_READ) |
                              (err == CAIRN_AGAIN ? CAIRN_LOOP_WRITE : 0)) != CAIRN_OK)
        session->ending = true;
}

void
sessions_reap(struct cairn_agent *agent)
{
    for (uint32_t i = 0; i < agent->sessions_end; i++) /* each turn of the loop ends here */
        if (agent->sessions[i].used && agent->sessions[i].ending)
            session_show_out(agent, &agent->sessions[i]);
}

void
session_refuse(struct session *session, uint32_t request, cairn_err err, const char *text)
{
    struct cairn_session_refused refused = {.request = request, .err = err};

    snprintf(refused.text, sizeof refused.text, "%s", text);
    if (!session->said_refused) /* a trainer tries again every second */
        CAIRN_LOG_AT(WARN, "session: refused rank=%u: %s", session->hello.rank, text);
    session->said_refused = true;
    if (request == 0)
        session->state = SESSION_CLOSING;
    if (cairn_session_put_refused(&session->writer, &refused) != CAIRN_OK)
        session->state = SESSION_CLOSING;
}

static struct session *
find_rank(struct cairn_agent *agent, uint32_t local_rank)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++)
        if (session_is_rank(&agent->sessions[i]) && agent->sessions[i].local_rank == local_rank)
            return &agent->sessions[i];
    return NULL;
}

/* Fills the blocks that belong to no rank with zeros, and tells the core their checksum. */
static void
fill_holes(struct cairn_agent *agent, struct cairn_generation_id generation, uint32_t slot)
{
    static uint8_t zeros[CAIRN_BLOCK_BYTES];
    uint64_t crc = cairn_crc64(0, zeros, sizeof zeros);

    for (uint64_t block = 0; block < agent->regions.shard_blocks; block++) {
        struct cairn_event event = {
            .type = CAIRN_EVENT_BLOCKS,
            .as.blocks = {
                .generation = generation, .first_block = block, .count = 1, .crcs = &crc}};
        bool owned = false;
        uint8_t *bytes;

        for (uint32_t i = 0; i < SESSIONS_MAX && !owned; i++) {
            const struct session *session = &agent->sessions[i];

            if (session_is_rank(session) && block >= session->region_block &&
                block < session->region_block + session->region_blocks) {
                block = session->region_block + session->region_blocks - 1;
                owned = true;
            }
        }
        bytes = owned ? NULL : cairn_memory_data(agent->memory, slot, block, 1);
        if (!bytes)
            continue;
        cairn_memory_write_begin(agent->memory, slot);
        memset(bytes, 0, CAIRN_BLOCK_BYTES);
        cairn_memory_write_end(agent->memory, slot);
        agent_step(agent, &event, NULL);
    }
}

/* True if another trainer, which had the slot before, may still be copying into it. */
static bool
written_by_others(const struct cairn_agent *agent, const struct session *self, uint32_t slot)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        const struct session *other = &agent->sessions[i];

        if (other->used && other != self && (other->writing >> slot & 1) &&
            (other->granted.step == 0 || other->stale))
            return true;
    }
    return false;
}

static void
put_grant(struct cairn_agent *agent, struct session *session,
          const struct cairn_session_grant *grant)
{
    session->granted = grant->generation;
    session->writing |= 1u << grant->slot;
    cairn_memory_write_begin(agent->memory, grant->slot); /* from now on its bytes count */
    cairn_memory_write_end(agent->memory, grant->slot);
    if (session->local_rank == 0)
        fill_holes(agent, grant->generation, grant->slot);
    if (cairn_session_put_grant(&session->writer, grant) != CAIRN_OK)
        session->state = SESSION_CLOSING;
    session_flush(agent, session);
}

/*
 * If another trainer was told to stop copying into this slot, and has not confirmed that, it could
 * write into the new generation: the grant waits. It waits ten seconds at most, because a stopped
 * left-over trainer must not end the protection of the job. Damage that it does later is found by
 * checksums and repaired. A grant also waits until the rank's region is cut (cutting.h).
 */
void
session_grant(struct cairn_agent *agent, const struct cairn_action_trainer *action)
{
    struct session *session = find_rank(agent, action->rank);
    struct cairn_session_grant grant = {
        .step = action->step, .generation = action->generation, .slot = action->part};

    if (!session)
        return;
    session->begun.waiting = false;
    if (!cutting_is_whole(agent, session, grant.slot))
        cutting_advance(agent);
    if (!cutting_is_whole(agent, session, grant.slot) ||
        written_by_others(agent, session, grant.slot)) {
        session->held_back = grant;
        session->held_back_ns = agent_now_ns(agent);
        return;
    }
    put_grant(agent, session, &grant);
}

void
session_release_grants(struct cairn_agent *agent)
{
    uint64_t now_ns = agent_now_ns(agent);

    for (uint32_t i = 0; i < SESSIONS_MAX && !agent->stopping; i++) {
        struct session *session = &agent->sessions[i];
        struct cairn_session_grant grant = session->held_back;
        bool overdue = now_ns - session->held_back_ns > held_back_max_ns;

        if (grant.step == 0 || !session_is_rank(session) ||
            !cutting_is_whole(agent, session, grant.slot) ||
            (written_by_others(agent, session, grant.slot) && !overdue))
            continue;
        if (written_by_others(agent, session, grant.slot))
            CAIRN_LOG_AT(
                WARN, "session: a left-over trainer does not stop: its slot is used again; end it");
        session->held_back.step = 0;
        put_grant(agent, session, &grant);
    }
}

void
sessions_answer(struct cairn_agent *agent)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *session = &agent->sessions[i];
        struct cairn_session_registered answer = {.slot_count = agent->config.slots};
        int fds[CAIRN_OWN_SLOTS_MAX];

        if (!session_is_rank(session) || session->is_answered ||
            session_claim_is_open(agent, session) ||
            (!session->stands_still && !cutting_is_done(agent, session) &&
             agent_now_ns(agent) - session->registered_ns < answer_max_ns) ||
            !cutting_files(agent, session, fds))
            continue;
        session->is_answered = true;
        answer.request = session->slices.request;
        answer.region_offset = session->region_block * CAIRN_BLOCK_BYTES;
        answer.region_bytes = session->region_blocks * CAIRN_BLOCK_BYTES;
        if (cairn_session_put_registered(&session->writer, &answer, fds) != CAIRN_OK)
            session->state = SESSION_CLOSING;
        session_flush(agent, session);
    }
    session_release_grants(agent);
}

void
session_skip(struct cairn_agent *agent, const struct cairn_action_trainer *action)
{
    static const uint32_t reasons[] = {[CAIRN_SKIP_NOT_DUE] = CAIRN_REASON_NOT_DUE,
                                       [CAIRN_SKIP_BUSY] = CAIRN_REASON_BUSY,
                                       [CAIRN_SKIP_NOT_READY] = CAIRN_REASON_NOT_READY,
                                       [CAIRN_SKIP_STALE] = CAIRN_REASON_OTHER,
                                       [CAIRN_SKIP_UNTILED] = CAIRN_REASON_OTHER};
    struct session *session = find_rank(agent, action->rank);
    struct cairn_session_skip skip = {.step = action->step, .reason = reasons[action->reason]};
    struct cairn_core_view view;

    if (!session)
        return;
    session->begun.waiting = false;
    cairn_core_look(agent->core, &view);
    switch (action->reason) {
    case CAIRN_SKIP_NOT_DUE:
        break;
    case CAIRN_SKIP_BUSY:
        snprintf(skip.text, sizeof skip.text,
                 "an earlier generation is still being protected, or steps follow faster than "
                 "commits");
        break;
    case CAIRN_SKIP_NOT_READY:
        snprintf(skip.text, sizeof skip.text,
                 "not all ranks of the job have registered, a restore is under way, or this node "
                 "is not a member: a spare, or not found by the last restore");
        break;
    case CAIRN_SKIP_STALE:
        snprintf(skip.text, sizeof skip.text,
                 "the job holds step %" PRIu64 ", which this trainer has not restored: only later "
                 "steps are protected; restore it before training (--resume), or drop it with "
                 "`cairn restore --fresh`",
                 action->generation.step);
        break;
    case CAIRN_SKIP_UNTILED:
        snprintf(skip.text, sizeof skip.text, "snapshots are refused: %s", view.refusal);
        break;
    }
    if (cairn_session_put_skip(&session->writer, &skip) != CAIRN_OK)
        session->state = SESSION_CLOSING;
    session_flush(agent, session);
}

void
session_drop(struct cairn_agent *agent, struct cairn_generation_id generation)
{
    struct cairn_session_drop drop = {.generation = generation, .reason = CAIRN_REASON_NOT_READY};
    struct cairn_session_skip skip = {.step = generation.step, .reason = CAIRN_REASON_BUSY};

    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *session = &agent->sessions[i];
        cairn_err err;

        if (!session_is_rank(session))
            continue;
        if (session->held_back.step &&
            cairn_generation_id_compare(session->held_back.generation, generation) == 0) {
            session->held_back.step = 0;
            err = cairn_session_put_skip(&session->writer, &skip);
        } else if (cairn_generation_id_compare(session->granted, generation) == 0) {
            /* `writing` stays until the trainer answers */
            session->granted = (struct cairn_generation_id){0};
            err = cairn_session_put_drop(&session->writer, &drop);
        } else {
            continue;
        }
        if (err)
            session->state = SESSION_CLOSING;
        session_flush(agent, session);
    }
}

void
session_epoch(struct cairn_agent *agent, uint64_t epoch, bool restart)
{
    struct cairn_session_epoch value = {.epoch = epoch};
    bool any = false;

    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *session = &agent->sessions[i];

        if (!session->used || !session->trainer)
            continue;
        if (restart && session->registered && !session->stale) {
            session->stale = true; /* a trainer of before the restore may not write into the new
                                    * epoch */
            any = true;
        }
        if (session->stale)
            continue; /* nor hear its number, by which the next agent would take it for one of that
                       * epoch */
        if (cairn_session_put_epoch(&session->writer, &value) != CAIRN_OK)
            session->state = SESSION_CLOSING;
        session_flush(agent, session);
    }
    if (any)
        session_tell_ranks(agent);
}

void
session_committed(struct cairn_agent *agent, struct cairn_generation_id generation)
{
    const struct cairn_session_committed value = {.generation = generation};

    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *session = &agent->sessions[i];

        if (!session_is_rank(session) || session->last_step == 0 ||
            session->last_step != generation.step)
            continue;
        session->last_step = 0;
        if (cairn_session_put_committed(&session->writer, &value) != CAIRN_OK)
            session->state = SESSION_CLOSING;
        session_flush(agent, session);
    }
}
