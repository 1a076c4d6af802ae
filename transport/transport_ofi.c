/*
 * transport/transport_ofi.c - libfabric below the backend `rdma`: one reliable-datagram endpoint,
 * one completion queue and one address vector per agent. The only file that includes libfabric.
 *
 * It writes payloads. A message serves to make a connection, and is dropped where it arrives:
 * anyone can send one.
 *
 * Why no write with remote completion data: with tcp;ofi_rxm 1.17 closing a connection while such a
 * write is half received reports an error without a context, which rxm then follows
 * (tcpx_ep_flush_all_queues, rxm_handle_comp_error). A plain write is internal to the provider and
 * is dropped silently.
 *
 * Taking memory back. fi_cancel does not reach sends. With ofi_rxm and FI_AV_REMOVE_CLEANUP, taking
 * a peer's address out of the vector closes its connection: what is in flight is reported as
 * cancelled, and nothing more comes in from it. Other providers have no such thing (`isolates` is
 * false) and the whole endpoint is closed and opened again.
 *
 * Errors of completions: any error takes the peer of its context down. An entry may have no
 * context, or a negative code; without a context the peer is found by the deadline of its
 * operations.
 */
#include "transport/backend.h"

#include "transport/address.h"
#include "transport/fabric.h"
#include "transport/frame.h"

#include "base/log.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    RECEIVE_COUNT = 256, /* posted receives */
    RECEIVE_BYTES = 64,
    READ_COUNT = 32,  /* completions read at once */
    READ_ROUNDS = 8,  /* reads of one poll */
    CLOSE_ROUNDS = 4, /* a request to connect takes two: to accept it, and to read it */
    KEY_COUNT = 64    /* random keys drawn at once */
};

_Static_assert(sizeof(struct fi_context2) <= sizeof(struct cairn_backend_part),
               "room for a context");

struct receive {
    struct fi_context2 context; /* first: it is what a completion points to */
    uint8_t bytes[RECEIVE_BYTES];
};

struct ofi {
    struct cairn_backend backend;
    struct cairn_backend_events events;
    uint32_t node_count;
    uint8_t *pool;
    uint32_t buffer_count;
    uint32_t operation_count;
    struct sockaddr_storage own;
    fi_addr_t *peers;         /* [node_count], FI_ADDR_UNSPEC if unknown */
    struct fid_mr **regions;  /* [buffer_count], NULL: closed */
    struct receive *receives; /* [RECEIVE_COUNT] */
    bool *unposted;           /* [RECEIVE_COUNT], to be posted again */
    uint32_t unposted_count;
    uint64_t keys[KEY_COUNT];
    uint32_t keys_left;
    char *bind_address; /* for log lines */

    struct cairn_fabric library;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    int fd;     /* an epoll descriptor, the same over resets */
    bool blind; /* the provider has no descriptor: it must be polled */
};

static struct ofi *
ofi_of(struct cairn_backend *backend)
{
    return (struct ofi *)(void *)backend;
}

static cairn_err
translate(ssize_t code)
{
    return code == -FI_EAGAIN || code == -FI_ENOMEM || code == -FI_ENOBUFS ? CAIRN_AGAIN
                                                                           : CAIRN_PEER;
}

/* ---- opening ---- */

/* Names each provider that could serve, once. */
static void
providers_log(const struct ofi *ofi, const char *provider)
{
    struct fi_info *hints = ofi->library.dupinfo(NULL);
    struct fi_info *list = NULL;
    char names[512] = "";

    if (!hints)
        return;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_RMA;
    hints->domain_attr->mr_mode =
        FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    if (ofi->library.getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &list) == 0) {
        for (struct fi_info *info = list; info; info = info->next) {
            const char *name = info->fabric_attr->prov_name;
            size_t used = strlen(names);
            char quoted[80];

            snprintf(quoted, sizeof quoted, "\"%s\"", name);
            if (!strstr(names, quoted) && used + strlen(quoted) + 3 < sizeof names)
                snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", quoted);
        }
        ofi->library.freeinfo(list);
    }
    ofi->library.freeinfo(hints);
    CAIRN_LOG_AT(ERROR, "transport: there is no provider \"%s\"; libfabric offers %s", provider,
                 names[0] ? names : "none");
}

