/* tools/convert/maps/rule.c - see maps/rule.h. */
#include "tools/convert/maps/rule.h"

#include <stdlib.h>
#include <string.h>

/* ---- words ---- */

uint32_t
cairn_map_symbol_find(const struct cairn_map *map, const char *name)
{
    for (uint32_t i = 0; i < map->symbol_count; i++)
        if (strcmp(map->symbols[i].name, name) == 0)
            return i;
    return UINT32_MAX;
}

static cairn_err
intern(struct cairn_map *map, struct cairn_map_lexer *lexer, const char *text, uint32_t *symbol)
{
    struct cairn_map_symbol added = {.literal = 0};
    uint32_t found = cairn_map_symbol_find(map, text);
    size_t digits = strspn(text, "0123456789");

    if (found != UINT32_MAX) {
        *symbol = found;
        return CAIRN_OK;
    }
    if (map->symbol_count == CAIRN_MAP_SYMBOLS_MAX)
        return cairn_map_lexer_fail(lexer, "more than %d names of axes and numbers",
                                    CAIRN_MAP_SYMBOLS_MAX);
    if (strlen(text) >= sizeof(added.name))
        return cairn_map_lexer_fail(lexer, "%s is longer than %zu bytes", text,
                                    sizeof(added.name) - 1);
    if (text[digits] == '\0' && digits > 0) {
        if (text[0] == '0' || digits > 9)
            return cairn_map_lexer_fail(lexer, "%s is not a size from 1 to 999999999", text);
        added.literal = strtoul(text, NULL, 10);
    } else if (digits > 0 || strpbrk(text, ".{}-:")) {
        return cairn_map_lexer_fail(
            lexer, "%s is not a name of an axis or number: letters, digits and _, a letter first",
            text);
    }
    (void)strcpy(added.name, text);
    map->symbols[map->symbol_count] = added;
    *symbol = map->symbol_count++;
    return CAIRN_OK;
}

cairn_err
cairn_map_symbol_take(struct cairn_map *map, struct cairn_map_lexer *lexer, uint32_t *symbol)
{
    char word[CAIRN_MAP_TOKEN_BYTES_MAX];
    cairn_err err;

    if (lexer->kind == CAIRN_MAP_WORD) {
        err = intern(map, lexer, lexer->word, symbol);
        if (err)
            return err;
    }
    return cairn_map_lexer_word(lexer, "an axis or a number", word, sizeof(word));
}

cairn_err
cairn_map_side_take(const struct cairn_map *map, struct cairn_map_lexer *lexer, uint32_t *side)
{
    for (*side = 0; *side < 2; (*side)++)
        if (map->sides[*side][0] && cairn_map_lexer_is(lexer, map->sides[*side]))
            return cairn_map_lexer_next(lexer);
    return cairn_map_lexer_fail(lexer, "expected a side: %s or %s",
                                map->sides[0][0] ? map->sides[0] : "what `sides` calls the left",
                                map->sides[1][0] ? map->sides[1] : "the right one");
}

cairn_err
cairn_map_name_take(struct cairn_map *map, struct cairn_map_lexer *lexer,
                    struct cairn_map_name *name)
{
    char symbol[CAIRN_MAP_WORD_BYTES_MAX];
    const char *at;

    memset(name, 0, sizeof(*name));
    if (lexer->kind != CAIRN_MAP_WORD)
        return cairn_map_lexer_word(lexer, "the name of a tensor", name->text, sizeof(name->text));
    for (at = lexer->word; *at; at++) {
        size_t bytes = strcspn(at + 1, "{}");
        uint32_t *capture = &name->captures[name->capture_count];
        cairn_err err;

        if (*at == '}')
            return cairn_map_lexer_fail(lexer, "a } without a {");
        if (*at != '{')
            continue;
        if (at[1 + bytes] != '}' || bytes == 0 || bytes >= sizeof(symbol))
            return cairn_map_lexer_fail(lexer, "a { begins a name of a number such as {layer}");
        if (name->capture_count == CAIRN_MAP_CAPTURES_MAX)
            return cairn_map_lexer_fail(lexer, "more than %d numbers in a name",
                                        CAIRN_MAP_CAPTURES_MAX);
        memcpy(symbol, at + 1, bytes);
        symbol[bytes] = '\0';
        err = intern(map, lexer, symbol, capture);
        if (err)
            return err;
        if (map->symbols[*capture].literal || cairn_map_name_has(name, *capture))
            return cairn_map_lexer_fail(lexer, "{%s} is not a name, or a duplicate", symbol);
        name->capture_count++;
        at += bytes + 1;
        if (at[1] == '{' || (at[1] >= '0' && at[1] <= '9'))
            return cairn_map_lexer_fail(lexer, "the end of the number {%s} is ambiguous", symbol);
    }
    return cairn_map_lexer_word(lexer, "the name of a tensor", name->text, sizeof(name->text));
}

