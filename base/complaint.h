/*
 * base/complaint.h - the one channel for errors of a command: a message for the user, "<object>:
 * <what is wrong>; <what to do>", in lower case and without a full stop.
 *
 * The function that finds an error complains and returns its code; its callers pass the code on.
 * The first message is the cause and stays. So a caller may complain again about the larger
 * operation, in case nobody below did.
 */
#ifndef CAIRN_BASE_COMPLAINT_H
#define CAIRN_BASE_COMPLAINT_H

#include "cairn/err.h"

enum { CAIRN_COMPLAINT_BYTES_MAX = 1024 };

struct cairn_complaint {
    char text[CAIRN_COMPLAINT_BYTES_MAX]; /* "": no message yet */
};

/*
 * Sets the message and returns `err`. Characters that could steer a terminal become "?".
 * `complaint` may be NULL.
 */
cairn_err cairn_complain(struct cairn_complaint *complaint, cairn_err err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for "<object>: cannot <verb>", plus the reason: of this thread's last failed file
 * operation, or the text of `err`. Does nothing if `err` is CAIRN_OK. */
cairn_err cairn_complain_failed(struct cairn_complaint *complaint, cairn_err err,
                                const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