/* The provider gives endpoints names of its own, not addresses of sockets. */
static bool
names_itself(const char *provider)
{
    return strncmp(provider, "shm", 3) == 0 || strncmp(provider, "efa", 3) == 0 ||
           strncmp(provider, "psm", 3) == 0;
}

static struct fi_info *
hints_make(const struct ofi *ofi, const char *provider)
{
    struct fi_info *hints = ofi->library.dupinfo(NULL);

    if (!hints)
        return NULL;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode =
        FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->fabric_attr->prov_name = strdup(provider);
    if (!names_itself(provider))
        hints->addr_format = ofi->own.ss_family == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
    if (!hints->fabric_attr->prov_name) {
        ofi->library.freeinfo(hints);
        return NULL;
    }
    return hints;
}

static int
info_get(const struct ofi *ofi, const char *provider, struct fi_info **out)
{
    struct fi_info *hints = hints_make(ofi, provider);
    int code = 0;

    if (!hints)
        return -FI_ENOMEM;
    if (!names_itself(provider)) {
        hints->src_addrlen = cairn_address_len(&ofi->own);
        hints->src_addr = malloc(hints->src_addrlen);
        if (hints->src_addr) { /* the port is TCP's: the fabric has one of its own */
            memcpy(hints->src_addr, &ofi->own, hints->src_addrlen);
            ((struct sockaddr_in *)hints->src_addr)->sin_port = 0; /* where IPv6 has its own */
        }
        code = hints->src_addr ? 0 : -FI_ENOMEM;
    }
    if (!code)
        code = ofi->library.getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, out);
    ofi->library.freeinfo(hints);
    return code;
}

static bool
provider_exists(const struct ofi *ofi, const char *provider)
{
    struct fi_info *hints = hints_make(ofi, provider);
    struct fi_info *list = NULL;
    bool exists =
        hints && ofi->library.getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &list) == 0;

    if (list)
        ofi->library.freeinfo(list);
    if (hints)
        ofi->library.freeinfo(hints);
    return exists;
}

static cairn_err
info_find(struct ofi *ofi, const struct cairn_transport_options *options)
{
    bool is_tcp = strcmp(options->provider, "libfabric-tcp") == 0;
    const char *provider = is_tcp ? "tcp" : options->provider;
    int code = info_get(ofi, provider, &ofi->info);

    if (code == 0)
        return CAIRN_OK;
    if (code == -FI_ENOMEM)
        return CAIRN_NOMEM;
    if (!provider_exists(ofi, provider)) {
        providers_log(ofi, provider);
        return CAIRN_CONFIG;
    }
    CAIRN_LOG_AT(ERROR, "transport: provider \"%s\" cannot listen on %s: %s", provider,
                 options->bind_address, ofi->library.strerror(-code));
    return CAIRN_CONFIG;
}

/*
 * What is in the queue of connections when it closes is lost with its memory and descriptor
 * (libfabric 1.17, ofi_eq_cleanup), and only libfabric can reach that queue. So requests to connect
 * are taken until none is left; the connections that they make end with the endpoint.
 */
static void
endpoint_close(struct ofi *ofi)
{
    for (int i = 0; ofi->ep && i < CLOSE_ROUNDS; i++)
        (void)!fi_cq_read(ofi->cq, NULL, 0);
    if (ofi->ep)
        fi_close(&ofi->ep->fid);
    for (uint32_t i = 0; ofi->regions && i < ofi->buffer_count; i++) {
        if (ofi->regions[i])
            fi_close(&ofi->regions[i]->fid);
        ofi->regions[i] = NULL;
    }
    if (ofi->cq)
        fi_close(&ofi->cq->fid);
    if (ofi->av)
        fi_close(&ofi->av->fid);
    if (ofi->domain)
        fi_close(&ofi->domain->fid);
    if (ofi->fabric)
        fi_close(&ofi->fabric->fid);
    ofi->ep = NULL;
    ofi->cq = NULL;
    ofi->av = NULL;
    ofi->domain = NULL;
    ofi->fabric = NULL;
}

