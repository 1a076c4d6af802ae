/*
 * tests/fuzz/fuzz_keeper.c - packets between an agent and its keeper, both directions.
 *
 *     byte 0   bit 0: the packets are replies to an agent, else requests to a keeper; bit 1: an
 *              agent that asks for descriptors
 *     then     packets: length (two bytes), number of descriptors, bytes
 *
 * The keeper answers or ends the connection, and its table keeps its order; the agent takes items
 * in order or refuses. No descriptor is leaked or closed twice. It includes both sides, because
 * what parses a packet is theirs alone.
 */
#include "agent/process/keeper.c"        /* NOLINT(bugprone-suspicious-include) */
#include "agent/process/keeper_client.c" /* NOLINT(bugprone-suspicious-include) */
#include "tests/fuzz/require.h"
#include "tests/support/quiet_log.h"

#include <sys/mman.h>

enum { FILE_BYTES = 4, PACKETS_MAX = 8, FDS_MAX = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int
new_file(void)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    require(fd >= 0 && ftruncate(fd, FILE_BYTES) == 0);
    return fd;
}

static int
lowest_free_fd(void)
{
    int fd = dup(0);

    close(fd);
    return fd;
}

/* Takes the next packet of the input; false: there is none. */
static bool
next_packet(const uint8_t **at, const uint8_t *end, struct cairn_keeper_packet *packet)
{
    size_t len;

    if (end - *at < 3)
        return false;
    len = (size_t)((*at)[0] | (*at)[1] << 8);
    packet->fd_count = (*at)[2] % (FDS_MAX + 1);
    packet->fds_cut = (*at)[2] & 128;
    *at += 3;
    if (len > (size_t)(end - *at))
        len = (size_t)(end - *at);
    if (len > sizeof packet->bytes)
        len = sizeof packet->bytes;
    memcpy(packet->bytes, *at, len);
    packet->bytes_len = len;
    *at += len;
    for (uint32_t i = 0; i < packet->fd_count; i++)
        packet->fds[i] = new_file();
    return true;
}

static void
ask_keeper(struct keeper *keeper, const uint8_t *at, const uint8_t *end)
{
    int pair[2];
    struct client client = {.keeper = keeper};
    static struct cairn_keeper_packet reply;

    require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    client.fd = pair[0];
    for (int i = 0; i < PACKETS_MAX && next_packet(&at, end, &keeper->request); i++) {
        cairn_err err = serve(&client);

        cairn_keeper_packet_close(&keeper->request);
        if (cairn_keeper_packet_receive(pair[1], &reply) == CAIRN_OK)
            cairn_keeper_packet_close(&reply);
        else
            require(err != CAIRN_OK);
        for (uint32_t t = 0; t < keeper->table.count; t++)
            require(keeper->table.items[t].bytes == FILE_BYTES &&
                    (t == 0 ||
                     strcmp(keeper->table.items[t - 1].name, keeper->table.items[t].name) < 0));
    }
    cairn_keeper_table_fini(&keeper->table);
    close(pair[0]);
    close(pair[1]);
}

static void
answer_agent(bool with_fds, const uint8_t *at, const uint8_t *end)
{
    static struct cairn_keeper keeper;
    static struct cairn_keeper_packet packet;
    struct cairn_keeper_item *items = NULL;
    uint32_t count = 0;
    int pair[2];
    cairn_err err;

    require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    for (int i = 0; i < PACKETS_MAX && next_packet(&at, end, &packet); i++) {
        if (packet.bytes_len > 0)
            require(cairn_keeper_packet_send(pair[1], &packet) == CAIRN_OK);
        cairn_keeper_packet_close(&packet);
    }
    require(shutdown(pair[1], SHUT_WR) == 0);
    keeper.fd = pair[0];
    keeper.timeout_ms = 0;
    err = with_fds ? cairn_keeper_get(&keeper, &items, &count)
                   : cairn_keeper_list(&keeper, &items, &count);
    for (uint32_t i = 0; !err && i < count; i++)
        require((items[i].fd >= 0) == with_fds &&
                (i == 0 || strcmp(items[i - 1].name, items[i].name) < 0));
    if (!err)
        cairn_keeper_items_free(items, count);
    close(pair[0]);
    close(pair[1]);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct keeper keeper;
    struct cairn_loop_options options = {.posts_max = 1, .fds_max = 16};
    int before;

    if (size == 0)
        return 0;
    if (!keeper.loop) {
        cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
        require(cairn_loop_create(&options, &keeper.loop) == CAIRN_OK);
    }
    before = lowest_free_fd();
    if (data[0] & 1)
        answer_agent(data[0] & 2, data + 1, data + size);
    else
        ask_keeper(&keeper, data + 1, data + size);
    require(lowest_free_fd() == before);
    return 0;
}
