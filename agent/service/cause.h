/*
 * agent/service/cause.h - what two readings of a node show about why its ranks are slow or hang.
 *
 * Pure. A cause is a fact with numbers, beside a verdict; no verdict depends on it.
 */
#ifndef CAIRN_AGENT_SERVICE_CAUSE_H
#define CAIRN_AGENT_SERVICE_CAUSE_H

#include "agent/service/health_reading.h"

#include <stdint.h>

/* X(symbol, name) */
#define CAUSE_LIST(X)                                                                              \
    X(CLOCKS_THROTTLED, "clocks_throttled")                                                        \
    X(XID_ERROR, "xid_error")                                                                      \
    X(ECC_ERROR, "ecc_error")                                                                      \
    X(PCIE_SLOW, "pcie_slow")                                                                      \
    X(PCIE_ERRORS, "pcie_errors")                                                                  \
    X(NIC_DOWN, "nic_down")                                                                        \
    X(NIC_SLOW, "nic_slow")                                                                        \
    X(NIC_ERRORS, "nic_errors")                                                                    \
    X(MEMORY_ERRORS, "memory_errors")                                                              \
    X(CPU_THROTTLED, "cpu_throttled")                                                              \
    X(STORAGE, "storage")                                                                          \
    X(DATA_LOADER, "data_loader")

enum cause_kind {
#define CAUSE_ENUM(symbol, name) CAUSE_##symbol,
    CAUSE_LIST(CAUSE_ENUM)
#undef CAUSE_ENUM
        CAUSE_KINDS
};

enum { CAUSES_MAX = 8, CAUSE_TEXT_BYTES = 160 };

struct cause {
    enum cause_kind kind;
    uint32_t rank;               /* UINT32_MAX: of the node */
    uint64_t value, normal;      /* the measured and the normal value: MHz, MB/s, errors, percent */
    char what[CAUSE_TEXT_BYTES]; /* "GPU 0 runs at 1200 of 1980 MHz: it is too hot (91 °C)" */
};

const char *cause_text(enum cause_kind kind);

/* Compares a reading with an earlier one of the same node. Fills causes[CAUSES_MAX], the strongest
 * evidence first, and returns their number. */
uint32_t cause_find(const struct health_reading *before, const struct health_reading *now,
                    struct cause causes[CAUSES_MAX]);

#endif
