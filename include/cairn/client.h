/*
 * cairn/client.h - what a trainer calls. One client per rank.
 *
 *   cairn_client_open        find the agent (or not: training goes on without)
 *   cairn_client_register    the rank's tensors, in the order in which the update touches them
 *   cairn_client_report_coverage  what of the job is not among them, for `cairn status`
 *   cairn_client_restore     after a failure: fill the registered tensors
 *   per step:
 *     … forward, backward …
 *     cairn_snapshot_fence(client, CAIRN_FENCE_ALL)   before the update overwrites what is captured
 *                                                     (or of one tensor before each is updated)
 *     … optimizer update …
 *     cairn_snapshot_begin(client, step)              after the update of `step`
 *   cairn_client_close       or cairn_client_abandon, where the process ends by an error,
 *                            or cairn_client_close_at_exit, where its exit status will tell
 *
 * Promises of every call here: it never aborts the process, never prints (it reports through the
 * caller's log callback), and never blocks longer than its comment says. Without an agent, or when
 * the agent dies, the client says so once through the log callback, every call returns quickly, and
 * it attaches again by itself when an agent comes back.
 *
 * Threads: a client belongs to one trainer thread; two clients may be used by two threads.
 */
#ifndef CAIRN_CLIENT_H
#define CAIRN_CLIENT_H

#include "cairn/err.h"
#include "cairn/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cairn_client;

enum cairn_log_level {
    CAIRN_LOG_ERROR = 0,
    CAIRN_LOG_WARN = 1,
    CAIRN_LOG_INFO = 2,
    CAIRN_LOG_DEBUG = 3
};

/* Receives one line without a newline. Called from the trainer's thread and the client's own ones,
 * one call at a time or not. */
typedef void cairn_log_fn(void *context, enum cairn_log_level level, const char *line);

struct cairn_client_options {
    const char *agent_socket;    /* path of the node's agent; NULL: $CAIRN_AGENT, and without it
                                   * none */
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
};

/* What the last restore did. */
struct cairn_restored {
    struct cairn_generation generation; /* what came back */
    uint64_t bytes;                     /* put into the registered tensors */
    uint64_t local_bytes;               /* of those, read from this node's own memory */
    uint64_t remote_bytes;              /* of those, fetched from other nodes */
    uint64_t file_bytes;                /* of those, read from a spilled generation */
};

/* Counters since open. All times in ns. */
struct cairn_client_stats {
    uint64_t snapshots_begun;
    uint64_t snapshots_captured; /* fully copied into the agent's memory */
    uint64_t snapshots_skipped;  /* no slot was free before the fence, or no agent */
    uint64_t snapshots_failed;   /* a copy failed or the fence timed out */
    uint64_t captured_bytes;
    uint64_t capture_ns; /* time the capture thread spent copying */
    uint64_t fence_count;
    uint64_t fence_ns_total; /* what training waited for Cairn */
    uint64_t fence_ns_p50;   /* over the last 1024 fences */
    uint64_t fence_ns_p99;
    uint64_t fence_ns_max;
    uint64_t epoch;    /* the epoch this client captures under; 0 without an agent */
    uint32_t attached; /* 1 while an agent serves this client */
    uint32_t reserved;
};

enum { CAIRN_FENCE_ALL = 0xffffffffu };

/*
 * Opens a client and looks for the agent, for at most connect_timeout_ms. Without an agent it still
 * succeeds: the client is detached and says so once. `options` is borrowed for the call, strings
 * are copied. CAIRN_INVAL for rank >= world or a path too long for a socket; CAIRN_NOMEM;
 * CAIRN_DENIED if the agent refuses this user; CAIRN_VERSION if it speaks another version;
 * CAIRN_STALE if it serves a newer epoch and this trainer is a left-over. On success the caller
 * owns *out and ends it with cairn_client_close.
 */
CAIRN_MUST_CHECK cairn_err cairn_client_open(const struct cairn_client_options *options,
                                             struct cairn_client **out);

/*
 * Waits for a running copy (at most fence_timeout_ms), detaches, frees. NULL is allowed. Where a
 * device hangs, what it may still write to stays mapped and pinned until the process ends, which it
 * should.
 */
void cairn_client_close(struct cairn_client *client);

