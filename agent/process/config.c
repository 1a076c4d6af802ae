/*
 * agent/process/config.c - reads a configuration through the table of options, and checks it as a
 * whole.
 *
 * Order: defaults from the table, then the file, then `parity` if the file leaves it open, then the
 * rules between options. Nothing is returned before all of it has passed.
 */
#include "agent/process/config.h"

#include "agent/process/config_file.h"
#include "agent/process/config_table.h"
#include "agent/process/credentials.h"
#include "base/assert.h"
#include "base/yaml_config.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_ADDRESS "127.0.0.1:7431"

void
cairn_config_fini(struct cairn_config *config)
{
    free(config->nodes);
    memset(config, 0, sizeof *config);
}

/* ---- defaults ---- */

static void
set_defaults(const struct cairn_option *options, uint32_t count, void *base)
{
    char why[256];

    for (uint32_t i = 0; i < count; i++)
        if (options[i].fallback) {
            bool done = cairn_option_set(&options[i], options[i].fallback, base, why, sizeof why);

            CAIRN_ASSERT(done); /* the table's own values */
        }
}

/* Jobs too small for the default parity take what they can have; a number in the file is kept. */
static void
settle_parity(struct cairn_config *config)
{
    uint32_t active_count = cairn_config_active_count(config);

    if (cairn_config_line(config, "parity") == 0 && active_count && config->parity >= active_count)
        config->parity = active_count - 1;
}

static cairn_err
start_config(const char *source, uint32_t node_count, struct cairn_config *config)
{
    memset(config, 0, sizeof *config);
    snprintf(config->source, sizeof config->source, "%s", source);
    set_defaults(cairn_options, cairn_option_count, config);
    config->nodes = calloc(node_count, sizeof *config->nodes);
    if (!config->nodes)
        return CAIRN_NOMEM;
    config->node_count = node_count;
    for (uint32_t i = 0; i < node_count; i++)
        set_defaults(cairn_node_options, cairn_node_option_count, &config->nodes[i]);
    return CAIRN_OK;
}

cairn_err
cairn_config_default(struct cairn_config *out)
{
    struct cairn_config config;
    cairn_err err = start_config("", 1, &config);

    if (err)
        return err;
    snprintf(config.nodes[0].address, sizeof config.nodes[0].address, "%s", DEFAULT_ADDRESS);
    settle_parity(&config);
    *out = config;
    return CAIRN_OK;
}

/* ---- the file's values ---- */

struct parse {
    const struct cairn_yaml *yaml;
    struct cairn_config *config;
    struct cairn_config_error error;
};

/* Sets one option from its node. */
static cairn_err
take_value(const struct parse *parse, const struct cairn_option *option,
           const struct cairn_yaml_node *node, void *base)
{
    const char *text;
    char why[256];

    if (node->kind != CAIRN_YAML_SCALAR) {
        cairn_option_describe(option, why, sizeof why);
        return cairn_config_refuse(&parse->error, node->line,
                                   "%s: is a %s, but must be %s; write \"%s: value\" on one line",
                                   option->name, node->kind == CAIRN_YAML_LIST ? "list" : "map",
                                   why, option->name);
    }
    text = cairn_yaml_text(parse->yaml, node);
    if (!text[0] && !node->quoted)
        return cairn_config_refuse(
            &parse->error, node->line,
            "%s: has no value; give one, or remove the line to get the default", option->name);
    if (!cairn_option_set(option, text, base, why, sizeof why))
        return cairn_config_refuse(&parse->error, node->line,
                                   "%s: is \"%.64s\", but %s; fix the value", option->name, text,
                                   why);
    return CAIRN_OK;
}

/* Finds the option of a key. */
static cairn_err
take_key(const struct parse *parse, const struct cairn_option *options, uint32_t count,
         const struct cairn_yaml_node *node, const struct cairn_option **out)
{
    const char *key = cairn_yaml_key(parse->yaml, node);

    *out = cairn_option_find(options, count, key);
    if (!*out)
        return cairn_config_refuse(
            &parse->error, node->line,
            "%.64s: unknown option, the nearest is \"%s\"; fix the name or remove the line", key,
            cairn_option_nearest(options, count, key)->name);
    return CAIRN_OK;
}

