/*
 * tests/support/nccl/recording_plugin.h - another profiler plugin, libnccl-profiler-recording.so,
 * that checks and counts.
 *
 * It has tables of versions 3 to 5. Each event is an object of its own; what it is handed as
 * context, parent or handle must be one of its objects, and an event ends once. Which events it
 * asks for is its mask's matter.
 */
#ifndef RECORDING_PLUGIN_H
#define RECORDING_PLUGIN_H

#include <stdatomic.h>

struct recording {
    _Atomic int mask; /* that init asks for; 0x7fff in the beginning */
    _Atomic int joined, left;
    _Atomic int started[15]; /* by the event's bit */
    _Atomic int stopped[15];
    _Atomic int with_parent[15];
    _Atomic int kernel_stops; /* states with a timer */
    _Atomic int wrong;        /* what is not one of its objects, or has ended before */
};

/* The library exports `struct recording recording`. */

#endif
