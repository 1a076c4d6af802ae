/*
 * bindings/nccl/plugin.c - what NCCL loads: the tables of versions 3 to 6, and what each of their
 * calls means.
 *
 * We read Coll and P2p events (an operation was enqueued: its start and stop come within
 * microseconds and tell nothing about the device) and, for sampled operations, KernelCh events (a
 * channel of its kernel started or stopped on the device). All other events go to a chained plugin,
 * or are ignored.
 *
 * Layout of a handle; 0 means none. It is a number, never a pointer, and only finds a slot whose
 * generation agrees:
 *     bits 0-3 kind   4-11 channel (KERNEL)   12-62 the operation's number (TASK, KERNEL)
 *
 * NCCL up to 2.27 (v3, v4) reports operations only in groups that have a handle. From 2.28 on (v5,
 * v6) groups must not have one: NCCL would then number operations captured into a CUDA graph only
 * on ranks that time kernels, and the ranks' numbers would differ. For the same reason captured
 * operations get no handle. All others do, so a Coll without a handle is a graph's replay; it has
 * no number, and we do not record it.
 */
#include "bindings/nccl/chain.h"
#include "bindings/nccl/probe.h"
#include "bindings/nccl/profiler_abi.h"
#include "bindings/nccl/sampler.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

enum { KIND_TASK = 1, KIND_KERNEL = 2, KIND_MARK = 3 };
enum { KIND_MASK = 0xf, CHANNEL_SHIFT = 4, CHANNEL_MASK = 0xff, OPERATION_SHIFT = 12 };
/* Timed kernels need NCCL's proxies, which allocate in /dev/shm; NCCL crashes if that is full. */
#define SHARED_BYTES_MIN (UINT64_C(64) << 20)

/* Calls may come during and after finalize: each reads `comm` and `theirs` once, and finds NULL
 * then. */
struct context {
    _Atomic bool used;
    struct cairn_probe_comm *_Atomic comm; /* NULL: not recorded */
    void *_Atomic theirs;                  /* of a chained plugin */
    int *mask; /* NCCL's event mask of the process; lives as long as NCCL */
};

static struct context contexts[CAIRN_PROBE_COMMS_MAX];
static pthread_mutex_t joining = PTHREAD_MUTEX_INITIALIZER;

/* ---- settings ---- */

/* A whole number of at most `max`; `otherwise` for other text. */
static uint32_t
number_of(const char *text, uint32_t max, uint32_t otherwise)
{
    unsigned long value;
    char *rest;

    if (!text || text[0] < '0' || text[0] > '9')
        return otherwise;
    value = strtoul(text, &rest, 10);
    return *rest == '\0' && value <= max ? (uint32_t)value : otherwise;
}

/* This process's rank, from its launcher's environment. */
static uint32_t
launched_rank(void)
{
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    uint32_t rank = UINT32_MAX;

    for (size_t i = 0; i < sizeof names / sizeof *names && rank == UINT32_MAX; i++)
        rank = number_of(getenv(names[i]), UINT32_MAX - 1, UINT32_MAX);
    return rank;
}

static uint32_t
kernel_percent(nccl_logger *logger)
{
    const char *text = getenv("CAIRN_NCCL_KERNEL_PERCENT");
    uint32_t percent = number_of(text, 100, UINT32_MAX);
    struct statvfs shared;

    if (percent == UINT32_MAX) {
        percent = CAIRN_SAMPLER_PERCENT_DEFAULT;
        if (text && logger)
            logger(NCCL_LOG_WARN, NCCL_LOG_INIT, __FILE__, __LINE__,
                   "cairn: CAIRN_NCCL_KERNEL_PERCENT takes a whole number from 0 to 100, not "
                   "\"%s\": it is %u",
                   text, percent);
    }
    if (percent > 0 && statvfs("/dev/shm", &shared) == 0 &&
        (uint64_t)shared.f_bavail * shared.f_frsize < SHARED_BYTES_MIN) {
        percent = 0;
        if (logger)
            logger(NCCL_LOG_WARN, NCCL_LOG_INIT, __FILE__, __LINE__,
                   "cairn: kernels are not timed: /dev/shm has less than 64 MiB left, and NCCL "
                   "needs it for that; give the container more, such as --shm-size=1g");
    }
    return percent;
}

/* ---- communicators ---- */

/* Tells NCCL which events we want. It looks when the next operation begins. */
static void
publish_mask(const struct context *context)
{
    int mask = cairn_chain_mask();

    if (cairn_probe_enabled())
        mask |= NCCL_COLL | NCCL_P2P | (cairn_probe_wants_kernels() ? NCCL_KERNEL_CH : 0);
    if (__atomic_load_n(context->mask, __ATOMIC_RELAXED) != mask)
        __atomic_store_n(context->mask, mask, __ATOMIC_RELAXED);
}

