/* tools/convert/deepspeed_cuts.c - see deepspeed_cuts.h. */
#include "tools/convert/deepspeed_cuts.h"

#include <ctype.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERN_BYTES_MAX = 1024, PATTERNS_MAX = 1 << 20, DOUBLED_MAX = 3 };

#define TOO_LARGE "it is larger than any memory"

enum category { REPLICATED, AVERAGED, COLUMNS, VOCABULARY, HALVES, SUB_PARAMETERS, UNSUPPORTED };

struct cairn_deepspeed_pattern {
    enum category category;
    regex_t regex;
    char *text;
    bool met; /* it names a parameter */
};

/* What a pattern's last word was. */
enum word { NOTHING, ATOM, GROUP, REPEAT };

/*
 * Whether a *, +, ? or {n,m} at `at` is one that both know. Compiled, what a + or {n,m} repeats is there several
 * times, and that again for each around it: groups that are doubled are counted.
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

/* Python's re.match as a POSIX expression: bound to the beginning, \d spelled out. False where it says more than POSIX
 * can. */
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
            if (add == one && !strchr("\\.^$*+?()[]{}|", *at)) { /* an escape of what is nothing special */
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

static cairn_err
add_pattern(struct cairn_deepspeed_cuts *cuts, enum category category,
            const struct cairn_pickle_node *node, const char **why)
{
    char python[PATTERN_BYTES_MAX], posix[3 * PATTERN_BYTES_MAX];
    struct cairn_deepspeed_pattern *grown;

    *why = "a pattern in universal_checkpoint_info is no regular expression that is understood here";
    if (!cairn_pickle_copy_text(node, python, sizeof(python)) ||
        !translate(python, posix, sizeof(posix)) || cuts->pattern_count == PATTERNS_MAX)
        return CAIRN_VERSION;
    grown = realloc(cuts->patterns, ((size_t)cuts->pattern_count + 1) * sizeof(*grown));
    if (!grown)
        return CAIRN_NOMEM;
    cuts->patterns = grown;
    if (regcomp(&grown[cuts->pattern_count].regex, posix, REG_EXTENDED | REG_NOSUB) != 0)
        return CAIRN_VERSION;
    grown += cuts->pattern_count++;
    grown->category = category;
    grown->met = false;
    grown->text = strdup(python);
    return grown->text ? CAIRN_OK : CAIRN_NOMEM;
}

static bool
is_list(const struct cairn_pickle_node *node)
{
    return node->kind == CAIRN_PICKLE_LIST || node->kind == CAIRN_PICKLE_TUPLE;
}

static cairn_err
add_list(struct cairn_deepspeed_cuts *cuts, enum category category,
         const struct cairn_pickle_node *list, const char **why)
{
    cairn_err err = CAIRN_OK;

    *why = "what universal_checkpoint_info has under a key of patterns is no list";
    if (list && !is_list(list))
        return CAIRN_VERSION;
    for (uint32_t i = 0; list && i < list->count && !err; i++)
        err = add_pattern(cuts, category, list->items[i], why);
    return err;
}

/* NULL where it is None as well. */
static const struct cairn_pickle_node *
get_said(const struct cairn_pickle_node *info, const char *key)
{
    const struct cairn_pickle_node *node = cairn_pickle_get(info, key);

    return node && node->kind != CAIRN_PICKLE_NONE ? node : NULL;
}

cairn_err
cairn_deepspeed_cuts_read(const struct cairn_pickle_node *info, struct cairn_deepspeed_cuts *out,
                          const char **why)
{
    static const struct {
        const char *key;
        enum category category;
    } lists[] = {{"tp_replicated_parameter_patterns", REPLICATED},
                 {"parameter_to_average_patterns", AVERAGED},
                 {"parameter_with_row_parallelism_patterns", COLUMNS},
                 {"vocabulary_parameter_patterns", VOCABULARY},
                 {"parameter_with_2_sub_params_cat_dim_0", HALVES}};
    const struct cairn_pickle_node *refused =
        get_said(info, "autotp_unsupported_parameter_patterns");
    const struct cairn_pickle_node *unsupported = cairn_pickle_pairs(refused);
    const struct cairn_pickle_node *subs = get_said(info, "parameter_with_sub_params");
    cairn_err err = CAIRN_OK;

    memset(out, 0, sizeof(*out));
    *why = "universal_checkpoint_info is no dict";
    if (!cairn_pickle_pairs(info))
        return CAIRN_VERSION;
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists) && !err; i++)
        err = add_list(out, lists[i].category, cairn_pickle_get(info, lists[i].key), why);
    if (!err && ((refused && !unsupported) || (subs && !is_list(subs)))) {
        *why = "what universal_checkpoint_info has under a key of patterns is not what DeepSpeed writes";
        err = CAIRN_VERSION;
    }
    for (uint32_t i = 0; subs && i < subs->count && !err; i++) {
        const struct cairn_pickle_node *entry = subs->items[i];
        const struct cairn_pickle_node *patterns = cairn_pickle_get(entry, "patterns");

        if (!patterns)
            patterns = cairn_pickle_attribute(entry, "patterns");
        *why = "parameter_with_sub_params in universal_checkpoint_info has no patterns";
        err = patterns ? add_list(out, SUB_PARAMETERS, patterns, why) : CAIRN_VERSION;
    }
    for (uint32_t i = 0; unsupported && i < unsupported->count && !err; i++)
        err = add_pattern(out, UNSUPPORTED, unsupported->items[2 * i], why);
    if (!err && !cairn_pickle_u64(cairn_pickle_get(info, "original_vocab_size"), &out->vocabulary))
        out->vocabulary = 0;
    return err;
}

