/*
 * client/state.c - a client's clock, log, waits and counters, for all other files of client/. Calls
 * none of them.
 */
#include "client/state.h"

#include "base/clock.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 1024 };

uint64_t
client_now_ns(void)
{
    struct cairn_clock clock = cairn_clock_system();

    return cairn_clock_now_ns(&clock);
}

uint32_t
client_core_share(const struct cairn_client *client)
{
    cpu_set_t cores;
    uint32_t share;

    if (sched_getaffinity(0, sizeof cores, &cores) != 0)
        return 1;
    share = (uint32_t)CPU_COUNT(&cores) / client->local_ranks;
    return share ? share : 1;
}

bool
client_usable(const struct cairn_client *client)
{
    return client && client->pid == getpid();
}

void
client_say(const struct cairn_client *client, enum cairn_log_level level, const char *format, ...)
{
    int saved_errno = errno;
    char line[LINE_BYTES];
    va_list arguments;

    if (!client->log)
        return;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    client->log(client->log_context, level, line);
    errno = saved_errno;
}

void
client_wake(struct cairn_client *client)
{
    uint64_t one = 1;

    if (client->wake_sent)
        return;
    /* Cannot fail but for a full counter, and then the poll is woken anyway. */
    client->wake_sent = write(client->wake, &one, sizeof one) == (ssize_t)sizeof one;
}

bool
client_wait(struct cairn_client *client, uint64_t deadline_ns)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / CAIRN_NS_PER_S),
                             .tv_nsec = (long)(deadline_ns % CAIRN_NS_PER_S)};

    return pthread_cond_timedwait(&client->changed, &client->lock, &until) == 0 ||
           client_now_ns() < deadline_ns;
}

bool
client_wait_idle(struct cairn_client *client, uint64_t deadline_ns)
{
    while (client->engine_busy)
        if (!client_wait(client, deadline_ns))
            return !client->engine_busy;
    return true;
}

/* Errors that time does not mend; for the others the trainer asks again. */
bool
client_refusal_is_final(cairn_err refusal)
{
    return refusal == CAIRN_DENIED || refusal == CAIRN_VERSION || refusal == CAIRN_STALE ||
           refusal == CAIRN_INVAL;
}

static int
compare_u64(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return left < right ? -1 : left > right;
}

void
client_stats_copy(struct cairn_client *client, struct cairn_client_stats *out)
{
    uint64_t fences_ns[CLIENT_FENCES_KEPT];
    size_t kept;

    pthread_mutex_lock(&client->lock);
    *out = client->stats;
    out->epoch = client->link == CLIENT_LINK_ATTACHED ? client->epoch : 0;
    out->attached = client->link == CLIENT_LINK_ATTACHED;
    out->takes_offers = client->takes_offers;
    kept = out->fence_count < CLIENT_FENCES_KEPT ? out->fence_count : CLIENT_FENCES_KEPT;
    memcpy(fences_ns, client->fences_ns, kept * sizeof *fences_ns);
    pthread_mutex_unlock(&client->lock);
    if (kept == 0)
        return;
    qsort(fences_ns, kept, sizeof *fences_ns, compare_u64);
    out->fence_ns_p50 = fences_ns[(kept - 1) / 2];
    out->fence_ns_p99 = fences_ns[(kept * 99 + 99) / 100 - 1];
}
