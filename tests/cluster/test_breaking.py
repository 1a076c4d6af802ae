#!/usr/bin/env python3
"""What once lost a committed state, or stopped commits without a word: a repair around an agent
that comes back, the same job launched twice, nodes configured differently."""
import re
import shutil
import time
import unittest

from harness import AGAIN, LOST, OK, PATIENCE, PEER, TORN, Built, Trainer, cairn, say, wait_for


def survives(status):
    """How many nodes of a group can be lost, as the status says; None while it does not know."""
    return (status.get("protection") or {}).get("survives_nodes_per_group")


def named(status, option, codes=("options-differ",)):
    """The status says that some node sets the option differently."""
    return any(
        check["code"] in codes and re.search(rf"\b{option}\b", check["what"] + check["fix"])
        for check in status.get("checks", [])
    )


class Breaking(Built):
    # ---- a repair around an agent that comes back ----

    def test_repaired_around_an_agent_that_comes_back(self):
        """The repair puts the part on a survivor; the owner comes back with its own copy. Then any
        two nodes may be lost, also the one that holds two parts."""
        cluster = self.cluster(6, 2, dead_after_ms=400)
        for node in range(6):
            cluster.configure(node, repair_after_ms=1000)
        cluster.start()
        cluster.train()
        cluster.wait_committed((1, 3))
        cluster.stop_trainers()
        newest = cluster.committed()
        before = self.reserved(wait_for("all answer", lambda: self.all_answer(cluster)))
        cluster.kill_agent(3)

        def repaired():
            status = cluster.status()
            return (
                (status.get("protection") or {}).get("missing_parts") == 0
                and status["epoch"] > newest[0]
                and status
            )

        status = wait_for("its part is rebuilt on a survivor", repaired, 60)
        after = self.reserved(status)
        hosts = [n for n in after if after[n] > before[n]]
        claimed_without = survives(status)
        say(f"node {hosts} holds two parts: status says that any {claimed_without} can be lost")
        cluster.start(3)
        status = wait_for("it is back", lambda: self.all_answer(cluster))
        claimed = wait_for("status knows what can be lost", lambda: survives(cluster.status()))
        say(f"the agent is back: status says that any {claimed} can be lost")
        self.assertTrue(hosts, "no node took memory for a second part")
        lost = [hosts[0], next(n for n in (1, 2, 4, 5, 0) if n != hosts[0])][:claimed]
        for node in lost:
            cluster.kill_node(node)
        cluster.start(*lost)
        code, answer, error = cluster.restore(3)
        self.assertEqual(code, OK, f"lost {lost}: {answer} {error}")
        self.check_restored(cluster, answer, newest, node=3)
        self.assertEqual(claimed, 2, "an intact copy of its own part was given up")
        self.assertEqual(claimed_without, 1, "two parts on one node are lost together")

    def all_answer(self, cluster):
        status = cluster.status()
        return status.get("nodes_answering") == cluster.nodes and status

    def reserved(self, status):
        return {n["node"]: n["reserved_bytes"] for n in status["nodes"] if "reserved_bytes" in n}

    # ---- one job, launched twice ----

    def launch(self, cluster, number, salt, resume=False, barrier=None):
        barrier = cluster.path(f"barrier-{barrier or number}")
        return [
            Trainer(
                cluster,
                rank,
                cluster.nodes,
                barrier,
                launch=number,
                salt=salt,
                resume=resume,
                step_us=5000,
            )
            for rank in range(cluster.nodes)
        ]

    def test_launched_twice(self):
        """The second launch is refused by name while the first one lives; the first goes on, and is
        what comes back."""
        cluster = self.cluster(4, 1)
        cluster.start()
        first = self.launch(cluster, 1, salt=1)
        cluster.trainers = list(first)
        newest = cluster.wait_committed((1, 5))
        for _ in range(3):
            second = self.launch(cluster, 2, salt=2)
            cluster.trainers += second
            for rank, trainer in enumerate(second):
                code = trainer.process.wait(timeout=30 * PATIENCE)
                self.assertEqual(code, AGAIN, trainer.err())
                self.assertIn(str(first[rank].process.pid), trainer.err(), "who has the rank?")
            newest = cluster.wait_committed(max(newest, cluster.committed()), 60)
        say(f"second launch: exit {code}: {second[0].err().strip().splitlines()[0]}")
        self.assertTrue(all(trainer.process.poll() is None for trainer in first))
        cluster.stop_trainers()
        newest = max(newest, cluster.committed())
        code, answer, error = cluster.restore(1)
        self.assertEqual(code, OK, f"{answer} {error}")
        self.check_restored(cluster, answer, newest, salt=1)
        # nobody has the ranks now
        cluster.trainers = self.launch(cluster, 3, salt=1, resume=True)
        cluster.wait_committed(newest)

    def test_launched_again_on_a_node_without_ranks(self):
        """Its agent asks the others: the second launch is refused by name there too, until the
        first one has ended. The first goes on all the same."""
        cluster = self.cluster(3, 1)
        cluster.start()
        options = {"world": 2, "step_us": 5000}
        first = [
            Trainer(cluster, rank, barrier=cluster.path("first"), launch=1, **options)
            for rank in range(2)
        ]
        cluster.trainers = list(first)
        newest = cluster.wait_committed((1, 5))
        wait_for(
            "the third node is no member",
            lambda: re.findall(r"epoch: active epoch=(\d+)", cluster.log(0))[-1] == "2",
        )
        newest = cluster.wait_committed(max(newest, cluster.committed()))
        runs = cluster.log(0).count("run: assembled")
        for rank in range(2):
            second = Trainer(
                cluster, rank, barrier=cluster.path("second"), node=2, launch=2, **options
            )
            cluster.trainers.append(second)
            self.assertEqual(second.process.wait(timeout=30 * PATIENCE), AGAIN, second.err())
            self.assertIn(f"already runs on node {rank}: process", second.err())
            self.assertIn(str(first[rank].process.pid), second.err(), "who has the rank?")
            newest = cluster.wait_committed(max(newest, cluster.committed()))
        self.assertEqual(cluster.log(0).count("run: assembled"), runs)
        self.assertTrue(all(trainer.process.poll() is None for trainer in first))
        cluster.stop_trainers()
        code, _, error = cluster.restore(0)
        self.assertEqual(code, OK, error)
        cluster.trainers = [
            Trainer(
                cluster,
                rank,
                barrier=cluster.path("third"),
                node=2 - rank,
                launch=3,
                resume=True,
                **options,
            )
            for rank in range(2)
        ]
        cluster.wait_committed(max(newest, cluster.committed()))

    def test_two_launches_are_never_mixed(self):
        """Two launches at once, at the same steps, killed at any moment: what is restored is all of
        one of them."""
        cluster = self.cluster(4, 1)
        cluster.start()
        restored = 0
        for turn in range(6):
            board = f"of-both{turn}"
            before = cluster.committed()
            cluster.trainers = self.launch(cluster, 2 * turn + 1, 1, barrier=board)
            time.sleep(0.1 * turn)  # how far the first has come when the second one starts
            cluster.trainers += self.launch(cluster, 2 * turn + 2, 2, barrier=board)
            time.sleep(2)
            cluster.stop_trainers()
            if cluster.committed() > before:
                code, answer, error = cluster.restore(turn % 4)
                self.assertEqual(code, OK, f"{answer} {error}")
                codes = [cluster.check(salt=salt)[0] for salt in (1, 2)]
                say(f"turn {turn}: restored {answer['generation']}, checks {codes}")
                self.assertEqual(sorted(codes), [OK, TORN], "a restore mixed two launches")
                restored += 1
            code, _, error = cluster.restore(0, "--fresh")
            self.assertEqual(code, OK, error)
        self.assertGreater(restored, 0, "neither launch ever committed anything")

    # ---- nodes configured differently ----

    def differ(self, option, change, sides=(0, 3), codes=("options-differ",), harmless=None):
        """One of four nodes is configured differently: both sides name the option, in their logs
        and in their status, and commands end. Or it is harmless in this start."""
        cluster = self.cluster(4, 1)
        change(cluster)
        cluster.start()
        begun = time.monotonic()
        for node in sides:
            wait_for(
                f"node {node} names {option} in its log",
                lambda node=node: self.logged(cluster, node, option)
                or (harmless and harmless(cluster)),
            )
            wait_for(
                f"the status of node {node} names {option}",
                lambda node=node: named(cluster.status(node), option, codes)
                or (harmless and harmless(cluster)),
            )
        say(f"{option}: named by both sides after {time.monotonic() - begun:.1f} s")
        for node in (0, 3):
            code, answer, error = cairn("restore", "--agent", cluster.socket(node))
            say(f"a restore at node {node}: exit {code} {error.strip()[:200]}")
            self.assertIn(code, (OK, LOST, PEER, AGAIN), f"{answer} {error}")
        self.assertFalse(any(cluster.ended(node) for node in range(4)), "an agent ended")
        # what differed is mended; its memory was laid out for what it was
        cluster.kill_node(3)
        shutil.copy(cluster.path("node0.yaml"), cluster.path("node3.yaml"))
        cluster.configure(3, node=3, socket=cluster.socket(3), dir=cluster.state(3))
        cluster.start(3)
        cluster.train(step_us=20000)
        cluster.wait_committed((0, 0), 60)
        self.assertFalse(named(cluster.status(sides[0]), option, codes))

    def logged(self, cluster, node, option):
        return any(
            re.search(rf"\berror\b.*\b{option}\b", line) for line in cluster.log(node).splitlines()
        )

    def test_another_parity(self):
        self.differ("parity", lambda cluster: cluster.configure(3, parity=2))

    def test_another_group_size(self):
        self.differ("group_size", lambda cluster: cluster.configure(3, group_size=2))

    def test_another_node_list(self):
        def change(cluster):
            with open(cluster.path("node3.yaml"), "a") as file:
                file.write('  - {address: "127.0.0.1:11999"}\n')

        self.differ("nodes", change)

    def test_another_order(self):
        def change(cluster):
            with open(cluster.path("node3.yaml"), "r+") as file:
                head, nodes = file.read().split("nodes:\n")
                lines = nodes.splitlines(True)
                lines[1], lines[2] = lines[2], lines[1]
                file.seek(0)
                file.write(head + "nodes:\n" + "".join(lines))

        # Neighbours hear it if node 3 calls them: what is wrong is who is where. If they call it
        # first, all prove their own names, and no wrong address is used.
        self.differ(
            "nodes?",
            change,
            (1, 3),
            ("options-differ", "peers-denied"),
            lambda cluster: cluster.status(3).get("nodes_answering") == 4,
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
