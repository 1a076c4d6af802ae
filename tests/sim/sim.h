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
 *   network.c      sessions between agents, and the messages in them: order, delay, breaks,
 *                  partitions, damage
 *   leave.c        sessions that neither side has a use for end
 *   seals.c        the tags of blocks in sessions, and whether a nonce comes twice
 *   memory.c       slots of real (small) blocks: fold, decode, verify, checksums
 *   node.c         one machine and its agent: carries out actions; starts, crashes, pauses
 *   trainer.c      the training job: steps in lockstep, captures
 *   intruder.c     a second launch of the same job
 *   operator.c     restarts what died, asks for restores
 *   fault.c        what goes wrong, within what the configuration must survive (or, in a stated
 *                  share of schedules, beyond)
 *   truth.c        what really was, and all memory compared with it
 *   judge.c        what must hold after every event
 *   judge_said.c   what agents tell each other and the trainers
 *   judge_plan.c   what a restore rebuilds
 *   judge_view.c   what status would say
 *   run.c          one schedule
 *   scale.c        message counts and memory at growing sizes
 *   main.c         many schedules, the planted bugs
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
    RING_ROWS_MAX = 2,
    RING_LINES_MAX = 16,
    RANKS_MAX = 2, /* per node */
    ITEMS_MAX = 8, /* repair items whose scratch a node keeps */
    FLIPS_MAX = 64,
    TRUTHS_MAX = 48, /* generations remembered */
    EPOCHS_MAX = 4096,
    DECISIONS_MAX = 256, /* remembered */
    SHORT_BYTES = 512,   /* a message without blocks up to this length is control */
    FLEET_BYTES = 16
};

#define SECOND_NS UINT64_C(1000000000)
#define MS_NS UINT64_C(1000000)

/* A generation for printf: use GENERATION in the format. */
#define GENERATION "%llx.%llx.%llu"
#define GENERATION_OF(g)                                                                           \
    (unsigned long long)(g).epoch, (unsigned long long)(g).run, (unsigned long long)(g).step

/* ---- what a seed means ---- */

enum fault_kind {
    FAULT_AGENT_CRASH = 0,
    FAULT_NODE_CRASH,
    FAULT_TRAINER_KILL,
    FAULT_PAUSE,
    FAULT_PARTITION,
    FAULT_ONE_WAY, /* one direction of one link is cut, for long */
    FAULT_BREAK,   /* sessions break: a message is lost */
    FAULT_DELAY,
    FAULT_FLIP,
    FAULT_RECORD,
    FAULT_DAMAGE, /* payloads in flight */
    FAULT_DISK,
    FAULT_OPERATOR, /* somebody asks for something without need */
    FAULT_WEDGE,    /* an agent beats, and answers nothing */
    FAULT_AWAY,     /* trainers stop, an agent is away for so long that its part is repaired, comes
                     * back, and others are lost */
    FAULT_INTRUDER, /* the job is launched a second time */
    FAULT_HANG,     /* a spill reads for ever */
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
    uint64_t ring_lines;
    uint64_t every_steps;
    uint64_t heartbeat_ns;
    uint64_t dead_after_ns;
    uint64_t leave_after_ns; /* an unused session ends */
    uint64_t claim_timeout_ns;
    uint64_t rebuild_timeout_ns;
    uint64_t repair_after_ns;
    uint64_t step_ns;
    uint64_t faults_end_ns;
    uint64_t bound_ns; /* after that: how long until the job must have gone on */
    uint32_t fault_count;
    uint32_t fault_weight[FAULT_KINDS];
    uint32_t breaks_per_million; /* messages that break their session, from the begin on; a fault of
                                  * that kind draws another */
    uint64_t delay_ns_max;
    uint32_t crash_within_step; /* per thousand steps with actions */
    bool beyond;                /* more may be lost than the configuration survives */
    bool spills;
    bool partly;     /* trainers may leave nodes out that could have them */
    bool everywhere; /* trainers start on all nodes that are up, members or not */
    bool asked_for;  /* no step is due: generations are those that the operator asks for, and each
                      * ask must lead to one */
    bool exam;       /* ends with a loss of all that may be lost, and a restore */
    bool careless;   /* dead trainers are sometimes started again from nothing, in the same epoch,
                      * before a restore is thought of */
    bool own_checkpoints; /* careless; and they may begin near the step that they died at, and die
                           * between two steps */
    bool hard;            /* setup_harden */
    bool untiled;         /* in some lives the ranks' tensors do not fit together */
    bool launches;        /* trainers bring a launch id */
    uint64_t
        generations_wanted; /* without faults: stop after so many (scale.c); 0: the usual end */
};

