/*
 * tools/convert/megatron/format.c - Megatron-LM's own checkpoints (`--ckpt-format torch`), a folder
 * per model-parallel rank, read: which ranks wrote them, which layers are whose.
 *
 * The place is the directory with latest_checkpointed_iteration.txt, or one of its iterations.
 * Which file is whose is megatron/files.h's, what it holds megatron/state.h's, where parameters lie
 * megatron/parts.h's, and how files are laid out for another parallelism megatron/plan.c's.
 *
 * Ranks. Among the ranks of a pipeline stage, number r is tensor-parallel rank r % tp, and of
 * experts it is r % etp in expert-parallel rank r / etp % ep. So where tp differs from etp not
 * every pair of tp and ep is a file, and a file's part of its experts is tp % etp, for which etp
 * has to divide tp.
 *
 * Layers. Each chunk of each stage numbers its layers from 0. Chunks follow one another through all
 * stages, so a chunk's first layer is the count of those in all chunks before it: evenly split or
 * not, that holds.
 */
#include "tools/convert/megatron/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/convert/core/format.h"
#include "tools/convert/megatron/files.h"
#include "tools/convert/megatron/target.h"
#include "tools/convert/torch/output.h"

struct reading {
    struct cairn_checkpoint *checkpoint;
    struct cairn_megatron_folders folders;
    struct cairn_megatron_state state;
    struct cairn_torch_source
        *stages; /* [pp]: the files of (0, stage, 0), open until they are read */
    char (*paths)[CAIRN_NAME_BYTES_MAX]; /* [pp] */
    uint32_t stage_count;
};

static cairn_err
refuse(const struct reading *reading, cairn_err err, const char *file, const char *why)
{
    return cairn_refuse_file(reading->checkpoint, file, err, "%s", why);
}

/* ---- sizes ---- */

static void
counts_of(const struct cairn_megatron_folders *folders, uint32_t counts[3])
{
    counts[0] = counts[1] = counts[2] = 1;
    for (uint32_t i = 0; i < folders->count; i++)
        for (uint32_t k = 0; k < 3; k++)
            if (folders->folders[i].numbers[k] >= counts[k])
                counts[k] = folders->folders[i].numbers[k] + 1;
}

/* A single number behind the first is the stage's, unless every file has the embedding. */
static bool
second_is_expert(struct reading *reading, bool *is_expert)
{
    struct cairn_checkpoint scratch = {.place = reading->checkpoint->place};
    struct cairn_torch_source source;
    char path[CAIRN_NAME_BYTES_MAX];
    const struct cairn_parallelism sizes = {.pp = 2, .ep = 1};
    const struct cairn_megatron_rank second = {.pp = 1};
    bool opened;

    if (!cairn_megatron_path(reading->folders.iteration, &sizes, &second, CAIRN_MEGATRON_MODEL,
                             path))
        return false;
    opened = cairn_torch_source_open(&scratch, path, &source) == CAIRN_OK;
    *is_expert = opened && cairn_pickle_get(cairn_pickle_get(source.torch.root, "model"),
                                            CAIRN_MEGATRON_EMBEDDING) != NULL;
    cairn_torch_source_close(&source);
    for (uint32_t i = 0; i < scratch.container_count; i++)
        free(scratch.containers[i].path);
    free(scratch.containers);
    return opened;
}

static cairn_err
find_sizes(struct reading *reading, const char *first)
{
    struct cairn_parallelism *sizes = &reading->state.sizes;
    uint32_t counts[3], numbers = reading->folders.folders[0].number_count;
    bool expert = false;

    counts_of(&reading->folders, counts);
    *sizes = reading->state.args.sizes;
    if (numbers == 2) {
        if (sizes->pp || sizes->ep)
            expert = sizes->pp <= 1 && sizes->ep > 1;
        else if (!second_is_expert(reading, &expert))
            return refuse(reading, CAIRN_CORRUPT, first,
                          "without args it is not known whether the second number of folders is "
                          "the pipeline's, and the file of the second rank cannot be read");
    }
    if (sizes->tp == 0)
        sizes->tp = counts[0];
    if (sizes->pp == 0)
        sizes->pp = numbers == 3 || (numbers == 2 && !expert) ? counts[1] : 1;
    if (sizes->ep == 0)
        sizes->ep = numbers == 3 ? counts[2] : expert ? counts[1] : 1;
    if (sizes->etp == 0)
        sizes->etp = sizes->tp;
    if (numbers != 1 + (uint32_t)(sizes->pp > 1) + (uint32_t)(sizes->ep > 1))
        return refuse(reading, CAIRN_CORRUPT, first,
                      "its args have another parallelism than the names of the folders");
    if (sizes->tp % sizes->etp != 0)
        return refuse(reading, CAIRN_VERSION, first,
                      "expert tensor parallelism does not divide tensor parallelism, so files of "
                      "experts overwrote one another when they were saved");
    return CAIRN_OK;
}

