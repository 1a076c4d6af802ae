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
    const struct cairn_tree_value *nodes = cairn_tree_find(tree, placement, "nodes");
    const char *before = ", layers ";

    if (nodes) {
        printf("the command on nodes ");
        print_list(tree, nodes, ", ");
        printf(", %" PRIu64 " device%s per stage, ", cairn_tree_u64(tree, placement, "tp", 0),
               cairn_tree_u64(tree, placement, "tp", 0) == 1 ? "" : "s");
    }
    printf("micro-batches ");
    print_list(tree, cairn_tree_find(tree, placement, "micro_batches"), " | ");
    layers = cairn_tree_find(tree, placement, "layers");
    while (layers && (part = cairn_tree_next(tree, layers, part)) != NULL) {
        printf("%s", before);
        print_list(tree, part, ",");
        before = " | ";
    }
}
