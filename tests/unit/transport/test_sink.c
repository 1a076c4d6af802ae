/* The kernel drops connections from some addresses, and from no others. */
#include "transport/sink.h"
#include "base/log.h"
#include "tests/support/cmocka.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CALLS = 20, ANSWER_MS = 2000, SILENCE_MS = 10, QUEUED_MAX = 16, PORT_MIN = 1024 };

static struct cairn_sink sink;
static int listener = -1;
static uint16_t port;
static const struct cairn_ports *call_ports; /* from which calls are; NULL: any port */

static struct in6_addr
ip(const char *text)
{
    char mapped[INET6_ADDRSTRLEN];
    struct in6_addr out;

    snprintf(mapped, sizeof mapped, "%s%s", strchr(text, ':') ? "" : "::ffff:", text);
    assert_int_equal(inet_pton(AF_INET6, mapped, &out), 1);
    return out;
}

static socklen_t
address_make(const char *text, uint16_t at_port, struct sockaddr_storage *out)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(at_port)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(at_port)};
    bool is_v6 = strchr(text, ':') != NULL;

    assert_int_equal(inet_pton(is_v6 ? AF_INET6 : AF_INET, text,
                               is_v6 ? (void *)&v6.sin6_addr : (void *)&v4.sin_addr),
                     1);
    memset(out, 0, sizeof *out);
    if (is_v6)
        memcpy(out, &v6, sizeof v6);
    else
        memcpy(out, &v4, sizeof v4);
    return is_v6 ? sizeof v6 : sizeof v4;
}

/* Binds to the address, and to one of the ports that the calls are from. */
static void
bind_call(int fd, const char *from)
{
    static uint32_t place;
    struct sockaddr_storage own;
    socklen_t own_len = address_make(from, 0, &own);
    int code = -1;

    if (!call_ports)
        code = bind(fd, (const struct sockaddr *)&own, own_len);
    for (uint32_t i = 0; code != 0 && call_ports && i < CAIRN_PORTS_COUNT; i++) {
        uint16_t own_port = cairn_ports_at(call_ports, place++ % CAIRN_PORTS_COUNT);

        address_make(from, own_port, &own);
        if (own_port >= PORT_MIN)
            code = bind(fd, (const struct sockaddr *)&own, own_len);
    }
    assert_int_equal(code, 0);
}

/* A socket that calls the listener from an address. */
static int
call(const char *from, const char *to)
{
    struct sockaddr_storage other;
    socklen_t other_len = address_make(to, port, &other);
    int fd = socket(other.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_true(fd >= 0);
    bind_call(fd, from);
    (void)!connect(fd, (const struct sockaddr *)&other, other_len);
    return fd;
}

static uint16_t
port_of(const struct sockaddr_storage *address)
{
    return ntohs(address->ss_family == AF_INET6
                     ? ((const struct sockaddr_in6 *)(const void *)address)->sin6_port
                     : ((const struct sockaddr_in *)(const void *)address)->sin_port);
}

/* Whether a call is answered and reaches the listener. Others may: with tcp_migrate_req the kernel
 * hands over what the sink has when it is closed. */
static bool
reaches(const char *from, const char *to, int wait_ms)
{
    struct pollfd waits = {.fd = listener, .events = POLLIN};
    struct sockaddr_storage own, other;
    socklen_t own_len = sizeof own;
    int fd = call(from, to);
    bool reached = false;

    assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &own_len), 0);
    while (!reached && poll(&waits, 1, wait_ms) == 1) {
        socklen_t other_len = sizeof other;
        int accepted = accept4(listener, (struct sockaddr *)&other, &other_len, SOCK_CLOEXEC);

        assert_true(accepted >= 0);
        reached = port_of(&own) == port_of(&other);
        close(accepted);
    }
    close(fd);
    return reached;
}

static bool
hears(const char *from, const char *to)
{
    for (int i = 0; i < CALLS; i++)
        if (!reaches(from, to, ANSWER_MS))
            return false;
    return true;
}

/* No call arrives, and the kernel counts those that it dropped. */
static bool
is_deaf_to(const char *from, const char *to)
{
    uint64_t before = cairn_sink_dropped(&sink);

    for (int i = 0; i < CALLS; i++)
        if (reaches(from, to, SILENCE_MS))
            return false;
    return cairn_sink_dropped(&sink) >= before + CALLS - QUEUED_MAX;
}

