/* base/complaint.c - see base/complaint.h. */
#include "base/complaint.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"

static void put(struct cairn_complaint *complaint, const char *format, va_list arguments,
                const char *reason) __attribute__((format(printf, 2, 0)));

static void
put(struct cairn_complaint *complaint, const char *format, va_list arguments, const char *reason)
{
    char text[CAIRN_COMPLAINT_BYTES_MAX];
    int used = vsnprintf(text, sizeof(text), format, arguments);

    if (used >= 0 && (size_t)used < sizeof(text))
        (void)snprintf(text + used, sizeof(text) - (size_t)used, "%s", reason);
    /* the text quotes names from files */
    cairn_text_clean(complaint->text, sizeof(complaint->text), text);
}

cairn_err
cairn_complain(struct cairn_complaint *complaint, cairn_err err, const char *format, ...)
{
    va_list arguments;

    if (!complaint || complaint->text[0] != '\0')
        return err;
    va_start(arguments, format);
    put(complaint, format, arguments, "");
    va_end(arguments);
    return err;
}

cairn_err
cairn_complain_failed(struct cairn_complaint *complaint, cairn_err err, const char *format, ...)
{
    char reason[256] = ": ";
    va_list arguments;

    if (err == CAIRN_OK || !complaint || complaint->text[0] != '\0')
        return err;
    if (!cairn_file_failure_take(err, reason + 2, sizeof(reason) - 2))
        (void)snprintf(reason + 2, sizeof(reason) - 2, "%s", cairn_err_text(err));
    va_start(arguments, format);
    put(complaint, format, arguments, reason);
    va_end(arguments);
    return err;
}