/* Without args, what an earlier conversion noted. */
static void
take_sizes(const struct cairn_pickle_node *root, struct cairn_parallelism *sizes)
{
    const struct cairn_pickle_node *said = cairn_pickle_get(root, CAIRN_MEGATRON_SIZES);
    const struct {
        const char *key;
        uint32_t *size;
    } all[] = {{"tp", &sizes->tp}, {"pp", &sizes->pp}, {"ep", &sizes->ep}, {"etp", &sizes->etp}};
    uint64_t size;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (*all[i].size == 0 && cairn_pickle_u64(cairn_pickle_get(said, all[i].key), &size) &&
            size <= CAIRN_CONVERT_CONTAINERS_MAX)
            *all[i].size = (uint32_t)size;
}

/* The chunks of a stage: "model", or "model0" and on. */
static uint32_t
count_chunks(const struct cairn_pickle_node *root)
{
    char key[16];
    uint32_t count = 0;

    if (cairn_pickle_get(root, "model"))
        return 1;
    do
        (void)snprintf(key, sizeof(key), "model%" PRIu32, count);
    while (cairn_pickle_get(root, key) && ++count < CAIRN_MEGATRON_CHUNKS_MAX);
    return count;
}

/* ---- files ---- */

static cairn_err
check_files(const struct reading *reading)
{
    const struct cairn_parallelism *sizes = &reading->state.sizes;
    uint64_t experts = (uint64_t)sizes->etp * sizes->ep;
    uint32_t expected = experts > sizes->tp ? (uint32_t)experts : sizes->tp;
    char path[CAIRN_NAME_BYTES_MAX];

    if (experts > CAIRN_CONVERT_CONTAINERS_MAX || sizes->pp > CAIRN_MEGATRON_CHUNKS_MAX)
        return refuse(reading, CAIRN_CORRUPT, reading->folders.iteration,
                      "its args have too many ranks");
    for (uint32_t p = 0; p < sizes->pp; p++)
        for (uint32_t r = 0; r < expected; r++) {
            struct cairn_megatron_rank rank = {r % sizes->tp, p, r / sizes->etp % sizes->ep};

            if (!cairn_megatron_path(reading->folders.iteration, sizes, &rank, CAIRN_MEGATRON_MODEL,
                                     path) ||
                !cairn_place_has_file(&reading->checkpoint->place, path))
                return cairn_refuse(reading->checkpoint, CAIRN_CORRUPT,
                                    "%s is missing (tensor parallel %" PRIu32 ", pipeline %" PRIu32
                                    ", experts %" PRIu32 "); copy it from the node that wrote it",
                                    path, sizes->tp, sizes->pp, sizes->ep);
        }
    return CAIRN_OK;
}

static void
rank_of(const struct reading *reading, uint32_t folder, struct cairn_megatron_rank *rank)
{
    const struct cairn_parallelism *sizes = &reading->state.sizes;
    const uint32_t *numbers = reading->folders.folders[folder].numbers;

    rank->tp = numbers[0];
    rank->pp = sizes->pp > 1 ? numbers[1] : 0;
    rank->ep = sizes->ep > 1 ? numbers[sizes->pp > 1 ? 2 : 1] : 0;
}

