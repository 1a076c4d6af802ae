/* tools/live_trace.c - the trace of a running job; see live_trace.h. */
#include "tools/live_trace.h"

#include "agent/service/operator_trace.h"
#include "base/limits.h"
#include "base/wire.h"
#include "replan/live/merge.h"
#include "tools/common.h"
#include "tools/find_agent.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { ANSWER_MS = 10000, MESSAGE_BYTES = 256, LISTED_MAX = 8 };
#define NODE_BYTES_MAX ((uint64_t)1 << 30)

_Static_assert((int)CAIRN_LIVE_STEPS_MAX == (int)OPERATOR_TRACE_STEPS_MAX,
               "an agent gives as many steps as may be asked for");

static const char *const op_names[CAIRN_OPS] = {
#define OP_NAME(symbol, value, text) [value] = text,
    CAIRN_COLLECTIVE_LIST(OP_NAME)
#undef OP_NAME
};

/* What came of the nodes. */
struct gathered {
    struct cairn_merge *merge;
    uint32_t node_count;
    uint32_t missing[OPERATOR_TRACE_STATES];
    uint32_t listed[OPERATOR_TRACE_STATES][LISTED_MAX]; /* the first of them */
    uint32_t malformed;
};

/* ---- asking ---- */

/* A part of a node's parcel. */
struct part {
    uint32_t node_count;
    enum operator_trace_state state;
    uint64_t total;
    const uint8_t *bytes; /* borrowed from the answer */
    size_t bytes_len;
};

/* False: the answer is malformed. */
static bool
read_part(const struct cairn_answer *answer, uint64_t offset, struct part *out)
{
    struct cairn_reader reader;
    uint32_t magic, state;

    cairn_reader_init(&reader, answer->text, answer->text_len);
    magic = cairn_read_u32(&reader);
    out->node_count = cairn_read_u32(&reader);
    state = cairn_read_u32(&reader);
    out->total = cairn_read_u64(&reader);
    if (reader.failed || magic != OPERATOR_TRACE_MAGIC || out->node_count == 0 ||
        out->node_count > CAIRN_NODES_MAX || state >= OPERATOR_TRACE_STATES ||
        out->total > NODE_BYTES_MAX)
        return false;
    out->state = (enum operator_trace_state)state;
    out->bytes_len = cairn_reader_left(&reader);
    out->bytes = cairn_read_borrow(&reader, out->bytes_len);
    return offset <= out->total && out->bytes_len <= out->total - offset &&
           (out->bytes_len > 0 || offset == out->total || state != OPERATOR_TRACE_HERE);
}

/* A number that names a parcel, and that no other command has. */
static uint64_t
make_token(void)
{
    uint64_t token = 0;

    if (getrandom(&token, sizeof token, 0) != (ssize_t)sizeof token)
        token = (uint64_t)getpid();
    return token ? token : 1;
}

/* Asks for one node's recordings, part by part, and adds them. The exit code. */
static int
gather_node(const char *verb, const char *socket, struct cairn_question *question,
            struct gathered *gathered)
{
    uint8_t *bytes = NULL;
    uint64_t used = 0, total = 0;
    int exit_code = CAIRN_EXIT_OK;
    cairn_err err = CAIRN_OK;

    question->socket = socket;
    question->token = make_token();
    do {
        struct cairn_answer answer = {0};
        struct part part = {0};
        uint8_t *grown;

        question->offset = used;
        exit_code = cairn_ask_or_say(question, &answer);
        if (exit_code)
            break;
        if (answer.exit_code || cairn_answer_refused(verb, &answer)) {
            exit_code = answer.exit_code ? answer.exit_code : CAIRN_EXIT_FAILED;
        } else if (!read_part(&answer, used, &part)) {
            cairn_tool_error(verb, "cannot read the agent's answer", NULL,
                             "run the `cairn` of the agent's version");
            exit_code = CAIRN_EXIT_FAILED;
        }
        if (exit_code) {
            cairn_answer_fini(&answer);
            break;
        }
        gathered->node_count = part.node_count;
        if (part.state != OPERATOR_TRACE_HERE) {
            if (gathered->missing[part.state] < LISTED_MAX)
                gathered->listed[part.state][gathered->missing[part.state]] = question->of;
            gathered->missing[part.state]++;
            cairn_answer_fini(&answer);
            goto done;
        }
        total = part.total;
        grown = realloc(bytes, total ? total : 1);
        if (!grown) {
            err = CAIRN_NOMEM;
        } else {
            bytes = grown;
            memcpy(bytes + used, part.bytes, part.bytes_len);
            used += part.bytes_len;
        }
        cairn_answer_fini(&answer);
    } while (!err && used < total);
    if (!exit_code && !err && total > 0)
        err = cairn_merge_add(gathered->merge, question->of, bytes, total);
    if (err == CAIRN_CORRUPT) {
        gathered->malformed++;
    } else if (err) {
        cairn_tool_error(verb, cairn_err_text(err), NULL, NULL);
        exit_code = cairn_exit_code(err);
    }
done:
    free(bytes);
    return exit_code;
}

