/* tests/unit/agent/service/test_timing.c - rings of timing records handed to a real agent: good
 * rings are read, others cost nothing. */
#include "tests/unit/agent/rings.h"

#include "replan/trace/topology.h"

enum { STEPS = 60 };

static void
write_steps(struct ring_file *file, uint32_t rank)
{
    uint64_t now_ns = now_ms() * CAIRN_NS_PER_MS;

    for (uint32_t step = 1; step <= STEPS; step++)
        for (int ended = 0; ended < 2; ended++) {
            struct cairn_timing_record record = {
                .comm = 3,
                .seq = step,
                .enter_ns = now_ns - 1000000 + step * 1000,
                .end_ns = ended ? now_ns - 1000000 + step * 1000 + 500 : 0,
                .rank = rank,
                .peer = CAIRN_PEER_NONE,
                .step = step,
                .ranks = 1,
                .op = CAIRN_BARRIER};

            assert_true(cairn_ring_write(&file->ring, &record));
        }
}

/* ---- tests ---- */

static void
test_a_ring_is_read(void **state)
{
    struct ring_file file = make_ring();
    struct trainer trainer, again;

    write_steps(&file, 0);
    attach(*state, &trainer, 0, 1);
    hand_over(&trainer, file.fd);
    await_log(*state, "timing: reads rank=0 records=256");
    await_status(*state, "\"rings\":1,\"records\":120,\"records_lost\":0,\"records_refused\":0");
    await_status(*state, "\"analyst\":0,\"world\":1,\"ranks_seen\":1,");
    attach(*state, &again, 0, 1); /* the same process, as after a lost connection */
    hand_over(&again, file.fd);
    write_steps(&file, 9); /* another rank's records */
    await_status(*state, "\"rings\":1,\"records\":240,\"records_lost\":0,\"records_refused\":120");
    hang_up(&trainer);
    hang_up(&again); /* the process lives, and so does its ring */
    write_steps(&file, 9);
    await_status(*state, "\"rings\":1,\"records\":360,");
    end_ring(&file);
}

static void
test_what_is_no_ring_is_not_read(void **state)
{
    size_t bytes = cairn_ring_bytes(RECORDS);
    int files[] = {make_file(bytes, 0), make_file(64, F_SEAL_SHRINK),
                   make_file(bytes, F_SEAL_SHRINK), make_file((size_t)1 << 30, F_SEAL_SHRINK)};
    static const char *const reasons[] = {"not a memfd sealed", "not a memfd sealed",
                                          "there is no ring of timing records",
                                          "larger than a ring may be"};
    struct trainer trainer;
    int folder = open("/tmp", O_RDONLY | O_CLOEXEC);

    attach(*state, &trainer, 0, 1);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        hand_over(&trainer, files[i]);
        await_log(*state, reasons[i]);
        close(files[i]);
    }
    hand_over(&trainer, folder);
    close(folder);
    await_status(*state, "\"rings\":0,\"records\":0,");
    enlist(&trainer, 0); /* its session goes on */
    hang_up(&trainer);
}

/* One process does not take the rings of all others. */
static void
test_a_process_has_few_rings(void **state)
{
    struct ring_file files[CAIRN_SESSION_RINGS_MAX + 1];
    struct trainer trainer;

    attach(*state, &trainer, 0, 1);
    for (int i = 0; i <= CAIRN_SESSION_RINGS_MAX; i++) {
        files[i] = make_ring();
        hand_over(&trainer, files[i].fd);
    }
    await_log(*state, "as many as are read of one");
    await_status(*state, "\"rings\":8,");
    enlist(&trainer, 0); /* its session goes on */
    hang_up(&trainer);
    for (int i = 0; i <= CAIRN_SESSION_RINGS_MAX; i++)
        end_ring(&files[i]);
}

/* Reports of such a rank could not be read, nor what other ranks of the node say behind them. */
static void
test_a_job_too_large(void **state)
{
    struct cairn_session_hello hello = hello_of(0, 1);
    struct ring_file file = make_ring();
    struct trainer trainer;

    hello.world = CAIRN_TOPOLOGY_WORLD_MAX + 1;
    greet(*state, &trainer, &hello);
    expect(&trainer, CAIRN_SESSION_WELCOME);
    hand_over(&trainer, file.fd);
    await_log(*state, "a ring of rank=0 is not read: its job has more ranks");
    await_status(*state, "\"rings\":0,");
    hang_up(&trainer);
    end_ring(&file);
}

