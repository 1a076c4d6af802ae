/*
 * bindings/nccl/chain.c - another profiler plugin that goes on working although NCCL loads only
 * one.
 *
 * Entry n mod CAIRN_CHAIN_ENTRIES belongs to the n-th pair. Its owner word is 2 n + 1 while the
 * event runs and 2 n once it was stopped; its handle may still be asked for then, as the parent of
 * later events. A reader checks the owner word before and after it reads.
 */
#include "bindings/nccl/chain.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { TRIES_MAX = 8, NAME_BYTES = 4096 };
/* The plugin that NCCL opens by default; NCCL works without it. */
#define NCCL_DEFAULT "libnccl-profiler.so"
enum { COPY_ENGINES = NCCL_CE_COLL | NCCL_CE_SYNC | NCCL_CE_BATCH };

struct entry {
    _Atomic uint64_t owner;
    _Atomic uint64_t ours;
    void *_Atomic theirs;
};

static struct entry entries[CAIRN_CHAIN_ENTRIES];
static _Atomic uint64_t last_pair;

/* All tables have the same form, except for init. */
static const struct nccl_profiler_v5 *table;
static int table_version;  /* that of the table */
static int opened_version; /* that NCCL speaks */
static bool tried;
static int their_mask; /* they may write it whenever they like */

static void *
open_library(const char *name)
{
    char path[NAME_BYTES];
    size_t length = strlen(name);
    void *library;

    if (strcmp(name, "STATIC_PLUGIN") == 0)
        return dlopen(NULL, RTLD_NOW | RTLD_LOCAL);
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library || strchr(name, '/') || length + sizeof "libnccl-profiler-.so" > sizeof path ||
        (strncmp(name, "lib", 3) == 0 && length > 3 && strcmp(name + length - 3, ".so") == 0))
        return library;
    (void)snprintf(path, sizeof path, "libnccl-profiler-%s.so", name);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void
find_table(void *library, int version)
{
    const int order[2] = {version, version == 6 ? 5 : version == 5 ? 6 : version};

    for (size_t i = 0; i < 2 && !table; i++) {
        char symbol[32];

        (void)snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", order[i]);
        table = dlsym(library, symbol);
        table_version = order[i];
    }
}

void
cairn_chain_open(const char *name, int version, const void *own, nccl_logger *logger)
{
    void *library;

    if (tried)
        return;
    tried = true;
    opened_version = version;
    if (!name || !name[0] || strcmp(name, "none") == 0)
        return;
    library = open_library(name);
    if (library)
        find_table(library, version);
    if (table == own || (table && (!table->init || !table->start || !table->stop ||
                                   !table->record || !table->finalize)))
        table = NULL;
    else if (!table && logger && (library || strcmp(name, NCCL_DEFAULT) != 0))
        logger(NCCL_LOG_WARN, NCCL_LOG_INIT, __FILE__, __LINE__,
               "cairn: the profiler plugin %s %s: it gets no events. CAIRN_NCCL_PROFILER_CHAIN "
               "names it",
               name,
               library ? "has no table of the version that this NCCL speaks" : "cannot be opened");
}

static bool
speaks(int version)
{
    return table && opened_version == version;
}

void
cairn_chain_init_v3(void **theirs)
{
    const void *any = table;
    const struct nccl_profiler_v3 *v3 = any;

    if (speaks(3) && v3->init(theirs, &their_mask) != 0)
        *theirs = NULL;
}

void
cairn_chain_init_v4(void **theirs, uint64_t comm_hash, const char *comm_name, int nodes, int ranks,
                    int rank, nccl_logger *logger)
{
    const void *any = table;
    const struct nccl_profiler_v4 *v4 = any;

    if (speaks(4) &&
        v4->init(theirs, &their_mask, comm_name, comm_hash, nodes, ranks, rank, logger) != 0)
        *theirs = NULL;
}

void
cairn_chain_init_v5(void **theirs, int version, uint64_t comm_hash, const char *comm_name,
                    int nodes, int ranks, int rank, nccl_logger *logger)
{
    if (speaks(version) &&
        table->init(theirs, comm_hash, &their_mask, comm_name, nodes, ranks, rank, logger) != 0)
        *theirs = NULL;
}

void
cairn_chain_finalize(void *theirs)
{
    if (table && theirs)
        (void)table->finalize(theirs);
}

int
cairn_chain_mask(void)
{
    int mask = __atomic_load_n(&their_mask, __ATOMIC_RELAXED);

    return table_version < 6 || opened_version < 6 ? mask & ~COPY_ENGINES : mask;
}

