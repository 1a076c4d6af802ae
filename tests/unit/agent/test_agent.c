/*
 * tests/unit/agent/test_agent.c - a whole agent of a job of one node, as a real process, and
 * trainers that speak to it frame by frame: also such as no libcairn would say. This program is
 * also the keeper's executable, when its first argument is "keeper".
 */
#include "base/wire.h"
#include "snapshot/catalog.h"
#include "tests/unit/agent/one_agent.h"

/* ---- tests ---- */

static void
test_who_does_not_belong_is_refused(void **state)
{
    struct cairn_session_hello hello = hello_of(0, 1);
    struct trainer trainer;

    snprintf(hello.job, sizeof hello.job, "another");
    greet(*state, &trainer, &hello);
    expect_refused(&trainer, CAIRN_DENIED, "serves job \"test\"");
    assert_int_equal(receive(&trainer), 0);
    hang_up(&trainer);
    hello = hello_of(0, 1);
    hello.protocol = 99;
    greet(*state, &trainer, &hello);
    expect_refused(&trainer, CAIRN_VERSION, "99");
    hang_up(&trainer);
    hello = hello_of(0, CAIRN_RANKS_PER_NODE_MAX + 1);
    greet(*state, &trainer, &hello);
    expect_refused(&trainer, CAIRN_INVAL, "64");
    hang_up(&trainer);
    hello = hello_of(0, 1);
    hello.rank = 9;
    hello.world = 4;
    greet(*state, &trainer, &hello);
    expect_refused(&trainer, CAIRN_INVAL, "rank 9 of 4");
    hang_up(&trainer);
}

static void
test_what_does_not_fit_is_refused_at_register(void **state)
{
    struct trainer trainer, other;

    attach(*state, &trainer, 0, 2);
    ask_register(&trainer, 0, 1, STATE_BYTES + 1, 20);
    expect_refused(&trainer, CAIRN_NOMEM, "set state_bytes to at least");
    ask_register(&trainer, 0, 4000, 64, 100);
    expect_refused(&trainer, CAIRN_NOMEM, "names and shapes");
    enlist(&trainer, 0); /* and what fits is still taken */
    attach(*state, &other, 1, 3);
    ask_register(&other, 1, 1, 64, 20);
    expect_refused(&other, CAIRN_INVAL, "one shape");
    hang_up(&other);
    attach(*state, &other, 1, 2);
    ask_register(&other, 1, 1, STATE_BYTES - TENSOR_BYTES + 1, 20);
    expect_refused(&other, CAIRN_NOMEM, "taken by its other ranks");
    ask_register(&other, 0, 1, 64, 40); /* the first rank's name */
    expect_refused(&other, CAIRN_INVAL,
                   "000000000000: what rank 1 registers does not fit another rank's of this node: "
                   "the tensor is known with "
                   "another shape");
    enlist(&other, 1);
    assert_int_equal(other.registered.region_offset, TENSOR_BYTES);
    hang_up(&other);
    hang_up(&trainer);
}

/* The older session's region then lies behind the younger's, and both are taken all the same. */
static void
test_a_rank_registers_anew_and_larger(void **state)
{
    struct cairn_session_registered registered;
    struct trainer trainer, other;

    attach(*state, &trainer, 0, 2);
    enlist(&trainer, 0);
    attach(*state, &other, 1, 2);
    enlist(&other, 1);
    ask_register(&trainer, 0, 1, TENSOR_BYTES + 1, 20);
    expect(&trainer, CAIRN_SESSION_REGISTERED);
    assert_int_equal(cairn_session_take_registered(&trainer.frame, &registered), CAIRN_OK);
    assert_int_equal(registered.region_offset, 2 * TENSOR_BYTES);
    hang_up(&other);
    hang_up(&trainer);
}

/* The bytes that a trainer's files have: pages of the slots that were moved into them. */
static uint64_t
bytes_cut(const struct trainer *trainer)
{
    struct stat status;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < trainer->frame.fd_count; i++) {
        assert_int_equal(fstat(trainer->frame.fds[i], &status), 0);
        bytes += (uint64_t)status.st_blocks * 512;
    }
    return bytes;
}

