/*
 * cairn/client.h - the calls of a trainer. One client per rank.
 *
 *   cairn_client_open             find the node's agent; training goes on without one
 *   cairn_client_register         declare this rank's tensors, in the order of the update
 *   cairn_client_report_coverage  tell `cairn status` what is not among them
 *   cairn_client_restore          after a failure: fill the registered tensors
 *   per step:
 *     ... forward, backward ...
 *     cairn_snapshot_fence(client, CAIRN_FENCE_ALL)   before the update overwrites captured bytes
 *                                                     (or one slice, before its tensor's update)
 *     ... optimizer update ...
 *     cairn_snapshot_begin(client, step)              after the update of `step`
 *   cairn_client_close            or cairn_client_abandon, if the process ends by an error,
 *                                 or cairn_client_close_at_exit, if only exit(3) will tell
 *
 * Every call here keeps these promises:
 *   - It never aborts the process and never prints. It reports through the caller's log callback.
 *   - It never blocks longer than its comment allows.
 *   - Without an agent, or when the agent dies, the client logs that once and every call returns
 *     quickly. The client attaches again by itself when an agent comes back.
 *
 * Structs that grow. A struct whose first field is `uint32_t struct_bytes` may get new fields at
 * its end in later versions of the library. The caller sets struct_bytes to the size that it was
 * compiled with, most easily by the struct's INIT macro:
 *
 *   struct cairn_client_options options = {CAIRN_CLIENT_OPTIONS_INIT, .rank = 3, .world = 8};
 *
 *   - Such structs have no padding, and every size is a multiple of 8.
 *   - The caller sets fields named `reserved` to 0. INIT does.
 *   - Older caller, newer library: fields that the caller's struct lacks have their defaults.
 *     Every default is 0.
 *   - Newer caller, older library: in a struct that the library reads, all fields that it does not
 *     know must be 0. In a struct that the library fills, it sets them to 0.
 *   - In an array every element has the same struct_bytes, which is also the distance between
 *     elements. That is what a C array of an initialised struct has.
 *   - If one of these rules is broken the call returns CAIRN_INVAL and changes nothing, and the log
 *     names the struct, the fault and the remedy.
 *
 * Types without struct_bytes never change: enum values keep their numbers, struct cairn_generation
 * is a value, struct cairn_timing_record a fixed format in shared memory.
 *
 * Threads: a client belongs to one trainer thread. Two threads may use two clients. In a forked
 * child every call on the parent's client returns CAIRN_INVAL and touches nothing, unless its
 * comment says otherwise.
 */
#ifndef CAIRN_CLIENT_H
#define CAIRN_CLIENT_H

#include "cairn/err.h"
#include "cairn/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The version of this header, "MAJOR.MINOR.PATCH". MAJOR is in the name libcairn.so.MAJOR and
 * changes when old callers stop working. MINOR grows with new functions and fields.
 */
#define CAIRN_LIBRARY_VERSION "1.5.0"
/* The version of the library that is loaded, in the same form. The string is static. Thread: any.
 */
const char *cairn_library_version(void);

struct cairn_client;

enum cairn_log_level {
    CAIRN_LOG_ERROR = 0,
    CAIRN_LOG_WARN = 1,
    CAIRN_LOG_INFO = 2,
    CAIRN_LOG_DEBUG = 3
};

/*
 * Receives one line without a newline; `line` is valid during the call. The trainer's thread and
 * the client's own threads call it, also at the same time.
 */
typedef void cairn_log_fn(void *context, enum cairn_log_level level, const char *line);

struct cairn_client_options {
    uint32_t struct_bytes;       /* sizeof(struct cairn_client_options) */
    uint32_t reserved;           /* 0 */
    const char *job;             /* name of the job; NULL: $CAIRN_JOB, else "default" */
    uint32_t rank;               /* global */
    uint32_t world;              /* number of ranks */
    uint32_t local_ranks;        /* number of ranks on this node; 0 means 1 */
    uint32_t fence_timeout_ms;   /* longest wait of a fence; 0 means 60,000 */
    uint32_t connect_timeout_ms; /* longest wait of open and register for the agent; 0 means
                                  * 5,000 */
    uint32_t restore_timeout_ms; /* longest wait of restore; 0 means 600,000 */
    cairn_log_fn *log;           /* NULL: silent */
    void *log_context;
    const char *agent_socket; /* path of the agent's socket; NULL: $CAIRN_AGENT; if that is not set
                               * either, there is no agent */
    uint64_t launch; /* the same number for all ranks of one start of the job, another one for other
                      * starts; 0: unknown. Ranks of two launches never take part in one
                      * snapshot. */
    uint32_t keeps_poisoned; /* 1: a generation is kept although a tensor that was finite is not any
                              * more, for trainers that save when they mean to; 0: `on_poison`
                              * decides. Since version 1.5 */
    uint32_t reserved_end;   /* 0 */
};

