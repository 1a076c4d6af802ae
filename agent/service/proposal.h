/*
 * agent/service/proposal.h - which placement is offered to the trainers, which one waits for an
 * operator, and which were denied: the book that every agent keeps. Pure.
 *
 *   plan_policy enforce   a better plan ─────────────────────────────► OFFERED n
 *   plan_policy approve   a better plan ──► WAITING n ──approve n──► OFFERED n
 *                                              ├─ deny n ──────────► over, and denied
 *                                              ├─ another plan ────► over; WAITING n + 1
 *                                              └─ no gain any more ► over
 *   back                  any ─────────────────────────────────────► OFFERED n + 1: the home
 *                                              placement; every other one is denied
 *   now                   a better plan ─────────────────────────────► OFFERED n + 1
 *
 *   relaunch  another shape, which only a new start of the job's command can take (`cairn run
 *             --relaunch`) ──► proposed n, beside what waits ──approve n──► SHAPE n: the launchers
 *             carry it out. It always waits for an operator.
 *
 *   OFFERED n ──all ranks take it──► TAKEN ──it brings what was predicted──► KEPT
 *      │                               └─ it does not ──► TAKEN_BACK: OFFERED n + 1, as before
 *      └─ the ranks give it up, or never take it ──► FAILED: OFFERED n + 1, what runs
 *
 * A placement that was denied is neither proposed nor offered until other ranks are slow for some
 * time, or the same ranks by another factor. "Home" is the placement of the plan in `problem`.
 *
 * Invariants:
 *  1. Numbers grow. A proposal that is approved becomes the offer with the same number.
 *  2. Trainers may have taken an offer at any time. So it is withdrawn by a later offer, of the
 *     placement that ran before.
 *  3. At most one proposal waits, and it differs from what is offered.
 *  4. A decision that arrives twice is carried out once: the book knows its token.
 *  5. Each change raises `version`; agents take over the book with the higher one.
 *  6. The book has every standstill of the last 24 hours, also of changes that an operator decided.
 *
 * agent/service/placing.c stores books and tells them; proposal_plan.h makes proposals of plans.
 */
#ifndef CAIRN_AGENT_SERVICE_PROPOSAL_H
#define CAIRN_AGENT_SERVICE_PROPOSAL_H

#include "client/session.h"
#include "replan/advise/decide.h"
#include "replan/advise/shapes.h"

enum {
    PROPOSAL_STANDSTILLS = 3, /* whose median is the price of a move of layers */
    PROPOSAL_SPENT_MAX = 64,
    PROPOSAL_STORIES_MAX = 8,
    PROPOSAL_SLOW_MAX = 16,
    PROPOSAL_DENIED_MAX = 8,
    PROPOSAL_ENDED_MAX = 8,
    PROPOSAL_AWAY_MAX = 1000, /* changes of a day */
    PROPOSAL_TEXT_BYTES = 256,
    PROPOSAL_ANSWER_BYTES = 512
};

/* The slow ranks that a proposal rests on. */
struct proposal_slow {
    uint32_t count; /* of all; the slowest PROPOSAL_SLOW_MAX are listed, in the order of ranks */
    uint64_t ranks[PROPOSAL_SLOW_MAX];
    double rates[PROPOSAL_SLOW_MAX]; /* times slower than normal */
};

enum proposal_end {
    PROPOSAL_APPROVED = 1,
    PROPOSAL_DENIED,
    PROPOSAL_REPLACED,  /* by a later proposal or offer */
    PROPOSAL_WITHDRAWN, /* it gained nothing any more */
    PROPOSAL_BACK       /* an operator went back; `number` is that of the offer */
};

