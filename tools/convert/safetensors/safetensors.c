/*
 * tools/convert/safetensors/safetensors.c - see safetensors.h.
 *
 * The notes in "__metadata__" are strings, as the format demands: "cairn_step" is a number, and
 * "cairn_kinds" says the kinds of the tensors in the order of their offsets, as runs: "p12o24b1q2"
 * is twelve parameters, 24 of optimizer state, a buffer and two opaque blobs. A note of kinds that
 * does not fit the tensors is of no use and is ignored; other people's are in safetensors/notes.h.
 */
#include "tools/convert/safetensors/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/json.h"
#include "base/text.h"
#include "base/wire.h"
#include "snapshot/box.h"
#include "tools/convert/core/numbers.h"

enum { ALIGN_BYTES = 64, KEY_BYTES = 16, WORD_BYTES = 16, LENGTH_BYTES = 8 };

static const char kind_letters[] = {
    [CAIRN_PARAM] = 'p', [CAIRN_OPTIMIZER] = 'o', [CAIRN_BUFFER] = 'b', [CAIRN_OPAQUE] = 'q'};

void
cairn_safetensors_fini(struct cairn_safetensors *header)
{
    free(header->entries);
    cairn_safetensors_notes_fini(&header->notes);
    memset(header, 0, sizeof(*header));
}

/* ---- reading ---- */

/* A header that is being read. */
struct parser {
    struct cairn_json_reader reader;
    struct cairn_safetensors header;
    char kinds[CAIRN_SAFETENSORS_NOTE_BYTES_MAX];
    char unknown[WORD_BYTES]; /* an element type that is not known */
};

/* The step is a promise to those who go on from it: one that is not a number is refused, and not
 * left out. */
static void
read_step(struct parser *parser, size_t bytes)
{
    char text[24] = "";

    if (bytes > 0 && bytes < sizeof(text))
        cairn_json_read_string(&parser->reader, text, sizeof(text));
    else
        cairn_json_skip(&parser->reader);
    if (!cairn_number_read(text, INT64_MAX, &parser->header.step))
        cairn_json_reader_fail(&parser->reader,
                               "cairn_step in __metadata__ is not a number of a step");
    parser->header.step_known = true;
}

/* A note of others. What is not a text is reported, and left out; every file has "pt". */
static cairn_err
read_other(struct parser *parser, const char *key, char *text, size_t text_bytes)
{
    struct cairn_json_reader *reader = &parser->reader;
    struct cairn_safetensors *header = &parser->header;
    bool same;

    if (cairn_json_peek(reader) != '"') {
        if (header->other_note_count++ == 0) /* it is shown */
            cairn_text_clean(header->other_note, sizeof(header->other_note), key);
        cairn_json_skip(reader);
        return CAIRN_OK;
    }
    cairn_json_read_string(reader, text, text_bytes);
    if (cairn_json_reader_failed(reader) || strncmp(key, "cairn_", 6) == 0 ||
        (strcmp(key, "format") == 0 && strcmp(text, "pt") == 0))
        return CAIRN_OK;
    return cairn_safetensors_notes_add(&header->notes, key, text, &same);
}

static cairn_err
read_notes(struct parser *parser)
{
    struct cairn_json_reader *reader = &parser->reader;
    /* keys and values are other people's, of any length */
    size_t room = reader->bytes_len - reader->at + 1;
    char *key = malloc(room), *text = malloc(room);
    cairn_err err = key && text ? CAIRN_OK : CAIRN_NOMEM;

    if (!err)
        cairn_json_object_begin(reader);
    while (!err && cairn_json_object_next(reader, key, room)) {
        size_t bytes = cairn_json_peek_string_bytes(reader);

        if (strcmp(key, "cairn_kinds") == 0 && bytes > 0 && bytes < sizeof(parser->kinds))
            cairn_json_read_string(reader, parser->kinds, sizeof(parser->kinds));
        else if (strcmp(key, "cairn_step") == 0)
            read_step(parser, bytes);
        else
            err = read_other(parser, key, text, room);
    }
    free(key);
    free(text);
    return err;
}

static void
read_shape(struct cairn_json_reader *reader, struct cairn_safetensors_entry *entry)
{
    cairn_json_array_begin(reader);
    while (cairn_json_array_next(reader)) {
        uint64_t extent = cairn_json_read_u64(reader, INT64_MAX);

        if (entry->dims == CAIRN_DIMS_MAX)
            cairn_json_reader_fail(reader, "a tensor has more than 8 dimensions");
        else
            entry->shape[entry->dims++] = extent;
    }
}

