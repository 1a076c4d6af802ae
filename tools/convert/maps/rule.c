/* tools/convert/maps/rule.c - see maps/rule.h. */
#include "tools/convert/maps/rule.h"

#include <stdlib.h>
#include <string.h>

/* ---- words ---- */

/* The index of a symbol, UINT32_MAX where there is none. */
static uint32_t
symbol_find(const struct cairn_map *map, const char *name)
{
    for (uint32_t i = 0; i < map->symbol_count; i++)
        if (strcmp(map->symbols[i].name, name) == 0)
            return i;
    return UINT32_MAX;
}

/* 0, and the lexer fails, where it can be none. */
static uint32_t
intern(struct cairn_map *map, struct cairn_map_lexer *lexer, const char *text)
{
    struct cairn_map_symbol *added = &map->symbols[map->symbol_count];
    uint32_t found = symbol_find(map, text);
    size_t digits = strspn(text, "0123456789");
    bool number = digits > 0 && text[digits] == '\0';

    if (found != UINT32_MAX)
        return found;
    if (!cairn_map_lexer_room(lexer, map->symbol_count, CAIRN_MAP_SYMBOLS_MAX,
                              "names of axes and numbers"))
        return 0;
    if (strlen(text) >= sizeof(added->name))
        cairn_map_lexer_fail(lexer, "%s is longer than %zu bytes", text, sizeof(added->name) - 1);
    else if (number && (text[0] == '0' || digits > 9))
        cairn_map_lexer_fail(lexer, "%s is not a size from 1 to 999999999", text);
    else if (!number && (digits > 0 || strpbrk(text, ".{}-:")))
        cairn_map_lexer_fail(
            lexer, "%s is not a name of an axis or number: letters, digits and _, a letter first",
            text);
    if (lexer->err)
        return 0;
    (void)strcpy(added->name, text);
    added->literal = number ? strtoul(text, NULL, 10) : 0;
    return map->symbol_count++;
}

uint32_t
cairn_map_symbol_take(struct cairn_map *map, struct cairn_map_lexer *lexer)
{
    char word[CAIRN_MAP_TOKEN_BYTES_MAX];
    uint32_t symbol = lexer->kind == CAIRN_MAP_WORD ? intern(map, lexer, lexer->word) : 0;

    cairn_map_lexer_word(lexer, "an axis or a number", word, sizeof(word));
    return symbol;
}

uint32_t
cairn_map_side_take(const struct cairn_map *map, struct cairn_map_lexer *lexer)
{
    for (uint32_t side = 0; side < 2; side++)
        if (map->sides[side][0] && cairn_map_lexer_accept(lexer, map->sides[side]))
            return side;
    cairn_map_lexer_fail(lexer, "expected a side: %s or %s",
                         map->sides[0][0] ? map->sides[0] : "what `sides` calls the left",
                         map->sides[1][0] ? map->sides[1] : "the right one");
    return 0;
}

void
cairn_map_name_take(struct cairn_map *map, struct cairn_map_lexer *lexer,
                    struct cairn_map_name *name)
{
    char symbol[CAIRN_MAP_WORD_BYTES_MAX];

    memset(name, 0, sizeof(*name));
    for (const char *at = lexer->word; lexer->kind == CAIRN_MAP_WORD && *at; at++) {
        size_t bytes = strcspn(at + 1, "{}");
        uint32_t capture;

        if (*at == '}')
            cairn_map_lexer_fail(lexer, "a } without a {");
        if (*at != '{')
            continue;
        if (at[1 + bytes] != '}' || bytes == 0 || bytes >= sizeof(symbol))
            cairn_map_lexer_fail(lexer, "a { begins a name of a number such as {layer}");
        if (!cairn_map_lexer_room(lexer, name->capture_count, CAIRN_MAP_CAPTURES_MAX,
                                  "numbers in a name"))
            return;
        memcpy(symbol, at + 1, bytes);
        symbol[bytes] = '\0';
        capture = intern(map, lexer, symbol);
        if (map->symbols[capture].literal || cairn_map_name_has(name, capture))
            cairn_map_lexer_fail(lexer, "{%s} is not a name, or a duplicate", symbol);
        name->captures[name->capture_count++] = capture;
        at += bytes + 1;
        if (at[1] == '{' || (at[1] >= '0' && at[1] <= '9'))
            cairn_map_lexer_fail(lexer, "the end of the number {%s} is ambiguous", symbol);
    }
    cairn_map_lexer_word(lexer, "the name of a tensor", name->text, sizeof(name->text));
}

