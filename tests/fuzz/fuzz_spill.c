/*
 * tests/fuzz/fuzz_spill.c - what agents read of a spill directory (the names, COMMIT files and
 * index.json of its generations): files of the input (folder.h) are listed and opened, or refused.
 */
#include "snapshot/spill.h"
#include "snapshot/universal.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

static void
open_generation(const struct cairn_spilled *spilled)
{
    char name[CAIRN_SPILL_DIR_NAME_BYTES], report[512] = "";
    struct cairn_universal universal = {0};
    int fd;

    cairn_spill_dir_name(spilled->generation, name);
    fd = openat(fuzz_folder_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (cairn_universal_dir_open(fd, &universal, report, sizeof report) == CAIRN_OK)
        for (uint32_t f = 0; f < universal.file_count; f++) {
            struct cairn_manifest manifest = {0};

            require(cairn_universal_manifest(&universal, f, &manifest) == CAIRN_OK);
            cairn_manifest_fini(&manifest);
        }
    else
        require(universal.files == NULL && universal.tensors == NULL);
    cairn_universal_fini(&universal);
    close(fd);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    static struct fuzz_file files[FUZZ_FILES_MAX];
    struct cairn_spilled *list = NULL;
    size_t file_count, count = 0;

    if (bytes_len > FUZZ_INPUT_BYTES_MAX)
        return 0;
    fuzz_folder_init();
    file_count = fuzz_folder_parse(bytes, bytes_len, files);
    for (size_t i = 0; i < file_count; i++) {
        fuzz_each_parent(files[i].path, false, fuzz_make_folder);
        (void)fuzz_folder_write(files[i].path, files[i].bytes, files[i].bytes_len, false);
    }
    require(cairn_spill_list(fuzz_folder_fd, &list, &count) == CAIRN_OK);
    for (size_t i = 0; i < count; i++) {
        require(i == 0 ||
                cairn_generation_id_compare(list[i - 1].generation, list[i].generation) >= 0);
        open_generation(&list[i]);
    }
    free(list);
    for (size_t i = 0; i < file_count; i++)
        (void)unlinkat(fuzz_folder_fd, files[i].path, 0);
    for (size_t i = 0; i < file_count; i++)
        fuzz_each_parent(files[i].path, true, fuzz_remove_folder);
    return 0;
}
