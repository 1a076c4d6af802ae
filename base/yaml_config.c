/*
 * base/yaml_config.c - the only file that includes libyaml: builds the tree from its events.
 *
 * Nodes and texts are two growing arrays that refer to each other by index and offset; offset 0 of
 * the texts is "". Open lists and maps are kept on a stack of CAIRN_YAML_DEPTH_MAX frames, so
 * nothing recurses, and every bound is checked before memory is taken.
 */
#include "base/array.h"
#include "base/yaml_config.h"

#include "base/assert.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { NONE = UINT32_MAX };

struct frame {
    uint32_t node;
    uint32_t last_child; /* 0: none yet */
    uint32_t child_count;
    uint32_t key; /* offset of the key that waits for its value, NONE: a key is next */
    uint32_t key_line;
};

struct builder {
    struct cairn_yaml yaml;
    size_t texts_room;
    struct frame frames[CAIRN_YAML_DEPTH_MAX];
    uint32_t depth;
    uint32_t documents;
    const char *file_name;
    char *error;
    size_t error_bytes;
};

__attribute__((format(printf, 3, 4))) static cairn_err
refuse(struct builder *builder, size_t line, const char *format, ...)
{
    va_list arguments;
    int used = snprintf(builder->error, builder->error_bytes, "%s:%zu: ", builder->file_name, line);

    if (used < 0 || (size_t)used >= builder->error_bytes)
        return CAIRN_CONFIG;
    va_start(arguments, format);
    vsnprintf(builder->error + used, builder->error_bytes - (size_t)used, format, arguments);
    va_end(arguments);
    return CAIRN_CONFIG;
}

static cairn_err
no_memory(struct builder *builder)
{
    snprintf(builder->error, builder->error_bytes,
             "%s: out of memory while reading it; free some and try again", builder->file_name);
    return CAIRN_NOMEM;
}

static cairn_err
add_text(struct builder *builder, const char *text, size_t text_len, uint32_t *out)
{
    struct cairn_yaml *yaml = &builder->yaml;
    size_t needed = yaml->texts_bytes + text_len + 1;

    if (needed > builder->texts_room) {
        size_t room = needed * 2 > 1024 ? needed * 2 : 1024;
        char *texts = realloc(yaml->texts, room);

        if (!texts)
            return no_memory(builder);
        yaml->texts = texts;
        builder->texts_room = room;
    }
    memcpy(yaml->texts + yaml->texts_bytes, text, text_len);
    yaml->texts[needed - 1] = '\0';
    *out = (uint32_t)yaml->texts_bytes;
    yaml->texts_bytes = needed;
    return CAIRN_OK;
}

/* Adds a node under the open list or map, or as the root. */
static cairn_err
add_node(struct builder *builder, enum cairn_yaml_kind kind, size_t line, uint32_t *out)
{
    struct cairn_yaml *yaml = &builder->yaml;
    struct frame *frame = builder->depth ? &builder->frames[builder->depth - 1] : NULL;
    uint32_t index = yaml->node_count;

    if (index == CAIRN_YAML_NODES_MAX)
        return refuse(builder, line, "more than %d values; shorten the file", CAIRN_YAML_NODES_MAX);
    if (!cairn_array_grow(&yaml->nodes, index, sizeof *yaml->nodes))
        return no_memory(builder);
    yaml->nodes[index] = (struct cairn_yaml_node){.kind = kind, .line = (uint32_t)line};
    if (frame) {
        if (frame->last_child)
            yaml->nodes[frame->last_child].next = index;
        else
            yaml->nodes[frame->node].child = index;
        frame->last_child = index;
        frame->child_count++;
        if (frame->key != NONE) {
            yaml->nodes[index].key = frame->key;
            yaml->nodes[index].line = frame->key_line;
        }
        frame->key = NONE;
    }
    yaml->node_count++;
    *out = index;
    return CAIRN_OK;
}

