/*
 * agent/service/watch.h - who analyses the timing of the job, and how the reports of all nodes get
 * there: a pure state machine.
 *
 * The analyst is the lowest agent that is eligible (a live member). Each agent sends it a stream of
 * parts, numbered from 0, each some packed reports (replan/live/report.h). The analyst takes them
 * in order and acknowledges their number; unacknowledged parts are sent again after a while. A
 * stream begins with everything that the node has to announce, so that an analyst that is new, or
 * has forgotten a stream, asks for a new one. Beyond CAIRN_WATCH_PARTS_MAX unacknowledged parts all
 * are dropped and a new stream begins: detection may lose steps, but never holds anything up.
 *
 * No clock, no I/O: time comes with calls, and the functions in the options carry out the work.
 * They may call back only where their comments allow it.
 */
#ifndef CAIRN_AGENT_SERVICE_WATCH_H
#define CAIRN_AGENT_SERVICE_WATCH_H

#include "agent/process/service_message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CAIRN_WATCH_PART_BYTES = 48 << 10,
    CAIRN_WATCH_PARTS_MAX = 64,  /* not acknowledged */
    CAIRN_WATCH_FLYING_MAX = 16, /* of them, sent */
    CAIRN_WATCH_REPORT_BYTES_MAX = 24 << 10
};
#define CAIRN_WATCH_NOBODY UINT32_MAX

struct cairn_watch_options {
    uint32_t self, agent_count;
    uint64_t incarnation; /* of this start of this agent: streams of two starts differ */
    uint64_t resend_after_ns;
    void *context;
    void (*send)(void *context,
                 const struct cairn_service_message *message); /* the message is borrowed */
    void (*announce)(void *context); /* a stream begins: report everything again, by
                                      * cairn_watch_report */
    void (*begin)(void *context);    /* this agent analyses from here on */
    void (*end)(void *context);      /* … and no longer */
    /* a part, to the analyst */
    void (*deliver)(void *context, uint32_t from, const uint8_t *bytes, size_t bytes_len);
};

struct cairn_watch;

struct cairn_watch_view {
    uint32_t analyst;   /* CAIRN_WATCH_NOBODY */
    uint64_t streams;   /* begun */
    uint64_t dropped;   /* parts that never arrived, as far as is known */
    uint64_t overflows; /* streams that ended since there was no room for another part */
};

/* CAIRN_NOMEM. The caller ends *out with cairn_watch_destroy, which calls nothing. */
CAIRN_MUST_CHECK cairn_err cairn_watch_create(const struct cairn_watch_options *options,
                                              struct cairn_watch **out);
void cairn_watch_destroy(struct cairn_watch *watch); /* NULL is allowed */

/* Time has passed; eligible[agent_count] is as this agent sees it now. Sends gathered reports, and
 * lost parts again. */
void cairn_watch_tick(struct cairn_watch *watch, const bool *eligible, uint64_t now_ns);

/* A packed report of this node (at most CAIRN_WATCH_REPORT_BYTES_MAX), which goes out with the next
 * tick or when a part is full. */
void cairn_watch_report(struct cairn_watch *watch, const void *bytes, size_t bytes_len);

/* The analyst has forgotten what was announced: all streams begin again. */
void cairn_watch_ask_anew(struct cairn_watch *watch);

/* A TIMING or TIMING_ACK has arrived. */
void cairn_watch_message(struct cairn_watch *watch, const struct cairn_service_message *message,
                         uint64_t now_ns);

struct cairn_watch_view cairn_watch_look(const struct cairn_watch *watch);

#endif
