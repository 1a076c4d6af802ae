/*
 * tools/convert/safetensors/format.c - safetensors as a format: one file, or a directory as Hugging
 * Face writes it, with shards and an index. What is written: safetensors/plan.c.
 *
 * Reading. The index (model.safetensors.index.json, or the only *.safetensors.index.json) says
 * which file holds a tensor; what is in a file and in no index is read all the same. Without an
 * index all *.safetensors files of the directory are read.
 */
#include "tools/convert/safetensors/format.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "base/wire.h"
#include "tools/convert/safetensors/safetensors.h"

enum { LENGTH_BYTES = 8 };

/* A file of another name, as any may be written: a length, and an object of JSON that is as
 * long. */
static bool
begins_with_header(const struct cairn_place *place)
{
    uint8_t first[LENGTH_BYTES + 1];
    size_t got = 0;
    int fd = -1;

    if (cairn_place_open_file(place, "", &fd, NULL) != CAIRN_OK ||
        cairn_file_read_at(fd, 0, first, sizeof(first), &got) != CAIRN_OK)
        got = 0;
    (void)cairn_file_close(fd); /* only looked at; -1 is allowed */
    return got == sizeof(first) && first[LENGTH_BYTES] == '{' &&
           cairn_little_get(first, LENGTH_BYTES) <= CAIRN_SAFETENSORS_HEADER_BYTES_MAX;
}

static bool
probe(const struct cairn_place *place)
{
    char **names = NULL;
    size_t count = 0;
    bool found = false;

    if (place->name)
        return cairn_text_ends(place->name, CAIRN_SAFETENSORS_SUFFIX) || begins_with_header(place);
    if (cairn_place_list(place, "", &names, &count, NULL) != CAIRN_OK)
        return false;
    for (size_t i = 0; i < count && !found; i++)
        found = cairn_text_ends(names[i], CAIRN_SAFETENSORS_SUFFIX) ||
                cairn_text_ends(names[i], CAIRN_SAFETENSORS_INDEX_SUFFIX);
    cairn_dir_list_free(names, count);
    return found;
}

/* ---- reading ---- */

/* Reads the header of a file, by its place in the checkpoint. */
static cairn_err
load_header(const struct cairn_checkpoint *checkpoint, uint32_t container,
            struct cairn_safetensors *out, uint64_t *data_offset)
{
    const struct cairn_container *file = &checkpoint->containers[container];
    const char *shown = file->path[0] ? file->path : checkpoint->place.path;
    uint8_t length[LENGTH_BYTES], *json = NULL;
    uint64_t json_bytes = 0;
    size_t got = 0;
    int fd = -1;
    cairn_err err;

    err = cairn_place_open_file(&checkpoint->place, file->path, &fd, checkpoint->complaint);
    if (!err)
        err = cairn_file_read_at(fd, 0, length, LENGTH_BYTES, &got);
    if (!err)
        json_bytes = cairn_little_get(length, LENGTH_BYTES);
    if (!err && (got < LENGTH_BYTES || json_bytes > CAIRN_SAFETENSORS_HEADER_BYTES_MAX ||
                 json_bytes > file->bytes - LENGTH_BYTES))
        err = cairn_complain(
            checkpoint->complaint, CAIRN_CORRUPT,
            "%s: not a safetensors file, or truncated: its header should have %" PRIu64
            " bytes, and the file has %" PRIu64,
            shown, json_bytes, file->bytes);
    if (!err && !(json = malloc((size_t)json_bytes + 1)))
        err = CAIRN_NOMEM;
    if (!err)
        err = cairn_file_read_at(fd, LENGTH_BYTES, json, (size_t)json_bytes, &got);
    (void)cairn_file_close(fd); /* only read; -1 is allowed */
    if (!err) {
        *data_offset = LENGTH_BYTES + json_bytes;
        err = cairn_safetensors_parse(shown, json, got, file->bytes - *data_offset, out,
                                      checkpoint->complaint);
    }
    free(json);
    return err;
}

/* Which file the index gives a tensor; files by their place in a list. */
struct map_entry {
    char name[CAIRN_NAME_BYTES_MAX];
    uint32_t file;
};

struct map {
    struct map_entry *entries; /* by name */
    uint32_t count;
    char **files; /* distinct */
    uint32_t file_count;
};

static void
map_fini(struct map *map)
{
    for (uint32_t i = 0; i < map->file_count; i++)
        free(map->files[i]);
    free(map->files);
    free(map->entries);
}

/* The number of a file, added where it is new. The last one is looked at first: an index goes shard
 * by shard. */
