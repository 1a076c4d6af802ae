/* snapshot/copy.c - copy-and-checksum: the portable kernel, and the one that the process uses. */
#include "snapshot/copy.h"

#include "base/crc.h"

#include <stdatomic.h>
#include <string.h>

enum {
    PIECE_BYTES = 4096, /* a piece and its copy fit the first-level cache */
    LOOK_BYTES = 16384,
    LINE_BYTES = 64
};

static const char portable_name[] = "portable";
static const struct cairn_copy_kernel portable = {0};
static _Atomic(const struct cairn_copy_kernel *) used; /* NULL: none is chosen yet */

uint64_t
cairn_copy_crc_portable(uint64_t seed, void *dest, const void *source, size_t bytes,
                        struct cairn_copy_look *look)
{
    uint8_t *to = dest;
    const uint8_t *from = source;

    while (bytes > 0) {
        size_t piece = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;

        memcpy(to, from, piece);
        seed = cairn_crc64(seed, to, piece); /* of what was written, not of what was read */
        if (look)
            look->found |= cairn_finite_fails(look->type, to, piece);
        to += piece;
        from += piece;
        bytes -= piece;
    }
    return seed;
}

/* Looks at each piece before it is copied, which brings it into the cache. */
static uint64_t
copy_looked_at(const struct cairn_copy_kernel *kernel, uint64_t seed, void *dest,
               const void *source, size_t bytes, struct cairn_copy_look *look)
{
    for (size_t at = 0, piece; at < bytes; at += piece) {
        piece = bytes - at < LOOK_BYTES ? bytes - at : LOOK_BYTES;
        look->found |= cairn_finite_fails(look->type, (const uint8_t *)source + at, piece);
        seed = cairn_copy_crc_with(kernel, seed, (uint8_t *)dest + at, (const uint8_t *)source + at,
                                   piece, NULL);
    }
    return seed;
}

uint64_t
cairn_copy_crc_with(const struct cairn_copy_kernel *kernel, uint64_t seed, void *dest,
                    const void *source, size_t bytes, struct cairn_copy_look *look)
{
    size_t head = (LINE_BYTES - ((uintptr_t)dest & (LINE_BYTES - 1))) & (LINE_BYTES - 1);
    const uint8_t *from = source;
    uint8_t *to = dest;
    size_t rows_bytes;

    if (bytes < head + kernel->row_bytes)
        return cairn_copy_crc_portable(seed, dest, source, bytes, look);
    /* a row would begin inside an element */
    if (look && head % look->type->element_bytes)
        return copy_looked_at(kernel, seed, dest, source, bytes, look);
    rows_bytes = (bytes - head) / kernel->row_bytes * kernel->row_bytes;
    seed = cairn_copy_crc_portable(seed, to, from, head, look);
    seed = kernel->copy_rows(seed, to + head, from + head, rows_bytes, look);
    return cairn_copy_crc_portable(seed, to + head + rows_bytes, from + head + rows_bytes,
                                   bytes - head - rows_bytes, look);
}

static const struct cairn_copy_kernel *
used_kernel(void)
{
    const struct cairn_copy_kernel *kernel = atomic_load_explicit(&used, memory_order_relaxed);

    return kernel ? kernel : cairn_copy_kernels();
}

const char *
cairn_copy_name(void)
{
    return used_kernel()->name ? used_kernel()->name : portable_name;
}

bool
cairn_copy_use(const char *name)
{
    const struct cairn_copy_kernel *kernel = cairn_copy_kernels();

    while (kernel->name && strcmp(kernel->name, name) != 0)
        kernel++;
    if (!kernel->name && strcmp(name, portable_name) != 0)
        return false;
    atomic_store_explicit(&used, kernel->name ? kernel : &portable, memory_order_relaxed);
    return true;
}

uint32_t
cairn_copy_number(void)
{
    const struct cairn_copy_kernel *kernel = used_kernel();

    return kernel->name ? (uint32_t)(kernel - cairn_copy_kernels()) + 1 : 0;
}

void
cairn_copy_use_number(uint32_t number)
{
    const struct cairn_copy_kernel *kernel = cairn_copy_kernels();

    if (number == 0)
        (void)cairn_copy_use(portable_name);
    for (; number > 0 && kernel->name; kernel++)
        if (--number == 0)
            (void)cairn_copy_use(kernel->name);
}

uint64_t
cairn_copy_crc(uint64_t seed, void *dest, const void *source, size_t bytes,
               struct cairn_copy_look *look)
{
    const struct cairn_copy_kernel *kernel = used_kernel();

    if (!kernel->name)
        return cairn_copy_crc_portable(seed, dest, source, bytes, look);
    return cairn_copy_crc_with(kernel, seed, dest, source, bytes, look);
}
