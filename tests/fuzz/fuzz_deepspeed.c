/*
 * tests/fuzz/fuzz_deepspeed.c - any objects in the files of a DeepSpeed checkpoint of one rank:
 * refused with a complaint, or a checkpoint that can be laid out again for another number of ranks,
 * or is refused then.
 *
 *     byte 0       bit 0: there is an optim_states, bit 1: a layer's file, bit 2: the names are
 *                  those of ZeRO 3; the rest: ranks to lay out for
 *     bytes 1, 2   length of the model_states' pickle, little-endian
 *     bytes 3, 4   length of the optim_states' pickle
 *     then         the pickles of model_states, optim_states and the layer
 *
 * The pickles are put into archives (archive.h).
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/fuzz/archive.h"
#include "tests/fuzz/require.h"
#include "tests/support/quiet_log.h"
#include "tools/convert/core/format.h"

enum { HEAD_BYTES = 5 };

static const char *const files[] = {"mp_rank_00_model_states.pt",
                                    "zero_pp_rank_0_mp_rank_00_optim_states.pt",
                                    "layer_01-model_states.pt"};
static const char *const model3 = "zero_pp_rank_0_mp_rank_00_model_states.pt";
static char base[128];
static int base_fd = -1;

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

static void
write_file(const char *name, const uint8_t *pickle, size_t pickle_bytes)
{
    static struct fuzz_archive archive;
    int fd;

    fuzz_archive_make(&archive, pickle, pickle_bytes, FUZZ_STORAGE_BYTES_MAX);
    fd = openat(base_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    require(fd >= 0 && write(fd, archive.bytes, archive.used) == (ssize_t)archive.used &&
            close(fd) == 0);
}

static void
clean_up(void)
{
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        (void)unlinkat(base_fd, files[i], 0);
    (void)unlinkat(base_fd, model3, 0);
    (void)rmdir(base);
}

static void
set_up(void)
{
    const char *folder = getenv("TMPDIR"); /* its setter removes it, however this ends */

    if (base_fd >= 0)
        return;
    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    (void)snprintf(base, sizeof(base), "%s/cairn-fuzz-XXXXXX", folder ? folder : "/dev/shm");
    require(mkdtemp(base) != NULL);
    base_fd = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    require(base_fd >= 0 && atexit(clean_up) == 0);
}

static void
lay_out(const struct cairn_checkpoint *checkpoint, uint32_t ranks)
{
    struct cairn_output_options options = {.parallelism = {.dp = ranks}};
    struct cairn_output output = {.format = &cairn_format_deepspeed};
    cairn_err err;

    checkpoint->complaint->text[0] = '\0';
    err = cairn_format_deepspeed.plan(checkpoint, &options, &output);
    require(err != CAIRN_INTERNAL && (err == CAIRN_OK || checkpoint->complaint->text[0] != '\0'));
    for (uint32_t i = 0; !err && i < output.literal_count; i++)
        require(output.literals[i].offset_bytes + output.literals[i].bytes_len <=
                output.files[output.literals[i].file].bytes);
    cairn_output_fini(&output);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_checkpoint checkpoint = {.place.dir_fd = -1};
    struct cairn_complaint complaint = {""};
    size_t lengths[3], left;
    bool stage3;
    cairn_err err;

    if (bytes_len < HEAD_BYTES || bytes_len > 1 << 16)
        return 0;
    set_up();
    stage3 = bytes[0] & 4;
    left = bytes_len - HEAD_BYTES;
    for (size_t i = 0; i < 2; i++) {
        lengths[i] = (size_t)bytes[1 + 2 * i] | (size_t)bytes[2 + 2 * i] << 8;
        lengths[i] = lengths[i] < left ? lengths[i] : left;
        left -= lengths[i];
    }
    lengths[2] = left;
    for (size_t i = 0, at = HEAD_BYTES; i < 3; at += lengths[i++])
        if (i == 0)
            write_file(stage3 ? model3 : files[0], bytes + at, lengths[0]);
        else if (bytes[0] >> (i - 1) & 1)
            write_file(files[i], bytes + at, lengths[i]);
        else
            (void)unlinkat(base_fd, files[i], 0);
    (void)unlinkat(base_fd, stage3 ? files[0] : model3, 0);
    err = cairn_checkpoint_open(base, &cairn_format_deepspeed, 0, &checkpoint, &complaint);
    require(err == CAIRN_OK || complaint.text[0] != '\0');
    if (err)
        return 0;
    lay_out(&checkpoint, 1 + (bytes[0] >> 3));
    cairn_checkpoint_close(&checkpoint);
    return 0;
}
