/* tools/convert/ds_universal.h - reading and writing the folder of DeepSpeed's universal checkpoint; see
 * format_ds_universal.c. */
#ifndef CAIRN_TOOLS_CONVERT_DS_UNIVERSAL_H
#define CAIRN_TOOLS_CONVERT_DS_UNIVERSAL_H

#include "tools/convert/format.h"

/* As `plan` of struct cairn_format. */
CAIRN_MUST_CHECK cairn_err cairn_ds_universal_plan(const struct cairn_checkpoint *checkpoint,
                                                   const struct cairn_output_options *options,
                                                   struct cairn_output *output,
                                                   struct cairn_complaint *complaint);

#endif
