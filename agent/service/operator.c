/*
 * agent/service/operator.c - operators' requests: parsed, begun, taken through their stages.
 *
 * A request is one frame of JSON:
 *
 *   "verb"             one of verb_names
 *   "dry_run": 1       change nothing, where the verb takes it
 *   "fresh": 1         of a restore: begin an epoch with nothing
 *   "epoch", "step"    the wanted generation, as people name it
 *   "to"               the directory to export to
 *   "change", "node", "address", "force": 1     of a node: operator_fleet.c
 *   "node", "rate"     of a drill: nodes, such as "3,5", and bytes per second: operator_drill.c
 *   "decision", "number", "for_ns"              of replan: operator_plan.c
 *   "since_ns"         of history and report: how long ago they begin
 *   "steps", "until", "of", "token", "offset"   of trace: operator_trace.h
 *
 * The answer is JSON in one or more OPERATOR_REPLY frames, whose texts follow one another. The last
 * frame has `final` and the exit code.
 *
 * A request waits for sources, a bit each. When none is left, its next stage begins:
 *
 *   PEERS    the other agents' views, by SERVICE messages, for at most a second
 *   CORE     the protocol core's reply
 *   FILES    a worker reads the spill directory
 *   EXPORT   an export writes
 *   RETRY    a pause before an export is tried again
 *   PLANNER  the answer of the agent that plans
 *   DRILL    the agent that rehearses the loss of nodes
 *   HISTORIES  the other agents' histories, for at most two seconds
 *   TRACE    the recordings of another node
 *   PROBE    the other agents' answers, one agent after the other
 *
 *   status, snapshots            PEERS FILES ─► answer
 *   snapshot                     CORE ─► answer
 *   restore                      CORE ─► answer, with the PEERS that answered meanwhile
 *   restore of a wanted          [FILES ─►] CORE (a dry run: what would be taken) ─► [CORE]
 *     generation, or an export     ─► [EXPORT] ─► answer
 *   export of what is ready
 *     and whole                  EXPORT ─► answer
 *   verify                       CORE ─► PEERS FILES ─► answer
 *   node                         CORE ─► answer
 *   replan                       PEERS, or PLANNER for a decision ─► answer
 *   drill                        DRILL, one erasure group after the other ─► answer
 *   peers                        PROBE ─► answer
 *   keep                         answer; all agents write what memory holds to their disks
 *   history, report              HISTORIES ─► answer
 *   launch                       PEERS, unless only this agent is asked ─► answer
 *   trace                        [TRACE] ─► answer, which is not JSON
 *
 * Invariant: after a reply of the core the next stage begins from a posted call, never inside the
 * core's step.
 */
#include "agent/service/operator.h"

#include "agent/process/agent_state.h"
#include "agent/process/recorder.h"
#include "agent/process/step.h"
#include "agent/service/history.h"
#include "agent/service/keep.h"
#include "agent/service/operator_drill.h"
#include "agent/service/operator_fleet.h"
#include "agent/service/operator_gather.h"
#include "agent/service/operator_health.h"
#include "agent/service/operator_history.h"
#include "agent/service/operator_peers.h"
#include "agent/service/operator_plan.h"
#include "agent/service/operator_report.h"
#include "agent/service/operator_request.h"
#include "agent/service/operator_restore.h"
#include "agent/service/operator_state.h"
#include "agent/service/operator_view.h"
#include "agent/service/spill.h"
#include "base/log.h"
#include "base/worker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES_MS = 3000 };

static const char *const verb_names[] = {
    [VERB_STATUS] = "status",   [VERB_SNAPSHOTS] = "snapshots", [VERB_SNAPSHOT] = "snapshot",
    [VERB_RESTORE] = "restore", [VERB_VERIFY] = "verify",       [VERB_NODE] = "node",
    [VERB_REPLAN] = "replan",   [VERB_LAUNCH] = "launch",       [VERB_KEEP] = "keep",
    [VERB_DRILL] = "drill",     [VERB_HISTORY] = "history",     [VERB_REPORT] = "report",
    [VERB_TRACE] = "trace",     [VERB_PEERS] = "peers"};

