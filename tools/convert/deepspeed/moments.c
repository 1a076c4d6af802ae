/* tools/convert/deepspeed/moments.c - the optimizer's state in a checkpoint of another framework:
 * the keys that all trained parameters have, their masters, and the step. */
#include "tools/convert/deepspeed/make.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/box.h"
#include "tools/convert/state/steps.h"

#define MASTER "fp32."

uint32_t
cairn_deepspeed_make_find(const struct cairn_deepspeed_make *make, const char *name)
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
    return cairn_deepspeed_make_find(make, name);
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

/* Where the source counts parameters and --job names them, its state gets their names: the
 * optimizer counts through all groups. */
cairn_err
cairn_deepspeed_make_names(struct cairn_deepspeed_make *make)
{
    uint32_t count = make->tensor_count;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < count && !err; i++) {
        const struct cairn_tensor *tensor = tensor_at(make, i);
        char name[CAIRN_NAME_BYTES_MAX];
        const char *key;
        uint32_t number;

        if (tensor->kind != CAIRN_OPTIMIZER || !split_numbered(tensor->name, &number, &key))
            continue;
        if (number >= make->member_count)
            return cairn_refuse(make->checkpoint, CAIRN_INVAL,
                                "has %s, and the groups of --job have %" PRIu32
                                " parameters; give those of this optimizer",
                                tensor->name, make->member_count);
        if (!is_counted_alike(&make->job))
            return cairn_refuse(make->checkpoint, CAIRN_INVAL,
                                "has %s, counted through the groups of its optimizer, and those of "
                                "--job are of other sizes; give the same groups in the same order",
                                tensor->name);
        if (snprintf(name, sizeof(name), "%s.%s", key,
                     tensor_at(make, make->members[number])->name) >= (int)sizeof(name) ||
            cairn_deepspeed_make_find(make, name) != UINT32_MAX)
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

/* The keys that the first parameter has state under; each is a vector as the parameter, or one
 * number. */
cairn_err
cairn_deepspeed_make_keys(struct cairn_deepspeed_make *make)
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
    return cairn_refuse(make->checkpoint, CAIRN_CORRUPT,
                        "has no exp_avg.%s, nor any other moment of %s: ZeRO's files are those of "
                        "an optimizer; convert a checkpoint that has its state, or convert the "
                        "weights alone to torch and load them before deepspeed.initialize",
                        parameter->name, parameter->name);
}

cairn_err
cairn_deepspeed_make_moments(struct cairn_deepspeed_make *make, uint32_t member)
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
cairn_err
cairn_deepspeed_make_master(struct cairn_deepspeed_make *make, uint32_t member)
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
        return cairn_refuse(make->checkpoint, CAIRN_CORRUPT,
                            "has no fp32.%s, and %s is %s: ZeRO keeps each parameter in float32 "
                            "too; where the job trained without, convert to universal with --dtype "
                            "F32 first, and that to deepspeed with --dtype %s",
                            parameter->name, parameter->name, cairn_dtype_name(parameter->dtype),
                            cairn_dtype_name(parameter->dtype));
    if (snprintf(name, sizeof(name), MASTER "%s", parameter->name) >= (int)sizeof(name))
        return cairn_refuse(make->checkpoint, CAIRN_CORRUPT, "the name %s is too long",
                            parameter->name);
    return cairn_checkpoint_add_alias_as(make->checkpoint, name, CAIRN_OPTIMIZER,
                                         cairn_checkpoint_past_alias(make->checkpoint, member));
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
cairn_err
cairn_deepspeed_make_step(struct cairn_deepspeed_make *make)
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
    if (known || make->job.step_known)
        return CAIRN_OK;
    return cairn_refuse(
        make->checkpoint, CAIRN_INVAL,
        "the number of trained steps is unknown; give it with --job FILE: {\"global_steps\": N}");
}