/* Else the agent would move pages while other ranks, which stand still, fill theirs from it. */
static void
test_memory_is_cut_again_from_the_next_begin_on(void **state)
{
    const struct cairn_session_begin frame = {.step = 5};
    struct trainer trainer, other;

    attach(*state, &trainer, 0, 2);
    enlist(&trainer, 0);
    ask_register(&trainer, 0, 1, TENSOR_BYTES + 1, 20);
    expect(&trainer, CAIRN_SESSION_REGISTERED);
    assert_int_equal(bytes_cut(&trainer), 0);
    attach(*state, &other, 1, 2);
    enlist(&other, 1); /* its memory has been cut by then */
    assert_int_equal(bytes_cut(&trainer), 0);
    assert_int_equal(cairn_session_put_begin(&trainer.writer, &frame), CAIRN_OK);
    assert_int_equal(cairn_session_writer_send(&trainer.writer, trainer.fd), CAIRN_OK);
    for (uint64_t end = now_ms() + TIMEOUT_MS; bytes_cut(&trainer) == 0; usleep(5000))
        assert_true(now_ms() < end);
    hang_up(&other);
    hang_up(&trainer);
}

static void
test_a_generation_outlives_the_agent(void **state)
{
    struct node *node = *state;
    struct cairn_session_grant grant;
    struct trainer trainer;

    attach(node, &trainer, 0, 1);
    enlist(&trainer, 0);
    grant = begin(&trainer, 5);
    capture(&trainer, &grant, 0x11);
    await_ready(node, 5);
    kill(node->pid, SIGKILL);
    assert_int_equal(wait_exit(node->pid), 128 + SIGKILL);
    assert_int_equal(receive(&trainer), 0);
    hang_up(&trainer);
    node->pid = start_process(node);
    await_log(node, "adopted from the keeper");
    await_ready(node, 5);
    kill(node->pid, SIGTERM);
    assert_int_equal(wait_exit(node->pid), 0);
    assert_int_equal(access(node->config.socket, F_OK), -1);
    node->pid = 0;
}

static struct cairn_catalog *
open_catalog(const struct node *node)
{
    struct cairn_catalog *catalog = NULL;
    char path[CAIRN_CONFIG_PATH_BYTES_MAX + 16];

    (void)snprintf(path, sizeof path, "%s/catalog", node->config.dir);
    assert_int_equal(cairn_catalog_open(&cairn_store_rocksdb, path, &catalog), CAIRN_OK);
    return catalog;
}

static void
kill_agent(struct node *node)
{
    assert_int_equal(kill(node->pid, SIGKILL), 0);
    assert_int_equal(wait_exit(node->pid), 128 + SIGKILL);
    assert_int_equal(unlink(node->log_path), 0);
}

/* One start made the memory and ended before it stored that it knows nothing: the next one adopts
 * it, and is told by the mark. */
static void
test_new_memory_stays_new_until_it_is_stored(void **state)
{
    struct node *node = *state;
    struct cairn_session_grant grant;
    struct cairn_catalog *catalog;
    struct trainer trainer;
    uint8_t *mark = NULL;
    size_t mark_len = 0;

    attach(node, &trainer, 0, 1);
    enlist(&trainer, 0);
    grant = begin(&trainer, 5);
    capture(&trainer, &grant, 0x11);
    await_ready(node, 5);
    kill_agent(node);
    hang_up(&trainer);
    catalog = open_catalog(node);
    assert_int_equal(cairn_catalog_get(catalog, CAIRN_TABLE_EPOCHS, "memory", 6, &mark, &mark_len),
                     CAIRN_NOT_FOUND);
    assert_int_equal(cairn_catalog_put(catalog, CAIRN_TABLE_EPOCHS, "memory", 6, "", 0), CAIRN_OK);
    cairn_catalog_close(catalog);
    node->pid = start_process(node);
    await_log(node, "adopted from the keeper");
    await_ready(node, 5); /* what it holds is there all the same */
    kill_agent(node);
    catalog = open_catalog(node);
    assert_int_equal(cairn_catalog_get(catalog, CAIRN_TABLE_EPOCHS, "memory", 6, &mark, &mark_len),
                     CAIRN_NOT_FOUND);
    cairn_catalog_close(catalog);
    node->pid = start_process(node);
    await_log(node, "agent: serves");
}

