/*
 * tools/demo_view.h - progress of `cairn demo` on stderr: lines with a time.
 *
 * On a terminal the last line shows the progress with rate and time left, elsewhere there is a line
 * per 10 %.
 */
#ifndef CAIRN_TOOLS_DEMO_VIEW_H
#define CAIRN_TOOLS_DEMO_VIEW_H

#include <stdbool.h>
#include <stdint.h>

struct demo_view {
    uint64_t started_ns;
    uint64_t drawn_ns;
    bool terminal;
    bool colour;
    bool drawn; /* the progress line is on the screen */
    uint32_t tenths;
    uint64_t rate_step, rate_ns; /* where the rate is counted from */
};

enum demo_tone { DEMO_PLAIN, DEMO_GOOD, DEMO_BAD };

struct demo_progress {
    uint64_t step, steps;
    double loss;        /* of the newest step, 0: none yet */
    uint64_t committed; /* step of the newest committed generation */
};

void demo_view_init(struct demo_view *view, uint64_t now_ns);
/* One line, with the time since the start. */
void demo_say(struct demo_view *view, enum demo_tone tone, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Shows how far the training is. */
void demo_view_progress(struct demo_view *view, const struct demo_progress *progress,
                        uint64_t now_ns);
/* The rate is counted from here on: after a pause. */
void demo_view_rate_reset(struct demo_view *view, uint64_t step, uint64_t now_ns);
/* Takes the progress line off the screen. */
void demo_view_clear(struct demo_view *view);

#endif
