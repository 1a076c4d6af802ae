/* base/secret.c - see secret.h. */
#include "base/secret.h"

#include <string.h>
#include <sys/mman.h>

void *
cairn_secret_alloc(size_t bytes)
{
    void *secret = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (secret == MAP_FAILED)
        return NULL;
    (void)madvise(secret, bytes, MADV_DONTDUMP);
    (void)madvise(secret, bytes, MADV_WIPEONFORK);
    (void)mlock(secret, bytes);
    return secret;
}

void
cairn_secret_free(void *secret, size_t bytes)
{
    if (!secret)
        return;
    explicit_bzero(secret, bytes);
    munmap(secret, bytes);
}
