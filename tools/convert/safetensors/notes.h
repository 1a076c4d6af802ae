/*
 * tools/convert/safetensors/notes.h - what the headers of safetensors files say about themselves in
 * "__metadata__": text by key, such as a licence or what a model was trained with.
 *
 * A checkpoint carries the notes of all its files as one opaque state, a JSON object with its keys
 * in order. It leaves out what every file says ("format": "pt") and our own notes ("cairn_…").
 */
#ifndef CAIRN_TOOLS_CONVERT_SAFETENSORS_NOTES_H
#define CAIRN_TOOLS_CONVERT_SAFETENSORS_NOTES_H

#include "base/json.h"
#include "tools/convert/core/checkpoint.h"
#include "tools/convert/state/reserved.h"

struct cairn_safetensors_note {
    char *key, *value;
};

/* All zero is the empty value. */
struct cairn_safetensors_notes {
    struct cairn_safetensors_note **notes;
    uint32_t count;
    void *index; /* of tsearch(3), by key: a header may have millions of notes */
};

void cairn_safetensors_notes_fini(struct cairn_safetensors_notes *notes);

/* Adds a note; *same: the key was there already, with which value it stays, and this one is the
 * same. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_safetensors_notes_add(struct cairn_safetensors_notes *notes,
                                                       const char *key, const char *value,
                                                       bool *same);

/* Carries the notes, where there are any. Errors of the checkpoint. */
CAIRN_MUST_CHECK cairn_err cairn_safetensors_notes_carry(struct cairn_checkpoint *checkpoint,
                                                         struct cairn_safetensors_notes *notes);

/* The notes that a checkpoint carries. CAIRN_CORRUPT where they are not object of text, complained
 * about; CAIRN_NOMEM, errors of loading. The caller ends *notes in any case. */
CAIRN_MUST_CHECK cairn_err cairn_safetensors_notes_load(const struct cairn_checkpoint *checkpoint,
                                                        struct cairn_safetensors_notes *notes);

#endif
