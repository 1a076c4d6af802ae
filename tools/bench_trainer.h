/*
 * tools/bench_trainer.h - the synthetic trainer's own process: obeys commands over a socket.
 */
#ifndef CAIRN_TOOLS_BENCH_TRAINER_H
#define CAIRN_TOOLS_BENCH_TRAINER_H

#include <stdbool.h>
#include <stdint.h>

enum cairn_bench_order {
    CAIRN_BENCH_ORDER_FILL = 1, /* write the state of `step` */
    CAIRN_BENCH_ORDER_STEP,     /* begin, train on for step_ns, fence */
    CAIRN_BENCH_ORDER_RESTORE,  /* restore and compare with the state of `step` */
    CAIRN_BENCH_ORDER_ROOM,     /* map the tensors of the next placement */
    CAIRN_BENCH_ORDER_MOVE,     /* move the tensors that can move there */
    CAIRN_BENCH_ORDER_SETTLE    /* compare what came, and let go of what was before */
};

struct cairn_bench_command {
    uint32_t order;
    uint32_t reserved;
    uint64_t step;
    uint64_t step_ns;
};

struct cairn_bench_trainer {
    const char *agent_socket;
    uint32_t rank;
    uint32_t world;
    uint64_t state_bytes;
    bool moves; /* most tensors lie on one rank, and can move to the next */
    int fd;     /* commands in, struct cairn_bench_answer out; one answer when it has registered */
};

/* Runs until the other end of the socket closes. Returns the exit code. */
int cairn_bench_trainer_run(const struct cairn_bench_trainer *trainer);

#endif
