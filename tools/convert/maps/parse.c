/*
 * tools/convert/maps/parse.c - parses the language of maps/language.h.
 *
 * Files that are included are a stack, so nothing recurses. A rule is checked when it is complete:
 * each axis of one side is one of the other, so that every element has exactly one place.
 */
#include "base/array.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/maps/language.h"
#include "base/complaint.h"

/* ---- words ---- */

enum { TOKEN_BYTES_MAX = CAIRN_NAME_BYTES_MAX };

/* A word (letters, digits, "_.{}-:"), or one sign ("[](),=*+/"). */
enum token_kind { END, WORD, SIGN };

struct lexer {
    const char *file; /* for messages */
    const char *text;
    size_t text_bytes, at;
    uint32_t line, column; /* of `at`, from 1 on */
    /* The token that comes next. END: the statement is over, or something was wrong. */
    enum token_kind kind;
    char word[TOKEN_BYTES_MAX]; /* also a sign */
    uint32_t word_line, word_column;
    cairn_err err; /* of what was wrong first: nothing is taken after it */
    struct cairn_complaint *complaint;
};

enum { TEXT_BYTES_MAX = 600 };

static void
lexer_init(struct lexer *lexer, const char *file, const char *text, size_t text_bytes,
           struct cairn_complaint *complaint)
{
    *lexer = (struct lexer){.file = file,
                            .text = text,
                            .text_bytes = text_bytes,
                            .line = 1,
                            .column = 1,
                            .complaint = complaint};
}

/* Fails with an error, CAIRN_OK: does not, that is complained about. */
static void
lexer_stop(struct lexer *lexer, cairn_err err)
{
    if (lexer->err || !err)
        return;
    lexer->err = err;
    lexer->kind = END;
    lexer->word[0] = '\0';
}

/* Fails with CAIRN_CORRUPT, complained about with file, line and column of the next token. */
__attribute__((format(printf, 2, 3))) static void
lexer_fail(struct lexer *lexer, const char *format, ...)
{
    char text[TEXT_BYTES_MAX];
    va_list arguments;

    if (lexer->err)
        return;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    lexer_stop(lexer, cairn_complain(lexer->complaint, CAIRN_CORRUPT,
                                     "%.200s, line %" PRIu32 ", column %" PRIu32 ": %s",
                                     lexer->file, lexer->word_line, lexer->word_column, text));
}

/* The same where `count` things are as many as there may be. Whether nothing is wrong so far. */
static bool
lexer_room(struct lexer *lexer, uint32_t count, uint32_t max, const char *things)
{
    if (count >= max)
        lexer_fail(lexer, "more than %" PRIu32 " %s", max, things);
    return !lexer->err;
}

static int
look(const struct lexer *lexer)
{
    return lexer->at < lexer->text_bytes ? (unsigned char)lexer->text[lexer->at] : -1;
}

static void
step(struct lexer *lexer)
{
    if (lexer->text[lexer->at++] == '\n') {
        lexer->line++;
        lexer->column = 1;
    } else {
        lexer->column++;
    }
}

/* Passes over blanks, comments and ends of lines, to where a token may begin. */
static void
skip_blanks(struct lexer *lexer)
{
    bool comment = false;

    for (int c = look(lexer); c == '#' || (c != -1 && (comment || (c > 0 && strchr(" \t\r\n", c))));
         c = look(lexer)) {
        comment = (comment || c == '#') && c != '\n';
        step(lexer);
    }
    lexer->word_line = lexer->line;
    lexer->word_column = lexer->column;
}

static bool
is_word(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c > 0 && strchr("_.{}-:", c));
}

/* Reads the token that begins at `at`. */
static void
read_token(struct lexer *lexer)
{
    size_t used = 0;
    int c = look(lexer);

    if (is_word(c)) {
        lexer->kind = WORD;
        for (; is_word(look(lexer)) && used + 1 < sizeof(lexer->word); step(lexer))
            lexer->word[used++] = (char)look(lexer);
    } else if (c > 0 && strchr("[](),=*+/", c)) {
        lexer->kind = SIGN;
        lexer->word[used++] = (char)c;
        step(lexer);
    }
    lexer->word[used] = '\0';
    if (used == 0)
        lexer_fail(lexer,
                   "byte 0x%02x has no meaning here; names have letters, digits and _.{}-: in them",
                   (unsigned)c);
    else if (lexer->kind == WORD && is_word(look(lexer)))
        lexer_fail(lexer, "a word of more than %zu bytes", sizeof(lexer->word) - 1);
}

