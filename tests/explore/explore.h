/*
 * tests/explore/explore.h - every interleaving of a small job: agents, sessions, trainers, an
 * operator and faults, as one state that is searched exhaustively.
 *
 * Each agent is the product's own struct cairn_core, built with planted bugs. Around it:
 *
 *   arena.c        memory that is copied away and back
 *   world.c        events: which are possible, and what each does
 *   agent.c        carries out a core's actions: memory, disk, answers of the process
 *   network.c      sessions and channels
 *   trainer.c      the training job, and who starts it again
 *   judge.c        what must hold after every event (R1 to R10)
 *   fingerprint.c  a hash of one core's state
 *   search.c       the search, visited states, and what it reduces
 *   main.c         worlds, budgets, the planted bugs, the report
 *
 * An event is one step of one agent, or a fault, or a tick: time moves by a heartbeat interval and
 * every agent gets its TICK. Heartbeats are delivered within the tick that sends them.
 */
#ifndef CAIRN_EXPLORE_EXPLORE_H
#define CAIRN_EXPLORE_EXPLORE_H

#include "agent/core/core.h"
#include "erasure/stripe.h"
#include "tests/explore/arena.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    AGENTS_MAX = 5,
    BLOCK_BYTES = 8,
    RING_ROWS = 1,
    RING_LINES = 2,
    EPOCHS_MAX = 16, /* claimed in one schedule, and not forgotten */
    ITEMS_MAX = 8,   /* repair items whose scratch is kept */
    TRUTHS_MAX = 96, /* generations of one schedule */
    SOURCES = 128,
    EVENTS_MAX = 128,  /* possible at once */
    TICKS_DEAD = 3,    /* until a silent agent is taken for dead */
    TICKS_PATIENT = 8, /* until what it holds may be rebuilt elsewhere */
    TICKS_LONG = 10,   /* what is long away comes back after so many ticks */
    TICKS_MAX = 160,   /* after the last fault: the job must have gone on */
    STEPS_PER_TICK = 2
};

#define INTERVAL_NS UINT64_C(1000000000)

static inline uint64_t
hash_mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

/* ---- what a world is ---- */

enum fault {
    FAULT_CRASH = 0, /* an agent's process dies; memory and disk stay */
    FAULT_CUT,       /* the same right after it has stored something, before it tells anyone */
    FAULT_LONG,      /* a crash for a long time */
    FAULT_MEMORY,    /* a crash, and its memory is lost */
    FAULT_AWAY,      /* the same for a long time */
    FAULT_DISK,      /* a crash, and its memory and disk are lost */
    FAULT_BREAK,     /* a session ends; a new one begins */
    FAULT_SPLIT,     /* a session ends, and no new one begins for a long time */
    FAULT_RESTART,   /* all trainers die and start again from step 0, without a restore */
    FAULT_RESTORE,   /* an operator asks for a restore */
    FAULT_STOP,      /* all trainers die, and an operator asks for a restore */
    FAULT_PAUSE,     /* an agent stands still for a long time */
    FAULT_CANCEL,    /* a trainer gives its snapshot up */
    FAULT_DAMAGE,    /* a message's blocks arrive damaged */
    FAULT_SNAPSHOT,  /* an operator asks for a generation */
    FAULT_FRESH,     /* all trainers die, and an operator asks for a fresh epoch */
    FAULT_KINDS
};

struct setup {
    const char *name;
    uint32_t agents;
    uint32_t parity;
    uint32_t late;               /* agents that start long after the others, numbered last */
    uint32_t spares;             /* of the agents, numbered last; the job runs on the members */
    bool untiled;                /* the ranks' tensors do not fit together */
    bool asked;                  /* nothing is due: only operators ask for generations */
    bool from_start;             /* the search begins with the agents' start, else with a run */
    uint8_t faults[FAULT_KINDS]; /* how many of each */
};

/* ---- events ---- */

