/* tools/manual.c - see manual.h. */
#include "tools/manual.h"

#include <string.h>

static const char *const forms[] = {"", "man", "bash", "zsh", "fish"};

enum cairn_manual_form
cairn_manual_form(const char *name)
{
    for (size_t i = 1; i < sizeof forms / sizeof *forms; i++)
        if (strcmp(name, forms[i]) == 0)
            return (enum cairn_manual_form)i;
    return CAIRN_MANUAL_NONE;
}

void
cairn_manual_print(enum cairn_manual_form form, const struct cairn_usage *usage, FILE *out)
{
    if (form == CAIRN_MANUAL_MAN)
        cairn_page_print(usage, out);
    else
        cairn_shell_print(form, usage, out);
}

/* A verb writes its part to stdout. */
static void
write_part(const struct cairn_verb *verb, enum cairn_manual_form form)
{
    char name[32], option[32];
    char *words[] = {name, option, NULL};

    snprintf(name, sizeof name, "%s", verb->name);
    snprintf(option, sizeof option, "--help=%s", forms[form]);
    (void)verb->run(2, words);
}

int
cairn_manual_run(const struct cairn_verbs *verbs, int argc, char **argv)
{
    enum cairn_manual_form form = argc > 1 ? cairn_manual_form(argv[1]) : CAIRN_MANUAL_NONE;
    const struct cairn_verb *only = NULL;

    if (argc == 3 && strcmp(argv[1], "words") == 0) {
        cairn_words_print(argv[2], stdout);
        return CAIRN_EXIT_OK;
    }
    for (size_t i = 0; argc == 3 && form == CAIRN_MANUAL_MAN && i < verbs->count; i++)
        if (verbs->rows[i].help && strcmp(verbs->rows[i].name, argv[2]) == 0)
            only = &verbs->rows[i];
    if (!form || argc > 3 || (argc == 3 && !only)) {
        fprintf(stderr, "usage: cairn manual man [VERB] | bash | zsh | fish | words NAME\n");
        return CAIRN_EXIT_USAGE;
    }
    if (form == CAIRN_MANUAL_MAN) {
        cairn_page_begin(verbs, only, stdout);
        if (only)
            write_part(only, form);
        return CAIRN_EXIT_OK;
    }
    cairn_shell_begin(form, verbs, stdout);
    for (size_t i = 0; i < verbs->count; i++)
        if (verbs->rows[i].help)
            write_part(&verbs->rows[i], form);
    cairn_shell_end(form, stdout);
    return CAIRN_EXIT_OK;
}
