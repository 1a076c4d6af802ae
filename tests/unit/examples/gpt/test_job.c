/*
 * tests/unit/examples/gpt/test_job.c - whole jobs: what they compute, and what becomes of them when
 * a rank is killed, hung, missing or different.
 */
#include "job.h"

enum { PEER_TIMEOUT_MS = 60000 }; /* the trainer's default */

static void
test_loss_falls(void **state)
{
    struct result result;

    run_job(1, "--steps 60 --micro-batches 4", &result);
    assert_true(strtod(result.loss_first, NULL) > 5.3);
    assert_true(strtod(result.loss_last, NULL) < 3.4);
}

static void
test_every_division_gives_the_same_bits(void **state)
{
    static const struct {
        uint32_t ranks;
        const char *arguments;
    } divisions[] = {
        {6, "--steps 6 --dp 2 --pp 3 --micro-batches 3,3"},
        {6, "--steps 6 --dp 2 --pp 3 --micro-batches 3,3"}, /* again: no timing enters */
        {6, "--steps 6 --dp 2 --pp 3 --micro-batches 1,5 --stage-layers 1,4,1"},
        {6, "--steps 6 --dp 3 --pp 2 --micro-batches 1,3,2 --stage-layers 5,1"},
        {6, "--steps 6 --dp 2 --pp 3 --micro-batches 4,2 --stage-layers 2,2,2/4,1,1"},
        {6, "--steps 6 --dp 3 --pp 2 --micro-batches 2,2,2 --stage-layers 5,1/1,5/3,3"},
        {4, "--steps 6 --dp 4 --pp 1 --micro-batches 1,2,2,1"},
        {1, "--steps 6 --micro-batches 6"},
    };
    struct result first;
    struct result other;

    run_job(divisions[0].ranks, divisions[0].arguments, &first);
    for (size_t i = 1; i < sizeof divisions / sizeof *divisions; i++) {
        run_job(divisions[i].ranks, divisions[i].arguments, &other);
        assert_string_equal(first.loss_sha256, other.loss_sha256);
        assert_string_equal(first.state_sha256, other.state_sha256);
    }
    run_job(1, "--steps 6 --micro-batches 6 --seed 2", &other); /* and the hashes can differ */
    assert_string_not_equal(first.loss_sha256, other.loss_sha256);
    assert_string_not_equal(first.state_sha256, other.state_sha256);
}

