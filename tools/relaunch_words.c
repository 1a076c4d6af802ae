/* tools/relaunch_words.c - see relaunch_words.h. */
#include "tools/relaunch_words.h"

#include <stdlib.h>
#include <string.h>

static const char letters[] = "abcdefghijklmnopqrstuvwxyz_";

/* A word is a sequence of these. */
enum piece { PIECE_TEXT = 1, PIECE_NAME, PIECE_QUOTED };

/* The piece at the begin of `at`: its bytes, and those of its name behind *name. */
static enum piece
next_piece(const char *at, bool after_dollar, size_t *bytes, const char **name, size_t *name_bytes)
{
    size_t braces = strspn(at, "{"), inner;

    *bytes = 1;
    if (braces == 0) {
        *bytes = strcspn(at, "{");
        return PIECE_TEXT;
    }
    inner = strspn(at + braces, letters);
    *name = at + braces;
    *name_bytes = inner;
    if (inner == 0 || after_dollar)
        return PIECE_TEXT;
    if (braces == 1 && at[1 + inner] == '}') {
        *bytes = inner + 2;
        return PIECE_NAME;
    }
    if (braces == 2 && strncmp(at + 2 + inner, "}}", 2) == 0) {
        *bytes = inner + 4;
        return PIECE_QUOTED;
    }
    return PIECE_TEXT;
}

static const struct cairn_word *
find(const struct cairn_word *known, size_t known_count, const char *name, size_t name_bytes)
{
    for (size_t i = 0; i < known_count; i++)
        if (strlen(known[i].name) == name_bytes && memcmp(known[i].name, name, name_bytes) == 0)
            return &known[i];
    return NULL;
}

cairn_err
cairn_words_check(char *const *words, const struct cairn_word *known, size_t known_count,
                  size_t *count, bool *is_shape, char *unknown)
{
    size_t found = 0;
    bool shape = false;

    for (; *words; words++) {
        size_t bytes, name_bytes = 0;
        const char *name = NULL;

        for (const char *at = *words; *at; at += bytes) {
            bool after_dollar = at > *words && at[-1] == '$';
            const struct cairn_word *word;

            if (next_piece(at, after_dollar, &bytes, &name, &name_bytes) != PIECE_NAME)
                continue;
            word = find(known, known_count, name, name_bytes);
            if (!word) {
                if (name_bytes >= CAIRN_WORD_NAME_BYTES)
                    name_bytes = CAIRN_WORD_NAME_BYTES - 1;
                memcpy(unknown, name, name_bytes);
                unknown[name_bytes] = '\0';
                return CAIRN_NOT_FOUND;
            }
            found++;
            shape = shape || word->is_shape;
        }
    }
    *count = found;
    *is_shape = shape;
    return CAIRN_OK;
}

bool
cairn_words_use(char *const *words, const char *name)
{
    for (; *words; words++) {
        size_t bytes, name_bytes = 0;
        const char *found = NULL;

        for (const char *at = *words; *at; at += bytes)
            if (next_piece(at, at > *words && at[-1] == '$', &bytes, &found, &name_bytes) ==
                    PIECE_NAME &&
                name_bytes == strlen(name) && memcmp(found, name, name_bytes) == 0)
                return true;
    }
    return false;
}

/* Writes a word into out, or counts its bytes if out is NULL. */
static cairn_err
fill_word(const char *word, const struct cairn_word *known, size_t known_count, char *out,
          size_t *out_bytes)
{
    size_t used = 0, bytes, name_bytes = 0;
    const char *name = NULL;

    for (const char *at = word; *at; at += bytes) {
        enum piece piece = next_piece(at, at > word && at[-1] == '$', &bytes, &name, &name_bytes);
        const char *from = at;
        size_t from_bytes = bytes;

        if (piece == PIECE_NAME) {
            const struct cairn_word *value = find(known, known_count, name, name_bytes);

            if (!value || !value->text)
                return CAIRN_NOT_FOUND;
            from = value->text;
            from_bytes = strlen(from);
        } else if (piece == PIECE_QUOTED) {
            from = at + 1;
            from_bytes = bytes - 2;
        }
        if (out)
            memcpy(out + used, from, from_bytes);
        used += from_bytes;
    }
    if (out)
        out[used] = '\0';
    *out_bytes = used + 1;
    return CAIRN_OK;
}

cairn_err
cairn_words_fill(char *const *words, const struct cairn_word *known, size_t known_count,
                 char ***out)
{
    size_t count = 0, bytes;
    char **filled;
    cairn_err err = CAIRN_OK;

    while (words[count])
        count++;
    filled = calloc(count + 1, sizeof *filled);
    if (!filled)
        return CAIRN_NOMEM;
    for (size_t i = 0; i < count && !err; i++) {
        err = fill_word(words[i], known, known_count, NULL, &bytes);
        if (!err)
            filled[i] = malloc(bytes);
        if (!err && !filled[i])
            err = CAIRN_NOMEM;
        if (!err)
            err = fill_word(words[i], known, known_count, filled[i], &bytes);
    }
    if (err) {
        cairn_words_free(filled);
        return err;
    }
    *out = filled;
    return CAIRN_OK;
}

void
cairn_words_free(char **words)
{
    for (char **word = words; word && *word; word++)
        free(*word);
    free(words);
}
