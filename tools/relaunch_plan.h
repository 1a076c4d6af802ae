/*
 * tools/relaunch_plan.h - when the command of a job starts, on which nodes, when it ends and when
 * it starts again: the decisions of `cairn run --relaunch` on one node. Pure: no clock, no I/O.
 *
 * Launchers meet through the agents. Each leaves a note (relaunch_note.h) and looks at those of the
 * others; the agents say who is alive. A *round* is one start of the command on some nodes.
 *
 *   JOINS ── leads: all it needs are here; the agents restore ──► offers a round, by its name
 *         ── follows: sees the same round as its leader offers ──► accepts it, by its name
 *         ── leads, and all others have accepted ──► begins: RUNS
 *         ── follows, has accepted, and its leader begins ──► RUNS
 *   RUNS  ── the command ends with success ──► DONE
 *         ── the command fails, or another node of the round is lost or has ended it ──► JOINS
 *         ── … and the budget is spent, or no relaunch can help ──► STOPPED
 *
 * The name of a round is a checksum of its term and of the node, rank and port of each of its
 * seats. Leader and followers compute it each from what they see themselves, so nobody starts with
 * words that differ from the others'. The leader is the joining launcher that took part in the
 * newest round, of several the one on the lowest node, spares last.
 *
 * Invariants:
 * - A launcher that has accepted a round accepts no other one while its leader offers this one.
 * - A leader begins only what all other seats accept, as it sees them.
 * - Once a command of the job has ended with success, nothing starts again.
 * - A round needs answers of more than half of the agents, so of a cut network one side goes on.
 * - Where all nodes of an approved relaunch join, the round has these nodes, in its order. It is
 *   begun once by itself; after a lost node the round is the usual one.
 */
#ifndef CAIRN_TOOLS_RELAUNCH_PLAN_H
#define CAIRN_TOOLS_RELAUNCH_PLAN_H

#include "agent/service/launcher_told.h"
#include "cairn/err.h"
#include "tools/relaunch_note.h"

enum {
    CAIRN_RELAUNCH_HOST_BYTES = 256,
    CAIRN_RELAUNCH_WHY_BYTES = 512,
    CAIRN_RELAUNCH_OFFER_NODES_MAX = 256
};

/* A relaunch on some nodes that an operator has approved (agent/service/proposal.h). */
struct cairn_relaunch_offer {
    uint64_t number; /* 0: there is none */
    uint32_t count;
    uint32_t nodes[CAIRN_RELAUNCH_OFFER_NODES_MAX]; /* in the order of ranks */
};

struct cairn_relaunch_round;

/* A node, as the agent of this one shows it. */
struct cairn_relaunch_peer {
    bool alive;    /* its agent is heard */
    bool answered; /* its agent has told the rest */
    bool removed, spare;
    bool holds;        /* a part of the state, or of an epoch without one */
    bool attached;     /* a launcher lives there */
    bool has_note;     /* of ours */
    uint64_t asked_ms; /* since an operator asked its agent for a relaunch; UINT64_MAX: never */
    struct cairn_relaunch_note note;
    char host[CAIRN_RELAUNCH_HOST_BYTES];
};

/* What a launcher sees at a moment. */
struct cairn_relaunch_view {
    const struct cairn_relaunch_peer *peers; /* [count], by node */
    uint32_t count;
    bool is_patient;     /* the first round still waits for nodes that may come */
    bool is_backing_off; /* the next round has to wait a while */
    bool can_ask_doors;  /* `door` may be called */
    uint64_t runs_ms;    /* since the round began; 0: none has */
    bool (*door)(void *context, uint32_t node); /* whether its launcher's host answers */
    /* Whether the words of the command can be filled in for a round; NULL: for any. */
    bool (*fits)(void *context, const struct cairn_relaunch_round *round);
    const struct cairn_relaunch_offer *offer; /* NULL: none is approved */
    uint64_t problem;                         /* checksum of what the words come from */
    void *context;
};

struct cairn_relaunch_seat {
    uint32_t node;
    bool is_done; /* its launcher has told this one that the command ended with success there */
    uint64_t port, door;
    char host[CAIRN_RELAUNCH_HOST_BYTES];
};

