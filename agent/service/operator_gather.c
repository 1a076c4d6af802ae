/* agent/service/operator_gather.c - questions of a request to others; see operator_gather.h. */
#include "agent/service/operator_gather.h"

#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/step.h"
#include "agent/service/keep.h"
#include "agent/service/operator_files.h"
#include "agent/service/operator_node.h"
#include "agent/service/operator_request.h"
#include "base/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FILES_JOBS_MAX = 4,
    GATHER_MS = 1000,
    ASK = 1, /* in an OPERATOR message's `verb`; operator_plan.c has 3 and 4 */
    ANSWER = 2
};

static const char ask_text[] = "{\"operator\":\"node\"}";

/* A worker's reading of the spill directory for a request. */
struct files_job {
    struct cairn_job job;
    struct cairn_agent *agent;
    uint64_t number;
    uint64_t wall_ns;
    enum operator_look look;
    uint64_t job_id;
    struct cairn_generation_id wanted;
    char spill_dir[CAIRN_CONFIG_PATH_BYTES_MAX];
    struct operator_files *files;
};

/* ---- the other agents' views ---- */

static void
send_service(struct cairn_agent *agent, uint32_t to, uint32_t kind, uint64_t number,
             const char *text, size_t len)
{
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_OPERATOR,
                                            .from = agent->config.node,
                                            .to = to,
                                            .verb = kind,
                                            .request = number,
                                            .bytes = (const uint8_t *)text,
                                            .bytes_len = (uint32_t)len};

    mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
}

bool
request_see_peers(struct cairn_agent *agent, struct request *request)
{
    uint32_t self = agent->config.node;

    if (!request->nodes)
        request->nodes = calloc(agent->config.node_count, sizeof *request->nodes);
    if (!request->nodes)
        return false;
    request->node_count = agent->config.node_count;
    for (uint32_t i = 0; i < agent->config.node_count; i++)
        operator_node_fini(&request->nodes[i]);
    memset(request->nodes, 0, agent->config.node_count * sizeof *request->nodes);
    operator_node_fill(agent, &request->nodes[self]);
    for (uint32_t i = 0; i < agent->config.node_count; i++)
        request->nodes[i].alive = i == self || cairn_core_alive(agent->core, i);
    return true;
}

bool
request_gather(struct cairn_agent *agent, struct request *request)
{
    if (!request_see_peers(agent, request))
        return false;
    request->waiting |= WAIT_PEERS;
    request->gather_until_ns = agent_now_ns(agent) + GATHER_MS * CAIRN_NS_PER_MS;
    for (uint32_t i = 0; i < agent->config.node_count; i++)
        if (i != agent->config.node)
            send_service(agent, i, ASK, request->number, ask_text, sizeof ask_text - 1);
    return true;
}

bool
request_gathered(const struct cairn_agent *agent, const struct request *request)
{
    if (agent_now_ns(agent) >= request->gather_until_ns)
        return true;
    for (uint32_t i = 0; i < agent->config.node_count; i++)
        if (request->nodes[i].alive && !request->nodes[i].known)
            return false;
    return true;
}

static void
answer_peer(struct cairn_agent *agent, const struct cairn_service_message *ask)
{
    struct operator_node node;
    struct cairn_json_writer writer;
    char *text = NULL;
    size_t len = 0;

    operator_node_fill(agent, &node);
    cairn_json_writer_init(&writer);
    operator_node_write(&writer, &node);
    if (cairn_json_writer_done(&writer, &text, &len) == CAIRN_OK)
        send_service(agent, ask->from, ANSWER, ask->request, text, len);
    free(text);
    cairn_json_writer_fini(&writer);
    operator_node_fini(&node);
}

void
request_gather_message(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct request *request;
    struct operator_node node;
    struct cairn_json_reader reader;

    if (message->verb == ASK && message->bytes_len == sizeof ask_text - 1 &&
        memcmp(message->bytes, ask_text, sizeof ask_text - 1) == 0) {
        answer_peer(agent, message);
        return;
    }
    if (message->verb == KEEP_VERB) {
        keep_here(agent);
        return;
    }
    request = request_find(agent, message->request);
    if (message->verb != ANSWER || !request || !request->nodes ||
        message->from >= agent->config.node_count)
        return;
    cairn_json_reader_init(&reader, message->bytes, message->bytes_len);
    if (!operator_node_read(&reader, &node))
        return;
    if (cairn_json_reader_done(&reader) != CAIRN_OK) {
        operator_node_fini(&node);
        return;
    }
    node.alive = true;
    operator_node_fini(&request->nodes[message->from]);
    request->nodes[message->from] = node;
    if ((request->waiting & WAIT_PEERS) && request_gathered(agent, request)) {
        request->waiting &= ~(uint32_t)WAIT_PEERS;
        agent->operators->advance(agent, request);
    }
}

/* ---- files ---- */

static void
files_run(struct cairn_job *job)
{
    struct files_job *files = (struct files_job *)job;

    operator_files_read(files->spill_dir, files->job_id, files->look, files->wanted, files->wall_ns,
                        files->files);
}

static void
files_done(struct cairn_job *job)
{
    struct files_job *files = (struct files_job *)job;
    struct request *request = request_find(files->agent, files->number);

    if (request && (request->waiting & WAIT_FILES)) {
        free(request->files);
        request->files = files->files;
        files->files = NULL;
        request->waiting &= ~(uint32_t)WAIT_FILES;
        files->agent->operators->advance(files->agent, request);
    }
    free(files->files);
    free(files);
}

/* A directory that hangs must not hold up the checksums of saves and restores: it has a thread of
 * its own. CAIRN_AGAIN: readings that were begun before have not ended. */
static cairn_err
submit_files(struct cairn_agent *agent, struct files_job *files)
{
    struct operator_table *table = agent->operators;
    cairn_err err = CAIRN_OK;

    if (!table->disk)
        err = cairn_workers_start(agent->loop, 1, FILES_JOBS_MAX, &table->disk);
    return err ? err : cairn_workers_submit(table->disk, &files->job);
}

bool
request_read_files(struct cairn_agent *agent, struct request *request, enum operator_look look)
{
    struct files_job *files = calloc(1, sizeof *files);
    cairn_err err;

    if (!files)
        return false;
    files->job = (struct cairn_job){.run = files_run, .done = files_done};
    files->agent = agent;
    files->number = request->number;
    files->wall_ns = cairn_clock_wall_ns(&agent->clock);
    files->look = look;
    files->job_id = agent->job_id;
    files->wanted = request->wanted;
    snprintf(files->spill_dir, sizeof files->spill_dir, "%s", agent->config.spill_dir);
    files->files = calloc(1, sizeof *files->files);
    err = files->files ? submit_files(agent, files) : CAIRN_NOMEM;
    if (!err) {
        request->waiting |= WAIT_FILES;
        return true;
    }
    if (err == CAIRN_AGAIN) { /* answered without the files */
        free(request->files);
        request->files = files->files;
        request->files->configured = true;
        request->files->err = CAIRN_TIMEOUT;
    } else {
        free(files->files);
    }
    free(files);
    return err == CAIRN_AGAIN;
}