static cairn_err
map_file(struct map *map, const char *name, uint32_t *file)
{
    for (uint32_t i = map->file_count; i > 0; i--)
        if (strcmp(map->files[i - 1], name) == 0) {
            *file = i - 1;
            return CAIRN_OK;
        }
    if (!cairn_array_grow(&map->files, map->file_count, sizeof(*map->files)))
        return CAIRN_NOMEM;
    map->files[map->file_count] = strdup(name);
    if (!map->files[map->file_count])
        return CAIRN_NOMEM;
    *file = map->file_count++;
    return CAIRN_OK;
}

static cairn_err
map_add(struct map *map, const char *name, const char *file)
{
    struct map_entry *entry;
    cairn_err err;

    if (!cairn_array_grow(&map->entries, map->count, sizeof(*map->entries)))
        return CAIRN_NOMEM;
    entry = &map->entries[map->count];
    memset(entry, 0, sizeof(*entry));
    memcpy(entry->name, name, strlen(name));
    err = map_file(map, file, &entry->file);
    if (!err)
        map->count++;
    return err;
}

static int
compare_entries(const void *left, const void *right)
{
    return strcmp(((const struct map_entry *)left)->name, ((const struct map_entry *)right)->name);
}

static cairn_err
parse_index(const uint8_t *text, size_t text_bytes, struct map *map,
            struct cairn_json_reader *reader)
{
    char key[CAIRN_NAME_BYTES_MAX], file[CAIRN_SAFETENSORS_NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    cairn_json_reader_init(reader, text, text_bytes);
    cairn_json_object_begin(reader);
    while (!err && cairn_json_object_next(reader, key, sizeof(key))) {
        if (strcmp(key, "weight_map") != 0) {
            cairn_json_skip(reader);
            continue;
        }
        cairn_json_object_begin(reader);
        while (!err && cairn_json_object_next(reader, key, sizeof(key))) {
            cairn_json_read_string(reader, file, sizeof(file));
            if (!cairn_json_reader_failed(reader) && !cairn_place_name_check(file))
                cairn_json_reader_fail(reader, "a file outside the checkpoint");
            if (!cairn_json_reader_failed(reader))
                err = map_add(map, key, file);
        }
    }
    if (!err)
        err = cairn_json_reader_done(reader);
    if (!err && map->count > 1)
        qsort(map->entries, map->count, sizeof(*map->entries), compare_entries);
    return err;
}

static cairn_err
load_index(const struct cairn_checkpoint *checkpoint, const char *name, struct map *map)
{
    struct cairn_json_reader reader = {0};
    uint8_t *text = NULL;
    size_t text_bytes = 0;
    cairn_err err;

    err = cairn_place_load(&checkpoint->place, name, CAIRN_CONVERT_METADATA_BYTES_MAX, &text,
                           &text_bytes, checkpoint->complaint);
    if (!err)
        err = parse_index(text, text_bytes, map, &reader);
    if (err == CAIRN_CORRUPT)
        (void)cairn_refuse_file(checkpoint, name, err, "wrong at byte %zu: %s", reader.at,
                                reader.why ? reader.why : "");
    for (uint32_t i = 1; !err && i < map->count; i++)
        if (strcmp(map->entries[i - 1].name, map->entries[i].name) == 0)
            err = cairn_refuse_file(checkpoint, name, CAIRN_CORRUPT, "duplicate tensor %s",
                                    map->entries[i].name);
    free(text);
    return err;
}

static int
compare_name(const void *name, const void *entry)
{
    return strcmp(name, ((const struct map_entry *)entry)->name);
}

static const struct map_entry *
map_find(const struct map *map, const char *name)
{
    return map->count > 0
               ? bsearch(name, map->entries, map->count, sizeof(*map->entries), compare_name)
               : NULL;
}

/* The notes of a file among those of all. */
static cairn_err
add_notes(struct cairn_checkpoint *checkpoint, uint32_t container,
          const struct cairn_safetensors_notes *own, struct cairn_safetensors_notes *all)
{
    char shown[CAIRN_NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < own->count && !err; i++) {
        bool same;

        err = cairn_safetensors_notes_add(all, own->notes[i]->key, own->notes[i]->value, &same);
        if (err || same)
            continue;
        cairn_text_clean(shown, sizeof(shown), own->notes[i]->key);
        err = cairn_checkpoint_warn(checkpoint,
                                    "the header of %.200s has another note %.100s (__metadata__) "
                                    "than an earlier file, whose note counts",
                                    cairn_checkpoint_container_name(checkpoint, container), shown);
    }
    return err;
}

/* The file numbers of the map follow one another as containers do: file f is container f. */
static cairn_err
add_file(struct cairn_checkpoint *checkpoint, const char *path, const struct map *map,
         struct cairn_safetensors_notes *notes)
{
    struct cairn_safetensors header = {0};
    uint64_t data_offset = 0;
    uint32_t container = 0;
    cairn_err err;

