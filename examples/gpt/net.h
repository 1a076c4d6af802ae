/*
 * examples/gpt/net.h - the trainer's own TCP connections: to the neighbours in its pipeline and to
 * all stages of the neighbouring replicas, which may hold the same layers, nobody else.
 *
 * A message is a header of 40 bytes and a payload, both in the byte order of the machine, which the
 * greeting compares. The header names kind, step, index, sender and length, and each is checked
 * against what the receiver waits for: ranks that are out of step are found, not computed with.
 *   0 u32 magic  4 u32 kind  8 u64 step  16 u32 index  20 u32 sender  24 u64 bytes  32 u64 job
 * `job` is a fingerprint of all settings that the ranks must share.
 *
 * No wait is endless: one without any progress for the peer timeout ends with CAIRN_TIMEOUT. While
 * waiting for one neighbour all are watched, so that the death of any is noticed at once.
 * Connections are neither encrypted nor authenticated: this is an example for one's own cluster.
 */
#ifndef GPT_NET_H
#define GPT_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/err.h"
#include "plan.h"

enum gpt_link {
    GPT_LINK_STAGE_BEFORE,
    GPT_LINK_STAGE_AFTER,
    GPT_LINK_REPLICA_BEFORE, /* its stage 0; the others follow */
    GPT_LINK_REPLICA_AFTER = GPT_LINK_REPLICA_BEFORE + GPT_PARTS_MAX,
    GPT_LINKS = GPT_LINK_REPLICA_AFTER + GPT_PARTS_MAX
};

/* The link to a stage of the replica before, or after. */
static inline enum gpt_link
gpt_link_of(enum gpt_link replica, uint32_t stage)
{
    return (enum gpt_link)((uint32_t)replica + stage);
}

/* What a message carries. */
enum gpt_kind {
    GPT_KIND_HELLO = 1,
    GPT_KIND_READY,      /* the step to start from */
    GPT_KIND_ACTIVATION, /* forward, per micro-batch */
    GPT_KIND_GRADIENT,   /* backward, per micro-batch */
    GPT_KIND_PARTIAL,    /* gradients summed over the replicas so far */
    GPT_KIND_TOTAL,      /* gradients summed over all replicas */
    GPT_KIND_NORM,       /* squares summed over the stages so far */
    GPT_KIND_VERDICT,    /* squares over all stages, and the loss */
    GPT_KIND_STATE,      /* final tensors */
    GPT_KIND_DIGEST,     /* of final tensors */
    GPT_KIND_VOTE,       /* on a placement whose layers have moved */
    GPT_KIND_END
};

struct gpt_net;

struct gpt_net_options {
    const char *peers;   /* "host:port,…", one per rank; entry `rank` is where we listen */
    uint32_t timeout_ms; /* of every wait */
    uint64_t job;        /* fingerprint of the shared settings */
};

/*
 * Listens, connects to the plan's neighbours, greets them. Waits for missing neighbours until the
 * timeout. CAIRN_INVAL for a wrong list of peers, CAIRN_IO when the own address cannot be
 * listened on, CAIRN_CONFIG when a neighbour has other settings, CAIRN_PEER or CAIRN_TIMEOUT when
 * one is missing, CAIRN_NOMEM; each is printed. A plan with one rank needs no peers. On success
 * *out is the caller's, ended by gpt_net_close (NULL allowed).
 */
CAIRN_MUST_CHECK cairn_err gpt_net_open(const struct gpt_net_options *options,
                                        const struct gpt_plan *plan, struct gpt_net **out);
void gpt_net_close(struct gpt_net *net);

/* True where the plan has a neighbour in this direction. */
bool gpt_net_has(const struct gpt_net *net, enum gpt_link link);

/*
 * Sends or receives one message of exactly `bytes`. CAIRN_PEER when a neighbour is gone,
 * CAIRN_TIMEOUT when nothing moves for the timeout, CAIRN_INTERNAL when another message arrives
 * than the one waited for; each is printed.
 */
CAIRN_MUST_CHECK cairn_err gpt_net_send(struct gpt_net *net, enum gpt_link link, enum gpt_kind kind,
                                        uint64_t step, uint32_t index, const void *data,
                                        size_t bytes);
CAIRN_MUST_CHECK cairn_err gpt_net_receive(struct gpt_net *net, enum gpt_link link,
                                           enum gpt_kind kind, uint64_t step, uint32_t index,
                                           void *data, size_t bytes);

/* Changes the timeout of the waits from now on; 0 sets that of the options again. */
void gpt_net_set_timeout(struct gpt_net *net, uint32_t timeout_ms);

/*
 * Says farewell: returns when every rank has come here, after which neighbours may leave. Errors as
 * gpt_net_receive.
 */
CAIRN_MUST_CHECK cairn_err gpt_net_finish(struct gpt_net *net);

#endif
