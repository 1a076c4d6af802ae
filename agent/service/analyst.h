/*
 * agent/service/analyst.h - the analyst: decides which placement is proposed, offered, kept and
 * withdrawn. A pure state machine: (state, event) -> (state, actions).
 *
 *   event     from                                             what it may do
 *   ROUND     the timer: verdicts, steps, the ranks' shares    advise, propose, offer, withdraw
 *             … and early, if steps have been analysed
 *   PLANS     the planner: what each action would lead to      (the next round weighs them)
 *   DECISION  an operator                                      offer, deny, go back
 *   HEARD     another agent: its book                          take it over
 *   RUNS      a trainer of this node: what it computes by      (the next round notes it)
 *   MOVED     a trainer of this node: how a move ended         (the next round notes it)
 *   STORED    the store: whether the new book is on disk       make it the book, tell it
 *
 * Every agent runs it, so that every agent has the book (proposal.h). Only the agent that analyses
 * the job decides: ROUND says whether it does. What is not in the book is counted again by the next
 * analyst: rounds at rest, the age of an offer, the steps of a probation.
 *
 * Invariants:
 *  1. A changed book is stored before it is announced: between STORE and STORED, `book` is the
 *     old one. If it cannot be stored, the change is dropped, and a later round makes it again.
 *  2. Only an agent that has analysed for some rounds, and knows what is normal, goes home. It must
 *     know that the ranks that the placement is for are well, not only that nobody calls them slow.
 *  3. An offer that is not taken within its time is withdrawn. So is one that brings less than half
 *     of what was predicted, twice in a row.
 *  4. Nothing is proposed or offered while a gate refuses it (enum proposal_gate). Those for moves
 *     of layers hold for what operators decide too, and for taking a change back.
 *  5. A relaunch waits for an operator always. While the job runs in the shape of one, nothing else
 *     is advised, proposed or offered: the problem's plan is not the one that runs.
 *  6. A denial that holds for an evidence ends only if the evidence differs for a minute without a
 *     break.
 *
 * agent/service/replanning.c and placing.c carry the actions out.
 */
#ifndef CAIRN_AGENT_SERVICE_ANALYST_H
#define CAIRN_AGENT_SERVICE_ANALYST_H

#include "agent/service/launcher_told.h"
#include "agent/service/proposal.h"
#include "replan/advise/adviser.h"

struct analyst;

struct analyst_options {
    struct cairn_adviser *adviser; /* becomes the analyst's; NULL: no problem is configured */
    bool offers;                   /* plan_policy is approve or enforce: there is a book */
    bool needs_approval;           /* plan_policy is approve */
    uint32_t node;
    uint32_t changes_per_day;
    uint64_t standstill_per_day_ns;
    uint32_t snapshot_every_steps;
    uint64_t state_bytes; /* that a node may have */
};

enum analyst_event_type {
    ANALYST_ROUND,
    ANALYST_PLANS,
    ANALYST_DECISION,
    ANALYST_HEARD,
    ANALYST_RUNS,
    ANALYST_MOVED,
    ANALYST_STORED
};

/* What the analysis has found by now. Arrays are borrowed for the call. */
struct analyst_round {
    bool analyses;         /* this agent is the analyst; else the rest is not read */
    bool is_early;         /* between two rounds of the timer: what must hold for some rounds does
                            * not count it */
    uint32_t steps;        /* analysed since the analysis began */
    uint32_t last_step;    /* of them, by the job's count */
    bool is_calibrated;    /* what is normal is known */
    bool is_whole;         /* all ranks report, and nothing hangs */
    double recent_ms;      /* median of the last CAIRN_RECENT_STEPS steps; 0 unknown */
    uint32_t steady_steps; /* that were made since the last of the slow ranks became slow */
    bool is_asked;         /* a trainer of this node asks for its share */
    uint32_t stages;       /* that it can move layers between; 0: none */
    uint32_t slow_count;   /* ranks of open verdicts, with their rates */
    const uint32_t *slow_ranks;
    const double *slow_rates;
    uint32_t unsure_count; /* ranks that may be slow or well: too little is known */
    const uint64_t *unsure_ranks;
    uint64_t reads; /* OPERATOR_READS_… of the launcher's command; 0: no launcher lives here */
    uint64_t shape; /* number of the approved relaunch that the job follows; 0: none */
    struct operator_standby standby;          /* as that launcher sees them */
    uint64_t committed_epoch, committed_step; /* of the newest commit; step 0: none */
    uint64_t held_bytes;                      /* this node's state; 0 unknown */
    uint32_t held_count;                      /* ranks that it is of */
    const uint32_t *held_ranks;
};

