/*
 * client/state.h - what the files of the trainer's side share: struct cairn_client and its parts.
 *
 * Private to client/. Three threads meet here. The trainer's thread calls the functions of
 * client.h. The service thread (service.c) owns the socket, the reader, the mapped slots and the
 * capture engine: only it starts and cancels captures. The engine's own thread calls the two
 * callbacks of snapshot.c. `lock` guards everything that more than one of them touches; it is never
 * held over anything slow: no copy, no map, no log callback. Waits are on `changed`; `wake`
 * interrupts the poll of the service thread.
 *
 * A snapshot: NONE → ASKED (cairn_snapshot_begin) → COPYING (GRANT) → ENDED (the copy ended)
 *                      ASKED → ENDED (SKIP, the fence came first, the agent went away)
 *              ENDED → NONE (a fence of all) or ASKED (the next begin)
 * The report to the agent may lag behind: pieces, then DONE or CANCEL. BEGIN of the next snapshot
 * waits until the report of the one before is queued.
 */
#ifndef CAIRN_CLIENT_STATE_H
#define CAIRN_CLIENT_STATE_H

#include "cairn/client.h"
#include "base/limits.h"
#include "client/placement.h"
#include "client/session.h"
#include "snapshot/capture.h"
#include "snapshot/manifest.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum {
    CLIENT_FENCES_KEPT = 1024, /* for the percentiles */
    CLIENT_QUEUE_BYTES = 256 << 10,
    CLIENT_WINDOW_PARTS = 4, /* of a restore's window that may be in flight at once */
    CLIENT_PATH_BYTES = 108  /* of a socket's path, its NUL included */
};

/* What is registered. Replaced as a whole by the trainer's thread, while no capture runs. */
struct client_tensors {
    struct cairn_slice *slices; /* [count], names in `names` */
    struct cairn_manifest_entry *entries;
    struct cairn_capture_run *runs; /* of the entries that are not empty */
    uint64_t *ends; /* [count] region byte up to which each slice's memory is read, also for slices
                     * that share it; 0: it is not */
    uint64_t *reaches; /* [count] the largest end of the slices up to this one */
    uint64_t *crcs;    /* [block_count] of the running capture */
    char *names;
    uint8_t *known;       /* [count] enum client_known */
    uint32_t *run_slices; /* [run_count] the slice of each run */
    atomic_bool *failing; /* [run_count] of the running capture: holds what is not finite */
    int32_t devices[CAIRN_RANKS_PER_NODE_MAX]; /* that the runs name, each once */
    uint32_t device_count;
    uint32_t count;
    uint32_t run_count;
    uint64_t region_bytes;
    uint64_t share_bytes; /* the region without its padding */
    uint64_t block_count;
};

/* What is known of a slice's values. Only a finite slice can become poisoned: a mask may hold
 * infinities from the start. */
enum client_known {
    CLIENT_KNOWN_NOT = 0, /* neither captured nor restored yet */
    CLIENT_KNOWN_FINITE,
    CLIENT_KNOWN_FAILING /* it was not finite when it was first captured, or restored */
};

enum client_link {
    CLIENT_LINK_NONE,     /* no path: there never is an agent */
    CLIENT_LINK_WAITING,  /* until retry_at_ns */
    CLIENT_LINK_GREETING, /* HELLO is sent */
    CLIENT_LINK_ATTACHED,
    CLIENT_LINK_CLOSED /* a newer epoch exists: never again */
};

enum client_registration {
    CLIENT_REGISTER_NONE,   /* nothing registered, or not attached */
    CLIENT_REGISTER_WANTED, /* to be sent */
    CLIENT_REGISTER_SENT,
    CLIENT_REGISTER_DONE,  /* slots are mapped */
    CLIENT_REGISTER_FAILED /* registration_err */
};

/* What the copies of a device wait for. The trainer's thread's own. */
struct client_stream {
    int32_t device;
    void *stream;
};

/* A slot of the agent's memory, owned by the service thread; fd is read under the lock by a
 * restore. */
struct client_slot {
    int fd;    /* -1: none */
    void *map; /* NULL: the region is empty, or the file has no pages yet */
    size_t map_bytes;
    uint8_t *region; /* this rank's, inside the map */
    bool is_written; /* a capture has been let into it since it was mapped */
};