static void
receive_post(struct ofi *ofi, uint32_t index)
{
    struct receive *receive = &ofi->receives[index];

    if (fi_recv(ofi->ep, receive->bytes, sizeof receive->bytes, NULL, FI_ADDR_UNSPEC,
                &receive->context) == 0) {
        if (ofi->unposted[index])
            ofi->unposted_count--;
        ofi->unposted[index] = false;
    } else if (!ofi->unposted[index]) { /* the provider is full: the next poll tries again */
        ofi->unposted[index] = true;
        ofi->unposted_count++;
    }
}

static void
receives_post(struct ofi *ofi)
{
    for (uint32_t i = 0; i < RECEIVE_COUNT; i++)
        if (ofi->unposted[i])
            receive_post(ofi, i);
}

/* The queue's descriptor changes with the endpoint; the one that the loop knows holds it inside. */
static bool
wait_descriptor_add(struct ofi *ofi)
{
    struct epoll_event event = {.events = EPOLLIN};
    int fd;

    return fi_control(&ofi->cq->fid, FI_GETWAIT, &fd) == 0 &&
           epoll_ctl(ofi->fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* The steps of opening an endpoint; `step` names the one that failed. */
static int
endpoint_steps(struct ofi *ofi, const char **step)
{
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG,
                                 .wait_obj = FI_WAIT_FD,
                                 .size = 2 * (size_t)ofi->operation_count + RECEIVE_COUNT + 64};
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = ofi->node_count};
    int code;

    *step = "fi_fabric";
    code = ofi->library.fabric(ofi->info->fabric_attr, &ofi->fabric, NULL);
    if (code)
        return code;
    *step = "fi_domain";
    code = fi_domain(ofi->fabric, ofi->info, &ofi->domain, NULL);
    if (code)
        return code;
    *step = "fi_cq_open";
    code = fi_cq_open(ofi->domain, &cq_attr, &ofi->cq, NULL);
    if (code == -FI_ENOSYS || code == -FI_EINVAL || code == -FI_EOPNOTSUPP) {
        cq_attr.wait_obj = FI_WAIT_NONE; /* polled by the clock: cairn_transport_due */
        code = fi_cq_open(ofi->domain, &cq_attr, &ofi->cq, NULL);
    }
    if (code)
        return code;
    ofi->blind = cq_attr.wait_obj != FI_WAIT_FD || !wait_descriptor_add(ofi);
    *step = "fi_av_open";
    code = fi_av_open(ofi->domain, &av_attr, &ofi->av, NULL);
    if (code)
        return code;
    *step = "fi_endpoint";
    code = fi_endpoint(ofi->domain, ofi->info, &ofi->ep, NULL);
    if (code)
        return code;
    *step = "fi_ep_bind";
    code = fi_ep_bind(ofi->ep, &ofi->av->fid, 0);
    if (code)
        return code;
    code = fi_ep_bind(ofi->ep, &ofi->cq->fid, FI_TRANSMIT | FI_RECV);
    if (code)
        return code;
    *step = "fi_enable";
    code = fi_enable(ofi->ep);
    if (code)
        return code;
    for (uint32_t i = 0; i < ofi->node_count; i++)
        ofi->peers[i] = FI_ADDR_UNSPEC;
    return 0;
}

static cairn_err
endpoint_open(struct ofi *ofi)
{
    const char *step = "";
    int code = endpoint_steps(ofi, &step);

    if (code) {
        CAIRN_LOG_AT(ERROR, "transport: cannot listen on %s: %s (provider %s, %s)",
                     ofi->bind_address, ofi->library.strerror(-code),
                     ofi->info->fabric_attr->prov_name, step);
        endpoint_close(ofi);
        return code == -FI_ENOMEM ? CAIRN_NOMEM : CAIRN_IO;
    }
    for (uint32_t i = 0; i < RECEIVE_COUNT; i++)
        ofi->unposted[i] = true;
    ofi->unposted_count = RECEIVE_COUNT;
    receives_post(ofi);
    return CAIRN_OK;
}

/* ---- the table ---- */

