/* tools/convert/maps/lexer.c - see maps/lexer.h. */
#include "tools/convert/maps/lexer.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES_MAX = 600 };

void
cairn_map_lexer_init(struct cairn_map_lexer *lexer, const char *file, const char *text,
                     size_t text_bytes, struct cairn_complaint *complaint)
{
    *lexer = (struct cairn_map_lexer){.file = file,
                                      .text = text,
                                      .text_bytes = text_bytes,
                                      .line = 1,
                                      .column = 1,
                                      .complaint = complaint};
}

void
cairn_map_lexer_stop(struct cairn_map_lexer *lexer, cairn_err err)
{
    if (lexer->err || !err)
        return;
    lexer->err = err;
    lexer->kind = CAIRN_MAP_END;
    lexer->word[0] = '\0';
}

void
cairn_map_lexer_fail(struct cairn_map_lexer *lexer, const char *format, ...)
{
    char text[TEXT_BYTES_MAX];
    va_list arguments;

    if (lexer->err)
        return;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    cairn_map_lexer_stop(lexer,
                         cairn_complain(lexer->complaint, CAIRN_CORRUPT,
                                        "%.200s, line %" PRIu32 ", column %" PRIu32 ": %s",
                                        lexer->file, lexer->word_line, lexer->word_column, text));
}

bool
cairn_map_lexer_room(struct cairn_map_lexer *lexer, uint32_t count, uint32_t max,
                     const char *things)
{
    if (count >= max)
        cairn_map_lexer_fail(lexer, "more than %" PRIu32 " %s", max, things);
    return !lexer->err;
}

static int
look(const struct cairn_map_lexer *lexer)
{
    return lexer->at < lexer->text_bytes ? (unsigned char)lexer->text[lexer->at] : -1;
}

static void
step(struct cairn_map_lexer *lexer)
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
skip_blanks(struct cairn_map_lexer *lexer)
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
read_token(struct cairn_map_lexer *lexer)
{
    size_t used = 0;
    int c = look(lexer);

    if (is_word(c)) {
        lexer->kind = CAIRN_MAP_WORD;
        for (; is_word(look(lexer)) && used + 1 < sizeof(lexer->word); step(lexer))
            lexer->word[used++] = (char)look(lexer);
    } else if (c > 0 && strchr("[](),=*+/", c)) {
        lexer->kind = CAIRN_MAP_SIGN;
        lexer->word[used++] = (char)c;
        step(lexer);
    }
    lexer->word[used] = '\0';
    if (used == 0)
        cairn_map_lexer_fail(
            lexer, "byte 0x%02x has no meaning here; names have letters, digits and _.{}-: in them",
            (unsigned)c);
    else if (lexer->kind == CAIRN_MAP_WORD && is_word(look(lexer)))
        cairn_map_lexer_fail(lexer, "a word of more than %zu bytes", sizeof(lexer->word) - 1);
}

bool
cairn_map_lexer_statement(struct cairn_map_lexer *lexer)
{
    skip_blanks(lexer);
    if (look(lexer) == -1)
        return false;
    if (lexer->column != 1)
        cairn_map_lexer_fail(lexer, "a statement begins in the first column");
    else
        read_token(lexer);
    return true;
}

void
cairn_map_lexer_next(struct cairn_map_lexer *lexer)
{
    if (lexer->err)
        return;
    skip_blanks(lexer);
    lexer->kind = CAIRN_MAP_END;
    lexer->word[0] = '\0';
    if (look(lexer) != -1 && lexer->column != 1)
        read_token(lexer);
}

bool
cairn_map_lexer_is(const struct cairn_map_lexer *lexer, const char *word)
{
    return lexer->kind != CAIRN_MAP_END && strcmp(lexer->word, word) == 0;
}

bool
cairn_map_lexer_accept(struct cairn_map_lexer *lexer, const char *word)
{
    bool comes = cairn_map_lexer_is(lexer, word);

    if (comes)
        cairn_map_lexer_next(lexer);
    return comes;
}

static const char *
shown(const struct cairn_map_lexer *lexer)
{
    return lexer->kind == CAIRN_MAP_END ? "the end of the statement" : lexer->word;
}

void
cairn_map_lexer_take(struct cairn_map_lexer *lexer, const char *word)
{
    if (!cairn_map_lexer_accept(lexer, word))
        cairn_map_lexer_fail(
            lexer, "%s, expected \"%s\"%s", shown(lexer), word,
            lexer->kind == CAIRN_MAP_END ? "; further lines of a statement are indented" : "");
}

void
cairn_map_lexer_word(struct cairn_map_lexer *lexer, const char *what, char *out, size_t out_bytes)
{
    if (lexer->kind != CAIRN_MAP_WORD)
        cairn_map_lexer_fail(lexer, "%s, expected %s", shown(lexer), what);
    else if (strlen(lexer->word) >= out_bytes)
        cairn_map_lexer_fail(lexer, "%s is longer than %zu bytes", lexer->word, out_bytes - 1);
    (void)snprintf(out, out_bytes, "%s", lexer->word);
    cairn_map_lexer_next(lexer);
}
