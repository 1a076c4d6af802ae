/* base/secret.c - see secret.h. */
#include "base/secret.h"

#include <malloc.h>
#include <openssl/crypto.h>
#include <stdlib.h>
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

static void *
library_alloc(size_t bytes, const char *file, int line)
{
    (void)file, (void)line;
    return malloc(bytes);
}

static void
library_free(void *memory, const char *file, int line)
{
    (void)file, (void)line;
    if (memory)
        explicit_bzero(memory, malloc_usable_size(memory));
    free(memory);
}

/* realloc would leave what it moves. */
static void *
library_realloc(void *memory, size_t bytes, const char *file, int line)
{
    size_t before = memory ? malloc_usable_size(memory) : 0;
    void *moved;

    if (bytes == 0) {
        library_free(memory, file, line);
        return NULL;
    }
    moved = malloc(bytes);
    if (!moved)
        return NULL;
    if (memory)
        memcpy(moved, memory, before < bytes ? before : bytes);
    library_free(memory, file, line);
    return moved;
}

bool
cairn_secret_erase_freed(void)
{
    return CRYPTO_set_mem_functions(library_alloc, library_realloc, library_free) == 1;
}
