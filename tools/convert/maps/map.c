/*
 * tools/convert/maps/map.c - see maps/map.h. Finds the direction, then takes the source's tensors
 * one after the other.
 *
 * Aliases come last: what they are an alias of exists by then, so they can stay aliases.
 */
#include "tools/convert/maps/map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/maps/stage.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/state/reserved.h"

enum { LIST_BYTES_MAX = 400, UNKNOWN_SHOWN_MAX = 5 };

/* ---- names of the source ---- */

/* Splits "exp_avg.layers.0.weight" of the optimizer's state; a parameter has no key. */
static const char *
split_name(const struct cairn_tensor *tensor, char key[CAIRN_NAME_BYTES_MAX])
{
    const char *dot = tensor->kind == CAIRN_OPTIMIZER ? strchr(tensor->name, '.') : NULL;

    key[0] = '\0';
    if (!dot)
        return tensor->name;
    memcpy(key, tensor->name, (size_t)(dot - tensor->name));
    key[dot - tensor->name] = '\0';
    return dot + 1;
}

static bool
matches(const struct cairn_map *map, uint32_t side, const struct cairn_map_name *pattern,
        const char *name, uint64_t *captures)
{
    char whole[2 * CAIRN_NAME_BYTES_MAX];

    if (cairn_map_name_match(pattern, name, captures))
        return true;
    if (!map->prefixes[side][0])
        return false;
    (void)snprintf(whole, sizeof(whole), "%s%s", map->prefixes[side], name);
    return cairn_map_name_match(pattern, whole, captures);
}

/* ---- direction ---- */

static bool
knows(const struct cairn_map *map, uint32_t side, const char *name)
{
    uint64_t captures[CAIRN_MAP_SYMBOLS_MAX];

    for (uint32_t r = 0; r < map->rule_count; r++)
        for (uint32_t i = 0; i < map->rules[r].sides[side].count; i++)
            if (matches(map, side, &map->rules[r].sides[side].tensors[i].name, name, captures))
                return true;
    return false;
}

/* The side that knows more of the tensors' names. */
static cairn_err
find_side(struct cairn_map_stage *stage)
{
    char key[CAIRN_NAME_BYTES_MAX];
    const char *example = "none";
    uint64_t known[2] = {0, 0};

    for (uint32_t t = 0; t < cairn_layout_tensor_count(stage->from); t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(stage->from, t);

        if (tensor->kind == CAIRN_OPAQUE)
            continue;
        example = tensor->name;
        for (uint32_t s = 0; s < 2; s++)
            known[s] += knows(stage->map, s, split_name(tensor, key));
    }
    stage->side = known[1] > known[0];
    if (known[0] == known[1])
        return cairn_refuse(stage->checkpoint, CAIRN_INVAL,
                            "the map knows %s of its tensors by the names of %s and by those of %s "
                            "(one is called %s); check that it is the right map",
                            known[0] ? "as many" : "none", stage->map->sides[0],
                            stage->map->sides[1], example);
    (void)strcpy(stage->report->from, stage->map->sides[stage->side]);
    (void)strcpy(stage->report->to, stage->map->sides[1 - stage->side]);
    return CAIRN_OK;
}

/* ---- tensor by tensor ---- */

/* Whether a rule may be used for what these captures name. */
static bool
holds(const struct cairn_map_stage *stage, const struct cairn_map_rule *rule,
      const uint64_t *captures)
{
    int32_t choice = rule->when[1 - stage->side].choice;

    if (choice != CAIRN_MAP_NONE &&
        stage->settings.choices[choice] != (uint32_t)rule->when[1 - stage->side].value)
        return false;
    return rule->given_side != (int32_t)stage->side ||
           cairn_map_source_find(stage, &rule->given, "", captures) != UINT32_MAX;
}

