/*
 * tests/interop/gated_copy.c - a copy that goes as far as the test lets it.
 *
 * Linked into libcairn_gated.so, where it takes the place of cairn_copy_crc: the capture of large
 * tensors stops in the middle when its bytes are used up, and goes on when there are more. So what
 * an update does while a snapshot is half captured is made, not hoped for.
 */
#include "snapshot/copy.h"

#include <pthread.h>
#include <stdbool.h>

uint64_t __real_cairn_copy_crc(uint64_t crc, void *to, const void *from, size_t bytes,
                               struct cairn_copy_look *look);
uint64_t __wrap_cairn_copy_crc(uint64_t crc, void *to, const void *from, size_t bytes,
                               struct cairn_copy_look *look);
void cairn_test_gate(uint64_t bytes);
bool cairn_test_gate_waits(void);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static uint64_t left_bytes = UINT64_MAX;
static bool waits;

/* Lets so many more bytes through; UINT64_MAX: all. */
void
cairn_test_gate(uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    left_bytes = bytes;
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&lock);
}

/* The copy has used up its bytes. */
bool
cairn_test_gate_waits(void)
{
    bool result;

    pthread_mutex_lock(&lock);
    result = waits;
    pthread_mutex_unlock(&lock);
    return result;
}

uint64_t
__wrap_cairn_copy_crc(uint64_t crc, void *to, const void *from, size_t bytes,
                      struct cairn_copy_look *look)
{
    pthread_mutex_lock(&lock);
    while (left_bytes < bytes) {
        waits = true;
        pthread_cond_wait(&opened, &lock);
    }
    waits = false;
    if (left_bytes != UINT64_MAX)
        left_bytes -= bytes;
    pthread_mutex_unlock(&lock);
    return __real_cairn_copy_crc(crc, to, from, bytes, look);
}