/* ---- status and snapshots ---- */

static void
answer_views(struct cairn_agent *agent, struct request *request)
{
    static const int exit_codes[] = {
        [OPERATOR_OK] = 0, [OPERATOR_WARN] = 2, [OPERATOR_CRITICAL] = 3};
    struct operator_health *health = calloc(1, sizeof *health);
    struct cairn_json_writer writer;
    struct operator_job job;
    int exit_code = 0;

    if (!health) {
        request_refuse(agent, request, 1, "the agent is out of memory");
        return;
    }
    request_fill_job(agent, request, &job);
    cairn_json_writer_init(&writer);
    if (request->verb == VERB_STATUS) {
        operator_health_find(&job, health);
        operator_write_status(&writer, &job, health, agent->config.node);
        exit_code = exit_codes[health->level];
    } else {
        operator_write_snapshots(&writer, &job);
        exit_code = job.files->err ? request_exit_code(job.files->err) : 0;
    }
    free(health);
    request_answer(agent, request, exit_code, &writer);
}

/* ---- the core ---- */

static void
run_posted(void *context)
{
    struct cairn_agent *agent = context;

    agent->operators->posted = false;
    operator_tick(agent);
}

void
operator_reply(struct cairn_agent *agent, const struct cairn_action_reply *reply)
{
    struct request *request = request_find(agent, reply->request);
    struct cairn_core_view view;

    if (!request || !(request->waiting & WAIT_CORE))
        return;
    cairn_core_look(agent->core, &view);
    if (request->verb == VERB_SNAPSHOT) {
        request->step = reply->text ? strtoull(reply->text, NULL, 10) : 0;
    } else if (reply->err == CAIRN_AGAIN && reply->generation.step == 0 && reply->text &&
               reply->text[0]) {
        /* refused because another operation runs: the outcome is that one's */
        request->restored.outcome =
            (struct cairn_outcome){.err = CAIRN_AGAIN, .epoch = view.active};
        snprintf(request->restored.outcome.text, sizeof request->restored.outcome.text, "%s",
                 reply->text);
    } else {
        request->restored.outcome = *cairn_core_outcome(agent->core);
        /* a dry run changes no epoch, so only its text tells where the generation is */
        request->restored.from_files =
            reply->err == CAIRN_OK &&
            strstr(request->restored.outcome.text, ": chosen from the spilled checkpoint\n");
    }
    request->restored.outcome.err = reply->err;
    request->waiting &= ~(uint32_t)WAIT_CORE;
    if (!agent->operators->posted && cairn_loop_post(agent->loop, run_posted, agent) ==
                                         CAIRN_OK) /* else the next tick does it */
        agent->operators->posted = true;
}

/* ---- stages ---- */

static void
answer_snapshot(struct cairn_agent *agent, struct request *request)
{
    struct cairn_json_writer writer;
    cairn_err err = request->restored.outcome.err;

    if (err) {
        request_refuse(
            agent, request, err == CAIRN_NOT_FOUND ? 75 : request_exit_code(err),
            err == CAIRN_NOT_FOUND ? "no trainer takes snapshots on this node now (none "
                                     "is attached, or a restore runs); start the "
                                     "trainers, or ask an agent whose node trains"
            : err == CAIRN_AGAIN
                ? "no step has ended since this agent started; ask again after the next step"
                : cairn_err_text(err));
        return;
    }
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_u64(&writer, "schema", 1);
    cairn_json_put_u64(&writer, "step", request->step);
    cairn_json_write_object_end(&writer);
    request_answer(agent, request, 0, &writer);
}

/* A dry run of `snapshot`: all trainers can still take the step after the next. */
static void
foresee_snapshot(struct cairn_agent *agent, struct request *request)
{
    struct cairn_core_view view;

    cairn_core_look(agent->core, &view);
    request->step = view.last_step + 2;
    if (view.fenced || view.self_member == UINT32_MAX || agent->regions.registered_ranks == 0)
        request->restored.outcome.err = CAIRN_NOT_FOUND;
    else if (view.last_step == 0)
        request->restored.outcome.err = CAIRN_AGAIN;
    answer_snapshot(agent, request);
}

