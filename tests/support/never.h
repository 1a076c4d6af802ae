/* tests/support/never.h - the planners' question whether to stop, always answered with no. */
#ifndef CAIRN_TESTS_NEVER_H
#define CAIRN_TESTS_NEVER_H

#include <stdbool.h>

static inline bool
never(void *context)
{
    return false;
}

#endif
