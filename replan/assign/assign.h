/*
 * replan/assign/assign.h - sequences of different length to pipelines of different speed.
 *
 * A sequence of s tokens costs a s^2 + b s + c, times the pipeline's time_scale; a pipeline takes
 * the sum of its costs and, to fill and drain, (stages - 1) times the largest of them. For a time
 * to keep, sequences are placed longest first by one of three rules: where the pipeline is then
 * fullest, where filling and draining loses nothing more, or where it loses least of what is left.
 * The least time for which one works is found by halving. Where that is far from the bound a few
 * long sequences decide: cut into few kinds they are placed by a search, which raises the bound or
 * finds better places.
 */
#ifndef CAIRN_REPLAN_ASSIGN_ASSIGN_H
#define CAIRN_REPLAN_ASSIGN_ASSIGN_H

#include "replan/fleet/problem.h"

enum { CAIRN_ASSIGN_SEQUENCES_MAX = 1000000, CAIRN_ASSIGN_PIPELINES_MAX = 4096 };

struct cairn_assign_pipeline {
    double time_scale;
    uint32_t stages;
    uint64_t max_tokens;
};

struct cairn_assign_problem {
    uint64_t *tokens; /* owned; [sequence_count] */
    uint32_t sequence_count;
    double square, linear, constant;         /* the cost's a, b, c */
    struct cairn_assign_pipeline *pipelines; /* owned */
    uint32_t pipeline_count;
    uint64_t microbatch_tokens; /* sequences too long for every pipeline are cut into chunks of
                                 * that; 0: they are refused */
};

void cairn_assign_problem_fini(struct cairn_assign_problem *problem);

/* Reads an assignment's problem file. CAIRN_CORRUPT with *fault; CAIRN_NOMEM. The caller ends
 * *out. */
CAIRN_MUST_CHECK cairn_err cairn_assign_problem_read(const void *text, size_t text_bytes,
                                                     struct cairn_assign_problem *out,
                                                     struct cairn_fault *fault);

struct cairn_assignment {
    uint32_t *pipelines; /* owned; [sequence_count] */
    double step_ms;
    double bound_ms; /* no assignment takes less; docs/PLANNER.md proves it */
};

/* Assigns; a sequence that will be cut goes to a pipeline that takes the longest sequences, and
 * still counts as one. CAIRN_NOT_FOUND with *fault where a sequence is too long for every pipeline,
 * CAIRN_INVAL with *fault where microbatch_tokens is; CAIRN_NOMEM. The caller frees
 * out->pipelines. */
CAIRN_MUST_CHECK cairn_err cairn_assign(const struct cairn_assign_problem *problem,
                                        struct cairn_assignment *out, struct cairn_fault *fault);

/* The same by the rules alone, without the search: for callers that have less time than that takes,
 * such as a training loop. */
CAIRN_MUST_CHECK cairn_err cairn_assign_by_rules(const struct cairn_assign_problem *problem,
                                                 struct cairn_assignment *out,
                                                 struct cairn_fault *fault);

/* The time of given pipelines for the sequences, by the formula. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_assign_step_ms(const struct cairn_assign_problem *problem,
                                                const uint32_t *pipelines, double *step_ms);

#endif