enum event_kind {
    E_ANSWER = 0, /* a: agent, b: index */
    E_DOWN,       /* a learns that its session with b has ended */
    E_UP,         /* a learns that a session with b has begun */
    E_MESSAGE,    /* a takes the next one from b, c: class */
    E_REGISTER,   /* a's trainer */
    E_COPY,
    E_CAPTURED,
    E_KILL,   /* the trainers of a broken job end */
    E_LAUNCH, /* they start */
    E_BEGIN,
    E_START, /* agent a */
    E_RESUME,
    E_HEAL,
    E_TICK,
    E_STALL, /* a: source: it waits until nothing else can happen */
    E_FAULT  /* a: kind, b and c: whom */
};

struct event {
    uint8_t kind, a, b, c;
};

/* ---- agents ---- */

struct blob {
    uint8_t *bytes;
    size_t len;
};

struct memory {
    uint8_t *data;
    uint8_t *parity;
    uint64_t data_blocks, parity_blocks; /* room */
};

/* What a stored record says. */
struct stored {
    struct cairn_generation_id generation; /* step 0: no record */
    uint32_t member;
    uint32_t position;
    uint32_t n, m;
    uint8_t agents[AGENTS_MAX]; /* by position */
};

struct answer {
    struct answer *next;
    enum cairn_event_type type;
    uint32_t part, item;
    struct cairn_generation_id generation;
    uint64_t request;
    cairn_err err;
    uint8_t *bytes;
    size_t bytes_len;
    uint64_t *crcs;
    struct cairn_bad_block *bad;
    uint64_t count;
};

struct scratch {
    uint8_t shards[AGENTS_MAX][BLOCK_BYTES * 2];
    uint64_t staged, lost, sources, request;
    uint32_t data_shards, parity_shards, count;
    bool used;
};

/* All of it lies in the agent's own arena. */
struct agent {
    uint32_t number;
    uint64_t incarnation;
    struct cairn_core *core; /* NULL: it is not running */
    bool memory_new;
    bool paused;
    bool away;        /* a crashed agent comes back late */
    uint64_t gone_ns; /* when it died last, if it was or is away for long; 0: never */
    bool knows;       /* its disk has all that it promised */
    struct blob disk;
    struct blob records[CAIRN_PARTS_MAX];
    struct stored stored[CAIRN_PARTS_MAX];
    struct memory memory[CAIRN_PARTS_MAX];
    uint8_t ring[RING_ROWS][RING_LINES][BLOCK_BYTES];
    struct scratch scratch[ITEMS_MAX];
    struct answer *answers;
    uint64_t fingerprint;
    /* what it has said and stored, for the judge */
    uint64_t stored_promised;
    uint64_t said_promised, said_active;
    uint64_t seen_promised, seen_active;
    struct cairn_generation_id seen_committed;
};

/* ---- the rest of the world: in its own arena ---- */

struct packet {
    struct packet *next;
    uint64_t hash;
    uint32_t len, payload_len;
    uint8_t bytes[]; /* the packed message, then its blocks */
};

enum { CHANNEL_CONTROL = 0, CHANNEL_BULK, CHANNELS };

struct channel {
    struct packet *first, *last;
};

/* One agent's view of its session with another. */
struct side {
    bool up;      /* it has been told that the session is up */
    bool to_up;   /* it will be told */
    bool to_down; /* it will be told that it has ended */
    bool wanted;
};

enum phase { PHASE_IDLE = 0, PHASE_ASKED, PHASE_GRANTED, PHASE_COPIED };

struct trainer {
    bool alive;
    bool registered;
    enum phase phase;
    uint32_t part;
    uint64_t step; /* begun */
    struct cairn_generation_id generation;
};

struct truth {
    struct cairn_generation_id generation; /* step 0: unused */
    uint32_t life;
    uint32_t n, m;
    uint8_t agents[AGENTS_MAX]; /* by member */
    uint32_t done;              /* members that have stored their own part, as a set */
    uint32_t lost;              /* members whose last copy a fault has taken, as a set */
    bool committed;
};