/* What must hold before a placement is proposed or offered; names the first that does not. */
enum proposal_gate {
    PROPOSAL_GATE_NONE,   /* all hold */
    PROPOSAL_GATE_GAIN,   /* a step gets at least PROPOSAL_LEAST_GAIN shorter; but for home */
    PROPOSAL_GATE_RANKS,  /* all ranks report, and nothing hangs */
    PROPOSAL_GATE_COMMIT, /* if layers move: the newest commit is younger than two intervals */
    PROPOSAL_GATE_SLOTS,  /* if layers move, but for home: each node's state will fit state_bytes */
    PROPOSAL_GATE_BUDGET, /* the day's budgets; but for home, and for an operator's decisions */
    PROPOSAL_GATES
};
#define PROPOSAL_LEAST_GAIN 0.03

/* Which gates have refused a placement before it was offered, and for how long. */
struct proposal_refused {
    uint32_t gates; /* 1 << enum proposal_gate, each */
    uint64_t ns;
};

/* The nodes and shape of a relaunch; all replicas are divided alike. */
struct proposal_shape {
    uint32_t tp;                           /* devices of a stage; 0: other shares or layers alone */
    uint32_t node_count;                   /* 1 … CAIRN_SHAPE_NODES_MAX */
    uint32_t nodes[CAIRN_SHAPE_NODES_MAX]; /* in the order of ranks */
};

/* A placement, what it gains, and why. Times are INFINITY if unknown. */
struct proposal {
    struct cairn_session_shares placement; /* with its number; count 0: there is none */
    bool is_home;
    enum cairn_replan_action action; /* that leads there; CAIRN_REPLAN_NONE: going home */
    double current_ms;               /* a step of the home placement now */
    double step_ms;                  /* a step of this one */
    double running_ms;               /* a step of the earlier placement, now */
    double bound_ms;                 /* no plan takes less */
    double cost_ms;                  /* training stands still for that long */
    uint64_t payback_steps;
    uint64_t moved_layers; /* that get to another stage; replicas counted each */
    uint64_t moved_bytes;
    uint64_t made_wall_ns;
    uint64_t evidence_wall_ns; /* when its ranks were known to be slow */
    uint32_t decided; /* of an offer: PROPOSAL_APPROVED or PROPOSAL_BACK; 0: without an operator */
    uint32_t node;    /* whose agent the operator asked */
    struct proposal_slow slow;
    struct cairn_offer alternatives[CAIRN_REPLAN_COUNT]; /* what each action would have led to, and
                                                          * its price; INFINITY: it cannot be done,
                                                          * or is unknown */
    struct proposal_refused refused;
    struct proposal_shape shape; /* of a relaunch; moved_bytes are all that is restored */
};

/* How an offer fares, from the last row on for good. */
enum proposal_fate {
    PROPOSAL_OFFERED = 1,
    PROPOSAL_TAKEN,      /* by all ranks; what it brings is being measured */
    PROPOSAL_KEPT,       /* it has brought enough, or nobody could tell */
    PROPOSAL_LEFT,       /* a later offer replaced it */
    PROPOSAL_TAKEN_BACK, /* it brought too little */
    PROPOSAL_FAILED,     /* the ranks entered it and gave it up */
    PROPOSAL_AGED        /* some ranks never took it */
};

/* What became of an offer, for `cairn explain plan`. Times are INFINITY if unknown. */
struct proposal_story {
    uint64_t number;
    uint64_t withdraws; /* the offer that this one takes back; 0: none */
    enum proposal_fate fate;
    char text[PROPOSAL_TEXT_BYTES]; /* its placement */
    bool is_home;
    bool is_relaunch;
    enum cairn_replan_action action;
    double current_ms, running_ms, step_ms, bound_ms, cost_ms; /* as in struct proposal */
    uint64_t moved_layers, moved_bytes;
    uint32_t decided, node;
    struct proposal_slow slow;
    struct cairn_offer alternatives[CAIRN_REPLAN_COUNT];
    struct proposal_refused refused;
    uint64_t offered_wall_ns, taken_wall_ns, ended_wall_ns; /* 0: not yet */
    double before_ms;       /* a measured step, before it was taken */
    double expected_ms;     /* what that should become */
    double after_ms;        /* what it has become */
    uint64_t standstill_ns; /* measured */
};

/* A standstill of training for a change. */
struct proposal_spent {
    uint64_t wall_ns;
    uint64_t standstill_ns;
};