/* A trainer that writes noise into its ring while it is read harms nobody. */
static void
test_noise_in_a_ring(void **state)
{
    struct ring_file file = make_ring();
    struct trainer trainer;
    uint32_t random = 1;

    attach(*state, &trainer, 0, 1);
    hand_over(&trainer, file.fd);
    await_log(*state, "timing: reads rank=0");
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < file.bytes; i++) {
            random = random * 1664525 + 1013904223;
            ((volatile uint8_t *)file.memory)[i] =
                (uint8_t)(random >> 24 & (round % 3 ? 0xff : 0x03));
        }
        usleep(5000);
    }
    await_status(*state, "\"rings\":1,");
    enlist(&trainer, 0);
    hang_up(&trainer);
    end_ring(&file);
}

/* NCCL's plugin alone writes, which names no step and sees no end: who is waited for is named all
 * the same. */
static void
test_a_hang_by_counts(void **state)
{
    struct ring_file files[2] = {make_ring(), make_ring()};
    uint64_t now_ns = now_ms() * CAIRN_NS_PER_MS;
    struct trainer trainers[2];

    for (uint32_t rank = 0; rank < 2; rank++) {
        struct cairn_timing_record record = {.comm = 7,
                                             .enter_ns = now_ns - 60 * CAIRN_NS_PER_S,
                                             .rank = rank,
                                             .peer = rank,
                                             .ranks = 2,
                                             .op = CAIRN_TIMING_MEMBER};

        assert_true(cairn_ring_write(&files[rank].ring, &record));
        record.op = CAIRN_ALL_REDUCE;
        record.peer = CAIRN_PEER_NONE;
        for (record.seq = 1; record.seq <= 101 - rank; record.seq++) {
            /* half a second apart, until ten seconds ago */
            record.enter_ns += CAIRN_NS_PER_S / 2;
            assert_true(cairn_ring_write(&files[rank].ring, &record));
        }
        attach(*state, &trainers[rank], rank, 2);
        hand_over(&trainers[rank], files[rank].fd);
    }
    await_log(
        *state,
        "detect: verdict=1 opened: rank 1 never arrives in an operation that the others wait in");
    await_log(*state, "rank 1 has entered 100 operations all_reduce of a communicator of 2 ranks, "
                      "those that wait 101");
    await_status(*state, "\"kind\":\"hang_compute\"");
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct cairn_timing_record record = {.comm = 7,
                                             .seq = 101,
                                             .rank = rank,
                                             .peer = CAIRN_PEER_NONE,
                                             .ranks = 2,
                                             .op = CAIRN_ALL_REDUCE};

        for (record.seq += rank == 0; record.seq <= 110; record.seq++) {
            record.enter_ns = now_ms() * CAIRN_NS_PER_MS;
            assert_true(cairn_ring_write(&files[rank].ring, &record));
        }
    }
    await_log(*state, "detect: verdict=1 closed (it went on by itself ");
    for (uint32_t rank = 0; rank < 2; rank++) {
        hang_up(&trainers[rank]);
        end_ring(&files[rank]);
    }
}

/* Of two that are gone with equal counts one has said that it leaves: the other is what those that
 * are left wait for. */
static void
test_a_death_at_equal_counts(void **state)
{
    struct ring_file files[3] = {make_ring(), make_ring(), make_ring()};
    uint64_t now_ns = now_ms() * CAIRN_NS_PER_MS;
    struct trainer trainer;

    for (uint32_t rank = 0; rank < 3; rank++) {
        struct cairn_timing_record record = {.comm = 7,
                                             .enter_ns = now_ns - 60 * CAIRN_NS_PER_S,
                                             .rank = rank,
                                             .peer = rank,
                                             .ranks = 3,
                                             .op = CAIRN_TIMING_MEMBER};

        assert_true(cairn_ring_write(&files[rank].ring, &record));
        record.op = CAIRN_ALL_REDUCE;
        record.peer = CAIRN_PEER_NONE;
        for (record.seq = 1; record.seq <= 100; record.seq++) {
            /* half a second apart, until ten seconds ago */
            record.enter_ns += CAIRN_NS_PER_S / 2;
            assert_true(cairn_ring_write(&files[rank].ring, &record));
        }
    }
    attach(*state, &trainer, 0, 3);
    for (uint32_t rank = 1; rank < 3; rank++) {
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
            struct trainer child;

            attach(*state, &child, rank, 3);
            hand_over(&child, files[rank].fd);
            await_log(*state, rank == 1 ? "timing: reads rank=1" : "timing: reads rank=2");
            if (rank == 1) {
                assert_int_equal(cairn_session_put_leave(&child.writer), CAIRN_OK);
                assert_int_equal(cairn_session_writer_send(&child.writer, child.fd), CAIRN_OK);
            }
            _exit(0);
        }
        assert_int_equal(wait_exit(pid), 0);
        await_log(*state,
                  rank == 1 ? "session: trainer left rank=1" : "session: trainer left rank=2");
    }
    hand_over(&trainer, files[0].fd);
    await_log(*state, "opened: rank 2 is gone");
    await_log(*state, "the process of rank 2 has ended without a word");
    hang_up(&trainer);
    for (uint32_t rank = 0; rank < 3; rank++)
        end_ring(&files[rank]);
}

