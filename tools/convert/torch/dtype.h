/*
 * tools/convert/torch/dtype.h - the element types of PyTorch: their names, the storage classes that
 * stand for them in a file, and what Cairn calls them.
 */
#ifndef CAIRN_TOOLS_CONVERT_TORCH_DTYPE_H
#define CAIRN_TOOLS_CONVERT_TORCH_DTYPE_H

#include "cairn/types.h"

struct cairn_torch_dtype {
    const char *name;          /* of the constant in the module torch: "bfloat16" */
    const char *storage_class; /* in the module torch: "BFloat16Storage"; NULL: only untyped
                                * storages */
    size_t element_bytes;
    enum cairn_dtype dtype; /* 0 where Cairn has none: such tensors are carried, not converted */
};

/* NULL where there is none of that name. Static. Thread: any. */
const struct cairn_torch_dtype *cairn_torch_dtype_named(const char *name);
const struct cairn_torch_dtype *cairn_torch_dtype_of_storage(const char *storage_class);
const struct cairn_torch_dtype *cairn_torch_dtype_of(enum cairn_dtype dtype);

#endif
