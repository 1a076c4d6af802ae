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
    char *copy = strdup(name);

    if (!copy)
        return CAIRN_NOMEM;
    parser->map->files[parser->map->file_count++] = copy;
    cairn_map_lexer_init(&parser->files[parser->depth++], copy, text, text_bytes,
                         parser->complaint);
    return CAIRN_OK;
}

static void
parse_include(struct parser *parser, struct cairn_map_lexer *lexer)
{
    char name[CAIRN_MAP_WORD_BYTES_MAX];
    size_t text_bytes = 0;
    const char *text =
        lexer->kind == CAIRN_MAP_WORD ? cairn_map_preset(lexer->word, &text_bytes) : NULL;

    if (!text)
        cairn_map_lexer_fail(lexer, "include takes the name of a preset");
    if (parser->depth == INCLUDES_MAX)
        cairn_map_lexer_fail(lexer, "includes are nested more than %d deep", INCLUDES_MAX);
    cairn_map_lexer_word(lexer, "a preset", name, sizeof(name));
    if (lexer->kind != CAIRN_MAP_END)
        cairn_map_lexer_fail(lexer, "include takes one name");
    if (parser->map->file_count == sizeof parser->map->files / sizeof *parser->map->files)
        cairn_map_lexer_fail(lexer, "too many files included");
    if (!lexer->err)
        cairn_map_lexer_stop(lexer, add_file(parser, name, text, text_bytes));
}

static void
parse_sides(struct parser *parser, struct cairn_map_lexer *lexer)
{
    char(*known)[CAIRN_MAP_WORD_BYTES_MAX] = parser->map->sides;
    char sides[2][CAIRN_MAP_WORD_BYTES_MAX];

    cairn_map_lexer_word(lexer, "the left side's name", sides[0], sizeof(sides[0]));
    cairn_map_lexer_word(lexer, "the right side's name", sides[1], sizeof(sides[1]));
    if (strcmp(sides[0], sides[1]) == 0)
        cairn_map_lexer_fail(lexer, "both sides are called %s", sides[0]);
    if (known[0][0] && (strcmp(sides[0], known[0]) != 0 || strcmp(sides[1], known[1]) != 0))
        cairn_map_lexer_fail(lexer, "the sides are %s and %s already", known[0], known[1]);
    memcpy(known, sides, sizeof(sides));
}

static void
parse_keys(struct cairn_map_lexer *lexer, struct cairn_map_number *number)
{
    while (lexer->kind == CAIRN_MAP_WORD && !cairn_map_lexer_is(lexer, "else") &&
           cairn_map_lexer_room(lexer, number->key_count, CAIRN_MAP_KEYS_MAX, "keys")) {
        struct cairn_map_key *key = &number->keys[number->key_count++];

        cairn_map_lexer_word(lexer, "a key", key->key, sizeof(key->key));
        if (!cairn_map_lexer_accept(lexer, "("))
            continue;
        cairn_map_lexer_word(lexer, "a key", key->only_if, sizeof(key->only_if));
        cairn_map_lexer_take(lexer, ")");
    }
}

static void
parse_number(struct parser *parser, struct cairn_map_lexer *lexer)
{
    struct cairn_map *map = parser->map;
    struct cairn_map_number number = {.left = CAIRN_MAP_NONE, .right = CAIRN_MAP_NONE, .op = ' '};
    bool expression = true;

    if (!cairn_map_lexer_room(lexer, map->number_count, CAIRN_MAP_NUMBERS_MAX, "numbers"))
        return;
    number.symbol = cairn_map_symbol_take(map, lexer);
    for (uint32_t i = 0; i < map->number_count; i++)
        if (map->numbers[i].symbol == number.symbol)
            cairn_map_lexer_fail(lexer, "duplicate number %s", map->symbols[number.symbol].name);
    if (map->symbols[number.symbol].literal)
        cairn_map_lexer_fail(lexer, "a number needs a name");
    if (cairn_map_lexer_accept(lexer, "from")) {
        parse_keys(lexer, &number);
        expression = cairn_map_lexer_accept(lexer, "else");
    } else {
        cairn_map_lexer_take(lexer, "=");
    }
    if (expression)
        number.left = (int32_t)cairn_map_symbol_take(map, lexer);
    if (expression && (cairn_map_lexer_is(lexer, "*") || cairn_map_lexer_is(lexer, "/"))) {
        number.op = lexer->word[0];
        cairn_map_lexer_next(lexer);
        number.right = (int32_t)cairn_map_symbol_take(map, lexer);
    }
    map->numbers[map->number_count++] = number;
}

