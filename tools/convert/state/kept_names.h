/*
 * tools/convert/state/kept_names.h - the names and paths of keys that a nested state dict gives to
 * what has canonical names: those of the distributed checkpoint it was read from, else those of the
 * file of torch.save it was read from (dcp/write.c), else those that torch's get_state_dict would
 * give. For the writers of dcp and torch.
 *
 * Names that do not follow from canonical names are kept in the opaque state "dcp/names.pickle", a
 * list of tuples (canonical name, name in the checkpoint, path of keys or None). It is omitted if
 * every name is the default:
 *
 *                         name                              path
 *   parameter or buffer   model.<name>                      ("model", name)
 *   optimizer state       optim.state.<parameter>.<key>     ("optim", "state", parameter, key)
 *   parameter groups      optim.param_groups.<i>.<key>      ("optim", "param_groups", i, key)
 *   state by numbers      its name                          the same, cut at the dots, and the
 *                                                           groups beside "state"
 *   opaque state          its name without ".pickle"        the same, cut at the dots
 *
 * For parameter groups the tuple is (their opaque name, "flat" or "", path of the optimizer's
 * prefix).
 */
#ifndef CAIRN_TOOLS_CONVERT_STATE_KEPT_NAMES_H
#define CAIRN_TOOLS_CONVERT_STATE_KEPT_NAMES_H

#include "tools/convert/core/checkpoint.h"
#include "tools/convert/pickle/pickle.h"
#include "tools/convert/state/names.h"

/* ---- the default ---- */

/* The default path for a tensor's canonical name; *path is cut from that name, with its strings in
 * `text`. False if it is too long. */
bool cairn_state_default_path(const struct cairn_checkpoint *checkpoint, uint32_t tensor,
                              char text[CAIRN_STATE_NAME_BYTES_MAX], struct cairn_state_path *path);

/* The default path before "param_groups", with its strings in `text`. */
void cairn_state_default_prefix(const struct cairn_checkpoint *checkpoint,
                                char text[CAIRN_STATE_NAME_BYTES_MAX],
                                struct cairn_state_path *path);

/* The keys that a tuple of texts (not empty) and numbers is, in an arena; NULL where it is anything
 * else, or memory runs out. */
const struct cairn_state_key *cairn_state_keys_read(struct cairn_pickle *arena,
                                                    const struct cairn_pickle_node *tuple);

/* ---- what was kept ---- */

struct cairn_kept_name {
    const char *canonical;
    const char *name;
    const struct cairn_state_key *keys; /* [key_count] */
    uint32_t key_count;                 /* 0: no path was kept */
};

/* All zero is the empty value. */
struct cairn_kept_names {
    struct cairn_pickle pickle;
    struct cairn_kept_name *kept; /* sorted by canonical name */
    uint32_t kept_count;
};

/* Reads what the source kept; anything but such a list counts as nothing. CAIRN_NOMEM, errors of
 * reading. The caller ends *names in any case. */
CAIRN_MUST_CHECK cairn_err cairn_kept_names_load(const struct cairn_checkpoint *checkpoint,
                                                 struct cairn_kept_names *names);
/* Keeps another name. Texts and keys are copied. The caller sorts at the end. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_kept_names_add(struct cairn_kept_names *names,
                                                const char *canonical, const char *name,
                                                const struct cairn_state_path *path);
void cairn_kept_names_sort(struct cairn_kept_names *names);
void cairn_kept_names_fini(struct cairn_kept_names *names);

struct cairn_state_path cairn_kept_name_path(const struct cairn_kept_name *kept);

const struct cairn_kept_name *cairn_kept_names_find(const struct cairn_kept_names *names,
                                                    const char *canonical);

/* Where a tensor goes: the kept name and path, else the default; strings lie in `text` or in
 * *names. path->count is 0 if the source had no path. False if it is too long. */
bool cairn_kept_names_choose(const struct cairn_kept_names *names,
                             const struct cairn_checkpoint *checkpoint, uint32_t tensor,
                             char text[CAIRN_STATE_NAME_BYTES_MAX],
                             char name[CAIRN_STATE_NAME_BYTES_MAX], struct cairn_state_path *path);

#endif
