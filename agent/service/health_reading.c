/* agent/service/health_reading.c - a node's readings from sysfs and /proc; see health_reading.h. */
#include "agent/service/health_reading.h"

#include "agent/service/health_stacks.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 1280, TEXT_BYTES = 4096, WORKERS_MAX = 64, CLASS_NETWORK = 2, CLASS_DISPLAY };

/* ---- files ---- */

/* Reads a file into text[TEXT_BYTES], ended by NUL. False: it cannot be read. */
static bool
read_text(char *text, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, TEXT_BYTES - 1);

    if (fd >= 0)
        close(fd);
    if (got < 0)
        return false;
    text[got] = '\0';
    return true;
}

static bool
read_in(char *text, const char *folder, const char *name)
{
    char path[PATH_BYTES];

    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path &&
           read_text(text, path);
}

/* A whole number at the begin of a file; 0 without one, or if it is negative. */
static uint64_t
number_in(const char *folder, const char *name)
{
    char text[TEXT_BYTES];
    long long value = read_in(text, folder, name) ? strtoll(text, NULL, 0) : 0;

    return value > 0 ? (uint64_t)value : 0;
}

/* A number with a point, times `scale`: "8.0 GT/s PCIe", "100 Gb/sec (4X EDR)". */
static uint64_t
scaled_in(const char *folder, const char *name, double scale)
{
    char text[TEXT_BYTES];
    double value = read_in(text, folder, name) ? strtod(text, NULL) : 0;

    return value > 0 && value < 1e9 ? (uint64_t)(value * scale + 0.5) : 0;
}

/* The total of a table of errors: the number behind "TOTAL_". */
static uint64_t
total_in(const char *folder, const char *name)
{
    char text[TEXT_BYTES];
    const char *total = read_in(text, folder, name) ? strstr(text, "TOTAL_") : NULL;
    const char *space = total ? strchr(total, ' ') : NULL;

    return space ? strtoull(space, NULL, 10) : 0;
}

/* Calls take(folder of an entry, its name) for each entry of a folder. */
static void
each_entry(const char *folder, const char *prefix,
           void (*take)(struct health_reading *out, const char *folder, const char *name),
           struct health_reading *out)
{
    DIR *entries = opendir(folder);
    const struct dirent *entry;
    char path[PATH_BYTES];

    while (entries && (entry = readdir(entries)))
        if (entry->d_name[0] != '.' && strncmp(entry->d_name, prefix, strlen(prefix)) == 0 &&
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) < (int)sizeof path)
            take(out, path, entry->d_name);
    if (entries)
        closedir(entries);
}

/* ---- devices ---- */

static void
take_link(struct health_reading *out, const char *folder, const char *name)
{
    uint64_t class = number_in(folder, "class") >> 16;
    struct reading_link *link = &out->links[out->link_count];

    if ((class != CLASS_NETWORK && class != CLASS_DISPLAY) || out->link_count == READING_LINKS_MAX)
        return;
    *link =
        (struct reading_link){.speed_mts = (uint32_t)scaled_in(folder, "current_link_speed", 1000),
                              .speed_max_mts = (uint32_t)scaled_in(folder, "max_link_speed", 1000),
                              .width = (uint32_t)number_in(folder, "current_link_width"),
                              .width_max = (uint32_t)number_in(folder, "max_link_width"),
                              .errors_fatal = total_in(folder, "aer_dev_fatal"),
                              .errors_nonfatal = total_in(folder, "aer_dev_nonfatal"),
                              .errors_corrected = total_in(folder, "aer_dev_correctable")};
    (void)snprintf(link->name, sizeof link->name, "%.*s", READING_NAME_BYTES - 1, name);
    out->link_count++;
}

/* Interfaces without a device are virtual. */
static void
take_interface(struct health_reading *out, const char *folder, const char *name)
{
    struct reading_nic *nic = &out->nics[out->nic_count];
    char text[TEXT_BYTES], path[PATH_BYTES];

    if (out->nic_count == READING_NICS_MAX ||
        snprintf(path, sizeof path, "%s/device", folder) >= (int)sizeof path ||
        access(path, F_OK) != 0)
        return;
    *nic = (struct reading_nic){.speed_mbps = number_in(folder, "speed"),
                                .is_up = read_in(text, folder, "operstate") &&
                                         strncmp(text, "up", 2) == 0,
                                .errors = number_in(folder, "statistics/rx_errors") +
                                          number_in(folder, "statistics/tx_errors"),
                                .outages = number_in(folder, "carrier_changes")};
    (void)snprintf(nic->name, sizeof nic->name, "%.*s", READING_NAME_BYTES - 1, name);
    out->nic_count++;
}

static void
take_port(struct health_reading *out, const char *folder, const char *name)
{
    static const char *const errors[] = {"counters/symbol_error", "counters/port_rcv_errors",
                                         "counters/local_link_integrity_errors"};
    struct reading_nic *nic = &out->nics[out->nic_count];
    const char *device = strstr(folder, "/infiniband/");
    char text[TEXT_BYTES];

    if (out->nic_count == READING_NICS_MAX || !device)
        return;
    device += strlen("/infiniband/");
    *nic = (struct reading_nic){.speed_mbps = scaled_in(folder, "rate", 1000),
                                .is_up = read_in(text, folder, "state") &&
                                         strstr(text, "ACTIVE") != NULL,
                                .outages = number_in(folder, "counters/link_downed")};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        nic->errors += number_in(folder, errors[i]);
    (void)snprintf(nic->name, sizeof nic->name, "%.*s:%.*s", (int)strcspn(device, "/") % 32, device,
                   8, name);
    out->nic_count++;
}

