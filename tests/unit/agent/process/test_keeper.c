/*
 * tests/unit/agent/process/test_keeper.c - the keeper, as real processes: this program is also the
 * keeper's executable, when its first argument is "keeper".
 */
#include "agent/process/keeper.h"
#include "agent/process/keeper_packet.h"
#include "base/clock.h"
#include "tests/support/cmocka.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMEOUT_MS = 60000, ITEMS = 150, ITEM_BYTES = 70001, OTHER_USER = 65534 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static char executable[512];

struct place {
    char dir[32];
    char path[96];
};

static uint64_t
now_ms(void)
{
    struct cairn_clock clock = cairn_clock_system();

    return cairn_clock_now_ns(&clock) / CAIRN_NS_PER_MS;
}

static bool
exists(const char *path)
{
    struct stat status;

    return lstat(path, &status) == 0;
}

/* Waits until a path is gone. */
static void
await_gone(const char *path)
{
    uint64_t deadline = now_ms() + TIMEOUT_MS;

    while (exists(path)) {
        if (now_ms() > deadline)
            fail_msg("%s is still there", path);
        usleep(5000);
    }
}

static bool
spawn(const struct place *place, uint32_t linger_s)
{
    bool started = false;

    assert_int_equal(cairn_keeper_spawn(executable, place->path, linger_s, TIMEOUT_MS, &started),
                     CAIRN_OK);
    return started;
}

static struct cairn_keeper *
attach(const struct place *place)
{
    struct cairn_keeper *keeper = NULL;

    assert_int_equal(cairn_keeper_connect(place->path, TIMEOUT_MS, &keeper), CAIRN_OK);
    return keeper;
}

static void
make_place(struct place *place)
{
    /* cppcheck-suppress ctuuninitvar ; this function fills it */
    snprintf(place->dir, sizeof place->dir, "/tmp/cairn-keeper-XXXXXX");
    assert_non_null(mkdtemp(place->dir));
    snprintf(place->path, sizeof place->path, "%s/keeper.sock", place->dir);
}

/* Ends the keeper and checks that it leaves nothing behind. */
static void
end_place(const struct place *place)
{
    struct cairn_keeper *keeper = attach(place);

    assert_int_equal(cairn_keeper_shutdown(keeper), CAIRN_OK);
    cairn_keeper_close(keeper);
    await_gone(place->path);
    for (uint64_t deadline = now_ms() + TIMEOUT_MS; rmdir(place->dir);) {
        if (errno != ENOTEMPTY || now_ms() > deadline)
            fail_msg("%s is not empty", place->dir);
        usleep(5000);
    }
}

/* A connection below the client's calls. */
static int
connect_raw(const struct place *place)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", place->path);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

static pid_t
keeper_pid(const struct place *place)
{
    struct ucred peer;
    socklen_t peer_bytes = sizeof peer;
    int fd = connect_raw(place);

    assert_true(fd >= 0);
    assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes), 0);
    close(fd);
    return peer.pid;
}

static uint32_t
count_fds(pid_t pid)
{
    char path[64];
    uint32_t count = 0;

    for (int fd = 0; fd < 4096; fd++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
        count += exists(path);
    }
    return count;
}

/* The pattern of an item depends on its number, so that a mix-up shows. */
static void
fill(uint8_t *bytes, size_t bytes_len, uint32_t number)
{
    uint32_t word = number * 2654435761u + 1;

    for (size_t i = 0; i < bytes_len; i++) {
        word = word * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(word >> 24);
    }
}

static void
name_item(uint32_t number, char name[32])
{
    snprintf(name, 32, "arena-%05u", number);
}

static int
make_memfd(uint32_t number, size_t bytes_len)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    uint8_t *bytes;

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes_len), 0);
    bytes = mmap(NULL, bytes_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(bytes, MAP_FAILED);
    fill(bytes, bytes_len, number);
    munmap(bytes, bytes_len);
    return fd;
}

static void
put_items(const struct place *place, uint32_t count)
{
    struct cairn_keeper *keeper = attach(place);

    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = (i * 7919u) % count; /* not in the order of names */
        int fd = make_memfd(number, ITEM_BYTES + number);
        char name[32];

        name_item(number, name);
        assert_int_equal(cairn_keeper_put(keeper, name, fd, ITEM_BYTES + number), CAIRN_OK);
        close(fd);
    }
    cairn_keeper_close(keeper);
}

