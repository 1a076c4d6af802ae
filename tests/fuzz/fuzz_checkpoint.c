/*
 * tests/fuzz/fuzz_checkpoint.c - any files in a folder as a checkpoint of the format that they look
 * like: the indexes, markers, names of files and objects of all formats.
 */
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    fuzz_folder_try(NULL, bytes, bytes_len);
    return 0;
}
