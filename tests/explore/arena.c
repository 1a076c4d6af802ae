/*
 * tests/explore/arena.c - see arena.h.
 *
 * Blocks have a header with their size class, and free blocks are in one list per class.
 * Lists and the end of the used part lie in the arena itself, so a restored arena goes on exactly
 * as it did before.
 */
#define CAIRN_EXPLORE_OWN_MALLOC
#include "tests/explore/arena.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum {
    ARENA_BYTES = 8 << 20,
    STEP_BYTES = 32,
    SMALL_BYTES = 1024, /* classes of STEP_BYTES below, of powers of two above */
    CLASSES = SMALL_BYTES / STEP_BYTES + 16
};

struct block {
    size_t class;
    struct block *next; /* while it is free */
};

struct arena {
    size_t used;
    struct block *free[CLASSES];
};

enum { HEADER_BYTES = 16 };

static uint8_t *const base = (uint8_t *)0x200000000000;
static uint32_t arena_count;
static struct arena *current;

void
arenas_open(uint32_t count)
{
    void *at = mmap(base, (size_t)count * ARENA_BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE, -1, 0);

    if (at != base) {
        fprintf(stderr, "explore: no memory at a fixed address\n");
        exit(1);
    }
    arena_count = count;
    for (uint32_t i = 0; i < count; i++)
        arena_clear(arena_number(i));
    current = arena_number(count - 1);
}

struct arena *
arena_number(uint32_t number)
{
    return (struct arena *)(base + (size_t)number * ARENA_BYTES);
}

void
arena_clear(struct arena *arena)
{
    memset(arena, 0, sizeof *arena);
    arena->used = (sizeof *arena + 63) / 64 * 64;
}

struct arena *
arena_use(struct arena *arena)
{
    struct arena *last = current;

    current = arena;
    return last;
}

size_t
arena_used(const struct arena *arena)
{
    return arena->used;
}

void
arena_save(const struct arena *arena, void *image)
{
    memcpy(image, arena, arena->used);
}

void
arena_restore(struct arena *arena, const void *image, size_t image_bytes)
{
    memcpy(arena, image, image_bytes);
}

static size_t
class_of(size_t bytes, size_t *room)
{
    size_t class = SMALL_BYTES / STEP_BYTES;

    if (bytes <= SMALL_BYTES) {
        class = bytes == 0 ? 0 : (bytes - 1) / STEP_BYTES;
        *room = (class + 1) * STEP_BYTES;
        return class;
    }
    for (*room = 2 * SMALL_BYTES; *room < bytes; *room *= 2)
        class ++;
    return class;
}

static size_t
room_of(size_t class)
{
    return class < SMALL_BYTES / STEP_BYTES
               ? (class + 1) * STEP_BYTES
               : (size_t)2 * SMALL_BYTES << (class - SMALL_BYTES / STEP_BYTES);
}

void *
arena_malloc(size_t bytes)
{
    size_t room, class = class_of(bytes, &room);
    struct block *block;

    if (class >= CLASSES)
        return NULL;
    block = current->free[class];
    if (block) {
        current->free[class] = block->next;
    } else {
        if (current->used + HEADER_BYTES + room > ARENA_BYTES) {
            fprintf(stderr, "explore: an arena is full\n");
            exit(1);
        }
        block = (struct block *)((uint8_t *)current + current->used);
        current->used += HEADER_BYTES + room;
        block->class = class;
    }
    return (uint8_t *)block + HEADER_BYTES;
}

void *
arena_calloc(size_t count, size_t bytes)
{
    void *memory = arena_malloc(count * bytes);

    if (memory)
        memset(memory, 0, count * bytes);
    return memory;
}

void
arena_free(void *memory)
{
    struct block *block;
    struct arena *arena;

    if (!memory)
        return;
    arena = arena_number((uint32_t)((size_t)((uint8_t *)memory - base) / ARENA_BYTES));
    block = (struct block *)((uint8_t *)memory - HEADER_BYTES);
    block->next = arena->free[block->class];
    arena->free[block->class] = block;
}

void *
arena_realloc(void *old, size_t bytes)
{
    struct block *block;
    void *memory;
    size_t room;

    if (!old)
        return arena_malloc(bytes);
    block = (struct block *)((uint8_t *)old - HEADER_BYTES);
    room = room_of(block->class);
    if (bytes <= room)
        return old;
    memory = arena_malloc(bytes);
    if (!memory)
        return NULL;
    memcpy(memory, old, room);
    arena_free(old);
    return memory;
}
