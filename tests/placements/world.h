/*
 * tests/placements/world.h - the simulator of placements: agents that run the analyst
 * (agent/service/analyst.h), the ranks of a job that run their machine (client/placement.h), and
 * everything that goes wrong between them. The product's own files; all else is a model.
 *
 *   agents.c   the shell of the analyst: store, messages between agents, takeovers, operators
 *   job.c      the ranks: steps, votes, moves of layers, deaths
 *   launch.c   the launchers: they start the job again in the shape of an approved relaunch
 *   planner.c  plans of the product's planner, kept by rates
 *   judge.c    P1 to P6, and what the analyst must not do
 *   world.c    a schedule: who becomes slow, who dies, which message is late, lost or doubled
 *
 * A tick is half a second: a round of the analyst, and often an early one. Everything follows from
 * the seed.
 *
 * P1 Nothing of the present placement goes before all have filled the next one well.
 * P2 All ranks enter at the same step, the same placement.
 * P3 Agents decide whether there is a change, never what: what is taken was offered.
 * P4 What was entered in one epoch is not adopted in another.
 * P5 The shares of each step partition the batch, the layers of each replica the model.
 * P6 A rank without an agent votes for what it runs.
 * P7 A job starts in another shape only if an operator approved that shape, and while it runs in it
 *    nothing else is offered.
 */
#ifndef CAIRN_PLACEMENTS_WORLD_H
#define CAIRN_PLACEMENTS_WORLD_H

#include "agent/service/analyst.h"
#include "client/placement.h"
#include "client/placement_bugs.h"
#include "tests/sim/random.h"

enum {
    REPLICAS = 2,
    STAGES = 2,
    RANKS = REPLICAS * STAGES, /* rank r is on node r, beside agent r */
    LAYERS = 8,                /* of a replica */
    MICROBATCHES = 8,
    TICK_MS = 500,
    RECENT = 12,
    MESSAGES_MAX = 256,
    TOLD_MAX = 512,
    TOKENS_MAX = 256,
    DENIALS_MAX = 64,
    APPROVED_MAX = 64,
    WHY_BYTES = 160,
    NOBODY = RANKS,
    LAYER_BYTES = 1000,
    OTHER_BYTES = 300,  /* of a node, beside its layers */
    STATE_BYTES = 6400, /* that a node may have: six layers */
    EVERY_STEPS = 2     /* a snapshot */
};

/* Whether a rank has filled the tensors of what it has entered. */
struct fill {
    bool is_entered, has_timed_out, is_good;
    uint32_t left_ticks; /* until it ends */
    uint64_t epoch;      /* in which it was entered */
};

struct rank {
    struct client_placement machine;
    struct fill fill;
    bool has_agent;
    bool is_deaf;                       /* its trainer does not take offers in */
    struct cairn_session_shares before; /* the machine's `now` at the last vote */
};

struct agent {
    struct analyst *analyst; /* NULL: it is dead */
    uint32_t life;
    uint32_t dead_ticks;    /* until it is back */
    uint32_t cut_off_ticks; /* it hears nobody, and takes itself for the analyst */
    uint8_t disk[PROPOSAL_BOOK_BYTES_MAX];
    size_t disk_bytes;
    bool is_asked;   /* by its trainer */
    uint64_t number; /* that its trainer computes by */
    uint64_t epoch;
    /* its analysis */
    bool analyses;
    uint32_t steps;           /* analysed */
    uint64_t seen_step;       /* of the job */
    bool learned_slow[RANKS]; /* what was slow when it began is normal to it */
    bool wants_plans;
    uint64_t plans_number;
    uint32_t plans_ticks;
    struct cairn_problem plans_problem;
    struct cairn_offer_costs plans_costs;
};

enum message_kind { MESSAGE_BOOK, MESSAGE_OFFER, MESSAGE_SHARES, MESSAGE_MOVED, MESSAGE_DECISION };

struct message {
    enum message_kind kind;
    uint64_t due_tick;
    uint32_t from, to;
    uint32_t life; /* of the agent, or of the job, that it is for */
    uint8_t *bytes;
    size_t bytes_len;
    struct cairn_session_shares shares;
    struct cairn_session_moved moved;
    struct proposal_decision decision;
};

/* A placement that some agent has offered. */
struct told {
    uint64_t name; /* number included */
    uint64_t number;
};

/* What the agents know of a rank: all have the same verdicts. */
struct verdict {
    bool is_open, is_confirmed; /* by the present analysis */
    uint64_t unsure_ns;         /* when it was closed, since a later analysis cannot tell; 0 */
    double rate;
    uint32_t ticks; /* that the present analysis has seen the other of slow and well */
    uint64_t since_step;
};

/* The launchers of all nodes (tools/relaunch_plan.h), as far as the analyst sees them. */
struct launch {
    bool is_there;
    bool is_divided;      /* it never begins a relaunch */
    uint64_t shape;       /* number of the relaunch that the job follows; 0: none */
    uint64_t tried;       /* number of the newest relaunch that they have begun */
    uint32_t ticks;       /* until they begin it */
    struct proposal runs; /* the shape; count 0: the home placement */
};

/* A relaunch that an operator has approved. */
struct approved {
    uint64_t number, name;
};