enum client_snapshot_state {
    CLIENT_SNAPSHOT_NONE,
    CLIENT_SNAPSHOT_ASKED,
    CLIENT_SNAPSHOT_COPYING,
    CLIENT_SNAPSHOT_ENDED
};

struct client_snapshot {
    _Atomic(enum client_snapshot_state) state; /* read without the lock by what never waits */
    uint64_t step;
    cairn_err result;     /* when ENDED */
    cairn_err stop_err;   /* why the copy must be cancelled; CAIRN_OK: it must not */
    uint32_t stop_reason; /* enum cairn_session_reason */
    bool begin_wanted;    /* BEGIN is not queued yet */
    bool held;            /* its end is not said before it is confirmed */
    bool last;            /* no step follows */
    bool committed;       /* the agent said so: of the last step only */
};

struct client_report {
    bool active;
    bool ended;
    bool held; /* no DONE before the trainer confirms */
    struct cairn_generation_id generation;
    uint64_t ready_blocks; /* their checksums are in tensors->crcs */
    uint64_t sent_blocks;
    cairn_err result;
    uint32_t reason;      /* of a CANCEL */
    uint32_t poisoned;    /* slices that were finite and hold values that are not; 0: none */
    uint32_t first_slice; /* of these */
    bool rejected;        /* by the trainer: client->rejection.reason */
};

/* What the trainer has rejected last. */
struct client_rejection {
    uint64_t step;                       /* to be reported as rejected; 0: none */
    char reason[CAIRN_REASON_BYTES_MAX]; /* plain */
};

/* The rings of timing records that the agent of this connection has. */
struct client_rings {
    uint64_t inodes[CAIRN_SESSION_RINGS_MAX];
    uint32_t count;
    uint64_t look_at_ns, look_ns; /* when to look for more, and how long after the last look */
};

/* What a device that hung still reads of an abandoned restore, and writes into its tensors. */
struct client_hung {
    struct client_sink *sink; /* NULL: there is none */
    uint8_t *window, *own;    /* NULL: not mapped */
    size_t window_map_bytes, own_map_bytes;
};

/* What the service thread hands to a waiting restore. */
struct client_mail {
    bool wanted;
    uint32_t request;
    cairn_err err;    /* CAIRN_PEER: the connection ended */
    uint8_t *payload; /* of RESTORE_INFO, NULL until it came; owned */
    size_t payload_bytes;
    int window_fd;                        /* -1: none; owned */
    int own_slot_fd;                      /* a duplicate, -1: none; owned */
    uint64_t region_offset, region_bytes; /* of this rank's region there */
    struct {
        uint32_t request;
        bool answered;
        cairn_err err;
        char text[CAIRN_SESSION_TEXT_BYTES];
    } fetches[CLIENT_WINDOW_PARTS];
};

struct cairn_client {
    /* set by open, then constant */
    pid_t pid;
    char path[CLIENT_PATH_BYTES];
    char job[CAIRN_SESSION_JOB_BYTES];
    uint32_t rank, world, local_ranks;
    uint64_t launch; /* of the job; 0: unknown */
    bool keeps_poisoned;
    uint64_t fence_timeout_ns, connect_timeout_ns, restore_timeout_ns;
    cairn_log_fn *log;
    void *log_context;
    pthread_t service;
    int wake;
    struct cairn_capture *capture; /* the service thread's, but for cairn_capture_order */

    /* the trainer's thread's */
    struct client_stream streams[CAIRN_RANKS_PER_NODE_MAX];
    uint32_t stream_count;
    struct client_hung hung;

