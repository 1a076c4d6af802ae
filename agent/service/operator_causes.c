/* agent/service/operator_causes.c - the causes of verdicts that nodes report; see
 * operator_causes.h. */
#include "agent/service/operator_causes.h"

#include "base/text.h"

#include <string.h>

static void
put_fact(struct cairn_json_writer *writer, const struct cause *cause)
{
    cairn_json_put_string(writer, "kind", cause_text(cause->kind));
    cairn_json_write_key(writer, "rank");
    if (cause->rank == UINT32_MAX)
        cairn_json_write_null(writer);
    else
        cairn_json_write_u64(writer, cause->rank);
    cairn_json_put_u64(writer, "value", cause->value);
    cairn_json_put_u64(writer, "normal", cause->normal);
    cairn_json_put_string(writer, "what", cause->what);
}

void
operator_causes_write(struct cairn_json_writer *writer, const struct operator_node *node)
{
    cairn_json_write_object_begin(writer);
    cairn_json_put_array(writer, "verdicts");
    for (uint32_t i = 0; i < node->cause_verdict_count; i++)
        cairn_json_write_u64(writer, node->cause_verdicts[i]);
    cairn_json_write_array_end(writer);
    cairn_json_put_array(writer, "facts");
    for (uint32_t i = 0; i < node->cause_count; i++) {
        cairn_json_write_object_begin(writer);
        put_fact(writer, &node->causes[i]);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
    cairn_json_write_object_end(writer);
}

/* ---- reading ---- */

/* CAUSE_KINDS: it comes from a newer version. */
static enum cause_kind
kind_of(const char *name)
{
    uint32_t kind = 0;

    while (kind < CAUSE_KINDS && strcmp(cause_text((enum cause_kind)kind), name) != 0)
        kind++;
    return (enum cause_kind)kind;
}

static void
read_fact(struct cairn_json_reader *reader, struct operator_node *node)
{
    struct cause cause = {.kind = CAUSE_KINDS, .rank = UINT32_MAX};
    char key[16], text[CAUSE_TEXT_BYTES];

    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof key)) {
        if (strcmp(key, "kind") == 0) {
            cairn_json_read_string(reader, text, sizeof text);
            cause.kind = cairn_json_reader_failed(reader) ? CAUSE_KINDS : kind_of(text);
        } else if (strcmp(key, "rank") == 0) {
            if (!cairn_json_read_null(reader))
                cause.rank = (uint32_t)cairn_json_read_u64(reader, UINT32_MAX - 1);
        } else if (strcmp(key, "value") == 0) {
            cause.value = cairn_json_read_u64(reader, UINT64_MAX);
        } else if (strcmp(key, "normal") == 0) {
            cause.normal = cairn_json_read_u64(reader, UINT64_MAX);
        } else if (strcmp(key, "what") == 0) {
            cairn_json_read_string(reader, text, sizeof text);
            if (!cairn_json_reader_failed(reader))
                cairn_text_clean(cause.what, sizeof cause.what, text);
        } else {
            cairn_json_skip(reader);
        }
    }
    if (cairn_json_reader_failed(reader) || cause.kind == CAUSE_KINDS)
        return;
    if (node->cause_count == CAUSES_MAX)
        cairn_json_reader_fail(reader, "there are more causes than a node may have");
    else
        node->causes[node->cause_count++] = cause;
}

void
operator_causes_read(struct cairn_json_reader *reader, struct operator_node *node)
{
    char key[16];

    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof key)) {
        bool verdicts = strcmp(key, "verdicts") == 0;

        if (!verdicts && strcmp(key, "facts") != 0) {
            cairn_json_skip(reader);
            continue;
        }
        cairn_json_array_begin(reader);
        while (cairn_json_array_next(reader)) {
            if (!verdicts)
                read_fact(reader, node);
            else if (node->cause_verdict_count == OPERATOR_CAUSE_VERDICTS_MAX)
                cairn_json_reader_fail(reader, "there are more verdicts than a ledger has");
            else
                node->cause_verdicts[node->cause_verdict_count++] =
                    cairn_json_read_u64(reader, UINT64_MAX);
        }
    }
}

/* ---- what is shown ---- */

static bool
is_concerned(const struct operator_node *node, uint64_t verdict)
{
    for (uint32_t i = 0; node->known && i < node->cause_verdict_count; i++)
        if (node->cause_verdicts[i] == verdict)
            return true;
    return false;
}

void
operator_causes_report(struct cairn_json_writer *writer, const struct operator_job *job,
                       uint64_t verdict)
{
    cairn_json_write_array_begin(writer);
    for (uint32_t node = 0; job->nodes && node < job->config->node_count; node++)
        for (uint32_t i = 0;
             is_concerned(&job->nodes[node], verdict) && i < job->nodes[node].cause_count; i++) {
            cairn_json_write_object_begin(writer);
            cairn_json_put_u64(writer, "node", node);
            put_fact(writer, &job->nodes[node].causes[i]);
            cairn_json_write_object_end(writer);
        }
    cairn_json_write_array_end(writer);
}

const struct cause *
operator_causes_first(const struct operator_job *job, uint64_t verdict, uint32_t *node)
{
    for (uint32_t i = 0; job->nodes && i < job->config->node_count; i++)
        if (is_concerned(&job->nodes[i], verdict) && job->nodes[i].cause_count > 0) {
            *node = i;
            return &job->nodes[i].causes[0];
        }
    return NULL;
}
