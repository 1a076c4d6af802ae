/*
 * agent/core/core_state.h - the state behind struct cairn_core, shared by the core's own files and
 * nobody else.
 */
#ifndef CAIRN_AGENT_CORE_CORE_STATE_H
#define CAIRN_AGENT_CORE_CORE_STATE_H

#include "agent/core/bitset.h"
#include "agent/core/core.h"
#include "agent/core/tiling.h"
#include "base/assert.h"
#include "base/wire.h"
#include "erasure/stripe.h"

enum {
    FACTS_MAX = 8,            /* generations voted about at the same time */
    FACTS_GIVEN_UP = 1,       /* offset of a FACTS message that says so without sets */
    FACTS_VOTE_BYTES = 2 + 4, /* of each yes in one: ranks and layout */
    VETOES_MAX = 64,          /* given up and forgotten but for that */
    WINDOW_BLOCKS = 64,       /* of one flow, sent and not acknowledged */
    SEAL_PART_BYTES = 49152,
    REBUILD_ITEMS_MAX = 4, /* decoded at the same time by one agent */
    BAD_BLOCKS_MAX = 256,  /* listed per holding; more make the holding lost */
    CORRUPT_DATA_MAX =
        8, /* damaged messages of one flow in a row before its generation is refused */
    GATHER_ATTEMPTS_MAX =
        6, /* of one restore: inventories are asked for again when a rebuild fails on the way */
    STRIDE_LOG2_MAX = 6,
    STRIDE_NS_MAX = 100000000, /* generations are never thinned out beyond one in this time */
    STRIDE_SHORTEN_AFTER = 16, /* commits in a row */
    SILENCE_FACTOR = 3, /* of dead_after: so long may a host hold up an agent before what it holds
                         * is decoded again */
    JOIN_PATIENCE_LOG2_MAX = 3, /* an agent that is no member asks to be one ever more rarely, up to
                                 * so much */
    FETCH_SOURCES_MAX = CAIRN_SHARDS_MAX
};

/*
 * The simulator proves that its checker can fail by planting bugs: builds with CAIRN_PLANTED_BUGS
 * leave out one rule at a time. In the product the macro is false and costs nothing.
 */
enum cairn_planted_bug {
    BUG_NONE = 0,
    BUG_DROP_EARLY,         /* the older generation is dropped when the newer is complete here, not
                               committed */
    BUG_VOTE_BEFORE_FINISH, /* a yes before the parity of all members is in */
    BUG_FOLD_TWICE,         /* a repeated message is folded again */
    BUG_ACCEPT_OLD_EPOCH,   /* votes of the old epoch are taken and given after a newer one was
                               promised */
    BUG_PROMISE_TWICE,      /* an equal or older claim is promised too */
    BUG_NO_VETO,            /* a member that gave up says nothing and votes yes anyway */
    BUG_COUNT_ONE_LESS,     /* committed with one fact missing */
    BUG_FOLD_DAMAGED,       /* payloads that were damaged on the way are folded */
    BUG_REBUILD_UNVERIFIED, /* blocks of a repair are taken without looking at their checksums */
    BUG_ACTIVATE_EARLY,     /* a restore is activated before everything is rebuilt */
    BUG_REUSE_SLOT,         /* a slot's record is not erased when its holding is dropped */
    BUG_STORE_LATE,         /* the yes leaves before the record is stored */
    BUG_HASTY_REBUILD,      /* what an agent holds that is silent for a moment is rebuilt
                             * elsewhere */
    BUG_NEVER_JOINS,        /* an agent that a restore did not hear stays outside */
    BUG_JOIN_RESTARTS,      /* an epoch that takes an agent in refuses the trainers that run */
    BUG_TILING_UNSEEN,      /* whether the parts hold every tensor exactly once is not looked at */
    BUG_ASKS_ONCE,          /* a step that was due and was given up is not tried again */
    BUG_BEGIN_REMEMBERS,    /* any step that is begun counts as proof that nothing later was
                             * promised before; heartbeats do not tell */
    BUG_LAST
};

#ifdef CAIRN_PLANTED_BUGS
#define CAIRN_PLANTED(core, bug) ((core)->options.planted_bug == (bug))
#else
#define CAIRN_PLANTED(core, bug) (false)
#endif

struct flow {
    uint64_t next;  /* first block (byte) that was not sent */
    uint64_t acked; /* first block (byte) that was not acknowledged */
    uint64_t progress_ns;
};