/* ---- dimensions ---- */

static void
parse_term(struct cairn_map *map, struct cairn_map_lexer *lexer, struct cairn_map_term *term)
{
    do {
        if (!cairn_map_lexer_room(lexer, term->count, CAIRN_MAP_AXES_MAX,
                                  "axes in a product of a sum"))
            return;
        term->axes[term->count++] = cairn_map_symbol_take(map, lexer);
    } while (cairn_map_lexer_accept(lexer, "*"));
}

/* Behind its "(". */
static void
parse_sum(struct cairn_map *map, struct cairn_map_lexer *lexer, struct cairn_map_factor *factor)
{
    do {
        if (!cairn_map_lexer_room(lexer, factor->count, CAIRN_MAP_PARTS_MAX, "terms in a sum"))
            return;
        parse_term(map, lexer, &factor->terms[factor->count++]);
    } while (cairn_map_lexer_accept(lexer, "+"));
    cairn_map_lexer_take(lexer, ")");
}

/* "vocab..padded": an axis and what it is padded to. */
static void
parse_padded(struct cairn_map *map, struct cairn_map_lexer *lexer, struct cairn_map_dim *dim)
{
    struct cairn_map_term *term = &dim->factors[0].terms[0];
    char axis[CAIRN_MAP_TOKEN_BYTES_MAX], *dots;

    (void)strcpy(axis, lexer->word);
    dots = strstr(axis, "..");
    *dots = '\0';
    dim->padded = true;
    dim->count = dim->factors[0].count = term->count = 1;
    term->axes[0] = intern(map, lexer, axis);
    if (dots[2])
        dim->padded_to = (int32_t)intern(map, lexer, dots + 2);
    cairn_map_lexer_word(lexer, "an axis", axis, sizeof(axis));
}

static void
parse_dim(struct cairn_map *map, struct cairn_map_lexer *lexer, struct cairn_map_dim *dim)
{
    dim->padded_to = CAIRN_MAP_NONE;
    if (lexer->kind == CAIRN_MAP_WORD && strstr(lexer->word, "..")) {
        parse_padded(map, lexer, dim);
        return;
    }
    do {
        struct cairn_map_factor *factor = &dim->factors[dim->count];

        if (!cairn_map_lexer_room(lexer, dim->count, CAIRN_MAP_FACTORS_MAX,
                                  "factors in a dimension"))
            return;
        dim->count++;
        if (cairn_map_lexer_accept(lexer, "(")) {
            parse_sum(map, lexer, factor);
        } else {
            factor->count = factor->terms[0].count = 1;
            factor->terms[0].axes[0] = cairn_map_symbol_take(map, lexer);
        }
    } while (cairn_map_lexer_accept(lexer, "*"));
}

/* Behind its "[". */
static void
parse_shape(struct cairn_map *map, struct cairn_map_lexer *lexer, struct cairn_map_tensor *tensor)
{
    tensor->shaped = true;
    while (!cairn_map_lexer_accept(lexer, "]")) {
        if (!cairn_map_lexer_room(lexer, tensor->dims, CAIRN_DIMS_MAX, "dimensions"))
            return;
        parse_dim(map, lexer, &tensor->dim[tensor->dims++]);
        if (!cairn_map_lexer_is(lexer, "]"))
            cairn_map_lexer_take(lexer, ",");
    }
}

/* ---- rules ---- */

static bool
ends_side(const struct cairn_map_lexer *lexer)
{
    return lexer->kind != CAIRN_MAP_WORD || cairn_map_lexer_is(lexer, "when") ||
           cairn_map_lexer_is(lexer, "given");
}

