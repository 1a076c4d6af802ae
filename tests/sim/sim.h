/*
 * tests/sim/sim.h - a whole job in one process: agents, their memory and disks, the network,
 * trainers and an operator, on simulated time, from one seed.
 *
 * Each agent is the product's own struct cairn_core. Around it, these files stand for the agent's
 * process, the kernel, the hardware and people:
 *
 *   setup.c        what a seed means: sizes, timing, which faults
 *   layout.c       which tensors the ranks register, and the manifests
 *   queue.c        events in time order
 *   network.c      messages, packed and unpacked by the product: loss, repeats, delay, partitions,
 *                  damage
 *   memory.c       slots of real (small) blocks: fold, decode, verify, checksums
 *   node.c         one machine and its agent: carries out actions; starts, crashes, pauses
 *   trainer.c      the training job: steps in lockstep, captures
 *   operator.c     restarts what died, asks for restores
 *   fault.c        what goes wrong, within what the configuration must survive (or, in a stated
 *                  share of schedules, beyond)
 *   truth.c        what really was, and all memory compared with it
 *   judge.c        what must hold after every event
 *   judge_plan.c   what a restore rebuilds
 *   run.c          one schedule
 *   main.c         many schedules, the planted bugs, message counts
 *
 * A schedule's faults end at world.faults_end_ns; then everything heals, and the job must go on.
 */
#ifndef CAIRN_SIM_SIM_H
#define CAIRN_SIM_SIM_H

#include "agent/core/core.h"
#include "erasure/stripe.h"
#include "tests/sim/random.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    BLOCK_BYTES = 64,
    RANKS_MAX = 2, /* per node */
    ITEMS_MAX = 8, /* repair items whose scratch a node keeps */
    FLIPS_MAX = 64,
    TRUTHS_MAX = 48, /* generations remembered */
    EPOCHS_MAX = 4096
};

#define SECOND_NS UINT64_C(1000000000)
#define MS_NS UINT64_C(1000000)

/* ---- what a seed means ---- */

enum fault_kind {
    FAULT_AGENT_CRASH = 0,
    FAULT_NODE_CRASH,
    FAULT_TRAINER_KILL,
    FAULT_PAUSE,
    FAULT_PARTITION,
    FAULT_LOSS,
    FAULT_REPEAT,
    FAULT_DELAY,
    FAULT_FLIP,
    FAULT_RECORD,
    FAULT_DAMAGE, /* payloads in flight */
    FAULT_DISK,
    FAULT_OPERATOR,    /* somebody asks for something without need */
    FAULT_RESTART_ALL, /* all agents die at once, and are started again; only in hard schedules */
    FAULT_KINDS
};

struct setup {
    uint64_t seed;
    uint32_t agent_count;
    uint32_t spare_count;
    uint32_t domain_count; /* 0: none named */
    uint32_t parity;
    uint32_t group_size;
    uint32_t slots;
    uint32_t ranks; /* per node */
    uint32_t rank_blocks_max;
    uint64_t slot_blocks;
    uint64_t parity_blocks;
    uint64_t every_steps;
    uint64_t heartbeat_ns;
    uint64_t dead_after_ns;
    uint64_t resend_ns;
    uint64_t claim_timeout_ns;
    uint64_t rebuild_timeout_ns;
    uint64_t repair_after_ns;
    uint64_t step_ns;
    uint64_t faults_end_ns;
    uint64_t bound_ns; /* after that: how long until the job must have gone on */
    uint32_t fault_count;
    uint32_t fault_weight[FAULT_KINDS];
    uint32_t loss_per_thousand; /* from the begin on; a fault of that kind draws another */
    uint64_t delay_ns_max;
    uint32_t crash_within_step; /* per thousand steps with actions */
    bool beyond;                /* more may be lost than the configuration survives */
    bool spills;
    bool everywhere; /* trainers start on all nodes that are up, members or not */
    bool asked_for;  /* no step is due: generations are those that the operator asks for, and each
                      * ask must lead to one */
    bool exam;       /* ends with a loss of all that may be lost, and a restore */
    bool careless;   /* dead trainers are sometimes started again from nothing, in the same epoch,
                    * before a restore is thought of */
    bool own_checkpoints; /* careless; and they may begin near the step that they died at, and die
                           * between two steps */
    bool hard;            /* setup_harden */
    bool untiled;         /* at some steps the ranks' tensors do not fit together */
    uint64_t
        generations_wanted; /* without faults: stop after so many (scale.c); 0: the usual end */
};

