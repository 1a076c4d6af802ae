/* tools/convert/deepspeed/make.c - what a checkpoint of another framework has of what ZeRO needs:
 * the keys of state that all trained parameters have, their masters, the step, and which tensor is
 * what to the job. */
#include "tools/convert/deepspeed/make.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/box.h"
#include "tools/convert/deepspeed/subgroups.h"
#include "tools/convert/state/steps.h"

#define MASTER "fp32."

/* A tensor by name, of those that were there before masters were added; UINT32_MAX. */
static uint32_t
make_find(const struct cairn_deepspeed_make *make, const char *name)
{
    uint32_t tensor = cairn_layout_tensor_find(make->checkpoint->layout, name);

    return tensor < make->tensor_count ? tensor : UINT32_MAX;
}

static const struct cairn_tensor *
tensor_at(const struct cairn_deepspeed_make *make, uint32_t tensor)
{
    return cairn_layout_tensor(make->checkpoint->layout, tensor);
}

/* "<key>.<parameter>"; UINT32_MAX where there is none. */
static uint32_t
state_of(const struct cairn_deepspeed_make *make, const char *key, const char *parameter)
{
    char name[CAIRN_NAME_BYTES_MAX];

    if (snprintf(name, sizeof(name), "%s.%s", key, parameter) >= (int)sizeof(name))
        return UINT32_MAX;
    return make_find(make, name);
}

static bool
same_shape(const struct cairn_tensor *a, const struct cairn_tensor *b)
{
    return cairn_shape_equal(a->dims, a->shape, b->dims, b->shape);
}

/* The number and key in "<prefix>state.<number>.<key>", as torch.optim counts parameters; false for
 * other names. */
static bool
split_numbered(const char *name, uint32_t *number, const char **key)
{
    const char *state = strncmp(name, "state.", 6) == 0 ? name : strstr(name, ".state.");
    unsigned long value;
    char *end;

    if (!state)
        return false;
    state += *state == '.' ? 7 : 6;
    value = strtoul(state, &end, 10);
    if (*state < '0' || *state > '9' || *end != '.' || value > UINT32_MAX || strchr(end + 1, '.'))
        return false;
    *number = (uint32_t)value;
    *key = end + 1;
    return true;
}

/* Whether the groups that are named are as large as those that the source counts through. */
static bool
is_counted_alike(const struct cairn_job_file *job)
{
    bool alike = !job->own || job->own->count == job->groups->count;

    for (uint32_t g = 0; job->own && alike && g < job->own->count; g++) {
        const struct cairn_pickle_node *counted = cairn_pickle_get(job->own->items[g], "params");
        const struct cairn_pickle_node *named = cairn_pickle_get(job->groups->items[g], "params");

        alike = counted && named && counted->count == named->count;
    }
    return alike;
}

/* Names the source's numbered state as --job says: the optimizer counts through all groups. */
static cairn_err
make_names(struct cairn_deepspeed_make *make)
{
    uint32_t count = make->options->job ? make->tensor_count : 0;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < count && !err; i++) {
        const struct cairn_tensor *tensor = tensor_at(make, i);
        char name[CAIRN_NAME_BYTES_MAX];
        const char *key;
        uint32_t number;

        if (tensor->kind != CAIRN_OPTIMIZER || !split_numbered(tensor->name, &number, &key))
            continue;
        if (number >= make->groups.parameter_count)
            return cairn_refuse(make->checkpoint, CAIRN_INVAL,
                                "has %s, and the groups of --job have %" PRIu32
                                " parameters; give those of this optimizer",
                                tensor->name, make->groups.parameter_count);
        if (!is_counted_alike(&make->job))
            return cairn_refuse(make->checkpoint, CAIRN_INVAL,
                                "has %s, counted through the groups of its optimizer, and those of "
                                "--job are of other sizes; give the same groups in the same order",
                                tensor->name);
        if (snprintf(name, sizeof(name), "%s.%s", key,
                     tensor_at(make, make->members[number])->name) >= (int)sizeof(name) ||
            make_find(make, name) != UINT32_MAX)
            continue; /* then it stays beside */
        err = cairn_checkpoint_add_alias_as(make->checkpoint, name, CAIRN_OPTIMIZER,
                                            cairn_checkpoint_past_alias(make->checkpoint, i));
        make->roles[i] = CAIRN_DEEPSPEED_MOMENT;
    }
    return err;
}

