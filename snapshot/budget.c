/*
 * snapshot/budget.c - the sum of what Cairn reserves, and what the machine still has.
 *
 * Free memory is read from proc/meminfo (MemAvailable) and from every memory cgroup between this
 * process and the root, because a limit anywhere above it counts. In a cgroup, page cache on the
 * inactive list is charged but can be dropped at once, so it counts as free (as in Kubernetes):
 *
 *     version 2   memory.max            memory.current         memory.stat inactive_file
 *     version 1   memory.limit_in_bytes memory.usage_in_bytes  memory.stat total_inactive_file
 *
 * If a path in /proc/self/cgroup is not mounted here (a container without a cgroup namespace), it
 * is cut from its end until a directory exists; the mount's root is then the container's.
 */
#include "snapshot/budget.h"

#include "base/limits.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 16384, LEVELS_MAX = 64 };

/* cgroup v1 writes "no limit" as the largest multiple of a page. */
static const uint64_t UNLIMITED_FROM = UINT64_C(1) << 62;

static bool
multiply(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

cairn_err
cairn_budget_check(const struct cairn_budget_demand *demand, const struct cairn_budget_free *memory,
                   uint64_t margin_bytes, struct cairn_budget *out)
{
    struct cairn_budget budget = {.fixed_bytes = demand->fixed_bytes, .margin_bytes = margin_bytes};
    uint64_t parity = 0, limit = 0;

    if (demand->slots == 0 || demand->data_count == 0)
        return CAIRN_INVAL;
    if (!multiply(demand->slots, demand->state_bytes, &budget.state_bytes) ||
        !multiply(demand->state_bytes, demand->parity_count, &parity))
        return CAIRN_INVAL;
    parity = parity / demand->data_count + (parity % demand->data_count != 0);
    if (parity > UINT64_MAX - CAIRN_BLOCK_BYTES)
        return CAIRN_INVAL;
    parity = (parity + CAIRN_BLOCK_BYTES - 1) / CAIRN_BLOCK_BYTES * CAIRN_BLOCK_BYTES;
    if (!multiply(demand->slots, parity, &budget.parity_bytes) ||
        __builtin_add_overflow(budget.state_bytes, budget.parity_bytes, &budget.need_bytes) ||
        __builtin_add_overflow(budget.need_bytes, budget.fixed_bytes, &budget.need_bytes) ||
        __builtin_add_overflow(budget.need_bytes, margin_bytes, &limit))
        return CAIRN_INVAL;
    budget.free_bytes = memory->available_bytes < memory->cgroup_bytes ? memory->available_bytes
                                                                       : memory->cgroup_bytes;
    *out = budget;
    return limit > budget.free_bytes ? CAIRN_NOMEM : CAIRN_OK;
}

enum { SIZE_TEXT_BYTES = 32 };

static const char *
size_text(uint64_t bytes, char text[SIZE_TEXT_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;

    if (bytes == UINT64_MAX)
        return "unlimited";
    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    snprintf(text, SIZE_TEXT_BYTES, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return text;
}

void
cairn_budget_text(const struct cairn_budget_demand *demand, const struct cairn_budget_free *memory,
                  const struct cairn_budget *budget, char *text, size_t text_bytes)
{
    char size[SIZE_TEXT_BYTES], other[SIZE_TEXT_BYTES], third[SIZE_TEXT_BYTES];
    char sum[160] = "", fixed[SIZE_TEXT_BYTES + 16] = "", verdict[SIZE_TEXT_BYTES + 16] = "enough";
    uint64_t wanted = budget->need_bytes + budget->margin_bytes;

    if (budget->fixed_bytes)
        snprintf(fixed, sizeof fixed, " + %s buffers", size_text(budget->fixed_bytes, size));
    if (demand->parity_count)
        snprintf(sum, sizeof sum, "%u x %s state + %u x %s parity (%u+%u)%s = ", demand->slots,
                 size_text(demand->state_bytes, size), demand->slots,
                 size_text(budget->parity_bytes / demand->slots, other), demand->data_count,
                 demand->parity_count, fixed);
    else if (demand->slots > 1 || budget->fixed_bytes)
        snprintf(sum, sizeof sum, "%u x %s state%s = ", demand->slots,
                 size_text(demand->state_bytes, size), fixed);
    if (wanted > budget->free_bytes)
        snprintf(verdict, sizeof verdict, "%s short", size_text(wanted - budget->free_bytes, size));
    snprintf(text, text_bytes, "%s%s needed; %s free (%s), %s reserved for the job: %s", sum,
             size_text(budget->need_bytes, size), size_text(budget->free_bytes, other),
             memory->cgroup_bytes < memory->available_bytes ? "memory cgroup" : "MemAvailable",
             size_text(budget->margin_bytes, third), verdict);
}

/* Reads a small file whole, ended by NUL. */
static bool
read_small(const char *directory, const char *name, char bytes[FILE_BYTES])
{
    char path[PATH_MAX];
    size_t used = 0;
    ssize_t got = 0;
    int fd;

    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path)
        return false;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    while (used < FILE_BYTES - 1 && (got = read(fd, bytes + used, FILE_BYTES - 1 - used)) > 0)
        used += (size_t)got;
    close(fd);
    bytes[used] = '\0';
    return got >= 0;
}

/* The number after `key` at the start of a line; false without one. */
static bool
number_after(const char *text, const char *key, uint64_t *value)
{
    size_t key_len = strlen(key);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        unsigned long long number;

        line += *line == '\n';
        if (strncmp(line, key, key_len) == 0 && sscanf(line + key_len, " %llu", &number) == 1) {
            *value = number;
            return true;
        }
    }
    return false;
}

struct cgroup_files {
    const char *limit;
    const char *usage;
    const char *inactive; /* key in memory.stat */
};

static const struct cgroup_files version_1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                              "total_inactive_file "};
static const struct cgroup_files version_2 = {"memory.max", "memory.current", "inactive_file "};