/* Pieces outside the region, of what was never granted, after DONE: none may reach a generation. */
static void
test_frames_out_of_place(void **state)
{
    struct cairn_session_piece piece = {.count = 1};
    struct cairn_session_done done = {{.epoch = 1, .step = 1}};
    struct cairn_session_grant grant;
    struct trainer trainer, second;

    attach(*state, &trainer, 0, 1);
    piece.generation = (struct cairn_generation_id){.epoch = 1, .step = 77};
    /* not registered */
    assert_int_equal(cairn_session_put_piece(&trainer.writer, &piece), CAIRN_OK);
    assert_int_equal(cairn_session_put_done(&trainer.writer, &done), CAIRN_OK);
    enlist(&trainer, 0);
    assert_int_equal(cairn_session_put_piece(&trainer.writer, &piece), CAIRN_OK); /* not granted */
    grant = begin(&trainer, 3);
    capture(&trainer, &grant, 0x22);
    piece.generation = grant.generation; /* after DONE, with a wrong checksum */
    assert_int_equal(cairn_session_put_piece(&trainer.writer, &piece), CAIRN_OK);
    assert_int_equal(cairn_session_writer_send(&trainer.writer, trainer.fd), CAIRN_OK);
    await_ready(*state, 3);

    grant = begin(&trainer, 4);
    piece.generation = grant.generation;
    piece.first_block = REGION_BLOCKS;
    assert_int_equal(cairn_session_put_piece(&trainer.writer, &piece), CAIRN_OK);
    assert_int_equal(receive(&trainer), 0); /* it is evicted, and the next one is served */
    hang_up(&trainer);
    attach(*state, &second, 0, 1);
    enlist(&second, 0);
    grant = begin(&second, 5);
    capture(&second, &grant, 0x33);
    await_ready(*state, 5);
    hang_up(&second);
}

static void
test_noise_ends_its_own_session_alone(void **state)
{
    struct trainer trainer, noisy;
    struct cairn_session_grant grant;
    uint8_t noise[256];
    uint32_t seed = 1;

    attach(*state, &trainer, 0, 1);
    enlist(&trainer, 0);
    for (int round = 0; round < 100; round++) {
        dial(*state, &noisy);
        for (size_t i = 0; i < sizeof noise; i++) {
            seed = seed * 1103515245u + 12345u;
            noise[i] = (uint8_t)(seed >> 16);
        }
        assert_int_equal(send(noisy.fd, noise, sizeof noise, MSG_NOSIGNAL), sizeof noise);
        hang_up(&noisy);
    }
    dial(*state, &noisy); /* a frame before HELLO */
    assert_int_equal(
        cairn_session_put_begin(&noisy.writer, &(struct cairn_session_begin){.step = 1}), CAIRN_OK);
    assert_int_equal(receive(&noisy), 0);
    hang_up(&noisy);
    grant = begin(&trainer, 9);
    capture(&trainer, &grant, 0x44);
    await_ready(*state, 9);
    hang_up(&trainer);
}

/* A trainer that dies while a child holds its socket is seen by its process. */
static void
test_a_dead_trainer_whose_child_lives(void **state)
{
    struct node *node = *state;
    int pipe_fds[2];
    pid_t trainer_pid, child_pid = 0;

    assert_int_equal(pipe(pipe_fds), 0);
    trainer_pid = fork();
    if (trainer_pid == 0) {
        struct trainer trainer;

        attach(node, &trainer, 0, 1);
        enlist(&trainer, 0);
        child_pid = fork();
        if (child_pid == 0) {
            close(pipe_fds[1]);
            sleep(60);
            _exit(0);
        }
        if (write(pipe_fds[1], &child_pid, sizeof child_pid) != sizeof child_pid)
            _exit(1);
        _exit(0);
    }
    assert_int_equal(read(pipe_fds[0], &child_pid, sizeof child_pid), sizeof child_pid);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    assert_int_equal(wait_exit(trainer_pid), 0);
    await_log(node, "trainer left rank=0");
    kill(child_pid, SIGKILL);
}

/*
 * A trainer that was granted a slot and is evicted before it has stopped copying: the slot is not
 * granted to the next one until the old one's end of the socket closes.
 */
