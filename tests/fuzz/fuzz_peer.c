/*
 * tests/fuzz/fuzz_peer.c - what an agent's process and services read of another agent.
 *
 * Byte 0: 0 a service's message, 1 the options of the other side (agree.h), 2 the fleet's changes
 * (fleet.h), 3 a node's answer to an operator (operator_node.h), 4 its book of placements
 * (proposal.h). Refused, or taken: then packing gives the same again, and nothing that is printed
 * steers a terminal.
 */
#include "agent/process/agree.h"
#include "agent/process/fleet.h"
#include "agent/process/service_message.h"
#include "agent/service/operator_coverage.h"
#include "agent/service/operator_node.h"
#include "agent/service/proposal.h"
#include "base/text.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

static void
one_message(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_service_message message;
    uint8_t *again = malloc(bytes_len + 1);
    size_t used = 0;

    require(again != NULL);
    if (cairn_service_unpack(bytes, bytes_len, &message) == CAIRN_OK) {
        require(cairn_service_name(message.kind) != NULL);
        require(cairn_service_pack(&message, again, bytes_len, &used) == CAIRN_OK);
        require(used == bytes_len && memcmp(again, bytes, bytes_len) == 0);
    }
    free(again);
}

static void
make_config(struct cairn_config *config)
{
    static const char text[] = "job: j\nnode: 1\nnodes:\n"
                               "  - {address: \"127.0.0.1:7431\", domain: a}\n"
                               "  - {address: \"127.0.0.1:7432\", domain: b}\n"
                               "socket: /tmp/a.sock\n";
    char error[CAIRN_CONFIG_ERROR_BYTES];

    require(cairn_config_parse(text, sizeof text - 1, "fuzz", config, error, sizeof error) ==
            CAIRN_OK);
}

static void
options(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_config config = {0};
    char text[AGREE_TEXT_BYTES] = "";

    make_config(&config);
    if (agree_compare(&config, 0, (const char *)bytes, bytes_len, text) != AGREE_SAME)
        require(text[0] != '\0' && cairn_text_plain(text, strlen(text)));
    cairn_config_fini(&config);
}

static void
count_change(void *context, uint32_t node)
{
    uint32_t *changes = context;

    require(node < 2);
    ++*changes;
}

static void
fleet(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_config config = {0};
    uint8_t *packed = NULL;
    size_t packed_len = 0;
    uint32_t changes = 0;

    make_config(&config);
    if (cairn_fleet_apply(&config, bytes, bytes_len, count_change, &changes) == CAIRN_OK) {
        require(cairn_fleet_pack(&config, NULL, &packed, &packed_len) == CAIRN_OK);
        changes = 0;
        require(cairn_fleet_apply(&config, packed, packed_len, count_change, &changes) == CAIRN_OK);
        require(changes == 0); /* what was applied is the state that is packed */
        free(packed);
    } else {
        require(changes == 0);
    }
    cairn_config_fini(&config);
}

static char *
write_node(const struct operator_node *node, size_t *len)
{
    struct cairn_json_writer writer;
    char *text = NULL;

    cairn_json_writer_init(&writer);
    operator_node_write(&writer, node);
    require(cairn_json_writer_done(&writer, &text, len) == CAIRN_OK);
    cairn_json_writer_fini(&writer);
    return text;
}

static void
node(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_json_reader reader;
    struct operator_node first, second;
    char *text, *again;
    size_t len = 0, again_len = 0;

    cairn_json_reader_init(&reader, bytes, bytes_len);
    if (!operator_node_read(&reader, &first))
        return;
    text = write_node(&first, &len);
    cairn_json_reader_init(&reader, text, len);
    require(operator_node_read(&reader, &second) && cairn_json_reader_done(&reader) == CAIRN_OK);
    again = write_node(&second, &again_len);
    require(again_len == len && memcmp(again, text, len) == 0);
    free(again);
    free(text);
    operator_node_fini(&first);
    operator_node_fini(&second);
}

/* What another agent says is taken over, and decided about. */
static void
book(const uint8_t *bytes, size_t bytes_len)
{
    static struct proposal_book heard, own;
    static uint8_t again[PROPOSAL_BOOK_BYTES_MAX];
    struct proposal_answer answer;
    struct proposal_scene scene = {.needs_approval = true, .wall_ns = 1};
    struct proposal_decision decision = {.token = 1};
    struct proposal home;
    char text[PROPOSAL_TEXT_BYTES];

    if (proposal_unpack(bytes, bytes_len, &heard) != CAIRN_OK)
        return;
    require(proposal_pack(&heard, again) == bytes_len && memcmp(again, bytes, bytes_len) == 0);
    memset(&own, 0, sizeof own);
    require((proposal_hear(&own, &heard) != 0) == (heard.version > 0));
    home = (struct proposal){.placement = {.count = 1, .parts = {1}}, .is_home = true};
    scene.home = &home;
    scene.slow = &home.slow;
    decision.number = own.waiting.placement.number;
    decision.name = proposal_name(&own.waiting.placement);
    for (int word = PROPOSAL_APPROVE; word <= PROPOSAL_GO_BACK; word++) {
        decision.word = (enum proposal_word)word;
        decision.token += 2;
        (void)proposal_decide(&own, &decision, &scene, &answer);
        require(cairn_text_plain(answer.text, strlen(answer.text)));
        (void)proposal_describe(&own.offer.placement, text);
    }
    require(own.version == 0 || proposal_pack(&own, again) > 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    if (bytes_len == 0)
        return 0;
    switch (bytes[0] % 5) {
    case 0:
        one_message(bytes + 1, bytes_len - 1);
        break;
    case 1:
        options(bytes + 1, bytes_len - 1);
        break;
    case 2:
        fleet(bytes + 1, bytes_len - 1);
        break;
    case 3:
        node(bytes + 1, bytes_len - 1);
        break;
    default:
        book(bytes + 1, bytes_len - 1);
        break;
    }
    return 0;
}
