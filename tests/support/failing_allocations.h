/*
 * tests/support/failing_allocations.h - allocations that fail on request. For fault tests,
 * for which the linker wraps malloc, calloc and realloc.
 */
#ifndef CAIRN_TESTS_FAILING_ALLOCATIONS_H
#define CAIRN_TESTS_FAILING_ALLOCATIONS_H

#include <stdbool.h>
#include <stddef.h>

/* Whether the allocation that is being made fails; the file that includes this sets it. */
static bool (*allocation_fails)(void);

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

void *
__wrap_malloc(size_t bytes)
{
    return allocation_fails() ? NULL : __real_malloc(bytes);
}

void *
__wrap_calloc(size_t count, size_t bytes)
{
    return allocation_fails() ? NULL : __real_calloc(count, bytes);
}

void *
__wrap_realloc(void *old, size_t bytes)
{
    return allocation_fails() ? NULL : __real_realloc(old, bytes);
}

#endif
