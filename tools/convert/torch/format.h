/* tools/convert/torch/format.h - the row of the format "torch": one file of torch.save. */
#ifndef CAIRN_TOOLS_CONVERT_TORCH_FORMAT_H
#define CAIRN_TOOLS_CONVERT_TORCH_FORMAT_H

#include "tools/convert/core/format.h"

extern const struct cairn_format cairn_format_torch;

#endif
