/* agent/service/placing.c - carries out the analyst's decisions; see placing.h. */
#include "agent/service/placing.h"

#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/service_message.h"
#include "agent/process/session.h"
#include "agent/process/step.h"
#include "agent/service/analyst.h"
#include "agent/service/operator_view.h"
#include "base/log.h"
#include "replan/advise/adviser.h"
#include "snapshot/catalog.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char book_key[] = "offer";
static const uint64_t repeat_ns = 10 * CAIRN_NS_PER_S;

/* What the trainer of a session computes by. */
struct asked {
    uint64_t serial; /* of the session; 0: none */
    uint64_t number;
    uint32_t stages; /* whose layers it can move; 0: it cannot */
};

struct placing_state {
    uint64_t told_ns;
    bool said_spent;
    struct asked asked[SESSIONS_MAX];
    uint8_t bytes[PROPOSAL_BOOK_BYTES_MAX];
};

/* ---- storing and telling ---- */

static bool
store(struct cairn_agent *agent, const struct proposal_book *book)
{
    struct placing_state *state = agent->placing;
    size_t bytes_len = proposal_pack(book, state->bytes);

    if (bytes_len > 0 &&
        cairn_catalog_put(agent->catalog, CAIRN_TABLE_VERDICTS, book_key, sizeof book_key - 1,
                          state->bytes, bytes_len) == CAIRN_OK)
        return true;
    CAIRN_LOG_AT(WARN, "catalog: offers and proposals cannot be stored; none is made");
    return false;
}

static void
tell_agent(struct cairn_agent *agent, uint32_t node, size_t bytes_len)
{
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_OFFER,
                                            .from = agent->config.node,
                                            .to = node,
                                            .bytes = agent->placing->bytes,
                                            .bytes_len = (uint32_t)bytes_len};

    if (bytes_len > 0 && node != agent->config.node && cairn_core_alive(agent->core, node))
        mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
}

static void
tell_agents(struct cairn_agent *agent)
{
    struct placing_state *state = agent->placing;
    size_t bytes_len = proposal_pack(analyst_book(agent->analyst), state->bytes);

    state->told_ns = agent_now_ns(agent);
    for (uint32_t node = 0; node < agent->config.node_count; node++)
        tell_agent(agent, node, bytes_len);
}

/* Queues the offer for a trainer that computes by an older placement. */
static void
tell_session(struct cairn_agent *agent, struct session *session)
{
    const struct placing_state *state = agent->placing;
    const struct cairn_session_shares *offer = &analyst_book(agent->analyst)->offer.placement;
    const struct asked *asked = &state->asked[session->index];

    if (offer->count == 0 || asked->serial != session->serial || asked->number >= offer->number ||
        (offer->stages && offer->stages != asked->stages) || session->state != SESSION_WELCOME)
        return;
    if (cairn_session_put_offer(&session->writer, offer) != CAIRN_OK)
        CAIRN_LOG_AT(WARN, "replan: the offer is not told to rank=%u: too much is queued for it",
                     session->hello.rank);
}

static void
tell_sessions(struct cairn_agent *agent)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *session = &agent->sessions[i];

        if (!session->used || session->ending || !session->trainer)
            continue;
        tell_session(agent, session);
        session_flush(agent, session);
    }
}

/* ---- changes ---- */

/* "micro-batches 8 | 4: give slow pipelines …". due_step 0: none. */
static void
log_proposal(const char *what, const struct proposal *proposal, uint32_t due_step)
{
    const struct cairn_advice advice = {.action = proposal->action,
                                        .current_ms = proposal->current_ms,
                                        .step_ms = proposal->step_ms,
                                        .cost_ms = proposal->cost_ms,
                                        .payback_steps = proposal->payback_steps};
    char text[PROPOSAL_TEXT_BYTES], why[CAIRN_ADVICE_BYTES] = "nothing is slow any more";
    char due[32] = "";

    if (proposal->action != CAIRN_REPLAN_NONE)
        cairn_advice_describe(&advice, why, sizeof why);
    if (due_step)
        (void)snprintf(due, sizeof due, "; due since step %" PRIu32, due_step);
    CAIRN_LOG_AT(WARN, "replan: %s %" PRIu64 ": micro-batches %s: %s%s", what,
                 proposal->placement.number, proposal_describe(&proposal->placement, text), why,
                 due);
}

