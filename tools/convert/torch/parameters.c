/*
 * tools/convert/torch/parameters.c - the names of an optimizer's parameters in a file of
 * torch.save.
 *
 * An optimizer of torch knows its parameters by number. Their names are in "param_names" of its
 * groups where it was made with names, or a conversion said them; else, where there is one group,
 * they are those of the model in order, if as many are left without buffers and each moment has the
 * shape of its parameter. Otherwise the numbers stay, and a warning tells.
 *
 * A file that is made says them where a reader could not tell them from the model. PyTorch's own
 * "param_names" in the groups would bind the optimizer that loads them to names from then on; so
 * they lie beside.
 */
#include "tools/convert/torch/parameters.h"

#include <stdlib.h>
#include <string.h>

#include "snapshot/box.h"
#include "tools/convert/core/numbers.h"

enum { OPTIMIZER_PARAMETERS_MAX = 1 << 22 };

static bool
is_running_statistic(const char *name)
{
    const char *dot = strrchr(name, '.');
    const char *last = dot ? dot + 1 : name;

    return strcmp(last, "running_mean") == 0 || strcmp(last, "running_var") == 0;
}

static cairn_err
set_parameter(struct cairn_torch_reading *reading, uint64_t number, const char *name)
{
    if (number >= reading->parameter_count)
        return CAIRN_OK;
    free(reading->parameters[number]);
    reading->parameters[number] = strdup(name);
    return reading->parameters[number] ? CAIRN_OK : CAIRN_NOMEM;
}

/* Names that the optimizer itself kept. */
static cairn_err
take_kept_names(struct cairn_torch_reading *reading, const struct cairn_pickle_node *groups,
                bool *known)
{
    cairn_err err = CAIRN_OK;

    *known = groups->count > 0;
    for (uint32_t g = 0; g < groups->count && !err; g++) {
        const struct cairn_pickle_node *numbers = cairn_pickle_get(groups->items[g], "params");
        const struct cairn_pickle_node *names = cairn_pickle_get(groups->items[g], "param_names");
        char name[CAIRN_STATE_NAME_BYTES_MAX];
        uint64_t number;

        if (!numbers || !cairn_pickle_is_list(names) || names->count != numbers->count) {
            *known = false;
            break;
        }
        for (uint32_t i = 0; i < names->count && !err; i++) {
            *known = *known && cairn_pickle_u64(numbers->items[i], &number) &&
                     cairn_pickle_copy_text(names->items[i], name, sizeof(name));
            if (!*known)
                break;
            cairn_state_unwrap(name);
            err = set_parameter(reading, number, name);
        }
    }
    return err;
}

/* Names that a conversion said (torch/plan.c). They stay in the tree for other formats. */
static cairn_err
take_said_names(struct cairn_torch_reading *reading, bool *known)
{
    char name[CAIRN_STATE_NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    *known = false;
    for (uint32_t i = 0; i < reading->leaves.count; i++) {
        struct cairn_torch_leaf *leaf = &reading->leaves.leaves[i];
        const struct cairn_pickle_node *list = leaf->node;

        if (leaf->groups || leaf->key_count != 2 ||
            strcmp(leaf->keys[0].text, CAIRN_CARRIED_KEY) != 0 ||
            strcmp(leaf->keys[1].text, CAIRN_TORCH_PARAMETERS) != 0 || !list ||
            list->kind != CAIRN_PICKLE_LIST || list->count != reading->parameter_count)
            continue;
        *known = true;
        for (uint32_t n = 0; n < list->count && *known && !err; n++) {
            *known = cairn_pickle_copy_text(list->items[n], name, sizeof(name));
            if (*known)
                err = set_parameter(reading, n, name);
        }
        if (*known)
            leaf->node = NULL; /* done */
        break;
    }
    return err;
}

/* The names of the model's parameters in order, where there are just as many. */
static cairn_err
take_model_names(struct cairn_torch_reading *reading, bool *known)
{
    const struct cairn_layout *layout = reading->checkpoint->layout;
    uint32_t found = 0;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout) && !err; i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);

        if (tensor->kind != CAIRN_PARAM ||
            cairn_checkpoint_past_alias(reading->checkpoint, i) != i ||
            is_running_statistic(tensor->name))
            continue;
        err = set_parameter(reading, found++, tensor->name);
    }
    *known = found == reading->parameter_count;
    return err;
}