static void
read_offsets(struct cairn_json_reader *reader, struct cairn_safetensors_entry *entry)
{
    uint64_t values[2] = {0, 0};
    uint32_t count = 0;

    cairn_json_array_begin(reader);
    while (cairn_json_array_next(reader)) {
        uint64_t value = cairn_json_read_u64(reader, INT64_MAX);

        if (count == 2)
            cairn_json_reader_fail(reader, "data_offsets has more than two numbers");
        else
            values[count++] = value;
    }
    if (count != 2)
        cairn_json_reader_fail(reader, "data_offsets has fewer than two numbers");
    entry->begin = values[0];
    entry->end = values[1];
}

/* One tensor; its name is in entry->name. */
static void
read_entry(struct parser *parser, struct cairn_safetensors_entry *entry)
{
    struct cairn_json_reader *reader = &parser->reader;
    char key[KEY_BYTES], word[WORD_BYTES];
    uint32_t seen = 0;

    entry->kind = CAIRN_PARAM;
    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof(key))) {
        uint32_t bit = strcmp(key, "dtype") == 0          ? 1
                       : strcmp(key, "shape") == 0        ? 2
                       : strcmp(key, "data_offsets") == 0 ? 4
                                                          : 0;

        if (bit == 0 || (seen & bit))
            cairn_json_reader_fail(reader, bit ? "a key is there twice" : "an unknown key");
        seen |= bit;
        if (bit == 1) {
            cairn_json_read_string(reader, word, sizeof(word));
            entry->dtype = cairn_dtype_from_name(word);
            if (!entry->dtype && !cairn_json_reader_failed(reader)) {
                memcpy(parser->unknown, word, sizeof(word));
                cairn_json_reader_fail(reader, "an unknown dtype");
            }
        } else if (bit == 2) {
            read_shape(reader, entry);
        } else if (bit == 4) {
            read_offsets(reader, entry);
        }
    }
    if (seen != 7)
        cairn_json_reader_fail(reader, "dtype, shape or data_offsets is missing");
}

static int
by_offset(const void *left, const void *right)
{
    const struct cairn_safetensors_entry *a = left, *b = right;
    int order = CAIRN_COMPARE(a->begin, b->begin);

    order = order ? order : CAIRN_COMPARE(a->end, b->end);
    return order ? order : strcmp(a->name, b->name);
}

void
cairn_safetensors_sort(struct cairn_safetensors *header)
{
    if (header->count > 1)
        qsort(header->entries, header->count, sizeof(*header->entries), by_offset);
}

static int
by_name(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* A name that is there twice, NULL where there is none. CAIRN_NOMEM. */
static cairn_err
find_double(const struct cairn_safetensors *header, const char **found)
{
    const char **names = malloc(((size_t)header->count + 1) * sizeof(*names));

    *found = NULL;
    if (!names)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < header->count; i++)
        names[i] = header->entries[i].name;
    if (header->count > 1)
        qsort(names, header->count, sizeof(*names), by_name);
    for (uint32_t i = 1; i < header->count && !*found; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            *found = names[i];
    free(names);
    return CAIRN_OK;
}

/* The entries, sorted by place, tile the data section. */
static cairn_err
check_entries(const char *path, const struct cairn_safetensors *header, uint64_t data_bytes,
              struct cairn_complaint *complaint)
{
    const char *twice = NULL;
    uint64_t at = 0;
    cairn_err err;

    for (uint32_t i = 0; i < header->count; i++) {
        const struct cairn_safetensors_entry *entry = &header->entries[i];
        uint64_t element_bytes = cairn_dtype_bytes(entry->dtype), elements;

        if (!cairn_shape_bounded(entry->dims, entry->shape, INT64_MAX / element_bytes, &elements) ||
            entry->end < entry->begin || entry->end - entry->begin != elements * element_bytes)
            return cairn_complain(complaint, CAIRN_CORRUPT,
                                  "%s: tensor %s lies from byte %" PRIu64 " to %" PRIu64
                                  " of the data, which is not the size of its shape",
                                  path, entry->name, entry->begin, entry->end);
        if (entry->begin != at)
            return cairn_complain(complaint, CAIRN_CORRUPT,
                                  "%s: tensor %s begins at byte %" PRIu64 " where %" PRIu64
                                  " was expected: tensors overlap or leave a gap",
                                  path, entry->name, entry->begin, at);
        at = entry->end;
    }
    if (at != data_bytes)
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              "%s: its tensors are %" PRIu64 " bytes and its data %" PRIu64
                              "; it is truncated, or has been changed",
                              path, at, data_bytes);
    err = find_double(header, &twice);
    if (!err && twice)
        err = cairn_complain(complaint, CAIRN_CORRUPT, "%s: duplicate tensor %s", path, twice);
    return err;
}

