/* tools/convert/deepspeed/files.c - names in a DeepSpeed checkpoint, by rank. */
#include "tools/convert/deepspeed/files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum { MARKER_BYTES_MAX = 1024 };

enum part {
    PART_NONE,
    PART_MODEL,
    PART_RANK_MODEL,
    PART_OPTIM,
    PART_LAYER,
    PART_EXPERT,
    PART_OTHER_EXPERT
};

struct parsed {
    enum part part;
    bool bf16;
    bool cut;       /* a layer of tensor parallelism */
    uint32_t rank;  /* of a layer or an expert: its number */
    uint32_t layer; /* of an expert */
    uint32_t mp_rank;
};

/* ---- names ---- */

static bool
take(const char **at, const char *prefix)
{
    size_t bytes = strlen(prefix);

    if (strncmp(*at, prefix, bytes) != 0)
        return false;
    *at += bytes;
    return true;
}

static bool
take_number(const char **at, uint32_t *number)
{
    const char *begin = *at;

    *number = 0;
    while (**at >= '0' && **at <= '9' && *number < CAIRN_DEEPSPEED_RANKS_MAX)
        *number = *number * 10 + (uint32_t)(*(*at)++ - '0');
    return *at != begin && *number < CAIRN_DEEPSPEED_RANKS_MAX && (**at < '0' || **at > '9');
}

/* "layer_03-model_states.pt", "layer_03-model_00-model_states.pt" with tensor parallelism of 1 or
 * more. */
static bool
take_layer(const char *name, struct parsed *parsed)
{
    uint32_t model = 0;

    if (!take(&name, "layer_") || !take_number(&name, &parsed->rank))
        return false;
    if (take(&name, "-model_") && strcmp(name, "states.pt") == 0)
        return true;
    parsed->cut = take_number(&name, &model) && model > 0;
    return strcmp(name, "-model_states.pt") == 0;
}

/* "layer_0_expert_3_mp_rank_00_model_states.pt" */
static bool
take_expert(const char *name, struct parsed *parsed)
{
    return take(&name, "layer_") && take_number(&name, &parsed->layer) && take(&name, "_expert_") &&
           take_number(&name, &parsed->rank) && take(&name, "_mp_rank_") &&
           take_number(&name, &parsed->mp_rank) && strcmp(name, "_model_states.pt") == 0;
}

static struct parsed
parse(const char *name)
{
    struct parsed parsed = {.part = PART_NONE}, none = {.part = PART_NONE};

    if (take_layer(name, &parsed))
        parsed.part = PART_LAYER;
    else if (take_expert(name, &parsed))
        parsed.part = PART_EXPERT;
    else if (strncmp(name, "expp_rank_", 10) == 0 ||
             (strncmp(name, "expert_", 7) == 0 && strstr(name, "_mp_rank_")))
        parsed.part = PART_OTHER_EXPERT; /* of a job without ZeRO, or of DeepSpeed before 0.5.4 */
    if (parsed.part != PART_NONE)
        return parsed;
    if (take(&name, "mp_rank_")) {
        if (!take_number(&name, &parsed.mp_rank) || strcmp(name, "_model_states.pt") != 0)
            return none;
        parsed.part = PART_MODEL;
        return parsed;
    }
    parsed.bf16 = take(&name, "bf16_");
    if (!parsed.bf16)
        (void)take(&name, "fp16_");
    if (!take(&name, "zero_pp_rank_") || !take_number(&name, &parsed.rank) ||
        !take(&name, "_mp_rank_") || !take_number(&name, &parsed.mp_rank))
        return none;
    if (strcmp(name, "_model_states.pt") == 0)
        parsed.part = PART_RANK_MODEL;
    else if (strcmp(name, "_optim_states.pt") == 0 || strcmp(name, "optim_states.pt") == 0)
        parsed.part = PART_OPTIM; /* the second is of DeepSpeed before 0.5 */
    return parsed;
}

bool
cairn_deepspeed_is_model(const char *name)
{
    struct parsed parsed = parse(name);

    return parsed.part == PART_MODEL || parsed.part == PART_RANK_MODEL;
}

cairn_err
cairn_deepspeed_path(const char *folder, const char *name, char *path, size_t path_bytes)
{
    int bytes = snprintf(path, path_bytes, "%s%s%s", folder, folder[0] && name[0] ? "/" : "", name);

    return bytes >= 0 && (size_t)bytes < path_bytes ? CAIRN_OK : CAIRN_INVAL;
}

