/*
 * tools/convert/safetensors/format.c - safetensors as a format: one file, or a directory as Hugging
 * Face writes it, with shards and an index.
 *
 * Reading. The index (model.safetensors.index.json, or the only *.safetensors.index.json) says
 * which file holds a tensor; what is in a file and in no index is read all the same. Without an
 * index all *.safetensors files of the directory are read.
 *
 * Writing. One file holds everything. A directory gets:
 *
 *   model.safetensors, or model-00001-of-0000N.safetensors and model.safetensors.index.json
 *                             parameters and buffers, which loaders of models look for
 *   optimizer-… and opaque-… in the same way
 *                             what loaders of models must not see
 *
 * Within a file larger elements come first, then kinds, then names, so every tensor is aligned. The
 * format has no marker of its own: a directory's index is written last.
 */
#include "tools/convert/core/format.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "base/wire.h"
#include "tools/convert/safetensors/safetensors.h"
#include "snapshot/box.h"

#define SUFFIX ".safetensors"
#define INDEX_SUFFIX ".safetensors.index.json"

enum { FILE_NAME_BYTES_MAX = 256 }; /* of a file */

/* What Hugging Face's own writers cut at. */
#define SHARD_BYTES_DEFAULT UINT64_C(5000000000)

/* What loaders look for apart, in the order in which it is written: a model that is there is the
 * sign that all is there. */
enum shard_class { OPAQUE = 0, OPTIMIZER = 1, MODEL = 2, CLASS_COUNT = 3 };

static const char *const class_names[] = {
    [MODEL] = "model", [OPTIMIZER] = "optimizer", [OPAQUE] = "opaque"};

struct candidate {
    const struct cairn_tensor *tensor; /* of the output: with its final dtype */
    uint64_t bytes;
    enum shard_class class;
    uint32_t file;
};

struct shards {
    struct candidate *candidates;
    uint32_t count;
    uint32_t class_files[CLASS_COUNT]; /* how many files a class has */
};

static enum shard_class
class_of(enum cairn_kind kind, bool single_file)
{
    if (single_file)
        return MODEL;
    return kind == CAIRN_OPTIMIZER ? OPTIMIZER : kind == CAIRN_OPAQUE ? OPAQUE : MODEL;
}

/* Cuts each class into files, in the order of the source. A file holds a tensor at least. */
static cairn_err
assign(struct cairn_output *output, const struct cairn_output_options *options,
       struct shards *shards)
{
    uint64_t most = options->file_bytes_max ? options->file_bytes_max : SHARD_BYTES_DEFAULT;
    uint64_t filled[CLASS_COUNT] = {0};

    shards->count = cairn_layout_tensor_count(output->layout);
    shards->candidates = calloc((size_t)shards->count + 1, sizeof(*shards->candidates));
    if (!shards->candidates)
        return CAIRN_NOMEM;
    for (uint32_t t = 0; t < shards->count; t++) {
        struct candidate *candidate = &shards->candidates[t];
        enum shard_class class;

        candidate->tensor = cairn_layout_tensor(output->layout, t);
        candidate->bytes = cairn_tensor_bytes(candidate->tensor);
        class = candidate->class = class_of(candidate->tensor->kind, options->single_file);
        if (shards->class_files[class] == 0 || (!options->single_file && filled[class] > 0 &&
                                                filled[class] + candidate->bytes > most)) {
            shards->class_files[class]++;
            filled[class] = 0;
        }
        candidate->file = shards->class_files[class] - 1;
        filled[class] += candidate->bytes;
    }
    return CAIRN_OK;
}

static int
compare_candidates(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    size_t a_element = cairn_dtype_bytes(a->tensor->dtype);
    size_t b_element = cairn_dtype_bytes(b->tensor->dtype);
    int order = CAIRN_COMPARE(a->class, b->class);

    order = order ? order : CAIRN_COMPARE(a->file, b->file);
    order = order ? order : CAIRN_COMPARE(b_element, a_element);
    order = order ? order : CAIRN_COMPARE(a->tensor->kind, b->tensor->kind);
    return order ? order : strcmp(a->tensor->name, b->tensor->name);
}

