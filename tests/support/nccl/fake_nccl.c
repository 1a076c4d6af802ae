/* tests/support/nccl/fake_nccl.c - NCCL as a profiler plugin sees it. */
#include "tests/support/nccl/fake_nccl.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GARBAGE = 0xa5 };

static _Thread_local struct fake_nccl *logging;

void
fake_nccl_check(bool condition, const char *text, const char *file, int line)
{
    if (condition)
        return;
    fprintf(stderr, "%s:%d: not so: %s\n", file, line, text);
    fflush(stderr);
    _exit(1);
}

uint64_t
fake_now_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

/* The build folder is four levels above this program. */
const char *
fake_nccl_path(const char *name)
{
    static char path[4096 + 64];
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);

    CHECK(length > 0);
    program[length] = '\0';
    for (int i = 0; i < 5; i++)
        *strrchr(program, '/') = '\0';
    snprintf(path, sizeof path, "%s/libnccl-profiler-%s.so", program, name);
    return path;
}

__attribute__((format(printf, 5, 6))) static void
keep(int level, unsigned long subsystem, const char *file, int line, const char *format, ...)
{
    va_list arguments;

    (void)level, (void)subsystem, (void)file, (void)line;
    va_start(arguments, format);
    vsnprintf(logging->said, sizeof logging->said, format, arguments);
    va_end(arguments);
}

void
fake_nccl_open(struct fake_nccl *nccl, const char *path, int version)
{
    memset(nccl, 0, sizeof *nccl);
    nccl->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(nccl->library);
    for (nccl->version = version; nccl->version >= 1 && !nccl->table; nccl->version--) {
        char symbol[32];

        snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", nccl->version);
        nccl->table = dlsym(nccl->library, symbol);
        if (nccl->table)
            break;
    }
    CHECK(nccl->table);
}

void
fake_nccl_close(struct fake_nccl *nccl)
{
    dlclose(nccl->library);
}

void
fake_comm_init(struct fake_comm *comm, struct fake_nccl *nccl, uint64_t hash, int ranks, int rank)
{
    const struct nccl_profiler_v3 *v3 = nccl->table;
    const struct nccl_profiler_v4 *v4 = nccl->table;
    const struct nccl_profiler_v5 *v5 = nccl->table;

    *comm = (struct fake_comm){.nccl = nccl, .hash = hash, .ranks = ranks, .rank = rank};
    logging = nccl;
    if (nccl->version == 3)
        CHECK(v3->init(&comm->context, &nccl->mask) == 0);
    else if (nccl->version == 4)
        CHECK(v4->init(&comm->context, &nccl->mask, "name", hash, 1, ranks, rank, keep) == 0);
    else
        CHECK(v5->init(&comm->context, hash, &nccl->mask, NULL, 1, ranks, rank, keep) == 0);
}

void
fake_comm_finalize(struct fake_comm *comm)
{
    const struct nccl_profiler_v5 *table = comm->nccl->table;

    if (comm->context)
        table->finalize(comm->context);
}

void *
fake_start(const struct fake_nccl *nccl, void *context, void *descriptor)
{
    const struct nccl_profiler_v5 *table = nccl->table;
    void *handle = (void *)(uintptr_t)0xdead;          /* always to be written */
    uint8_t before[sizeof(struct nccl_descriptor_v4)]; /* the smallest */

    memcpy(before, descriptor, sizeof before);
    CHECK(table->start(context, &handle, descriptor) == 0);
    CHECK(memcmp(before, descriptor, sizeof before) == 0);
    CHECK(handle != (void *)(uintptr_t)0xdead);
    return handle;
}

void
fake_stop(const struct fake_nccl *nccl, void *handle)
{
    const struct nccl_profiler_v5 *table = nccl->table;

    if (handle)
        CHECK(table->stop(handle) == 0);
}

void
fake_record(const struct fake_nccl *nccl, void *handle, int state, void *arguments)
{
    const struct nccl_profiler_v5 *table = nccl->table;

    if (handle)
        CHECK(table->record(handle, state, arguments) == 0);
}

static int
function_number(const char *func)
{
    static const char *const names[5] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter",
                                         "AllReduce"};

    for (int i = 0; i < 5; i++)
        if (strcmp(func, names[i]) == 0)
            return i;
    return -1;
}

/* ---- up to 2.27 ---- */

static void *
start_task_v3(struct fake_comm *comm, const struct fake_task *task, void *group, uint64_t seq)
{
    struct nccl_descriptor_v3 event;

    memset(&event, GARBAGE, sizeof event);
    event.head.type8 = function_number(task->func) >= 0 ? NCCL_COLL : NCCL_P2P;
    event.head.parent = group;
    event.head.rank = task->rank >= 0 ? task->rank : comm->rank;
    if (event.head.type8 == NCCL_COLL) {
        event.coll.comm_hash = comm->hash;
        event.coll.seq = seq;
        event.coll.func = task->func;
        event.coll.count = task->count;
        event.coll.datatype = task->datatype;
    } else {
        event.p2p.comm_hash = comm->hash;
        event.p2p.func = task->func;
        event.p2p.count = task->count;
        event.p2p.datatype = task->datatype;
        event.p2p.peer = task->peer;
    }
    return fake_start(comm->nccl, comm->context, &event);
}

