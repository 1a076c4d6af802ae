/*
 * tests/fuzz/fuzz_deepspeed.c - any objects in the files of a DeepSpeed checkpoint of one rank: refused with
 * a complaint, or a checkpoint that can be laid out again for another number of ranks, or is refused then.
 *
 *     byte 0       bit 0: there is an optim_states, bit 1: a layer's file, bit 2: the names are those of
 *                  ZeRO 3; the rest: ranks to lay out for
 *     bytes 1, 2   length of the model_states' pickle, little-endian
 *     bytes 3, 4   length of the optim_states' pickle
 *     then         the pickles of model_states, optim_states and the layer
 *
 * The pickles are put into archives as torch.save makes them, without checksums and with enough storages.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "tools/convert/format.h"

enum { STORAGES = 24, STORAGE_BYTES = 8192, HEAD_BYTES = 5, NAME_BYTES = 32 };

static const char *const files[] = {"mp_rank_00_model_states.pt",
                                    "zero_pp_rank_0_mp_rank_00_optim_states.pt",
                                    "layer_01-model_states.pt"};
static const char *const model3 = "zero_pp_rank_0_mp_rank_00_model_states.pt";
static char base[64];
static int base_fd = -1;

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

static void
drop_line(void *context, enum cairn_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

static void
require(bool condition)
{
    if (!condition)
        abort();
}

/* An archive that grows in memory, and its directory. */
struct archive {
    uint8_t bytes[(STORAGES + 2) * (STORAGE_BYTES + 128) + (1 << 16)];
    size_t used;
    uint8_t directory[(STORAGES + 2) * 128];
    size_t directory_used;
    uint16_t count;
};

static void
put(uint8_t *to, size_t *used, uint64_t value, size_t value_bytes)
{
    for (size_t i = 0; i < value_bytes; i++)
        to[(*used)++] = (uint8_t)(value >> (8 * i));
}

/* What local header and directory have in common: from the version to the lengths of name and extra. */
static void
put_common(uint8_t *to, size_t *used, size_t name_bytes, size_t bytes_len)
{
    put(to, used, 0, 2); /* version */
    put(to, used, 0, 2); /* flags */
    put(to, used, 0, 2); /* method: stored */
    put(to, used, 0, 4); /* time */
    put(to, used, 0, 4); /* checksum: none */
    put(to, used, bytes_len, 4);
    put(to, used, bytes_len, 4);
    put(to, used, name_bytes, 2);
    put(to, used, 0, 2);
}

static void
add_entry(struct archive *archive, const char *name, const uint8_t *bytes, size_t bytes_len)
{
    size_t name_bytes = strlen(name), at = archive->used;

    put(archive->bytes, &archive->used, 0x04034b50, 4);
    put_common(archive->bytes, &archive->used, name_bytes, bytes_len);
    memcpy(archive->bytes + archive->used, name, name_bytes);
    archive->used += name_bytes;
    if (bytes)
        memcpy(archive->bytes + archive->used, bytes, bytes_len);
    else
        memset(archive->bytes + archive->used, 0, bytes_len);
    archive->used += bytes_len;
    put(archive->directory, &archive->directory_used, 0x02014b50, 4);
    put(archive->directory, &archive->directory_used, 0, 2); /* made by */
    put_common(archive->directory, &archive->directory_used, name_bytes, bytes_len);
    put(archive->directory, &archive->directory_used, 0, 2); /* comment */
    put(archive->directory, &archive->directory_used, 0, 8); /* disk, attributes */
    put(archive->directory, &archive->directory_used, at, 4);
    memcpy(archive->directory + archive->directory_used, name, name_bytes);
    archive->directory_used += name_bytes;
    archive->count++;
}

static void
write_file(const char *name, const uint8_t *pickle, size_t pickle_bytes)
{
    static struct archive archive;
    char entry[NAME_BYTES];
    size_t directory_at;
    int fd;

    archive.used = archive.directory_used = 0;
    archive.count = 0;
    add_entry(&archive, "a/data.pkl", pickle, pickle_bytes);
    for (int i = 0; i < STORAGES; i++) {
        (void)snprintf(entry, sizeof(entry), "a/data/%d", i);
        add_entry(&archive, entry, NULL, STORAGE_BYTES);
    }
    directory_at = archive.used;
    memcpy(archive.bytes + archive.used, archive.directory, archive.directory_used);
    archive.used += archive.directory_used;
    put(archive.bytes, &archive.used, 0x06054b50, 4);
    put(archive.bytes, &archive.used, 0, 4); /* disks */
    put(archive.bytes, &archive.used, archive.count, 2);
    put(archive.bytes, &archive.used, archive.count, 2);
    put(archive.bytes, &archive.used, archive.directory_used, 4);
    put(archive.bytes, &archive.used, directory_at, 4);
    put(archive.bytes, &archive.used, 0, 2);
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
    if (base_fd >= 0)
        return;
    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    (void)snprintf(base, sizeof(base), "/dev/shm/cairn-fuzz-XXXXXX");
    require(mkdtemp(base) != NULL);
    base_fd = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    require(base_fd >= 0 && atexit(clean_up) == 0);
}

static void
lay_out(const struct cairn_checkpoint *checkpoint, uint32_t ranks)
{
    struct cairn_output_options options = {.parallelism = {.dp = ranks}};
    struct cairn_output output = {.format = &cairn_format_deepspeed};
    struct cairn_complaint complaint = {""};
    cairn_err err = cairn_format_deepspeed.plan(checkpoint, &options, &output, &complaint);

    require(err != CAIRN_INTERNAL && (err == CAIRN_OK || complaint.text[0] != '\0'));
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
    err = cairn_checkpoint_open(base, &cairn_format_deepspeed, &checkpoint, &complaint);
    require(err == CAIRN_OK || complaint.text[0] != '\0');
    if (err)
        return 0;
    lay_out(&checkpoint, 1 + (bytes[0] >> 3));
    cairn_checkpoint_close(&checkpoint);
    return 0;
}
