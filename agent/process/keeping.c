/*
 * agent/process/keeping.c - watches the keeper that holds the agent's memory, and replaces it if it
 * dies; see keeping.h.
 *
 * While the agent lives, a keeper's death loses nothing, since the agent maps the memory too. But a
 * crash of the agent would then lose the node's parts. So a worker asks the keeper every second
 * whether it lives. If it is gone, the worker starts a new one, and the loop passes it every
 * descriptor. A keeper that lives but does not answer still holds the memory: this is only logged.
 */
#include "agent/process/keeping.h"

#include "agent/process/agent_state.h"
#include "agent/process/keeper.h"
#include "agent/process/memory.h"
#include "agent/process/step.h"
#include "base/log.h"
#include "base/worker.h"
#include "snapshot/catalog.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    START_TIMEOUT_MS = 5000,
    CALL_TIMEOUT_MS = 500, /* of calls in the loop, which must not keep heartbeats waiting */
    PING_TIMEOUT_MS = 2000
};
static const uint64_t ping_interval_ns = 1 * CAIRN_NS_PER_S;

/* Belongs to a worker between submit and done. */
struct keeping {
    struct cairn_job job;
    struct cairn_agent *agent;
    char path[CAIRN_CONFIG_PATH_BYTES_MAX + 16];
    struct cairn_keeper *watched; /* a connection of its own, for the worker */
    bool lost;                    /* the agent's own connection leads to a keeper that is gone */
    bool waits;                   /* it was found to be gone just now */
    bool silent;                  /* said that it does not answer */
    bool failed;                  /* said that no new one can be started */
    bool running;
    uint64_t due_ns;
    cairn_err err;
};

/*
 * In a worker: asks the keeper. A lost keeper is replaced when the next question is due: somebody
 * may be ending both, and by then the loop has heard of that, and asks no more.
 */
static void
ask(struct cairn_job *job)
{
    struct keeping *keeping = (struct keeping *)job;

    keeping->err = CAIRN_PEER;
    keeping->waits = false;
    if (keeping->watched) {
        keeping->err = cairn_keeper_ping(keeping->watched);
        if (!keeping->err)
            return;
        cairn_keeper_close(keeping->watched);
        keeping->watched = NULL;
        keeping->waits = keeping->err == CAIRN_PEER;
        if (keeping->waits) {
            keeping->lost = true;
            return;
        }
    }
    if (keeping->err == CAIRN_PEER) {
        keeping->lost = true;
        keeping->err =
            cairn_keeper_spawn(keeping->agent->executable, keeping->path,
                               keeping->agent->config.keeper_linger_s, START_TIMEOUT_MS, NULL);
    }
    if (!keeping->err || keeping->err == CAIRN_TIMEOUT)
        keeping->err = cairn_keeper_connect(keeping->path, PING_TIMEOUT_MS, &keeping->watched);
}

/* Hands all memory to a new keeper. */
static cairn_err
hand_over(struct keeping *keeping)
{
    struct cairn_agent *agent = keeping->agent;
    struct cairn_keeper *keeper = NULL;
    cairn_err err = cairn_keeper_connect(keeping->path, CALL_TIMEOUT_MS, &keeper);

    if (err)
        return err;
    err = cairn_memory_keeper_set(agent->memory, keeper);
    cairn_keeper_close(agent->keeper); /* the memory knows the new one, even if that took nothing */
    agent->keeper = keeper;
    return err;
}

