/*
 * tools/convert/maps/sizes.c - see maps/sizes.h.
 *
 * A dimension with one unknown axis gives it: dividing by the known factors leaves the axis, or a
 * sum in which it stands (x + x + known). This is done until nothing new is learned. Padded
 * dimensions, which say less, are asked last.
 */
#include "tools/convert/maps/sizes.h"

#include <inttypes.h>
#include <stdio.h>

#define NO_SYMBOL UINT32_MAX

enum { TEXT_BYTES_MAX = 200, ROUNDS_MAX = 64 };

/* ---- values ---- */

uint64_t
cairn_map_term_size(const struct cairn_map_term *term, const uint64_t *values)
{
    uint64_t size = 1;

    for (uint32_t a = 0; a < term->count; a++)
        size *= values[term->axes[a]];
    return size;
}

uint64_t
cairn_map_factor_size(const struct cairn_map_factor *factor, const uint64_t *values)
{
    uint64_t size = 0;

    for (uint32_t t = 0; t < factor->count; t++)
        size += cairn_map_term_size(&factor->terms[t], values);
    return size;
}

/* a * x + b, where x is `unknown`. False: x is squared, another axis is unknown, or too large. */
static bool
as_linear(const struct cairn_map_factor *factor, const uint64_t *values, uint32_t unknown,
          uint64_t *a, uint64_t *b)
{
    *a = *b = 0;
    for (uint32_t t = 0; t < factor->count; t++) {
        const struct cairn_map_term *term = &factor->terms[t];
        uint64_t known = 1;
        uint32_t times = 0;

        for (uint32_t i = 0; i < term->count; i++) {
            if (term->axes[i] == unknown)
                times++;
            else if (values[term->axes[i]] == 0 ||
                     __builtin_mul_overflow(known, values[term->axes[i]], &known))
                return false;
        }
        if (times > 1 || __builtin_add_overflow(times ? *a : *b, known, times ? a : b))
            return false;
    }
    return true;
}

bool
cairn_map_length(const struct cairn_map_dim *dim, const uint64_t *values, uint64_t *length)
{
    uint64_t product = 1, a, b;

    for (uint32_t f = 0; f < dim->count; f++)
        if (!as_linear(&dim->factors[f], values, NO_SYMBOL, &a, &b) ||
            __builtin_mul_overflow(product, b, &product))
            return false;
    *length = product;
    return product <= INT64_MAX;
}

/* The only unknown axis of a dimension; NO_SYMBOL and *count where there is none, or several. */
static uint32_t
only_unknown(const struct cairn_map_dim *dim, const uint64_t *values, uint32_t *count)
{
    uint32_t found = NO_SYMBOL;

    *count = 0;
    for (uint32_t f = 0; f < dim->count; f++)
        for (uint32_t t = 0; t < dim->factors[f].count; t++) {
            const struct cairn_map_term *term = &dim->factors[f].terms[t];

            for (uint32_t i = 0; i < term->count; i++)
                if (values[term->axes[i]] == 0 && term->axes[i] != found) {
                    found = term->axes[i];
                    (*count)++;
                }
        }
    return found;
}

/* ---- messages ---- */

static void
append(char *out, size_t *used, const char *before, const char *text)
{
    int added = *used < TEXT_BYTES_MAX
                    ? snprintf(out + *used, TEXT_BYTES_MAX - *used, "%s%s", before, text)
                    : 0;

    *used += added > 0 ? (size_t)added : 0;
}

static void
show_dim(const struct cairn_map *map, const struct cairn_map_dim *dim, char out[TEXT_BYTES_MAX])
{
    size_t used = 0;

    out[0] = '\0';
    for (uint32_t f = 0; f < dim->count; f++) {
        const struct cairn_map_factor *factor = &dim->factors[f];

        append(out, &used, f ? "*" : "", factor->count > 1 ? "(" : "");
        for (uint32_t t = 0; t < factor->count; t++)
            for (uint32_t i = 0; i < factor->terms[t].count; i++) {
                append(out, &used,
                       i   ? "*"
                       : t ? " + "
                           : "",
                       map->symbols[factor->terms[t].axes[i]].name);
            }
        append(out, &used, "", factor->count > 1 ? ")" : "");
    }
}

