/*
 * tools/convert/dcp_write.c - lays out a distributed checkpoint that dcp.load of PyTorch reads.
 *
 * There is a file "__<rank>_<number>.distcp" per rank of the target (and a next one where a file
 * would become too large). A tensor is cut along its first dimension as torch.chunk does it;
 * scalars and objects belong to rank 0. Each chunk is an archive of torch.save, whose bytes before
 * the data are known beforehand; those behind it hold the data's checksum and are made again by
 * `finish`.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "tools/convert/dcp_index.h"
#include "tools/convert/dcp_names.h"
#include "tools/convert/param_groups.h"
#include "tools/convert/pickle_read.h"
#include "tools/convert/pickle_write.h"
#include "tools/convert/torch_refs.h"

enum {
    RANKS_MAX = 1 << 16,
    ITEM_ALIGN_BYTES = 64,
    FILE_NAME_BYTES_MAX = 48,
    ITEM_TREE_BYTES_MAX = 1 << 20
};

#define INDEX_BYTES_MAX ((uint64_t)1 << 34)

/* The file of a rank that grows. */
struct rank_file {
    bool open;
    uint32_t number; /* of the next one */
    uint32_t file;
    uint64_t bytes;
    struct cairn_pickle_node *name;
};

/* A chunk whose archive is closed by `finish`. */
struct chunk {
    enum cairn_dtype dtype;
    uint32_t dims;
    uint32_t file;
    uint32_t sum;
    uint64_t begin; /* of the archive, in the file */
    uint64_t extent[CAIRN_DIMS_MAX];
};

/* An object with tensors inside; closed by `finish` as well. */
struct mixed {
    struct cairn_torch_plan plan;
    uint32_t file;
    uint64_t begin;
    uint32_t *sums; /* [plan.storage_count]; UINT32_MAX where a storage is empty */
};

/* What is kept between plan and finish. */
struct state {
    struct chunk *chunks;
    size_t chunk_count, chunk_room;
    struct mixed *mixed;
    uint32_t mixed_count;
    uint8_t *index_bytes;
    size_t index_bytes_len;
};

struct planning {
    const struct cairn_checkpoint *source;
    const struct cairn_output_options *options;
    struct cairn_output *output;
    struct state *state;
    struct cairn_dcp_index index;
    struct cairn_dcp_names names;
    struct rank_file *ranks;
    uint32_t rank_count;
    bool *inside; /* [tensors]: lies in an object with tensors, and has no item of its own */
    struct cairn_complaint *complaint;
};

void
cairn_dcp_release(void *kept)
{
    struct state *state = kept;

    if (!state)
        return;
    for (uint32_t i = 0; i < state->mixed_count; i++) {
        cairn_torch_plan_fini(&state->mixed[i].plan);
        free(state->mixed[i].sums);
    }
    free(state->mixed);
    free(state->chunks);
    free(state->index_bytes);
    free(state);
}

/* ---- bytes around data ---- */

/* Collects what lies before and behind one stretch of an archive. */
struct frame {
    uint64_t hole_begin, hole_end;
    uint8_t *head; /* [hole_begin] */
    uint8_t *tail; /* [bytes - hole_end] */
};

static cairn_err
put_in_frame(void *context, uint64_t at, const void *bytes, size_t bytes_len)
{
    struct frame *frame = context;

    if (at + bytes_len <= frame->hole_begin)
        memcpy(frame->head + at, bytes, bytes_len);
    else if (at >= frame->hole_end)
        memcpy(frame->tail + (at - frame->hole_end), bytes, bytes_len);
    return CAIRN_OK; /* else it is the stretch itself */
}

static cairn_err
make_frame(struct cairn_torch_plan *plan, const struct cairn_zip_planned *hole,
           struct frame *frame)
{
    uint64_t bytes = cairn_torch_plan_bytes(plan);

    *frame = (struct frame){.hole_begin = hole->at, .hole_end = hole->at + hole->bytes};
    frame->head = calloc(1, (size_t)frame->hole_begin + 1);
    frame->tail = calloc(1, (size_t)(bytes - frame->hole_end) + 1);
    if (!frame->head || !frame->tail)
        return CAIRN_NOMEM;
    return cairn_torch_plan_put(plan, put_in_frame, frame);
}