    /* the service thread's */
    struct cairn_session_reader reader;
    struct client_slot slots[CAIRN_SESSION_FDS_MAX];
    uint64_t region_offset; /* in each slot */
    uint64_t retry_at_ns, retry_ns, greet_until_ns, stats_at_ns;
    bool said_detached;
    struct client_rings rings;

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool wake_sent;
    bool stop;
    int socket;
    struct cairn_session_writer writer;
    bool broken; /* a frame could not be queued: detach */
    enum client_link link;
    cairn_err refusal;
    uint64_t epoch;
    struct client_tensors *tensors;
    enum client_registration registration; /* DONE: slots[slot_count] are mapped */
    cairn_err registration_err;
    uint32_t register_request;
    uint64_t register_at_ns; /* not before; 0: at once. Another launch has the rank. */
    uint32_t slot_count;
    struct client_slot left[CAIRN_SESSION_FDS_MAX]; /* still mapped; the service thread's */
    uint32_t left_count;
    struct client_snapshot snapshot;
    struct client_report report;
    bool engine_busy;           /* from GRANT to the end of the copy */
    atomic_bool engine_started; /* the watermark is that of the running copy, and no longer the one
                                   before */
    uint64_t capture_start_ns;
    char
        skip_text[CAIRN_SESSION_TEXT_BYTES]; /* why the agent skipped a step that was due, newest */
    bool said_silent;                        /* that the agent does not answer */
    bool said_refused;           /* that the agent will not protect this trainer; said once per
                        * registration */
    bool device_failed;          /* the service thread opens the devices again … */
    uint64_t device_retry_at_ns; /* … from here on */
    uint64_t device_retry_ns;
    atomic_bool devices_are_silent; /* what their failures say is known by now */
    struct client_mail mail;
    uint32_t next_request;
    struct client_rejection rejection;
    bool takes_poison;                       /* the agent understands POISON */
    bool unwatched_wanted;                   /* UNWATCHED must be sent */
    bool said_poisoned;                      /* since the last snapshot that was not */
    bool stop_wanted;                        /* the agent asks the trainer to stop */
    struct cairn_session_coverage *coverage; /* NULL: nothing was told */
    bool coverage_wanted;                    /* must be sent */
    bool leave_wanted;                       /* it closes, and must tell the agent */
    struct client_placement placement;
    uint64_t entered_ns; /* when the last move of layers began */
    struct cairn_session_moved moved;
    bool takes_moves, moved_wanted;
    bool takes_offers;  /* the agent may offer other shares */
    bool shares_wanted; /* SHARES must be sent */
    struct cairn_client_stats stats;
    uint64_t fences_ns[CLIENT_FENCES_KEPT];
    struct cairn_session_piece piece; /* room to build one */
};

/* state.c */
uint64_t client_now_ns(void);
/* This rank's share of the cores that the process may use; 1 or more. */
uint32_t client_core_share(const struct cairn_client *client);
bool client_refusal_is_final(cairn_err refusal);
/* False in a forked child, and for NULL: the call returns CAIRN_INVAL. */
bool client_usable(const struct cairn_client *client);
void client_say(const struct cairn_client *client, enum cairn_log_level level, const char *format,
                ...) __attribute__((format(printf, 3, 4)));
/* Interrupts the poll of the service thread. Lock held. */
void client_wake(struct cairn_client *client);
/* Waits for a change until deadline_ns; false when that is over. Lock held. */
bool client_wait(struct cairn_client *client, uint64_t deadline_ns);
/* Waits until no capture reads the tensors any more; false when the deadline is over. Lock held. */
bool client_wait_idle(struct cairn_client *client, uint64_t deadline_ns);
/* Copies the counters. Takes the lock. */
void client_stats_copy(struct cairn_client *client, struct cairn_client_stats *out);

/* attach.c */
void client_tensors_free(struct client_tensors *tensors);
/* Checks and copies the description of slices[count]. Errors as cairn_client_register. */
CAIRN_MUST_CHECK cairn_err client_tensors_create(const struct cairn_client *client,
                                                 const struct cairn_slice *slices, uint32_t count,
                                                 struct client_tensors **out);
/* As cairn_client_register; takes the tensors over. */
CAIRN_MUST_CHECK cairn_err client_tensors_register(struct cairn_client *client,
                                                   struct client_tensors *tensors);
/* Maps what REGISTERED brought; takes descriptors over from the frame. Service thread, lock not
 * held. */
cairn_err client_slots_map(struct cairn_client *client,
                           const struct cairn_session_registered *value,
                           struct cairn_session_frame *frame);
void client_slots_unmap(struct cairn_client *client);
/*
 * The same, but leaves the unmapping for client_slots_unmap_left: it takes 15 ms per GiB of small
 * pages, and the trainer may stand still between two placements. Service thread, lock not held.
 */
void client_slots_leave(struct cairn_client *client);
void client_slots_unmap_left(struct cairn_client *client);
/*
 * Maps a slot that had no pages at registration, since it held a generation of another arrangement
 * of ranks. Nothing if it is mapped. Service thread, lock not held, no copy running.
 */
cairn_err client_slot_open(struct cairn_client *client, uint32_t slot);
/* Has the engine map a slot that no capture was let into yet, if it has its pages. Service thread,
 * lock not held. */
