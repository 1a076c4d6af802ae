/*
 * tools/demo_slow_report.c - what `cairn demo --slow` shows at its end, for people and as JSON.
 */
#include "tools/demo_slow.h"

#include "base/json.h"
#include "tools/common.h"
#include "tools/demo.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { MS_BYTES = 32, ACTION_BYTES = DEMO_SHARES_BYTES + 32 };

/* ---- for people ---- */

static const char *
show_ms(double ms, char out[MS_BYTES])
{
    if (ms > 0)
        snprintf(out, MS_BYTES, "%.1f", ms);
    else
        snprintf(out, MS_BYTES, "-");
    return out;
}

static void
print_row(const struct demo *demo, const struct demo_row *row)
{
    const struct demo_slow_option *option = &demo->options.slow;
    char action[ACTION_BYTES], shares[DEMO_SHARES_BYTES], shown[3][MS_BYTES];
    char moved[CAIRN_SHOWN_BYTES];

    demo_shares_text(demo, &row->shares, shares);
    if (row->kind == DEMO_ROW_RESTART)
        snprintf(action, sizeof action, "(restarted as it had begun)");
    else if (row->change)
        snprintf(action, sizeof action, "%s", shares);
    else if (row->kind == DEMO_ROW_SLOW)
        snprintf(action, sizeof action, "(rank %u: %.4g times slow)", option->rank, option->factor);
    else
        snprintf(action, sizeof action, "(rank %u: well again)", option->rank);
    printf("%6" PRIu64 "  %-35s %7s %7s %9.1f %7.1f %6s", row->from, action,
           show_ms(row->before_ms, shown[0]), show_ms(row->after_ms, shown[1]), row->predicted_ms,
           row->bound_ms,
           show_ms(row->change ? (double)row->change->standstill_ns / 1e6 : 0, shown[2]));
    if (row->kind == DEMO_ROW_LAYERS && row->change->floor_bytes)
        printf("  %s, %.2f", cairn_show_bytes(row->change->remote_bytes, moved),
               (double)row->change->remote_bytes / (double)row->change->floor_bytes);
    printf("\n");
    if (row->why)
        printf("          why: %s\n", row->why);
}

static void
print_verdict(const struct demo *demo)
{
    struct demo_outcome outcome = demo_slow_outcome(demo);

    if (!outcome.is_worth_while)
        printf("verdict          no other shares would be faster: a change is not worth while\n");
    else if (!outcome.has_moved)
        printf("verdict          NOTHING was changed while the device was slow\n");
    else
        printf("verdict          changed %" PRIu64 " steps after the device became slow; %s\n",
               outcome.moved_after,
               outcome.is_home ? "changed back when it was well" : "NOT changed back by the end");
    if (outcome.has_moved && outcome.is_home)
        printf("                 changed back %" PRIu64 " steps after it was well\n",
               outcome.home_after);
    if (outcome.has_moved_layers)
        printf("                 layers moved %" PRIu64 " steps after the loss had paid for it\n",
               outcome.layers_late);
    printf("total            %.1f s of steps; the best plan of each step: %.1f s; ratio %.3f\n",
           outcome.total_ms / 1e3, outcome.clairvoyant_ms / 1e3,
           outcome.total_ms / outcome.clairvoyant_ms);
    if (demo->slow.abandoned_count)
        printf("                 %" PRIu32 " moves of layers were ABANDONED\n",
               demo->slow.abandoned_count);
    if (demo->slow.story)
        printf("\n%s\n", demo->slow.story);
}

void
demo_slow_print(const struct demo *demo)
{
    struct demo_row rows[DEMO_ROWS_MAX];
    uint32_t count = demo_slow_rows(demo, rows);

    printf("\n%6s  %-35s %7s %7s %9s %7s %6s  %s\n", "step", "micro-batches, layers", "before",
           "after", "predicted", "bound", "still", "moved, / floor");
    for (uint32_t i = 0; i < count; i++)
        print_row(demo, &rows[i]);
    printf("milliseconds per step: medians of what rank 0 measured; bound: no plan takes less;\n"
           "still: how long training stood; moved: bytes from other nodes; floor: those of layers "
           "that a rank did not have\n");
    print_verdict(demo);
}

/* ---- for programs ---- */

static void
put_ms(struct cairn_json_writer *writer, const char *key, double ms)
{
    cairn_json_put_double(writer, key, ms > 0 ? ms : (double)NAN);
}

