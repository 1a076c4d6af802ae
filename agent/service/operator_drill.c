/* agent/service/operator_drill.c - the requests of `cairn drill`; see operator_drill.h. */
#include "agent/service/operator_drill.h"

#include "agent/process/agent_state.h"
#include "agent/process/service_message.h"
#include "agent/process/step.h"
#include "agent/service/operator_request.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ASK_MS = 200,
    SILENT_MS = 5000,
    EXIT_LOST = 4,
    EXIT_USAGE = 64,
    EXIT_PEER = 69,
    EXIT_AGAIN = 75,
    DRILL = 6, /* in an OPERATOR message's `verb`; operator_gather.c and operator_plan.c have 1 to 5
                */
    DRILLED = 7
};

static const uint64_t RATE_DEFAULT = 256 << 20; /* bytes per second */

/* ---- the agent that runs the drill ---- */

static bool
read_ask(const struct cairn_service_message *message, struct drill_ask *out)
{
    struct cairn_json_reader reader;
    char key[32];

    *out = (struct drill_ask){.asker = message->from, .request = message->request};
    cairn_json_reader_init(&reader, message->bytes, message->bytes_len);
    cairn_json_object_begin(&reader);
    while (cairn_json_object_next(&reader, key, sizeof key)) {
        if (strcmp(key, "group") == 0) {
            out->group = (uint32_t)cairn_json_read_u64(&reader, UINT32_MAX);
        } else if (strcmp(key, "rate") == 0) {
            out->rate = cairn_json_read_u64(&reader, UINT64_MAX);
        } else if (strcmp(key, "nodes") == 0) {
            cairn_json_array_begin(&reader);
            while (cairn_json_array_next(&reader)) {
                uint32_t node = (uint32_t)cairn_json_read_u64(&reader, UINT32_MAX);

                if (out->node_count < DRILL_NODES_MAX)
                    out->nodes[out->node_count++] = node;
            }
        } else {
            cairn_json_skip(&reader);
        }
    }
    return cairn_json_reader_done(&reader) == CAIRN_OK && out->rate > 0 && out->node_count > 0;
}

static void
put_generation(struct cairn_json_writer *writer, const char *key,
               struct cairn_generation_id generation)
{
    cairn_json_put_array(writer, key);
    cairn_json_write_u64(writer, generation.epoch);
    cairn_json_write_u64(writer, generation.run);
    cairn_json_write_u64(writer, generation.step);
    cairn_json_write_array_end(writer);
}

static void
tell(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct cairn_json_writer writer;
    struct drill_report report;
    struct drill_ask ask;

    if (!read_ask(message, &ask))
        return;
    drill_look(agent, &ask, &report);
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_u64(&writer, "group", ask.group);
    cairn_json_put_u64(&writer, "finished", report.finished);
    cairn_json_put_u64(&writer, "survivable", report.survivable);
    cairn_json_put_u64(&writer, "err", (uint64_t)report.err);
    cairn_json_put_u64(&writer, "decoded_bytes", report.decoded_bytes);
    cairn_json_put_u64(&writer, "total_bytes", report.total_bytes);
    cairn_json_put_u64(&writer, "read_bytes", report.read_bytes);
    cairn_json_put_u64(&writer, "damaged_blocks", report.damaged_blocks);
    put_generation(&writer, "first", report.first);
    put_generation(&writer, "last", report.last);
    cairn_json_put_string(&writer, "text", report.text);
    cairn_json_write_object_end(&writer);
    request_send_json(agent, message->from, DRILLED, message->request, &writer);
}

/* ---- the agent that was asked ---- */

static struct cairn_generation_id
read_generation(struct cairn_json_reader *reader)
{
    uint64_t numbers[3] = {0};
    uint32_t count = 0;

    cairn_json_array_begin(reader);
    while (cairn_json_array_next(reader)) {
        uint64_t number = cairn_json_read_u64(reader, UINT64_MAX);

        if (count < 3)
            numbers[count++] = number;
    }
    return (struct cairn_generation_id){.epoch = numbers[0], .run = numbers[1], .step = numbers[2]};
}

