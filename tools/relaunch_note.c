/* tools/relaunch_note.c - see relaunch_note.h. */
#include "tools/relaunch_note.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char format[] = "cairn run 2";

enum { FORMAT_BYTES = 32, FIELDS = 17 };

/* The numbers of a note in the order of its text. */
static void
fields_of(struct cairn_relaunch_note *note, uint64_t *field[FIELDS])
{
    uint64_t *const all[FIELDS] = {
        &note->state,  &note->budget,  &note->used,    &note->least,     &note->most,   &note->job,
        &note->term,   &note->rank,    &note->port,    &note->door,      &note->offers, &note->size,
        &note->begins, &note->accepts, &note->planned, &note->exit_code, &note->shape};

    memcpy(field, all, sizeof all);
}

void
cairn_relaunch_note_write(const struct cairn_relaunch_note *note, char *out)
{
    struct cairn_relaunch_note copy = *note;
    uint64_t *field[FIELDS];
    size_t used;

    fields_of(&copy, field);
    used = (size_t)snprintf(out, CAIRN_RELAUNCH_NOTE_BYTES, "[\"%s\"", format);
    for (size_t i = 0; i < FIELDS; i++)
        used +=
            (size_t)snprintf(out + used, CAIRN_RELAUNCH_NOTE_BYTES - used, ",%" PRIu64, *field[i]);
    snprintf(out + used, CAIRN_RELAUNCH_NOTE_BYTES - used, "]");
}

bool
cairn_relaunch_note_read(const char *text, struct cairn_relaunch_note *out)
{
    struct cairn_relaunch_note note = {0};
    struct cairn_json_reader reader;
    char word[FORMAT_BYTES] = "";
    uint64_t *field[FIELDS];
    size_t count = 0;

    fields_of(&note, field);
    cairn_json_reader_init(&reader, text, strlen(text));
    cairn_json_array_begin(&reader);
    if (cairn_json_array_next(&reader))
        cairn_json_read_string(&reader, word, sizeof word);
    while (cairn_json_array_next(&reader) && count < FIELDS)
        *field[count++] = cairn_json_read_u64(&reader, UINT64_MAX);
    if (cairn_json_reader_done(&reader) || strcmp(word, format) != 0 || count != FIELDS ||
        note.state < CAIRN_RELAUNCH_JOINS || note.state > CAIRN_RELAUNCH_STOPPED ||
        note.port > UINT16_MAX || note.door > UINT16_MAX)
        return false;
    *out = note;
    return true;
}
