/*
 * tests/fuzz/fuzz_torch_file.c - any bytes as a file of torch.save: refused, or tensors none of
 * whose element lies outside of the file. The archive's own records take much to guess, so that
 * bytes which are not a file are also tried as the data.pkl of one.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "tools/convert/torch/file.h"
#include "tools/convert/zip/write.h"
#include "tests/fuzz/require.h"
#include "tests/support/write_archive.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

enum { MEMORY_BYTES = 16 << 20, STORAGE_BYTES = 64, STORAGES = 4 };

static void
check_tensor(const struct cairn_torch_file *file, const struct cairn_torch_tensor *tensor,
             uint64_t bytes_len)
{
    const struct cairn_torch_view *view = &tensor->view;
    uint64_t last = tensor->at;

    require(tensor->storage < file->storage_count &&
            strlen(tensor->name) < CAIRN_TORCH_NAME_BYTES_MAX);
    require(view->dims <= CAIRN_DIMS_MAX && tensor->at <= bytes_len);
    for (uint32_t d = 0; d < view->dims && tensor->bytes > 0; d++)
        last += (view->shape[d] - 1) * view->stride[d] * view->dtype->element_bytes;
    require(tensor->bytes == 0 || last + view->dtype->element_bytes <= bytes_len);
    require(!tensor->contiguous || tensor->at + tensor->bytes <= bytes_len);
}

static bool
try_file(int fd, uint64_t bytes_len)
{
    struct cairn_torch_file file;
    cairn_err err = cairn_torch_open(fd, "fuzz", 0, bytes_len, MEMORY_BYTES, &file, NULL);

    require(err == CAIRN_OK || err == CAIRN_CORRUPT || err == CAIRN_NOMEM);
    for (uint32_t i = 0; i < file.storage_count; i++)
        require(file.storages[i].at <= bytes_len &&
                file.storages[i].bytes <= bytes_len - file.storages[i].at);
    for (uint32_t i = 0; i < file.tensor_count; i++)
        check_tensor(&file, &file.tensors[i], bytes_len);
    cairn_torch_close(&file);
    return err == CAIRN_OK;
}

/* An archive with these bytes as its object, and a few storages. */
static void
try_object(const uint8_t *bytes, size_t bytes_len)
{
    static const char *const names[STORAGES] = {"data/0", "data/1", "data/2", "data/3"};
    int fd = memfd_create("object", 0);
    struct cairn_zip_plan plan;
    uint32_t index;

    require(fd >= 0 && cairn_zip_plan_init(&plan, "x") == CAIRN_OK);
    require(cairn_zip_plan_add(&plan, "data.pkl", bytes_len, &index) == CAIRN_OK);
    require(cairn_file_write_at(fd, plan.entries[0].at, bytes, bytes_len) == CAIRN_OK);
    for (size_t i = 0; i < STORAGES; i++)
        require(cairn_zip_plan_add(&plan, names[i], STORAGE_BYTES, &index) == CAIRN_OK);
    require(write_zip_plan(&plan, fd, 0) == CAIRN_OK);
    (void)try_file(fd, cairn_zip_plan_bytes(&plan));
    cairn_zip_plan_fini(&plan);
    require(close(fd) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    int fd = memfd_create("fuzz", 0);
    bool taken;

    require(fd >= 0 && write(fd, bytes, bytes_len) == (ssize_t)bytes_len);
    taken = try_file(fd, bytes_len);
    require(close(fd) == 0);
    if (!taken)
        try_object(bytes, bytes_len);
    return 0;
}