/* What one cgroup still allows; UINT64_MAX if it is missing or sets no limit. */
static uint64_t
cgroup_left(const char *directory, const struct cgroup_files *files)
{
    char bytes[FILE_BYTES];
    uint64_t limit, usage, inactive = 0;

    if (!read_small(directory, files->limit, bytes) || !number_after(bytes, "", &limit) ||
        limit >= UNLIMITED_FROM)
        return UINT64_MAX; /* also version 2's "max" */
    if (!read_small(directory, files->usage, bytes) || !number_after(bytes, "", &usage))
        return UINT64_MAX;
    if (read_small(directory, "memory.stat", bytes))
        (void)number_after(bytes, files->inactive, &inactive);
    usage -= inactive < usage ? inactive : usage;
    return usage < limit ? limit - usage : 0;
}

/* The least left in the cgroup `path` below `mount` and in all above it. */
static uint64_t
cgroup_path_left(const char *mount, const char *path, const struct cgroup_files *files)
{
    char directory[PATH_MAX];
    size_t mount_len = strlen(mount);
    uint64_t least = UINT64_MAX;

    if (snprintf(directory, sizeof directory, "%s%s", mount, path) >= (int)sizeof directory)
        return UINT64_MAX;
    for (int level = 0; level < LEVELS_MAX; level++) {
        uint64_t left = cgroup_left(directory, files);
        char *slash;

        least = left < least ? left : least;
        slash = strrchr(directory + mount_len, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
    return least;
}

/* Is "memory" one of the comma-separated controllers? */
static bool
names_memory(const char *controllers, size_t controllers_len)
{
    const char *end = controllers + controllers_len;

    while (controllers < end) {
        const char *comma = memchr(controllers, ',', (size_t)(end - controllers));
        const char *stop = comma ? comma : end;

        if (stop - controllers == 6 && memcmp(controllers, "memory", 6) == 0)
            return true;
        controllers = stop + 1;
    }
    return false;
}

/* Lines are "number:controllers:path"; version 2 has number 0 and no controllers. */
static uint64_t
cgroups_left(const char *root, char *lines)
{
    uint64_t least = UINT64_MAX;
    char *next = NULL;

    for (char *line = strtok_r(lines, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        const struct cgroup_files *files = NULL;
        char mount[PATH_MAX];
        uint64_t left;

        if (!path)
            continue;
        controllers++;
        if (path == controllers)
            files = &version_2;
        else if (names_memory(controllers, (size_t)(path - controllers)))
            files = &version_1;
        if (!files || snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s", root,
                               files == &version_1 ? "/memory" : "") >= (int)sizeof mount)
            continue;
        left = cgroup_path_left(mount, path + 1, files);
        least = left < least ? left : least;
    }
    return least;
}

cairn_err
cairn_budget_free_read(const char *root, struct cairn_budget_free *out)
{
    struct cairn_budget_free memory = {UINT64_MAX, UINT64_MAX};
    char bytes[FILE_BYTES];
    uint64_t kib;
    bool known = false;

    if (strcmp(root, "/") == 0)
        root = "";
    if (read_small(root, "proc/meminfo", bytes) && number_after(bytes, "MemAvailable:", &kib) &&
        multiply(kib, 1024, &memory.available_bytes))
        known = true;
    if (read_small(root, "proc/self/cgroup", bytes)) {
        memory.cgroup_bytes = cgroups_left(root, bytes);
        known = true;
    }
    if (!known)
        return CAIRN_IO;
    *out = memory;
    return CAIRN_OK;
}
