/*
 * tests/support/nvml/nvml.c - a fake libnvidia-ml: one GPU, whose values are lines "NAME NUMBER" of
 * the file that $CAIRN_FAKE_NVML names, read with each question, so that a test can change them
 * while an agent runs. Names are those of the fields of struct reading_gpu; a value that the file
 * lacks is not supported (as on GPUs without ECC). An XID error is reported as often as `xid_count`
 * says.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, NOT_SUPPORTED = 3, TIMED_OUT = 10 };

struct event {
    void *device;
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance;
};

static char device, event_set;
static unsigned long long told; /* XID errors */
static int is_ready;

/* False: the file does not have it. */
static int
look_up(const char *name, unsigned long long *out)
{
    const char *path = getenv("CAIRN_FAKE_NVML");
    FILE *file = path && is_ready ? fopen(path, "r") : NULL;
    unsigned long long value;
    char word[64];
    int found = 0;

    while (file && !found && fscanf(file, "%63s %llu", word, &value) == 2)
        found = strcmp(word, name) == 0;
    if (file)
        fclose(file);
    if (found)
        *out = value;
    return found;
}

static int
give(const char *name, unsigned int *out)
{
    unsigned long long value;

    if (!look_up(name, &value))
        return NOT_SUPPORTED;
    *out = (unsigned int)value;
    return SUCCESS;
}

int nvmlInit_v2(void);
int
nvmlInit_v2(void)
{
    is_ready = 1;
    return SUCCESS;
}

int nvmlShutdown(void);
int
nvmlShutdown(void)
{
    is_ready = 0;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count);
int
nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = 1;
    return is_ready ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **out);
int
nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **out)
{
    *out = &device;
    return index == 0 ? SUCCESS : NOT_SUPPORTED;
}

#define GIVE_KIND(symbol, name)                                                                    \
    int symbol(void *gpu, int kind, unsigned int *out);                                            \
    int symbol(void *gpu, int kind, unsigned int *out)                                             \
    {                                                                                              \
        (void)kind;                                                                                \
        return gpu == &device ? give(name, out) : NOT_SUPPORTED;                                   \
    }
GIVE_KIND(nvmlDeviceGetClockInfo, "clock_mhz")
GIVE_KIND(nvmlDeviceGetMaxClockInfo, "clock_max_mhz")
GIVE_KIND(nvmlDeviceGetTemperature, "temperature_c")

#define GIVE(symbol, name)                                                                         \
    int symbol(void *gpu, unsigned int *out);                                                      \
    int symbol(void *gpu, unsigned int *out)                                                       \
    {                                                                                              \
        return gpu == &device ? give(name, out) : NOT_SUPPORTED;                                   \
    }
GIVE(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
GIVE(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
GIVE(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
GIVE(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
GIVE(nvmlDeviceGetPcieReplayCounter, "pcie_replays")

int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *out);
int
nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *out)
{
    return gpu == &device && look_up("clock_reasons", out) ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetTotalEccErrors(void *gpu, int type, int counter, unsigned long long *out);
int
nvmlDeviceGetTotalEccErrors(void *gpu, int type, int counter, unsigned long long *out)
{
    (void)counter;
    return gpu == &device && look_up(type ? "ecc_uncorrected" : "ecc_corrected", out)
               ? SUCCESS
               : NOT_SUPPORTED;
}

int nvmlEventSetCreate(void **out);
int
nvmlEventSetCreate(void **out)
{
    *out = &event_set;
    return SUCCESS;
}

int nvmlEventSetFree(void *set);
int
nvmlEventSetFree(void *set)
{
    return set == &event_set ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceRegisterEvents(void *gpu, unsigned long long types, void *set);
int
nvmlDeviceRegisterEvents(void *gpu, unsigned long long types, void *set)
{
    return gpu == &device && types == 8 && set == &event_set ? SUCCESS : NOT_SUPPORTED;
}

int nvmlEventSetWait_v2(void *set, struct event *out, unsigned int timeout_ms);
int
nvmlEventSetWait_v2(void *set, struct event *out, unsigned int timeout_ms)
{
    unsigned long long count = 0, xid = 0;

    (void)timeout_ms;
    if (set != &event_set || !look_up("xid_count", &count) || told >= count ||
        !look_up("xid", &xid))
        return TIMED_OUT;
    told++;
    *out = (struct event){.device = &device, .type = 8, .data = xid};
    return SUCCESS;
}
