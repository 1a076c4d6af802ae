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

cairn_err
cairn_map_lexer_fail(struct cairn_map_lexer *lexer, const char *format, ...)
{
    char text[TEXT_BYTES_MAX];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return cairn_complain(lexer->complaint, CAIRN_CORRUPT,
                          "%.200s, line %" PRIu32 ", column %" PRIu32 ": %s", lexer->file,
                          lexer->word_line, lexer->word_column, text);
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

/* Passes over blanks, comments and ends of lines. */
static void
skip_blanks(struct cairn_map_lexer *lexer)
{
    for (;;) {
        int c = look(lexer);

        if (c == '#') {
            while (look(lexer) != -1 && look(lexer) != '\n')
                step(lexer);
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
            step(lexer);
        } else {
            return;
        }
    }
}

static bool
is_word(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c > 0 && strchr("_.{}-:", c));
}

/* Reads the token that begins at `at`. */
static cairn_err
read_token(struct cairn_map_lexer *lexer)
{
    size_t used = 0;
    int c = look(lexer);

    lexer->word_line = lexer->line;
    lexer->word_column = lexer->column;
    if (is_word(c)) {
        lexer->kind = CAIRN_MAP_WORD;
        for (; is_word(look(lexer)); step(lexer)) {
            if (used + 1 == sizeof(lexer->word))
                return cairn_map_lexer_fail(lexer, "a word of more than %zu bytes",
                                            sizeof(lexer->word) - 1);
            lexer->word[used++] = (char)look(lexer);
        }
    } else if (c > 0 && strchr("[](),=*+/", c)) {
        lexer->kind = CAIRN_MAP_SIGN;
        lexer->word[used++] = (char)c;
        step(lexer);
    } else {
        return cairn_map_lexer_fail(
            lexer, "byte 0x%02x has no meaning here; names have letters, digits and _.{}-: in them",
            (unsigned)c);
    }
    lexer->word[used] = '\0';
    return CAIRN_OK;
}

cairn_err
cairn_map_lexer_statement(struct cairn_map_lexer *lexer, bool *more)
{
    skip_blanks(lexer);
    lexer->word_line = lexer->line;
    lexer->word_column = lexer->column;
    *more = look(lexer) != -1;
    if (!*more)
        return CAIRN_OK;
    if (lexer->column != 1)
        return cairn_map_lexer_fail(lexer, "a statement begins in the first column");
    return read_token(lexer);
}

cairn_err
cairn_map_lexer_next(struct cairn_map_lexer *lexer)
{
    skip_blanks(lexer);
    if (look(lexer) == -1 || lexer->column == 1) {
        lexer->kind = CAIRN_MAP_END;
        lexer->word[0] = '\0';
        lexer->word_line = lexer->line;
        lexer->word_column = lexer->column;
        return CAIRN_OK;
    }
    return read_token(lexer);
}

bool
cairn_map_lexer_is(const struct cairn_map_lexer *lexer, const char *word)
{
    return lexer->kind != CAIRN_MAP_END && strcmp(lexer->word, word) == 0;
}

static const char *
shown(const struct cairn_map_lexer *lexer)
{
    return lexer->kind == CAIRN_MAP_END ? "the end of the statement" : lexer->word;
}

cairn_err
cairn_map_lexer_take(struct cairn_map_lexer *lexer, const char *word)
{
    if (!cairn_map_lexer_is(lexer, word))
        return cairn_map_lexer_fail(
            lexer, "%s, expected \"%s\"%s", shown(lexer), word,
            lexer->kind == CAIRN_MAP_END ? "; further lines of a statement are indented" : "");
    return cairn_map_lexer_next(lexer);
}

cairn_err
cairn_map_lexer_word(struct cairn_map_lexer *lexer, const char *what, char *out, size_t out_bytes)
{
    if (lexer->kind != CAIRN_MAP_WORD)
        return cairn_map_lexer_fail(lexer, "%s, expected %s", shown(lexer), what);
    if (strlen(lexer->word) >= out_bytes)
        return cairn_map_lexer_fail(lexer, "%s is longer than %zu bytes", lexer->word,
                                    out_bytes - 1);
    (void)strcpy(out, lexer->word);
    return cairn_map_lexer_next(lexer);
}