static void
ofi_close(struct cairn_backend *backend)
{
    struct ofi *ofi = ofi_of(backend);

    endpoint_close(ofi);
    if (ofi->info)
        ofi->library.freeinfo(ofi->info);
    if (ofi->fd >= 0)
        close(ofi->fd);
    free(ofi->bind_address);
    free(ofi->unposted);
    free(ofi->receives);
    free(ofi->regions);
    free(ofi->peers);
    free(ofi);
}

static int
ofi_fd(const struct cairn_backend *backend)
{
    const struct ofi *ofi = (const struct ofi *)(const void *)backend;

    return ofi->blind ? -1 : ofi->fd;
}

static bool
ofi_may_sleep(struct cairn_backend *backend)
{
    struct ofi *ofi = ofi_of(backend);
    struct fid *fids[] = {ofi->cq ? &ofi->cq->fid : NULL};

    if (!ofi->ep)
        return true; /* nothing happens until the endpoint is opened again */
    return ofi->unposted_count == 0 && fi_trywait(ofi->fabric, fids, 1) == 0;
}

/* The receive of a completion's context, NULL for an operation's. */
static struct receive *
receive_of(const struct ofi *ofi, void *context)
{
    uintptr_t at = (uintptr_t)context - (uintptr_t)ofi->receives;

    return at < RECEIVE_COUNT * sizeof *ofi->receives ? context : NULL;
}

static void
completion(struct ofi *ofi, void *context, cairn_err err)
{
    struct receive *receive = receive_of(ofi, context);

    if (!context)
        return;
    if (!receive) {
        ofi->events.done(ofi->events.context, context, err);
        return;
    }
    receive_post(ofi, (uint32_t)(receive - ofi->receives));
}

static void
completion_error(struct ofi *ofi)
{
    struct fi_cq_err_entry entry = {0};
    ssize_t got = fi_cq_readerr(ofi->cq, &entry, 0);

    if (got <= 0)
        return;
    CAIRN_LOG_AT(DEBUG, "transport: completion error code=%d text=\"%s\" provider_code=%d",
                 entry.err, ofi->library.strerror(abs(entry.err)), entry.prov_errno);
    completion(ofi, entry.op_context, CAIRN_PEER);
}

static bool
ofi_progress(struct cairn_backend *backend)
{
    struct ofi *ofi = ofi_of(backend);
    struct fi_cq_msg_entry entries[READ_COUNT];

    if (!ofi->ep)
        return false;
    if (ofi->unposted_count)
        receives_post(ofi);
    for (int round = 0; round < READ_ROUNDS; round++) {
        ssize_t count = fi_cq_read(ofi->cq, entries, READ_COUNT);

        if (count == -FI_EAVAIL) {
            completion_error(ofi);
            continue;
        }
        if (count <= 0)
            return false;
        for (ssize_t i = 0; i < count; i++)
            completion(ofi, entries[i].op_context, CAIRN_OK);
    }
    return true;
}

static cairn_err
ofi_send(struct cairn_backend *backend, uint32_t node, const void *bytes, size_t bytes_len,
         struct cairn_backend_part *part)
{
    struct ofi *ofi = ofi_of(backend);
    ssize_t code;

    if (!ofi->ep || ofi->peers[node] == FI_ADDR_UNSPEC)
        return CAIRN_AGAIN;
    code = fi_send(ofi->ep, bytes, bytes_len, NULL, ofi->peers[node], part);
    return code ? translate(code) : CAIRN_OK;
}

static cairn_err
ofi_write(struct cairn_backend *backend, uint32_t node, const void *bytes, size_t bytes_len,
          struct cairn_backend_remote remote, struct cairn_backend_part *part)
{
    struct ofi *ofi = ofi_of(backend);
    struct iovec local;
    struct fi_rma_iov target = {.addr = remote.address, .len = bytes_len, .key = remote.key};
    struct fi_msg_rma message = {
        .msg_iov = &local, .iov_count = 1, .rma_iov = &target, .rma_iov_count = 1, .context = part};
    ssize_t code;

