/* agent/process/sizes.c - see sizes.h. */
#include "agent/process/sizes.h"

#include "erasure/roster.h"
#include "snapshot/manifest.h"

#include <stdlib.h>

enum {
    GROUP_SIZE_DEFAULT = 10,
    LAYOUT_BYTES_MIN = 256 << 10,
    SEAL_FIXED_BYTES = 64,
    RECORD_FIXED_BYTES = 4096,
    RECORD_NODE_BYTES = 64,
    RING_LINES_MIN = 2,
    RING_LINES_MAX = 2048 /* 128 MiB of each row: a member that is so far ahead waits */
};

uint32_t
cairn_sizes_group(const struct cairn_config *config)
{
    uint32_t active = cairn_config_active_count(config);
    uint32_t size = config->group_size ? config->group_size : GROUP_SIZE_DEFAULT;

    if (size < config->parity + 1)
        size = config->parity + 1;
    return size < active ? size : active;
}

/* The parity's share, and the members of the largest group. */
static void
measure_groups(const struct cairn_roster *roster, struct cairn_sizes *out, uint32_t *members)
{
    out->data_count = 1;
    *members = 1;
    for (uint32_t g = 0; g < roster->group_count; g++) {
        uint32_t parity_count = roster->groups[g].parity,
                 data_count = roster->groups[g].count - parity_count;
        uint64_t blocks = parity_count * ((out->slot_blocks + data_count - 1) / data_count);

        if (blocks >= out->parity_blocks) {
            out->parity_blocks = blocks;
            out->data_count = data_count;
            out->parity_count = parity_count;
        }
        if (roster->groups[g].count > *members)
            *members = roster->groups[g].count;
    }
}

static void
measure_ring(uint32_t parity, struct cairn_sizes *out)
{
    out->ring_lines = out->parity_blocks / parity;
    if (out->ring_lines < RING_LINES_MIN)
        out->ring_lines = RING_LINES_MIN;
    if (out->ring_lines > RING_LINES_MAX)
        out->ring_lines = RING_LINES_MAX;
    out->ring_bytes = (parity - 1) * out->ring_lines * CAIRN_BLOCK_BYTES;
}

cairn_err
cairn_sizes_of(const struct cairn_config *config, struct cairn_sizes *out)
{
    uint32_t active = cairn_config_active_count(config), count = 0, members = 1;
    uint32_t parity = config->parity < active ? config->parity : active - 1;
    uint32_t *agents = calloc(config->node_count, sizeof *agents);
    const char **domains = calloc(config->node_count, sizeof *domains);
    struct cairn_roster *roster = NULL;
    cairn_err err = agents && domains ? CAIRN_OK : CAIRN_NOMEM;

    *out = (struct cairn_sizes){.slot_blocks = (config->state_bytes + CAIRN_BLOCK_BYTES - 1) /
                                               CAIRN_BLOCK_BYTES};
    for (uint32_t i = 0; !err && i < config->node_count; i++)
        if (!config->nodes[i].spare) {
            agents[count] = i;
            domains[count++] = config->nodes[i].domain;
        }
    if (!err)
        err =
            cairn_roster_build(agents, domains, count, parity, cairn_sizes_group(config), &roster);
    if (!err)
        measure_groups(roster, out, &members);
    if (parity > 1)
        measure_ring(parity, out);
    else
        out->ring_lines = RING_LINES_MIN;
    out->layout_bytes_max = config->state_bytes / CAIRN_LAYOUT_SHARE;
    if (out->layout_bytes_max < LAYOUT_BYTES_MIN)
        out->layout_bytes_max = LAYOUT_BYTES_MIN;
    out->seal_bytes_max = 16 * out->slot_blocks + out->layout_bytes_max + SEAL_FIXED_BYTES;
    out->record_bytes = members * (out->seal_bytes_max + 8) + 8 * out->parity_blocks +
                        RECORD_NODE_BYTES * (uint64_t)config->node_count + RECORD_FIXED_BYTES;
    cairn_roster_drop(roster);
    free(agents);
    free(domains);
    return err;
}
