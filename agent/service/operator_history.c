/* agent/service/operator_history.c - answers "history" and "report"; see operator_history.h. */
#include "agent/service/operator_history.h"

#include "agent/history/report.h"
#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/recorder.h"
#include "agent/process/service_message.h"
#include "agent/process/step.h"
#include "agent/service/operator_histories.h"
#include "agent/service/operator_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ASK = 32, /* in an OPERATOR message's `verb`; other files have lower numbers */
    ANSWER = 33,
    GATHER_MS = 2000,
    NS_PER_US = 1000
};

/* ---- gathering ---- */

static void
send_part(struct cairn_agent *agent, uint32_t to, uint32_t verb, uint64_t number, uint64_t offset,
          uint64_t total, const uint8_t *bytes, size_t len)
{
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_OPERATOR,
                                            .from = agent->config.node,
                                            .to = to,
                                            .verb = verb,
                                            .request = number,
                                            .offset = offset,
                                            .total = total,
                                            .bytes = bytes,
                                            .bytes_len = (uint32_t)len};

    mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
}

static bool
take_own(struct cairn_agent *agent, struct operator_histories *histories)
{
    const struct history_book *book = recorder_book(agent);
    uint8_t *bytes = NULL;
    size_t len = 0;
    bool taken;

    if (!book || histories_pack(book, &bytes, &len) != CAIRN_OK)
        return false;
    taken = histories_take(histories, agent->config.node, 0, len, bytes, len);
    free(bytes);
    return taken;
}

static bool
is_waited_for(const struct cairn_agent *agent, const struct request *request, uint32_t node)
{
    return node != agent->config.node && cairn_core_alive(agent->core, node) &&
           request->histories->nodes[node].state < HISTORIES_WHOLE;
}

bool
request_history_begin(struct cairn_agent *agent, struct request *request)
{
    request->histories = histories_create(agent->config.node_count);
    if (!request->histories || !take_own(agent, request->histories))
        return false;
    request->waiting |= WAIT_HISTORIES;
    request->gather_until_ns = agent_now_ns(agent) + GATHER_MS * CAIRN_NS_PER_MS;
    for (uint32_t i = 0; i < agent->config.node_count; i++)
        if (is_waited_for(agent, request, i))
            send_part(agent, i, ASK, request->number, 0, 0, NULL, 0);
    request_history_tick(agent, request);
    return true;
}

void
request_history_tick(struct cairn_agent *agent, struct request *request)
{
    bool waits = agent_now_ns(agent) < request->gather_until_ns, any = false;

    for (uint32_t i = 0; waits && i < agent->config.node_count; i++)
        any |= is_waited_for(agent, request, i);
    if (!any)
        request->waiting &= ~(uint32_t)WAIT_HISTORIES;
}

static void
answer_peer(struct cairn_agent *agent, const struct cairn_service_message *ask)
{
    const struct history_book *book = recorder_book(agent);
    uint8_t *bytes = NULL;
    size_t len = 0, at = 0, part;

    if (!book || histories_pack(book, &bytes, &len) != CAIRN_OK)
        return;
    do {
        part = len - at < HISTORIES_PART_BYTES ? len - at : HISTORIES_PART_BYTES;
        send_part(agent, ask->from, ANSWER, ask->request, at, len, bytes + at, part);
        at += part;
    } while (at < len);
    free(bytes);
}

bool
request_history_message(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct request *request;

    if (message->verb == ASK) {
        answer_peer(agent, message);
        return true;
    }
    if (message->verb != ANSWER)
        return false;
    request = request_find(agent, message->request);
    if (!request || !(request->waiting & WAIT_HISTORIES))
        return true;
    (void)histories_take(request->histories, message->from, message->offset, message->total,
                         message->bytes, message->bytes_len);
    request_history_tick(agent, request);
    if (!(request->waiting & WAIT_HISTORIES))
        agent->operators->advance(agent, request);
    return true;
}

/* ---- writing ---- */

