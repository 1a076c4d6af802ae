/*
 * tools/convert/megatron/make.c - what Megatron-LM keeps of an optimizer beside its state, made for
 * a checkpoint of another framework: parameter groups, and the step in them.
 *
 * Megatron-LM groups parameters by what is decayed: vectors and biases are not, all others are. It
 * finds groups by their multipliers, not by their parameters.
 */
#include "tools/convert/megatron/target.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/text.h"
#include "tools/convert/state/job_file.h"
#include "tools/convert/megatron/settings.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/pickle/compare.h"
#include "tools/convert/state/steps.h"
#include "tools/convert/state/opaque_tree.h"

#define MOMENT "exp_avg."
#define MASTER "fp32."

enum { KEY_BYTES = 64 };

enum decay { DECAYED, NOT_DECAYED, DECAYS };

struct make {
    struct cairn_checkpoint *checkpoint;
    const struct cairn_output_options *options;
    struct cairn_job_file job;
    const struct cairn_pickle_node *chosen[DECAYS]; /* of job.groups; NULL: no parameter is so */
    uint64_t step;                                  /* of the optimizer */
};

static bool
has(const struct cairn_checkpoint *checkpoint, const char *name)
{
    return cairn_layout_tensor_find(checkpoint->layout, name) != UINT32_MAX;
}

/* ---- masters ---- */

/* A parameter that was trained in float32 is its own master, unless it is cast: then the master
 * stays as it was, under a name of its own. */
static cairn_err
add_masters(struct make *make)
{
    struct cairn_checkpoint *checkpoint = make->checkpoint;
    uint32_t count = cairn_layout_tensor_count(checkpoint->layout);
    char moment[CAIRN_NAME_BYTES_MAX + sizeof(MOMENT)], master[CAIRN_NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < count && !err; i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, i);

        if (tensor->kind != CAIRN_PARAM || tensor->dtype != CAIRN_F32 ||
            cairn_output_dtype(make->options, tensor) == CAIRN_F32)
            continue;
        (void)snprintf(moment, sizeof(moment), MOMENT "%s", tensor->name);
        if (has(checkpoint, moment) &&
            snprintf(master, sizeof(master), MASTER "%s", tensor->name) < (int)sizeof(master) &&
            !has(checkpoint, master))
            err = cairn_checkpoint_add_alias_as(checkpoint, master, CAIRN_OPTIMIZER, i);
    }
    return err;
}

/* ---- groups ---- */

static enum decay
decay_of(const struct cairn_tensor *parameter)
{
    return parameter->dims <= 1 || cairn_text_ends(parameter->name, ".bias") ? NOT_DECAYED
                                                                             : DECAYED;
}

/* The hyperparameters of a group alone: without what every group has of its own, and the step. */
static struct cairn_pickle_node *
copy_group(struct cairn_pickle *tree, const struct cairn_pickle_node *group)
{
    static const char *const own[] = {"params", "param_names", "step", NULL};
    struct cairn_pickle_node *copy = cairn_pickle_dict(tree);

    cairn_pickle_put_all(tree, copy, group, own);
    for (uint32_t i = 0; copy && i < copy->count; i++) {
        struct cairn_pickle_node **value = &copy->items[2 * i + 1];

        if ((*value)->kind == CAIRN_PICKLE_LIST) /* betas, as JSON has them */
            *value =
                cairn_pickle_sequence(tree, CAIRN_PICKLE_TUPLE, (*value)->items, (*value)->count);
    }
    return copy;
}

/* Whether two groups differ in nothing but their parameters; *key: the first difference. */
static cairn_err
compare_groups(struct cairn_pickle *tree, const struct cairn_pickle_node *left,
               const struct cairn_pickle_node *right, char key[KEY_BYTES], bool *same)
{
    const struct cairn_pickle_node *one = copy_group(tree, left), *other = copy_group(tree, right);
    cairn_err err = cairn_pickle_done(tree);

    return err ? err : cairn_pickle_compare(tree, one, other, true, key, KEY_BYTES, same);
}

