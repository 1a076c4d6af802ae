/*
 * transport/sealer.h - a thread that seals blocks of payloads while the loop sends earlier blocks.
 *
 * The loop adds jobs in the order in which it needs them, and asks for each later. What the thread
 * has not begun by then the loop does itself, so a busy machine only loses the help.
 */
#ifndef CAIRN_TRANSPORT_SEALER_H
#define CAIRN_TRANSPORT_SEALER_H

#include "transport/seal.h"

#include <sys/queue.h>

struct cairn_sealer;

enum cairn_sealer_state {
    CAIRN_SEALER_IDLE, /* not added, or asked for */
    CAIRN_SEALER_WAITING,
    CAIRN_SEALER_RUNNING,
    CAIRN_SEALER_DONE
};

/* From add to finish or drop it is the sealer's, and so is what the block points to. */
struct cairn_sealer_job {
    struct cairn_seal_block block;
    TAILQ_ENTRY(cairn_sealer_job) place;
    enum cairn_sealer_state state;
    cairn_err err;
};

/* Starts the thread, which blocks all signals. CAIRN_NOMEM, CAIRN_AGAIN when the system has no
 * thread left. In all calls below NULL stands for a sealer without a thread. Thread: the loop's. */
CAIRN_MUST_CHECK cairn_err cairn_sealer_create(struct cairn_sealer **out);
void cairn_sealer_destroy(struct cairn_sealer *sealer); /* no job may be left */

/* Adds a job whose block is ready to be sealed. */
void cairn_sealer_add(struct cairn_sealer *sealer, struct cairn_sealer_job *job);

/* Waits for the block, or seals it. CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_sealer_finish(struct cairn_sealer *sealer,
                                               struct cairn_sealer_job *job);

/* Whether cairn_sealer_finish would return at once. */
bool cairn_sealer_has_done(struct cairn_sealer *sealer, const struct cairn_sealer_job *job);

/* Takes a job back, sealed or not. One that was never added is left alone. */
void cairn_sealer_drop(struct cairn_sealer *sealer, struct cairn_sealer_job *job);

#endif
