/*
 * tests/fuzz/fuzz_megatron_dist.c - any files in a folder as a distributed checkpoint of
 * Megatron-Core: `.metadata`, common.pt, and the items in the files of ranks.
 */
#include "tests/fuzz/folder.h"
#include "tools/convert/core/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    fuzz_folder_try(&cairn_format_megatron_dist, bytes, bytes_len);
    return 0;
}
