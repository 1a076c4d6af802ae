/*
 * tools/convert/engine/equals.h - tensors of the source that the target's format keeps once.
 *
 * A format says of a tensor that it leaves it out because another one, which it writes, has the
 * same elements (cairn_output_add_equal), or is the float32 that they were rounded from. Whether
 * the source agrees is seen here, before anything is written.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_EQUALS_H
#define CAIRN_TOOLS_CONVERT_ENGINE_EQUALS_H

#include "tools/convert/engine/conversion.h"
#include "tools/convert/engine/handles.h"

/* CAIRN_INVAL with the names where two of them differ; the errors of cairn_fingerprints_read.
 * Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_equals_check(struct cairn_conversion *conversion,
                                              struct cairn_handles *handles);

#endif
