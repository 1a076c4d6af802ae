/* Frames: what is packed comes back, and no bytes from outside pass for a frame that is none. */
#include "transport/frame.h"
#include "tests/support/cmocka.h"
#include "tests/support/random.h"

#include <string.h>

static uint8_t bytes[CAIRN_FRAME_BYTES_MAX + 64];
static uint64_t seed = 1;

static struct cairn_frame
sample(uint8_t kind)
{
    struct cairn_frame frame = {.version = 1,
                                .kind = kind,
                                .job_id = 0x0102030405060708u,
                                .from = 3,
                                .to = 4,
                                .token = 5,
                                .sequence = 6,
                                .body_len = 20};

    if (kind == CAIRN_FRAME_BULK) {
        frame.payload_len = 1000;
        frame.buffer_index = 9;
    }
    if (kind <= CAIRN_FRAME_REFUSE) {
        frame.token = 0;
        frame.sequence = 0;
        frame.body_len = CAIRN_FRAME_HANDSHAKE_BYTES;
    }
    return frame;
}

static size_t
sample_pack(uint8_t kind)
{
    struct cairn_frame frame = sample(kind);

    for (uint32_t i = 0; i < frame.body_len; i++)
        bytes[CAIRN_FRAME_HEADER_BYTES + i] = (uint8_t)(i * 3 + 1);
    cairn_frame_pack(&frame, NULL, bytes);
    return CAIRN_FRAME_HEADER_BYTES + frame.body_len;
}

static void
test_layout(void **state)
{
    static const uint8_t head[] = {'C', 'R', 'N',  0xa7, 1, 0, 6, 0, 8, 7, 6, 5, 4,  3,
                                   2,   1,   3,    0,    0, 0, 4, 0, 0, 0, 5, 0, 0,  0,
                                   0,   0,   0,    0,    6, 0, 0, 0, 0, 0, 0, 0, 20, 0,
                                   0,   0,   0xe8, 3,    0, 0, 9, 0, 0, 0, 0, 0, 0,  0};

    (void)sample_pack(CAIRN_FRAME_BULK);
    assert_memory_equal(bytes, head, sizeof head);
}

static void
test_round_trip(void **state)
{
    for (uint8_t kind = CAIRN_FRAME_HELLO; kind <= CAIRN_FRAME_FLOW; kind++) {
        size_t bytes_len = sample_pack(kind);
        struct cairn_frame want = sample(kind), got;

        assert_int_equal(cairn_frame_parse(bytes, bytes_len, &got), CAIRN_OK);
        assert_int_equal(got.kind, want.kind);
        assert_int_equal(got.job_id, want.job_id);
        assert_int_equal(got.from, want.from);
        assert_int_equal(got.to, want.to);
        assert_int_equal(got.token, want.token);
        assert_int_equal(got.sequence, want.sequence);
        assert_int_equal(got.payload_len, want.payload_len);
        assert_int_equal(got.buffer_index, want.buffer_index);
        assert_ptr_equal(got.body, bytes + CAIRN_FRAME_HEADER_BYTES);
        assert_int_equal(got.body_len, want.body_len);
        assert_int_equal(got.version, want.version); /* whose it may be the peer decides */
    }
}

/* Every single flipped bit and every other length is refused. */
static void
test_damage_is_seen(void **state)
{
    struct cairn_frame got;

    for (uint8_t kind = CAIRN_FRAME_HELLO; kind <= CAIRN_FRAME_FLOW; kind++) {
        size_t bytes_len = sample_pack(kind);

        for (size_t bit = 0; bit < bytes_len * 8; bit++) {
            /* The flag says that the payload is part of the checksum: seen when that is checked. */
            bool checked_flag = kind == CAIRN_FRAME_BULK && bit == 7 * 8;

            bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
            assert_int_equal(cairn_frame_parse(bytes, bytes_len, &got),
                             checked_flag ? CAIRN_OK : CAIRN_CORRUPT);
            if (checked_flag)
                assert_int_equal(cairn_frame_check_payload(bytes, bytes_len, "x", 1),
                                 CAIRN_CORRUPT);
            bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        }
        for (size_t other = 0; other < sizeof bytes; other++)
            if (other != bytes_len)
                assert_int_equal(cairn_frame_parse(bytes, other, &got), CAIRN_CORRUPT);
        assert_int_equal(cairn_frame_parse(bytes, bytes_len, &got), CAIRN_OK);
    }
}