/* Sets the kinds, where the note fits the tensors. */
static void
apply_kinds(struct cairn_safetensors *header, const char *note)
{
    for (int apply = 0; apply < 2; apply++) { /* first see whether it fits */
        const char *at = note;
        uint64_t done = 0;

        while (*at) {
            enum cairn_kind kind = 0;
            char *end;
            uint64_t run;

            for (size_t k = CAIRN_PARAM; k < sizeof(kind_letters); k++)
                if (kind_letters[k] == *at)
                    kind = (enum cairn_kind)k;
            if (!kind || at[1] < '0' || at[1] > '9')
                return;
            run = strtoull(at + 1, &end, 10);
            if (run > header->count - done)
                return;
            for (uint64_t i = 0; i < run; i++) {
                struct cairn_safetensors_entry *entry = &header->entries[done + i];

                if (apply)
                    entry->kind = kind;
                else if (kind == CAIRN_OPAQUE && (entry->dtype != CAIRN_U8 || entry->dims != 1))
                    return;
            }
            done += run;
            at = end;
        }
        if (done != header->count)
            return;
    }
}

static cairn_err
parse_entries(struct parser *parser)
{
    struct cairn_json_reader *reader = &parser->reader;
    struct cairn_safetensors *header = &parser->header;
    bool noted = false;
    char name[CAIRN_NAME_BYTES_MAX];
    cairn_err err;

    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, name, sizeof(name))) {
        struct cairn_safetensors_entry *entry;

        if (strcmp(name, "__metadata__") == 0) {
            if (noted)
                cairn_json_reader_fail(reader, "duplicate __metadata__");
            noted = true;
            err = read_notes(parser);
            if (err)
                return err;
            continue;
        }
        if (!cairn_array_grow(&header->entries, header->count, sizeof(*header->entries)))
            return CAIRN_NOMEM;
        entry = &header->entries[header->count++];
        memset(entry, 0, sizeof(*entry));
        memcpy(entry->name, name, sizeof(name));
        read_entry(parser, entry);
    }
    return CAIRN_OK;
}

cairn_err
cairn_safetensors_parse(const char *path, const void *json, size_t json_bytes, uint64_t data_bytes,
                        struct cairn_safetensors *out, struct cairn_complaint *complaint)
{
    struct parser parser = {.kinds = ""};
    struct cairn_safetensors *header = &parser.header;
    cairn_err err;

    cairn_json_reader_init(&parser.reader, json, json_bytes);
    err = parse_entries(&parser);
    if (!err && cairn_json_reader_done(&parser.reader)) {
        const char *name = header->count > 0 ? header->entries[header->count - 1].name : "";

        err = parser.unknown[0] ? CAIRN_VERSION : CAIRN_CORRUPT;
        (void)cairn_complain(complaint, err,
                             "%s: its header is wrong at byte %zu (near tensor \"%s\"): %s%s%s",
                             path, parser.reader.at, name, parser.reader.why,
                             parser.unknown[0] ? " " : "", parser.unknown);
    }
    if (!err) {
        cairn_safetensors_sort(header);
        err = check_entries(path, header, data_bytes, complaint);
    }
    if (err) {
        cairn_safetensors_fini(header);
        return err;
    }
    apply_kinds(header, parser.kinds);
    *out = *header;
    return CAIRN_OK;
}

/* ---- writing ---- */