static void
check_items(const struct place *place, uint32_t count)
{
    struct cairn_keeper *keeper = attach(place);
    struct cairn_keeper_item *items = NULL;
    uint32_t got = 0;

    assert_int_equal(cairn_keeper_get(keeper, &items, &got), CAIRN_OK);
    assert_int_equal(got, count);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t expected[ITEM_BYTES + ITEMS], held[ITEM_BYTES + ITEMS + 1];
        char name[32];

        name_item(i, name);
        assert_string_equal(items[i].name, name);
        assert_int_equal(items[i].bytes, ITEM_BYTES + i);
        assert_int_equal(fcntl(items[i].fd, F_GETFD), FD_CLOEXEC);
        fill(expected, ITEM_BYTES + i, i);
        assert_int_equal(pread(items[i].fd, held, sizeof held, 0), ITEM_BYTES + i);
        assert_memory_equal(held, expected, ITEM_BYTES + i);
    }
    cairn_keeper_items_free(items, got);
    cairn_keeper_close(keeper);
}

/* Runs a client in a process (and process group) of its own that then waits to be killed. */
static pid_t
start_client(void (*work)(const struct place *), const struct place *place)
{
    int ready[2];
    pid_t child;
    char byte;

    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        work(place);
        if (write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1); /* else the client failed */
    close(ready[0]);
    return child;
}

/* ---- tests ---- */

static void
put_all(const struct place *place)
{
    put_items(place, ITEMS);
}

static void
memory_outlives_a_killed_client(void **state)
{
    struct place place;
    pid_t client;

    make_place(&place);
    assert_true(spawn(&place, 60));
    client = start_client(put_all, &place);
    kill(client, SIGKILL);
    waitpid(client, NULL, 0);
    check_items(&place, ITEMS);
    check_items(&place, ITEMS); /* taking them out leaves them there */
    end_place(&place);
}

static void
spawn_and_put_all(const struct place *place)
{
    if (!spawn(place, 60))
        _exit(1);
    put_items(place, ITEMS);
}

static void
memory_outlives_the_group_of_the_one_who_spawned(void **state)
{
    struct place place;
    pid_t client;

    make_place(&place);
    client = start_client(spawn_and_put_all, &place);
    assert_int_equal(kill(-client, SIGKILL), 0);
    waitpid(client, NULL, 0);
    check_items(&place, ITEMS);
    end_place(&place);
}

static void
keeper_is_detached_and_small(void **state)
{
    struct place place;
    char path[64], target[256], line[256];
    int held[2];
    struct pollfd poll_fd;
    unsigned long dirty_kib = 0;
    pid_t pid;
    FILE *file;

    make_place(&place);
    assert_int_equal(pipe(held), 0); /* inheritable: the keeper must not hold it open */
    assert_true(spawn(&place, 60));
    close(held[1]);
    poll_fd = (struct pollfd){.fd = held[0], .events = POLLIN};
    assert_int_equal(poll(&poll_fd, 1, TIMEOUT_MS), 1);
    assert_int_equal(read(held[0], target, 1), 0);
    close(held[0]);
    pid = keeper_pid(&place);
    assert_int_equal(getsid(pid), pid);
    assert_int_equal(getpgid(pid), pid);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), -1); /* not our child */
    for (int fd = 0; fd <= 2; fd++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
        memset(target, 0, sizeof target);
        assert_true(readlink(path, target, sizeof target - 1) > 0);
        assert_string_equal(target, "/dev/null");
    }
    snprintf(path, sizeof path, "/proc/%d/cwd", pid);
    memset(target, 0, sizeof target);
    assert_true(readlink(path, target, sizeof target - 1) > 0);
    assert_string_equal(target, "/");
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pid);
    file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "Private_Dirty: %lu", &dirty_kib) == 1)
            break;
    fclose(file);
    print_message("keeper private_dirty_kib=%lu fds=%u\n", dirty_kib, count_fds(pid));
    assert_true(dirty_kib > 0);
    if (!SANITIZED)
        assert_true(dirty_kib < 4096);
    end_place(&place);
}

