/* agent/service/placing.c - stores the book of placements, and tells it; see placing.h. */
#include "agent/service/placing.h"

#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/service_message.h"
#include "agent/process/session.h"
#include "agent/process/step.h"
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
    struct proposal_book book;
    struct proposal_book next; /* a change of it that is not stored yet, or another agent's book */
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
    size_t bytes_len = proposal_pack(&state->book, state->bytes);

    state->told_ns = agent_now_ns(agent);
    for (uint32_t node = 0; node < agent->config.node_count; node++)
        tell_agent(agent, node, bytes_len);
}

/* Queues the offer for a trainer that computes by an older placement. */
static void
tell_session(struct cairn_agent *agent, struct session *session)
{
    const struct placing_state *state = agent->placing;
    const struct cairn_session_shares *offer = &state->book.offer.placement;
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

/* "micro-batches 8 | 4: give slow pipelines …" */
static void
log_proposal(const char *what, const struct proposal *proposal)
{
    const struct cairn_advice advice = {proposal->action, proposal->current_ms, proposal->step_ms,
                                        proposal->cost_ms, proposal->payback_steps};
    char text[PROPOSAL_TEXT_BYTES], why[CAIRN_ADVICE_BYTES] = "nothing is slow any more";

    if (proposal->action != CAIRN_REPLAN_NONE)
        cairn_advice_describe(&advice, why, sizeof why);
    CAIRN_LOG_AT(WARN, "replan: %s %" PRIu64 ": micro-batches %s: %s", what,
                 proposal->placement.number, proposal_describe(&proposal->placement, text), why);
}

/* Makes state->next the book, once it is stored, and does what has to follow. */
static bool
follow(struct cairn_agent *agent, uint32_t follows)
{
    struct placing_state *state = agent->placing;
    uint64_t waited = state->book.waiting.placement.number;

    if (!(follows & PROPOSAL_CHANGED))
        return true;
    if (!store(agent, &state->next))
        return false;
    state->book = state->next;
    if (follows & PROPOSAL_OFFER)
        log_proposal("offer", &state->book.offer);
    if (follows & PROPOSAL_WAITS)
        log_proposal("waits for approval: proposal", &state->book.waiting);
    if (follows & PROPOSAL_OVER)
        CAIRN_LOG_AT(INFO, "replan: proposal %" PRIu64 " is over", waited);
    tell_agents(agent);
    if (follows & PROPOSAL_OFFER)
        tell_sessions(agent);
    return true;
}

const struct proposal_book *
placing_book(const struct cairn_agent *agent)
{
    return agent->placing ? &agent->placing->book : NULL;
}

void
placing_take_round(struct cairn_agent *agent, const struct proposal_round *round)
{
    struct placing_state *state = agent->placing;
    uint32_t follows;

    state->next = state->book;
    follows = proposal_take_round(&state->next, round);
    if ((follows & PROPOSAL_SPENT) && !state->said_spent)
        CAIRN_LOG_AT(WARN,
                     "replan: no other placement is offered: %" PRIu32
                     " changes within 24 hours are as many as plans_per_day allows",
                     state->next.away_count);
    state->said_spent = (follows & PROPOSAL_SPENT) != 0;
    (void)follow(agent, follows);
}

void
placing_decide(struct cairn_agent *agent, const struct proposal_decision *decision,
               const struct proposal_scene *scene, bool dry_run, struct proposal_answer *out)
{
    static const char *const words[] = {[PROPOSAL_APPROVE] = "approved",
                                        [PROPOSAL_DENY] = "denied",
                                        [PROPOSAL_GO_BACK] = "went back by offer"};
    struct placing_state *state = agent->placing;
    uint32_t follows;

    state->next = state->book;
    follows = proposal_decide(&state->next, decision, scene, out);
    if (dry_run || follows == 0)
        return;
    CAIRN_LOG_AT(INFO, "replan: an operator at node %u %s %" PRIu64, decision->node,
                 words[decision->word], out->number);
    if (!follow(agent, follows)) {
        out->exit_code = 74;
        (void)snprintf(out->text, sizeof out->text,
                       "plan: the agent of node %u cannot store decisions; look at its disk and "
                       "its log, then try again",
                       agent->config.node);
    }
}

void
placing_repeat(struct cairn_agent *agent)
{
    const struct placing_state *state = agent->placing;

    if (state && state->book.version > 0 && agent_now_ns(agent) >= state->told_ns + repeat_ns)
        tell_agents(agent);
}

void
placing_message(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct placing_state *state = agent->placing;
    struct proposal_book *heard;
    uint32_t follows;

    if (!state)
        return;
    heard = calloc(1, sizeof *heard);
    if (!heard || proposal_unpack(message->bytes, message->bytes_len, heard) != CAIRN_OK) {
        free(heard);
        return;
    }
    if (heard->version < state->book.version) /* it has forgotten its own, or was cut off */
        tell_agent(agent, message->from, proposal_pack(&state->book, state->bytes));
    state->next = state->book;
    follows = proposal_hear(&state->next, heard);
    free(heard);
    if (!(follows & PROPOSAL_CHANGED) || !store(agent, &state->next))
        return;
    state->book = state->next;
    if (follows & (PROPOSAL_OFFER | PROPOSAL_WAITS)) {
        const struct proposal *proposal =
            follows & PROPOSAL_OFFER ? &state->book.offer : &state->book.waiting;
        char text[PROPOSAL_TEXT_BYTES];

        CAIRN_LOG_AT(INFO, "replan: %s %" PRIu64 " of node %u: micro-batches %s",
                     follows & PROPOSAL_OFFER ? "offer" : "proposal", proposal->placement.number,
                     message->from, proposal_describe(&proposal->placement, text));
    }
    if (follows & PROPOSAL_OFFER)
        tell_sessions(agent);
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
    return agent->placing->book.offer.placement.stages;
}

void
placing_fill(struct cairn_agent *agent, struct operator_node *out)
{
    struct placing_state *state = agent->placing;
    const struct cairn_session_shares *offer;

    if (!state)
        return;
    offer = &state->book.offer.placement;
    if (offer->count > 0) {
        out->offer_number = offer->number;
        out->offer_changes =
            proposal_count_changes(&state->book, cairn_clock_wall_ns(&agent->clock));
    }
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        const struct session *session = &agent->sessions[i];

        if (!session->used || !session->trainer || state->asked[i].serial != session->serial)
            continue;
        out->offer_askers++;
        out->offer_takers += offer->count > 0 && state->asked[i].number == offer->number;
    }
}