/* Fields that no sender sets, under a right checksum. */
static void
test_lies_are_seen(void **state)
{
    struct cairn_frame got;
    struct cairn_frame lies[12];
    size_t count = 0;

    for (size_t i = 0; i < 6; i++)
        lies[i] = sample(CAIRN_FRAME_MESSAGE);
    lies[count++].payload_len = 1;
    lies[count++].buffer_index = 1;
    lies[count++].token = 0;
    lies[count++].sequence = 0;
    lies[count++].flags = CAIRN_FRAME_PAYLOAD_CHECKED;
    lies[count++].kind = 8;
    for (size_t i = 6; i < 12; i++)
        lies[i] = sample(CAIRN_FRAME_BULK);
    lies[count++].payload_len = 0;
    lies[count++].payload_len = CAIRN_BULK_BYTES_MAX + 1;
    lies[count++].flags = 2;
    lies[count++].kind = 0;
    lies[count++].kind = 255;
    lies[count++].kind = CAIRN_FRAME_HELLO;
    for (size_t i = 0; i < count; i++) {
        cairn_frame_pack(&lies[i], bytes, bytes);
        assert_int_equal(cairn_frame_parse(bytes, CAIRN_FRAME_HEADER_BYTES + 20, &got),
                         CAIRN_CORRUPT);
    }
}

static void
test_payload_checksum(void **state)
{
    static uint8_t payload[5000];
    struct cairn_frame frame = sample(CAIRN_FRAME_BULK), got;
    size_t bytes_len = CAIRN_FRAME_HEADER_BYTES + frame.body_len;

    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (uint8_t)xorshift(&seed);
    frame.payload_len = sizeof payload;
    frame.flags = CAIRN_FRAME_PAYLOAD_CHECKED;
    cairn_frame_pack(&frame, payload, bytes);
    assert_int_equal(cairn_frame_parse(bytes, bytes_len, &got), CAIRN_OK);
    assert_int_equal(cairn_frame_check_payload(bytes, bytes_len, payload, sizeof payload),
                     CAIRN_OK);
    for (size_t i = 0; i < sizeof payload; i += 7) {
        payload[i] ^= 1;
        assert_int_equal(cairn_frame_check_payload(bytes, bytes_len, payload, sizeof payload),
                         CAIRN_CORRUPT);
        payload[i] ^= 1;
    }
}

static void
test_random_bytes(void **state)
{
    struct cairn_frame got;
    struct cairn_frame_flow flow;
    struct cairn_frame_handshake handshake;

    for (int round = 0; round < 20000; round++) {
        size_t bytes_len = xorshift(&seed) % sizeof bytes;

        for (size_t i = 0; i < bytes_len && i < 512; i += 8) {
            uint64_t value = xorshift(&seed);

            memcpy(bytes + i, &value, 8);
        }
        memcpy(bytes, "CRN\xa7\1\0", 6); /* else nothing would pass the magic */
        assert_int_equal(cairn_frame_parse(bytes, bytes_len, &got), CAIRN_CORRUPT);
        if (cairn_frame_flow_parse(bytes + 64, bytes_len % 400, &flow) == CAIRN_OK)
            assert_true(flow.grant_count <= CAIRN_TRANSPORT_WINDOW_MAX &&
                        flow.return_count <= CAIRN_TRANSPORT_WINDOW_MAX);
        if (cairn_frame_handshake_parse(bytes + 64, bytes_len % 200, &handshake) == CAIRN_OK)
            assert_int_equal(bytes_len % 200, CAIRN_FRAME_HANDSHAKE_BYTES);
    }
}

static void
test_flow(void **state)
{
    struct cairn_frame_flow flow = {.wanted = 3, .urgent = 1, .revoked = 2}, got;
    uint8_t out[CAIRN_FRAME_FLOW_BYTES_MAX];
    size_t used;

    flow.grant_count = CAIRN_TRANSPORT_WINDOW_MAX;
    flow.return_count = CAIRN_TRANSPORT_WINDOW_MAX;
    for (uint32_t i = 0; i < CAIRN_TRANSPORT_WINDOW_MAX; i++) {
        flow.grants[i] = (struct cairn_frame_grant){i, xorshift(&seed), xorshift(&seed)};
        flow.returns[i] = i * 5;
    }
    used = cairn_frame_flow_pack(&flow, out);
    assert_int_equal(used, CAIRN_FRAME_FLOW_BYTES_MAX);
    assert_int_equal(cairn_frame_flow_parse(out, used, &got), CAIRN_OK);
    assert_int_equal(got.wanted, 3);
    assert_int_equal(got.urgent, 1);
    assert_int_equal(got.revoked, 2);
    for (uint32_t i = 0; i < CAIRN_TRANSPORT_WINDOW_MAX; i++) {
        assert_int_equal(got.grants[i].key, flow.grants[i].key);
        assert_int_equal(got.grants[i].address, flow.grants[i].address);
        assert_int_equal(got.returns[i], flow.returns[i]);
    }
    assert_int_equal(cairn_frame_flow_parse(out, used - 1, &got), CAIRN_CORRUPT);
    out[8]++; /* one grant more than there may be */
    assert_int_equal(cairn_frame_flow_parse(out, used, &got), CAIRN_CORRUPT);
}

