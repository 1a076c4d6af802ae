/*
 * agent/process/keeper.h - the keeper: a tiny process that holds the arenas' descriptors, so that
 * the memory outlives the agent; and an agent's calls to it.
 *
 * The keeper never maps or reads the arenas. It serves one Unix socket (mode 0600, only peers of
 * its own user), holds up to CAIRN_KEEPER_ITEMS_MAX named descriptors, and exits, which frees the
 * memory, on request, on SIGTERM, or when no agent was connected for the linger time. It has its
 * own session, ignores SIGINT, SIGHUP and SIGPIPE, and keeps no descriptor, terminal or directory
 * of the agent that started it. Its lock file, the socket's path and ".lock", has its pid.
 *
 * Protocol: SOCK_SEQPACKET, one request packet, one reply packet; keeper_packet.h specifies the
 * bytes. A malformed packet ends only its connection.
 */
#ifndef CAIRN_AGENT_PROCESS_KEEPER_H
#define CAIRN_AGENT_PROCESS_KEEPER_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CAIRN_KEEPER_NAME_BYTES_MAX = 128, /* NUL included */
    CAIRN_KEEPER_ITEMS_MAX = 1024,
    CAIRN_KEEPER_BATCH_MAX = 64 /* descriptors in one packet; the kernel allows 253 */
};

struct cairn_keeper_item {
    char name[CAIRN_KEEPER_NAME_BYTES_MAX];
    uint64_t bytes;
    int fd; /* close-on-exec; -1 in a list */
};

/*
 * The keeper's main loop: what `cairn keeper SOCKET LINGER_SECONDS` runs. Takes over the process:
 * signals, descriptors, working directory, session. Once it listens it closes stdin, stdout and
 * stderr and writes "ready\n" to its former stdout; if the start fails, "failed N\n" with the
 * cairn_err. socket_path is absolute; linger_s = 0 means for ever. Returns CAIRN_OK when it should
 * exit; CAIRN_AGAIN if another keeper serves this path; CAIRN_INVAL, CAIRN_DENIED, CAIRN_IO,
 * CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_keeper_run(const char *socket_path, uint32_t linger_s);

/*
 * Starts `executable keeper socket_path linger_s` as a process of its own, not a child of the
 * caller, and waits until it listens, at most timeout_ms. CAIRN_OK also if a keeper serves this
 * path already: *started (may be NULL) tells. CAIRN_TIMEOUT, CAIRN_NOT_FOUND for the executable,
 * the error of cairn_keeper_run, CAIRN_PEER if it died. Forks; safe with threads.
 */
CAIRN_MUST_CHECK cairn_err cairn_keeper_spawn(const char *executable, const char *socket_path,
                                              uint32_t linger_s, uint32_t timeout_ms,
                                              bool *started);

/* A connection to the keeper. While it is open the keeper does not linger. Thread: one at a time.
 * Each call below blocks at most the timeout_ms given to connect. After a timeout or a broken reply
 * the connection is useless: CAIRN_TIMEOUT, CAIRN_PEER, CAIRN_CORRUPT, CAIRN_VERSION. */
struct cairn_keeper;

/* CAIRN_PEER if nobody listens, CAIRN_DENIED if the keeper is another user's. Ended by
 * cairn_keeper_close. */
CAIRN_MUST_CHECK cairn_err cairn_keeper_connect(const char *socket_path, uint32_t timeout_ms,
                                                struct cairn_keeper **out);
void cairn_keeper_close(struct cairn_keeper *keeper); /* NULL is allowed */

/* How long each call blocks at most from now on. */
void cairn_keeper_set_timeout(struct cairn_keeper *keeper, uint32_t timeout_ms);

/*
 * Has the keeper hold a duplicate of fd, a plain file or memfd of exactly `bytes` bytes, under a
 * name (1 … 127 bytes). fd stays the caller's. Putting the same file under the same name again
 * changes nothing. CAIRN_INVAL for a name that is taken by another file or a wrong size, CAIRN_FULL
 * at CAIRN_KEEPER_ITEMS_MAX.
 */
CAIRN_MUST_CHECK cairn_err cairn_keeper_put(struct cairn_keeper *keeper, const char *name, int fd,
                                            uint64_t bytes);

/*
 * All items of the keeper, sorted by name: *items[*count], ended by cairn_keeper_items_free. `list`
 * leaves every fd at -1; `get` returns new descriptors. *items is NULL if there are none.
 * CAIRN_NOMEM; CAIRN_FULL if this process may open no more descriptors.
 */
CAIRN_MUST_CHECK cairn_err cairn_keeper_list(struct cairn_keeper *keeper,
                                             struct cairn_keeper_item **items, uint32_t *count);
CAIRN_MUST_CHECK cairn_err cairn_keeper_get(struct cairn_keeper *keeper,
                                            struct cairn_keeper_item **items, uint32_t *count);

/* Closes every fd that is not -1 and frees the array. To keep one, copy it out and set it to -1. */
void cairn_keeper_items_free(struct cairn_keeper_item *items, uint32_t count);

/* Lets go of one descriptor. CAIRN_NOT_FOUND. */
CAIRN_MUST_CHECK cairn_err cairn_keeper_drop(struct cairn_keeper *keeper, const char *name);

/* Asks whether it lives. */
CAIRN_MUST_CHECK cairn_err cairn_keeper_ping(struct cairn_keeper *keeper);

/* Ends the keeper; what only it held is freed. */
CAIRN_MUST_CHECK cairn_err cairn_keeper_shutdown(struct cairn_keeper *keeper);

#endif