static void
write_if(struct cairn_json_writer *writer, const char *key, uint64_t value, uint64_t none)
{
    if (value != none)
        cairn_json_put_u64(writer, key, value);
}

static void
write_seconds(struct cairn_json_writer *writer, const char *key, uint64_t ns)
{
    cairn_json_put_double(writer, key, (double)ns / (double)CAIRN_NS_PER_S);
}

static void
write_ms(struct cairn_json_writer *writer, const char *key, uint64_t ns)
{
    cairn_json_put_double(writer, key, (double)(ns / NS_PER_US) / 1e3);
}

static void
write_entry(struct cairn_json_writer *writer, const struct history_list *lists, uint32_t list_count,
            const struct history_entry *entry)
{
    const struct history_event *event = &entry->event;
    char text[2 * HISTORY_TEXT_BYTES], id[48];

    snprintf(id, sizeof id, "%u.%llu", entry->node, (unsigned long long)event->number);
    cairn_json_write_object_begin(writer);
    cairn_json_put_string(writer, "id", id);
    cairn_json_put_string(writer, "kind", history_kind_name(event->kind));
    cairn_json_put_u64(writer, "node", entry->node);
    cairn_json_put_u64(writer, "wall_ns", event->wall_ns);
    write_if(writer, "until_wall_ns", event->until_wall_ns, event->wall_ns);
    cairn_json_put_u64(writer, "epoch", cairn_epoch_number(event->at.epoch));
    cairn_json_put_u64(writer, "run", event->at.run);
    cairn_json_put_u64(writer, "step", event->at.step);
    cairn_json_put_string(writer, "text", history_event_describe(event, text, sizeof text));
    if (event->text[0])
        cairn_json_put_string(writer, "why", event->text);
    if (event->generation.step) {
        cairn_json_put_u64(writer, "generation_epoch", cairn_epoch_number(event->generation.epoch));
        cairn_json_put_u64(writer, "generation_step", event->generation.step);
    }
    write_if(writer, "last_step", event->last_step, 0);
    write_if(writer, "count", event->count, 0);
    write_if(writer, "captures", event->captures, 0);
    write_if(writer, "subject", event->subject, 0);
    write_if(writer, "bytes", event->bytes, 0);
    write_if(writer, "took_ns", event->took_ns, 0);
    write_if(writer, "change", event->change, 0);
    write_if(writer, "of_node", event->node, HISTORY_NONE);
    write_if(writer, event->kind == HISTORY_OPERATOR ? "user" : "other_node", event->other,
             HISTORY_NONE);
    write_if(writer, "rank", event->rank, HISTORY_NONE);
    if (event->rate > 0) {
        cairn_json_put_double(writer, "rate", event->rate);
    }
    if (event->kind == HISTORY_REPAIR || event->kind == HISTORY_RESTORE ||
        event->kind == HISTORY_VERIFY || event->kind == HISTORY_RESUME) {
        cairn_json_put_bool(writer, "ok", event->err == CAIRN_OK);
    }
    if (event->err)
        cairn_json_put_string(writer, "error", cairn_err_text((cairn_err)event->err));
    cairn_json_put_array(writer, "seen_by");
    for (uint32_t l = 0; l < list_count; l++)
        if (entry->seen[l / 64] >> l % 64 & 1)
            cairn_json_write_u64(writer, lists[l].node);
    cairn_json_write_array_end(writer);
    cairn_json_write_object_end(writer);
}

