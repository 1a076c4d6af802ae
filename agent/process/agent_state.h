/*
 * agent/process/agent_state.h - what the files of the agent process share: the state behind struct
 * cairn_agent.
 *
 *   agent.c     start, run, stop; timers
 *   carry.c     carries out the core's actions: memory, disk, messages, trainers
 *   carry_jobs.c  those of them that are workers' jobs
 *   keeping.c   watches the keeper that holds the memory, and replaces it when it has died
 *   scratch.c   decoding space of repairs
 *   mail.c      messages to and from peers over the transport, with bounded queues
 *   session.c   the Unix socket: trainers
 *   operator.c  the Unix socket: operators' requests, answered in JSON
 *   fetch.c     blocks and manifests of a generation for trainers, spill and export, wherever they
 *               lie
 *   spill.c     writing a generation to durable storage
 *   replanning.c  what to do about the plan while ranks are slow
 *
 * Everything is owned by the loop's thread. Words: `holding` is an index of the core's holdings.
 *
 * One event at a time: what arises while an event's actions are carried out waits until all of them
 * are (agent_step). And no session ends inside somebody's callback: session_flush marks it,
 * sessions_reap ends it when nobody is in the middle of anything. So carrying out an action never
 * changes what the next action of the same event is about.
 */
#ifndef CAIRN_AGENT_PROCESS_AGENT_STATE_H
#define CAIRN_AGENT_PROCESS_AGENT_STATE_H

#include "agent/process/config.h"
#include "agent/core/core.h"
#include "agent/process/memory.h"
#include "base/loop.h"
#include "base/worker.h"
#include "client/session.h"
#include "erasure/code.h"
#include "replan/live/ledger.h"
#include "snapshot/catalog.h"
#include "snapshot/manifest.h"
#include "transport/transport.h"

struct operator_node;

enum {
    SESSIONS_MAX = 128,
    MAIL_BUFFERS = 32,     /* payloads under way to this node or being used here */
    MAIL_WINDOW = 8,       /* of them, those of one peer */
    MAIL_QUEUED_MAX = 512, /* messages waiting for one peer; more are dropped, and sent again by the
                            * core */
    MAIL_OWNED_BYTES_MAX = 64 << 20, /* copied payloads that wait or are under way, over all
                                      * peers */
    JOBS_MAX = 1024,                 /* of workers; FILE_JOBS_MAX of them may be reads of files */
    FILE_JOBS_MAX = 512,
    SCRATCH_ITEMS_MAX = 4,
    COMMIT_TIMES_MAX = 64,
    RESTORE_WINDOW_BLOCKS = 256, /* of a restoring trainer */
    REPAIR_WINDOW_BLOCKS = 16    /* of one that finds everything in this node's memory */
};

/* A message on its way to a peer: queued, or with the transport (`flying`) until on_sent. */
struct letter {
    struct letter *next;
    struct letter **link; /* what points to it in the list of flying letters */
    uint32_t to;
    uint32_t holding;    /* whose memory the payload borrows, UINT32_MAX none */
    uint8_t *owned;      /* payload that is freed with the letter, or NULL */
    struct space *space; /* decoding space that the payload lies in, or NULL */
    const uint8_t *payload;
    size_t payload_len;
    size_t body_len;
    bool bulk;
    uint8_t body[512];
};

struct mailbox {
    struct letter *control_head, *control_tail;
    struct letter *bulk_head, *bulk_tail;
    uint32_t queued;
    bool alive; /* its heartbeats arrived, when they were last looked at */
};

/* A shard that is decoded from where it came: a buffer of the transport, or this node's own
 * memory. */
struct kept_payload {
    uint8_t *bytes;
    uint64_t buffer;  /* of the transport; 0: none */
    uint32_t holding; /* whose memory is held; UINT32_MAX: none */
};

