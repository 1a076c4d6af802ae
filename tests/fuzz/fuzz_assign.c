/* tests/fuzz/fuzz_assign.c - any bytes as the input of `cairn assign`: refused with a reason, or
 * assigned, and each sequence to a pipeline that exists. */
#include "replan/assign/assign.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SEQUENCES_MAX = 256, PIPELINES_MAX = 64 }; /* larger is slow, not different */

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cairn_assign_problem problem = {0};
    struct cairn_assignment assignment = {0};
    struct cairn_fault fault = {""};
    double step_ms = 0;
    cairn_err err = cairn_assign_problem_read(data, size, &problem, &fault);

    if (err) {
        if (err == CAIRN_CORRUPT && fault.text[0] == '\0')
            abort();
        return 0;
    }
    if (problem.sequence_count <= SEQUENCES_MAX && problem.pipeline_count <= PIPELINES_MAX) {
        err = cairn_assign(&problem, &assignment, &fault);
        if (err && (err == CAIRN_INTERNAL || fault.text[0] == '\0'))
            abort();
        for (uint32_t i = 0; !err && i < problem.sequence_count; i++)
            if (assignment.pipelines[i] >= problem.pipeline_count)
                abort();
        if (!err && cairn_assign_step_ms(&problem, assignment.pipelines, &step_ms) != CAIRN_OK)
            abort();
        free(assignment.pipelines);
    }
    cairn_assign_problem_fini(&problem);
    return 0;
}