/* The common part of init, with `joining` held. NULL: NCCL goes on without us. */
static struct context *
open_context(void **out, int *mask, int version, const void *table, nccl_logger *logger)
{
    const char *chained = getenv("CAIRN_NCCL_PROFILER_CHAIN");
    struct context *context = NULL;
    struct cairn_probe_options options;

    if (out)
        *out = NULL;
    if (!out || !mask)
        return NULL;
    if (!cairn_probe_enabled()) {
        options = (struct cairn_probe_options){.kernel_percent = kernel_percent(logger),
                                               .rank = launched_rank()};
        if (!cairn_probe_open(&options) && logger)
            logger(NCCL_LOG_WARN, NCCL_LOG_INIT, __FILE__, __LINE__,
                   "cairn: collectives are not timed: there is no memory or descriptor for the "
                   "ring of records");
    }
    cairn_chain_open(chained, version, table, logger);
    for (size_t i = 0; i < CAIRN_PROBE_COMMS_MAX && !context; i++)
        if (!atomic_exchange_explicit(&contexts[i].used, true, memory_order_acquire))
            context = &contexts[i];
    if (!context)
        return NULL;
    context->mask = mask;
    return context;
}

static void
join(struct context *context, uint64_t hash, int ranks, int rank)
{
    if (cairn_probe_enabled())
        atomic_store_explicit(&context->comm, cairn_probe_join(hash, ranks, rank),
                              memory_order_release);
}

static int
finalize(void *opaque)
{
    struct context *context = opaque;
    struct cairn_probe_comm *comm;

    if (!context)
        return 0;
    pthread_mutex_lock(&joining);
    cairn_chain_finalize(atomic_exchange_explicit(&context->theirs, NULL, memory_order_acq_rel));
    comm = atomic_exchange_explicit(&context->comm, NULL, memory_order_acq_rel);
    if (comm)
        cairn_probe_leave(comm);
    atomic_store_explicit(&context->used, false, memory_order_release);
    pthread_mutex_unlock(&joining);
    return 0;
}

/* ---- handles ---- */

static uint64_t
number_of_handle(void *handle)
{
    return (uint64_t)(uintptr_t)handle;
}

static void *
handle_of(uint64_t number)
{
    return (void *)(uintptr_t)number;
}

static uint64_t
task_handle(uint64_t operation)
{
    return operation ? operation << OPERATION_SHIFT | KIND_TASK : 0;
}

/* The operation of a handle of this kind; 0 where it is of another. */
static uint64_t
operation_of(uint64_t ours, uint64_t kind)
{
    return (ours & KIND_MASK) == kind ? ours >> OPERATION_SHIFT : 0;
}

static uint32_t
channel_of(uint64_t ours)
{
    return (uint32_t)(ours >> CHANNEL_SHIFT & CHANNEL_MASK);
}

/* ---- events ---- */

/* 0 where nothing of the communicator is recorded. */
static uint64_t
begin_task(const struct context *context, const struct cairn_probe_task *task)
{
    struct cairn_probe_comm *comm = atomic_load_explicit(&context->comm, memory_order_acquire);
    uint64_t operation;

    if (!comm)
        return 0;
    operation = cairn_probe_enter(comm, task);
    publish_mask(context);
    return task_handle(operation);
}

static uint64_t
begin_kernel(uint64_t parent, uint32_t channel, uint64_t device_ns)
{
    uint64_t operation = operation_of(parent, KIND_TASK);

    if (!operation)
        return 0;
    cairn_probe_kernel_start(operation, channel, device_ns);
    return operation << OPERATION_SHIFT | (uint64_t)channel << CHANNEL_SHIFT | KIND_KERNEL;
}

/* Passes the beginning of an event on, with its parents as the other plugin knows them, and makes
 * one handle of both. `group` is the descriptor's second parent, or NULL. Leaves NCCL's descriptor
 * as it was. */
static void
chain_start(const struct context *context, void **handle, uint64_t ours, uint64_t type,
            struct nccl_descriptor *head, void **group)
{
    struct cairn_chain_pair pair = {.ours = ours};
    void *theirs = atomic_load_explicit(&context->theirs, memory_order_acquire);
    void *parent = head->parent, *parent_group = group ? *group : NULL;

    if (theirs && cairn_chain_wants(type)) {
        head->parent = cairn_chain_look_up(number_of_handle(parent)).theirs;
        if (group)
            *group = cairn_chain_look_up(number_of_handle(parent_group)).theirs;
        pair.theirs = cairn_chain_start(theirs, head);
        head->parent = parent;
        if (group)
            *group = parent_group;
    }
    *handle = handle_of(cairn_chain_pair_up(pair));
}

