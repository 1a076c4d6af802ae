/*
 * tools/convert/maps/parse.c - parses the language of maps/language.h.
 *
 * Files that are included are a stack, so nothing recurses. A rule is checked when it is complete:
 * each axis of one side is one of the other, so that every element has exactly one place.
 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "tools/convert/maps/language.h"
#include "tools/convert/maps/lexer.h"
#include "tools/convert/maps/rule.h"

enum { INCLUDES_MAX = 8 };

struct parser {
    struct cairn_map *map;
    struct cairn_map_lexer files[INCLUDES_MAX]; /* the last is read */
    uint32_t depth;
    struct cairn_complaint *complaint;
};

static cairn_err
add_file(struct parser *parser, const char *name, const char *text, size_t text_bytes)
{
    struct cairn_map *map = parser->map;
    char *copy;

    if (map->file_count == sizeof map->files / sizeof *map->files)
        return cairn_map_lexer_fail(&parser->files[parser->depth - 1], "too many files included");
    copy = strdup(name);
    if (!copy)
        return CAIRN_NOMEM;
    map->files[map->file_count++] = copy;
    cairn_map_lexer_init(&parser->files[parser->depth++], copy, text, text_bytes,
                         parser->complaint);
    return CAIRN_OK;
}

static cairn_err
parse_include(struct parser *parser, struct cairn_map_lexer *lexer)
{
    char name[CAIRN_MAP_WORD_BYTES_MAX];
    size_t text_bytes = 0;
    const char *text;

    if (lexer->kind != CAIRN_MAP_WORD || !(text = cairn_map_preset(lexer->word, &text_bytes)))
        return cairn_map_lexer_fail(lexer, "include takes the name of a preset");
    if (parser->depth == INCLUDES_MAX)
        return cairn_map_lexer_fail(lexer, "includes are nested more than %d deep", INCLUDES_MAX);
    if (cairn_map_lexer_word(lexer, "a preset", name, sizeof(name)) != CAIRN_OK)
        return CAIRN_CORRUPT;
    if (lexer->kind != CAIRN_MAP_END)
        return cairn_map_lexer_fail(lexer, "include takes one name");
    return add_file(parser, name, text, text_bytes);
}

static cairn_err
parse_sides(struct parser *parser, struct cairn_map_lexer *lexer)
{
    char sides[2][CAIRN_MAP_WORD_BYTES_MAX];
    cairn_err err;

    err = cairn_map_lexer_word(lexer, "the left side's name", sides[0], sizeof(sides[0]));
    if (!err)
        err = cairn_map_lexer_word(lexer, "the right side's name", sides[1], sizeof(sides[1]));
    if (err)
        return err;
    if (strcmp(sides[0], sides[1]) == 0)
        return cairn_map_lexer_fail(lexer, "both sides are called %s", sides[0]);
    if (parser->map->sides[0][0] && memcmp(sides, parser->map->sides, sizeof(sides)) != 0 &&
        (strcmp(sides[0], parser->map->sides[0]) != 0 ||
         strcmp(sides[1], parser->map->sides[1]) != 0))
        return cairn_map_lexer_fail(lexer, "the sides are %s and %s already", parser->map->sides[0],
                                    parser->map->sides[1]);
    memcpy(parser->map->sides, sides, sizeof(sides));
    return CAIRN_OK;
}

static cairn_err
parse_keys(struct cairn_map_lexer *lexer, struct cairn_map_number *number)
{
    cairn_err err = CAIRN_OK;

    while (!err && lexer->kind == CAIRN_MAP_WORD && !cairn_map_lexer_is(lexer, "else")) {
        struct cairn_map_key *key = &number->keys[number->key_count];

        if (number->key_count == CAIRN_MAP_KEYS_MAX)
            return cairn_map_lexer_fail(lexer, "more than %d keys", CAIRN_MAP_KEYS_MAX);
        number->key_count++;
        err = cairn_map_lexer_word(lexer, "a key", key->key, sizeof(key->key));
        if (err || !cairn_map_lexer_is(lexer, "("))
            continue;
        err = cairn_map_lexer_take(lexer, "(");
        if (!err)
            err = cairn_map_lexer_word(lexer, "a key", key->only_if, sizeof(key->only_if));
        if (!err)
            err = cairn_map_lexer_take(lexer, ")");
    }
    return err;
}

