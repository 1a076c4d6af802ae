/*
 * tools/relaunch_words.h - placeholders in the words of a command, such as {nodes}, filled in by
 * each relaunch. Pure.
 *
 * A placeholder is a name of lower-case letters and underscores in braces. {{name}} means the word
 * {name} itself; other braces, and ${name} of a shell, are left alone.
 */
#ifndef CAIRN_TOOLS_RELAUNCH_WORDS_H
#define CAIRN_TOOLS_RELAUNCH_WORDS_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>

enum { CAIRN_WORD_NAME_BYTES = 32 };

/* What a placeholder stands for in this round. */
struct cairn_word {
    const char *name; /* without the braces */
    bool is_shape;    /* a command that uses it can run on another number of nodes */
    const char *text; /* its value; NULL: there is none */
};

/*
 * Looks for placeholders. CAIRN_OK: *is_shape is set if one of them names the shape, *count is
 * their number. CAIRN_NOT_FOUND: unknown[CAIRN_WORD_NAME_BYTES] is not in `known`; cut if it is
 * long.
 */
CAIRN_MUST_CHECK cairn_err cairn_words_check(char *const *words, const struct cairn_word *known,
                                             size_t known_count, size_t *count, bool *is_shape,
                                             char *unknown);

/* Whether one of the words contains this placeholder. */
bool cairn_words_use(char *const *words, const char *name);

/* A copy of the words, filled in, ended by NULL like them; the caller ends it with
 * cairn_words_free. CAIRN_NOT_FOUND: a placeholder is unknown or has no value; CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_words_fill(char *const *words, const struct cairn_word *known,
                                            size_t known_count, char ***out);
void cairn_words_free(char **words); /* NULL is allowed */

#endif
