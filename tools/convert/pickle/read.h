/*
 * tools/convert/pickle/read.h - reads a pickle of protocol 0 to 5 into an inert tree. It never
 * calls, imports or looks up anything: a call is a node that says what would have been called.
 *
 * What cannot be said by a tree is refused by the opcode's name: extension codes (they need the
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

/*
 * Reads the pickle at the start of bytes[bytes_len] into `pickle`'s arena, which the caller has
 * made and ends, and whose limit bounds the memory. The tree borrows strings from `bytes`, which
 * must outlive it. *taken_bytes says where the pickle ended (more may follow). `where` names the
 * pickle for the one log line of a failure, which gives the byte and the opcode. CAIRN_CORRUPT,
 * also where it does not end within CAIRN_PICKLE_BYTES_MAX; CAIRN_NOMEM. On failure the arena holds
 * the nodes made so far and nothing else can be done with it but to end it. Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_pickle_read(struct cairn_pickle *pickle, const char *where,
                                             const void *bytes, size_t bytes_len,
                                             struct cairn_pickle_node **root, size_t *taken_bytes);

/*
 * The same for bytes of which more may follow: CAIRN_AGAIN, not logged, where they end before the
 * pickle does; then it is read anew, into a new arena, from more of them.
 */
CAIRN_MUST_CHECK cairn_err cairn_pickle_read_start(struct cairn_pickle *pickle, const char *where,
                                                   const void *bytes, size_t bytes_len,
                                                   struct cairn_pickle_node **root,
                                                   size_t *taken_bytes);

#endif