/* Looks for the rule of a tensor and applies it; where there is none, the tensor stays unused. */
static cairn_err
map_tensor(struct cairn_map_stage *stage, uint32_t tensor, bool aliases)
{
    char key[CAIRN_NAME_BYTES_MAX];
    const char *name = split_name(cairn_layout_tensor(stage->from, tensor), key);
    uint64_t captures[CAIRN_MAP_SYMBOLS_MAX] = {0};

    for (uint32_t r = 0; r < stage->map->rule_count; r++) {
        const struct cairn_map_rule *rule = &stage->map->rules[r];
        const struct cairn_map_side *side = &rule->sides[stage->side];

        for (uint32_t i = 0; i < side->count; i++) {
            if (!matches(stage->map, stage->side, &side->tensors[i].name, name, captures) ||
                !holds(stage, rule, captures))
                continue;
            return cairn_map_instance_make(stage, rule, key, captures, tensor, aliases);
        }
    }
    return CAIRN_OK;
}

static cairn_err
map_all(struct cairn_map_stage *stage)
{
    cairn_err err = CAIRN_OK;

    for (int aliases = 0; aliases < 2; aliases++)
        for (uint32_t t = 0; t < cairn_layout_tensor_count(stage->from) && !err; t++)
            if (cairn_layout_tensor(stage->from, t)->kind != CAIRN_OPAQUE && !stage->used[t])
                err = map_tensor(stage, t, aliases);
    return err;
}

/* ---- what no rule is about ---- */

static bool
is_dropped(const struct cairn_map_stage *stage, const struct cairn_tensor *tensor)
{
    uint64_t captures[CAIRN_MAP_SYMBOLS_MAX];
    char key[CAIRN_NAME_BYTES_MAX];
    const char *name = split_name(tensor, key);

    for (uint32_t i = 0; i < stage->map->drop_count; i++)
        if (stage->map->drops[i].side == stage->side &&
            matches(stage->map, stage->side, &stage->map->drops[i].name, name, captures))
            return true;
    return false;
}

/* Opaque state that is carried, except what describes old names, and what the optimizer keeps. */
static bool
is_carried(const struct cairn_map_stage *stage, uint32_t tensor)
{
    const struct cairn_tensor *known = cairn_layout_tensor(stage->from, tensor);
    uint32_t key_bytes;

    if (known->kind == CAIRN_OPAQUE)
        return strcmp(known->name, CAIRN_TORCH_TREE) != 0 &&
               strcmp(known->name, CAIRN_DCP_NAMES) != 0 &&
               strcmp(known->name, CAIRN_PARAM_GROUPS_NAME) != 0;
    return known->kind == CAIRN_OPTIMIZER &&
           cairn_checkpoint_parameter_of(stage->checkpoint, tensor, &key_bytes) == UINT32_MAX;
}

static cairn_err
carry(struct cairn_map_stage *stage, uint32_t tensor)
{
    const struct cairn_tensor *known = cairn_layout_tensor(stage->from, tensor);
    cairn_err err;

    stage->scratch.count = 0;
    err = cairn_map_scratch_copy(stage, tensor);
    return err ? err
               : cairn_map_target_add(stage, known->name, known, known->dims, known->shape,
                                      UINT32_MAX);
}

static cairn_err
take_rest(struct cairn_map_stage *stage)
{
    char unknown[LIST_BYTES_MAX] = "";
    uint32_t unknown_count = 0;
    const char *dropped = "";
    size_t used = 0;
    cairn_err err = CAIRN_OK;

    for (uint32_t t = 0; t < cairn_layout_tensor_count(stage->from) && !err; t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(stage->from, t);

        if (stage->used[t])
            continue;
        if (is_carried(stage, t)) {
            err = carry(stage, t);
        } else if (tensor->kind != CAIRN_OPAQUE && is_dropped(stage, tensor)) {
            stage->report->dropped++;
            dropped = tensor->name;
        } else if (tensor->kind != CAIRN_OPAQUE && unknown_count++ < UNKNOWN_SHOWN_MAX &&
                   used + CAIRN_NAME_BYTES_MAX < sizeof(unknown)) {
            used += (size_t)snprintf(unknown + used, sizeof(unknown) - used, "%s%s",
                                     used ? ", " : "", tensor->name);
        }
    }
    if (!err && unknown_count > 0)
        err = cairn_refuse(stage->checkpoint, CAIRN_INVAL,
                           "%" PRIu32 " tensor%s unknown to the map as names of %s: %s%s; write "
                           "rules for them (--map FILE), or leave them out with --drop",
                           unknown_count, unknown_count == 1 ? " is" : "s are", stage->report->from,
                           unknown, unknown_count > UNKNOWN_SHOWN_MAX ? ", …" : "");
    if (!err && stage->report->dropped > 0)
        err = cairn_checkpoint_warn(
            stage->checkpoint,
            "%" PRIu32
            " tensors are left out, as the map demands, since %s has no such tensors: %s%s",
            stage->report->dropped, stage->report->to, dropped,
            stage->report->dropped > 1 ? " and others" : "");
    return err;
}