cairn_err
cairn_deepspeed_folder(const struct cairn_place *place, const char *marker,
                       char folder[CAIRN_NAME_BYTES_MAX], struct cairn_complaint *complaint)
{
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    cairn_err err;

    folder[0] = '\0';
    err = cairn_place_load(place, marker, MARKER_BYTES_MAX, &bytes, &bytes_len, complaint);
    if (err == CAIRN_NOT_FOUND)
        return CAIRN_OK;
    if (err)
        return err;
    while (bytes_len > 0 && strchr(" \r\n\t", bytes[bytes_len - 1]))
        bytes_len--;
    bytes[bytes_len] = '\0';
    if (bytes_len >= CAIRN_NAME_BYTES_MAX || strlen((char *)bytes) != bytes_len ||
        !cairn_place_name_check((char *)bytes))
        err = cairn_complain(complaint, CAIRN_CORRUPT,
                             "%s/%s: expected the name of a folder beside it", place->path, marker);
    else
        memcpy(folder, bytes, bytes_len + 1);
    free(bytes);
    return err;
}

/* ---- listing ---- */

struct ranked {
    uint32_t part, rank;
    const char *name;
};

static int
by_rank(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;

    if (a->part != b->part)
        return a->part < b->part ? -1 : 1;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

static cairn_err
take_paths(const char *folder, const struct ranked *ranked, uint32_t count, char ***paths,
           uint32_t *path_count)
{
    char path[CAIRN_FILE_PATH_BYTES_MAX];

    *paths = calloc((size_t)count + 1, sizeof(**paths));
    if (!*paths)
        return CAIRN_NOMEM;
    *path_count = count;
    for (uint32_t i = 0; i < count; i++) {
        if (cairn_deepspeed_path(folder, ranked[i].name, path, sizeof(path)) != CAIRN_OK)
            return CAIRN_INVAL;
        (*paths)[i] = strdup(path);
        if (!(*paths)[i])
            return CAIRN_NOMEM;
    }
    return CAIRN_OK;
}

/* The files of ranks 0, 1, 2, … of parts 0, 1, …, each once, as paths; all parts have as many
 * ranks. */
static cairn_err
take_ranks(const struct cairn_place *place, const char *folder, const char *what,
           struct ranked *ranked, uint32_t count, char ***paths, uint32_t *path_count,
           struct cairn_complaint *complaint)
{
    uint32_t ranks = 0;

    if (count == 0)
        return CAIRN_OK;
    qsort(ranked, count, sizeof(*ranked), by_rank);
    while (ranks < count && ranked[ranks].part == 0)
        ranks++;
    for (uint32_t i = 0; i <= count; i++) { /* the last round: what the last part should still
                                             * have */
        struct ranked wanted = {.part = ranks ? i / ranks : 0, .rank = ranks ? i % ranks : 0};
        const struct ranked *last = &ranked[i < count ? i : count - 1];

        if (i == count && wanted.rank == 0)
            break;
        if (i > 0 && i < count && by_rank(last, last - 1) == 0)
            return cairn_complain(complaint, CAIRN_CORRUPT,
                                  "%s: %s and %s are both rank %" PRIu32
                                  "'s %s; remove the one of the other run",
                                  place->path, last[-1].name, last->name, last->rank, what);
        if (i == count || by_rank(last, &wanted) != 0)
            return cairn_complain(complaint, CAIRN_CORRUPT,
                                  "%s: %s is there, but rank %" PRIu32
                                  "'s %s is missing (mp_rank_%02" PRIu32
                                  "); copy it from the node that wrote it",
                                  place->path, last->name, wanted.rank, what, wanted.part);
    }
    return take_paths(folder, ranked, count, paths, path_count);
}

struct expert {
    uint32_t part, layer, number;
    const char *name;
};

static int
by_expert(const void *left, const void *right)
{
    const struct expert *a = left, *b = right;

    if (a->part != b->part)
        return a->part < b->part ? -1 : 1;
    if (a->layer != b->layer)
        return a->layer < b->layer ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

struct sorting {
    struct ranked *models, *rank_models, *optims, *layers;
    struct expert *experts;
    uint32_t model_count, rank_model_count, optim_count, layer_count, expert_count;
    bool bf16;
};

static cairn_err
sort_name(const struct cairn_place *place, const char *name, struct sorting *sorting,
          struct cairn_complaint *complaint)
{
    struct parsed parsed = parse(name);

    if (parsed.part == PART_NONE)
        return CAIRN_OK;
    if (parsed.cut)
        return cairn_complain(complaint, CAIRN_VERSION,
                              "%s: %s is of a job with tensor and pipeline parallelism, which is "
                              "not read; merge it with the framework that wrote it",
                              place->path, name);
    if (parsed.part == PART_OTHER_EXPERT)
        return cairn_complain(
            complaint, CAIRN_VERSION,
            "%s: %s is of a job with experts and without ZeRO, or of DeepSpeed before 0.5.4, which "
            "is not read; load it with DeepSpeed and save it with ZeRO 1 or 2",
            place->path, name);
    if (parsed.part == PART_EXPERT)
        sorting->experts[sorting->expert_count++] =
            (struct expert){parsed.mp_rank, parsed.layer, parsed.rank, name};
    if (parsed.part == PART_MODEL)
        sorting->models[sorting->model_count++] = (struct ranked){parsed.mp_rank, 0, name};
    if (parsed.part == PART_RANK_MODEL)
        sorting->rank_models[sorting->rank_model_count++] =
            (struct ranked){parsed.mp_rank, parsed.rank, name};
    if (parsed.part == PART_LAYER)
        sorting->layers[sorting->layer_count++] = (struct ranked){0, parsed.rank, name};
    if (parsed.part == PART_OPTIM) {
        sorting->optims[sorting->optim_count++] =
            (struct ranked){parsed.mp_rank, parsed.rank, name};
        sorting->bf16 = parsed.bf16;
    }
    return CAIRN_OK;
}

/* Layers without parameters have no file, so numbers are left out. */
static cairn_err
take_layers(const struct cairn_place *place, const char *folder, struct sorting *sorting,
            struct cairn_deepspeed_files *out, struct cairn_complaint *complaint)
{
    if (sorting->layer_count == 0)
        return CAIRN_OK;
    qsort(sorting->layers, sorting->layer_count, sizeof(*sorting->layers), by_rank);
    out->layer_numbers = calloc(sorting->layer_count, sizeof(*out->layer_numbers));
    if (!out->layer_numbers)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < sorting->layer_count; i++) {
        out->layer_numbers[i] = sorting->layers[i].rank;
        if (i > 0 && out->layer_numbers[i] == out->layer_numbers[i - 1])
            return cairn_complain(
                complaint, CAIRN_CORRUPT,
                "%s: %s and %s are the same layer; remove the one of the other run", place->path,
                sorting->layers[i - 1].name, sorting->layers[i].name);
    }
    return take_paths(folder, sorting->layers, sorting->layer_count, &out->layers,
                      &out->layer_count);
}

/* Experts 0, 1, … of layers 0, 1, … of each part, each once: a stage of a pipeline counts its own
 * layers. */
static cairn_err
take_experts(const struct cairn_place *place, const char *folder, struct sorting *sorting,
             struct cairn_deepspeed_files *out, struct cairn_complaint *complaint)
{
    const struct expert *found = sorting->experts;
    struct expert wanted = {0};
    char path[CAIRN_FILE_PATH_BYTES_MAX];

    if (sorting->expert_count == 0)
        return CAIRN_OK;
    qsort(sorting->experts, sorting->expert_count, sizeof(*sorting->experts), by_expert);
    out->experts = calloc(sorting->expert_count, sizeof(*out->experts));
    if (!out->experts)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < sorting->expert_count; i++, out->expert_count++) {
        if (i > 0 && by_expert(&found[i], &found[i - 1]) == 0)
            return cairn_complain(
                complaint, CAIRN_CORRUPT,
                "%s: %s and %s are the same expert; remove the one of the other run", place->path,
                found[i - 1].name, found[i].name);
        if (i > 0 && found[i].part == wanted.part && found[i].layer == wanted.layer)
            wanted.number++;
        else
            wanted = (struct expert){
                .part = found[i].part,
                .layer = i > 0 && found[i].part == wanted.part ? wanted.layer + 1 : 0};
        if (by_expert(&found[i], &wanted) != 0)
            return cairn_complain(complaint, CAIRN_CORRUPT,
                                  "%s: %s is there, but expert %" PRIu32 " of layer %" PRIu32
                                  " is missing; copy it from the node that wrote it",
                                  place->path, found[i].name, wanted.number, wanted.layer);
        if (cairn_deepspeed_path(folder, found[i].name, path, sizeof(path)) != CAIRN_OK)
            return CAIRN_INVAL;
        out->experts[i] =
            (struct cairn_deepspeed_expert_file){strdup(path), found[i].part, found[i].layer};
        if (!out->experts[i].path)
            return CAIRN_NOMEM;
    }
    return CAIRN_OK;
}

