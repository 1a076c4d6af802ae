/* replan/live/ledger_text.c - a verdict and what to do about it, in words. */
#include "replan/live/ledger.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct text {
    char *out;
    size_t room, used;
};

__attribute__((format(printf, 2, 3))) static void
say(struct text *text, const char *format, ...)
{
    va_list arguments;
    int len;

    va_start(arguments, format);
    len = vsnprintf(text->out + text->used, text->room - text->used, format, arguments);
    va_end(arguments);
    if (len > 0)
        text->used += (size_t)len;
    if (text->used >= text->room)
        text->used = text->room - 1;
}

static void
say_list(struct text *text, const char *noun, const uint32_t *items, uint32_t count,
         uint32_t listed_max)
{
    say(text, "%s%s", noun, count == 1 ? "" : "s");
    for (uint32_t i = 0; i < count && i < listed_max; i++)
        say(text, "%s%u", i ? ", " : " ", items[i]);
    if (count > listed_max)
        say(text, " and %u more", count - listed_max);
}

static void
say_links(struct text *text, const struct cairn_ledger_entry *entry)
{
    say(text, "link%s", entry->link_count == 1 ? "" : "s");
    for (uint32_t i = 0; i < entry->link_count && i < CAIRN_LEDGER_LINKS_MAX; i++)
        say(text, "%s%u-%u", i ? ", " : " ", entry->links[2 * i], entry->links[2 * i + 1]);
    if (entry->link_count > CAIRN_LEDGER_LINKS_MAX)
        say(text, " and %u more", entry->link_count - CAIRN_LEDGER_LINKS_MAX);
}

static void
say_ranks(struct text *text, const struct cairn_ledger_entry *entry)
{
    say_list(text, "rank", entry->ranks, entry->rank_count, CAIRN_LEDGER_RANKS_MAX);
}

static void
say_nodes(struct text *text, const struct cairn_ledger_entry *entry)
{
    say_list(text, "node", entry->nodes, entry->node_count, CAIRN_LEDGER_NODES_MAX);
}

void
cairn_ledger_describe(const struct cairn_ledger_entry *entry, char *out, size_t out_bytes)
{
    struct text text = {out, out_bytes, 0};
    const char *verb = entry->rank_count == 1 ? "s" : "";

    switch (entry->kind) {
    case CAIRN_SLOW_COMPUTE:
        say_ranks(&text, entry);
        say(&text, " compute%s %.2f times as long as is normal", verb, entry->rate);
        break;
    case CAIRN_SLOW_NODE:
        say_nodes(&text, entry);
        say(&text, " compute%s %.2f times as long as is normal, on all ranks",
            entry->node_count == 1 ? "s" : "", entry->rate);
        break;
    case CAIRN_SLOW_LINK:
        if (entry->node_count > 0) {
            say(&text, "the network of ");
            say_nodes(&text, entry);
        } else {
            say_links(&text, entry);
        }
        say(&text, ": transfers take %.2f times as long as is normal", entry->rate);
        break;
    case CAIRN_HANG_COMPUTE:
        say_ranks(&text, entry);
        say(&text, " never arrive%s in an operation that the others wait in", verb);
        break;
    case CAIRN_HANG_LINK:
        say(&text, "a transfer has stopped, with all of its ranks in it: ");
        say_links(&text, entry);
        break;
    case CAIRN_CRASH:
        say_ranks(&text, entry);
        say(&text, " %s gone while the others wait", entry->rank_count == 1 ? "is" : "are");
        break;
    case CAIRN_STRUCTURAL:
        say(&text, "the plan is uneven (%s), no device is at fault", entry->pattern);
        break;
    }
    say(&text, "; since step %u", entry->since_step);
}

void
cairn_ledger_advise(const struct cairn_ledger *ledger, const struct cairn_ledger_entry *entry,
                    uint32_t exchanges_per_day, bool enforced, char *out, size_t out_bytes)
{
    struct text text = {out, out_bytes, 0};
    bool sure = cairn_ledger_exchanges_of(entry) > 0;
    bool proposed = entry->enforcement.state != CAIRN_ENFORCEMENT_NONE ||
                    cairn_ledger_proposes(ledger, entry, exchanges_per_day, enforced);

    switch (entry->kind) {
    case CAIRN_SLOW_COMPUTE:
    case CAIRN_SLOW_NODE:
        say(&text, "look for other load, heat and clocks there");
        if (proposed)
            say(&text, "; where it lasts, exchange the %s",
                entry->kind == CAIRN_SLOW_NODE ? "node" : "rank's device");
        break;
    case CAIRN_SLOW_LINK:
        say(&text, "look at the counters of errors and the speed of the links' ports, and at what "
                   "else uses them");
        return;
    case CAIRN_HANG_COMPUTE:
        if (!(entry->evidence_kinds & CAIRN_EVIDENCE_PROCESS))
            say(&text, "a rank that saves or evaluates while the others wait looks the same until "
                       "it goes on; ");
        say(&text, "look at what these processes do (py-spy dump, a debugger, the kernel's log)");
        if (proposed)
            say(&text, "; end the job, exchange the rank, and resume");
        break;
    case CAIRN_CRASH:
        say(&text, "look at what these processes do (py-spy dump, a debugger, the kernel's log)");
        if (proposed)
            say(&text, "; end the job, exchange the rank, and resume");
        break;
    case CAIRN_HANG_LINK:
        say(&text, "look at the network between these ranks; end the job and resume where it does "
                   "not come back");
        return;
    case CAIRN_STRUCTURAL:
        say(&text, "give the long part less to do: cairn plan, cairn assign");
        return;
    }
    if (!sure)
        say(&text, "; there is one kind of evidence alone: do not exchange anything yet");
    else if (!proposed)
        say(&text,
            "; no more than %u are proposed for exchange in a day (exchanges_per_day); look for "
            "what the ill nodes share",
            exchanges_per_day);
}