#define CAIRN_CLIENT_OPTIONS_INIT .struct_bytes = sizeof(struct cairn_client_options)

/* The result of a restore. Sizes in bytes. */
struct cairn_restored {
    uint32_t struct_bytes;              /* sizeof(struct cairn_restored), set by the caller */
    uint32_t reserved;                  /* 0 */
    struct cairn_generation generation; /* the restored one */
    uint64_t bytes;                     /* written to the registered tensors */
    uint64_t local_bytes;               /* part of `bytes`: read from this node's memory */
    uint64_t remote_bytes;              /* part of `bytes`: fetched from other nodes */
    uint64_t file_bytes;                /* part of `bytes`: read from a spilled generation */
};

#define CAIRN_RESTORED_INIT .struct_bytes = sizeof(struct cairn_restored)

/* Counters since open. All times in ns. */
struct cairn_client_stats {
    uint32_t struct_bytes; /* sizeof(struct cairn_client_stats), set by the caller */
    uint32_t attached;     /* 1 while an agent serves this client, else 0 */
    uint64_t snapshots_begun;
    uint64_t snapshots_captured; /* copied completely into the agent's memory */
    uint64_t snapshots_skipped;  /* no slot was free before the fence, or no agent */
    uint64_t snapshots_failed;   /* a copy failed or the fence timed out */
    uint64_t captured_bytes;
    uint64_t capture_ns; /* time that the capture thread spent copying */
    uint64_t fence_count;
    uint64_t fence_ns_total; /* time that training waited for Cairn */
    uint64_t fence_ns_p50;   /* over the last 1024 fences */
    uint64_t fence_ns_p99;
    uint64_t fence_ns_max;
    uint64_t epoch; /* the epoch that this client captures under; 0 without an agent */
    /* 1 while the agent may offer other shares (plan_policy: approve or enforce), else 0. Since
     * version 1.3 */
    uint64_t takes_offers;
};

#define CAIRN_CLIENT_STATS_INIT .struct_bytes = sizeof(struct cairn_client_stats)

enum { CAIRN_FENCE_ALL = 0xffffffffu };

/*
 * Opens a client and looks for the agent, for at most connect_timeout_ms. If no agent answers, the
 * call still succeeds: the client is detached and logs that once. `options` is borrowed for the
 * call, and its strings are copied. On success the caller owns *out and ends it with one of the
 * three close calls. Errors, with *out untouched:
 *   CAIRN_INVAL    rank >= world, a path too long for a socket, a job name too long, or a struct
 *                  of a wrong size; the log has the reason
 *   CAIRN_NOMEM
 *   CAIRN_DENIED   the agent refuses this user
 *   CAIRN_VERSION  the agent speaks another version of the protocol
 *   CAIRN_STALE    the agent serves a newer epoch: this trainer is left over from an earlier one
 */
CAIRN_MUST_CHECK cairn_err cairn_client_open(const struct cairn_client_options *options,
                                             struct cairn_client **out);

/*
 * Waits for a running copy (at most fence_timeout_ms), detaches and frees the client. NULL is
 * allowed. If a device hangs, the memory that it may still write to stays mapped and pinned until
 * the process ends. End the process in that case.
 */
void cairn_client_close(struct cairn_client *client);

/*
 * Like cairn_client_close, for a process that ends because something went wrong. The agent is not
 * told that the trainer leaves, as if the process had been killed. If the other ranks then wait for
 * this one, detection reports a crash.
 */
void cairn_client_abandon(struct cairn_client *client);

/*
 * Like cairn_client_close, for a process that is about to end with an exit status that it does not
 * know yet (as in an interpreter's exit handlers). The client is ended and freed on return; one
 * descriptor stays open. The agent keeps the session open until the process ends:
 *   - exit(3) with 0, or a return of 0 from main: the agent is told that the trainer leaves.
 *   - any other status, _exit(2) or a signal: the agent is told nothing.
 * If no agent is attached, or memory or descriptors are short, it acts like cairn_client_close.
 */
