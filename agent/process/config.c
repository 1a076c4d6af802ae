/*
 * agent/process/config.c - reads a configuration through the table of options, and checks it as a
 * whole.
 *
 * Order: defaults from the table, then the file, then `parity` where the file leaves it open, then
 * the rules between options. Nothing is handed out before all of it has passed.
 */
#include "agent/process/config.h"

#include "agent/process/config_table.h"
#include "base/assert.h"
#include "base/secret.h"
#include "base/sha256.h"
#include "base/yaml_config.h"
#include "transport/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_ADDRESS "127.0.0.1:7431"

struct error_text {
    const char *source; /* the file */
    char *text;
    size_t text_bytes;
};

/* Writes "file:line: …", without the line where it is 0. Returns CAIRN_CONFIG. */
__attribute__((format(printf, 3, 4))) static cairn_err
refuse(const struct error_text *error, uint32_t line, const char *format, ...)
{
    va_list arguments;
    int used;

    used = line ? snprintf(error->text, error->text_bytes, "%s:%u: ", error->source, line)
                : snprintf(error->text, error->text_bytes, "%s: ", error->source);
    if (used < 0 || (size_t)used >= error->text_bytes)
        return CAIRN_CONFIG;
    va_start(arguments, format);
    vsnprintf(error->text + used, error->text_bytes - (size_t)used, format, arguments);
    va_end(arguments);
    return CAIRN_CONFIG;
}

static struct error_text
error_of(const struct cairn_config *config, char *error, size_t error_bytes)
{
    return (struct error_text){.source = config->source[0] ? config->source : "configuration",
                               .text = error,
                               .text_bytes = error_bytes};
}

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

/* Jobs too small for the default parity take what they can have; a number in the file is law. */
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
    struct error_text error;
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
        return refuse(&parse->error, node->line,
                      "%s is a %s, but must be %s: write \"%s: value\" on one line", option->name,
                      node->kind == CAIRN_YAML_LIST ? "list" : "map", why, option->name);
    }
    text = cairn_yaml_text(parse->yaml, node);
    if (!text[0] && !node->quoted)
        return refuse(&parse->error, node->line,
                      "%s has no value: give one, or remove the line to get the default",
                      option->name);
    if (!cairn_option_set(option, text, base, why, sizeof why))
        return refuse(&parse->error, node->line, "%s is \"%.64s\", but %s: mend the value",
                      option->name, text, why);
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
        return refuse(
            &parse->error, node->line,
            "there is no option \"%.64s\"; the nearest is \"%s\": mend the name or remove "
            "the line",
            key, cairn_option_nearest(options, count, key)->name);
    return CAIRN_OK;
}

