/*
 * tools/relaunch_note.h - what the `cairn run --relaunch` of a node tells those of the other nodes.
 *
 * A note travels as a short text through the agents, which show it and do not read it
 * (agent/service/operator_launcher.h). It is a JSON array of numbers after a word that names the
 * format: launchers of another kind, such as torchrun's backend `cairn`, leave other notes.
 */
#ifndef CAIRN_TOOLS_RELAUNCH_NOTE_H
#define CAIRN_TOOLS_RELAUNCH_NOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CAIRN_RELAUNCH_NOTE_BYTES = 384 }; /* its NUL included; agents take 512 */

enum cairn_relaunch_state {
    CAIRN_RELAUNCH_JOINS = 1, /* waits for the next round */
    CAIRN_RELAUNCH_RUNS,      /* its command runs */
    CAIRN_RELAUNCH_DONE,      /* its command has ended with success */
    CAIRN_RELAUNCH_STOPPED    /* it does not start the command again */
};

struct cairn_relaunch_note {
    uint64_t state;        /* enum cairn_relaunch_state */
    uint64_t budget, used; /* relaunches that are allowed, and that were made */
    uint64_t least, most;  /* nodes of a round; most 0: as many as the job has without spares */
    uint64_t job;          /* which start of the job it has taken part in; 0: none */
    uint64_t term, rank;   /* of the newest round that it took part in; 0, 0: none */
    uint64_t port;         /* of its host, free for the command of the next round */
    uint64_t door;         /* port at which its host answers while it lives */
    uint64_t offers, size; /* of a leader: the name of its round, and how many nodes that has */
    uint64_t begins;       /* of a leader: 1: all have accepted what it offers */
    uint64_t accepts;      /* name of the round that it will take part in; 0: none */
    uint64_t planned;      /* 1: its round ended since an operator asked for the next one */
    uint64_t exit_code;    /* STOPPED: of the job */
    uint64_t shape; /* RUNS: number of the approved relaunch that its round follows; 0: none */
};

/* Writes the text of a note into out[CAIRN_RELAUNCH_NOTE_BYTES]. */
void cairn_relaunch_note_write(const struct cairn_relaunch_note *note, char *out);

/* False, and *out untouched: no note of this format. */
bool cairn_relaunch_note_read(const char *text, struct cairn_relaunch_note *out);

#endif
