/* tools/convert/megatron_dist/extra.c - see megatron_dist/extra.h. */
#include "tools/convert/megatron_dist/extra.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/megatron/names.h"
#include "tools/convert/megatron/settings.h"
#include "tools/convert/megatron/state.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/pickle/write.h"
#include "tools/convert/state/opaque_tree.h"

#define ENDING CAIRN_MDIST_EXTRA_ENDING
enum { VALUE_BYTES_MAX = 1 << 26 };

bool
cairn_mdist_extra_of(const char *parameter)
{
    const struct cairn_megatron_rule *rule = cairn_megatron_rule_of(parameter);
    const char *last = strrchr(parameter, '.');

    /* Megatron-Core leaves that of the output layer out, for older checkpoints have none */
    return rule && rule->extra_state && strcmp(last, ".weight") == 0 &&
           strcmp(parameter, CAIRN_MEGATRON_OUTPUT) != 0;
}

bool
cairn_mdist_extra_there(const struct cairn_checkpoint *source)
{
    return cairn_layout_tensor_find(source->layout, "args.pickle") != UINT32_MAX ||
           cairn_layout_tensor_find(source->layout, CAIRN_MEGATRON_CONTENT ".pickle") != UINT32_MAX;
}

void
cairn_mdist_extra_claim(struct cairn_dcp_output *dcp, bool *dissolved)
{
    const struct cairn_layout *layout = dcp->source->layout;
    char name[CAIRN_NAME_BYTES_MAX];

    if (cairn_mdist_extra_there(dcp->source))
        return;
    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);
        const char *state = tensor->name + strlen(CAIRN_MEGATRON_EXTRA), *end;

        if (strncmp(tensor->name, CAIRN_MEGATRON_EXTRA, strlen(CAIRN_MEGATRON_EXTRA)) != 0)
            continue;
        end = strstr(state, ENDING);
        if (!end ||
            snprintf(name, sizeof(name), "%.*s.weight", (int)(end - state), state) >=
                (int)sizeof(name) ||
            cairn_layout_tensor_find(layout, name) == UINT32_MAX || !cairn_mdist_extra_of(name))
            continue;
        if (tensor->kind != CAIRN_OPAQUE && strcmp(end, ENDING) == 0)
            dcp->inside[i] = true;
        else if (tensor->kind == CAIRN_OPAQUE && strcmp(end, ENDING ".pickle") == 0)
            dissolved[i] = true;
    }
}

/* What is kept of a module under its name in Megatron-LM's own files; None. */
static cairn_err
find_value(const struct cairn_dcp_output *dcp, const char *state, struct cairn_pickle *tree,
           struct cairn_pickle_node **value)
{
    char name[CAIRN_NAME_BYTES_MAX + sizeof(CAIRN_MEGATRON_EXTRA) + sizeof(".pickle")];
    cairn_err err;

    (void)snprintf(name, sizeof(name), CAIRN_MEGATRON_EXTRA "%s", state);
    if (cairn_layout_tensor_find(dcp->source->layout, name) != UINT32_MAX) {
        *value = cairn_pickle_tensor(tree, name);
        return CAIRN_OK;
    }
    (void)snprintf(name, sizeof(name), CAIRN_MEGATRON_EXTRA "%s.pickle", state);
    err = cairn_opaque_read(dcp->source, name, VALUE_BYTES_MAX, tree, value);
    if (err != CAIRN_NOT_FOUND)
        return err;
    *value = cairn_pickle_none(tree);
    return CAIRN_OK;
}

cairn_err
cairn_mdist_extra_add(struct cairn_dcp_output *dcp, const char *parameter, uint32_t stacked,
                      const uint64_t *extents)
{
    static const struct cairn_state_path no_path;
    char name[CAIRN_NAME_BYTES_MAX], state[CAIRN_NAME_BYTES_MAX];
    struct cairn_pickle_node *value = NULL, *root;
    struct cairn_pickle tree;
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    cairn_err err;

    if (!cairn_mdist_extra_state(parameter, state) ||
        !cairn_mdist_extra_key(parameter, stacked, extents, name))
        return cairn_refuse(dcp->source, CAIRN_INVAL,
                            "the name of %s is too long for the extra state of its module",
                            parameter);
    cairn_pickle_init(&tree, 4 * (uint64_t)VALUE_BYTES_MAX);
    err = find_value(dcp, state, &tree, &value);
    root = err ? NULL : cairn_pickle_sequence(&tree, CAIRN_PICKLE_LIST, &value, 1);
    if (!err)
        err = cairn_pickle_done(&tree);
    if (!err)
        err = cairn_pickle_write(&tree, root, &bytes, &bytes_len, dcp->source->complaint);
    if (!err)
        err = cairn_dcp_output_made(dcp, bytes, bytes_len, name, &no_path);
    cairn_pickle_fini(&tree);
    free(bytes);
    return err;
}