void cairn_client_close_at_exit(struct cairn_client *client);

/*
 * Declares the tensors of this rank and replaces the previous declaration. Call it once, and again
 * only when the tensors change. slices[count] is borrowed for the call, names are copied.
 *
 * Memory: the bytes at each `address` are read from a begin to the fence that ends it, and written
 * by a restore. They must be valid then.
 *
 * Order: slices are captured in this order. Use the order in which the update touches the tensors.
 *
 * Ownership of elements: every element of every tensor must be registered by exactly one rank, or
 * by replicas that number themselves. State that belongs to one rank alone needs its own name. If
 * this rule is broken no generation is committed, the logs of the agents and of the trainers name
 * the tensor, and training goes on.
 *
 * Waits for the agent at most connect_timeout_ms; without an agent it succeeds. Errors:
 *   CAIRN_INVAL    a slice is wrong (the log names its tensor), or has a wrong struct_bytes
 *   CAIRN_NOMEM    the agent's reserved memory is too small (the log has the needed sum), or
 *                  malloc failed; training may go on unprotected
 *   CAIRN_DEVICE   a device cannot be opened (the log has the reason); training may go on
 *   CAIRN_TIMEOUT  a copy of the previous tensors is still running; these stay registered
 *   CAIRN_AGAIN    a trainer of another launch of the job has this rank and lives (the log names
 *                  its process); registration is tried again each second in the background
 */
CAIRN_MUST_CHECK cairn_err cairn_client_register(struct cairn_client *client,
                                                 const struct cairn_slice *slices, uint32_t count);

/*
 * Fills the registered tensors from the generation that the agents hold ready: the one that the
 * last restore chose, or else the newest committed one. Its layout may differ from today's. Every
 * byte is checked against the checksum of its capture before this returns CAIRN_OK. Blocks at most
 * restore_timeout_ms. *out is written on success only.
 *
 * Errors that leave the tensors untouched:
 *   CAIRN_NOT_FOUND  there is nothing to restore: a fresh start
 *   CAIRN_INVAL      the generation lacks a registered tensor, or has another dtype or shape for
 *                    it (the log names the tensor); nothing is registered; or `out` has a wrong
 *                    struct_bytes
 *   CAIRN_AGAIN      a device's stream is being captured into a CUDA graph, or another restore of
 *                    the job is running
 * Errors after which the tensors may be half filled and must not be used; calling again is allowed:
 *   CAIRN_CORRUPT, CAIRN_PEER, CAIRN_TIMEOUT, CAIRN_DEVICE
 *
 * If a device hangs, the call returns at most one second after its time, and the memory that the
 * device may still read stays mapped and pinned. If the device recovers later it writes its last
 * copies into the tensors: synchronise it before you write or free them. The next restore waits for
 * that by itself.
 */
CAIRN_MUST_CHECK cairn_err cairn_client_restore(struct cairn_client *client,
                                                struct cairn_restored *out);

/*
 * Receives one whole tensor of a generation, as it was registered; shape[dims] is in elements.
 * `name` and `shape` are valid during the call.
 */
typedef void cairn_list_fn(void *context, const char *name, enum cairn_dtype dtype,
                           enum cairn_kind kind, uint32_t dims, const uint64_t *shape);

/*
 * Lists the tensors of the generation that cairn_client_restore would use. `each` is called once
 * per tensor, in no particular order, from the calling thread; it must not call the client. With
 * this a trainer can create tensors that do not exist yet (an optimizer's moments before its first
 * step), size opaque blobs, and report names or shapes that differ. Needs no registered tensors and
 * touches none. Blocks at most restore_timeout_ms. *out (NULL allowed) gets the generation's name.
 * CAIRN_NOT_FOUND: there is no generation; CAIRN_AGAIN: a restore of the job is running;
 * CAIRN_CORRUPT, CAIRN_PEER, CAIRN_TIMEOUT as in cairn_client_restore.
 */
CAIRN_MUST_CHECK cairn_err cairn_client_list(struct cairn_client *client, cairn_list_fn *each,
                                             void *context, struct cairn_generation *out);

/*
 * Begins a snapshot of the registered tensors as the state after update `step`; steps must grow.
 * Returns at once, and the capture thread copies while training goes on. No result should stop
 * training. CAIRN_OK: begun. CAIRN_AGAIN: the client is detached, or the previous snapshot has not
 * been fenced.
 *
 * Device tensors are captured as they are after the work that their device's stream
 * (cairn_client_set_stream) has been given by now; the call does not wait for that work. It also
 * returns CAIRN_AGAIN while that stream is being captured into a CUDA graph, and while a device
 * cannot be read. The client logs an unreadable device once and uses it again when it answers.
 */