/* Waits until the rank's events tell of `step`. */
static void
wait_for_step(const struct job *job, uint32_t rank, int step)
{
    uint64_t deadline_ms = now_ms() + WAIT_S * 1000;
    char text[32];

    snprintf(text, sizeof text, "\"step\":%d,", step);
    for (;;) {
        char path[128];

        assert_true(now_ms() < deadline_ms);
        snprintf(path, sizeof path, "%s/%u", job->dir, rank);
        if (access(path, R_OK) == 0 && strstr(slurp(job, rank, ""), text))
            return;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

static void
test_a_killed_rank_ends_the_others_at_once(void **state)
{
    char line[512];

    snprintf(line, sizeof line, "%s --steps 100000 --dp 2 --pp 3", small_model);
    for (uint32_t victim = 0; victim < 6; victim += 3) {
        struct job job;
        uint64_t begin_ms;

        job_init(&job, 6);
        start_all(&job, line);
        wait_for_step(&job, 0, 5);
        begin_ms = now_ms();
        kill(job.pids[victim], SIGKILL);
        wait_all(&job);
        assert_true(now_ms() - begin_ms < PEER_TIMEOUT_MS / 2);
        for (uint32_t i = 0; i < 6; i++) {
            assert_int_equal(job.status[i], i == victim ? 256 + SIGKILL : 75);
            assert_true(i == victim || strstr(slurp(&job, i, ".log"), "lost rank"));
        }
        job_fini(&job);
    }
}

static void
test_a_stopped_rank_is_given_up_after_the_timeout(void **state)
{
    struct job job;
    char line[512];

    snprintf(line, sizeof line, "%s --steps 100000 --pp 2 --peer-timeout-s 4", small_model);
    job_init(&job, 2);
    start_all(&job, line);
    wait_for_step(&job, 0, 3);
    kill(job.pids[1], SIGSTOP);
    while (waitpid(job.pids[0], &job.status[0], WNOHANG) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    job.status[0] = WEXITSTATUS(job.status[0]);
    kill(job.pids[1], SIGCONT);
    wait_all(&job);
    assert_int_equal(job.status[0], 75);
    assert_int_equal(job.status[1], 75);
    assert_non_null(strstr(slurp(&job, 0, ".log"), "did nothing for 4 s"));
    job_fini(&job);
}

/* Rank 1 waits for rank 0, which hangs, when rank 2 dies: it must not wait for the timeout of 0. */
static void
test_a_death_is_seen_while_another_rank_is_waited_for(void **state)
{
    struct job job;
    char line[512];
    uint64_t begin_ms;
    int status = 0;

    snprintf(line, sizeof line, "%s --steps 100000 --dp 3", small_model);
    job_init(&job, 3);
    start_all(&job, line);
    wait_for_step(&job, 1, 3);
    kill(job.pids[0], SIGSTOP);
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    begin_ms = now_ms();
    kill(job.pids[2], SIGKILL);
    while (waitpid(job.pids[1], &status, WNOHANG) == 0 && now_ms() - begin_ms < PEER_TIMEOUT_MS)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    assert_true(now_ms() - begin_ms < PEER_TIMEOUT_MS / 2);
    assert_true(WIFEXITED(status));
    job.status[1] = WEXITSTATUS(status);
    kill(job.pids[0], SIGKILL);
    wait_all(&job);
    assert_int_equal(job.status[1], 75);
    assert_non_null(strstr(slurp(&job, 1, ".log"), "lost rank 2"));
    job_fini(&job);
}

static void
test_a_missing_rank_is_named(void **state)
{
    struct job job;
    char line[512];

    snprintf(line, sizeof line, "%s --steps 3 --pp 3 --peer-timeout-s 4", small_model);
    job_init(&job, 3);
    start_rank(&job, 0, line);
    start_rank(&job, 1, line);
    wait_all(&job);
    assert_int_equal(job.status[1], 75);
    assert_int_equal(job.status[0], 75);
    assert_non_null(strstr(slurp(&job, 1, ".log"), "rank 2"));
    job_fini(&job);
}

static void
test_ranks_with_other_settings_do_not_mix(void **state)
{
    struct job job;
    char line[512];
    char other[560];

    snprintf(line, sizeof line, "%s --steps 3 --pp 2 --peer-timeout-s 20", small_model);
    snprintf(other, sizeof other, "%s --seed 9", line);
    job_init(&job, 2);
    start_rank(&job, 0, line);
    start_rank(&job, 1, other);
    wait_all(&job);
    assert_int_equal(job.status[0], 78);
    assert_non_null(strstr(slurp(&job, 0, ".log"), "other settings"));
    assert_true(job.status[1] == 75 || job.status[1] == 78);
    job_fini(&job);
}

static void
test_strangers_are_sent_away(void **state)
{
    static const uint8_t noise[64] = "GET / HTTP/1.1\r\n\r\n";
    struct job job;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char line[512];
    int fd = -1;

    snprintf(line, sizeof line, "%s --steps 3 --pp 2", small_model);
    job_init(&job, 2);
    address.sin_port = htons((uint16_t)strtoul(strchr(job.peers, ':') + 1, NULL, 10));
    start_rank(&job, 0, line);
    for (int i = 0; i < 2000; i++) {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            break;
        close(fd);
        fd = -1;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    assert_true(fd >= 0);
    assert_int_equal(write(fd, noise, sizeof noise), (ssize_t)sizeof noise);
    start_rank(&job, 1, line);
    wait_all(&job);
    close(fd);
    assert_int_equal(job.status[0], 0);
    assert_int_equal(job.status[1], 0);
    job_fini(&job);
}

static void
test_statuses_of_bad_input(void **state)
{
    static const struct {
        const char *arguments;
        int status;
        const char *said;
    } cases[] = {
        {"--steps nothing", 64, "--steps nothing"},
        {"--text /nowhere", 74, "/nowhere"},
        {"--text /dev/null", 65, "not a regular file"},
        {"--final /proc/nowhere --steps 1", 74, "final.safetensors"},
        {"--lr 10 --clip 1000000 --steps 300 --warmup-steps 0 --weight-decay 10", 1, "not finite"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job job;
        char line[512];

        job_init(&job, 1);
        snprintf(line, sizeof line, "%s %s", small_model, cases[i].arguments);
        start_all(&job, line);
        wait_all(&job);
        if (job.status[0] != cases[i].status || !strstr(slurp(&job, 0, ".log"), cases[i].said))
            fail_msg("%s: status %d: %s", cases[i].arguments, job.status[0],
                     slurp(&job, 0, ".log"));
        job_fini(&job);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_falls),
        cmocka_unit_test(test_every_division_gives_the_same_bits),
        cmocka_unit_test(test_a_killed_rank_ends_the_others_at_once),
        cmocka_unit_test(test_a_stopped_rank_is_given_up_after_the_timeout),
        cmocka_unit_test(test_a_death_is_seen_while_another_rank_is_waited_for),
        cmocka_unit_test(test_a_missing_rank_is_named),
        cmocka_unit_test(test_ranks_with_other_settings_do_not_mix),
        cmocka_unit_test(test_strangers_are_sent_away),
        cmocka_unit_test(test_statuses_of_bad_input),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
