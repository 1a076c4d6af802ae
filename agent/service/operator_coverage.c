/*
 * agent/service/operator_coverage.c - what the ranks cover of the job, and what not, with reasons:
 * of one node from its sessions, between agents as JSON, and of the whole job for operators.
 *
 * Ranks with the same report share one entry, since most ranks of a job report the same. Everything
 * except operator_coverage_fill is pure.
 */
#include "agent/service/operator_coverage.h"

#include "agent/process/agent_state.h"
#include "agent/process/session.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { RANK_NUMBERS = 4 + 2 * (OPERATOR_KINDS - 1) };

static const char *const kind_names[OPERATOR_KINDS] = {NULL, "parameter", "optimizer", "buffer",
                                                       "opaque"};

/* ---- lists ---- */

/* Adds an item, or adds its ranks to an equal one. */
static void
list_add(struct operator_uncovered_list *list, const struct operator_uncovered *item)
{
    uint32_t at = 0;

    while (at < list->count && list->items[at].kind <= item->kind) {
        struct operator_uncovered *same = &list->items[at++];

        if (same->kind != item->kind || strcmp(same->name, item->name) != 0 ||
            strcmp(same->reason, item->reason) != 0)
            continue;
        same->ranks += item->ranks;
        if (item->rank < same->rank)
            same->rank = item->rank;
        return;
    }
    if (at == OPERATOR_UNCOVERED_MAX) {
        list->left_out += item->ranks;
        return;
    }
    if (list->count == OPERATOR_UNCOVERED_MAX)
        list->left_out += list->items[--list->count].ranks;
    memmove(&list->items[at + 1], &list->items[at], (list->count - at) * sizeof *list->items);
    list->items[at] = *item;
    list->count++;
}

/* ---- one node ---- */

/* The entry of a rank, which may have two sessions for a moment. NULL: no room. */
static struct operator_rank *
rank_of(struct operator_coverage *coverage, uint32_t rank)
{
    for (uint32_t i = 0; i < coverage->rank_count; i++)
        if (coverage->ranks[i].rank == rank)
            return &coverage->ranks[i];
    if (coverage->rank_count == CAIRN_RANKS_PER_NODE_MAX)
        return NULL;
    coverage->ranks[coverage->rank_count].rank = rank;
    return &coverage->ranks[coverage->rank_count++];
}

static void
fill_told(const struct session *session, struct operator_rank *rank,
          struct operator_uncovered_list *list)
{
    const struct cairn_session_coverage *told = session->coverage;
    struct operator_uncovered item = {.rank = session->hello.rank, .ranks = 1};

    rank->reports = 1;
    rank->uncovered += told->count + (uint64_t)told->left_out;
    list->left_out += told->left_out;
    if (told->refusal[0]) {
        rank->refuses = 1;
        memcpy(item.reason, told->refusal, sizeof item.reason);
        list_add(list, &item);
    }
    for (uint32_t i = 0; i < told->count; i++) {
        item.kind = told->items[i].kind;
        memcpy(item.name, told->items[i].name, sizeof item.name);
        memcpy(item.reason, told->items[i].reason, sizeof item.reason);
        list_add(list, &item);
    }
}

/* All ranks are refused together: what does not fit may be registered on any of them. */
static void
fill_refused(const char *refusal, struct operator_rank *rank, struct operator_uncovered_list *list)
{
    struct operator_uncovered item = {.rank = rank->rank, .ranks = 1};

    rank->refuses = 1;
    cairn_text_clean(item.reason, sizeof item.reason, refusal);
    list_add(list, &item);
}

void
operator_coverage_fill(const struct cairn_agent *agent, struct operator_node *out)
{
    struct operator_coverage *coverage = calloc(1, sizeof *coverage);
    struct cairn_core_view view;

    if (!coverage) /* the rest of the view is worth having without it */
        return;
    cairn_core_look(agent->core, &view);
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        const struct session *session = &agent->sessions[i];
        struct operator_rank *rank;

        if (!session->used || !session->trainer || session->stale ||
            session->state == SESSION_DRAINING || (!session->registered && !session->coverage))
            continue;
        rank = rank_of(coverage, session->hello.rank);
        if (!rank)
            continue;
        for (uint32_t e = 0; session->registered && e < session->slices.count; e++) {
            enum cairn_kind kind = session->slices.slices[e].kind;

            rank->tensors[kind]++;
            rank->bytes[kind] += cairn_capture_bytes(&session->entries[e]);
        }
        if (session->coverage)
            fill_told(session, rank, &coverage->uncovered);
        if (view.refusal[0] && session->registered)
            fill_refused(view.refusal, rank, &coverage->uncovered);
    }
    if (coverage->rank_count > 0)
        out->coverage = coverage;
    else
        free(coverage);
}