/* Goes to the next statement and reads its first token; false where there is none. */
static bool
lexer_statement(struct lexer *lexer)
{
    skip_blanks(lexer);
    if (look(lexer) == -1)
        return false;
    if (lexer->column != 1)
        lexer_fail(lexer, "a statement begins in the first column");
    else
        read_token(lexer);
    return true;
}

/* Reads the next token of the statement. */
static void
lexer_next(struct lexer *lexer)
{
    if (lexer->err)
        return;
    skip_blanks(lexer);
    lexer->kind = END;
    lexer->word[0] = '\0';
    if (look(lexer) != -1 && lexer->column != 1)
        read_token(lexer);
}

/* Whether the next token is this sign, or this word. */
static bool
lexer_is(const struct lexer *lexer, const char *word)
{
    return lexer->kind != END && strcmp(lexer->word, word) == 0;
}

/* Takes a sign or word if it comes next, and says whether it does. */
static bool
lexer_accept(struct lexer *lexer, const char *word)
{
    bool comes = lexer_is(lexer, word);

    if (comes)
        lexer_next(lexer);
    return comes;
}

static const char *
shown(const struct lexer *lexer)
{
    return lexer->kind == END ? "the end of the statement" : lexer->word;
}

/* Takes a sign or word that must come. */
static void
lexer_take(struct lexer *lexer, const char *word)
{
    if (!lexer_accept(lexer, word))
        lexer_fail(lexer, "%s, expected \"%s\"%s", shown(lexer), word,
                   lexer->kind == END ? "; further lines of a statement are indented" : "");
}

/* Takes a word of at most out_bytes - 1 bytes; `what` it should be is for the message. */
static void
lexer_word(struct lexer *lexer, const char *what, char *out, size_t out_bytes)
{
    if (lexer->kind != WORD)
        lexer_fail(lexer, "%s, expected %s", shown(lexer), what);
    else if (strlen(lexer->word) >= out_bytes)
        lexer_fail(lexer, "%s is longer than %zu bytes", lexer->word, out_bytes - 1);
    (void)snprintf(out, out_bytes, "%s", lexer->word);
    lexer_next(lexer);
}

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
intern(struct cairn_map *map, struct lexer *lexer, const char *text)
{
    struct cairn_map_symbol *added = &map->symbols[map->symbol_count];
    uint32_t found = symbol_find(map, text);
    size_t digits = strspn(text, "0123456789");
    bool number = digits > 0 && text[digits] == '\0';

    if (found != UINT32_MAX)
        return found;
    if (!lexer_room(lexer, map->symbol_count, CAIRN_MAP_SYMBOLS_MAX, "names of axes and numbers"))
        return 0;
    if (strlen(text) >= sizeof(added->name))
        lexer_fail(lexer, "%s is longer than %zu bytes", text, sizeof(added->name) - 1);
    else if (number && (text[0] == '0' || digits > 9))
        lexer_fail(lexer, "%s is not a size from 1 to 999999999", text);
    else if (!number && (digits > 0 || strpbrk(text, ".{}-:")))
        lexer_fail(lexer,
                   "%s is not a name of an axis or number: letters, digits and _, a letter first",
                   text);
    if (lexer->err)
        return 0;
    (void)strcpy(added->name, text);
    added->literal = number ? strtoul(text, NULL, 10) : 0;
    return map->symbol_count++;
}

/* A word as a symbol, added where it is new; whole numbers are literals. */
static uint32_t
symbol_take(struct cairn_map *map, struct lexer *lexer)
{
    char word[TOKEN_BYTES_MAX];
    uint32_t symbol = lexer->kind == WORD ? intern(map, lexer, lexer->word) : 0;

    lexer_word(lexer, "an axis or a number", word, sizeof(word));
    return symbol;
}

