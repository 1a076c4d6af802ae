/*
 * agent/process/session.h - sessions of the Unix socket: frames to trainers, and the ends of
 * sessions.
 *
 * States: NEW until HELLO, then WELCOME. CLOSING: queued frames are still sent, nothing is read.
 * DRAINING: a trainer that was evicted but may still be copying into a slot; we wait until its end
 * of the socket closes.
 *
 * Invariants:
 *  1. A session ends in sessions_reap or session_end only, never inside a function that was given
 *     it: session_flush marks it as `ending`.
 *  2. A trainer may write to a slot from GRANT until DONE, CANCEL or the end of its connection;
 *     `writing` has a bit for each such slot. Nobody else is granted the slot meanwhile, except
 *     after ten seconds of a trainer that does not stop.
 *  3. At most one process holds a rank of this node at a time: session_claim_rank.
 *  4. A stale session, of an epoch before the last restore, is refused everything.
 *
 * The agent owns all sessions, in a fixed array.
 */
#ifndef CAIRN_AGENT_PROCESS_SESSION_H
#define CAIRN_AGENT_PROCESS_SESSION_H

#include "agent/core/core.h"
#include "client/session.h"
#include "snapshot/manifest.h"

struct cairn_service_message;
struct cairn_agent;
struct fetcher;

enum {
    SESSIONS_MAX = 128,
    SESSION_QUEUE_BYTES = 4 << 20 /* waiting for one session; more ends it */
};

enum session_state { SESSION_NEW = 0, SESSION_WELCOME, SESSION_CLOSING, SESSION_DRAINING };

struct session {
    bool used;
    int fd;
    uint32_t index;
    uint64_t serial; /* never used again: a late answer cannot meet another session */
    enum session_state state;
    struct cairn_session_reader reader;
    struct cairn_session_writer writer;
    struct cairn_session_hello hello;
    uint64_t since_ns; /* when it connected */
    uint64_t since_wall_ns;
    int pid;             /* that connected, by SO_PEERCRED; 0: in a namespace that we do not see */
    uint64_t closing_ns; /* when CLOSING was first seen, 0: not yet */
    int pid_fd;  /* readable when the trainer's process has ended, even if a child keeps the socket;
                  * or -1 */
    bool ending; /* sessions_reap ends it */
    bool trainer;
    bool stale;
    bool leaves;       /* its trainer sent LEAVE */
    bool holds_rank;   /* has claimed the rank that HELLO names: registered, or handed rings over */
    bool said_refused; /* why it was refused, since it registered last */

    /* A registered trainer. */
    bool registered;
    bool is_answered;  /* REGISTERED was sent */
    bool stands_still; /* registered other tensors before, and has not begun a step since */
    uint64_t registered_ns;
    uint32_t asked_agents; /* that have not answered whether another launch has the rank */
    uint64_t asked_until_ns;
    uint32_t own_slots;  /* a bit each: it holds a generation with this very region of this rank */
    uint32_t local_rank; /* index in the core's events */
    uint64_t region_block;
    uint64_t region_blocks;
    struct cairn_manifest_entry *entries; /* capture plan; its names are in `slices` */
    struct cairn_session_register slices;
    struct cairn_generation_id granted; /* being captured, step 0: none */
    uint32_t writing;                   /* slots (a bit each) that it may be copying into */
    struct cairn_session_grant
        held_back;                 /* waits for another trainer's copy to stop; step 0: none */
    uint64_t held_back_ns;         /* since when */
    struct cairn_begun_step begun; /* since it registered these tensors */
    uint64_t last_step;            /* the trainer's last one, whose commit it waits for; 0: none */
    struct cairn_client_stats stats;
    struct cairn_session_coverage *coverage; /* owned; NULL: not reported */
    struct cairn_session_unwatched unwatched;

    struct fetcher *fetcher; /* of the service that restores; NULL: none */
};

/* ---- actions of the core ---- */
void session_grant(struct cairn_agent *agent, const struct cairn_action_trainer *action);
void session_skip(struct cairn_agent *agent, const struct cairn_action_trainer *action);
void session_drop(struct cairn_agent *agent, struct cairn_generation_id generation);
void session_epoch(struct cairn_agent *agent, uint64_t epoch, bool restart);
/* Tells the trainers that end with this generation. */
void session_committed(struct cairn_agent *agent, struct cairn_generation_id generation);

/* ---- sending, and the end ---- */

/* Sends queued frames of a session. If the other end is gone, marks it as ending. */
void session_flush(struct cairn_agent *agent, struct session *session);

/* Queues a refusal; `request` 0 refuses the session itself, which then closes. */
void session_refuse(struct session *session, uint32_t request, cairn_err err, const char *text);

/*
 * Claims the rank that HELLO names for the session's process. One live process holds a rank of this
 * node, the first to register or to hand over rings of timing records; sessions of ended processes
 * are closed. Two launches of the job cannot share a node: each would take the other's ranks for
 * ever. CAIRN_AGAIN: another process holds it, as text[text_bytes] says.
 */
CAIRN_MUST_CHECK cairn_err session_claim_rank(struct cairn_agent *agent, struct session *session,
                                              char *text, size_t text_bytes);

/*
 * A node outside the epoch holds no ranks that could refuse a second launch. So its agent asks all
 * others who holds the rank of a registering trainer, which waits for a second at most. If a live
 * process of another launch holds it, the trainer is refused with CAIRN_AGAIN.
 */
void session_claim_elsewhere(struct cairn_agent *agent, struct session *session);
/* Not all agents have answered. */
bool session_claim_is_open(const struct cairn_agent *agent, const struct session *session);
/* Another agent's question or answer. False: another message. */
bool session_claim_message(struct cairn_agent *agent, const struct cairn_service_message *message);

/* Sends REGISTERED, and grants, to the trainers whose memory has been cut. A handler
 * (handlers.h). */
void sessions_answer(struct cairn_agent *agent);

/* Sends the grants that need not be held back any more. */
void session_release_grants(struct cairn_agent *agent);

/* Ends a session whose other end is still there: a trainer that may be copying is drained. */
void session_show_out(struct cairn_agent *agent, struct session *session);

/* Ends a session at once. */
void session_end(struct cairn_agent *agent, struct session *session);

/* Ends the sessions that are marked. A handler (handlers.h). */
void sessions_reap(struct cairn_agent *agent);

#endif
