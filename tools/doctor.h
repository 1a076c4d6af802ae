/* tools/doctor.h - what the files of `cairn doctor` share: the list of findings. */
#ifndef CAIRN_TOOLS_DOCTOR_H
#define CAIRN_TOOLS_DOCTOR_H

#include "agent/process/config.h"

#include <stdbool.h>
#include <stdint.h>

enum { DOCTOR_FINDINGS_MAX = 40, DOCTOR_HUGE_PAGE_BYTES = 2 << 20 };

enum doctor_level { DOCTOR_OK = 0, DOCTOR_WARN = 1, DOCTOR_CRITICAL = 2 };

struct doctor_finding {
    enum doctor_level level;
    const char *code; /* static */
    char what[640];
    char fix[256]; /* empty: nothing to do */
};

struct doctor {
    enum doctor_level level; /* the worst */
    uint32_t count;
    struct doctor_finding findings[DOCTOR_FINDINGS_MAX];
    uint64_t need_bytes; /* that an agent would reserve; 0 unknown */
    uint64_t huge_pages; /* that these need; 0 unknown */
    bool pinning;        /* the network's provider pins memory */
    bool hugepages;      /* the configuration wants them */
};

/* Adds a finding (doctor_finding.c). fix NULL: nothing to do. */
void doctor_find(struct doctor *doctor, enum doctor_level level, const char *code, const char *fix,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));

/* ---- doctor_probe.c: the machine itself: limits, kernel, huge pages, accelerator, coding speed,
 * clock ---- */
void doctor_probe(struct doctor *doctor);

/* ---- doctor_wire.c: what goes between agents: key and certificate, provider, port, cipher ---- */
void doctor_wire(struct doctor *doctor, const struct cairn_config *config, bool agent_runs);

/* ---- doctor_peers.c: the other agents, by the agent that runs here ---- */
void doctor_peers(struct doctor *doctor, const char *socket);

#endif