/* The name of a side. */
static uint32_t
side_take(const struct cairn_map *map, struct lexer *lexer)
{
    for (uint32_t side = 0; side < 2; side++)
        if (map->sides[side][0] && lexer_accept(lexer, map->sides[side]))
            return side;
    lexer_fail(lexer, "expected a side: %s or %s",
               map->sides[0][0] ? map->sides[0] : "what `sides` calls the left",
               map->sides[1][0] ? map->sides[1] : "the right one");
    return 0;
}

/* The name of a tensor. */
static void
name_take(struct cairn_map *map, struct lexer *lexer, struct cairn_map_name *name)
{
    char symbol[CAIRN_MAP_WORD_BYTES_MAX];

    memset(name, 0, sizeof(*name));
    for (const char *at = lexer->word; lexer->kind == WORD && *at; at++) {
        size_t bytes = strcspn(at + 1, "{}");
        uint32_t capture;

        if (*at == '}')
            lexer_fail(lexer, "a } without a {");
        if (*at != '{')
            continue;
        if (at[1 + bytes] != '}' || bytes == 0 || bytes >= sizeof(symbol))
            lexer_fail(lexer, "a { begins a name of a number such as {layer}");
        if (!lexer_room(lexer, name->capture_count, CAIRN_MAP_CAPTURES_MAX, "numbers in a name"))
            return;
        memcpy(symbol, at + 1, bytes);
        symbol[bytes] = '\0';
        capture = intern(map, lexer, symbol);
        if (map->symbols[capture].literal || cairn_map_name_has(name, capture))
            lexer_fail(lexer, "{%s} is not a name, or a duplicate", symbol);
        name->captures[name->capture_count++] = capture;
        at += bytes + 1;
        if (at[1] == '{' || (at[1] >= '0' && at[1] <= '9'))
            lexer_fail(lexer, "the end of the number {%s} is ambiguous", symbol);
    }
    lexer_word(lexer, "the name of a tensor", name->text, sizeof(name->text));
}

/* ---- dimensions ---- */

static void
parse_term(struct cairn_map *map, struct lexer *lexer, struct cairn_map_term *term)
{
    do {
        if (!lexer_room(lexer, term->count, CAIRN_MAP_AXES_MAX, "axes in a product of a sum"))
            return;
        term->axes[term->count++] = symbol_take(map, lexer);
    } while (lexer_accept(lexer, "*"));
}

/* Behind its "(". */
static void
parse_sum(struct cairn_map *map, struct lexer *lexer, struct cairn_map_factor *factor)
{
    do {
        if (!lexer_room(lexer, factor->count, CAIRN_MAP_PARTS_MAX, "terms in a sum"))
            return;
        parse_term(map, lexer, &factor->terms[factor->count++]);
    } while (lexer_accept(lexer, "+"));
    lexer_take(lexer, ")");
}

/* "vocab..padded": an axis and what it is padded to. */
static void
parse_padded(struct cairn_map *map, struct lexer *lexer, struct cairn_map_dim *dim)
{
    struct cairn_map_term *term = &dim->factors[0].terms[0];
    char axis[TOKEN_BYTES_MAX], *dots;

    (void)strcpy(axis, lexer->word);
    dots = strstr(axis, "..");
    *dots = '\0';
    dim->padded = true;
    dim->count = dim->factors[0].count = term->count = 1;
    term->axes[0] = intern(map, lexer, axis);
    if (dots[2])
        dim->padded_to = (int32_t)intern(map, lexer, dots + 2);
    lexer_word(lexer, "an axis", axis, sizeof(axis));
}

static void
parse_dim(struct cairn_map *map, struct lexer *lexer, struct cairn_map_dim *dim)
{
    dim->padded_to = CAIRN_MAP_NONE;
    if (lexer->kind == WORD && strstr(lexer->word, "..")) {
        parse_padded(map, lexer, dim);
        return;
    }
    do {
        struct cairn_map_factor *factor = &dim->factors[dim->count];

        if (!lexer_room(lexer, dim->count, CAIRN_MAP_FACTORS_MAX, "factors in a dimension"))
            return;
        dim->count++;
        if (lexer_accept(lexer, "(")) {
            parse_sum(map, lexer, factor);
        } else {
            factor->count = factor->terms[0].count = 1;
            factor->terms[0].axes[0] = symbol_take(map, lexer);
        }
    } while (lexer_accept(lexer, "*"));
}