/* What is gathered for one repair item. */
struct scratch {
    struct space *space; /* NULL before the first shard */
    uint64_t staged;     /* shards that hold something */
    uint64_t kept;       /* of them, those that lie where they came from instead */
    struct kept_payload payloads[CAIRN_SHARDS_MAX];
};

/*
 * NEW until HELLO, then WELCOME. CLOSING: what is queued is still sent, nothing is taken any more.
 * DRAINING: a trainer that we have shown out but that may still be copying into a slot; it is
 * waited for until its end of the socket closes.
 */
enum session_state { SESSION_NEW = 0, SESSION_WELCOME, SESSION_CLOSING, SESSION_DRAINING };

struct session {
    bool used;
    int fd;
    uint32_t index;
    uint64_t serial; /* never reused, so that late answers are told from new sessions */
    enum session_state state;
    struct cairn_session_reader reader;
    struct cairn_session_writer writer;
    struct cairn_session_hello hello;
    uint64_t since_ns;   /* when it connected */
    uint64_t closing_ns; /* when CLOSING was first seen, 0: not */
    int pid_fd;          /* readable when the trainer's process has ended, though a child keeps its
                        * socket; or -1 */
    bool ending;         /* to be ended by sessions_reap */
    bool trainer;
    bool stale;  /* of an older epoch: it is refused everything */
    bool leaves; /* its trainer has said so */

    /* a registered trainer */
    bool registered;
    uint32_t local_rank; /* index in the core's events */
    uint64_t region_block;
    uint64_t region_blocks;
    struct cairn_manifest_entry *entries; /* capture plan; names in `slices` */
    struct cairn_session_register slices;
    struct cairn_generation granted;      /* being captured, step 0: none */
    uint32_t writing;                     /* slots (a bit each) that it may be copying into */
    struct cairn_session_grant held_back; /* a grant for a slot that a left-over may still write;
                                           * step 0: none */
    uint64_t held_back_ns;                /* since when */
    struct cairn_client_stats stats;
    struct cairn_session_coverage *coverage; /* owned; NULL: it has told nothing */

    struct fetcher *fetcher; /* a restore under way */
};

struct committed_time {
    struct cairn_generation generation;
    uint64_t wall_ns;
    uint64_t bytes;
    uint64_t protect_ns; /* from the first grant to the commit */
};

/* An event that arose while another's actions were carried out; what it points to is in `data`. */
struct queued_event {
    struct queued_event *next;
    struct cairn_event event;
    uint64_t data[];
};

struct cairn_agent {
    struct cairn_config config;
    char executable[CAIRN_CONFIG_PATH_BYTES_MAX];
    uint64_t job_id;
    uint64_t incarnation;
    uint64_t started_wall_ns;
    struct cairn_loop *loop;
    struct cairn_workers *workers;
    struct cairn_clock clock;
    struct cairn_keeper *keeper;
    struct cairn_memory *memory;
    bool memory_adopted; /* from an earlier agent, with what its records say */
    bool memory_marked;  /* the catalog says that memory may be new, and the epoch's record not know
                          * it */
    struct cairn_catalog *catalog;
    struct cairn_transport *transport;
    struct cairn_core *core;
    struct cairn_timer tick_timer;
    int exit_code;
    bool stopping;

    struct mailbox *mailboxes; /* [node_count] */
    struct letter *self_head, *self_tail;
    struct letter *flying;
    uint64_t owned_bytes; /* of all letters */
    bool delivering_self;
    bool transport_watched;
    struct cairn_loop_source transport_source;
    struct cairn_timer mail_timer;
    uint64_t mail_due_ns;    /* of that timer, 0: none */
    uint64_t seal_bytes_max; /* the longest seal that a record has room for */
    uint64_t seal_warned_ns;

