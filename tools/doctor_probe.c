/* tools/doctor_probe.c - `cairn doctor`'s probes of the machine itself. Every probe undoes its
 * changes. */
#include "tools/doctor.h"

#include "base/clock.h"
#include "erasure/code.h"
#include "snapshot/budget.h"
#include "tools/common.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum {
    PROBE_BYTES = 2 << 20,
    FILES_WANTED = 1024,
    CODE_DATA = 8,
    CODE_PARITY = 2,
    CODE_SHARD_BYTES = 1 << 20,
    CODE_PASSES = 8
};

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* ---- limits ---- */

static void
probe_limits(struct doctor *doctor, bool driver)
{
    struct rlimit limit;
    char shown[CAIRN_SHOWN_BYTES], need[CAIRN_SHOWN_BYTES];
    bool pins = driver || doctor->pinning;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        uint64_t allowed = limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;

        if (allowed == UINT64_MAX)
            doctor_find(doctor, DOCTOR_OK, "memlock", NULL, "memory may be locked without limit");
        else if (allowed >= doctor->need_bytes || !pins)
            doctor_find(doctor, DOCTOR_OK, "memlock", NULL, "%s may be locked%s",
                        cairn_show_bytes(allowed, shown), pins ? "" : "; nothing here pins memory");
        else
            doctor_find(
                doctor, DOCTOR_WARN, "memlock",
                "`ulimit -l unlimited` for the agent and the trainers (LimitMEMLOCK=infinity in "
                "systemd)",
                "only %s of %s may be locked: copies go through a small pinned ring, slower",
                cairn_show_bytes(allowed, shown), cairn_show_bytes(doctor->need_bytes, need));
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        if (limit.rlim_cur < FILES_WANTED)
            doctor_find(doctor, DOCTOR_WARN, "files", "`ulimit -n 4096` for the agent",
                        "only %" PRIu64 " files may be open", (uint64_t)limit.rlim_cur);
        else
            doctor_find(doctor, DOCTOR_OK, "files", NULL, "%" PRIu64 " files may be open",
                        (uint64_t)limit.rlim_cur);
    }
}

static void
probe_container(struct doctor *doctor)
{
    struct cairn_budget_free memory;
    char limit[CAIRN_SHOWN_BYTES], available[CAIRN_SHOWN_BYTES];

    if (cairn_budget_free_read("/", &memory) != CAIRN_OK)
        return;
    cairn_show_bytes(memory.available_bytes, available);
    if (memory.cgroup_bytes == UINT64_MAX)
        doctor_find(doctor, DOCTOR_OK, "cgroup", NULL,
                    "no memory limit of a container is below the machine's; %s are available",
                    available);
    else
        doctor_find(doctor, DOCTOR_OK, "cgroup", NULL,
                    "the container still allows %s, of %s available on the machine; /dev/shm and "
                    "its size do not matter",
                    cairn_show_bytes(memory.cgroup_bytes, limit), available);
}

/* ---- kernel ---- */