/* The steps of the first node that has any are those that are asked for of the others. */
static int
gather(const char *verb, const char *agent, uint32_t steps, struct gathered *gathered)
{
    struct cairn_question question = {
        .verb = "trace", .asker = verb, .steps = steps, .timeout_ms = ANSWER_MS, .is_raw = true};
    struct cairn_found found;
    int exit_code = cairn_find_agent(verb, agent, NULL, &found);

    gathered->node_count = 1;
    for (uint32_t node = 0; !exit_code && node < gathered->node_count; node++) {
        question.of = node;
        question.until = cairn_merge_newest(gathered->merge);
        exit_code = gather_node(verb, found.socket, &question, gathered);
    }
    return exit_code;
}

/* ---- writing ---- */

/* "nodes" must give a node for every rank: an unknown one gets a number of its own. */
static void
write_header(const struct cairn_topology *topology, FILE *out)
{
    uint32_t none = 0;

    for (uint32_t rank = 0; rank < topology->world; rank++)
        if (topology->node[rank] != CAIRN_NODE_UNKNOWN && topology->node[rank] >= none)
            none = topology->node[rank] + 1;
    fprintf(out, "{\"cairn_trace\": 1, \"world\": %" PRIu32 ", \"nodes\": [", topology->world);
    for (uint32_t rank = 0; rank < topology->world; rank++)
        fprintf(out, "%s%" PRIu32, rank > 0 ? "," : "",
                topology->node[rank] != CAIRN_NODE_UNKNOWN ? topology->node[rank] : none);
    fputs("], \"comms\": {", out);
    for (uint32_t i = 0; i < topology->comm_count; i++) {
        const struct cairn_comm *comm = &topology->comms[i];

        fprintf(out, "%s\"%s\": [", i > 0 ? ", " : "", comm->name);
        for (uint32_t at = 0; at < comm->count; at++)
            fprintf(out, "%s%" PRIu32, at > 0 ? "," : "", comm->ranks[at]);
        fputc(']', out);
    }
    fputs("}}\n", out);
}

static void
write_line(const struct cairn_topology *topology, const struct cairn_record *record, FILE *out)
{
    fprintf(out, "{\"rank\": %" PRIu32, record->rank);
    if (record->op == 0) {
        fprintf(out, ", \"now_ns\": %" PRIu64 "}\n", record->start_ns);
        return;
    }
    if (record->comm != CAIRN_COMM_NONE)
        fprintf(out, ", \"comm\": \"%s\"", topology->comms[record->comm].name);
    if (record->has_seq)
        fprintf(out, ", \"seq\": %" PRIu64, record->seq);
    fprintf(out, ", \"op\": \"%s\"", op_names[record->op]);
    if (record->peer != CAIRN_PEER_NONE)
        fprintf(out, ", \"peer\": %" PRIu32, record->peer);
    fprintf(out, ", \"bytes\": %" PRIu64 ", \"step\": %" PRIu32 ", \"start_ns\": %" PRIu64,
            record->bytes, record->step, record->start_ns);
    if (record->end_ns > 0)
        fprintf(out, ", \"end_ns\": %" PRIu64, record->end_ns);
    if (record->work > 0)
        fprintf(out, ", \"work\": %.17g", record->work);
    if (record->has_compute && isnan(record->compute_ns))
        fputs(", \"compute_ns\": null", out);
    else if (record->has_compute)
        fprintf(out, ", \"compute_ns\": %.0f", record->compute_ns);
    fputs("}\n", out);
}

/* ---- what is missing ---- */

