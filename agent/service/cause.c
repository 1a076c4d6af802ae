/* agent/service/cause.c - what two readings of a node show; see cause.h. */
#include "agent/service/cause.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A power cap lowers the clocks of every busy GPU a little; below this share of the maximum it
 * explains a slow rank. */
enum { CLOCK_LOW_PERCENT = 90 };
/* Links correct some errors all the time. */
enum { CORRECTED_MIN = 100 };
/* Of the samples of a process. */
enum { DISK_SAMPLES_MIN = READING_SAMPLES / 2 };
/* A trainer that computes on the host or feeds a device uses far more of a core than the first;
 * workers that are the bottleneck use most of theirs, or wait for a disk. */
enum { IDLE_PERCENT_MAX = 20, WORKED_PERCENT_MIN = 50 };

static const char *const names[CAUSE_KINDS] = {
#define CAUSE_NAME(symbol, name) [CAUSE_##symbol] = name,
    CAUSE_LIST(CAUSE_NAME)
#undef CAUSE_NAME
};

struct list {
    struct cause *causes;
    uint32_t count;
};

const char *
cause_text(enum cause_kind kind)
{
    return names[kind];
}

static void add(struct list *list, enum cause_kind kind, uint64_t value, uint64_t normal,
                const char *format, ...) __attribute__((format(printf, 5, 6)));

static void
add(struct list *list, enum cause_kind kind, uint64_t value, uint64_t normal, const char *format,
    ...)
{
    struct cause *cause = &list->causes[list->count];
    va_list arguments;

    if (list->count == CAUSES_MAX)
        return;
    *cause = (struct cause){.kind = kind, .rank = UINT32_MAX, .value = value, .normal = normal};
    va_start(arguments, format);
    (void)vsnprintf(cause->what, sizeof cause->what, format, arguments);
    va_end(arguments);
    list->count++;
}

/* How much a counter has grown; a counter that fell was reset, and counts from 0. */
static uint64_t
grown(uint64_t before, uint64_t now)
{
    return now >= before ? now - before : now;
}

/* ---- GPUs ---- */

static const char *
why_throttled(uint64_t reasons)
{
    if (reasons & (READING_CLOCKS_HW_THERMAL | READING_CLOCKS_SW_THERMAL))
        return "it is too hot";
    if (reasons & READING_CLOCKS_POWER_BRAKE)
        return "the power supply brakes it";
    if (reasons & READING_CLOCKS_HW_SLOWDOWN)
        return "the hardware slows it down (temperature or power supply)";
    return "it is at its power cap";
}

static void
judge_clocks(struct list *list, uint32_t index, const struct reading_gpu *gpu)
{
    const uint64_t always = READING_CLOCKS_HW_SLOWDOWN | READING_CLOCKS_HW_THERMAL |
                            READING_CLOCKS_SW_THERMAL | READING_CLOCKS_POWER_BRAKE;
    bool is_low = (uint64_t)gpu->clock_mhz * 100 < (uint64_t)gpu->clock_max_mhz * CLOCK_LOW_PERCENT;

    if ((gpu->clock_reasons & always) ||
        ((gpu->clock_reasons & READING_CLOCKS_POWER_CAP) && is_low))
        add(list, CAUSE_CLOCKS_THROTTLED, gpu->clock_mhz, gpu->clock_max_mhz,
            "GPU %" PRIu32 " runs at %" PRIu32 " of %" PRIu32 " MHz: %s (%" PRIu32 " C)", index,
            gpu->clock_mhz, gpu->clock_max_mhz, why_throttled(gpu->clock_reasons),
            gpu->temperature_c);
}

static void
judge_gpu(struct list *list, uint32_t index, const struct reading_gpu *before,
          const struct reading_gpu *gpu)
{
    uint64_t uncorrected = grown(before->ecc_uncorrected, gpu->ecc_uncorrected);
    uint64_t corrected = grown(before->ecc_corrected, gpu->ecc_corrected);
    uint64_t replays = grown(before->pcie_replays, gpu->pcie_replays);

    if (gpu->xid_count > 0)
        add(list, CAUSE_XID_ERROR, gpu->xid, 0,
            "GPU %" PRIu32 " reported XID %" PRIu64 ", the last of %" PRIu64
            " since the agent's start",
            index, gpu->xid, gpu->xid_count);
    if (uncorrected > 0 || corrected >= CORRECTED_MIN)
        add(list, CAUSE_ECC_ERROR, uncorrected ? uncorrected : corrected, 0,
            "GPU %" PRIu32 " had %" PRIu64 " uncorrected and %" PRIu64 " corrected ECC errors",
            index, uncorrected, corrected);
    judge_clocks(list, index, gpu);
    if (!(gpu->clock_reasons & READING_CLOCKS_IDLE) && /* an idle link saves power */
        (gpu->pcie_gen < gpu->pcie_gen_max || gpu->pcie_width < gpu->pcie_width_max) &&
        gpu->pcie_gen > 0 && gpu->pcie_width > 0)
        add(list, CAUSE_PCIE_SLOW, gpu->pcie_width, gpu->pcie_width_max,
            "GPU %" PRIu32 " is connected by PCIe generation %" PRIu32 " x%" PRIu32
            ", not by %" PRIu32 " x%" PRIu32,
            index, gpu->pcie_gen, gpu->pcie_width, gpu->pcie_gen_max, gpu->pcie_width_max);
    if (replays >= CORRECTED_MIN)
        add(list, CAUSE_PCIE_ERRORS, replays, 0,
            "GPU %" PRIu32 " repeated %" PRIu64 " transfers over PCIe", index, replays);
}

/* ---- links and networks ---- */

