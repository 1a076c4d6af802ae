/* tools/convert/megatron/keys.c - which keys a Megatron-LM checkpoint that shall be written has, in
 * which order: as it is carried, or by the table. */
#include "tools/convert/megatron/target.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "tools/convert/core/numbers.h"

static cairn_err
add_key(struct cairn_megatron_target *target, char class, const char *text)
{
    struct cairn_megatron_key *key;

    if (!cairn_array_grow(&target->keys, target->key_count, sizeof(*target->keys)))
        return CAIRN_NOMEM;
    key = &target->keys[target->key_count++];
    key->class = class;
    return cairn_megatron_name_parse(text, &key->name) ? CAIRN_OK : CAIRN_CORRUPT;
}

/* "S <pp> <vpp> <layers of each chunk>…": how layers were split unevenly. */
static cairn_err
take_split(struct cairn_megatron_target *target, const char *text)
{
    uint32_t chunks = target->sizes.pp * target->sizes.vpp;
    uint64_t pp, vpp, layers, next = 0;

    if (!cairn_number_take(&text, UINT32_MAX, &pp) || *text++ != ' ' ||
        !cairn_number_take(&text, UINT32_MAX, &vpp))
        return CAIRN_CORRUPT;
    if (pp != target->sizes.pp || vpp != target->sizes.vpp)
        return CAIRN_OK;
    target->uneven = true;
    for (uint32_t i = 0; i < chunks; i++) {
        target->first_layer[i] = (uint32_t)next;
        if (*text++ != ' ' || !cairn_number_take(&text, target->layer_count - next, &layers))
            return CAIRN_CORRUPT;
        next += layers;
    }
    target->first_layer[chunks] = (uint32_t)next;
    return *text == '\0' ? CAIRN_OK : CAIRN_CORRUPT;
}

static cairn_err
read_keys(struct cairn_megatron_target *target, char *text)
{
    cairn_err err = CAIRN_OK;

    for (char *rest = NULL, *line = strtok_r(text, "\n", &rest); line && !err;
         line = strtok_r(NULL, "\n", &rest)) {
        if (strlen(line) < 3 || !strchr("BLAS", line[0]) || line[1] != ' ')
            err = CAIRN_CORRUPT;
        else if (line[0] == 'S')
            err = take_split(target, line + 2);
        else
            err = add_key(target, line[0], line + 2);
    }
    return err == CAIRN_CORRUPT
               ? cairn_refuse(target->checkpoint, CAIRN_INVAL, CAIRN_MEGATRON_KEYS " is damaged")
               : err;
}

struct found {
    char class;
    uint32_t layer, order;
    bool shared; /* shared experts register after the others */
    const char *name;
};

static int
by_place(const void *left, const void *right)
{
    const struct found *a = left, *b = right;
    const char *classes = "BLA";

    return CAIRN_COMPARE(strchr(classes, a->class), strchr(classes, b->class)) ?:
           CAIRN_COMPARE(a->layer, b->layer) ?: CAIRN_COMPARE(a->shared, b->shared) ?:
           CAIRN_COMPARE(a->order, b->order) ?: strcmp(a->name, b->name);
}

static size_t
module_bytes(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot ? (size_t)(dot - name) : 0;
}

/* After a module's last parameter: what it has as extra state, if its kind has one. */
static cairn_err
add_extra(struct cairn_megatron_target *target, const struct found *found, const char *next)
{
    const struct cairn_megatron_rule *rule = cairn_megatron_rule_of(found->name);
    size_t bytes = module_bytes(found->name);
    char text[CAIRN_NAME_BYTES_MAX];

    if (!rule || !rule->extra_state || bytes + sizeof("._extra_state") > sizeof(text) ||
        (next && module_bytes(next) == bytes && strncmp(next, found->name, bytes) == 0))
        return CAIRN_OK;
    memcpy(text, found->name, bytes);
    memcpy(text + bytes, "._extra_state", sizeof("._extra_state"));
    return add_key(target, found->class, text);
}

/* The key of a parameter, and of the extra state after it. */
static cairn_err
add_found(struct cairn_megatron_target *target, const struct found *found, const char *next,
          bool local)
{
    char plain[CAIRN_NAME_BYTES_MAX];
    cairn_err err;

    if (local && cairn_megatron_norm_rename(found->name, false, plain, sizeof(plain)))
        return add_key(target, found->class, plain);
    err = add_key(target, found->class, found->name);
    return err ? err : add_extra(target, found, next);
}

/* Where a parameter stands in its layer: a norm that is a module of its own, before the layer that
 * its name in a distributed checkpoint speaks of. */
