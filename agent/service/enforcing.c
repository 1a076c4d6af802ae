/*
 * agent/service/enforcing.c - runs the operator's command for verdicts that propose an exchange;
 * see enforcing.h. replan/live/enforce.h decides for which verdicts: only those that this agent's
 * own detector confirms now.
 *
 * The outcome of a command is stored and announced like its start. A worker waits for the command,
 * so neither the loop nor the protection does. The command decides what happens to the job: the
 * agent does nothing to a trainer.
 */
#include "agent/service/enforcing.h"

#include "agent/process/agent_state.h"
#include "agent/process/step.h"
#include "agent/service/command.h"
#include "agent/service/operator_verdicts.h"
#include "agent/service/replanning.h"
#include "agent/service/timing_analysis.h"
#include "agent/service/timing_ledger.h"
#include "agent/service/timing_state.h"
#include "base/log.h"
#include "base/worker.h"
#include "replan/live/enforce.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    SETTINGS = 4,
    SETTING_BYTES = 5120,
    LISTED_MAX = CAIRN_LEDGER_RANKS_MAX + CAIRN_LEDGER_NODES_MAX
};

struct enforcing_state {
    struct cairn_job job;
    struct cairn_agent *agent;
    struct cairn_workers *worker;
    struct cairn_enforcer by;
    atomic_bool is_closing;
    bool is_running;
    uint64_t number, began_ns;      /* the verdict whose command runs, or ran last */
    struct cairn_enforcement ended; /* how the last one did; NONE: it runs, or there was none */
    char *input;                    /* owned, while it runs */
    char settings[SETTINGS][SETTING_BYTES];
    const char *setting_list[SETTINGS + 1];
    struct cairn_command command;
};

static void
run(struct cairn_job *job)
{
    cairn_command_run(&((struct enforcing_state *)job)->command);
}

/* ---- what the command gets ---- */

static const struct cairn_ledger_entry *
find_entry(const struct cairn_ledger *ledger, uint64_t number)
{
    for (uint32_t i = 0; i < ledger->count; i++)
        if (ledger->entries[i].number == number)
            return &ledger->entries[i];
    return NULL;
}

/* Lists the nodes of a verdict: its named nodes, or else those of its listed ranks, each once.
 * Returns how many. */
static uint32_t
nodes_of(const struct cairn_agent *agent, const struct cairn_ledger_entry *entry, uint32_t *out)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < entry->node_count && i < CAIRN_LEDGER_NODES_MAX; i++)
        out[count++] = entry->nodes[i];
    for (uint32_t i = 0;
         entry->node_count == 0 && i < entry->rank_count && i < CAIRN_LEDGER_RANKS_MAX; i++) {
        uint32_t node = timing_analysis_node_of(agent, entry->ranks[i]), at = 0;

        while (at < count && out[at] != node)
            at++;
        if (at == count && node != UINT32_MAX)
            out[count++] = node;
    }
    return count;
}

/* "NAME=3 7". Nodes without room are left out; there is room for as many as are listed. */
static void
set_numbers(char *setting, const char *name, const uint32_t *items, uint32_t count)
{
    size_t used = (size_t)snprintf(setting, SETTING_BYTES, "%s=", name);

    for (uint32_t i = 0; i < count && used < SETTING_BYTES; i++)
        used +=
            (size_t)snprintf(setting + used, SETTING_BYTES - used, "%s%u", i ? " " : "", items[i]);
}

/* The hosts of the nodes' addresses, without port and without the brackets of IPv6, as a cluster's
 * own commands know them. */
static void
set_hosts(const struct cairn_agent *agent, char *setting, const uint32_t *nodes, uint32_t count)
{
    size_t used = (size_t)snprintf(setting, SETTING_BYTES, "CAIRN_HOSTS=");
    const char *between = "";

    for (uint32_t i = 0; i < count && used < SETTING_BYTES; i++) {
        const char *address =
            nodes[i] < agent->config.node_count ? agent->config.nodes[nodes[i]].address : "";
        const char *end = strrchr(address, ':');
        size_t skip = address[0] == '[', host_len = end ? (size_t)(end - address) - 2 * skip : 0;

        if (host_len == 0)
            continue;
        used += (size_t)snprintf(setting + used, SETTING_BYTES - used, "%s%.*s", between,
                                 (int)host_len, address + skip);
        between = " ";
    }
}