/* "heads = 4, groups = 2": the known axes of a dimension that are not literals. */
static void
show_known(const struct cairn_map *map, const struct cairn_map_dim *dim, const uint64_t *values,
           char out[TEXT_BYTES_MAX])
{
    bool shown[CAIRN_MAP_SYMBOLS_MAX] = {false};
    char value[CAIRN_MAP_WORD_BYTES_MAX + 24];
    size_t used = 0;

    out[0] = '\0';
    for (uint32_t f = 0; f < dim->count; f++)
        for (uint32_t t = 0; t < dim->factors[f].count; t++)
            for (uint32_t i = 0; i < dim->factors[f].terms[t].count; i++) {
                uint32_t symbol = dim->factors[f].terms[t].axes[i];

                if (shown[symbol] || values[symbol] == 0 || map->symbols[symbol].literal)
                    continue;
                shown[symbol] = true;
                (void)snprintf(value, sizeof(value), "%s = %" PRIu64, map->symbols[symbol].name,
                               values[symbol]);
                append(out, &used, used ? ", " : "", value);
            }
}

static void
show_shape(const struct cairn_map_shape *shape, char out[TEXT_BYTES_MAX])
{
    char value[24];
    size_t used = 0;

    append(out, &used, "", "[");
    for (uint32_t d = 0; d < shape->dims; d++) {
        (void)snprintf(value, sizeof(value), "%" PRIu64, shape->shape[d]);
        append(out, &used, d ? ", " : "", value);
    }
    append(out, &used, "", "]");
}

static cairn_err
say_misfit(const struct cairn_map *map, const struct cairn_map_rule *rule,
           const struct cairn_map_shape *shape, uint32_t d, const uint64_t *values,
           struct cairn_complaint *complaint)
{
    char whole[TEXT_BYTES_MAX], expression[TEXT_BYTES_MAX], known[TEXT_BYTES_MAX];

    show_shape(shape, whole);
    show_dim(map, &shape->pattern->dim[d], expression);
    show_known(map, &shape->pattern->dim[d], values, known);
    return cairn_complain(complaint, CAIRN_INVAL,
                          "%s: has the shape %s, where %" PRIu64
                          " cannot be %s%s%s (%s, line %" PRIu32
                          "); give the right numbers with --set, or use another map",
                          shape->name, whole, shape->shape[d], expression, known[0] ? " with " : "",
                          known, rule->file, rule->line);
}

/* What to say of a number that is not known: the operand that is missing where it is calculated,
 * and itself where that would not help (shapes may have told the operands, too late for it). */
static uint32_t
missing_of(const struct cairn_map_number *number, const uint64_t *values)
{
    if (number->key_count > 0)
        return number->symbol;
    if (number->left != CAIRN_MAP_NONE && values[number->left] == 0)
        return (uint32_t)number->left;
    if (number->right != CAIRN_MAP_NONE && values[number->right] == 0)
        return (uint32_t)number->right;
    return number->symbol;
}

/* The unknown axis that the user best says: the first number of the map, by its operand where it is
 * calculated. The dimension has an unknown axis. */
static uint32_t
advise(const struct cairn_map *map, const struct cairn_map_dim *dim, const uint64_t *values)
{
    uint32_t count, symbol = only_unknown(dim, values, &count);

    for (uint32_t n = 0; n < map->number_count; n++) {
        const struct cairn_map_number *number = &map->numbers[n];

        if (values[number->symbol] != 0)
            continue;
        for (uint32_t f = 0; f < dim->count; f++)
            if (dim->factors[f].terms[0].axes[0] == number->symbol)
                return missing_of(number, values);
    }
    return symbol;
}

static cairn_err
say_unknown(const struct cairn_map *map, const struct cairn_map_rule *rule,
            const struct cairn_map_shape *shape, uint32_t d, const uint64_t *values,
            struct cairn_complaint *complaint)
{
    uint32_t symbol = advise(map, &shape->pattern->dim[d], values);
    char expression[TEXT_BYTES_MAX];