static cairn_err
take_node(const struct parse *parse, const struct cairn_yaml_node *entry,
          struct cairn_config_node *out)
{
    if (entry->kind != CAIRN_YAML_MAP)
        return cairn_config_refuse(
            &parse->error, entry->line,
            "nodes: an entry is not a map; write \"- {address: host:port, domain: rack-1}\"");
    for (const struct cairn_yaml_node *node = cairn_yaml_child(parse->yaml, entry); node;
         node = cairn_yaml_next(parse->yaml, node)) {
        const struct cairn_option *option;
        cairn_err err = take_key(parse, cairn_node_options, cairn_node_option_count, node, &option);

        if (err)
            return err;
        err = take_value(parse, option, node, out);
        if (err)
            return err;
    }
    out->line = entry->line;
    if (!out->address[0])
        return cairn_config_refuse(&parse->error, entry->line,
                                   "nodes: an entry has no address; add \"address: host:port\"");
    return CAIRN_OK;
}

static uint32_t
count_children(const struct cairn_yaml *yaml, const struct cairn_yaml_node *parent)
{
    uint32_t count = 0;

    for (const struct cairn_yaml_node *node = cairn_yaml_child(yaml, parent); node;
         node = cairn_yaml_next(yaml, node))
        count++;
    return count;
}

static cairn_err
take_nodes(const struct parse *parse, const struct cairn_yaml_node *list)
{
    uint32_t count = list->kind == CAIRN_YAML_LIST ? count_children(parse->yaml, list) : 0;
    struct cairn_config *config = parse->config;
    struct cairn_config_node *nodes;

    if (count == 0 || count > CAIRN_NODES_MAX)
        return cairn_config_refuse(&parse->error, list->line,
                                   "nodes: must be a list of 1 to %d entries; write one line \"- "
                                   "{address: host:port}\" per node",
                                   CAIRN_NODES_MAX);
    nodes = calloc(count, sizeof *nodes);
    if (!nodes)
        return CAIRN_NOMEM;
    free(config->nodes);
    config->nodes = nodes;
    config->node_count = count;
    for (const struct cairn_yaml_node *entry = cairn_yaml_child(parse->yaml, list); entry;
         entry = cairn_yaml_next(parse->yaml, entry)) {
        cairn_err err = take_node(parse, entry, nodes++);

        if (err)
            return err;
    }
    return CAIRN_OK;
}

static cairn_err
take_command(const struct parse *parse, const struct cairn_option *option,
             const struct cairn_yaml_node *list)
{
    struct cairn_config_command *command =
        (struct cairn_config_command *)(void *)((char *)parse->config + option->offset);
    uint32_t count = list->kind == CAIRN_YAML_LIST ? count_children(parse->yaml, list) : 0;
    size_t used = 0;

    if (list->kind != CAIRN_YAML_LIST || count > option->max)
        return cairn_config_refuse(&parse->error, list->line,
                                   "%s: must be a list of at most %u texts, the program and its "
                                   "arguments; write \"%s: [/path/to/program, argument]\"",
                                   option->name, (uint32_t)option->max, option->name);
    for (const struct cairn_yaml_node *entry = cairn_yaml_child(parse->yaml, list); entry;
         entry = cairn_yaml_next(parse->yaml, entry)) {
        const char *text =
            entry->kind == CAIRN_YAML_SCALAR ? cairn_yaml_text(parse->yaml, entry) : "";
        size_t text_bytes = strlen(text) + 1;

        if (entry->kind != CAIRN_YAML_SCALAR || (!text[0] && !entry->quoted))
            return cairn_config_refuse(
                &parse->error, entry->line,
                "%s: an entry is not a text; write each argument as one, in quotes if it is empty",
                option->name);
        if (used == 0 && text[0] != '/')
            return cairn_config_refuse(&parse->error, entry->line,
                                       "%s: begins with \"%.64s\", which is not an absolute path; "
                                       "write /path/to/program, since no shell searches for it",
                                       option->name, text);
        if (text_bytes > sizeof command->text - used)
            return cairn_config_refuse(
                &parse->error, entry->line,
                "%s: is longer than %zu bytes; put long arguments into a script", option->name,
                sizeof command->text);
        memcpy(command->text + used, text, text_bytes);
        used += text_bytes;
    }
    command->count = count;
    return CAIRN_OK;
}