static void
make_settings(struct enforcing_state *state, const struct cairn_ledger_entry *entry)
{
    uint32_t ranks =
        entry->rank_count < CAIRN_LEDGER_RANKS_MAX ? entry->rank_count : CAIRN_LEDGER_RANKS_MAX;
    uint32_t nodes[LISTED_MAX] = {0}, node_count = nodes_of(state->agent, entry, nodes);

    (void)snprintf(state->settings[0], SETTING_BYTES, "CAIRN_VERDICT=%" PRIu64, entry->number);
    set_numbers(state->settings[1], "CAIRN_RANKS", entry->ranks, ranks);
    set_numbers(state->settings[2], "CAIRN_NODES", nodes, node_count);
    set_hosts(state->agent, state->settings[3], nodes, node_count);
    for (int i = 0; i < SETTINGS; i++)
        state->setting_list[i] = state->settings[i];
}

/* Writes the verdict as the status has it. CAIRN_NOMEM. */
static cairn_err
make_input(struct enforcing_state *state, const struct cairn_ledger_entry *entry)
{
    struct operator_job job = {.config = &state->agent->config,
                               .ledger = &state->agent->timing->ledger};
    struct cairn_json_writer writer;
    cairn_err err;

    cairn_json_writer_init(&writer);
    operator_verdict_write(&writer, &job, entry);
    err = cairn_json_writer_done(&writer, &state->input, &state->command.input_bytes);
    cairn_json_writer_fini(&writer);
    state->command.input = state->input;
    return err;
}

/* ---- its end ---- */

static void
say_output(const struct enforcing_state *state)
{
    struct cairn_command_piece piece;
    size_t at = 0;

    while (cairn_command_next_piece(&state->command, &at, &piece))
        CAIRN_LOG_AT(INFO, "enforce: verdict=%" PRIu64 " says%s: %.*s%s", state->number,
                     piece.is_continuing ? " on" : "", (int)piece.len, piece.text,
                     piece.is_continued ? " ..." : "");
    if (state->command.is_cut)
        CAIRN_LOG_AT(
            INFO, "enforce: verdict=%" PRIu64 " printed more than %d bytes: the rest is left out",
            state->number, CAIRN_COMMAND_OUTPUT_BYTES);
}

bool
enforcing_add_end(struct cairn_agent *agent)
{
    const struct enforcing_state *state = agent->enforcing;

    return state && state->ended.state != CAIRN_ENFORCEMENT_NONE &&
           cairn_enforce_end(&agent->timing->ledger, &state->by, state->number, state->ended.state,
                             state->ended.value, state->ended.ended_wall_ns);
}

/* Records how the command ended, and logs it. */
static void
end(struct enforcing_state *state, enum cairn_enforcement_state how, uint32_t value)
{
    struct cairn_agent *agent = state->agent;
    struct cairn_enforcement ended = {.state = how, .node = agent->config.node, .value = value};
    char text[CAIRN_ENFORCE_TEXT_BYTES];

    free(state->input);
    state->input = NULL;
    state->is_running = false;
    state->by.running = 0;
    ended.ended_wall_ns = cairn_clock_wall_ns(&agent->clock);
    state->ended = ended;
    cairn_enforce_describe(&ended, text, sizeof text);
    CAIRN_LOG_AT(WARN, "enforce: verdict=%" PRIu64 ": %s; took_ms=%" PRIu64, state->number, text,
                 (agent_now_ns(agent) - state->began_ns) / CAIRN_NS_PER_MS);
    if (!enforcing_add_end(agent))
        return; /* the list is another agent's by now, and lacks it: announced again when a list
                 * comes that has it */
    (void)timing_store(agent);
    if (!agent->stopping)
        timing_tell_changes(agent);
}

static void
done(struct cairn_job *job)
{
    struct enforcing_state *state = (struct enforcing_state *)job;

    say_output(state);
    end(state, state->command.end, state->command.value);
}

/* ---- its begin ---- */

