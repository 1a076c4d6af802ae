/* agent/process/cutting.c - cuts the memory of own slots into the regions of the registered ranks;
 * see cutting.h. */
#include "agent/process/cutting.h"

#include "agent/process/agent_state.h"
#include "agent/process/handlers.h"
#include "agent/process/memory.h"
#include "agent/process/session.h"
#include "agent/process/session_region.h"
#include "base/log.h"
#include "base/worker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Belongs to a worker between submit and done. */
struct move_job {
    struct cairn_job job;
    struct cairn_agent *agent;
    struct cairn_memory_region *region;
    bool out;
    cairn_err err;
};

static struct cairn_memory_region *
region_of(const struct cairn_agent *agent, const struct session *session, uint32_t slot)
{
    return cairn_memory_region_find(agent->memory, slot, session->region_block,
                                    session->region_blocks, session->hello.rank);
}

bool
cutting_is_whole(const struct cairn_agent *agent, const struct session *session, uint32_t slot)
{
    const struct cairn_memory_region *region = region_of(agent, session, slot);

    return region && cairn_memory_region_is_whole(region);
}

/* True if the slot holds a generation that has this very region as this rank's. */
static bool
is_own(const struct cairn_agent *agent, const struct session *session, uint32_t slot)
{
    return session->region_blocks &&
           session_place_in_slot(agent, slot, session->hello.rank, session->region_blocks) ==
               session->region_block;
}

static bool
may_move(const struct cairn_agent *agent, const struct session *session, uint32_t slot)
{
    struct cairn_part_view view;

    if (session->stands_still)
        return false;
    if (!cairn_core_look_part(agent->core, slot, &view) || view.state == CAIRN_PART_FREE ||
        view.state == CAIRN_PART_OPEN)
        return true;
    return view.state == CAIRN_PART_COMPLETE && (session->own_slots >> slot & 1);
}

static void
move_run(struct cairn_job *job)
{
    struct move_job *move = (struct move_job *)job;

    move->err = cairn_memory_region_move(move->agent->memory, move->region, move->out);
}

static void
move_done(struct cairn_job *job)
{
    struct move_job *move = (struct move_job *)job;
    struct cairn_agent *agent = move->agent;

    cairn_memory_region_moved(move->region);
    if (move->err && move->err != CAIRN_AGAIN)
        CAIRN_LOG_AT(ERROR,
                     "memory: a rank's region cannot be made: %s: its trainer waits; see that this "
                     "node has free memory",
                     cairn_err_text(move->err));
    if (!agent->stopping) { /* a move that failed is tried again at the next tick */
        if (!move->err)
            cutting_advance(agent);
        agent->handlers->region_cut(agent);
    }
    free(move);
}

/* Starts the next move towards a whole region. */
static cairn_err
advance(struct cairn_agent *agent, struct cairn_memory_region *region)
{
    struct cairn_memory_region *moving;
    struct move_job *move;
    bool out = false;
    cairn_err err = cairn_memory_region_next_move(agent->memory, region, &moving, &out);

    if (err || !moving)
        return err;
    move = calloc(1, sizeof *move);
    if (!move) {
        cairn_memory_region_moved(moving);
        return CAIRN_NOMEM;
    }
    move->job = (struct cairn_job){.run = move_run, .done = move_done};
    move->agent = agent;
    move->region = moving;
    move->out = out;
    err = cairn_workers_submit(agent->workers, &move->job);
    if (err) { /* all are busy: the next tick */
        cairn_memory_region_moved(moving);
        free(move);
    }
    return CAIRN_OK;
}

cairn_err
cutting_claim(struct cairn_agent *agent, struct session *session, char *text, size_t text_bytes)
{
    session->own_slots = 0;
    for (uint32_t slot = 0; slot < agent->config.slots; slot++) {
        struct cairn_memory_region *region = region_of(agent, session, slot);
        cairn_err err = CAIRN_OK;

        if (!region)
            err = cairn_memory_region_make(agent->memory, slot, session->region_block,
                                           session->region_blocks, session->hello.rank, &region);
        if (is_own(agent, session, slot))
            session->own_slots |= 1u << slot;
        if (!err && may_move(agent, session, slot))
            err = advance(agent, region);
        if (err) {
            snprintf(text, text_bytes,
                     "the memory of rank %u cannot be made: %s; see that this node has free memory "
                     "and descriptors (ulimit -n), and a keeper that answers",
                     session->hello.rank, cairn_err_text(err));
            return CAIRN_AGAIN; /* the trainer tries again */
        }
    }
    return CAIRN_OK;
}

bool
cutting_is_done(const struct cairn_agent *agent, const struct session *session)
{
    for (uint32_t slot = 0; slot < agent->config.slots; slot++)
        if (!cutting_is_whole(agent, session, slot) && may_move(agent, session, slot))
            return false;
    return true;
}

bool
cutting_files(const struct cairn_agent *agent, const struct session *session, int *fds)
{
    for (uint32_t slot = 0; slot < agent->config.slots; slot++) {
        const struct cairn_memory_region *region = region_of(agent, session, slot);

        if (!region)
            return false;
        fds[slot] = cairn_memory_region_fd(region);
    }
    return true;
}

void
cutting_advance(struct cairn_agent *agent)
{
    for (uint32_t i = 0; i < SESSIONS_MAX && !agent->stopping; i++) {
        const struct session *session = &agent->sessions[i];

        for (uint32_t slot = 0; session_is_rank(session) && slot < agent->config.slots; slot++) {
            struct cairn_memory_region *region = region_of(agent, session, slot);
            cairn_err err = CAIRN_OK;

            if (region && !cairn_memory_region_is_whole(region) && may_move(agent, session, slot))
                err = advance(agent, region);
            if (err)
                CAIRN_LOG_AT(WARN, "memory: the region of rank=%u cannot be made yet: %s",
                             session->hello.rank, cairn_err_text(err));
        }
    }
}

void
cutting_forget(struct cairn_agent *agent, const struct session *session)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        const struct session *other = &agent->sessions[i];

        if (other != session && session_is_rank(other) &&
            other->hello.rank == session->hello.rank &&
            other->region_block == session->region_block &&
            other->region_blocks == session->region_blocks)
            return; /* it goes on with these files */
    }
    for (uint32_t slot = 0; slot < agent->config.slots; slot++) {
        struct cairn_memory_region *region = region_of(agent, session, slot);

        if (region) /* one with pages waits for the rank to come back */
            (void)cairn_memory_region_forget(agent->memory, region);
    }
}
