#!/usr/bin/env python3
"""Layers move between stages while training goes on, and a rank that is killed at any point of a
move costs no more than a restart: the result is the same, bit by bit."""
import json
import os
import unittest

from harness import (
    FAULTS,
    GPT,
    OK,
    PATIENCE,
    Built,
    cairn,
    free_ports,
    problem,
    spawn,
    text_of,
    undisturbed,
    wait_for,
)

DP, PP, LAYERS, LAYER_MS, STEPS = 2, 2, 8, 4, 260
SLOW_RANK, KILLED_RANK = 2, 3
SHAPE = (
    f"--dp {DP} --pp {PP} --layers {LAYERS} --d-model 16 --heads 2 --context 16 "
    f"--micro-batch-size 2 --micro-batches 4,4 --log-every 0 --steps {STEPS}"
).split()
SLOW = f"--emulate-layer-ms {LAYER_MS} --emulate-slow {SLOW_RANK}:4@40-{STEPS}".split()

# weights and both moments of AdamW, in 4 bytes each: 12 d^2 + 13 d of them
LAYER_STATE_BYTES = 3 * 4 * (12 * 16 * 16 + 13 * 16)


class Moves(Built):
    def agents(self, state="2MiB", layer_bytes=1 << 20, prefixes=None):
        cluster = self.cluster(
            prefixes=prefixes,
            nodes=DP * PP,
            parity=1,
            state=state,
            options="plan_policy: enforce\nverdict_policy: advise",
        )
        room_bytes = (LAYERS - 1) * layer_bytes
        cluster.plan_for(problem([LAYERS // 2] * PP, [4] * DP, LAYER_MS, room_bytes, layer_bytes))
        return cluster.start()

    def train(self, cluster, name, *words, death=None):
        """Starts the ranks; one of them may end at a point of a move."""
        peers = ",".join(f"127.0.0.1:{port}" for port in free_ports(DP * PP))
        ranks = []
        for rank in range(DP * PP):
            command = [GPT, "--rank", str(rank), "--peers", peers, *SHAPE, *SLOW, *words]
            command += ["--agent", cluster.socket(rank), "--job", "cluster"]
            command += ["--events", cluster.path(f"{name}.jsonl")]
            command += ["--emulate-death", death] if death and rank == KILLED_RANK else []
            log = cluster.path(f"{name}-{rank}.log")
            rank_process = spawn(command, log, prefix=("env", "CAIRN_TIMING=1"))
            ranks.append(self.end_with_test(rank_process))
        return ranks

    def events(self, cluster, name, event):
        lines = [json.loads(line) for line in text_of(cluster.path(f"{name}.jsonl")).splitlines()]
        return [line for line in lines if line["event"] == event]

    def wait(self, cluster, name, ranks):
        """Returns the ranks' exit statuses."""
        codes = [rank.wait(timeout=60 * PATIENCE) for rank in ranks]
        logs = [text_of(cluster.path(f"{name}-{rank}.log"))[-600:] for rank in range(DP * PP)]
        return codes, "\n".join(logs)

    def finish(self, cluster, name, ranks):
        codes, logs = self.wait(cluster, name, ranks)
        self.assertEqual(codes, [OK] * (DP * PP), logs)
        (done,) = [each for each in self.events(cluster, name, "done") if each["rank"] == 0]
        self.assertEqual((done["loss_sha256"], done["state_sha256"]), undisturbed(SHAPE))

    def check_bytes(self, moves):
        """Nothing but the layers that a rank did not have comes from other nodes."""
        layers = {step: move["layers"] for move in moves for step in [move["step"]]}
        steps = sorted(layers)
        before = dict(zip(steps, [[[LAYERS // PP] * PP] * DP, *map(layers.get, steps)]))
        for move in moves:
            replica, stage = divmod(move["rank"], PP)
            first, now_first = (
                sum(plan[replica][:stage]) for plan in (before[move["step"]], move["layers"])
            )
            had = range(first, first + before[move["step"]][replica][stage])
            has = range(now_first, now_first + move["layers"][replica][stage])
            came = len(set(has) - set(had))
            self.assertLessEqual(move["remote_bytes"], came * LAYER_STATE_BYTES + 1024, moves)

    def test_a_rank_dies_at_each_point_of_a_move(self):
        cluster = self.agents()
        for death in ("enter", "fill", "vote", "adopt"):
            words = [] if death == "enter" else ["--resume"]
            ranks = self.train(cluster, death, *words, death=death)
            codes, logs = self.wait(cluster, death, ranks)
            self.assertEqual(codes[KILLED_RANK], -9, logs)  # it has come to that point
            for rank, code in enumerate(codes):
                self.assertIn(code, (-9, 75), f"rank {rank}\n{logs}")
            if death != "adopt":  # one rank has not voted: nobody may have moved
                adopted = [each["adopted"] for each in self.events(cluster, death, "move")]
                self.assertNotIn(True, adopted if death != "vote" else [])
            code, _, talk = cluster.restore()
            self.assertEqual(code, OK, talk)
        ranks = self.train(cluster, "last", "--resume")
        self.finish(cluster, "last", ranks)
        moves = self.events(cluster, "last", "move")
        self.assertEqual({move["rank"] for move in moves}, set(range(DP * PP)))
        self.assertTrue(all(move["adopted"] for move in moves), moves)
        self.assertNotEqual(moves[0]["layers"], [[4, 4], [4, 4]])
        self.assertEqual(cluster.status(1)["replan"]["offer"]["layers"], moves[-1]["layers"])
        self.check_bytes(moves)
        print(f"stood still {max(move['standstill_ns'] for move in moves) / 1e6:.0f} ms")

    def test_blocks_that_are_damaged_on_their_way_are_asked_for_again(self):
        """What comes for a rank is damaged, and so is what comes when the rank asks again, which
        its agent compares: all moves end well, with the right bytes."""
        faults = self.new_folder()
        prefix = ("env", f"LD_PRELOAD={FAULTS}", f"CAIRN_FAULTS={faults}")
        cluster = self.agents(prefixes=[prefix] * (DP * PP))
        damages = os.path.join(faults, "blocks")
        with open(damages, "w") as file:
            file.write(8 * ".")
        ranks = self.train(cluster, "damaged")
        self.finish(cluster, "damaged", ranks)
        moves = self.events(cluster, "damaged", "move")
        self.assertTrue(moves and all(move["adopted"] for move in moves), moves)
        self.assertFalse(os.path.exists(damages), "nothing was damaged")
        logs = "".join(cluster.log(node) for node in range(DP * PP))
        self.assertIn("damaged blocks were found while a generation is read", logs)

    def test_a_move_without_room_is_given_up(self):
        """Slots that hold the present layers and no more, and a problem that takes layers for
        smaller than they are: the fill fails, training goes on."""
        cluster = self.agents(state="144KiB", layer_bytes=1024)  # whole blocks of 64 KiB count
        ranks = self.train(cluster, "small")
        wait_for("a move is tried", lambda: self.events(cluster, "small", "move"), 60)
        self.finish(cluster, "small", ranks)
        moves = self.events(cluster, "small", "move")
        self.assertFalse(any(move["adopted"] for move in moves), moves)
        self.assertEqual(moves[0]["layers"], [[4, 4], [4, 4]])
        self.assertGreater(cluster.committed()[1], moves[0]["step"], "protected again")

    def test_no_move_without_room_is_offered(self):
        """The same slots, and a problem that does not: the agents say why they offer none."""
        cluster = self.agents(state="128KiB", layer_bytes=16 << 10)
        ranks = self.train(cluster, "full")

        def refused():
            return (cluster.status(0)["replan"]["refused"] or {}).get("gate") == "slots"

        wait_for("a move is refused", refused, 60)
        code, answer, talk = cairn("replan", "--agent", cluster.socket(1))
        self.assertEqual((code, answer["refused"]["gate"]), (OK, "slots"), talk)
        code, _, talk = cairn("replan", "--now", "--agent", cluster.socket(1))
        self.assertEqual(code, 1, talk)
        self.finish(cluster, "full", ranks)
        self.assertEqual(self.events(cluster, "full", "move"), [])
        self.assertEqual(cluster.status(0)["replan"]["offer"]["layers"], [[4, 4], [4, 4]])


if __name__ == "__main__":
    unittest.main()
