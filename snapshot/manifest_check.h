/*
 * snapshot/manifest_check.h - the invariants of a manifest, as pack and unpack both check them.
 * Internal to manifest.
 */
#ifndef CAIRN_SNAPSHOT_MANIFEST_CHECK_H
#define CAIRN_SNAPSHOT_MANIFEST_CHECK_H

#include "snapshot/manifest.h"

/*
 * Checks the invariants of manifest.h, except that entries of one name agree, which the packed form
 * ensures. Returns `fault` if one is broken; CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_manifest_check(const struct cairn_manifest *manifest,
                                                cairn_err fault);
#endif
