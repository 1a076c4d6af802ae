/*
 * base/signals.h - signals as events, through a signalfd. Part of base/loop.h: the loop watches the
 * descriptor, and callers add signals there.
 */
#ifndef CAIRN_BASE_SIGNALS_H
#define CAIRN_BASE_SIGNALS_H

#include "base/loop.h"

#include <signal.h>

enum { CAIRN_SIGNALS_MAX = 65 /* Linux has 64, counted from 1 */ };

struct cairn_signals {
    int fd; /* -1 until the first signal is added */
    sigset_t set;
    struct {
        cairn_loop_signal_fn *fn; /* NULL: not handled */
        void *context;
        bool was_blocked; /* before it was added */
    } handlers[CAIRN_SIGNALS_MAX];
};

void cairn_signals_init(struct cairn_signals *signals);

/* Closes the descriptor and unblocks, in the calling thread, what adding had blocked. */
void cairn_signals_fini(struct cairn_signals *signals);

/* See cairn_loop_signal_add. The first one opens the descriptor. */
CAIRN_MUST_CHECK cairn_err cairn_signals_add(struct cairn_signals *signals, int number,
                                             cairn_loop_signal_fn *fn, void *context);

/* Calls the handlers of the signals that came; a cairn_loop_fd_fn whose context is the signals. */
void cairn_signals_ready(void *signals, int fd, uint32_t ready);

#endif