/* Behind its "[". */
static void
parse_shape(struct cairn_map *map, struct lexer *lexer, struct cairn_map_tensor *tensor)
{
    tensor->shaped = true;
    while (!lexer_accept(lexer, "]")) {
        if (!lexer_room(lexer, tensor->dims, CAIRN_DIMS_MAX, "dimensions"))
            return;
        parse_dim(map, lexer, &tensor->dim[tensor->dims++]);
        if (!lexer_is(lexer, "]"))
            lexer_take(lexer, ",");
    }
}

/* ---- rules ---- */

static bool
ends_side(const struct lexer *lexer)
{
    return lexer->kind != WORD || lexer_is(lexer, "when") || lexer_is(lexer, "given");
}

static void
parse_side(struct cairn_map *map, struct lexer *lexer, struct cairn_map_side *side)
{
    struct cairn_map_tensor *fitted;

    side->tensors = calloc(CAIRN_MAP_PARTS_MAX, sizeof(*side->tensors));
    if (!side->tensors) {
        lexer_stop(lexer, CAIRN_NOMEM);
        return;
    }
    do {
        struct cairn_map_tensor *tensor = &side->tensors[side->count];

        if (!lexer_room(lexer, side->count, CAIRN_MAP_PARTS_MAX, "tensors on a side"))
            return;
        side->count++;
        name_take(map, lexer, &tensor->name);
        if (lexer_accept(lexer, "["))
            parse_shape(map, lexer, tensor);
    } while (!ends_side(lexer));
    fitted = realloc(side->tensors, side->count * sizeof(*side->tensors));
    if (fitted) /* most sides have one tensor, and rules are many */
        side->tensors = fitted;
}

static void
parse_condition(const struct cairn_map *map, struct lexer *lexer, struct cairn_map_rule *rule)
{
    for (uint32_t c = 0; c < map->choice_count; c++) {
        const struct cairn_map_choice *choice = &map->choices[c];

        if (!lexer_is(lexer, choice->name))
            continue;
        if (rule->when[choice->side].choice != CAIRN_MAP_NONE)
            lexer_fail(lexer, "a rule has one choice of each side");
        rule->when[choice->side].choice = (int32_t)c;
        lexer_next(lexer);
        lexer_take(lexer, "=");
        for (uint32_t v = 0; v < choice->count; v++)
            if (lexer_accept(lexer, choice->values[v])) {
                rule->when[choice->side].value = (int32_t)v;
                return;
            }
        lexer_fail(lexer, "%s is not a value of the choice %s", lexer->word, choice->name);
    }
    lexer_fail(lexer, "there is no choice \"%s\"; declare it before: choice %s NAME = VALUE VALUE",
               lexer->word, map->sides[1]);
}

static void
parse_conditions(struct cairn_map *map, struct lexer *lexer, struct cairn_map_rule *rule)
{
    uint32_t side;

    if (lexer_accept(lexer, "when"))
        do
            parse_condition(map, lexer, rule);
        while (lexer->kind == WORD && !lexer_is(lexer, "given"));
    if (!lexer_accept(lexer, "given"))
        return;
    side = side_take(map, lexer);
    name_take(map, lexer, &rule->given);
    rule->given_side = (int32_t)side;
    for (uint32_t i = 0; i < rule->given.capture_count; i++)
        if (!cairn_map_name_has(&rule->sides[side].tensors[0].name, rule->given.captures[i]))
            lexer_fail(lexer, "what is given has a number that the rule's tensors do not have");
}

static void
rule_fini(struct cairn_map_rule *rule)
{
    free(rule->sides[0].tensors);
    free(rule->sides[1].tensors);
    memset(rule, 0, sizeof(*rule));
}