/* NCCL also reports an event if the plugin asked only for events below it. */
bool
cairn_chain_wants(uint64_t type)
{
    const int transport = NCCL_PROXY_OP | NCCL_PROXY_STEP | NCCL_KERNEL_CH | NCCL_NET_PLUGIN;
    const int tasks = NCCL_COLL | NCCL_P2P | transport;
    int asked = cairn_chain_mask();

    if (!table || asked == 0)
        return false;
    switch (type) {
    case NCCL_GROUP_API:
        return asked & (NCCL_GROUP_API | NCCL_COLL_API | NCCL_P2P_API | NCCL_KERNEL_LAUNCH |
                        NCCL_GROUP | tasks);
    case NCCL_COLL_API:
        return asked & (NCCL_COLL_API | NCCL_COLL | transport | COPY_ENGINES);
    case NCCL_P2P_API:
        return asked & (NCCL_P2P_API | NCCL_P2P | transport);
    case NCCL_GROUP:
        return asked & (NCCL_GROUP | tasks);
    case NCCL_COLL:
    case NCCL_P2P:
        return asked & ((int)type | transport);
    case NCCL_PROXY_OP:
        return asked & (NCCL_PROXY_OP | NCCL_PROXY_STEP | NCCL_NET_PLUGIN);
    case NCCL_PROXY_STEP:
        return asked & (NCCL_PROXY_STEP | NCCL_NET_PLUGIN);
    case NCCL_CE_COLL:
        return asked & COPY_ENGINES;
    default:
        return type <= INT32_MAX && (asked & (int)type);
    }
}

void *
cairn_chain_start(void *their_context, void *descriptor)
{
    void *theirs = NULL;

    (void)table->start(their_context, &theirs, descriptor);
    return theirs;
}

/* ---- entries ---- */

static struct entry *
entry_of(uint64_t number)
{
    return &entries[number % CAIRN_CHAIN_ENTRIES];
}

uint64_t
cairn_chain_pair_up(struct cairn_chain_pair pair)
{
    for (int tries = 0; pair.theirs && tries < TRIES_MAX; tries++) {
        uint64_t number = atomic_fetch_add_explicit(&last_pair, 1, memory_order_relaxed) + 1;
        struct entry *entry = entry_of(number);
        uint64_t former = atomic_load_explicit(&entry->owner, memory_order_relaxed);

        if (former % 2 != 0 || former > 2 * number ||
            !atomic_compare_exchange_strong_explicit(&entry->owner, &former, 2 * number + 1,
                                                     memory_order_acq_rel, memory_order_relaxed))
            continue;
        atomic_store_explicit(&entry->ours, pair.ours, memory_order_release);
        atomic_store_explicit(&entry->theirs, pair.theirs, memory_order_release);
        return CAIRN_CHAIN_HANDLE | number;
    }
    if (pair.theirs) /* without its end they would keep the event for ever */
        (void)table->stop(pair.theirs);
    return pair.ours;
}

struct cairn_chain_pair
cairn_chain_look_up(uint64_t handle)
{
    uint64_t number = handle & ~CAIRN_CHAIN_HANDLE;
    struct cairn_chain_pair pair;
    struct entry *entry;

    if (!(handle & CAIRN_CHAIN_HANDLE))
        return (struct cairn_chain_pair){.ours = handle};
    entry = entry_of(number);
    pair.ours = atomic_load_explicit(&entry->ours, memory_order_acquire);
    pair.theirs = atomic_load_explicit(&entry->theirs, memory_order_acquire);
    if (number == 0 || atomic_load_explicit(&entry->owner, memory_order_acquire) / 2 != number)
        return (struct cairn_chain_pair){0};
    return pair;
}

void
cairn_chain_record(uint64_t handle, int state, void *arguments)
{
    void *theirs = cairn_chain_look_up(handle).theirs;

    if (theirs && (state < NCCL_STATE_CE_FIRST || table_version >= 6))
        (void)table->record(theirs, state, arguments);
}

void
cairn_chain_stop(uint64_t handle)
{
    void *theirs = cairn_chain_look_up(handle).theirs;
    uint64_t running = 2 * (handle & ~CAIRN_CHAIN_HANDLE) + 1;

    if (theirs && atomic_compare_exchange_strong_explicit(&entry_of(running / 2)->owner, &running,
                                                          running - 1, memory_order_acq_rel,
                                                          memory_order_relaxed))
        (void)table->stop(theirs);
}