/* The archive of one tensor. */
static cairn_err
plan_chunk(enum cairn_dtype dtype, uint32_t dims, const uint64_t *extent,
           struct cairn_torch_plan *plan)
{
    struct cairn_torch_view view = {.dtype = cairn_torch_dtype_of(dtype), .dims = dims};
    struct cairn_torch_plan_storage storage = {.key = "0", .bytes = cairn_dtype_bytes(dtype)};
    struct cairn_torch_builder builder;
    struct cairn_pickle tree;
    struct cairn_pickle_node *root;
    uint64_t stride = 1;
    cairn_err err;

    for (uint32_t d = dims; d-- > 0;) {
        view.shape[d] = extent[d];
        view.stride[d] = stride;
        stride *= extent[d] > 0 ? extent[d] : 1;
        storage.bytes *= extent[d];
    }
    cairn_pickle_init(&tree, ITEM_TREE_BYTES_MAX);
    cairn_torch_builder_init(&builder, &tree);
    root = cairn_torch_tensor_node(
        &builder, cairn_torch_storage(&builder, view.dtype, "0", storage.bytes), &view);
    err = cairn_pickle_done(&tree);
    if (!err)
        err = cairn_torch_plan_init(plan, "archive", &tree, root, &storage, 1);
    cairn_pickle_fini(&tree);
    return err;
}

/* ---- places ---- */

static uint64_t
align_up(uint64_t at)
{
    return (at + ITEM_ALIGN_BYTES - 1) / ITEM_ALIGN_BYTES * ITEM_ALIGN_BYTES;
}

