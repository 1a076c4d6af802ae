/* tools/convert/safetensors/notes.c - see safetensors/notes.h. */
#include "tools/convert/safetensors/notes.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "tools/convert/safetensors/safetensors.h"

static void
note_free(struct cairn_safetensors_note *note)
{
    if (!note)
        return;
    free(note->key);
    free(note->value);
    free(note);
}

static void
keep_note(void *note)
{
    (void)note; /* the list frees it */
}

void
cairn_safetensors_notes_fini(struct cairn_safetensors_notes *notes)
{
    tdestroy(notes->index, keep_note);
    for (uint32_t i = 0; i < notes->count; i++)
        note_free(notes->notes[i]);
    free(notes->notes);
    memset(notes, 0, sizeof(*notes));
}

static int
compare_keys(const void *left, const void *right)
{
    return strcmp(((const struct cairn_safetensors_note *)left)->key,
                  ((const struct cairn_safetensors_note *)right)->key);
}

cairn_err
cairn_safetensors_notes_add(struct cairn_safetensors_notes *notes, const char *key,
                            const char *value, bool *same)
{
    struct cairn_safetensors_note *note = NULL, **found;
    cairn_err err = CAIRN_NOMEM;

    if (!cairn_array_grow(&notes->notes, notes->count, sizeof(*notes->notes)))
        return err;
    note = calloc(1, sizeof(*note));
    if (!note)
        goto done;
    note->key = strdup(key);
    note->value = strdup(value);
    if (!note->key || !note->value)
        goto done;
    found = tsearch(note, &notes->index, compare_keys);
    if (!found)
        goto done;
    *same = strcmp((*found)->value, value) == 0;
    if (*found == note) {
        notes->notes[notes->count++] = note;
        note = NULL;
    }
    err = CAIRN_OK;
done:
    note_free(note);
    return err;
}

static int
by_key(const void *left, const void *right)
{
    return compare_keys(*(struct cairn_safetensors_note *const *)left,
                        *(struct cairn_safetensors_note *const *)right);
}

cairn_err
cairn_safetensors_notes_carry(struct cairn_checkpoint *checkpoint,
                              struct cairn_safetensors_notes *notes)
{
    struct cairn_json_writer writer;
    char *text = NULL;
    size_t text_bytes = 0;
    cairn_err err;

    if (notes->count == 0)
        return CAIRN_OK;
    qsort(notes->notes, notes->count, sizeof(*notes->notes), by_key);
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    for (uint32_t i = 0; i < notes->count; i++) {
        cairn_json_put_string(&writer, notes->notes[i]->key, notes->notes[i]->value);
    }
    cairn_json_write_object_end(&writer);
    err = cairn_json_writer_done(&writer, &text, &text_bytes);
    if (!err)
        err = cairn_checkpoint_add_opaque(checkpoint, CAIRN_SAFETENSORS_NOTES, text, text_bytes);
    free(text);
    return err;
}

cairn_err
cairn_safetensors_notes_load(const struct cairn_checkpoint *checkpoint,
                             struct cairn_safetensors_notes *notes)
{
    struct cairn_json_reader reader;
    uint8_t *text = NULL;
    char *key = NULL, *value = NULL;
    size_t text_bytes = 0;
    bool same;
    cairn_err err;

    memset(notes, 0, sizeof(*notes));
    err = cairn_checkpoint_load_opaque(checkpoint, CAIRN_SAFETENSORS_NOTES,
                                       CAIRN_SAFETENSORS_HEADER_BYTES_MAX, &text, &text_bytes);
    if (err)
        return err == CAIRN_NOT_FOUND ? CAIRN_OK : err;
    key = malloc(text_bytes + 1);
    value = malloc(text_bytes + 1);
    cairn_json_reader_init(&reader, text, text_bytes);
    if (!key || !value)
        err = CAIRN_NOMEM;
    if (!err)
        cairn_json_object_begin(&reader);
    while (!err && cairn_json_object_next(&reader, key, text_bytes + 1)) {
        cairn_json_read_string(&reader, value, text_bytes + 1);
        if (!cairn_json_reader_failed(&reader))
            err = cairn_safetensors_notes_add(notes, key, value, &same);
    }
    if (!err && cairn_json_reader_done(&reader))
        err = cairn_refuse(checkpoint, CAIRN_CORRUPT,
                           "" CAIRN_SAFETENSORS_NOTES " is not an object of text at byte %zu: %s",
                           reader.at, reader.why);
    free(key);
    free(value);
    free(text);
    return err;
}
