/*
 * agent/core/env/planted.h - bugs that the simulator and the explorer plant to prove that they can
 * find one. Builds with CAIRN_PLANTED_BUGS leave out one rule at a time; in the product
 * CAIRN_PLANTED is false and costs nothing.
 */
#ifndef CAIRN_AGENT_CORE_ENV_PLANTED_H
#define CAIRN_AGENT_CORE_ENV_PLANTED_H

enum cairn_planted_bug {
    BUG_NONE = 0,
    BUG_DROP_EARLY,         /* the older part is dropped when the newer is complete here */
    BUG_DONE_BEFORE_FINISH, /* done before the parity of all members is in */
    BUG_FOLD_TWICE,         /* a repeated message is folded again */
    BUG_ACCEPT_OLD_EPOCH,   /* messages of the old epoch count after a newer one was promised */
    BUG_PROMISE_TWICE,      /* an equal or older claim is promised too */
    BUG_COUNT_ONE_LESS,     /* committed with one member not done */
    BUG_FOLD_DAMAGED,       /* blocks that were damaged on the way are folded */
    BUG_REBUILD_UNVERIFIED, /* a repair takes blocks without looking at their checksums */
    BUG_CLAIM_EARLY,        /* the claim is made before everything is rebuilt */
    BUG_REUSE_SLOT,         /* a slot's record is not erased when its part is dropped */
    BUG_STORE_LATE,         /* a part is reported before its record is stored */
    BUG_HASTY_REBUILD,      /* what a briefly silent agent holds is rebuilt elsewhere */
    BUG_NEVER_JOINS,        /* trainers on an agent outside the epoch never become members */
    BUG_JOIN_RESTARTS,      /* an epoch that takes an agent in refuses the running trainers */
    BUG_LAYOUT_UNSEEN,      /* nobody checks that the ranks hold every tensor exactly once */
    BUG_ASKS_ONCE,          /* a step that was due and aborted is not tried again */
    BUG_RUN_REUSED,         /* trainers that register again go on with the old run's number */
    BUG_STALE_CLAIM,        /* R9 is not checked */
    BUG_FORGETFUL_MEMBER,   /* an agent with new memory takes itself for a member */
    BUG_OWNER_DROPS,        /* an owner drops its part when an epoch names another holder */
    BUG_CAPTURE_BEHIND,     /* a run is captured at steps that the job already holds */
    BUG_FORGET_PROMISE,     /* an agent that lost its promises promises at once */
    BUG_FORWARD_EARLY,      /* parity is forwarded before all members are folded in */
    BUG_ROWS_UNSEEN,        /* a part is complete without the rows of other encoders */
    BUG_RING_REUSED,        /* members go on although the ring is full */
    BUG_NONCE_OF_PLACE,     /* a block's nonce is its place in memory, which is filled again */
    BUG_KEY_OF_NODES,       /* tags have one key for all sessions of two agents */
    BUG_LEADER_LEFT,        /* a session with the leader or the group may end for want of use */
    BUG_PLACE_WRITTEN,      /* a payload may arrive in place of blocks that a repair has compared */
    BUG_KNOWS_EARLY,        /* who forgot its promises knows them from its next promise on */
    BUG_CLAIM_OUTLIVES,     /* a claim counts although another epoch was promised since */
    BUG_UNREAD_UNSEEN,      /* a restore compares nothing where it rebuilds something */
    BUG_UNSEEN_AGAIN,       /* it leaves out what a repair reads, also when that was damaged */
    BUG_LAST
};

#ifdef CAIRN_PLANTED_BUGS
#define CAIRN_PLANTED_IN(options, bug) ((options)->planted_bug == (bug))
#else
#define CAIRN_PLANTED_IN(options, bug) ((void)(options), false)
#endif
#define CAIRN_PLANTED(env, bug) CAIRN_PLANTED_IN((env)->options, bug)

#endif