/* Room for an item in a rank's file. */
static cairn_err
take_place(struct planning *planning, uint32_t rank, uint64_t bytes, struct cairn_dcp_spot *spot,
           uint32_t *file)
{
    struct rank_file *at = &planning->ranks[rank];
    uint64_t limit = planning->options->file_bytes_max;
    char name[FILE_NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    if (at->open && limit > 0 && at->bytes > 0 && align_up(at->bytes) + bytes > limit)
        at->open = false;
    if (!at->open) {
        (void)snprintf(name, sizeof(name), "__%" PRIu32 "_%" PRIu32 ".distcp", rank, at->number);
        err = cairn_output_add_file(planning->output, name, &at->file);
        if (err)
            return err;
        at->name = cairn_dcp_index_file(&planning->index, name);
        at->number++;
        at->bytes = 0;
        at->open = true;
    }
    *spot = (struct cairn_dcp_spot){at->name, align_up(at->bytes), bytes};
    *file = at->file;
    at->bytes = spot->offset_bytes + bytes;
    cairn_output_set_bytes(planning->output, at->file, at->bytes);
    return CAIRN_OK;
}

/* ---- tensors ---- */

static cairn_err
keep_chunk(struct state *state, const struct chunk *chunk)
{
    if (state->chunk_count == state->chunk_room) {
        size_t room = state->chunk_room ? 2 * state->chunk_room : 64;
        struct chunk *grown = realloc(state->chunks, room * sizeof(*grown));

        if (!grown)
            return CAIRN_NOMEM;
        state->chunks = grown;
        state->chunk_room = room;
    }
    state->chunks[state->chunk_count++] = *chunk;
    return CAIRN_OK;
}

static cairn_err
add_chunk(struct planning *planning, uint32_t rank, uint32_t target, const uint64_t *start,
          const uint64_t *extent)
{
    struct cairn_output *output = planning->output;
    struct cairn_tensor tensor = *cairn_layout_tensor(output->layout, target);
    struct chunk chunk = {.dtype = tensor.dtype, .dims = tensor.dims, .sum = UINT32_MAX};
    struct cairn_torch_plan plan = {0};
    struct frame frame = {0};
    struct cairn_zip_planned *data;
    struct cairn_dcp_spot spot;
    cairn_err err;

    memcpy(chunk.extent, extent, tensor.dims * sizeof(*extent));
    err = plan_chunk(tensor.dtype, tensor.dims, extent, &plan);
    if (err)
        return err;
    data = cairn_torch_plan_storage_at(&plan, 0);
    err = take_place(planning, rank, cairn_torch_plan_bytes(&plan), &spot, &chunk.file);
    if (!err)
        err = make_frame(&plan, data, &frame);
    if (!err) {
        err = cairn_output_add_literal(output, chunk.file, spot.offset_bytes, frame.head,
                                       (size_t)frame.hole_begin);
        frame.head = NULL;
    }
    chunk.begin = spot.offset_bytes;
    if (!err && data->bytes > 0)
        err = cairn_output_add_sum(output, chunk.file, CAIRN_SUM_CRC32, chunk.begin + data->at,
                                   data->bytes, data->bytes, &chunk.sum);
    if (!err)
        err = cairn_output_add_box(output, target, chunk.file, start, extent,
                                   chunk.begin + data->at, NULL);
    if (!err)
        err = keep_chunk(planning->state, &chunk);
    if (!err)
        cairn_dcp_index_add_chunk(&planning->index, tensor.dims, start, extent, &spot);
    free(frame.head);
    free(frame.tail);
    cairn_torch_plan_fini(&plan);
    return err;
}

/* Where it goes by name; false complained about. */
static cairn_err
choose_name(struct planning *planning, uint32_t tensor, char text[CAIRN_STATE_NAME_BYTES_MAX],
            char name[CAIRN_STATE_NAME_BYTES_MAX], struct cairn_state_path *path)
{
    if (cairn_dcp_names_choose(&planning->names, planning->source, tensor, text, name, path))
        return CAIRN_OK;
    return cairn_complain(planning->complaint, CAIRN_INVAL,
                          "tensor %s has a name that is too long for a distributed checkpoint",
                          cairn_layout_tensor(planning->source->layout, tensor)->name);
}

static cairn_err
add_tensor(struct planning *planning, uint32_t tensor)
{
    const struct cairn_tensor *known = cairn_layout_tensor(planning->source->layout, tensor);
    enum cairn_dtype dtype = cairn_output_dtype(planning->options, known);
    char text[CAIRN_STATE_NAME_BYTES_MAX], name[CAIRN_STATE_NAME_BYTES_MAX];
    uint64_t start[CAIRN_DIMS_MAX] = {0}, extent[CAIRN_DIMS_MAX], rows = 0, elements = 1;
    struct cairn_state_path path;
    uint32_t target;
    cairn_err err;

    err = choose_name(planning, tensor, text, name, &path);
    if (!err)
        err = cairn_output_add_tensor(planning->output, planning->options, known, &target);
    if (err)
        return err;
    memcpy(extent, known->shape, sizeof(extent));
    for (uint32_t d = 0; d < known->dims; d++)
        elements *= known->shape[d] > 0;
    cairn_dcp_index_add_tensor(&planning->index, name, &path, cairn_torch_dtype_of(dtype),
                               known->dims, known->shape);
    if (known->dims > 0 && elements > 0 && known->kind != CAIRN_OPAQUE)
        rows = (known->shape[0] + planning->rank_count - 1) / planning->rank_count;
    if (rows == 0)
        return add_chunk(planning, 0, target, start, extent);
    for (uint32_t rank = 0; start[0] < known->shape[0] && !err; rank++) {
        extent[0] = known->shape[0] - start[0] < rows ? known->shape[0] - start[0] : rows;
        err = add_chunk(planning, rank, target, start, extent);
        start[0] += extent[0];
    }
    return err;
}

/* ---- objects ---- */

/* An object of which every byte is known. */
static cairn_err
add_literal_object(struct planning *planning, const char *name,
                   const struct cairn_state_path *path, const struct cairn_pickle *tree,
                   const struct cairn_pickle_node *root)
{
    struct cairn_torch_plan plan = {0};
    struct frame frame = {0};
    struct cairn_dcp_spot spot;
    struct cairn_zip_planned end;
    uint32_t file;
    cairn_err err;

    err = cairn_torch_plan_init(&plan, "archive", tree, root, NULL, 0);
    if (err)
        return err;
    end = (struct cairn_zip_planned){.at = cairn_torch_plan_bytes(&plan)};
    err = take_place(planning, 0, end.at, &spot, &file);
    if (!err)
        err = make_frame(&plan, &end, &frame);
    if (!err) {
        err = cairn_output_add_literal(planning->output, file, spot.offset_bytes, frame.head,
                                       (size_t)end.at);
        frame.head = NULL;
    }
    if (!err)
        cairn_dcp_index_add_object(&planning->index, name, path, &spot);
    free(frame.head);
    free(frame.tail);
    cairn_torch_plan_fini(&plan);
    return err;
}

/* Parameter groups, each hyperparameter an object of its own, as get_state_dict has them. */
static cairn_err
add_groups(struct planning *planning, const struct cairn_param_groups *groups)
{
    const struct cairn_dcp_name *kept =
        cairn_dcp_names_find(&planning->names, CAIRN_PARAM_GROUPS_NAME);
    bool flat = kept && strcmp(kept->name, "flat") == 0;
    struct cairn_state_path path = {.count = 1, .keys = {{"optim", false}}};
    char number[16], name[CAIRN_STATE_NAME_BYTES_MAX], key[CAIRN_STATE_NAME_BYTES_MAX];
    char member[CAIRN_STATE_NAME_BYTES_MAX], joined[2 * CAIRN_STATE_NAME_BYTES_MAX + 16];
    uint32_t prefix_count;
    cairn_err err = CAIRN_OK;

    if (kept)
        path = kept->path;
    if (path.count + 3 > CAIRN_STATE_KEYS_MAX)
        return CAIRN_INVAL;
    prefix_count = path.count;
    for (uint32_t g = 0; g < groups->list->count; g++) {
        const struct cairn_pickle_node *dict = groups->list->items[g];
        const struct cairn_pickle_node *members = cairn_param_group_members(groups, g);
        uint32_t member_count = flat && members ? members->count : 1;

        if (flat && !members)
            return CAIRN_INVAL;
        for (uint32_t m = 0; m < member_count; m++) {
            for (uint32_t k = 0; k < dict->count && !err; k++) {
                if (!cairn_pickle_copy_text(dict->items[2 * k], key, sizeof(key)))
                    return CAIRN_INVAL;
                if (cairn_pickle_tensor_name(dict->items[2 * k + 1]) ||
                    (flat && strcmp(key, "params") == 0))
                    continue; /* a tensor has an item of its own */
                path.count = prefix_count;
                if (flat) {
                    if (!cairn_pickle_copy_text(members->items[m], member, sizeof(member)))
                        return CAIRN_INVAL;
                    (void)snprintf(joined, sizeof(joined), "param_groups.%s.%s", member, key);
                    path.keys[path.count++] = (struct cairn_state_key){joined, false};
                } else {
                    (void)snprintf(number, sizeof(number), "%" PRIu32, g);
                    path.keys[path.count++] = (struct cairn_state_key){"param_groups", false};
                    path.keys[path.count++] = (struct cairn_state_key){number, true};
                    path.keys[path.count++] = (struct cairn_state_key){key, false};
                }
                if (!cairn_state_join(&path, name, sizeof(name)))
                    return CAIRN_INVAL;
                err = add_literal_object(planning, name, &path, &groups->pickle,
                                         dict->items[2 * k + 1]);
            }
            if (err)
                return err;
        }
    }
    return CAIRN_OK;
}

/* ---- objects that are opaque state ---- */

/* An object whose pickle is the opaque state itself, copied from the source to where it belongs. */
static cairn_err
add_plain_object(struct planning *planning, uint32_t tensor, const struct cairn_pickle *tree,
                 const struct cairn_pickle_node *root, const uint8_t *bytes, size_t bytes_len,
                 const char *name, const struct cairn_state_path *path)
{
    const struct cairn_tensor *known = cairn_layout_tensor(planning->source->layout, tensor);
    struct cairn_torch_plan plan = {0};
    struct frame frame = {0};
    struct cairn_dcp_spot spot;
    struct cairn_zip_planned pickle;
    uint32_t file, target;
    cairn_err err;

    err = cairn_torch_plan_init(&plan, "archive", tree, root, NULL, 0);
    if (err)
        return err;
    pickle = plan.zip.entries[0];
    if (pickle.bytes != bytes_len || memcmp(plan.pickle_bytes, bytes, bytes_len) != 0) {
        /* Not as it would be written here: the values are the same, the bytes are not. */
        cairn_torch_plan_fini(&plan);
        err = add_literal_object(planning, name, path, tree, root);
        return err ? err : cairn_output_add_carried(planning->output, tensor);
    }
    err = take_place(planning, 0, cairn_torch_plan_bytes(&plan), &spot, &file);
    if (!err)
        err = make_frame(&plan, &pickle, &frame);
    if (!err) {
        err = cairn_output_add_literal(planning->output, file, spot.offset_bytes, frame.head,
                                       (size_t)frame.hole_begin);
        frame.head = NULL;
    }
    if (!err) {
        err = cairn_output_add_literal(planning->output, file,
                                       spot.offset_bytes + frame.hole_end, frame.tail,
                                       (size_t)(spot.bytes - frame.hole_end));
        frame.tail = NULL;
    }
    if (!err)
        err = cairn_output_add_tensor(planning->output, planning->options, known, &target);
    if (!err)
        err = cairn_output_add_box(planning->output, target, file, NULL, NULL,
                                   spot.offset_bytes + frame.hole_begin, NULL);
    if (!err)
        cairn_dcp_index_add_object(&planning->index, name, path, &spot);
    free(frame.head);
    free(frame.tail);
    cairn_torch_plan_fini(&plan);
    return err;
}

/* The boxes and checksums of the tensors within an object. */
static cairn_err
place_storages(struct planning *planning, const struct cairn_torch_refs *refs,
               struct mixed *mixed)
{
    cairn_err err = CAIRN_OK;

    mixed->sums = calloc((size_t)refs->count + 1, sizeof(*mixed->sums));
    if (!mixed->sums)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < refs->count && !err; i++) {
        const struct cairn_tensor *known =
            cairn_layout_tensor(planning->source->layout, refs->tensors[i]);
        const struct cairn_zip_planned *entry = cairn_torch_plan_storage_at(&mixed->plan, i);
        uint32_t target;

        mixed->sums[i] = UINT32_MAX;
        err = cairn_output_add_tensor(planning->output, planning->options, known, &target);
        if (!err)
            err = cairn_output_add_box(planning->output, target, mixed->file, NULL, NULL,
                                       mixed->begin + entry->at, NULL);
        if (!err && entry->bytes > 0)
            err = cairn_output_add_sum(planning->output, mixed->file, CAIRN_SUM_CRC32,
                                       mixed->begin + entry->at, entry->bytes, entry->bytes,
                                       &mixed->sums[i]);
    }
    return err;
}

