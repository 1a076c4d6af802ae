/*
 * agent/service/drill.h - rehearses the loss of nodes on the running job: decodes their data from
 * the other members of one erasure group into scratch, and compares it with its checksums.
 *
 * One agent of the group, which survives the loss, runs the drill. It reads the lost nodes' data
 * line by line from k others, as a repair would: own blocks from memory, the rest by FETCH. Data is
 * compared with the seals that each member of the group keeps of all others; parity with its
 * owner's checksums. A source that is damaged is left out for that line, as in a repair.
 *
 *   ask ─► LOAD (the ready generation) ─► READ (k sources) ─► DECODE (a worker) ─► pause ─┐
 *                  ▲                                                                     │
 *                  └───────────────────────── next lines ◄───────────────────────────────┘
 *
 * Invariants:
 *  1. Nothing of the job changes: no generation is pinned, no slot written, no epoch begun. If a
 *     newer generation is committed meanwhile, the drill goes on in it, at the same line.
 *  2. It holds DRILL_BLOCKS blocks per member of the group, and reads no faster than it was told.
 *  3. It ends when nobody has asked for it for DRILL_LEASE_NS.
 *
 * Thread: loop; a worker decodes and computes checksums.
 */
#ifndef CAIRN_AGENT_SERVICE_DRILL_H
#define CAIRN_AGENT_SERVICE_DRILL_H

#include "cairn/err.h"
#include "snapshot/generation.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_agent;
struct cairn_service_message;

enum { DRILL_NODES_MAX = 16, DRILL_BLOCKS = 16, DRILL_TEXT_BYTES = 384 };

#define DRILL_LEASE_NS (10 * CAIRN_NS_PER_S)

/* What is rehearsed. */
struct drill_ask {
    uint32_t asker;   /* agent */
    uint64_t request; /* the asker's number */
    uint32_t group;   /* of the ready generation's roster */
    uint64_t rate;    /* bytes read per second at most; > 0 */
    uint32_t node_count;
    uint32_t nodes[DRILL_NODES_MAX]; /* agents that are lost */
};

struct drill_report {
    bool finished;
    bool survivable;                        /* finished: everything was decoded, and right */
    cairn_err err;                          /* finished without a result: text has the reason */
    struct cairn_generation_id first, last; /* generations that were read */
    uint64_t decoded_bytes, total_bytes;    /* of the lost nodes' data */
    uint64_t read_bytes;
    uint64_t damaged_blocks; /* of survivors, that were left out */
    char text[DRILL_TEXT_BYTES];
};

void drill_close(struct cairn_agent *agent);
void drill_tick(struct cairn_agent *agent);

/* Starts the drill unless it runs or has run, and reports its progress. CAIRN_AGAIN: another drill
 * runs. */
void drill_look(struct cairn_agent *agent, const struct drill_ask *ask, struct drill_report *out);

/* A FETCHED of another agent. False: not for a drill. */
bool drill_message(struct cairn_agent *agent, const struct cairn_service_message *message,
                   const uint8_t *payload, size_t payload_len);

#endif