cairn_err cairn_snapshot_begin(struct cairn_client *client, uint64_t step);

/*
 * Like cairn_snapshot_begin, but the generation cannot be committed before cairn_snapshot_confirm.
 * This is for a trainer that learns only later whether something else has written to the tensors.
 * There is at most one such snapshot: the next begin gives up an unconfirmed one.
 */
cairn_err cairn_snapshot_begin_held(struct cairn_client *client, uint64_t step);

/*
 * Like cairn_snapshot_begin_held, for the state that the training ends with. The agents take this
 * step even if snapshot_every_steps does not, and the snapshot waits until they can. All ranks must
 * end with the same step, and leave time for the grant before the fence. Since version 1.1.
 */
cairn_err cairn_snapshot_begin_last(struct cairn_client *client, uint64_t step);

/*
 * Waits until the snapshot of the last step is committed; call it after the confirmation. Blocks at
 * most timeout_ms, and returns at once when the commit cannot come any more. If the step is not
 * committed the log has a warning with the reason. Since version 1.1.
 *   CAIRN_OK         committed: it survives what the job's snapshots survive
 *   CAIRN_NOT_FOUND  the newest snapshot was not begun as the last one
 *   CAIRN_TIMEOUT    it may be committed later, if the agents have all of it
 *   other errors     it was not taken, or was given up
 */
cairn_err cairn_snapshot_await_commit(struct cairn_client *client, uint32_t timeout_ms);

/*
 * Ends the snapshot that cairn_snapshot_begin_held or _last began: commits it if `good`, else gives
 * it up and counts it as failed. Returns at once. CAIRN_OK; CAIRN_NOT_FOUND if there is no held
 * snapshot (none was due, it was skipped, or it failed).
 */
cairn_err cairn_snapshot_confirm(struct cairn_client *client, bool good);

/*
 * Rejects the state after update `step`: its generation must not become the newest good one, on
 * any rank, also with `on_poison: allow`. One rank's rejection is enough. `reason` is one line for
 * `cairn status`, borrowed for the call; NULL or "": none. Call it before the snapshot of that step
 * begins, while it is copied, or while it is held. Returns at once. CAIRN_OK; CAIRN_STALE: too
 * late, this rank's part has been reported as good or a later step has begun; CAIRN_INVAL: step 0.
 * Since version 1.5.
 */
cairn_err cairn_snapshot_reject(struct cairn_client *client, uint64_t step, const char *reason);

/*
 * True once the agent asks this trainer to stop: a generation of this rank was poisoned (it was
 * rejected, or a floating-point tensor that was finite holds an infinity or NaN) and `on_poison` is
 * `stop`. The state to go on from is that of the last good step. Never blocks for long. Since
 * version 1.5.
 */
bool cairn_client_stop_wanted(const struct cairn_client *client);

/*
 * Waits until the bytes of one registered slice (its index in the registered order), or of all of
 * them (CAIRN_FENCE_ALL), are captured and may be overwritten. Returns at once if no snapshot is
 * running. If the agent has had no free memory for the snapshot by now, the snapshot is given up
 * instead. Blocks at most fence_timeout_ms, then gives the snapshot up. Training may go on after
 * every result:
 *   CAIRN_OK                      captured, or nothing to wait for
 *   CAIRN_AGAIN                   given up, counted as skipped
 *   CAIRN_TIMEOUT, CAIRN_DEVICE   given up, counted as failed
 * Aliasing slices count as captured only together.
 */
cairn_err cairn_snapshot_fence(struct cairn_client *client, uint32_t slice_index);

/*
 * Returns how many of the registered slices, from the first, are captured and may be overwritten
 * now. CAIRN_FENCE_ALL: all of them, since the copy has read everything or no snapshot is running.
 * Fence every index at or beyond the result. A slice that was counted stays so until the next
 * begin. Never blocks and makes no system call, so it may be asked before every write. In a forked
 * child the result means nothing, and a fence does not wait.
 */
uint32_t cairn_snapshot_captured(const struct cairn_client *client);

/*
 * Sets the CUDA stream (a CUstream of `device`, an ordinal as in struct cairn_slice) of a device's
 * tensors: the next snapshots copy after the work that it holds, and the next restores write after
 * it. NULL, also before the first call, is the device's default stream. The stream must live until
 * another one is set, or until close. CAIRN_INVAL: device < 0; CAIRN_FULL: more devices than a node
 * has.
 */