static void
start(struct enforcing_state *state, const struct cairn_ledger_entry *entry)
{
    struct cairn_agent *agent = state->agent;

    state->number = entry->number;
    state->began_ns = agent_now_ns(agent);
    state->by.running = entry->number;
    state->ended = (struct cairn_enforcement){.state = CAIRN_ENFORCEMENT_NONE};
    make_settings(state, entry);
    CAIRN_LOG_AT(WARN, "enforce: verdict=%" PRIu64 ": runs %s; %s %s %s", state->number,
                 agent->config.enforce_command.text, state->settings[1], state->settings[2],
                 state->settings[3]);
    if (make_input(state, entry) != CAIRN_OK) {
        end(state, CAIRN_ENFORCEMENT_NOT_STARTED, ENOMEM);
        return;
    }
    if (!timing_store(agent)) { /* after a crash nobody would know that it was run */
        end(state, CAIRN_ENFORCEMENT_NOT_STARTED, EIO);
        return;
    }
    timing_tell_changes(agent);
    state->is_running = true;
    if (cairn_workers_submit(state->worker, &state->job) != CAIRN_OK)
        end(state, CAIRN_ENFORCEMENT_NOT_STARTED, EAGAIN);
}

/* The analyst settles runs whose agent is gone, even if it runs no command itself. */
void
enforcing_turn(struct cairn_agent *agent)
{
    struct enforcing_state *state = agent->enforcing;
    struct timing_state *timing = agent->timing;
    const struct cairn_enforcer here = {.node = agent->config.node,
                                        .incarnation = agent->incarnation};
    uint64_t wall_ns = cairn_clock_wall_ns(&agent->clock), number;
    struct cairn_live_view view;

    if (agent->stopping)
        return;
    if (cairn_enforce_settle(&timing->ledger, state ? &state->by : &here, timing->eligible,
                             agent->config.node_count, wall_ns))
        timing_tell_changes(agent);
    if (!state)
        return;
    (void)timing_analysis_look(agent, &view);
    state->by.run = view.run;
    state->by.exchange_ns = replanning_standstill_ns();
    number = state->is_running ? 0
                               : cairn_enforce_next(&timing->ledger, &state->by,
                                                    agent->config.exchanges_per_day, wall_ns);
    if (number != 0)
        start(state, find_entry(&timing->ledger, number));
}

/* ---- life ---- */

cairn_err
enforcing_open(struct cairn_agent *agent)
{
    const struct cairn_enforcer by = {.node = agent->config.node,
                                      .incarnation = agent->incarnation};
    char error[CAIRN_CONFIG_ERROR_BYTES];
    struct enforcing_state *state;
    cairn_err err;

    (void)cairn_enforce_settle(&agent->timing->ledger, &by, NULL, 0,
                               cairn_clock_wall_ns(&agent->clock));
    if (agent->config.verdict_policy != CAIRN_CONFIG_ENFORCE) {
        if (agent->config.enforce_command.count > 0)
            CAIRN_LOG_AT(WARN, "agent: there is an enforce_command, but verdict_policy is not "
                               "enforce: it is never run");
        return CAIRN_OK;
    }
    err = cairn_command_check(&agent->config, error, sizeof error);
    if (err) {
        CAIRN_LOG_AT(ERROR, "agent: %s", error);
        return err;
    }
    state = calloc(1, sizeof *state);
    if (!state)
        return CAIRN_NOMEM;
    agent->enforcing = state;
    state->job = (struct cairn_job){.run = run, .done = done};
    state->agent = agent;
    state->by = by;
    atomic_init(&state->is_closing, false);
    state->command.what = &agent->config.enforce_command;
    state->command.settings = state->setting_list;
    state->command.limit_ns = CAIRN_ENFORCE_LIMIT_S * CAIRN_NS_PER_S;
    state->command.is_closing = &state->is_closing;
    return cairn_workers_start(agent->loop, 1, 1, &state->worker);
}

void
enforcing_close(struct cairn_agent *agent)
{
    struct enforcing_state *state = agent->enforcing;

    if (!state)
        return;
    atomic_store(&state->is_closing, true);
    cairn_workers_stop(state->worker);
    free(state->input);
    free(state);
    agent->enforcing = NULL;
}
