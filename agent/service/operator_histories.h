/*
 * agent/service/operator_histories.h - the nodes' histories on their way between agents, and a
 * request's collection of them. Pure.
 *
 * A history is packed as its events one after the other, each u32 length and packed event
 * (agent/history/event.h). It travels in parts of at most HISTORIES_PART_BYTES, in order: the
 * message's `offset` is where the part begins, `total` the length of the whole. Peers' bytes are
 * bounded and checked: a malformed history ends before its first malformed event.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_HISTORIES_H
#define CAIRN_AGENT_SERVICE_OPERATOR_HISTORIES_H

#include "agent/history/book.h"
#include "agent/history/merge.h"

enum {
    HISTORIES_PART_BYTES = 32 << 10,
    HISTORIES_NODE_BYTES_MAX = 1 << 20,
    HISTORIES_BYTES_MAX = 32 << 20 /* of all nodes; those that answer later are left out */
};

enum histories_state { HISTORIES_NONE = 0, HISTORIES_PARTLY, HISTORIES_WHOLE, HISTORIES_DAMAGED };

struct histories_node {
    enum histories_state state;
    uint8_t *bytes;
    size_t len, total;
    struct history_event *events; /* once read */
    char *texts;
    uint32_t count;
};

struct operator_histories {
    uint32_t node_count;
    size_t bytes;
    struct histories_node nodes[];
};

/* NULL: out of memory. */
struct operator_histories *histories_create(uint32_t node_count);
void histories_free(struct operator_histories *histories); /* NULL is allowed */

/* Packs a book; the caller frees *bytes. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err histories_pack(const struct history_book *book, uint8_t **bytes,
                                          size_t *len);

/* Takes a part of a node's history. False: it does not continue the earlier parts, or is too large;
 * the node counts as damaged. */
bool histories_take(struct operator_histories *histories, uint32_t node, uint64_t offset,
                    uint64_t total, const void *bytes, size_t len);

/* Reads all complete histories; lists[node_count] borrow from `histories`. Returns how many there
 * are. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err histories_read(struct operator_histories *histories,
                                          struct history_list *lists, uint32_t *count);

#endif
