/* snapshot/cuda_driver.c - opens the CUDA driver and finds its functions; see cuda_driver.h. */
#include "snapshot/cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>

cairn_err
cairn_cuda_driver_open(const char *path, struct cairn_cuda_driver *out, char *why, size_t why_bytes)
{
    path = path ? path : "libcuda.so.1";
    out->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!out->library) {
        (void)snprintf(why, why_bytes, "no driver path=%s text=\"%s\"", path, dlerror());
        return CAIRN_DEVICE;
    }
#define FIND(field, symbol, arguments) *(void **)(void *)&out->field = dlsym(out->library, symbol);
#define LOAD(field, symbol, arguments)                                                             \
    FIND(field, symbol, arguments)                                                                 \
    if (!out->field) {                                                                             \
        (void)snprintf(why, why_bytes, "the driver is too old path=%s lacks=%s", path, symbol);    \
        return CAIRN_DEVICE;                                                                       \
    }
    CAIRN_CUDA_LIST(LOAD)
    CAIRN_CUDA_NEWER_LIST(FIND)
#undef LOAD
#undef FIND
    return CAIRN_OK;
}
