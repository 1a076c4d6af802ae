/* tools/placement_view.c - placements in an agent's answer as text. */
#include "tools/placement_view.h"

#include <inttypes.h>
#include <stdio.h>

static void
print_list(const struct cairn_tree *tree, const struct cairn_tree_value *numbers,
           const char *between)
{
    const struct cairn_tree_value *number = NULL;
    const char *before = "";

    while ((number = cairn_tree_next(tree, numbers, number)) != NULL) {
        printf("%s%" PRIu64, before, cairn_tree_u64(tree, number, "", 0));
        before = between;
    }
}

void
cairn_placement_print(const struct cairn_tree *tree, const struct cairn_tree_value *placement)
{
    const struct cairn_tree_value *layers, *part = NULL;
    const char *before = ", layers ";

    printf("micro-batches ");
    print_list(tree, cairn_tree_find(tree, placement, "micro_batches"), " | ");
    layers = cairn_tree_find(tree, placement, "layers");
    while (layers && (part = cairn_tree_next(tree, layers, part)) != NULL) {
        printf("%s", before);
        print_list(tree, part, ",");
        before = " | ";
    }
}
