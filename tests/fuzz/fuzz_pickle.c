/*
 * tests/fuzz/fuzz_pickle.c - any bytes as a pickle: refused, or a tree that is written, read again,
 * and written to the same bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/convert/pickle/read.h"
#include "tools/convert/pickle/write.h"
#include "tests/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

enum { ARENA_BYTES = 64 << 20 };

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_pickle pickle, again;
    struct cairn_pickle_node *root = NULL, *root_again = NULL;
    uint8_t *first = NULL, *second = NULL;
    size_t first_len = 0, second_len = 0;
    cairn_err err;

    cairn_pickle_init(&pickle, ARENA_BYTES);
    cairn_pickle_init(&again, ARENA_BYTES);
    err = cairn_pickle_read(&pickle, "fuzz", bytes, bytes_len, &root, NULL);
    require(err == CAIRN_OK || err == CAIRN_CORRUPT || err == CAIRN_NOMEM);
    require(pickle.used_bytes <= (uint64_t)CAIRN_PICKLE_ARENA_FACTOR * bytes_len + 64);
    if (err == CAIRN_OK) {
        /* a value that holds itself through calls alone can be too deep to be written */
        if (cairn_pickle_write(&pickle, root, &first, &first_len, NULL) == CAIRN_OK) {
            err = cairn_pickle_read(&again, "again", first, first_len, &root_again, NULL);
            require(err == CAIRN_OK);
            require(cairn_pickle_write(&again, root_again, &second, &second_len, NULL) == CAIRN_OK);
            require(first_len == second_len && memcmp(first, second, first_len) == 0);
        }
    }
    free(first);
    free(second);
    cairn_pickle_fini(&pickle);
    cairn_pickle_fini(&again);
    return 0;
}