static cairn_err
choose(struct make *make, uint32_t group, const struct cairn_pickle_node *member)
{
    const struct cairn_pickle_node *known = make->job.groups->items[group];
    char name[CAIRN_NAME_BYTES_MAX], key[KEY_BYTES];
    uint32_t tensor = UINT32_MAX;
    enum decay decay;
    bool same = true;
    cairn_err err = CAIRN_OK;

    if (!cairn_pickle_copy_text(member, name, sizeof(name)))
        return cairn_refuse(
            make->checkpoint, CAIRN_INVAL,
            "its optimizer's groups have numbers instead of names; give the names with --job FILE");
    tensor = cairn_layout_tensor_find(make->checkpoint->layout, name);
    if (tensor == UINT32_MAX ||
        cairn_layout_tensor(make->checkpoint->layout, tensor)->kind != CAIRN_PARAM)
        return cairn_refuse(make->checkpoint, CAIRN_CORRUPT,
                            "group %" PRIu32 " of the optimizer has %s, which is not a parameter "
                            "of what is written; see --dry-run for its names",
                            group, name);
    decay = decay_of(cairn_layout_tensor(make->checkpoint->layout, tensor));
    if (!make->chosen[decay])
        make->chosen[decay] = known;
    if (make->chosen[decay] != known)
        err = compare_groups(&make->job.tree, make->chosen[decay], known, key, &same);
    if (!err && !same)
        err = cairn_refuse(
            make->checkpoint, CAIRN_INVAL,
            "group %" PRIu32
            " of the optimizer, that of %s, has other hyperparameters (%s) than one before it, and "
            "Megatron-LM has one group of matrices and one of vectors; give these with --job FILE",
            group, name, key);
    return err;
}

static cairn_err
choose_groups(struct make *make)
{
    const struct cairn_pickle_node *groups = make->job.groups;
    cairn_err err = CAIRN_OK;

    for (uint32_t g = 0; g < groups->count && !err; g++) {
        const struct cairn_pickle_node *members = cairn_pickle_get(groups->items[g], "params");

        if (!cairn_pickle_is_list(members))
            return cairn_refuse(make->checkpoint, CAIRN_CORRUPT,
                                "group %" PRIu32 " of the optimizer has no list of parameters", g);
        for (uint32_t i = 0; i < members->count && !err; i++)
            err = choose(make, g, members->items[i]);
    }
    if (!err && !make->chosen[DECAYED])
        err = cairn_refuse(make->checkpoint, CAIRN_INVAL,
                           "the groups of the optimizer have no matrix of the model; give its "
                           "groups with --job FILE");
    for (int decay = 0; decay < DECAYS && !err; decay++)
        if (make->chosen[decay] && !cairn_pickle_get(make->chosen[decay], "lr"))
            err = cairn_refuse(make->checkpoint, CAIRN_INVAL,
                               "unknown lr of the optimizer's %s; give it with --job FILE",
                               decay == DECAYED ? "matrices" : "vectors and biases");
    return err;
}

/* Megatron-LM sets the decay again at each step, so such a source would train on differently. */
static cairn_err
tell_decay(const struct make *make)
{
    const struct cairn_pickle_node *decay =
        make->chosen[NOT_DECAYED] ? cairn_pickle_get(make->chosen[NOT_DECAYED], "weight_decay")
                                  : NULL;

    if (!decay || (decay->kind == CAIRN_PICKLE_FLOAT ? decay->real == 0
                   : decay->kind == CAIRN_PICKLE_INT ? decay->integer == 0
                                                     : false))
        return CAIRN_OK;
    return cairn_checkpoint_warn(make->checkpoint,
                                 "vectors and biases were trained with weight decay; Megatron-LM "
                                 "loads their group, and does not decay them from then on");
}

/* ---- the object ---- */

static void
put(struct cairn_pickle *tree, struct cairn_pickle_node *dict, const char *key,
    struct cairn_pickle_node *value)
{
    if (!cairn_pickle_get(dict, key))
        cairn_pickle_set(tree, dict, key, value);
}

/* A group with what Megatron-LM finds it by, and what the optimizers that it may use look for. */
static struct cairn_pickle_node *
build_group(struct make *make, enum decay decay)
{
    struct cairn_pickle *tree = &make->job.tree;
    struct cairn_pickle_node *group = copy_group(tree, make->chosen[decay]);

    put(tree, group, "bias_correction", cairn_pickle_bool(tree, true));
    put(tree, group, "wd_mult", cairn_pickle_float(tree, decay == DECAYED ? 1.0 : 0.0));
    put(tree, group, "lr_mult", cairn_pickle_float(tree, 1.0));
    put(tree, group, "is_expert_parallel", cairn_pickle_bool(tree, false));
    put(tree, group, "is_decoupled_lr", cairn_pickle_bool(tree, false));
    put(tree, group, "default_config", cairn_pickle_bool(tree, true));
    put(tree, group, "step", cairn_pickle_int(tree, (int64_t)make->step));
    return group;
}

