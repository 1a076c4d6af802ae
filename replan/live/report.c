/* replan/live/report.c - packing of reports. A peer is believed no more than a trainer: every
 * number is checked. */
#include "replan/live/report.h"

#include "replan/trace/topology.h"

#include <math.h>
#include <string.h>

enum { SENDS_ASIDE = 1, IS_MEASURED = 2 }; /* flags of a step */

static void
write_double(struct cairn_writer *writer, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    cairn_write_u64(writer, bits);
}

static void
write_float(struct cairn_writer *writer, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    cairn_write_u32(writer, bits);
}

/* A time or an amount: NaN where that is allowed, else finite and not negative. */
static double
read_double(struct cairn_reader *reader, bool may_be_unknown)
{
    uint64_t bits = cairn_read_u64(reader);
    double value;

    memcpy(&value, &bits, sizeof value);
    if (isnan(value) ? !may_be_unknown : !(value >= 0 && isfinite(value)))
        reader->failed = true;
    return value;
}

static float
read_float(struct cairn_reader *reader)
{
    uint32_t bits = cairn_read_u32(reader);
    float value;

    memcpy(&value, &bits, sizeof value);
    if (!(value >= 0 && isfinite(value)))
        reader->failed = true;
    return value;
}

static uint32_t
read_range(struct cairn_reader *reader, uint32_t first, uint32_t last)
{
    uint32_t value = cairn_read_u32(reader);

    if (value < first || value > last)
        reader->failed = true;
    return value;
}

static bool
read_bool(struct cairn_reader *reader)
{
    uint8_t value = cairn_read_u8(reader);

    if (value > 1)
        reader->failed = true;
    return value == 1;
}

static void
pack_lane(const struct cairn_report_lane *lane, struct cairn_writer *writer)
{
    cairn_write_u64(writer, lane->comm);
    cairn_write_u32(writer, lane->peer);
    cairn_write_u8(writer, lane->op);
    cairn_write_u8(writer, lane->is_place);
}

static void
unpack_lane(struct cairn_reader *reader, struct cairn_report_lane *lane)
{
    lane->comm = cairn_read_u64(reader);
    lane->peer = cairn_read_u32(reader);
    lane->op = cairn_read_u8(reader);
    lane->is_place = read_bool(reader);
    if (lane->op == 0 || lane->op >= CAIRN_OPS)
        reader->failed = true;
    if (lane->op >= CAIRN_SEND && lane->peer >= CAIRN_TOPOLOGY_WORLD_MAX)
        reader->failed = true;
}

static void
pack_step(const struct cairn_report *report, struct cairn_writer *writer)
{
    for (int i = 0; i < CAIRN_GAPS; i++)
        write_double(writer, report->compute_ns[i]);
    write_double(writer, report->span_ns);
    write_double(writer, report->work);
    cairn_write_u8(writer, (uint8_t)((report->sends_aside ? SENDS_ASIDE : 0) |
                                     (report->is_measured ? IS_MEASURED : 0)));
    cairn_write_u32(writer, report->lane_count);
    cairn_write_u32(writer, report->sample_count);
    for (uint32_t i = 0; i < report->lane_count; i++)
        pack_lane(&report->lanes[i], writer);
    for (uint32_t i = 0; i < report->sample_count; i++) {
        cairn_write_u32(writer, report->samples[i].lane);
        cairn_write_u32(writer, report->samples[i].seq);
        write_float(writer, report->samples[i].duration_ns);
        write_float(writer, report->samples[i].bytes);
    }
}

static void
unpack_step(struct cairn_reader *reader, struct cairn_report *out)
{
    uint8_t flags;

    for (int i = 0; i < CAIRN_GAPS; i++)
        out->compute_ns[i] = read_double(reader, true);
    out->span_ns = read_double(reader, true);
    out->work = read_double(reader, false);
    flags = cairn_read_u8(reader);
    out->sends_aside = (flags & SENDS_ASIDE) != 0;
    out->is_measured = (flags & IS_MEASURED) != 0;
    if (flags > (SENDS_ASIDE | IS_MEASURED))
        reader->failed = true;
    out->lane_count = read_range(reader, 0, CAIRN_REPORT_LANES_MAX);
    out->sample_count = read_range(reader, 0, CAIRN_REPORT_SAMPLES_MAX);
    for (uint32_t i = 0; !reader->failed && i < out->lane_count; i++)
        unpack_lane(reader, &out->lanes[i]);
    for (uint32_t i = 0; !reader->failed && i < out->sample_count; i++) {
        out->samples[i].lane = cairn_read_u32(reader);
        out->samples[i].seq = cairn_read_u32(reader);
        out->samples[i].duration_ns = read_float(reader);
        out->samples[i].bytes = read_float(reader);
        if (out->samples[i].lane >= out->lane_count)
            reader->failed = true;
    }
}

