/*
 * tools/demo_slow.h - `cairn demo --slow`: a device becomes slow, the agents offer other shares of
 * the micro-batches and other layers per stage, the ranks take them, and give them back when the
 * device is well.
 *
 * Devices are emulated, so step times follow from the planner's formula and two cores suffice. The
 * run is told as rows, one per change of the device or the placement; each lasts until the next.
 */
#ifndef CAIRN_TOOLS_DEMO_SLOW_H
#define CAIRN_TOOLS_DEMO_SLOW_H

#include "replan/fleet/problem.h"
#include "tools/demo_process.h"

#include <stdbool.h>
#include <stdint.h>

struct demo;
struct demo_job;
struct cairn_json_writer;

enum {
    DEMO_LAYER_MS = 8, /* of a layer and micro-batch, on an emulated device */
    DEMO_CHANGES_MAX = 64,
    DEMO_ROWS_MAX = DEMO_CHANGES_MAX + 2,
    DEMO_WHY_BYTES = 400,
    DEMO_SHARES_BYTES = DEMO_NODES_MAX * 16
};

/* --slow: from step `first` to `last` the device of `rank` takes `factor` times as long. */
struct demo_slow_option {
    const char *text; /* NULL: not given */
    uint32_t rank;
    double factor;
    uint64_t first, last;
};

/* A placement. */
struct demo_shares {
    uint32_t parts[DEMO_NODES_MAX];  /* micro-batches by replica */
    uint32_t layers[DEMO_NODES_MAX]; /* by rank */
};

/* DEMO_ROW_RESTART: all ranks began again, in the placement of the start. */
enum demo_row_kind {
    DEMO_ROW_SLOW,
    DEMO_ROW_WELL,
    DEMO_ROW_SHARES,
    DEMO_ROW_LAYERS,
    DEMO_ROW_RESTART
};

struct demo_change {
    enum demo_row_kind kind;
    uint64_t from; /* the first step that is computed so */
    struct demo_shares shares;
    uint64_t standstill_ns; /* the most that any rank stood still for it */
    uint64_t bytes;         /* filled by all ranks */
    uint64_t remote_bytes;  /* those from other nodes */
    uint64_t floor_bytes;   /* the least that had to come */
};

/* The agents' offers, from the analyst's log. */
struct demo_shares_offer {
    uint64_t number;
    char shares[DEMO_SHARES_BYTES]; /* as demo_shares_text shows them */
    char why[DEMO_WHY_BYTES];
    uint64_t due; /* the step at which the loss had come to the price; 0: not for a loss */
};

struct demo_slow {
    char problem_path[DEMO_PATH_BYTES];
    char home_words[DEMO_SHARES_BYTES]; /* --micro-batches */
    struct cairn_problem problem;       /* every device is well */
    struct demo_shares home, best;      /* best by the planner while the device is slow */
    double healthy_ms, slow_ms, shared_ms;
    double healthy_bound_ms, slow_bound_ms; /* no plan takes less; layers may move in it */
    uint64_t *step_ns;                      /* [steps + 1], of rank 0; 0: not seen */
    struct demo_change changes[DEMO_CHANGES_MAX];
    uint32_t change_count;
    uint32_t abandoned_count; /* moves that ended where they began */
    struct demo_shares_offer offers[DEMO_CHANGES_MAX];
    uint32_t offer_count;
    char *story; /* of the first move of layers, as `cairn explain plan` tells it; NULL: none */
};

struct demo_row {
    enum demo_row_kind kind;
    uint64_t from; /* step */
    struct demo_shares shares;
    const struct demo_change *change; /* NULL: only the device has changed */
    const char *why;                  /* NULL: not known */
    uint64_t due;                     /* of the offer */
    double before_ms, after_ms;       /* medians; 0: no step */
    double predicted_ms, bound_ms;
};

/* What the run has shown. */
struct demo_outcome {
    bool is_worth_while;   /* by the planner, other shares take less while the device is slow */
    bool has_moved;        /* they were taken while it was slow */
    uint64_t moved_after;  /* steps since it became slow */
    bool has_moved_layers; /* as the agents offered because of the loss */
    uint64_t layers_late;  /* steps made between the one at which that was due, and the move */
    bool is_home;          /* the run ended in the shares that it began with */
    uint64_t home_after;   /* steps since the device was well; where is_home and has_moved */
    double total_ms;       /* of all steps but the first, with the standstills */
    double clairvoyant_ms; /* of the same steps in the best plan each: no plan takes less */
};

/* Layers and micro-batches of the job, for dp replicas of pp stages. */
uint32_t demo_slow_layers(const struct demo *demo);
/* Options of the model; ended by NULL. */
extern const char *const demo_slow_model[];

/* Makes the problem, writes its file into the demo's directory, and plans: reports errors and
 * returns an exit code, 0 for success. */
int demo_slow_open(struct demo *demo);
void demo_slow_fini(struct demo_slow *slow);
void demo_slow_announce(struct demo *demo);
/* A step of rank 0, its event about shares, a rank's event about moved layers, a line of an agent's
 * log; and all ranks begin again after `step`. */
void demo_slow_take_step(struct demo *demo, uint64_t step, uint64_t step_ns);
void demo_slow_take_shares(struct demo *demo, const char *line);
void demo_slow_take_move(struct demo *demo, const char *line);
void demo_slow_take_log(struct demo *demo, const char *line);
void demo_slow_take_restart(struct demo *demo, uint64_t step);

/* "7 | 5, layers 4,4,4 | 5,2,5", as agents show it. */
void demo_shares_text(const struct demo *demo, const struct demo_shares *shares,
                      char out[DEMO_SHARES_BYTES]);
/* rows[DEMO_ROWS_MAX], by step; returns how many there are. */
uint32_t demo_slow_rows(const struct demo *demo, struct demo_row *rows);
struct demo_outcome demo_slow_outcome(const struct demo *demo);
/* Asks an agent for the story of the first move of layers. */
void demo_slow_ask_story(struct demo *demo);
/* An exit code: other shares were worth while, and were not taken. */
int demo_slow_judge(struct demo *demo);

/* ---- demo_slow_report.c ---- */
void demo_slow_print(const struct demo *demo);
/* The values of "replans", and "slow" with its key. */
void demo_slow_put_replans(struct cairn_json_writer *writer, const struct demo *demo);
void demo_slow_put(struct cairn_json_writer *writer, const struct demo *demo);

#endif