/* One member's sealed description of its part: checksums of all blocks and the packed manifest. */
struct seal {
    uint8_t *bytes; /* packed; NULL before its length is known */
    size_t len;
    size_t received;
    bool whole; /* received, parsed, checked */
    uint64_t shard_blocks;
    uint32_t ranks;          /* captured in this part */
    uint32_t world;          /* ranks of the whole job, as its trainers say; 0: unknown */
    uint64_t tiling_sum;     /* see snapshot/tiling.h */
    uint64_t *crcs;          /* [shard_blocks], owned */
    const uint8_t *manifest; /* inside bytes */
    size_t manifest_len;
};

struct holding {
    enum cairn_holding_state state;
    struct cairn_generation generation;
    uint32_t member;
    uint32_t position;
    uint32_t memory;
    struct cairn_roster *table;
    struct cairn_geometry geometry;
    struct cairn_stripes stripes; /* lengths; valid once lengths_known */
    bool lengths_known;
    bool pinned;
    bool memory_ready;                   /* hosted: OPENED has come */
    struct seal seals[CAIRN_SHARDS_MAX]; /* by position; own included */

    /* capture of the own part */
    uint64_t data_blocks; /* of the own shard */
    uint64_t *captured;   /* bitset [data_blocks] */
    uint64_t *crcs;       /* [data_blocks] */
    uint64_t granted;     /* local ranks that may copy, as a set */
    uint64_t done;        /* local ranks whose region is captured */
    uint32_t world;  /* ranks of the whole job, as the local trainers said when it was opened */
    bool seal_asked; /* SEAL (a save) or FINISH (a rebuild) was asked for */
    uint64_t asked;  /* request of the newest SEAL, FINISH or OPEN */
    uint64_t asked_verify;   /* of the newest VERIFY */
    uint64_t progress_ns;    /* OPEN: when something was captured, folded or sealed last */
    uint64_t questioned_ns;  /* OPEN: when the others were asked last whether they gave it up */
    struct flow *data_flows; /* [k * m]: chunk * m + row */
    struct flow seal_flows[CAIRN_SHARDS_MAX];

    /* parity for others: slot * n + position */
    uint64_t *folded;                   /* blocks folded in, in order */
    uint64_t *chain;                    /* CRC-64 over the checksums of the folded blocks */
    uint64_t touched[CAIRN_SHARDS_MAX]; /* by slot: lines below were written in this generation */
    uint32_t corrupt_in_row;
    uint64_t *parity_crcs[CAIRN_SHARDS_MAX]; /* by slot; [parity blocks] */

    /* being rebuilt, or damaged */
    struct cairn_bad_block *bad; /* [bad_count] of a COMPLETE holding, positions filled in */
    size_t bad_count;
    bool verified;      /* since the last claim or verify */
    bool record_mended; /* by the last of them */
    uint64_t *missing;  /* bitset over data blocks then parity area blocks; NULL when none */
    uint64_t missing_count;
    uint64_t written_blocks;
    uint64_t verify_epoch; /* epoch or query, and attempt, that it was verified for */
    uint64_t verify_attempt;
};

struct facts {
    struct cairn_generation generation; /* step 0: unused */
    uint64_t *yes;
    uint64_t *no;
    uint16_t *ranks;   /* by member: how many ranks its yes stands for */
    uint32_t *layouts; /* by member: the digest of its part's layout; 0: no yes yet */
    uint32_t world;    /* how many there must be in all; 0: unknown */
    uint32_t rounds;   /* fingers that were told */
    bool committed;
    bool vetoed;
    bool told_no;
    uint64_t opened_ns;
    uint64_t sent_ns;
};

/* A generation that was given up, and one member that said no to it. */
struct veto {
    struct cairn_generation generation; /* step 0: unused */
    uint32_t member;
};

struct pending_begin {
    bool waiting;
    uint64_t step;
};

struct peer {
    uint64_t incarnation;
    uint64_t counter;
    uint64_t holds; /* step of its newest complete holding */
    uint64_t holds_epoch;
    uint64_t advanced_ns; /* when its counter grew last; 0: never heard of */
    uint64_t told_ns;     /* when it was told of an epoch that it had missed */
    uint64_t holds_ns;    /* when what it holds changed last, as far as was heard */
    uint64_t spoke_ns;    /* when a message of its own came last; 0: none yet */
};

