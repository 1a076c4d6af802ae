/*
 * cairn/types.h - the plain values that every part of Cairn speaks in: data types, kinds of
 * tensors, slices, generation names. Values are small, copied, and have no end function.
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
    CAIRN_NAME_BYTES_MAX = 256 /* of a tensor's name, its terminating NUL included */
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

/* What a tensor is to the job. */
enum cairn_kind {
    CAIRN_PARAM = 1,     /* a parameter */
    CAIRN_OPTIMIZER = 2, /* an optimizer moment or master weight */
    CAIRN_BUFFER = 3,    /* other tensor state, such as running statistics */
    CAIRN_OPAQUE = 4     /* bytes that mean something to the trainer alone: RNG state, data
                          * cursor */
};

/*
 * The part of a tensor that one rank holds: an N-d box of the tensor, contiguous and row-major at
 * `address`, optionally cut to the flat range [flat_begin, flat_end) of the row-major box, counted
 * in elements (ZeRO, FSDP1 and Megatron's distributed optimizer hold such ranges).
 * flat_begin = flat_end = 0 means the whole box. With a flat range, `address` is that of the
 * range's first element.
 *
 * An opaque blob is a CAIRN_U8 tensor of one dimension and kind CAIRN_OPAQUE.
 *
 * Replicas: ranks that hold the same slice of the same tensor number themselves 0 …
 * replica_count-1. Each captures its 1/replica_count of the bytes, of few bytes one of them all; so
 * two of the same number would lose what nobody captures: while they say so no generation is
 * committed, and the ranks are told which. replica_count = 1 (or 0) where there is none.
 */
struct cairn_slice {
    const char *name; /* of the tensor, the same on all ranks; UTF-8, < CAIRN_NAME_BYTES_MAX */
    enum cairn_dtype dtype;
    enum cairn_kind kind;
    uint32_t dims;                   /* 0 (a scalar) … CAIRN_DIMS_MAX */
    uint64_t shape[CAIRN_DIMS_MAX];  /* of the whole tensor, in elements */
    uint64_t offset[CAIRN_DIMS_MAX]; /* of the box, in elements */
    uint64_t extent[CAIRN_DIMS_MAX]; /* of the box, in elements */
    uint64_t flat_begin;
    uint64_t flat_end;
    uint32_t replica_index;
    uint32_t replica_count;
    void *address;     /* where this rank keeps it; host memory, or device memory with device >=
                         * 0 */
    int32_t device;    /* -1 host, else the CUDA device's ordinal */
    uint32_t reserved; /* 0 */
};

/* The name of a generation. Ordered by epoch, then step. All zero: none. */
struct cairn_generation {
    uint64_t epoch;
    uint64_t step;
};

/* -1, 0 or 1 as a is older than, the same as or newer than b. */
static inline int
cairn_generation_compare(struct cairn_generation a, struct cairn_generation b)
{
    if (a.epoch != b.epoch)
        return a.epoch < b.epoch ? -1 : 1;
    if (a.step != b.step)
        return a.step < b.step ? -1 : 1;
    return 0;
}

/* Bytes of one element, 0 for an unknown value. Thread: any. */
size_t cairn_dtype_bytes(enum cairn_dtype dtype);

/* The safetensors name of a dtype, "?" for an unknown value; static. Thread: any. */
const char *cairn_dtype_name(enum cairn_dtype dtype);

/* The dtype of a safetensors name, 0 where there is none. Thread: any. */
enum cairn_dtype cairn_dtype_from_name(const char *name);

#ifdef __cplusplus
}
#endif
#endif
