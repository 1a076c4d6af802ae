/* tools/relaunch_shape.c - see relaunch_shape.h. */
#include "tools/relaunch_shape.h"

#include "agent/service/operator_launcher.h"
#include "base/crc.h"
#include "base/file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROBLEM_FILE_BYTES_MAX = 64 << 20 };

enum word { DP, PP, TP, MICRO_BATCHES, STAGE_LAYERS, MEGATRON_LAYOUT };

const struct cairn_word cairn_relaunch_shape_words[CAIRN_RELAUNCH_SHAPE_WORDS] = {
    [DP] = {.name = "dp", .is_shape = true},
    [PP] = {.name = "pp", .is_shape = true},
    [TP] = {.name = "tp"},
    [MICRO_BATCHES] = {.name = "micro_batches"},
    [STAGE_LAYERS] = {.name = "stage_layers"},
    [MEGATRON_LAYOUT] = {.name = "megatron_layout"},
};

static bool
uses(char *const *command, enum word word)
{
    return cairn_words_use(command, cairn_relaunch_shape_words[word].name);
}

void
cairn_relaunch_shapes_init(struct cairn_relaunch_shapes *shapes, char *const *command,
                           bool batch_may_change)
{
    *shapes = (struct cairn_relaunch_shapes){.problem_name = 0};
    shapes->rules.has_layers = uses(command, STAGE_LAYERS) || uses(command, MEGATRON_LAYOUT);
    shapes->rules.has_stages = uses(command, PP) || shapes->rules.has_layers;
    shapes->rules.has_shares = uses(command, MICRO_BATCHES);
    shapes->rules.batch_may_change = batch_may_change;
    shapes->is_named = shapes->rules.has_stages || shapes->rules.has_shares || uses(command, DP) ||
                       uses(command, TP);
}

void
cairn_relaunch_shapes_fini(struct cairn_relaunch_shapes *shapes)
{
    cairn_problem_fini(&shapes->problem);
    shapes->problem_name = 0;
}

uint64_t
cairn_relaunch_shapes_reads(const struct cairn_relaunch_shapes *shapes, bool keeps_size)
{
    return OPERATOR_READS_ANY | (keeps_size ? 0 : OPERATOR_READS_NODES) |
           (shapes->rules.has_stages ? OPERATOR_READS_STAGES : 0) |
           (shapes->rules.has_layers ? OPERATOR_READS_LAYERS : 0) |
           (shapes->rules.has_shares ? OPERATOR_READS_SHARES : 0);
}

/* ---- an agent's answer ---- */

static uint64_t
rules_bits(const struct cairn_shape_rules *rules)
{
    return rules->has_stages | rules->has_layers << 1 | rules->has_shares << 2 |
           rules->batch_may_change << 3;
}

static void
read_problem(struct cairn_relaunch_shapes *shapes, const char *path)
{
    struct cairn_fault fault;
    size_t bytes_len = 0;
    uint8_t *bytes = NULL;

    if (strcmp(path, shapes->path) == 0)
        return;
    cairn_relaunch_shapes_fini(shapes);
    (void)snprintf(shapes->path, sizeof shapes->path, "%s", path);
    if (!path[0])
        return;
    if (cairn_file_load(AT_FDCWD, path, PROBLEM_FILE_BYTES_MAX, &bytes, &bytes_len) == CAIRN_OK &&
        cairn_problem_read(bytes, bytes_len, &shapes->problem, &fault) == CAIRN_OK)
        shapes->problem_name = cairn_crc64(rules_bits(&shapes->rules), bytes, bytes_len) | 1;
    free(bytes);
}

/* Numbers of a list; returns how many, 0 if there are more than `max`, or one is 0 or too large and
 * `is_part` is set. */
static uint32_t
read_list(const struct cairn_tree *tree, const struct cairn_tree_value *from, const char *key,
          uint32_t *out, uint32_t max, bool is_part)
{
    const struct cairn_tree_value *list = cairn_tree_find(tree, from, key), *each = NULL;
    uint32_t count = 0;

    while (list && (each = cairn_tree_next(tree, list, each)) != NULL) {
        uint64_t value = cairn_tree_u64(tree, each, "", UINT64_MAX);

        if (count == max || value >= UINT32_MAX || (is_part && value == 0))
            return 0;
        out[count++] = (uint32_t)value;
    }
    return count;
}

