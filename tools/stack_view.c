/* tools/stack_view.c - the Python stacks of a job that hangs; see stack_view.h. */
#include "tools/stack_view.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { RANKS_SHOWN = 8, FRAMES_SHOWN = 3, LINE_BYTES = 512 };

struct text {
    char *out;
    size_t bytes, used;
};

static void add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void
add(struct text *text, const char *format, ...)
{
    va_list arguments;
    int len;

    va_start(arguments, format);
    len = vsnprintf(text->out + text->used, text->bytes - text->used, format, arguments);
    va_end(arguments);
    if (len > 0)
        text->used =
            text->used + (size_t)len < text->bytes ? text->used + (size_t)len : text->bytes - 1;
}

static void
add_ranks(struct text *text, const struct cairn_tree *tree, const struct cairn_tree_value *item)
{
    const struct cairn_tree_value *ranks = cairn_tree_find(tree, item, "ranks"), *rank = NULL;
    uint64_t count = cairn_tree_u64(tree, item, "rank_count", 0), shown = 0;

    add(text, "%s", count == 1 ? "rank" : "ranks");
    while (shown < RANKS_SHOWN && (rank = cairn_tree_next(tree, ranks, rank)))
        add(text, "%s %" PRIu64, shown++ > 0 ? "," : "", cairn_tree_u64(tree, rank, "", 0));
    if (count > shown)
        add(text, " and %" PRIu64 " more", count - shown);
}

/* A frame as faulthandler prints it: ` File "/a/train.py", line 40 in step`. False for other
 * lines. */
static bool
add_frame(struct text *text, const char *line, bool first)
{
    const char *file = strstr(line, "File \""), *end = file ? strchr(file + 6, '"') : NULL;
    const char *slash, *in = end ? strstr(end, " in ") : NULL;
    uint64_t number = 0;

    if (!in || sscanf(end, "\", line %" SCNu64, &number) != 1)
        return false;
    slash = end;
    while (slash > file + 6 && slash[-1] != '/')
        slash--;
    add(text, "%s%s (%.*s:%" PRIu64 ")", first ? ": " : " < ", in + 4, (int)(end - slash), slash,
        number);
    return true;
}

const char *
cairn_stack_describe(const struct cairn_tree *tree, const struct cairn_tree_value *item, char *out,
                     size_t out_bytes)
{
    const struct cairn_tree_value *lines = cairn_tree_find(tree, item, "lines"), *line = NULL;
    struct text text = {.out = out, .bytes = out_bytes};
    char one[LINE_BYTES];
    int frames = 0;

    out[0] = '\0';
    add_ranks(&text, tree, item);
    while (frames < FRAMES_SHOWN && (line = cairn_tree_next(tree, lines, line))) {
        bool is_frame =
            add_frame(&text, cairn_tree_text(tree, line, "", one, sizeof one), frames == 0);

        if (!is_frame && frames > 0)
            break; /* the next thread */
        frames += is_frame;
    }
    return out;
}