static void
log_withdrawn(const struct proposal_book *book)
{
    static const char *const why[] = {[PROPOSAL_TAKEN_BACK] =
                                          "it brought less than half of what was predicted",
                                      [PROPOSAL_FAILED] = "the ranks entered it and gave it up",
                                      [PROPOSAL_AGED] = "some ranks never took it"};
    const struct proposal_story *story = proposal_story_of(book, book->offer.placement.number);
    const struct proposal_story *withdrawn =
        story && story->withdraws ? proposal_story_of(book, story->withdraws) : NULL;

    if (withdrawn && withdrawn->fate >= PROPOSAL_TAKEN_BACK)
        CAIRN_LOG_AT(WARN,
                     "replan: offer %" PRIu64 " is withdrawn: %s; see `cairn explain plan %" PRIu64
                     "`",
                     withdrawn->number, why[withdrawn->fate], withdrawn->number);
}

/* Of another agent's book. */
static void
log_heard(const char *what, const struct proposal *proposal, uint32_t sender)
{
    char text[PROPOSAL_TEXT_BYTES];

    CAIRN_LOG_AT(INFO, "replan: %s %" PRIu64 " of node %u: micro-batches %s", what,
                 proposal->placement.number, sender, proposal_describe(&proposal->placement, text));
}

static void
log_actions(struct cairn_agent *agent, const struct analyst_actions *actions, uint32_t sender)
{
    const struct proposal_book *book = analyst_book(agent->analyst);
    struct placing_state *state = agent->placing;
    char text[PROPOSAL_TEXT_BYTES];

    if (actions->what & ANALYST_SAY_HEARD) {
        if (actions->what & ANALYST_SAY_OFFER)
            log_heard("offer", &book->offer, sender);
        else if (actions->what & ANALYST_SAY_WAITS)
            log_heard("proposal", &book->waiting, sender);
        return;
    }
    if (actions->what & ANALYST_SAY_WITHDRAWN)
        log_withdrawn(book);
    if (actions->what & ANALYST_SAY_OFFER)
        log_proposal("offer", &book->offer, actions->due_step);
    if (actions->what & ANALYST_SAY_WAITS)
        log_proposal("waits for approval: proposal", &book->waiting, 0);
    if (actions->what & ANALYST_SAY_RELAUNCH)
        CAIRN_LOG_AT(INFO, "replan: relaunch %" PRIu64 " waits for approval: %s",
                     book->relaunch.placement.number,
                     proposal_describe_full(&book->relaunch, text));
    if (actions->what & ANALYST_SAY_OVER)
        CAIRN_LOG_AT(INFO, "replan: proposal %" PRIu64 " is over", actions->over);
    if (actions->what & ANALYST_SAY_KEPT)
        CAIRN_LOG_AT(INFO, "replan: offer %" PRIu64 " has brought what it should",
                     book->offer.placement.number);
    if ((actions->what & ANALYST_SAY_SPENT) && !state->said_spent)
        CAIRN_LOG_AT(WARN,
                     "replan: no other placement is offered: the day's budget is spent "
                     "(plans_per_day, standstill_per_day_s); %" PRIu32
                     " changes and %.1f s of standing still within 24 hours",
                     book->away_count,
                     (double)proposal_spent_ns(book, cairn_clock_wall_ns(&agent->clock)) / 1e9);
    state->said_spent = (actions->what & ANALYST_SAY_SPENT) != 0;
}

bool
placing_carry_out(struct cairn_agent *agent, const struct analyst_actions *actions, uint32_t sender)
{
    struct analyst_event event = {.type = ANALYST_STORED,
                                  .wall_ns = cairn_clock_wall_ns(&agent->clock)};
    struct analyst_actions all = *actions, then = {0};
    bool is_stored = true;

    if (!agent->placing)
        return true;
    if (all.what & ANALYST_STORE) {
        event.as.is_stored = is_stored = store(agent, analyst_next(agent->analyst));
        analyst_step(agent->analyst, &event, &then);
        all.what |= then.what;
        all.over = then.over;
        all.due_step = then.due_step;
    }
    log_actions(agent, &all, sender);
    if (all.what & ANALYST_TELL_AGENTS)
        tell_agents(agent);
    if (all.what & ANALYST_TELL_SENDER)
        tell_agent(agent, sender,
                   proposal_pack(analyst_book(agent->analyst), agent->placing->bytes));
    if (all.what & ANALYST_TELL_TRAINERS)
        tell_sessions(agent);
    return is_stored;
}

const struct proposal_book *
placing_book(const struct cairn_agent *agent)
{
    return agent->analyst ? analyst_book(agent->analyst) : NULL;
}

void
placing_repeat(struct cairn_agent *agent)
{
    const struct placing_state *state = agent->placing;

    if (state && placing_book(agent)->version > 0 &&
        agent_now_ns(agent) >= state->told_ns + repeat_ns)
        tell_agents(agent);
}

