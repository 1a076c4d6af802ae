/* tools/convert/torch/dtype.c - the table of PyTorch's element types. */
#include "tools/convert/torch/dtype.h"

#include <string.h>

/* Types that PyTorch got after 2021 have no storage class of their own. */
static const struct cairn_torch_dtype dtypes[] = {
    {"float32", "FloatStorage", 4, CAIRN_F32},
    {"bfloat16", "BFloat16Storage", 2, CAIRN_BF16},
    {"float16", "HalfStorage", 2, CAIRN_F16},
    {"float64", "DoubleStorage", 8, CAIRN_F64},
    {"int64", "LongStorage", 8, CAIRN_I64},
    {"int32", "IntStorage", 4, CAIRN_I32},
    {"int16", "ShortStorage", 2, CAIRN_I16},
    {"int8", "CharStorage", 1, CAIRN_I8},
    {"uint8", "ByteStorage", 1, CAIRN_U8},
    {"bool", "BoolStorage", 1, CAIRN_BOOL},
    {"complex64", "ComplexFloatStorage", 8, CAIRN_C64},
    {"complex128", "ComplexDoubleStorage", 16, 0},
    {"qint8", "QInt8Storage", 1, 0},
    {"quint8", "QUInt8Storage", 1, 0},
    {"qint32", "QInt32Storage", 4, 0},
    {"float8_e4m3fn", NULL, 1, CAIRN_F8_E4M3},
    {"float8_e5m2", NULL, 1, CAIRN_F8_E5M2},
    {"float8_e4m3fnuz", NULL, 1, 0},
    {"float8_e5m2fnuz", NULL, 1, 0},
    {"float8_e8m0fnu", NULL, 1, 0},
    {"float4_e2m1fn_x2", NULL, 1, 0},
    {"uint16", NULL, 2, CAIRN_U16},
    {"uint32", NULL, 4, CAIRN_U32},
    {"uint64", NULL, 8, CAIRN_U64},
    {"complex32", NULL, 4, 0},
    {"bits8", NULL, 1, 0},
    {"bits16", NULL, 2, 0},
    {"bits1x8", NULL, 1, 0},
    {"bits2x4", NULL, 1, 0},
    {"bits4x2", NULL, 1, 0},
};

enum { DTYPE_COUNT = sizeof(dtypes) / sizeof(dtypes[0]) };

const struct cairn_torch_dtype *
cairn_torch_dtype_named(const char *name)
{
    for (size_t i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

const struct cairn_torch_dtype *
cairn_torch_dtype_of_storage(const char *storage_class)
{
    for (size_t i = 0; i < DTYPE_COUNT; i++)
        if (dtypes[i].storage_class && strcmp(dtypes[i].storage_class, storage_class) == 0)
            return &dtypes[i];
    return NULL;
}

const struct cairn_torch_dtype *
cairn_torch_dtype_of(enum cairn_dtype dtype)
{
    for (size_t i = 0; i < DTYPE_COUNT && dtype != 0; i++)
        if (dtypes[i].dtype == dtype)
            return &dtypes[i];
    return NULL;
}
