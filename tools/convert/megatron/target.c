/* tools/convert/megatron/target.c - see megatron/target.h. Settles its ranks, layers and optimizer:
 * what the options say, else what the source was. */
#include "tools/convert/megatron/target.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "tools/convert/megatron/plain.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/state/param_groups.h"

uint32_t
cairn_megatron_target_named(const struct cairn_megatron_target *target, const char *name)
{
    const struct cairn_layout *layout = target->checkpoint->layout;
    uint32_t tensor = cairn_layout_tensor_find(layout, name);
    char grouped[CAIRN_NAME_BYTES_MAX];

    if (tensor == UINT32_MAX && cairn_megatron_name_group(name, grouped))
        tensor = cairn_layout_tensor_find(layout, grouped);
    return tensor;
}

uint32_t
cairn_megatron_target_find(const struct cairn_megatron_target *target, const char *name)
{
    return cairn_output_past_alias(target->checkpoint, target->options,
                                   cairn_megatron_target_named(target, name));
}

cairn_err
cairn_megatron_target_carry(struct cairn_megatron_target *target, uint32_t tensor)
{
    bool placed = target->placed[tensor];

    target->placed[tensor] = true;
    return placed ? CAIRN_OK : cairn_output_add_carried(target->output, tensor);
}

cairn_err
cairn_megatron_target_part(struct cairn_megatron_target *target, uint32_t tensor,
                           const struct cairn_megatron_part *part, struct cairn_pickle *tree,
                           struct cairn_pickle_node **node)
{
    char number[16];

    if (!cairn_array_grow(&target->parts, target->part_count, sizeof(*target->parts)) ||
        !cairn_array_grow(&target->part_tensor, target->part_count, sizeof(*target->part_tensor)))
        return CAIRN_NOMEM;
    (void)snprintf(number, sizeof(number), "%" PRIu32, target->part_count);
    target->part_tensor[target->part_count] = tensor;
    target->parts[target->part_count++] = *part;
    target->placed[tensor] = true;
    *node = cairn_pickle_named(tree, "part", number);
    return CAIRN_OK;
}

void
cairn_megatron_target_fini(struct cairn_megatron_target *target)
{
    free(target->common);
    free(target->keys);
    free(target->first_layer);
    free(target->placed);

    free(target->parts);
    free(target->part_tensor);
    memset(target, 0, sizeof(*target));
}

static uint32_t
first_of(uint32_t a, uint32_t b, uint32_t c)
{
    return a ? a : b ? b : c ? c : 1;
}

static cairn_err
find_sizes(struct cairn_megatron_target *target)
{
    const struct cairn_parallelism *wanted = &target->options->parallelism;
    const struct cairn_parallelism *had = &target->checkpoint->parallelism;
    const struct cairn_parallelism *said = &target->args.sizes;
    struct cairn_parallelism *sizes = &target->sizes;
    uint32_t had_tp = first_of(0, had->tp, said->tp);
    uint32_t had_etp = had->etp || said->etp ? first_of(0, had->etp, said->etp) : had_tp;

    sizes->tp = first_of(wanted->tp, had->tp, said->tp);
    sizes->pp = first_of(wanted->pp, had->pp, said->pp);
    sizes->vpp = first_of(wanted->vpp, had->vpp, said->vpp);
    sizes->ep = first_of(wanted->ep, had->ep, said->ep);
    sizes->dp = first_of(wanted->dp, had->dp, said->dp);
    sizes->etp = wanted->etp           ? wanted->etp
                 : had_etp == had_tp   ? sizes->tp
                 : sizes->tp % had_etp ? sizes->tp
                                       : had_etp;
    if (wanted->pp == 1 && wanted->vpp == 0)
        sizes->vpp = 1; /* one stage is not interleaved */
    if (sizes->pp > CAIRN_MEGATRON_CHUNKS_MAX || sizes->vpp > CAIRN_MEGATRON_CHUNKS_MAX ||
        sizes->tp > CAIRN_MEGATRON_CHUNKS_MAX || sizes->ep > CAIRN_MEGATRON_CHUNKS_MAX)
        return cairn_refuse(target->checkpoint, CAIRN_INVAL, "too many ranks; use smaller numbers");
    if (sizes->tp % sizes->etp != 0)
        return cairn_refuse(
            target->checkpoint, CAIRN_INVAL,
            "--etp must divide --tp: files are named by tensor-parallel rank, so those of "
            "experts would overwrite one another");
    if (sizes->vpp > 1 && sizes->pp == 1)
        return cairn_refuse(target->checkpoint, CAIRN_INVAL, "--vpp needs --pp of at least 2");
    target->first_layer = calloc((size_t)sizes->pp * sizes->vpp + 1, sizeof(*target->first_layer));
    return target->first_layer ? CAIRN_OK : CAIRN_NOMEM;
}