static cairn_err
add_mixed_object(struct planning *planning, uint32_t tensor, const struct cairn_torch_refs *refs,
                 struct cairn_pickle *tree, const struct cairn_pickle_node *root,
                 const char *name, const struct cairn_state_path *path)
{
    struct state *state = planning->state;
    struct mixed *grown = realloc(state->mixed, (state->mixed_count + 1) * sizeof(*grown));
    struct cairn_torch_builder builder;
    struct mixed *mixed;
    struct cairn_dcp_spot spot;
    cairn_err err;

    if (!grown)
        return CAIRN_NOMEM;
    state->mixed = grown;
    mixed = &grown[state->mixed_count++];
    memset(mixed, 0, sizeof(*mixed));
    cairn_torch_builder_init(&builder, tree);
    err = cairn_torch_refs_plan(planning->source->layout, planning->options, refs, &builder, root,
                                "archive", &mixed->plan);
    if (!err)
        err = take_place(planning, 0, cairn_torch_plan_bytes(&mixed->plan), &spot, &mixed->file);
    if (err)
        return err;
    mixed->begin = spot.offset_bytes;
    err = place_storages(planning, refs, mixed);
    if (!err)
        err = cairn_output_add_carried(planning->output, tensor);
    if (!err)
        cairn_dcp_index_add_object(&planning->index, name, path, &spot);
    return err;
}