void setup_from_seed(uint64_t seed, struct setup *out);
/* The same seed with more of everything: faults of each kind closely after one another, and links
 * that are slow and lose messages throughout. */
void setup_harden(struct setup *setup);
void setup_print(const struct setup *setup);

/* ---- events ---- */

enum event_kind {
    EVENT_TICK,
    EVENT_PACKET,
    EVENT_ANSWER,
    EVENT_LOCAL,   /* from a trainer or the operator to its agent */
    EVENT_TRAINER, /* a trainer goes on */
    EVENT_TOLD,    /* an agent's word reaches a trainer */
    EVENT_START,   /* an agent starts */
    EVENT_OPERATOR,
    EVENT_FAULT,
    EVENT_HEAL,
    EVENT_CHECK
};

struct packet {
    uint32_t references;
    uint32_t from;
    uint32_t to;
    uint32_t len;
    uint32_t payload_len;
    uint8_t bytes[]; /* the packed message, then the payload */
};

struct told {
    uint32_t rank;
    enum cairn_action_type type; /* GRANT, SKIP, DROP */
    uint64_t step;
    struct cairn_generation generation;
    uint32_t holding;
    uint64_t life;
};

struct answer {
    enum cairn_event_type type; /* SEALED, FINISHED, VERIFIED, DECODED, OPENED */
    struct cairn_generation generation;
    uint32_t holding;
    uint32_t item;
    uint64_t request;
    cairn_err err;
    uint64_t *crcs;              /* owned */
    struct cairn_bad_block *bad; /* owned */
    uint64_t count;
};

struct local {
    struct cairn_event event;
    uint64_t crcs[16];
};

struct sim_event {
    uint64_t at_ns;
    uint64_t order; /* among events of one instant */
    enum event_kind kind;
    uint32_t node;
    uint64_t incarnation; /* of the agent it is for; 0: whichever runs */
    uint64_t value;
    union {
        struct packet *packet;
        struct told *told;     /* owned */
        struct answer *answer; /* owned */
        struct local *local;   /* owned */
    } as;
};

struct queue {
    struct sim_event *heap;
    size_t count;
    size_t room;
    uint64_t order;
};

void queue_push(struct queue *queue, const struct sim_event *event);
bool queue_pop(struct queue *queue, struct sim_event *out);
void sim_event_fini(struct sim_event *event);
void queue_fini(struct queue *queue);

/* ---- nodes ---- */

struct memory {
    uint8_t *data;
    uint8_t *parity;
    uint64_t data_blocks;   /* room */
    uint64_t parity_blocks; /* room, all parity slots */
    uint32_t parity_slots;  /* m of what it holds */
};

struct blob {
    uint8_t *bytes;
    size_t len;
};

/* What a stored record says, for the judge, who must not need a running agent. */
struct stored {
    struct cairn_generation generation; /* step 0: no record */
    uint32_t member;
    uint32_t position;
    uint32_t parity_slots;
    uint64_t data_blocks;
    bool rebuilt; /* not captured here */
    struct cairn_geometry geometry;
    uint32_t group[CAIRN_SHARDS_MAX];       /* members by position */
    uint64_t slot_blocks[CAIRN_SHARDS_MAX]; /* by parity slot */
    uint32_t slot_stripe[CAIRN_SHARDS_MAX];
};

struct scratch {
    uint8_t
        *shards; /* [CAIRN_SHARDS_MAX * CAIRN_MESSAGE_BLOCKS_MAX] blocks; NULL before it is used */
    bool used;
    uint64_t staged;
    uint32_t data_shards;
    uint32_t parity_shards;
    uint64_t lost;
    uint64_t sources;
    uint32_t count;
    uint64_t request;       /* of the DECODE */
    uint64_t read_in_place; /* holdings of the agent itself whose blocks were staged, as bits */
    bool spoiled;           /* one of them was closed since */
};

enum rank_phase { RANK_DEAD = 0, RANK_COMPUTING, RANK_FENCED, RANK_ARRIVED };

struct rank {
    enum rank_phase phase;
    bool asked;     /* BEGIN was sent, no answer yet */
    bool capturing; /* granted */
    struct cairn_generation generation;
    uint32_t holding;
    uint64_t first_block; /* of its region in the node's shard */
    uint64_t block_count;
    uint64_t captured;
    uint64_t fence_until_ns; /* gives an unanswered snapshot up then */
};

