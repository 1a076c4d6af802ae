/* agent/process/config_print.c - the table of options as help, as a sample file and as
 * docs/CONFIG.md. */
#include "agent/process/config.h"
#include "agent/process/config_table.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLE_COLUMNS = 92, HELP_COLUMNS = 80 };

/* Prints a text in lines of at most `columns`: the first after `first`, others after `prefix`. */
static void
print_wrapped(FILE *out, size_t columns, const char *first, const char *prefix, const char *text)
{
    for (const char *before = first; *text; before = prefix) {
        size_t room = columns - strlen(before), take = strlen(text);

        if (take > room)
            for (take = room; take > 1 && text[take] != ' ';)
                take--;
        fprintf(out, "%s%.*s\n", before, (int)take, text);
        text += take;
        while (*text == ' ')
            text++;
    }
}

/* A default as a reader wants to see it. */
static const char *
shown_default(const struct cairn_option *option)
{
    if (!option->fallback)
        return option->type == CAIRN_OPTION_NODES ? "one node on 127.0.0.1:7431" : "none";
    return option->fallback[0] ? option->fallback : "empty";
}

static void
print_help(FILE *out, const struct cairn_option *options, uint32_t count)
{
    char values[256], line[512];

    for (uint32_t i = 0; i < count; i++) {
        cairn_option_describe(&options[i], values, sizeof values);
        snprintf(line, sizeof line, "%s: %s; default: %s", options[i].name, values,
                 shown_default(&options[i]));
        print_wrapped(out, HELP_COLUMNS, "  ", "    ", line);
        print_wrapped(out, HELP_COLUMNS, "      ", "      ", options[i].help);
    }
}

void
cairn_config_help(FILE *out)
{
    fprintf(out, "Options of the configuration file (YAML):\n");
    print_help(out, cairn_options, cairn_option_count);
    fprintf(out, "\nEach entry of nodes:\n");
    print_help(out, cairn_node_options, cairn_node_option_count);
}

/* A value as the file must write it: quoted if empty. */
static const char *
written(const char *value)
{
    return value[0] ? value : "\"\"";
}

static void
print_sample_nodes(FILE *out)
{
    fprintf(out, "nodes:\n"
                 "  - {address: \"node0:7431\", domain: rack-0}\n"
                 "  - {address: \"node1:7431\", domain: rack-0}\n"
                 "  - {address: \"node2:7431\", domain: rack-1}\n"
                 "  - {address: \"node3:7431\", domain: rack-1}\n"
                 "  - {address: \"node4:7431\", domain: rack-2, spare: true}\n");
}

void
cairn_config_sample(FILE *out)
{
    char values[256];

    print_wrapped(out, SAMPLE_COLUMNS, "# ", "# ",
                  "Configuration of a Cairn agent. Every option is here; what is commented out "
                  "shows its default. The file is the same on all nodes but for \"node\".");
    for (uint32_t i = 0; i < cairn_option_count; i++) {
        const struct cairn_option *option = &cairn_options[i];

        fprintf(out, "\n");
        print_wrapped(out, SAMPLE_COLUMNS, "# ", "# ", option->help);
        cairn_option_describe(option, values, sizeof values);
        fprintf(out, "# (%s)\n", values);
        if (option->type == CAIRN_OPTION_NODES)
            print_sample_nodes(out);
        else if (option->type == CAIRN_OPTION_COMMAND)
            fprintf(out, "#%s: []\n", option->name);
        else if (option->sample)
            fprintf(out, "%s: %s\n", option->name, written(option->sample));
        else
            fprintf(out, "#%s: %s\n", option->name, written(option->fallback));
    }
}

static void
print_rows(FILE *out, const struct cairn_option *options, uint32_t count)
{
    char values[256];

    fprintf(out, "| option | values | default | meaning |\n| --- | --- | --- | --- |\n");
    for (uint32_t i = 0; i < count; i++) {
        cairn_option_describe(&options[i], values, sizeof values);
        fprintf(out, "| `%s` | %s | %s | %s |\n", options[i].name, values,
                shown_default(&options[i]), options[i].help);
    }
}

void
cairn_config_markdown(FILE *out)
{
    fprintf(out,
            "# Configuration\n\n"
            "After this page you can write an agent's configuration. `cairn agent --sample` "
            "prints a file with every\noption to start from.\n\n"
            "An agent reads one YAML file: `cairn agent --config FILE`. The file is the same on "
            "all nodes but for\n`node`. Unknown names, names given twice and values out of bounds "
            "stop the start, with the file, the line,\nthe reason and what to do. Anchors, aliases "
            "and tags of YAML are refused. This page is made from\n"
            "`agent/process/config_table.c`; a test compares them.\n\n");
    print_rows(out, cairn_options, cairn_option_count);
    fprintf(out, "\nEach entry of `nodes`:\n\n");
    print_rows(out, cairn_node_options, cairn_node_option_count);
}