/* A proof fits its key, its name and every field of its transcript, and nothing else. */
static void
test_proofs(void **state)
{
    uint8_t nonces[2][CAIRN_FRAME_NONCE_BYTES] = {{1}, {2}};
    struct cairn_transcript base = {.version = 1,
                                    .job_id = 2,
                                    .initiator = 3,
                                    .responder = 4,
                                    .initiator_incarnation = 5,
                                    .responder_incarnation = 6,
                                    .nonce_initiator = nonces[0],
                                    .nonce_responder = nonces[1]};
    struct cairn_transcript others[10];
    uint8_t proof[CAIRN_FRAME_PROOF_BYTES], zero[CAIRN_FRAME_PROOF_BYTES] = {0};
    uint64_t token, other_token;
    static const char key[] = "0123456789abcdef";

    for (size_t i = 0; i < 10; i++)
        others[i] = base;
    others[0].version++;
    others[1].job_id++;
    others[2].initiator++;
    others[3].responder++;
    others[4].initiator_incarnation++;
    others[5].responder_incarnation++;
    others[6].nonce_initiator = nonces[1];
    others[7].nonce_responder = nonces[0];
    others[8].initiator_versions.newest++;
    others[9].responder_versions.oldest++;
    assert_int_equal(cairn_proof_make(key, 16, "welcome", &base, proof), CAIRN_OK);
    assert_int_equal(cairn_proof_check(key, 16, "welcome", &base, proof), CAIRN_OK);
    assert_int_equal(cairn_proof_check(key, 16, "confirm", &base, proof), CAIRN_DENIED);
    assert_int_equal(cairn_proof_check(key, 15, "welcome", &base, proof), CAIRN_DENIED);
    assert_int_equal(cairn_proof_check(key, 16, "welcome", &base, zero), CAIRN_DENIED);
    assert_int_equal(cairn_proof_token(key, 16, &base, &token), CAIRN_OK);
    for (size_t i = 0; i < 10; i++) {
        assert_int_equal(cairn_proof_check(key, 16, "welcome", &others[i], proof), CAIRN_DENIED);
        assert_int_equal(cairn_proof_token(key, 16, &others[i], &other_token), CAIRN_OK);
        assert_int_not_equal(token, other_token);
        assert_int_equal(cairn_proof_token(NULL, 0, &others[i], &other_token), CAIRN_OK);
        assert_int_not_equal(other_token, 0);
    }
    for (size_t i = 0; i < sizeof proof; i++) {
        proof[i] ^= 0x80;
        assert_int_equal(cairn_proof_check(key, 16, "welcome", &base, proof), CAIRN_DENIED);
        proof[i] ^= 0x80;
    }
    assert_int_equal(cairn_proof_make(NULL, 0, "welcome", &base, proof), CAIRN_OK);
    assert_memory_equal(proof, zero, sizeof zero);
}

/* Computed apart, in Python. A change of the transcript's bytes locks out agents of the same
 * version. */
static void
test_transcript_is_stable(void **state)
{
    static const uint8_t want[8] = {
        /* HMAC-SHA256("0123456789abcdef", "session" padded to 16, 1 … 6, 0…31, 32…63, 7 … 10) */
        0x1e, 0xd8, 0x47, 0xb7, 0x70, 0x77, 0x3f, 0x02};
    uint8_t nonces[2 * CAIRN_FRAME_NONCE_BYTES], out[8];
    struct cairn_transcript base = {.version = 1,
                                    .job_id = 2,
                                    .initiator = 3,
                                    .responder = 4,
                                    .initiator_incarnation = 5,
                                    .responder_incarnation = 6,
                                    .nonce_initiator = nonces,
                                    .nonce_responder = nonces + CAIRN_FRAME_NONCE_BYTES,
                                    .initiator_versions = {7, 8},
                                    .responder_versions = {9, 10}};
    uint64_t token;

    for (size_t i = 0; i < sizeof nonces; i++)
        nonces[i] = (uint8_t)i;
    assert_int_equal(cairn_proof_token("0123456789abcdef", 16, &base, &token), CAIRN_OK);
    for (size_t i = 0; i < 8; i++)
        out[i] = (uint8_t)(token >> (8 * i));
    assert_memory_equal(out, want, sizeof want);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_damage_is_seen),
        cmocka_unit_test(test_lies_are_seen),
        cmocka_unit_test(test_payload_checksum),
        cmocka_unit_test(test_random_bytes),
        cmocka_unit_test(test_flow),
        cmocka_unit_test(test_proofs),
        cmocka_unit_test(test_transcript_is_stable),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