/* The step first, as torch.optim has it, then by name. */
static int
by_key(const void *left, const void *right)
{
    const struct cairn_deepspeed_key *a = left, *b = right;

    if (a->scalar != b->scalar)
        return a->scalar ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* The keys of the first parameter's state; each is a vector like the parameter, or one number. */
static cairn_err
make_keys(struct cairn_deepspeed_make *make)
{
    const struct cairn_tensor *parameter = tensor_at(make, make->members[0]);
    uint32_t key_bytes;

    for (uint32_t i = 0; i < make->tensor_count; i++) {
        const struct cairn_tensor *tensor = tensor_at(make, i);
        struct cairn_deepspeed_key *key = &make->keys[make->key_count];

        if (cairn_checkpoint_parameter_of(make->checkpoint, i, &key_bytes) != make->members[0] ||
            strncmp(tensor->name, MASTER, strlen(MASTER)) == 0)
            continue;
        if (make->key_count == CAIRN_DEEPSPEED_STATE_KEYS_MAX || key_bytes >= sizeof(key->name))
            return cairn_refuse(make->checkpoint, CAIRN_CORRUPT,
                                "%s is one of too many moments of a parameter, or its key is too "
                                "long for DeepSpeed's files",
                                tensor->name);
        memcpy(key->name, tensor->name, key_bytes);
        key->scalar = strcmp(key->name, "step") == 0 || !same_shape(tensor, parameter);
        key->dtype = tensor->dtype;
        if (key->scalar && tensor->dims > 0)
            return cairn_refuse(
                make->checkpoint, CAIRN_CORRUPT,
                "%s has another shape than its parameter: state that is not elementwise cannot be "
                "cut as ZeRO cuts it; leave it out with --drop",
                tensor->name);
        make->has_step = make->has_step || strcmp(key->name, "step") == 0;
        make->key_count++;
    }
    qsort(make->keys, make->key_count, sizeof(*make->keys), by_key);
    for (uint32_t k = 0; k < make->key_count; k++)
        if (!make->keys[k].scalar)
            return CAIRN_OK;
    return cairn_refuse(
        make->checkpoint, CAIRN_CORRUPT,
        "has no exp_avg.%s, nor any other moment of %s, and ZeRO's files are an optimizer's; "
        "convert a checkpoint with its state, or the weights alone to torch",
        parameter->name, parameter->name);
}

/* That a parameter has state under all keys. */
static cairn_err
make_moments(struct cairn_deepspeed_make *make, uint32_t member)
{
    const struct cairn_tensor *parameter = tensor_at(make, member);

    for (uint32_t k = 0; k < make->key_count; k++) {
        const struct cairn_deepspeed_key *key = &make->keys[k];
        uint32_t state = state_of(make, key->name, parameter->name);
        const struct cairn_tensor *found;

        if (state == UINT32_MAX)
            return cairn_refuse(make->checkpoint, CAIRN_CORRUPT,
                                "has no %s.%s, and other parameters of the optimizer have their "
                                "%s; a parameter that is not trained is left out of the groups "
                                "with --job FILE, and %s of all parameters with --drop '%s.*'",
                                key->name, parameter->name, key->name, key->name, key->name);
        found = tensor_at(make, state);
        if (found->dtype != key->dtype ||
            (key->scalar ? found->dims > 0 : !same_shape(found, parameter)))
            return cairn_refuse(make->checkpoint, CAIRN_CORRUPT,
                                "%s has another shape than its parameter, or another type than "
                                "other parameters' %s",
                                found->name, key->name);
        make->roles[state] = CAIRN_DEEPSPEED_MOMENT;
    }
    return CAIRN_OK;
}

/* The parameter's master weights; the parameter itself where it was trained in float32. */
static cairn_err
make_master(struct cairn_deepspeed_make *make, uint32_t member)
{
    const struct cairn_tensor *parameter = tensor_at(make, member);
    uint32_t master = state_of(make, "fp32", parameter->name);
    char name[CAIRN_NAME_BYTES_MAX];

    if (master != UINT32_MAX) {
        if (tensor_at(make, master)->dtype != CAIRN_F32 ||
            !same_shape(tensor_at(make, master), parameter))
            return cairn_refuse(make->checkpoint, CAIRN_CORRUPT,
                                "%s has another type than F32, or another shape than its parameter",
                                tensor_at(make, master)->name);
        make->roles[master] = CAIRN_DEEPSPEED_MOMENT;
        return CAIRN_OK;
    }
    if (parameter->dtype != CAIRN_F32)
        return cairn_refuse(
            make->checkpoint, CAIRN_CORRUPT,
            "has no fp32.%s, and %s is %s: ZeRO keeps each parameter in float32 too; convert to "
            "universal with --dtype F32 first, and that to deepspeed with --dtype %s",
            parameter->name, parameter->name, cairn_dtype_name(parameter->dtype),
            cairn_dtype_name(parameter->dtype));
    if (snprintf(name, sizeof(name), MASTER "%s", parameter->name) >= (int)sizeof(name))
        return cairn_refuse(make->checkpoint, CAIRN_CORRUPT, "the name %s is too long",
                            parameter->name);
    return cairn_checkpoint_add_alias_as(make->checkpoint, name, CAIRN_OPTIMIZER,
                                         cairn_checkpoint_past_alias(make->checkpoint, member));
}

static cairn_err
make_members(struct cairn_deepspeed_make *make)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < make->groups.parameter_count && !err; i++) {
        err = make_moments(make, make->members[i]);
        if (!err)
            err = make_master(make, make->members[i]);
    }
    return err;
}