struct cairn_relaunch_round {
    struct cairn_relaunch_seat *seats; /* owned; [count], by rank */
    uint32_t count;
    uint64_t name;    /* once it has begun; 0: it has not */
    uint64_t shape;   /* number of the approved relaunch that it follows; 0: none */
    uint64_t problem; /* as in the view */
};

/* One launcher. Begun by cairn_relaunch_init, ended by cairn_relaunch_fini. */
struct cairn_relaunch {
    uint32_t self;                     /* node */
    struct cairn_relaunch_note note;   /* its own; the caller sets `port` and `door` */
    bool resumes;                      /* the first round restores, too */
    bool keeps_size;                   /* rounds have as many nodes as the first */
    uint64_t token;                    /* random: the name of a job that it begins */
    struct cairn_relaunch_round round; /* that it offers, has accepted, or runs */
    uint64_t restoring_for;            /* name of the round that a restore was asked for */
    uint64_t restored_for;             /* name of the round that the agents have restored for */
    uint32_t leader;                   /* whose round it has accepted; UINT32_MAX: none */
    uint64_t seen_job;                 /* that it has seen running */
    uint64_t tried;      /* approved relaunch that it has ended or begun a round for */
    uint64_t late_looks; /* at seats that have not begun the round yet */
    int last_code;       /* of its command's last end, 75 if it was made to end */
    char why[CAIRN_RELAUNCH_WHY_BYTES]; /* of the last action */
};

enum cairn_relaunch_action {
    CAIRN_RELAUNCH_WAIT = 1, /* look again, for the reason `why` */
    CAIRN_RELAUNCH_STAND_BY, /* the same; without a limit in time */
    CAIRN_RELAUNCH_RESTORE,  /* have the agents restore, then call cairn_relaunch_restored */
    CAIRN_RELAUNCH_START,    /* start the command in round.seats */
    CAIRN_RELAUNCH_KEEP,     /* the command goes on */
    CAIRN_RELAUNCH_END,      /* end the command, for the reason `why` */
    CAIRN_RELAUNCH_SNAPSHOT, /* take a snapshot, then end the command: an operator asks */
    CAIRN_RELAUNCH_EXIT      /* with the code last_code, for the reason `why` */
};

/* `least` and `most` as in the note. */
void cairn_relaunch_init(struct cairn_relaunch *relaunch, uint32_t self, uint64_t budget,
                         uint64_t least, uint64_t most);
void cairn_relaunch_fini(struct cairn_relaunch *relaunch);

/* The launcher has looked at the others: returns its next action. Its note may change. CAIRN_NOMEM;
 * CAIRN_INVAL: the view does not have the node. */
CAIRN_MUST_CHECK cairn_err cairn_relaunch_look(struct cairn_relaunch *relaunch,
                                               const struct cairn_relaunch_view *view,
                                               enum cairn_relaunch_action *out);

/* The agents have restored for the round that this launcher leads. */
void cairn_relaunch_restored(struct cairn_relaunch *relaunch);

/* The launcher of another node reports that the command of a round ended with success there. */
void cairn_relaunch_heard(struct cairn_relaunch *relaunch, uint64_t name, uint64_t node);

/*
 * The command has ended: by itself with this exit code, or by the launcher (was_ended). `view` is
 * the newest. The result is JOINS (WAIT), or EXIT. refusal: why its state cannot be restored in
 * this shape; "": unknown.
 */
enum cairn_relaunch_action cairn_relaunch_ended(struct cairn_relaunch *relaunch,
                                                const struct cairn_relaunch_view *view,
                                                int exit_code, bool was_ended, const char *refusal);

/* The nodes that stand by while this launcher's command runs, and could take part in a round. */
void cairn_relaunch_standby(const struct cairn_relaunch *relaunch,
                            const struct cairn_relaunch_view *view, struct operator_standby *out);

/* This launcher's rank in its round. */
uint32_t cairn_relaunch_rank(const struct cairn_relaunch *relaunch);

#endif