static cairn_err
parse_number(struct parser *parser, struct cairn_map_lexer *lexer)
{
    struct cairn_map *map = parser->map;
    struct cairn_map_number number = {.left = CAIRN_MAP_NONE, .right = CAIRN_MAP_NONE, .op = ' '};
    bool expression = false;
    uint32_t symbol = 0;
    cairn_err err;

    if (map->number_count == CAIRN_MAP_NUMBERS_MAX)
        return cairn_map_lexer_fail(lexer, "more than %d numbers", CAIRN_MAP_NUMBERS_MAX);
    err = cairn_map_symbol_take(map, lexer, &number.symbol);
    for (uint32_t i = 0; !err && i < map->number_count; i++)
        if (map->numbers[i].symbol == number.symbol)
            return cairn_map_lexer_fail(lexer, "duplicate number %s",
                                        map->symbols[number.symbol].name);
    if (!err && map->symbols[number.symbol].literal)
        return cairn_map_lexer_fail(lexer, "a number needs a name");
    if (!err && cairn_map_lexer_is(lexer, "from")) {
        err = cairn_map_lexer_take(lexer, "from");
        if (!err)
            err = parse_keys(lexer, &number);
        expression = !err && cairn_map_lexer_is(lexer, "else");
        if (expression)
            err = cairn_map_lexer_take(lexer, "else");
    } else if (!err) {
        err = cairn_map_lexer_take(lexer, "=");
        expression = true;
    }
    if (!err && expression) {
        err = cairn_map_symbol_take(map, lexer, &symbol);
        number.left = (int32_t)symbol;
    }
    if (!err && expression && (cairn_map_lexer_is(lexer, "*") || cairn_map_lexer_is(lexer, "/"))) {
        number.op = lexer->word[0];
        err = cairn_map_lexer_next(lexer);
        if (!err)
            err = cairn_map_symbol_take(map, lexer, &symbol);
        number.right = (int32_t)symbol;
    }
    if (!err)
        map->numbers[map->number_count++] = number;
    return err;
}

static cairn_err
parse_choice(struct parser *parser, struct cairn_map_lexer *lexer)
{
    struct cairn_map_choice choice = {.side = 0};
    struct cairn_map *map = parser->map;
    cairn_err err;

    if (map->choice_count == CAIRN_MAP_CHOICES_MAX)
        return cairn_map_lexer_fail(lexer, "more than %d choices", CAIRN_MAP_CHOICES_MAX);
    err = cairn_map_side_take(map, lexer, &choice.side);
    if (!err)
        err = cairn_map_lexer_word(lexer, "the choice's name", choice.name, sizeof(choice.name));
    for (uint32_t i = 0; !err && i < map->choice_count; i++)
        if (strcmp(map->choices[i].name, choice.name) == 0)
            return cairn_map_lexer_fail(lexer, "duplicate choice %s", choice.name);
    if (!err)
        err = cairn_map_lexer_take(lexer, "=");
    while (!err && lexer->kind == CAIRN_MAP_WORD) {
        if (choice.count == CAIRN_MAP_VALUES_MAX)
            return cairn_map_lexer_fail(lexer, "more than %d values", CAIRN_MAP_VALUES_MAX);
        err = cairn_map_lexer_word(lexer, "a value", choice.values[choice.count],
                                   sizeof(choice.values[0]));
        choice.count++;
    }
    if (!err && choice.count < 2)
        return cairn_map_lexer_fail(lexer, "a choice has at least two values");
    if (!err)
        map->choices[map->choice_count++] = choice;
    return err;
}

static cairn_err
parse_drop(struct parser *parser, struct cairn_map_lexer *lexer)
{
    struct cairn_map *map = parser->map;
    struct cairn_map_drop drop = {.side = 0};
    cairn_err err;

    if (map->drop_count == CAIRN_MAP_DROPS_MAX)
        return cairn_map_lexer_fail(lexer, "more than %d drops", CAIRN_MAP_DROPS_MAX);
    err = cairn_map_side_take(map, lexer, &drop.side);
    if (!err)
        err = cairn_map_name_take(map, lexer, &drop.name);
    if (!err)
        map->drops[map->drop_count++] = drop;
    return err;
}

