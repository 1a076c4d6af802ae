/*
 * agent/service/spill_state.h - what the files of spilling and exporting share.
 *
 *   spill.c         start and end, messages and ticks
 *   spill_lead.c    the leader of a spill (the lowest live agent that is a member): when, who,
 *                   commit, failure
 *   spill_export.c  one agent writes a whole checkpoint for an operator
 *   spill_part.c    the part of a member: it writes its files and tells the leader
 *   spill_pin.c     who reads which generation, and small parts that all use
 *   spill_disk.c    what blocks on the disk: directories, COMMIT, retention, removal
 *   spill_run.c     the files of one writer
 *   spill_fill.c    the bytes of one buffer
 *
 * Each file calls only those below it.
 *
 * Messages are CAIRN_SERVICE_SPILL with `row` from SPILL_START on. Any of them may be lost,
 * repeated or reordered: the waiting side sends again once a second, and each message stands for
 * itself. `request` names the spill or export, and is unique in the job.
 *
 *   leader                               member
 *   START ───────────────────────────►   pins the generation (or refuses), gathers, plans, writes
 *         ◄───────────────────────────   PROGRESS (each second; err: it failed, the text says why)
 *         ◄───────────────────────────   CRCS of a file that has its name, in parts
 *   CRCS_ACK ────────────────────────►   next part
 *   (all files are here) checks, COMMIT, retention
 *   END (err 0: committed) ──────────►   unpins, forgets; all agents: the newest spilled one
 *         ◄───────────────────────────   ENDED
 *
 * The agent that finds a generation on the disk damaged and marks it as bad tells all agents once
 * (BAD). One that misses it offers a generation that does not open, until it starts again.
 *
 * Invariants:
 *  1. An agent takes part in one spill at a time, and never twice in the same generation or in an
 *     older one. So at most one process writes a file, and no late thread of an earlier attempt
 *     meets a new one.
 *  2. Only the leader writes COMMIT, after it has the checksums of every file for this request. A
 *     member that has sent CRCS never touches that file again.
 *  3. A leader that gave a spill up never commits it, unless the commit was under way.
 */
#ifndef CAIRN_AGENT_SERVICE_SPILL_STATE_H
#define CAIRN_AGENT_SERVICE_SPILL_STATE_H

#include "agent/process/config.h"
#include "agent/service/spill.h"
#include "agent/service/spill_run.h"
#include "base/limits.h"

enum spill_row {
    SPILL_START = 64,
    SPILL_PROGRESS, /* offset: bytes written; total: bytes to write; err, bytes: why it failed */
    SPILL_CRCS, /* stripe: file; offset: first block; total: blocks of the file; bytes: CRC-64s */
    SPILL_CRCS_ACK, /* stripe: file; offset: blocks received from the first on */
    SPILL_END,      /* err */
    SPILL_ENDED,
    SPILL_PIN,    /* keep the generation for SPILL_LEASE_NS from now on */
    SPILL_PINNED, /* err: it is not here */
    SPILL_UNPIN,
    SPILL_BAD /* the generation was marked as bad; offset, total: epoch, step of the newest left */
};

enum {
    SPILL_PINS_MAX = 8,
    SPILL_PART_CRCS = 6144, /* 48 KiB */
    SPILL_DISK_JOBS = 8,
    SPILL_PATH_BYTES = CAIRN_CONFIG_PATH_BYTES_MAX + 64
};

#define SPILL_PAUSE_NS (60 * CAIRN_NS_PER_S)
#define SPILL_PAUSE_NS_MAX (900 * CAIRN_NS_PER_S)
#define SPILL_RESEND_NS (1 * CAIRN_NS_PER_S)
#define SPILL_LEASE_NS (10 * CAIRN_NS_PER_S)

/* A reader of a generation. expires_ns 0: until it is dropped. */
struct spill_pin {
    uint64_t request; /* 0: unused */
    struct cairn_generation_id generation;
    uint64_t expires_ns;
};

/* This agent as a member of a spill. */
struct spill_part {
    uint64_t request; /* 0: none */
    uint32_t leader;
    struct cairn_generation_id generation;
    uint64_t epoch;
    uint32_t writer; /* its own number among the members */
    struct spill_run *run;
    bool written; /* all own files have their names */
    cairn_err err;
    char text[SPILL_TEXT_BYTES];
    uint32_t file;    /* whose checksums are being told */
    uint64_t told;    /* of them the leader has */
    uint64_t sent_ns; /* last PROGRESS or CRCS */
};

enum lead_state {
    LEAD_NONE = 0,
    LEAD_BEGIN,  /* the directory is being made */
    LEAD_WRITE,  /* members write */
    LEAD_COMMIT, /* everything is here: the disk thread checks and commits */
    LEAD_END     /* it is over, members are told */
};

struct lead_member {
    bool heard; /* of this request */
    bool ended; /* or need not be told */
    uint64_t written_bytes;
};

struct spill_lead {
    enum lead_state state;
    uint64_t request;
    struct cairn_generation_id generation;
    uint64_t epoch;
    uint64_t started_ns;
    uint64_t progress_ns;
    uint64_t sent_ns;
    uint64_t end_ns; /* when LEAD_END was entered */
    cairn_err err;
    char text[SPILL_TEXT_BYTES];
    struct lead_member *members; /* [node_count], by agent */
    uint64_t *received; /* [file_count] checksums, from the first on; UINT64_MAX: all are set */
    uint64_t **crcs;    /* [file_count] */
    uint32_t file_count;
    uint32_t removals_left; /* of what a failed spill left, tried once a second */
};

struct spill_export;

struct spill_state {
    struct cairn_workers *disk; /* one thread: a disk that hangs must not hold up the protection */
    struct spill_pin pins[SPILL_PINS_MAX];
    struct spill_part part;
    /* The own part has written its files, or failed, in a spill that this agent leads. */
    void (*part_over)(struct cairn_agent *agent, cairn_err err, const char *text);
    struct spill_lead lead;
    struct spill_export *export;
    struct cairn_generation_id newest; /* spilled, known whole */
    struct cairn_generation_id tried;  /* newest one this agent took part in */
    uint32_t commits;                  /* since one was due */
    uint64_t requests;
    uint64_t pause_ns;              /* no spill is begun before */
    uint64_t pause_step_ns;         /* grows while the disk does not answer */
    uint64_t stuck_ns;              /* since when it does not; 0: it does */
    uint64_t given_up;              /* spills, since the start, because of that */
    uint64_t said_ns;               /* when one that was given up was logged last */
    uint64_t failed_ns;             /* first of the failures since the last spill; 0: none */
    char failure[SPILL_TEXT_BYTES]; /* why the newest of them failed */
};

#endif