/* A repair item being carried out by this agent. */
struct item {
    bool used;
    uint32_t worker;
    uint64_t request; /* tells answers to this item from those to its predecessors */
    struct cairn_repair_item plan;
    uint64_t needed;    /* positions still to be read */
    uint64_t unwritten; /* positions whose WRITE_ACK is missing */
    bool decoded;
    bool decoding;
    uint32_t refused; /* damaged answers in a row */
    uint64_t sent_ns;
};

/* One holding of this agent that reads, decodes and sends for the repair of its group. */
struct repair_worker {
    uint32_t holding;
    bool exhausted;
    struct cairn_stripes stripes;
    struct cairn_repair schedule;
    struct cairn_bad_block *bad; /* of the group, by position; owned */
    struct flow
        *pushes; /* [n * n]: target position * n + seal position; NULL: another one pushes */
};

/* The repair that an agent takes part in: of all groups of one generation. */
struct repair_plan {
    bool active;
    uint64_t epoch;
    uint64_t plan_number;
    uint32_t coordinator;
    struct cairn_generation generation;
    struct cairn_roster *table;
    uint32_t *holders;           /* [member_count]: who holds it now, UINT32_MAX lost */
    uint32_t *targets;           /* [member_count]: who is to get it, UINT32_MAX nobody */
    struct cairn_bad_block *bad; /* of all groups; position is a MEMBER number here */
    uint32_t bad_count;
    struct repair_worker workers[CAIRN_HOLDINGS_MAX];
    uint32_t worker_count;
    struct item items[REBUILD_ITEMS_MAX];
    bool failed;
    bool proved; /* the failure is a proof that too much is damaged */
    cairn_err failure;
};

enum restore_state {
    RESTORE_IDLE = 0,
    RESTORE_QUERYING,
    RESTORE_CLAIMING,
    RESTORE_GATHERING,
    RESTORE_REBUILDING,
    RESTORE_ACTIVATING
};

struct inventory_holding {
    struct cairn_generation generation;
    uint32_t member;
    bool committed;
    uint64_t bad_count;
    struct cairn_bad_block *bad;
    uint32_t bad_listed;
    uint32_t group_ranks; /* captured in all parts of its group */
    uint32_t world;       /* ranks of the whole job; 0: unknown */
    uint64_t tiling_sum;  /* of all parts of its group */
    uint64_t layout;      /* of all parts of its group: tiling_of_group; 0 of one that is known
                           * committed */
    struct cairn_roster *table;
};

struct inventory {
    bool known;
    uint64_t promised;
    uint64_t active;
    uint64_t forgotten_before; /* to steps of `active` below it this agent may have said yes and not
                                * know it */
    struct cairn_generation spilled;
    struct cairn_generation ready;
    uint32_t ranks;  /* attached trainers */
    uint32_t world;  /* ranks of the whole job, as they say; 0: unknown */
    uint64_t blocks; /* of their shard */
    uint32_t refused_count;
    uint64_t refused[TILINGS_KNOWN]; /* combinations of layouts that are known not to fit
                                      * together */
    uint32_t holding_count;
    struct inventory_holding holdings[CAIRN_HOLDINGS_MAX];
};

struct choice {
    cairn_err err;         /* CAIRN_OK, CAIRN_LOST */
    bool passed_committed; /* one that somebody knows as committed is not restorable from what was
                              heard */
    struct cairn_generation excluded[4]; /* found damaged beyond repair on the way; input */
    uint32_t excluded_count;
    struct cairn_generation generation;
    bool from_files;
    struct cairn_roster *table; /* borrowed from an inventory; NULL from files */
    uint32_t lost_members;
};