/* ---- the step ---- */

/* The step that the groups have, as optimizers that count for all parameters at once. */
static bool
read_group_step(const struct cairn_deepspeed_make *make, uint64_t *step)
{
    const struct cairn_pickle_node *groups = make->job.own ? make->job.own : make->job.groups;
    bool known = groups->count > 0;
    uint64_t found;

    for (uint32_t g = 0; g < groups->count && known; g++) {
        known = cairn_steps_read(cairn_pickle_get(groups->items[g], "step"), &found) &&
                (g == 0 || found == *step);
        *step = found;
    }
    return known;
}

/* Steps of the job: as the job file has them, or else those of the optimizer. Those of the
 * optimizer: its own, or else the job's. */
static cairn_err
make_step(struct cairn_deepspeed_make *make)
{
    uint32_t step = state_of(make, "step", tensor_at(make, make->members[0])->name);
    bool known = step != UINT32_MAX && cairn_steps_load(make->checkpoint, step, &make->step);
    cairn_err err = CAIRN_OK;

    if (!make->has_step)
        err = cairn_steps_common(make->checkpoint, &known, &make->step);
    if (err)
        return err;
    if (!known)
        known = read_group_step(make, &make->step);
    if (known && (!make->job.step_known || make->job.step == 0))
        make->job.step = make->step;
    if (!known)
        make->step = make->job.step;
    make->checkpoint->step = make->job.step;
    make->checkpoint->step_known = known || make->job.step_known;
    if (make->checkpoint->step_known)
        return CAIRN_OK;
    return cairn_refuse(
        make->checkpoint, CAIRN_INVAL,
        "the number of trained steps is unknown; give it with --job FILE: {\"global_steps\": N}");
}

static bool
is_floating(enum cairn_dtype dtype)
{
    return dtype == CAIRN_F64 || dtype == CAIRN_F32 || dtype == CAIRN_F16 || dtype == CAIRN_BF16;
}

/* ---- the groups ---- */

static cairn_err
add_member(struct cairn_deepspeed_make *make, uint32_t group, const struct cairn_pickle_node *node)
{
    struct cairn_deepspeed_parameter *parameter =
        &make->groups.parameters[make->groups.parameter_count];
    const struct cairn_tensor *known;
    char name[CAIRN_NAME_BYTES_MAX];
    uint32_t tensor;

    if (!cairn_pickle_copy_text(node, name, sizeof(name)))
        return cairn_refuse(
            make->checkpoint, CAIRN_INVAL,
            "its optimizer's groups have numbers instead of names; give the names with --job FILE");
    tensor = make_find(make, name);
    if (tensor == UINT32_MAX || tensor_at(make, tensor)->kind != CAIRN_PARAM ||
        !is_floating(tensor_at(make, tensor)->dtype))
        return cairn_refuse(make->checkpoint, CAIRN_CORRUPT,
                            "group %" PRIu32 " of the optimizer has %s, which is not a parameter "
                            "of the checkpoint; see cairn inspect for its names",
                            group, name);
    if (make->roles[tensor] == CAIRN_DEEPSPEED_TRAINED)
        return cairn_refuse(make->checkpoint, CAIRN_CORRUPT,
                            "the groups of the optimizer have the duplicate %s", name);
    make->roles[tensor] = CAIRN_DEEPSPEED_TRAINED;
    make->members[make->groups.parameter_count++] = tensor;
    known = tensor_at(make, tensor);
    parameter->name = strdup(name);
    parameter->path = strdup(name);
    parameter->dims = known->dims;
    memcpy(parameter->shape, known->shape, sizeof(parameter->shape));
    parameter->elements = cairn_shape_elements(known->dims, known->shape);
    return parameter->name && parameter->path ? CAIRN_OK : CAIRN_NOMEM;
}

