/* agent/service/operator_histories.c - see operator_histories.h. */
#include "agent/service/operator_histories.h"

#include <stdlib.h>
#include <string.h>

struct operator_histories *
histories_create(uint32_t node_count)
{
    struct operator_histories *histories =
        calloc(1, sizeof *histories + node_count * sizeof histories->nodes[0]);

    if (histories)
        histories->node_count = node_count;
    return histories;
}

static void
forget(struct operator_histories *histories, struct histories_node *node)
{
    histories->bytes -= node->total;
    free(node->bytes);
    free(node->events);
    free(node->texts);
    memset(node, 0, sizeof *node);
}

void
histories_free(struct operator_histories *histories)
{
    for (uint32_t i = 0; histories && i < histories->node_count; i++)
        forget(histories, &histories->nodes[i]);
    free(histories);
}

cairn_err
histories_pack(const struct history_book *book, uint8_t **bytes, size_t *len)
{
    size_t room = book->count * (size_t)(HISTORY_PACKED_BYTES_MAX + 4);
    uint8_t *out = malloc(room + 1);
    struct cairn_writer writer;
    size_t used = 0;

    if (!out)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < book->count; i++) {
        size_t packed = history_event_pack(&book->events[i], out + used + 4);

        cairn_writer_init(&writer, out + used, 4);
        cairn_write_u32(&writer, (uint32_t)packed);
        used += packed ? packed + 4 : 0;
    }
    *bytes = out;
    *len = used;
    return CAIRN_OK;
}

static bool
begin_node(struct operator_histories *histories, struct histories_node *node, uint64_t total)
{
    if (total > HISTORIES_NODE_BYTES_MAX || total > HISTORIES_BYTES_MAX - histories->bytes)
        return false;
    node->bytes = malloc(total + 1);
    if (!node->bytes)
        return false;
    node->total = total;
    histories->bytes += total;
    node->state = HISTORIES_PARTLY;
    return true;
}

bool
histories_take(struct operator_histories *histories, uint32_t number, uint64_t offset,
               uint64_t total, const void *bytes, size_t len)
{
    struct histories_node *node;

    if (number >= histories->node_count)
        return false;
    node = &histories->nodes[number];
    if (node->state == HISTORIES_WHOLE || node->state == HISTORIES_DAMAGED)
        return false;
    if ((node->state == HISTORIES_NONE && !begin_node(histories, node, total)) ||
        offset != node->len || total != node->total || len > node->total - node->len) {
        forget(histories, node);
        node->state = HISTORIES_DAMAGED;
        return false;
    }
    memcpy(node->bytes + node->len, bytes, len);
    node->len += len;
    if (node->len == node->total)
        node->state = HISTORIES_WHOLE;
    return true;
}

/* Reads the valid events of one node. */
static cairn_err
read_node(struct histories_node *node)
{
    size_t room = node->len / (HISTORY_FIXED_BYTES + 4) + 1, used = 0;
    struct cairn_reader reader;
    uint64_t last = 0;

    node->events = calloc(room, sizeof *node->events);
    node->texts = malloc(node->len + HISTORY_TEXT_BYTES);
    if (!node->events || !node->texts)
        return CAIRN_NOMEM;
    cairn_reader_init(&reader, node->bytes, node->len);
    while (cairn_reader_left(&reader) > 0 && node->count < room) {
        uint32_t packed_len = cairn_read_u32(&reader);
        const uint8_t *packed = cairn_read_borrow(&reader, packed_len);
        struct history_event *event = &node->events[node->count];

        if (!packed ||
            history_event_unpack(packed, packed_len, node->texts + used, event) != CAIRN_OK ||
            event->number <= last) {
            node->state = HISTORIES_DAMAGED;
            break;
        }
        last = event->number;
        used += strlen(event->text) + 1;
        node->count++;
    }
    return CAIRN_OK;
}

cairn_err
histories_read(struct operator_histories *histories, struct history_list *lists, uint32_t *count)
{
    uint32_t used = 0;

    for (uint32_t i = 0; i < histories->node_count; i++) {
        struct histories_node *node = &histories->nodes[i];
        cairn_err err;

        if (node->state != HISTORIES_WHOLE || node->events)
            continue;
        err = read_node(node);
        if (err)
            return err;
        lists[used++] = (struct history_list){i, node->events, node->count};
    }
    *count = used;
    return CAIRN_OK;
}
