/* tests/support/nccl/recording_plugin.c - a profiler plugin that checks and counts what it is
 * handed. */
#include "tests/support/nccl/recording_plugin.h"

#include "bindings/nccl/profiler_abi.h"

enum { OBJECTS_MAX = 1 << 17 };

struct object {
    _Atomic int bit; /* of the event, + 1 */
    _Atomic bool ended;
};

extern struct recording recording;
extern const struct nccl_profiler_v3 ncclProfiler_v3;
extern const struct nccl_profiler_v4 ncclProfiler_v4;
extern const struct nccl_profiler_v5 ncclProfiler_v5;

struct recording recording = {.mask = 0x7fff};
static struct object objects[OBJECTS_MAX], context_object;
static _Atomic int objects_used;

static bool
is_object(const void *handle)
{
    const struct object *object = handle;

    return object >= objects && object < objects + OBJECTS_MAX && object->bit > 0;
}

static int
join(void **context, int *mask)
{
    *context = &context_object;
    __atomic_store_n(mask, recording.mask, __ATOMIC_RELAXED);
    recording.joined++;
    return 0;
}

static int
init_v3(void **context, int *mask)
{
    return join(context, mask);
}

static int
init_v4(void **context, int *mask, const char *comm_name, uint64_t comm_hash, int nodes, int ranks,
        int rank, nccl_logger *logger)
{
    (void)comm_name, (void)comm_hash, (void)nodes, (void)ranks, (void)rank, (void)logger;
    return join(context, mask);
}

static int
init_v5(void **context, uint64_t comm_hash, int *mask, const char *comm_name, int nodes, int ranks,
        int rank, nccl_logger *logger)
{
    (void)comm_name, (void)comm_hash, (void)nodes, (void)ranks, (void)rank, (void)logger;
    return join(context, mask);
}

static int
begin(void *context, void **handle, const struct nccl_descriptor *head, uint64_t type)
{
    struct object *object = &objects[objects_used++];
    int bit = type ? __builtin_ctzll(type) : 14;

    recording.wrong +=
        context != &context_object || bit > 14 || (head->parent && !is_object(head->parent));
    recording.started[bit]++;
    recording.with_parent[bit] += head->parent != NULL;
    object->bit = bit + 1;
    *handle = object;
    return 0;
}

static int
start_old(void *context, void **handle, void *descriptor)
{
    const struct nccl_descriptor *head = descriptor;

    return begin(context, handle, head, head->type8);
}

static int
start_new(void *context, void **handle, void *descriptor)
{
    const struct nccl_descriptor_v5 *event = descriptor;

    if (event->head.type64 == NCCL_COLL)
        recording.wrong += event->coll.parent_group && !is_object(event->coll.parent_group);
    return begin(context, handle, &event->head, event->head.type64);
}

static int
stop(void *handle)
{
    struct object *object = handle;

    if (!is_object(handle) || atomic_exchange(&object->ended, true))
        recording.wrong++;
    else
        recording.stopped[object->bit - 1]++;
    return 0;
}

static int
record(void *handle, int state, void *arguments)
{
    recording.wrong += !is_object(handle);
    recording.kernel_stops += state == NCCL_STATE_KERNEL_CH_STOP && arguments;
    return 0;
}

static int
finalize(void *context)
{
    recording.wrong += context != &context_object;
    recording.left++;
    return 0;
}

const struct nccl_profiler_v3 ncclProfiler_v3 = {"recording", init_v3, start_old,
                                                 stop,        record,  finalize};
const struct nccl_profiler_v4 ncclProfiler_v4 = {"recording", init_v4, start_old,
                                                 stop,        record,  finalize};
const struct nccl_profiler_v5 ncclProfiler_v5 = {"recording", init_v5, start_new,
                                                 stop,        record,  finalize};