static void *
start_task_v4(struct fake_comm *comm, const struct fake_task *task, void *group, uint64_t seq)
{
    struct nccl_descriptor_v4 event;

    memset(&event, GARBAGE, sizeof event);
    event.head.type8 = function_number(task->func) >= 0 ? NCCL_COLL : NCCL_P2P;
    event.head.parent = group;
    event.head.rank = task->rank >= 0 ? task->rank : comm->rank;
    if (event.head.type8 == NCCL_COLL) {
        event.coll.seq = seq;
        event.coll.func = task->func;
        event.coll.count = task->count;
        event.coll.datatype = task->datatype;
        event.coll.channels = (uint8_t)task->channels;
    } else { /* without the number of channels, as NCCL 2.28 does it */
        event.p2p.func = task->func;
        event.p2p.count = task->count;
        event.p2p.datatype = task->datatype;
        event.p2p.peer = task->peer;
    }
    return fake_start(comm->nccl, comm->context, &event);
}

static struct fake_operation
enqueue_old(struct fake_comm *comm, const struct fake_task *task, int mask, uint64_t seq)
{
    struct fake_operation operation = {.comm = comm, .timed = mask & NCCL_KERNEL_CH};
    struct nccl_descriptor_v3 event;
    void *group;

    memset(&event, GARBAGE, sizeof event);
    event.head.type8 = NCCL_GROUP;
    event.head.parent = NULL;
    group = fake_start(comm->nccl, comm->context, &event);
    if (group)
        operation.handle = comm->nccl->version == 3 ? start_task_v3(comm, task, group, seq)
                                                    : start_task_v4(comm, task, group, seq);
    fake_stop(comm->nccl, operation.handle);
    fake_stop(comm->nccl, group);
    return operation;
}

/* ---- from 2.28 on ---- */

static void *
start_call(struct fake_comm *comm, const struct fake_task *task, void *group_call)
{
    struct nccl_descriptor_v5 event;

    memset(&event, GARBAGE, sizeof event);
    event.head.type64 = function_number(task->func) >= 0 ? NCCL_COLL_API : NCCL_P2P_API;
    event.head.parent = group_call;
    event.coll_api.func = task->func;
    event.coll_api.count = task->count;
    event.coll_api.datatype = task->datatype;
    event.coll_api.captured = task->replayed;
    return fake_start(comm->nccl, comm->context, &event);
}

static void *
start_task_v5(struct fake_comm *comm, const struct fake_task *task, void *call, void *group,
              uint64_t seq)
{
    struct nccl_descriptor_v5 event;

    memset(&event, GARBAGE, sizeof event);
    event.head.type64 = function_number(task->func) >= 0 ? NCCL_COLL : NCCL_P2P;
    event.head.parent = call;
    event.head.rank = task->rank >= 0 ? task->rank : comm->rank;
    if (event.head.type64 == NCCL_COLL) {
        event.coll.seq = seq;
        event.coll.func = task->func;
        event.coll.count = task->count;
        event.coll.datatype = task->datatype;
        event.coll.channels = (uint8_t)task->channels;
        event.coll.parent_group = group;
    } else {
        event.p2p.func = task->func;
        event.p2p.count = task->count;
        event.p2p.datatype = task->datatype;
        event.p2p.peer = task->peer;
        event.p2p.channels = (uint8_t)task->channels;
        event.p2p.parent_group = group;
    }
    return fake_start(comm->nccl, comm->context, &event);
}

static struct fake_operation
enqueue_new(struct fake_comm *comm, const struct fake_task *task, int mask, uint64_t seq)
{
    struct fake_operation operation = {.comm = comm, .timed = mask & NCCL_KERNEL_CH};
    struct nccl_descriptor_v5 event;
    void *group_call, *call, *group;

    memset(&event, 0, sizeof event);
    event.head.type64 = NCCL_GROUP_API;
    group_call = fake_start(comm->nccl, comm->context, &event);
    fake_record(comm->nccl, group_call, 23, NULL);
    call = start_call(comm, task, group_call);
    fake_stop(comm->nccl, call);
    fake_record(comm->nccl, group_call, 24, NULL);
    memset(&event, 0, sizeof event);
    event.head.type64 = NCCL_GROUP;
    group = fake_start(comm->nccl, comm->context, &event);
    operation.handle = start_task_v5(comm, task, call, group, seq);
    fake_stop(comm->nccl, operation.handle);
    fake_stop(comm->nccl, group);
    fake_stop(comm->nccl, group_call);
    return operation;
}

struct fake_operation
fake_enqueue(struct fake_comm *comm, const struct fake_task *task)
{
    int number = function_number(task->func);
    int mask = __atomic_load_n(&comm->nccl->mask, __ATOMIC_RELAXED);
    uint64_t seq = number >= 0 ? comm->seq[number] : 0;
    struct fake_operation operation = {.comm = comm};

    if (mask & (NCCL_COLL | NCCL_P2P | NCCL_KERNEL_CH))
        operation = comm->nccl->version < 5 ? enqueue_old(comm, task, mask, seq)
                                            : enqueue_new(comm, task, mask, seq);
    if (number >= 0 && !task->replayed)
        comm->seq[number]++;
    return operation;
}

