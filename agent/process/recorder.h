/*
 * agent/process/recorder.h - records this node's part of the job's history: collects events, keeps
 * them in memory within bounds (agent/history/book.h), and stores them.
 *
 * The store is a RocksDB of its own, `<dir>/history`, and not a table of the catalog: a failed
 * write closes the catalog, and no event justifies that. A thread of its own writes, so a disk that
 * is full, slow or broken costs only the events of a later start. Events are stored within a tick;
 * ranges that only grow, every ten seconds.
 *
 * A record's key is the event's number, big-endian; its value the packed event and the CRC-64 of
 * key and event. A damaged record is dropped, and a damaged store is set aside and begun again.
 *
 * Thread: loop, except for the writes.
 */
#ifndef CAIRN_AGENT_PROCESS_RECORDER_H
#define CAIRN_AGENT_PROCESS_RECORDER_H

#include "agent/core/core.h"
#include "agent/history/book.h"

#include <stdbool.h>

struct cairn_agent;
struct session;

/* Loads what earlier starts stored. CAIRN_NOMEM, CAIRN_AGAIN: no thread; a store that cannot be
 * used is logged, and the history of this start stays in memory. */
CAIRN_MUST_CHECK cairn_err recorder_open(struct cairn_agent *agent);
/* Stores what is left; waits for the disk. */
void recorder_close(struct cairn_agent *agent);
void recorder_tick(struct cairn_agent *agent);

/* This node's events; NULL: it records none. */
const struct history_book *recorder_book(const struct cairn_agent *agent);

/*
 * Records an event. Fills in its number, its times if they are 0, and the node's epoch, run and
 * step (`at`), and makes its text plain. Does nothing before recorder_open.
 */
void recorder_add(struct cairn_agent *agent, const struct history_event *event);

/* ---- what the process reports ---- */

/* The agent serves; or stops, and why. */
void recorder_started(struct cairn_agent *agent);
void recorder_stopped(struct cairn_agent *agent, const char *why);
/* After each step of the core. */
void recorder_stepped(struct cairn_agent *agent);
void recorder_committed(struct cairn_agent *agent, struct cairn_generation_id generation,
                        uint64_t bytes, uint64_t protect_ns);
void recorder_activated(struct cairn_agent *agent, const struct cairn_action_activated *activated);
/* A trainer of this node has ended a step. */
void recorder_trained(struct cairn_agent *agent, uint64_t step);
/* A trainer has read a generation, or could not. */
void recorder_resumed(struct cairn_agent *agent, struct cairn_generation_id generation,
                      cairn_err err);
/* A trainer's connection ends; the session is still there. */
void recorder_trainer_ended(struct cairn_agent *agent, const struct session *session);

#endif