struct node {
    uint32_t number;
    bool up;      /* the machine */
    bool running; /* the agent */
    uint64_t incarnation;
    uint64_t paused_from_ns;
    uint64_t paused_until_ns;
    uint64_t started_ns;       /* the agent */
    uint64_t restore_asked_ns; /* by an operator, last; 0: never */
    uint64_t plan_judged;      /* number of the newest plan of a rebuild that it made */
    uint64_t clock_offset_ns;
    uint32_t clock_rate; /* thousandths */
    uint64_t last_tick_ns;
    struct cairn_core *core;
    struct memory memory[CAIRN_HOLDINGS_MAX];
    struct blob records[CAIRN_HOLDINGS_MAX];
    struct stored stored[CAIRN_HOLDINGS_MAX];
    struct blob disk;
    bool disk_full;
    bool memory_new;  /* since the last start of an agent */
    uint64_t lost_ns; /* when a fault took memory or a record last; 0 never */
    struct scratch scratch[ITEMS_MAX];
    struct rank ranks[RANKS_MAX];
    uint32_t member; /* in the gang; UINT32_MAX none */
    uint64_t life;   /* of its trainers */
    bool registered;
    bool waits_for_epoch; /* trainers that register once their agent has the epoch */
    uint64_t local_ns;    /* trainer → agent, in order */
    uint64_t told_ns;     /* agent → trainer, in order */
    struct cairn_generation spilled;
};

/* ---- the judge's ground truth ---- */

enum layout_kind {
    LAYOUT_GOOD = 0,
    LAYOUT_UNEVEN,    /* some elements are held twice, others by nobody */
    LAYOUT_DOUBLE,    /* a whole tensor is held twice */
    LAYOUT_UNNUMBERED /* a small tensor is held by nobody: two replicas say that they are the second
                       * one */
};

/* One generation as it was captured. */
struct truth {
    struct cairn_generation generation; /* step 0: unused */
    uint64_t life;
    uint32_t member_count;
    uint64_t *blocks; /* [member_count] */
    uint32_t *agents; /* [member_count] */
    uint32_t *groups; /* [member_count] */
    uint8_t *stored;  /* [member_count]: its yes was earned */
    uint8_t *said_no; /* [member_count] */
    uint32_t stored_count;
    uint32_t gang_members;
    enum layout_kind layout;
    bool whole; /* the members are the whole job, and hold every tensor once: else no number of yes
                 * makes it a generation of it */
    bool committed;
    bool given_up; /* said without a name, by one that never said yes */
};

/* The generation that must not be lost, and who is to hold it. */
struct protected
{
    struct cairn_generation generation; /* step 0: none yet */
    uint64_t life;
    uint32_t member_count;
    uint32_t parity;
    uint32_t group_count;
    uint32_t *groups;       /* [member_count] */
    uint32_t *group_parity; /* [group_count] */
    uint32_t *holders;      /* [member_count]: agents */
    uint8_t *lost;          /* [member_count]: by a fault */
    uint64_t *blocks;       /* [member_count] */
};

struct flip {
    bool used;
    uint32_t node;
    uint32_t holding;
    bool parity;
    uint64_t byte;
    uint8_t good;
    struct cairn_generation generation;
    uint32_t member;
};

struct epoch_seen {
    uint64_t epoch;
    uint64_t table_hash;
    bool succeeded;
};

struct counters {
    uint64_t events;
    uint64_t messages;
    uint64_t control_messages;
    uint64_t commits;
    uint64_t restores;      /* that ended in data */
    uint64_t restores_lost; /* that ended in CAIRN_LOST */
    uint64_t repairs;       /* activations without an operator */
    uint64_t rebuilt;       /* restores or repairs with lost parts */
    uint64_t faults[FAULT_KINDS];
};

enum gang_state { GANG_RUNNING, GANG_DEAD };

struct gang {
    enum gang_state state;
    uint64_t life;
    uint64_t step; /* all ranks have this state, or are about to leave it */
    uint32_t rank_count;
    uint32_t arrived;
    uint32_t member_count;
    uint32_t roster_count; /* of these, members when they started: the others' agents are late */
    uint64_t epoch;        /* agents must have it before trainers register */
    uint64_t started_ns;
};

enum operator_state { OPERATOR_WATCHING, OPERATOR_WAITING, OPERATOR_ASKED };