/* Opens the first file of each stage, and counts the layers of its chunks. */
static cairn_err
open_stages(struct reading *reading)
{
    struct cairn_megatron_state *state = &reading->state;
    uint32_t pp = state->sizes.pp, next = 0;
    cairn_err err = CAIRN_OK;

    for (uint32_t p = reading->stage_count; p < pp && !err; p++) {
        struct cairn_megatron_rank rank = {.pp = p};

        reading->stage_count = p + 1;
        if (!cairn_megatron_path(reading->folders.iteration, &state->sizes, &rank,
                                 CAIRN_MEGATRON_MODEL, reading->paths[p]))
            return CAIRN_INTERNAL;
        err = cairn_torch_source_open(reading->checkpoint, reading->paths[p], &reading->stages[p]);
    }
    state->vpp = err ? 0 : count_chunks(reading->stages[0].torch.root);
    if (!err && state->vpp == 0)
        err = refuse(reading, CAIRN_CORRUPT, reading->paths[0], "it has no model");
    if (err)
        return err;
    state->first_layer = calloc((size_t)state->vpp * pp + 1, sizeof(*state->first_layer));
    if (!state->first_layer)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < state->vpp * pp; i++) {
        const struct cairn_pickle_node *model = cairn_pickle_pairs(
            cairn_megatron_chunk(state, reading->stages[i % pp].torch.root, i / pp));
        uint32_t layers = 0;

        for (uint32_t k = 0; model && k < model->count; k++) {
            struct cairn_megatron_name name;
            char text[CAIRN_NAME_BYTES_MAX];

            if (cairn_pickle_copy_text(model->items[2 * k], text, sizeof(text)) &&
                cairn_megatron_name_parse(text, &name) && name.has_layer && name.layer >= layers)
                layers = name.layer + 1;
        }
        next += layers;
        state->first_layer[i + 1] = next;
    }
    return CAIRN_OK;
}