static void
parse_choice(struct parser *parser, struct cairn_map_lexer *lexer)
{
    struct cairn_map *map = parser->map;
    struct cairn_map_choice choice = {.side = 0};

    if (!cairn_map_lexer_room(lexer, map->choice_count, CAIRN_MAP_CHOICES_MAX, "choices"))
        return;
    choice.side = cairn_map_side_take(map, lexer);
    cairn_map_lexer_word(lexer, "the choice's name", choice.name, sizeof(choice.name));
    for (uint32_t i = 0; i < map->choice_count; i++)
        if (strcmp(map->choices[i].name, choice.name) == 0)
            cairn_map_lexer_fail(lexer, "duplicate choice %s", choice.name);
    cairn_map_lexer_take(lexer, "=");
    while (lexer->kind == CAIRN_MAP_WORD &&
           cairn_map_lexer_room(lexer, choice.count, CAIRN_MAP_VALUES_MAX, "values"))
        cairn_map_lexer_word(lexer, "a value", choice.values[choice.count++],
                             sizeof(choice.values[0]));
    if (choice.count < 2)
        cairn_map_lexer_fail(lexer, "a choice has at least two values");
    map->choices[map->choice_count++] = choice;
}

static void
parse_drop(struct parser *parser, struct cairn_map_lexer *lexer)
{
    struct cairn_map *map = parser->map;

    if (!cairn_map_lexer_room(lexer, map->drop_count, CAIRN_MAP_DROPS_MAX, "drops"))
        return;
    map->drops[map->drop_count].side = cairn_map_side_take(map, lexer);
    cairn_map_name_take(map, lexer, &map->drops[map->drop_count++].name);
}

static void
parse_prefix(struct parser *parser, struct cairn_map_lexer *lexer)
{
    char *prefix = parser->map->prefixes[cairn_map_side_take(parser->map, lexer)];

    cairn_map_lexer_word(lexer, "a prefix", prefix, sizeof(parser->map->prefixes[0]));
}

static void
parse_rule(struct parser *parser, struct cairn_map_lexer *lexer)
{
    struct cairn_map *map = parser->map;

    if (!cairn_map_lexer_room(lexer, map->rule_count, CAIRN_MAP_RULES_MAX, "rules"))
        return;
    if (!cairn_array_grow(&map->rules, map->rule_count, sizeof(*map->rules)))
        cairn_map_lexer_stop(lexer, CAIRN_NOMEM);
    else
        cairn_map_rule_parse(map, lexer, &map->rules[map->rule_count++]);
}

static void
parse_statement(struct parser *parser, struct cairn_map_lexer *lexer)
{
    static const struct {
        const char *word;
        void (*parse)(struct parser *parser, struct cairn_map_lexer *lexer);
    } statements[] = {{"include", parse_include}, {"sides", parse_sides}, {"number", parse_number},
                      {"choice", parse_choice},   {"drop", parse_drop},   {"prefix", parse_prefix}};

    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!cairn_map_lexer_accept(lexer, statements[i].word))
            continue;
        statements[i].parse(parser, lexer);
        if (lexer->kind != CAIRN_MAP_END)
            cairn_map_lexer_fail(lexer,
                                 "\"%s\" is too much for a statement \"%s\"; the next "
                                 "statement begins in the first column",
                                 lexer->word, statements[i].word);
        return;
    }
    if (!parser->map->sides[0][0])
        cairn_map_lexer_fail(lexer,
                             "declare the two sides before the first rule: sides hf megatron");
    parse_rule(parser, lexer);
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
        struct cairn_map_lexer *lexer = &parser.files[parser.depth - 1];

        if (cairn_map_lexer_statement(lexer))
            parse_statement(&parser, lexer);
        else
            parser.depth--;
        err = lexer->err;
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
