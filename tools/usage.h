/*
 * tools/usage.h - a verb's options as a table: parses them and prints the help.
 *
 * Options are long ("--wait", "--to DIR", "--to=DIR"); some have a letter too ("-o json"). "--"
 * ends them. An unknown option ends the command with exit code 64 and names the nearest known one.
 * "--help" (or -h) prints the synopsis, what the verb does, its options and examples, in lines of
 * at most 80 columns, and ends the command with exit code 0. "--help=man" does so as a man page
 * (tools/manual.h).
 */
#ifndef CAIRN_TOOLS_USAGE_H
#define CAIRN_TOOLS_USAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* An option with a value sets `text`, a switch sets `given`; the other one is NULL. If an option is
 * given twice, the last one wins. */
struct cairn_flag {
    const char *name;  /* without the dashes: "agent" */
    char letter;       /* 0: none */
    const char *value; /* name of the value for the help: "SOCKET"; NULL for a switch */
    const char *help;
    const char **text;
    bool *given;
};

struct cairn_usage {
    const char *verb;
    const char *synopsis; /* after "cairn VERB " */
    const char *about;    /* wrapped when printed; its line breaks are kept, and lines that begin
                           * with spaces continue below their second column */
    const char *examples; /* two lines at least, each ended by a newline */
    const struct cairn_flag *flags;
    size_t flag_count;
    const char
        *operand; /* the name of the words that are not options, as a value's: "FILE"; NULL: no such
                   * words are allowed. They start at *operand */
    void (*more)(FILE *out); /* prints what the help ends with; NULL: nothing */
};

/*
 * Parses argv[1 …]. True: go on; *operand (may be NULL) is the index of the first word that is not
 * an option, argc without one. Parsing stops there. False: the command ends with *exit_code, and
 * the error is printed.
 */
bool cairn_usage_parse(const struct cairn_usage *usage, int argc, char **argv, int *operand,
                       int *exit_code);

/* The help text of a verb. */
void cairn_usage_print(const struct cairn_usage *usage, FILE *out);

/* Prints a usage error to stderr, with the verb's synopsis; returns 64. */
int cairn_usage_error(const struct cairn_usage *usage, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The name nearest to a word, NULL if none is near (at most a third of its letters, and at least
 * one, differ). */
const char *cairn_nearest(const char *word, const char *const *names, size_t count);

#endif
