/*
 * tools/demo_slow_report.c - what `cairn demo --slow` shows at its end, for people and as JSON.
 */
#include "tools/demo_slow.h"

#include "base/json.h"
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
    char action[ACTION_BYTES], shares[DEMO_SHARES_BYTES], shown[2][MS_BYTES];

    demo_shares_text(demo, &row->shares, shares);
    if (row->kind == DEMO_ROW_SHARES)
        snprintf(action, sizeof action, "micro-batches %s", shares);
    else if (row->kind == DEMO_ROW_SLOW)
        snprintf(action, sizeof action, "(rank %u: %.4g times slow)", option->rank, option->factor);
    else
        snprintf(action, sizeof action, "(rank %u: well again)", option->rank);
    printf("%6" PRIu64 "  %-28s %9s %9s %10.1f %9.1f\n", row->from, action,
           show_ms(row->before_ms, shown[0]), show_ms(row->after_ms, shown[1]), row->predicted_ms,
           row->bound_ms);
    if (row->why)
        printf("          why: %s\n", row->why);
}

static void
print_verdict(const struct demo *demo)
{
    struct demo_outcome outcome = demo_slow_outcome(demo);

    if (!outcome.is_worth_while)
        printf("verdict          no other shares would be faster: the change is not worth while\n");
    else if (!outcome.has_moved)
        printf("verdict          NO other shares were taken while the device was slow\n");
    else
        printf("verdict          other shares in force %" PRIu64 " steps after the device became "
               "slow; %s\n",
               outcome.moved_after,
               outcome.is_home ? "given back when it was well" : "NOT given back by the end");
    if (outcome.has_moved && outcome.is_home)
        printf("                 given back %" PRIu64 " steps after it was well\n",
               outcome.home_after);
}

void
demo_slow_print(const struct demo *demo)
{
    struct demo_row rows[DEMO_ROWS_MAX];
    uint32_t count = demo_slow_rows(demo, rows);

    printf("\n%6s  %-28s %9s %9s %10s %9s\n", "step", "action", "before", "after", "predicted",
           "bound");
    for (uint32_t i = 0; i < count; i++)
        print_row(demo, &rows[i]);
    printf(
        "milliseconds per step: medians of what rank 0 measured; bound: no plan takes less, even "
        "if layers move\n");
    print_verdict(demo);
}

/* ---- for programs ---- */

static void
put_ms(struct cairn_json_writer *writer, const char *key, double ms)
{
    cairn_json_write_key(writer, key);
    cairn_json_write_double(writer, ms > 0 ? ms : (double)NAN);
}

static void
put_u64(struct cairn_json_writer *writer, const char *key, uint64_t value)
{
    cairn_json_write_key(writer, key);
    cairn_json_write_u64(writer, value);
}

static void
put_bool(struct cairn_json_writer *writer, const char *key, bool value)
{
    cairn_json_write_key(writer, key);
    cairn_json_write_bool(writer, value);
}

static void
put_shares(struct cairn_json_writer *writer, const struct demo *demo, const char *key,
           const struct demo_shares *shares)
{
    cairn_json_write_key(writer, key);
    cairn_json_write_array_begin(writer);
    for (uint32_t r = 0; r < demo->dp; r++)
        cairn_json_write_u64(writer, shares->parts[r]);
    cairn_json_write_array_end(writer);
}

static void
put_row(struct cairn_json_writer *writer, const struct demo *demo, const struct demo_row *row)
{
    static const char *const actions[] = {[DEMO_ROW_SLOW] = "device slow",
                                          [DEMO_ROW_WELL] = "device well",
                                          [DEMO_ROW_SHARES] = "microbatches"};

    cairn_json_write_object_begin(writer);
    put_u64(writer, "from_step", row->from);
    cairn_json_write_key(writer, "action");
    cairn_json_write_string(writer, actions[row->kind]);
    put_shares(writer, demo, "micro_batches", &row->shares);
    cairn_json_write_key(writer, "why");
    if (row->why)
        cairn_json_write_string(writer, row->why);
    else
        cairn_json_write_null(writer);
    put_ms(writer, "before_ms", row->before_ms);
    put_ms(writer, "after_ms", row->after_ms);
    put_ms(writer, "predicted_ms", row->predicted_ms);
    put_ms(writer, "bound_ms", row->bound_ms);
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

    cairn_json_write_key(writer, "slow");
    cairn_json_write_object_begin(writer);
    put_u64(writer, "rank", option->rank);
    cairn_json_write_key(writer, "factor");
    cairn_json_write_double(writer, option->factor);
    put_u64(writer, "from_step", option->first);
    put_u64(writer, "to_step", option->last);
    put_ms(writer, "healthy_ms", slow->healthy_ms);
    put_ms(writer, "slow_ms", slow->slow_ms);
    put_ms(writer, "shared_ms", slow->shared_ms);
    put_shares(writer, demo, "best_micro_batches", &slow->best);
    put_bool(writer, "worth_while", outcome.is_worth_while);
    put_bool(writer, "moved", outcome.has_moved);
    put_u64(writer, "moved_after_steps", outcome.moved_after);
    put_bool(writer, "home", outcome.is_home);
    put_u64(writer, "home_after_steps", outcome.home_after);
    cairn_json_write_object_end(writer);
}
