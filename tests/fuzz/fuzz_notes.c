/*
 * tests/fuzz/fuzz_notes.c - any bytes as the notes of a safetensors file: "__metadata__" in its
 * header, and what a checkpoint keeps from there. Refused with a complaint, or carried and read
 * again.
 *
 * Byte 0: 0 the rest is "__metadata__" of a file, 1 the value that is carried, 2 the index of a
 * checkpoint of several files.
 */
#include "tests/fuzz/folder.h"
#include "tools/convert/safetensors/notes.h"
#include "tools/convert/state/reserved.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

enum { NOTES_BYTES_MAX = 1 << 16, ONE = 0, CARRIED = 1, INDEX = 2 };

/* Writes model.safetensors with a tensor of four bytes. */
static void
write_file(const uint8_t *notes, size_t notes_len)
{
    static const char head[] = "{\"__metadata__\":",
                      tail[] = ",\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    static uint8_t file[8 + sizeof head + NOTES_BYTES_MAX + sizeof tail + 4];
    size_t header = sizeof head - 1 + notes_len + sizeof tail - 1;
    uint8_t *at = file + 8;

    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)header >> 8 * i);
    memcpy(at, head, sizeof head - 1);
    at += sizeof head - 1;
    if (notes_len)
        memcpy(at, notes, notes_len);
    memcpy(at + notes_len, tail, sizeof tail - 1);
    memset(file + 8 + header, 0, 4);
    require(fuzz_folder_write("model.safetensors", file, 8 + header + 4, false));
}

static void
load(const struct cairn_checkpoint *checkpoint, bool is_ours)
{
    struct cairn_safetensors_notes notes;
    cairn_err err;

    checkpoint->complaint->text[0] = '\0';
    err = cairn_safetensors_notes_load(checkpoint, &notes);
    require(err == CAIRN_OK || (!is_ours && checkpoint->complaint->text[0] != '\0'));
    for (uint32_t i = 1; !err && is_ours && i < notes.count; i++)
        require(strcmp(notes.notes[i - 1]->key, notes.notes[i]->key) < 0);
    cairn_safetensors_notes_fini(&notes);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_checkpoint checkpoint = {.place.dir_fd = -1};
    struct cairn_complaint complaint = {""};
    cairn_err err;
    int what;

    if (bytes_len == 0 || bytes_len > NOTES_BYTES_MAX)
        return 0;
    fuzz_folder_init();
    what = bytes[0] % 3;
    bytes++;
    bytes_len--;
    write_file(what == ONE ? bytes : (const uint8_t *)"{}", what == ONE ? bytes_len : 2);
    if (what == INDEX)
        require(fuzz_folder_write("model.safetensors.index.json", bytes, bytes_len, false));
    err = cairn_checkpoint_open(fuzz_folder, &cairn_format_safetensors, 0, &checkpoint, &complaint);
    require(err == CAIRN_OK || (err != CAIRN_INTERNAL && complaint.text[0] != '\0'));
    if (!err && what == CARRIED)
        err = cairn_checkpoint_add_opaque(&checkpoint, CAIRN_SAFETENSORS_NOTES, bytes, bytes_len);
    if (!err)
        load(&checkpoint, what != CARRIED);
    cairn_checkpoint_close(&checkpoint);
    (void)unlinkat(fuzz_folder_fd, "model.safetensors", 0);
    (void)unlinkat(fuzz_folder_fd, "model.safetensors.index.json", 0);
    return 0;
}