static void
answer_launcher(struct cairn_agent *agent, struct request *request)
{
    struct cairn_json_writer writer;
    struct operator_job job;

    request_fill_job(agent, request, &job);
    cairn_json_writer_init(&writer);
    operator_write_launchers(&writer, &job, agent->config.node);
    request_answer(agent, request, 0, &writer);
}

/* Has all agents write the ready generation to their disks. A status shows whether they have. */
static void
answer_keep(struct cairn_agent *agent, struct request *request)
{
    struct cairn_json_writer writer;
    struct cairn_core_view view;

    cairn_core_look(agent->core, &view);
    if (view.ready.step == 0) {
        request_refuse(agent, request, 4, "no generation is held ready");
        return;
    }
    keep_everywhere(agent);
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_u64(&writer, "schema", 1);
    cairn_json_put_u64(&writer, "step", view.ready.step);
    cairn_json_write_object_end(&writer);
    request_answer(agent, request, 0, &writer);
}

/* Takes a request that waits for nothing to its next stage. */
static void
request_advance(struct cairn_agent *agent, struct request *request)
{
    if (request->waiting & ~(request->verb == VERB_RESTORE ? (uint32_t)WAIT_PEERS : 0))
        return; /* a restore does not wait for agents that only know how many steps are lost */
    switch (request->verb) {
    case VERB_STATUS:
    case VERB_SNAPSHOTS:
        answer_views(agent, request);
        break;
    case VERB_SNAPSHOT:
        answer_snapshot(agent, request);
        break;
    case VERB_RESTORE:
        request_restore_advance(agent, request);
        break;
    case VERB_VERIFY:
        request_verify_advance(agent, request);
        break;
    case VERB_NODE:
        request_fleet_answer(agent, request);
        break;
    case VERB_REPLAN:
        request_plan_answer(agent, request);
        break;
    case VERB_KEEP:
        answer_keep(agent, request);
        break;
    case VERB_DRILL:
        request_drill_advance(agent, request);
        break;
    case VERB_PEERS:
        break; /* its probe answers it */
    case VERB_LAUNCH:
        answer_launcher(agent, request);
        break;
    case VERB_HISTORY:
    case VERB_REPORT:
        request_history_answer(agent, request);
        break;
    case VERB_TRACE:
        request_trace_answer(agent, request);
        break;
    }
}

/* ---- requests ---- */

/* Nodes beyond OPERATOR_STANDBY_MAX are passed over. */
static void
parse_standby(struct cairn_json_reader *reader, struct operator_standby *out)
{
    cairn_json_array_begin(reader);
    while (cairn_json_array_next(reader)) {
        uint32_t node = (uint32_t)cairn_json_read_u64(reader, UINT32_MAX);

        if (out->count < OPERATOR_STANDBY_MAX)
            out->nodes[out->count++] = node;
    }
}

