/* transport/lookup.c - see lookup.h. Caller and thread both own it; the last one frees it. */
#include "transport/lookup.h"

#include "transport/address.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEXT_BYTES = 264 + 8 };

struct cairn_lookup {
    char text[TEXT_BYTES];
    int family;
    struct sockaddr_storage address; /* of the thread until `answered`, then read only */
    cairn_err err;                   /* likewise */
    atomic_bool answered;
    atomic_uint owners;
};

void
cairn_lookup_end(struct cairn_lookup *lookup)
{
    if (lookup && atomic_fetch_sub(&lookup->owners, 1) == 1)
        free(lookup);
}

static void *
run(void *context)
{
    struct cairn_lookup *lookup = context;
    const char *why;

    lookup->err = cairn_address_resolve(lookup->text, lookup->family, &lookup->address, &why);
    atomic_store(&lookup->answered, true);
    cairn_lookup_end(lookup);
    return NULL;
}

cairn_err
cairn_lookup_start(const char *text, int family, struct cairn_lookup **out)
{
    struct cairn_lookup *lookup = calloc(1, sizeof *lookup);
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_t thread;
    int failed;

    if (!lookup)
        return CAIRN_NOMEM;
    snprintf(lookup->text, sizeof lookup->text, "%s", text);
    lookup->family = family;
    atomic_init(&lookup->answered, false);
    atomic_init(&lookup->owners, 2);
    failed = pthread_attr_init(&attributes);
    if (failed) {
        free(lookup);
        return CAIRN_NOMEM;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all); /* signals are the loop's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&thread, &attributes, run, lookup);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (failed) {
        free(lookup);
        return CAIRN_NOMEM;
    }
    *out = lookup;
    return CAIRN_OK;
}

cairn_err
cairn_lookup_result(const struct cairn_lookup *lookup, struct sockaddr_storage *out)
{
    if (!atomic_load(&lookup->answered))
        return CAIRN_AGAIN;
    if (lookup->err)
        return CAIRN_NOT_FOUND;
    *out = lookup->address;
    return CAIRN_OK;
}
