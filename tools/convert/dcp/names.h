/*
 * tools/convert/dcp/names.h - under which names the writer of distributed checkpoints puts what has
 * canonical names: those that the checkpoint was read with (dcp.h), else those of get_state_dict.
 */
#ifndef CAIRN_TOOLS_CONVERT_DCP_NAMES_H
#define CAIRN_TOOLS_CONVERT_DCP_NAMES_H

#include "tools/convert/dcp/dcp.h"
#include "tools/convert/pickle/pickle.h"

struct cairn_dcp_name {
    const char *canonical;
    const char *name;
    struct cairn_state_path path; /* count 0: none was said */
};

/* All zero is the empty value. */
struct cairn_dcp_names {
    struct cairn_pickle pickle;
    uint8_t *bytes;
    struct cairn_dcp_name *kept; /* sorted by canonical name */
    uint32_t kept_count;
};

/* Reads what the source kept, if anything: what is no such list counts as nothing. CAIRN_NOMEM, and
 * the errors of reading. The caller ends *names with cairn_dcp_names_fini, also on failure. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_names_load(const struct cairn_checkpoint *checkpoint,
                                                struct cairn_dcp_names *names,
                                                struct cairn_complaint *complaint);
void cairn_dcp_names_fini(struct cairn_dcp_names *names);

/* What was kept for a canonical name; NULL. */
const struct cairn_dcp_name *cairn_dcp_names_find(const struct cairn_dcp_names *names,
                                                  const char *canonical);

/* Where a tensor of the source goes: `name` and the strings of *path lie in `text` or in *names.
 * False where it is too long. path->count is 0 where the source had none. */
bool cairn_dcp_names_choose(const struct cairn_dcp_names *names,
                            const struct cairn_checkpoint *checkpoint, uint32_t tensor,
                            char text[CAIRN_STATE_NAME_BYTES_MAX],
                            char name[CAIRN_STATE_NAME_BYTES_MAX], struct cairn_state_path *path);

#endif