void client_slots_map_next(struct cairn_client *client);
/*
 * The page size of a file, also for huge pages (st_blksize). A mapping of huge pages is unmapped,
 * and kept from a fork, in whole pages: its length must be a multiple. Thread: any.
 */
uint64_t client_page_bytes(int fd);

/* device.c */
/* The stream of a device, NULL: its default one. The trainer's thread. */
void *client_stream_of(const struct cairn_client *client, int32_t device);
/* Has the next copies wait for the work that the devices' streams have by now. The trainer's
 * thread, tensors registered, no copy running, lock not held. Errors of cairn_capture_order. */
cairn_err client_devices_order(struct cairn_client *client);
/* A device has failed: no snapshots before it is opened again. True: the caller logs it. Lock
 * held. */
bool client_devices_fail(struct cairn_client *client);
void client_devices_say_failed(const struct cairn_client *client); /* lock not held */
/* A snapshot was copied. True: of a device that had failed. Lock held. */
bool client_devices_work(struct cairn_client *client);
/* Opens them again when due and no copy runs. Service thread, lock not held. */
void client_devices_retry(struct cairn_client *client);

/* rings.c. Both in the service thread, lock not held. */
/* Queues a TIMING for each ring that the agent does not have, when it is time to look again.
 * Attached. */
void client_rings_look(struct cairn_client *client, uint64_t now_ns);
/* The connection has ended. */
void client_rings_forget(struct cairn_client *client);
/* The agent has not taken them: another process holds the rank. Hands them over again later. Also
 * with the lock held. */
void client_rings_refused(struct cairn_client *client, uint64_t now_ns);

/* service.c: the thread's main function; argument and result as pthread_create has them. */
void *client_service(void *client);

/* snapshot.c */
/* Gives up a pending or running snapshot; the reason becomes its result. Lock held. */
void client_give_up(struct cairn_client *client, cairn_err err, enum cairn_session_reason reason);
/* Queues pieces, the end, and the next BEGIN for the agent. Lock held, attached. */
void client_report_pump(struct cairn_client *client);
cairn_err client_take_grant(struct cairn_client *client, const struct cairn_session_grant *grant);
void client_take_skip(struct cairn_client *client, const struct cairn_session_skip *skip);
void client_take_drop(struct cairn_client *client, const struct cairn_session_drop *drop);
/* The agent went away: ends what was asked for. The engine is idle. Lock held. */
void client_snapshot_detach(struct cairn_client *client);

/* poison.c. Lock held. */
/* Checks what a capture that ended well has found, and notes it in the report. True: the caller
 * logs it, with the slice's name[CAIRN_NAME_BYTES_MAX]. */
bool client_poison_find(struct cairn_client *client, char *name);
/* Lock not held. */
void client_poison_say(const struct cairn_client *client, uint64_t step, const char *name);
/* Notes a rejection of the report's step, which then needs no confirmation. */
void client_note_rejection(struct cairn_client *client);
/* Queues POISON instead of DONE. */
CAIRN_MUST_CHECK cairn_err client_put_poison(struct cairn_client *client);
/* Queues UNWATCHED if it is wanted. Attached. */
void client_put_unwatched(struct cairn_client *client);
/* A good snapshot is reported: what it holds is known from now on. */
void client_poison_learn(struct cairn_client *client);
/* The tensors were restored; failing[tensors->count]: slices that are not finite. Lock not held. */
void client_known_restored(struct cairn_client *client, struct client_tensors *tensors,
                           const atomic_bool *failing);
/* A tensor whose values were never seen takes over what `from` knows of its name. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err client_known_carry(const struct client_tensors *from,
                                              struct client_tensors *to);

/* restore.c */
cairn_err client_take_restore_info(struct cairn_client *client, struct cairn_session_frame *frame);
void client_take_fetched(struct cairn_client *client, const struct cairn_session_fetched *fetched);

/* ---- restore.c ---- */
/*
 * cairn_client_restore into other tensors than those registered, or with another deadline. The
 * registered tensors must then hold the generation's bytes: they are sources too.
 */
CAIRN_MUST_CHECK cairn_err client_restore_until(struct cairn_client *client,
                                                struct client_tensors *target, uint64_t deadline_ns,
                                                struct cairn_restored *out);

#endif
