/* tools/convert/safetensors/format.h - what reading and writing safetensors share. */
#ifndef CAIRN_TOOLS_CONVERT_SAFETENSORS_FORMAT_H
#define CAIRN_TOOLS_CONVERT_SAFETENSORS_FORMAT_H

#include "tools/convert/core/format.h"

#define CAIRN_SAFETENSORS_SUFFIX ".safetensors"
#define CAIRN_SAFETENSORS_INDEX_SUFFIX ".safetensors.index.json"

enum { CAIRN_SAFETENSORS_NAME_BYTES_MAX = 256 }; /* of a file */

cairn_err cairn_safetensors_plan(const struct cairn_checkpoint *checkpoint,
                                 const struct cairn_output_options *options,
                                 struct cairn_output *output);
cairn_err cairn_safetensors_finish(const struct cairn_checkpoint *checkpoint,
                                   struct cairn_output *output);

#endif
