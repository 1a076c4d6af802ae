/*
 * bindings/nccl/probe.c - turns NCCL's events into timing records.
 *
 * Operation n has slot n mod CAIRN_PROBE_SLOTS. The slot's owner word is 2 n, or 2 n + 1 while a
 * thread holds it. A thread takes it with one compare-and-exchange from the even value, and returns
 * it with one store.
 */
#include "bindings/nccl/probe.h"

#include "bindings/nccl/device_clock.h"
#include "bindings/nccl/profiler_abi.h"
#include "bindings/nccl/sampler.h"
#include "cairn/timing.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

struct cairn_probe_comm {
    _Atomic bool used;
    uint64_t hash;
    uint16_t ranks; /* 0: not known */
    int32_t rank;   /* -1: not known */
    struct cairn_device_clock clock;
    _Atomic uint64_t last_timed; /* the operation whose kernels were the last to start; 0: none */
    _Atomic uint64_t joined_ns;  /* when the membership was last recorded */
    _Atomic uint64_t transfers;  /* point-to-point operations, which NCCL does not number */
};

/* NCCL reads its mask when a group of operations begins, and we set it per operation: this many
 * more operations may have their kernels timed after we turn it off. */
enum { LINGER_OPERATIONS = 64 };

/* We record a membership again after this time, with the next operation, for readers that begin
 * late. */
static const uint64_t join_again_ns = UINT64_C(10000000000);

struct slot {
    _Atomic uint64_t owner;
    struct cairn_probe_comm *comm;
    struct cairn_timing_record record;
    uint64_t started;         /* a bit per channel */
    _Atomic uint64_t stopped; /* the same; looked at without the slot too */
    uint64_t first_start_ns, last_stop_ns;
    uint32_t channels; /* expected; 0: not known */
    bool on_host;      /* the two times are of the host's clock, as long as the device's are not
                        * known */
    bool over;         /* its last record is written */
};

static struct cairn_probe_comm comms[CAIRN_PROBE_COMMS_MAX];
static struct slot slots[CAIRN_PROBE_SLOTS];
static _Atomic uint64_t last_operation;
static struct cairn_sampler sampler;
static struct cairn_timing *timing;
static _Atomic bool enabled, kernels_wanted;
static _Atomic uint32_t lingering; /* operations */
static _Atomic uint32_t process_rank = UINT32_MAX;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static uint64_t
now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

/* ---- names ---- */

static const struct {
    const char *name;
    uint16_t op;
} operations[] = {
    {"AllReduce", CAIRN_ALL_REDUCE},
    {"AllGather", CAIRN_ALL_GATHER},
    {"ReduceScatter", CAIRN_REDUCE_SCATTER},
    {"Send", CAIRN_SEND},
    {"Recv", CAIRN_RECV},
    {"Broadcast", CAIRN_BROADCAST},
    {"Reduce", CAIRN_REDUCE},
    {"AlltoAll", CAIRN_ALL_TO_ALL},
    {"Gather", CAIRN_GATHER},
    {"Scatter", CAIRN_SCATTER},
};

/* 0 for none of ours. */
static uint16_t
operation_of(const char *func)
{
    for (size_t i = 0; func && i < sizeof operations / sizeof *operations; i++)
        if (strcmp(func, operations[i].name) == 0)
            return operations[i].op;
    return 0;
}

/* The bytes of an element. Only unsigned bytes have no name in NCCL up to 2.30. */
static uint64_t
element_bytes(const char *datatype)
{
    static const struct {
        const char *name;
        uint8_t bytes;
    } types[] = {{"Bfloat16", 2}, {"Float32", 4}, {"Float16", 2}, {"Int8", 1},  {"Int64", 8},
                 {"Int32", 4},    {"Float64", 8}, {"Uint32", 4},  {"Uint64", 8}};

    if (!datatype || strncmp(datatype, "nccl", 4) != 0)
        return 1;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(datatype + 4, types[i].name) == 0)
            return types[i].bytes;
    return 1;
}

