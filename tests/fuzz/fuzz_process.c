/*
 * tests/fuzz/fuzz_process.c - lines that processes leave for others: refused, or read.
 *
 * Byte 0: 0 /proc/PID/stat, 1 a keeper's first line, 2 an agent's lock file. It includes the files
 * whose parsers nobody else calls.
 */
#include "agent/process/keeper_spawn.c"   /* NOLINT(bugprone-suspicious-include) */
#include "agent/service/timing_process.c" /* NOLINT(bugprone-suspicious-include) */

#include "agent/process/served.h"
#include "tests/fuzz/folder.h"

enum { TEXT_BYTES_MAX = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

static void
look_at_lock(const char *text, size_t text_len)
{
    char path[sizeof fuzz_folder + 16];
    struct cairn_served served;

    fuzz_folder_init();
    snprintf(path, sizeof path, "%s/a.sock", fuzz_folder);
    require(fuzz_folder_write("a.sock.lock", (const uint8_t *)text, text_len, false));
    if (cairn_served_look(path, &served))
        require(!served.lives && memchr(served.job, '\0', sizeof served.job) &&
                memchr(served.config, '\0', sizeof served.config));
    (void)unlinkat(fuzz_folder_fd, "a.sock.lock", 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    uint64_t start_ticks = 0;
    cairn_err err;
    char state = 0, *text;

    if (bytes_len == 0 || bytes_len > TEXT_BYTES_MAX)
        return 0;
    text = strndup((const char *)bytes + 1, bytes_len - 1);
    require(text != NULL);
    switch (bytes[0] % 3) {
    case 0:
        if (parse_stat(text, &state, &start_ticks))
            require(state != '\0');
        break;
    case 1:
        err = read_line(text);
        require(err <= CAIRN_INTERNAL && (err || strcmp(text, "ready\n") == 0));
        break;
    default:
        look_at_lock((const char *)bytes + 1, bytes_len - 1);
        break;
    }
    free(text);
    return 0;
}
