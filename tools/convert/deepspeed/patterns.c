/* tools/convert/deepspeed/patterns.c - see deepspeed/patterns.h. */
#include "tools/convert/deepspeed/patterns.h"

#include <ctype.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
enum { DOUBLED_MAX = 3 };

struct cairn_deepspeed_pattern {
    char *text; /* as read */
    char *name; /* the one that it has, or the letters that all begin with */
    size_t name_bytes;
    uint32_t category;
    bool has_regex;
    regex_t regex;
    bool met;
};

/* What a pattern's last word was. */
enum word { NOTHING, ATOM, GROUP, REPEAT };

/*
 * Whether a *, +, ? or {n,m} at `at` is one that both know. Compiled, what a + or {n,m} repeats is
 * there several times, and that again for each around it: groups that are doubled are counted.
 */
static bool
may_repeat(const char *at, enum word last, uint32_t *doubled)
{
    size_t least, most = 0;

    if (last == NOTHING || last == REPEAT) /* lazy, or possessive */
        return false;
    if (*at == '+' && last == GROUP)
        return ++*doubled <= DOUBLED_MAX;
    if (*at != '{')
        return true;
    least = strspn(at + 1, "0123456789");
    at += 1 + least;
    if (*at == ',') {
        most = strspn(at + 1, "0123456789");
        at += 1 + most;
    } else if (least == 0) {
        return false;
    }
    return *at == '}' && least <= 1 && most <= 1 && last != GROUP;
}

/* Whether what a bracket begins with, or holds, means the same to both. */
static bool
is_plain_bracket(const char *at, bool inside)
{
    if (inside)
        return *at != '\\' && (*at != '[' || !at[1] || !strchr(":.=", at[1]));
    return *at != '[' || (at[1] != ']' && !(at[1] == '^' && at[2] == ']'));
}

/* Python's re.match as a POSIX expression: bound to the beginning, \d spelled out. False where it
 * says more than POSIX can. */
static bool
translate(const char *python, char *posix, size_t posix_bytes)
{
    enum word last = NOTHING;
    uint32_t doubled = 0;
    size_t used = 0;
    bool inside = false; /* of brackets, where POSIX knows no escapes */

    used += (size_t)snprintf(posix, posix_bytes, "^(");
    for (const char *at = python; *at; at++) {
        const char *add = NULL;
        char one[3] = {*at, '\0', '\0'};

        if (*at == '^' && at == python)
            continue;
        if ((*at == '(' && at[1] == '?') || !is_plain_bracket(at, inside) ||
            (!inside && strchr("*+?{", *at) && !may_repeat(at, last, &doubled)))
            return false;
        if (!inside)
            last = strchr("*+?{}", *at) ? REPEAT
                   : strchr("(|", *at)  ? NOTHING
                   : *at == ')'         ? GROUP
                                        : ATOM;
        inside = inside ? *at != ']' : *at == '[';
        if (*at == '\\') {
            at++;
            one[1] = *at;
            if (*at == '\0' || (isalnum((unsigned char)*at) && *at != 'd' && *at != 'w'))
                return false;
            add = *at == 'd' ? "[0-9]" : *at == 'w' ? "[A-Za-z0-9_]" : one;
            if (add == one && !strchr("\\.^$*+?()[]{}|", *at)) {
                /* an escape of what is nothing special */
                one[0] = *at;
                one[1] = '\0';
            }
        }
        add = add ? add : one;
        if (used + strlen(add) + 2 > posix_bytes)
            return false;
        memcpy(posix + used, add, strlen(add) + 1);
        used += strlen(add);
    }
    if (used + 2 > posix_bytes)
        return false;
    memcpy(posix + used, ")", 2);
    return true;
}

/* The name that a pattern begins with, letter by letter; *whole: it has this name alone,
 * "^name$". */
static void
find_name(const char *python, char name[CAIRN_DEEPSPEED_PATTERN_BYTES_MAX], bool *whole)
{
    size_t used = 0;
    const char *at = python + (*python == '^');

    *whole = false;
    name[0] = '\0';
    for (const char *bar = python; *bar; bar += *bar == '\\' && bar[1] ? 2 : 1)
        if (*bar == '|')
            return; /* others may begin otherwise */
    while (*at && (*at == '\\' ? !isalnum((unsigned char)at[1]) && at[1]
                               : !strchr("^$.*+?()[]{}|", *at))) {
        at += *at == '\\';
        name[used++] = *at++;
    }
    if (*at && strchr("*+?{", *at) && used > 0) /* which may be empty */
        used--;
    name[used] = '\0';
    *whole = *at == '$' && at[1] == '\0' && used > 0;
}

