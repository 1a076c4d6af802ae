/*
 * client/placement_bugs.h - bugs that the simulator of placements (tests/placements) plants to
 * prove that it can find one. Builds with CAIRN_PLANTED_BUGS leave out one rule at a time; in the
 * product PLACEMENT_BUG is false and costs nothing.
 */
#ifndef CAIRN_CLIENT_PLACEMENT_BUGS_H
#define CAIRN_CLIENT_PLACEMENT_BUGS_H

enum placement_bug {
    PLACEMENT_BUG_NONE,
    /* the rank (client/placement.c) */
    PLACEMENT_BUG_FREES_EARLY,   /* layers are adopted at the first vote, before they are filled */
    PLACEMENT_BUG_ENTERS_ALONE,  /* a rank follows its own vote, not the agreed one */
    PLACEMENT_BUG_IGNORES_EPOCH, /* what was entered in an older epoch may be adopted */
    PLACEMENT_BUG_FILLS_UNVERIFIED, /* a fill that failed counts as a good one */
    PLACEMENT_BUG_LOSES_ONE,        /* the shares of an offer may have another sum */
    PLACEMENT_BUG_ABORT_KEEPS_NEW,  /* a rank that gives a move up runs by the new placement */
    PLACEMENT_BUG_VOTES_LATE,       /* a fill that ends after its time has run out counts */
    /* the simulator's own agents, beside the two machines */
    PLACEMENT_BUG_REGISTER_DROPS, /* the first rank that registers its new tensors drops S */
    /* the analyst (agent/service) */
    PLACEMENT_BUG_NUMBER_TWICE,     /* two offers get one number */
    PLACEMENT_BUG_NEVER_WITHDRAWN,  /* an offer that is never taken stays for ever */
    PLACEMENT_BUG_FORGETS_DENIAL,   /* a denial ends with the first round of other evidence */
    PLACEMENT_BUG_DECIDES_TWICE,    /* a decision that arrives twice is carried out twice */
    PLACEMENT_BUG_OVERSPENDS,       /* the day's budgets are not looked at */
    PLACEMENT_BUG_NO_PROBATION,     /* a change that brings nothing is kept */
    PLACEMENT_BUG_HASTY_HOME,       /* a new analyst takes what it has not measured for well */
    PLACEMENT_BUG_OFFERS_UNSTORED,  /* trainers hear of an offer before it is stored */
    PLACEMENT_BUG_SMALL_GAIN,       /* a change that gains next to nothing is offered */
    PLACEMENT_BUG_OLD_COMMIT,       /* layers move although the newest commit is old */
    PLACEMENT_BUG_OVERFILLS,        /* layers move to a node whose slots have no room for them */
    PLACEMENT_BUG_RELAUNCH_UNASKED, /* a relaunch does not wait for an operator */
    PLACEMENT_BUG_BLIND_TO_SHAPE,   /* the analyst offers placements to a job in another shape */
    PLACEMENT_BUG_LAST
};

#ifdef CAIRN_PLANTED_BUGS
extern enum placement_bug placement_bug; /* the simulator's */
#define PLACEMENT_BUG(bug) (placement_bug == PLACEMENT_BUG_##bug)
#else
#define PLACEMENT_BUG(bug) false
#endif

#endif