static void
drop(const char *const texts[], uint32_t count)
{
    struct in6_addr addresses[CAIRN_SINK_ADDRESSES_MAX];

    for (uint32_t i = 0; i < count; i++)
        addresses[i] = ip(texts[i]);
    assert_int_equal(cairn_sink_set(&sink, addresses, count), CAIRN_OK);
}

/* Listens at an address, of IPv4 too if that is "::". Skips where the machine has none. */
static void
listen_at(const char *text)
{
    struct sockaddr_storage address;
    socklen_t address_len = address_make(text, 0, &address), len = sizeof address;
    int one = 1, zero = 0;

    listener = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener >= 0 && address.ss_family == AF_INET6)
        assert_int_equal(setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero), 0);
    if (listener >= 0)
        assert_int_equal(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    if (listener < 0 || bind(listener, (const struct sockaddr *)&address, address_len) != 0) {
        print_message("no address %s here: %s\n", text, strerror(errno));
        skip();
    }
    cairn_sink_init(&sink, listener);
    assert_int_equal(listen(listener, 64), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &len), 0);
    port =
        ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&address)->sin6_port
                                            : ((struct sockaddr_in *)(void *)&address)->sin_port);
}

static int
end(void **state)
{
    cairn_sink_close(&sink);
    if (listener >= 0)
        close(listener);
    listener = -1;
    call_ports = NULL;
    return 0;
}

static void
test_ipv4(void **state)
{
    static const char *const first[] = {"127.9.0.1"}, *const both[] = {"127.9.0.1", "127.9.0.2"};

    listen_at("127.0.0.1");
    assert_true(hears("127.9.0.1", "127.0.0.1"));
    assert_int_equal(cairn_sink_dropped(&sink), 0);
    drop(first, 1);
    assert_true(is_deaf_to("127.9.0.1", "127.0.0.1"));
    assert_true(hears("127.9.0.2", "127.0.0.1"));
    drop(both, 2);
    assert_true(is_deaf_to("127.9.0.1", "127.0.0.1"));
    assert_true(is_deaf_to("127.9.0.2", "127.0.0.1"));
    assert_true(hears("127.0.0.1", "127.0.0.1"));
    drop(both + 1, 1);
    assert_true(hears("127.9.0.1", "127.0.0.1"));
    drop(NULL, 0);
    assert_true(cairn_sink_dropped(&sink) > 2 * (CALLS - QUEUED_MAX));
    for (int i = 1; i < CALLS; i++) /* often: a second listener would get its share */
        assert_true(hears("127.9.0.2", "127.0.0.1"));
    drop(first, 1); /* again */
    assert_true(is_deaf_to("127.9.0.1", "127.0.0.1"));
}

static void
test_ipv6(void **state)
{
    static const char *const others[] = {"::2", "1::1", "0:1::1", "0:0:0:1::1", "127.0.0.1"},
                             *const own[] = {"::2", "::1", "1::1"};

    listen_at("::1");
    assert_true(hears("::1", "::1"));
    drop(others, 5);
    assert_true(hears("::1", "::1"));
    drop(own, 3);
    assert_true(is_deaf_to("::1", "::1"));
    drop(NULL, 0);
    assert_true(hears("::1", "::1"));
}

/* A socket for both: IPv4 comes in packets of IPv4, and the addresses are mapped. */
static void
test_both(void **state)
{
    static const char *const v4[] = {"127.9.0.1", "::2"}, *const v6[] = {"127.9.0.2", "::1"};

    listen_at("::");
    drop(v4, 2);
    assert_true(is_deaf_to("127.9.0.1", "127.0.0.1"));
    assert_true(hears("127.9.0.2", "127.0.0.1"));
    assert_true(hears("::1", "::1"));
    drop(v6, 2);
    assert_true(hears("127.9.0.1", "127.0.0.1"));
    assert_true(is_deaf_to("127.9.0.2", "127.0.0.1"));
    assert_true(is_deaf_to("::1", "::1"));
}

