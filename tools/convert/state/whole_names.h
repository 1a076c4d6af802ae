/*
 * tools/convert/state/whole_names.h - which names of tensors are whole paths of keys.
 *
 * A canonical name leaves out keys (state/names.h): the model's prefix, a wrapper, what leads to
 * optimizer state. If another tensor's whole path is that name, the tensor must keep its own whole
 * path: {"model": {"step": a}, "step": b} has the tensors "model.step" and "step".
 */
#ifndef CAIRN_TOOLS_CONVERT_STATE_WHOLE_NAMES_H
#define CAIRN_TOOLS_CONVERT_STATE_WHOLE_NAMES_H

#include "tools/convert/core/name_set.h"
#include "tools/convert/state/names.h"

/* Notes a tensor's path if its canonical name is that path. Paths that are too long are skipped.
 * CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_whole_names_add(struct cairn_name_set *whole,
                                                 const struct cairn_state_roots *roots,
                                                 const struct cairn_state_path *path);

#endif
