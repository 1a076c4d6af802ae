/* snapshot/copy_choose.c - measures the kernels of copy-and-checksum, and takes the fastest. */
#include "base/clock.h"
#include "snapshot/copy.h"

#include <stdlib.h>
#include <string.h>

enum {
    SAMPLE_BYTES = 1 << 20, /* more than the buffers between a core and memory hide */
    PIECE_BYTES = 64 * 1024,
    ROUNDS = 3,
    NOISE_PARTS = 20, /* a kernel within a twentieth of the fastest is as fast */
    ALIGN_BYTES = 64
};

static uint64_t
time_ns(const struct cairn_copy_kernel *kernel, uint8_t *dest, const uint8_t *source)
{
    const struct cairn_clock clock = cairn_clock_system();
    struct cairn_copy_look look = {.type = cairn_finite_of(CAIRN_BF16)}; /* as most of a state */
    uint64_t begin_ns;

    cairn_copy_forget(source, SAMPLE_BYTES);
    cairn_copy_forget(dest, SAMPLE_BYTES);
    begin_ns = cairn_clock_now_ns(&clock);
    for (size_t at = 0; at < SAMPLE_BYTES; at += PIECE_BYTES)
        (void)cairn_copy_crc_with(kernel, 0, dest + at, source + at, PIECE_BYTES, &look);
    return cairn_clock_now_ns(&clock) - begin_ns;
}

cairn_err
cairn_copy_choose(double bytes_per_s[CAIRN_COPY_KERNELS_MAX])
{
    const struct cairn_copy_kernel *kernels = cairn_copy_kernels();
    uint64_t best_ns[CAIRN_COPY_KERNELS_MAX], fastest_ns = UINT64_MAX;
    uint8_t *source = NULL, *dest = NULL;
    size_t chosen = 0;
    cairn_err err = CAIRN_NOMEM;

    source = aligned_alloc(ALIGN_BYTES, SAMPLE_BYTES);
    dest = aligned_alloc(ALIGN_BYTES, SAMPLE_BYTES);
    if (!source || !dest)
        goto done;
    memset(source, 1, SAMPLE_BYTES);
    memset(dest, 2, SAMPLE_BYTES);
    memset(best_ns, 0xff, sizeof best_ns);
    /* In turns, so that a short disturbance of the machine hits all of them. */
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; kernels[i].name; i++) {
            uint64_t taken_ns = time_ns(&kernels[i], dest, source);

            if (taken_ns < best_ns[i])
                best_ns[i] = taken_ns;
        }
    for (size_t i = 0; kernels[i].name; i++) {
        fastest_ns = best_ns[i] < fastest_ns ? best_ns[i] : fastest_ns;
        if (bytes_per_s)
            bytes_per_s[i] = SAMPLE_BYTES * 1e9 / (double)best_ns[i];
    }
    while (kernels[chosen].name && best_ns[chosen] > fastest_ns + fastest_ns / NOISE_PARTS)
        chosen++;
    if (kernels[0].name)
        (void)cairn_copy_use(kernels[chosen].name);
    err = CAIRN_OK;
done:
    free(source);
    free(dest);
    return err;
}