    if (!ofi->ep || ofi->peers[node] == FI_ADDR_UNSPEC)
        return CAIRN_AGAIN;
    memcpy(&local.iov_base, &bytes, sizeof bytes); /* the interface is not const, the bytes are */
    local.iov_len = bytes_len;
    message.addr = ofi->peers[node];
    /* What follows over another path must find the bytes in place. */
    code = fi_writemsg(ofi->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
    return code ? translate(code) : CAIRN_OK;
}

/*
 * Whether removing the peer would close a connection, or the beginning of one. If a connection
 * could not even be begun (no route, no port), libfabric 1.17 keeps an entry without one, and
 * crashes when that is removed (rxm_close_conn); nothing is in flight on it. The empty frame tests
 * it: it begins a connection where there is none.
 */
static bool
may_remove(struct ofi *ofi, uint32_t node)
{
    ssize_t code = fi_inject(ofi->ep, &node, 0, ofi->peers[node]);

    return code == 0 || translate(code) == CAIRN_AGAIN;
}

static cairn_err
ofi_disconnect(struct cairn_backend *backend, uint32_t node)
{
    struct ofi *ofi = ofi_of(backend);

    if (node == CAIRN_BACKEND_ALL) {
        endpoint_close(ofi);
        return endpoint_open(ofi);
    }
    if (!ofi->ep || ofi->peers[node] == FI_ADDR_UNSPEC)
        return CAIRN_OK;
    if (!backend->isolates)
        return CAIRN_AGAIN;
    if (!may_remove(ofi, node))
        return CAIRN_OK;
    if (fi_av_remove(ofi->av, &ofi->peers[node], 1, 0) != 0)
        return CAIRN_AGAIN;
    ofi->peers[node] = FI_ADDR_UNSPEC;
    return CAIRN_OK;
}

/* An unguessable key; 0 without randomness. */
static uint64_t
key_draw(struct ofi *ofi)
{
    uint64_t key;

    if (ofi->keys_left == 0) {
        if (cairn_proof_random(ofi->keys, sizeof ofi->keys) != CAIRN_OK)
            return 0;
        ofi->keys_left = KEY_COUNT;
    }
    key = ofi->keys[--ofi->keys_left];
    if (ofi->info->domain_attr->mr_key_size < sizeof key)
        key &= ((uint64_t)1 << (8 * ofi->info->domain_attr->mr_key_size)) - 1;
    return key ? key : 1;
}

static cairn_err
ofi_region(struct cairn_backend *backend, uint32_t index, struct cairn_backend_remote *out)
{
    struct ofi *ofi = ofi_of(backend);
    uint8_t *bytes = ofi->pool + (size_t)index * CAIRN_BULK_BYTES_MAX;
    uint64_t key;
    int code;

    if (ofi->regions[index]) {
        fi_close(&ofi->regions[index]->fid);
        ofi->regions[index] = NULL;
    }
    if (!out)
        return CAIRN_OK;
    key = ofi->ep ? key_draw(ofi) : 0;
    if (key == 0)
        return CAIRN_IO;
    code = fi_mr_reg(ofi->domain, bytes, CAIRN_BULK_BYTES_MAX, FI_REMOTE_WRITE, 0, key, 0,
                     &ofi->regions[index], NULL);
    if (code == 0 && (ofi->info->domain_attr->mr_mode & FI_MR_ENDPOINT)) {
        code = fi_mr_bind(ofi->regions[index], &ofi->ep->fid, 0);
        if (code == 0)
            code = fi_mr_enable(ofi->regions[index]);
    }
    if (code) {
        CAIRN_LOG_AT(WARN, "transport: cannot open a receive buffer for writing: %s",
                     ofi->library.strerror(-code));
        return code == -FI_ENOMEM ? CAIRN_NOMEM : CAIRN_IO;
    }
    out->key = fi_mr_key(ofi->regions[index]);
    out->address = ofi->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)bytes : 0;
    return CAIRN_OK;
}

static cairn_err
ofi_endpoint(struct cairn_backend *backend, uint8_t out[CAIRN_BACKEND_NAME_BYTES], size_t *out_len)
{
    struct ofi *ofi = ofi_of(backend);
    size_t len = CAIRN_BACKEND_NAME_BYTES;

    if (!ofi->ep || fi_getname(&ofi->ep->fid, out, &len) != 0)
        return CAIRN_AGAIN;
    *out_len = len;
    return CAIRN_OK;
}

