/* tests/fuzz/fuzz_config.c - any bytes as a configuration: refused with a text, or a whole
 * configuration. */
#include "agent/process/config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    char error[CAIRN_CONFIG_ERROR_BYTES] = "";
    struct cairn_config config = {0};
    cairn_err err = cairn_config_parse((const char *)bytes, bytes_len, "fuzz.yaml", &config, error,
                                       sizeof error);

    if (err && err != CAIRN_NOMEM && (err != CAIRN_CONFIG || strncmp(error, "fuzz.yaml:", 10) != 0))
        abort(); /* refused, but not for a reason with a place */
    if (err && config.nodes)
        abort(); /* refused, but half of it handed out */
    if (!err && (cairn_config_check(&config, error, sizeof error) != CAIRN_OK ||
                 config.node >= config.node_count || config.slots < 2 || !config.job[0] ||
                 config.parity >= cairn_config_active_count(&config)))
        abort(); /* taken, but not whole */
    cairn_config_fini(&config);
    return 0;
}