/* Who has promised an epoch, as sets. */
struct promises {
    uint64_t epoch;
    uint32_t knew, forgot; /* what they had promised before */
};

struct world {
    struct setup setup;
    bool spares[AGENTS_MAX];
    uint64_t now_ns;
    uint64_t starts; /* of agents */
    bool open[AGENTS_MAX][AGENTS_MAX];
    bool split[AGENTS_MAX][AGENTS_MAX];
    struct side sides[AGENTS_MAX][AGENTS_MAX];
    struct channel channels[AGENTS_MAX][AGENTS_MAX][CHANNELS]; /* [to][from] */
    struct packet *beats, *last_beat; /* heartbeats of this event, each behind u32 to */
    uint64_t stalled[SOURCES / 64];   /* sources, as a set */
    /* the job */
    struct trainer trainers[AGENTS_MAX];
    bool launched;
    uint32_t life;
    uint64_t gang_epoch;
    uint32_t ranks;      /* agents with trainers, as a set */
    uint64_t start_step; /* where the next launch begins, if from_zero */
    bool from_zero;
    uint64_t op_pending[AGENTS_MAX]; /* request of the operator who waits for it; 0: none */
    bool op_asked;                   /* ever */
    bool op_fresh; /* what is held is given up when the epoch of fresh_agent begins */
    uint32_t fresh_agent;
    uint64_t op_request; /* the newest */
    /* time and goals */
    uint32_t idle_ticks; /* since the last event other than a tick */
    uint32_t ticks;      /* since the last fault */
    uint32_t steps;      /* since the last tick */
    uint32_t commits;
    uint32_t commits_since_fault;
    bool fresh_fault; /* a crash during the event that is being carried out */
    bool cut;         /* the agent dies after its next store */
    /* the judge */
    struct truth truths[TRUTHS_MAX];
    struct cairn_generation_id kept;        /* must be restorable; step 0: nothing yet */
    struct cairn_generation_id epoch_ready; /* of kept_epoch */
    uint64_t kept_epoch;                    /* newest that was activated */
    struct promises promises[EPOCHS_MAX];   /* a ring */
    uint32_t promises_next;
    struct cairn_generation_id erased[CAIRN_PARTS_MAX]; /* records erased in this event */
    uint32_t erased_count;
    bool was_damaged;          /* a message's blocks */
    bool was_cut_off;          /* an agent was silent for long, and ran */
    uint64_t runs[TRUTHS_MAX]; /* run numbers, by their first grant */
    uint32_t run_lives[TRUTHS_MAX];
    uint32_t run_count;
};

extern struct world *world;
extern struct agent *agents[AGENTS_MAX];
extern uint32_t planted_bug;
extern bool verbose;
extern char failure[512]; /* "": nothing is wrong */
extern uint32_t dirty;    /* agents that have changed, as a set */

void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline bool
failed(void)
{
    return failure[0] != '\0';
}

/* ---- agent.c ---- */
void agent_init(struct agent *agent, uint32_t number);
void agent_start(struct agent *agent);
/* Ends the process. */
void agent_crash(struct agent *agent, bool memory, bool disk);
/* Gives the core one event and carries out what it asks for. payload: the event's blocks. */
void agent_event(struct agent *agent, struct cairn_event *event, const uint8_t *payload);
void agent_answer(struct agent *agent, uint32_t index);
uint8_t *agent_block(struct agent *agent, uint32_t part, uint32_t area, uint32_t slots,
                     uint32_t slot, uint64_t block);
uint64_t block_crc(const uint8_t *block);
void agent_view(const struct agent *agent, struct cairn_core_view *out);
uint64_t agent_hash(const struct agent *agent);
void code_open(void);
void code_fold(uint32_t n, uint32_t m, uint32_t row, uint32_t source, const uint8_t *data,
               uint8_t *parity, bool fresh);

