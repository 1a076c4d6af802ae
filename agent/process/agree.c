/* agent/process/agree.c - see agree.h. */
#include "agent/process/agree.h"

#include "base/crc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { VALUE_BYTES = 32 };

/* Failure domains and spares decide the groups. Addresses are left out: they may change. */
static uint64_t
digest_of_nodes(const struct cairn_config *config)
{
    uint64_t crc = 0;

    for (uint32_t i = 0; i < config->node_count; i++) {
        const struct cairn_config_node *node = &config->nodes[i];
        uint8_t spare = node->spare;

        crc = cairn_crc64(crc, node->domain, strlen(node->domain) + 1);
        crc = cairn_crc64(crc, &spare, 1);
    }
    return crc;
}

size_t
agree_pack(const struct cairn_config *config, char out[AGREE_BYTES_MAX])
{
    int len =
        snprintf(out, AGREE_BYTES_MAX,
                 "!nodes=%u\n!parity=%u\n!group_size=%u\n!state_bytes=%" PRIu64
                 "\n!domains and spares=%016" PRIx64
                 "\nsnapshot_every_steps=%u\nheartbeat_interval_ms=%u\ndead_after_ms=%u\n"
                 "repair_after_ms=%u\n",
                 config->node_count, config->parity, config->group_size, config->state_bytes,
                 digest_of_nodes(config), config->snapshot_every_steps,
                 config->heartbeat_interval_ms, config->dead_after_ms, config->repair_after_ms);

    return len > 0 && len < AGREE_BYTES_MAX ? (size_t)len : 0;
}

/* Finds the value of a name in lines; false if it is not there. */
static bool
find_value(const char *lines, size_t lines_len, const char *name, size_t name_len,
           char value[VALUE_BYTES])
{
    const char *end = lines + lines_len;

    while (lines < end) {
        const char *newline = memchr(lines, '\n', (size_t)(end - lines));
        size_t len = newline ? (size_t)(newline - lines) : (size_t)(end - lines);

        if (len > name_len && memcmp(lines, name, name_len) == 0 && lines[name_len] == '=') {
            size_t value_len = len - name_len - 1;

            if (value_len >= VALUE_BYTES)
                value_len = VALUE_BYTES - 1;
            for (size_t i = 0; i < value_len; i++) { /* it goes into logs and terminals */
                char c = lines[name_len + 1 + i];

                value[i] = c >= ' ' && c <= '~' ? c : '?';
            }
            value[value_len] = '\0';
            return true;
        }
        lines += len + 1;
    }
    return false;
}

enum agreement
agree_compare(const struct cairn_config *config, uint32_t peer, const char *bytes, size_t len,
              char text[AGREE_TEXT_BYTES])
{
    char own[AGREE_BYTES_MAX], ours[VALUE_BYTES], theirs[VALUE_BYTES];
    size_t own_len = agree_pack(config, own);
    enum agreement found = AGREE_SAME;

    for (const char *line = own; line < own + own_len && found != AGREE_REFUSED;
         line = strchr(line, '\n') + 1) {
        size_t name_len = strcspn(line, "=");
        bool must = line[0] == '!';

        if (!find_value(bytes, len, line, name_len, theirs) ||
            !find_value(own, own_len, line, name_len, ours) || strcmp(ours, theirs) == 0 ||
            (found != AGREE_SAME && !must))
            continue;
        found = must ? AGREE_REFUSED : AGREE_DIFFERENT;
        snprintf(text, AGREE_TEXT_BYTES, "%.*s: %s on node %u, %s on node %u",
                 (int)(name_len - must), line + must, theirs, peer, ours, config->node);
    }
    return found;
}