static bool
read_report(const struct cairn_service_message *message, struct drill_report *out, uint64_t *group)
{
    struct cairn_json_reader reader;
    char key[32];

    *out = (struct drill_report){0};
    *group = UINT64_MAX;
    cairn_json_reader_init(&reader, message->bytes, message->bytes_len);
    cairn_json_object_begin(&reader);
    while (cairn_json_object_next(&reader, key, sizeof key)) {
        if (strcmp(key, "group") == 0)
            *group = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "finished") == 0)
            out->finished = cairn_json_read_u64(&reader, 1) != 0;
        else if (strcmp(key, "survivable") == 0)
            out->survivable = cairn_json_read_u64(&reader, 1) != 0;
        else if (strcmp(key, "err") == 0)
            out->err = (cairn_err)cairn_json_read_u64(&reader, INT32_MAX);
        else if (strcmp(key, "decoded_bytes") == 0)
            out->decoded_bytes = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "total_bytes") == 0)
            out->total_bytes = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "read_bytes") == 0)
            out->read_bytes = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "damaged_blocks") == 0)
            out->damaged_blocks = cairn_json_read_u64(&reader, UINT64_MAX);
        else if (strcmp(key, "first") == 0)
            out->first = read_generation(&reader);
        else if (strcmp(key, "last") == 0)
            out->last = read_generation(&reader);
        else if (strcmp(key, "text") == 0)
            cairn_json_read_string(&reader, out->text, sizeof out->text);
        else
            cairn_json_skip(&reader);
    }
    return cairn_json_reader_done(&reader) == CAIRN_OK;
}

static void
send_ask(struct cairn_agent *agent, struct request *request)
{
    struct operator_drill *drill = &request->drill;
    struct cairn_json_writer writer;

    drill->sent_ns = agent_now_ns(agent);
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_u64(&writer, "group", drill->ask.group);
    cairn_json_put_u64(&writer, "rate", drill->ask.rate);
    cairn_json_put_array(&writer, "nodes");
    for (uint32_t i = 0; i < drill->ask.node_count; i++)
        cairn_json_write_u64(&writer, drill->ask.nodes[i]);
    cairn_json_write_array_end(&writer);
    cairn_json_write_object_end(&writer);
    request_send_json(agent, drill->runner, DRILL, request->number, &writer);
}

static bool
is_lost(const struct drill_ask *ask, uint32_t holder)
{
    for (uint32_t i = 0; i < ask->node_count; i++)
        if (ask->nodes[i] == holder)
            return true;
    return false;
}

/*
 * The next group, from *group on, in which a lost node holds a part; its lost parts, and a
 * surviving member, preferably this agent: UINT32_MAX without one. False: no more groups.
 */
static bool
find_group(const struct cairn_agent *agent, const struct cairn_core_view *core,
           const struct drill_ask *ask, uint32_t *group, uint32_t *lost, uint32_t *runner)
{
    for (; *group < core->ready_roster->group_count; ++*group) {
        const struct cairn_roster_group *members = &core->ready_roster->groups[*group];

        *lost = 0;
        *runner = UINT32_MAX;
        for (uint32_t p = 0; p < members->count; p++) {
            uint32_t holder = cairn_core_holder(agent->core, core->ready, members->members[p]);

            if (is_lost(ask, holder))
                ++*lost;
            else if (holder == agent->config.node ||
                     (*runner == UINT32_MAX && holder != UINT32_MAX &&
                      cairn_core_alive(agent->core, holder)))
                *runner = holder;
        }
        if (*lost > 0)
            return true;
    }
    return false;
}

static void
answer(struct cairn_agent *agent, struct request *request, const struct drill_report *last)
{
    const struct drill_report *total = &request->drill.total;
    struct cairn_json_writer writer;
    uint64_t took_ns = agent_now_ns(agent) - request->started_ns;

    if (last->err) {
        request_refuse(agent, request, request_exit_code(last->err), last->text);
        return;
    }
    CAIRN_LOG_AT(INFO, "operator: drill nodes=%s survivable=%d", request->change.node,
                 last->survivable);
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_u64(&writer, "schema", 1);
    cairn_json_put_bool(&writer, "survivable", last->survivable);
    cairn_json_put_array(&writer, "nodes");
    for (uint32_t i = 0; i < request->drill.ask.node_count; i++)
        cairn_json_write_u64(&writer, request->drill.ask.nodes[i]);
    cairn_json_write_array_end(&writer);
    cairn_json_put_u64(&writer, "lost_parts", request->drill.lost_parts);
    cairn_json_put_u64(&writer, "epoch", cairn_epoch_number(total->last.epoch));
    cairn_json_put_u64(&writer, "first_step", total->first.step);
    cairn_json_put_u64(&writer, "step", total->last.step);
    cairn_json_put_u64(&writer, "decoded_bytes", total->decoded_bytes);
    cairn_json_put_u64(&writer, "read_bytes", total->read_bytes);
    cairn_json_put_u64(&writer, "damaged_blocks", total->damaged_blocks);
    cairn_json_put_u64(&writer, "took_ns", took_ns);
    cairn_json_put_string(&writer, "reason", last->text);
    cairn_json_write_object_end(&writer);
    request_answer(agent, request, last->survivable ? 0 : EXIT_LOST, &writer);
}