/* ---- the ring and memberships ---- */

bool
cairn_probe_open(const struct cairn_probe_options *options)
{
    bool is_open;

    pthread_mutex_lock(&opening);
    if (!timing && cairn_timing_open(CAIRN_PROBE_RING_RECORDS, &timing) == CAIRN_OK) {
        cairn_sampler_init(&sampler, options->kernel_percent, now());
        atomic_store_explicit(&process_rank, options->rank, memory_order_relaxed);
        atomic_store_explicit(&kernels_wanted, options->kernel_percent > 0, memory_order_relaxed);
        atomic_store_explicit(&enabled, true, memory_order_release);
    }
    is_open = timing != NULL;
    pthread_mutex_unlock(&opening);
    return is_open;
}

void
cairn_probe_disable(void)
{
    atomic_store_explicit(&enabled, false, memory_order_relaxed);
    atomic_store_explicit(&kernels_wanted, false, memory_order_relaxed);
}

bool
cairn_probe_enabled(void)
{
    return atomic_load_explicit(&enabled, memory_order_acquire);
}

bool
cairn_probe_wants_kernels(void)
{
    return atomic_load_explicit(&kernels_wanted, memory_order_relaxed);
}

static uint16_t
bounded_ranks(int32_t ranks)
{
    return ranks < 0 ? 0 : ranks > CAIRN_COMM_RANKS_MAX ? CAIRN_COMM_RANKS_MAX : (uint16_t)ranks;
}

static void
say_membership(struct cairn_probe_comm *comm, uint64_t time_ns)
{
    atomic_store_explicit(&comm->joined_ns, time_ns, memory_order_relaxed);
    (void)cairn_timing_write(timing,
                             &(struct cairn_timing_record){
                                 .comm = comm->hash,
                                 .enter_ns = time_ns,
                                 .rank = atomic_load_explicit(&process_rank, memory_order_relaxed),
                                 .peer = (uint32_t)comm->rank,
                                 .ranks = comm->ranks,
                                 .op = CAIRN_TIMING_MEMBER});
}

struct cairn_probe_comm *
cairn_probe_join(uint64_t hash, int32_t ranks, int32_t rank)
{
    struct cairn_probe_comm *comm = NULL;
    uint32_t unknown = UINT32_MAX;

    if (rank >= 0 && (ranks < 1 || rank >= ranks))
        return NULL;
    for (size_t i = 0; i < CAIRN_PROBE_COMMS_MAX && !comm; i++)
        if (!atomic_exchange_explicit(&comms[i].used, true, memory_order_acquire))
            comm = &comms[i];
    if (!comm)
        return NULL;
    comm->hash = hash;
    comm->ranks = bounded_ranks(ranks);
    comm->rank = rank;
    cairn_device_clock_reset(&comm->clock);
    atomic_store_explicit(&comm->last_timed, 0, memory_order_relaxed);
    atomic_store_explicit(&comm->transfers, 0, memory_order_relaxed);
    if (rank >= 0) {
        atomic_compare_exchange_strong_explicit(&process_rank, &unknown, (uint32_t)rank,
                                                memory_order_relaxed, memory_order_relaxed);
        say_membership(comm, now());
    }
    return comm;
}

/* ---- slots ---- */

static struct slot *
slot_of(uint64_t operation)
{
    return &slots[operation % CAIRN_PROBE_SLOTS];
}

/* Takes the slot of an operation; NULL if another operation or another thread has it. */
static struct slot *
take(uint64_t operation)
{
    struct slot *slot = slot_of(operation);
    uint64_t expected = 2 * operation;

    if (operation == 0 ||
        !atomic_compare_exchange_strong_explicit(&slot->owner, &expected, expected + 1,
                                                 memory_order_acquire, memory_order_relaxed))
        return NULL;
    return slot;
}

static void
give_back(struct slot *slot, uint64_t operation)
{
    atomic_store_explicit(&slot->owner, 2 * operation, memory_order_release);
}