/* ---- all ---- */

static void
stage_fini(struct cairn_map_stage *stage)
{
    cairn_piece_table_fini(&stage->table);
    cairn_layout_destroy(stage->to);
    free(stage->used);
    free(stage->target_first);
    free(stage->target_count);
    free(stage->aliases);
    free(stage->piece_first);
    free(stage->scratch.pieces);
}

static cairn_err
stage_init(struct cairn_map_stage *stage)
{
    size_t count = (size_t)cairn_layout_tensor_count(stage->from) + 1;
    cairn_err err;

    stage->zeros = UINT32_MAX;
    stage->used = calloc(count, sizeof(*stage->used));
    stage->target_first = calloc(count, sizeof(*stage->target_first));
    stage->target_count = calloc(count, sizeof(*stage->target_count));
    if (!stage->used || !stage->target_first || !stage->target_count)
        return CAIRN_NOMEM;

    err = cairn_piece_table_init(&stage->table, stage->from);
    return err ? err : cairn_layout_create(&stage->to);
}

/* The new layout and aliases become the checkpoint's; then the groups, which need both layouts. */
static cairn_err
replace(struct cairn_map_stage *stage)
{
    struct cairn_checkpoint *checkpoint = stage->checkpoint;
    struct cairn_layout *from = checkpoint->layout;
    struct cairn_opaque_tree groups;
    cairn_err err = cairn_param_groups_open(checkpoint, &groups);

    if (err && err != CAIRN_NOT_FOUND) {
        cairn_opaque_tree_close(&groups);
        return cairn_refuse(checkpoint, err,
                            "the optimizer's groups of parameters cannot be renamed");
    }
    checkpoint->layout = stage->to;
    free(checkpoint->aliases);
    checkpoint->aliases = stage->aliases;
    checkpoint->alias_count = stage->alias_count;
    stage->to = NULL;
    stage->aliases = NULL;
    err = groups.root ? cairn_map_groups_rename(stage, from, &groups) : CAIRN_OK;
    cairn_opaque_tree_close(&groups);
    cairn_piece_table_fini(&stage->table);
    stage->table = (struct cairn_piece_table){0};
    cairn_layout_destroy(from);
    return err;
}

cairn_err
cairn_checkpoint_map_by(struct cairn_checkpoint *checkpoint, const struct cairn_map *map,
                        const char *const *sets, size_t set_count, struct cairn_map_report *report)
{
    struct cairn_map_stage stage = {
        .map = map, .checkpoint = checkpoint, .from = checkpoint->layout, .report = report};
    struct cairn_map_settings before;
    cairn_err err;

    memset(report, 0, sizeof(*report));
    err = stage_init(&stage);
    if (!err)
        err = cairn_map_settings_find(map, checkpoint, sets, set_count, &stage.settings);
    before = stage.settings;
    if (!err)
        err = find_side(&stage);
    if (!err)
        err = map_all(&stage);
    if (!err)
        err = cairn_map_assumed_tell(&stage, &before);
    if (!err)
        err = take_rest(&stage);
    if (!err)
        err = replace(&stage);
    stage_fini(&stage);
    return cairn_complain_failed(checkpoint->complaint, err, "%s: cannot be mapped",
                                 checkpoint->place.path);
}

cairn_err
cairn_checkpoint_map(struct cairn_checkpoint *checkpoint, const char *map, const char *const *sets,
                     size_t set_count, struct cairn_map_report *report)
{
    struct cairn_map *loaded = NULL;
    cairn_err err;

    err = cairn_map_load(map, &loaded, checkpoint->complaint);
    if (!err)
        err = cairn_checkpoint_map_by(checkpoint, loaded, sets, set_count, report);
    cairn_map_destroy(loaded);
    return err;
}