static bool
is_pickle_name(const char *name)
{
    size_t bytes = strlen(name);

    return bytes > 7 && strcmp(name + bytes - 7, ".pickle") == 0 && !strchr(name, '/');
}

/* Whether an object may take its tensors into itself: they are named below it, and free. */
static bool
may_hold(const struct planning *planning, const char *name, const struct cairn_torch_refs *refs)
{
    size_t base_bytes = strlen(name) - strlen(".pickle");

    for (uint32_t i = 0; i < refs->count; i++) {
        const char *held = cairn_layout_tensor(planning->source->layout, refs->tensors[i])->name;

        if (planning->inside[refs->tensors[i]] || strncmp(held, name, base_bytes) != 0 ||
            (held[base_bytes] != '.' && held[base_bytes] != '\0'))
            return false;
    }
    return true;
}

/* Opaque state that is a pickle; *done stays false where it is none that torch would read. */
static cairn_err
add_object(struct planning *planning, uint32_t tensor, bool *done)
{
    const struct cairn_tensor *known = cairn_layout_tensor(planning->source->layout, tensor);
    char text[CAIRN_STATE_NAME_BYTES_MAX], name[CAIRN_STATE_NAME_BYTES_MAX];
    struct cairn_torch_refs refs = {0};
    struct cairn_pickle_node *root = NULL;
    struct cairn_param_groups groups = {0};
    struct cairn_state_path path;
    struct cairn_pickle tree;
    uint8_t *bytes = NULL;
    size_t bytes_len = 0, taken_bytes = 0;
    cairn_err err;

    if (!is_pickle_name(known->name) || known->shape[0] > CAIRN_DCP_OBJECT_BYTES_MAX)
        return CAIRN_OK;
    cairn_pickle_init(&tree, CAIRN_DCP_TREE_BYTES_MAX);
    err = cairn_checkpoint_load_opaque(planning->source, known->name, CAIRN_DCP_OBJECT_BYTES_MAX,
                                       &bytes, &bytes_len, planning->complaint);
    if (!err)
        err = choose_name(planning, tensor, text, name, &path);
    if (err)
        goto done;
    if (strcmp(known->name, CAIRN_PARAM_GROUPS_NAME) == 0 &&
        cairn_param_groups_open(bytes, bytes_len, &groups) == CAIRN_OK) {
        err = add_groups(planning, &groups);
        if (!err)
            err = cairn_output_add_carried(planning->output, tensor);
        *done = true;
        cairn_param_groups_close(&groups);
        goto done;
    }
    err = cairn_pickle_read(&tree, known->name, bytes, bytes_len, &root, &taken_bytes);
    if (!err)
        err = cairn_torch_refs_find(planning->source, &tree, root, &refs);
    if (err == CAIRN_CORRUPT || err == CAIRN_NOT_FOUND || err == CAIRN_INVAL) {
        err = CAIRN_OK; /* carried as bytes */
    } else if (!err && refs.count == 0) {
        *done = true;
        err = add_plain_object(planning, tensor, &tree, root, bytes, bytes_len, name, &path);
    } else if (!err && may_hold(planning, known->name, &refs)) {
        *done = true;
        for (uint32_t i = 0; i < refs.count; i++)
            planning->inside[refs.tensors[i]] = true;
        err = add_mixed_object(planning, tensor, &refs, &tree, root, name, &path);
    }
done:
    cairn_torch_refs_fini(&refs);
    cairn_pickle_fini(&tree);
    free(bytes);
    return err;
}

