/*
 * base/assert.h - assertions for our own mistakes. They stay on in release builds.
 *
 * Never on bytes from a peer, disk, configuration or trainer: those return an error. Never in code
 * linked into the trainer, which must not abort.
 */
#ifndef CAIRN_BASE_ASSERT_H
#define CAIRN_BASE_ASSERT_H

#define CAIRN_ASSERT(condition)                                                                    \
    ((condition) ? (void)0 : cairn_assert_failed(#condition, __FILE__, __LINE__))

/* Prints the failed assertion to stderr and aborts. */
_Noreturn void cairn_assert_failed(const char *condition, const char *file, int line);

#endif