static void
test_a_slot_waits_for_its_old_writer(void **state)
{
    struct cairn_session_begin frame = {.step = 1};
    struct cairn_session_grant grant;
    struct trainer old, fresh;
    struct pollfd poll_fd;

    attach(*state, &old, 0, 1);
    enlist(&old, 0);
    begin(&old, 1); /* … and it copies, and copies */
    attach(*state, &fresh, 0, 1);
    enlist(&fresh, 0); /* takes the rank over */
    assert_int_equal(receive(&old), 0);
    frame.step = 2;
    assert_int_equal(cairn_session_put_begin(&fresh.writer, &frame), CAIRN_OK);
    assert_int_equal(cairn_session_writer_send(&fresh.writer, fresh.fd), CAIRN_OK);
    poll_fd = (struct pollfd){.fd = fresh.fd, .events = POLLIN};
    assert_int_equal(poll(&poll_fd, 1, 300), 0); /* no grant */
    hang_up(&old);
    expect(&fresh, CAIRN_SESSION_GRANT);
    assert_int_equal(cairn_session_take_grant(&fresh.frame, &grant), CAIRN_OK);
    capture(&fresh, &grant, 0x55);
    await_ready(*state, 2);
    hang_up(&fresh);
}

static void
expect_skip(struct trainer *trainer, uint64_t step, uint32_t reason, const char *text)
{
    struct cairn_session_begin frame = {.step = step};
    struct cairn_session_skip skip;

    assert_int_equal(cairn_session_put_begin(&trainer->writer, &frame), CAIRN_OK);
    expect(trainer, CAIRN_SESSION_SKIP);
    assert_int_equal(cairn_session_take_skip(&trainer->frame, &skip), CAIRN_OK);
    assert_int_equal(skip.step, step);
    assert_int_equal(skip.reason, reason);
    if (!strstr(skip.text, text))
        fail_msg("skipped with \"%s\", which does not say \"%s\"", skip.text, text);
}

/* Trainers that start again are another run: nothing of the one before is mixed with theirs, and
 * only steps beyond what is committed are captured. */
static void
test_a_run_after_another(void **state)
{
    struct cairn_session_grant grant, again;
    struct trainer trainer;

    attach(*state, &trainer, 0, 1);
    enlist(&trainer, 0);
    grant = begin(&trainer, 5);
    capture(&trainer, &grant, 0x11);
    await_ready(*state, 5);
    grant = begin(&trainer, 6);
    hang_up(&trainer); /* dies in the middle of step 6 */

    attach(*state, &trainer, 0, 1); /* has restored step 5 */
    enlist(&trainer, 0);
    again = begin(&trainer, 6);
    assert_true(again.generation.run > grant.generation.run);
    capture(&trainer, &again, 0x22);
    await_ready(*state, 6);
    hang_up(&trainer);

    attach(*state, &trainer, 0, 1); /* has restored nothing */
    enlist(&trainer, 0);
    await_run(*state);
    expect_skip(&trainer, 1, CAIRN_REASON_OTHER, "cairn restore --fresh");
    expect_skip(&trainer, 6, CAIRN_REASON_OTHER, "step 6, which this trainer has not restored");
    (void)begin(&trainer, 7);
    hang_up(&trainer);
}

