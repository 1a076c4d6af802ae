/* agent/service/operator_plan.c - the requests of `cairn replan`; see operator_plan.h. */
#include "agent/service/operator_plan.h"

#include "agent/process/agent_state.h"
#include "agent/process/service_message.h"
#include "agent/process/step.h"
#include "agent/service/operator_gather.h"
#include "agent/service/operator_replan.h"
#include "agent/service/operator_request.h"
#include "agent/service/placing.h"
#include "agent/service/replanning.h"
#include "agent/service/timing_state.h"
#include "base/crc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    ANSWER_MS = 5000,
    AGAIN_MS = 500,
    EXIT_PEER = 69,
    EXIT_AGAIN = 75,
    DECIDE = 3, /* in an OPERATOR message's `verb`; operator_gather.c has 1 and 2 */
    DECIDED = 4
};

static const char *const words[] = {[PROPOSAL_APPROVE] = "approve",
                                    [PROPOSAL_DENY] = "deny",
                                    [PROPOSAL_GO_BACK] = "back",
                                    [PROPOSAL_NOW] = "now"};
enum { WORDS = sizeof words / sizeof *words };

/* 0: there is no such word. */
static enum proposal_word
word_of(const char *text)
{
    for (uint32_t i = PROPOSAL_APPROVE; i < WORDS; i++)
        if (strcmp(words[i], text) == 0)
            return (enum proposal_word)i;
    return (enum proposal_word)0;
}

bool
request_plan_parse(struct request *request, const char *word)
{
    request->plan.decision.word = word_of(word);
    return request->plan.decision.word != 0;
}

/* The agent that plans, as this one knows it; CAIRN_WATCH_NOBODY: none. */
static uint32_t
planner_of(const struct cairn_agent *agent)
{
    return agent->timing && agent->timing->watch ? cairn_watch_look(agent->timing->watch).analyst
                                                 : CAIRN_WATCH_NOBODY;
}

/* ---- messages between agents: a few lines of JSON ---- */

static void
send_decision(struct cairn_agent *agent, struct request *request)
{
    const struct proposal_decision *decision = &request->plan.decision;
    struct cairn_json_writer writer;

    request->plan.sent_ns = agent_now_ns(agent);
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_string(&writer, "decision", words[decision->word]);
    cairn_json_put_u64(&writer, "number", decision->number);
    cairn_json_put_u64(&writer, "name", decision->name);
    cairn_json_put_u64(&writer, "token", decision->token);
    cairn_json_put_u64(&writer, "for_ns", decision->for_ns);
    cairn_json_put_u64(&writer, "dry_run", request->dry_run);
    cairn_json_write_object_end(&writer);
    request_send_json(agent, request->plan.planner, DECIDE, request->number, &writer);
}

/* False: it is not a decision. */
static bool
read_decision(const struct cairn_service_message *message, struct proposal_decision *out,
              bool *dry_run)
{
    struct cairn_json_reader reader;
    char key[32], word[16] = "";

    *out = (struct proposal_decision){.node = message->from};
    *dry_run = false;
    cairn_json_reader_init(&reader, message->bytes, message->bytes_len);
    cairn_json_object_begin(&reader);
    while (cairn_json_object_next(&reader, key, sizeof key)) {
        if (strcmp(key, "decision") == 0)
            cairn_json_read_string(&reader, word, sizeof word);
        else if (strcmp(key, "number") == 0)
            out->number = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "name") == 0)
            out->name = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "token") == 0)
            out->token = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "for_ns") == 0)
            out->for_ns = cairn_json_read_u64(&reader, PROPOSAL_FOR_NS_MAX);
        else if (strcmp(key, "dry_run") == 0)
            *dry_run = cairn_json_read_u64(&reader, 1) != 0;
        else
            cairn_json_skip(&reader);
    }
    out->word = word_of(word);
    return cairn_json_reader_done(&reader) == CAIRN_OK && out->word != 0 && out->token != 0;
}

static bool
read_answer(const struct cairn_service_message *message, struct proposal_answer *out)
{
    struct cairn_json_reader reader;
    char key[32];

    *out = (struct proposal_answer){.exit_code = EXIT_PEER};
    cairn_json_reader_init(&reader, message->bytes, message->bytes_len);
    cairn_json_object_begin(&reader);
    while (cairn_json_object_next(&reader, key, sizeof key)) {
        if (strcmp(key, "exit_code") == 0)
            out->exit_code = (int)cairn_json_read_u64(&reader, 127);
        else if (strcmp(key, "number") == 0)
            out->number = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "text") == 0)
            cairn_json_read_string(&reader, out->text, sizeof out->text);
        else
            cairn_json_skip(&reader);
    }
    return cairn_json_reader_done(&reader) == CAIRN_OK;
}

/* ---- the agent that plans ---- */

/* An agent that does not know yet, or no longer, that it plans stays silent: the asker asks again,
 * or another agent. */
