/* base/err.c - texts of errors and data types. */
#include "cairn/err.h"
#include "cairn/types.h"

#include <string.h>

const char *
cairn_err_text(cairn_err err)
{
    switch (err) {
#define CASE(name, value, text)                                                                    \
    case name:                                                                                     \
        return text;
        CAIRN_ERR_LIST(CASE)
#undef CASE
    }
    return "an unknown error";
}

const char *
cairn_err_name(cairn_err err)
{
    switch (err) {
#define CASE(name, value, text)                                                                    \
    case name:                                                                                     \
        return #name;
        CAIRN_ERR_LIST(CASE)
#undef CASE
    }
    return "CAIRN_?";
}

static const struct {
    enum cairn_dtype dtype;
    const char *name;
    size_t bytes;
} dtypes[] = {
#define ROW(symbol, value, text, bytes) {symbol, text, bytes},
    CAIRN_DTYPE_LIST(ROW)
#undef ROW
};

size_t
cairn_dtype_bytes(enum cairn_dtype dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].bytes;
    return 0;
}

const char *
cairn_dtype_name(enum cairn_dtype dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].name;
    return "?";
}

enum cairn_dtype
cairn_dtype_from_name(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return dtypes[i].dtype;
    return (enum cairn_dtype)0;
}