/* A second launch does not take the rank of one that lives; it gets it when that has ended. */
static void
test_a_second_launch_is_refused(void **state)
{
    struct trainer first, second;
    int ready[2];
    char byte;
    pid_t child;

    assert_int_equal(pipe(ready), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        attach(*state, &first, 0, 1);
        enlist(&first, 0);
        if (write(ready[1], "r", 1) != 1)
            _exit(1);
        pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    attach(*state, &second, 0, 1);
    ask_register(&second, 0, 1, TENSOR_BYTES, 40);
    expect_refused(&second, CAIRN_AGAIN, "already runs on this node: process ");
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    enlist(&second, 0);
    (void)begin(&second, 1);
    hang_up(&second);
    close(ready[0]);
    close(ready[1]);
}

/*
 * A trainer of before a restore hears nothing of the new epoch, by whose number the next agent
 * would take it for one that belongs to it, and does not push aside the present holder of its rank.
 */
static void
test_left_overs_of_a_restore(void **state)
{
    static char text[1 << 16];
    struct cairn_session_begin frame = {.step = 2};
    struct cairn_session_hello hello = hello_of(0, 1);
    struct cairn_session_welcome welcome;
    struct cairn_session_grant grant;
    struct trainer old, fresh;

    await_log(*state, "epoch: active");
    attach(*state, &old, 0, 1);
    assert_int_equal(cairn_session_take_welcome(&old.frame, &welcome), CAIRN_OK);
    enlist(&old, 0);
    grant = begin(&old, 1);
    capture(&old, &grant, 0x11);
    await_ready(*state, 1);
    ask(*state, "{\"verb\":\"restore\"}", text, sizeof text);
    assert_non_null(strstr(text, "\"CAIRN_OK\""));
    assert_int_equal(cairn_session_put_begin(&old.writer, &frame), CAIRN_OK);
    assert_int_equal(receive(&old), CAIRN_SESSION_SKIP); /* and no EPOCH before it */

    attach(*state, &fresh, 0, 1);
    enlist(&fresh, 0);
    ask_register(&old, 0, 1, TENSOR_BYTES, 40);
    expect_refused(&old, CAIRN_STALE, "epoch");
    grant = begin(&fresh, 2);
    capture(&fresh, &grant, 0x22);
    await_ready(*state, 2);
    hang_up(&old);

    hello.epoch = welcome.epoch;
    greet(*state, &old, &hello);
    expect_refused(&old, CAIRN_STALE, "end it");
    hang_up(&old);
    hang_up(&fresh);
}

/* ---- what trainers do not cover ---- */

static void
await_status(const struct node *node, const char *part, bool there)
{
    static char text[1 << 16];

    for (uint64_t end = now_ms() + TIMEOUT_MS; now_ms() < end; usleep(20000)) {
        ask(node, "{\"verb\":\"status\"}", text, sizeof text);
        if ((strstr(text, part) != NULL) == there)
            return;
    }
    fail_msg("the status %s: %s\n%s", there ? "never says" : "still says", part, text);
}

/* A tensor of its own, and the rank's word that it is a replica of a few bytes. */
static void
enlist_as_replica(struct trainer *trainer, uint32_t rank, uint32_t index)
{
    char name[16];
    struct cairn_slice slices[2] = {{.name = name,
                                     .dtype = CAIRN_U8,
                                     .kind = CAIRN_PARAM,
                                     .dims = 1,
                                     .shape = {TENSOR_BYTES - 64},
                                     .extent = {TENSOR_BYTES - 64},
                                     .device = -1},
                                    {.name = "bias",
                                     .dtype = CAIRN_F32,
                                     .kind = CAIRN_PARAM,
                                     .dims = 1,
                                     .shape = {4},
                                     .extent = {4},
                                     .device = -1,
                                     .replica_index = index,
                                     .replica_count = 2}};
    const struct cairn_session_register request = {.request = 7, .count = 2, .slices = slices};

    snprintf(name, sizeof name, "own%u", rank);
    assert_int_equal(cairn_session_put_register(&trainer->writer, &request), CAIRN_OK);
    expect(trainer, CAIRN_SESSION_REGISTERED);
    assert_int_equal(cairn_session_take_registered(&trainer->frame, &trainer->registered),
                     CAIRN_OK);
    for (uint32_t i = 0; i < trainer->registered.slot_count; i++) {
        trainer->slot_fds[i] = trainer->frame.fds[i];
        trainer->frame.fds[i] = -1;
    }
}

/* Of few bytes replica 0 captures all: where both are number 1 nobody has them, and no checksum and
 * no sum of bytes tells. */
static void
test_replicas_of_one_number_are_refused(void **state)
{
    struct trainer trainers[2];
    struct cairn_session_grant grant;

    for (uint32_t rank = 0; rank < 2; rank++)
        attach(*state, &trainers[rank], rank, 2);
    for (uint32_t rank = 0; rank < 2; rank++)
        enlist_as_replica(&trainers[rank], rank, 1);
    await_status(*state, "bias: of its 2 replicas none is number 0", true);
    for (uint32_t rank = 0; rank < 2; rank++) /* the other could still register other tensors */
        expect_skip(&trainers[rank], 5, CAIRN_REASON_NOT_READY, "have registered");
    expect_skip(&trainers[0], 6, CAIRN_REASON_OTHER,
                "bias: of its 2 replicas none is number 0, and ranks 0 and 1 both are number 1");
    expect_skip(&trainers[1], 6, CAIRN_REASON_OTHER, "bias: of its 2 replicas");
    for (uint32_t rank = 0; rank < 2; rank++)
        enlist_as_replica(&trainers[rank], rank, rank);
    for (uint32_t rank = 0; rank < 2; rank++) {
        grant = begin(&trainers[rank], 7);
        capture(&trainers[rank], &grant, 0x22);
    }
    await_ready(*state, 7); /* who left before the other's was taken up would end the generation */
    hang_up(&trainers[0]);
    hang_up(&trainers[1]);
}

static void
begin_last(struct trainer *trainer, uint64_t step)
{
    const struct cairn_session_begin frame = {.step = step, .last = 1};

    assert_int_equal(cairn_session_put_begin(&trainer->writer, &frame), CAIRN_OK);
    assert_int_equal(cairn_session_writer_send(&trainer->writer, trainer->fd), CAIRN_OK);
}

/* A rank ends with a step before the other has registered, and while what the other has registered
 * for its restore does not fit: it gets its grant when the other is ready. */
static void
test_a_last_step_waits_for_the_other_rank(void **state)
{
    struct trainer trainers[2];
    struct cairn_session_grant grant;

    for (uint32_t rank = 0; rank < 2; rank++)
        attach(*state, &trainers[rank], rank, 2);
    enlist_as_replica(&trainers[1], 1, 1);
    begin_last(&trainers[1], 8);
    enlist_as_replica(&trainers[0], 0, 1);
    await_status(*state, "bias: of its 2 replicas none is number 0", true);
    enlist_as_replica(&trainers[0], 0, 0);
    begin_last(&trainers[0], 8);
    for (uint32_t rank = 0; rank < 2; rank++) {
        expect(&trainers[rank], CAIRN_SESSION_GRANT);
        assert_int_equal(cairn_session_take_grant(&trainers[rank].frame, &grant), CAIRN_OK);
        assert_int_equal(grant.step, 8);
        capture(&trainers[rank], &grant, 0x33);
    }
    await_ready(*state, 8);
    hang_up(&trainers[0]);
    hang_up(&trainers[1]);
}

static void
test_what_is_not_covered_is_in_the_status(void **state)
{
    struct cairn_session_coverage coverage = {
        "",
        2,
        2,
        {{CAIRN_OPTIMIZER, "exp_avg.w", "its layout is sparse"},
         {CAIRN_BUFFER, "mask \xc3\xbc", "meta"}}};
    struct trainer trainer;

    attach(*state, &trainer, 0, 1);
    enlist(&trainer, 0);
    await_status(*state, "\"reports\":false", true);
    await_status(*state,
                 "\"tensors\":{\"parameter\":1,\"optimizer\":0,\"buffer\":0,\"opaque\":0},"
                 "\"bytes\":{\"parameter\":196608,",
                 true);
    assert_int_equal(cairn_session_put_coverage(&trainer.writer, &coverage), CAIRN_OK);
    assert_int_equal(cairn_session_writer_send(&trainer.writer, trainer.fd), CAIRN_OK);
    await_status(
        *state,
        "{\"kind\":\"optimizer\",\"name\":\"exp_avg.w\",\"reason\":\"its layout is sparse\"", true);
    await_status(*state, "\"left_out\":2", true);
    await_status(*state, "\"not-covered\"", true);
    await_status(*state, "\"snapshots-refused\"", false);
    memset(&coverage, 0, sizeof coverage); /* replaced as a whole */
    snprintf(coverage.refusal, sizeof coverage.refusal, "LBFGS keeps one state");
    assert_int_equal(cairn_session_put_coverage(&trainer.writer, &coverage), CAIRN_OK);
    assert_int_equal(cairn_session_writer_send(&trainer.writer, trainer.fd), CAIRN_OK);
    await_status(*state, "\"not-covered\"", false);
    await_status(*state, "1 rank takes no snapshots; rank 0: LBFGS keeps one state", true);
    await_log(*state, "takes no snapshots: LBFGS keeps one state");
    hang_up(&trainer); /* and goes with its session */
    await_status(*state, "LBFGS", false);
    await_status(*state, "\"trainers_attached_total\":1", true);
}

/* Texts that would steer a terminal, or that have no end, cost the session that sends them. */
static void
test_hostile_coverage_ends_its_session(void **state)
{
    static const struct {
        const char *refusal;
        uint32_t says, bytes;
    } hostile[] = {{"\x1b]0;owned\x07", 10, 10},
                   {"a\0b", 3, 3},
                   {"\xff\xff", 2, 2},
                   {"x", 1 << 30, 1},
                   {"\xc2\x9b"
                    "2J",
                    4, 4},
                   {"two\nlines", 9, 9}};

    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        uint8_t payload[64] = {0};
        struct trainer trainer;

        payload[0] = (uint8_t)hostile[i].says;
        payload[3] = (uint8_t)(hostile[i].says >> 24);
        memcpy(payload + 4, hostile[i].refusal, hostile[i].bytes);
        attach(*state, &trainer, 0, 1);
        assert_int_equal(cairn_session_put_frame(&trainer.writer, CAIRN_SESSION_COVERAGE, payload,
                                                 4 + hostile[i].bytes + 8, NULL, 0),
                         CAIRN_OK);
        assert_int_equal(receive(&trainer), 0);
        hang_up(&trainer);
    }
    await_status(*state, "\"refusals\":[]", true);
}

