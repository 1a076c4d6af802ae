/* transport/sink.c - see sink.h. */
#include "transport/sink.h"

#include "base/assert.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/sock_diag.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    QUEUE = 8,            /* of the sink: after one connection more the kernel drops */
    RECEIVE_BYTES = 4096, /* that a connection in its queue may hold */
    LISTENER = 0,         /* what the program answers: the index in the group */
    SINK = 1,
    V4_SOURCE_AT = 12, /* in the packet's header: RFC 791, RFC 8200 */
    V6_SOURCE_AT = 8,
    V4_FIRST = 0x45, /* version 4, a header of 20 bytes: no options */
    V4_PORT_AT = 20,
    V6_NEXT_AT = 6,
    V6_PORT_AT = 40,
    PORTS_CODE = 6, /* instructions for one set of ports */
    WORDS = 4,      /* of an IPv6 address */
    CODE_MAX =
        20 + 2 * CAIRN_SINK_PORTS_MAX * PORTS_CODE + CAIRN_SINK_ADDRESSES_MAX * (2 * WORDS + 1)
};

struct program {
    struct sock_filter code[CODE_MAX];
    unsigned short count;
};

static void
emit(struct program *program, struct sock_filter instruction)
{
    CAIRN_ASSERT(program->count < CODE_MAX);
    program->code[program->count++] = instruction;
}

/* Loads bytes of the packet's IP header. */
static struct sock_filter
load(uint16_t size, uint32_t at)
{
    return (struct sock_filter)BPF_STMT(BPF_LD | BPF_ABS | size, (uint32_t)SKF_NET_OFF + at);
}

/* Goes on with the next instruction if the loaded number is k, else jumps over `skipped`. */
static struct sock_filter
unless(uint32_t k, uint32_t skipped)
{
    return (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, k, 0, (uint8_t)skipped);
}

static uint32_t
word_of(const struct in6_addr *address, uint32_t i)
{
    uint32_t word;

    memcpy(&word, address->s6_addr + sizeof word * i, sizeof word);
    return ntohl(word);
}

/* Answers LISTENER for packets from a spared port, if the byte at `plain_at` is `plain`: then TCP's
 * header begins at port_at. */
static void
match_ports(struct program *program, const struct cairn_sink *sink, uint32_t plain_at,
            uint32_t plain, uint32_t port_at)
{
    emit(program, load(BPF_B, plain_at));
    emit(program, unless(plain, PORTS_CODE * sink->ports_count));
    for (uint32_t i = 0; i < sink->ports_count; i++) {
        const struct cairn_ports *ports = &sink->ports[i];

        emit(program, load(BPF_H, port_at));
        emit(program, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_MUL | BPF_K, ports->factor));
        emit(program, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_ADD | BPF_K, ports->shift));
        emit(program, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, UINT16_MAX));
        emit(program,
             (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, CAIRN_PORTS_COUNT, 1, 0));
        emit(program, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, LISTENER));
    }
}

/* Answers SINK for packets of this IP version from one of the addresses. */
static void
match_v4(struct program *program, const struct in6_addr addresses[], uint32_t count)
{
    emit(program, load(BPF_W, V4_SOURCE_AT));
    for (uint32_t i = 0; i < count; i++)
        if (IN6_IS_ADDR_V4MAPPED(&addresses[i])) {
            emit(program, unless(word_of(&addresses[i], WORDS - 1), 1));
            emit(program, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SINK));
        }
    emit(program, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, LISTENER));
}

static void
match_v6(struct program *program, const struct in6_addr addresses[], uint32_t count)
{
    for (uint32_t word = 0; word < WORDS; word++) {
        emit(program, load(BPF_W, V6_SOURCE_AT + 4 * word));
        emit(program, (struct sock_filter)BPF_STMT(BPF_ST, word));
    }
    for (uint32_t i = 0; i < count; i++) {
        if (IN6_IS_ADDR_V4MAPPED(&addresses[i]))
            continue;
        for (uint32_t word = 0; word < WORDS; word++) {
            emit(program, (struct sock_filter)BPF_STMT(BPF_LD | BPF_MEM, word));
            emit(program, unless(word_of(&addresses[i], word), 2 * (WORDS - 1 - word) + 1));
        }
        emit(program, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SINK));
    }
    emit(program, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, LISTENER));
}