static uint32_t
order_of(const char *name, bool local)
{
    char plain[CAIRN_NAME_BYTES_MAX];

    return cairn_megatron_order_of(
        local && cairn_megatron_norm_rename(name, false, plain, sizeof(plain)) ? plain : name);
}

/* Whether the table tells a parameter's place among all, which the optimizer's buffers follow. */
static bool
is_order_known(const struct found *found)
{
    static const char *const places[] = {"embedding.", "decoder.layers.",
                                         "decoder.final_layernorm.", "output_layer."};
    bool placed = false;

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        placed = placed || strncmp(found->name, places[i], strlen(places[i])) == 0;
    return placed && cairn_megatron_rule_of(found->name) &&
           !strstr(found->name, "cross_attention.");
}

static cairn_err
check_order(const struct cairn_megatron_target *target, const struct found *found, uint32_t count)
{
    if (!target->has_optim && (!target->plain_state || target->omit_optimizer))
        return CAIRN_OK;
    for (uint32_t i = 0; i < count; i++)
        if (!is_order_known(&found[i]))
            return cairn_refuse(
                target->checkpoint, CAIRN_INVAL,
                "the buffers of Megatron-LM's optimizer name no parameters, and where %s is in "
                "their order is not known; write megatron-dist, or leave the optimizer out with "
                "--drop 'fp32.*,exp_avg.*,exp_avg_sq.*'",
                found[i].name);
    return CAIRN_OK;
}

/* Keys of a checkpoint that Megatron-LM did not save. */
static cairn_err
make_keys(struct cairn_megatron_target *target)
{
    const struct cairn_layout *layout = target->checkpoint->layout;
    uint32_t count = cairn_layout_tensor_count(layout), found_count = 0;
    struct found *found = calloc((size_t)count + 1, sizeof(*found));
    bool local = false;
    cairn_err err;

    if (!found)
        return CAIRN_NOMEM;
    err = cairn_megatron_args_spec(target->checkpoint, &local);
    for (uint32_t i = 0; i < count && !err; i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);
        const struct cairn_megatron_rule *rule = cairn_megatron_rule_of(tensor->name);
        struct cairn_megatron_name name;

        if (!(tensor->kind == CAIRN_PARAM ||
              (tensor->kind == CAIRN_BUFFER && rule && rule->buffer)) ||
            strchr(tensor->name, '/') || !cairn_megatron_name_parse(tensor->name, &name) ||
            (name.has_expert && name.expert != 0) ||
            (target->tied && strcmp(tensor->name, CAIRN_MEGATRON_OUTPUT) == 0))
            continue;
        found[found_count++] =
            (struct found){.class = name.has_layer                                 ? 'L'
                                    : strncmp(tensor->name, "embedding.", 10) == 0 ? 'B'
                                                                                   : 'A',
                           .layer = name.layer,
                           .order = order_of(tensor->name, local),
                           .shared = strstr(tensor->name, ".shared_experts.") != NULL,
                           .name = tensor->name};
    }
    qsort(found, found_count, sizeof(*found), by_place);
    if (!err)
        err = check_order(target, found, found_count);
    for (uint32_t i = 0; i < found_count && !err; i++)
        err = add_found(target, &found[i], i + 1 < found_count ? found[i + 1].name : NULL, local);
    free(found);
    if (!err && target->tied)
        err = add_key(target, 'A', "output_layer._extra_state");
    return err;
}

cairn_err
cairn_megatron_target_keys(struct cairn_megatron_target *target)
{
    uint8_t *bytes = NULL; /* ended by a NUL */
    size_t bytes_len = 0;
    uint32_t carried = cairn_layout_tensor_find(target->checkpoint->layout, CAIRN_MEGATRON_KEYS);
    cairn_err err;

    if (cairn_megatron_target_find(target, CAIRN_MEGATRON_EMBEDDING) == UINT32_MAX)
        return cairn_refuse(
            target->checkpoint, CAIRN_INVAL,
            "it has no " CAIRN_MEGATRON_EMBEDDING
            "; map the names of its tensors to Megatron-LM's with a preset or --map");
    if (carried == UINT32_MAX)
        return make_keys(target);
    err = cairn_checkpoint_load_opaque(target->checkpoint, CAIRN_MEGATRON_KEYS,
                                       CAIRN_CONVERT_METADATA_BYTES_MAX, &bytes, &bytes_len);
    if (!err)
        err = cairn_megatron_target_carry(target, carried);
    if (!err)
        err = read_keys(target, (char *)bytes);
    free(bytes);
    return err;
}