static const char *
parse(const char *text, size_t text_len, struct request *out)
{
    struct cairn_json_reader reader;
    char key[32], verb[32] = "", word[16];

    cairn_json_reader_init(&reader, text, text_len);
    cairn_json_object_begin(&reader);
    while (cairn_json_object_next(&reader, key, sizeof key)) {
        if (strcmp(key, "verb") == 0)
            cairn_json_read_string(&reader, verb, sizeof verb);
        else if (strcmp(key, "to") == 0)
            cairn_json_read_string(&reader, out->restored.directory,
                                   sizeof out->restored.directory);
        else if (strcmp(key, "dry_run") == 0)
            out->dry_run = cairn_json_read_u64(&reader, 1) != 0;
        else if (strcmp(key, "fresh") == 0)
            out->fresh = cairn_json_read_u64(&reader, 1) != 0;
        else if (strcmp(key, "epoch") == 0)
            out->wanted.epoch = cairn_json_read_u64(&reader, UINT64_MAX >> OPERATOR_EPOCH_SHIFT);
        else if (strcmp(key, "step") == 0)
            out->wanted.step = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "change") == 0)
            cairn_json_read_string(&reader, out->change.what, sizeof out->change.what);
        else if (strcmp(key, "node") == 0)
            cairn_json_read_string(&reader, out->change.node, sizeof out->change.node);
        else if (strcmp(key, "address") == 0)
            cairn_json_read_string(&reader, out->change.address, sizeof out->change.address);
        else if (strcmp(key, "force") == 0)
            out->change.force = cairn_json_read_u64(&reader, 1) != 0;
        else if (strcmp(key, "note") == 0) {
            out->note.given = true;
            cairn_json_read_string(&reader, out->note.text, sizeof out->note.text);
        } else if (strcmp(key, "reads") == 0)
            out->note.reads = cairn_json_read_u64(&reader, UINT32_MAX);
        else if (strcmp(key, "shape") == 0)
            out->note.shape = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "standby") == 0)
            parse_standby(&reader, &out->note.standby);
        else if (strcmp(key, "relaunch") == 0)
            out->note.relaunch = cairn_json_read_u64(&reader, 1) != 0;
        else if (strcmp(key, "local") == 0)
            out->note.local = cairn_json_read_u64(&reader, 1) != 0;
        else if (strcmp(key, "rate") == 0)
            out->drill.ask.rate = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "number") == 0)
            out->plan.decision.number = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "for_ns") == 0)
            out->plan.decision.for_ns = cairn_json_read_u64(&reader, PROPOSAL_FOR_NS_MAX);
        else if (strcmp(key, "since_ns") == 0)
            out->since_ns = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "steps") == 0)
            out->trace.steps = (uint32_t)cairn_json_read_u64(&reader, UINT32_MAX);
        else if (strcmp(key, "until") == 0)
            out->trace.until = (uint32_t)cairn_json_read_u64(&reader, UINT32_MAX);
        else if (strcmp(key, "of") == 0)
            out->trace.node = (uint32_t)cairn_json_read_u64(&reader, UINT32_MAX);
        else if (strcmp(key, "token") == 0)
            out->trace.token = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "offset") == 0)
            out->trace.offset = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "decision") == 0) {
            cairn_json_read_string(&reader, word, sizeof word);
            if (!cairn_json_reader_failed(&reader) && !request_plan_parse(out, word))
                cairn_json_reader_fail(&reader,
                                       "this agent does not know the decision; upgrade it");
        } else
            cairn_json_reader_fail(&reader,
                                   "this agent does not know a part of the request; upgrade it");
    }
    if (cairn_json_reader_done(&reader) != CAIRN_OK)
        return reader.why;
    for (size_t i = 0; i < sizeof verb_names / sizeof *verb_names; i++)
        if (strcmp(verb, verb_names[i]) == 0) {
            out->verb = (enum verb)i;
            return NULL;
        }
    return "this agent does not know the verb; upgrade it";
}

static void
begin_launch(struct cairn_agent *agent, struct request *request)
{
    if (request->note.given &&
        !operator_launcher_take(&agent->operators->launcher, request->serial, request->note.text)) {
        request_refuse(agent, request, 77,
                       "another launcher takes part on this node; end it first, or wait for its "
                       "end");
        return;
    }
    if (request->note.given) {
        agent->operators->launcher.reads = request->note.reads;
        agent->operators->launcher.shape = request->note.shape;
        agent->operators->launcher.standby = request->note.standby;
    }
    if (request->note.relaunch)
        agent->operators->launcher.asked_ns = agent_now_ns(agent);
    if (!(request->note.local ? request_see_peers : request_gather)(agent, request)) {
        request_refuse(agent, request, 75, "the agent is too busy; try again");
        return;
    }
    if (request_gathered(agent, request))
        request->waiting &= ~(uint32_t)WAIT_PEERS;
    request_advance(agent, request);
}

