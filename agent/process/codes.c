/* agent/process/codes.c - the erasure codes of all group shapes; see codes.h. */
#include "agent/process/codes.h"

const struct cairn_code *
codes_get(struct codes *codes, uint32_t k, uint32_t m)
{
    struct cairn_code **code;

    if (k > CAIRN_SHARDS_MAX || m > CAIRN_SHARDS_MAX || k + m > CAIRN_SHARDS_MAX || k == 0)
        return NULL;
    code = &codes->made[k][m];
    if (!*code && cairn_code_create(k, m, code) != CAIRN_OK)
        return NULL;
    return *code;
}

void
codes_close(struct codes *codes)
{
    for (uint32_t k = 0; k <= CAIRN_SHARDS_MAX; k++)
        for (uint32_t m = 0; m <= CAIRN_SHARDS_MAX; m++)
            cairn_code_destroy(codes->made[k][m]);
}