/* A placement that is not proposed. */
struct proposal_denial {
    uint64_t name;          /* without its number */
    uint64_t until_wall_ns; /* 0: while the evidence of `denied_at` holds */
};

/* How a proposal ended, for answers to late decisions. */
struct proposal_ended {
    uint64_t number;
    enum proposal_end end;
    uint32_t node; /* whose agent the operator asked; the planning agent's if none did */
    uint64_t token;
    uint64_t wall_ns;
};

struct proposal_book {
    uint64_t version;
    uint64_t last_number; /* the highest that was given, or that a trainer had */
    struct proposal offer, waiting;
    struct proposal before;   /* what ran when the offer was made; count 0: home */
    struct proposal relaunch; /* that waits for an operator */
    struct proposal shape;    /* the relaunch that was approved last */
    uint64_t relaunch_ns;     /* standstill of the last relaunch; 0: none was measured */
    bool is_all_denied;
    uint32_t denied_count;
    struct proposal_denial denied[PROPOSAL_DENIED_MAX];
    struct proposal_slow denied_at; /* the evidence that denials without a time are for */
    uint64_t doubt_until_wall_ns;   /* a change was taken back: until then an operator is asked */
    uint32_t ended_count;
    struct proposal_ended ended[PROPOSAL_ENDED_MAX]; /* the last offers, oldest first */
    uint32_t away_count;
    uint64_t away_wall_ns[PROPOSAL_AWAY_MAX]; /* when the last offers left home */
    uint32_t spent_count;
    struct proposal_spent spent[PROPOSAL_SPENT_MAX]; /* of the last day; beyond the bound the two
                                                      * oldest are one, at the later time */
    uint32_t standstill_count;
    uint64_t standstills_ns[PROPOSAL_STANDSTILLS]; /* of the last moves of layers */
    uint32_t story_count;
    struct proposal_story stories[PROPOSAL_STORIES_MAX]; /* of the last offers, oldest first */
};

/* What a transition has to be followed by. */
enum {
    PROPOSAL_CHANGED = 1, /* store the book, then tell the agents */
    PROPOSAL_OFFER = 2,   /* there is a new offer: tell the trainers too */
    PROPOSAL_WAITS = 4,   /* there is a new proposal that waits */
    PROPOSAL_OVER = 8,    /* the one that waited is over, and nothing came instead */
    PROPOSAL_SPENT = 16,  /* no offer: the day's budget is spent */
    PROPOSAL_SHUT = 256,  /* no offer and no proposal: the round's gate refuses it */
    /* and why, for the log */
    PROPOSAL_HEARD = 32,     /* the book is another agent's */
    PROPOSAL_GOOD = 64,      /* the offer has brought what it should */
    PROPOSAL_RELAUNCH = 512, /* a relaunch is proposed */
    PROPOSAL_WITHDRAWS = 128 /* the offer takes the one before back */
};

/* What the analyst has found out in a round. */
struct proposal_round {
    const struct proposal *home;
    const struct proposal *plan;    /* the advice; NULL: nothing that the trainers could do */
    bool at_rest;                   /* nothing has been advised for some rounds: go home */
    enum proposal_gate gate;        /* that refuses the plan, or going home */
    bool needs_approval;            /* plan_policy: approve */
    bool is_other_evidence;         /* for long enough that denials end */
    uint32_t changes_per_day;       /* without approval */
    uint64_t standstill_per_day_ns; /* without approval */
    uint64_t wall_ns;
};

/* Takes a round into account. Returns the necessary actions. */
uint32_t proposal_take_round(struct proposal_book *book, const struct proposal_round *round);

/* A denial holds for at most a year. */
#define PROPOSAL_FOR_NS_MAX (UINT64_C(31536000) * 1000000000)

enum proposal_word {
    PROPOSAL_APPROVE = 1,
    PROPOSAL_DENY,
    PROPOSAL_GO_BACK,
    PROPOSAL_NOW /* offers the best plan although the loss has not paid for it yet */
};

