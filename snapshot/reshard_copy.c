/*
 * snapshot/reshard_copy.c - cairn_move_copy: runs one move in memory.
 *
 * A run of a power of two up to 64 bytes is one load and one store; others are memcpy's. A large
 * move with runs of whole lines writes past the caches: reading each target line before it is
 * overwritten costs a third of the bandwidth.
 */
#include "snapshot/reshard.h"

#include <string.h>

/* ThreadSanitizer does not see streaming stores. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#include <emmintrin.h>

enum {
    LINE_BYTES = 64,
    STREAM_LINES_BYTES_MIN = 128,     /* of runs of whole lines */
    STREAM_RUN_BYTES_MIN = 512,       /* of runs that begin or end within a line */
    STREAM_MOVE_BYTES_MIN = 256 << 10 /* below, the target may well be read from cache next */
};

static bool
should_stream(const struct cairn_move *move, const uint8_t *target)
{
    uint64_t borders = (uintptr_t)target | move->target_stride | move->run_bytes;

    return (move->run_bytes >= STREAM_RUN_BYTES_MIN ||
            (move->run_bytes >= STREAM_LINES_BYTES_MIN && borders % LINE_BYTES == 0)) &&
           move->run_count >= STREAM_MOVE_BYTES_MIN / move->run_bytes;
}

static void
stream_runs(const struct cairn_move *move, const uint8_t *source, uint8_t *target)
{
    for (uint64_t i = 0; i < move->run_count; i++) {
        const uint8_t *from = source + i * move->source_stride;
        uint8_t *to = target + i * move->target_stride;
        size_t left = (size_t)move->run_bytes;
        size_t head = (size_t)(-(uintptr_t)to % LINE_BYTES);

        memcpy(to, from, head);
        from += head;
        to += head;
        left -= head;
        for (; left >= LINE_BYTES; left -= LINE_BYTES, from += LINE_BYTES, to += LINE_BYTES) {
            __m128i a = _mm_loadu_si128((const void *)from);
            __m128i b = _mm_loadu_si128((const void *)(from + 16));
            __m128i c = _mm_loadu_si128((const void *)(from + 32));
            __m128i d = _mm_loadu_si128((const void *)(from + 48));

            _mm_stream_si128((void *)to, a);
            _mm_stream_si128((void *)(to + 16), b);
            _mm_stream_si128((void *)(to + 32), c);
            _mm_stream_si128((void *)(to + 48), d);
        }
        memcpy(to, from, left);
    }
    _mm_sfence(); /* streaming stores are not ordered by what the caller publishes next */
}
#else
static bool
should_stream(const struct cairn_move *move, const uint8_t *target)
{
    (void)move;
    (void)target;
    return false;
}

static void
stream_runs(const struct cairn_move *move, const uint8_t *source, uint8_t *target)
{
    (void)move;
    (void)source;
    (void)target;
}
#endif

/* Inlined with a constant, memcpy becomes moves between registers. */
static inline __attribute__((always_inline)) void
copy_fixed(const struct cairn_move *move, const uint8_t *restrict source, uint8_t *restrict target,
           size_t run_bytes)
{
    for (uint64_t i = 0; i < move->run_count; i++)
        memcpy(target + i * move->target_stride, source + i * move->source_stride, run_bytes);
}

void
cairn_move_copy(const struct cairn_move *move, const uint8_t *source, uint8_t *target)
{
    source += move->source_offset;
    target += move->target_offset;
    if (should_stream(move, target))
        stream_runs(move, source, target);
    else if (move->run_bytes == 1)
        copy_fixed(move, source, target, 1);
    else if (move->run_bytes == 2)
        copy_fixed(move, source, target, 2);
    else if (move->run_bytes == 4)
        copy_fixed(move, source, target, 4);
    else if (move->run_bytes == 8)
        copy_fixed(move, source, target, 8);
    else if (move->run_bytes == 16)
        copy_fixed(move, source, target, 16);
    else if (move->run_bytes == 32)
        copy_fixed(move, source, target, 32);
    else if (move->run_bytes == 64)
        copy_fixed(move, source, target, 64);
    else
        copy_fixed(move, source, target, (size_t)move->run_bytes);
}