static cairn_err
sort_names(const struct cairn_place *place, const char *folder, char *const *names, size_t count,
           struct cairn_deepspeed_files *out, struct cairn_complaint *complaint)
{
    struct sorting sorting = {0};
    cairn_err err = CAIRN_NOMEM;

    sorting.models = calloc(count + 1, sizeof(*sorting.models));
    sorting.rank_models = calloc(count + 1, sizeof(*sorting.rank_models));
    sorting.optims = calloc(count + 1, sizeof(*sorting.optims));
    sorting.layers = calloc(count + 1, sizeof(*sorting.layers));
    sorting.experts = calloc(count + 1, sizeof(*sorting.experts));
    if (sorting.models && sorting.rank_models && sorting.optims && sorting.layers &&
        sorting.experts) {
        err = CAIRN_OK;
        for (size_t i = 0; i < count && !err; i++)
            err = sort_name(place, names[i], &sorting, complaint);
    }
    if (!err && sorting.model_count > 0 && sorting.rank_model_count > 0)
        err = cairn_complain(
            complaint, CAIRN_CORRUPT,
            "%s/%s: holds both %s and %s, which are of two checkpoints; separate them", place->path,
            folder, sorting.models[0].name, sorting.rank_models[0].name);
    out->model_by_rank = sorting.rank_model_count > 0;
    out->bf16 = sorting.bf16;
    if (!err)
        err = take_ranks(place, folder, "model_states file",
                         out->model_by_rank ? sorting.rank_models : sorting.models,
                         out->model_by_rank ? sorting.rank_model_count : sorting.model_count,
                         &out->models, &out->model_count, complaint);
    if (!err)
        err = take_ranks(place, folder, "optim_states file", sorting.optims, sorting.optim_count,
                         &out->optims, &out->optim_count, complaint);
    if (!err)
        err = take_layers(place, folder, &sorting, out, complaint);
    if (!err)
        err = take_experts(place, folder, &sorting, out, complaint);
    out->part_count = 1;
    for (uint32_t i = 0; !err && i < sorting.model_count; i++)
        out->part_count = sorting.models[i].part + 1;
    for (uint32_t i = 0; !err && i < sorting.rank_model_count; i++)
        out->part_count = sorting.rank_models[i].part + 1;
    for (uint32_t i = 0; !err && i < out->expert_count; i++)
        if (out->experts[i].part >= out->part_count)
            err = cairn_complain(complaint, CAIRN_CORRUPT,
                                 "%s: %s is there, but mp_rank_%02" PRIu32
                                 "_model_states.pt is missing; copy it from the node that wrote it",
                                 place->path, out->experts[i].path, out->experts[i].part);
    free(sorting.layers);
    free(sorting.experts);
    free(sorting.models);
    free(sorting.rank_models);
    free(sorting.optims);
    return err;
}