void
cairn_deepspeed_cuts_fini(struct cairn_deepspeed_cuts *cuts)
{
    for (uint32_t i = 0; i < cuts->pattern_count; i++) {
        regfree(&cuts->patterns[i].regex);
        free(cuts->patterns[i].text);
    }
    free(cuts->patterns);
    memset(cuts, 0, sizeof(*cuts));
}

const char *
cairn_deepspeed_cuts_unmet(const struct cairn_deepspeed_cuts *cuts)
{
    for (uint32_t i = 0; i < cuts->pattern_count; i++)
        if (!cuts->patterns[i].met)
            return cuts->patterns[i].text;
    return NULL;
}

/* The rank's [first; second] as part of [all firsts; all seconds]. */
static const char *
cut_halves(uint32_t dims, const uint64_t *shape, uint32_t ranks, uint32_t rank,
           struct cairn_deepspeed_cut *out)
{
    uint64_t half = shape[0] / 2;

    if (shape[0] % 2 != 0)
        return "a parameter of two halves has an odd number of rows";
    if (__builtin_mul_overflow(shape[0], ranks, &out->shape[0]))
        return TOO_LARGE;
    out->box_count = 2;
    for (uint32_t b = 0; b < 2; b++) {
        struct cairn_deepspeed_cut_box *box = &out->boxes[b];

        memcpy(box->extent, shape, dims * sizeof(*shape));
        memset(box->start, 0, sizeof(box->start));
        box->extent[0] = half;
        box->start[0] = ((uint64_t)b * ranks + rank) * half;
        box->row = b * half;
    }
    return NULL;
}

const char *
cairn_deepspeed_cut(struct cairn_deepspeed_cuts *cuts, const char *path, uint32_t dims,
                    const uint64_t *shape, uint32_t ranks, uint32_t rank,
                    struct cairn_deepspeed_cut *out)
{
    bool is[UNSUPPORTED + 1] = {false};
    struct cairn_deepspeed_cut_box *box = &out->boxes[0];
    uint32_t along;

    for (uint32_t i = 0; i < cuts->pattern_count; i++)
        if (regexec(&cuts->patterns[i].regex, path, 0, NULL, 0) == 0)
            is[cuts->patterns[i].category] = cuts->patterns[i].met = true;
    memset(out, 0, sizeof(*out));
    memcpy(out->shape, shape, dims * sizeof(*shape));
    memcpy(box->extent, shape, dims * sizeof(*shape));
    out->box_count = 1;
    if (is[UNSUPPORTED])
        return "DeepSpeed itself says that it cannot be put together";
    if (is[REPLICATED] || is[AVERAGED]) /* where averaged ones differ, the comparison of replicas says so */
        return NULL;
    if (is[SUB_PARAMETERS])
        return "it is several parameters in one (parameter_with_sub_params), which is not read";
    along = is[COLUMNS] ? 1 : 0;
    if (dims <= along)
        return "it has not the dimension that it is cut along";
    if (is[HALVES])
        return is[VOCABULARY] || is[COLUMNS] ? "two of its patterns contradict each other"
                                             : cut_halves(dims, shape, ranks, rank, out);
    if (__builtin_mul_overflow(shape[along], ranks, &out->shape[along]))
        return TOO_LARGE;
    box->start[along] = shape[along] * rank;
    if (!is[VOCABULARY])
        return NULL;
    if (along != 0 || cuts->vocabulary == 0)
        return "it is an embedding, and nothing says how many of its rows are no padding";
    if (cuts->vocabulary >= out->shape[0])
        return NULL;
    out->shape[0] = cuts->vocabulary;
    if (box->start[0] >= cuts->vocabulary)
        out->box_count = 0;
    else if (box->start[0] + box->extent[0] > cuts->vocabulary)
        box->extent[0] = cuts->vocabulary - box->start[0];
    return NULL;
}