static cairn_err
parse_prefix(struct parser *parser, struct cairn_map_lexer *lexer)
{
    uint32_t side = 0;
    cairn_err err;

    err = cairn_map_side_take(parser->map, lexer, &side);
    if (!err)
        err = cairn_map_lexer_word(lexer, "a prefix", parser->map->prefixes[side],
                                   sizeof(parser->map->prefixes[side]));
    return err;
}

static cairn_err
add_rule(struct parser *parser, struct cairn_map_lexer *lexer)
{
    struct cairn_map *map = parser->map;
    struct cairn_map_rule rule;
    cairn_err err;

    if (map->rule_count == CAIRN_MAP_RULES_MAX)
        return cairn_map_lexer_fail(lexer, "more than %d rules", CAIRN_MAP_RULES_MAX);
    if (!cairn_array_grow(&map->rules, map->rule_count, sizeof(*map->rules)))
        return CAIRN_NOMEM;
    err = cairn_map_rule_parse(map, lexer, &rule);
    if (!err)
        map->rules[map->rule_count++] = rule;
    return err;
}

static cairn_err
parse_statement(struct parser *parser)
{
    static const struct {
        const char *word;
        cairn_err (*parse)(struct parser *parser, struct cairn_map_lexer *lexer);
    } statements[] = {{"include", parse_include}, {"sides", parse_sides}, {"number", parse_number},
                      {"choice", parse_choice},   {"drop", parse_drop},   {"prefix", parse_prefix}};
    struct cairn_map_lexer *lexer = &parser->files[parser->depth - 1];
    cairn_err err;

    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!cairn_map_lexer_is(lexer, statements[i].word))
            continue;
        err = cairn_map_lexer_next(lexer);
        if (!err)
            err = statements[i].parse(parser, lexer);
        if (!err && lexer->kind != CAIRN_MAP_END)
            err = cairn_map_lexer_fail(lexer,
                                       "\"%s\" is too much for a statement \"%s\"; the next "
                                       "statement begins in the first column",
                                       lexer->word, statements[i].word);
        return err;
    }
    if (!parser->map->sides[0][0])
        return cairn_map_lexer_fail(
            lexer, "declare the two sides before the first rule: sides hf megatron");
    return add_rule(parser, lexer);
}

cairn_err
cairn_map_parse(const char *file, const char *text, size_t text_bytes, struct cairn_map **out,
                struct cairn_complaint *complaint)
{
    struct parser parser = {.complaint = complaint};
    cairn_err err = CAIRN_OK;

    parser.map = calloc(1, sizeof(*parser.map));
    if (!parser.map)
        return cairn_complain(complaint, CAIRN_NOMEM, "%s: no memory to parse it", file);
    if (text_bytes > CAIRN_MAP_BYTES_MAX)
        err = cairn_complain(complaint, CAIRN_CORRUPT, "%s: a map of more than %d bytes", file,
                             CAIRN_MAP_BYTES_MAX);
    if (!err)
        err = add_file(&parser, file, text, text_bytes);
    while (!err && parser.depth > 0) {
        bool more = false;

        err = cairn_map_lexer_statement(&parser.files[parser.depth - 1], &more);
        if (!err && more)
            err = parse_statement(&parser);
        else if (!err)
            parser.depth--;
    }
    if (!err && parser.map->rule_count == 0)
        err = cairn_complain(complaint, CAIRN_CORRUPT, "%s: has no rule", file);
    if (err) {
        cairn_map_destroy(parser.map);
        return cairn_complain(complaint, err, "%s: no memory to parse it", file);
    }
    *out = parser.map;
    return CAIRN_OK;
}

void
cairn_map_destroy(struct cairn_map *map)
{
    if (!map)
        return;
    for (uint32_t i = 0; i < map->rule_count; i++)
        cairn_map_rule_fini(&map->rules[i]);
    for (uint32_t i = 0; i < map->file_count; i++)
        free(map->files[i]);
    free(map->rules);
    free(map);
}