/* The next value of this parent must be a key. */
static bool
wants_key(const struct builder *builder)
{
    const struct frame *frame;

    if (builder->depth == 0)
        return false;
    frame = &builder->frames[builder->depth - 1];
    return frame->key == NONE && builder->yaml.nodes[frame->node].kind == CAIRN_YAML_MAP;
}

static cairn_err
add_key(struct builder *builder, const yaml_event_t *event, size_t line)
{
    struct frame *frame = &builder->frames[builder->depth - 1];
    const char *key = (const char *)event->data.scalar.value;
    const struct cairn_yaml_node *other =
        cairn_yaml_child(&builder->yaml, &builder->yaml.nodes[frame->node]);

    if (event->data.scalar.length == 0)
        return refuse(builder, line, "a value has no name; write \"name: value\"");
    if (frame->child_count == CAIRN_YAML_KEYS_MAX)
        return refuse(builder, line, "more than %d names here; remove some", CAIRN_YAML_KEYS_MAX);
    for (; other; other = cairn_yaml_next(&builder->yaml, other))
        if (strcmp(cairn_yaml_key(&builder->yaml, other), key) == 0)
            return refuse(builder, line, "%.64s: given twice, first in line %u; remove one of them",
                          key, other->line);
    frame->key_line = (uint32_t)line;
    return add_text(builder, key, event->data.scalar.length, &frame->key);
}

static cairn_err
on_scalar(struct builder *builder, const yaml_event_t *event, size_t line)
{
    const unsigned char *text = event->data.scalar.value;
    size_t text_len = event->data.scalar.length;
    uint32_t offset, index;
    cairn_err err;

    if (text_len > CAIRN_YAML_SCALAR_BYTES_MAX)
        return refuse(builder, line, "a text is longer than %d bytes; shorten it",
                      CAIRN_YAML_SCALAR_BYTES_MAX);
    for (size_t i = 0; i < text_len; i++)
        if (text[i] < ' ' || text[i] == 0x7f)
            return refuse(builder, line,
                          "a text holds a control character or a line break; write it on one line");
    if (wants_key(builder))
        return add_key(builder, event, line);
    err = add_text(builder, (const char *)text, text_len, &offset);
    if (err)
        return err;
    err = add_node(builder, CAIRN_YAML_SCALAR, line, &index);
    if (err)
        return err;
    builder->yaml.nodes[index].text = offset;
    builder->yaml.nodes[index].quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    return CAIRN_OK;
}

static cairn_err
on_open(struct builder *builder, enum cairn_yaml_kind kind, size_t line)
{
    uint32_t index;
    cairn_err err;

    if (builder->depth == CAIRN_YAML_DEPTH_MAX)
        return refuse(builder, line, "lists and maps are nested deeper than %d; flatten them",
                      CAIRN_YAML_DEPTH_MAX);
    if (wants_key(builder))
        return refuse(builder, line,
                      "a name is a list or a map; write a plain word before the \":\"");
    err = add_node(builder, kind, line, &index);
    if (err)
        return err;
    builder->frames[builder->depth++] = (struct frame){.node = index, .key = NONE};
    return CAIRN_OK;
}

/* Refuses anchors and tags: an anchor lets a short file stand for a huge one, a tag for
 * anything. */
static cairn_err
check_plain(struct builder *builder, const yaml_event_t *event, size_t line)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;

    switch (event->type) {
    case YAML_SCALAR_EVENT:
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
        break;
    case YAML_ALIAS_EVENT:
        anchor = event->data.alias.anchor;
        break;
    default:
        break;
    }
    if (anchor)
        return refuse(builder, line,
                      "anchor or alias \"%.40s\" is not supported; write the value out, or quote a "
                      "text that begins with & or *",
                      (const char *)anchor);
    if (tag)
        return refuse(
            builder, line,
            "tag \"%.40s\" is not supported; remove it, or quote a text that begins with !",
            (const char *)tag);
    return CAIRN_OK;
}