static cairn_err
read_folder(struct reading *reading, uint32_t folder)
{
    const struct cairn_parallelism *sizes = &reading->state.sizes;
    struct cairn_megatron_rank rank;
    struct cairn_torch_source own = {0}, *source = &own;
    char path[CAIRN_NAME_BYTES_MAX], optim[CAIRN_NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    rank_of(reading, folder, &rank);
    if (rank.tp >= sizes->tp || rank.pp >= sizes->pp || rank.ep >= sizes->ep ||
        !cairn_megatron_is_file(sizes, rank.tp, rank.ep, sizes->tp * sizes->etp * sizes->ep))
        return refuse(reading, CAIRN_CORRUPT, reading->folders.folders[folder].name,
                      "no rank of the parallelism that args say has this folder; it is of another "
                      "checkpoint");
    if (!cairn_megatron_path(reading->folders.iteration, sizes, &rank, CAIRN_MEGATRON_MODEL,
                             path) ||
        !cairn_megatron_path(reading->folders.iteration, sizes, &rank, CAIRN_MEGATRON_OPTIM, optim))
        return CAIRN_INTERNAL;
    if (rank.tp == 0 && rank.ep == 0)
        source = &reading->stages[rank.pp];
    else
        err = cairn_torch_source_open(reading->checkpoint, path, source);
    if (!err)
        err = cairn_megatron_model_read(reading->checkpoint, &reading->state, source, &rank);
    cairn_torch_source_close(source);
    if (!err && cairn_place_has_file(&reading->checkpoint->place, optim))
        err = cairn_megatron_optim_read(reading->checkpoint, &reading->state, optim, rank.pp);
    return err;
}

/* Opens the first file, and learns from it what the job was. */
static cairn_err
open_first(struct reading *reading)
{
    const struct cairn_pickle_node *root;
    uint64_t version = 3;
    cairn_err err;

    reading->state.keys = open_memstream(&reading->state.key_text, &reading->state.key_bytes);
    reading->stages = calloc(CAIRN_MEGATRON_CHUNKS_MAX, sizeof(*reading->stages));
    reading->paths = calloc(CAIRN_MEGATRON_CHUNKS_MAX, sizeof(*reading->paths));
    if (!reading->state.keys || !reading->stages || !reading->paths)
        return CAIRN_NOMEM;
    (void)snprintf(reading->paths[0], sizeof(reading->paths[0]), "%s%s%s/" CAIRN_MEGATRON_MODEL,
                   reading->folders.iteration, reading->folders.iteration[0] ? "/" : "",
                   reading->folders.folders[0].name);
    reading->stage_count = 1;
    err = cairn_torch_source_open(reading->checkpoint, reading->paths[0], &reading->stages[0]);
    if (err)
        return err;
    root = reading->stages[0].torch.root;
    if (!cairn_pickle_pairs(root))
        return refuse(reading, CAIRN_CORRUPT, reading->paths[0], "it is not a dict");
    cairn_megatron_args_read(cairn_pickle_get(root, "args"), &reading->state.args);
    if (!reading->state.args.known)
        take_sizes(root, &reading->state.args.sizes);
    reading->checkpoint->step_known =
        cairn_pickle_u64(cairn_pickle_get(root, "iteration"), &reading->checkpoint->step);
    if (cairn_pickle_get(root, "checkpoint_version")) {
        const struct cairn_pickle_node *said = cairn_pickle_get(root, "checkpoint_version");

        if (said->kind == CAIRN_PICKLE_FLOAT)
            version = (uint64_t)(said->real >= 2 && said->real < 100 ? said->real : 0);
        else if (!cairn_pickle_u64(said, &version))
            version = 0;
    }
    if (version < 2)
        return refuse(reading, CAIRN_VERSION, reading->paths[0],
                      "checkpoint_version is below 2.0, whose order of query, key and value is not "
                      "read; load and save it with Megatron-LM first");
    return find_sizes(reading, reading->paths[0]);
}

/* Layers that are not split evenly: how, behind the keys. */
static void
note_split(const struct cairn_megatron_state *state)
{
    uint32_t chunks = state->sizes.pp * state->vpp, even = state->first_layer[chunks] / chunks;
    bool uneven = false;

    for (uint32_t i = 0; i < chunks; i++)
        uneven = uneven || state->first_layer[i + 1] - state->first_layer[i] != even;
    if (!uneven)
        return;
    (void)fprintf(state->keys, "S %" PRIu32 " %" PRIu32, state->sizes.pp, state->vpp);
    for (uint32_t i = 0; i < chunks; i++)
        (void)fprintf(state->keys, " %" PRIu32, state->first_layer[i + 1] - state->first_layer[i]);
    (void)fputc('\n', state->keys); /* the caller asks whether all went well */
}

static cairn_err
read_all(struct cairn_checkpoint *checkpoint)
{
    struct reading reading = {.checkpoint = checkpoint};
    cairn_err err =
        cairn_megatron_folders_list(&checkpoint->place, &reading.folders, checkpoint->complaint);

    if (err == CAIRN_NOT_FOUND)
        err = cairn_refuse(checkpoint, CAIRN_CORRUPT,
                           "the iteration that " CAIRN_MEGATRON_LATEST
                           " names has no folder with mp_rank_… in it");
    if (!err)
        err = open_first(&reading);
    if (!err)
        err = check_files(&reading);
    if (!err)
        err = open_stages(&reading);
    for (uint32_t i = 0; i < reading.folders.count && !err; i++)
        err = read_folder(&reading, i);
    if (!err)
        note_split(&reading.state);
    if (!err && (fflush(reading.state.keys) != 0 || ferror(reading.state.keys)))
        err = CAIRN_NOMEM;
    if (!err)
        err = cairn_checkpoint_add_opaque(checkpoint, CAIRN_MEGATRON_KEYS, reading.state.key_text,
                                          reading.state.key_bytes);
    reading.state.sizes.vpp = reading.state.vpp;
    checkpoint->parallelism = reading.state.sizes;
    (void)snprintf(checkpoint->framework, sizeof(checkpoint->framework), "Megatron-LM");
    for (uint32_t i = 0; i < reading.stage_count; i++)
        cairn_torch_source_close(&reading.stages[i]);
    free(reading.stages);
    free(reading.paths);
    cairn_megatron_folders_fini(&reading.folders);
    cairn_megatron_state_fini(&reading.state);
    return err;
}

/* A folder of a rank, or an iteration that cannot be: reading complains. */
static bool
probe(const struct cairn_place *place)
{
    struct cairn_complaint unsaid = {{0}};
    struct cairn_megatron_folders folders;
    cairn_err err = cairn_megatron_folders_list(place, &folders, &unsaid);

    cairn_megatron_folders_fini(&folders);
    return err == CAIRN_OK || err == CAIRN_CORRUPT;
}

const struct cairn_format cairn_format_megatron = {
    .name = "megatron",
    .about = "Megatron-LM's checkpoint (ckpt_format torch): a folder per model-parallel rank",
    .probe = probe,
    .read = read_all,
    .prepare = cairn_megatron_prepare,
    .plan = cairn_megatron_plan,
    .finish = cairn_torch_outputs_finish,
    .release = cairn_torch_outputs_release,
};
