/* tools/doctor_finding.c - adds a finding to the list of `cairn doctor`. */
#include "tools/doctor.h"

#include <stdarg.h>
#include <stdio.h>

void
doctor_find(struct doctor *doctor, enum doctor_level level, const char *code, const char *fix,
            const char *format, ...)
{
    struct doctor_finding *finding;
    va_list arguments;

    if (level > doctor->level)
        doctor->level = level;
    if (doctor->count == DOCTOR_FINDINGS_MAX)
        return;
    finding = &doctor->findings[doctor->count++];
    finding->level = level;
    finding->code = code;
    snprintf(finding->fix, sizeof finding->fix, "%s", fix ? fix : "");
    va_start(arguments, format);
    vsnprintf(finding->what, sizeof finding->what, format, arguments);
    va_end(arguments);
}
