/*
 * tools/manual.h - writes the manual from the verbs' tables: man pages, shell completions.
 *
 *   cairn manual man [VERB]       a page in roff, of a verb or of the whole command
 *   cairn manual bash|zsh|fish    a shell's completion
 *   cairn manual words NAME       what a value of that name can be here: FORMAT, JOB, E:S …
 *
 * A verb's table is in its own function. `cairn VERB --help=FORM` writes the verb's part of a form,
 * and `cairn manual` runs that for all verbs. The shells ask `words` while they complete.
 */
#ifndef CAIRN_TOOLS_MANUAL_H
#define CAIRN_TOOLS_MANUAL_H

#include "tools/usage.h"
#include "tools/verb.h"

enum cairn_manual_form {
    CAIRN_MANUAL_NONE = 0,
    CAIRN_MANUAL_MAN,
    CAIRN_MANUAL_BASH,
    CAIRN_MANUAL_ZSH,
    CAIRN_MANUAL_FISH
};

/* The verbs in the order of the help. A row without a function begins a group; one without a help
 * is hidden. */
struct cairn_verbs {
    const struct cairn_verb *rows;
    size_t count;
    const char *release; /* "0.1.0" */
};

/* The form of a name such as "man"; CAIRN_MANUAL_NONE if there is none. */
enum cairn_manual_form cairn_manual_form(const char *name);

/* Runs `cairn manual …`; returns the exit code. */
int cairn_manual_run(const struct cairn_verbs *verbs, int argc, char **argv);

/* Writes a verb's part from its table. */
void cairn_manual_print(enum cairn_manual_form form, const struct cairn_usage *usage, FILE *out);

/* ---- manual_page.c ---- */

/* Page of the command: `verb` is NULL. Page of a verb: the text before the verb's part. */
void cairn_page_begin(const struct cairn_verbs *verbs, const struct cairn_verb *verb, FILE *out);
void cairn_page_print(const struct cairn_usage *usage, FILE *out);

/* ---- manual_shell.c ---- */

/* What comes before and behind the verbs' parts. */
void cairn_shell_begin(enum cairn_manual_form form, const struct cairn_verbs *verbs, FILE *out);
void cairn_shell_print(enum cairn_manual_form form, const struct cairn_usage *usage, FILE *out);
void cairn_shell_end(enum cairn_manual_form form, FILE *out);

/* ---- manual_words.c ---- */

/* Prints the possible values here, one word a line; nothing without such a list. */
void cairn_words_print(const char *name, FILE *out);

#endif