static void
test_one_agent_per_socket(void **state)
{
    struct node *node = *state;

    assert_int_equal(wait_exit(start_process(node)), 75);
    assert_true(logged(node, "another agent serves"));
    assert_int_equal(access(node->config.socket, F_OK), 0); /* the first one's is untouched */
}

static void
test_what_stops_the_start(void **state)
{
    struct node *node = *state;
    struct sockaddr_in address = {.sin_family = AF_INET};
    char host[CAIRN_CONFIG_ADDRESS_BYTES_MAX];
    struct cairn_config good = node->config;
    int fd;

    node->config.state_bytes = UINT64_C(1) << 40;
    assert_int_equal(wait_exit(start_process(node)), 1);
    assert_true(logged(node, "1.00 TiB state"));
    node->config = good;

    fd = open(node->config.socket, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_int_equal(wait_exit(start_process(node)), 78);
    assert_true(logged(node, "is not a socket"));
    assert_int_equal(access(node->config.socket, F_OK), 0); /* not ours to remove */
    close(fd);
    unlink(node->config.socket);

    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(host, good.nodes[0].address, sizeof host);
    address.sin_port = htons((uint16_t)strtoul(strchr(host, ':') + 1, NULL, 10));
    *strchr(host, ':') = 0;
    assert_int_equal(inet_pton(AF_INET, host, &address.sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(wait_exit(start_process(node)), 69);
    close(fd);

    snprintf(node->config.dir, sizeof node->config.dir, "/proc/none");
    assert_int_equal(wait_exit(start_process(node)), 74);
    node->config = good;
    snprintf(node->config.socket, sizeof node->config.socket, "%s/no/such/folder", node->dir);
    assert_int_equal(wait_exit(start_process(node)), 74);
    node->config = good;
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_who_does_not_belong_is_refused, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_a_rank_registers_anew_and_larger, start_node,
                                        end_node),
        cmocka_unit_test_setup_teardown(test_memory_is_cut_again_from_the_next_begin_on, start_node,
                                        end_node),
        cmocka_unit_test_setup_teardown(test_what_does_not_fit_is_refused_at_register, start_node,
                                        end_node),
        cmocka_unit_test_setup_teardown(test_a_generation_outlives_the_agent, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_new_memory_stays_new_until_it_is_stored, start_node,
                                        end_node),
        cmocka_unit_test_setup_teardown(test_frames_out_of_place, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_noise_ends_its_own_session_alone, start_node,
                                        end_node),
        cmocka_unit_test_setup_teardown(test_a_dead_trainer_whose_child_lives, start_node,
                                        end_node),
        cmocka_unit_test_setup_teardown(test_a_slot_waits_for_its_old_writer, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_a_run_after_another, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_left_overs_of_a_restore, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_a_last_step_waits_for_the_other_rank, start_node,
                                        end_node),
        cmocka_unit_test_setup_teardown(test_replicas_of_one_number_are_refused, start_node,
                                        end_node),
        cmocka_unit_test_setup_teardown(test_a_second_launch_is_refused, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_what_is_not_covered_is_in_the_status, start_node,
                                        end_node),
        cmocka_unit_test_setup_teardown(test_hostile_coverage_ends_its_session, start_node,
                                        end_node),
        cmocka_unit_test_setup_teardown(test_one_agent_per_socket, start_node, end_node),
        cmocka_unit_test_setup_teardown(test_what_stops_the_start, make_node, end_node),
    };
    int exit_code;

    if (keeper_main(argc, argv, &exit_code))
        return exit_code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