static uint64_t
host_ns(const struct slot *slot, uint64_t time_ns)
{
    return slot->on_host ? time_ns : cairn_device_clock_host_ns(&slot->comm->clock, time_ns);
}

/* Writes the last record of an operation once all channels that started have stopped. */
static void
end(struct slot *slot)
{
    if (slot->over || slot->started == 0 ||
        slot->started != atomic_load_explicit(&slot->stopped, memory_order_relaxed))
        return;
    slot->over = true;
    slot->record.start_ns = host_ns(slot, slot->first_start_ns);
    slot->record.end_ns = host_ns(slot, slot->last_stop_ns);
    (void)cairn_timing_write(timing, &slot->record);
}

/* Ends an operation with an unknown number of channels, or with missing channels. */
static void
settle(uint64_t operation)
{
    struct slot *slot = take(operation);

    if (slot) {
        end(slot);
        give_back(slot, operation);
    }
}

void
cairn_probe_leave(struct cairn_probe_comm *comm)
{
    settle(atomic_load_explicit(&comm->last_timed, memory_order_relaxed));
    atomic_store_explicit(&comm->used, false, memory_order_release);
}

/* Takes a slot for an operation whose kernels may be timed, and first writes the last record of the
 * slot's former operation. 0: the slot is busy. */
static uint64_t
open_slot(struct cairn_probe_comm *comm, const struct cairn_probe_task *task,
          const struct cairn_timing_record *record)
{
    uint64_t operation = atomic_fetch_add_explicit(&last_operation, 1, memory_order_relaxed) + 1;
    struct slot *slot = slot_of(operation);
    uint64_t former = atomic_load_explicit(&slot->owner, memory_order_relaxed);

    if (former % 2 != 0 || former > 2 * operation ||
        !atomic_compare_exchange_strong_explicit(&slot->owner, &former, former + 1,
                                                 memory_order_acquire, memory_order_relaxed))
        return 0;
    end(slot);
    slot->comm = comm;
    slot->record = *record;
    slot->started = 0;
    atomic_store_explicit(&slot->stopped, 0, memory_order_relaxed);
    slot->first_start_ns = slot->last_stop_ns = 0;
    slot->channels = task->channels <= NCCL_CHANNELS_MAX ? task->channels : 0;
    slot->on_host = slot->over = false;
    give_back(slot, operation);
    return operation;
}

/* ---- operations ---- */

/* Whether an operation that is entered now may have its kernels timed. */
static bool
may_be_timed(void)
{
    uint32_t left = atomic_load_explicit(&lingering, memory_order_relaxed);

    if (cairn_probe_wants_kernels())
        atomic_store_explicit(&lingering, LINGER_OPERATIONS, memory_order_relaxed);
    else if (left > 0)
        atomic_store_explicit(&lingering, left - 1, memory_order_relaxed);
    else
        return false;
    return true;
}

uint64_t
cairn_probe_enter(struct cairn_probe_comm *comm, const struct cairn_probe_task *task)
{
    uint64_t time_ns = now();
    struct cairn_timing_record record = {
        .comm = task->comm_hash ? task->comm_hash : comm->hash,
        .seq = task->point_to_point ? 0 : task->seq + 1,
        .enter_ns = time_ns,
        .rank = atomic_load_explicit(&process_rank, memory_order_relaxed),
        .peer = task->point_to_point ? (uint32_t)task->peer : CAIRN_PEER_NONE,
        .ranks = comm->ranks,
        .op = operation_of(task->func)};
    uint64_t next_number;
    bool timed;

    if (record.op == 0 || record.comm == 0 || !cairn_probe_enabled())
        return 0;
    if (comm->rank >= 0 && task->rank != comm->rank) { /* NCCL does not pass what we expect: stop
                                                        * timing */
        cairn_probe_disable();
        return 0;
    }
    if (comm->rank >= 0 &&
        time_ns > atomic_load_explicit(&comm->joined_ns, memory_order_relaxed) + join_again_ns)
        say_membership(comm, time_ns); /* two threads may both report it: harmless */
    record.bytes = task->count * element_bytes(task->datatype);
    if (record.op == CAIRN_REDUCE_SCATTER && comm->ranks) /* NCCL counts what a rank gets */
        record.bytes *= comm->ranks;
    (void)cairn_timing_write(timing, &record);
    timed = may_be_timed();
    next_number = task->point_to_point
                      ? atomic_fetch_add_explicit(&comm->transfers, 1, memory_order_relaxed) + 1
                      : task->seq + 1;
    atomic_store_explicit(
        &kernels_wanted,
        cairn_sampler_next(&sampler, next_number, time_ns, cairn_timing_wanted_until_ns(timing)),
        memory_order_relaxed);
    return timed ? open_slot(comm, task, &record) : 0;
}

