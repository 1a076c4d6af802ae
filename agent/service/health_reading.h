/*
 * agent/service/health_reading.h - what a node can read about itself to explain a slow or hanging
 * rank: GPUs (NVML), PCIe devices, network interfaces, memory errors, and its trainers' processes.
 *
 * NVML is opened at run time, so an agent needs no driver. Everything else is files below sysfs and
 * /proc. Missing devices are left out; an unreadable file counts as absent.
 *
 * A reading takes a second, because processes are sampled over that time. Thread: one worker, one
 * reading at a time.
 */
#ifndef CAIRN_AGENT_SERVICE_HEALTH_READING_H
#define CAIRN_AGENT_SERVICE_HEALTH_READING_H

#include <stdbool.h>
#include <stdint.h>

enum {
    READING_GPUS_MAX = 16,
    READING_LINKS_MAX = 64,
    READING_NICS_MAX = 32,
    READING_RANKS_MAX = 64,
    READING_NAME_BYTES = 48,
    READING_SAMPLES = 10, /* of processes */
    READING_STACK_BYTES = 4096,
    READING_SAMPLE_MS = 100
};

/* Why a GPU's clocks are below what they could be: the bits of NVML. */
enum {
    READING_CLOCKS_IDLE = 0x1,
    READING_CLOCKS_POWER_CAP = 0x4,
    READING_CLOCKS_HW_SLOWDOWN = 0x8,
    READING_CLOCKS_SW_THERMAL = 0x20,
    READING_CLOCKS_HW_THERMAL = 0x40,
    READING_CLOCKS_POWER_BRAKE = 0x80
};

struct reading_gpu {
    uint64_t clock_reasons;
    uint32_t clock_mhz, clock_max_mhz; /* of the multiprocessors; 0 unknown, as in the next */
    uint32_t temperature_c;
    uint32_t pcie_gen, pcie_gen_max, pcie_width, pcie_width_max;
    uint64_t ecc_corrected, ecc_uncorrected; /* since the driver was loaded */
    uint64_t pcie_replays;
    uint64_t xid_count; /* since the agent opened NVML */
    uint64_t xid;       /* the newest */
};

/* A PCIe link of a GPU or a network device, as the kernel has it. */
struct reading_link {
    char name[READING_NAME_BYTES];     /* "0000:3b:00.0" */
    uint32_t speed_mts, speed_max_mts; /* megatransfers per second; 0 unknown */
    uint32_t width, width_max;         /* lanes; 0 unknown */
    uint64_t errors_fatal, errors_nonfatal, errors_corrected;
};

/* A network interface or a port of an InfiniBand device. */
struct reading_nic {
    char name[READING_NAME_BYTES];
    uint64_t speed_mbps; /* 0 unknown */
    bool is_up;
    uint64_t errors;  /* receive and send errors */
    uint64_t outages; /* times that the link went down or up */
};

/* A trainer's process, over READING_SAMPLES samples. */
struct reading_rank {
    uint32_t rank;
    int64_t pid;
    uint32_t workers;                /* child processes, as of a data loader */
    uint32_t used_percent;           /* of one core, by the process */
    uint32_t worked_percent;         /* by its children */
    uint32_t disk_samples;           /* in which it waited for a disk or a file system (state D) */
    uint32_t disk_workers;           /* the same, of its children */
    uint32_t samples;                /* 0: the process is gone */
    char stack[READING_STACK_BYTES]; /* its Python stacks; "": not asked, or it has none */
};

struct health_reading {
    uint32_t gpu_count, link_count, nic_count, rank_count;
    struct reading_gpu gpus[READING_GPUS_MAX];
    struct reading_link links[READING_LINKS_MAX];
    struct reading_nic nics[READING_NICS_MAX];
    struct reading_rank ranks[READING_RANKS_MAX];  /* rank and pid are the caller's */
    uint64_t memory_corrected, memory_uncorrected; /* errors of the host's memory (EDAC) */
    uint64_t cpu_throttles;                        /* times that a core was too hot */
};

/* The connection to NVML. */
struct health_gpus;

/* Opens NVML by this name or path, and asks it to report XID errors from now on. NULL: not found,
 * or no memory. Blocks. */
struct health_gpus *health_gpus_open(const char *library);
void health_gpus_close(struct health_gpus *gpus); /* NULL is allowed */
void health_gpus_read(struct health_gpus *gpus, struct health_reading *out);

/* Asks all ranks of *out, which the caller has set, for their stacks (health_stacks.h). */
void health_read_stacks(struct health_reading *out);

/* Fills *out, whose ranks the caller has set. `gpus` may be NULL. Blocks for a second. */
void health_read(struct health_gpus *gpus, const char *sysfs_dir, struct health_reading *out);

#endif