void setup_from_seed(uint64_t seed, struct setup *out);
/* The same seed with more of everything: faults of each kind closely after one another, and links
 * that are slow and break throughout. */
void setup_harden(struct setup *setup);
void setup_print(const struct setup *setup);

/* ---- events ---- */

enum event_kind {
    EVENT_TICK,
    EVENT_PACKET,  /* the head of a lane arrives */
    EVENT_UP,      /* a session begins, as one side sees it */
    EVENT_DOWN,    /* it has ended */
    EVENT_TRY,     /* a session is tried */
    EVENT_STARVED, /* a cut has lasted so long that a session ends */
    EVENT_LEAVE,   /* the other side's word that it has no use for the session arrives */
    EVENT_ANSWER,
    EVENT_LOCAL,   /* from a trainer or the operator to its agent */
    EVENT_TRAINER, /* a trainer goes on */
    EVENT_INTRUDER,
    EVENT_TOLD,  /* an agent's word reaches a trainer */
    EVENT_START, /* an agent starts */
    EVENT_OPERATOR,
    EVENT_FAULT,
    EVENT_SCRIPT, /* the next stage of FAULT_AWAY */
    EVENT_HEAL,
    EVENT_CHECK
};

struct told {
    uint32_t rank;
    enum cairn_action_type type; /* GRANT, SKIP, DROP */
    uint64_t step;
    struct cairn_generation_id generation;
    uint32_t part;
    uint64_t life;
};

struct answer {
    enum cairn_event_type type; /* SEALED, FINISHED, VERIFIED, DECODED, OPENED */
    struct cairn_generation_id generation;
    uint32_t part;
    uint32_t item;
    uint64_t request;
    uint32_t member;
    cairn_err err;
    uint64_t *crcs;              /* owned */
    struct cairn_bad_block *bad; /* owned */
    uint64_t count;
};

struct local {
    struct cairn_event event;
    uint64_t crcs[16];
    uint8_t *manifest; /* of RANKS; owned */
    char fleet[FLEET_BYTES];
    uint64_t life; /* of RANKS: whose they are */
};

