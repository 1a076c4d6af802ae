/*
 * tools/convert/maps/check.c - whether a rule says one place for each element, on both sides.
 *
 * Part i of a rule is the i-th tensor of a side that has several, or the i-th terms of the sums of
 * a side that has one. The axes of a part are those of its dimensions and of its name; they must be
 * the same on both sides, each once.
 */
#include <inttypes.h>
#include <string.h>

#include "tools/convert/maps/language.h"

static cairn_err
fail(const struct cairn_map_rule *rule, struct cairn_complaint *complaint, const char *what,
     const char *name)
{
    return cairn_complain(complaint, CAIRN_CORRUPT, "%.200s, line %" PRIu32 ": %s%s", rule->file,
                          rule->line, what, name);
}

/* The sums of a tensor have `parts` terms each; *parts is 1 where it has none. */
static cairn_err
count_parts(const struct cairn_map_rule *rule, const struct cairn_map_tensor *tensor,
            uint32_t *parts, struct cairn_complaint *complaint)
{
    *parts = 1;
    for (uint32_t d = 0; d < tensor->dims; d++)
        for (uint32_t f = 0; f < tensor->dim[d].count; f++) {
            uint32_t terms = tensor->dim[d].factors[f].count;

            if (terms > 1 && *parts > 1)
                return fail(rule, complaint, "a tensor has more than one sum: ", tensor->name.text);
            *parts = terms > 1 ? terms : *parts;
        }
    return CAIRN_OK;
}

/* Whether an axis is there for the first time. */
static bool
add_axis(const struct cairn_map *map, bool *has, uint32_t symbol)
{
    bool first = !has[symbol];

    has[symbol] = map->symbols[symbol].literal != 1;
    return first;
}

/* The axes of a tensor's part, its captures among them. */
static cairn_err
collect(const struct cairn_map *map, const struct cairn_map_rule *rule,
        const struct cairn_map_tensor *tensor, uint32_t part, bool has[CAIRN_MAP_SYMBOLS_MAX],
        struct cairn_complaint *complaint)
{
    bool once = true;

    memset(has, 0, CAIRN_MAP_SYMBOLS_MAX * sizeof(*has));
    for (uint32_t i = 0; i < tensor->name.capture_count; i++)
        once = add_axis(map, has, tensor->name.captures[i]) && once;
    for (uint32_t d = 0; d < tensor->dims; d++)
        for (uint32_t f = 0; f < tensor->dim[d].count; f++) {
            const struct cairn_map_factor *factor = &tensor->dim[d].factors[f];
            const struct cairn_map_term *term = &factor->terms[factor->count > 1 ? part : 0];

            for (uint32_t a = 0; a < term->count; a++)
                once = add_axis(map, has, term->axes[a]) && once;
        }
    return once ? CAIRN_OK : fail(rule, complaint, "an axis is there twice in ", tensor->name.text);
}

static cairn_err
check_part(const struct cairn_map *map, const struct cairn_map_rule *rule, uint32_t part,
           struct cairn_complaint *complaint)
{
    bool has[2][CAIRN_MAP_SYMBOLS_MAX];
    cairn_err err = CAIRN_OK;

    for (int s = 0; s < 2 && !err; s++) {
        const struct cairn_map_side *side = &rule->sides[s];

        err =
            collect(map, rule, &side->tensors[side->count > 1 ? part : 0], part, has[s], complaint);
    }
    for (int s = 0; s < 2 && !err; s++)
        for (uint32_t i = 0; i < map->symbol_count && !err; i++)
            if (has[s][i] && !has[1 - s][i])
                err = fail(rule, complaint,
                           s == 0 ? "only the left side has the axis "
                                  : "only the right side has the axis ",
                           map->symbols[i].name);
    return err;
}

/* Names alone, or brackets for all. */
static cairn_err
check_brackets(const struct cairn_map_rule *rule, struct cairn_complaint *complaint)
{
    bool shaped = rule->sides[0].tensors[0].shaped;

    for (int s = 0; s < 2; s++)
        for (uint32_t i = 0; i < rule->sides[s].count; i++)
            if (rule->sides[s].tensors[i].shaped != shaped)
                return fail(rule, complaint, "brackets should follow all names or none: ",
                            rule->sides[s].tensors[i].name.text);
    if (!shaped && (rule->sides[0].count > 1 || rule->sides[1].count > 1))
        return fail(rule, complaint, "several tensors need their axes in brackets: ",
                    rule->sides[0].tensors[0].name.text);
    return CAIRN_OK;
}

/* The tensors of one side have the same numbers in their names. */
static cairn_err
check_captures(const struct cairn_map_rule *rule, struct cairn_complaint *complaint)
{
    for (int s = 0; s < 2; s++) {
        uint32_t alone = 0; /* in the names of this side only */

        for (uint32_t i = 1; i < rule->sides[s].count; i++) {
            const struct cairn_map_name *first = &rule->sides[s].tensors[0].name;
            const struct cairn_map_name *name = &rule->sides[s].tensors[i].name;
            bool same = first->capture_count == name->capture_count;

            for (uint32_t k = 0; k < name->capture_count; k++)
                same = same && cairn_map_name_has(first, name->captures[k]);
            if (!same)
                return fail(rule, complaint,
                            "a name has other numbers than the first: ", name->text);
        }
        for (uint32_t k = 0; k < rule->sides[s].tensors[0].name.capture_count; k++)
            alone += !cairn_map_name_has(&rule->sides[1 - s].tensors[0].name,
                                         rule->sides[s].tensors[0].name.captures[k]);
        if (alone > 1)
            return fail(rule, complaint, "more than one number is in the names of one side only: ",
                        rule->sides[s].tensors[0].name.text);
    }
    return CAIRN_OK;
}

cairn_err
cairn_map_rule_check(const struct cairn_map *map, struct cairn_map_rule *rule,
                     struct cairn_complaint *complaint)
{
    uint32_t parts[2] = {1, 1};
    cairn_err err = check_brackets(rule, complaint);

    if (!err)
        err = check_captures(rule, complaint);
    for (int s = 0; s < 2 && !err; s++) {
        const struct cairn_map_side *side = &rule->sides[s];

        parts[s] = side->count;
        for (uint32_t i = 0; i < side->count && !err; i++) {
            uint32_t terms = 1;

            err = count_parts(rule, &side->tensors[i], &terms, complaint);
            if (!err && terms > 1 && side->count > 1)
                err = fail(rule, complaint, "a sum stands where its side has one tensor: ",
                           side->tensors[i].name.text);
            parts[s] = side->count > 1 ? side->count : terms;
        }
    }
    if (!err && parts[0] != parts[1])
        err = fail(rule, complaint,
                   "the sides have different numbers of parts; a sum has a term for each tensor of "
                   "the other side: ",
                   rule->sides[0].tensors[0].name.text);
    rule->parts = parts[0];
    for (uint32_t part = 0; part < rule->parts && !err; part++)
        err = check_part(map, rule, part, complaint);
    return err;
}
