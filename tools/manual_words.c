/* tools/manual_words.c - what an option's value can be on this machine, for completions. */
#include "tools/ask.h"
#include "tools/convert/formats.h"
#include "tools/convert/maps/language.h"
#include "tools/find_agent.h"
#include "tools/manual.h"

#include <inttypes.h>
#include <string.h>

enum { ANSWER_MS = 2000 };

static void
print_agents(bool jobs, FILE *out)
{
    struct cairn_found found;

    (void)cairn_find_agents(NULL, NULL, &found);
    for (uint32_t i = 0; i < found.count; i++) {
        const char *word = jobs ? found.agents[i].job : found.agents[i].socket;

        if (word[0] && !(jobs && i > 0 && strcmp(word, found.agents[i - 1].job) == 0))
            fprintf(out, "%s\n", word);
    }
}

static void
print_generations(FILE *out)
{
    struct cairn_question question = {.verb = "snapshots", .timeout_ms = ANSWER_MS};
    const struct cairn_tree_value *list, *entry = NULL;
    struct cairn_answer answer;

    if (cairn_find_and_ask("snapshots", NULL, &question, &answer))
        return;
    list = cairn_tree_find(&answer.tree, NULL, "generations");
    while (list && (entry = cairn_tree_next(&answer.tree, list, entry)))
        fprintf(out, "%" PRIu64 ":%" PRIu64 "\n", cairn_tree_u64(&answer.tree, entry, "epoch", 0),
                cairn_tree_u64(&answer.tree, entry, "step", 0));
    cairn_answer_fini(&answer);
}

void
cairn_words_print(const char *name, FILE *out)
{
    if (strcmp(name, "JOB") == 0 || strcmp(name, "SOCKET") == 0)
        print_agents(name[0] == 'J', out);
    else if (strcmp(name, "E:S") == 0)
        print_generations(out);
    else if (strcmp(name, "FORMAT") == 0)
        for (size_t i = 0; cairn_formats[i]; i++)
            fprintf(out, "%s\n", cairn_formats[i]->name);
    else if (strcmp(name, "MAP") == 0)
        for (uint32_t i = 0; cairn_map_preset_name(i); i++)
            fprintf(out, "%s\n", cairn_map_preset_name(i));
}