    err = cairn_checkpoint_add_file(checkpoint, path, &container);
    if (!err)
        err = load_header(checkpoint, container, &header, &data_offset);
    if (!err && header.step_known) {
        if (checkpoint->step_known && checkpoint->step != header.step)
            err = cairn_refuse_file(checkpoint, path, CAIRN_CORRUPT,
                                    "is of step %" PRIu64 " and others are of step %" PRIu64,
                                    header.step, checkpoint->step);
        checkpoint->step_known = true;
        checkpoint->step = header.step;
    }
    if (!err && header.other_note_count > 0)
        err = cairn_checkpoint_warn(
            checkpoint,
            "%.200s: notes of the header (__metadata__) that are not text are left out: %.100s%s",
            cairn_checkpoint_container_name(checkpoint, container), header.other_note,
            header.other_note_count > 1 ? ", and more" : "");
    if (!err)
        err = add_notes(checkpoint, container, &header.notes, notes);
    for (uint32_t i = 0; !err && i < header.count; i++) {
        const struct cairn_safetensors_entry *entry = &header.entries[i];
        const struct map_entry *mapped = map_find(map, entry->name);
        uint32_t tensor = 0;

        if (mapped && mapped->file != container) {
            err = cairn_checkpoint_warn(checkpoint,
                                        "%s: has a tensor %s, which the index takes from %s", path,
                                        entry->name, map->files[mapped->file]);
            continue;
        }
        if (cairn_layout_tensor_find(checkpoint->layout, entry->name) != UINT32_MAX) {
            err = cairn_refuse(
                checkpoint, CAIRN_CORRUPT,
                "tensor %s is in %s and in another file, and no index decides which counts",
                entry->name, path);
            continue;
        }
        err = cairn_checkpoint_add_tensor(checkpoint, entry->name, entry->dtype, entry->kind,
                                          entry->dims, entry->shape, &tensor);
        if (!err)
            err = cairn_checkpoint_add_box(checkpoint, tensor, container, NULL, NULL,
                                           data_offset + entry->begin, NULL);
    }
    cairn_safetensors_fini(&header);
    return err;
}

/* Every tensor that the index names was found. */
static cairn_err
check_map(const struct cairn_checkpoint *checkpoint, const struct map *map)
{
    for (uint32_t i = 0; i < map->count; i++)
        if (cairn_layout_tensor_find(checkpoint->layout, map->entries[i].name) == UINT32_MAX)
            return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                                "the index says that tensor %s is in %s, which lacks it; take "
                                "another copy of that file",
                                map->entries[i].name, map->files[map->entries[i].file]);
    return CAIRN_OK;
}

/* The indices of a directory, all in one map; then the files that they name. What they do not name
 * belongs to something else (adapters, older copies) and is told. */
static cairn_err
read_directory(struct cairn_checkpoint *checkpoint, struct cairn_safetensors_notes *notes)
{
    struct map map = {0};
    char **names = NULL;
    size_t count = 0;
    cairn_err err;

    err = cairn_place_list(&checkpoint->place, "", &names, &count, checkpoint->complaint);
    if (err)
        return err;
    for (size_t i = 0; !err && i < count; i++)
        if (cairn_text_ends(names[i], CAIRN_SAFETENSORS_INDEX_SUFFIX))
            err = load_index(checkpoint, names[i], &map);
    for (size_t i = 0; !err && i < count; i++) {
        uint32_t file;

        if (cairn_text_ends(names[i], CAIRN_SAFETENSORS_SUFFIX))
            err = map_file(&map, names[i], &file);
    }
    for (uint32_t f = 0; !err && f < map.file_count; f++)
        err = add_file(checkpoint, map.files[f], &map, notes);
    if (!err)
        err = check_map(checkpoint, &map);
    map_fini(&map);
    cairn_dir_list_free(names, count);
    return err;
}

static cairn_err
read_metadata(struct cairn_checkpoint *checkpoint)
{
    struct cairn_safetensors_notes notes = {0};
    struct map none = {0};
    cairn_err err;

    (void)strcpy(checkpoint->framework, "safetensors");
    err = checkpoint->place.name ? add_file(checkpoint, "", &none, &notes)
                                 : read_directory(checkpoint, &notes);
    if (!err)
        err = cairn_safetensors_notes_carry(checkpoint, &notes);
    cairn_safetensors_notes_fini(&notes);
    return err;
}

const struct cairn_format cairn_format_safetensors = {
    .name = "safetensors",
    .about = "one file, or a directory as Hugging Face has it",
    .target_is_file = true,
    .probe = probe,
    .read = read_metadata,
    .plan = cairn_safetensors_plan,
    .finish = cairn_safetensors_finish,
};
