/*
 * tools/convert/engine/handles.h - open files by number, however many there are: opened when first
 * used, closed again when the limit of open files is near.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_HANDLES_H
#define CAIRN_TOOLS_CONVERT_ENGINE_HANDLES_H

#include "base/complaint.h"

#include <stdint.h>

struct cairn_handles;

/* Opens file `number`; complains. Called under the lock of the handles. */
typedef cairn_err cairn_handles_open_fn(void *context, uint32_t number, int *fd,
                                        struct cairn_complaint *complaint);

/* `open` and `context` are borrowed. CAIRN_NOMEM. Raises the process's limit of open files. */
CAIRN_MUST_CHECK cairn_err cairn_handles_create(uint32_t count, cairn_handles_open_fn *open,
                                                void *context, struct cairn_handles **out);

/* Closes all; none may be in use. Returns the first failure of a close that was not reported by
 * cairn_handles_acquire. NULL is allowed. */
cairn_err cairn_handles_destroy(struct cairn_handles *handles);

/* A descriptor that stays open until it is released. Errors of `open`, and of closing another file.
 * Thread: any. */
CAIRN_MUST_CHECK cairn_err cairn_handles_acquire(struct cairn_handles *handles, uint32_t number,
                                                 int *fd, struct cairn_complaint *complaint);
void cairn_handles_release(struct cairn_handles *handles, uint32_t number);

#endif