static cairn_err
open_job(struct cairn_deepspeed_make *make)
{
    return cairn_job_file_open(make->checkpoint, make->options->job, &make->job);
}

static cairn_err
read_groups(struct cairn_deepspeed_make *make)
{
    const struct cairn_pickle_node *groups = make->job.groups;
    uint64_t size = make->stage == 3 ? CAIRN_DEEPSPEED_SUB_GROUP_ELEMENTS : UINT64_MAX;
    struct cairn_deepspeed_splits splits;
    cairn_err err = cairn_deepspeed_splits_init(&splits, make->tensor_count);

    make->members = calloc((size_t)make->tensor_count + 1, sizeof(*make->members));
    make->groups.parameters =
        calloc((size_t)make->tensor_count + 1, sizeof(*make->groups.parameters));
    if (!make->members || !make->groups.parameters)
        err = CAIRN_NOMEM;
    for (uint32_t g = 0; g < groups->count && !err; g++) {
        const struct cairn_pickle_node *names = cairn_pickle_get(groups->items[g], "params");
        uint32_t first = make->groups.parameter_count;

        if (!cairn_pickle_is_list(names) || names->count == 0)
            err = cairn_refuse(
                make->checkpoint, CAIRN_CORRUPT,
                "group %" PRIu32
                " of the optimizer has no parameters; leave it out of the groups with --job FILE",
                g);
        else if (!cairn_pickle_get(groups->items[g], "lr"))
            err = cairn_refuse(
                make->checkpoint, CAIRN_INVAL,
                "unknown lr of group %" PRIu32
                " of the optimizer; give it and its other hyperparameters with --job FILE",
                g);
        for (uint32_t i = 0; !err && i < names->count; i++)
            err = add_member(make, g, names->items[i]);
        if (!err)
            cairn_deepspeed_splits_add(&splits, make->groups.parameters, first,
                                       make->groups.parameter_count, g, size, make->ranks);
    }
    make->groups.groups = splits.groups;
    make->groups.group_count = splits.count;
    make->setting_of = splits.setting_of;
    return err;
}

/* ---- the rest ---- */

/* All arrays by tensor have room for those that were added. */
static cairn_err
count_added(struct cairn_deepspeed_make *make)
{
    uint32_t count = cairn_layout_tensor_count(make->checkpoint->layout);
    uint8_t *grown = realloc(make->roles, (size_t)count + 1);

    if (!grown)
        return CAIRN_NOMEM;
    make->roles = grown;
    memset(grown + make->tensor_count, CAIRN_DEEPSPEED_BESIDE, count - make->tensor_count);
    make->tensor_count = count;
    make->order = cairn_checkpoint_sorted(make->checkpoint->layout);
    return make->order ? CAIRN_OK : CAIRN_NOMEM;
}

/* Whether a tensor came with an object, below whose name it then has its own: state of a random
 * generator. */
static bool
is_of_object(const struct cairn_deepspeed_make *make, const char *name)
{
    char object[CAIRN_NAME_BYTES_MAX + 8];

    for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.')) {
        (void)snprintf(object, sizeof(object), "%.*s.pickle", (int)(dot - name), name);
        if (make_find(make, object) != UINT32_MAX)
            return true;
    }
    return strchr(name, '/') != NULL; /* of a scope */
}