/* As many addresses as the list holds, of either kind; the first and the last count. */
static void
test_most_addresses(void **state)
{
    struct in6_addr addresses[CAIRN_SINK_ADDRESSES_MAX];
    char text[INET6_ADDRSTRLEN];

    listen_at("127.0.0.1");
    for (uint32_t i = 0; i < CAIRN_SINK_ADDRESSES_MAX; i++) {
        snprintf(text, sizeof text, "127.9.1.%u", i);
        addresses[i] = ip(text);
    }
    assert_int_equal(cairn_sink_set(&sink, addresses, CAIRN_SINK_ADDRESSES_MAX), CAIRN_OK);
    assert_true(is_deaf_to("127.9.1.0", "127.0.0.1"));
    assert_true(is_deaf_to(text, "127.0.0.1"));
    assert_true(hears("127.9.0.1", "127.0.0.1"));
    end(state);
    listen_at("::1");
    for (uint32_t i = 0; i < CAIRN_SINK_ADDRESSES_MAX; i++) {
        snprintf(text, sizeof text, "2001:db8::%x", 0xffff - i);
        addresses[i] = ip(text);
    }
    assert_int_equal(cairn_sink_set(&sink, addresses, CAIRN_SINK_ADDRESSES_MAX), CAIRN_OK);
    assert_true(hears("::1", "::1"));
    addresses[CAIRN_SINK_ADDRESSES_MAX - 1] = ip("::1");
    assert_int_equal(cairn_sink_set(&sink, addresses, CAIRN_SINK_ADDRESSES_MAX), CAIRN_OK);
    assert_true(is_deaf_to("::1", "::1"));
}

static void
one_address(const char *address, const struct cairn_ports ports[CAIRN_SINK_PORTS_MAX + 1])
{
    listen_at(address);
    for (uint32_t count = 0; count <= CAIRN_SINK_PORTS_MAX; count++) {
        cairn_sink_spare(&sink, ports, count);
        drop(&address, 1);
        for (uint32_t i = 0; i <= CAIRN_SINK_PORTS_MAX; i++) {
            call_ports = &ports[i];
            assert_true(i < count ? hears(address, address) : is_deaf_to(address, address));
        }
    }
    drop(NULL, 0);
    assert_true(hears(address, address));
    end(NULL);
}

/* Calls from spared ports are heard, of an address that is not. The sets share no port. */
static void
test_spared_ports(void **state)
{
    const struct cairn_ports ports[] = {{.factor = 1, .shift = 0x8000},
                                        {.factor = 1, .shift = 0x7000},
                                        {.factor = 1, .shift = 0x6000}};

    one_address("127.0.0.1", ports);
    one_address("::1", ports);
}

/* The port stays taken: another agent does not find it free. */
static void
test_port_is_taken(void **state)
{
    static const char *const first[] = {"127.9.0.1"};
    struct sockaddr_storage address;
    socklen_t len;
    int one = 1;

    listen_at("127.0.0.1");
    len = address_make("127.0.0.1", port, &address);
    for (int round = 0; round < 2; round++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
        assert_int_equal(bind(fd, (const struct sockaddr *)&address, len), -1);
        assert_int_equal(errno, EADDRINUSE);
        close(fd);
        drop(first, 1);
    }
}

static uint32_t lines;

static void
line_count(void *context, enum cairn_log_level level, const char *line)
{
    lines += strstr(line, "cannot drop connections") != NULL;
}

/* A kernel that cannot: that is logged once, and all are heard. A Unix socket takes no such
 * program. */
static void
test_kernel_cannot(void **state)
{
    struct in6_addr address = ip("127.9.0.1");
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    cairn_log_setup(CAIRN_LOG_WARN, line_count, NULL);
    cairn_sink_init(&sink, fds[0]);
    assert_int_equal(lines, 0); /* it may never be needed */
    for (int i = 0; i < 3; i++)
        assert_int_equal(cairn_sink_set(&sink, &address, 1), CAIRN_IO);
    assert_int_equal(lines, 1);
    assert_int_equal(sink.fd, -1);
    assert_int_equal(cairn_sink_dropped(&sink), 0);
    close(fds[0]);
    close(fds[1]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_ipv4, end),
        cmocka_unit_test_teardown(test_ipv6, end),
        cmocka_unit_test_teardown(test_both, end),
        cmocka_unit_test_teardown(test_most_addresses, end),
        cmocka_unit_test_teardown(test_spared_ports, end),
        cmocka_unit_test_teardown(test_port_is_taken, end),
        cmocka_unit_test_teardown(test_kernel_cannot, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
