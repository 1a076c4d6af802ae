/* tests/fuzz/require.h - how a fuzz target reports a broken invariant: it aborts. */
#ifndef CAIRN_TESTS_FUZZ_REQUIRE_H
#define CAIRN_TESTS_FUZZ_REQUIRE_H

#include <stdbool.h>
#include <stdlib.h>

static inline void
require(bool holds)
{
    if (!holds)
        abort();
}

#endif