/* What an operator decides. */
struct proposal_decision {
    enum proposal_word word;
    uint64_t number; /* of the proposal; of PROPOSAL_APPROVE and PROPOSAL_DENY */
    uint64_t for_ns; /* of PROPOSAL_DENY: it holds for so long; 0: while the evidence does */
    uint64_t name;   /* of the placement that the asked agent knows by the number; 0: none */
    uint64_t token;  /* tells this decision from others; not 0 */
    uint32_t node;   /* whose agent was asked */
};

/* What the planning agent knows when it decides. */
struct proposal_scene {
    const struct proposal *home;       /* NULL: nothing is planned here */
    const struct proposal *best;       /* of PROPOSAL_NOW; NULL: no plan gains enough */
    const struct proposal_slow *slow;  /* now */
    const struct proposal *home_shape; /* the home placement as a relaunch; NULL: none */
    enum proposal_gate waiting_gate;   /* that refuses what waits; of these, PROPOSAL_GATE_RANKS, */
    enum proposal_gate home_gate;      /* … _COMMIT and _SLOTS hold for an operator too */
    enum proposal_gate best_gate;
    bool needs_approval;
    uint64_t wall_ns;
};

struct proposal_answer {
    int exit_code;                    /* of docs' table; 0: carried out */
    uint64_t number;                  /* of the proposal or offer that the answer is about */
    char text[PROPOSAL_ANSWER_BYTES]; /* the placement, or why not and what to do */
};

/* Carries a decision out. Returns the necessary actions; 0, and the book is unchanged, if it was
 * refused or had been carried out already. */
uint32_t proposal_decide(struct proposal_book *book, const struct proposal_decision *decision,
                         const struct proposal_scene *scene, struct proposal_answer *out);

/* All ranks compute by the offer now. before_ms, expected_ms: a measured step before, and the
 * predicted one. Returns the necessary actions, as the next four. */
uint32_t proposal_note_taken(struct proposal_book *book, double before_ms, double expected_ms,
                             uint64_t wall_ns);
/* Training stood still while layers moved; or for a move that was given up. Once per story. */
uint32_t proposal_note_standstill(struct proposal_book *book, uint64_t number,
                                  uint64_t standstill_ns, uint64_t wall_ns);
/* What the offer has brought is measured. */
uint32_t proposal_note_kept(struct proposal_book *book, double after_ms, uint64_t wall_ns);
/* Withdraws the offer: offers what ran before again, and denies the placement for a time. `before`:
 * proposal_before, compared with the offer. after_ms: of PROPOSAL_TAKEN_BACK. */
uint32_t proposal_withdraw(struct proposal_book *book, const struct proposal *before,
                           enum proposal_fate why, double after_ms, uint64_t deny_ns,
                           uint64_t wall_ns);

/*
 * A relaunch would gain enough (wanted), or none would (NULL): proposes it, or ends the waiting
 * one. Returns the necessary actions, as the next three.
 */
uint32_t proposal_want_relaunch(struct proposal_book *book, const struct proposal *wanted,
                                uint64_t wall_ns);
/* The job trains in the approved shape, after it has stood still for so long (0: unknown). */
uint32_t proposal_note_relaunched(struct proposal_book *book, double before_ms,
                                  uint64_t standstill_ns, uint64_t wall_ns);
/* What the relaunch has brought is measured. */
uint32_t proposal_note_relaunch_kept(struct proposal_book *book, double after_ms);
/* True from the approval of a relaunch until the job trains in its shape. */
bool proposal_relaunches(const struct proposal_book *book);
/* The launchers have not carried the approved relaunch out in time. */
uint32_t proposal_end_relaunch(struct proposal_book *book, uint64_t wall_ns);

/* What ran when the offer was made. */
const struct proposal *proposal_before(const struct proposal_book *book,
                                       const struct proposal *home);

/* The offer has been taken, as far as the book knows. */
bool proposal_is_taken(const struct proposal_book *book);

/* Of an offer that is still in the book; NULL. */
const struct proposal_story *proposal_story_of(const struct proposal_book *book, uint64_t number);

