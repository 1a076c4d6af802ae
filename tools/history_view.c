/* tools/history_view.c - events as lines for people; see history_view.h. */
#include "tools/history_view.h"

#include "tools/common.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

void
cairn_history_print_line(const struct cairn_tree *tree, const struct cairn_tree_value *event,
                         struct cairn_history_days *days)
{
    time_t when = (time_t)(cairn_tree_u64(tree, event, "wall_ns", 0) / UINT64_C(1000000000));
    char day[16] = "", hour[16] = "", id[CAIRN_HISTORY_ID_BYTES], text[CAIRN_HISTORY_TEXT_BYTES];
    struct tm local;

    if (localtime_r(&when, &local)) {
        strftime(day, sizeof day, "%Y-%m-%d", &local);
        strftime(hour, sizeof hour, "%H:%M:%S", &local);
    }
    if (strcmp(day, days->day) != 0) {
        printf("%s\n", day);
        snprintf(days->day, sizeof days->day, "%s", day);
    }
    printf("  %s  %-8s %s\n", hour, cairn_tree_text(tree, event, "id", id, sizeof id),
           cairn_tree_text(tree, event, "text", text, sizeof text));
}

bool
cairn_history_warn(const char *verb, const struct cairn_tree *tree)
{
    const struct cairn_tree_value *list = cairn_tree_find(tree, NULL, "nodes"), *node = NULL;
    bool any = false;
    char state[16];

    while ((node = cairn_tree_next(tree, list, node)) != NULL) {
        uint64_t number = cairn_tree_u64(tree, node, "node", 0);

        cairn_tree_text(tree, node, "history", state, sizeof state);
        if (strcmp(state, "damaged") == 0) {
            any = true;
            fprintf(stderr,
                    "cairn %s: node %" PRIu64 ": its history is damaged; what is readable is "
                    "shown\n",
                    verb, number);
        } else if (strcmp(state, "silent") == 0) {
            fprintf(stderr,
                    "cairn %s: node %" PRIu64 ": no answer; only what other nodes saw is "
                    "known\n",
                    verb, number);
        }
    }
    return any;
}