static cairn_err
add_object(struct make *make)
{
    struct cairn_pickle *tree = &make->job.tree;
    struct cairn_pickle_node *root = cairn_pickle_dict(tree), *inner = cairn_pickle_dict(tree);
    struct cairn_pickle_node *groups = cairn_pickle_list(tree);
    struct cairn_pickle_node *settings = cairn_pickle_dict(tree);

    for (int decay = 0; decay < DECAYS; decay++)
        if (make->chosen[decay])
            cairn_pickle_append(tree, groups, build_group(make, (enum decay)decay));
    put(tree, inner, "param_groups", groups);
    put(tree, settings, "optimizer", inner);
    put(tree, root, "checkpoint_version", cairn_pickle_float(tree, 3.0));
    put(tree, root, "iteration", cairn_pickle_int(tree, (int64_t)make->checkpoint->step));
    put(tree, root, "model", cairn_pickle_none(tree)); /* put there later */
    put(tree, root, "optimizer", settings);
    if (make->job.lr_scheduler)
        put(tree, root, "opt_param_scheduler",
            (struct cairn_pickle_node *)(uintptr_t)make->job.lr_scheduler);
    return cairn_opaque_add(make->checkpoint, CAIRN_MEGATRON_COMMON, tree, root);
}

/* The optimizer's step, and the job's where that is not said. */
static cairn_err
find_step(struct make *make)
{
    bool known = false;
    cairn_err err = cairn_steps_common(make->checkpoint, &known, &make->step);

    if (err)
        return err;
    if (!known)
        /* optimizers that count for all parameters at once have the step in their groups */
        known = cairn_steps_read(cairn_pickle_get(make->chosen[DECAYED], "step"), &make->step);
    if (!known && !make->job.step_known)
        return cairn_refuse(make->checkpoint, CAIRN_INVAL,
                            "the number of trained steps is unknown; give it with --job FILE: "
                            "{\"global_steps\": N}");
    if (!known)
        make->step = make->job.step;
    make->checkpoint->step =
        make->job.step_known && make->job.step > 0 ? make->job.step : make->step;
    make->checkpoint->step_known = true;
    return CAIRN_OK;
}

static cairn_err
make_object(struct make *make)
{
    struct cairn_checkpoint *checkpoint = make->checkpoint;
    cairn_err err = cairn_job_file_open(checkpoint, make->options->job, &make->job);

    if (!err)
        err = choose_groups(make);
    if (!err)
        err = find_step(make);
    if (!err)
        err = tell_decay(make);
    if (!err && !make->job.lr_scheduler)
        err = cairn_checkpoint_warn(
            checkpoint,
            "%s: has no opt_param_scheduler, without which Megatron-LM does not load the "
            "optimizer; give its state with --job FILE: {\"lr_scheduler\": {…}}",
            checkpoint->place.path);
    if (!err)
        err = cairn_checkpoint_warn(
            checkpoint, "it has neither Megatron-LM's arguments nor its random states; start the "
                        "job with the arguments that the model needs, and --no-load-rng");
    return err ? err : add_object(make);
}

/* ---- the whole ---- */

cairn_err
cairn_megatron_prepare(struct cairn_checkpoint *checkpoint,
                       const struct cairn_output_options *options)
{
    static const char *const own[] = {CAIRN_MEGATRON_COMMON, "args.pickle", "optimizer.pickle",
                                      CAIRN_MEGATRON_CONTENT ".pickle"};
    struct make make = {.checkpoint = checkpoint, .options = options};
    bool foreign = true;
    cairn_err err;

    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        foreign = foreign && !has(checkpoint, own[i]);
    if (options->job && (!foreign || !has(checkpoint, MOMENT CAIRN_MEGATRON_EMBEDDING)))
        return cairn_complain(checkpoint->complaint, CAIRN_INVAL,
                              foreign
                                  ? "%s: has no state of an optimizer under Megatron-LM's names, "
                                    "so --job has no use; leave it out, or map its names with --map"
                                  : "%s already contains job settings; leave out --job",
                              checkpoint->place.path);
    if (!has(checkpoint, MOMENT CAIRN_MEGATRON_EMBEDDING))
        return CAIRN_OK;
    err = add_masters(&make);
    if (err || !foreign)
        return err;
    if (!options->job && !has(checkpoint, CAIRN_PARAM_GROUPS_NAME))
        return cairn_checkpoint_warn(
            checkpoint,
            "%s: does not say the groups of its optimizer, so Megatron-LM loads the weights alone; "
            "give them with --job FILE: {\"param_groups\": [{\"params\": [names], \"lr\": …}, …]}",
            checkpoint->place.path);
    err = make_object(&make);
    cairn_job_file_fini(&make.job);
    return err;
}