static cairn_err
take_node(const struct parse *parse, const struct cairn_yaml_node *entry,
          struct cairn_config_node *out)
{
    if (entry->kind != CAIRN_YAML_MAP)
        return refuse(&parse->error, entry->line,
                      "an entry of nodes is not a map: write \"- {address: host:port, domain: "
                      "rack-1}\"");
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
        return refuse(&parse->error, entry->line,
                      "an entry of nodes has no address: add \"address: host:port\"");
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
        return refuse(&parse->error, list->line,
                      "nodes must be a list of 1 to %d entries: write one line \"- {address: "
                      "host:port}\" per node",
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
        return refuse(&parse->error, list->line,
                      "%s must be a list of at most %u texts, the program and its arguments: write "
                      "\"%s: [/path/to/program, argument]\"",
                      option->name, (uint32_t)option->max, option->name);
    for (const struct cairn_yaml_node *entry = cairn_yaml_child(parse->yaml, list); entry;
         entry = cairn_yaml_next(parse->yaml, entry)) {
        const char *text =
            entry->kind == CAIRN_YAML_SCALAR ? cairn_yaml_text(parse->yaml, entry) : "";
        size_t text_bytes = strlen(text) + 1;

        if (entry->kind != CAIRN_YAML_SCALAR || (!text[0] && !entry->quoted))
            return refuse(&parse->error, entry->line,
                          "an entry of %s is no text: write each argument as one, in quotes where "
                          "it is empty",
                          option->name);
        if (used == 0 && text[0] != '/')
            return refuse(&parse->error, entry->line,
                          "%s begins with \"%.64s\", which is no absolute path: no shell looks for "
                          "it, so name the program as /path/to/program",
                          option->name, text);
        if (text_bytes > sizeof command->text - used)
            return refuse(&parse->error, entry->line,
                          "%s is longer than %zu bytes: put what is long into a script",
                          option->name, sizeof command->text);
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
        return refuse(&parse->error, root->line,
                      "the file is not a map of options: write lines of the form \"name: value\"");
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

    snprintf(error, error_bytes, "%s: out of memory: free some and try again", name);
    err = cairn_config_default(&config);
    if (err)
        goto done;
    snprintf(config.source, sizeof config.source, "%s", name);
    parse.error = error_of(&config, error, error_bytes);
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

/* ---- files ---- */

/* Opens a plain file and says what is wrong with it. Symbolic links are followed: a mounted
 * ConfigMap or Secret is made of them. */
static cairn_err
open_plain(const struct error_text *error, uint32_t line, const char *what, const char *path,
           int *out, struct stat *status)
{
    /* O_NONBLOCK: a named pipe must not hold up the start */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    cairn_err err = CAIRN_OK;

    if (fd < 0) {
        err = errno == ENOENT || errno == ENOTDIR ? CAIRN_NOT_FOUND
              : errno == EACCES || errno == EPERM ? CAIRN_DENIED
                                                  : CAIRN_IO;
        (void)refuse(error, line, "cannot open %s %s (%m): check the path and who may read it",
                     what, path);
    } else if (fstat(fd, status) || !S_ISREG(status->st_mode)) {
        err = CAIRN_IO;
        (void)refuse(error, line, "%s %s is not a plain file: give the path of one", what, path);
    }
    if (err && fd >= 0)
        close(fd);
    if (!err)
        *out = fd;
    return err;
}

/* Reads up to room bytes. */
static cairn_err
read_plain(const struct error_text *error, uint32_t line, const char *path, int fd, void *bytes,
           size_t room, size_t *out)
{
    size_t used = 0;

    while (used < room) {
        ssize_t got = read(fd, (char *)bytes + used, room - used);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            (void)refuse(error, line, "cannot read %s (%m): look at the disk", path);
            return CAIRN_IO;
        }
        if (got == 0)
            break;
        used += (size_t)got;
    }
    *out = used;
    return CAIRN_OK;
}

/* Takes `used` bytes as the key; all of a long one counts. */
static cairn_err
key_shorten(struct cairn_config_key *key, size_t used)
{
    struct cairn_sha256 *sha = NULL;
    cairn_err err;

    key->len = used;
    if (used <= CAIRN_TRANSPORT_KEY_BYTES_MAX)
        return CAIRN_OK;
    err = cairn_sha256_create(&sha);
    if (err)
        return err;
    cairn_sha256_update(sha, key->bytes, used);
    err = cairn_sha256_final(sha, key->bytes);
    key->len = CAIRN_SHA256_BYTES;
    cairn_sha256_destroy(sha);
    return err;
}

static cairn_err
key_read(const struct error_text *error, uint32_t line, const char *option, const char *path,
         struct cairn_config_key *key)
{
    struct stat status;
    size_t used = 0;
    int fd = -1;
    cairn_err err = open_plain(error, line, option, path, &fd, &status);

    if (err)
        goto done;
    if (status.st_uid != geteuid()) {
        err = CAIRN_DENIED;
        (void)refuse(error, line, "%s %s belongs to user %u, but the agent runs as %u: chown it",
                     option, path, status.st_uid, geteuid());
        goto done;
    }
    if (status.st_mode & 077) {
        err = CAIRN_DENIED;
        (void)refuse(error, line,
                     "%s %s has mode %04o, so others can use the key: chmod 600 it, and make a new "
                     "key if they may have read it",
                     option, path, status.st_mode & 07777u);
        goto done;
    }
    err = read_plain(error, line, path, fd, key->bytes, sizeof key->bytes, &used);
    if (err)
        goto done;
    if (used < CAIRN_CONFIG_KEY_BYTES_MIN || used > CAIRN_CONFIG_KEY_BYTES_MAX)
        err = refuse(error, line,
                     "%s %s holds %s bytes than a key has (%d to %d): make one with \"openssl rand "
                     "-out %s 32\"",
                     option, path, used < CAIRN_CONFIG_KEY_BYTES_MIN ? "fewer" : "more",
                     CAIRN_CONFIG_KEY_BYTES_MIN, CAIRN_CONFIG_KEY_BYTES_MAX, path);
    else
        err = key_shorten(key, used);
done:
    if (fd >= 0)
        close(fd);
    return err;
}

cairn_err
cairn_config_keys_read(const struct cairn_config *config, struct cairn_config_keys **out,
                       char *error_text, size_t error_bytes)
{
    struct error_text error = error_of(config, error_text, error_bytes);
    struct cairn_config_keys *keys = cairn_secret_alloc(sizeof *keys);
    cairn_err err = CAIRN_OK;

    if (!keys) {
        (void)refuse(&error, 0, "out of memory: free some and try again");
        return CAIRN_NOMEM;
    }
    if (config->key_file[0])
        err = key_read(&error, cairn_config_line(config, "key_file"), "key_file", config->key_file,
                       &keys->first);
    if (!err && config->key_file[0] && config->second_key_file[0]) {
        err = key_read(&error, cairn_config_line(config, "second_key_file"), "second_key_file",
                       config->second_key_file, &keys->second);
        if (err == CAIRN_NOT_FOUND)
            err = CAIRN_OK;
    }
    if (!err) {
        *out = keys;
        keys = NULL;
    }
    cairn_config_keys_free(keys);
    return err;
}

void
cairn_config_keys_free(struct cairn_config_keys *keys)
{
    cairn_secret_free(keys, sizeof *keys);
}

cairn_err
cairn_config_load(const char *path, struct cairn_config *out, char *error_text, size_t error_bytes)
{
    struct error_text error = {.source = path, .text = error_text, .text_bytes = error_bytes};
    struct cairn_config_keys *keys = NULL;
    struct cairn_config config = {0};
    struct stat status;
    size_t used;
    char *bytes = NULL;
    int fd = -1;
    cairn_err err;

    err = open_plain(&error, 0, "the configuration", path, &fd, &status);
    if (err)
        goto done;
    bytes = malloc(CAIRN_YAML_FILE_BYTES_MAX + 1);
    if (!bytes) {
        err = CAIRN_NOMEM;
        (void)refuse(&error, 0, "out of memory: free some and try again");
        goto done;
    }
    err = read_plain(&error, 0, path, fd, bytes, CAIRN_YAML_FILE_BYTES_MAX + 1, &used);
    if (err)
        goto done;
    err = cairn_config_parse(bytes, used, path, &config, error_text, error_bytes);
    if (err)
        goto done;
    err = cairn_config_keys_read(&config, &keys, error_text, error_bytes);
    cairn_config_keys_free(keys); /* only whether they can be read was asked */
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
