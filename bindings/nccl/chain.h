/*
 * bindings/nccl/chain.h - another profiler plugin that goes on working although NCCL loads only
 * one.
 *
 * NCCL's events are handed on to it as far as it asked for them, with its own contexts and handles.
 * It must offer the version that NCCL speaks with us; v5 and v6 stand in for each other. Where it
 * has returned a handle, the one that NCCL keeps names an entry that holds its and ours. Entries
 * are taken in turn and never freed; one that is not stopped is passed over.
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
 * Opens the plugin of this name as NCCL would ("none", "" and NULL: there is none), for version 3
 * to 6, once: later calls change nothing. `own` is our table, which is not opened again. Says
 * through the logger (NULL: nowhere) why it cannot. Blocks. Thread: one at a time.
 */
void cairn_chain_open(const char *name, int version, const void *own, nccl_logger *logger);

/* Their init, of the same version as open; *theirs is their context. Without another plugin nothing
 * happens. */
void cairn_chain_init_v3(void **theirs);
void cairn_chain_init_v4(void **theirs, uint64_t comm_hash, const char *comm_name, int nodes,
                         int ranks, int rank, nccl_logger *logger);
void cairn_chain_init_v5(void **theirs, int version, uint64_t comm_hash, const char *comm_name,
                         int nodes, int ranks, int rank, nccl_logger *logger);
void cairn_chain_finalize(void *theirs);

/* The events that they ask for at this moment. */
int cairn_chain_mask(void);

/* Whether they would be told of the beginning of this event. */
bool cairn_chain_wants(uint64_t type);

/* Hands a beginning on, with parents as they are; NULL where they return no handle. */
void *cairn_chain_start(void *their_context, void *descriptor);

/* Hands on what happens to an event, and that it ends, the latter once for a handle. */
void cairn_chain_record(uint64_t handle, int state, void *arguments);
void cairn_chain_stop(uint64_t handle);

/* The handle that NCCL gets for both; `ours` where theirs is NULL or there is no room.
 * Wait-free. */
uint64_t cairn_chain_pair_up(struct cairn_chain_pair pair);

/* What a handle stands for; both empty where it is out of date. Any number is allowed. */
struct cairn_chain_pair cairn_chain_look_up(uint64_t handle);

#endif