struct admin {
    enum operator_state state;
    uint64_t request; /* newest */
    uint32_t asked;   /* agent */
    uint64_t incarnation;
    uint64_t until_ns;
    uint32_t attempts;
    uint64_t lost_answers; /* in a row */
    bool anew;             /* the trainers run from nothing: until `until_ns`, when the mistake is
                            * seen */
    bool gave_up;          /* told LOST after everything had healed */
    uint64_t side_request; /* one that nobody waits for */
    uint64_t snapshot_request; /* for a generation, which is waited for; 0: none */
    uint32_t snapshot_agent;   /* who was asked for it, */
    /* and what was so at that time */
    uint64_t snapshot_incarnation, snapshot_life, snapshot_commits;
};

enum verdict { VERDICT_GOOD = 0, VERDICT_LOST, VERDICT_TORN, VERDICT_OTHER };

struct world {
    struct setup setup;
    struct random random;
    uint64_t now_ns;
    bool verbose;
    uint32_t planted_bug;
    struct queue queue;
    struct node *nodes;
    const char **domains;
    bool *spares;
    struct cairn_actions actions;
    struct gang gang;
    struct admin admin;

    /* the network */
    uint8_t *cut; /* [agent_count * agent_count]: from → to is cut */
    uint32_t loss_per_thousand;
    uint32_t repeat_per_thousand;
    uint32_t damage_per_thousand;
    uint64_t delay_ns_max;
    bool cuts;              /* any */
    uint64_t unreliable_ns; /* until when messages may have been lost or late */
    uint32_t faults_done;
    bool healed;

    /* the judge */
    struct truth truths[TRUTHS_MAX];
    struct cairn_generation forgotten; /* newest whose truth had to make room */
    struct protected kept;
    struct flip flips[FLIPS_MAX];
    struct epoch_seen *epochs;
    uint32_t epoch_count;
    uint64_t newest_epoch;   /* activated anywhere */
    bool unreachable_before; /* over budget in reach at some time: a fall back is allowed */
    uint64_t progress_ns;    /* when the job last went on (a commit) */
    bool over;
    enum verdict verdict;
    char why[512];
    struct counters counters;
    uint32_t behind; /* an agent that is not well yet */
    bool exam_begun;
    uint64_t committed_after_heal;
};

/* ---- run.c ---- */
struct run_result {
    enum verdict verdict;
    char why[512];
    uint64_t hash; /* of all events: equal runs are equal */
    struct counters counters;
    uint64_t heap_bytes;
};
void run_schedule(const struct setup *setup, uint32_t planted_bug, bool verbose,
                  struct run_result *out);
