/* tools/convert/maps/lexer.h - the words of a map file, with the line and column of each; inner
 * part of maps/parse.c. */
#ifndef CAIRN_TOOLS_CONVERT_MAPS_LEXER_H
#define CAIRN_TOOLS_CONVERT_MAPS_LEXER_H

#include "cairn/types.h"
#include "base/complaint.h"

enum { CAIRN_MAP_TOKEN_BYTES_MAX = CAIRN_NAME_BYTES_MAX };

/* A word (letters, digits, "_.{}-:"), or one sign ("[](),=*+/"). */
enum cairn_map_token_kind { CAIRN_MAP_END, CAIRN_MAP_WORD, CAIRN_MAP_SIGN };

struct cairn_map_lexer {
    const char *file; /* for messages */
    const char *text;
    size_t text_bytes, at;
    uint32_t line, column; /* of `at`, from 1 on */
    /* The token that comes next. END: the statement is over, or something was wrong. */
    enum cairn_map_token_kind kind;
    char word[CAIRN_MAP_TOKEN_BYTES_MAX]; /* also a sign */
    uint32_t word_line, word_column;
    cairn_err err; /* of what was wrong first: nothing is taken after it */
    struct cairn_complaint *complaint;
};

void cairn_map_lexer_init(struct cairn_map_lexer *lexer, const char *file, const char *text,
                          size_t text_bytes, struct cairn_complaint *complaint);

/* Goes to the next statement and reads its first token; false where there is none. */
bool cairn_map_lexer_statement(struct cairn_map_lexer *lexer);

/* Reads the next token of the statement. */
void cairn_map_lexer_next(struct cairn_map_lexer *lexer);

/* Whether the next token is this sign, or this word. */
bool cairn_map_lexer_is(const struct cairn_map_lexer *lexer, const char *word);

/* Takes a sign or word if it comes next, and says whether it does. */
bool cairn_map_lexer_accept(struct cairn_map_lexer *lexer, const char *word);

/* Takes a sign or word that must come. */
void cairn_map_lexer_take(struct cairn_map_lexer *lexer, const char *word);

/* Takes a word of at most out_bytes - 1 bytes; `what` it should be is for the message. */
void cairn_map_lexer_word(struct cairn_map_lexer *lexer, const char *what, char *out,
                          size_t out_bytes);

/* Fails with CAIRN_CORRUPT, complained about with file, line and column of the next token. */
void cairn_map_lexer_fail(struct cairn_map_lexer *lexer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same where `count` things are as many as there may be. Whether nothing is wrong so far. */
bool cairn_map_lexer_room(struct cairn_map_lexer *lexer, uint32_t count, uint32_t max,
                          const char *things);

/* Fails with an error, CAIRN_OK: does not, that is complained about. */
void cairn_map_lexer_stop(struct cairn_map_lexer *lexer, cairn_err err);

#endif
