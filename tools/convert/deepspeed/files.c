/* tools/convert/deepspeed/files.c - names in a DeepSpeed checkpoint, by rank. */
#include "tools/convert/deepspeed/files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"

enum { MARKER_BYTES_MAX = 1024 };

/* In the order in which files are sorted. */
enum kind {
    KIND_NONE,
    KIND_MODEL,
    KIND_RANK_MODEL,
    KIND_OPTIM,
    KIND_LAYER,
    KIND_EXPERT,
    KIND_COUNT
};

/* ---- names ---- */

/* A capital letter stands for a number: of the part, the layer (that a part counts), the tensor-
 * parallel rank of a layer, or file->number. */
static const struct {
    enum kind kind;
    const char *pattern;
} forms[] = {
    {KIND_MODEL, "mp_rank_P_model_states.pt"},
    {KIND_RANK_MODEL, "zero_pp_rank_N_mp_rank_P_model_states.pt"},
    {KIND_OPTIM, "zero_pp_rank_N_mp_rank_P_optim_states.pt"},
    {KIND_OPTIM, "zero_pp_rank_N_mp_rank_Poptim_states.pt"}, /* of DeepSpeed before 0.5 */
    {KIND_LAYER, "layer_N-model_states.pt"},
    {KIND_LAYER, "layer_N-model_T-model_states.pt"},
    {KIND_EXPERT, "layer_L_expert_N_mp_rank_P_model_states.pt"},
};

static bool
take_number(const char **at, uint32_t *number)
{
    const char *begin = *at;

    *number = 0;
    while (**at >= '0' && **at <= '9' && *number < CAIRN_DEEPSPEED_RANKS_MAX)
        *number = *number * 10 + (uint32_t)(*(*at)++ - '0');
    return *at != begin && *number < CAIRN_DEEPSPEED_RANKS_MAX && (**at < '0' || **at > '9');
}

static bool
has_form(const char *name, const char *pattern, struct cairn_deepspeed_file *file)
{
    for (; *pattern; pattern++) {
        uint32_t *number = *pattern == 'P'   ? &file->part
                           : *pattern == 'L' ? &file->layer
                           : *pattern == 'T' ? &file->tensor_rank
                           : *pattern == 'N' ? &file->number
                                             : NULL;

        if (number ? !take_number(&name, number) : *name++ != *pattern)
            return false;
    }
    return *name == '\0';
}

static struct cairn_deepspeed_file
parse(const char *name)
{
    bool bf16 = strncmp(name, "bf16_zero_", 10) == 0;

    if (bf16 || strncmp(name, "fp16_zero_", 10) == 0)
        name += strlen("bf16_");
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct cairn_deepspeed_file file = {.kind = forms[i].kind, .bf16 = bf16};

        if (has_form(name, forms[i].pattern, &file))
            return file;
    }
    return (struct cairn_deepspeed_file){.kind = KIND_NONE};
}