static void
file_name(const struct shards *shards, const struct candidate *first, bool single_file,
          char name[FILE_NAME_BYTES_MAX])
{
    const char *class = class_names[first->class];
    uint32_t files = shards->class_files[first->class];

    if (single_file)
        name[0] = '\0';
    else if (files == 1)
        (void)snprintf(name, FILE_NAME_BYTES_MAX, "%s" SUFFIX, class);
    else
        (void)snprintf(name, FILE_NAME_BYTES_MAX, "%s-%05" PRIu32 "-of-%05" PRIu32 SUFFIX, class,
                       first->file + 1, files);
}

/* One file of candidates[0 … count), which are sorted. */
static cairn_err
lay_out_file(const struct cairn_checkpoint *checkpoint, struct cairn_output *output,
             const struct candidate *candidates, uint32_t count, const char *name)
{
    struct cairn_safetensors header = {
        .count = count, .step_known = checkpoint->step_known, .step = checkpoint->step};
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    uint64_t at = 0;
    uint32_t file = 0;
    cairn_err err = CAIRN_OK;

    header.entries = calloc((size_t)count + 1, sizeof(*header.entries));
    if (!header.entries)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; !err && i < count; i++) {
        const struct cairn_tensor *tensor = candidates[i].tensor;
        struct cairn_safetensors_entry *entry = &header.entries[i];

        memcpy(entry->name, tensor->name, sizeof(entry->name));
        entry->dtype = tensor->dtype;
        entry->kind = tensor->kind;
        entry->dims = tensor->dims;
        memcpy(entry->shape, tensor->shape, sizeof(entry->shape));
        entry->begin = at;
        if (__builtin_add_overflow(at, candidates[i].bytes, &at) || at > INT64_MAX)
            err = cairn_complain(checkpoint->complaint, CAIRN_INVAL,
                                 "the tensors have too many bytes; leave some out with --drop");
        entry->end = at;
    }
    if (!err)
        err = cairn_safetensors_notes_load(checkpoint, &header.notes);
    if (!err) {
        cairn_safetensors_sort(&header);
        err = cairn_safetensors_pack(&header, &bytes, &bytes_len, checkpoint->complaint);
    }
    if (!err)
        err = cairn_output_add_file(output, name, &file);
    if (!err) {
        err = cairn_output_add_literal(output, file, 0, bytes, bytes_len);
        bytes = NULL;
        cairn_output_set_bytes(output, file, bytes_len + at);
    }
    for (uint32_t i = 0; !err && i < count; i++)
        err = cairn_output_add_box(output,
                                   cairn_layout_tensor_find(output->layout, header.entries[i].name),
                                   file, NULL, NULL, bytes_len + header.entries[i].begin, NULL);
    free(bytes);
    cairn_safetensors_fini(&header);
    return err;
}

/* "model.safetensors.index.json" of a class with several files. */
static cairn_err
add_index(struct cairn_output *output, const struct shards *shards, enum shard_class class)
{
    struct cairn_json_writer writer;
    char name[FILE_NAME_BYTES_MAX], *text = NULL;
    size_t text_bytes = 0;
    uint64_t total = 0;
    cairn_err err;

    for (uint32_t i = 0; i < shards->count; i++)
        total += shards->candidates[i].class == class ? shards->candidates[i].bytes : 0;
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_object(&writer, "metadata");
    cairn_json_put_u64(&writer, "total_size", total);
    cairn_json_write_object_end(&writer);
    cairn_json_put_object(&writer, "weight_map");
    for (uint32_t i = 0; i < shards->count; i++) {
        if (shards->candidates[i].class != class)
            continue;
        file_name(shards, &shards->candidates[i], false, name);
        cairn_json_write_line(&writer);
        cairn_json_put_string(&writer, shards->candidates[i].tensor->name, name);
    }
    cairn_json_write_object_end(&writer);
    cairn_json_write_object_end(&writer);
    err = cairn_json_writer_done(&writer, &text, &text_bytes);
    if (err)
        return err;
    (void)snprintf(name, sizeof(name), "%s" INDEX_SUFFIX, class_names[class]);
    return cairn_output_add_small(output, name, (uint8_t *)text, text_bytes);
}

