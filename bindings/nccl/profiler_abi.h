/*
 * bindings/nccl/profiler_abi.h - what NCCL and a profiler plugin exchange, versions 3 to 6, on
 * 64-bit Linux.
 *
 * NCCL looks up the data symbols ncclProfiler_v6, _v5, _v4, _v3 in this order and takes the first
 * that it knows: v3 in NCCL 2.26, v4 in 2.27, v5 in 2.28, v6 from 2.29 on. Each is a table of a
 * name and five functions. One bit names an event, the same in all versions; a descriptor says
 * which event begins, and of what. v5 and v6 have one layout for everything they share; we read
 * nothing of v6's own events (copy engines).
 *
 * Only fields that we read or change have names; the others are padding. Sizes and offsets are
 * asserted below.
 */
#ifndef CAIRN_NCCL_PROFILER_ABI_H
#define CAIRN_NCCL_PROFILER_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum nccl_event {
    NCCL_GROUP = 0x1,
    NCCL_COLL = 0x2,
    NCCL_P2P = 0x4,
    NCCL_PROXY_OP = 0x8,
    NCCL_PROXY_STEP = 0x10,
    NCCL_PROXY_CTRL = 0x20,
    NCCL_KERNEL_CH = 0x40,
    NCCL_NET_PLUGIN = 0x80,
    NCCL_GROUP_API = 0x100, /* from v5 on */
    NCCL_COLL_API = 0x200,
    NCCL_P2P_API = 0x400,
    NCCL_KERNEL_LAUNCH = 0x800,
    NCCL_CE_COLL = 0x1000, /* v6: copy engines */
    NCCL_CE_SYNC = 0x2000,
    NCCL_CE_BATCH = 0x4000
};

enum { NCCL_STATE_KERNEL_CH_STOP = 22, NCCL_STATE_CE_FIRST = 25 };
enum { NCCL_LOG_WARN = 2, NCCL_LOG_INFO = 3 };
enum { NCCL_LOG_INIT = 0x1 }; /* the subsystem */
enum { NCCL_CHANNELS_MAX = 64 };

/* What all descriptors begin with; v3 and v4 define the lowest byte of `type` alone. */
struct nccl_descriptor {
    union {
        uint8_t type8;
        uint64_t type64;
    };
    void *parent;
    int32_t rank; /* within the communicator */
};

struct nccl_descriptor_v3 {
    struct nccl_descriptor head;
    union {
        struct {
            const char *name;
            uint64_t comm_hash;
            uint64_t seq;
            const char *func;
            const void *send;
            void *recv;
            size_t count;
            int32_t root;
            const char *datatype;
            uint8_t channels_max;
            uint8_t warps;
            const char *algorithm;
            const char *protocol;
        } coll;
        struct {
            const char *name;
            uint64_t comm_hash;
            const char *func;
            void *buffer;
            const char *datatype;
            size_t count;
            int32_t peer;
        } p2p;
        struct {
            uint8_t channel;
        } kernel_ch;
    };
};

struct nccl_descriptor_v4 {
    struct nccl_descriptor head;
    union {
        struct {
            uint64_t seq;
            const char *func;
            const void *send;
            void *recv;
            size_t count;
            int32_t root;
            const char *datatype;
            uint8_t channels;
            uint8_t warps;
            const char *algorithm;
            const char *protocol;
        } coll;
        struct {
            const char *func;
            void *buffer;
            const char *datatype;
            size_t count;
            int32_t peer;
            uint8_t channels; /* NCCL 2.28 leaves it undefined in v4 */
        } p2p;
        struct {
            uint8_t channel;
            uint64_t device_ns; /* the GPU's global timer at the start */
        } kernel_ch;
    };
};

/* v5 and v6. */
struct nccl_descriptor_v5 {
    struct nccl_descriptor head;
    union {
        struct {
            uint64_t seq;
            const char *func;
            const void *send;
            void *recv;
            size_t count;
            int32_t root;
            const char *datatype;
            uint8_t channels;
            uint8_t warps;
            const char *algorithm;
            const char *protocol;
            void *parent_group;
        } coll;
        struct {
            const char *func;
            void *buffer;
            const char *datatype;
            size_t count;
            int32_t peer;
            uint8_t channels;
            void *parent_group;
        } p2p;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            int32_t root;
            void *stream;
            bool captured; /* into a CUDA graph, which replays it */
        } coll_api;
        struct {
            uint8_t channel;
            uint64_t device_ns;
        } kernel_ch;
        uint8_t room[88];
    };
};

