/*
 * tests/fuzz/fuzz_frame.c - any bytes at the parsers of frames, and at a transport that holds a
 * key.
 *
 * The first byte chooses: even, the bytes go to the parsers as they are; odd, the header's magic,
 * lengths and checksum are made right first, and the frame goes to a transport, so that what lies
 * behind the checksum is reached too. With CAIRN_FUZZ_REPLAY defined there is a main that replays
 * the files it is given.
 */
#include "transport/frame.h"
#include "transport/transport_loop.h"

#include "base/crc.h"
#include "base/log.h"
#include "tests/support/quiet_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct cairn_transport *transport;
static struct cairn_transport_hub *hub;
static uint64_t now_ns = 1;

static void
message(void *context, uint32_t from, const void *body, size_t body_len, const void *payload,
        size_t payload_len, uint64_t buffer)
{
    abort(); /* nobody here has the key */
}

static void
sent(void *context, uint32_t node, uint64_t ticket, cairn_err err)
{
    abort(); /* nothing is sent */
}

static void
peer(void *context, uint32_t node, bool up, uint64_t incarnation)
{
    abort();
}

static void
transport_start(void)
{
    static const char *const addresses[] = {"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"};
    struct cairn_transport_options options = {
        .provider = "loop",
        .bind_address = addresses[0],
        .node_count = 3,
        .addresses = addresses,
        .job_id = 1,
        .incarnation = 1,
        .key = "0123456789abcdef",
        .key_len = 16,
        .buffer_count = 1,
        .operation_count = 8,
        .on_message = message,
        .on_sent = sent,
        .on_peer = peer,
    };

    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    if (cairn_transport_hub_create(3, &hub) != CAIRN_OK)
        abort();
    options.hub = hub;
    if (cairn_transport_open(&options, &transport) != CAIRN_OK)
        abort();
}

static void
transport_feed(const uint8_t *data, size_t size)
{
    static uint8_t frame[CAIRN_FRAME_BYTES_MAX];
    uint32_t body_len;
    uint64_t sum;

    if (size < CAIRN_FRAME_HEADER_BYTES || size > sizeof frame)
        return;
    memcpy(frame, data, size);
    memcpy(frame, "CRN\xa7", 4);
    body_len = (uint32_t)(size - CAIRN_FRAME_HEADER_BYTES);
    for (int i = 0; i < 4; i++)
        frame[40 + i] = (uint8_t)(body_len >> (8 * i));
    memset(frame + 52, 0, 4);
    frame[16] %= 3; /* a node of the job */
    memset(frame + 17, 0, 3);
    sum = cairn_crc64(0, frame, 56);
    sum = cairn_crc64(sum, frame + CAIRN_FRAME_HEADER_BYTES, body_len);
    for (int i = 0; i < 8; i++)
        frame[56 + i] = (uint8_t)(sum >> (8 * i));
    if (cairn_transport_hub_inject(hub, 0, frame, size) != CAIRN_OK)
        abort();
    now_ns += 100000000;
    cairn_transport_poll(transport, now_ns);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cairn_frame frame;
    struct cairn_frame_flow flow;
    struct cairn_frame_handshake handshake;

    if (!transport)
        transport_start();
    if (size == 0)
        return 0;
    if (data[0] & 1) {
        transport_feed(data + 1, size - 1);
        return 0;
    }
    if (cairn_frame_parse(data + 1, size - 1, &frame) == CAIRN_OK &&
        frame.body + frame.body_len != data + size)
        abort();
    if (cairn_frame_flow_parse(data + 1, size - 1, &flow) == CAIRN_OK) {
        uint8_t again[CAIRN_FRAME_FLOW_BYTES_MAX];

        if (cairn_frame_flow_pack(&flow, again) != size - 1 ||
            memcmp(again, data + 1, size - 1) != 0)
            abort();
    }
    if (cairn_frame_handshake_parse(data + 1, size - 1, &handshake) == CAIRN_OK &&
        size - 1 != CAIRN_FRAME_HANDSHAKE_BYTES)
        abort();
    return 0;
}

#ifdef CAIRN_FUZZ_REPLAY
int
main(int count, char **arguments)
{
    static uint8_t bytes[2 * CAIRN_FRAME_BYTES_MAX];

    for (int i = 1; i < count; i++) {
        FILE *file = fopen(arguments[i], "rb");
        size_t bytes_len;

        if (!file) {
            perror(arguments[i]);
            return 1;
        }
        bytes_len = fread(bytes, 1, sizeof bytes, file);
        fclose(file);
        (void)LLVMFuzzerTestOneInput(bytes, bytes_len);
    }
    printf("fuzz_frame: replayed files=%d\n", count - 1);
    return 0;
}
#endif