static enum cairn_deepspeed_role
role_of(const struct cairn_deepspeed_make *make, uint32_t tensor)
{
    const struct cairn_tensor *known = tensor_at(make, tensor);
    bool parameter = known->kind == CAIRN_PARAM && is_floating(known->dtype);

    if (make->roles[tensor] != CAIRN_DEEPSPEED_BESIDE)
        return make->roles[tensor];
    if ((known->kind != CAIRN_PARAM && known->kind != CAIRN_BUFFER) ||
        is_of_object(make, known->name))
        return CAIRN_DEEPSPEED_BESIDE;
    if (cairn_job_file_lists(make->job.buffers, known->name))
        return CAIRN_DEEPSPEED_BUFFER;
    if (parameter && (cairn_checkpoint_past_alias(make->checkpoint, tensor) != tensor ||
                      cairn_pickle_get(make->job.shared, known->name)))
        return CAIRN_DEEPSPEED_SHARED;
    if (parameter)
        return CAIRN_DEEPSPEED_FROZEN;
    return make->job.buffers ? CAIRN_DEEPSPEED_BESIDE : CAIRN_DEEPSPEED_BUFFER;
}

static cairn_err
tell_roles(struct cairn_deepspeed_make *make)
{
    for (uint32_t i = 0; i < make->tensor_count; i++) {
        const struct cairn_tensor *tensor = tensor_at(make, i);

        make->roles[i] = (uint8_t)role_of(make, i);
        if (make->roles[i] == CAIRN_DEEPSPEED_FROZEN && make->stage == 3 &&
            !cairn_job_file_lists(make->job.frozen, tensor->name))
            return cairn_refuse(
                make->checkpoint, CAIRN_INVAL,
                "%s is not trained; say with --job FILE whether it is a buffer: {\"frozen\": "
                "[names], \"buffers\": [names], \"shared\": {name: first name}}",
                tensor->name);
    }
    return CAIRN_OK;
}

/* A tied parameter's first name is of one that is saved: else the files could not be read again. */
static cairn_err
check_shared(struct cairn_deepspeed_make *make)
{
    const struct cairn_pickle_node *shared = make->job.shared;

    for (uint32_t i = 0; shared && i < shared->count; i++) {
        char name[CAIRN_NAME_BYTES_MAX] = "", of[CAIRN_NAME_BYTES_MAX] = "";
        uint32_t tensor = UINT32_MAX;

        if (cairn_pickle_copy_text(shared->items[2 * i], name, sizeof(name)) &&
            cairn_pickle_copy_text(shared->items[2 * i + 1], of, sizeof(of)))
            tensor = make_find(make, of);
        if (tensor == UINT32_MAX || (make->roles[tensor] != CAIRN_DEEPSPEED_TRAINED &&
                                     make->roles[tensor] != CAIRN_DEEPSPEED_FROZEN))
            return cairn_refuse(
                make->checkpoint, CAIRN_INVAL,
                "--job says that \"%s\" is tied to \"%s\", which is not a parameter under a name "
                "of its own; see cairn inspect for its names",
                name, of);
    }
    return CAIRN_OK;
}

/* What users should know before DeepSpeed, which compares no names, loads it. */
static cairn_err
tell_order(struct cairn_deepspeed_make *make)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t g = 0; g < make->groups.group_count && !err; g++) {
        const struct cairn_deepspeed_group *group = &make->groups.groups[g];
        const struct cairn_deepspeed_parameter *first = &make->groups.parameters[group->first];

        err = cairn_checkpoint_warn(
            make->checkpoint,
            "group %" PRIu32 " of DeepSpeed's optimizer will have %" PRIu32
            " parameters, from %s to %s; DeepSpeed compares no names; the job must have them in "
            "this order",
            make->setting_of[g], group->count, first->name, first[group->count - 1].name);
    }
    return err;
}

static cairn_err
check_request(struct cairn_deepspeed_make *make)
{
    const struct cairn_parallelism *wanted = &make->options->parallelism;

    if (make->options->zero == 0)
        return cairn_refuse(make->checkpoint, CAIRN_INVAL,
                            "did not come from DeepSpeed; give with --zero the optimizer that "
                            "will load it: 1, 2 or 3, or bf16 for BF16_Optimizer");
    if (wanted->pp > 1 || wanted->ep > 1)
        return cairn_complain(make->checkpoint->complaint, CAIRN_INVAL,
                              "DeepSpeed's files are made for data and tensor parallelism only; "
                              "leave out --pp and --ep");
    make->bf16_optimizer = make->options->zero == CAIRN_ZERO_BF16;
    make->stage = make->bf16_optimizer ? 1 : (uint32_t)make->options->zero;
    make->ranks = wanted->dp ? wanted->dp : make->checkpoint->parallelism.dp;
    if (make->ranks == 0)
        make->ranks = 1;
    make->tensor_count = cairn_layout_tensor_count(make->checkpoint->layout);
    make->roles = calloc((size_t)make->tensor_count + 1, sizeof(*make->roles));
    return make->roles ? CAIRN_OK : CAIRN_NOMEM;
}