/* Whether every moment that is not a scalar has its parameter's shape. */
static bool
shapes_fit(const struct cairn_torch_reading *reading)
{
    const struct cairn_layout *layout = reading->checkpoint->layout;
    struct cairn_state_place place;

    for (uint32_t i = 0; i < reading->leaves.count; i++) {
        struct cairn_state_path path = cairn_torch_leaf_path(&reading->leaves.leaves[i]);
        const struct cairn_torch_tensor *moment;
        const struct cairn_tensor *parameter;
        uint32_t known;
        uint64_t number;

        moment = cairn_torch_source_tensor(&reading->source, reading->leaves.leaves[i].node);
        if (!moment || moment->view.dims == 0 ||
            !cairn_state_classify(&reading->roots, &path, &place) ||
            place.class != CAIRN_STATE_MOMENT)
            continue;
        if (!cairn_number_read(place.parameter, UINT32_MAX, &number) ||
            number >= reading->parameter_count)
            return false;
        known = cairn_layout_tensor_find(layout, reading->parameters[number]);
        if (known == UINT32_MAX)
            return false;
        parameter = cairn_layout_tensor(layout, known);
        if (!cairn_shape_equal(parameter->dims, parameter->shape, moment->view.dims,
                               moment->view.shape))
            return false;
    }
    return true;
}

void
cairn_torch_reading_forget_parameters(struct cairn_torch_reading *reading)
{
    for (uint32_t i = 0; i < reading->parameter_count; i++)
        free(reading->parameters[i]);
    free(reading->parameters);
    reading->parameters = NULL;
    reading->parameter_count = 0;
}

cairn_err
cairn_torch_reading_name_parameters(struct cairn_torch_reading *reading,
                                    const struct cairn_pickle_node *groups)
{
    uint64_t count = 0, number;
    bool known = false, numbered = true;
    cairn_err err;

    for (uint32_t g = 0; g < groups->count; g++) {
        const struct cairn_pickle_node *members = cairn_pickle_get(groups->items[g], "params");

        if (!cairn_pickle_is_list(members))
            return CAIRN_OK;
        count += members->count;
        for (uint32_t i = 0; i < members->count; i++)
            numbered = numbered && cairn_pickle_u64(members->items[i], &number);
    }
    if (!numbered || count == 0 || count > OPTIMIZER_PARAMETERS_MAX)
        return CAIRN_OK; /* they have names, or are none */
    reading->parameters = calloc((size_t)count, sizeof(*reading->parameters));
    if (!reading->parameters)
        return CAIRN_NOMEM;
    reading->parameter_count = (uint32_t)count;
    err = take_kept_names(reading, groups, &known);
    if (!err && !known)
        err = take_said_names(reading, &known);
    if (!err && !known && groups->count == 1)
        err = take_model_names(reading, &known);
    for (uint32_t i = 0; i < count; i++)
        known = known && reading->parameters[i];
    if (!err && known && shapes_fit(reading))
        return CAIRN_OK;
    cairn_torch_reading_forget_parameters(reading);
    return err ? err
               : cairn_checkpoint_warn(reading->checkpoint,
                                       "the optimizer knows its parameters by number, and their "
                                       "names are uncertain%s; its state keeps the numbers",
                                       groups->count > 1 ? ", since it has several groups" : "");
}

/* ---- said by a file that is made ---- */

/* Whether the model's parameters in order are the optimizer's. With ties, or buffers that look like
 * parameters, this says no, and the names are stored without need. */
static bool
is_order_of_model(const struct cairn_torch_building *building)
{
    const struct cairn_layout *layout = building->source->layout;
    uint32_t next = 0;

    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);
        bool integer = tensor->dtype == CAIRN_I64 || tensor->dtype == CAIRN_U8;

        if (tensor->kind == CAIRN_PARAM && building->numbers[i] != ++next)
            return false;
        if (tensor->kind == CAIRN_BUFFER && building->used[i] && !integer)
            return false;
    }
    return next == building->number_count;
}

cairn_err
cairn_torch_building_say(struct cairn_torch_building *building, uint32_t group_count,
                         struct cairn_pickle_node **list)
{
    const struct cairn_layout *layout = building->source->layout;
    struct cairn_pickle *tree = &building->tree;
    const char **names;
    uint32_t known = 0;

    *list = NULL;
    if (building->number_count == 0 || (group_count == 1 && is_order_of_model(building)))
        return CAIRN_OK;
    names = calloc(building->number_count, sizeof(*names));
    if (!names)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++)
        if (building->numbers[i] > 0 && building->numbers[i] <= building->number_count) {
            known += names[building->numbers[i] - 1] == NULL;
            names[building->numbers[i] - 1] = cairn_layout_tensor(layout, i)->name;
        }
    if (known == building->number_count)
        *list = cairn_pickle_list(tree);
    for (uint32_t i = 0; *list && i < known; i++)
        cairn_pickle_append(tree, *list, cairn_pickle_text(tree, names[i]));
    free(names);
    return cairn_pickle_done(tree);
}