/* Whether it is of experts of a job without ZeRO, or of DeepSpeed before 0.5.4. */
static bool
is_other_expert(const char *name)
{
    return strncmp(name, "expp_rank_", 10) == 0 ||
           (strncmp(name, "expert_", 7) == 0 && strstr(name, "_mp_rank_"));
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

bool
cairn_deepspeed_probe(const struct cairn_place *place, const char *marker, bool universal)
{
    struct cairn_complaint unsaid = {{0}};
    char folder[CAIRN_NAME_BYTES_MAX], path[CAIRN_FILE_PATH_BYTES_MAX];
    char **names = NULL;
    size_t count = 0;
    bool found = universal;
    cairn_err err =
        place->name ? CAIRN_NOT_FOUND : cairn_deepspeed_folder(place, marker, folder, &unsaid);

    if (err == CAIRN_CORRUPT) /* nobody else has such a file: reading says what is wrong with it */
        return true;
    if (err || cairn_deepspeed_path(folder, "zero/optimizer_state.pt", path, sizeof(path)) ||
        cairn_place_has_file(place, path) != universal)
        return false;
    if (!universal && cairn_place_list(place, folder, &names, &count, &unsaid) != CAIRN_OK)
        return false;
    for (size_t i = 0; i < count && !found; i++) {
        uint32_t kind = parse(names[i]).kind;

        found = kind == KIND_MODEL || kind == KIND_RANK_MODEL;
    }
    cairn_dir_list_free(names, count);
    return found;
}

/* ---- listing ---- */

static int
by_place(const void *left, const void *right)
{
    const struct cairn_deepspeed_file *a = left, *b = right;

    return CAIRN_COMPARE(a->kind, b->kind) ?: CAIRN_COMPARE(a->part, b->part) ?:
           CAIRN_COMPARE(a->layer, b->layer) ?: CAIRN_COMPARE(a->number, b->number);
}

/* The files of ranks 0, 1, 2, … of parts 0, 1, …; all parts have as many ranks. */
static cairn_err
check_ranks(const struct cairn_checkpoint *checkpoint, const char *what,
            const struct cairn_deepspeed_file *files, uint32_t count)
{
    uint32_t ranks = 0;

    while (ranks < count && files[ranks].part == 0)
        ranks++;
    for (uint32_t i = 0; count > 0 && i <= count; i++) { /* the last round: what the last part
                                                          * should still have */
        struct cairn_deepspeed_file wanted = {
            .kind = files->kind, .part = ranks ? i / ranks : 0, .number = ranks ? i % ranks : 0};
        const struct cairn_deepspeed_file *last = &files[i < count ? i : count - 1];

        if (i == count && wanted.number == 0)
            break;
        if (i == count || by_place(last, &wanted) != 0)
            return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                                "%s is there, but rank %" PRIu32
                                "'s %s is missing (mp_rank_%02" PRIu32
                                "); copy it from the node that wrote it",
                                last->name, wanted.number, what, wanted.part);
    }
    return CAIRN_OK;
}

/* Experts 0, 1, … of layers 0, 1, … of each part. Stages count their own layers. */
static cairn_err
check_experts(const struct cairn_checkpoint *checkpoint, const struct cairn_deepspeed_files *files)
{
    struct cairn_deepspeed_file wanted = {.kind = KIND_EXPERT};

    for (uint32_t i = 0; i < files->expert_count; i++) {
        const struct cairn_deepspeed_file *found = &files->experts[i];
        bool same_part = i > 0 && found->part == wanted.part;

        wanted.number = same_part && found->layer == wanted.layer ? wanted.number + 1 : 0;
        if (wanted.number == 0)
            wanted.layer = same_part ? wanted.layer + 1 : 0;
        wanted.part = found->part;
        if (by_place(found, &wanted) != 0)
            return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                                "%s is there, but expert %" PRIu32 " of layer %" PRIu32
                                " is missing; copy it from the node that wrote it",
                                found->name, wanted.number, wanted.layer);
        if (found->part >= files->part_count)
            return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                                "%s is there, but mp_rank_%02" PRIu32
                                "_model_states.pt is missing; copy it from the node that wrote it",
                                found->path, found->part);
    }
    return CAIRN_OK;
}

static cairn_err
add_name(const struct cairn_checkpoint *checkpoint, const char *folder, const char *name,
         struct cairn_deepspeed_files *out)
{
    char path[CAIRN_FILE_PATH_BYTES_MAX];
    struct cairn_deepspeed_file file = parse(name);