/* ---- between agents ---- */

/* Where the n-th number of a rank's array is. */
static uint64_t *
rank_number(struct operator_rank *rank, uint32_t n)
{
    uint64_t *const first[] = {&rank->rank, &rank->reports, &rank->refuses, &rank->uncovered};

    if (n < 4)
        return first[n];
    n -= 4;
    return n < OPERATOR_KINDS - 1 ? &rank->tensors[1 + n] : &rank->bytes[2 + n - OPERATOR_KINDS];
}

void
operator_coverage_write(struct cairn_json_writer *writer, const struct operator_coverage *coverage)
{
    cairn_json_write_object_begin(writer);
    cairn_json_put_array(writer, "ranks");
    for (uint32_t i = 0; i < coverage->rank_count; i++) {
        struct operator_rank rank = coverage->ranks[i];

        cairn_json_write_array_begin(writer);
        for (uint32_t n = 0; n < RANK_NUMBERS; n++)
            cairn_json_write_u64(writer, *rank_number(&rank, n));
        cairn_json_write_array_end(writer);
    }
    cairn_json_write_array_end(writer);
    cairn_json_put_u64(writer, "left_out", coverage->uncovered.left_out);
    cairn_json_put_array(writer, "uncovered");
    for (uint32_t i = 0; i < coverage->uncovered.count; i++) {
        const struct operator_uncovered *item = &coverage->uncovered.items[i];

        cairn_json_write_object_begin(writer);
        cairn_json_put_u64(writer, "kind", item->kind);
        cairn_json_put_u64(writer, "rank", item->rank);
        cairn_json_put_u64(writer, "ranks", item->ranks);
        cairn_json_put_string(writer, "name", item->name);
        cairn_json_put_string(writer, "reason", item->reason);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
    cairn_json_write_object_end(writer);
}

/* Skips further numbers: they come from a newer version. */
static void
read_rank(struct cairn_json_reader *reader, struct operator_coverage *coverage)
{
    struct operator_rank rank = {0};
    uint32_t count = 0;

    cairn_json_array_begin(reader);
    while (cairn_json_array_next(reader)) {
        uint64_t value = cairn_json_read_u64(reader, UINT64_MAX);

        if (count < RANK_NUMBERS)
            *rank_number(&rank, count++) = value;
    }
    if (count < RANK_NUMBERS || coverage->rank_count == CAIRN_RANKS_PER_NODE_MAX) {
        cairn_json_reader_fail(reader, "a rank's coverage is malformed, or one too many");
        return;
    }
    coverage->ranks[coverage->rank_count++] = rank;
}

/* Cleans a text for a terminal: a peer is trusted no more than a trainer. */
static void
read_plain(struct cairn_json_reader *reader, char *text, size_t text_bytes)
{
    cairn_json_read_string(reader, text, text_bytes);
    if (!cairn_json_reader_failed(reader) && !cairn_text_plain(text, strlen(text)))
        cairn_json_reader_fail(reader, "a name or reason is not plain text");
}

static void
read_uncovered(struct cairn_json_reader *reader, struct operator_coverage *coverage)
{
    struct operator_uncovered item = {0};
    char key[32];

    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof key)) {
        if (strcmp(key, "name") == 0)
            read_plain(reader, item.name, sizeof item.name);
        else if (strcmp(key, "reason") == 0)
            read_plain(reader, item.reason, sizeof item.reason);
        else if (strcmp(key, "kind") == 0)
            item.kind = cairn_json_read_u64(reader, OPERATOR_KINDS - 1);
        else if (strcmp(key, "rank") == 0)
            item.rank = cairn_json_read_u64(reader, UINT32_MAX);
        else if (strcmp(key, "ranks") == 0)
            item.ranks = cairn_json_read_u64(reader, UINT32_MAX);
        else
            cairn_json_skip(reader); /* a newer version's */
    }
    if (!cairn_json_reader_failed(reader))
        list_add(&coverage->uncovered, &item);
}

void
operator_coverage_read(struct cairn_json_reader *reader, struct operator_node *node)
{
    struct operator_coverage *coverage = calloc(1, sizeof *coverage);
    char key[32];

    if (!coverage || node->coverage) {
        free(coverage);
        cairn_json_reader_fail(reader, "duplicate coverage, or no memory for it");
        return;
    }
    node->coverage = coverage;
    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof key)) {
        if (strcmp(key, "ranks") == 0) {
            cairn_json_array_begin(reader);
            while (cairn_json_array_next(reader))
                read_rank(reader, coverage);
        } else if (strcmp(key, "uncovered") == 0) {
            cairn_json_array_begin(reader);
            while (cairn_json_array_next(reader))
                read_uncovered(reader, coverage);
        } else if (strcmp(key, "left_out") == 0) {
            coverage->uncovered.left_out += cairn_json_read_u64(reader, UINT64_MAX / 2);
        } else {
            cairn_json_skip(reader); /* a newer version's */
        }
    }
}