    struct scratch scratch[SCRATCH_ITEMS_MAX];
    struct space *unused_spaces;
    uint32_t arriving_from;    /* the message being delivered came from this node, */
    uint64_t arriving_buffer;  /* its payload lies in this buffer; 0: none, or it is kept */
    uint32_t arriving_holding; /* its payload lies in this node's own memory; UINT32_MAX: it does
                                * not */
    uint32_t kept_buffers;     /* of the transport, until what is in them is decoded */
    /* by k and m, made when needed */
    struct cairn_code *codes[CAIRN_SHARDS_MAX + 1][CAIRN_SHARDS_MAX + 1];
    bool stepping; /* actions are being carried out */
    struct queued_event *events_head, *events_tail;
    uint64_t hosting[CAIRN_HOLDINGS_MAX]; /* serial of the reservation under way, 0: none */
    uint64_t hosting_serial;

    int lock_fd; /* of the socket's lock file */
    int listen_fd;
    bool listen_paused; /* out of descriptors: tried again at the next tick */
    struct session sessions[SESSIONS_MAX];
    uint64_t next_serial;
    uint64_t shard_blocks;     /* of all registered regions */
    uint64_t layout_bytes_max; /* of names and shapes in one member's manifest */
    uint32_t registered_ranks;
    uint64_t attached_total; /* trainers since the start */

    struct cairn_generation first_grant; /* of the generation being captured */
    uint64_t first_grant_ns;
    struct committed_time commits[COMMIT_TIMES_MAX];
    uint64_t commit_count;
    uint64_t last_restore_ns;

    struct keeping *keeping;
    bool unkept; /* no keeper holds the memory: it would be lost with this process */

    struct fetch_table *fetches;
    struct timing_state *timing;
    struct replanning_state *replanning; /* NULL: nothing is planned */
    struct enforcing_state *enforcing;   /* NULL: nothing is enforced */
    struct spill_state *spill;
    struct operator_table *operators;
};

/* The event and its payload of the step being taken. */
struct arrival {
    const uint8_t *payload;
    size_t payload_len;
};

/* ---- agent.c ---- */
uint64_t agent_now_ns(const struct cairn_agent *agent);
/*
 * Takes one event: steps the core and carries out what it says. While that goes on, further events
 * are copied and wait for their turn; they carry no message and no arrival. Ends with
 * sessions_reap.
 */
void agent_step(struct cairn_agent *agent, struct cairn_event *event,
                const struct arrival *arrival);
/* Stops the agent at once with a message: after a failed store nothing may be said any more. */
void agent_abort(struct cairn_agent *agent, int exit_code, const char *what);
const struct cairn_code *agent_code(struct cairn_agent *agent, uint32_t k, uint32_t m);

/* ---- carry.c ---- */
void carry_out(struct cairn_agent *agent, const struct arrival *arrival,
               const struct cairn_actions *actions);

/* ---- carry_jobs.c: each is answered by an event, at the latest when its worker is done ---- */
void carry_decode(struct cairn_agent *agent, const struct cairn_action *action);
/* Checksums a holding: its parity alone after a save, its data too after a rebuild; with verify
 * against what is on record. */
void carry_check(struct cairn_agent *agent, const struct cairn_action *action, bool verify);
/* Makes room for another node's part. */
void carry_open(struct cairn_agent *agent, const struct cairn_action *action);

/* ---- keeping.c ---- */
/* Starts and connects the keeper, and watches it from then on. Without one in the configuration it
 * does nothing. */
CAIRN_MUST_CHECK cairn_err keeping_open(struct cairn_agent *agent);
void keeping_started(struct cairn_agent *agent); /* the loop begins: what asks the keeper must be
                                                  * short now */
void keeping_tick(struct cairn_agent *agent);
void keeping_close(struct cairn_agent *agent);
/* Before memory is taken or made. True in *was_marked: an earlier start made it, and may have
 * stored nothing of it. */
