/* tools/verdict_view.c - the fields of a verdict, one after the other. */
#include "tools/verdict_view.h"

#include <inttypes.h>
#include <string.h>

static void
write_lists(struct cairn_json_writer *writer, const struct cairn_verdict *verdict)
{
    const struct cairn_u32_list *lists[] = {&verdict->ranks, &verdict->nodes, &verdict->victims};
    static const char *const keys[] = {"ranks", "nodes", "victims"};

    for (size_t k = 0; k < 3; k++) {
        cairn_json_put_array(writer, keys[k]);
        for (uint32_t j = 0; j < lists[k]->count; j++)
            cairn_json_write_u64(writer, lists[k]->items[j]);
        cairn_json_write_array_end(writer);
    }
    cairn_json_put_array(writer, "links");
    for (uint32_t j = 0; j + 1 < verdict->links.count; j += 2) {
        cairn_json_write_array_begin(writer);
        cairn_json_write_u64(writer, verdict->links.items[j]);
        cairn_json_write_u64(writer, verdict->links.items[j + 1]);
        cairn_json_write_array_end(writer);
    }
    cairn_json_write_array_end(writer);
}

void
cairn_verdict_write(struct cairn_json_writer *writer, const struct cairn_verdict *verdict)
{
    cairn_json_write_object_begin(writer);
    cairn_json_put_string(writer, "kind", cairn_verdict_kind_text(verdict->kind));
    write_lists(writer, verdict);
    cairn_json_put_u64(writer, "since_step", verdict->since_step);
    cairn_json_write_key(writer, "until_step");
    if (verdict->until_step == CAIRN_STEP_NONE)
        cairn_json_write_null(writer);
    else
        cairn_json_write_u64(writer, verdict->until_step);
    cairn_json_put_u64(writer, "detected_step", verdict->detected_step);
    cairn_json_put_double(writer, "rate", verdict->rate);
    cairn_json_put_double(writer, "confidence", verdict->confidence);
    cairn_json_write_key(writer, "pattern");
    if (verdict->pattern)
        cairn_json_write_string(writer, verdict->pattern);
    else
        cairn_json_write_null(writer);
    cairn_json_put_string(writer, "evidence", verdict->evidence);
    cairn_json_write_object_end(writer);
}

void
cairn_verdict_print_list(FILE *out, const char *what, const struct cairn_u32_list *list,
                         uint32_t shown_max)
{
    if (list->count == 0)
        return;
    fprintf(out, " %s%s", what, list->count > 1 ? "s" : "");
    for (uint32_t i = 0; i < list->count && i < shown_max; i++)
        fprintf(out, "%s %" PRIu32, i > 0 ? "," : "", list->items[i]);
    if (list->count > shown_max)
        fprintf(out, " and %" PRIu32 " more", list->count - shown_max);
}

const char *
cairn_verdict_advice(enum cairn_verdict_kind kind, const char *pattern, bool two_kinds_agree)
{
    switch (kind) {
    case CAIRN_SLOW_COMPUTE:
        return two_kinds_agree ? "look at the device's clocks, temperature and power, and at what "
                                 "else runs on its host; if it "
                                 "stays, give `cairn plan` the device with this rate, or replace it"
                               : "look at the device's clocks, temperature and power, and at what "
                                 "else runs on its host; there is one "
                                 "kind of evidence alone, do not replace it yet";
    case CAIRN_SLOW_NODE:
        return two_kinds_agree ? "look at what its ranks share: power, cooling, host memory, other "
                                 "jobs; if it stays, replace the "
                                 "node or give `cairn plan` its devices with this rate"
                               : "look at what its ranks share: power, cooling, host memory, other "
                                 "jobs; there is one kind of "
                                 "evidence alone, do not replace it yet";
    case CAIRN_SLOW_LINK:
        return "look at error counters and speeds of the NICs and cables named, and at other "
               "traffic on them";
    case CAIRN_HANG_COMPUTE:
        return "look at the stacks of the ranks named (py-spy dump, gdb), then restart them; "
               "`cairn restore` has the last "
               "generation";
    case CAIRN_HANG_LINK:
        return "look at the NICs and switches between the ranks named; restart the job from the "
               "last generation if it does "
               "not end";
    case CAIRN_CRASH:
        return "look at the kernel log and the exit code of the ranks named; `cairn restore` "
               "rebuilds what they held";
    case CAIRN_STRUCTURAL:
        break;
    }
    if (pattern && strcmp(pattern, "sequence_length") == 0)
        return "deal the sequences by their cost (`cairn assign`)";
    if (pattern && strcmp(pattern, "garbage_collection") == 0)
        return "collect garbage on all ranks in the same step (gc.disable, and gc.collect every so "
               "many steps)";
    return "move layers from the stage named to others (`cairn plan`)";
}