/* Writes " (nodes 1, 2, …)". */
static void
print_nodes(const struct gathered *gathered, enum operator_trace_state state)
{
    uint32_t count = gathered->missing[state];

    fprintf(stderr, " (node%s", count == 1 ? "" : "s");
    for (uint32_t i = 0; i < count && i < LISTED_MAX; i++)
        fprintf(stderr, "%s %" PRIu32, i ? "," : "", gathered->listed[state][i]);
    fputs(count > LISTED_MAX ? ", …)" : ")", stderr);
}

/* Reports what the trace lacks. CAIRN_EXIT_OK: nothing. */
static int
say_missing(const char *verb, const struct gathered *gathered)
{
    static const char *const why[OPERATOR_TRACE_STATES] = {
        [OPERATOR_TRACE_DEAD] = "are dead",
        [OPERATOR_TRACE_SILENT] = "did not answer: they are busy, or their agents older than this "
                                  "one's",
        [OPERATOR_TRACE_BUSY] = "have no room to pack their steps now; ask again"};
    struct cairn_merge_summary summary = cairn_merge_summarize(gathered->merge);
    int exit_code = CAIRN_EXIT_OK;

    for (uint32_t state = OPERATOR_TRACE_DEAD; state < OPERATOR_TRACE_STATES; state++)
        if (gathered->missing[state] > 0) {
            fprintf(stderr, "cairn %s: %" PRIu32 " of %" PRIu32 " agents", verb,
                    gathered->missing[state], gathered->node_count);
            print_nodes(gathered, state);
            fprintf(stderr, " %s\n", why[state]);
            exit_code = CAIRN_EXIT_WARN;
        }
    if (gathered->malformed > 0) {
        fprintf(stderr,
                "cairn %s: the steps of %" PRIu32 " of %" PRIu32
                " agents cannot be read; run the `cairn` of their version\n",
                verb, gathered->malformed, gathered->node_count);
        exit_code = CAIRN_EXIT_WARN;
    }
    if (summary.world > summary.ranks) {
        fprintf(stderr, "cairn %s: %" PRIu32 " of %" PRIu32 " ranks are not in the trace\n", verb,
                summary.world - summary.ranks, summary.world);
        exit_code = CAIRN_EXIT_WARN;
    }
    if (summary.left_out > 0)
        fprintf(stderr,
                "cairn %s: %" PRIu64 " operations are left out, since their communicator or peer "
                "is not known\n",
                verb, summary.left_out);
    return exit_code;
}

int
cairn_live_trace_write(const char *verb, const char *agent, uint32_t steps, FILE *out)
{
    struct gathered gathered = {0};
    struct cairn_merge_summary summary;
    struct cairn_record record;
    int exit_code;
    cairn_err err = cairn_merge_create(&gathered.merge);

    if (err) {
        cairn_tool_error(verb, cairn_err_text(err), NULL, NULL);
        return cairn_exit_code(err);
    }
    exit_code = gather(verb, agent, steps, &gathered);
    if (exit_code)
        goto done;
    err = cairn_merge_finish(gathered.merge);
    summary = cairn_merge_summarize(gathered.merge);
    if (err == CAIRN_NOT_FOUND || (!err && summary.first_step == 0)) {
        (void)say_missing(verb, &gathered);
        cairn_tool_error(verb,
                         err ? "no rank of the job is timed" : "no step of the job is recorded yet",
                         err ? "no trainer runs, or none hands over records of its collectives"
                             : "steps are recorded once they are named and have ended",
                         err ? "start it with CAIRN_TIMING=1 (`cairn run`), and see trace_bytes in "
                               "the agents' configuration"
                             : "ask again after the next steps");
        exit_code = CAIRN_EXIT_AGAIN;
        goto done;
    }
    if (err) {
        cairn_tool_error(verb, cairn_err_text(err), NULL, NULL);
        exit_code = cairn_exit_code(err);
        goto done;
    }
    write_header(cairn_merge_topology(gathered.merge), out);
    while (cairn_merge_next(gathered.merge, &record))
        write_line(cairn_merge_topology(gathered.merge), &record, out);
    exit_code = say_missing(verb, &gathered);
    if (fflush(out) != 0 || ferror(out)) {
        cairn_tool_error(verb, "the trace cannot be written to its end", NULL, NULL);
        exit_code = CAIRN_EXIT_IO;
    }
done:
    cairn_merge_destroy(gathered.merge);
    return exit_code;
}