static void
begin(struct cairn_agent *agent, struct request *request)
{
    bool first_asks = request->dry_run || request->wanted.step || request->restored.directory[0];
    bool started = true;

    switch (request->verb) {
    case VERB_STATUS:
    case VERB_SNAPSHOTS:
        started = request_read_files(agent, request, OPERATOR_LOOK_LIST) &&
                  request_gather(agent, request);
        if (started && request_gathered(agent, request))
            request->waiting &= ~(uint32_t)WAIT_PEERS;
        break;
    case VERB_SNAPSHOT:
        if (request->dry_run)
            foresee_snapshot(agent, request);
        else
            request_run_core(agent, request, CAIRN_OP_SNAPSHOT);
        break;
    case VERB_RESTORE:
        started = request_gather(agent, request);
        if (started && request->restored.directory[0] && request_export_ready(agent, request))
            return;
        request->stage = request->wanted.step ? STAGE_FILES
                         : first_asks         ? STAGE_FIRST
                                              : STAGE_CHOSEN;
        if (started && request->wanted.step)
            started = request_read_files(agent, request, OPERATOR_LOOK_OPEN);
        else if (started)
            request_run_core(agent, request,
                             first_asks       ? CAIRN_OP_DRY_RUN
                             : request->fresh ? CAIRN_OP_FRESH
                                              : CAIRN_OP_RESTORE);
        break;
    case VERB_VERIFY:
        request_run_core(agent, request, request->dry_run ? CAIRN_OP_DRY_RUN : CAIRN_OP_VERIFY);
        break;
    case VERB_NODE:
        request_fleet_begin(agent, request);
        break;
    case VERB_REPLAN:
        started = request_plan_begin(agent, request);
        break;
    case VERB_KEEP:
        answer_keep(agent, request);
        return;
    case VERB_DRILL:
        request_drill_begin(agent, request);
        return;
    case VERB_PEERS:
        request_peers_begin(agent, request);
        return;
    case VERB_LAUNCH:
        begin_launch(agent, request);
        break;
    case VERB_HISTORY:
    case VERB_REPORT:
        started = request_history_begin(agent, request);
        if (started && !(request->waiting & WAIT_HISTORIES))
            request_history_answer(agent, request);
        break;
    case VERB_TRACE:
        started = request_trace_begin(agent, request);
        break;
    }
    if (!started) {
        request_refuse(agent, request, 75, "the agent is too busy; try again");
    }
}

/* Records the operator and the request, if it changes something. */
static void
record_operator(struct cairn_agent *agent, const struct session *session,
                const struct request *request)
{
    static const char *const decisions[] = {[PROPOSAL_APPROVE] = " --approve",
                                            [PROPOSAL_DENY] = " --deny",
                                            [PROPOSAL_GO_BACK] = " --back",
                                            [PROPOSAL_NOW] = " --now"};
    enum proposal_word word = request->plan.decision.word;
    char text[HISTORY_TEXT_BYTES];
    size_t used;

    if (request->dry_run || request->verb == VERB_STATUS || request->verb == VERB_SNAPSHOTS ||
        request->verb == VERB_HISTORY || request->verb == VERB_REPORT ||
        request->verb == VERB_TRACE || request->verb == VERB_PEERS ||
        (request->verb == VERB_LAUNCH && !request->note.relaunch) ||
        (request->verb == VERB_REPLAN && !word))
        return;
    used = (size_t)snprintf(text, sizeof text, "cairn %s%s", verb_names[request->verb],
                            request->fresh ? " --fresh" : "");
    if (request->wanted.step)
        used +=
            (size_t)snprintf(text + used, sizeof text - used, " --generation %" PRIu64 ":%" PRIu64,
                             request->wanted.epoch, request->wanted.step);
    if (request->verb == VERB_REPLAN)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s %" PRIu64, decisions[word],
                                 request->plan.decision.number);
    if (request->verb == VERB_LAUNCH)
        snprintf(text, sizeof text, "cairn replan --relaunch");
    else if (request->verb == VERB_NODE)
        snprintf(text + used, sizeof text - used, "%s %s %.64s %.64s",
                 request->change.force ? " --force" : "", request->change.what,
                 request->change.node, request->change.address);
    else if (request->restored.directory[0])
        snprintf(text + used, sizeof text - used, " --to %.600s", request->restored.directory);
    history_operator(agent, session, text);
}