static bool
attach(const struct cairn_sink *sink, const struct in6_addr addresses[], uint32_t count)
{
    struct program program = {.count = 0};
    struct sock_fprog what = {.filter = program.code};
    uint32_t v4;

    emit(&program, load(BPF_B, 0));
    emit(&program, (struct sock_filter)BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4));
    v4 = program.count;
    emit(&program, unless(4, 0));
    match_ports(&program, sink, 0, V4_FIRST, V4_PORT_AT);
    match_v4(&program, addresses, count);
    program.code[v4].jf = (uint8_t)(program.count - v4 - 1);
    match_ports(&program, sink, V6_NEXT_AT, IPPROTO_TCP, V6_PORT_AT);
    match_v6(&program, addresses, count);
    what.len = program.count;
    return setsockopt(sink->listener, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &what, sizeof what) ==
           0;
}

void
cairn_sink_init(struct cairn_sink *sink, int listener)
{
    int one = 1, zero = 0;

    *sink = (struct cairn_sink){.listener = listener, .fd = -1};
    if (setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) == 0 &&
        attach(sink, NULL, 0))
        return;
    sink->code = errno;
    (void)setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &zero, sizeof zero);
}

void
cairn_sink_spare(struct cairn_sink *sink, const struct cairn_ports ports[], uint32_t count)
{
    CAIRN_ASSERT(count <= CAIRN_SINK_PORTS_MAX);
    memcpy(sink->ports, ports, count * sizeof *ports);
    sink->ports_count = count;
}

/* Nothing goes to the sink before a program sends it there. */
static int
sink_open(const struct cairn_sink *sink)
{
    struct sockaddr_storage address;
    socklen_t address_len = sizeof address;
    int one = 1, bytes = RECEIVE_BYTES, fd, code;

    if (getsockname(sink->listener, (struct sockaddr *)&address, &address_len) != 0)
        return -1;
    fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) == 0 &&
        bind(fd, (const struct sockaddr *)&address, address_len) == 0 && listen(fd, QUEUE) == 0)
        return fd;
    code = errno;
    close(fd);
    errno = code;
    return -1;
}

/* What the kernel has dropped for the sink since it was opened. */
static uint64_t
dropped_now(const struct cairn_sink *sink)
{
    uint32_t numbers[SK_MEMINFO_VARS] = {0};
    socklen_t bytes = sizeof numbers;

    if (sink->fd < 0 || getsockopt(sink->fd, SOL_SOCKET, SO_MEMINFO, numbers, &bytes) != 0)
        return 0;
    return numbers[SK_MEMINFO_DROPS];
}

uint64_t
cairn_sink_dropped(const struct cairn_sink *sink)
{
    return sink->dropped + dropped_now(sink);
}

void
cairn_sink_close(struct cairn_sink *sink)
{
    if (sink->fd < 0)
        return;
    sink->dropped += dropped_now(sink);
    close(sink->fd);
    sink->fd = -1;
}

cairn_err
cairn_sink_set(struct cairn_sink *sink, const struct in6_addr addresses[], uint32_t count)
{
    int code = sink->code;

    CAIRN_ASSERT(count <= CAIRN_SINK_ADDRESSES_MAX);
    if (!code && count && sink->fd < 0 && (sink->fd = sink_open(sink)) < 0)
        code = errno;
    if (!code && !attach(sink, addresses, count))
        code = errno;
    if (code || count == 0)
        cairn_sink_close(sink);
    if (!code)
        return CAIRN_OK;
    if (!sink->logged)
        CAIRN_LOG_AT(WARN,
                     "transport: the kernel cannot drop connections of ignored addresses: %s; this "
                     "agent closes them itself, which costs it more",
                     strerror(code));
    sink->logged = true;
    return CAIRN_IO;
}