struct restore {
    enum restore_state state;
    enum cairn_operation operation;
    bool by_itself; /* self-repair: no operator waits */
    bool unfreeze;  /* by itself, because agents are left frozen: ends in an activation whatever is
                       found */
    bool may_begin_anew;       /* by itself, while trainers run: if all answer and nothing can be
                                  restored, nothing is kept */
    bool want_all;             /* a generation is beyond repair with what was heard */
    uint64_t patient_until_ns; /* bad news is believed only then, or when everyone was heard */
    uint64_t silence_until_ns; /* nor before, while an agent is silent that is not given up */
    bool joining;     /* by itself, to become a member: nothing that the epoch began with is decided
                   * anew */
    uint64_t attempt; /* of gathering inventories */
    uint32_t corrupt_count;
    uint64_t sync_ns;   /* when a newer epoch's record was asked for */
    uint64_t *no_room;  /* bitset of agents that could not host a part */
    uint64_t *answered; /* bitset of agents that answered the query: alive, though no beat may have
                         * come */
    uint64_t request;
    uint64_t epoch;
    uint64_t started_ns;
    uint64_t deadline_ns;
    uint64_t sent_ns;
    uint64_t *promised;            /* bitset of agents */
    uint64_t *done;                /* bitset of members rebuilt, or of agents activated */
    struct inventory *inventories; /* [agent_count] */
    struct choice choice;
    struct cairn_roster *table; /* of the chosen generation */
    uint32_t *holders;
    uint32_t *targets;
    uint8_t *plan; /* packed REBUILD body */
    size_t plan_len;
    uint64_t
        plan_number; /* plans of one epoch are numbered, so that a new one is told from a repeat */
    uint64_t *written; /* [member_count] of `table`: blocks its target said it has; for progress */
    uint8_t *record;   /* packed epoch record to be activated */
    size_t record_len;
};

struct cairn_core {
    struct cairn_core_options options;
    char **domains;
    bool *spares;
    uint64_t now_ns;
    uint64_t started_ns;

    /* epoch.c: what STORE_EPOCH stores */
    uint64_t promised;
    uint64_t active;
    struct cairn_generation ready;
    bool ready_from_files;
    struct cairn_roster *ready_table; /* of `ready`; NULL when none */
    uint32_t *holders;                /* [ready_table->member_count] */
    uint64_t restart_epoch;           /* the newest epoch that began with new trainers */
    bool settled;                     /* the active epoch's coordinator decided what is kept */
    struct cairn_roster *table;       /* of the active epoch */
    uint32_t self_member;
    bool frozen;
    uint64_t frozen_ns;
    uint64_t inventory_for; /* epoch whose coordinator still wants our inventory */
    uint64_t inventory_request;
    uint32_t inventory_to;
    struct cairn_generation spilled;

    /* save.c */
    struct holding holdings[CAIRN_HOLDINGS_MAX];
    uint64_t own_blocks; /* of this node's shard; 0 before the trainers registered */
    uint32_t own_ranks;
    uint32_t own_world; /* ranks of the whole job, as the local trainers say; 0: unknown */
    uint64_t last_step;
    struct pending_begin pending[CAIRN_RANKS_PER_NODE_MAX];
    /* step 0: unused; whose blocks or seals came when no slot was free */
    struct cairn_generation turned_away[CAIRN_OWN_SLOTS_MAX];
    uint64_t passed_step; /* trainers that are gone may have begun up to here, as far as this agent
                           * or one that it heard has seen them */
    bool is_back; /* this start found the epoch there: earlier ones of this agent were in it, and
                   * what they saw of trainers is forgotten */
    bool heard;   /* some other agent, since the start */
    uint64_t epoch_heard; /* the newest epoch that another agent was in */
    bool began_anew;      /* the trainers began below what is ready, without restoring it: nothing
                           * of theirs is captured */
    uint64_t
        first_step;    /* of the first BEGIN since the start or the last activation; 0: none yet */
    uint64_t begun_ns; /* when last_step was begun first, 0: not here */
    uint64_t step_ns;  /* between the last two begins of different steps */
    uint32_t given_up_in_row; /* generations, without one that was committed in between */
    uint32_t committed_in_row;
    uint32_t stride_log2;    /* see widen_stride */
    uint64_t step_before;    /* the one begun before last_step, 0: none */
    uint64_t owed_step;      /* the newest that was due; 0: a generation of it or of a later one is
                           * committed, or was refused */
    uint64_t asked_step;     /* the newest that operators asked for; 0: a generation of it or of a
                           * later one is committed */
    bool asked_here;         /* of this agent, which tells the others */
    bool said_asked;         /* that it is tried again */
    uint64_t said_too_large; /* the epoch in which that was said */
    /* to steps below it an earlier start, whose memory is gone, may have said yes, or this one,
     * whose part was damaged and is rebuilt; UINT64_MAX: to any. In one epoch it falls once, from
     * there (save_begin.c) */
    uint64_t forgotten_before;

    /* facts.c */
    struct facts facts[FACTS_MAX];
    struct veto vetoes[VETOES_MAX]; /* a ring */
    uint32_t veto_next;
    struct cairn_generation committed;

    struct tiling_state tiling; /* tiling.c */