static void
take_infiniband(struct health_reading *out, const char *folder, const char *name)
{
    char path[PATH_BYTES];

    (void)name;
    if (snprintf(path, sizeof path, "%s/ports", folder) < (int)sizeof path)
        each_entry(path, "", take_port, out);
}

static void
take_memory(struct health_reading *out, const char *folder, const char *name)
{
    (void)name;
    out->memory_corrected += number_in(folder, "ce_count");
    out->memory_uncorrected += number_in(folder, "ue_count");
}

static void
take_processor(struct health_reading *out, const char *folder, const char *name)
{
    (void)name;
    out->cpu_throttles += number_in(folder, "thermal_throttle/core_throttle_count");
}

static void
read_devices(const char *sysfs_dir, struct health_reading *out)
{
    static const struct {
        const char *folder, *prefix;
        void (*take)(struct health_reading *out, const char *folder, const char *name);
    } kinds[] = {{"bus/pci/devices", "", take_link},
                 {"class/net", "", take_interface},
                 {"class/infiniband", "", take_infiniband},
                 {"devices/system/edac/mc", "mc", take_memory},
                 {"devices/system/cpu", "cpu", take_processor}};
    char path[PATH_BYTES];

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (snprintf(path, sizeof path, "%s/%s", sysfs_dir, kinds[i].folder) < (int)sizeof path)
            each_entry(path, kinds[i].prefix, kinds[i].take, out);
}

/* ---- processes ---- */

/* A process in one sample. */
struct sample {
    char state;
    uint64_t ticks; /* of the processor, used so far */
};

static bool
read_process(int64_t pid, struct sample *out)
{
    char path[64], text[TEXT_BYTES];
    uint64_t user = 0, system = 0;
    const char *at;

    (void)snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    if (!read_text(text, path))
        return false;
    at = strrchr(text, ')'); /* the name before it may hold anything */
    if (!at || sscanf(at + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64,
                      &out->state, &user, &system) != 3)
        return false;
    out->ticks = user + system;
    return true;
}

/* The child processes; returns how many there are, at most WORKERS_MAX. */
static uint32_t
read_children(int64_t pid, int64_t children[WORKERS_MAX])
{
    char path[64], text[TEXT_BYTES], *at = text, *end;
    uint32_t count = 0;

    (void)snprintf(path, sizeof path, "/proc/%" PRId64 "/task/%" PRId64 "/children", pid, pid);
    if (!read_text(text, path))
        return 0;
    for (; count < WORKERS_MAX; at = end) {
        int64_t child = strtoll(at, &end, 10);

        if (end == at || child <= 0)
            break;
        children[count++] = child;
    }
    return count;
}

/* Sums up the use by a process and its children. */
static void
sample_rank(struct reading_rank *rank, uint64_t *used, uint64_t *worked)
{
    int64_t children[WORKERS_MAX];
    struct sample sample;
    bool waits = false;

    *used = *worked = 0;
    if (!read_process(rank->pid, &sample))
        return;
    rank->samples++;
    rank->disk_samples += sample.state == 'D';
    *used = sample.ticks;
    rank->workers = read_children(rank->pid, children);
    for (uint32_t i = 0; i < rank->workers; i++)
        if (read_process(children[i], &sample)) {
            *worked += sample.ticks;
            waits |= sample.state == 'D';
        }
    rank->disk_workers += waits;
}

static void
read_ranks(struct health_reading *out)
{
    const struct timespec pause = {.tv_nsec = READING_SAMPLE_MS * 1000000L};
    uint64_t used[READING_RANKS_MAX], worked[READING_RANKS_MAX];
    uint64_t ticks = (uint64_t)sysconf(_SC_CLK_TCK) * (READING_SAMPLES - 1) * READING_SAMPLE_MS;

    for (int at = 0; at < READING_SAMPLES && out->rank_count > 0; at++) {
        if (at > 0)
            (void)nanosleep(&pause, NULL);
        for (uint32_t i = 0; i < out->rank_count; i++) {
            struct reading_rank *rank = &out->ranks[i];
            uint64_t used_now, worked_now;

            sample_rank(rank, &used_now, &worked_now);
            if (at == 0) {
                used[i] = used_now;
                worked[i] = worked_now;
            } else if (rank->samples == (uint32_t)at + 1) {
                rank->used_percent = (uint32_t)((used_now - used[i]) * 100000 / ticks);
                rank->worked_percent = worked_now > worked[i]
                                           ? (uint32_t)((worked_now - worked[i]) * 100000 / ticks)
                                           : 0;
            }
        }
    }
}

void
health_read_stacks(struct health_reading *out)
{
    for (uint32_t i = 0; i < out->rank_count; i++)
        if (!health_stacks_ask(out->ranks[i].pid, out->ranks[i].stack, sizeof out->ranks[i].stack))
            out->ranks[i].stack[0] = '\0';
}

void
health_read(struct health_gpus *gpus, const char *sysfs_dir, struct health_reading *out)
{
    for (uint32_t i = 0; i < out->rank_count; i++)
        out->ranks[i] = (struct reading_rank){.rank = out->ranks[i].rank, .pid = out->ranks[i].pid};
    out->link_count = out->nic_count = 0;
    out->memory_corrected = out->memory_uncorrected = out->cpu_throttles = 0;
    health_gpus_read(gpus, out);
    read_devices(sysfs_dir, out);
    read_ranks(out);
}
