/*
 * tests/fuzz/fuzz_trace.c - any bytes as a trace: each line refused with a reason and a column, or taken; and a
 * detector that is fed all that was taken ends with verdicts whose ranks are the job's.
 */
#include <stdlib.h>
#include <string.h>

#include "replan/detect.h"
#include "replan/trace_read.h"

enum { WORLD_MAX = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

static void
require(bool condition)
{
    if (!condition)
        abort();
}

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

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_topology *topology = NULL;
    struct cairn_detector *detector = NULL;
    const char *at = (const char *)bytes, *end = at + bytes_len;

    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t line_bytes = (size_t)((stop ? stop : end) - at);
        struct cairn_trace_fault fault = {NULL, 0};
        struct cairn_record record;
        cairn_err err;

        if (!topology) {
            err = cairn_trace_read_header(at, line_bytes, &topology, &fault);
            if (!err && topology->world <= WORLD_MAX)
                require(cairn_detector_create(topology, 4, &detector) == CAIRN_OK);
        } else {
            err = cairn_trace_read_line(topology, at, line_bytes, &record, &fault);
            if (!err && detector)
                require(cairn_detector_feed(detector, &record) == CAIRN_OK);
        }
        require(err == CAIRN_OK || (err == CAIRN_CORRUPT && fault.why && fault.column <= line_bytes));
        if (err && !topology)
            break;
        at += line_bytes + 1;
    }
    if (detector) {
        require(cairn_detector_finish(detector) == CAIRN_OK);
        check(detector, topology->world);
    }
    cairn_detector_destroy(detector);
    cairn_topology_destroy(topology);
    return 0;
}
