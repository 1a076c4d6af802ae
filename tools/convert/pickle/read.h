/*
 * tools/convert/pickle/read.h - reads a pickle of protocol 0 to 5 into an inert tree. It never
 * calls, imports or looks up anything: a call is a node that says what would have been called.
 *
 * What a tree cannot express is refused by the opcode's name: extension codes (they need the
 * writer's registry), out-of-band buffers, a call whose result is thrown away, state given twice.
 */
#ifndef CAIRN_TOOLS_CONVERT_PICKLE_READ_H
#define CAIRN_TOOLS_CONVERT_PICKLE_READ_H

#include "tools/convert/pickle/pickle.h"

enum {
    CAIRN_PICKLE_BYTES_MAX = 1 << 30, /* of one pickle */
    CAIRN_PICKLE_ARENA_FACTOR = 64    /* no pickle needs an arena of more than this times its
                                       * bytes */
};

/* Reads bytes[bytes_len], one pickle, into `pickle`'s arena, which the caller makes (its limit
 * bounds memory) and ends. The tree borrows strings from `bytes`. `where` names the pickle in the
 * complaint, which gives byte and opcode. CAIRN_CORRUPT, also if bytes follow; CAIRN_NOMEM. After a
 * failure the arena can only be ended. Thread: any. */
CAIRN_MUST_CHECK cairn_err cairn_pickle_read(struct cairn_pickle *pickle, const char *where,
                                             const void *bytes, size_t bytes_len,
                                             struct cairn_pickle_node **root,
                                             struct cairn_complaint *complaint);

/* The same for bytes that may go on behind the pickle; *taken_bytes is its length. Unless they are
 * `complete`: CAIRN_AGAIN, not complained about, if they end before the pickle; then read it again
 * from more, into a new arena. CAIRN_CORRUPT if it does not end within CAIRN_PICKLE_BYTES_MAX. */
CAIRN_MUST_CHECK cairn_err cairn_pickle_read_start(struct cairn_pickle *pickle, const char *where,
                                                   const void *bytes, size_t bytes_len,
                                                   bool complete, struct cairn_pickle_node **root,
                                                   size_t *taken_bytes,
                                                   struct cairn_complaint *complaint);

#endif