    show_dim(map, &shape->pattern->dim[d], expression);
    return cairn_complain(
        complaint, CAIRN_INVAL,
        "%s: %" PRIu64 " should be %s (%s, line %" PRIu32
        "), and the size of %s is not known: the checkpoint has no arguments with it, and no "
        "config.json in its directory (beside a single file none is looked for); use --set %s=N",
        shape->name, shape->shape[d], expression, rule->file, rule->line, map->symbols[symbol].name,
        map->symbols[symbol].name);
}

/* ---- solving ---- */

/* Finds `unknown` from one dimension; 0 where that cannot be. */
static uint64_t
solve(const struct cairn_map_dim *dim, uint64_t length, const uint64_t *values, uint32_t unknown)
{
    uint64_t rest = length, a_of = 0, b_of = 0;
    bool found = false;

    for (uint32_t f = 0; f < dim->count; f++) {
        uint64_t a, b;

        if (!as_linear(&dim->factors[f], values, unknown, &a, &b))
            return 0;
        if (a == 0) {
            if (b == 0 || rest % b != 0)
                return 0;
            rest /= b;
        } else if (found) {
            return 0;
        } else {
            found = true;
            a_of = a;
            b_of = b;
        }
    }
    return found && rest > b_of && (rest - b_of) % a_of == 0 ? (rest - b_of) / a_of : 0;
}

/* Learns what it can from all dimensions; *learned says whether it was anything. */
static cairn_err
learn(const struct cairn_map *map, const struct cairn_map_rule *rule,
      const struct cairn_map_shape *shapes, size_t count, bool padded_too, uint64_t *values,
      bool *learned, struct cairn_complaint *complaint)
{
    *learned = false;
    for (size_t i = 0; i < count; i++)
        for (uint32_t d = 0; d < shapes[i].dims; d++) {
            const struct cairn_map_dim *dim = &shapes[i].pattern->dim[d];
            uint32_t unknown_count, unknown = only_unknown(dim, values, &unknown_count);

            if (unknown_count != 1 || (dim->padded && !padded_too))
                continue;
            values[unknown] = solve(dim, shapes[i].shape[d], values, unknown);
            if (values[unknown] == 0)
                return say_misfit(map, rule, &shapes[i], d, values, complaint);
            *learned = true;
        }
    return CAIRN_OK;
}

static cairn_err
check(const struct cairn_map *map, const struct cairn_map_rule *rule,
      const struct cairn_map_shape *shape, const uint64_t *values,
      struct cairn_complaint *complaint)
{
    for (uint32_t d = 0; d < shape->dims; d++) {
        const struct cairn_map_dim *dim = &shape->pattern->dim[d];
        uint32_t unknown_count;
        uint64_t length = 0;

        (void)only_unknown(dim, values, &unknown_count);
        if (unknown_count > 0)
            return say_unknown(map, rule, shape, d, values, complaint);
        if (!cairn_map_length(dim, values, &length) || length > shape->shape[d] ||
            (length < shape->shape[d] && !dim->padded))
            return say_misfit(map, rule, shape, d, values, complaint);
    }
    return CAIRN_OK;
}

cairn_err
cairn_map_sizes_find(const struct cairn_map *map, const struct cairn_map_rule *rule,
                     const struct cairn_map_shape *shapes, size_t count,
                     uint64_t values[CAIRN_MAP_SYMBOLS_MAX], struct cairn_complaint *complaint)
{
    bool learned = true;
    cairn_err err = CAIRN_OK;

    for (size_t i = 0; i < count; i++)
        if (shapes[i].dims != shapes[i].pattern->dims)
            return cairn_complain(complaint, CAIRN_INVAL,
                                  "%s: has %" PRIu32 " dimensions, and %" PRIu32
                                  " by the map (%s, line %" PRIu32 "); use another map",
                                  shapes[i].name, shapes[i].dims, shapes[i].pattern->dims,
                                  rule->file, rule->line);
    for (int round = 0; round < ROUNDS_MAX && learned && !err; round++) {
        err = learn(map, rule, shapes, count, false, values, &learned, complaint);
        if (!err && !learned)
            err = learn(map, rule, shapes, count, true, values, &learned, complaint);
    }
    for (size_t i = 0; i < count && !err; i++)
        err = check(map, rule, &shapes[i], values, complaint);
    return err;
}