static cairn_err
take_options(const struct parse *parse)
{
    const struct cairn_yaml_node *root = parse->yaml->nodes;

    if (root->kind == CAIRN_YAML_SCALAR && !root->quoted && !cairn_yaml_text(parse->yaml, root)[0])
        return CAIRN_OK; /* an empty document: all defaults */
    if (root->kind != CAIRN_YAML_MAP)
        return cairn_config_refuse(
            &parse->error, root->line,
            "expected a map of options; write lines of the form \"name: value\"");
    for (const struct cairn_yaml_node *node = cairn_yaml_child(parse->yaml, root); node;
         node = cairn_yaml_next(parse->yaml, node)) {
        const struct cairn_option *option;
        cairn_err err = take_key(parse, cairn_options, cairn_option_count, node, &option);

        if (err)
            return err;
        parse->config->lines[option - cairn_options] = node->line;
        err = option->type == CAIRN_OPTION_NODES ? take_nodes(parse, node)
              : option->type == CAIRN_OPTION_COMMAND
                  ? take_command(parse, option, node)
                  : take_value(parse, option, node, parse->config);
        if (err)
            return err;
    }
    return CAIRN_OK;
}

cairn_err
cairn_config_parse(const char *text, size_t text_len, const char *name, struct cairn_config *out,
                   char *error, size_t error_bytes)
{
    struct cairn_yaml yaml = {0};
    struct cairn_config config = {0};
    struct parse parse = {.yaml = &yaml, .config = &config};
    cairn_err err;

    snprintf(error, error_bytes, "%s: out of memory; free some and try again", name);
    err = cairn_config_default(&config);
    if (err)
        goto done;
    snprintf(config.source, sizeof config.source, "%s", name);
    parse.error = cairn_config_error_of(&config, error, error_bytes);
    err = cairn_yaml_parse(text, text_len, config.source, &yaml, error, error_bytes);
    if (err)
        goto done;
    set_defaults(cairn_options, cairn_option_count, &config); /* parity was settled for one node */
    err = take_options(&parse);
    if (err)
        goto done;
    settle_parity(&config);
    err = cairn_config_check(&config, error, error_bytes);
    if (err)
        goto done;
    *out = config;
    memset(&config, 0, sizeof config);
    error[0] = '\0';
done:
    cairn_yaml_fini(&yaml);
    cairn_config_fini(&config);
    return err;
}

/* ---- the file ---- */

cairn_err
cairn_config_load(const char *path, struct cairn_config *out, char *error_text, size_t error_bytes)
{
    struct cairn_config_error error = {
        .source = path, .text = error_text, .text_bytes = error_bytes};
    struct cairn_credentials *credentials = NULL;
    struct cairn_config config = {0};
    struct stat status;
    size_t used;
    char *bytes = NULL;
    int fd = -1;
    cairn_err err;

    err = cairn_config_open(&error, 0, "configuration", path, &fd, &status);
    if (err)
        goto done;
    bytes = malloc(CAIRN_YAML_FILE_BYTES_MAX + 1);
    if (!bytes) {
        err = CAIRN_NOMEM;
        (void)cairn_config_refuse(&error, 0, "out of memory; free some and try again");
        goto done;
    }
    err = cairn_config_read(&error, 0, path, fd, bytes, CAIRN_YAML_FILE_BYTES_MAX + 1, &used);
    if (err)
        goto done;
    err = cairn_config_parse(bytes, used, path, &config, error_text, error_bytes);
    if (err)
        goto done;
    err = cairn_credentials_read(&config, &credentials, error_text, error_bytes);
    cairn_credentials_free(credentials); /* only whether they can be read was asked */
    if (err)
        goto done;
    *out = config;
    memset(&config, 0, sizeof config);
done:
    if (fd >= 0)
        close(fd);
    free(bytes);
    cairn_config_fini(&config);
    return err;
}