/* How long training has stood still within a day. */
uint64_t proposal_spent_ns(const struct proposal_book *book, uint64_t wall_ns);

/* The median standstill of the last moves of layers; 0: none was measured. */
uint64_t proposal_price_ns(const struct proposal_book *book);

/* Takes over another agent's book if its version is higher. Returns the necessary actions, except
 * for telling it to other agents. */
uint32_t proposal_hear(struct proposal_book *book, const struct proposal_book *heard);

/* A trainer computes by the placement with this number: no lower one is given any more. */
void proposal_note_number(struct proposal_book *book, uint64_t number);

/* Forgets changes of more than a day ago; returns how many are left. */
uint32_t proposal_count_changes(struct proposal_book *book, uint64_t wall_ns);

/* "commit", and the reason: "the newest commit is older than two intervals of snapshots". */
const char *proposal_gate_name(enum proposal_gate gate);
const char *proposal_gate_why(enum proposal_gate gate);

/* What the trainers were offered last, or home. */
const struct proposal *proposal_running(const struct proposal_book *book,
                                        const struct proposal *home);

bool proposal_is_same(const struct cairn_session_shares *left,
                      const struct cairn_session_shares *right);
bool proposal_is_same_slow(const struct proposal_slow *left, const struct proposal_slow *right);

/* The name of a placement without its number; never 0. */
uint64_t proposal_name(const struct cairn_session_shares *placement);

/* The name of a placement and of the nodes of a relaunch. */
uint64_t proposal_full_name(const struct proposal *proposal);

/* "micro-batches 8 | 4, …", and of a relaunch "2 x 2 stages of 1 device on nodes 0, 1, …". */
const char *proposal_describe_full(const struct proposal *proposal, char text[PROPOSAL_TEXT_BYTES]);

/* "8 | 4", and "7 | 5, layers 4,4,4 | 5,2,5"; returns text. */
const char *proposal_describe(const struct cairn_session_shares *placement,
                              char text[PROPOSAL_TEXT_BYTES]);

enum {
    PROPOSAL_ONE_BYTES_MAX = 128 + 4 * (CAIRN_REPLICAS_MAX + CAIRN_STAGES_MAX) +
                             16 * PROPOSAL_SLOW_MAX + 16 * CAIRN_REPLAN_COUNT,
    PROPOSAL_SHAPED_BYTES_MAX = PROPOSAL_ONE_BYTES_MAX -
                                4 * (CAIRN_REPLICAS_MAX - CAIRN_SHAPE_PARTS_MAX) + 8 +
                                4 * CAIRN_SHAPE_NODES_MAX,
    PROPOSAL_STORY_BYTES =
        171 + PROPOSAL_TEXT_BYTES + 16 * PROPOSAL_SLOW_MAX + 16 * CAIRN_REPLAN_COUNT,
    PROPOSAL_BOOK_BYTES_MAX = 24 + 3 * PROPOSAL_ONE_BYTES_MAX + 2 * PROPOSAL_SHAPED_BYTES_MAX + 28 +
                              16 * PROPOSAL_DENIED_MAX + 16 * PROPOSAL_SLOW_MAX + 4 +
                              32 * PROPOSAL_ENDED_MAX + 4 + 8 * PROPOSAL_AWAY_MAX + 4 +
                              16 * PROPOSAL_SPENT_MAX + 4 + 8 * PROPOSAL_STANDSTILLS + 4 +
                              PROPOSAL_STORY_BYTES * PROPOSAL_STORIES_MAX
};

/* Returns the bytes used; 0: the book cannot be packed. */
size_t proposal_pack(const struct proposal_book *book, uint8_t bytes[PROPOSAL_BOOK_BYTES_MAX]);
/* CAIRN_CORRUPT: no book, *out is untouched. CAIRN_VERSION: one of another version. */
CAIRN_MUST_CHECK cairn_err proposal_unpack(const void *bytes, size_t bytes_len,
                                           struct proposal_book *out);

#endif
