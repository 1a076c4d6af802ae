/*
 * examples/gpt/net_part.h - what net.c and rendezvous.c share: connections and raw bytes with
 * deadlines.
 */
#ifndef GPT_NET_PART_H
#define GPT_NET_PART_H

#include "net.h"

enum { GPT_HEADER_BYTES = 40, GPT_ADDRESS_BYTES = 128, GPT_NET_VERSION = 1 };

struct gpt_header {
    uint32_t magic;
    uint32_t kind;
    uint64_t step;
    uint32_t index;
    uint32_t sender;
    uint64_t bytes;
    uint64_t job;
};
_Static_assert(sizeof(struct gpt_header) == GPT_HEADER_BYTES, "goes on the wire as it is");

struct gpt_connection {
    int fd; /* -1: none */
    uint32_t rank;
    char address[GPT_ADDRESS_BYTES]; /* as in --peers */
};

struct gpt_net {
    struct gpt_connection links[GPT_LINKS];
    uint32_t rank;
    uint32_t timeout_ms;
    uint32_t timeout_ms_default;
    uint64_t job;
    bool leaving; /* neighbours may close their connections now */
};

/* Monotonic time. */
uint64_t gpt_now_ms(void);

/* The header of a message of ours. */
struct gpt_header gpt_header_make(const struct gpt_net *net, enum gpt_kind kind, uint64_t step,
                                  uint32_t index, size_t bytes);

/* Moves exactly `bytes` over one link; errors as gpt_net_send. */
CAIRN_MUST_CHECK cairn_err gpt_bytes_send(struct gpt_net *net, enum gpt_link link, const void *data,
                                          size_t bytes);
CAIRN_MUST_CHECK cairn_err gpt_bytes_receive(struct gpt_net *net, enum gpt_link link, void *data,
                                             size_t bytes);

#endif
