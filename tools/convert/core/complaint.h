/*
 * tools/convert/core/complaint.h - one error message: what is wrong, where (file, offset, tensor),
 * and what to do.
 */
#ifndef CAIRN_TOOLS_CONVERT_CORE_COMPLAINT_H
#define CAIRN_TOOLS_CONVERT_CORE_COMPLAINT_H

#include "cairn/err.h"

enum { CAIRN_COMPLAINT_BYTES_MAX = 1024 };

struct cairn_complaint {
    char text[CAIRN_COMPLAINT_BYTES_MAX]; /* "": no message yet */
};

/*
 * Sets the message and returns `err`. A message that is already there stays: the first one is the
 * cause. Characters that could steer a terminal become "?". `complaint` may be NULL.
 */
cairn_err cairn_complain(struct cairn_complaint *complaint, cairn_err err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