/* ---- the whole ---- */

static uint32_t
rank_count(const struct cairn_checkpoint *source, const struct cairn_output_options *options)
{
    const struct cairn_parallelism *from = &source->parallelism, *to = &options->parallelism;
    uint64_t sizes[] = {to->tp ? to->tp : from->tp, to->pp ? to->pp : from->pp,
                        to->dp ? to->dp : from->dp};
    uint64_t count = 1;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        count *= sizes[i] > 0 && sizes[i] <= RANKS_MAX ? sizes[i] : 1;
    return count <= RANKS_MAX ? (uint32_t)count : RANKS_MAX;
}

static cairn_err
plan_all(struct planning *planning)
{
    const struct cairn_layout *layout = planning->source->layout;
    uint32_t count = cairn_layout_tensor_count(layout);
    cairn_err err = CAIRN_OK;

    /* Objects first: they say which tensors lie in them. */
    for (uint32_t i = 0; i < count && !err; i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);
        bool done = false;

        if (tensor->kind != CAIRN_OPAQUE)
            continue;
        if (strcmp(tensor->name, CAIRN_DCP_NAMES) == 0) {
            err = cairn_output_add_carried(planning->output, i);
            continue;
        }
        err = add_object(planning, i, &done);
        planning->inside[i] = done;
    }
    for (uint32_t i = 0; i < count && !err; i++)
        if (!planning->inside[i] &&
            strcmp(cairn_layout_tensor(layout, i)->name, CAIRN_DCP_NAMES) != 0)
            err = add_tensor(planning, i);
    return err;
}

