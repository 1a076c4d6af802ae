/* agent/service/placing.c - offers other shares of micro-batches; see placing.h. */
#include "agent/service/placing.h"

#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/service_message.h"
#include "agent/process/session.h"
#include "agent/process/step.h"
#include "agent/service/operator_view.h"
#include "base/log.h"
#include "snapshot/catalog.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DAY_OFFERS_MAX = 1000,
    RECORD_BYTES_MAX = 16 + 4 * (CAIRN_REPLICAS_MAX + CAIRN_STAGES_MAX) + 4 + 8 * DAY_OFFERS_MAX,
    TEXT_BYTES = 256
};
static const char offer_key[] = "offer";
static const uint64_t day_ns = UINT64_C(86400) * CAIRN_NS_PER_S;
static const uint64_t repeat_ns = 10 * CAIRN_NS_PER_S;

/* What the trainer of a session computes by. */
struct asked {
    uint64_t serial; /* of the session; 0: none */
    uint64_t number;
    uint32_t stages; /* whose layers it can move; 0: it cannot */
};

/* What agents store and tell each other: the offer, and what is spent of the day's budget. So the
 * budget holds over a restart, and for the next analyst. */
struct record {
    struct cairn_session_shares offer;     /* the newest; count 0: none */
    uint64_t away_wall_ns[DAY_OFFERS_MAX]; /* when offers left the problem's plan; the last ones */
    uint32_t away_count;
};

struct placing_state {
    struct record newest;
    uint64_t told_ns;
    bool said_spent;
    struct asked asked[SESSIONS_MAX];
};

/* ---- the offer as bytes and words ---- */

static size_t
pack_record(const struct record *record, uint8_t bytes[RECORD_BYTES_MAX])
{
    struct cairn_writer writer;

    cairn_writer_init(&writer, bytes, RECORD_BYTES_MAX);
    cairn_session_shares_pack(&record->offer, &writer);
    cairn_write_u32(&writer, record->away_count);
    for (uint32_t i = 0; i < record->away_count; i++)
        cairn_write_u64(&writer, record->away_wall_ns[i]);
    return cairn_writer_done(&writer) == CAIRN_OK ? writer.used_bytes : 0;
}

static bool
unpack_record(const void *bytes, size_t bytes_len, struct record *out)
{
    struct cairn_reader reader;

    cairn_reader_init(&reader, bytes, bytes_len);
    cairn_session_shares_unpack(&reader, &out->offer);
    out->away_count = cairn_read_u32(&reader);
    if (out->away_count > DAY_OFFERS_MAX)
        return false;
    for (uint32_t i = 0; i < out->away_count; i++)
        out->away_wall_ns[i] = cairn_read_u64(&reader);
    return cairn_reader_done(&reader) == CAIRN_OK;
}

/* Adds numbers to a text, as far as it has room; "..." where it has not. */
static void
add_numbers(char text[TEXT_BYTES], const char *before, const char *between, const uint32_t *numbers,
            uint32_t count)
{
    size_t used = strlen(text);

    for (uint32_t i = 0; i < count; i++) {
        bool has_room = used + 32 < TEXT_BYTES;

        if (used + 8 >= TEXT_BYTES)
            return;
        if (has_room)
            (void)snprintf(text + used, TEXT_BYTES - used, "%s%" PRIu32, i ? between : before,
                           numbers[i]);
        else
            (void)snprintf(text + used, TEXT_BYTES - used, " ...");
        used = has_room ? strlen(text) : TEXT_BYTES;
    }
}

/* "8 | 4", and "7 | 5, layers 4,4,4 | 5,2,5". */
static void
describe(const struct cairn_session_shares *offer, char text[TEXT_BYTES])
{
    text[0] = 0;
    add_numbers(text, "", " | ", offer->parts, offer->count);
    for (uint32_t r = 0; offer->stages && r < offer->count; r++)
        add_numbers(text, r ? " | " : ", layers ", ",", offer->layers + (size_t)r * offer->stages,
                    offer->stages);
}

/* ---- storing and telling ---- */

static bool
store(struct cairn_agent *agent, const struct record *record)
{
    uint8_t bytes[RECORD_BYTES_MAX];
    size_t bytes_len = pack_record(record, bytes);

    if (bytes_len > 0 && cairn_catalog_put(agent->catalog, CAIRN_TABLE_VERDICTS, offer_key,
                                           sizeof offer_key - 1, bytes, bytes_len) == CAIRN_OK)
        return true;
    CAIRN_LOG_AT(WARN, "catalog: offers of shares cannot be stored; none is made");
    return false;
}

static void
tell_agents(struct cairn_agent *agent)
{
    struct placing_state *state = agent->placing;
    uint8_t bytes[RECORD_BYTES_MAX];
    size_t bytes_len = pack_record(&state->newest, bytes);

    state->told_ns = agent_now_ns(agent);
    for (uint32_t node = 0; bytes_len > 0 && node < agent->config.node_count; node++) {
        struct cairn_service_message message = {.kind = CAIRN_SERVICE_OFFER,
                                                .from = agent->config.node,
                                                .to = node,
                                                .bytes = bytes,
                                                .bytes_len = (uint32_t)bytes_len};

        if (node != agent->config.node && cairn_core_alive(agent->core, node))
            mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
    }
}

