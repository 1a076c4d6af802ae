/* tools/convert/core/complaint.c - see core/complaint.h. */
#include "tools/convert/core/complaint.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/text.h"

cairn_err
cairn_complain(struct cairn_complaint *complaint, cairn_err err, const char *format, ...)
{
    char text[CAIRN_COMPLAINT_BYTES_MAX];
    va_list arguments;

    if (!complaint || complaint->text[0] != '\0')
        return err;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    /* the text quotes names from files */
    cairn_text_clean(complaint->text, sizeof(complaint->text), text);
    return err;
}
