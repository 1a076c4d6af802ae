/*
 * tests/fuzz/fuzz_deepspeed_tree.c - any files in a folder as a checkpoint of several ranks of
 * DeepSpeed: names of files, parts of tensor parallelism, experts, and what they are laid out as
 * again.
 */
#include "tests/fuzz/folder.h"
#include "tools/convert/core/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    fuzz_folder_try(&cairn_format_deepspeed, bytes, bytes_len);
    return 0;
}