static cairn_err
ofi_reach(struct cairn_backend *backend, uint32_t node, const uint8_t *name, size_t name_len)
{
    struct ofi *ofi = ofi_of(backend);
    uint8_t own[CAIRN_BACKEND_NAME_BYTES];
    size_t own_len;

    if (!ofi->ep || ofi_endpoint(backend, own, &own_len) != CAIRN_OK)
        return CAIRN_AGAIN;
    if (name_len != own_len && ofi->info->addr_format != FI_ADDR_STR)
        return CAIRN_PEER;
    if (ofi->info->addr_format == FI_ADDR_STR && name[name_len - 1] != 0)
        return CAIRN_PEER;
    return fi_av_insert(ofi->av, name, 1, &ofi->peers[node], 0, NULL) == 1 ? CAIRN_OK : CAIRN_PEER;
}

static const struct cairn_transport_ops ofi_ops = {
    .name = "ofi",
    .close = ofi_close,
    .fd = ofi_fd,
    .may_sleep = ofi_may_sleep,
    .progress = ofi_progress,
    .send = ofi_send,
    .write = ofi_write,
    .disconnect = ofi_disconnect,
    .region = ofi_region,
    .endpoint = ofi_endpoint,
    .reach = ofi_reach,
};

/*
 * libfabric reads its settings when it is loaded, and at its first call. The trainer's (for NCCL's
 * network, say) are not ours: they would print to our stderr or hide the requested provider.
 */
static void
environment_set(void)
{
    static bool done;

    if (done)
        return;
    done = true;
    unsetenv("FI_LOG_LEVEL");
    unsetenv("FI_PROVIDER");
    setenv("FI_AV_REMOVE_CLEANUP", "1", 1);     /* see the top */
    setenv("FI_OFI_RXM_MSG_RX_SIZE", "512", 1); /* its own 4096 buffers of 16 KiB would be 64 MiB
                                                * for messages that are dropped */
    /* Looks for connections at every poll: by default once in 10 ms, and none may sleep before. */
    setenv("FI_OFI_RXM_CM_PROGRESS_INTERVAL", "0", 1);
}

static cairn_err
memory_make(struct ofi *ofi, const char *bind_address)
{
    ofi->peers = malloc(ofi->node_count * sizeof *ofi->peers);
    ofi->regions = calloc(ofi->buffer_count, sizeof(struct fid_mr *));
    ofi->receives = calloc(RECEIVE_COUNT, sizeof *ofi->receives);
    ofi->unposted = calloc(RECEIVE_COUNT, sizeof *ofi->unposted);
    ofi->bind_address = strdup(bind_address);
    if (!ofi->peers || !ofi->regions || !ofi->receives || !ofi->unposted || !ofi->bind_address)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < ofi->node_count; i++)
        ofi->peers[i] = FI_ADDR_UNSPEC;
    return CAIRN_OK;
}

cairn_err
cairn_backend_ofi_open(const struct cairn_backend_options *options, struct cairn_backend **out)
{
    const struct cairn_transport_options *transport = options->transport;
    struct ofi *ofi = calloc(1, sizeof *ofi);
    cairn_err err = CAIRN_NOMEM;

    if (!ofi)
        return err;
    ofi->backend.ops = &ofi_ops;
    ofi->events = options->events;
    ofi->node_count = transport->node_count;
    ofi->pool = options->pool;
    ofi->buffer_count = options->buffer_count;
    ofi->operation_count = options->operation_count;
    ofi->fd = epoll_create1(EPOLL_CLOEXEC);
    if (ofi->fd < 0)
        goto done;
    err = memory_make(ofi, transport->bind_address);
    if (err)
        goto done;
    err = cairn_address_parse(transport->bind_address, &ofi->own);
    if (err)
        goto done;
    environment_set();
    err = cairn_fabric_open(NULL, &ofi->library);
    if (err)
        goto done;
    err = info_find(ofi, transport);
    if (err)
        goto done;
    ofi->backend.isolates = strstr(ofi->info->fabric_attr->prov_name, "ofi_rxm") != NULL;
    err = endpoint_open(ofi);
    if (err)
        goto done;
    *out = &ofi->backend;
    ofi = NULL;
done:
    if (ofi)
        ofi_close(&ofi->backend);
    return err;
}
