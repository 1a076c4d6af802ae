/*
 * tools/relaunch_shape.h - the shape that a relaunch gives to the words of a command: {dp}, {pp},
 * {tp}, {micro_batches}, {stage_layers} and {megatron_layout}.
 *
 * On the nodes of an approved relaunch the shape is the proposal's. On those of the current plan in
 * the agents' problem file it is that plan's. On any others the planner's formula chooses. All
 * launchers must read the same problem file, and have commands with the same words: the name of a
 * round contains a checksum of both.
 */
#ifndef CAIRN_TOOLS_RELAUNCH_SHAPE_H
#define CAIRN_TOOLS_RELAUNCH_SHAPE_H

#include "replan/advise/shapes.h"
#include "tools/relaunch_plan.h"
#include "tools/relaunch_words.h"
#include "tools/tree.h"

enum {
    CAIRN_RELAUNCH_SHAPE_WORDS = 6,
    CAIRN_RELAUNCH_SHAPE_TEXT_BYTES = 12 * CAIRN_SHAPE_PARTS_MAX,
    CAIRN_RELAUNCH_PROBLEM_BYTES = 4096 /* of its path */
};

/* Their names, in the order of the texts. */
extern const struct cairn_word cairn_relaunch_shape_words[CAIRN_RELAUNCH_SHAPE_WORDS];

struct cairn_relaunch_shapes {
    struct cairn_shape_rules rules;
    bool is_named; /* the command has one of the words */
    struct cairn_problem problem;
    uint64_t problem_name; /* checksum of the file and the rules; 0: missing or unreadable */
    char path[CAIRN_RELAUNCH_PROBLEM_BYTES];
    struct cairn_relaunch_offer offer; /* number 0: none is approved */
    struct cairn_shape offered;
};

struct cairn_relaunch_shape_texts {
    char text[CAIRN_RELAUNCH_SHAPE_WORDS][CAIRN_RELAUNCH_SHAPE_TEXT_BYTES];
};

/* Which words the command has, and whether its global batch may change. */
void cairn_relaunch_shapes_init(struct cairn_relaunch_shapes *shapes, char *const *command,
                                bool batch_may_change);
void cairn_relaunch_shapes_fini(struct cairn_relaunch_shapes *shapes);

/* Takes an agent's answer to a launcher: its problem file, and which relaunch is approved. */
void cairn_relaunch_shapes_read(struct cairn_relaunch_shapes *shapes,
                                const struct cairn_tree *tree);

/* Why no round can have a shape, and what to do; NULL: it can, or the command needs none. */
const char *cairn_relaunch_shapes_fault(const struct cairn_relaunch_shapes *shapes);

/* The shape of a round; CAIRN_INVAL: no usable problem file; else as cairn_shape_find. */
CAIRN_MUST_CHECK cairn_err cairn_relaunch_shapes_find(const struct cairn_relaunch_shapes *shapes,
                                                      const struct cairn_relaunch_round *round,
                                                      struct cairn_shape *out);

void cairn_relaunch_shapes_write(const struct cairn_shape *shape,
                                 struct cairn_relaunch_shape_texts *out);

/* What the agent needs for proposals: the bits of its operator_launcher.h. */
uint64_t cairn_relaunch_shapes_reads(const struct cairn_relaunch_shapes *shapes, bool keeps_size);

#endif
