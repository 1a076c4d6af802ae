/* transport/fabric.c - see fabric.h. */
#include "transport/fabric.h"

#include "base/log.h"

#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>

/*
 * The versions of the symbols. Structs have grown between them, so functions that take one must
 * have the version of our headers, as if the library were linked: the Makefile reads it from the
 * library beside these headers.
 */
#ifndef FABRIC_ABI
#error "FABRIC_ABI is not defined; build with make, and install libfabric-dev"
#endif
#define FABRIC_LIST(X)                                                                             \
    X(getinfo, "fi_getinfo", FABRIC_ABI)                                                           \
    X(freeinfo, "fi_freeinfo", FABRIC_ABI)                                                         \
    X(dupinfo, "fi_dupinfo", FABRIC_ABI)                                                           \
    X(fabric, "fi_fabric", "FABRIC_1.1")                                                           \
    X(strerror, "fi_strerror", "FABRIC_1.0")

enum { CRASH_COUNT = 5 };
static const int crashes[CRASH_COUNT] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

/*
 * Loads the library and undoes what its PSM libraries do meanwhile: they catch crashes, to write a
 * trace into the working directory, and could hang there instead of ending, so that no other agent
 * takes over.
 */
static void *
load(const char *path)
{
    struct sigaction before[CRASH_COUNT];
    void *library;

    for (size_t i = 0; i < CRASH_COUNT; i++)
        sigaction(crashes[i], NULL, &before[i]);
    /* Not unloaded: providers have threads and handlers of their own. */
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    for (size_t i = 0; i < CRASH_COUNT; i++)
        sigaction(crashes[i], &before[i], NULL);
    return library;
}

cairn_err
cairn_fabric_open(const char *path, struct cairn_fabric *out)
{
    struct cairn_fabric fabric;
    void *library = load(path ? path : "libfabric.so.1");

    if (!library) {
        CAIRN_LOG_AT(ERROR,
                     "transport: libfabric cannot be loaded: %s; install the package libfabric1 "
                     "(libfabric on Fedora and RHEL)",
                     dlerror());
        return CAIRN_NOT_FOUND;
    }
#define FABRIC_LOAD(field, symbol, version)                                                        \
    *(void **)(void *)&fabric.field = dlvsym(library, symbol, version);                            \
    if (!fabric.field) {                                                                           \
        CAIRN_LOG_AT(ERROR,                                                                        \
                     "transport: libfabric is too old: %s; install the version that cairn "        \
                     "was built with, or a newer one",                                             \
                     dlerror());                                                                   \
        dlclose(library);                                                                          \
        return CAIRN_NOT_FOUND;                                                                    \
    }
    FABRIC_LIST(FABRIC_LOAD)
#undef FABRIC_LOAD
    *out = fabric;
    return CAIRN_OK;
}