/* Of a change of state; from v4 on. */
union nccl_state {
    size_t transfer_bytes;
    uint64_t device_ns; /* the GPU's global timer at the stop of a kernel's channel */
};

/* subsystem and level as above; printf's conversions. */
typedef void nccl_logger(int level, unsigned long subsystem, const char *file, int line,
                         const char *format, ...);

/* Results are 0; NCCL reads that of init alone. A context is NULL where init failed. */
struct nccl_profiler_v3 {
    const char *name;
    int (*init)(void **context, int *mask);
    int (*start)(void *context, void **handle, void *descriptor);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, void *arguments); /* of GroupApi's states NULL */
    int (*finalize)(void *context);
};

struct nccl_profiler_v4 {
    const char *name;
    int (*init)(void **context, int *mask, const char *comm_name, uint64_t comm_hash, int nodes,
                int ranks, int rank, nccl_logger *logger);
    int (*start)(void *context, void **handle, void *descriptor);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, void *arguments);
    int (*finalize)(void *context);
};

/* v5 and v6; hash and mask have changed places. */
struct nccl_profiler_v5 {
    const char *name;
    int (*init)(void **context, uint64_t comm_hash, int *mask, const char *comm_name, int nodes,
                int ranks, int rank, nccl_logger *logger);
    int (*start)(void *context, void **handle, void *descriptor);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, void *arguments);
    int (*finalize)(void *context);
};

_Static_assert(sizeof(struct nccl_profiler_v3) == 48, "a table is a name and five functions");
_Static_assert(sizeof(struct nccl_profiler_v4) == 48, "a table is a name and five functions");
_Static_assert(sizeof(struct nccl_profiler_v5) == 48, "a table is a name and five functions");
_Static_assert(sizeof(struct nccl_descriptor_v3) == 120, "v3");
_Static_assert(sizeof(struct nccl_descriptor_v4) == 104, "v4");
_Static_assert(sizeof(struct nccl_descriptor_v5) == 112, "v5");
_Static_assert(offsetof(struct nccl_descriptor, parent) == 8, "parent");
_Static_assert(offsetof(struct nccl_descriptor, rank) == 16, "rank");
_Static_assert(offsetof(struct nccl_descriptor_v3, coll.seq) == 40, "v3 coll");
_Static_assert(offsetof(struct nccl_descriptor_v3, coll.count) == 72, "v3 coll");
_Static_assert(offsetof(struct nccl_descriptor_v3, coll.channels_max) == 96, "v3 coll");
_Static_assert(offsetof(struct nccl_descriptor_v3, p2p.peer) == 72, "v3 p2p");
_Static_assert(offsetof(struct nccl_descriptor_v3, kernel_ch.channel) == 24, "v3 kernel_ch");
_Static_assert(offsetof(struct nccl_descriptor_v4, coll.datatype) == 72, "v4 coll");
_Static_assert(offsetof(struct nccl_descriptor_v4, coll.channels) == 80, "v4 coll");
_Static_assert(offsetof(struct nccl_descriptor_v4, p2p.peer) == 56, "v4 p2p");
_Static_assert(offsetof(struct nccl_descriptor_v4, kernel_ch.device_ns) == 32, "v4 kernel_ch");
_Static_assert(offsetof(struct nccl_descriptor_v5, coll.parent_group) == 104, "v5 coll");
_Static_assert(offsetof(struct nccl_descriptor_v5, p2p.channels) == 60, "v5 p2p");
_Static_assert(offsetof(struct nccl_descriptor_v5, p2p.parent_group) == 64, "v5 p2p");
_Static_assert(offsetof(struct nccl_descriptor_v5, coll_api.captured) == 64, "v5 coll_api");
_Static_assert(offsetof(struct nccl_descriptor_v5, kernel_ch.device_ns) == 32, "v5 kernel_ch");

#endif
