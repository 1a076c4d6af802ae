/*
 * snapshot/cuda_driver.h - the part of the CUDA driver that we use, declared from its stable ABI.
 *
 * Needs no CUDA header and links nothing: the driver is opened at run time, by versioned symbol
 * names (dlsym of a plain name gives the ABI of CUDA 2). Private to mem_cuda.c.
 */
#ifndef CAIRN_SNAPSHOT_CUDA_DRIVER_H
#define CAIRN_SNAPSHOT_CUDA_DRIVER_H

#include "cairn/err.h"

#include <stddef.h>
#include <stdint.h>

typedef int cu_result; /* CUresult: 0 success, 600 not ready */
typedef int cu_device;
typedef struct cu_context *cu_context;
typedef struct cu_stream *cu_stream;
typedef struct cu_event *cu_event;
typedef uint64_t cu_pointer; /* CUdeviceptr: unsigned long long */

enum {
    CU_SUCCESS = 0,
    CU_OUT_OF_MEMORY = 2,
    CU_NOT_READY = 600,
    CU_ALREADY_REGISTERED = 712,
    CU_NOT_PERMITTED = 800,
    CU_NOT_SUPPORTED = 801,
    CU_CAPTURE_IMPLICIT = 906, /* the default stream, while one that waits for it is captured */
    CU_CAPTURE_NONE = 0,       /* CUstreamCaptureStatus */
    CU_CAPTURE_MODE_RELAXED = 2,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_HOST_PORTABLE = 1,         /* of cuMemHostRegister and cuMemHostAlloc: for every context */
    CU_ACCESS_IN_STREAM_ORDER = 1 /* CUmemcpySrcAccessOrder: after what the stream did before */
};

struct cu_location { /* CUmemLocation */
    int type, id;
};

/* CUmemcpyAttributes, of the copies of a batch. The locations matter for managed memory alone. */
struct cu_copy_attributes {
    int source_access_order;
    struct cu_location source_hint, target_hint;
    unsigned flags;
};

/* X(field, symbol, arguments) */
#define CAIRN_CUDA_LIST(X)                                                                         \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(error_name, "cuGetErrorName", (cu_result result, const char **text))                         \
    X(error_string, "cuGetErrorString", (cu_result result, const char **text))                     \
    X(device_get, "cuDeviceGet", (cu_device * device, int ordinal))                                \
    X(retain, "cuDevicePrimaryCtxRetain", (cu_context * context, cu_device device))                \
    X(release, "cuDevicePrimaryCtxRelease_v2", (cu_device device))                                 \
    X(push, "cuCtxPushCurrent_v2", (cu_context context))                                           \
    X(pop, "cuCtxPopCurrent_v2", (cu_context * context))                                           \
    X(priority_range, "cuCtxGetStreamPriorityRange", (int *least, int *greatest))                  \
    X(stream_create, "cuStreamCreateWithPriority",                                                 \
      (cu_stream * stream, unsigned flags, int level))                                             \
    X(stream_destroy, "cuStreamDestroy_v2", (cu_stream stream))                                    \
    X(stream_wait, "cuStreamWaitEvent", (cu_stream stream, cu_event event, unsigned flags))        \
    X(stream_query, "cuStreamQuery", (cu_stream stream))                                           \
    X(stream_finish, "cuStreamSynchronize", (cu_stream stream))                                    \
    X(stream_is_capturing, "cuStreamIsCapturing", (cu_stream stream, int *status))                 \
    X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                     \
    X(event_create, "cuEventCreate", (cu_event * event, unsigned flags))                           \
    X(event_destroy, "cuEventDestroy_v2", (cu_event event))                                        \
    X(event_record, "cuEventRecord", (cu_event event, cu_stream stream))                           \
    X(event_query, "cuEventQuery", (cu_event event))                                               \
    X(host_register, "cuMemHostRegister_v2", (void *host, size_t bytes, unsigned flags))           \
    X(host_unregister, "cuMemHostUnregister", (void *host))                                        \
    X(host_alloc, "cuMemHostAlloc", (void **host, size_t bytes, unsigned flags))                   \
    X(host_free, "cuMemFreeHost", (void *host))                                                    \
    X(copy_out, "cuMemcpyDtoHAsync_v2",                                                            \
      (void *host, cu_pointer region, size_t bytes, cu_stream stream))                             \
    X(copy_in, "cuMemcpyHtoDAsync_v2",                                                             \
      (cu_pointer region, const void *host, size_t bytes, cu_stream stream))

/* The same, of what drivers before CUDA 12.8 lack. */
#define CAIRN_CUDA_NEWER_LIST(X)                                                                   \
    X(copy_batch, "cuMemcpyBatchAsync",                                                            \
      (cu_pointer * targets, cu_pointer * sources, size_t * bytes, size_t count,                   \
       struct cu_copy_attributes * attributes, size_t * firsts, size_t attribute_count,            \
       size_t * failed, cu_stream stream))

struct cairn_cuda_driver {
    void *library;
#define CAIRN_CUDA_FIELD(field, symbol, arguments) cu_result(*field) arguments;
    CAIRN_CUDA_LIST(CAIRN_CUDA_FIELD)
    CAIRN_CUDA_NEWER_LIST(CAIRN_CUDA_FIELD)
#undef CAIRN_CUDA_FIELD
};

/*
 * Opens the driver at `path`, NULL: "libcuda.so.1". CAIRN_DEVICE if it is missing or too old: `why`
 * has the reason. Functions of newer drivers are NULL if missing. dlclose of out->library does not
 * unload the driver: it has threads of its own.
 */
CAIRN_MUST_CHECK cairn_err cairn_cuda_driver_open(const char *path, struct cairn_cuda_driver *out,
                                                  char *why, size_t why_bytes);

#endif
