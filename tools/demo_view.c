/*
 * tools/demo_view.c - lines with a time, and the progress line.
 */
#include "tools/demo_view.h"

#include "base/clock.h"
#include "tools/common.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

enum { REDRAW_NS = 100000000, BAR_COLUMNS = 20 };

void
demo_view_init(struct demo_view *view, uint64_t now_ns)
{
    *view = (struct demo_view){.started_ns = now_ns,
                               .terminal = isatty(STDERR_FILENO) == 1,
                               .colour = cairn_colour(stderr)};
}

void
demo_view_clear(struct demo_view *view)
{
    if (view->drawn)
        fputs("\r\033[K", stderr);
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
    fprintf(stderr, "%6.1f s  %s", (double)since_ns * 1e-9, view->colour ? colours[tone] : "");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s\n", view->colour && tone != DEMO_PLAIN ? "\033[0m" : "");
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
    fprintf(stderr,
            "\r          [%.*s%.*s] step %" PRIu64 "/%" PRIu64 "  loss %.3f  generation %" PRIu64
            "  %.1f steps/s  %s left\033[K",
            filled, "####################", BAR_COLUMNS - filled, "....................",
            progress->step, progress->steps, progress->loss, progress->committed, rate, left);
    fflush(stderr);
    view->drawn = true;
    view->drawn_ns = now_ns;
}
