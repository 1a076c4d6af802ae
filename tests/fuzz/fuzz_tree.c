/*
 * tests/fuzz/fuzz_tree.c - any bytes as an agent's answer: refused, or a tree whose every value
 * can be reached once, lies inside of the text, and can be asked for.
 */
#include "tools/tree.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

/* The values of an array or object; how many are reached below it. */
static uint32_t
walk(const struct cairn_tree *tree, const struct cairn_tree_value *value)
{
    uint32_t reached = 1, children = 0;
    char text[16];

    CAIRN_ASSERT(value->begin <= value->end);
    CAIRN_ASSERT(value->key == SIZE_MAX || value->key < value->begin);
    (void)cairn_tree_text(tree, value, "", text, sizeof(text));
    (void)cairn_tree_u64(tree, value, "", 0);
    (void)cairn_tree_i64(tree, value, "", 0);
    (void)cairn_tree_double(tree, value, "", 0);
    (void)cairn_tree_bool(tree, value, "", false);
    for (uint32_t i = value->child; i != 0; i = tree->values[i].next) {
        CAIRN_ASSERT(i < tree->count);
        CAIRN_ASSERT(tree->values[i].begin >= value->begin && tree->values[i].end <= value->end);
        reached += walk(tree, &tree->values[i]);
        children++;
    }
    CAIRN_ASSERT(children == value->count);
    return reached;
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    char *text = malloc(bytes_len + 1), found[16];
    struct cairn_tree tree;

    CAIRN_ASSERT(text != NULL);
    if (bytes_len > 0)
        memcpy(text, bytes, bytes_len);
    if (cairn_tree_parse(text, bytes_len, &tree) == CAIRN_OK) {
        CAIRN_ASSERT(tree.count > 0 && walk(&tree, &tree.values[0]) == tree.count);
        (void)cairn_tree_text(&tree, NULL, "newest.step", found, sizeof(found));
        (void)cairn_tree_u64(&tree, cairn_tree_find(&tree, NULL, "nodes"), "0.step", 0);
        cairn_tree_fini(&tree);
    }
    free(text);
    return 0;
}