    /* liveness.c */
    struct peer *peers; /* [agent_count] */
    uint64_t beat_ns;
    uint64_t event_ns; /* of the newest event */

    uint64_t next_request;            /* numbers what is asked of the process and of peers */
    bool decoding[REBUILD_ITEMS_MAX]; /* DECODED has not come yet, even if the item is gone: its
                                         scratch is in use */
    struct repair_plan repair;
    struct restore restore;
    struct cairn_outcome outcome;
    uint64_t repair_wait_ns;       /* since when a repair is called for; 0: it is not */
    uint32_t joins_tried;          /* to become a member, in this epoch of the trainers */
    struct cairn_actions *actions; /* of the step being taken */
    bool announced;                /* what adopted memory holds has been said again */
};

static inline uint64_t
min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t
max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Whether an answer belongs to what was asked last. */
static inline bool
answer_is(uint64_t request, uint64_t asked)
{
    return request == asked;
}

static inline bool
generation_is(struct cairn_generation a, struct cairn_generation b)
{
    return a.epoch == b.epoch && a.step == b.step;
}

/* ---- actions.c ---- */
struct cairn_action *action_add(struct cairn_core *core, enum cairn_action_type type);
void action_bytes(struct cairn_core *core, struct cairn_action *action, const void *bytes,
                  size_t len);
/* Appends a SEND; message.bytes are copied. Returns the action for payload fields, NULL when memory
 * ran out. */
struct cairn_action *send_message(struct cairn_core *core, uint32_t to,
                                  const struct cairn_message *message);
struct cairn_message message_new(const struct cairn_core *core, enum cairn_message_type type,
                                 uint64_t epoch);

/* ---- liveness.c ---- */
void liveness_tick(struct cairn_core *core);
void liveness_message(struct cairn_core *core, const struct cairn_message *message);
bool agent_alive(const struct cairn_core *core, uint32_t agent);
bool agent_maybe_alive(const struct cairn_core *core,
                       uint32_t agent); /* alive, or not heard of yet and start-up is young */
/*
 * Nothing is waited for from it any more: it has been silent for SILENCE_FACTOR times as long as
 * makes it dead. Before that it may only stand still, since its host holds it up, with all that it
 * holds.
 */
bool agent_given_up(const struct cairn_core *core, uint32_t agent);
/* Before every event: time in which this agent stood still is nobody else's silence, and no
 * deadline's. */
void liveness_awake(struct cairn_core *core);
/* A message of its own has come. */
void liveness_spoke(struct cairn_core *core, uint32_t agent);

/* ---- save.c ---- */
void save_ranks(struct cairn_core *core, const struct cairn_event *event);
void save_blocks(struct cairn_core *core, const struct cairn_event *event);
void save_done(struct cairn_core *core, const struct cairn_event *event);
void save_cancel(struct cairn_core *core, const struct cairn_event *event);
void save_sealed(struct cairn_core *core, const struct cairn_event *event);
void save_data_ack(struct cairn_core *core, const struct cairn_message *message);
void save_tick(struct cairn_core *core);
/* Sends what the windows of an own part allow. */
void save_pump(struct cairn_core *core, struct holding *holding);
/* False for what is settled, of another epoch, or not ours to vote about. */
bool save_may_vote(const struct cairn_core *core, struct cairn_generation generation);
/* A part of this member, of the active epoch. */
bool save_own_part(const struct cairn_core *core, const struct holding *holding);
/* An own part whose blocks and seal go to the group. */
bool save_sends(const struct cairn_core *core, const struct holding *holding);
/* Opens a generation of the active epoch in a free slot, NULL if it may not or cannot be. */
struct holding *save_open(struct cairn_core *core, struct cairn_generation generation);
/* Lets an adopted holding be sent again to those of its group that have not got all of it. */
void save_resume(struct cairn_core *core, struct holding *holding);
/* Whether a group's members have memory for the parity of a part of that many blocks. */
bool save_parity_fits(const struct cairn_core *core, const struct cairn_roster_group *group,
                      uint64_t part_blocks);
bool save_passed(const struct cairn_core *core, struct cairn_generation generation);
void save_pump_seals(struct cairn_core *core, struct holding *holding, bool resend);
void save_give_up(struct cairn_core *core, struct cairn_generation generation, const char *why);

/* ---- save_begin.c ---- */
void save_begin(struct cairn_core *core, const struct cairn_event *event);
/* The newest step of the active epoch of which a part is known to be whole, at this agent or
 * another, of its group or of any. */
