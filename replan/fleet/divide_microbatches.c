/* replan/fleet/divide_microbatches.c - micro-batches over pipelines. */
#include "replan/fleet/divide.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SKIPPING_STEPS = 24, /* halvings, to give out most of very many micro-batches at once */
    SKIPPING_PAYS = 512  /* micro-batches per kind of pipeline from which that is less work */
};

/* Which pipeline gets the next micro-batch: a heap, the least time with one more on top. */
struct candidate {
    double time_ms; /* with one micro-batch more than it has */
    uint32_t pipeline;
};

static bool
earlier(const struct candidate *left, const struct candidate *right)
{
    return left->time_ms < right->time_ms ||
           (left->time_ms <= right->time_ms && left->pipeline < right->pipeline);
}

static void
sink(struct candidate *heap, uint32_t count, uint32_t at)
{
    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        struct candidate moved = heap[at];

        if (child + 1 < count && earlier(&heap[child + 1], &heap[child]))
            child++;
        if (!earlier(&heap[child], &moved))
            return;
        heap[at] = heap[child];
        heap[child] = moved;
    }
}

/* Pipelines while micro-batches are given out. Those that are alike share what was last asked of
 * the first of them. */
struct sharing {
    struct cairn_divider *divider;
    const struct cairn_group *groups;
    const uint32_t *stage_counts;
    uint32_t pipeline_count;
    struct candidate *heap; /* [pipeline_count] */
    uint32_t *first;        /* [pipeline_count] in groups */
    uint32_t *alike;        /* [pipeline_count] the first pipeline with the same groups */
    uint32_t *asked;        /* [pipeline_count] micro-batches, of those alike to none before */
    double *answered_ms;    /* [pipeline_count] their time */
    uint32_t kinds;         /* pipelines alike to none before */
};

static bool
same_groups(const struct sharing *sharing, uint32_t left, uint32_t right)
{
    const struct cairn_group *a = sharing->groups + sharing->first[left];
    const struct cairn_group *b = sharing->groups + sharing->first[right];

    if (sharing->stage_counts[left] != sharing->stage_counts[right])
        return false;
    for (uint32_t i = 0; i < sharing->stage_counts[left]; i++)
        if (a[i].layer_ms < b[i].layer_ms || a[i].layer_ms > b[i].layer_ms ||
            a[i].bytes != b[i].bytes)
            return false;
    return true;
}

static uint64_t
name_of(const struct sharing *sharing, uint32_t pipeline)
{
    uint64_t name = UINT64_C(14695981039346656037);

    for (uint32_t i = 0; i < sharing->stage_counts[pipeline]; i++) {
        const struct cairn_group *group = sharing->groups + sharing->first[pipeline] + i;
        uint64_t bits;

        memcpy(&bits, &group->layer_ms, sizeof(bits));
        name = (name ^ bits) * UINT64_C(1099511628211);
        name = (name ^ name >> 29 ^ group->bytes) * UINT64_C(1099511628211);
    }
    return name ^ name >> 32;
}

/* False: out of memory. */
static bool
find_alike(struct sharing *sharing)
{
    uint64_t room = 2;
    uint32_t *table; /* of pipelines + 1, by their names; 0: free */

    while (room < (uint64_t)sharing->pipeline_count * 2)
        room *= 2;
    table = calloc(room, sizeof(*table));
    for (uint32_t i = 0; table && i < sharing->pipeline_count; i++) {
        uint64_t at;

        sharing->first[i] = i == 0 ? 0 : sharing->first[i - 1] + sharing->stage_counts[i - 1];
        at = name_of(sharing, i) & (room - 1);
        while (table[at] != 0 && !same_groups(sharing, table[at] - 1, i))
            at = (at + 1) & (room - 1);
        if (table[at] == 0) {
            table[at] = i + 1;
            sharing->kinds++;
        }
        sharing->alike[i] = table[at] - 1;
    }
    free(table);
    return table != NULL;
}

static double
time_of(struct sharing *sharing, uint32_t pipeline, uint32_t microbatches)
{
    uint32_t same = sharing->alike[pipeline];

    if (sharing->asked[same] != microbatches) {
        sharing->asked[same] = microbatches;
        sharing->answered_ms[same] =
            cairn_divide_layers(sharing->divider, sharing->groups + sharing->first[same],
                                sharing->stage_counts[same], microbatches, NULL);
    }
    return sharing->answered_ms[same];
}