static void
decide_for(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct proposal_decision decision;
    struct proposal_answer answer;
    struct cairn_json_writer writer;
    bool dry_run;

    if (planner_of(agent) != agent->config.node || !read_decision(message, &decision, &dry_run))
        return;
    replanning_decide(agent, &decision, dry_run, &answer);
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_u64(&writer, "exit_code", (uint64_t)answer.exit_code);
    cairn_json_put_u64(&writer, "number", answer.number);
    cairn_json_put_string(&writer, "text", answer.text);
    cairn_json_write_object_end(&writer);
    request_send_json(agent, message->from, DECIDED, message->request, &writer);
}

/* ---- the agent that was asked ---- */

static void
take_answer(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct request *request = request_find(agent, message->request);

    if (!request || !(request->waiting & WAIT_PLANNER) || message->from != request->plan.planner ||
        !read_answer(message, &request->plan.answer))
        return;
    request->waiting &= ~(uint32_t)WAIT_PLANNER;
    agent->operators->advance(agent, request);
}

bool
request_plan_message(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    if (message->verb == DECIDE)
        decide_for(agent, message);
    else if (message->verb == DECIDED)
        take_answer(agent, message);
    else
        return false;
    return true;
}

static uint64_t
token_of(const struct cairn_agent *agent, uint64_t number)
{
    const uint64_t parts[] = {agent->incarnation, agent->config.node, number};
    uint64_t token = cairn_crc64(0, parts, sizeof parts);

    return token ? token : 1;
}

bool
request_plan_begin(struct cairn_agent *agent, struct request *request)
{
    const struct proposal_book *book = placing_book(agent);
    struct proposal_decision *decision = &request->plan.decision;

    if (decision->word == 0) {
        if (!request_gather(agent, request))
            return false;
        if (request_gathered(agent, request)) /* a job of one node */
            request->waiting &= ~(uint32_t)WAIT_PEERS;
        return true;
    }
    decision->node = agent->config.node;
    decision->token = token_of(agent, request->number);
    if (book && book->waiting.placement.number == decision->number)
        decision->name = proposal_name(&book->waiting.placement);
    else if (book && book->relaunch.placement.number == decision->number)
        decision->name = proposal_full_name(&book->relaunch);
    request->plan.planner = planner_of(agent);
    if (request->plan.planner == CAIRN_WATCH_NOBODY) {
        request_refuse(agent, request, EXIT_AGAIN,
                       "plan: no agent plans now; try again when `cairn status` shows the nodes "
                       "alive");
    } else if (request->plan.planner == agent->config.node) {
        replanning_decide(agent, decision, request->dry_run, &request->plan.answer);
        request_plan_answer(agent, request);
    } else {
        request->waiting |= WAIT_PLANNER;
        send_decision(agent, request);
    }
    return true;
}

void
request_plan_tick(struct cairn_agent *agent, struct request *request)
{
    uint64_t now_ns = agent_now_ns(agent);
    uint32_t planner = planner_of(agent);
    struct proposal_answer *answer = &request->plan.answer;

    if (planner == agent->config.node) { /* the one before is dead */
        request->waiting &= ~(uint32_t)WAIT_PLANNER;
        request->plan.planner = planner;
        replanning_decide(agent, &request->plan.decision, request->dry_run, answer);
    } else if (planner != CAIRN_WATCH_NOBODY && planner != request->plan.planner) {
        request->plan.planner = planner;
        send_decision(agent, request);
    } else if (now_ns >= request->started_ns + ANSWER_MS * CAIRN_NS_PER_MS) {
        request->waiting &= ~(uint32_t)WAIT_PLANNER;
        answer->exit_code = EXIT_PEER;
        (void)snprintf(answer->text, sizeof answer->text,
                       "node %u: its agent, which plans, has not answered for %d s; see with "
                       "`cairn replan` whether the decision was carried out, then try again",
                       request->plan.planner, ANSWER_MS / 1000);
    } else if (now_ns >= request->plan.sent_ns + AGAIN_MS * CAIRN_NS_PER_MS) {
        send_decision(agent, request);
    }
}

static void
answer_decision(struct cairn_agent *agent, struct request *request)
{
    const struct proposal_answer *answer = &request->plan.answer;
    struct cairn_json_writer writer;

    if (answer->exit_code) {
        request_refuse(agent, request, answer->exit_code, answer->text);
        return;
    }
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_u64(&writer, "schema", 1);
    cairn_json_put_bool(&writer, "dry_run", request->dry_run);
    cairn_json_put_string(&writer, "decision", words[request->plan.decision.word]);
    cairn_json_put_u64(&writer, "number", answer->number);
    cairn_json_put_string(&writer, "placement", answer->text);
    cairn_json_put_u64(&writer, "node", request->plan.planner);
    cairn_json_write_object_end(&writer);
    request_answer(agent, request, 0, &writer);
}

void
request_plan_answer(struct cairn_agent *agent, struct request *request)
{
    struct cairn_json_writer writer;
    struct operator_job job;
    struct proposal home;
    int exit_code;

    if (request->plan.decision.word != 0) {
        answer_decision(agent, request);
        return;
    }
    request_fill_job(agent, request, &job);
    job.home = replanning_home(agent, &home) ? &home : NULL;
    job.wall_ns = cairn_clock_wall_ns(&agent->clock);
    cairn_json_writer_init(&writer);
    exit_code = operator_replan_write(&writer, &job);
    request_answer(agent, request, exit_code, &writer);
}