/* Queues the offer for a trainer that computes by older shares. */
static void
tell_session(struct cairn_agent *agent, struct session *session)
{
    const struct placing_state *state = agent->placing;
    const struct asked *asked = &state->asked[session->index];

    if (state->newest.offer.count == 0 || asked->serial != session->serial ||
        asked->number >= state->newest.offer.number ||
        (state->newest.offer.stages && state->newest.offer.stages != asked->stages) ||
        session->state != SESSION_WELCOME)
        return;
    if (cairn_session_put_offer(&session->writer, &state->newest.offer) != CAIRN_OK)
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

/* ---- offers ---- */

const struct cairn_session_shares *
placing_newest(const struct cairn_agent *agent)
{
    return agent->placing ? &agent->placing->newest.offer : NULL;
}

/* Forgets the changes of more than a day ago; returns how many are left. */
static uint32_t
count_changes(struct record *record, uint64_t now_ns)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < record->away_count; i++)
        if (now_ns < record->away_wall_ns[i] + day_ns)
            record->away_wall_ns[kept++] = record->away_wall_ns[i];
    record->away_count = kept;
    return kept;
}

/* Takes note of an offer that leaves the problem's plan; false if the day has had enough. */
static bool
spend(struct cairn_agent *agent, struct record *record)
{
    uint64_t now_ns = cairn_clock_wall_ns(&agent->clock);
    uint32_t kept = count_changes(record, now_ns);
    bool may = kept < agent->config.plans_per_day && kept < DAY_OFFERS_MAX;

    if (may)
        record->away_wall_ns[record->away_count++] = now_ns;
    else if (!agent->placing->said_spent)
        CAIRN_LOG_AT(WARN,
                     "replan: no other shares are offered: %" PRIu32
                     " changes within 24 hours are as many as plans_per_day allows",
                     kept);
    agent->placing->said_spent = !may;
    return may;
}

bool
placing_offer(struct cairn_agent *agent, const struct cairn_session_shares *shares, bool home,
              const char *why)
{
    struct placing_state *state = agent->placing;
    struct record record = state->newest;
    char text[TEXT_BYTES];

    record.offer = *shares;
    record.offer.number = state->newest.offer.number + 1;
    if ((!home && !spend(agent, &record)) || !store(agent, &record))
        return false;
    state->newest = record;
    describe(&record.offer, text);
    CAIRN_LOG_AT(WARN, "replan: offer %" PRIu64 ": micro-batches %s: %s", record.offer.number, text,
                 why);
    tell_agents(agent);
    tell_sessions(agent);
    return true;
}

uint32_t
placing_stages(const struct cairn_agent *agent)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        const struct session *session = &agent->sessions[i];

        if (session->used && session->trainer && agent->placing->asked[i].serial == session->serial)
            return agent->placing->asked[i].stages;
    }
    return agent->placing->newest.offer.stages;
}

void
placing_repeat(struct cairn_agent *agent)
{
    const struct placing_state *state = agent->placing;

    if (state && state->newest.offer.count > 0 && agent_now_ns(agent) >= state->told_ns + repeat_ns)
        tell_agents(agent);
}

void
placing_fill(struct cairn_agent *agent, struct operator_node *out)
{
    struct placing_state *state = agent->placing;

    if (!state || state->newest.offer.count == 0)
        return;
    out->offer_number = state->newest.offer.number;
    out->offer_changes = count_changes(&state->newest, cairn_clock_wall_ns(&agent->clock));
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        const struct session *session = &agent->sessions[i];

        if (!session->used || !session->trainer || state->asked[i].serial != session->serial)
            continue;
        out->offer_askers++;
        out->offer_takers += state->asked[i].number == state->newest.offer.number;
    }
}

void
placing_message(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct placing_state *state = agent->placing;
    struct record record;
    char text[TEXT_BYTES];

    if (!state || !unpack_record(message->bytes, message->bytes_len, &record) ||
        record.offer.number <= state->newest.offer.number || !store(agent, &record))
        return;
    state->newest = record;
    describe(&record.offer, text);
    CAIRN_LOG_AT(INFO, "replan: offer %" PRIu64 " of node %u: micro-batches %s",
                 record.offer.number, message->from, text);
    tell_sessions(agent);
}

bool
placing_frame(struct cairn_agent *agent, struct session *session,
              const struct cairn_session_frame *frame)
{
    struct placing_state *state = agent->placing;
    struct cairn_session_shares shares;
    char text[TEXT_BYTES];

    if (!state || !session->trainer || cairn_session_take_shares(frame, &shares) != CAIRN_OK)
        return false;
    state->asked[session->index] = (struct asked){session->serial, shares.number, shares.stages};
    if (shares.number > 0) {
        describe(&shares, text);
        CAIRN_LOG_AT(INFO, "replan: rank=%u has taken offer %" PRIu64 ": micro-batches %s",
                     session->hello.rank, shares.number, text);
    }
    tell_session(agent, session);
    return true;
}

/* ---- life ---- */

cairn_err
placing_open(struct cairn_agent *agent)
{
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;

    if (agent->config.plan_policy != CAIRN_CONFIG_ENFORCE)
        return CAIRN_OK;
    agent->placing = calloc(1, sizeof *agent->placing);
    if (!agent->placing)
        return CAIRN_NOMEM;
    if (cairn_catalog_get(agent->catalog, CAIRN_TABLE_VERDICTS, offer_key, sizeof offer_key - 1,
                          &bytes, &bytes_len) == CAIRN_OK &&
        !unpack_record(bytes, bytes_len, &agent->placing->newest)) {
        CAIRN_LOG_AT(WARN, "catalog: the stored offer of shares is damaged: it is forgotten");
        memset(&agent->placing->newest, 0, sizeof agent->placing->newest);
    }
    free(bytes);
    return CAIRN_OK;
}

void
placing_close(struct cairn_agent *agent)
{
    free(agent->placing);
    agent->placing = NULL;
}