static cairn_err
make(struct cairn_deepspeed_pattern *pattern, uint32_t category, const char *python, bool *whole)
{
    char posix[3 * CAIRN_DEEPSPEED_PATTERN_BYTES_MAX], name[CAIRN_DEEPSPEED_PATTERN_BYTES_MAX];

    memset(pattern, 0, sizeof(*pattern));
    if (strlen(python) >= CAIRN_DEEPSPEED_PATTERN_BYTES_MAX ||
        !translate(python, posix, sizeof(posix)))
        return CAIRN_VERSION;
    find_name(python, name, whole);
    if (!*whole && regcomp(&pattern->regex, posix, REG_EXTENDED | REG_NOSUB) != 0)
        return CAIRN_VERSION;
    pattern->has_regex = !*whole;
    pattern->category = category;
    pattern->text = strdup(python);
    pattern->name = strdup(name);
    pattern->name_bytes = strlen(name);
    return pattern->text && pattern->name ? CAIRN_OK : CAIRN_NOMEM;
}

static void
end(struct cairn_deepspeed_pattern *pattern)
{
    if (pattern->has_regex)
        regfree(&pattern->regex);
    free(pattern->text);
    free(pattern->name);
}

cairn_err
cairn_deepspeed_patterns_add(struct cairn_deepspeed_patterns *patterns, uint32_t category,
                             const char *python)
{
    struct cairn_deepspeed_pattern made;
    bool whole = false;
    cairn_err err = make(&made, category, python, &whole);

    if (!err && (whole ? patterns->name_count == CAIRN_DEEPSPEED_PATTERNS_MAX
                       : patterns->expression_count == CAIRN_DEEPSPEED_EXPRESSIONS_MAX))
        err = CAIRN_VERSION;
    if (!err && !(whole ? cairn_array_grow(&patterns->names, patterns->name_count, sizeof(made))
                        : cairn_array_grow(&patterns->expressions, patterns->expression_count,
                                           sizeof(made))))
        err = CAIRN_NOMEM;
    if (err) {
        end(&made);
        return err;
    }
    if (whole)
        patterns->names[patterns->name_count++] = made;
    else
        patterns->expressions[patterns->expression_count++] = made;
    patterns->sorted = false;
    return CAIRN_OK;
}

static int
by_name(const void *left, const void *right)
{
    const struct cairn_deepspeed_pattern *a = left, *b = right;

    return strcmp(a->name, b->name);
}

/* The first pattern whose name is not before this one. */
static uint32_t
find(const struct cairn_deepspeed_patterns *patterns, const char *name)
{
    uint32_t begin = 0, stop = patterns->name_count;

    CAIRN_BISECT(begin, stop, middle, strcmp(patterns->names[middle].name, name) < 0);
    return begin;
}

uint32_t
cairn_deepspeed_patterns_match(struct cairn_deepspeed_patterns *patterns, const char *name)
{
    uint32_t categories = 0;

    if (!patterns->sorted && patterns->name_count > 1)
        qsort(patterns->names, patterns->name_count, sizeof(*patterns->names), by_name);
    patterns->sorted = true;
    for (uint32_t i = find(patterns, name);
         i < patterns->name_count && strcmp(patterns->names[i].name, name) == 0; i++) {
        patterns->names[i].met = true;
        categories |= UINT32_C(1) << patterns->names[i].category;
    }
    for (uint32_t i = 0; i < patterns->expression_count; i++) {
        struct cairn_deepspeed_pattern *pattern = &patterns->expressions[i];

        if (strncmp(pattern->name, name, pattern->name_bytes) != 0 ||
            regexec(&pattern->regex, name, 0, NULL, 0) != 0)
            continue;
        pattern->met = true;
        categories |= UINT32_C(1) << pattern->category;
    }
    return categories;
}

const char *
cairn_deepspeed_patterns_unmet(const struct cairn_deepspeed_patterns *patterns)
{
    for (uint32_t i = 0; i < patterns->expression_count; i++)
        if (!patterns->expressions[i].met)
            return patterns->expressions[i].text;
    for (uint32_t i = 0; i < patterns->name_count; i++)
        if (!patterns->names[i].met)
            return patterns->names[i].text;
    return NULL;
}

void
cairn_deepspeed_patterns_fini(struct cairn_deepspeed_patterns *patterns)
{
    for (uint32_t i = 0; i < patterns->name_count; i++)
        end(&patterns->names[i]);
    for (uint32_t i = 0; i < patterns->expression_count; i++)
        end(&patterns->expressions[i]);
    free(patterns->names);
    free(patterns->expressions);
    memset(patterns, 0, sizeof(*patterns));
}