bool
placing_frame(struct cairn_agent *agent, struct session *session,
              const struct cairn_session_frame *frame)
{
    struct placing_state *state = agent->placing;
    struct cairn_session_shares shares;
    char text[PROPOSAL_TEXT_BYTES];

    if (!state || !session->trainer || cairn_session_take_shares(frame, &shares) != CAIRN_OK)
        return false;
    state->asked[session->index] = (struct asked){session->serial, shares.number, shares.stages};
    proposal_note_number(&state->book, shares.number);
    if (shares.number > 0)
        CAIRN_LOG_AT(INFO, "replan: rank=%u has taken offer %" PRIu64 ": micro-batches %s",
                     session->hello.rank, shares.number, proposal_describe(&shares, text));
    tell_session(agent, session);
    return true;
}

/* ---- life ---- */

cairn_err
placing_open(struct cairn_agent *agent)
{
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;

    if (agent->config.plan_policy < CAIRN_PLAN_APPROVE)
        return CAIRN_OK;
    agent->placing = calloc(1, sizeof *agent->placing);
    if (!agent->placing)
        return CAIRN_NOMEM;
    if (cairn_catalog_get(agent->catalog, CAIRN_TABLE_VERDICTS, book_key, sizeof book_key - 1,
                          &bytes, &bytes_len) == CAIRN_OK &&
        proposal_unpack(bytes, bytes_len, &agent->placing->book) != CAIRN_OK)
        CAIRN_LOG_AT(WARN, "catalog: the stored offers are damaged, or an older version's: they "
                           "are forgotten");
    free(bytes);
    return CAIRN_OK;
}

void
placing_close(struct cairn_agent *agent)
{
    free(agent->placing);
    agent->placing = NULL;
}