static int
start_v3(void *opaque, void **handle, void *descriptor)
{
    const struct context *context = opaque;
    struct nccl_descriptor_v3 *event = descriptor;
    uint64_t ours = 0;

    if (handle)
        *handle = NULL;
    if (!handle || !context || !event)
        return 0;
    if (event->head.type8 == NCCL_COLL)
        ours = begin_task(context, &(struct cairn_probe_task){.func = event->coll.func,
                                                              .datatype = event->coll.datatype,
                                                              .comm_hash = event->coll.comm_hash,
                                                              .seq = event->coll.seq,
                                                              .count = event->coll.count,
                                                              .rank = event->head.rank});
    else if (event->head.type8 == NCCL_P2P)
        ours = begin_task(context, &(struct cairn_probe_task){.func = event->p2p.func,
                                                              .datatype = event->p2p.datatype,
                                                              .comm_hash = event->p2p.comm_hash,
                                                              .count = event->p2p.count,
                                                              .rank = event->head.rank,
                                                              .peer = event->p2p.peer,
                                                              .point_to_point = true});
    else if (event->head.type8 == NCCL_KERNEL_CH)
        ours = begin_kernel(cairn_chain_look_up(number_of_handle(event->head.parent)).ours,
                            event->kernel_ch.channel, 0);
    else if (event->head.type8 == NCCL_GROUP)
        ours = KIND_MARK;
    chain_start(context, handle, ours, event->head.type8, &event->head, NULL);
    return 0;
}

static int
start_v4(void *opaque, void **handle, void *descriptor)
{
    const struct context *context = opaque;
    struct nccl_descriptor_v4 *event = descriptor;
    uint64_t ours = 0;

    if (handle)
        *handle = NULL;
    if (!handle || !context || !event)
        return 0;
    if (event->head.type8 == NCCL_COLL)
        ours = begin_task(context, &(struct cairn_probe_task){.func = event->coll.func,
                                                              .datatype = event->coll.datatype,
                                                              .seq = event->coll.seq,
                                                              .count = event->coll.count,
                                                              .rank = event->head.rank,
                                                              .channels = event->coll.channels});
    else if (event->head.type8 == NCCL_P2P)
        ours = begin_task(context, &(struct cairn_probe_task){.func = event->p2p.func,
                                                              .datatype = event->p2p.datatype,
                                                              .count = event->p2p.count,
                                                              .rank = event->head.rank,
                                                              .peer = event->p2p.peer,
                                                              .point_to_point = true});
    else if (event->head.type8 == NCCL_KERNEL_CH)
        ours = begin_kernel(cairn_chain_look_up(number_of_handle(event->head.parent)).ours,
                            event->kernel_ch.channel, event->kernel_ch.device_ns);
    else if (event->head.type8 == NCCL_GROUP)
        ours = KIND_MARK;
    chain_start(context, handle, ours, event->head.type8, &event->head, NULL);
    return 0;
}

static int
start_v5(void *opaque, void **handle, void *descriptor)
{
    const struct context *context = opaque;
    struct nccl_descriptor_v5 *event = descriptor;
    void **group = NULL;
    uint64_t ours = 0;

    if (handle)
        *handle = NULL;
    if (!handle || !context || !event)
        return 0;
    switch (event->head.type64) {
    case NCCL_COLL:
        group = &event->coll.parent_group;
        if (cairn_chain_look_up(number_of_handle(event->head.parent)).ours == KIND_MARK)
            ours =
                begin_task(context, &(struct cairn_probe_task){.func = event->coll.func,
                                                               .datatype = event->coll.datatype,
                                                               .seq = event->coll.seq,
                                                               .count = event->coll.count,
                                                               .rank = event->head.rank,
                                                               .channels = event->coll.channels});
        break;
    case NCCL_P2P:
        group = &event->p2p.parent_group;
        ours = begin_task(context, &(struct cairn_probe_task){.func = event->p2p.func,
                                                              .datatype = event->p2p.datatype,
                                                              .count = event->p2p.count,
                                                              .rank = event->head.rank,
                                                              .peer = event->p2p.peer,
                                                              .channels = event->p2p.channels,
                                                              .point_to_point = true});
        break;
    case NCCL_KERNEL_CH:
        ours = begin_kernel(cairn_chain_look_up(number_of_handle(event->head.parent)).ours,
                            event->kernel_ch.channel, event->kernel_ch.device_ns);
        break;
    case NCCL_COLL_API:
        ours = event->coll_api.captured ? 0 : KIND_MARK;
        break;
    default:
        break;
    }
    chain_start(context, handle, ours, event->head.type64, &event->head, group);
    return 0;
}

/* v3: there are no timers, and the event's stop says it. */
static int
record_untimed(void *handle, int state, void *arguments)
{
    cairn_chain_record(number_of_handle(handle), state, arguments);
    return 0;
}

static int
record(void *handle, int state, void *arguments)
{
    uint64_t ours = cairn_chain_look_up(number_of_handle(handle)).ours;
    const union nccl_state *timer = arguments;