/*
 * The same, for a process that ends because something went wrong: the agent is told nothing, as
 * where a process is killed. Where the others wait for this rank from then on, detection calls that
 * a crash.
 */
void cairn_client_abandon(struct cairn_client *client);

/*
 * The same, for a process that is about to end and does not know yet with which exit status (an
 * interpreter's exit handlers do not): the agent takes the session for open until then, and is told
 * that the trainer leaves where exit(3) is called with 0, or main returns it. With any other
 * status, after _exit(2) and after a signal it is told nothing. The client is ended and freed on
 * return; one descriptor stays. Where that cannot be kept it is as cairn_client_close.
 */
void cairn_client_close_at_exit(struct cairn_client *client);

/*
 * Declares the tensors of this rank, replacing what was declared before; call it once, and again
 * only when they change. slices[count] is borrowed for the call. The memory at each `address` is
 * read from a begin to the fence that ends it, and written by a restore: it must be valid then. The
 * order is the order of capture, and should be that in which the update touches them. Checks every
 * slice (CAIRN_INVAL, with the name in the log). Every element of every tensor must be registered
 * by exactly one rank, or by replicas that number themselves; what a rank has for itself needs a
 * name of its own. Where that is not so no generation is committed, the log of the agents and of
 * the trainers says of which tensor, and training goes on. CAIRN_NOMEM when the agent's reserved
 * memory is too small: the log says the sum, and training may go on unprotected; CAIRN_DEVICE when
 * a device cannot be opened: the log says why, and the same. Waits for the agent at most
 * connect_timeout_ms; detached it succeeds.
 */
CAIRN_MUST_CHECK cairn_err cairn_client_register(struct cairn_client *client,
                                                 const struct cairn_slice *slices, uint32_t count);

/*
 * Fills the registered tensors from the generation that the agents hold ready (the one chosen by
 * the last restore, or by default the newest committed one), whatever layout it was captured in.
 * Every byte is checked against the checksum taken at capture before this returns CAIRN_OK. Blocks
 * at most restore_timeout_ms. CAIRN_NOT_FOUND: nothing to restore (a fresh start), tensors
 * untouched. CAIRN_INVAL: the generation lacks a tensor that is registered, or its dtype or shape
 * differ; the log names it; tensors untouched. CAIRN_AGAIN: a device's stream is captured into a
 * CUDA graph, or a restore of the job is under way; tensors untouched. CAIRN_CORRUPT, CAIRN_PEER,
 * CAIRN_TIMEOUT, CAIRN_DEVICE: tensors may be half filled and must not be used; calling again is
 * allowed. Where a device hangs this returns a second later at most, and what the device may still
 * read stays mapped and pinned. Should it go on later, it writes its last copies into the tensors:
 * synchronise the device before they are written or freed. The next restore waits for that by
 * itself.
 */
CAIRN_MUST_CHECK cairn_err cairn_client_restore(struct cairn_client *client,
                                                struct cairn_restored *out);

/* One tensor of a generation, whole, as it was registered. `name` lives as long as the call that
 * brings it. */
typedef void cairn_list_fn(void *context, const char *name, enum cairn_dtype dtype,
                           enum cairn_kind kind, uint32_t dims, const uint64_t *shape);

/*
 * Says what cairn_client_restore would fill tensors from: `each` is called once per tensor of the
 * generation, in no particular order, from the calling thread, and must not call the client. So a
 * trainer can make the tensors that do not exist yet (an optimizer's moments before its first
 * step), learn the sizes of opaque blobs, and say which names or shapes differ. Nothing needs to be
 * registered, and no tensor is touched. Blocks at most restore_timeout_ms. *out (may be NULL) gets
 * the generation's name. CAIRN_NOT_FOUND: there is none; CAIRN_AGAIN: a restore of the job is under
 * way; CAIRN_CORRUPT, CAIRN_PEER, CAIRN_TIMEOUT as cairn_client_restore.
 */
CAIRN_MUST_CHECK cairn_err cairn_client_list(struct cairn_client *client, cairn_list_fn *each,
                                             void *context, struct cairn_generation *out);

/*
 * Begins a snapshot of the registered tensors as the state after update `step` (steps grow).
 * Returns at once; the capture thread copies while training goes on. CAIRN_OK when begun;
 * CAIRN_AGAIN when detached or the previous one has not been fenced. Never an error that should
 * stop training. Device tensors are captured as they are after the work that their device's stream
 * (cairn_client_set_stream) has been given by now; nothing waits for that work here. CAIRN_AGAIN
 * also while that stream is captured into a CUDA graph, and while a device cannot be read, which is
 * said once and ends by itself when the device answers again.
 */
