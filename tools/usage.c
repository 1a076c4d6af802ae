/* tools/usage.c - parsing a verb's options, its help, and the nearest name to a mistyped one. */
#include "tools/usage.h"

#include "tools/verb.h"

#include <stdarg.h>
#include <string.h>

enum { NAME_CHARS_MAX = 40, NAMES_MAX = 64 };

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

void
cairn_usage_print(const struct cairn_usage *usage, FILE *out)
{
    fprintf(out, "usage: cairn %s %s\n\n%s\n\noptions:\n", usage->verb, usage->synopsis,
            usage->about);
    for (size_t i = 0; i < usage->flag_count; i++) {
        const struct cairn_flag *flag = &usage->flags[i];
        char left[64], letter[8] = "";

        if (flag->letter)
            snprintf(letter, sizeof letter, "-%c, ", flag->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, flag->name, flag->value ? " " : "",
                 flag->value ? flag->value : "");
        fprintf(out, "  %-26s %s\n", left, flag->help);
    }
    fprintf(out, "  %-26s %s\n\nexamples:\n%s", "-h, --help", "this text", usage->examples);
}

int
cairn_usage_error(const struct cairn_usage *usage, const char *format, ...)
{
    va_list arguments;

    fprintf(stderr, "cairn %s: ", usage->verb);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\nusage: cairn %s %s\nMore: cairn %s --help\n", usage->verb, usage->synopsis,
            usage->verb);
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
        return cairn_usage_error(usage, "there is no option %s", word);
    memcpy(typed, word + 2, len);
    typed[len] = '\0';
    near = cairn_nearest(typed, names, count);
    return near ? cairn_usage_error(usage, "there is no option --%s; did you mean --%s?", typed,
                                    near)
                : cairn_usage_error(usage, "there is no option --%s", typed);
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
    if (at < argc && !usage->operands) {
        *exit_code = cairn_usage_error(usage, "\"%s\" is one word too many", argv[at]);
        return false;
    }
    if (operand)
        *operand = at;
    return true;
}