/* A placement that an operator has denied, in a world with one analyst at a time. */
struct denied {
    uint64_t name;
    struct proposal_slow slow;
    uint64_t until_ns;     /* 0: while the evidence holds */
    uint64_t differs_tick; /* since when it does not; 0: it does */
    uint32_t same_ticks;   /* for which it does */
};

struct counters {
    uint64_t steps, offers, taken, moves, abandoned, kept, taken_back, failed, aged, homes,
        approvals, denials, backs, nows, takeovers, restarts, deaths, spent, events, refused_gain,
        refused_commit, refused_slots, relaunches_proposed, relaunches_approved, relaunches,
        relaunches_kept, relaunches_aged, relaunches_home;
};

struct world {
    struct random random;
    uint64_t tick;
    bool prints;
    /* of the schedule */
    bool several; /* agents may analyse at once */
    bool needs_approval, lies, is_quiet;
    uint32_t changes_per_day;
    uint64_t standstill_per_day_ns;
    uint32_t trouble; /* in a thousand, per tick and kind */
    uint32_t end_tick;
    /* devices */
    double rate[RANKS];
    uint32_t rate_ticks[RANKS];     /* that it has had this rate */
    uint32_t spurious_ticks[RANKS]; /* the detector calls a rank slow that is well */
    struct verdict verdicts[RANKS];
    /* the job */
    struct rank ranks[RANKS];
    uint32_t job_life, down_ticks;
    double left_ms;        /* of this tick */
    double recent[RECENT]; /* of steps */
    uint64_t step;
    uint64_t committed_epoch, committed_step, committed_tick; /* the newest commit */
    uint32_t stuck_ticks;                                     /* for which none comes */
    bool moves;
    uint64_t moving_ticks;
    bool had_fault;  /* while it moves */
    bool is_dropped; /* S */
    struct launch launch;
    struct agent agents[RANKS];
    struct message messages[MESSAGES_MAX];
    uint32_t message_count;
    uint64_t tokens;
    /* the judge */
    bool is_broken;
    char why[WHY_BYTES];
    struct told told[TOLD_MAX];
    uint32_t told_count;
    struct denied denied[DENIALS_MAX];
    uint32_t denied_count;
    struct approved approved[APPROVED_MAX];
    uint32_t approved_count;
    uint64_t untaken_number, untaken_tick, untaken_step;
    uint32_t untaken_analyst, untaken_life;
    uint64_t standstill_ns; /* of moves */
    struct counters counters;
};

/* ---- world.c ---- */
/* Runs one schedule. False, with world->why: something broke. */
bool world_run(struct world *world, uint64_t seed, bool prints);
uint64_t world_ns(const struct world *world);
void world_send(struct world *world, const struct message *message, bool may_be_lost);
bool world_chance(struct world *world, uint32_t per_thousand);

/* ---- planner.c ---- */
struct cairn_adviser *planner_adviser(void);
/* Offers for a problem at some rates, as cairn_offers_make would give them; the caller owns
 * *out. */
void planner_offers(const struct cairn_problem *problem, const struct cairn_offer_costs *costs,
                    struct cairn_offers *out);
/* A step of a placement. */
double planner_step_ms(const struct cairn_session_shares *placement, const double rate[RANKS]);
void planner_home(struct cairn_session_shares *out);

/* ---- agents.c ---- */
void agent_start(struct world *world, uint32_t index);
void agent_stop(struct world *world, uint32_t index);
/* An agent's analysis begins: what is slow now is normal to it. */
void agent_learns(struct world *world, uint32_t index);
void agents_tick(struct world *world);
void agents_turn(struct world *world);
void agent_take(struct world *world, struct message *message);
void operators_tick(struct world *world);

/* ---- job.c ---- */
void job_start(struct world *world);
void job_tick(struct world *world);
void rank_take_offer(struct world *world, const struct message *message);
void rank_attach(struct world *world, uint32_t index);
void rank_detach(struct world *world, uint32_t index);
/* The agent of a rank enters another epoch. */
void rank_epoch(struct world *world, uint32_t index, uint64_t epoch);

/* A collective failed, a rank died, or a launcher ended its command: all start again. */
void job_break(struct world *world);

/* ---- launch.c ---- */
void launch_tick(struct world *world);
/* A rank died: the next start is the usual one. */
void launch_forget(struct world *world);
bool launch_is_reshaped(const struct world *world);

/* ---- judge.c ---- */
void judge_break(struct world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void judge_shares(struct world *world, const struct cairn_session_shares *shares);
/* A new book of an agent's own is stored; `before` is the one before it. */
void judge_book(struct world *world, uint32_t index, const struct proposal_book *before,
                const struct proposal_book *book, uint32_t what, bool is_decided);
void judge_told(struct world *world, uint32_t index, const struct proposal_book *book);
void judge_decision(struct world *world, uint32_t index, const struct proposal_decision *decision,
                    const struct proposal_book *before, const struct proposal_book *after,
                    bool is_carried_out);
/* An operator's approval of a relaunch is stored. */
void judge_approved(struct world *world, const struct proposal *shape);
/* The launchers start the job again in this shape. */
void judge_relaunch(struct world *world, const struct proposal *shape);
void judge_tick(struct world *world);
bool judge_was_offered(const struct world *world, const struct cairn_session_shares *shares);

#endif
