/*
 * examples/gpt/report.h - events for machines: JSON lines appended to a file, each with one write,
 * so that several ranks may share it. Times are in ns; floats have digits enough to be read back
 * exactly.
 */
#ifndef GPT_REPORT_H
#define GPT_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "cairn/client.h"
#include "options.h"

struct gpt_report {
    int fd; /* -1: no events wanted */
    bool failed;
    uint32_t rank;
};

/* path NULL: none wanted. CAIRN_IO, said. Ended by gpt_report_close. */
CAIRN_MUST_CHECK cairn_err gpt_report_open(const char *path, uint32_t rank, struct gpt_report *out);

/* CAIRN_IO, said, if any event could not be written whole. */
CAIRN_MUST_CHECK cairn_err gpt_report_close(struct gpt_report *report);

void gpt_report_started(struct gpt_report *report, const struct gpt_options *options,
                        const char *text);
/* --resume found nothing to restore. */
void gpt_report_fresh(struct gpt_report *report);
void gpt_report_restored(struct gpt_report *report, const struct cairn_restored *restored,
                         double seconds);

struct gpt_step_report {
    uint64_t step;
    const float *loss; /* NULL where this rank does not report it */
    float norm;
    uint64_t step_ns;
    uint64_t fence_ns;
    bool snapshot; /* one was begun */
};
void gpt_report_step(struct gpt_report *report, const struct gpt_step_report *step);

/* From the step after this one on, the replicas have other shares of the micro-batches. */
void gpt_report_shares(struct gpt_report *report, uint64_t step, const struct gpt_plan *plan);

/* Layers have moved before the next step, or should have; training stood still meanwhile. */
struct gpt_move_report {
    uint64_t step;
    bool is_adopted;
    uint64_t standstill_ns, fill_ns; /* the second: until this rank was done with its part */
    uint64_t bytes, remote_bytes;    /* filled, and those from other nodes */
    uint64_t floor_bytes;            /* of tensors that this rank did not have before */
    const struct gpt_plan *plan;     /* that runs now */
};
void gpt_report_move(struct gpt_report *report, const struct gpt_move_report *move);

struct gpt_done_report {
    uint64_t steps;
    float loss_first;
    float loss_last;
    const char *loss_sha256;
    const char *state_sha256; /* NULL on ranks that do not know it */
    struct cairn_client_stats stats;
};
void gpt_report_done(struct gpt_report *report, const struct gpt_done_report *done);

#endif
