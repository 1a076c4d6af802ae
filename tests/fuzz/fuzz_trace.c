/*
 * tests/fuzz/fuzz_trace.c - any bytes as a trace: each line refused with a reason and a column, or
 * taken; and a detector that is fed all that was taken ends with verdicts whose ranks are the
 * job's, a timeline with spans that end after they begin, a heat map with words, and links that are
 * numbers a problem's file may have.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replan/detect/detect.h"
#include "replan/views/heatmap.h"
#include "replan/profile/links.h"
#include "replan/views/timeline.h"
#include "replan/trace/read.h"
#include "tests/fuzz/require.h"

enum { WORLD_MAX = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

static void
check(const struct cairn_detector *detector, uint32_t world)
{
    const struct cairn_verdicts *verdicts = cairn_detector_verdicts(detector);

    for (uint32_t i = 0; i < verdicts->count; i++) {
        const struct cairn_verdict *verdict = &verdicts->items[i];

        require(memchr(verdict->evidence, '\0', sizeof verdict->evidence) != NULL);
        require(verdict->links.count % 2 == 0);
        for (uint32_t k = 0; k < verdict->ranks.count; k++)
            require(verdict->ranks.items[k] < world);
        for (uint32_t k = 0; k < verdict->victims.count; k++)
            require(verdict->victims.items[k] < world);
    }
}

static void
check_timeline(const struct cairn_timeline *timeline, uint32_t world)
{
    size_t count;
    const struct cairn_span *spans = cairn_timeline_spans(timeline, &count);

    for (size_t i = 0; i < count; i++) {
        require(spans[i].rank < world && spans[i].end_ns >= spans[i].start_ns &&
                spans[i].gap_ns >= 0);
        require(spans[i].operation < cairn_timeline_operation_count(timeline));
        require(spans[i].before == UINT32_MAX ||
                (spans[i].before < i && spans[spans[i].before].rank == spans[i].rank));
        require(isnan(spans[i].ideal_end_ns) || spans[i].ideal_end_ns >= spans[i].ideal_start_ns);
    }
}

static void
check_heatmap(const struct cairn_detector *detector, const struct cairn_topology *topology)
{
    struct cairn_load loads[WORLD_MAX];
    struct cairn_heatmap map;

    for (uint32_t rank = 0; rank < topology->world; rank++)
        cairn_detector_load(detector, rank, &loads[rank]);
    require(cairn_heatmap_make(topology, loads, &map) == CAIRN_OK);
    require(map.words[0] != '\0' && memchr(map.words, '\0', sizeof map.words) != NULL);
    cairn_heatmap_fini(&map);
}

/* On a problem of nodes of two devices each, and of half the ranks. */
static void
check_links(const struct cairn_transfers *transfers, const struct cairn_topology *topology)
{
    struct cairn_device devices[WORLD_MAX];
    struct cairn_problem problem = {.devices = devices,
                                    .device_count = (topology->world + 1) / 2,
                                    .intra_gbps = 1,
                                    .inter_gbps = 1};
    struct cairn_profiled_links links;

    for (uint32_t i = 0; i < problem.device_count; i++)
        devices[i] = (struct cairn_device){i, i / 2, 1, 1};
    require(cairn_profile_links(&problem, topology, transfers, &links) == CAIRN_OK);
    require(problem.intra_gbps >= 1e-6 && problem.intra_gbps <= 1e9 && problem.inter_gbps >= 1e-6 &&
            problem.inter_gbps <= 1e9);
    for (uint32_t i = 0; i < problem.slow_link_count; i++)
        require(problem.slow_links[i].gbps >= 1e-6 && problem.slow_links[i].gbps <= 1e9 &&
                problem.slow_links[i].nodes[0] < problem.slow_links[i].nodes[1]);
    free(problem.slow_links);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_topology *topology = NULL;
    struct cairn_detector *detector = NULL;
    struct cairn_timeline *timeline = NULL;
    struct cairn_transfers *transfers = NULL;
    const char *at = (const char *)bytes, *end = at + bytes_len;

    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t line_bytes = (size_t)((stop ? stop : end) - at);
        struct cairn_trace_fault fault = {NULL, 0};
        struct cairn_record record;
        cairn_err err;

        if (!topology) {
            err = cairn_trace_read_header(at, line_bytes, &topology, &fault);
            if (!err && topology->world <= WORLD_MAX) {
                require(cairn_detector_create(topology, 4, &detector) == CAIRN_OK);
                require(cairn_timeline_create(topology, 3, &timeline) == CAIRN_OK);
                require(cairn_transfers_create(topology, &transfers) == CAIRN_OK);
            }
        } else {
            err = cairn_trace_read_line(topology, at, line_bytes, &record, &fault);
            if (!err && detector && record.memory_bytes == 0 && !record.is_backward) {
                require(cairn_detector_feed(detector, &record) == CAIRN_OK);
                require(cairn_timeline_feed(timeline, &record) == CAIRN_OK);
                require(cairn_transfers_feed(transfers, &record) == CAIRN_OK);
            }
        }
        require(err == CAIRN_OK ||
                (err == CAIRN_CORRUPT && fault.why && fault.column <= line_bytes));
        if (err && !topology)
            break;
        at += line_bytes + 1;
    }
    if (detector) {
        require(cairn_detector_finish(detector) == CAIRN_OK);
        check(detector, topology->world);
        check_heatmap(detector, topology);
        require(cairn_timeline_finish(timeline) == CAIRN_OK);
        check_timeline(timeline, topology->world);
        check_links(transfers, topology);
    }
    cairn_transfers_destroy(transfers);
    cairn_timeline_destroy(timeline);
    cairn_detector_destroy(detector);
    cairn_topology_destroy(topology);
    return 0;
}
