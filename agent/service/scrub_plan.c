/* agent/service/scrub_plan.c - see scrub_plan.h. */
#include "agent/service/scrub_plan.h"

#include "base/clock.h"

#include <string.h>

static const uint64_t empty_ns = CAIRN_NS_PER_S;     /* until memory without a part is looked at */
static const uint64_t pause_ns = 5 * CAIRN_NS_PER_S; /* between the first two repairs */
enum { PAUSES_DOUBLED_MAX = 8 };

/* ---- the course ---- */

void
scrub_course_init(struct scrub_course *course, uint64_t now_ns)
{
    *course = (struct scrub_course){.begun_ns = now_ns};
}

static void
begin_pass(struct scrub_course *course, uint64_t now_ns)
{
    course->extent = 0;
    course->unit = 0;
    course->done_units = 0;
    course->begun_ns = now_ns;
    course->rests = false;
}

/* Moves to the next unit that exists. False: the pass has none left. */
static bool
find_unit(struct scrub_course *course, const uint64_t *extents, uint32_t count)
{
    while (course->extent < count && course->unit >= extents[course->extent]) {
        course->extent++;
        course->unit = 0;
    }
    return course->extent < count;
}

static void
end_pass(struct scrub_course *course, uint64_t now_ns)
{
    course->passes++;
    course->ended_ns = now_ns;
    course->rests = true;
}

/* When the next unit of a pass over `total` units is due. In two steps, as the product may not fit
 * 64 bits. */
static uint64_t
due(const struct scrub_course *course, uint64_t total, uint64_t interval_ns)
{
    uint64_t done = course->done_units < total ? course->done_units : total;
    uint64_t at_ns =
        course->begun_ns + interval_ns / total * done + interval_ns % total * done / total;

    if (course->rests)
        at_ns = course->begun_ns + interval_ns;
    return at_ns > course->free_ns ? at_ns : course->free_ns;
}

bool
scrub_course_next(struct scrub_course *course, const uint64_t *extents, uint32_t count,
                  uint32_t units_max, uint64_t interval_ns, uint64_t now_ns, struct scrub_run *out,
                  uint64_t *due_ns)
{
    uint64_t total = 0, left;

    *due_ns = now_ns + empty_ns;
    if (course->reading)
        return false;
    for (uint32_t i = 0; i < count; i++)
        total += extents[i];
    if (total == 0)
        return false;
    *due_ns = due(course, total, interval_ns);
    if (now_ns < *due_ns)
        return false;
    if (course->rests)
        begin_pass(course, now_ns);
    if (!find_unit(course, extents, count)) { /* what was left has gone */
        end_pass(course, now_ns);
        *due_ns = due(course, total, interval_ns);
        return false;
    }
    left = extents[course->extent] - course->unit;
    *out = (struct scrub_run){course->extent, left < units_max ? (uint32_t)left : units_max,
                              course->unit};
    course->unit += out->count;
    course->done_units += out->count;
    course->reading = true;
    course->last = !find_unit(course, extents, count);
    return true;
}

uint32_t
scrub_course_extent(const struct scrub_course *course, const uint64_t *extents, uint32_t count)
{
    struct scrub_course next = *course;

    if (next.rests)
        begin_pass(&next, 0);
    (void)find_unit(&next, extents, count);
    return next.extent < count ? next.extent : count;
}

static void
take_back(struct scrub_course *course, uint64_t cpu_ns, uint64_t now_ns)
{
    course->reading = false;
    course->free_ns = now_ns + cpu_ns * (SCRUB_SHARE - 1);
}

void
scrub_course_took(struct scrub_course *course, uint64_t cpu_ns, uint64_t now_ns)
{
    take_back(course, cpu_ns, now_ns);
    if (course->last)
        end_pass(course, now_ns);
}

void
scrub_course_again(struct scrub_course *course, const struct scrub_run *run, uint64_t cpu_ns,
                   uint64_t now_ns)
{
    take_back(course, cpu_ns, now_ns);
    course->extent = run->extent;
    course->unit = run->first;
    course->done_units -= run->count;
}

/* ---- damage on the disk ---- */

enum scrub_remedy
scrub_remedy(bool settled, bool in_memory, uint32_t tries)
{
    if (!settled)
        return SCRUB_WAIT;
    return in_memory && tries < SCRUB_TRIES_MAX ? SCRUB_REPAIR : SCRUB_MARK;
}

/* ---- damage in memory ---- */

bool
scrub_ledger_add(struct scrub_ledger *ledger, struct cairn_generation_id generation,
                 uint32_t extent, uint64_t unit)
{
    for (uint32_t i = 0; i < ledger->count; i++)
        if (ledger->list[i].extent == extent && ledger->list[i].unit == unit &&
            cairn_generation_id_compare(ledger->list[i].generation, generation) == 0)
            return false;
    if (ledger->count == SCRUB_DAMAGE_MAX)
        return false;
    ledger->list[ledger->count++] =
        (struct scrub_damage){.generation = generation, .extent = extent, .unit = unit};
    ledger->found++;
    return true;
}

void
scrub_ledger_look(struct scrub_ledger *ledger, uint32_t i, enum scrub_fate fate, bool tried)
{
    if (fate == SCRUB_STILL) {
        ledger->list[i].tries += tried;
        return;
    }
    ledger->repaired += fate == SCRUB_GOOD;
    ledger->list[i] = ledger->list[--ledger->count];
    if (ledger->count == 0)
        ledger->tries = 0;
}

bool
scrub_ledger_ask(struct scrub_ledger *ledger, uint64_t now_ns)
{
    uint32_t doubled = ledger->tries < PAUSES_DOUBLED_MAX ? ledger->tries : PAUSES_DOUBLED_MAX;

    if (ledger->count == 0 || ledger->asked ||
        (ledger->tries > 0 && now_ns - ledger->asked_ns < pause_ns << (doubled - 1)))
        return false;
    ledger->asked = true;
    ledger->asked_ns = now_ns;
    ledger->tries++;
    return true;
}

void
scrub_ledger_tried(struct scrub_ledger *ledger)
{
    ledger->asked = false;
}

uint32_t
scrub_ledger_unrepairable(const struct scrub_ledger *ledger)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < ledger->count; i++)
        count += ledger->list[i].tries >= SCRUB_TRIES_MAX;
    return count;
}
