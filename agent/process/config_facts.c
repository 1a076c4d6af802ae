/* agent/process/config_facts.c - facts about a configuration: which line set an option, how many
 * nodes are not spares. */
#include "agent/process/config.h"
#include "agent/process/config_table.h"

uint32_t
cairn_config_line(const struct cairn_config *config, const char *option_name)
{
    const struct cairn_option *option =
        cairn_option_find(cairn_options, cairn_option_count, option_name);

    return option ? config->lines[option - cairn_options] : 0;
}

uint32_t
cairn_config_active_count(const struct cairn_config *config)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < config->node_count; i++)
        count += !config->nodes[i].spare;
    return count;
}