static void
signals_of_a_terminal_do_not_end_it_and_sigterm_does(void **state)
{
    static const int ignored[] = {SIGINT, SIGHUP, SIGQUIT, SIGPIPE};
    struct place place;
    struct cairn_keeper *keeper;
    pid_t pid;

    make_place(&place);
    assert_true(spawn(&place, 0));
    pid = keeper_pid(&place);
    keeper = attach(&place);
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        assert_int_equal(kill(pid, ignored[i]), 0);
    assert_int_equal(cairn_keeper_ping(keeper), CAIRN_OK);
    assert_int_equal(kill(pid, SIGTERM), 0);
    await_gone(place.path);
    assert_int_equal(cairn_keeper_ping(keeper), CAIRN_PEER);
    assert_int_equal(cairn_keeper_connect(place.path, 100, &keeper), CAIRN_PEER);
    cairn_keeper_close(keeper);
    for (uint64_t deadline = now_ms() + TIMEOUT_MS; rmdir(place.dir);) {
        assert_true(errno == ENOTEMPTY && now_ms() < deadline);
        usleep(5000);
    }
}

static void
items_are_named_once_and_checked(void **state)
{
    struct cairn_keeper_item *items = (struct cairn_keeper_item *)1;
    struct cairn_keeper *keeper;
    struct place place;
    char long_name[CAIRN_KEEPER_NAME_BYTES_MAX + 1];
    int one, two, pipe_fds[2];
    uint32_t count = 7;

    make_place(&place);
    assert_true(spawn(&place, 60));
    keeper = attach(&place);
    assert_int_equal(cairn_keeper_get(keeper, &items, &count), CAIRN_OK);
    assert_null(items);
    assert_int_equal(count, 0);
    one = make_memfd(1, 4096);
    two = make_memfd(2, 4096);
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    memset(long_name, 'n', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    assert_int_equal(cairn_keeper_put(keeper, "", one, 4096), CAIRN_INVAL);
    assert_int_equal(cairn_keeper_put(keeper, long_name, one, 4096), CAIRN_INVAL);
    assert_int_equal(cairn_keeper_put(keeper, "a", one, 4095), CAIRN_INVAL);
    assert_int_equal(cairn_keeper_put(keeper, "a", one, 4097), CAIRN_INVAL);
    assert_int_equal(cairn_keeper_put(keeper, "a", pipe_fds[0], 0), CAIRN_INVAL);
    assert_int_equal(cairn_keeper_put(keeper, long_name + 1, one, 4096), CAIRN_OK);
    assert_int_equal(cairn_keeper_put(keeper, "a", one, 4096), CAIRN_OK);
    assert_int_equal(cairn_keeper_put(keeper, "a", one, 4096), CAIRN_OK);
    assert_int_equal(cairn_keeper_put(keeper, "a", two, 4096), CAIRN_INVAL);
    assert_int_equal(cairn_keeper_drop(keeper, "b"), CAIRN_NOT_FOUND);
    assert_int_equal(cairn_keeper_list(keeper, &items, &count), CAIRN_OK);
    assert_int_equal(count, 2);
    assert_string_equal(items[0].name, "a");
    assert_string_equal(items[1].name, long_name + 1);
    assert_int_equal(items[0].bytes, 4096);
    assert_int_equal(items[0].fd, -1);
    cairn_keeper_items_free(items, count);
    assert_int_equal(cairn_keeper_drop(keeper, "a"), CAIRN_OK);
    assert_int_equal(cairn_keeper_put(keeper, "a", two, 4096), CAIRN_OK);
    close(one);
    close(two);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    cairn_keeper_close(keeper);
    cairn_keeper_close(NULL);
    end_place(&place);
}

static void
full_table_says_so(void **state)
{
    struct cairn_keeper_item *items = NULL;
    struct cairn_keeper *keeper;
    struct place place;
    uint32_t count = 0;
    char name[32];
    int fd;

    make_place(&place);
    assert_true(spawn(&place, 60));
    keeper = attach(&place);
    fd = make_memfd(1, 4096);
    for (uint32_t i = 0; i < CAIRN_KEEPER_ITEMS_MAX; i++) {
        name_item(i, name);
        assert_int_equal(cairn_keeper_put(keeper, name, fd, 4096), CAIRN_OK);
    }
    assert_int_equal(cairn_keeper_put(keeper, "one more", fd, 4096), CAIRN_FULL);
    assert_int_equal(cairn_keeper_list(keeper, &items, &count), CAIRN_OK);
    assert_int_equal(count, CAIRN_KEEPER_ITEMS_MAX);
    cairn_keeper_items_free(items, count);
    assert_int_equal(cairn_keeper_drop(keeper, "arena-00000"), CAIRN_OK);
    assert_int_equal(cairn_keeper_put(keeper, "one more", fd, 4096), CAIRN_OK);
    close(fd);
    cairn_keeper_close(keeper);
    end_place(&place);
}

/* Sends bytes (and one descriptor, fd_count times) on a connection of their own. */
static void
send_hostile(const struct place *place, const void *bytes, size_t bytes_len, uint32_t fd_count)
{
    struct cairn_keeper_packet packet = {.bytes_len = bytes_len, .fd_count = fd_count};
    int fd = connect_raw(place);
    cairn_err err;

    assert_true(fd >= 0);
    memcpy(packet.bytes, bytes, bytes_len);
    for (uint32_t i = 0; i < fd_count; i++)
        packet.fds[i] = 0;
    err = cairn_keeper_packet_send(fd, &packet);
    assert_true(err == CAIRN_OK || err == CAIRN_PEER);
    close(fd);
}

static void
hostile_clients_do_not_hurt(void **state)
{
    uint8_t bytes[256], huge[CAIRN_KEEPER_PACKET_BYTES_MAX + 1] = {0};
    struct cairn_keeper *keeper, *other;
    struct place place;
    unsigned seed = 3;
    uint32_t fds_before;
    pid_t pid;
    int raw;

    make_place(&place);
    assert_true(spawn(&place, 60));
    put_items(&place, 3);
    keeper = attach(&place);
    pid = keeper_pid(&place);
    assert_int_equal(cairn_keeper_ping(keeper), CAIRN_OK);
    fds_before = count_fds(pid);
    for (int round = 0; round < 3000; round++) {
        struct cairn_writer writer;
        size_t length = 1 + (size_t)rand_r(&seed) % (sizeof bytes - 1);

        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)rand_r(&seed);
        cairn_writer_init(&writer, bytes, sizeof bytes);
        if (round % 4 >= 1)
            cairn_write_u32(&writer, CAIRN_KEEPER_MAGIC);
        if (round % 4 >= 2)
            cairn_write_u16(&writer, CAIRN_KEEPER_VERSION);
        if (round % 4 >= 3) {
            /* never SHUTDOWN, which would be obeyed */
            cairn_write_u16(&writer, (uint16_t)(rand_r(&seed) % 6));
            cairn_write_u32(&writer, (uint32_t)rand_r(&seed) % 64);
        }
        send_hostile(&place, bytes, length, round % 5 == 0 ? (uint32_t)rand_r(&seed) % 64 : 0);
    }
    raw = connect_raw(&place);
    assert_true(raw >= 0);
    assert_int_equal(send(raw, huge, sizeof huge, MSG_NOSIGNAL), sizeof huge);
    assert_int_equal(recv(raw, bytes, sizeof bytes, 0), 0); /* it hung up */
    close(raw);
    other = attach(&place); /* after everything before it: accepted in order */
    assert_int_equal(cairn_keeper_ping(other), CAIRN_OK);
    cairn_keeper_close(other);
    assert_int_equal(cairn_keeper_ping(keeper), CAIRN_OK);
    for (uint64_t deadline = now_ms() + TIMEOUT_MS; count_fds(pid) != fds_before;) {
        if (now_ms() > deadline)
            fail_msg("%u descriptors became %u", fds_before, count_fds(pid));
        usleep(5000);
    }
    cairn_keeper_close(keeper);
    check_items(&place, 3);
    end_place(&place);
}

