/*
 * transport/backend.h - what the transport needs from below: frames that arrive whole and in order,
 * or not at all, and writes into memory that the other side has opened.
 *
 * Backends: `tcp` (our own, over plain sockets and TLS), `rdma` (frames over `tcp`, payloads over
 * libfabric, called `ofi` here) and `loop` (in one process, for tests). All rules about peers,
 * keys, windows and deadlines are above, in peer.c and flow.c; a backend only moves bytes.
 *
 * The rule about memory: the backend may touch bytes given to send and write, and memory opened by
 * region, until it reports the operation by `done`, or until disconnect of CAIRN_BACKEND_ALL
 * returns. Nothing else ends an operation: with libfabric the provider may still read a failed or
 * stuck send.
 */
#ifndef CAIRN_TRANSPORT_BACKEND_H
#define CAIRN_TRANSPORT_BACKEND_H

#include "transport/transport.h"

enum {
    CAIRN_BACKEND_ALL = 0xffffffffu, /* as a node: all of them */
    CAIRN_BACKEND_NAME_BYTES = 64    /* of a libfabric endpoint, at most */
};

/* Where a peer may write: what region() of that peer said. */
struct cairn_backend_remote {
    uint64_t address;
    uint64_t key;
    uint64_t place; /* of one payload: cairn_transport_send_placed; 0: none */
};

/* What a buffer holds. Torn: a payload whose tags do not fit its bytes, which changed on the way
 * or, after tagging, in the sender's memory. */
enum cairn_backend_fill { CAIRN_BACKEND_EMPTY, CAIRN_BACKEND_TORN, CAIRN_BACKEND_WHOLE };

struct cairn_backend;

/*
 * One send or write in flight, inside the caller's own struct. The scratch belongs to the backend
 * while it is in flight (libfabric's contexts).
 */
struct cairn_backend_part {
    uint64_t scratch[8];
};

/* What the backend reports, from progress only. */
struct cairn_backend_events {
    /* One send or write has ended and its bytes are no longer touched. CAIRN_OK or CAIRN_PEER. */
    void (*done)(void *context, struct cairn_backend_part *part, cairn_err err);
    /* A frame has come; bytes[bytes_len] valid during the call. From the node that is proved on its
     * connection; CAIRN_BACKEND_ALL: from anybody. */
    void (*received)(void *context, uint32_t node, const uint8_t *bytes, size_t bytes_len);
    /* A payload begins to come from a node: cairn_transport_place_fn. Called by backends that can
     * place payloads. */
    uint8_t *(*place)(void *context, uint32_t node, uint64_t place, size_t bytes_len);
    /* The connection to a node can be used (why NULL), or is lost. Backends without connections
     * never call it. */
    void (*changed)(void *context, uint32_t node, const char *why);
    /* We refuse the node's certificate; why, valid during the call, gives the reason. NULL: the
     * node refuses our key or certificate, and its log has the reason. */
    void (*refused)(void *context, uint32_t node, const char *why);
    void *context;
};