struct analyst_plans {
    uint64_t number;             /* of ANALYST_MAKE_PLANS */
    struct cairn_offers *offers; /* taken over; NULL: they could not be made */
};

struct analyst_event {
    enum analyst_event_type type;
    uint64_t wall_ns;
    union {
        struct analyst_round round;
        struct analyst_plans plans;
        struct {
            const struct proposal_decision *decision;
            uint32_t stages; /* as in a round */
            bool dry_run;
        } decision;
        const struct proposal_book *heard;
        const struct cairn_session_shares *runs;
        struct cairn_session_moved moved;
        bool is_stored;
    } as;
};

/* What has to be done, in this order. */
enum {
    ANALYST_STORE = 1,         /* analyst_next is the new book: then ANALYST_STORED */
    ANALYST_TELL_AGENTS = 2,   /* the book */
    ANALYST_TELL_SENDER = 4,   /* … to the agent that an older one was heard from */
    ANALYST_TELL_TRAINERS = 8, /* the offer */
    ANALYST_STORE_ADVICE = 16,
    ANALYST_MAKE_PLANS = 32, /* then ANALYST_PLANS */
    /* and what the log says */
    ANALYST_SAY_OFFER = 64,
    ANALYST_SAY_WAITS = 128,
    ANALYST_SAY_OVER = 256,
    ANALYST_SAY_SPENT = 512,
    ANALYST_SAY_ADVICE = 1024,
    ANALYST_SAY_NO_ADVICE = 2048,
    ANALYST_SAY_UNKNOWN = 4096,    /* slow ranks that name no device: `unknown` */
    ANALYST_SAY_KEPT = 8192,       /* the newest story's offer has kept its promise */
    ANALYST_SAY_WITHDRAWN = 16384, /* why is in the story of the offer that this one withdraws */
    ANALYST_SAY_RELAUNCH = 65536,  /* a relaunch is proposed */
    ANALYST_SAY_HEARD = 32768      /* offer and proposal are another agent's */
};

struct analyst_actions {
    uint32_t what;
    uint32_t unknown;
    uint64_t over;                 /* ANALYST_SAY_OVER: the proposal's number */
    uint32_t due_step;             /* ANALYST_SAY_OFFER: the step of the job at which the loss had
                                    * come to the price; 0: it was offered for another reason */
    struct proposal_answer answer; /* to a decision */
    /* ANALYST_MAKE_PLANS */
    uint64_t plans_number;
    struct cairn_problem problem; /* the shell frees its `devices`, and nothing else */
    struct cairn_offer_costs costs;
};

/* CAIRN_NOMEM: the adviser stays the caller's. The caller ends *out. */
CAIRN_MUST_CHECK cairn_err analyst_create(const struct analyst_options *options,
                                          struct analyst **out);
void analyst_destroy(struct analyst *analyst); /* NULL is allowed */

/* What an earlier agent of this node has stored; before the first event. */
void analyst_start_with_book(struct analyst *analyst, const struct proposal_book *book);
void analyst_start_with_advice(struct analyst *analyst, const struct cairn_advice_kept *kept);

void analyst_step(struct analyst *analyst, const struct analyst_event *event,
                  struct analyst_actions *out);

/* NULL: nothing is offered to trainers. */
const struct proposal_book *analyst_book(const struct analyst *analyst);
/* The one to be stored. After ANALYST_STORE. */
const struct proposal_book *analyst_next(const struct analyst *analyst);

/* The gate that refuses the wanted placement, and since when; PROPOSAL_GATE_NONE: none. */
enum proposal_gate analyst_refused(const struct analyst *analyst, uint64_t *since_wall_ns);

/* The adviser's; CAIRN_REPLAN_NONE: there is none. */
const struct cairn_advice *analyst_advice(const struct analyst *analyst, uint64_t *given_wall_ns);
const struct cairn_adviser *analyst_adviser(const struct analyst *analyst);

/* The home placement. False: nothing is offered to trainers. */
bool analyst_home(const struct analyst *analyst, uint32_t stages, struct proposal *out);

#endif