static void
pack_standing(const struct cairn_report *report, struct cairn_writer *writer)
{
    cairn_write_u8(writer, (uint8_t)report->presence);
    cairn_write_u8(writer, report->has_died);
    cairn_write_u64(writer, report->life_ns);
    cairn_write_u64(writer, report->quiet_ns);
    cairn_write_u64(writer, report->entered);
    cairn_write_u32(writer, report->open_count);
    for (uint32_t i = 0; i < report->open_count; i++) {
        pack_lane(&report->open[i].lane, writer);
        cairn_write_u64(writer, report->open[i].seq);
        cairn_write_u64(writer, report->open[i].start_ns);
    }
}

static void
unpack_standing(struct cairn_reader *reader, struct cairn_report *out)
{
    uint8_t presence = cairn_read_u8(reader);

    if (presence < CAIRN_PRESENCE_RUNS || presence > CAIRN_PRESENCE_GONE)
        reader->failed = true;
    out->presence = (enum cairn_presence)presence;
    out->has_died = read_bool(reader);
    if (out->has_died && presence != CAIRN_PRESENCE_GONE)
        reader->failed = true;
    out->life_ns = cairn_read_u64(reader);
    out->quiet_ns = cairn_read_u64(reader);
    out->entered = cairn_read_u64(reader);
    out->open_count = read_range(reader, 0, CAIRN_INTAKE_OPEN);
    for (uint32_t i = 0; !reader->failed && i < out->open_count; i++) {
        unpack_lane(reader, &out->open[i].lane);
        out->open[i].seq = cairn_read_u64(reader);
        out->open[i].start_ns = cairn_read_u64(reader);
    }
}

static void
pack_counts(const struct cairn_report *report, struct cairn_writer *writer)
{
    cairn_write_u64(writer, report->entered);
    cairn_write_u64(writer, report->active_ns);
    cairn_write_u64(writer, report->gap_ns);
    cairn_write_u8(writer, report->counts_whole);
    cairn_write_u32(writer, report->count_count);
    for (uint32_t i = 0; i < report->count_count; i++) {
        const struct cairn_report_count *count = &report->counts[i];

        pack_lane(&count->lane, writer);
        cairn_write_u8(writer, count->is_known);
        cairn_write_u64(writer, count->count);
        cairn_write_u64(writer, count->age_ns);
        cairn_write_u64(writer, count->running_seq);
        cairn_write_u64(writer, count->running_age_ns);
    }
}

static void
unpack_counts(struct cairn_reader *reader, struct cairn_report *out)
{
    out->entered = cairn_read_u64(reader);
    out->active_ns = cairn_read_u64(reader);
    out->gap_ns = cairn_read_u64(reader);
    out->counts_whole = read_bool(reader);
    out->count_count = read_range(reader, 0, CAIRN_REPORT_COUNTS_MAX);
    for (uint32_t i = 0; !reader->failed && i < out->count_count; i++) {
        struct cairn_report_count *count = &out->counts[i];

        unpack_lane(reader, &count->lane);
        count->is_known = read_bool(reader);
        count->count = cairn_read_u64(reader);
        count->age_ns = cairn_read_u64(reader);
        count->running_seq = cairn_read_u64(reader);
        count->running_age_ns = cairn_read_u64(reader);
    }
}

void
cairn_report_pack(const struct cairn_report *report, struct cairn_writer *writer)
{
    cairn_write_u8(writer, (uint8_t)report->kind);
    cairn_write_u32(writer, report->rank);
    cairn_write_u32(writer, report->world);
    cairn_write_u64(writer, report->attachment);
    if (report->kind == CAIRN_REPORT_MEMBER) {
        cairn_write_u64(writer, report->comm);
        cairn_write_u32(writer, report->comm_ranks);
        cairn_write_u32(writer, report->place);
        return;
    }
    if (report->kind == CAIRN_REPORT_COUNTS) {
        pack_counts(report, writer);
        return;
    }
    cairn_write_u32(writer, report->step);
    cairn_write_u64(writer, report->end_ns);
    if (report->kind == CAIRN_REPORT_STEP)
        pack_step(report, writer);
    else
        pack_standing(report, writer);
}

void
cairn_report_unpack(struct cairn_reader *reader, struct cairn_report *out)
{
    uint8_t kind = cairn_read_u8(reader);

    out->kind = (enum cairn_report_kind)kind;
    out->rank = cairn_read_u32(reader);
    out->world = read_range(reader, 1, CAIRN_TOPOLOGY_WORLD_MAX);
    out->attachment = cairn_read_u64(reader);
    if (kind < CAIRN_REPORT_MEMBER || kind > CAIRN_REPORT_COUNTS || out->rank >= out->world)
        reader->failed = true;
    if (reader->failed)
        return;
    if (kind == CAIRN_REPORT_MEMBER) {
        out->comm = cairn_read_u64(reader);
        out->comm_ranks = read_range(reader, 1, out->world);
        out->place = cairn_read_u32(reader);
        if (out->place != CAIRN_PLACE_NONE && out->place >= out->comm_ranks)
            reader->failed = true;
        return;
    }
    if (kind == CAIRN_REPORT_COUNTS) {
        unpack_counts(reader, out);
        return;
    }
    out->step = read_range(reader, 0, UINT32_MAX - 2);
    out->end_ns = cairn_read_u64(reader);
    if (kind == CAIRN_REPORT_STEP)
        unpack_step(reader, out);
    else
        unpack_standing(reader, out);
}
