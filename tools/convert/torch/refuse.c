/* tools/convert/torch/refuse.c - logs why a file of torch.save cannot be read. */
#include "base/log.h"
#include "tools/convert/torch/parts.h"

cairn_err
cairn_torch_refuse(const struct cairn_torch_opening *opening, const char *why)
{
    CAIRN_LOG_AT(ERROR, "torch: cannot read %s: %s", opening->where, why);
    return CAIRN_CORRUPT;
}
