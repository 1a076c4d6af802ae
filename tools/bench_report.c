/* tools/bench_report.c - adds cases and further figures to a report. */
#include "tools/bench.h"

void
cairn_bench_add(struct cairn_bench_report *report, const struct cairn_bench_case *value)
{
    if (report->case_count < CAIRN_BENCH_CASES_MAX)
        report->cases[report->case_count++] = *value;
}

void
cairn_bench_note(struct cairn_bench_report *report, const char *name, double value)
{
    if (report->detail_count < CAIRN_BENCH_DETAILS_MAX)
        report->details[report->detail_count++] = (struct cairn_bench_detail){name, value};
}
