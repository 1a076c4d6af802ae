/* base/signals.c - the signalfd of a loop. */
#include "base/signals.h"

#include "base/log.h"

#include <errno.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { INFOS_PER_READ = 8 };

void
cairn_signals_init(struct cairn_signals *signals)
{
    memset(signals, 0, sizeof *signals);
    signals->fd = -1;
    sigemptyset(&signals->set);
}

void
cairn_signals_fini(struct cairn_signals *signals)
{
    sigset_t set;

    sigemptyset(&set);
    for (int number = 1; number < CAIRN_SIGNALS_MAX; number++)
        if (signals->handlers[number].fn && !signals->handlers[number].was_blocked)
            sigaddset(&set, number);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    if (signals->fd >= 0)
        close(signals->fd);
    signals->fd = -1;
}

void
cairn_signals_ready(void *context, int fd, uint32_t ready)
{
    struct cairn_signals *signals = context;
    struct signalfd_siginfo infos[INFOS_PER_READ];
    ssize_t got = read(fd, infos, sizeof infos);

    (void)ready;
    for (size_t i = 0; got > 0 && i < (size_t)got / sizeof infos[0]; i++) {
        uint32_t number = infos[i].ssi_signo;

        if (number < CAIRN_SIGNALS_MAX && signals->handlers[number].fn)
            signals->handlers[number].fn(signals->handlers[number].context, (int)number);
    }
}

/* False for signals that the kernel never delivers, and for faults of the thread itself. */
static bool
can_be_handled(int number)
{
    static const int refused[] = {SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGFPE, SIGILL};

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (number == refused[i])
            return false;
    return number > 0 && number < CAIRN_SIGNALS_MAX;
}

cairn_err
cairn_signals_add(struct cairn_signals *signals, int number, cairn_loop_signal_fn *fn,
                  void *context)
{
    sigset_t one, old, all = signals->set;
    int fd;

    if (!can_be_handled(number) || signals->handlers[number].fn)
        return CAIRN_INVAL;
    sigemptyset(&one);
    if (sigaddset(&one, number) || sigaddset(&all, number))
        return CAIRN_INVAL; /* glibc keeps two for itself */
    fd = signalfd(signals->fd, &all, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0) {
        CAIRN_LOG_AT(ERROR, "loop: cannot receive signal=%d: %m", number);
        return CAIRN_IO;
    }
    signals->fd = fd; /* signalfd returns the descriptor that it was given */
    pthread_sigmask(SIG_BLOCK, &one, &old);
    signals->set = all;
    signals->handlers[number].fn = fn;
    signals->handlers[number].context = context;
    signals->handlers[number].was_blocked = sigismember(&old, number) == 1;
    return CAIRN_OK;
}
