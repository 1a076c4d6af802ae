/*
 * agent/process/thread_start.c - replaces libc's pthread_create in the whole program.
 *
 * RocksDB ends the process if it cannot start a thread. A kernel that refuses a thread often has
 * one a moment later, so all starts, RocksDB's included, are retried for half a second.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <time.h>

enum { TRIES_MAX = 50, PAUSE_NS = 10000000 };

int
pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
               void *context)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    __typeof__(&pthread_create) next;
    int failed = EAGAIN;

    *(void **)&next = dlsym(RTLD_NEXT, "pthread_create");
    for (int tries = 0; next && failed == EAGAIN && tries < TRIES_MAX; tries++) {
        if (tries)
            (void)nanosleep(&pause, NULL);
        failed = next(thread, attributes, run, context);
    }
    return failed;
}