cairn_err
cairn_deepspeed_files_list(const struct cairn_place *place, const char *folder,
                           struct cairn_deepspeed_files *out, struct cairn_complaint *complaint)
{
    char **names = NULL;
    size_t count = 0;
    cairn_err err;

    memset(out, 0, sizeof(*out));
    err = cairn_place_list(place, folder, &names, &count, complaint);
    if (!err)
        err = sort_names(place, folder, names, count, out, complaint);
    if (names)
        cairn_dir_list_free(names, count);
    if (!err && out->model_count == 0)
        err = cairn_complain(complaint, CAIRN_CORRUPT,
                             "%s/%s: has no model_states file; copy it from the first node",
                             place->path, folder);
    return err;
}

void
cairn_deepspeed_files_fini(struct cairn_deepspeed_files *files)
{
    for (uint32_t i = 0; files->models && i < files->model_count; i++)
        free(files->models[i]);
    for (uint32_t i = 0; files->optims && i < files->optim_count; i++)
        free(files->optims[i]);
    for (uint32_t i = 0; files->layers && i < files->layer_count; i++)
        free(files->layers[i]);
    for (uint32_t i = 0; files->experts && i < files->expert_count; i++)
        free(files->experts[i].path);
    free(files->experts);
    free(files->models);
    free(files->optims);
    free(files->layers);
    free(files->layer_numbers);
    memset(files, 0, sizeof(*files));
}