/* Has the next group rehearsed, or answers. */
static void
next_group(struct cairn_agent *agent, struct request *request)
{
    struct operator_drill *drill = &request->drill;
    struct drill_report over = {.finished = true, .survivable = true};
    struct cairn_core_view core;
    uint32_t lost;

    cairn_core_look(agent->core, &core);
    if (core.ready.step == 0 || core.ready_from_files || !core.ready_roster || core.fenced) {
        request_refuse(agent, request, EXIT_AGAIN,
                       "no generation in memory is known here; wait for the first commit, or ask "
                       "another agent");
        return;
    }
    if (!find_group(agent, &core, &drill->ask, &drill->ask.group, &lost, &drill->runner)) {
        snprintf(over.text, sizeof over.text, "%s",
                 drill->lost_parts ? "every line was decoded, and fits its checksum"
                                   : "these nodes hold no part of the newest generation");
        answer(agent, request, &over);
        return;
    }
    drill->lost_parts += lost;
    if (drill->runner == UINT32_MAX) {
        over.survivable = false;
        drill->total.last = core.ready;
        snprintf(over.text, sizeof over.text, "no member of group %u is left", drill->ask.group);
        answer(agent, request, &over);
        return;
    }
    memset(&drill->now, 0, sizeof drill->now);
    drill->heard_ns = agent_now_ns(agent);
    request->waiting |= WAIT_DRILL;
    send_ask(agent, request);
}

/* Reads "3,5". False: not a list of nodes of the job. */
static bool
parse_nodes(const struct cairn_agent *agent, const char *text, struct drill_ask *out)
{
    for (;; text++) {
        char *end;
        unsigned long node = strtoul(text, &end, 10);

        if (end == text || *text == '-' || *text == '+' || *text == ' ' ||
            node >= agent->config.node_count || out->node_count == DRILL_NODES_MAX)
            return false;
        if (!is_lost(out, (uint32_t)node))
            out->nodes[out->node_count++] = (uint32_t)node;
        text = end;
        if (*text == '\0')
            return true;
        if (*text != ',')
            return false;
    }
}

void
request_drill_begin(struct cairn_agent *agent, struct request *request)
{
    struct drill_ask *ask = &request->drill.ask;
    char text[160];

    if (ask->rate == 0)
        ask->rate = RATE_DEFAULT;
    if (!parse_nodes(agent, request->change.node, ask)) {
        snprintf(text, sizeof text,
                 "\"%.40s\": expected at most %d numbers of nodes, 0 to %u, with commas between "
                 "them",
                 request->change.node, DRILL_NODES_MAX, agent->config.node_count - 1);
        request_refuse(agent, request, EXIT_USAGE, text);
        return;
    }
    next_group(agent, request);
}

void
request_drill_tick(struct cairn_agent *agent, struct request *request)
{
    struct operator_drill *drill = &request->drill;
    uint64_t now_ns = agent_now_ns(agent);

    if (now_ns - drill->heard_ns > SILENT_MS * CAIRN_NS_PER_MS) {
        request->waiting &= ~(uint32_t)WAIT_DRILL;
        drill->now = (struct drill_report){.finished = true, .err = CAIRN_PEER};
        snprintf(drill->now.text, sizeof drill->now.text,
                 "node %u runs the drill, and has not answered for %d s; try again", drill->runner,
                 SILENT_MS / 1000);
    } else if (now_ns - drill->sent_ns > ASK_MS * CAIRN_NS_PER_MS) {
        send_ask(agent, request);
    }
}

void
request_drill_advance(struct cairn_agent *agent, struct request *request)
{
    struct operator_drill *drill = &request->drill;
    struct drill_report now = drill->now;

    if (!drill->total.first.step)
        drill->total.first = now.first;
    drill->total.last = now.last;
    drill->total.decoded_bytes += now.decoded_bytes;
    drill->total.read_bytes += now.read_bytes;
    drill->total.damaged_blocks += now.damaged_blocks;
    if (now.err || !now.survivable) {
        answer(agent, request, &now);
        return;
    }
    drill->ask.group++;
    next_group(agent, request);
}

static void
take_report(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct request *request = request_find(agent, message->request);
    struct drill_report report;
    uint64_t group;

    if (!request || !(request->waiting & WAIT_DRILL) || message->from != request->drill.runner ||
        !read_report(message, &report, &group) || group != request->drill.ask.group)
        return;
    request->drill.heard_ns = agent_now_ns(agent);
    request->drill.now = report;
    if (!report.finished)
        return;
    request->waiting &= ~(uint32_t)WAIT_DRILL;
    agent->operators->advance(agent, request);
}

bool
request_drill_message(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    if (message->verb == DRILL)
        tell(agent, message);
    else if (message->verb == DRILLED)
        take_report(agent, message);
    else
        return false;
    return true;
}
