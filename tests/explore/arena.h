/*
 * tests/explore/arena.h - memory that can be copied away and back, so that the explorer returns to
 * an earlier state in microseconds.
 *
 * The Makefile includes this file before every source of the explorer. So malloc and its kin take
 * from the arena that is current: one per agent, one for the world, one for what never changes. An
 * arena lies at a fixed address, and all its pointers are into itself or into the last one.
 */
#ifndef CAIRN_EXPLORE_ARENA_H
#define CAIRN_EXPLORE_ARENA_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct arena;

/* Maps `count` arenas. */
void arenas_open(uint32_t count);
struct arena *arena_number(uint32_t number);
/* Empties an arena. */
void arena_clear(struct arena *arena);
/* Makes an arena the one that malloc takes from; returns the last one. */
struct arena *arena_use(struct arena *arena);
size_t arena_used(const struct arena *arena);
/* Copies an arena's contents to a new image, or back. */
void arena_save(const struct arena *arena, void *image);
void arena_restore(struct arena *arena, const void *image, size_t image_bytes);

void *arena_malloc(size_t bytes);
void *arena_calloc(size_t count, size_t bytes);
void *arena_realloc(void *old, size_t bytes);
void arena_free(void *memory);
/* An assertion has failed, or abort was called. */
_Noreturn void explore_abort(void);

#ifndef CAIRN_EXPLORE_OWN_MALLOC
#define malloc(bytes) arena_malloc(bytes)
#define calloc(count, bytes) arena_calloc(count, bytes)
#define realloc(old, bytes) arena_realloc(old, bytes)
#define free(memory) arena_free(memory)
#define abort() explore_abort()
#endif

#endif