struct sim_event {
    uint64_t at_ns;
    uint64_t due_ns; /* before its agent stood still; queue_push sets it */
    uint64_t order;  /* among events of one instant */
    enum event_kind kind;
    uint32_t node;
    uint64_t incarnation; /* of the agent it is for; 0: the one that runs */
    uint64_t value;
    union {
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

/* ---- the network ---- */

/* Bytes shared by packets and disks that have the same content. */
struct shared {
    uint32_t references;
    size_t len;
    uint8_t bytes[];
};

/* A packed message: `head`, then the body, then its blocks. */
struct packet {
    struct packet *next;
    struct shared *body; /* NULL: empty */
    enum cairn_message_kind kind;
    uint64_t at_ns;
    uint32_t head_len;
    uint32_t payload_len;
    uint64_t tag;    /* all tags of the payload's blocks, mixed */
    uint8_t bytes[]; /* head and payload */
};

enum lane_class { LANE_CONTROL = 0, LANE_BULK, LANES };

/* Messages of one class on their way to one side of a session, in order. */
struct lane {
    struct packet *head;
    struct packet *tail;
    uint64_t last_ns; /* arrival of the tail */
    uint64_t end_ns;  /* what arrives later is lost: the session has broken */
};

/* Two agents, the lower number first, and their session. */
struct link {
    uint32_t agents[2];
    bool wanted[2];
    bool up;      /* there is a session */
    bool told[2]; /* this side has seen it begin, and not end */
    bool trying;
    uint64_t used_ns[2]; /* when this side sent or got something last */
    bool leaving[2];     /* this side has told the other that it has no use for the session */
    uint64_t session;    /* number of the newest */
    struct lane lanes[2][LANES];
    struct cairn_seal *seals[2][2]; /* of what goes to this side: the sender's, and its own */
};

/* The nonces that may come next under each key, by hash. */
struct seals_seen {
    struct seal_seen {
        uint64_t key, next;
    } * table; /* [room] */
    uint64_t count, room;
};

/* A session begins, and is over for good. */
struct world;
void seals_open(struct world *world, struct link *link);
void seals_close(struct link *link);
/* The tags of the next payload in its direction, mixed. */
uint64_t seals_tag(struct cairn_seal *seal, const uint8_t *payload, uint32_t payload_len);

struct network {
    struct link *links;
    uint32_t link_count;
    uint32_t link_room;
    uint32_t *table; /* hash of the links: index + 1 */
    uint32_t table_size;
    uint32_t cut_kind; /* enum cut_kind */
    uint64_t cut_seed;
    uint32_t cut_from, cut_to;
    uint32_t breaks_per_million;
    uint32_t damage_per_thousand;
    uint64_t delay_ns_max;
    uint64_t unreliable_ns; /* until when sessions may have broken, or messages been late */
    struct shared *last;    /* the body of a large message, for the next that is equal */
};

enum cut_kind {
    CUT_NONE = 0,
    CUT_HALVES,
    CUT_HALVES_ONE_WAY,
    CUT_LONE,
    CUT_SOME,   /* a fifth of all directions */
    CUT_ONE_WAY /* one direction of one link */
};

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
    struct cairn_generation_id generation; /* step 0: no record */
    uint32_t member;
    uint32_t position;
    uint32_t parity_slots;
    uint64_t data_blocks;
    uint64_t since_ns;
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
    uint64_t read_in_place; /* parts of the agent itself whose blocks were staged, as bits */
    bool spoiled;           /* one of them was closed since */
};

enum rank_phase { RANK_DEAD = 0, RANK_COMPUTING, RANK_FENCED, RANK_ARRIVED };

struct rank {
    enum rank_phase phase;
    bool asked;     /* BEGIN was sent, no answer yet */
    bool capturing; /* granted */
    struct cairn_generation_id generation;
    uint32_t part;
    uint64_t first_block; /* of its region in the node's shard */
    uint64_t block_count;
    uint64_t captured;
    uint64_t fence_until_ns; /* gives an unanswered snapshot up then */
};

/* Messages of one node, for scale.c; bytes without blocks. */
struct traffic {
    uint64_t messages; /* sent and received; no heartbeats */
    uint64_t bytes;
    uint64_t heartbeats; /* sent */
    uint64_t heartbeat_bytes;
};

struct node {
    uint32_t number;
    bool up;      /* the machine */
    bool running; /* the agent */
    uint64_t incarnation;
    uint64_t paused_from_ns;
    uint64_t paused_until_ns;
    uint64_t wedged_until_ns;
    uint64_t wedged_from_ns;
    uint64_t started_ns;       /* the agent */
    uint64_t restore_asked_ns; /* by an operator, last; 0: never */
    uint64_t fresh_asked_ns;
    uint64_t open_request; /* RESTORE or FRESH that this start has not answered; 0: none */
    uint64_t open_since_ns;
    uint64_t plan_judged;       /* attempt of the newest plan of a rebuild that it made */
    uint64_t promised, active;  /* as stored */
    uint64_t claim_incarnation; /* of this agent, in the newest claim that it got */
    uint64_t claim_epoch;
    uint64_t clock_offset_ns;
    uint32_t clock_rate; /* thousandths */
    struct cairn_core *core;
    struct memory memory[CAIRN_PARTS_MAX];
    uint64_t ring_lines;
    uint8_t ring[RING_ROWS_MAX][RING_LINES_MAX][BLOCK_BYTES];
    struct blob records[CAIRN_PARTS_MAX];
    struct stored stored[CAIRN_PARTS_MAX];
    bool captured[CAIRN_PARTS_MAX]; /* what is being finished, or is complete, was not rebuilt */
    struct shared *disk;
    bool disk_full;
    bool disk_lost;   /* since the last promise or activation stored */
    bool memory_new;  /* since the last start of an agent */
    uint64_t lost_ns; /* when a fault took memory or a record last; 0 never */
    struct scratch scratch[ITEMS_MAX];
    struct rank ranks[RANKS_MAX];
    uint32_t member; /* in the gang; UINT32_MAX none */
    uint64_t life;   /* of its trainers */
    bool registered;
    uint64_t core_life;     /* whose ranks the core knows of; 0: none */
    uint32_t registrations; /* that the core has heard */
    uint64_t local_ns;      /* trainer → agent, in order */
    uint64_t told_ns;       /* agent → trainer, in order */
    uint64_t self_ns;       /* agent → itself, in order */
    struct packet *self_head, *self_tail;
    bool intruded; /* trainers of a second launch are registered */
    uint64_t intruder_step;
    struct cairn_generation_id pinned; /* a spill reads it; step 0: none */
    uint32_t pinned_parts;             /* set of its parts then */
    struct cairn_generation_id hung;   /* the spill hangs */
    uint32_t *links;                   /* of the network */
    uint32_t link_count;
    uint32_t link_room;
    uint32_t sessions; /* now */
    struct traffic traffic;
};

/* ---- the judge's ground truth ---- */

enum layout_kind {
    LAYOUT_GOOD = 0,
    LAYOUT_UNEVEN,    /* some elements are held twice, others by nobody */
    LAYOUT_DOUBLE,    /* a whole tensor is held twice */
    LAYOUT_UNNUMBERED /* a small tensor is held by nobody: two replicas say that they are the second
                       * one */
};

/* What became of a member's part of a generation. */
enum fate {
    FATE_NONE = 0,
    FATE_STORED, /* once; a fault may have taken it since */
    FATE_DROPPED /* its agent dropped the part; stored again by a repair, it is FATE_STORED */
};

/* One generation as it was captured. */
struct truth {
    struct cairn_generation_id generation; /* step 0: unused */
    uint64_t life;
    uint32_t member_count;
    uint32_t group_count;
    uint64_t *blocks;       /* [member_count] */
    uint32_t *agents;       /* [member_count] */
    uint32_t *content;      /* [member_count]: number in the gang, UINT32_MAX none */
    uint32_t *groups;       /* [member_count] */
    uint32_t *group_parity; /* [group_count] */
    uint8_t *fates;         /* [member_count]: enum fate */
    uint32_t stored_count;
    uint32_t gang_members;
    enum layout_kind layout;
    bool whole;       /* all trainers of the job are on members, and hold every tensor once: else
                       * nothing makes it a generation */
    bool committed;   /* somebody was told so */
    bool dropped;     /* some agent let go of its part */
    bool passed_over; /* by an operator's restore that could not reach enough parts */
};

struct flip {
    bool used;
    uint32_t node;
    uint32_t part;
    bool parity;
    uint64_t byte;
    uint8_t good;
    struct cairn_generation_id generation;
    uint32_t member;
    bool compared;   /* a restore has had the part compared since */
    uint32_t due_to; /* the coordinator of that restore: no epoch of its begins with the damage */
};

struct epoch_seen {
    uint64_t epoch;
    uint64_t roster_hash; /* 0: nobody has stored it */
    uint32_t promises;
    bool succeeded;
};

/* A run, from its first grant on. */
struct run_seen {
    uint64_t epoch; /* 0: unused */
    uint64_t run;
    uint64_t life;
    uint32_t *registrations; /* [agent_count]: at the first grant there; 0: none yet */
};

struct decision_seen {
    uint64_t epoch;
    uint64_t serial;
    uint64_t hash;
};

struct counters {
    uint64_t events;
    uint64_t messages;
    uint64_t commits;
    uint64_t restores;      /* that ended in data */
    uint64_t restores_lost; /* that ended in CAIRN_LOST */
    uint64_t repairs;       /* activations without an operator */
    uint64_t rebuilt;       /* restores or repairs with lost parts */
    uint64_t breaks;        /* of sessions */
    uint64_t leaves;        /* sessions that ended for want of use */
    uint64_t runs;          /* in which something was captured */
    uint64_t views;         /* of protection compared with the truth */
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
    uint64_t refused_ns; /* since when all are registered, and must be refused; 0: not */
    enum layout_kind layout;
};

enum operator_state { OPERATOR_WATCHING, OPERATOR_WAITING, OPERATOR_ASKED };

struct admin {
    enum operator_state state;
    uint64_t request; /* newest */
    uint32_t asked;   /* agent */
    uint64_t incarnation;
    uint64_t asked_ns;
    uint64_t until_ns;
    uint64_t holds_until_ns; /* does nothing before */
    uint32_t attempts;
    uint64_t lost_answers; /* in a row */
    bool anew;             /* the trainers run from nothing: until `until_ns`, when the mistake is
                            * seen */
    bool gave_up;          /* told LOST after everything had healed */
    uint64_t side_request; /* one that nobody waits for */
    uint64_t fleet_request;
    char fleet[FLEET_BYTES];
    uint64_t snapshot_request; /* for a generation, which is waited for; 0: none */
    uint32_t snapshot_agent;   /* who was asked for it, */
    /* and what was so at that time */
    uint64_t snapshot_incarnation, snapshot_life, snapshot_commits, snapshot_epoch;
    uint64_t snapshot_leader; /* its incarnation, times agents, plus number */
};

/* FAULT_AWAY: who is away, and what comes next. */
struct script {
    uint32_t stage; /* 0: none */
    uint32_t away;
};

enum verdict { VERDICT_GOOD = 0, VERDICT_LOST, VERDICT_TORN, VERDICT_OTHER };

struct world {
    struct setup setup;
    struct random random;
    uint64_t now_ns;
    bool verbose;
    uint32_t planted_bug;
    struct seals_seen seals_seen;
    struct queue queue;
    struct node *nodes;
    const char **domains;
    bool *spares;
    struct cairn_actions actions;
    struct gang gang;
    struct admin admin;
    struct script script;
    struct network network;
    struct shared *store_last; /* what an agent has stored last, for the next that is equal */
    bool healed;

