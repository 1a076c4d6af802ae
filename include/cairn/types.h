/*
 * cairn/types.h - the plain values that every part of Cairn uses: data types, kinds of tensors,
 * slices, generation names. Values are small, copied, and have no end function.
 */
#ifndef CAIRN_TYPES_H
#define CAIRN_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CAIRN_DIMS_MAX = 8,        /* of a tensor */
    CAIRN_NAME_BYTES_MAX = 256 /* of a tensor's name, with its terminating NUL */
};

/* Element types; the names are those of safetensors. X(symbol, value, text, element bytes) */
#define CAIRN_DTYPE_LIST(X)                                                                        \
    X(CAIRN_BOOL, 1, "BOOL", 1)                                                                    \
    X(CAIRN_U8, 2, "U8", 1)                                                                        \
    X(CAIRN_I8, 3, "I8", 1)                                                                        \
    X(CAIRN_F8_E5M2, 4, "F8_E5M2", 1)                                                              \
    X(CAIRN_F8_E4M3, 5, "F8_E4M3", 1)                                                              \
    X(CAIRN_I16, 6, "I16", 2)                                                                      \
    X(CAIRN_U16, 7, "U16", 2)                                                                      \
    X(CAIRN_F16, 8, "F16", 2)                                                                      \
    X(CAIRN_BF16, 9, "BF16", 2)                                                                    \
    X(CAIRN_I32, 10, "I32", 4)                                                                     \
    X(CAIRN_U32, 11, "U32", 4)                                                                     \
    X(CAIRN_F32, 12, "F32", 4)                                                                     \
    X(CAIRN_I64, 13, "I64", 8)                                                                     \
    X(CAIRN_U64, 14, "U64", 8)                                                                     \
    X(CAIRN_F64, 15, "F64", 8)                                                                     \
    X(CAIRN_C64, 16, "C64", 8)

enum cairn_dtype {
#define CAIRN_DTYPE_ENUM(symbol, value, text, bytes) symbol = value,
    CAIRN_DTYPE_LIST(CAIRN_DTYPE_ENUM)
#undef CAIRN_DTYPE_ENUM
};

/* The role of a tensor in the job. */
enum cairn_kind {
    CAIRN_PARAM = 1,     /* a parameter */
    CAIRN_OPTIMIZER = 2, /* an optimizer moment or master weight */
    CAIRN_BUFFER = 3,    /* other tensor state, such as running statistics */
    CAIRN_OPAQUE = 4     /* bytes that only the trainer understands: RNG state, data
                          * cursor */
};

/*
 * The part of a tensor that one rank holds: an N-d box, contiguous and row-major at `address`.
 * struct_bytes works as cairn/client.h says; inside Cairn it is not used.
 *
 * A flat range [flat_begin, flat_end) cuts the row-major box to a range of its elements, as ZeRO,
 * FSDP1 and Megatron's distributed optimizer do. `address` is then that of the range's first
 * element. flat_begin = flat_end = 0 means the whole box.
 *
 * An opaque blob is a CAIRN_U8 tensor of one dimension and kind CAIRN_OPAQUE.
 *
 * Replicas are ranks that hold the same slice of the same tensor. They number themselves 0 to
 * replica_count - 1, and each captures its 1/replica_count of the bytes. If there are few bytes,
 * one of them captures all. Two replicas with the same number would leave bytes that nobody
 * captures: then no generation is committed, and the ranks are told the tensor's name.
 * replica_count = 1 (or 0) means that there are no replicas.
 */
struct cairn_slice {
    uint32_t struct_bytes; /* sizeof(struct cairn_slice) */
    uint32_t reserved;     /* 0 */
    const char *name;      /* of the tensor, the same on all ranks; UTF-8, < CAIRN_NAME_BYTES_MAX */
    enum cairn_dtype dtype;
    enum cairn_kind kind;
    uint32_t dims;                   /* 0 (a scalar) to CAIRN_DIMS_MAX */
    int32_t device;                  /* -1: host memory; else the ordinal of the CUDA device */
    uint64_t shape[CAIRN_DIMS_MAX];  /* of the whole tensor, in elements */
    uint64_t offset[CAIRN_DIMS_MAX]; /* of the box, in elements */
    uint64_t extent[CAIRN_DIMS_MAX]; /* of the box, in elements */
    uint64_t flat_begin;
    uint64_t flat_end;
    uint32_t replica_index;
    uint32_t replica_count;
    void *address; /* of this rank's part; host memory, or memory of `device` */
};

#define CAIRN_SLICE_INIT .struct_bytes = sizeof(struct cairn_slice)

/*
 * The name of a generation. Ordered by epoch, then step. All zero: no generation. A value that
 * never grows, so it needs no struct_bytes.
 */
struct cairn_generation {
    uint64_t epoch;
    uint64_t step;
};

/* Returns -1, 0 or 1 if a is older than, the same as or newer than b. */
static inline int
cairn_generation_compare(struct cairn_generation a, struct cairn_generation b)
{
    if (a.epoch != b.epoch)
        return a.epoch < b.epoch ? -1 : 1;
    if (a.step != b.step)
        return a.step < b.step ? -1 : 1;
    return 0;
}

/* Returns the bytes of one element, 0 for an unknown value. Thread: any. */
size_t cairn_dtype_bytes(enum cairn_dtype dtype);

/* Returns the safetensors name of a dtype, "?" for an unknown value; static. Thread: any. */
const char *cairn_dtype_name(enum cairn_dtype dtype);

/* Returns the dtype of a safetensors name, 0 for an unknown name. Thread: any. */
enum cairn_dtype cairn_dtype_from_name(const char *name);

#ifdef __cplusplus
}
#endif
#endif