    if (is_other_expert(name))
        return cairn_refuse(checkpoint, CAIRN_VERSION,
                            "%s is of a job with experts and without ZeRO, or of DeepSpeed "
                            "before 0.5.4, which is not read; save it with ZeRO 1 or 2",
                            name);
    if (file.kind == KIND_NONE)
        return CAIRN_OK;
    if (file.tensor_rank > 0)
        return cairn_refuse(checkpoint, CAIRN_VERSION,
                            "%s is of a job with tensor and pipeline parallelism, which is "
                            "not read; merge it with the framework that wrote it",
                            name);
    if (cairn_deepspeed_path(folder, name, path, sizeof(path)) != CAIRN_OK)
        return CAIRN_INVAL;
    if (!cairn_array_grow(&out->all, out->count, sizeof(*out->all)) || !(file.path = strdup(path)))
        return CAIRN_NOMEM;
    file.name = file.path + strlen(path) - strlen(name);
    out->all[out->count++] = file;
    out->bf16 = file.kind == KIND_OPTIM ? file.bf16 : out->bf16;
    return CAIRN_OK;
}

/* The files of each kind, checked. */
static cairn_err
take_kinds(const struct cairn_checkpoint *checkpoint, struct cairn_deepspeed_files *out)
{
    const struct cairn_deepspeed_file *first[KIND_COUNT] = {NULL};
    uint32_t counts[KIND_COUNT] = {0};
    uint32_t models;
    cairn_err err;

    if (out->count > 0)
        qsort(out->all, out->count, sizeof(*out->all), by_place);
    for (uint32_t i = 1; i < out->count; i++)
        if (by_place(&out->all[i], &out->all[i - 1]) == 0)
            return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                                "%s and %s are both %s %" PRIu32
                                "; remove the one of the other run",
                                out->all[i - 1].name, out->all[i].name,
                                out->all[i].kind == KIND_LAYER    ? "layer"
                                : out->all[i].kind == KIND_EXPERT ? "expert"
                                                                  : "rank",
                                out->all[i].number);
    for (uint32_t i = 0; i < out->count; i++)
        if (counts[out->all[i].kind]++ == 0)
            first[out->all[i].kind] = &out->all[i];
    out->model_by_rank = counts[KIND_RANK_MODEL] > 0;
    models = out->model_by_rank ? KIND_RANK_MODEL : KIND_MODEL;
    out->models = first[models];
    out->model_count = counts[models];
    out->optims = first[KIND_OPTIM];
    out->optim_count = counts[KIND_OPTIM];
    out->layers = first[KIND_LAYER];
    out->layer_count = counts[KIND_LAYER];
    out->experts = first[KIND_EXPERT];
    out->expert_count = counts[KIND_EXPERT];
    out->part_count = out->model_count ? out->models[out->model_count - 1].part + 1 : 1;
    if (out->model_by_rank && counts[KIND_MODEL] > 0)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                            "holds both %s and %s, which are of two checkpoints; separate them",
                            first[KIND_MODEL]->path, out->models[0].path);
    err = check_ranks(checkpoint, "model_states file", out->models, out->model_count);
    if (!err)
        err = check_ranks(checkpoint, "optim_states file", out->optims, out->optim_count);
    return err ? err : check_experts(checkpoint, out);
}

cairn_err
cairn_deepspeed_files_list(const struct cairn_checkpoint *checkpoint, const char *folder,
                           struct cairn_deepspeed_files *out)
{
    char **names = NULL;
    size_t count = 0;
    cairn_err err;

    memset(out, 0, sizeof(*out));
    err = cairn_place_list(&checkpoint->place, folder, &names, &count, checkpoint->complaint);
    for (size_t i = 0; i < count && !err; i++)
        err = add_name(checkpoint, folder, names[i], out);
    if (!err)
        err = take_kinds(checkpoint, out);
    if (names)
        cairn_dir_list_free(names, count);
    if (!err && out->model_count == 0)
        err = cairn_refuse_file(checkpoint, folder[0] ? folder : NULL, CAIRN_CORRUPT,
                                "has no model_states file; copy it from the first node");
    return err;
}

void
cairn_deepspeed_files_fini(struct cairn_deepspeed_files *files)
{
    for (uint32_t i = 0; i < files->count; i++)
        free(files->all[i].path);
    free(files->all);
    memset(files, 0, sizeof(*files));
}
