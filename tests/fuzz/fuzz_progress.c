/* tests/fuzz/fuzz_progress.c - answers of NCCL's RAS and dumps of PyTorch's Flight Recorder: any
 * bytes are read or refused with a reason, and every count that comes out is named. */
#include "replan/trace/progress.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool
check(void *context, const struct cairn_op_count *progress)
{
    CAIRN_ASSERT(memchr(progress->comm, '\0', sizeof progress->comm) != NULL);
    CAIRN_ASSERT(progress->presence == CAIRN_PRESENT ||
                 progress->entered == CAIRN_PROGRESS_UNKNOWN);
    return true;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cairn_progress_fault fault = {NULL, 0};
    char *text = malloc(size ? size : 1);
    cairn_err err;

    if (!text)
        return 0;
    memcpy(text, data, size);
    err = cairn_progress_read_flight_recorder(text, size, check, NULL, &fault);
    CAIRN_ASSERT(err == CAIRN_OK || (fault.why && fault.at <= size));
    fault.why = NULL;
    err = cairn_progress_read_ras(text, size, check, NULL, &fault);
    CAIRN_ASSERT(err == CAIRN_OK || (fault.why && fault.at <= size));
    free(text);
    return 0;
}
