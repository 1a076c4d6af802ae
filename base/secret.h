/*
 * base/secret.h - memory for keys: own pages, locked where the system allows it (RLIMIT_MEMLOCK),
 * left out of core files and children, and erased at the end.
 */
#ifndef CAIRN_BASE_SECRET_H
#define CAIRN_BASE_SECRET_H

#include <stdbool.h>
#include <stddef.h>

/* Zeroed memory of `bytes` bytes, at least 1. NULL if memory is short. Thread: any. */
void *cairn_secret_alloc(size_t bytes);

/* Erases and frees it; `bytes` as at the allocation. NULL is allowed. */
void cairn_secret_free(void *secret, size_t bytes);

/*
 * Makes the crypto library erase all memory that it frees: it leaves copies of private keys there
 * when it parses them. Call it before the library's first use. False: too late, or the library
 * cannot. Thread: the first.
 */
bool cairn_secret_erase_freed(void);

#endif