CAIRN_MUST_CHECK cairn_err keeping_mark_memory(struct cairn_agent *agent, bool *was_marked);
/* What memory means is stored with the epoch's record. */
CAIRN_MUST_CHECK cairn_err keeping_memory_is_known(struct cairn_agent *agent);

/* ---- scratch.c: decoding space ---- */
/* Where a shard of an item goes, which counts as staged from now on; NULL without memory. */
uint8_t *scratch_stage(struct cairn_agent *agent, uint32_t item, uint32_t shard);
/*
 * Keeps the payload that is arriving as a shard of an item where it is: where the transport put it,
 * or in this node's own memory. False, and nothing is done, when so many buffers of the transport
 * are kept that others would not find room: then it is to be copied.
 */
bool scratch_keep(struct cairn_agent *agent, uint32_t item, uint32_t shard, const uint8_t *payload);
/* Where a staged shard is. */
uint8_t *scratch_shard(struct cairn_agent *agent, uint32_t item, uint32_t shard);
/* Hands what is kept over to the caller: payloads[CAIRN_SHARDS_MAX]; returns how many. */
uint32_t scratch_take_kept(struct cairn_agent *agent, uint32_t item, struct kept_payload *payloads);
/* Gives buffers back to the transport, and lets go of memory. */
void scratch_give_back(struct cairn_agent *agent, const struct kept_payload *payloads,
                       uint32_t count);
/* The item is free again. */
void scratch_release(struct cairn_agent *agent, uint32_t item);
/* Frees all space; nobody uses any. */
void scratch_close(struct cairn_agent *agent);
uint8_t *space_shard(struct space *space, uint32_t shard);
/* [CAIRN_MESSAGE_BLOCKS_MAX] checksums of a decoded shard's blocks. */
uint64_t *space_crcs(struct space *space, uint32_t shard);
/* One more user of a space, and one less (NULL is allowed). */
void space_hold(struct space *space);
void space_drop(struct cairn_agent *agent, struct space *space);

/* ---- mail.c ---- */
CAIRN_MUST_CHECK cairn_err mail_open(struct cairn_agent *agent);
void mail_close(struct cairn_agent *agent);
/*
 * Sends a message; payload (may be NULL) is blocks of `holding` (UINT32_MAX: of nobody) or lies in
 * decoding space (NULL: it does not), which it holds until it is sent. What cannot be sent now is
 * queued, beyond MAIL_QUEUED_MAX dropped.
 */
void mail_send(struct cairn_agent *agent, const struct cairn_message *message,
               const uint8_t *payload, size_t payload_len, uint32_t holding, struct space *space);
/* Delivers what this agent sent to itself. */
void mail_deliver_self(struct cairn_agent *agent);
/*
 * Ends the connections to agents whose heartbeats have stopped. TCP would go on for many minutes
 * with a connection that was cut, and try it again ever more rarely, long after the way is free
 * again; a new one is made as soon as the peer can be reached.
 */
void mail_end_silent(struct cairn_agent *agent);
/* True when the checksums in the message are those of its payload. */
bool mail_payload_ok(const struct cairn_message *message, const uint8_t *payload,
                     size_t payload_len);

/* ---- session.c ---- */
/* Makes this the only agent of its socket. CAIRN_AGAIN: another one is; CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err sessions_lock(struct cairn_agent *agent);
CAIRN_MUST_CHECK cairn_err sessions_open(struct cairn_agent *agent);
void sessions_close(struct cairn_agent *agent);
void sessions_tick(struct cairn_agent *agent);
/* Ends the sessions that session_flush has found at their end. */
void sessions_reap(struct cairn_agent *agent);
void session_grant(struct cairn_agent *agent, const struct cairn_action *action);
void session_skip(struct cairn_agent *agent, const struct cairn_action *action);
void session_drop(struct cairn_agent *agent, struct cairn_generation generation);
void session_epoch(struct cairn_agent *agent, uint64_t epoch, bool restart);
/* Packs the manifest of a captured generation; answers the core's SEAL. The caller frees *bytes. */
CAIRN_MUST_CHECK cairn_err session_manifest(struct cairn_agent *agent,
                                            const struct cairn_action *action, uint8_t **bytes,
                                            size_t *len);
