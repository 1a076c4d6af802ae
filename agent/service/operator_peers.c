/* agent/service/operator_peers.c - see operator_peers.h. */
#include "agent/service/operator_peers.h"

#include "agent/process/agent_state.h"
#include "agent/service/operator_request.h"
#include "agent/service/probe.h"

enum { EXIT_AGAIN = 75 };

static void
put_text(struct cairn_json_writer *writer, const char *key, const char *value)
{
    cairn_json_write_key(writer, key);
    if (value)
        cairn_json_write_string(writer, value);
    else
        cairn_json_write_null(writer);
}

static void
put_peer(struct cairn_json_writer *writer, const struct cairn_agent *agent,
         const struct probe_peer *peer)
{
    cairn_json_write_line(writer);
    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "node", peer->node);
    put_text(writer, "address", agent->config.nodes[peer->node].address);
    cairn_json_put_bool(writer, "answers", peer->answers);
    cairn_json_put_bool(writer, "refused", peer->refused);
    put_text(writer, "mismatch", agent->mail.boxes[peer->node].mismatch);
    if (peer->answers) {
        cairn_json_put_u64(writer, "round_trip_min_ns", peer->trip_min_ns);
        cairn_json_put_u64(writer, "round_trip_ns", peer->trip_median_ns);
    }
    if (peer->bytes_ns)
        cairn_json_put_u64(writer, "bytes_per_s",
                           (uint64_t)((double)peer->bytes * 1e9 / (double)peer->bytes_ns));
    cairn_json_write_object_end(writer);
}

static void
probed(void *context, uint64_t number, const struct probe_peer *peers, uint32_t count,
       uint32_t left_out)
{
    struct cairn_agent *agent = context;
    struct request *request = request_find(agent, number);
    struct cairn_json_writer writer;

    if (!request)
        return;
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_u64(&writer, "schema", 1);
    cairn_json_put_u64(&writer, "node", agent->config.node);
    cairn_json_put_u64(&writer, "left_out", left_out);
    cairn_json_put_array(&writer, "peers");
    for (uint32_t i = 0; i < count; i++)
        put_peer(&writer, agent, &peers[i]);
    cairn_json_write_array_end(&writer);
    cairn_json_write_object_end(&writer);
    request_answer(agent, request, 0, &writer);
}

void
request_peers_begin(struct cairn_agent *agent, struct request *request)
{
    request->waiting |= WAIT_PROBE;
    if (probe_start(agent, request->number, probed, agent) != CAIRN_OK)
        request_refuse(agent, request, EXIT_AGAIN, "another doctor looks at the peers; try again");
}
