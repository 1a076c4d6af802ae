/* tools/convert/deepspeed/cuts.c - see deepspeed/cuts.h. */
#include "snapshot/box.h"

#include <ctype.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/deepspeed/cuts.h"
#include "base/assert.h"
#include "base/array.h"

/* ---- patterns: expressions that name one parameter each (^up\.weight$, as AutoTP has them) are
 * looked up, and of the others the letters that they begin with are compared first, so that as many
 * expressions as parameters cost little ---- */

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

/* Whether a *, +, ? or {n,m} at `at` means the same to both. Compiled, + and {n,m} repeat what is
 * before them, and again for each level of nesting: doubled groups are counted. */
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

/* The name that a pattern begins with, letter by letter; *whole: it matches only this, "^name$". */
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

#define IS(category) (UINT32_C(1) << (category))
#define TOO_LARGE "it is too large"

/* So that bytes and sums of two do not overflow. */
static const uint64_t ELEMENTS_MAX = INT64_MAX / 16;

enum { AFFINE_VERSION_MAX = 1 };
enum category { REPLICATED, AVERAGED, COLUMNS, VOCABULARY, HALVES, SUB_PARAMETERS, UNSUPPORTED };

static cairn_err
add_pattern(struct cairn_deepspeed_cuts *cuts, enum category category,
            const struct cairn_pickle_node *node, const char **why)
{
    char python[CAIRN_DEEPSPEED_PATTERN_BYTES_MAX];

    *why = "a pattern in universal_checkpoint_info is not a regular expression supported here, or "
           "there are too many";
    if (!cairn_pickle_copy_text(node, python, sizeof(python)))
        return CAIRN_VERSION;
    return cairn_deepspeed_patterns_add(&cuts->patterns, category, python);
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

    *why = "what universal_checkpoint_info has under a key of patterns is not a list";
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
    *why = "universal_checkpoint_info is not a dict";
    if (!cairn_pickle_pairs(info))
        return CAIRN_VERSION;
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists) && !err; i++)
        err = add_list(out, lists[i].category, cairn_pickle_get(info, lists[i].key), why);
    if (!err && ((refused && !unsupported) || (subs && !is_list(subs)))) {
        *why = "universal_checkpoint_info has patterns that are not what DeepSpeed writes";
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

cairn_err
cairn_deepspeed_cut_add(struct cairn_checkpoint *checkpoint, struct cairn_output *output,
                        uint32_t tensor, uint32_t container, const struct cairn_deepspeed_cut *cut,
                        const struct cairn_deepspeed_parameter *part, uint64_t begin, uint64_t end,
                        uint64_t at, size_t element_bytes)
{
    uint64_t row_elements =
        part->dims > 0 && part->shape[0] > 0 ? part->elements / part->shape[0] : 0;
    cairn_err err = CAIRN_OK;

    CAIRN_ASSERT(begin <= end && end <= part->elements);
    for (uint32_t b = 0; b < cut->box_count && !err; b++) {
        const struct cairn_deepspeed_cut_box *box = &cut->boxes[b];
        uint64_t first = box->row * row_elements, count;
        uint64_t from = begin > first ? begin - first : 0, to = end < first ? 0 : end - first,
                 begins;

        count = cairn_shape_elements(part->dims, box->extent);
        to = to < count ? to : count;
        begins = at + (first + from - begin) * element_bytes;
        if (from < to && output)
            err = cairn_output_add_flat(output, tensor, container, box->start, box->extent, from,
                                        to, begins);
        else if (from < to)
            err = cairn_checkpoint_add_flat(checkpoint, tensor, container, box->start, box->extent,
                                            from, to, begins);
    }
    return err;
}

void
cairn_deepspeed_cuts_fini(struct cairn_deepspeed_cuts *cuts)
{
    cairn_deepspeed_patterns_fini(&cuts->patterns);
    memset(cuts, 0, sizeof(*cuts));
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

/* A part whose categories are known. `vocabulary`: rows without padding; 0: unknown. */
static const char *
cut_as(uint32_t categories, uint64_t vocabulary, uint32_t dims, const uint64_t *shape,
       uint32_t ranks, uint32_t rank, struct cairn_deepspeed_cut *out)
{
    struct cairn_deepspeed_cut_box *box = &out->boxes[0];
    uint32_t along;

    memset(out, 0, sizeof(*out));
    memcpy(out->shape, shape, dims * sizeof(*shape));
    memcpy(box->extent, shape, dims * sizeof(*shape));
    out->box_count = 1;
    if (categories & IS(UNSUPPORTED))
        return "DeepSpeed itself cannot put it together";
    /* if averaged parts differ, the comparison of replicas finds it */
    if (categories & (IS(REPLICATED) | IS(AVERAGED)))
        return NULL;
    if (categories & IS(SUB_PARAMETERS))
        return "it is several parameters in one (parameter_with_sub_params), which is not "
               "supported";
    along = categories & IS(COLUMNS) ? 1 : 0;
    if (dims <= along)
        return "it lacks the dimension that it is cut along";
    if (categories & IS(HALVES))
        return categories & (IS(VOCABULARY) | IS(COLUMNS))
                   ? "two of its patterns contradict each other"
                   : cut_halves(dims, shape, ranks, rank, out);
    if (__builtin_mul_overflow(shape[along], ranks, &out->shape[along]))
        return TOO_LARGE;
    box->start[along] = shape[along] * rank;
    if (!(categories & IS(VOCABULARY)))
        return NULL;
    if (along != 0 || vocabulary == 0)
        return "it is an embedding with an unknown number of rows of padding";
    if (vocabulary >= out->shape[0])
        return NULL;
    out->padded_rows = out->shape[0];
    out->shape[0] = vocabulary;
    if (box->start[0] >= vocabulary)
        out->box_count = 0;
    else if (box->start[0] + box->extent[0] > vocabulary)
        box->extent[0] = vocabulary - box->start[0];
    return NULL;
}

const char *
cairn_deepspeed_cut(struct cairn_deepspeed_cuts *cuts, const char *path, uint32_t dims,
                    const uint64_t *shape, uint32_t ranks, uint32_t rank,
                    struct cairn_deepspeed_cut *out)
{
    return cut_as(cairn_deepspeed_patterns_match(&cuts->patterns, path), cuts->vocabulary, dims,
                  shape, ranks, rank, out);
}

const char *
cairn_deepspeed_cut_whole(struct cairn_deepspeed_cuts *cuts, const char *path, uint32_t dims,
                          const uint64_t *whole, uint64_t padded_rows, uint32_t ranks,
                          uint32_t rank, uint64_t part[CAIRN_DIMS_MAX],
                          struct cairn_deepspeed_cut *out)
{
    uint32_t categories = cairn_deepspeed_patterns_match(&cuts->patterns, path);
    uint32_t along = categories & IS(COLUMNS) ? 1 : 0;
    uint64_t vocabulary = dims > 0 ? whole[0] : 0, total;
    const char *why;

    memcpy(part, whole, dims * sizeof(*whole));
    if (!(categories & (IS(REPLICATED) | IS(AVERAGED))) && dims > along) {
        total = whole[along];
        if (categories & IS(VOCABULARY) && along == 0 && padded_rows > total)
            total = padded_rows;
        if (total % ((uint64_t)ranks * (categories & IS(HALVES) ? 2 : 1)) != 0)
            return categories & IS(VOCABULARY) ? "its rows, with the padding that they had, cannot "
                                                 "be divided evenly among so many ranks"
                                               : "it cannot be divided evenly among so many ranks";
        part[along] = total / ranks;
    }
    /* rows of padding are as many as any file says */
    if (!cairn_shape_bounded(dims, part, ELEMENTS_MAX, &total))
        return TOO_LARGE;
    why = cut_as(categories, vocabulary, dims, part, ranks, rank, out);
    if (!why && memcmp(out->shape, whole, dims * sizeof(*whole)) != 0)
        why = "its patterns contradict its shape";
    return why;
}

/* ---- what the files say of places ---- */

static bool
read_sizes(const struct cairn_pickle_node *node, uint64_t sizes[CAIRN_DIMS_MAX], uint32_t *count)
{
    if (!node || !is_list(node) || node->count > CAIRN_DIMS_MAX)
        return false;
    *count = node->count;
    for (uint32_t i = 0; i < node->count; i++)
        if (!cairn_pickle_u64(node->items[i], &sizes[i]))
            return false;
    return true;
}

/* Whether [offset, strides] is where a box begins that lies row-major in this shape. */
static bool
lies_at(const struct cairn_pickle_node *place, uint32_t dims, const uint64_t *shape,
        const uint64_t *extent, uint64_t offset)
{
    uint64_t strides[CAIRN_DIMS_MAX], said, stride = 1;
    uint32_t count = 0;

    if (!place || !is_list(place) || place->count != 2 ||
        !cairn_pickle_u64(place->items[0], &said) || said != offset ||
        !read_sizes(place->items[1], strides, &count) || count != dims)
        return false;
    for (uint32_t d = dims; d-- > 0; stride *= shape[d])
        if (strides[d] != stride && extent[d] > 1)
            return false;
    return true;
}

/* Whether a rank holds a piece as it is, and not divided by a number. */
static bool
is_unscaled(const struct cairn_pickle_node *scale)
{
    uint64_t number = 0;

    return !scale ||
           (scale->kind == CAIRN_PICKLE_FLOAT ? scale->real == 1.0
                                              : cairn_pickle_u64(scale, &number) && number == 1);
}

/* Whether the pieces of a rank are the boxes of its part. */
static bool
has_pieces(const struct cairn_pickle_node *pieces, uint32_t dims, const uint64_t *part,
           const struct cairn_deepspeed_cut *cut)
{
    if (!pieces || !is_list(pieces) || pieces->count != cut->box_count)
        return false;
    for (uint32_t b = 0; b < cut->box_count; b++) {
        const struct cairn_deepspeed_cut_box *box = &cut->boxes[b];
        const struct cairn_pickle_node *piece = pieces->items[b];
        uint64_t shape[CAIRN_DIMS_MAX], from = 0, to = dims > 0 ? box->row : 0;
        uint32_t count = 0;

        for (uint32_t d = 0; d < dims; d++) {
            from = from * cut->shape[d] + box->start[d];
            to = d > 0 ? to * part[d] : to;
        }
        if (!is_unscaled(cairn_pickle_get(piece, "scale")) ||
            !read_sizes(cairn_pickle_get(piece, "shape"), shape, &count) ||
            !cairn_shape_equal(count, shape, dims, box->extent) ||
            !lies_at(cairn_pickle_get(piece, "source"), dims, cut->shape, shape, from) ||
            !lies_at(cairn_pickle_get(piece, "dest"), dims, part, shape, to))
            return false;
    }
    return true;
}

/* "^name$" with escapes as a name; false for other patterns. */
static bool
read_literal(const struct cairn_pickle_node *node, char name[CAIRN_NAME_BYTES_MAX])
{
    char python[CAIRN_DEEPSPEED_PATTERN_BYTES_MAX];
    size_t used = 0;

    if (!cairn_pickle_copy_text(node, python, sizeof(python)) || python[0] != '^')
        return false;
    for (const char *at = python + 1; *at; at++) {
        if (*at == '$' && at[1] == '\0') {
            name[used] = '\0';
            return true;
        }
        at += *at == '\\' && at[1];
        if (used + 1 == CAIRN_NAME_BYTES_MAX)
            return false;
        name[used++] = *at;
    }
    return false;
}

bool
cairn_deepspeed_cuts_agree(struct cairn_deepspeed_cuts *cuts, const struct cairn_pickle_node *info,
                           uint32_t ranks, uint32_t rank, char name[CAIRN_NAME_BYTES_MAX])
{
    const struct cairn_pickle_node *said = cairn_pickle_get(info, "affine_map");
    const struct cairn_pickle_node *version = cairn_pickle_get(said, "version");
    const struct cairn_pickle_node *maps = cairn_pickle_pairs(cairn_pickle_get(said, "params"));
    uint64_t known;

    (void)snprintf(name, CAIRN_NAME_BYTES_MAX, "a parameter");
    if (version && (!cairn_pickle_u64(version, &known) || known > AFFINE_VERSION_MAX))
        return false; /* it may say more than is looked at here */
    for (uint32_t i = 0; maps && i < maps->count; i++) {
        const struct cairn_pickle_node *own =
            cairn_pickle_at(cairn_pickle_get(maps->items[2 * i + 1], "ranks"), rank);
        struct cairn_deepspeed_cut cut;
        uint64_t part[CAIRN_DIMS_MAX] = {0};
        uint32_t dims = 0;

        (void)snprintf(name, CAIRN_NAME_BYTES_MAX, "a parameter");
        if (!read_literal(maps->items[2 * i], name) ||
            !read_sizes(cairn_pickle_get(own, "shard_shape"), part, &dims))
            return false;
        if (cairn_deepspeed_cut(cuts, name, dims, part, ranks, rank, &cut) == NULL &&
            !has_pieces(cairn_pickle_get(own, "pieces"), dims, part, &cut))
            return false;
    }
    return true;
}