/* ---- network.c ---- */
void network_send(struct agent *from, const struct cairn_message *message, const uint8_t *payload,
                  uint32_t payload_len);
void network_connect(uint32_t a, uint32_t b);
/* Ends the session of two agents. */
void network_end(uint32_t a, uint32_t b);
void network_crash(uint32_t a);
void network_deliver(uint32_t to, uint32_t from, uint32_t class, bool damaged);
/* Begins sessions that are wanted. */
void network_settle(void);
void network_beats(void);
uint64_t network_hash(void);
void network_describe(uint32_t to, uint32_t from, uint32_t class, char *text, size_t bytes);

/* ---- trainer.c ---- */
uint64_t truth_word(uint32_t life, uint32_t agent, uint64_t step, uint64_t block);
bool trainer_manifest(uint32_t agent, struct cairn_generation_id generation, const uint64_t *crcs,
                      uint64_t blocks, uint8_t **bytes, size_t *len);
bool trainer_may_register(uint32_t a);
bool trainer_may_begin(uint32_t a);
void trainer_register(uint32_t a);
void trainer_begin(uint32_t a);
void trainer_copy(uint32_t a);
void trainer_captured(uint32_t a);
void trainer_cancel(uint32_t a);
void trainer_action(struct agent *agent, const struct cairn_action *action);
void trainer_agent_died(uint32_t a);
bool has_rank(uint32_t a);
bool gang_is_broken(void);
void gang_kill(void);
bool gang_may_launch(void);
void gang_launch(void);
enum { SHARD_BLOCKS = 1 };

/* ---- judge.c ---- */
void judge_grant(struct agent *agent, const struct cairn_action_trainer *grant);
void judge_send(struct agent *agent, const struct cairn_message *message);
void judge_store_epoch(struct agent *agent, const uint8_t *bytes, size_t len);
void judge_store_part(struct agent *agent, uint32_t part);
void judge_written(struct agent *agent, uint32_t part);
void judge_lost(struct agent *agent);
void judge_committed(const struct agent *agent, struct cairn_generation_id generation,
                     const struct cairn_roster *roster);
void judge_activated(struct agent *agent, const struct cairn_action_activated *activated);
void judge_after(struct agent *agent);
void judge_kept(void);
/* True if every member's part of the generation that must be kept is stored somewhere. */
bool judge_is_protected(void);

/* ---- fingerprint.c ---- */
uint64_t core_fingerprint(const struct cairn_core *core);
/* For people: what a core waits for. */
void core_describe(const struct cairn_core *core, char *text, size_t bytes);

/* ---- world.c ---- */
/* True if an operator waits for the answer to a restore. */
bool operator_waits(void);
void world_open(const struct setup *setup);
/* The possible events, the default one first; faults are not among them. */
uint32_t world_events(struct event *out);
/* The faults that make sense right before `next`; all of them if it is not one agent's event. */
uint32_t world_faults(struct event next, bool all, struct event *out);
void world_apply(struct event event, struct event next);
/* The agent whose state an event changes; UINT32_MAX: the world's. */
uint32_t event_agent(struct event event);
uint32_t event_source(struct event event); /* SOURCES: none */
uint64_t world_hash(void);
bool world_is_over(struct event next);
/* Nothing happens but steps and ticks, and a fault is due. */
bool world_wants_fault(struct event next);
void event_describe(struct event event, char *text, size_t bytes);

/* ---- search.c ---- */
struct search_result {
    uint64_t events, states, depth_max, branches;
    bool complete; /* nothing was cut by the bound */
    bool found;
    double seconds;
    uint32_t bound; /* of the last level that was searched whole */
};
struct search_limits {
    double seconds; /* of the processor */
    uint64_t states;
    uint32_t bound_max;
    uint64_t seed; /* 0: systematic; else schedules are drawn */
};
void search(const struct setup *setup, const struct search_limits *limits,
            struct search_result *out);
void search_print_failure(void);

#endif