static cairn_err
count_layers(struct cairn_megatron_target *target)
{
    for (uint32_t i = 0; i < cairn_layout_tensor_count(target->checkpoint->layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(target->checkpoint->layout, i);
        struct cairn_megatron_name name;

        if (tensor->kind != CAIRN_PARAM || strchr(tensor->name, '/') ||
            !cairn_megatron_name_parse(tensor->name, &name))
            continue;
        if (name.has_layer && name.layer >= target->layer_count)
            target->layer_count = name.layer + 1;
        if (name.has_expert && name.expert >= target->expert_count)
            target->expert_count = name.expert + 1;
    }
    if (target->sizes.ep > 1 &&
        (target->expert_count == 0 || target->expert_count % target->sizes.ep != 0))
        return cairn_refuse(target->checkpoint, CAIRN_INVAL,
                            "%" PRIu32 " experts cannot be split over --ep %" PRIu32,
                            target->expert_count, target->sizes.ep);
    return CAIRN_OK;
}

/* Even chunks; the embedding and the loss count as a layer each if args demand it. */
static cairn_err
split_layers(struct cairn_megatron_target *target)
{
    uint32_t chunks = target->sizes.pp * target->sizes.vpp;
    uint32_t before = target->sizes.pp > 1 && target->args.embedding_counts;
    uint32_t after = target->sizes.pp > 1 && target->args.loss_counts;
    uint32_t all = target->layer_count + before + after;

    if (target->uneven) {
        bool fits = target->first_layer[chunks] == target->layer_count;

        for (uint32_t i = 0; i < chunks; i++)
            fits = fits && target->first_layer[i] <= target->first_layer[i + 1];
        return fits ? CAIRN_OK
                    : cairn_refuse(target->checkpoint, CAIRN_INVAL,
                                   "what it carries of its layers' split is damaged");
    }
    if (all % chunks != 0)
        return cairn_refuse(
            target->checkpoint, CAIRN_INVAL,
            "%" PRIu32 " layers%s cannot be split evenly over --pp %" PRIu32 " with --vpp %" PRIu32,
            all, before || after ? " (the embedding or the loss counted as one)" : "",
            target->sizes.pp, target->sizes.vpp);
    for (uint32_t i = 1; i < chunks; i++)
        target->first_layer[i] = i * (all / chunks) - before;
    target->first_layer[chunks] = target->layer_count;
    return CAIRN_OK;
}

/* ---- the whole ---- */

/* Whether a name is of a non-distributed optimizer's state: it lies in model_optim_rng.pt. */
static bool
is_plain_state(const char *name)
{
    const char *at = strstr(name, CAIRN_MEGATRON_SCOPE "optimizer.");

    return at && (strstr(at, ".state.") || strstr(at, ".fp32_from_fp16_params."));
}

/* Such an optimizer's state has no names, and is written as it was: for the ranks that it is of. */
static cairn_err
check_plain_state(struct cairn_megatron_target *target, const struct cairn_pickle_node *optimizer)
{
    const struct cairn_parallelism *sizes = &target->sizes, *said = &target->args.sizes;
    const struct cairn_pickle_node *inner = cairn_pickle_get(optimizer, "optimizer");
    const struct cairn_pickle_node *states =
        cairn_pickle_pairs(cairn_pickle_get(inner ? inner : optimizer, "state"));
    uint32_t vpp = said->vpp ? said->vpp : 1;
    bool found = false, named = false;

    for (uint32_t i = 0; i < cairn_layout_tensor_count(target->checkpoint->layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(target->checkpoint->layout, i);

        found = found || is_plain_state(tensor->name);
        named = named || (tensor->kind == CAIRN_OPTIMIZER && !strchr(tensor->name, '/'));
    }
    if (found && named) /* of a rank whose state has names, its groups were kept without them */
        return cairn_refuse(
            target->checkpoint, CAIRN_INVAL,
            "its optimizer is not the distributed one, and which state is which parameter's is "
            "known for some of its ranks only; for the weights alone add --drop "
            "'megatron/optimizer*,rank*/megatron/"
            "optimizer*,fp32.*,exp_avg*,max_exp_avg*,step.*,momentum_buffer.*'");
    if (!found && cairn_megatron_plain(optimizer)) {
        target->plain_state = target->has_optim;
        target->omit_optimizer = !target->has_optim || (states && states->count > 0);
        target->has_optim = false;
    }
    if (found && (sizes->tp != said->tp || sizes->pp != said->pp || sizes->ep != said->ep ||
                  sizes->etp != (said->etp ? said->etp : said->tp) || sizes->vpp != vpp))
        return cairn_refuse(target->checkpoint, CAIRN_INVAL,
                            "its optimizer is not the distributed one, and is only written for the "
                            "ranks that it was saved with; for the weights alone add --drop "
                            "'megatron/optimizer*,rank*/megatron/optimizer*'");
    return CAIRN_OK;
}

static cairn_err
load_common(struct cairn_megatron_target *target)
{
    uint32_t tensor = cairn_layout_tensor_find(target->checkpoint->layout, CAIRN_MEGATRON_COMMON);
    struct cairn_pickle tree;
    struct cairn_pickle_node *root = NULL;
    cairn_err err;

    cairn_megatron_args_read(NULL, &target->args);
    if (tensor == UINT32_MAX)
        err = cairn_megatron_join(target);
    else
        err = cairn_checkpoint_load_opaque(target->checkpoint, CAIRN_MEGATRON_COMMON,
                                           CAIRN_CONVERT_METADATA_BYTES_MAX, &target->common,
                                           &target->common_bytes);
    if (err)
        return err;
    if (!target->common) {
        target->has_optim = false;
        return find_sizes(target);
    }
    cairn_pickle_init(&tree, CAIRN_CONVERT_METADATA_BYTES_MAX);
    err = cairn_pickle_read(&tree, CAIRN_MEGATRON_COMMON, target->common, target->common_bytes,
                            &root, target->checkpoint->complaint);
    if (!err)
        cairn_megatron_args_read(cairn_pickle_get(root, "args"), &target->args);
    if (!err && target->step == 0 &&
        !cairn_pickle_u64(cairn_pickle_get(root, "iteration"), &target->step))
        target->step = 0;
    if (!err) /* without the optimizer's groups Megatron-LM loads none of its tensors */
        target->has_optim = target->has_optim && cairn_pickle_get(root, "optimizer") != NULL;
    if (target->joined) /* another optimizer's state has no place in distrib_optim.pt: it is
                         * carried */
        target->has_optim =
            target->has_optim && cairn_megatron_target_find(
                                     target, "exp_avg_sq." CAIRN_MEGATRON_EMBEDDING) != UINT32_MAX;
    if (err)
        err = cairn_refuse(target->checkpoint, CAIRN_INVAL, CAIRN_MEGATRON_COMMON " is damaged");
    if (!err)
        err = find_sizes(target);
    if (!err)
        err = check_plain_state(target, cairn_pickle_get(root, "optimizer"));
    cairn_pickle_fini(&tree);
    return err;
}

/* Without a weight of its own the output layer has the embedding's. */
static void
find_tie(struct cairn_megatron_target *target)
{
    uint32_t output = cairn_megatron_target_find(target, CAIRN_MEGATRON_OUTPUT);

    target->tied = output == UINT32_MAX ||
                   output == cairn_megatron_target_find(target, CAIRN_MEGATRON_EMBEDDING);
    target->has_optim = cairn_layout_tensor_find(target->checkpoint->layout,
                                                 "exp_avg." CAIRN_MEGATRON_EMBEDDING) != UINT32_MAX;
}

cairn_err
cairn_megatron_target_init(struct cairn_megatron_target *target,
                           const struct cairn_checkpoint *checkpoint,
                           const struct cairn_output_options *options, struct cairn_output *output)
{
    cairn_err err;

    memset(target, 0, sizeof(*target));
    target->checkpoint = checkpoint;
    target->options = options;
    target->output = output;
    target->step = checkpoint->step_known ? checkpoint->step : 0;
    target->placed =
        calloc((size_t)cairn_layout_tensor_count(checkpoint->layout) + 1, sizeof(*target->placed));
    err = target->placed ? CAIRN_OK : CAIRN_NOMEM;
    if (!err)
        find_tie(target);
    if (!err)
        err = load_common(target);
    if (target->step > 0)
        (void)snprintf(target->folder, sizeof(target->folder), "iter_%07" PRIu64, target->step);
    else
        (void)snprintf(target->folder, sizeof(target->folder), "release");
    if (!err)
        err = count_layers(target);
    if (!err)
        err = cairn_megatron_target_keys(target);
    return err ? err : split_layers(target);
}