static void
answered(struct cairn_job *job)
{
    struct keeping *keeping = (struct keeping *)job;
    struct cairn_agent *agent = keeping->agent;
    cairn_err err = keeping->err;

    keeping->running = false;
    keeping->due_ns = agent_now_ns(agent) + ping_interval_ns;
    if (agent->stopping)
        return;
    if (!err && keeping->lost) {
        err = hand_over(keeping);
        if (!err) {
            CAIRN_LOG_AT(WARN, "keeper: had died, a new one holds the memory now");
            keeping->lost = false;
        }
    }
    agent->unkept = keeping->lost;
    if (err == CAIRN_TIMEOUT && !keeping->lost && !keeping->silent)
        CAIRN_LOG_AT(WARN, "keeper: does not answer at %s; it still holds the memory",
                     keeping->path);
    keeping->silent = err == CAIRN_TIMEOUT && !keeping->lost;
    if (keeping->waits)
        return;
    if (keeping->lost && !keeping->failed)
        CAIRN_LOG_AT(ERROR,
                     "keeper: is gone, and no new one holds the memory: %s: what this node "
                     "protects is lost if its agent "
                     "dies; check that %s can be written and that processes can be started; tried "
                     "again every second",
                     cairn_err_text(err), agent->config.dir);
    keeping->failed = keeping->lost;
}

cairn_err
keeping_open(struct cairn_agent *agent)
{
    struct keeping *keeping;
    cairn_err err;

    agent->unkept = !agent->config.keeper;
    if (!agent->config.keeper)
        return CAIRN_OK;
    keeping = calloc(1, sizeof *keeping);
    if (!keeping)
        return CAIRN_NOMEM;
    agent->keeping = keeping;
    keeping->agent = agent;
    keeping->job = (struct cairn_job){.run = ask, .done = answered};
    snprintf(keeping->path, sizeof keeping->path, "%s/keeper.sock", agent->config.dir);
    err = cairn_keeper_spawn(agent->executable, keeping->path, agent->config.keeper_linger_s,
                             START_TIMEOUT_MS, NULL);
    if (!err)
        err = cairn_keeper_connect(keeping->path, START_TIMEOUT_MS, &keeping->watched);
    if (!err)
        err = cairn_keeper_connect(keeping->path, START_TIMEOUT_MS, &agent->keeper);
    if (err)
        CAIRN_LOG_AT(ERROR,
                     "keeper: cannot be started at %s: %s; check `dir`, or set keeper: false to "
                     "live without one",
                     keeping->path, cairn_err_text(err));
    return err;
}

void
keeping_started(struct cairn_agent *agent)
{
    if (agent->keeper)
        cairn_keeper_set_timeout(agent->keeper, CALL_TIMEOUT_MS);
}

void
keeping_tick(struct cairn_agent *agent)
{
    struct keeping *keeping = agent->keeping;

    if (!keeping || keeping->running || agent_now_ns(agent) < keeping->due_ns)
        return;
    keeping->running = cairn_workers_submit(agent->workers, &keeping->job) == CAIRN_OK;
}

void
keeping_close(struct cairn_agent *agent)
{
    struct keeping *keeping = agent->keeping;

    if (!keeping)
        return;
    cairn_keeper_close(keeping->watched);
    free(keeping);
    agent->keeping = NULL;
}

/* ---- the mark of new memory ---- */

static const char memory_key[] = "memory";

/*
 * New memory outlives the agent that makes it. But only the first record of the epoch stores that
 * this agent's earlier promises are unknown. If the agent ends in between, on a full disk for
 * example, the next start would trust the memory. So the catalog has a mark from before the memory
 * is made until that record is stored.
 */
cairn_err
keeping_mark_memory(struct cairn_agent *agent, bool *was_marked)
{
    uint8_t *stored = NULL;
    size_t stored_len = 0;
    cairn_err err = cairn_catalog_get(agent->catalog, CAIRN_TABLE_EPOCHS, memory_key,
                                      sizeof memory_key - 1, &stored, &stored_len);

    free(stored);
    *was_marked = err == CAIRN_OK;
    if (err == CAIRN_NOT_FOUND)
        err = cairn_catalog_put(agent->catalog, CAIRN_TABLE_EPOCHS, memory_key,
                                sizeof memory_key - 1, "", 0);
    agent->memory_marked = err == CAIRN_OK;
    return err;
}

cairn_err
keeping_memory_is_known(struct cairn_agent *agent)
{
    if (!agent->memory_marked)
        return CAIRN_OK;
    agent->memory_marked = false;
    return cairn_catalog_delete(agent->catalog, CAIRN_TABLE_EPOCHS, memory_key,
                                sizeof memory_key - 1);
}