void
cairn_relaunch_shapes_read(struct cairn_relaunch_shapes *shapes, const struct cairn_tree *tree)
{
    const struct cairn_tree_value *offer = cairn_tree_find(tree, NULL, "relaunch");
    struct cairn_relaunch_offer *out = &shapes->offer;
    struct cairn_shape *shape = &shapes->offered;
    char path[CAIRN_RELAUNCH_PROBLEM_BYTES];

    read_problem(shapes, cairn_tree_text(tree, NULL, "problem", path, sizeof path));
    *out = (struct cairn_relaunch_offer){.number = 0};
    if (!offer)
        return;
    out->count = read_list(tree, offer, "nodes", out->nodes, CAIRN_SHAPE_NODES_MAX, false);
    *shape = (struct cairn_shape){.tp = (uint32_t)cairn_tree_u64(tree, offer, "tp", 0)};
    shape->dp = read_list(tree, offer, "micro_batches", shape->shares, CAIRN_SHAPE_PARTS_MAX, true);
    shape->pp = read_list(tree, offer, "stage_layers", shape->layers, CAIRN_SHAPE_PARTS_MAX, true);
    if (out->count && shape->tp && shape->dp && shape->pp)
        out->number = cairn_tree_u64(tree, offer, "number", 0);
}

/* ---- the shape of a round ---- */

static bool
follows_rules(const struct cairn_shape *shape, const struct cairn_shape_rules *rules)
{
    bool alike = true;

    for (uint32_t i = 1; i < shape->dp && !rules->has_shares; i++)
        alike = alike && shape->shares[i] == shape->shares[0];
    for (uint32_t i = 1; i < shape->pp && !rules->has_layers; i++)
        alike = alike && shape->layers[i] == shape->layers[0];
    return alike;
}

const char *
cairn_relaunch_shapes_fault(const struct cairn_relaunch_shapes *shapes)
{
    struct cairn_shape shape;

    if (!shapes->is_named)
        return NULL;
    if (!shapes->path[0])
        return "the words of the command name the shape of the job, which this node's agent does "
               "not know; set `problem` in the agents' files to a problem file (docs/PLANNER.md)";
    if (!shapes->problem_name)
        return "the words of the command name the shape of the job, and the problem file of this "
               "node's agent cannot be read here; make it readable for this user";
    if (cairn_shape_find(&shapes->problem, NULL, 0, &shapes->rules, &shape) == CAIRN_INVAL)
        return "the words of the command name the shape of the job, and the problem file of this "
               "node's agent has no current plan with groups of one size; add one as \"current\"";
    return NULL;
}

cairn_err
cairn_relaunch_shapes_find(const struct cairn_relaunch_shapes *shapes,
                           const struct cairn_relaunch_round *round, struct cairn_shape *out)
{
    uint64_t nodes[CAIRN_SHAPE_NODES_MAX], home[CAIRN_SHAPE_NODES_MAX];
    uint32_t count;

    if (round->shape && round->shape == shapes->offer.number) {
        *out = shapes->offered;
        return CAIRN_OK;
    }
    if (!shapes->problem_name)
        return CAIRN_INVAL;
    if (round->count > CAIRN_SHAPE_NODES_MAX)
        return CAIRN_NOT_FOUND;
    for (uint32_t i = 0; i < round->count; i++)
        nodes[i] = round->seats[i].node;
    count = cairn_shape_nodes(&shapes->problem, home);
    if (count == round->count && memcmp(home, nodes, count * sizeof *nodes) == 0 &&
        cairn_shape_current(&shapes->problem, out) && follows_rules(out, &shapes->rules))
        return CAIRN_OK;
    return cairn_shape_find(&shapes->problem, nodes, round->count, &shapes->rules, out);
}

/* ---- texts ---- */

static void
write_list(char *out, const uint32_t *numbers, uint32_t count)
{
    size_t used = 0;

    for (uint32_t i = 0; i < count; i++)
        used += (size_t)snprintf(out + used, CAIRN_RELAUNCH_SHAPE_TEXT_BYTES - used, "%s%" PRIu32,
                                 i ? "," : "", numbers[i]);
}

/* As Megatron-LM's --pipeline-model-parallel-layout: "Et*4|t*4|t*4L". */
static void
write_layout(char *out, const struct cairn_shape *shape)
{
    size_t used = 0;

    for (uint32_t s = 0; s < shape->pp; s++)
        used += (size_t)snprintf(out + used, CAIRN_RELAUNCH_SHAPE_TEXT_BYTES - used,
                                 "%st*%" PRIu32 "%s", s ? "|" : "E", shape->layers[s],
                                 s + 1 == shape->pp ? "L" : "");
}

void
cairn_relaunch_shapes_write(const struct cairn_shape *shape, struct cairn_relaunch_shape_texts *out)
{
    const size_t room = CAIRN_RELAUNCH_SHAPE_TEXT_BYTES;

    (void)snprintf(out->text[DP], room, "%" PRIu32, shape->dp);
    (void)snprintf(out->text[PP], room, "%" PRIu32, shape->pp);
    (void)snprintf(out->text[TP], room, "%" PRIu32, shape->tp);
    write_list(out->text[MICRO_BATCHES], shape->shares, shape->dp);
    write_list(out->text[STAGE_LAYERS], shape->layers, shape->pp);
    write_layout(out->text[MEGATRON_LAYOUT], shape);
}