/* Objects of single ranks and parts would be taken for parts of what is made here. */
static cairn_err
check_left(const struct cairn_checkpoint *checkpoint)
{
    for (uint32_t i = 0; i < cairn_layout_tensor_count(checkpoint->layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, i);

        if (tensor->kind == CAIRN_OPAQUE && cairn_deepspeed_is_own(tensor->name))
            return cairn_refuse(checkpoint, CAIRN_INVAL,
                                "%s belongs to files of DeepSpeed's own that are not written; "
                                "leave it out too, with --drop '%s" CAIRN_DEEPSPEED_SCOPE "*'",
                                tensor->name,
                                strncmp(tensor->name, "part", 4) == 0   ? "part*/"
                                : strncmp(tensor->name, "rank", 4) == 0 ? "rank*/"
                                                                        : "");
    }
    return CAIRN_OK;
}

/* Experts have files and groups of their own, which nothing here describes. */
static cairn_err
check_experts(struct cairn_deepspeed_make *make)
{
    for (uint32_t i = 0; i < make->tensor_count; i++) {
        const struct cairn_tensor *tensor = tensor_at(make, i);
        struct cairn_deepspeed_expert expert;

        if (tensor->kind == CAIRN_PARAM && cairn_deepspeed_expert_in(tensor->name, &expert))
            return cairn_refuse(
                make->checkpoint, CAIRN_VERSION,
                "%s is of an expert of DeepSpeed's MoE layers, whose files need what DeepSpeed "
                "itself stored; convert without dropping deepspeed/*",
                tensor->name);
    }
    return CAIRN_OK;
}

/* Where ZeRO 3 begins a new buffer, ranks have unknown parts of parameters. */
static cairn_err
check_slabs(struct cairn_deepspeed_make *make)
{
    uint32_t wanted = make->options->parallelism.tp;
    uint32_t ranks = wanted           ? wanted /* as cairn_deepspeed_tensor_plan has it */
                     : make->job.cuts ? make->checkpoint->parallelism.tp
                                      : 1;

    if (ranks <= 1 || make->groups.group_count == make->job.groups->count)
        return CAIRN_OK;
    return cairn_refuse(make->checkpoint, CAIRN_INVAL,
                        "has a group of more than %" PRIu64
                        " elements per rank, which ZeRO 3 splits, and that is not written with "
                        "--tp; use a larger --dp, or --zero 1 or 2",
                        CAIRN_DEEPSPEED_SUB_GROUP_ELEMENTS);
}

cairn_err
cairn_deepspeed_prepare(struct cairn_checkpoint *checkpoint,
                        const struct cairn_output_options *options)
{
    static cairn_err (*const steps[])(struct cairn_deepspeed_make *
                                      make) = {check_request,
                                               check_experts,
                                               open_job,
                                               read_groups,
                                               check_slabs,
                                               make_names,
                                               count_added,
                                               make_keys,
                                               make_members,
                                               make_step,
                                               tell_roles,
                                               check_shared,
                                               cairn_deepspeed_make_objects,
                                               tell_order};
    struct cairn_deepspeed_make make = {.checkpoint = checkpoint, .options = options};
    cairn_err err;

    if (cairn_layout_tensor_find(checkpoint->layout, CAIRN_DEEPSPEED_MODEL) != UINT32_MAX) {
        if (options->zero == 0 && !options->job)
            return CAIRN_OK;
        return cairn_refuse(
            checkpoint, CAIRN_INVAL,
            "came from DeepSpeed and keeps the stage and groups that it had; leave out --zero and "
            "--job, or drop what DeepSpeed stored: --drop '*deepspeed/*'");
    }
    err = check_left(checkpoint);
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && !err; i++)
        err = steps[i](&make);
    cairn_job_file_fini(&make.job);
    free(make.roles);
    free(make.order);
    free(make.members);
    free(make.setting_of);
    cairn_deepspeed_groups_fini(&make.groups);
    return err;
}