uint64_t save_newest_whole(const struct cairn_core *core, bool of_group);
/* Grants what waits for a slot, as far as there is one. */
void save_grant_pending(struct cairn_core *core);

/* again.c */
/* A member's blocks or seal came, and no part of that generation can be opened now. */
void again_turned_away(struct cairn_core *core, struct cairn_generation generation);
/* Opens what was turned away, when there is a slot for it. */
void again_open(struct cairn_core *core);
/* After a part was opened: tells the group what it turned away. */
void again_opened(struct cairn_core *core, const struct holding *holding);
void again_message(struct cairn_core *core, const struct cairn_message *message);
void again_connected(struct cairn_core *core, uint32_t agent);

/* ---- due.c ---- */
/* Asks all agents for a generation; the step that it is asked for at. */
uint64_t due_ask(struct cairn_core *core);
void due_message(struct cairn_core *core, const struct cairn_message *message);
/* The first begin of a step that is later than all before. */
void due_new_step(struct cairn_core *core, uint64_t step);
/* Whether a generation is to be taken of a step that is begun; *thinned_out: it would be, were
 * steps not so fast. */
bool due_is(struct cairn_core *core, uint64_t step, bool *thinned_out);
/* How a generation of the active epoch ended. */
void due_committed(struct cairn_core *core, struct cairn_generation generation);
void due_given_up(struct cairn_core *core, struct cairn_generation generation);
/* It was complete, and what the ranks registered does not fit together: the same again would end
 * the same, so it is not owed. */
void due_refused(struct cairn_core *core, struct cairn_generation generation);
/* Trainers begin anew: nothing is owed any more. */
void due_forget(struct cairn_core *core);

/* ---- parity.c ---- */
void parity_data(struct cairn_core *core, const struct cairn_message *message, bool payload_ok);
void parity_try_finish(struct cairn_core *core, struct holding *holding);
void parity_finished(struct cairn_core *core, const struct cairn_event *event);

/* ---- seal.c ---- */
void seal_fini(struct seal *seal);
struct seal_ranks {
    uint32_t captured;
    uint32_t world;
    uint64_t tiling_sum;
};
CAIRN_MUST_CHECK cairn_err seal_pack(struct cairn_generation generation, uint32_t member,
                                     struct seal_ranks ranks, uint64_t shard_blocks,
                                     const uint64_t *crcs, const uint8_t *manifest,
                                     size_t manifest_len, struct seal *out);
CAIRN_MUST_CHECK cairn_err seal_parse(struct seal *seal, struct cairn_generation generation,
                                      uint32_t member);
void seal_message(struct cairn_core *core, const struct cairn_message *message);
void seal_ack(struct cairn_core *core, const struct cairn_message *message);
struct seal_route {
    struct cairn_generation generation;
    uint64_t epoch;
    uint32_t member; /* whose seal */
    uint32_t to_agent;
    uint32_t to_member; /* whose holding it is for */
    uint32_t repair;    /* 0: a save, 1: a repair */
};
/* Sends what the flow's window allows; with `resend` from what was acknowledged on. */
void seal_pump(struct cairn_core *core, const struct seal_route *route, const struct seal *seal,
               struct flow *flow, bool resend);

/* ---- holding.c ---- */
struct holding *holding_find(struct cairn_core *core, struct cairn_generation generation,
                             uint32_t member);
uint32_t holding_index(const struct cairn_core *core, const struct holding *holding);
/* A free own slot (member == self) or a free hosted entry; NULL when there is none. */
struct holding *holding_open(struct cairn_core *core, struct cairn_generation generation,
                             uint32_t member, struct cairn_roster *table,
                             enum cairn_holding_state state);
void holding_drop(struct cairn_core *core, struct holding *holding, bool tell_trainers);
void holding_fini(struct holding *holding);
/* Sets `stripes` once all seals are whole; false before. */
bool holding_lengths(struct holding *holding);
CAIRN_MUST_CHECK cairn_err holding_store(struct cairn_core *core, struct holding *holding);
CAIRN_MUST_CHECK cairn_err holding_load(struct cairn_core *core, uint32_t slot,
                                        struct cairn_bytes record);
/* Checksum of a stored block; false when there is none. */
bool holding_crc(const struct holding *holding, uint32_t area, uint32_t stripe, uint64_t block,
                 uint64_t *crc);

