/*
 * tools/demo_view.c - lines with a time, and the progress line.
 */
#include "tools/demo_view.h"

#include "base/clock.h"
#include "base/output.h"
#include "tools/common.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum { REDRAW_NS = 100000000, BAR_COLUMNS = 20 };

void
demo_view_init(struct demo_view *view, uint64_t now_ns)
{
    *view = (struct demo_view){.started_ns = now_ns,
                               .terminal = cairn_output_is_terminal(stderr),
                               .colour = cairn_colour(stderr)};
}

void
demo_view_clear(struct demo_view *view)
{
    if (view->drawn)
        cairn_output_steer(stderr, "\r\033[K");
    view->drawn = false;
}

void
demo_say(struct demo_view *view, enum demo_tone tone, const char *format, ...)
{
    static const char *const colours[] = {
        [DEMO_PLAIN] = "", [DEMO_GOOD] = "\033[32m", [DEMO_BAD] = "\033[1;31m"};
    struct cairn_clock clock = cairn_clock_system();
    uint64_t since_ns = cairn_clock_now_ns(&clock) - view->started_ns;
    va_list arguments;

    demo_view_clear(view);
    fprintf(stderr, "%6.1f s  ", (double)since_ns * 1e-9);
    if (view->colour)
        cairn_output_steer(stderr, colours[tone]);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    if (view->colour && tone != DEMO_PLAIN)
        cairn_output_steer(stderr, "\033[0m");
    fputc('\n', stderr);
    fflush(stderr);
}

void
demo_view_rate_reset(struct demo_view *view, uint64_t step, uint64_t now_ns)
{
    view->rate_step = step;
    view->rate_ns = now_ns;
}

void
demo_view_progress(struct demo_view *view, const struct demo_progress *progress, uint64_t now_ns)
{
    uint32_t tenths = (uint32_t)(progress->step * 10 / progress->steps);
    double rate =
        now_ns > view->rate_ns && progress->step > view->rate_step
            ? (double)(progress->step - view->rate_step) * 1e9 / (double)(now_ns - view->rate_ns)
            : 0;
    int filled = (int)(progress->step * BAR_COLUMNS / progress->steps);
    char left[CAIRN_SHOWN_BYTES] = "?";

    if (!view->terminal) {
        if (tenths > view->tenths)
            demo_say(view, DEMO_PLAIN,
                     "step %" PRIu64 " of %" PRIu64 " (%u %%): loss %.3f, generation %" PRIu64
                     " is committed",
                     progress->step, progress->steps, tenths * 10, progress->loss,
                     progress->committed);
        view->tenths = tenths;
        return;
    }
    if (view->drawn && now_ns - view->drawn_ns < REDRAW_NS)
        return;
    if (rate > 0)
        cairn_show_duration((uint64_t)((double)(progress->steps - progress->step) * 1e9 / rate),
                            left);
    cairn_output_steer(stderr, "\r");
    fprintf(stderr,
            "          [%.*s%.*s] step %" PRIu64 "/%" PRIu64 "  loss %.3f  generation %" PRIu64
            "  %.1f steps/s  %s left",
            filled, "####################", BAR_COLUMNS - filled, "....................",
            progress->step, progress->steps, progress->loss, progress->committed, rate, left);
    cairn_output_steer(stderr, "\033[K");
    fflush(stderr);
    view->drawn = true;
    view->drawn_ns = now_ns;
}