/* Thread: the one that opened it. Nothing blocks. */
struct cairn_transport_ops {
    const char *name;
    void (*close)(struct cairn_backend *backend); /* ends all operations without reporting them */
    int (*fd)(const struct cairn_backend *backend);
    bool (*may_sleep)(struct cairn_backend *backend); /* the fd will tell of the next event */
    /* Reports events, a bounded number; true when there may be more at once. */
    bool (*progress)(struct cairn_backend *backend);
    /*
     * Starts an operation that done() will report with `part`. With `ordered`, the frame and the
     * write to one node arrive in the order of these calls; else a frame may overtake a write that
     * has not been reported. CAIRN_AGAIN: try again later; CAIRN_PEER: the connection is lost.
     * After a failure done() is not called.
     */
    cairn_err (*send)(struct cairn_backend *backend, uint32_t node, const void *bytes,
                      size_t bytes_len, struct cairn_backend_part *part);
    cairn_err (*write)(struct cairn_backend *backend, uint32_t node, const void *bytes,
                       size_t bytes_len, struct cairn_backend_remote remote,
                       struct cairn_backend_part *part);
    /*
     * Closes the connection to one node, so that its operations are reported soon (CAIRN_PEER) and
     * it writes nothing more into this node's regions. CAIRN_AGAIN when the backend cannot do that
     * for one node. CAIRN_BACKEND_ALL always works, reports nothing and ends all operations at
     * once; CAIRN_IO only if the endpoint could not be opened again: try later.
     */
    cairn_err (*disconnect)(struct cairn_backend *backend, uint32_t node);
    /*
     * Opens buffer `index` of the pool for writes from outside under a fresh key (out not NULL), or
     * closes it (out NULL; closing a closed one is allowed). CAIRN_NOMEM, CAIRN_IO.
     */
    cairn_err (*region)(struct cairn_backend *backend, uint32_t index,
                        struct cairn_backend_remote *out);
    /* Whether a payload of so many bytes has come, whole, into the buffer since it was opened. */
    enum cairn_backend_fill (*filled)(const struct cairn_backend *backend, uint32_t index,
                                      size_t bytes_len);
    /*
     * Of backends that place payloads, else NULL. The first gives the memory that the payload of an
     * open buffer was placed in, NULL: it is in the buffer. The second moves what has come into
     * memory[bytes_len] to its buffer, where the rest follows.
     */
    uint8_t *(*placed)(const struct cairn_backend *backend, uint32_t index);
    void (*unplace)(struct cairn_backend *backend, const uint8_t *memory, size_t bytes_len);
    /*
     * The node has another address, which counts from its next disconnect on. CAIRN_CONFIG: this
     * endpoint cannot reach it; CAIRN_NOMEM. The old one stays then.
     */
    cairn_err (*readdress)(struct cairn_backend *backend, uint32_t node, const char *address);
    /* As cairn_transport_rekey, with keys of the right lengths. NULL: it proves neither keys nor
     * certificates. */
    cairn_err (*rekey)(struct cairn_backend *backend, const struct cairn_transport_key keys[2],
                       const struct cairn_transport_certificate *certificate);
    /* Fills the counters of connections that were refused or ignored. NULL: it has none. */
    void (*strangers)(const struct cairn_backend *backend, struct cairn_transport_stats *out);
    /*
     * Of what lies below `rdma` alone. The first gives the name of this node's endpoint, which
     * changes with a disconnect of all. The second takes the name of a node's endpoint, which
     * counts until the next disconnect of that node. CAIRN_AGAIN: the endpoint is closed;
     * CAIRN_PEER: libfabric does not take it.
     */
    cairn_err (*endpoint)(struct cairn_backend *backend, uint8_t out[CAIRN_BACKEND_NAME_BYTES],
                          size_t *out_len);
    cairn_err (*reach)(struct cairn_backend *backend, uint32_t node, const uint8_t *name,
                       size_t name_len);
};

/* The head of every backend. */
struct cairn_backend {
    const struct cairn_transport_ops *ops;
    bool ordered;  /* see send */
    bool isolates; /* disconnect works for one node */
};

struct cairn_backend_options {
    const struct cairn_transport_options *transport;
    uint8_t *pool; /* buffer_count buffers of CAIRN_BULK_BYTES_MAX, page aligned */
    uint32_t buffer_count;
    uint32_t operation_count;
    struct cairn_backend_events events;
};

/* Errors as cairn_transport_open. The caller ends *out with ops->close. */
CAIRN_MUST_CHECK cairn_err cairn_backend_tcp_open(const struct cairn_backend_options *options,
                                                  struct cairn_backend **out);
CAIRN_MUST_CHECK cairn_err cairn_backend_ofi_open(const struct cairn_backend_options *options,
                                                  struct cairn_backend **out);
CAIRN_MUST_CHECK cairn_err cairn_backend_rdma_open(const struct cairn_backend_options *options,
                                                   struct cairn_backend **out);
/* The same over other backends, such as those that tests control. */
typedef cairn_err cairn_backend_open_fn(const struct cairn_backend_options *options,
                                        struct cairn_backend **out);
CAIRN_MUST_CHECK cairn_err cairn_backend_rdma_over(const struct cairn_backend_options *options,
                                                   cairn_backend_open_fn *control_open,
                                                   cairn_backend_open_fn *bulk_open,
                                                   struct cairn_backend **out);
CAIRN_MUST_CHECK cairn_err cairn_backend_loop_open(const struct cairn_backend_options *options,
                                                   struct cairn_backend **out);

#endif