/* The socket of a trainer that has ended is still open in a child of its: what it said last is read
 * to the end, over all that came with descriptors, after each the kernel ends a read. Of
 * that the last is what makes the agent say something. */
static void
test_what_was_said_last(void **state)
{
    enum { HANDED = 4 };
    const struct node *node = *state;
    struct ring_file file = make_ring();
    pid_t *heir =
        mmap(NULL, sizeof *heir, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = fork();

    assert_ptr_not_equal(heir, MAP_FAILED);
    assert_true(pid >= 0);
    if (pid == 0) {
        struct trainer trainer;

        attach(node, &trainer, 0, 1);
        kill(node->pid, SIGSTOP); /* all is there when it looks */
        for (int i = 0; i < HANDED; i++)
            hand_over(&trainer, file.fd);
        if (write(trainer.fd, "no frame", 8) == 8)
            pid = fork();
        if (pid == 0)
            sleep(2 * TIMEOUT_MS / 1000);
        else
            *heir = pid;
        _exit(0);
    }
    assert_int_equal(wait_exit(pid), 0);
    kill(node->pid, SIGCONT);
    await_log(node, "session: closed rank=0");
    assert_true(*heir > 0);
    kill(*heir, SIGKILL);
    munmap(heir, sizeof *heir);
    end_ring(&file);
}

/* What a full ring has dropped is newer than all that waits in it: of that rank nobody knows how
 * far it has come. */
static void
test_a_ring_that_was_full(void **state)
{
    static char text[1 << 16];
    struct ring_file files[2] = {make_ring(), make_ring()};
    uint64_t now_ns = now_ms() * CAIRN_NS_PER_MS;
    struct trainer trainers[2];

    for (uint32_t rank = 0; rank < 2; rank++) {
        struct cairn_timing_record record = {.comm = 7,
                                             .enter_ns = now_ns - 120 * CAIRN_NS_PER_S,
                                             .rank = rank,
                                             .peer = rank,
                                             .ranks = 2,
                                             .op = CAIRN_TIMING_MEMBER};
        uint32_t dropped = 0;

        assert_true(cairn_ring_write(&files[rank].ring, &record));
        for (int other = 0; other < 60 * (int)rank; other++) /* of the same, which takes room */
            assert_true(cairn_ring_write(&files[rank].ring, &record));
        record.op = CAIRN_ALL_REDUCE;
        record.peer = CAIRN_PEER_NONE;
        for (record.seq = 1; record.seq <= 200; record.seq++) {
            /* half a second apart, until twenty seconds ago */
            record.enter_ns += CAIRN_NS_PER_S / 2;
            dropped += !cairn_ring_write(&files[rank].ring, &record);
        }
        assert_int_equal(dropped, rank * 5);
        attach(*state, &trainers[rank], rank, 2);
        hand_over(&trainers[rank], files[rank].fd);
    }
    await_status(*state, "\"records\":457,\"records_lost\":5");
    usleep(2000000); /* in which a hang would be reported */
    ask_status(*state, text, sizeof text);
    assert_null(strstr(text, "hang_compute"));
    for (uint32_t rank = 0; rank < 2; rank++) {
        hang_up(&trainers[rank]);
        end_ring(&files[rank]);
    }
}

/* What a process has written is read to its end after its death, and then its ring goes. */
static void
test_a_ring_of_the_dead(void **state)
{
    struct ring_file file = make_ring();
    pid_t pid;

    write_steps(&file, 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct trainer trainer;

        attach(*state, &trainer, 0, 1);
        hand_over(&trainer, file.fd);
        await_log(*state, "timing: reads rank=0");
        _exit(0);
    }
    assert_int_equal(wait_exit(pid), 0);
    await_status(*state, "\"rings\":0,\"records\":120,");
    end_ring(&file);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_ring_is_read, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_what_is_no_ring_is_not_read, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_a_process_has_few_rings, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_a_job_too_large, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_noise_in_a_ring, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_a_hang_by_counts, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_a_death_at_equal_counts, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_what_was_said_last, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_a_ring_that_was_full, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_a_ring_of_the_dead, start_node, end_node),
    };
    int exit_code;

    if (keeper_main(argc, argv, &exit_code))
        return exit_code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
