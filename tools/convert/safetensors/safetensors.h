/*
 * tools/convert/safetensors/safetensors.h - the header of a safetensors file: JSON after eight
 * bytes of length, before the data.
 *
 * What is read is checked as the format demands: the tensors tile the data section without gaps and
 * overlaps, each name is there once, sizes are those of shape and type.
 */
#ifndef CAIRN_TOOLS_CONVERT_SAFETENSORS_SAFETENSORS_H
#define CAIRN_TOOLS_CONVERT_SAFETENSORS_SAFETENSORS_H

#include "base/complaint.h"
#include "tools/convert/safetensors/notes.h"

enum { CAIRN_SAFETENSORS_HEADER_BYTES_MAX = 100000000, CAIRN_SAFETENSORS_NOTE_BYTES_MAX = 4096 };

struct cairn_safetensors_entry {
    char name[CAIRN_NAME_BYTES_MAX];
    enum cairn_dtype dtype;
    enum cairn_kind kind;
    uint32_t dims;
    uint64_t shape[CAIRN_DIMS_MAX];
    uint64_t begin, end; /* in the data section */
};

/* All zero is the empty value. */
struct cairn_safetensors {
    struct cairn_safetensors_entry *entries; /* by begin, then end, then name */
    uint32_t count;
    bool step_known;
    uint64_t step;
    struct cairn_safetensors_notes notes;  /* other people's; to be written: what the file says
                                           * beside "format" and ours */
    char other_note[CAIRN_NAME_BYTES_MAX]; /* the first in "__metadata__" that is not a text, which
                                            * the format demands; "": there is none */
    uint32_t other_note_count;
};

void cairn_safetensors_fini(struct cairn_safetensors *header);

/* Reads a header, json[json_bytes], of a file whose data section has data_bytes. CAIRN_CORRUPT,
 * complained about with `path` and the tensor; CAIRN_VERSION for an unknown element type;
 * CAIRN_NOMEM. Bounded and total on hostile bytes. */
CAIRN_MUST_CHECK cairn_err cairn_safetensors_parse(const char *path, const void *json,
                                                   size_t json_bytes, uint64_t data_bytes,
                                                   struct cairn_safetensors *out,
                                                   struct cairn_complaint *complaint);

/* Sorts the entries by begin, then end, then name. */
void cairn_safetensors_sort(struct cairn_safetensors *header);

/* The first bytes of a file with these entries (sorted), padded so that the data section starts at
 * a multiple of 64. Kinds other than parameters, and the step, are in "__metadata__", which other
 * readers ignore. CAIRN_INVAL if the header is too long, or a name or type cannot be written;
 * CAIRN_NOMEM. The caller frees *bytes. */
CAIRN_MUST_CHECK cairn_err cairn_safetensors_pack(const struct cairn_safetensors *header,
                                                  uint8_t **bytes, size_t *bytes_len,
                                                  struct cairn_complaint *complaint);

#endif