/* Takes a whole rule, to its end. *rule is the caller's to end with rule_fini, also where it is
 * wrong. */
static void
rule_parse(struct cairn_map *map, struct lexer *lexer, struct cairn_map_rule *rule)
{
    *rule = (struct cairn_map_rule){.line = lexer->word_line,
                                    .file = lexer->file,
                                    .when = {{CAIRN_MAP_NONE, 0}, {CAIRN_MAP_NONE, 0}},
                                    .given_side = CAIRN_MAP_NONE};
    parse_side(map, lexer, &rule->sides[0]);
    lexer_take(lexer, "=");
    parse_side(map, lexer, &rule->sides[1]);
    parse_conditions(map, lexer, rule);
    if (lexer->kind != END)
        lexer_fail(lexer, "\"%s\" is too much for a rule", lexer->word);
    if (!lexer->err)
        lexer_stop(lexer, cairn_map_rule_check(map, rule, lexer->complaint));
}

enum { INCLUDES_MAX = 8 };

struct parser {
    struct cairn_map *map;
    struct lexer files[INCLUDES_MAX]; /* the last is read */
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
    lexer_init(&parser->files[parser->depth++], copy, text, text_bytes, parser->complaint);
    return CAIRN_OK;
}

static void
parse_include(struct parser *parser, struct lexer *lexer)
{
    char name[CAIRN_MAP_WORD_BYTES_MAX];
    size_t text_bytes = 0;
    const char *text = lexer->kind == WORD ? cairn_map_preset(lexer->word, &text_bytes) : NULL;

    if (!text)
        lexer_fail(lexer, "include takes the name of a preset");
    if (parser->depth == INCLUDES_MAX)
        lexer_fail(lexer, "includes are nested more than %d deep", INCLUDES_MAX);
    lexer_word(lexer, "a preset", name, sizeof(name));
    if (lexer->kind != END)
        lexer_fail(lexer, "include takes one name");
    if (parser->map->file_count == sizeof parser->map->files / sizeof *parser->map->files)
        lexer_fail(lexer, "too many files included");
    if (!lexer->err)
        lexer_stop(lexer, add_file(parser, name, text, text_bytes));
}

static void
parse_sides(struct parser *parser, struct lexer *lexer)
{
    char(*known)[CAIRN_MAP_WORD_BYTES_MAX] = parser->map->sides;
    char sides[2][CAIRN_MAP_WORD_BYTES_MAX];

    lexer_word(lexer, "the left side's name", sides[0], sizeof(sides[0]));
    lexer_word(lexer, "the right side's name", sides[1], sizeof(sides[1]));
    if (strcmp(sides[0], sides[1]) == 0)
        lexer_fail(lexer, "both sides are called %s", sides[0]);
    if (known[0][0] && (strcmp(sides[0], known[0]) != 0 || strcmp(sides[1], known[1]) != 0))
        lexer_fail(lexer, "the sides are %s and %s already", known[0], known[1]);
    memcpy(known, sides, sizeof(sides));
}

static void
parse_keys(struct lexer *lexer, struct cairn_map_number *number)
{
    while (lexer->kind == WORD && !lexer_is(lexer, "else") &&
           lexer_room(lexer, number->key_count, CAIRN_MAP_KEYS_MAX, "keys")) {
        struct cairn_map_key *key = &number->keys[number->key_count++];

        lexer_word(lexer, "a key", key->key, sizeof(key->key));
        if (!lexer_accept(lexer, "("))
            continue;
        lexer_word(lexer, "a key", key->only_if, sizeof(key->only_if));
        lexer_take(lexer, ")");
    }
}

