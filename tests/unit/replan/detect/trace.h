/* tests/unit/replan/detect/trace.h - feeds a whole trace to a detector. */
#ifndef CAIRN_TESTS_DETECT_TRACE_H
#define CAIRN_TESTS_DETECT_TRACE_H

#include <string.h>

#include "replan/detect/detect.h"
#include "replan/trace/read.h"
#include "tests/support/cmocka.h"

/* Reads a trace as the command does: what ends before it starts is left out. */
static inline struct cairn_detector *
trace_detect(char *trace, struct cairn_topology **topology)
{
    struct cairn_detector *detector = NULL;
    struct cairn_trace_fault fault;
    struct cairn_record record;

    for (char *at = trace; *at; at += strcspn(at, "\n") + 1) {
        size_t line_bytes = strcspn(at, "\n");

        if (!*topology) {
            assert_int_equal(cairn_trace_read_header(at, line_bytes, topology, &fault), CAIRN_OK);
            assert_int_equal(cairn_detector_create(*topology, 0, &detector), CAIRN_OK);
            continue;
        }
        assert_int_equal(cairn_trace_read_line(*topology, at, line_bytes, &record, &fault),
                         CAIRN_OK);
        if (!record.is_backward)
            assert_int_equal(cairn_detector_feed(detector, &record), CAIRN_OK);
    }
    assert_int_equal(cairn_detector_finish(detector), CAIRN_OK);
    return detector;
}

#endif