cairn_err cairn_client_set_stream(struct cairn_client *client, int32_t device, void *stream);

/*
 * Shares: how many micro-batches of a step each replica computes. When a rank is slow, the agents
 * may offer other shares (plan_policy: approve or enforce); all ranks together decide whether they
 * take them.
 * At each step boundary every rank calls
 *   vote = cairn_placement_vote(client, number, replicas, shares);
 *   agreed = all ranks' votes, reduced by cairn_placement_agree in any order;
 *   cairn_placement_share(client, agreed, &number, replicas, shares);
 * `number` is 0 at the start, with the shares that the job begins with. All ranks must give the
 * same. Agents that die, or offers that only some ranks have, leave the shares as they are.
 */
enum { CAIRN_REPLICAS_MAX = 1024 };

/*
 * Returns this rank's vote: a name of the newest shares that it is ready for, or else of those that
 * it computes by now; never 0. shares[replicas] is borrowed for the call. Returns 0 for bad
 * arguments, which leaves everything as it is. Never blocks, and makes no system call but to wake
 * the client's thread when the shares have changed. Since version 1.2.
 */
uint64_t cairn_placement_vote(struct cairn_client *client, uint64_t number, uint32_t replicas,
                              const uint32_t *shares);

/* Joins two votes: both, if they are equal, else none (0). Commutative and associative. */
static inline uint64_t
cairn_placement_agree(uint64_t left, uint64_t right)
{
    return left == right ? left : 0;
}

/*
 * Takes the ranks' decision: true if all have agreed on the shares that were offered to this rank,
 * and then *number and shares[replicas] are the new ones, for the next step. Every share is at
 * least 1, and their sum never changes. False: nothing has changed. Since version 1.2.
 */
bool cairn_placement_share(struct cairn_client *client, uint64_t agreed, uint64_t *number,
                           uint32_t replicas, uint32_t *shares);

/*
 * Placements: shares, and how many layers each stage of each replica has. For trainers that can
 * move layers while they run. At each step boundary, after the update:
 *   vote = cairn_placement_vote_layers(client, number, replicas, shares, stages, layers);
 *   agreed = all ranks' votes, joined as above;
 *   cairn_placement_take(client, agreed, &next_number, replicas, next_shares, stages, next_layers)
 *     TAKEN   the next step is computed by these shares; layers are where they were
 *     ENTER   layers have to move, see below
 *     else    nothing has changed
 * After ENTER, no rank computes a step before this is over:
 *   cairn_snapshot_begin_last(client, step), cairn_snapshot_confirm(client, true)
 *   memory for the tensors of the new placement, beside the present tensors
 *   cairn_placement_fill(client, step, their slices, …)
 *   vote again, with the present placement's arguments; agreed again; take again
 *     TAKEN   every rank has filled well: compute by the new tensors, and free the present tensors
 *     ABANDONED   register the present tensors again, go on with them, and free the new tensors
 * Until TAKEN the present tensors must be neither freed nor written: if a rank fails before, they
 * are what training goes on with.
 */
enum { CAIRN_STAGES_MAX = 1024 }; /* of all replicas together */

enum cairn_placement_change {
    CAIRN_PLACEMENT_SAME = 0,
    CAIRN_PLACEMENT_TAKEN = 1,
    CAIRN_PLACEMENT_ENTER = 2,
    CAIRN_PLACEMENT_ABANDONED = 3
};

/* Like cairn_placement_vote, with layers[replicas][stages]. replicas * stages is at most
 * CAIRN_STAGES_MAX. stages 0: this trainer cannot move layers. Since version 1.3. */
uint64_t cairn_placement_vote_layers(struct cairn_client *client, uint64_t number,
                                     uint32_t replicas, const uint32_t *shares, uint32_t stages,
                                     const uint32_t *layers);

/* Takes the ranks' decision. *number, shares[replicas] and layers[replicas][stages] are written for
 * TAKEN and ENTER. Each replica's layers always have the same sum. Since version 1.3. */
enum cairn_placement_change cairn_placement_take(struct cairn_client *client, uint64_t agreed,
                                                 uint64_t *number, uint32_t replicas,
                                                 uint32_t *shares, uint32_t stages,
                                                 uint32_t *layers);