/* ---- facts.c ---- */
void facts_vote(struct cairn_core *core, struct cairn_generation generation, bool yes);
void facts_message(struct cairn_core *core, const struct cairn_message *message);
void facts_clear(struct cairn_core *core);
struct facts *facts_find(struct cairn_core *core, struct cairn_generation generation);
void facts_learn_committed(struct cairn_core *core, struct cairn_generation generation);
void facts_retain(struct cairn_core *core);
/* A vote has been missing for so long that only a new epoch can help. */
bool facts_stuck(const struct cairn_core *core);
bool facts_vetoed(const struct cairn_core *core, struct cairn_generation generation);
/* Decides what all have said yes to, as far as it can be decided now. */
void facts_settle_full(struct cairn_core *core);
/* Whether a generation is remembered as given up, though its votes are forgotten; NULL where
 * not. */
const struct veto *facts_find_veto(const struct cairn_core *core,
                                   struct cairn_generation generation);
/* A later own part is complete here, so an earlier start may have said yes to this one and dropped
 * it for a commit. */
bool facts_holds_later(const struct cairn_core *core, struct cairn_generation generation);

/* ---- facts_tell.c ---- */
void facts_send(struct cairn_core *core, struct facts *facts, uint32_t to_agent);
/* A no, or what was not heard of for a while: to all fingers. */
void facts_tell_fingers(struct cairn_core *core, struct facts *facts);
/* Tells the next fingers for as long as the members that end with this one are all known to have
 * said yes. */
void facts_pump_rounds(struct cairn_core *core, struct facts *facts);
/* The other side does not know yet that a later generation is committed: all yes of the newest one
 * says it. */
void facts_answer_committed(struct cairn_core *core, uint32_t to_agent);
/* Tells an agent that is still busy with a settled generation how it ended. */
void facts_answer(struct cairn_core *core, struct cairn_generation generation, uint32_t to_agent);
void facts_tick(struct cairn_core *core);

/* ---- epoch.c ---- */
CAIRN_MUST_CHECK cairn_err epoch_load(struct cairn_core *core, struct cairn_bytes record);
void epoch_store(struct cairn_core *core);
void epoch_message(struct cairn_core *core, const struct cairn_message *message);
void epoch_verified(struct cairn_core *core, const struct cairn_event *event);
void epoch_send_record(struct cairn_core *core, uint32_t to);
void inventory_send(struct cairn_core *core, uint32_t to, uint64_t epoch, uint64_t request);
void epoch_sync(struct cairn_core *core, uint32_t from);
CAIRN_MUST_CHECK cairn_err inventory_read(struct cairn_reader *reader, struct inventory *out);
void inventory_fini(struct inventory *inventory);
/* The record of an epoch to be activated. */
CAIRN_MUST_CHECK cairn_err epoch_pack(uint64_t epoch, struct cairn_generation ready,
                                      bool from_files, bool settled, uint64_t restart_epoch,
                                      const struct cairn_roster *ready_table,
                                      const uint32_t *holders, const struct cairn_roster *table,
                                      uint8_t **bytes, size_t *len);

/* ---- choose.c ---- */
/*
 * Picks the newest generation that can be made whole from the inventories, or from files; writes
 * one line per generation considered to text. Pure.
 */
void choose_generation(const struct inventory *inventories, uint32_t agent_count,
                       struct choice *out, char *text, size_t text_bytes);
/* Who holds a member's part whole, by the inventories: its own agent first, the undamaged first;
 * UINT32_MAX nobody. */
uint32_t choose_holder(const struct inventory *inventories, uint32_t agent_count,
                       struct cairn_generation generation, uint32_t member);

enum {
    EPOCH_CLAIMANT_BITS = 16
}; /* an epoch is (round << 16 | claimant), so no two claims are equal */

static inline uint32_t
epoch_claimant(uint64_t epoch)
{
    return (uint32_t)(epoch & 0xffff);
}

/* ---- restore_ask.c ---- */
CAIRN_MUST_CHECK cairn_err restore_start(struct cairn_core *core, enum cairn_operation operation,
                                         bool by_itself, uint64_t request);
/* Everyone who may be alive (or, once it is claimed, who has promised) was heard, or the time is
 * over. */
bool restore_heard_all(const struct cairn_core *core);
bool restore_heard_everyone(const struct cairn_core *core);
/* Somebody knows of a newer epoch than this agent, which asks for its record. */
bool restore_behind(struct cairn_core *core);
/* Someone has not answered and may still do so: it is not given up, and not waited for too long. */
bool restore_may_be_answered(const struct cairn_core *core);
/* What was chosen is bad news, and it is too early to believe it. */
bool restore_must_wait(const struct cairn_core *core);
void restore_choose(struct cairn_core *core);