/* Sends what is queued for a session; where that shows its end, sessions_reap ends it later. */
void session_flush(struct cairn_agent *agent, struct session *session);

/* ---- operator.c ---- */
void operator_request(struct cairn_agent *agent, struct session *session, const char *text,
                      size_t text_len);
void operator_reply(struct cairn_agent *agent, const struct cairn_action *action);
void operator_message(struct cairn_agent *agent, const struct cairn_message *message);
void operator_tick(struct cairn_agent *agent);
void operator_close(struct cairn_agent *agent);
/* A session that asked has gone. */
void operator_forget(struct cairn_agent *agent, uint64_t serial);

/* ---- fetch.c ---- */
CAIRN_MUST_CHECK cairn_err fetch_open(struct cairn_agent *agent);
void fetch_close(struct cairn_agent *agent);
void fetch_message(struct cairn_agent *agent, const struct cairn_message *message,
                   const uint8_t *payload, size_t payload_len);
void fetch_tick(struct cairn_agent *agent);
/* A trainer's RESTORE, FETCH, RESTORED, and its end. */
void fetch_restore(struct cairn_agent *agent, struct session *session, uint32_t request);
void fetch_blocks(struct cairn_agent *agent, struct session *session,
                  const struct cairn_session_fetch *fetch);
void fetch_restored(struct cairn_agent *agent, struct session *session,
                    const struct cairn_session_restored *restored);
void fetch_forget(struct cairn_agent *agent, struct session *session);

/* ---- timing.c, timing_rings.c ---- */
CAIRN_MUST_CHECK cairn_err timing_open(struct cairn_agent *agent);
void timing_close(struct cairn_agent *agent);
/* A trainer hands over a ring of timing records; the descriptor is taken over in every case. */
void timing_take_ring(struct cairn_agent *agent, const struct session *session, int ring_fd);
/* A trainer's session ends. */
void timing_session_ended(struct cairn_agent *agent, const struct session *session);
/* A TIMING, TIMING_ACK or VERDICTS. */
void timing_message(struct cairn_agent *agent, const struct cairn_message *message);
/* This node's numbers, for operators. */
void timing_fill(const struct cairn_agent *agent, struct operator_node *out);
/* The verdicts as this agent knows them; NULL before it has opened. Borrowed until the next
 * event. */
const struct cairn_ledger *timing_ledger(const struct cairn_agent *agent);

/* ---- replanning.c ---- */
/* Reads the configuration's problem, if there is one; CAIRN_CONFIG, said, where it is wrong. */
CAIRN_MUST_CHECK cairn_err replanning_open(struct cairn_agent *agent);
void replanning_close(struct cairn_agent *agent);
/* How long training stands still, beside moving state, when the plan changes or ranks are
 * exchanged. */
uint64_t replanning_standstill_ns(const struct cairn_agent *agent);
/* What is advised, for operators. */
void replanning_fill(const struct cairn_agent *agent, struct operator_node *out);

/* ---- enforcing.c ---- */
/* CAIRN_CONFIG, said, where the configuration's command cannot be run. */
CAIRN_MUST_CHECK cairn_err enforcing_open(struct cairn_agent *agent);
/* Kills the command where it runs, and waits for its end. */
void enforcing_close(struct cairn_agent *agent);

/* ---- spill.c ---- */
CAIRN_MUST_CHECK cairn_err spill_open(struct cairn_agent *agent);
void spill_close(struct cairn_agent *agent);
void spill_committed(struct cairn_agent *agent, struct cairn_generation generation);
void spill_message(struct cairn_agent *agent, const struct cairn_message *message);
void spill_tick(struct cairn_agent *agent);

#endif