static void
probe_kernel(struct doctor *doctor)
{
    struct utsname name;
    int fd = memfd_create("cairn-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *memory = MAP_FAILED;
    bool sealed = false, populated = false;

    if (uname(&name) != 0)
        snprintf(name.release, sizeof name.release, "?");
    if (fd >= 0 && ftruncate(fd, PROBE_BYTES) == 0) {
        sealed = fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
        memory = mmap(NULL, PROBE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (memory != MAP_FAILED) {
        populated = madvise(memory, PROBE_BYTES, MADV_POPULATE_WRITE) == 0;
        munmap(memory, PROBE_BYTES);
    }
    if (!sealed)
        doctor_find(doctor, DOCTOR_CRITICAL, "kernel",
                    "use Linux 3.17 or later, and a container policy that allows memfd_create",
                    "kernel %s: memory cannot be shared as a sealed file (%s)", name.release,
                    strerror(errno));
    else if (!populated)
        doctor_find(doctor, DOCTOR_WARN, "kernel", "use Linux 5.14 or later",
                    "kernel %s: memory cannot be populated at once, so the agent touches every "
                    "page: a slower start",
                    name.release);
    else
        doctor_find(doctor, DOCTOR_OK, "kernel", NULL,
                    "kernel %s: sealed memory files, populated at once", name.release);
    if (fd >= 0)
        close(fd);
}

/* The chosen word of a file such as "always [madvise] never"; false if it is unreadable. */
static bool
read_choice(const char *path, char *word, size_t word_bytes)
{
    FILE *file = fopen(path, "re");
    char line[128] = "", *begin, *end;

    if (!file)
        return false;
    begin = fgets(line, sizeof line, file) ? strchr(line, '[') : NULL;
    end = begin ? strchr(begin, ']') : NULL;
    fclose(file);
    if (!end)
        return false;
    *end = '\0';
    snprintf(word, word_bytes, "%s", begin + 1);
    return true;
}

/* Free huge pages of the reserved pool, which the agent takes first. */
static uint64_t
free_hugepages_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    unsigned long long pages = 0, size_kib = 0;
    char line[128];

    while (file && fgets(line, sizeof line, file)) {
        (void)sscanf(line, "HugePages_Free: %llu", &pages);
        (void)sscanf(line, "Hugepagesize: %llu", &size_kib);
    }
    if (file)
        fclose(file);
    return (uint64_t)pages * size_kib * 1024;
}

static void
probe_hugepages(struct doctor *doctor)
{
    uint64_t free_bytes = free_hugepages_bytes();
    char word[32] = "unknown", free_text[CAIRN_SHOWN_BYTES], fix[256];

    if (!doctor->hugepages) {
        doctor_find(doctor, DOCTOR_OK, "hugepages", NULL, "the configuration wants none");
        return;
    }
    cairn_show_bytes(free_bytes, free_text);
    if (free_bytes && free_bytes >= doctor->huge_pages * DOCTOR_HUGE_PAGE_BYTES) {
        doctor_find(doctor, DOCTOR_OK, "hugepages", NULL, "%s of huge pages are reserved and free",
                    free_text);
        return;
    }
    if (read_choice("/sys/kernel/mm/transparent_hugepage/shmem_enabled", word, sizeof word) &&
        strcmp(word, "never") != 0 && strcmp(word, "deny") != 0) {
        doctor_find(doctor, DOCTOR_OK, "hugepages", NULL,
                    "shared memory gets huge pages automatically: %s", word);
        return;
    }
    snprintf(fix, sizeof fix,
             "as root: sysctl vm.nr_hugepages=%" PRIu64
             " (or echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled)",
             doctor->huge_pages);
    doctor_find(doctor, DOCTOR_WARN, "hugepages", fix,
                "%s of huge pages are reserved and free, and shared memory gets none by itself "
                "(%s): a slower start, more "
                "misses in the TLB",
                free_text, word);
}

/* ---- accelerator, coding, clock ---- */

static bool
probe_cuda(struct doctor *doctor)
{
    static const char path[] = "libcuda.so.1";
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

    if (library)
        doctor_find(doctor, DOCTOR_OK, "cuda", NULL, "the CUDA driver (%s) is there", path);
    else
        doctor_find(doctor, DOCTOR_OK, "cuda", NULL,
                    "no CUDA driver (%s): trainers' host memory only", path);
    return library != NULL;
}

static void
probe_code(struct doctor *doctor)
{
    struct cairn_clock clock = cairn_clock_system();
    struct cairn_code *code = NULL;
    uint8_t *shards[CODE_DATA + CODE_PARITY] = {0};
    uint64_t best_ns = UINT64_MAX;
    double gib_per_s;
    bool ready = cairn_code_create(CODE_DATA, CODE_PARITY, &code) == CAIRN_OK;

    for (int i = 0; ready && i < CODE_DATA + CODE_PARITY; i++) {
        shards[i] = aligned_alloc(64, CODE_SHARD_BYTES);
        ready = shards[i] != NULL;
        if (ready)
            memset(shards[i], i + 1, CODE_SHARD_BYTES);
    }
    for (int pass = 0; ready && pass < CODE_PASSES; pass++) {
        uint64_t begin_ns = cairn_clock_now_ns(&clock), took_ns;

        cairn_code_encode(code, CODE_SHARD_BYTES, shards);
        took_ns = cairn_clock_now_ns(&clock) - begin_ns;
        if (took_ns < best_ns)
            best_ns = took_ns;
    }
    gib_per_s = (double)CODE_DATA * CODE_SHARD_BYTES / (double)(1 << 30) / ((double)best_ns / 1e9);
    if (!ready)
        doctor_find(doctor, DOCTOR_WARN, "coding", "free some memory",
                    "the speed of coding could not be measured");
    else if (gib_per_s < 1)
        doctor_find(doctor, DOCTOR_WARN, "coding",
                    "use a processor with AVX2 (or NEON), or a machine that is less busy",
                    "encoding 8+2 runs at only %.2f GiB/s on one core", gib_per_s);
    else
        doctor_find(doctor, DOCTOR_OK, "coding", NULL,
                    "encoding 8+2 runs at %.1f GiB/s on one core", gib_per_s);
    for (int i = 0; i < CODE_DATA + CODE_PARITY; i++)
        free(shards[i]);
    cairn_code_destroy(code);
}

/* No decision compares clocks of two nodes; a wrong one only misleads readers of the logs. */
static void
probe_clock(struct doctor *doctor)
{
    struct timespec resolution;
    struct timex state = {0};

    if (clock_getres(CLOCK_MONOTONIC, &resolution) != 0 || resolution.tv_sec ||
        resolution.tv_nsec > 1000000)
        doctor_find(doctor, DOCTOR_WARN, "clock", "use a kernel with high-resolution timers",
                    "the monotonic clock is coarser than 1 ms");
    else if (adjtimex(&state) == TIME_ERROR)
        doctor_find(
            doctor, DOCTOR_OK, "clock", NULL,
            "monotonic clock of %ld ns; the wall clock is not synchronised, which only logs show",
            resolution.tv_nsec);
    else
        doctor_find(doctor, DOCTOR_OK, "clock", NULL, "monotonic clock of %ld ns",
                    resolution.tv_nsec);
}

void
doctor_probe(struct doctor *doctor)
{
    bool driver;

    probe_kernel(doctor);
    probe_hugepages(doctor);
    probe_container(doctor);
    driver = probe_cuda(doctor);
    probe_limits(doctor, driver);
    probe_code(doctor);
    probe_clock(doctor);
}