/* ---- the whole job ---- */

void
operator_coverage_sum(const struct operator_job *job, struct operator_health *health)
{
    for (uint32_t i = 0; i < job->config->node_count; i++) {
        const struct operator_coverage *coverage = job->nodes[i].coverage;

        if (!job->nodes[i].known || !coverage)
            continue;
        for (uint32_t r = 0; r < coverage->rank_count; r++) {
            const struct operator_rank *rank = &coverage->ranks[r];

            health->ranks++;
            health->ranks_reporting += rank->reports != 0;
            health->ranks_refusing += rank->refuses != 0;
            for (uint32_t kind = 1; kind < OPERATOR_KINDS; kind++) {
                health->tensors[kind] += rank->tensors[kind];
                health->tensor_bytes[kind] += rank->bytes[kind];
            }
        }
        for (uint32_t n = 0; n < coverage->uncovered.count; n++)
            list_add(&health->uncovered, &coverage->uncovered.items[n]);
        health->uncovered.left_out += coverage->uncovered.left_out;
    }
}

static void
put_by_kind(struct cairn_json_writer *writer, const char *key,
            const uint64_t values[OPERATOR_KINDS])
{
    cairn_json_put_object(writer, key);
    for (uint32_t kind = 1; kind < OPERATOR_KINDS; kind++)
        cairn_json_put_u64(writer, kind_names[kind], values[kind]);
    cairn_json_write_object_end(writer);
}

static void
put_uncovered(struct cairn_json_writer *writer, const struct operator_uncovered_list *list,
              bool refusals)
{
    cairn_json_put_array(writer, refusals ? "refusals" : "uncovered");
    for (uint32_t i = 0; i < list->count; i++) {
        const struct operator_uncovered *item = &list->items[i];

        if ((item->kind == 0) != refusals)
            continue;
        cairn_json_write_line(writer);
        cairn_json_write_object_begin(writer);
        if (!refusals) {
            cairn_json_put_string(writer, "kind", kind_names[item->kind]);
            cairn_json_put_string(writer, "name", item->name);
        }
        cairn_json_put_string(writer, "reason", item->reason);
        cairn_json_put_u64(writer, "rank", item->rank);
        cairn_json_put_u64(writer, "ranks", item->ranks);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
}

static void
put_rank(struct cairn_json_writer *writer, uint32_t node, const struct operator_rank *rank)
{
    cairn_json_write_line(writer);
    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "rank", rank->rank);
    cairn_json_put_u64(writer, "node", node);
    cairn_json_put_bool(writer, "reports", rank->reports != 0);
    cairn_json_put_bool(writer, "refuses", rank->refuses != 0);
    cairn_json_put_u64(writer, "uncovered", rank->uncovered);
    put_by_kind(writer, "tensors", rank->tensors);
    put_by_kind(writer, "bytes", rank->bytes);
    cairn_json_write_object_end(writer);
}

void
operator_coverage_report(struct cairn_json_writer *writer, const struct operator_job *job,
                         const struct operator_health *health)
{
    uint32_t listed = 0;

    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "ranks_known", health->ranks);
    cairn_json_put_u64(writer, "ranks_reporting", health->ranks_reporting);
    cairn_json_put_u64(writer, "ranks_refusing", health->ranks_refusing);
    put_by_kind(writer, "tensors", health->tensors);
    put_by_kind(writer, "bytes", health->tensor_bytes);
    put_uncovered(writer, &health->uncovered, true);
    put_uncovered(writer, &health->uncovered, false);
    cairn_json_put_u64(writer, "left_out", health->uncovered.left_out);
    cairn_json_put_array(writer, "ranks");
    for (uint32_t i = 0; i < job->config->node_count; i++) {
        const struct operator_coverage *coverage = job->nodes[i].coverage;

        for (uint32_t r = 0; job->nodes[i].known && coverage && r < coverage->rank_count; r++)
            if (listed++ < OPERATOR_RANKS_LISTED_MAX)
                put_rank(writer, i, &coverage->ranks[r]);
    }
    cairn_json_write_array_end(writer);
    cairn_json_put_u64(writer, "ranks_left_out",
                       listed > OPERATOR_RANKS_LISTED_MAX ? listed - OPERATOR_RANKS_LISTED_MAX : 0);
    cairn_json_write_object_end(writer);
}