    if (state == NCCL_STATE_KERNEL_CH_STOP && timer && (ours & KIND_MASK) == KIND_KERNEL)
        cairn_probe_kernel_stop(operation_of(ours, KIND_KERNEL), channel_of(ours),
                                timer->device_ns);
    cairn_chain_record(number_of_handle(handle), state, arguments);
    return 0;
}

static int
stop(void *handle)
{
    uint64_t ours = cairn_chain_look_up(number_of_handle(handle)).ours;

    if ((ours & KIND_MASK) == KIND_KERNEL) /* where its state was lost, or has no timer */
        cairn_probe_kernel_stop(operation_of(ours, KIND_KERNEL), channel_of(ours), 0);
    cairn_chain_stop(number_of_handle(handle));
    return 0;
}

/* ---- the tables ---- */

static int init_v3(void **context, int *mask);
static int init_v4(void **context, int *mask, const char *comm_name, uint64_t comm_hash, int nodes,
                   int ranks, int rank, nccl_logger *logger);
static int init_v5(void **context, uint64_t comm_hash, int *mask, const char *comm_name, int nodes,
                   int ranks, int rank, nccl_logger *logger);
static int init_v6(void **context, uint64_t comm_hash, int *mask, const char *comm_name, int nodes,
                   int ranks, int rank, nccl_logger *logger);

/* The only symbols of this library. */
extern const struct nccl_profiler_v3 ncclProfiler_v3;
extern const struct nccl_profiler_v4 ncclProfiler_v4;
extern const struct nccl_profiler_v5 ncclProfiler_v5, ncclProfiler_v6;
const struct nccl_profiler_v3 ncclProfiler_v3 = {"cairn", init_v3,        start_v3,
                                                 stop,    record_untimed, finalize};
const struct nccl_profiler_v4 ncclProfiler_v4 = {"cairn", init_v4, start_v4,
                                                 stop,    record,  finalize};
const struct nccl_profiler_v5 ncclProfiler_v5 = {"cairn", init_v5, start_v5,
                                                 stop,    record,  finalize};
const struct nccl_profiler_v5 ncclProfiler_v6 = {"cairn", init_v6, start_v5,
                                                 stop,    record,  finalize};

static int
init_v3(void **out, int *mask)
{
    struct context *context;
    void *theirs = NULL;

    pthread_mutex_lock(&joining);
    context = open_context(out, mask, 3, &ncclProfiler_v3, NULL);
    if (context) {
        join(context, 0, -1, -1);
        cairn_chain_init_v3(&theirs);
        atomic_store_explicit(&context->theirs, theirs, memory_order_release);
        publish_mask(context);
        *out = context;
    }
    pthread_mutex_unlock(&joining);
    return 0;
}

static int
init_v4(void **out, int *mask, const char *comm_name, uint64_t comm_hash, int nodes, int ranks,
        int rank, nccl_logger *logger)
{
    struct context *context;
    void *theirs = NULL;

    pthread_mutex_lock(&joining);
    context = open_context(out, mask, 4, &ncclProfiler_v4, logger);
    if (context) {
        join(context, comm_hash, ranks, rank);
        cairn_chain_init_v4(&theirs, comm_hash, comm_name, nodes, ranks, rank, logger);
        atomic_store_explicit(&context->theirs, theirs, memory_order_release);
        publish_mask(context);
        *out = context;
    }
    pthread_mutex_unlock(&joining);
    return 0;
}

static void
init_later(void **out, int version, const void *table, uint64_t comm_hash, int *mask,
           const char *comm_name, int nodes, int ranks, int rank, nccl_logger *logger)
{
    struct context *context;
    void *theirs = NULL;

    pthread_mutex_lock(&joining);
    context = open_context(out, mask, version, table, logger);
    if (context) {
        join(context, comm_hash, ranks, rank);
        cairn_chain_init_v5(&theirs, version, comm_hash, comm_name, nodes, ranks, rank, logger);
        atomic_store_explicit(&context->theirs, theirs, memory_order_release);
        publish_mask(context);
        *out = context;
    }
    pthread_mutex_unlock(&joining);
}

static int
init_v5(void **out, uint64_t comm_hash, int *mask, const char *comm_name, int nodes, int ranks,
        int rank, nccl_logger *logger)
{
    init_later(out, 5, &ncclProfiler_v5, comm_hash, mask, comm_name, nodes, ranks, rank, logger);
    return 0;
}

static int
init_v6(void **out, uint64_t comm_hash, int *mask, const char *comm_name, int nodes, int ranks,
        int rank, nccl_logger *logger)
{
    init_later(out, 6, &ncclProfiler_v6, comm_hash, mask, comm_name, nodes, ranks, rank, logger);
    return 0;
}