/* Which nodes' histories this is. */
static void
write_nodes(struct cairn_json_writer *writer, const struct operator_histories *histories)
{
    static const char *const states[] = {[HISTORIES_NONE] = "silent",
                                         [HISTORIES_PARTLY] = "silent",
                                         [HISTORIES_WHOLE] = "whole",
                                         [HISTORIES_DAMAGED] = "damaged"};

    cairn_json_put_array(writer, "nodes");
    for (uint32_t i = 0; i < histories->node_count; i++) {
        cairn_json_write_object_begin(writer);
        cairn_json_put_u64(writer, "node", i);
        cairn_json_put_string(writer, "history", states[histories->nodes[i].state]);
        cairn_json_put_u64(writer, "events", histories->nodes[i].count);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
}

static void
write_events(struct cairn_json_writer *writer, const struct history_list *lists,
             uint32_t list_count, const struct history_merge *merge, uint64_t since_wall_ns)
{
    cairn_json_put_array(writer, "events");
    for (uint32_t i = 0; i < merge->count; i++)
        if (merge->entries[i].event.until_wall_ns >= since_wall_ns)
            write_entry(writer, lists, list_count, &merge->entries[i]);
    cairn_json_write_array_end(writer);
}

static void
write_report(struct cairn_json_writer *writer, const struct history_report *report,
             uint64_t configured)
{
    cairn_json_put_u64(writer, "from_wall_ns", report->from_wall_ns);
    cairn_json_put_u64(writer, "until_wall_ns", report->until_wall_ns);
    cairn_json_put_bool(writer, "running", report->is_running);
    write_seconds(writer, "wall_seconds", report->until_wall_ns - report->from_wall_ns);
    write_seconds(writer, "productive_seconds", report->productive_ns);
    write_seconds(writer, "redone_seconds", report->redone_ns);
    write_seconds(writer, "snapshot_wait_seconds", report->snapshots_ns);
    write_seconds(writer, "straggler_wait_seconds", report->stragglers_ns);
    write_seconds(writer, "down_seconds", report->down_ns);
    cairn_json_put_u64(writer, "steps", report->steps);
    cairn_json_put_u64(writer, "redone_steps", report->redone_steps);
    cairn_json_put_u64(writer, "lives", report->lives);
    cairn_json_put_u64(writer, "faults", report->faults);
    write_ms(writer, "step_ms", report->step_ns);
    cairn_json_put_u64(writer, "snapshots", report->captures);
    write_ms(writer, "snapshot_cost_ms", report->cost_ns);
    write_ms(writer, "protect_ms", report->protect_ns);
    write_seconds(writer, "between_faults_seconds", report->between_faults_ns);
    cairn_json_put_bool(writer, "no_fault_seen", report->is_bound);
    cairn_json_put_u64(writer, "configured_every_steps", configured);
    cairn_json_write_key(writer, "best_every_steps");
    if (report->best_steps)
        cairn_json_write_u64(writer, report->best_steps);
    else
        cairn_json_write_null(writer);
    write_seconds(writer, "best_interval_seconds", report->best_steps ? report->best_ns : 0);
}

void
request_history_answer(struct cairn_agent *agent, struct request *request)
{
    uint64_t now_ns = cairn_clock_wall_ns(&agent->clock), since_ns = 0;
    struct history_list *lists = calloc(agent->config.node_count, sizeof *lists);
    struct history_merge merge = {0};
    struct history_report report;
    struct cairn_json_writer writer;
    uint32_t list_count = 0;
    cairn_err err = lists ? histories_read(request->histories, lists, &list_count) : CAIRN_NOMEM;

    if (request->since_ns && request->since_ns < now_ns)
        since_ns = now_ns - request->since_ns;
    if (!err)
        err = history_merge(lists, list_count, &merge);
    if (!err && request->verb == VERB_REPORT)
        err = history_report(lists, list_count, &merge, since_ns, now_ns, &report);
    if (err) {
        request_refuse(agent, request, request_exit_code(err), "the agent is out of memory");
    } else {
        cairn_json_writer_init(&writer);
        cairn_json_write_object_begin(&writer);
        cairn_json_put_u64(&writer, "schema", 1);
        cairn_json_put_string(&writer, "job", agent->config.job);
        cairn_json_put_u64(&writer, "wall_ns", now_ns);
        write_nodes(&writer, request->histories);
        if (request->verb == VERB_REPORT)
            write_report(&writer, &report, agent->config.snapshot_every_steps);
        else
            write_events(&writer, lists, list_count, &merge, since_ns);
        cairn_json_write_object_end(&writer);
        request_answer(agent, request, 0, &writer);
    }
    history_merge_fini(&merge);
    free(lists);
}
