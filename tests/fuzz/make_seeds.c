/*
 * tests/fuzz/make_seeds.c - the seeds of fuzz_frame, fuzz_history, fuzz_manifest, fuzz_message and
 * fuzz_recording, and the book of fuzz_peer: what agents and trainers pack themselves, in the form
 * that each fuzzer takes it.
 *
 *     make build/plain/tests/fuzz/make_seeds && build/plain/tests/fuzz/make_seeds tests/fuzz/corpus
 */
#include "agent/core/env/message.h"
#include "agent/core/epoch/record.h"
#include "erasure/roster.h"
#include "snapshot/shard_seal.h"
#include "agent/process/recorder_store.h"
#include "agent/service/operator_histories.h"
#include "agent/service/proposal.h"
#include "replan/live/reduce.h"
#include "snapshot/manifest.h"
#include "transport/frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *corpus;

static void
write_seed(const char *fuzzer, const char *name, int choice, const uint8_t *bytes, size_t bytes_len)
{
    char path[512];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s", corpus, fuzzer);
    (void)mkdir(path, 0777); /* it may be there; else opening fails below */
    (void)snprintf(path, sizeof(path), "%s/%s/%s", corpus, fuzzer, name);
    file = fopen(path, "wb");
    if (!file || (choice >= 0 && fputc(choice, file) == EOF) ||
        fwrite(bytes, 1, bytes_len, file) != bytes_len || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

/* ---- frames ---- */

static void
write_frame(const char *name, int choice, struct cairn_frame frame, const void *body,
            uint32_t body_len)
{
    uint8_t bytes[CAIRN_FRAME_HEADER_BYTES + CAIRN_FRAME_FLOW_BYTES_MAX];

    memcpy(bytes + CAIRN_FRAME_HEADER_BYTES, body, body_len);
    frame.version = CAIRN_TRANSPORT_VERSION;
    frame.job_id = 1;
    frame.body_len = body_len;
    cairn_frame_pack(&frame, NULL, bytes);
    write_seed("fuzz_frame", name, choice, bytes, CAIRN_FRAME_HEADER_BYTES + body_len);
}

static void
make_frames(void)
{
    static const struct cairn_frame_flow flow = {.wanted = 3,
                                                 .urgent = 1,
                                                 .grant_count = 2,
                                                 .return_count = 1,
                                                 .grants = {{1, 4096, 7}, {2, 8192, 9}},
                                                 .returns = {5}};
    static const struct cairn_frame_handshake handshake = {
        .incarnation = 2, .keyed = 1, .nonce_initiator = {1, 2, 3}, .nonce_responder = {4, 5}};
    uint8_t body[CAIRN_FRAME_HANDSHAKE_BYTES], packed[CAIRN_FRAME_FLOW_BYTES_MAX];
    size_t packed_len = cairn_frame_flow_pack(&flow, packed);

    cairn_frame_handshake_pack(&handshake, body);
    for (int injected = 0; injected < 2; injected++) {
        const char *names[2][4] = {{"hello", "welcome", "confirm", "message"},
                                   {"hello_in", "welcome_in", "confirm_in", "message_in"}};

        for (uint8_t kind = CAIRN_FRAME_HELLO; kind <= CAIRN_FRAME_CONFIRM; kind++)
            write_frame(names[injected][kind - CAIRN_FRAME_HELLO], injected,
                        (struct cairn_frame){.kind = kind, .from = 1}, body, sizeof(body));
        write_frame(
            names[injected][3], injected,
            (struct cairn_frame){.kind = CAIRN_FRAME_MESSAGE, .from = 1, .token = 6, .sequence = 1},
            "a message", 9);
    }
    write_frame(
        "flow_frame", 0,
        (struct cairn_frame){.kind = CAIRN_FRAME_FLOW, .from = 2, .token = 6, .sequence = 4},
        packed, (uint32_t)packed_len);
    write_seed("fuzz_frame", "flow", 0, packed, packed_len);
    write_seed("fuzz_frame", "handshake", 0, body, sizeof(body));
}

/* ---- manifests ---- */

static void
make_manifests(void)
{
    struct cairn_slice matrix = {.name = "layers.0.weight",
                                 .dtype = CAIRN_BF16,
                                 .kind = CAIRN_PARAM,
                                 .dims = 2,
                                 .shape = {8, 16},
                                 .extent = {4, 16},
                                 .replica_count = 1,
                                 .device = -1};
    struct cairn_slice scalar = {.name = "step.layers.0.weight",
                                 .dtype = CAIRN_F32,
                                 .kind = CAIRN_OPTIMIZER,
                                 .replica_index = 1,
                                 .replica_count = 2,
                                 .device = -1};
    struct cairn_manifest_rank ranks[2] = {{0, 2, 0, CAIRN_BLOCK_BYTES},
                                           {1, 2, CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES}};
    struct cairn_manifest_entry entries[3] = {
        {.slice = matrix}, {.slice = scalar, .offset_bytes = 4096}, {.slice = matrix, .rank = 1}};
    uint64_t crcs[2] = {11, 12};
    struct cairn_manifest manifest = {.job_id = 1,
                                      .generation = {1, 5},
                                      .container_count = 1,
                                      .container_bytes = 2 * CAIRN_BLOCK_BYTES,
                                      .ranks = ranks,
                                      .rank_count = 2,
                                      .entry_count = 3,
                                      .entries = entries,
                                      .block_crcs = crcs,
                                      .block_count = 2};
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;

    entries[2].slice.offset[0] = 4;
    entries[2].slice.flat_begin = 3;
    entries[2].slice.flat_end = 64;
    entries[2].offset_bytes = CAIRN_BLOCK_BYTES;
    for (int spilled = 0; spilled < 2; spilled++) {
        manifest.rank_count = spilled ? 0 : 2;
        if (cairn_manifest_pack(&manifest, &bytes, &bytes_len) != CAIRN_OK) {
            fprintf(stderr, "make_seeds: no manifest\n");
            exit(1);
        }
        write_seed("fuzz_manifest", spilled ? "spilled" : "two_ranks", -1, bytes, bytes_len);
        free(bytes);
    }
}

/* ---- what agents say and store ---- */

static void
write_message(const char *name, struct cairn_message message)
{
    uint8_t bytes[CAIRN_MESSAGE_HEAD_BYTES_MAX + 64];
    size_t used = 0;

    message.from = 2;
    message.to = 1;
    message.epoch = 0x10001;
    if (cairn_message_pack(&message, bytes, sizeof(bytes), &used) != CAIRN_OK) {
        fprintf(stderr, "make_seeds: no message %s\n", name);
        exit(1);
    }
    write_seed("fuzz_message", name, 0, bytes, used);
}

static void
code_roster(struct cairn_codec *codec, void *roster)
{
    cairn_roster_code(codec, roster);
}

static void
make_roster(void)
{
    static const uint32_t agents[5] = {0, 1, 2, 3, 4};
    struct cairn_roster *roster = NULL;
    uint8_t *bytes = NULL;
    size_t len = 0;

    if (cairn_roster_build(agents, NULL, 5, 1, 4, &roster) != CAIRN_OK ||
        cairn_codec_pack(code_roster, &roster, &bytes, &len) != CAIRN_OK) {
        fprintf(stderr, "make_seeds: no roster\n");
        exit(1);
    }
    write_seed("fuzz_message", "roster", 1, bytes, len);
    free(bytes);
    cairn_roster_drop(roster);
}

static void
make_seal(void)
{
    static const uint64_t crcs[3] = {7, 8, 9};
    static const uint8_t manifest[4] = {1, 2, 3, 4}; /* carried unread by a seal */
    struct cairn_shard_seal seal = {0};

    if (cairn_shard_seal_pack((struct cairn_generation_id){.epoch = 1, .step = 1, .run = 1}, 0, 3,
                              crcs, manifest, sizeof(manifest), &seal) != CAIRN_OK) {
        fprintf(stderr, "make_seeds: no seal\n");
        exit(1);
    }
    write_seed("fuzz_message", "seal", 4, seal.bytes, seal.len);
    cairn_shard_seal_fini(&seal);
}

static void
make_record(void)
{
    static uint32_t agents[4] = {0, 1, 2, 3};
    struct record_seen seen[4] = {{1, 2}, {3, 4}, {5, 6}, {0, 0}};
    struct record record = {.epoch = 0x20001,
                            .restart_epoch = 0x10001,
                            .ready = {.epoch = 0x10001, .step = 3, .run = 7},
                            .holders = agents,
                            .agent_count = 4,
                            .seen = seen};
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;

    if (cairn_roster_build(agents, NULL, 4, 1, 4, &record.roster) == CAIRN_OK) {
        record.ready_roster = record.roster;
        if (record_pack(&record, &bytes, &bytes_len) == CAIRN_OK)
            write_seed("fuzz_message", "record", 2, bytes, bytes_len);
    }
    free(bytes);
    cairn_roster_drop(record.roster);
}

/* Messages to a core, one behind the other: each is a head of 26 small numbers (fuzz_message.c). */
static void
make_talk(void)
{
    enum { HEAD = 26 };
    static const uint8_t events[3][3] = {{1 + 8 * 3}, {3, 3}, {4, 3}}; /* BEGIN, BLOCKS, CAPTURED */
    uint8_t bytes[(CAIRN_MESSAGE_KIND_LAST + 3) * HEAD] = {0};

    for (uint32_t i = 0; i < 3; i++) {
        uint8_t *head = bytes + (CAIRN_MESSAGE_KIND_LAST + i) * HEAD;

        head[1] = 50 << 2; /* an event */
        memcpy(head + 2, events[i], 3);
    }
    for (uint32_t kind = 1; kind <= CAIRN_MESSAGE_KIND_LAST; kind++) {
        uint8_t *head = bytes + (kind - 1) * HEAD;

        head[1] = 1 << 2;                      /* with blocks that are right */
        head[2] = (uint8_t)(kind - 1);         /* kind */
        head[3] = (uint8_t)(kind % 4 | 4);     /* from, with a record or a plan */
        memset(head + 4, (int)kind, HEAD - 4); /* fields */
        head[9] = 3;                           /* a step that is being captured, in some */
    }
    write_seed("fuzz_message", "talk", 6, bytes, sizeof(bytes));
    write_seed("fuzz_message", "talk_to_first", 7, bytes, sizeof(bytes));
}

static void
make_messages(void)
{
    static const uint8_t crcs[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    struct cairn_generation_id generation = {.epoch = 0x10001, .step = 3, .run = 7};

    write_message("heartbeat", (struct cairn_message){.kind = CAIRN_MSG_HEARTBEAT,
                                                      .bytes = crcs,
                                                      .bytes_len = sizeof(crcs)});
    write_message("data", (struct cairn_message){.kind = CAIRN_MSG_DATA,
                                                 .as.data = {.generation = generation, .count = 2},
                                                 .bytes = crcs,
                                                 .bytes_len = sizeof(crcs)});
    write_message(
        "read",
        (struct cairn_message){
            .kind = CAIRN_MSG_READ,
            .as.read = {
                .request = 77, .generation = generation, .stripe = 1, .line = 4, .count = 3}});
    write_message("failed", (struct cairn_message){.kind = CAIRN_MSG_REBUILT,
                                                   .as.rebuilt = {.err = CAIRN_CORRUPT}});
    make_roster();
    make_seal();
    make_record();
    make_talk();
}

/* ---- the book of placements ---- */

static void
make_book(void)
{
    static struct proposal_book book;
    static uint8_t bytes[PROPOSAL_BOOK_BYTES_MAX];
    const struct proposal home = {.placement = {.count = 2, .parts = {4, 4}}, .is_home = true};
    struct proposal better = {
        .placement = {.count = 2, .parts = {5, 3}, .stages = 2, .layers = {4, 4, 1, 7}},
        .step_ms = 100,
        .slow = {.count = 1, .ranks = {2}, .rates = {2.5}}};
    struct proposal_round round = {.home = &home, .plan = &better, .changes_per_day = 4};

    (void)proposal_take_round(&book, &round);
    round.needs_approval = true;
    for (uint32_t first = 6; first < 8; first++) {
        better.placement.parts[0] = first;
        better.placement.parts[1] = 8 - first;
        (void)proposal_take_round(&book, &round);
    }
    book.denied[book.denied_count++].name = proposal_name(&home.placement);
    write_seed("fuzz_peer", "book", 4, bytes, proposal_pack(&book, bytes));
}

/* ---- histories ---- */

/* A node's history of every kind of event. */
static void
fill_book(struct history_book *book, uint32_t node)
{
    history_book_init(book);
    for (int kind = 1; kind < HISTORY_KIND_END; kind++) {
        struct history_event event = history_event_of((enum history_kind)kind);

        event.wall_ns = event.until_wall_ns = UINT64_C(1000000000) * (uint64_t)kind;
        event.until_wall_ns += UINT64_C(500000000);
        event.at = (struct cairn_generation_id){1 << 16, (uint64_t)kind, 1};
        event.generation = event.at;
        event.last_step = (uint64_t)kind + 3;
        event.count = 4;
        event.subject = 7;
        event.change = 1;
        event.rate = 1.5;
        event.node = 1 - node;
        event.text = "why";
        if (history_book_add(book, &event) == 0)
            exit(1);
    }
}

static void
make_histories(void)
{
    uint8_t record[8 + RECORDER_VALUE_BYTES_MAX], *bytes = NULL, *both;
    struct history_book books[2];
    size_t len = 0;

    for (uint32_t node = 0; node < 2; node++)
        fill_book(&books[node], node);
    len = recorder_record_pack(&books[0].events[0], record, record + 8);
    write_seed("fuzz_history", "record", 0, record, 8 + len);
    write_seed("fuzz_history", "record_right", 1, record, 8 + len);
    both = NULL;
    for (uint32_t node = 0; node < 2; node++) {
        if (histories_pack(&books[node], &bytes, &len) != CAIRN_OK)
            exit(1);
        both = node ? both : malloc(2 * len);
        if (!both)
            exit(1);
        memcpy(both + node * len, bytes, len);
        free(bytes);
        history_book_fini(&books[node]);
    }
    write_seed("fuzz_history", "histories", 5, both, 2 * len);
    free(both);
}

/* ---- recordings ---- */

static void
ignore(void *context, const struct cairn_report *report)
{
}

/* Two ranks that send to each other and reduce, in five steps. */
static void
make_recordings(void)
{
    static uint8_t bytes[1 << 16];
    struct cairn_writer writer;

    cairn_writer_init(&writer, bytes, sizeof bytes);
    for (uint32_t rank = 0; rank < 2; rank++) {
        const struct cairn_reduce_options options = {
            .rank = rank, .world = 2, .recording_bytes = 1 << 16, .emit = ignore};
        struct cairn_reduce *reduce;

        if (cairn_reduce_create(&options, &reduce) != CAIRN_OK)
            exit(1);
        for (uint32_t step = 1; step <= 5; step++)
            for (uint16_t op = CAIRN_ALL_REDUCE; op <= CAIRN_SEND; op += CAIRN_SEND - 1) {
                struct cairn_timing_record record = {.comm = 5,
                                                     .seq = op == CAIRN_SEND ? 0 : step,
                                                     .bytes = 64,
                                                     .enter_ns = 100 * step + op,
                                                     .end_ns = step < 5 ? 100 * step + op + 9 : 0,
                                                     .rank = rank,
                                                     .peer = op == CAIRN_SEND ? 1 - rank
                                                                              : CAIRN_PEER_NONE,
                                                     .step = step,
                                                     .ranks = 2,
                                                     .op = op};

                if (cairn_reduce_take(reduce, &record, 1000) != CAIRN_OK)
                    exit(1);
            }
        cairn_reduce_pack_recording(reduce, 100, 0, CAIRN_PRESENCE_RUNS, 1000, &writer);
        cairn_reduce_destroy(reduce);
    }
    write_seed("fuzz_recording", "one_node", 255, bytes, writer.used_bytes);
    write_seed("fuzz_recording", "two_nodes", 127, bytes, writer.used_bytes);
}

int
main(int count, char **arguments)
{
    if (count != 2) {
        fprintf(stderr, "usage: make_seeds tests/fuzz/corpus\n");
        return 64;
    }
    corpus = arguments[1];
    make_histories();
    make_frames();
    make_manifests();
    make_messages();
    make_book();
    make_recordings();
    return 0;
}