static void
parse_side(struct cairn_map *map, struct cairn_map_lexer *lexer, struct cairn_map_side *side)
{
    struct cairn_map_tensor *fitted;

    side->tensors = calloc(CAIRN_MAP_PARTS_MAX, sizeof(*side->tensors));
    if (!side->tensors) {
        cairn_map_lexer_stop(lexer, CAIRN_NOMEM);
        return;
    }
    do {
        struct cairn_map_tensor *tensor = &side->tensors[side->count];

        if (!cairn_map_lexer_room(lexer, side->count, CAIRN_MAP_PARTS_MAX, "tensors on a side"))
            return;
        side->count++;
        cairn_map_name_take(map, lexer, &tensor->name);
        if (cairn_map_lexer_accept(lexer, "["))
            parse_shape(map, lexer, tensor);
    } while (!ends_side(lexer));
    fitted = realloc(side->tensors, side->count * sizeof(*side->tensors));
    if (fitted) /* most sides have one tensor, and rules are many */
        side->tensors = fitted;
}

static void
parse_condition(const struct cairn_map *map, struct cairn_map_lexer *lexer,
                struct cairn_map_rule *rule)
{
    for (uint32_t c = 0; c < map->choice_count; c++) {
        const struct cairn_map_choice *choice = &map->choices[c];

        if (!cairn_map_lexer_is(lexer, choice->name))
            continue;
        if (rule->when[choice->side].choice != CAIRN_MAP_NONE)
            cairn_map_lexer_fail(lexer, "a rule has one choice of each side");
        rule->when[choice->side].choice = (int32_t)c;
        cairn_map_lexer_next(lexer);
        cairn_map_lexer_take(lexer, "=");
        for (uint32_t v = 0; v < choice->count; v++)
            if (cairn_map_lexer_accept(lexer, choice->values[v])) {
                rule->when[choice->side].value = (int32_t)v;
                return;
            }
        cairn_map_lexer_fail(lexer, "%s is not a value of the choice %s", lexer->word,
                             choice->name);
    }
    cairn_map_lexer_fail(
        lexer, "there is no choice \"%s\"; declare it before: choice %s NAME = VALUE VALUE",
        lexer->word, map->sides[1]);
}

static void
parse_conditions(struct cairn_map *map, struct cairn_map_lexer *lexer, struct cairn_map_rule *rule)
{
    uint32_t side;

    if (cairn_map_lexer_accept(lexer, "when"))
        do
            parse_condition(map, lexer, rule);
        while (lexer->kind == CAIRN_MAP_WORD && !cairn_map_lexer_is(lexer, "given"));
    if (!cairn_map_lexer_accept(lexer, "given"))
        return;
    side = cairn_map_side_take(map, lexer);
    cairn_map_name_take(map, lexer, &rule->given);
    rule->given_side = (int32_t)side;
    for (uint32_t i = 0; i < rule->given.capture_count; i++)
        if (!cairn_map_name_has(&rule->sides[side].tensors[0].name, rule->given.captures[i]))
            cairn_map_lexer_fail(lexer,
                                 "what is given has a number that the rule's tensors do not have");
}

void
cairn_map_rule_fini(struct cairn_map_rule *rule)
{
    free(rule->sides[0].tensors);
    free(rule->sides[1].tensors);
    memset(rule, 0, sizeof(*rule));
}

void
cairn_map_rule_parse(struct cairn_map *map, struct cairn_map_lexer *lexer,
                     struct cairn_map_rule *rule)
{
    *rule = (struct cairn_map_rule){.line = lexer->word_line,
                                    .file = lexer->file,
                                    .when = {{CAIRN_MAP_NONE, 0}, {CAIRN_MAP_NONE, 0}},
                                    .given_side = CAIRN_MAP_NONE};
    parse_side(map, lexer, &rule->sides[0]);
    cairn_map_lexer_take(lexer, "=");
    parse_side(map, lexer, &rule->sides[1]);
    parse_conditions(map, lexer, rule);
    if (lexer->kind != CAIRN_MAP_END)
        cairn_map_lexer_fail(lexer, "\"%s\" is too much for a rule", lexer->word);
    if (!lexer->err)
        cairn_map_lexer_stop(lexer, cairn_map_rule_check(map, rule, lexer->complaint));
}