cairn_err cairn_snapshot_begin(struct cairn_client *client, uint64_t step);

/*
 * The same, but the generation cannot be committed before cairn_snapshot_confirm: for a trainer
 * that learns only later whether something has written to the tensors meanwhile. It holds no more
 * than one such snapshot: the next begin gives up one that is neither confirmed nor refused.
 */
cairn_err cairn_snapshot_begin_held(struct cairn_client *client, uint64_t step);

/*
 * Ends what cairn_snapshot_begin_held began: it was `good`, or is given up and counted as failed.
 * Returns at once. CAIRN_OK; CAIRN_NOT_FOUND when no held snapshot is asked for, being copied or
 * copied: none was due, it was skipped, or it failed.
 */
cairn_err cairn_snapshot_confirm(struct cairn_client *client, bool good);

/*
 * Waits until the bytes of one registered slice (its index in the registered order), or of all of
 * them (CAIRN_FENCE_ALL), are captured, so that they may be overwritten. Returns at once when no
 * snapshot is being taken. A snapshot that the agent had no free memory for by now is given up
 * instead of waited for. Blocks at most fence_timeout_ms, then gives the snapshot up. CAIRN_OK:
 * captured, or nothing to wait for; CAIRN_AGAIN: given up, skipped; CAIRN_TIMEOUT, CAIRN_DEVICE:
 * given up, failed. Training may go on after every one of them. Of slices that share memory each is
 * captured when the last of them is.
 */
cairn_err cairn_snapshot_fence(struct cairn_client *client, uint32_t slice_index);

/*
 * How many of the registered slices, counted from the first, may be overwritten now: their bytes
 * are captured. CAIRN_FENCE_ALL: all of them, as the copy has read everything or no snapshot is
 * being taken. Never blocks and makes no system call, so it may be asked before every write; what
 * it does not count is to be fenced. What it counts stays counted until the next begin. In a forked
 * child it means nothing, and a fence does not wait.
 */
uint32_t cairn_snapshot_captured(const struct cairn_client *client);

/*
 * Device tensors: the CUDA stream (a CUstream of `device`, an ordinal as in struct cairn_slice)
 * after whose work the next snapshots may start to copy, and the next restores to write. NULL, and
 * what was never set, is the device's default stream. The stream must live until another is set, or
 * close. CAIRN_INVAL: device < 0; CAIRN_FULL: more devices than a node has.
 */
cairn_err cairn_client_set_stream(struct cairn_client *client, int32_t device, void *stream);

/* Something of the job that no snapshot of this rank holds. */
struct cairn_uncovered {
    enum cairn_kind kind;
    const char *name;   /* a tensor's, or of what else it is; UTF-8, < CAIRN_NAME_BYTES_MAX */
    const char *reason; /* one line, UTF-8, < CAIRN_REASON_BYTES_MAX */
};

enum {
    CAIRN_REASON_BYTES_MAX = 256, /* of a reason, its terminating NUL included */
    CAIRN_UNCOVERED_MAX = 32      /* things that the agent is told of one by one */
};

/*
 * Tells the agent, for `cairn status`, what of the job this rank does not cover, replacing what was
 * told before: items[count], which may be 0, that everything is covered as far as this rank knows.
 * `refusal` is why it takes no snapshots at all; NULL or "" where it does. Everything is borrowed
 * for the call. Longer texts are cut, and characters that a terminal would obey are replaced by
 * "?". Of more than CAIRN_UNCOVERED_MAX things parameters and optimizer state are told first, and
 * of the rest how many there are. Needs nothing to be registered and returns at once; without an
 * agent it is told to the one that comes. CAIRN_OK; CAIRN_INVAL for an unknown kind; CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_client_report_coverage(struct cairn_client *client,
                                                        const char *refusal,
                                                        const struct cairn_uncovered *items,
                                                        uint32_t count);

/* Reads the counters. Never blocks. */
void cairn_client_stats_read(const struct cairn_client *client, struct cairn_client_stats *out);

#ifdef __cplusplus
}
#endif
#endif
