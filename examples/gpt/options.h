/*
 * examples/gpt/options.h - what the trainer is told on its command line.
 */
#ifndef GPT_OPTIONS_H
#define GPT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "adamw.h"
#include "device.h"
#include "model.h"
#include "plan.h"

struct gpt_options {
    struct gpt_shape shape;
    struct gpt_adamw adamw;
    struct gpt_plan plan;
    float clip;
    uint64_t seed;
    uint64_t steps;
    const char *text;
    const char *peers;
    const char *stage_layers;
    const char *micro_batches;
    const char *agent_socket;
    const char *job;
    const char *events;
    const char *final_dir;
    uint32_t world;
    uint32_t local_ranks;
    uint32_t peer_timeout_s;
    uint32_t restore_timeout_s;
    uint32_t log_every;
    uint32_t emulate_layer_ms;
    const char *emulate_slow;
    const char *emulate_death;
    struct gpt_device_options device; /* from the two above */
    bool resume;
    bool help;
};

/*
 * Parses the command line, which stays borrowed, and completes the plan. CAIRN_INVAL, said, for
 * what is wrong. With --help only out->help is meant.
 */
CAIRN_MUST_CHECK cairn_err gpt_options_parse(int argc, char **argv, struct gpt_options *out);

/* Prints the synopsis, the options and examples on stdout. */
void gpt_options_help(void);

/*
 * A fingerprint of the settings that the whole run shares over restarts (model, optimizer, batch,
 * seed, steps and the text's fingerprint); with `plan` also of the division, which all ranks of one
 * start share.
 */
uint64_t gpt_options_fingerprint(const struct gpt_options *options, uint64_t text, bool plan);

#endif