static cairn_err
add_tensors(const struct cairn_checkpoint *checkpoint, const struct cairn_output_options *options,
            struct cairn_output *output)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t t = 0; !err && t < cairn_layout_tensor_count(checkpoint->layout); t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, t);
        uint32_t index;

        if (tensor->kind == CAIRN_OPAQUE && strcmp(tensor->name, CAIRN_SAFETENSORS_NOTES) == 0) {
            err = cairn_output_add_carried(output, t); /* in the headers */
            continue;
        }
        err = cairn_output_add_tensor(output, options, cairn_layout_tensor(checkpoint->layout, t),
                                      &index);
    }
    if (!err && !output->layout)
        err = cairn_refuse(checkpoint, CAIRN_INVAL, "has no tensors; nothing to convert");
    return err;
}

static cairn_err
safetensors_plan(const struct cairn_checkpoint *checkpoint,
                 const struct cairn_output_options *options, struct cairn_output *output)
{
    struct shards shards = {0};
    char name[FILE_NAME_BYTES_MAX];
    cairn_err err;

    err = add_tensors(checkpoint, options, output);
    if (!err)
        err = assign(output, options, &shards);
    if (!err)
        qsort(shards.candidates, shards.count, sizeof(*shards.candidates), compare_candidates);
    for (uint32_t i = 0, run; !err && i < shards.count; i += run) {
        const struct candidate *first = &shards.candidates[i];

        for (run = 1; i + run < shards.count && first[run].class == first->class &&
                      first[run].file == first->file;)
            run++;
        file_name(&shards, first, options->single_file, name);
        err = lay_out_file(checkpoint, output, first, run, name);
    }
    for (int class = 0; !err && class < CLASS_COUNT; class ++)
        if (shards.class_files[class] > 1)
            err = add_index(output, &shards, (enum shard_class) class);
    free(shards.candidates);
    return err;
}

enum { LENGTH_BYTES = 8 };

/* A file of another name: a length, and a JSON object of that length. */
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
        return cairn_text_ends(place->name, SUFFIX) || begins_with_header(place);
    if (cairn_place_list(place, "", &names, &count, NULL) != CAIRN_OK)
        return false;
    for (size_t i = 0; i < count && !found; i++)
        found = cairn_text_ends(names[i], SUFFIX) || cairn_text_ends(names[i], INDEX_SUFFIX);
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
    char name[CAIRN_NAME_BYTES_MAX]; /* first, for compare_entries */
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

/* Of entries, or of a name and an entry. */
static int
compare_entries(const void *left, const void *right)
{
    return strcmp(left, right);
}

static cairn_err
parse_index(const uint8_t *text, size_t text_bytes, struct map *map,
            struct cairn_json_reader *reader)
{
    char key[CAIRN_NAME_BYTES_MAX], file[FILE_NAME_BYTES_MAX];
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

static const struct map_entry *
map_find(const struct map *map, const char *name)
{
    return map->count > 0
               ? bsearch(name, map->entries, map->count, sizeof(*map->entries), compare_entries)
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
        if (cairn_text_ends(names[i], INDEX_SUFFIX))
            err = load_index(checkpoint, names[i], &map);
    for (size_t i = 0; !err && i < count; i++) {
        uint32_t file;

        if (cairn_text_ends(names[i], SUFFIX))
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
    .plan = safetensors_plan,
};
