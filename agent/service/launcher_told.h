/*
 * agent/service/launcher_told.h - what a launcher tells its agent beside its note: how another
 * round of the command may differ, and who could take part in it.
 */
#ifndef CAIRN_AGENT_SERVICE_LAUNCHER_TOLD_H
#define CAIRN_AGENT_SERVICE_LAUNCHER_TOLD_H

#include <stdint.h>

/* What the launcher's command has placeholders for, so how another round may differ; 0: unknown. */
enum {
    OPERATOR_READS_ANY = 1,
    OPERATOR_READS_NODES = 2,   /* how many nodes there are */
    OPERATOR_READS_STAGES = 4,  /* how many stages */
    OPERATOR_READS_LAYERS = 8,  /* how many layers each stage has */
    OPERATOR_READS_SHARES = 16, /* how many micro-batches each replica has */
    OPERATOR_READS_SHAPE = OPERATOR_READS_STAGES | OPERATOR_READS_LAYERS | OPERATOR_READS_SHARES
};

enum { OPERATOR_STANDBY_MAX = 8 };

/* Nodes that stand by while the command runs: their launchers wait. */
struct operator_standby {
    uint32_t count;
    uint32_t nodes[OPERATOR_STANDBY_MAX];
};

#endif