void world_say(struct world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t world_hash(void);
struct sim_event sim_event_new(const struct world *world, enum event_kind kind, uint32_t node,
                               uint64_t after_ns);

/* ---- network.c ---- */
void network_send(struct world *world, struct node *from, const struct cairn_message *message,
                  const uint8_t *payload, uint32_t payload_len);
void network_deliver(struct world *world, struct sim_event *event);
bool network_cut(const struct world *world, uint32_t from, uint32_t to);
/* Messages may be lost, or late. */
bool network_unreliable(const struct world *world);

/* ---- memory.c ---- */
bool memory_open(struct memory *memory, uint64_t data_blocks, uint64_t parity_blocks);
void memory_close(struct memory *memory);
uint8_t *memory_block(struct node *node, uint32_t holding, uint32_t area, uint32_t stripe,
                      uint64_t block);
void memory_fold(struct world *world, struct node *node, const struct cairn_action *action,
                 const uint8_t *payload);
void memory_fold_one(const struct cairn_geometry *geometry, uint32_t row, uint32_t data_index,
                     const uint8_t *source, uint8_t *parity);
void memory_decode(struct world *world, struct scratch *scratch);
uint64_t memory_finish(struct node *node, uint32_t holding, uint64_t **crcs);
size_t memory_verify(struct node *node, uint32_t holding, struct cairn_bad_block **bad);
uint64_t block_crc(const uint8_t *block);
void code_cache_clear(void);

/* ---- node.c ---- */
void node_init(struct world *world, uint32_t number);
void node_fini(struct node *node);
void node_start(struct world *world, struct node *node);
void node_crash_agent(struct world *world, struct node *node);
void node_crash(struct world *world, struct node *node, bool disk_too);
void node_event(struct world *world, struct node *node, struct cairn_event *event,
                const uint8_t *payload);
void node_answer(struct world *world, struct sim_event *event);
uint64_t node_clock(const struct world *world, const struct node *node);
/* Defers an event of a paused agent; true when it was. */
bool node_paused(struct world *world, struct node *node, struct sim_event *event);

/* ---- trainer.c ---- */
void truth_block(const struct world *world, uint64_t life, uint64_t step, uint32_t member,
                 uint64_t block, uint8_t *out);
uint64_t gang_blocks(const struct world *world, uint64_t life, uint32_t member);
uint64_t gang_rank_blocks(const struct world *world, uint64_t life, uint32_t member, uint32_t rank);
void gang_start(struct world *world, const struct cairn_roster *table, uint64_t step,
                uint64_t epoch);
void gang_kill(struct world *world);
void trainer_go(struct world *world, struct node *node, uint32_t rank);
void trainer_told(struct world *world, struct node *node, const struct told *told);
void trainer_tell(struct world *world, struct node *node, const struct cairn_action *action);
void trainer_agent_died(struct world *world, struct node *node);
void trainer_kill(struct world *world, struct node *node);
void trainer_register(struct world *world, struct node *node);
void trainer_local(struct world *world, struct node *node, const struct cairn_event *event,
                   const uint64_t *crcs);

/* ---- layout.c ---- */
/* How the tensors of a life's ranks, on so many members, fit together at a step. */
enum layout_kind layout_kind(const struct world *world, uint64_t life, uint64_t step,
                             uint32_t members);
/* The packed manifest of a member's part; the caller frees *bytes. */
bool layout_manifest(const struct world *world, const struct truth *truth, uint32_t member,
                     uint8_t **bytes, size_t *len);

/* ---- operator.c ---- */
void operator_go(struct world *world);
void operator_reply(struct world *world, struct node *node, const struct cairn_action *action);
void operator_ask_aside(struct world *world);

/* ---- fault.c ---- */
void fault_strike(struct world *world);
void fault_heal(struct world *world);
void fault_exam(struct world *world);
/* Some of its records, where that is within what is survived. Its agent is not running. */
void fault_damage_records(struct world *world, struct node *node);
bool fault_may_lose(const struct world *world, uint32_t node);

/* ---- truth.c ---- */
static inline bool
same(struct cairn_generation a, struct cairn_generation b)
{
    return cairn_generation_compare(a, b) == 0;
}

void *some_zeros(size_t count, size_t size);
struct truth *judge_truth(struct world *world, struct cairn_generation generation);
/* Makes room by forgetting the oldest that no longer matters. */
struct truth *truth_new(struct world *world, struct cairn_generation generation, uint64_t life,
                        const struct cairn_roster *table);
void truth_fini(struct truth *truth);
void kept_fini(struct protected *kept);
/* From now on this generation must be kept, part m by agent holders[m]. */
void kept_set(struct world *world, struct cairn_generation generation, uint64_t life,
              const struct cairn_roster *table, const uint32_t *holders);
/* After a fault beyond the budget nothing must be kept any more. */
void kept_check_beyond(struct world *world);
/* The record of a part at an agent, -1 none. */
int stored_at(const struct node *node, struct cairn_generation generation, uint32_t member);
bool flip_active(const struct world *world, const struct flip *flip);
/* Whether no group has lost more than it survives, if the parts at agent `without` were lost too.
 */
bool judge_budget(const struct world *world, uint32_t without);
/* Every stored record against the truth, data and parity; false when something is wrong. */
bool judge_deep(struct world *world, const char *when);

/* ---- judge_plan.c ---- */
void judge_plan(struct world *world, struct node *coordinator, const struct cairn_message *message);

/* ---- judge.c ---- */
void judge_fail(struct world *world, enum verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void judge_grant(struct world *world, struct node *node, const struct cairn_action *action);
void judge_record(struct world *world, struct node *node, uint32_t holding,
                  const struct cairn_action *action);
void judge_epoch(struct world *world, struct node *node, const struct blob *before,
                 const struct cairn_action *action);
void judge_sent(struct world *world, struct node *node, const struct cairn_message *message);
void judge_committed(struct world *world, struct node *node, const struct cairn_action *action);
void judge_lost_memory(struct world *world, struct node *node);
void judge_lost_record(struct world *world, struct node *node, uint32_t holding);
void judge_after(struct world *world, struct node *node);
void judge_reply(struct world *world, struct node *node, const struct cairn_action *action);
void judge_fini(struct world *world);
bool judge_flip(struct world *world, struct node *node);

#endif
