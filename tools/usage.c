/* tools/usage.c - parses a verb's options, prints its help, finds the nearest name to a typo. */
#include "tools/usage.h"

#include "tools/manual.h"
#include "tools/verb.h"

#include <stdarg.h>
#include <string.h>

enum { NAME_CHARS_MAX = 40, NAMES_MAX = 64, COLUMNS = 80, OPTION_COLUMN = 29 };

static size_t
least(size_t a, size_t b, size_t c)
{
    size_t smaller = a < b ? a : b;

    return smaller < c ? smaller : c;
}

/* Letters to add, drop, change or swap to make one word of the other; SIZE_MAX for words too long
 * to be a typo. */
static size_t
distance(const char *from, const char *to)
{
    size_t rows[3][NAME_CHARS_MAX + 1];
    size_t from_len = strlen(from), to_len = strlen(to);

    if (from_len > NAME_CHARS_MAX || to_len > NAME_CHARS_MAX)
        return SIZE_MAX;
    for (size_t j = 0; j <= to_len; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= from_len; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];

        row[0] = i;
        for (size_t j = 1; j <= to_len; j++) {
            row[j] = least(above[j] + 1, row[j - 1] + 1, above[j - 1] + (from[i - 1] != to[j - 1]));
            if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] &&
                two_above[j - 2] + 1 < row[j])
                row[j] = two_above[j - 2] + 1;
        }
    }
    return rows[from_len % 3][to_len];
}

const char *
cairn_nearest(const char *word, const char *const *names, size_t count)
{
    const char *best = NULL;
    size_t best_distance = strlen(word) / 3 > 1 ? strlen(word) / 3 : 1;

    for (size_t i = 0; i < count; i++) {
        size_t far = distance(word, names[i]);

        if (far < best_distance || (far == best_distance && !best)) {
            best = names[i];
            best_distance = far;
        }
    }
    return best;
}

/* Columns that a UTF-8 text takes. */
static size_t
columns_of(const char *text, size_t len)
{
    size_t columns = 0;

    for (size_t i = 0; i < len; i++)
        columns += ((unsigned char)text[i] & 0xc0) != 0x80;
    return columns;
}

/* Prints words from column `at` on in lines of COLUMNS; further lines begin at column `indent`. A
 * word that is longer than a line stays whole. */
static void
print_wrapped(FILE *out, const char *text, size_t len, size_t at, size_t indent)
{
    bool first = true;

    for (size_t i = 0; i < len;) {
        size_t spaces = 0, word = 0, columns;

        while (i + spaces < len && text[i + spaces] == ' ')
            spaces++;
        while (i + spaces + word < len && text[i + spaces + word] != ' ')
            word++;
        columns = columns_of(text + i + spaces, word);
        if (!first && at + spaces + columns > COLUMNS) {
            fprintf(out, "\n%*s", (int)indent, "");
            at = indent;
            spaces = 0;
            i += strspn(text + i, " ");
        }
        fprintf(out, "%*s%.*s", (int)spaces, "", (int)word, text + i + spaces);
        at += spaces + columns;
        i += spaces + word;
        first = false;
    }
    fputc('\n', out);
}

/* Where a line of `about` continues: below its second column if it is a row of a table. */
static size_t
indent_of(const char *line, size_t len)
{
    size_t at = strspn(line, " ");

    if (at == 0 || at >= len)
        return 0;
    at += strcspn(line + at, " \n");
    return at < len ? at + strspn(line + at, " ") : 0;
}

static void
print_synopsis(const struct cairn_usage *usage, FILE *out)
{
    int verb_columns = fprintf(out, "usage: cairn %s ", usage->verb);

    print_wrapped(out, usage->synopsis, strlen(usage->synopsis), (size_t)verb_columns,
                  (size_t)verb_columns);
}

static void
print_option(const struct cairn_flag *flag, FILE *out)
{
    char left[64], letter[8] = "";

    if (flag->letter)
        snprintf(letter, sizeof letter, "-%c, ", flag->letter);
    snprintf(left, sizeof left, "%s--%s%s%s", letter, flag->name, flag->value ? " " : "",
             flag->value ? flag->value : "");
    if (strlen(left) + 2 < OPTION_COLUMN)
        fprintf(out, "  %-26s ", left);
    else
        fprintf(out, "  %s\n%*s", left, OPTION_COLUMN, "");
    print_wrapped(out, flag->help, strlen(flag->help), OPTION_COLUMN, OPTION_COLUMN);
}

