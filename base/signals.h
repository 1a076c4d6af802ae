/*
 * base/signals.h - signals as events of a loop, through a signalfd. Part of base/loop.h, which is
 * where others add them.
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

/* See cairn_loop_signal_add. */
CAIRN_MUST_CHECK cairn_err cairn_signals_add(struct cairn_signals *signals, struct cairn_loop *loop,
                                             int number, cairn_loop_signal_fn *fn, void *context);

#endif
