/* snapshot/reshard_report.c - see reshard_report.h. */
#include "snapshot/reshard_report.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum { SPELT_OUT_MAX = 4 };

void
cairn_report_init(struct cairn_report *report, char *text, size_t text_bytes)
{
    report->text = text_bytes > 0 ? text : NULL;
    report->text_bytes = text_bytes;
    report->used_bytes = 0;
    report->finding_count = 0;
    if (report->text)
        text[0] = '\0';
}

/* Appends what fits; vsnprintf cuts and ends with NUL. */
__attribute__((format(printf, 2, 0))) static void
append(struct cairn_report *report, const char *format, va_list arguments)
{
    size_t left = report->text_bytes - report->used_bytes;
    int wanted;

    if (!report->text || left <= 1)
        return;
    wanted = vsnprintf(report->text + report->used_bytes, left, format, arguments);
    if (wanted > 0)
        report->used_bytes += (size_t)wanted < left ? (size_t)wanted : left - 1;
}

static void __attribute__((format(printf, 2, 3)))
append_text(struct cairn_report *report, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    append(report, format, arguments);
    va_end(arguments);
}

void
cairn_report_add(struct cairn_report *report, const char *format, ...)
{
    va_list arguments;

    if (report->finding_count++ >= SPELT_OUT_MAX)
        return;
    if (report->finding_count > 1)
        append_text(report, "; ");
    va_start(arguments, format);
    append(report, format, arguments);
    va_end(arguments);
}

void
cairn_report_finish(struct cairn_report *report)
{
    if (report->finding_count > SPELT_OUT_MAX)
        append_text(report, "; and %" PRIu64 " more", report->finding_count - SPELT_OUT_MAX);
}

const char *
cairn_box_text(const struct cairn_box *box, uint32_t dims, char *text)
{
    int used = snprintf(text, CAIRN_BOX_TEXT_BYTES, "[");

    for (uint32_t d = 0; d < dims; d++)
        used += snprintf(text + used, (size_t)(CAIRN_BOX_TEXT_BYTES - used),
                         "%s%" PRIu64 ":%" PRIu64, d ? ", " : "", box->low[d], box->high[d]);
    (void)snprintf(text + used, (size_t)(CAIRN_BOX_TEXT_BYTES - used), "]");
    return text;
}