static void
judge_link(struct list *list, const struct reading_link *before, const struct reading_link *link)
{
    uint64_t bad = grown(before->errors_fatal, link->errors_fatal) +
                   grown(before->errors_nonfatal, link->errors_nonfatal);
    uint64_t corrected = grown(before->errors_corrected, link->errors_corrected);

    if (link->speed_mts < before->speed_mts || link->width < before->width)
        add(list, CAUSE_PCIE_SLOW, link->speed_mts, before->speed_mts,
            "PCIe device %s went from %" PRIu32 ".%" PRIu32 " GT/s x%" PRIu32 " to %" PRIu32
            ".%" PRIu32 " GT/s x%" PRIu32,
            link->name, before->speed_mts / 1000, before->speed_mts / 100 % 10, before->width,
            link->speed_mts / 1000, link->speed_mts / 100 % 10, link->width);
    if (bad > 0 || corrected >= CORRECTED_MIN)
        add(list, CAUSE_PCIE_ERRORS, bad ? bad : corrected, 0,
            "PCIe device %s had %" PRIu64 " uncorrected and %" PRIu64 " corrected errors",
            link->name, bad, corrected);
}

static void
judge_nic(struct list *list, const struct reading_nic *before, const struct reading_nic *nic)
{
    uint64_t errors = grown(before->errors, nic->errors);
    uint64_t outages = grown(before->outages, nic->outages);

    if (before->is_up && !nic->is_up)
        add(list, CAUSE_NIC_DOWN, 0, before->speed_mbps, "network interface %s is down", nic->name);
    else if (outages > 0)
        add(list, CAUSE_NIC_DOWN, outages, 0,
            "the link of network interface %s changed %" PRIu64 " times", nic->name, outages);
    if (nic->is_up && nic->speed_mbps < before->speed_mbps)
        add(list, CAUSE_NIC_SLOW, nic->speed_mbps, before->speed_mbps,
            "network interface %s runs at %" PRIu64 " of %" PRIu64 " Mb/s", nic->name,
            nic->speed_mbps, before->speed_mbps);
    if (errors > 0)
        add(list, CAUSE_NIC_ERRORS, errors, 0, "network interface %s had %" PRIu64 " errors",
            nic->name, errors);
}

/* The links and interfaces of two readings, by their names. */
static void
judge_devices(struct list *list, const struct health_reading *before,
              const struct health_reading *now)
{
    for (uint32_t i = 0; i < now->link_count; i++)
        for (uint32_t at = 0; at < before->link_count; at++)
            if (strcmp(before->links[at].name, now->links[i].name) == 0)
                judge_link(list, &before->links[at], &now->links[i]);
    for (uint32_t i = 0; i < now->nic_count; i++)
        for (uint32_t at = 0; at < before->nic_count; at++)
            if (strcmp(before->nics[at].name, now->nics[i].name) == 0)
                judge_nic(list, &before->nics[at], &now->nics[i]);
}

/* ---- host and processes ---- */

static void
judge_host(struct list *list, const struct health_reading *before, const struct health_reading *now)
{
    uint64_t uncorrected = grown(before->memory_uncorrected, now->memory_uncorrected);
    uint64_t corrected = grown(before->memory_corrected, now->memory_corrected);
    uint64_t throttles = grown(before->cpu_throttles, now->cpu_throttles);

    if (uncorrected > 0 || corrected >= CORRECTED_MIN)
        add(list, CAUSE_MEMORY_ERRORS, uncorrected ? uncorrected : corrected, 0,
            "the host's memory had %" PRIu64 " uncorrected and %" PRIu64 " corrected errors",
            uncorrected, corrected);
    if (throttles > 0)
        add(list, CAUSE_CPU_THROTTLED, throttles, 0,
            "processor cores were slowed down %" PRIu64 " times, since they were too hot",
            throttles);
}

static void
judge_rank(struct list *list, const struct reading_rank *rank)
{
    uint32_t count = list->count;

    if (rank->samples < READING_SAMPLES)
        return;
    if (rank->disk_samples >= DISK_SAMPLES_MIN)
        add(list, CAUSE_STORAGE, rank->disk_samples * UINT64_C(100) / rank->samples, 0,
            "rank %" PRIu32 " waited for a disk or a file system in %" PRIu32 " of %" PRIu32
            " samples",
            rank->rank, rank->disk_samples, rank->samples);
    else if (rank->workers > 0 && rank->used_percent <= IDLE_PERCENT_MAX &&
             (rank->worked_percent >= WORKED_PERCENT_MIN || rank->disk_workers >= DISK_SAMPLES_MIN))
        add(list, CAUSE_DATA_LOADER, rank->worked_percent, rank->used_percent,
            "rank %" PRIu32 " used %" PRIu32 " %% of a core, while its %" PRIu32
            " child processes used %" PRIu32 " %% and waited for a disk in %" PRIu32 " of %" PRIu32
            " samples: its data loader is slow",
            rank->rank, rank->used_percent, rank->workers, rank->worked_percent, rank->disk_workers,
            rank->samples);
    if (list->count > count)
        list->causes[count].rank = rank->rank;
}

uint32_t
cause_find(const struct health_reading *before, const struct health_reading *now,
           struct cause causes[CAUSES_MAX])
{
    static const struct reading_gpu none = {0};
    struct list list = {.causes = causes};

    for (uint32_t i = 0; i < now->gpu_count; i++)
        judge_gpu(&list, i, i < before->gpu_count ? &before->gpus[i] : &none, &now->gpus[i]);
    judge_devices(&list, before, now);
    judge_host(&list, before, now);
    for (uint32_t i = 0; i < now->rank_count; i++)
        judge_rank(&list, &now->ranks[i]);
    return list.count;
}
