/* agent/service/health_gpus.c - GPUs as NVML describes them; see health_reading.h. The numbers and
 * names are those of NVIDIA's NVML API reference. */
#include "agent/service/health_reading.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum {
    NVML_CLOCK_SM = 1,
    NVML_TEMPERATURE_GPU = 0,
    NVML_ECC_CORRECTED = 0,
    NVML_ECC_UNCORRECTED = 1,
    NVML_COUNTER_VOLATILE = 0,
    NVML_EVENT_XID = 8,
    EVENTS_MAX = 64 /* taken at once */
};

typedef void *nvml_device;
struct nvml_event {
    nvml_device device;
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance;
};

/* Functions by their last part: X(field, symbol, arguments). All return 0 for success. */
#define NVML_LIST(X)                                                                               \
    X(init, nvmlInit_v2, (void))                                                                   \
    X(shutdown, nvmlShutdown, (void))                                                              \
    X(find_count, nvmlDeviceGetCount_v2, (unsigned int *))                                         \
    X(handle, nvmlDeviceGetHandleByIndex_v2, (unsigned int, nvml_device *))                        \
    X(clock, nvmlDeviceGetClockInfo, (nvml_device, int, unsigned int *))                           \
    X(clock_max, nvmlDeviceGetMaxClockInfo, (nvml_device, int, unsigned int *))                    \
    X(reasons, nvmlDeviceGetCurrentClocksThrottleReasons, (nvml_device, unsigned long long *))     \
    X(temperature, nvmlDeviceGetTemperature, (nvml_device, int, unsigned int *))                   \
    X(ecc, nvmlDeviceGetTotalEccErrors, (nvml_device, int, int, unsigned long long *))             \
    X(gen, nvmlDeviceGetCurrPcieLinkGeneration, (nvml_device, unsigned int *))                     \
    X(gen_max, nvmlDeviceGetMaxPcieLinkGeneration, (nvml_device, unsigned int *))                  \
    X(width, nvmlDeviceGetCurrPcieLinkWidth, (nvml_device, unsigned int *))                        \
    X(width_max, nvmlDeviceGetMaxPcieLinkWidth, (nvml_device, unsigned int *))                     \
    X(replays, nvmlDeviceGetPcieReplayCounter, (nvml_device, unsigned int *))                      \
    X(set_create, nvmlEventSetCreate, (void **))                                                   \
    X(set_free, nvmlEventSetFree, (void *))                                                        \
    X(subscribe, nvmlDeviceRegisterEvents, (nvml_device, unsigned long long, void *))              \
    X(wait, nvmlEventSetWait_v2, (void *, struct nvml_event *, unsigned int))

struct health_gpus {
    void *library;
    void *events; /* NULL: XID errors are not told */
    uint32_t count;
    nvml_device devices[READING_GPUS_MAX];
    uint64_t xid_counts[READING_GPUS_MAX], xids[READING_GPUS_MAX];
#define NVML_FIELD(field, symbol, arguments) int(*field) arguments; /* NULL: an older library */
    NVML_LIST(NVML_FIELD)
#undef NVML_FIELD
};

static void
subscribe(struct health_gpus *gpus)
{
    if (!gpus->set_create || !gpus->subscribe || !gpus->wait || gpus->set_create(&gpus->events)) {
        gpus->events = NULL;
        return;
    }
    for (uint32_t i = 0; i < gpus->count; i++)
        (void)gpus->subscribe(gpus->devices[i], NVML_EVENT_XID, gpus->events);
}

struct health_gpus *
health_gpus_open(const char *library)
{
    struct health_gpus *gpus = calloc(1, sizeof *gpus);
    unsigned int count = 0;
    bool is_ready = false;

    if (!gpus)
        return NULL;
    gpus->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!gpus->library)
        goto done;
#define NVML_LOOK(field, symbol, arguments)                                                        \
    *(void **)(void *)&gpus->field = dlsym(gpus->library, #symbol);
    NVML_LIST(NVML_LOOK)
#undef NVML_LOOK
    if (!gpus->init || !gpus->find_count || !gpus->handle || gpus->init() != 0)
        goto done;
    if (gpus->find_count(&count) != 0)
        goto done;
    for (unsigned int i = 0; i < count && gpus->count < READING_GPUS_MAX; i++)
        if (gpus->handle(i, &gpus->devices[gpus->count]) == 0)
            gpus->count++;
    subscribe(gpus);
    is_ready = true;
done:
    if (!is_ready) {
        health_gpus_close(gpus);
        return NULL;
    }
    return gpus;
}

void
health_gpus_close(struct health_gpus *gpus)
{
    if (!gpus)
        return;
    if (gpus->events && gpus->set_free)
        (void)gpus->set_free(gpus->events);
    if (gpus->count > 0 && gpus->shutdown)
        (void)gpus->shutdown();
    if (gpus->library)
        dlclose(gpus->library);
    free(gpus);
}

/* Takes the XID errors since the last look. */
static void
take_events(struct health_gpus *gpus)
{
    struct nvml_event event;

    for (int taken = 0; gpus->events && taken < EVENTS_MAX; taken++) {
        memset(&event, 0, sizeof event);
        if (gpus->wait(gpus->events, &event, 0) != 0)
            return;
        for (uint32_t i = 0; i < gpus->count; i++)
            if (gpus->devices[i] == event.device && (event.type & NVML_EVENT_XID)) {
                gpus->xid_counts[i]++;
                gpus->xids[i] = event.data;
            }
    }
}

static uint32_t
number(int (*get)(nvml_device, unsigned int *), nvml_device device)
{
    unsigned int value = 0;

    return get && get(device, &value) == 0 ? value : 0;
}

static uint64_t
ecc_errors(const struct health_gpus *gpus, nvml_device device, int type)
{
    unsigned long long value = 0;

    return gpus->ecc && gpus->ecc(device, type, NVML_COUNTER_VOLATILE, &value) == 0 ? value : 0;
}

static uint32_t
clock_of(int (*get)(nvml_device, int, unsigned int *), nvml_device device, int kind)
{
    unsigned int value = 0;

    return get && get(device, kind, &value) == 0 ? value : 0;
}

void
health_gpus_read(struct health_gpus *gpus, struct health_reading *out)
{
    out->gpu_count = 0;
    if (!gpus)
        return;
    take_events(gpus);
    for (uint32_t i = 0; i < gpus->count; i++) {
        struct reading_gpu *gpu = &out->gpus[out->gpu_count++];
        nvml_device device = gpus->devices[i];
        unsigned long long reasons = 0;

        *gpu = (struct reading_gpu){
            .clock_mhz = clock_of(gpus->clock, device, NVML_CLOCK_SM),
            .clock_max_mhz = clock_of(gpus->clock_max, device, NVML_CLOCK_SM),
            .temperature_c = clock_of(gpus->temperature, device, NVML_TEMPERATURE_GPU),
            .pcie_gen = number(gpus->gen, device),
            .pcie_gen_max = number(gpus->gen_max, device),
            .pcie_width = number(gpus->width, device),
            .pcie_width_max = number(gpus->width_max, device),
            .pcie_replays = number(gpus->replays, device),
            .ecc_corrected = ecc_errors(gpus, device, NVML_ECC_CORRECTED),
            .ecc_uncorrected = ecc_errors(gpus, device, NVML_ECC_UNCORRECTED),
            .xid_count = gpus->xid_counts[i],
            .xid = gpus->xids[i]};
        if (gpus->reasons && gpus->reasons(device, &reasons) == 0)
            gpu->clock_reasons = reasons;
    }
}
