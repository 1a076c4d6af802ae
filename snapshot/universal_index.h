/* snapshot/universal_index.h - what universal.c, universal_index.c and universal_dir.c share among
 * themselves. */
#ifndef CAIRN_SNAPSHOT_UNIVERSAL_INDEX_H
#define CAIRN_SNAPSHOT_UNIVERSAL_INDEX_H

#include "snapshot/universal.h"

/* "param", "optimizer", "opaque"; static. */
const char *cairn_universal_class_name(enum cairn_universal_class kind);
enum cairn_universal_class cairn_universal_class_of(enum cairn_kind kind);

/* Bytes of a whole tensor; CAIRN_INVAL for an unknown dtype, too many dims, or a size beyond
 * INT64_MAX. */
CAIRN_MUST_CHECK cairn_err cairn_universal_tensor_bytes(const struct cairn_tensor *tensor,
                                                        uint64_t *bytes);

/* True for a name of 1 … bytes_max - 1 bytes in UTF-8 that safetensors does not reserve. */
bool cairn_universal_name_fits(const char *name, size_t bytes_max);

/* The slice that is a whole tensor; the name is borrowed. */
struct cairn_slice cairn_universal_slice(const struct cairn_tensor *tensor, const char *name);

#endif