cairn_err
cairn_dcp_plan(const struct cairn_checkpoint *checkpoint,
               const struct cairn_output_options *options, struct cairn_output *output,
               struct cairn_complaint *complaint)
{
    uint32_t tensor_count = cairn_layout_tensor_count(checkpoint->layout);
    struct planning planning = {.source = checkpoint,
                                .options = options,
                                .output = output,
                                .rank_count = rank_count(checkpoint, options),
                                .complaint = complaint};
    cairn_err err;

    cairn_dcp_index_init(&planning.index, INDEX_BYTES_MAX);
    planning.state = calloc(1, sizeof(*planning.state));
    output->state = planning.state;
    planning.ranks = calloc(planning.rank_count, sizeof(*planning.ranks));
    planning.inside = calloc((size_t)tensor_count + 1, sizeof(*planning.inside));
    err = planning.state && planning.ranks && planning.inside
              ? cairn_dcp_names_load(checkpoint, &planning.names, complaint)
              : CAIRN_NOMEM;
    if (!err)
        err = plan_all(&planning);
    if (!err)
        err = cairn_dcp_index_pack(&planning.index, &planning.state->index_bytes,
                                   &planning.state->index_bytes_len);
    cairn_dcp_names_fini(&planning.names);
    cairn_dcp_index_fini(&planning.index);
    free(planning.ranks);
    free(planning.inside);
    return err ? cairn_complain(complaint, err,
                                "%s cannot be laid out as a distributed checkpoint: %s",
                                checkpoint->place.path, cairn_err_text(err))
               : CAIRN_OK;
}

/* ---- with the checksums ---- */

static cairn_err
finish_chunk(struct cairn_output *output, const struct chunk *chunk)
{
    struct cairn_torch_plan plan = {0};
    struct frame frame = {0};
    struct cairn_zip_planned *data;
    cairn_err err = plan_chunk(chunk->dtype, chunk->dims, chunk->extent, &plan);

    if (err)
        return err;
    data = cairn_torch_plan_storage_at(&plan, 0);
    if (chunk->sum != UINT32_MAX)
        data->crc32 = (uint32_t)output->sums[chunk->sum].values[0];
    err = make_frame(&plan, data, &frame);
    if (!err) {
        err = cairn_output_add_literal(output, chunk->file, chunk->begin + frame.hole_end,
                                       frame.tail,
                                       (size_t)(cairn_torch_plan_bytes(&plan) - frame.hole_end));
        frame.tail = NULL;
    }
    free(frame.head);
    free(frame.tail);
    cairn_torch_plan_fini(&plan);
    return err;
}

struct placed {
    struct cairn_output *output;
    uint32_t file;
    uint64_t begin;
};

static cairn_err
put_literal(void *context, uint64_t at, const void *bytes, size_t bytes_len)
{
    const struct placed *placed = context;
    uint8_t *copy = malloc(bytes_len + 1);

    if (!copy)
        return CAIRN_NOMEM;
    memcpy(copy, bytes, bytes_len);
    return cairn_output_add_literal(placed->output, placed->file, placed->begin + at, copy,
                                    bytes_len);
}

cairn_err
cairn_dcp_finish(const struct cairn_checkpoint *checkpoint, struct cairn_output *output,
                 struct cairn_complaint *complaint)
{
    struct state *state = output->state;
    cairn_err err = CAIRN_OK;

    for (size_t i = 0; i < state->chunk_count && !err; i++)
        err = finish_chunk(output, &state->chunks[i]);
    for (uint32_t i = 0; i < state->mixed_count && !err; i++) {
        struct mixed *mixed = &state->mixed[i];
        struct placed placed = {output, mixed->file, mixed->begin};

        for (uint32_t s = 0; s < mixed->plan.storage_count; s++)
            if (mixed->sums[s] != UINT32_MAX)
                cairn_torch_plan_storage_at(&mixed->plan, s)->crc32 =
                    (uint32_t)output->sums[mixed->sums[s]].values[0];
        err = cairn_torch_plan_put(&mixed->plan, put_literal, &placed);
    }
    if (!err) {
        err = cairn_output_add_small(output, CAIRN_DCP_METADATA, state->index_bytes,
                                     state->index_bytes_len);
        state->index_bytes = NULL;
    }
    return err ? cairn_complain(complaint, err, "%s: the archives around the tensors: %s",
                                checkpoint->place.path, cairn_err_text(err))
               : CAIRN_OK;
}