static void
parse_number(struct parser *parser, struct lexer *lexer)
{
    struct cairn_map *map = parser->map;
    struct cairn_map_number number = {.left = CAIRN_MAP_NONE, .right = CAIRN_MAP_NONE, .op = ' '};
    bool expression = true;

    if (!lexer_room(lexer, map->number_count, CAIRN_MAP_NUMBERS_MAX, "numbers"))
        return;
    number.symbol = symbol_take(map, lexer);
    for (uint32_t i = 0; i < map->number_count; i++)
        if (map->numbers[i].symbol == number.symbol)
            lexer_fail(lexer, "duplicate number %s", map->symbols[number.symbol].name);
    if (map->symbols[number.symbol].literal)
        lexer_fail(lexer, "a number needs a name");
    if (lexer_accept(lexer, "from")) {
        parse_keys(lexer, &number);
        expression = lexer_accept(lexer, "else");
    } else {
        lexer_take(lexer, "=");
    }
    if (expression)
        number.left = (int32_t)symbol_take(map, lexer);
    if (expression && (lexer_is(lexer, "*") || lexer_is(lexer, "/"))) {
        number.op = lexer->word[0];
        lexer_next(lexer);
        number.right = (int32_t)symbol_take(map, lexer);
    }
    map->numbers[map->number_count++] = number;
}

static void
parse_choice(struct parser *parser, struct lexer *lexer)
{
    struct cairn_map *map = parser->map;
    struct cairn_map_choice choice = {.side = 0};

    if (!lexer_room(lexer, map->choice_count, CAIRN_MAP_CHOICES_MAX, "choices"))
        return;
    choice.side = side_take(map, lexer);
    lexer_word(lexer, "the choice's name", choice.name, sizeof(choice.name));
    for (uint32_t i = 0; i < map->choice_count; i++)
        if (strcmp(map->choices[i].name, choice.name) == 0)
            lexer_fail(lexer, "duplicate choice %s", choice.name);
    lexer_take(lexer, "=");
    while (lexer->kind == WORD && lexer_room(lexer, choice.count, CAIRN_MAP_VALUES_MAX, "values"))
        lexer_word(lexer, "a value", choice.values[choice.count++], sizeof(choice.values[0]));
    if (choice.count < 2)
        lexer_fail(lexer, "a choice has at least two values");
    map->choices[map->choice_count++] = choice;
}

static void
parse_drop(struct parser *parser, struct lexer *lexer)
{
    struct cairn_map *map = parser->map;

    if (!lexer_room(lexer, map->drop_count, CAIRN_MAP_DROPS_MAX, "drops"))
        return;
    map->drops[map->drop_count].side = side_take(map, lexer);
    name_take(map, lexer, &map->drops[map->drop_count++].name);
}

static void
parse_prefix(struct parser *parser, struct lexer *lexer)
{
    char *prefix = parser->map->prefixes[side_take(parser->map, lexer)];

    lexer_word(lexer, "a prefix", prefix, sizeof(parser->map->prefixes[0]));
}

static void
parse_rule(struct parser *parser, struct lexer *lexer)
{
    struct cairn_map *map = parser->map;

    if (!lexer_room(lexer, map->rule_count, CAIRN_MAP_RULES_MAX, "rules"))
        return;
    if (!cairn_array_grow(&map->rules, map->rule_count, sizeof(*map->rules)))
        lexer_stop(lexer, CAIRN_NOMEM);
    else
        rule_parse(map, lexer, &map->rules[map->rule_count++]);
}

static void
parse_statement(struct parser *parser, struct lexer *lexer)
{
    static const struct {
        const char *word;
        void (*parse)(struct parser *parser, struct lexer *lexer);
    } statements[] = {{"include", parse_include}, {"sides", parse_sides}, {"number", parse_number},
                      {"choice", parse_choice},   {"drop", parse_drop},   {"prefix", parse_prefix}};

    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!lexer_accept(lexer, statements[i].word))
            continue;
        statements[i].parse(parser, lexer);
        if (lexer->kind != END)
            lexer_fail(lexer,
                       "\"%s\" is too much for a statement \"%s\"; the next "
                       "statement begins in the first column",
                       lexer->word, statements[i].word);
        return;
    }
    if (!parser->map->sides[0][0])
        lexer_fail(lexer, "declare the two sides before the first rule: sides hf megatron");
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
        struct lexer *lexer = &parser.files[parser.depth - 1];

        if (lexer_statement(lexer))
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
        rule_fini(&map->rules[i]);
    for (uint32_t i = 0; i < map->file_count; i++)
        free(map->files[i]);
    free(map->rules);
    free(map);
}