/* The kinds as runs, "" where all are parameters. Nothing is noted beyond the longest note. */
static void
note_kinds(const struct cairn_safetensors *header, char note[CAIRN_SAFETENSORS_NOTE_BYTES_MAX])
{
    size_t used = 0;
    bool plain = true;

    for (uint32_t i = 0; i < header->count;) {
        uint32_t run = 1;

        while (i + run < header->count && header->entries[i + run].kind == header->entries[i].kind)
            run++;
        plain = plain && header->entries[i].kind == CAIRN_PARAM;
        used += (size_t)snprintf(note + used, CAIRN_SAFETENSORS_NOTE_BYTES_MAX - used, "%c%" PRIu32,
                                 kind_letters[header->entries[i].kind], run);
        if (used >= CAIRN_SAFETENSORS_NOTE_BYTES_MAX) {
            used = 0;
            break;
        }
        i += run;
    }
    if (plain)
        used = 0;
    note[used] = '\0';
}

static void
write_notes(struct cairn_json_writer *writer, const struct cairn_safetensors *header)
{
    char note[CAIRN_SAFETENSORS_NOTE_BYTES_MAX] = "";
    const char *format = "pt"; /* loaders of Hugging Face's want to know */

    for (uint32_t i = 0; i < header->notes.count; i++)
        if (strcmp(header->notes.notes[i]->key, "format") == 0)
            format = header->notes.notes[i]->value;
    cairn_json_put_object(writer, "__metadata__");
    cairn_json_put_string(writer, "format", format);
    note_kinds(header, note);
    if (note[0]) {
        cairn_json_put_string(writer, "cairn_kinds", note);
    }
    if (header->step_known) {
        (void)snprintf(note, sizeof(note), "%" PRIu64, header->step);
        cairn_json_put_string(writer, "cairn_step", note);
    }
    for (uint32_t i = 0; i < header->notes.count; i++) {
        const char *key = header->notes.notes[i]->key;

        if (strcmp(key, "format") == 0 || strncmp(key, "cairn_", 6) == 0)
            continue;
        cairn_json_put_string(writer, key, header->notes.notes[i]->value);
    }
    cairn_json_write_object_end(writer);
}

static void
write_entry(struct cairn_json_writer *writer, const struct cairn_safetensors_entry *entry)
{
    cairn_json_put_object(writer, entry->name);
    cairn_json_put_string(writer, "dtype", cairn_dtype_name(entry->dtype));
    cairn_json_put_array(writer, "shape");
    for (uint32_t d = 0; d < entry->dims; d++)
        cairn_json_write_u64(writer, entry->shape[d]);
    cairn_json_write_array_end(writer);
    cairn_json_put_array(writer, "data_offsets");
    cairn_json_write_u64(writer, entry->begin);
    cairn_json_write_u64(writer, entry->end);
    cairn_json_write_array_end(writer);
    cairn_json_write_object_end(writer);
}

cairn_err
cairn_safetensors_pack(const struct cairn_safetensors *header, uint8_t **bytes, size_t *bytes_len,
                       struct cairn_complaint *complaint)
{
    struct cairn_json_writer writer;
    char *text = NULL;
    size_t text_bytes = 0, total;
    uint8_t *packed;
    cairn_err err;

    for (uint32_t i = 0; i < header->count; i++)
        if (strcmp(header->entries[i].name, "__metadata__") == 0)
            return cairn_complain(complaint, CAIRN_INVAL,
                                  "a tensor called __metadata__ cannot be in a safetensors file; "
                                  "leave it out with --drop");
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    write_notes(&writer, header);
    for (uint32_t i = 0; i < header->count; i++)
        write_entry(&writer, &header->entries[i]);
    cairn_json_write_object_end(&writer);
    err = cairn_json_writer_done(&writer, &text, &text_bytes);
    if (err)
        return err;
    total = (LENGTH_BYTES + text_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    packed = total - LENGTH_BYTES <= CAIRN_SAFETENSORS_HEADER_BYTES_MAX ? malloc(total) : NULL;
    if (!packed) {
        free(text);
        return total - LENGTH_BYTES <= CAIRN_SAFETENSORS_HEADER_BYTES_MAX
                   ? CAIRN_NOMEM
                   : cairn_complain(complaint, CAIRN_INVAL,
                                    "%" PRIu32 " tensors are too many for one safetensors file; "
                                    "name a directory as the target",
                                    header->count);
    }
    cairn_little_put(packed, LENGTH_BYTES, total - LENGTH_BYTES);
    memcpy(packed + LENGTH_BYTES, text, text_bytes);
    memset(packed + LENGTH_BYTES + text_bytes, ' ', total - LENGTH_BYTES - text_bytes);
    free(text);
    *bytes = packed;
    *bytes_len = total;
    return CAIRN_OK;
}