/* ---- restore_claim.c ---- */
void restore_begin_claim(struct cairn_core *core);
void restore_send_claim(struct cairn_core *core);
void restore_begin_gathering(struct cairn_core *core);
bool restore_majority(const struct cairn_core *core, const uint64_t *set);
void restore_claim_progress(struct cairn_core *core);
void restore_promise(struct cairn_core *core, const struct cairn_message *message);
void restore_refusal(struct cairn_core *core, const struct cairn_message *message);

/* ---- restore_plan.c ---- */
CAIRN_MUST_CHECK cairn_err restore_plan(struct cairn_core *core);
void restore_send_plan(struct cairn_core *core);
bool restore_rebuilt(const struct restore *restore);
CAIRN_MUST_CHECK cairn_err restore_pack_unsettled(struct cairn_core *core);
CAIRN_MUST_CHECK cairn_err restore_pack_settled(struct cairn_core *core);

/* ---- restore_join.c ---- */
/* Trainers are attached here, but the epoch has no place for them, and all its members are
 * alive. */
bool join_called_for(const struct cairn_core *core);
uint64_t join_patience_ns(const struct cairn_core *core);
/*
 * What was heard says that with the agents that are no members, but have trainers of the same job,
 * all members have answered and all ranks of the job are attached to them: with these as members
 * generations can be committed. Writes them in ascending order to late[agent_count]; 0: not so, or
 * there are none.
 */
uint32_t join_late_agents(const struct cairn_core *core, uint32_t *late);
bool join_possible(const struct cairn_core *core);
/* Blocks of the largest part that the attached trainers have. */
uint64_t join_largest_part(const struct cairn_core *core);
/* An operator began the epoch with nothing, and by what was chosen nothing was protected since:
 * there is nothing to restore. */
bool join_from_nothing(const struct cairn_core *core);
/* The trainers began with a spilled generation of which no agent that answers knows any more, and
 * nothing is protected since. */
bool join_keeps_files(const struct cairn_core *core);

/* ---- restore_watch.c ---- */
/* Starts a restore that nobody asked for, once the reason for it has lasted long enough. */
void restore_watch(struct cairn_core *core);

/* ---- restore.c ---- */
/* All inventories that will come are here, and everyone that sent one is frozen. */
void restore_gathered(struct cairn_core *core);
void restore_say(struct cairn_core *core, const char *text);
void restore_forget(struct cairn_core *core);
void restore_finish(struct cairn_core *core, cairn_err err);
void restore_operator(struct cairn_core *core, const struct cairn_event *event);
void restore_message(struct cairn_core *core, const struct cairn_message *message);
void restore_tick(struct cairn_core *core);
void restore_fini(struct restore *restore);

/* ---- rebuild_target.c ---- */
CAIRN_MUST_CHECK cairn_err rebuild_open_target(struct cairn_core *core, uint32_t member);
bool rebuild_equals_seal(const struct seal *seal, const struct cairn_message *message);
void rebuild_write(struct cairn_core *core, const struct cairn_message *message, bool payload_ok);

/* ---- rebuild_work.c ---- */
void rebuild_read(struct cairn_core *core, const struct cairn_message *message);
void rebuild_blocks(struct cairn_core *core, const struct cairn_message *message, bool payload_ok);
void rebuild_write_ack(struct cairn_core *core, const struct cairn_message *message);

/* ---- rebuild.c ---- */
void rebuild_release(struct cairn_core *core, uint32_t item);
void rebuild_report(struct cairn_core *core, const struct holding *holding);
void rebuild_report_failure(struct cairn_core *core, cairn_err err);
void rebuild_message(struct cairn_core *core, const struct cairn_message *message, bool payload_ok);
void rebuild_decoded(struct cairn_core *core, uint32_t item_index);
void rebuild_opened(struct cairn_core *core, const struct cairn_event *event);
void rebuild_finished(struct cairn_core *core, struct holding *holding, cairn_err err);
void rebuild_tick(struct cairn_core *core);
void rebuild_stop(struct cairn_core *core);
void rebuild_try_finish(struct cairn_core *core, struct holding *holding);
void rebuild_seal_ack(struct cairn_core *core, const struct cairn_message *message);

#endif