/* ---- kernels ---- */

/*
 * Reads the clock only at an operation's first start and last stop: it is the main cost of these
 * calls, and one reading at each end estimates the clocks' offset as well as one per channel.
 */
void
cairn_probe_kernel_start(uint64_t operation, uint32_t channel, uint64_t device_ns)
{
    struct slot *slot = channel < NCCL_CHANNELS_MAX ? take(operation) : NULL;
    uint64_t bit, started, time_ns, former = 0;

    if (!slot)
        return;
    bit = UINT64_C(1) << channel;
    started = slot->started;
    if (slot->over || (started & bit)) {
        give_back(slot, operation);
        return;
    }
    slot->started = started | bit;
    if (started == 0) {
        time_ns = now();
        if (device_ns)
            cairn_device_clock_observe(&slot->comm->clock, device_ns, time_ns);
        slot->on_host = device_ns == 0;
        slot->first_start_ns = device_ns ? device_ns : time_ns;
        slot->record.start_ns = host_ns(slot, slot->first_start_ns);
        (void)cairn_timing_write(timing, &slot->record);
        former = atomic_exchange_explicit(&slot->comm->last_timed, operation, memory_order_relaxed);
    } else if (!slot->on_host && device_ns && device_ns < slot->first_start_ns) {
        slot->first_start_ns = device_ns;
    }
    give_back(slot, operation);
    if (former != operation) /* the kernels of a communicator follow one another: that one has
                              * ended */
        settle(former);
}

/* With the slot taken, for a channel that has started and not stopped. */
static void
stop_channel(struct slot *slot, uint64_t bit, uint64_t device_ns)
{
    uint64_t stopped = atomic_load_explicit(&slot->stopped, memory_order_relaxed) | bit;
    bool is_last = slot->channels && (uint32_t)__builtin_popcountll(stopped) >= slot->channels;

    atomic_store_explicit(&slot->stopped, stopped, memory_order_relaxed);
    if (slot->on_host)
        device_ns = now();
    else if (device_ns == 0) /* known only by the host's clock, another one: it did not stop before
                              * it started */
        device_ns = slot->first_start_ns;
    else if (is_last)
        cairn_device_clock_observe(&slot->comm->clock, device_ns, now());
    if (device_ns > slot->last_stop_ns)
        slot->last_stop_ns = device_ns;
    if (is_last)
        end(slot);
}

void
cairn_probe_kernel_stop(uint64_t operation, uint32_t channel, uint64_t device_ns)
{
    struct slot *slot = slot_of(operation);
    uint64_t bit;

    if (channel >= NCCL_CHANNELS_MAX)
        return;
    bit = UINT64_C(1) << channel;
    /* NCCL reports it twice: ignore the second */
    if (atomic_load_explicit(&slot->stopped, memory_order_relaxed) & bit)
        return;
    slot = take(operation);
    if (!slot)
        return;
    if (!slot->over && (slot->started & bit) &&
        !(atomic_load_explicit(&slot->stopped, memory_order_relaxed) & bit))
        stop_channel(slot, bit, device_ns);
    give_back(slot, operation);
}