    /* the judge */
    struct truth truths[TRUTHS_MAX];
    struct cairn_generation_id forgotten; /* newest whose truth had to make room */
    struct truth *kept;                   /* what must not be lost; NULL: nothing yet */
    struct flip flips[FLIPS_MAX];
    struct epoch_seen *epochs;
    uint32_t epoch_count;
    struct run_seen runs[TRUTHS_MAX];
    uint32_t run_next;
    struct decision_seen decisions[DECISIONS_MAX];
    uint64_t newest_epoch;                   /* activated anywhere */
    struct cairn_generation_id newest_ready; /* what it began with */
    uint64_t restarted_ns;                   /* when an epoch last stopped the trainers */
    uint64_t fresh_epoch;                    /* newest that began with nothing, or with files */
    uint64_t progress_ns;                    /* when the job last went on (a commit) */
    uint64_t stuck_ns;  /* since when the leader names nobody for what is due; 0: it does */
    uint64_t behind_ns; /* since when an agent outside does not know what the leader knew one look
                         * before; 0: they do */
    struct cairn_generation_id leader_ready; /* at the last look */
    bool over;
    enum verdict verdict;
    char why[512];
    struct counters counters;
    uint32_t behind; /* an agent that is not well yet */
    bool exam_begun;
    uint64_t committed_after_heal;
    uint64_t first_commit_ns; /* scale.c: traffic counts from there */
    uint64_t last_commit_ns;
    uint32_t sessions_max; /* of a node that leads nothing */
    uint32_t sessions_leader;
};

/* ---- run.c ---- */
struct scale_result {
    double messages_mean, messages_max; /* per node and generation */
    double bytes_mean, bytes_max;
    double beat_bytes_max; /* per node and heartbeat interval */
    uint32_t sessions_max; /* per node */
    uint32_t sessions_leader;
};

struct run_result {
    enum verdict verdict;
    char why[512];
    uint64_t hash; /* of all events: equal runs are equal */
    struct counters counters;
    struct scale_result scale;
    uint64_t heap_bytes;
};
void run_schedule(const struct setup *setup, uint32_t planted_bug, bool verbose,
                  struct run_result *out);
void world_say(struct world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
struct sim_event sim_event_new(const struct world *world, enum event_kind kind, uint32_t node,
                               uint64_t after_ns);

/* ---- scale.c ---- */
/* Messages, bytes and sessions per node, without faults, at growing sizes: all, or those up to
 * agents_max. Prints; false when they grow too fast. */
bool scale_is_good(uint32_t agents_max);
/* What cores and their memory take does not grow with the generations. */
bool memory_is_bounded(void);

/* ---- network.c ---- */
void network_fini(struct world *world);
void network_send(struct world *world, struct node *from, const struct cairn_message *message,
                  const uint8_t *payload, uint32_t payload_len);
/* CONNECT and DISCONNECT. */
void network_connect(struct world *world, struct node *node, uint32_t agent);
void network_disconnect(struct world *world, struct node *node, uint32_t agent);
/* An agent has died: its sessions end. */
void network_agent_died(struct world *world, struct node *node, bool node_too);
void network_break_some(struct world *world, struct node *node, uint32_t per_thousand);
void network_cut(struct world *world, enum cut_kind kind);
void network_heal(struct world *world);
bool network_is_cut(const struct world *world, uint32_t from, uint32_t to);
/* Sessions may break, or messages be late. */
bool network_unreliable(const struct world *world);
/* TRY, UP, DOWN, STARVED and PACKET. */
void network_event(struct world *world, struct sim_event *event);
uint32_t network_side_of(const struct link *link, uint32_t agent);
/* Ends a session that is up: what is under way is lost, or all that would arrive after some time
 * is. Each side learns it. */
void network_end_session(struct world *world, uint32_t index, bool silently);
/* At every tick of an agent: it leaves sessions that it has no use for. */
void leave_unused(struct world *world, struct node *node);
void leave_arrives(struct world *world, const struct sim_event *event);
/* The kind of the message that a PACKET event is about to deliver; 0: none. */
uint32_t network_next_kind(const struct world *world, const struct sim_event *event);
struct shared *shared_new(const void *bytes, size_t len);
void shared_drop(struct shared *shared);

/* ---- memory.c ---- */
bool memory_open(struct memory *memory, uint64_t data_blocks, uint64_t parity_blocks);
void memory_close(struct memory *memory);
uint8_t *memory_block(struct node *node, uint32_t part, uint32_t area, uint32_t slot,
                      uint64_t block);
void memory_fold(struct world *world, struct node *node, const struct cairn_action_fold *fold,
                 const uint8_t *payload);
void memory_fold_one(const struct cairn_geometry *geometry, uint32_t row, uint32_t data_index,
                     const uint8_t *source, uint8_t *parity);
void memory_decode(struct world *world, struct scratch *scratch);
uint64_t memory_finish(struct node *node, uint32_t part, uint64_t **crcs);
size_t memory_verify(struct node *node, uint32_t part, const uint64_t *skip,
                     struct cairn_bad_block **bad);
uint64_t block_crc(const uint8_t *block);

/* ---- node.c ---- */
void node_init(struct world *world, uint32_t number);
void node_fini(struct node *node);
void node_start(struct world *world, struct node *node);
void node_start_later(struct world *world, const struct node *node, uint64_t after_ns);
void node_crash_agent(struct world *world, struct node *node);
void node_crash(struct world *world, struct node *node, bool disk_too);
/* Writes the first payload_len bytes of a message's payload to the place that the core names, if it
 * names one. The message itself may come later, or never. */
void node_place(struct world *world, struct node *node, const struct cairn_message *message,
                const uint8_t *payload, uint32_t payload_len);
void node_event(struct world *world, struct node *node, struct cairn_event *event,
                const uint8_t *payload);
void node_answer(struct world *world, struct sim_event *event);
uint64_t node_clock(const struct world *world, const struct node *node);
/* Defers an event of a paused or wedged agent; true when it was. */
bool node_paused(struct world *world, struct node *node, struct sim_event *event);
/* Runs, and is neither paused nor wedged. */
bool node_answers(const struct world *world, const struct node *node);

/* ---- trainer.c ---- */
void truth_block(const struct world *world, uint64_t life, uint64_t step, uint32_t member,
                 uint64_t block, uint8_t *out);
uint64_t gang_blocks(const struct world *world, uint64_t life, uint32_t member);
uint64_t gang_rank_blocks(const struct world *world, uint64_t life, uint32_t member, uint32_t rank);
/* roster NULL: all agents but the spares. */
void gang_start(struct world *world, const struct cairn_roster *roster, uint64_t step,
                uint64_t epoch);
void gang_kill(struct world *world);
void trainer_go(struct world *world, struct node *node, uint32_t rank);
void trainer_told(struct world *world, struct node *node, const struct told *told);
void trainer_tell(struct world *world, struct node *node, const struct cairn_action *action);
/* The trainers' agent has gone, or shows them out. */
void trainer_agent_died(struct world *world, struct node *node);
void trainer_kill(struct world *world, struct node *node);
void trainer_register(struct world *world, struct node *node);
/* Tells the core of ranks: of that life, or (0) that they are gone. */
void trainer_tell_ranks(struct world *world, struct node *node, uint64_t life);
/* Sends an event to the node's agent, in order. */
struct local *trainer_local(struct world *world, struct node *node, const struct cairn_event *event,
                            const uint64_t *crcs);

/* ---- intruder.c ---- */
void intruder_come(struct world *world);
void intruder_go(struct world *world, struct node *node);
void intruder_told(struct world *world, struct node *node, const struct told *told);
void intruder_leave(struct world *world, struct node *node);
static inline uint64_t
intruder_life(uint64_t life)
{
    return life | (UINT64_C(1) << 32);
}

/* The same, at some time from now on. */
void trainer_local_later(struct world *world, struct node *node, const struct cairn_event *event,
                         uint64_t after_ns);

/* ---- layout.c ---- */
/* How the tensors of the life that begins fit together. */
enum layout_kind layout_choose(struct world *world, uint64_t life, uint32_t members);
struct layout_of {
    uint64_t life;
    uint32_t gang_member; /* UINT32_MAX: no tensors */
    uint32_t gang_members;
    enum layout_kind kind;
    struct cairn_generation_id generation;
    uint32_t container; /* number and count, as the manifest gives them */
    uint32_t container_count;
};
/* The packed manifest; the caller frees *bytes. */
bool layout_manifest(const struct world *world, const struct layout_of *of, uint8_t **bytes,
                     size_t *len);

/* ---- operator.c ---- */
void operator_go(struct world *world);
void operator_reply(struct world *world, struct node *node, const struct cairn_action_reply *reply);
void operator_ask_aside(struct world *world);

/* ---- fault.c ---- */
void fault_strike(struct world *world);
void fault_script(struct world *world);
void fault_heal(struct world *world);
void fault_exam(struct world *world);
/* Some of its records, where that is within what is survived. Its agent is not running. */
void fault_damage_records(struct world *world, struct node *node);
bool fault_may_lose(const struct world *world, uint32_t node);

/* ---- truth.c ---- */
static inline bool
same(struct cairn_generation_id a, struct cairn_generation_id b)
{
    return cairn_generation_id_compare(a, b) == 0;
}

void *some_zeros(size_t count, size_t size);
struct truth *judge_truth(struct world *world, struct cairn_generation_id generation);
/* Makes room by forgetting the oldest that no longer matters. */
struct truth *truth_new(struct world *world, struct cairn_generation_id generation, uint64_t life,
                        const struct cairn_roster *roster);
void truth_fini(struct truth *truth);
/* From now on this generation must be kept. */
void kept_set(struct world *world, struct truth *truth);
/* After a fault beyond the budget nothing must be kept any more. */
void kept_check_beyond(struct world *world);
/* The record of a part at an agent, -1 none. */
int stored_at(const struct node *node, struct cairn_generation_id generation, uint32_t member);
bool flip_active(const struct world *world, const struct flip *flip);
/* A complete, undamaged copy. */
bool truth_copy_at(const struct world *world, const struct node *node, const struct truth *truth,
                   uint32_t member);
/* present[member_count]: somebody has a complete copy; without: not that agent. */
void truth_present(const struct world *world, const struct truth *truth, uint32_t without,
                   uint8_t *present);
/* True if no group misses more than its parity. */
bool truth_is_restorable(const struct truth *truth, const uint8_t *present);
/* Whether what must be kept, and what may be committed next, survives the loss of agent `without`
 * too. */
bool judge_budget(const struct world *world, uint32_t without);
/* Every stored record against the truth, data and parity; false when something is wrong. */
bool judge_deep(struct world *world, const char *when);

/* ---- judge_plan.c ---- */
void judge_plan(struct world *world, struct node *coordinator, const struct cairn_message *message);
/* What keeps an agent that runs from answering: then its parts may be taken for lost. */
bool judge_was_silent(const struct world *world, const struct node *node);
/* Nothing kept agents from talking for the last minute. */
bool judge_is_calm(const struct world *world);

/* ---- judge_view.c ---- */
/* What status would say of protection at this agent, compared with the truth. */
void judge_protection(struct world *world, const struct node *node);
/* Once a second: what is due and stuck has a name. */
void judge_blocker(struct world *world);

/* ---- judge_said.c ---- */
void judge_sent(struct world *world, struct node *node, const struct cairn_message *message);
void judge_got(struct world *world, struct node *node, const struct cairn_message *message);
void judge_grant(struct world *world, struct node *node, const struct cairn_action_trainer *grant);
void judge_committed(struct world *world, struct node *node,
                     const struct cairn_action_committed *committed);

/* ---- judge.c ---- */
void judge_fail(struct world *world, enum verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void judge_record(struct world *world, struct node *node, const struct cairn_action_store *store);
/* The agent that starts did not take a record that nobody has damaged. */
void judge_forgot(struct world *world, struct node *node, uint32_t part);
struct epoch_seen *judge_epoch_seen(struct world *world, uint64_t epoch);
void judge_epoch(struct world *world, struct node *node, const struct shared *before,
                 const struct cairn_action_store *store);
/* Somebody was told that a generation is committed. */
void judge_told(struct world *world, const struct node *node,
                struct cairn_generation_id generation);
void judge_lost_memory(struct world *world, struct node *node);
void judge_lost_record(struct world *world, struct node *node, uint32_t part);
void judge_after(struct world *world, struct node *node);
void judge_asked(const struct world *world, struct node *node, enum cairn_operation operation,
                 uint64_t request);
void judge_reply(struct world *world, struct node *node, const struct cairn_action_reply *reply);
void judge_fini(struct world *world);
bool judge_flip(struct world *world, struct node *node);
void judge_compared(struct world *world, const struct node *node, uint32_t part);
void judge_answered(struct world *world, const struct node *node, uint32_t coordinator);

#endif
