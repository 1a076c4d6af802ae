/*
 * tools/history_view.h - events of an agent's answer to "history", as lines for people.
 */
#ifndef CAIRN_TOOLS_HISTORY_VIEW_H
#define CAIRN_TOOLS_HISTORY_VIEW_H

#include "tools/tree.h"

#include <stdbool.h>
#include <stdint.h>

enum { CAIRN_HISTORY_TEXT_BYTES = 2048, CAIRN_HISTORY_ID_BYTES = 48 };

/* Which day was printed last; all zero at first. */
struct cairn_history_days {
    char day[16];
};

/* Prints an event: time, name and what happened; before it, a line for each new day. */
void cairn_history_print_line(const struct cairn_tree *tree, const struct cairn_tree_value *event,
                              struct cairn_history_days *days);

/* Reports on stderr whose history is missing or damaged. True: one is damaged. */
bool cairn_history_warn(const char *verb, const struct cairn_tree *tree);

#endif