/* The most micro-batches, at least one, that a pipeline does within a time. */
static uint32_t
most_within(struct sharing *sharing, uint32_t pipeline, double step_ms)
{
    uint32_t low = 1, high = cairn_divider_microbatches(sharing->divider);

    while (low < high) {
        uint32_t middle = high - (high - low) / 2;

        if (time_of(sharing, pipeline, middle) <= step_ms)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Gives out those that all fit in a time that is too short for all: the same that one after the
 * other would get. Where there are very many micro-batches that saves most of them. Returns how
 * many were given out. */
static uint64_t
give_many(struct sharing *sharing, uint32_t *microbatches)
{
    uint32_t total = cairn_divider_microbatches(sharing->divider);
    double low_ms = 0, high_ms = time_of(sharing, 0, total);
    uint64_t given = 0;

    for (uint32_t step = 0; step < SKIPPING_STEPS; step++) {
        double middle_ms = low_ms + (high_ms - low_ms) / 2;
        uint64_t count = 0;

        for (uint32_t i = 0; i < sharing->pipeline_count; i++) {
            microbatches[i] = sharing->alike[i] == i ? most_within(sharing, i, middle_ms)
                                                     : microbatches[sharing->alike[i]];
            count += microbatches[i];
        }
        if (count <= total)
            low_ms = middle_ms;
        else
            high_ms = middle_ms;
    }
    for (uint32_t i = 0; i < sharing->pipeline_count; i++) {
        microbatches[i] = sharing->alike[i] == i ? most_within(sharing, i, low_ms)
                                                 : microbatches[sharing->alike[i]];
        given += microbatches[i];
    }
    return given;
}

/* Gives out all micro-batches. The longest pipeline's time; INFINITY where one fits nothing. */
static double
give_out(struct sharing *sharing, uint32_t *microbatches)
{
    uint32_t total = cairn_divider_microbatches(sharing->divider), count = sharing->pipeline_count;
    uint64_t given = count;
    double step_ms = 0;

    for (uint32_t i = 0; i < count; i++) {
        double time_ms = time_of(sharing, i, 1);

        microbatches[i] = 1;
        step_ms = time_ms > step_ms ? time_ms : step_ms;
    }
    if (step_ms == INFINITY)
        return step_ms;
    if ((total - count) / SKIPPING_PAYS > sharing->kinds)
        given = give_many(sharing, microbatches);
    for (uint32_t i = 0; i < count; i++) {
        double time_ms = time_of(sharing, i, microbatches[i]);

        step_ms = time_ms > step_ms ? time_ms : step_ms;
        sharing->heap[i] = (struct candidate){0, i};
    }
    for (uint32_t i = 0; i < count; i++)
        sharing->heap[i].time_ms = time_of(sharing, i, microbatches[i] + 1);
    for (uint32_t i = count; i-- > 0;)
        sink(sharing->heap, count, i);
    for (; given < total; given++) {
        uint32_t i = sharing->heap[0].pipeline;

        step_ms = sharing->heap[0].time_ms > step_ms ? sharing->heap[0].time_ms : step_ms;
        microbatches[i]++;
        sharing->heap[0].time_ms = time_of(sharing, i, microbatches[i] + 1);
        sink(sharing->heap, count, 0);
    }
    return step_ms;
}

double
cairn_divide(struct cairn_divider *divider, const struct cairn_group *groups,
             const uint32_t *stage_counts, uint32_t pipeline_count, uint32_t *microbatches,
             uint32_t *layers)
{
    struct sharing sharing = {divider, groups, stage_counts, pipeline_count, NULL,
                              NULL,    NULL,   NULL,         NULL,           0};
    double step_ms = INFINITY;

    if (pipeline_count == 0 || pipeline_count > cairn_divider_microbatches(divider))
        return INFINITY;
    sharing.heap = calloc(pipeline_count, sizeof(*sharing.heap));
    sharing.first = calloc(pipeline_count, sizeof(*sharing.first));
    sharing.alike = calloc(pipeline_count, sizeof(*sharing.alike));
    sharing.asked = calloc(pipeline_count, sizeof(*sharing.asked));
    sharing.answered_ms = calloc(pipeline_count, sizeof(*sharing.answered_ms));
    if (sharing.heap && sharing.first && sharing.alike && sharing.asked && sharing.answered_ms &&
        find_alike(&sharing))
        step_ms = give_out(&sharing, microbatches);
    for (uint32_t i = 0; i < pipeline_count && step_ms < INFINITY; i++)
        (void)cairn_divide_layers(divider, groups + sharing.first[i], stage_counts[i],
                                  microbatches[i], layers + sharing.first[i]);
    free(sharing.heap);
    free(sharing.first);
    free(sharing.alike);
    free(sharing.asked);
    free(sharing.answered_ms);
    return step_ms;
}