/*
 * Waits for the commit of `step`, and fills slices[count]: what the present tensors have in host
 * memory from there, the rest from that generation as cairn_client_restore does, each byte checked.
 * Then registers the slices instead of the present tensors. Blocks at most timeout_ms, and
 * connect_timeout_ms more if the agent does not answer. Every error makes this rank's next vote one
 * for the present placement; the new tensors may be half filled then.
 * CAIRN_STALE: the agents hold another generation ready than that of `step`. Other errors as
 * cairn_snapshot_await_commit, cairn_client_register and cairn_client_restore. Since version 1.3.
 */
CAIRN_MUST_CHECK cairn_err cairn_placement_fill(struct cairn_client *client, uint64_t step,
                                                const struct cairn_slice *slices, uint32_t count,
                                                uint32_t timeout_ms, struct cairn_restored *out);

/*
 * Assigns the sequences of one step to replicas and to micro-batches: sequence i, of tokens[i]
 * tokens, to micro-batch microbatch_of[i] of replica replica_of[i]. Each replica numbers its
 * micro-batches from 0, without gaps, and none holds more than cap_tokens. A replica computes
 * shares[replica] times as fast as one with a share of 1, and a sequence of s tokens costs
 * cost[0] s^2 + cost[1] s + cost[2]: the replica that takes longest is made to take as little as
 * possible. A replica may get no sequence. The arrays tokens[count], shares[replicas], cost[3],
 * replica_of[count] and microbatch_of[count] are borrowed for the call.
 *
 * The result depends on the arguments alone: ranks that run the same library on processors of one
 * architecture get the same without asking each other. The sequences are assigned by the planner
 * (replan/assign/assign.h; LPT: Graham 1969, and MULTIFIT: Coffman, Garey, Johnson 1978, both on
 * machines of different speed) and packed as replan/assign/pack.h says.
 *
 * Needs no client. Thread: any. Allocates, and blocks for milliseconds.
 * CAIRN_INVAL: no sequences or replicas; more than 1,000,000 or CAIRN_REPLICAS_MAX, or more than
 * 65,536 sequences in one replica; a share of 0; a length of 0 or above cap_tokens; a cost below 0,
 * of nothing, or beyond what a double holds. CAIRN_NOMEM. Since version 1.4.
 */
CAIRN_MUST_CHECK cairn_err cairn_sequences_assign(const uint64_t *tokens, uint32_t count,
                                                  const uint32_t *shares, uint32_t replicas,
                                                  uint64_t cap_tokens, const double cost[3],
                                                  uint32_t *replica_of, uint32_t *microbatch_of);

/* A part of the job that no snapshot of this rank holds. */
struct cairn_uncovered {
    uint32_t struct_bytes; /* sizeof(struct cairn_uncovered) */
    enum cairn_kind kind;
    const char *name;   /* of the tensor, or of the other state; UTF-8, < CAIRN_NAME_BYTES_MAX */
    const char *reason; /* one line, UTF-8, < CAIRN_REASON_BYTES_MAX */
};

#define CAIRN_UNCOVERED_INIT .struct_bytes = sizeof(struct cairn_uncovered)

enum {
    CAIRN_REASON_BYTES_MAX = 256, /* of a reason, with its terminating NUL */
    CAIRN_UNCOVERED_MAX = 32      /* items that the agent is told one by one */
};

/*
 * Tells the agent, for `cairn status`, what this rank does not cover, and replaces the previous
 * report. items[count] may be empty: everything is covered, as far as this rank knows. `refusal` is
 * why this rank takes no snapshots at all; NULL or "" if it takes them. All arguments are borrowed
 * for the call. Longer texts are cut, and control characters become "?". If there are more than
 * CAIRN_UNCOVERED_MAX items, parameters and optimizer state go first and the rest is counted.
 * Needs no registered tensors and returns at once. Without an agent, the next one is told.
 * CAIRN_OK; CAIRN_INVAL for an unknown kind or a wrong struct_bytes; CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_client_report_coverage(struct cairn_client *client,
                                                        const char *refusal,
                                                        const struct cairn_uncovered *items,
                                                        uint32_t count);

/*
 * Reads the counters into *out. Never blocks. CAIRN_OK; CAIRN_INVAL, with *out untouched, for a
 * wrong struct_bytes and in a forked child.
 */
CAIRN_MUST_CHECK cairn_err cairn_client_stats_read(const struct cairn_client *client,
                                                   struct cairn_client_stats *out);

#ifdef __cplusplus
}
#endif
#endif
