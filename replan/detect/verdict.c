/* replan/detect/verdict.c - lists of verdicts and of what they name. */
#include "replan/detect/verdict.h"

#include "base/array.h"
#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

const char *
cairn_verdict_kind_text(enum cairn_verdict_kind kind)
{
    static const char *const texts[] = {
#define KIND_TEXT(symbol, text) [symbol] = text,
        CAIRN_VERDICT_LIST(KIND_TEXT)
#undef KIND_TEXT
    };

    return texts[kind];
}

/* A new verdict has room for the first items, so that it is never left without those it names. */
static cairn_err
make_room(struct cairn_u32_list *list)
{
    uint32_t room = list->room ? 2 * list->room : 8;
    uint32_t *items;

    if (list->count < list->room)
        return CAIRN_OK;
    items = realloc(list->items, room * sizeof *items);
    if (!items)
        return CAIRN_NOMEM;
    list->items = items;
    list->room = room;
    return CAIRN_OK;
}

cairn_err
cairn_list_add(struct cairn_u32_list *list, uint32_t item)
{
    cairn_err err = make_room(list);

    if (!err)
        list->items[list->count++] = item;
    return err;
}

void
cairn_list_take(struct cairn_u32_list *list, struct cairn_u32_list *from)
{
    free(list->items);
    *list = *from;
    *from = (struct cairn_u32_list){0};
}

static int
compare_items(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

    return (a > b) - (a < b);
}

static int
compare_pairs(const void *left, const void *right)
{
    const uint32_t *a = left, *b = right;

    return a[0] != b[0] ? compare_items(a, b) : compare_items(a + 1, b + 1);
}

void
cairn_list_sort(struct cairn_u32_list *list, uint32_t width)
{
    int (*compare)(const void *, const void *) = width == 1 ? compare_items : compare_pairs;
    uint32_t kept = 0;

    CAIRN_ASSERT(width == 1 || width == 2);
    if (list->count == 0)
        return;
    qsort(list->items, list->count / width, width * sizeof *list->items, compare);
    for (uint32_t i = 0; i + width <= list->count; i += width)
        if (kept == 0 || compare(&list->items[i], &list->items[kept - width]) != 0) {
            memmove(&list->items[kept], &list->items[i], width * sizeof *list->items);
            kept += width;
        }
    list->count = kept;
}

cairn_err
cairn_verdicts_add(struct cairn_verdicts *verdicts, enum cairn_verdict_kind kind, uint32_t *out)
{
    struct cairn_verdict verdict = {.kind = kind, .until_step = CAIRN_STEP_NONE, .rate = 1};
    cairn_err err;

    if (!cairn_array_grow(&verdicts->items, verdicts->count, sizeof *verdicts->items))
        return CAIRN_NOMEM;
    err = make_room(&verdict.ranks);
    if (!err)
        err = make_room(&verdict.nodes);
    if (!err)
        err = make_room(&verdict.links);
    if (err) {
        cairn_verdict_fini(&verdict);
        return err;
    }
    verdicts->items[verdicts->count] = verdict;
    *out = verdicts->count++;
    return CAIRN_OK;
}

void
cairn_verdict_fini(struct cairn_verdict *verdict)
{
    free(verdict->ranks.items);
    free(verdict->links.items);
    free(verdict->nodes.items);
    free(verdict->victims.items);
}

void
cairn_verdicts_remove(struct cairn_verdicts *verdicts, uint32_t index)
{
    cairn_verdict_fini(&verdicts->items[index]);
    verdicts->count--;
    memmove(&verdicts->items[index], &verdicts->items[index + 1],
            (verdicts->count - index) * sizeof *verdicts->items);
}

void
cairn_verdicts_fini(struct cairn_verdicts *verdicts)
{
    for (uint32_t i = 0; i < verdicts->count; i++)
        cairn_verdict_fini(&verdicts->items[i]);
    free(verdicts->items);
    *verdicts = (struct cairn_verdicts){0};
}
