/*
 * tools/convert/megatron_dist/common.c - reads common.pt of a checkpoint of Megatron-Core: a dict
 * of what is not an array (arguments, iteration, schedules), each value as opaque state.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/convert/megatron_dist/mdist.h"
#include "tools/convert/megatron/settings.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/state/opaque_tree.h"

static void
note_args(struct cairn_mdist_reading *reading, const struct cairn_pickle_node *root)
{
    struct cairn_checkpoint *checkpoint = reading->checkpoint;

    checkpoint->step_known =
        cairn_pickle_u64(cairn_pickle_get(root, "iteration"), &checkpoint->step);
    cairn_megatron_args_read(cairn_pickle_get(root, "args"), &reading->args);
    checkpoint->parallelism = reading->args.sizes;
}

/* Tensors in it become the layout's, under the path that leads to them. */
static cairn_err
add_tensors(struct cairn_mdist_reading *reading, struct cairn_torch_source *source)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < source->torch.tensor_count && !err; i++) {
        const struct cairn_torch_tensor *tensor = &source->torch.tensors[i];

        if (tensor->node->kind != CAIRN_PICKLE_OBJECT)
            continue; /* held twice, and named already */
        if (strlen(tensor->name) >= CAIRN_NAME_BYTES_MAX)
            return cairn_refuse_file(
                reading->checkpoint, CAIRN_MDIST_COMMON, CAIRN_INVAL,
                "the tensor at %.200s… has a path of more than %d bytes; take it out of "
                "the file",
                tensor->name, CAIRN_NAME_BYTES_MAX - 1);
        if (cairn_layout_tensor_find(reading->checkpoint->layout, tensor->name) != UINT32_MAX)
            return cairn_refuse_file(reading->checkpoint, CAIRN_MDIST_COMMON, CAIRN_CORRUPT,
                                     "duplicate tensor %.200s", tensor->name);
        err =
            cairn_torch_source_add(reading->checkpoint, source, tensor, tensor->name, CAIRN_BUFFER);
    }
    return err;
}

static cairn_err
add_value(struct cairn_mdist_reading *reading, const struct cairn_pickle_node *key,
          struct cairn_pickle_node *value)
{
    char name[CAIRN_NAME_BYTES_MAX];
    size_t key_bytes;

    if (!cairn_pickle_copy_text(key, name, sizeof(name) - sizeof(".pickle")) || strchr(name, '/'))
        return cairn_refuse_file(
            reading->checkpoint, CAIRN_MDIST_COMMON, CAIRN_CORRUPT,
            "has a key that is not a plain text (a %s); it is not of Megatron-Core",
            cairn_pickle_kind_name(key));
    key_bytes = strlen(name);
    if (strcmp(name, "optimizer") == 0)
        reading->optimizer = value;
    else if (strcmp(name, CAIRN_MEGATRON_CONTENT) == 0)
        reading->content = value;
    else {
        memcpy(name + key_bytes, ".pickle", sizeof(".pickle"));
        return cairn_complain_failed(
            reading->checkpoint->complaint,
            cairn_opaque_add(reading->checkpoint, name, &reading->common.torch.tree, value),
            "%s/" CAIRN_MDIST_COMMON ": %.*s cannot be carried", reading->checkpoint->place.path,
            (int)key_bytes, name);
    }
    return CAIRN_OK;
}

static cairn_err
add_values(struct cairn_mdist_reading *reading, const struct cairn_pickle_node *root)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(root);
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; !err && i < pairs->count; i++)
        err = add_value(reading, pairs->items[2 * i], pairs->items[2 * i + 1]);
    return err;
}

/* From Megatron-Core 0.19 on the same dict is an object among the others, in a list of one. */
static cairn_err
read_object(struct cairn_mdist_reading *reading, uint32_t index)
{
    struct cairn_dcp_wants wants = {0};
    struct cairn_dcp_source source = {.fd = -1};
    struct cairn_pickle *tree = &reading->common.torch.tree;
    struct cairn_pickle_node *list = NULL;
    size_t bytes_len = 0;
    cairn_err err;

    cairn_pickle_init(tree, CAIRN_DCP_TREE_BYTES_MAX);
    err = cairn_dcp_want_entry(reading->checkpoint, &reading->metadata, index, &wants);
    if (!err)
        err = cairn_dcp_source_select(reading->checkpoint, &source, &wants.items[0].item,
                                      CAIRN_MDIST_COMMON_KEY);
    if (!err)
        err = cairn_dcp_load_object(&source, &wants.items[0], CAIRN_MDIST_COMMON_KEY,
                                    &reading->common.torch.pickle_bytes, &bytes_len,
                                    reading->checkpoint->complaint);
    if (!err && !reading->common.torch.pickle_bytes)
        err = cairn_refuse(reading->checkpoint, CAIRN_VERSION,
                           "" CAIRN_MDIST_COMMON_KEY
                           " has tensors in it, which are read only from " CAIRN_MDIST_COMMON);
    if (!err)
        err = cairn_pickle_read(tree, CAIRN_MDIST_COMMON_KEY, reading->common.torch.pickle_bytes,
                                bytes_len, &list, reading->checkpoint->complaint);
    if (!err && !cairn_pickle_pairs(cairn_pickle_only(list)))
        err = cairn_refuse(reading->checkpoint, CAIRN_CORRUPT,
                           "" CAIRN_MDIST_COMMON_KEY " holds no list of one dict");
    if (!err) {
        note_args(reading, list->items[0]);
        err = add_values(reading, list->items[0]);
    }
    cairn_dcp_source_close(&source);
    free(wants.items);
    return err;
}

static cairn_err
read_file(struct cairn_mdist_reading *reading)
{
    struct cairn_torch_source *source = &reading->common;
    cairn_err err = cairn_torch_source_open(reading->checkpoint, CAIRN_MDIST_COMMON, source);

    if (!err && !cairn_pickle_pairs(source->torch.root))
        err = cairn_refuse_file(reading->checkpoint, CAIRN_MDIST_COMMON, CAIRN_CORRUPT,
                                "holds no dict, but a %s",
                                cairn_pickle_kind_name(source->torch.root));
    if (!err) {
        note_args(reading, source->torch.root);
        err = add_tensors(reading, source);
    }
    return err ? err : add_values(reading, source->torch.root);
}

cairn_err
cairn_mdist_read_common(struct cairn_mdist_reading *reading)
{
    if (cairn_place_has_file(&reading->checkpoint->place, CAIRN_MDIST_COMMON))
        return read_file(reading);
    for (uint32_t i = 0; i < reading->metadata.entry_count; i++)
        if (!reading->metadata.entries[i].chunks &&
            strcmp(reading->metadata.entries[i].name, CAIRN_MDIST_COMMON_KEY) == 0)
            return read_object(reading, i);
    return cairn_refuse(reading->checkpoint, CAIRN_NOT_FOUND,
                        CAIRN_MDIST_COMMON
                        " is missing: the checkpoint is not whole; take another copy");
}