static void
silent_connections_give_way_to_an_agent(void **state)
{
    struct cairn_keeper *keeper;
    struct place place;
    int silent[64];

    make_place(&place);
    assert_true(spawn(&place, 60));
    for (int i = 0; i < 64; i++) {
        silent[i] = connect_raw(&place);
        assert_true(silent[i] >= 0);
    }
    keeper = attach(&place);
    for (int i = 0; i < 64; i++)
        close(silent[i]);
    assert_int_equal(cairn_keeper_ping(keeper), CAIRN_OK);
    cairn_keeper_close(keeper);
    end_place(&place);
}

static void
other_version_is_told(void **state)
{
    struct cairn_keeper_packet packet = {0};
    struct cairn_writer writer;
    struct cairn_reader reader;
    struct place place;
    struct pollfd poll_fd;
    int raw;

    make_place(&place);
    assert_true(spawn(&place, 60));
    raw = connect_raw(&place);
    cairn_writer_init(&writer, packet.bytes, sizeof packet.bytes);
    cairn_write_u32(&writer, CAIRN_KEEPER_MAGIC);
    cairn_write_u16(&writer, CAIRN_KEEPER_VERSION + 1);
    cairn_write_u16(&writer, CAIRN_KEEPER_PING);
    packet.bytes_len = writer.used_bytes;
    assert_int_equal(cairn_keeper_packet_send(raw, &packet), CAIRN_OK);
    poll_fd = (struct pollfd){.fd = raw, .events = POLLIN};
    assert_int_equal(poll(&poll_fd, 1, TIMEOUT_MS), 1);
    assert_int_equal(cairn_keeper_packet_receive(raw, &packet), CAIRN_OK);
    cairn_reader_init(&reader, packet.bytes, packet.bytes_len);
    assert_int_equal(cairn_read_u32(&reader), CAIRN_KEEPER_MAGIC);
    assert_int_equal(cairn_read_u16(&reader), CAIRN_KEEPER_VERSION);
    assert_int_equal(cairn_read_u16(&reader), CAIRN_KEEPER_PING | CAIRN_KEEPER_REPLY);
    assert_int_equal(cairn_read_u32(&reader), CAIRN_VERSION);
    close(raw);
    end_place(&place);
}

