/* tools/convert/engine/handles.c - see handles.h. One lock guards everything; it is never held
 * during reads and writes. */
#include "tools/convert/engine/handles.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/assert.h"
#include "base/file.h"

/* More than this many files are never kept open: each costs the kernel memory, too. */
enum { OPEN_MAX = 4096, OPEN_RESERVED = 64, OPEN_FEW = 16 };

struct handle {
    int fd; /* -1: closed */
    uint32_t users;
    uint64_t used_at; /* by the clock of acquires */
};

struct cairn_handles {
    pthread_mutex_t lock;
    cairn_handles_open_fn *open;
    void *context;
    struct handle *handles; /* [count] */
    uint32_t count;
    uint32_t open_count;
    uint32_t open_limit;
    uint64_t clock;
};

static uint32_t
open_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return OPEN_FEW;
    if (limit.rlim_cur < limit.rlim_max) {
        struct rlimit raised = {limit.rlim_max, limit.rlim_max};

        if (setrlimit(RLIMIT_NOFILE, &raised) == 0)
            limit = raised;
    }
    if (limit.rlim_cur > 2 * (OPEN_MAX + OPEN_RESERVED))
        return OPEN_MAX;
    /* Half of them: sources and targets have handles of their own. */
    if (limit.rlim_cur > 4 * OPEN_RESERVED)
        return (uint32_t)(limit.rlim_cur / 2 - OPEN_RESERVED);
    /* A shell with a small limit: slower, and it works. Below that the files that threads use at
     * once decide. */
    return limit.rlim_cur > 2 * OPEN_FEW ? (uint32_t)(limit.rlim_cur - OPEN_FEW) / 3 : 1;
}

cairn_err
cairn_handles_create(uint32_t count, cairn_handles_open_fn *open, void *context,
                     struct cairn_handles **out)
{
    struct cairn_handles *handles = calloc(1, sizeof(*handles));

    if (handles)
        handles->handles = calloc((size_t)count + 1, sizeof(*handles->handles));
    if (!handles || !handles->handles) {
        free(handles);
        return CAIRN_NOMEM;
    }
    for (uint32_t i = 0; i < count; i++)
        handles->handles[i].fd = -1;
    (void)pthread_mutex_init(&handles->lock, NULL); /* a plain one cannot fail on Linux */
    handles->open = open;
    handles->context = context;
    handles->count = count;
    handles->open_limit = open_limit();
    *out = handles;
    return CAIRN_OK;
}

cairn_err
cairn_handles_destroy(struct cairn_handles *handles)
{
    cairn_err err = CAIRN_OK;

    if (!handles)
        return CAIRN_OK;
    for (uint32_t i = 0; i < handles->count; i++) {
        cairn_err closed;

        CAIRN_ASSERT(handles->handles[i].users == 0);
        closed = cairn_file_close(handles->handles[i].fd); /* -1 is allowed */
        err = err ? err : closed;
    }
    (void)pthread_mutex_destroy(&handles->lock);
    free(handles->handles);
    free(handles);
    return err;
}

/* Closes the file that was not used for the longest time. The lock is held. */
static cairn_err
close_one(struct cairn_handles *handles)
{
    struct handle *oldest = NULL;
    cairn_err err;

    for (uint32_t i = 0; i < handles->count; i++) {
        struct handle *handle = &handles->handles[i];

        if (handle->fd >= 0 && handle->users == 0 && (!oldest || handle->used_at < oldest->used_at))
            oldest = handle;
    }
    if (!oldest)
        return CAIRN_OK; /* all are in use: then the system's own limit decides */
    err = cairn_file_close(oldest->fd);
    oldest->fd = -1;
    handles->open_count--;
    return err;
}

cairn_err
cairn_handles_acquire(struct cairn_handles *handles, uint32_t number, int *fd,
                      struct cairn_complaint *complaint)
{
    struct handle *handle = &handles->handles[number];
    cairn_err err = CAIRN_OK;

    CAIRN_ASSERT(number < handles->count);
    (void)pthread_mutex_lock(&handles->lock);
    if (handle->fd < 0 && handles->open_count >= handles->open_limit)
        err = close_one(handles);
    if (!err && handle->fd < 0) {
        err = handles->open(handles->context, number, &handle->fd, complaint);
        if (err)
            handle->fd = -1;
        else
            handles->open_count++;
    }
    if (!err) {
        handle->users++;
        handle->used_at = ++handles->clock;
        *fd = handle->fd;
    }
    (void)pthread_mutex_unlock(&handles->lock);
    return err;
}

void
cairn_handles_release(struct cairn_handles *handles, uint32_t number)
{
    (void)pthread_mutex_lock(&handles->lock);
    CAIRN_ASSERT(number < handles->count && handles->handles[number].users > 0);
    handles->handles[number].users--;
    (void)pthread_mutex_unlock(&handles->lock);
}
