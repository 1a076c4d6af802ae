/*
 * bindings/nccl/chain.h - another profiler plugin that goes on working although NCCL loads only
 * one.
 *
 * It gets the events that it asked for, with its own contexts and handles. It must offer the
 * version that NCCL speaks with us; v5 and v6 stand in for each other. If it returns a handle, NCCL
 * gets one that names an entry with both handles, its and ours. Entries are taken in turn and never
 * freed; a running one is skipped.
 *
 * Handles of ours are numbers below CAIRN_CHAIN_HANDLE or have that bit clear; 0 is none.
 */
#ifndef CAIRN_NCCL_CHAIN_H
#define CAIRN_NCCL_CHAIN_H

#include "bindings/nccl/profiler_abi.h"

enum { CAIRN_CHAIN_ENTRIES = 1 << 16 };
#define CAIRN_CHAIN_HANDLE (UINT64_C(1) << 63)

/* What one handle of NCCL's stands for. */
struct cairn_chain_pair {
    uint64_t ours;
    void *theirs;
};

/*
 * Opens the plugin of this name as NCCL would ("none", "" and NULL: no plugin), for version 3 to 6,
 * once: later calls change nothing. `own` is our table, which is not opened again. Logs a failure
 * through the logger (NULL: nowhere). Blocks. Thread: one at a time.
 */
void cairn_chain_open(const char *name, int version, const void *own, nccl_logger *logger);

/* Their init, of the version given to open; *theirs is their context. Does nothing without another
 * plugin. */
void cairn_chain_init_v3(void **theirs);
void cairn_chain_init_v4(void **theirs, uint64_t comm_hash, const char *comm_name, int nodes,
                         int ranks, int rank, nccl_logger *logger);
void cairn_chain_init_v5(void **theirs, int version, uint64_t comm_hash, const char *comm_name,
                         int nodes, int ranks, int rank, nccl_logger *logger);
void cairn_chain_finalize(void *theirs);

/* The events that they ask for at this moment. */
int cairn_chain_mask(void);

/* Whether they asked for this event. */
bool cairn_chain_wants(uint64_t type);

/* Passes a beginning on, parents unchanged; NULL if they return no handle. */
void *cairn_chain_start(void *their_context, void *descriptor);

/* Passes on a change of an event, or its end, which a handle has once. */
void cairn_chain_record(uint64_t handle, int state, void *arguments);
void cairn_chain_stop(uint64_t handle);

/* The handle that NCCL gets for both; `ours` if theirs is NULL or no entry is free. Wait-free. */
uint64_t cairn_chain_pair_up(struct cairn_chain_pair pair);

/* What a handle stands for; both empty if it is out of date. Any number is allowed. */
struct cairn_chain_pair cairn_chain_look_up(uint64_t handle);

#endif