/* ---- kernels ---- */

void *
fake_kernel_start(const struct fake_operation *operation, int channel, uint64_t device_ns)
{
    struct nccl_descriptor_v3 v3;
    struct nccl_descriptor_v4 v4;
    struct nccl_descriptor_v5 v5;
    struct fake_comm *comm = operation->comm;

    if (!operation->timed)
        return NULL;
    switch (comm->nccl->version) {
    case 3:
        memset(&v3, GARBAGE, sizeof v3);
        v3.head.type8 = NCCL_KERNEL_CH;
        v3.head.parent = operation->handle;
        v3.kernel_ch.channel = (uint8_t)channel;
        return fake_start(comm->nccl, comm->context, &v3);
    case 4:
        memset(&v4, GARBAGE, sizeof v4);
        v4.head.type8 = NCCL_KERNEL_CH;
        v4.head.parent = operation->handle;
        v4.kernel_ch.channel = (uint8_t)channel;
        v4.kernel_ch.device_ns = device_ns;
        return fake_start(comm->nccl, comm->context, &v4);
    default:
        memset(&v5, GARBAGE, sizeof v5);
        v5.head.type64 = NCCL_KERNEL_CH;
        v5.head.parent = operation->handle;
        v5.kernel_ch.channel = (uint8_t)channel;
        v5.kernel_ch.device_ns = device_ns;
        return fake_start(comm->nccl, comm->context, &v5);
    }
}

void
fake_kernel_stop(struct fake_comm *comm, void *handle, uint64_t device_ns)
{
    union nccl_state state = {.device_ns = device_ns};

    if (comm->nccl->version > 3)
        fake_record(comm->nccl, handle, NCCL_STATE_KERNEL_CH_STOP, &state);
    fake_stop(comm->nccl, handle);
}

void
fake_kernel(const struct fake_operation *operation, int channels, uint64_t start_ns,
            uint64_t stop_ns)
{
    void *handles[NCCL_CHANNELS_MAX];

    for (int i = 0; i < channels; i++)
        handles[i] = fake_kernel_start(operation, i, start_ns + (uint64_t)i);
    for (int i = 0; i < channels; i++)
        fake_kernel_stop(operation->comm, handles[i], stop_ns - (uint64_t)i);
}

/* ---- the ring ---- */

struct cairn_ring
fake_reader(void)
{
    DIR *folder = opendir("/proc/self/fd");
    struct cairn_ring ring = {0};
    const struct dirent *entry;
    int found = 0;

    CHECK(folder);
    while ((entry = readdir(folder))) {
        char path[300], target[300];
        struct stat status;
        ssize_t length;
        void *memory;
        int fd;

        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strncmp(target, "/memfd:cairn-timing", strlen("/memfd:cairn-timing")) != 0)
            continue;
        fd = open(path, O_RDWR | O_CLOEXEC);
        CHECK(fd >= 0 && fstat(fd, &status) == 0);
        memory = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        CHECK(memory != MAP_FAILED);
        CHECK(cairn_ring_open(memory, (size_t)status.st_size, &ring) == CAIRN_OK);
        found++;
    }
    closedir(folder);
    CHECK(found == 1);
    return ring;
}

uint32_t
fake_read(struct cairn_ring *ring, struct cairn_timing_record *records, uint32_t records_max)
{
    return cairn_ring_read(ring, records, records_max);
}

uint32_t
fake_read_operations(struct cairn_ring *ring, struct cairn_timing_record *records,
                     uint32_t records_max)
{
    uint32_t count = fake_read(ring, records, records_max), kept = 0;

    for (uint32_t i = 0; i < count; i++)
        if (records[i].op != CAIRN_TIMING_MEMBER)
            records[kept++] = records[i];
    return kept;
}

/* ---- tests ---- */

void
fake_open_one(struct fake_nccl *nccl, struct fake_comm *comm, int version)
{
    fake_nccl_open(nccl, fake_nccl_path("cairn"), version);
    CHECK(nccl->version == version);
    fake_comm_init(comm, nccl, 0xabc, 8, 5);
    CHECK(comm->context);
}

bool
fake_in_child(void (*body)(int version), int version, const char *percent)
{
    pid_t child;
    int status;

    fflush(NULL);
    child = fork();
    if (child == 0) {
        setenv("RANK", "37", 1);
        setenv("CAIRN_NCCL_KERNEL_PERCENT", percent, 1);
        body(version);
        exit(0); /* with what the sanitizers say at the end */
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return false;
    if (status != 0)
        fprintf(stderr, "version %d: the process of the test ended with status 0x%x\n", version,
                (unsigned)status);
    return status == 0;
}

bool
fake_each_version(void (*body)(int version), const char *percent)
{
    bool passed = true;

    for (int version = 3; version <= 6; version++)
        passed = fake_in_child(body, version, percent) && passed;
    return passed;
}