/* What another user sees; 0 as expected, else the step that went wrong. */
static int
be_another_user(const struct place *place, bool socket_is_open)
{
    struct cairn_keeper *keeper = NULL;
    cairn_err err;

    if (setgid(OTHER_USER) || setuid(OTHER_USER))
        return 1;
    err = cairn_keeper_connect(place->path, TIMEOUT_MS, &keeper);
    if (err != CAIRN_DENIED)
        return 2;
    if (socket_is_open) {
        struct cairn_keeper_packet packet;
        struct cairn_reader reader;
        struct pollfd poll_fd = {.fd = connect_raw(place), .events = POLLIN};

        if (poll_fd.fd < 0 || poll(&poll_fd, 1, TIMEOUT_MS) != 1 ||
            cairn_keeper_packet_receive(poll_fd.fd, &packet))
            return 3;
        cairn_reader_init(&reader, packet.bytes, packet.bytes_len);
        cairn_read_u64(&reader);
        if (cairn_read_u32(&reader) != CAIRN_DENIED)
            return 4;
        if (cairn_keeper_packet_receive(poll_fd.fd, &packet) == CAIRN_OK)
            return 5;
    }
    return 0;
}

static void
another_user_is_refused(void **state)
{
    struct place place;
    struct stat status;

    if (geteuid() != 0) {
        print_message("skipped: only root can become another user\n");
        skip();
    }
    make_place(&place);
    assert_true(spawn(&place, 60));
    assert_int_equal(stat(place.path, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0600);
    assert_int_equal(chmod(place.dir, 0755), 0);
    for (int socket_is_open = 0; socket_is_open < 2; socket_is_open++) {
        pid_t child;
        int exit_status;

        if (socket_is_open)
            assert_int_equal(chmod(place.path, 0666), 0);
        child = fork();
        assert_true(child >= 0);
        if (child == 0)
            _exit(be_another_user(&place, socket_is_open));
        assert_int_equal(waitpid(child, &exit_status, 0), child);
        assert_int_equal(exit_status, 0);
    }
    put_items(&place, 1);
    end_place(&place);
}

static void
keeper_lingers_only_without_an_agent(void **state)
{
    struct cairn_keeper *keeper;
    struct place place;
    uint64_t left_ms;
    int silent;

    make_place(&place);
    assert_true(spawn(&place, 2));
    keeper = attach(&place);
    usleep(2500 * 1000);
    assert_int_equal(cairn_keeper_ping(keeper), CAIRN_OK);
    cairn_keeper_close(keeper);
    left_ms = now_ms();
    silent = connect_raw(&place); /* a silent client is not an agent */
    await_gone(place.path);
    assert_true(now_ms() - left_ms >= 1900);
    close(silent);
    for (uint64_t deadline = now_ms() + TIMEOUT_MS; rmdir(place.dir);) {
        assert_true(errno == ENOTEMPTY && now_ms() < deadline);
        usleep(5000);
    }
}

static void
second_keeper_refuses_and_stale_socket_is_replaced(void **state)
{
    struct place place;
    pid_t pid, child;
    int status;

    make_place(&place);
    assert_true(spawn(&place, 60));
    assert_false(spawn(&place, 60));
    put_items(&place, 2);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!freopen("/dev/null", "w", stdout))
            _exit(99);
        _exit((int)cairn_keeper_run(place.path, 1));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), CAIRN_AGAIN);
    check_items(&place, 2);
    pid = keeper_pid(&place);
    kill(pid, SIGKILL);
    for (uint64_t deadline = now_ms() + TIMEOUT_MS; kill(pid, 0) == 0 && now_ms() < deadline;)
        usleep(5000);
    assert_true(exists(place.path)); /* the stale socket */
    assert_true(spawn(&place, 60));
    check_items(&place, 0);
    end_place(&place);
}