void
cairn_usage_print(const struct cairn_usage *usage, FILE *out)
{
    static const struct cairn_flag help = {"help", 'h', NULL, "print this text", NULL, NULL};
    const char *line = usage->about;

    print_synopsis(usage, out);
    fputc('\n', out);
    while (*line) {
        size_t len = strcspn(line, "\n");

        print_wrapped(out, line, len, 0, indent_of(line, len));
        line += len + (line[len] == '\n');
    }
    fprintf(out, "\noptions:\n");
    for (size_t i = 0; i < usage->flag_count; i++)
        print_option(&usage->flags[i], out);
    print_option(&help, out);
    fprintf(out, "\nexamples:\n%s", usage->examples);
    if (usage->more) {
        fputc('\n', out);
        usage->more(out);
    }
}

int
cairn_usage_error(const struct cairn_usage *usage, const char *format, ...)
{
    va_list arguments;

    fprintf(stderr, "cairn %s: ", usage->verb);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    print_synopsis(usage, stderr);
    fprintf(stderr, "See `cairn help %s`.\n", usage->verb);
    return CAIRN_EXIT_USAGE;
}

/* The table's entry for a word such as "--to=DIR" or "-o"; *value is what follows "=", or NULL. */
static const struct cairn_flag *
find(const struct cairn_usage *usage, const char *word, const char **value)
{
    const char *equals = strchr(word, '=');
    size_t len = equals ? (size_t)(equals - word) : strlen(word);

    *value = NULL;
    for (size_t i = 0; i < usage->flag_count; i++) {
        const struct cairn_flag *flag = &usage->flags[i];

        if (word[1] != '-' && word[1] == flag->letter && word[1] != '\0') {
            *value = word[2] ? word + 2 : NULL;
            return flag;
        }
        if (word[1] == '-' && len - 2 == strlen(flag->name) &&
            strncmp(word + 2, flag->name, len - 2) == 0) {
            *value = equals ? equals + 1 : NULL;
            return flag;
        }
    }
    return NULL;
}

static int
unknown(const struct cairn_usage *usage, const char *word)
{
    const char *names[NAMES_MAX];
    char typed[NAME_CHARS_MAX + 1];
    const char *near;
    size_t count = 0, len = strcspn(word + 2, "=");

    while (count < usage->flag_count && count < NAMES_MAX) {
        names[count] = usage->flags[count].name;
        count++;
    }
    if (word[1] != '-' || len > NAME_CHARS_MAX)
        return cairn_usage_error(usage, "unknown option %s", word);
    memcpy(typed, word + 2, len);
    typed[len] = '\0';
    near = cairn_nearest(typed, names, count);
    return near ? cairn_usage_error(usage, "unknown option --%s; did you mean --%s?", typed, near)
                : cairn_usage_error(usage, "unknown option --%s", typed);
}

bool
cairn_usage_parse(const struct cairn_usage *usage, int argc, char **argv, int *operand,
                  int *exit_code)
{
    int at = 1;

    for (; at < argc && argv[at][0] == '-' && argv[at][1] != '\0'; at++) {
        const struct cairn_flag *flag;
        const char *word = argv[at], *value;

        if (strcmp(word, "--") == 0) {
            at++;
            break;
        }
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            cairn_usage_print(usage, stdout);
            *exit_code = CAIRN_EXIT_OK;
            return false;
        }
        if (strncmp(word, "--help=", 7) == 0 && cairn_manual_form(word + 7)) {
            cairn_manual_print(cairn_manual_form(word + 7), usage, stdout);
            *exit_code = CAIRN_EXIT_OK;
            return false;
        }
        flag = find(usage, word, &value);
        if (!flag) {
            *exit_code = unknown(usage, word);
            return false;
        }
        if (!flag->value) {
            if (value) {
                *exit_code = cairn_usage_error(usage, "--%s takes no value", flag->name);
                return false;
            }
            *flag->given = true;
            continue;
        }
        if (!value && at + 1 < argc)
            value = argv[++at];
        if (!value) {
            *exit_code = cairn_usage_error(usage, "--%s needs a value: --%s %s", flag->name,
                                           flag->name, flag->value);
            return false;
        }
        *flag->text = value;
    }
    if (at < argc && !usage->operand) {
        *exit_code = cairn_usage_error(usage, "unexpected argument \"%s\"; remove it", argv[at]);
        return false;
    }
    if (operand)
        *operand = at;
    return true;
}
