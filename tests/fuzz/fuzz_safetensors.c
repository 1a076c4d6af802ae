/* tests/fuzz/fuzz_safetensors.c - headers of safetensors files: any bytes are refused or read, and
 * what is read tiles the data and packs to a header that reads the same. */
#include "tools/convert/safetensors/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Not by their bytes: behind the end of a name may be anything. */
static bool
are_equal(const struct cairn_safetensors_entry *a, const struct cairn_safetensors_entry *b)
{
    return strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->kind == b->kind &&
           a->dims == b->dims && memcmp(a->shape, b->shape, a->dims * sizeof(*a->shape)) == 0 &&
           a->begin == b->begin && a->end == b->end;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cairn_complaint complaint = {""};
    struct cairn_safetensors header = {0}, again = {0};
    uint64_t data_bytes = 0;
    uint8_t *packed = NULL;
    size_t packed_bytes = 0;
    cairn_err err;

    if (size < 4)
        return 0;
    memcpy(&data_bytes, data, 4);
    err = cairn_safetensors_parse("fuzz", data + 4, size - 4, data_bytes, &header, &complaint);
    if (err) {
        CAIRN_ASSERT(err == CAIRN_NOMEM || complaint.text[0] != '\0');
        return 0;
    }
    for (uint32_t i = 0; i < header.count; i++)
        CAIRN_ASSERT(header.entries[i].end <= data_bytes);
    if (cairn_safetensors_pack(&header, &packed, &packed_bytes, &complaint) == CAIRN_OK) {
        err = cairn_safetensors_parse("fuzz", packed + 8, packed_bytes - 8, data_bytes, &again,
                                      &complaint);
        CAIRN_ASSERT(err == CAIRN_OK && again.count == header.count);
        for (uint32_t i = 0; i < header.count; i++)
            CAIRN_ASSERT(are_equal(&header.entries[i], &again.entries[i]));
    }
    free(packed);
    cairn_safetensors_fini(&again);
    cairn_safetensors_fini(&header);
    return 0;
}
