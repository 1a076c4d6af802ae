/*
 * agent/service/operator_launcher.h - the launcher of this node's trainers, and its note to the
 * launchers of the other nodes. Pure.
 *
 * A launcher starts and restarts the trainers of a node, as torchrun does. It keeps one operator's
 * session open and leaves a note, which all agents show: so launchers learn who else is there and
 * agree on who trains (bindings/python/cairn/_rendezvous.py, tools/relaunch_plan.h), without
 * another service beside the agents. Agents store and show a note; they do not read it.
 *
 *   nobody ── note ──► attached ── note: replaced ──► attached
 *                      attached ── the session ends ──► left: the note stays, without a session
 *                      left     ── note of any session ──► attached
 *
 * Invariants: one session at a time has the note, and only that one replaces it. A note that has
 * been left stays until another launcher replaces it, since it may say how its launcher ended.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_LAUNCHER_H
#define CAIRN_AGENT_SERVICE_OPERATOR_LAUNCHER_H

#include "agent/service/launcher_told.h"
#include "agent/service/operator_view.h"
#include "base/json.h"

struct operator_launcher {
    uint64_t serial; /* of the session that has the note; 0: none, or it has ended */
    char note[OPERATOR_NOTE_BYTES];
    uint64_t reads; /* OPERATOR_READS_… */
    uint64_t shape; /* number of the approved relaunch that the job follows; 0: none */
    struct operator_standby standby;
    uint64_t asked_ns; /* when an operator asked the launchers for a relaunch; 0: never */
};

/* The session leaves a note, or replaces its own. False: the session of another launcher lives. */
CAIRN_MUST_CHECK bool operator_launcher_take(struct operator_launcher *launcher, uint64_t serial,
                                             const char *note);

/* The session with this serial has ended. */
void operator_launcher_leave(struct operator_launcher *launcher, uint64_t serial);

/* Since when an operator has wanted a relaunch, in milliseconds and 1; 0: never. */
uint64_t operator_launcher_asked_ms(const struct operator_launcher *launcher, uint64_t now_ns);

/* The answer to a launcher: all nodes, which of them hold a part, and their launchers' notes. */
void operator_write_launchers(struct cairn_json_writer *writer, const struct operator_job *job,
                              uint32_t self);

#endif