void
placing_message(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct analyst_event event = {.type = ANALYST_HEARD,
                                  .wall_ns = cairn_clock_wall_ns(&agent->clock)};
    struct analyst_actions actions;
    struct proposal_book *heard;

    if (!agent->placing)
        return;
    heard = calloc(1, sizeof *heard);
    if (heard && proposal_unpack(message->bytes, message->bytes_len, heard) == CAIRN_OK) {
        event.as.heard = heard;
        analyst_step(agent->analyst, &event, &actions);
        (void)placing_carry_out(agent, &actions, message->from);
    }
    free(heard);
}

/* ---- trainers ---- */

uint32_t
placing_stages(const struct cairn_agent *agent)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        const struct session *session = &agent->sessions[i];

        if (session->used && session->trainer && agent->placing->asked[i].serial == session->serial)
            return agent->placing->asked[i].stages;
    }
    return placing_book(agent)->offer.placement.stages;
}

bool
placing_is_asked(const struct cairn_agent *agent)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        const struct session *session = &agent->sessions[i];

        if (session->used && session->trainer && agent->placing->asked[i].serial == session->serial)
            return true;
    }
    return false;
}

static uint32_t
count_changes(const struct proposal_book *book, uint64_t wall_ns)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < book->away_count; i++)
        count += wall_ns < book->away_wall_ns[i] + UINT64_C(86400) * CAIRN_NS_PER_S;
    return count;
}

void
placing_fill(struct cairn_agent *agent, struct operator_node *out)
{
    struct placing_state *state = agent->placing;
    const struct cairn_session_shares *offer;

    if (!state)
        return;
    offer = &analyst_book(agent->analyst)->offer.placement;
    if (offer->count > 0) {
        out->offer_number = offer->number;
        out->offer_changes = count_changes(placing_book(agent), cairn_clock_wall_ns(&agent->clock));
    }
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        const struct session *session = &agent->sessions[i];

        if (!session->used || !session->trainer || state->asked[i].serial != session->serial)
            continue;
        out->offer_askers++;
        out->offer_takers += offer->count > 0 && state->asked[i].number == offer->number;
    }
}

static bool
take_shares(struct cairn_agent *agent, struct session *session,
            const struct cairn_session_frame *frame)
{
    struct analyst_event event = {.type = ANALYST_RUNS};
    struct cairn_session_shares shares;
    struct analyst_actions actions;
    char text[PROPOSAL_TEXT_BYTES];

    if (cairn_session_take_shares(frame, &shares) != CAIRN_OK)
        return false;
    agent->placing->asked[session->index] =
        (struct asked){session->serial, shares.number, shares.stages};
    event.as.runs = &shares;
    analyst_step(agent->analyst, &event, &actions);
    if (shares.number > 0)
        CAIRN_LOG_AT(INFO, "replan: rank=%u has taken offer %" PRIu64 ": micro-batches %s",
                     session->hello.rank, shares.number, proposal_describe(&shares, text));
    tell_session(agent, session);
    return true;
}

static bool
take_moved(struct cairn_agent *agent, const struct cairn_session_frame *frame)
{
    struct analyst_event event = {.type = ANALYST_MOVED};
    struct analyst_actions actions;

    if (cairn_session_take_moved(frame, &event.as.moved) != CAIRN_OK)
        return false;
    analyst_step(agent->analyst, &event, &actions);
    return true;
}

bool
placing_frame(struct cairn_agent *agent, struct session *session,
              const struct cairn_session_frame *frame)
{
    if (!agent->placing || !session->trainer)
        return false;
    return frame->type == CAIRN_SESSION_MOVED ? take_moved(agent, frame)
                                              : take_shares(agent, session, frame);
}

/* ---- life ---- */

cairn_err
placing_open(struct cairn_agent *agent)
{
    struct proposal_book *book;
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;

    if (agent->config.plan_policy < CAIRN_PLAN_APPROVE)
        return CAIRN_OK;
    agent->placing = calloc(1, sizeof *agent->placing);
    book = calloc(1, sizeof *book);
    if (!agent->placing || !book) {
        free(book);
        return CAIRN_NOMEM;
    }
    if (cairn_catalog_get(agent->catalog, CAIRN_TABLE_VERDICTS, book_key, sizeof book_key - 1,
                          &bytes, &bytes_len) == CAIRN_OK &&
        proposal_unpack(bytes, bytes_len, book) != CAIRN_OK)
        CAIRN_LOG_AT(WARN, "catalog: the stored offers are damaged, or an older version's: they "
                           "are forgotten");
    analyst_start_with_book(agent->analyst, book);
    free(bytes);
    free(book);
    return CAIRN_OK;
}

void
placing_close(struct cairn_agent *agent)
{
    free(agent->placing);
    agent->placing = NULL;
}