static void
start_that_fails_says_why(void **state)
{
    struct place place, wrong;
    bool started = true;
    int fd;

    make_place(&place);
    assert_int_equal(cairn_keeper_spawn("/nonexistent/cairn", place.path, 1, TIMEOUT_MS, &started),
                     CAIRN_NOT_FOUND);
    assert_int_equal(cairn_keeper_spawn("/bin/true", place.path, 1, TIMEOUT_MS, &started),
                     CAIRN_PEER);
    wrong = place;
    snprintf(wrong.path, sizeof wrong.path, "%s/no/such", place.dir);
    assert_int_equal(cairn_keeper_spawn(executable, wrong.path, 1, TIMEOUT_MS, &started), CAIRN_IO);
    assert_int_equal(cairn_keeper_spawn(executable, "relative", 1, TIMEOUT_MS, &started),
                     CAIRN_INVAL);
    fd = open(place.path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    close(fd);
    assert_int_equal(cairn_keeper_spawn(executable, place.path, 1, TIMEOUT_MS, &started),
                     CAIRN_INVAL);
    assert_true(started); /* untouched */
    assert_true(exists(place.path));
    unlink(place.path);
    snprintf(wrong.path, sizeof wrong.path, "%s/keeper.sock.lock", place.dir);
    unlink(wrong.path);
    assert_int_equal(rmdir(place.dir), 0);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_outlives_a_killed_client),
        cmocka_unit_test(memory_outlives_the_group_of_the_one_who_spawned),
        cmocka_unit_test(keeper_is_detached_and_small),
        cmocka_unit_test(signals_of_a_terminal_do_not_end_it_and_sigterm_does),
        cmocka_unit_test(items_are_named_once_and_checked),
        cmocka_unit_test(full_table_says_so),
        cmocka_unit_test(hostile_clients_do_not_hurt),
        cmocka_unit_test(silent_connections_give_way_to_an_agent),
        cmocka_unit_test(other_version_is_told),
        cmocka_unit_test(another_user_is_refused),
        cmocka_unit_test(keeper_lingers_only_without_an_agent),
        cmocka_unit_test(second_keeper_refuses_and_stale_socket_is_replaced),
        cmocka_unit_test(start_that_fails_says_why),
    };

    if (argc == 4 && strcmp(argv[1], "keeper") == 0)
        return (int)cairn_keeper_run(argv[2], (uint32_t)strtoul(argv[3], NULL, 10));
    if (readlink("/proc/self/exe", executable, sizeof executable - 1) < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