static void
put_shares(struct cairn_json_writer *writer, const struct demo *demo, const char *key,
           const struct demo_shares *shares)
{
    cairn_json_put_array(writer, key);
    for (uint32_t r = 0; r < demo->dp; r++)
        cairn_json_write_u64(writer, shares->parts[r]);
    cairn_json_write_array_end(writer);
}

static void
put_layers(struct cairn_json_writer *writer, const struct demo *demo,
           const struct demo_shares *shares)
{
    cairn_json_put_array(writer, "layers");
    for (uint32_t rank = 0; rank < demo->options.nodes; rank++) {
        if (rank % demo->pp == 0)
            cairn_json_write_array_begin(writer);
        cairn_json_write_u64(writer, shares->layers[rank]);
        if (rank % demo->pp + 1 == demo->pp)
            cairn_json_write_array_end(writer);
    }
    cairn_json_write_array_end(writer);
}

static void
put_row(struct cairn_json_writer *writer, const struct demo *demo, const struct demo_row *row)
{
    static const char *const actions[] = {[DEMO_ROW_SLOW] = "device slow",
                                          [DEMO_ROW_WELL] = "device well",
                                          [DEMO_ROW_SHARES] = "microbatches",
                                          [DEMO_ROW_LAYERS] = "layers",
                                          [DEMO_ROW_RESTART] = "restart"};

    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "from_step", row->from);
    cairn_json_put_string(writer, "action", actions[row->kind]);
    put_shares(writer, demo, "micro_batches", &row->shares);
    put_layers(writer, demo, &row->shares);
    cairn_json_write_key(writer, "why");
    if (row->why)
        cairn_json_write_string(writer, row->why);
    else
        cairn_json_write_null(writer);
    cairn_json_write_key(writer, "due_step");
    if (row->due)
        cairn_json_write_u64(writer, row->due);
    else
        cairn_json_write_null(writer);
    put_ms(writer, "before_ms", row->before_ms);
    put_ms(writer, "after_ms", row->after_ms);
    put_ms(writer, "predicted_ms", row->predicted_ms);
    put_ms(writer, "bound_ms", row->bound_ms);
    if (row->change) {
        cairn_json_put_double(writer, "standstill_ms", (double)row->change->standstill_ns / 1e6);
        cairn_json_put_u64(writer, "bytes", row->change->bytes);
        cairn_json_put_u64(writer, "remote_bytes", row->change->remote_bytes);
        cairn_json_put_u64(writer, "floor_bytes", row->change->floor_bytes);
    }
    cairn_json_write_object_end(writer);
}

void
demo_slow_put_replans(struct cairn_json_writer *writer, const struct demo *demo)
{
    struct demo_row rows[DEMO_ROWS_MAX];
    uint32_t count = demo_slow_rows(demo, rows);

    for (uint32_t i = 0; i < count; i++)
        put_row(writer, demo, &rows[i]);
}

void
demo_slow_put(struct cairn_json_writer *writer, const struct demo *demo)
{
    const struct demo_slow_option *option = &demo->options.slow;
    const struct demo_slow *slow = &demo->slow;
    struct demo_outcome outcome = demo_slow_outcome(demo);

    cairn_json_put_object(writer, "slow");
    cairn_json_put_u64(writer, "rank", option->rank);
    cairn_json_put_double(writer, "factor", option->factor);
    cairn_json_put_u64(writer, "from_step", option->first);
    cairn_json_put_u64(writer, "to_step", option->last);
    put_ms(writer, "healthy_ms", slow->healthy_ms);
    put_ms(writer, "slow_ms", slow->slow_ms);
    put_ms(writer, "shared_ms", slow->shared_ms);
    put_shares(writer, demo, "best_micro_batches", &slow->best);
    cairn_json_put_bool(writer, "worth_while", outcome.is_worth_while);
    cairn_json_put_bool(writer, "moved", outcome.has_moved);
    cairn_json_put_u64(writer, "moved_after_steps", outcome.moved_after);
    cairn_json_write_key(writer, "layers_late_steps");
    if (outcome.has_moved_layers)
        cairn_json_write_u64(writer, outcome.layers_late);
    else
        cairn_json_write_null(writer);
    cairn_json_put_bool(writer, "home", outcome.is_home);
    cairn_json_put_u64(writer, "home_after_steps", outcome.home_after);
    cairn_json_write_key(writer, "story");
    if (slow->story)
        cairn_json_write_string(writer, slow->story);
    else
        cairn_json_write_null(writer);
    put_ms(writer, "total_ms", outcome.total_ms);
    put_ms(writer, "clairvoyant_ms", outcome.clairvoyant_ms);
    cairn_json_write_object_end(writer);
}