/* ---- dimensions ---- */

static cairn_err
parse_term(struct cairn_map *map, struct cairn_map_lexer *lexer, struct cairn_map_term *term)
{
    cairn_err err;

    term->count = 0;
    for (;;) {
        if (term->count == CAIRN_MAP_AXES_MAX)
            return cairn_map_lexer_fail(lexer, "more than %d axes in a product of a sum",
                                        CAIRN_MAP_AXES_MAX);
        err = cairn_map_symbol_take(map, lexer, &term->axes[term->count]);
        if (err)
            return err;
        term->count++;
        if (!cairn_map_lexer_is(lexer, "*"))
            return CAIRN_OK;
        err = cairn_map_lexer_take(lexer, "*");
        if (err)
            return err;
    }
}

static cairn_err
parse_sum(struct cairn_map *map, struct cairn_map_lexer *lexer, struct cairn_map_factor *factor)
{
    cairn_err err = cairn_map_lexer_take(lexer, "(");

    while (!err) {
        if (factor->count == CAIRN_MAP_PARTS_MAX)
            return cairn_map_lexer_fail(lexer, "more than %d terms in a sum", CAIRN_MAP_PARTS_MAX);
        err = parse_term(map, lexer, &factor->terms[factor->count++]);
        if (err || !cairn_map_lexer_is(lexer, "+"))
            break;
        err = cairn_map_lexer_take(lexer, "+");
    }
    return err ? err : cairn_map_lexer_take(lexer, ")");
}

/* "vocab..padded": an axis and what it is padded to. */
static cairn_err
parse_padded(struct cairn_map *map, struct cairn_map_lexer *lexer, struct cairn_map_dim *dim)
{
    struct cairn_map_term *term = &dim->factors[0].terms[0];
    char axis[CAIRN_MAP_TOKEN_BYTES_MAX], *dots;
    uint32_t symbol;
    cairn_err err;

    (void)strcpy(axis, lexer->word);
    dots = strstr(axis, "..");
    *dots = '\0';
    dim->padded = true;
    dim->count = dim->factors[0].count = term->count = 1;
    err = intern(map, lexer, axis, &term->axes[0]);
    if (!err && dots[2]) {
        err = intern(map, lexer, dots + 2, &symbol);
        if (!err)
            dim->padded_to = (int32_t)symbol;
    }
    return err ? err : cairn_map_lexer_word(lexer, "an axis", axis, sizeof(axis));
}

static cairn_err
parse_dim(struct cairn_map *map, struct cairn_map_lexer *lexer, struct cairn_map_dim *dim)
{
    cairn_err err = CAIRN_OK;

    dim->padded_to = CAIRN_MAP_NONE;
    if (lexer->kind == CAIRN_MAP_WORD && strstr(lexer->word, ".."))
        return parse_padded(map, lexer, dim);
    while (!err) {
        struct cairn_map_factor *factor = &dim->factors[dim->count];

        if (dim->count == CAIRN_MAP_FACTORS_MAX)
            return cairn_map_lexer_fail(lexer, "more than %d factors in a dimension",
                                        CAIRN_MAP_FACTORS_MAX);
        dim->count++;
        if (cairn_map_lexer_is(lexer, "(")) {
            err = parse_sum(map, lexer, factor);
        } else {
            factor->count = factor->terms[0].count = 1;
            err = cairn_map_symbol_take(map, lexer, &factor->terms[0].axes[0]);
        }
        if (err || !cairn_map_lexer_is(lexer, "*"))
            break;
        err = cairn_map_lexer_take(lexer, "*");
    }
    return err;
}

static cairn_err
parse_shape(struct cairn_map *map, struct cairn_map_lexer *lexer, struct cairn_map_tensor *tensor)
{
    cairn_err err = cairn_map_lexer_take(lexer, "[");

    tensor->shaped = true;
    while (!err && !cairn_map_lexer_is(lexer, "]")) {
        if (tensor->dims == CAIRN_DIMS_MAX)
            return cairn_map_lexer_fail(lexer, "more than %d dimensions", CAIRN_DIMS_MAX);
        err = parse_dim(map, lexer, &tensor->dim[tensor->dims++]);
        if (!err && !cairn_map_lexer_is(lexer, "]"))
            err = cairn_map_lexer_take(lexer, ",");
    }
    return err ? err : cairn_map_lexer_take(lexer, "]");
}

/* ---- rules ---- */

static bool
ends_side(const struct cairn_map_lexer *lexer)
{
    return lexer->kind != CAIRN_MAP_WORD || cairn_map_lexer_is(lexer, "when") ||
           cairn_map_lexer_is(lexer, "given");
}