static void
take_request(struct cairn_agent *agent, const struct session *session, const char *text,
             size_t text_len)
{
    struct request refused = {.serial = session->serial}, *request = NULL;
    const char *why;

    if (request_table(agent))
        agent->operators->advance = request_advance;
    for (uint32_t i = 0; agent->operators && !request && i < REQUESTS_MAX; i++)
        if (!agent->operators->requests[i].used)
            request = &agent->operators->requests[i];
    if (!request) {
        request_refuse(agent, &refused, 75,
                       "too many operators' requests are under way; try again");
        return;
    }
    why = parse(text, text_len, request);
    if (why) {
        request_end(request);
        request_refuse(agent, &refused, 1, why);
        return;
    }
    request->used = true;
    request->number = ++agent->operators->next_number;
    request->serial = session->serial;
    request->started_ns = agent_now_ns(agent);
    if (request->verb == VERB_RESTORE || request->verb == VERB_VERIFY)
        CAIRN_LOG_AT(INFO, "operator: %s%s", verb_names[request->verb],
                     request->dry_run ? " (dry run)" : "");
    record_operator(agent, session, request);
    begin(agent, request);
}

void
operator_message(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    if (!request_plan_message(agent, message) && !request_drill_message(agent, message) &&
        !request_history_message(agent, message) && !request_trace_message(agent, message))
        request_gather_message(agent, message);
}

bool
operator_frame(struct cairn_agent *agent, struct session *session,
               struct cairn_session_frame *frame)
{
    struct cairn_session_operator request;

    if (session->trainer || cairn_session_take_operator(frame, &request) != CAIRN_OK)
        return false;
    take_request(agent, session, request.text, request.text_bytes);
    return true;
}

/* Answers without the files if their file system hangs. */
static void
give_up_files(struct cairn_agent *agent, struct request *request)
{
    if (agent_now_ns(agent) - request->started_ns < FILES_MS * CAIRN_NS_PER_MS)
        return;
    request->files = calloc(1, sizeof *request->files);
    if (!request->files)
        return;
    request->files->configured = true;
    request->files->err = CAIRN_TIMEOUT;
    request->waiting &= ~(uint32_t)WAIT_FILES;
}

void
operator_tick(struct cairn_agent *agent)
{
    for (uint32_t i = 0; agent->operators && i < REQUESTS_MAX; i++) {
        struct request *request = &agent->operators->requests[i];

        if (!request->used)
            continue;
        if ((request->waiting & WAIT_PEERS) && request_gathered(agent, request))
            request->waiting &= ~(uint32_t)WAIT_PEERS;
        if ((request->waiting & WAIT_RETRY) && agent_now_ns(agent) >= request->retry_at_ns)
            request->waiting &= ~(uint32_t)WAIT_RETRY;
        if (request->waiting & WAIT_HISTORIES)
            request_history_tick(agent, request);
        if (request->waiting & WAIT_PLANNER)
            request_plan_tick(agent, request);
        if (request->waiting & WAIT_DRILL)
            request_drill_tick(agent, request);
        if (request->waiting & WAIT_TRACE)
            request_trace_tick(agent, request);
        if ((request->waiting & WAIT_FILES) && request->verb != VERB_VERIFY)
            give_up_files(agent, request);
        request_advance(agent, request);
    }
    request_trace_forget(agent, agent_now_ns(agent));
}

void
operator_forget(struct cairn_agent *agent, uint64_t serial)
{
    if (agent->operators)
        operator_launcher_leave(&agent->operators->launcher, serial);
    for (uint32_t i = 0; agent->operators && i < REQUESTS_MAX; i++) {
        struct request *request = &agent->operators->requests[i];

        if (!request->used || request->serial != serial)
            continue;
        request->serial = 0; /* what it set going goes on; nobody is told */
        if (request->waiting & WAIT_EXPORT) {
            spill_export_forget(agent, request->number);
            request_end(request);
        }
    }
}

void
operator_close(struct cairn_agent *agent)
{
    for (uint32_t i = 0; agent->operators && i < REQUESTS_MAX; i++)
        request_end(&agent->operators->requests[i]);
    request_trace_forget(agent, UINT64_MAX);
    if (agent->operators)
        cairn_workers_stop(agent->operators->disk);
    free(agent->operators);
    agent->operators = NULL;
}
