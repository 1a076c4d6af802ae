/*
 * tests/fuzz/fuzz_megatron_tree.c - any files in folders as a checkpoint of Megatron-LM's `mp_rank`
 * tree: names of folders, the iteration's file, the objects of model and optimizer.
 */
#include "tests/fuzz/folder.h"
#include "tools/convert/core/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    fuzz_folder_try(&cairn_format_megatron, bytes, bytes_len);
    return 0;
}