static cairn_err
parse_side(struct cairn_map *map, struct cairn_map_lexer *lexer, struct cairn_map_side *side)
{
    struct cairn_map_tensor *fitted;
    cairn_err err = CAIRN_OK;

    side->tensors = calloc(CAIRN_MAP_PARTS_MAX, sizeof(*side->tensors));
    if (!side->tensors)
        return CAIRN_NOMEM;
    do {
        struct cairn_map_tensor *tensor = &side->tensors[side->count];

        if (side->count == CAIRN_MAP_PARTS_MAX)
            return cairn_map_lexer_fail(lexer, "more than %d tensors on a side",
                                        CAIRN_MAP_PARTS_MAX);
        side->count++;
        err = cairn_map_name_take(map, lexer, &tensor->name);
        if (!err && cairn_map_lexer_is(lexer, "["))
            err = parse_shape(map, lexer, tensor);
    } while (!err && !ends_side(lexer));
    fitted = err ? NULL : realloc(side->tensors, side->count * sizeof(*side->tensors));
    if (fitted) /* most sides have one tensor, and rules are many */
        side->tensors = fitted;
    return err;
}

static cairn_err
parse_condition(const struct cairn_map *map, struct cairn_map_lexer *lexer,
                struct cairn_map_rule *rule)
{
    for (uint32_t c = 0; c < map->choice_count; c++) {
        const struct cairn_map_choice *choice = &map->choices[c];
        cairn_err err;

        if (!cairn_map_lexer_is(lexer, choice->name))
            continue;
        if (rule->when[choice->side].choice != CAIRN_MAP_NONE)
            return cairn_map_lexer_fail(lexer, "a rule has one choice of each side");
        rule->when[choice->side].choice = (int32_t)c;
        err = cairn_map_lexer_next(lexer);
        if (!err)
            err = cairn_map_lexer_take(lexer, "=");
        if (err)
            return err;
        for (uint32_t v = 0; v < choice->count; v++)
            if (cairn_map_lexer_is(lexer, choice->values[v])) {
                rule->when[choice->side].value = (int32_t)v;
                return cairn_map_lexer_next(lexer);
            }
        return cairn_map_lexer_fail(lexer, "%s is not a value of the choice %s", lexer->word,
                                    choice->name);
    }
    return cairn_map_lexer_fail(
        lexer, "there is no choice \"%s\"; declare it before: choice %s NAME = VALUE VALUE",
        lexer->word, map->sides[1]);
}

static cairn_err
parse_conditions(struct cairn_map *map, struct cairn_map_lexer *lexer, struct cairn_map_rule *rule)
{
    uint32_t side = 0;
    cairn_err err = CAIRN_OK;

    if (cairn_map_lexer_is(lexer, "when")) {
        err = cairn_map_lexer_next(lexer);
        do
            err = err ? err : parse_condition(map, lexer, rule);
        while (!err && lexer->kind == CAIRN_MAP_WORD && !cairn_map_lexer_is(lexer, "given"));
    }
    if (!err && cairn_map_lexer_is(lexer, "given")) {
        err = cairn_map_lexer_next(lexer);
        if (!err)
            err = cairn_map_side_take(map, lexer, &side);
        if (!err)
            err = cairn_map_name_take(map, lexer, &rule->given);
        rule->given_side = (int32_t)side;
        for (uint32_t i = 0; !err && i < rule->given.capture_count; i++)
            if (!cairn_map_name_has(&rule->sides[side].tensors[0].name, rule->given.captures[i]))
                err = cairn_map_lexer_fail(
                    lexer, "what is given has a number that the rule's tensors do not have");
    }
    return err;
}

void
cairn_map_rule_fini(struct cairn_map_rule *rule)
{
    free(rule->sides[0].tensors);
    free(rule->sides[1].tensors);
    memset(rule, 0, sizeof(*rule));
}

cairn_err
cairn_map_rule_parse(struct cairn_map *map, struct cairn_map_lexer *lexer,
                     struct cairn_map_rule *out)
{
    struct cairn_map_rule rule = {.line = lexer->word_line,
                                  .file = lexer->file,
                                  .when = {{CAIRN_MAP_NONE, 0}, {CAIRN_MAP_NONE, 0}},
                                  .given_side = CAIRN_MAP_NONE};
    cairn_err err;

    err = parse_side(map, lexer, &rule.sides[0]);
    if (!err)
        err = cairn_map_lexer_take(lexer, "=");
    if (!err)
        err = parse_side(map, lexer, &rule.sides[1]);
    if (!err)
        err = parse_conditions(map, lexer, &rule);
    if (!err && lexer->kind != CAIRN_MAP_END)
        err = cairn_map_lexer_fail(lexer, "\"%s\" is too much for a rule", lexer->word);
    if (!err)
        err = cairn_map_rule_check(map, &rule, lexer->complaint);
    if (err) {
        cairn_map_rule_fini(&rule);
        return err;
    }
    *out = rule;
    return CAIRN_OK;
}