static cairn_err
on_event(struct builder *builder, const yaml_event_t *event)
{
    size_t line = event->start_mark.line + 1;
    cairn_err err = check_plain(builder, event, line);

    if (err)
        return err;
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (builder->documents++)
            return refuse(builder, line,
                          "a second document begins (\"---\"); keep one document in the file");
        return CAIRN_OK;
    case YAML_SCALAR_EVENT:
        return on_scalar(builder, event, line);
    case YAML_SEQUENCE_START_EVENT:
        return on_open(builder, CAIRN_YAML_LIST, line);
    case YAML_MAPPING_START_EVENT:
        return on_open(builder, CAIRN_YAML_MAP, line);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        CAIRN_ASSERT(builder->depth > 0); /* libyaml's grammar pairs them */
        builder->depth--;
        return CAIRN_OK;
    default:
        return CAIRN_OK;
    }
}

static cairn_err
read_events(struct builder *builder, yaml_parser_t *parser)
{
    for (;;) {
        yaml_event_t event;
        bool last;
        cairn_err err;

        if (!yaml_parser_parse(parser, &event)) {
            if (parser->error == YAML_MEMORY_ERROR)
                return no_memory(builder);
            return refuse(builder, parser->problem_mark.line + 1,
                          "not YAML: %s%s%s; check indentation, quotes and brackets",
                          parser->problem ? parser->problem : "unreadable",
                          parser->context ? " " : "", parser->context ? parser->context : "");
        }
        last = event.type == YAML_STREAM_END_EVENT;
        err = on_event(builder, &event);
        yaml_event_delete(&event);
        if (err || last)
            return err;
    }
}

cairn_err
cairn_yaml_parse(const void *bytes, size_t bytes_len, const char *file_name, struct cairn_yaml *out,
                 char *error, size_t error_bytes)
{
    struct builder builder = {.file_name = file_name, .error = error, .error_bytes = error_bytes};
    yaml_parser_t parser;
    uint32_t empty;
    cairn_err err;

    if (bytes_len > CAIRN_YAML_FILE_BYTES_MAX)
        return refuse(&builder, 1, "longer than %d bytes; check that this is the right file",
                      CAIRN_YAML_FILE_BYTES_MAX);
    if (!yaml_parser_initialize(&parser))
        return no_memory(&builder);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, bytes_len ? bytes : (const void *)"", bytes_len);
    err = add_text(&builder, "", 0, &empty);
    if (err)
        goto done;
    err = read_events(&builder, &parser);
    if (err)
        goto done;
    if (builder.yaml.node_count == 0) {
        err = add_node(&builder, CAIRN_YAML_MAP, 1, &empty);
        if (err)
            goto done;
    }
    *out = builder.yaml;
    memset(&builder.yaml, 0, sizeof builder.yaml);
done:
    yaml_parser_delete(&parser);
    cairn_yaml_fini(&builder.yaml);
    return err;
}

void
cairn_yaml_fini(struct cairn_yaml *yaml)
{
    free(yaml->nodes);
    free(yaml->texts);
    memset(yaml, 0, sizeof *yaml);
}

const char *
cairn_yaml_key(const struct cairn_yaml *yaml, const struct cairn_yaml_node *node)
{
    return yaml->texts + node->key;
}

const char *
cairn_yaml_text(const struct cairn_yaml *yaml, const struct cairn_yaml_node *node)
{
    return yaml->texts + node->text;
}

const struct cairn_yaml_node *
cairn_yaml_child(const struct cairn_yaml *yaml, const struct cairn_yaml_node *node)
{
    return node->child ? &yaml->nodes[node->child] : NULL;
}

const struct cairn_yaml_node *
cairn_yaml_next(const struct cairn_yaml *yaml, const struct cairn_yaml_node *node)
{
    return node->next ? &yaml->nodes[node->next] : NULL;
}
