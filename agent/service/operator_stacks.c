/* agent/service/operator_stacks.c - Python stacks of ranks while the job hangs; see
 * operator_stacks.h. */
#include "agent/service/operator_stacks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS_MAX = 16, LISTED_MAX = 64 };

/* Equal stacks of all nodes. */
struct group {
    const char *text;
    uint64_t rank_count;
};

static struct operator_stacks *
make_stacks(void)
{
    return calloc(1, sizeof(struct operator_stacks) +
                         READING_RANKS_MAX * sizeof(struct operator_stack));
}

void
operator_stacks_begin(struct operator_node *node, uint32_t count)
{
    node->stacks = count > 0 ? make_stacks() : NULL;
}

void
operator_stacks_add(struct operator_node *node, uint32_t rank, const char *text)
{
    struct operator_stacks *stacks = node->stacks;
    uint32_t at = 0;

    if (!stacks)
        return;
    while (at < stacks->count && strcmp(stacks->items[at].text, text) != 0)
        at++;
    if (at == READING_RANKS_MAX)
        return;
    if (at == stacks->count) {
        stacks->count++;
        (void)snprintf(stacks->items[at].text, sizeof stacks->items[at].text, "%s", text);
    }
    if (stacks->items[at].rank_count < READING_RANKS_MAX)
        stacks->items[at].ranks[stacks->items[at].rank_count++] = rank;
}

void
operator_stacks_write(struct cairn_json_writer *writer, const struct operator_stacks *stacks)
{
    cairn_json_write_array_begin(writer);
    for (uint32_t i = 0; i < stacks->count; i++) {
        const struct operator_stack *stack = &stacks->items[i];

        cairn_json_write_object_begin(writer);
        cairn_json_put_array(writer, "ranks");
        for (uint32_t at = 0; at < stack->rank_count; at++)
            cairn_json_write_u64(writer, stack->ranks[at]);
        cairn_json_write_array_end(writer);
        cairn_json_put_string(writer, "text", stack->text);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
}

static void
read_stack(struct cairn_json_reader *reader, struct operator_stack *out)
{
    char key[16];

    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof key)) {
        if (strcmp(key, "text") == 0) {
            cairn_json_read_string(reader, out->text, sizeof out->text);
        } else if (strcmp(key, "ranks") == 0) {
            cairn_json_array_begin(reader);
            while (cairn_json_array_next(reader)) {
                uint32_t rank = (uint32_t)cairn_json_read_u64(reader, UINT32_MAX);

                if (out->rank_count == READING_RANKS_MAX)
                    cairn_json_reader_fail(reader, "a stack has more ranks than a node");
                else
                    out->ranks[out->rank_count++] = rank;
            }
        } else {
            cairn_json_skip(reader);
        }
    }
}

void
operator_stacks_read(struct cairn_json_reader *reader, struct operator_node *node)
{
    if (!node->stacks)
        node->stacks = make_stacks();
    if (!node->stacks) {
        cairn_json_skip(reader);
        return;
    }
    cairn_json_array_begin(reader);
    while (cairn_json_array_next(reader)) {
        if (node->stacks->count == READING_RANKS_MAX) {
            cairn_json_reader_fail(reader, "there are more stacks than a node has ranks");
            return;
        }
        read_stack(reader, &node->stacks->items[node->stacks->count++]);
    }
}

/* ---- all nodes ---- */

typedef void stack_fn(void *context, const struct operator_stack *stack);

static void
each_stack(const struct operator_job *job, stack_fn *take, void *context)
{
    for (uint32_t node = 0; job->nodes && node < job->config->node_count; node++)
        for (uint32_t i = 0; job->nodes[node].known && job->nodes[node].stacks &&
                             i < job->nodes[node].stacks->count;
             i++)
            take(context, &job->nodes[node].stacks->items[i]);
}

struct groups {
    struct group items[GROUPS_MAX];
    uint32_t count;
};

static void
sort_in(void *context, const struct operator_stack *stack)
{
    struct groups *groups = context;
    uint32_t at = 0;

    while (at < groups->count && strcmp(groups->items[at].text, stack->text) != 0)
        at++;
    if (at == GROUPS_MAX)
        return;
    if (at == groups->count)
        groups->items[groups->count++] = (struct group){.text = stack->text};
    groups->items[at].rank_count += stack->rank_count;
}

static int
compare_groups(const void *left, const void *right)
{
    const struct group *a = left, *b = right;

    return a->rank_count > b->rank_count ? 1 : a->rank_count < b->rank_count ? -1 : 0;
}

struct listing {
    struct cairn_json_writer *writer;
    const char *text;
    uint32_t listed;
};

static void
list_ranks(void *context, const struct operator_stack *stack)
{
    struct listing *listing = context;

    if (strcmp(stack->text, listing->text) != 0)
        return;
    for (uint32_t i = 0; i < stack->rank_count && listing->listed < LISTED_MAX; i++) {
        cairn_json_write_u64(listing->writer, stack->ranks[i]);
        listing->listed++;
    }
}

static void
put_lines(struct cairn_json_writer *writer, const char *text)
{
    char line[READING_STACK_BYTES];

    cairn_json_write_array_begin(writer);
    while (*text) {
        size_t len = strcspn(text, "\n");

        (void)snprintf(line, sizeof line, "%.*s", (int)len, text);
        cairn_json_write_string(writer, line);
        text += len + (text[len] == '\n');
    }
    cairn_json_write_array_end(writer);
}

void
operator_stacks_report(struct cairn_json_writer *writer, const struct operator_job *job)
{
    struct groups groups = {.count = 0};

    each_stack(job, sort_in, &groups);
    qsort(groups.items, groups.count, sizeof *groups.items, compare_groups);
    cairn_json_write_array_begin(writer);
    for (uint32_t i = 0; i < groups.count; i++) {
        struct listing listing = {.writer = writer, .text = groups.items[i].text};

        cairn_json_write_line(writer);
        cairn_json_write_object_begin(writer);
        cairn_json_put_u64(writer, "rank_count", groups.items[i].rank_count);
        cairn_json_put_array(writer, "ranks");
        each_stack(job, list_ranks, &listing);
        cairn_json_write_array_end(writer);
        cairn_json_write_key(writer, "lines");
        put_lines(writer, groups.items[i].text);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
}
