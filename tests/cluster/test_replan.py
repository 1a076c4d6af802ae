#!/usr/bin/env python3
"""`cairn replan` under plan_policy approve and enforce: trainers get no placement before an
operator approves it, what was denied stays denied, an operator can go back, and a decision that
comes too late, twice or for nothing is refused while training goes on as before."""
import os
import signal
import subprocess
import unittest

from harness import (
    CAIRN,
    DENIED,
    FAILED,
    LOST,
    OK,
    PATIENCE,
    PEER,
    USAGE,
    cairn,
    run,
    undisturbed,
    wait_for,
)
from shares_job import DP, HOME, LAYER_MS, PP, SHAPE, SHARED, SHARED_MS, SLOW, SLOW_BY, SLOW_FROM
from shares_job import SLOW_MS, SLOW_RANK, SLOW_TO, STEPS, SharesJob

RANKS = DP * PP
ALWAYS_SLOW = (
    f"--emulate-layer-ms {LAYER_MS} --emulate-slow {SLOW_RANK}:{SLOW_BY}@{SLOW_FROM}-{STEPS}"
).split()


class Replan(SharesJob):
    def replan(self, cluster, *words, node=1):
        """(exit code, JSON, stderr) of `cairn replan` at an agent that does not plan."""
        return cairn("replan", *words, "--agent", cluster.socket(node))

    def proposal(self, cluster, node=1):
        return (self.replan(cluster, node=node)[1] or {}).get("proposal")

    def waiting(self, cluster, number, seconds=60):
        """The proposal with this number, once it waits at every agent."""
        for node in range(RANKS):
            wait_for(
                f"proposal {number} waits at node {node}",
                lambda node=node: (self.proposal(cluster, node) or {}).get("number") == number,
                seconds,
            )
        return self.proposal(cluster)

    def refused(self, cluster, exit_code, said, *words, node=1):
        code, answer, error = self.replan(cluster, *words, node=node)
        self.assertEqual(code, exit_code, (words, answer, error))
        self.assertRegex(answer["error"], said)
        self.assertIn(f"cairn replan: {answer['error']}", error)

    def train_on(self, cluster, steps):
        """Training makes this many further steps."""
        at = self.step(cluster)
        wait_for("training goes on", lambda: self.step(cluster) >= at + steps, 60)

    def test_a_proposal_is_offered_once_it_is_approved(self):
        cluster = self.agents("approve")
        code, answer, _ = self.replan(cluster)
        self.assertEqual((code, answer["policy"], answer["proposal"]), (LOST, "approve", None))
        self.assertIn("no trainer asks for its share", answer["nothing"])
        self.refused(cluster, USAGE, "proposal 1: there is none .* none waits", "--approve", "1")
        self.refused(cluster, FAILED, "home placement: .* nothing to go back from", "--back")
        ranks = self.train(cluster, STEPS, *SLOW)

        proposal = self.waiting(cluster, 1)
        self.assertEqual(proposal["micro_batches"], SHARED)
        self.assertEqual([each["rank"] for each in proposal["slow"]], [SLOW_RANK])
        self.assertGreater(proposal["slow"][0]["rate"], 1.5)
        self.assertGreater(proposal["slow"][0]["since_step"], SLOW_FROM - 10)
        self.assertLess(proposal["step_ms"], proposal["current_ms"])
        self.assertLessEqual(proposal["lower_bound_ms"], proposal["step_ms"])
        self.assertEqual((proposal["moved_layers"], proposal["price_ms"]), (0, 0))
        code, shown, _ = run("replan", "--agent", cluster.socket(2))
        self.assertEqual(code, OK)
        self.assertIn("proposal   1 waits for approval", shown)
        self.assertRegex(shown, r"to +micro-batches 6 \| 2")
        self.assertRegex(shown, rf"why +rank {SLOW_RANK} is [0-9.]+ times slow since step \d+")
        self.assertIn("waits for `cairn replan --approve 1`", run_status(cluster))

        # nothing is offered before that, and what only looks like an approval changes nothing
        self.refused(cluster, USAGE, "proposal 9: there is none .* 1 is the one", "--approve", "9")
        code, answer, _ = self.replan(cluster, "--dry-run", "--approve", "1")
        self.assertEqual((code, answer["dry_run"]), (OK, True))
        for words in (("--approve", "x"), ("--approve", "0"), ("--approve", "1", "--back")):
            self.assertEqual(run("replan", *words, "--agent", cluster.socket(0))[0], USAGE)
        self.train_on(cluster, 5)
        self.assertIsNone(self.offer(cluster))
        self.assertEqual(self.changes(cluster), [])

        code, answer, error = self.replan(cluster, "--approve", "1")
        self.assertEqual((code, answer["number"], answer["node"]), (OK, 1, 0), error)
        wait_for("the shares move", lambda: self.changes(cluster), 40)
        self.assertEqual(self.changes(cluster)[0], SHARED)
        wait_for("all have told", lambda: self.offer(cluster)["ranks_taken"] == RANKS, 10)
        self.assertEqual(self.replan(cluster)[0], OK)
        self.refused(cluster, FAILED, "proposal 1: approved .* node 1, .*--back", "--approve", "1")
        self.refused(cluster, FAILED, "proposal 1: approved .* node 1", "--deny", "1", node=3)

        # going home is proposed as well
        home = self.waiting(cluster, 2)
        self.assertGreater(self.step(cluster), SLOW_TO)
        self.assertEqual((home["home"], home["micro_batches"], home["slow"]), (True, HOME, []))
        self.assertEqual(self.changes(cluster), [SHARED])
        self.assertEqual(self.replan(cluster, "--approve", "2", node=0)[0], OK)
        wait_for("the shares go back", lambda: self.changes(cluster)[-1] == HOME, 40)
        told = [(e["why"], e["of_node"], e["user"]) for e in cluster.events("operator", node=2)]
        self.assertIn(("cairn replan --approve 1", 1, os.getuid()), told)
        self.assertIn(("cairn replan --approve 2", 0, os.getuid()), told)
        told = [(e["subject"], e["change"]) for e in cluster.events("placement", node=2)]
        proposed, offered, taken = (1, 1), (1, 2), (1, 3)
        self.assertEqual(told[:3], [proposed, offered, taken])
        self.assertIn((2, 2), told)
        digests = self.ends(cluster, ranks)
        self.assertEqual(self.changes(cluster), [SHARED, HOME])
        self.assertEqual(digests, undisturbed([*SHAPE, "--steps", str(STEPS)]))
        print(f"planned {proposal['current_ms']:.0f} ({SLOW_MS}) and {proposal['step_ms']:.0f} ms")
        self.assertLess(proposal["step_ms"], SHARED_MS * 1.5)

    def test_what_was_denied_is_not_proposed_again(self):
        cluster = self.agents("approve")
        ranks = self.train(cluster, STEPS, *ALWAYS_SLOW)
        proposal = self.waiting(cluster, 1)
        # two operators at once, at two agents: one of them decides
        both = [
            subprocess.Popen(
                [CAIRN, "replan", *words, "1", "--agent", cluster.socket(node)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for node, words in ((2, ["--deny"]), (3, ["--deny"]))
        ]
        said = [operator.communicate(timeout=60 * PATIENCE) for operator in both]
        codes = [operator.returncode for operator in both]
        self.assertEqual(sorted(codes), [OK, FAILED], said)
        winner, loser = codes.index(OK), codes.index(FAILED)
        self.assertIn("proposal 1 is denied", said[winner][0])
        self.assertRegex(said[loser][1], f"proposal 1: denied .* at node {winner + 2}; wait for")
        # it is advised as before, at every agent that may plan, and not proposed
        cluster.kill_agent(0)
        wait_for("another agent plans", lambda: self.replan(cluster)[1].get("node") == 1, 30)
        cluster.start(0)
        self.train_on(cluster, 25)
        code, answer, _ = self.replan(cluster)
        if answer["proposal"]:  # a busy machine has slow ranks of its own
            self.assertFalse(is_same_evidence(answer["proposal"], proposal), answer)
        else:
            self.assertEqual(code, LOST)
            self.assertEqual(answer["denied"]["placements"], 1)
            self.assertIn("denied", answer["nothing"])
        self.assertIn(("denied", winner + 2), [(e["how"], e["node"]) for e in answer["ended"]])
        self.refused(cluster, FAILED, "proposal 1: denied .*; wait for the next", "--approve", "1")
        digests = self.ends(cluster, ranks)
        self.assertEqual(self.changes(cluster), [])
        self.assertEqual(digests, undisturbed([*SHAPE, "--steps", str(STEPS)]))

    def test_a_proposal_that_moves_layers_replaces_one_of_shares(self):
        cluster = self.agents("approve", room=3)
        ranks = self.train(cluster, STEPS, *ALWAYS_SLOW)
        first = self.waiting(cluster, 1)
        self.assertEqual((first["action"], first["layers"]), ("microbatches", [[2, 2], [2, 2]]))
        # nobody decides; what gains more is proposed instead, and agents keep it over a restart
        second = self.waiting(cluster, 2)
        cluster.kill_agent(1)
        cluster.start(1)
        self.assertEqual(self.proposal(cluster)["number"], 2)
        self.assertEqual((second["action"], second["layers"]), ("layers", [[2, 2], [1, 3]]))
        self.assertEqual((second["moved_layers"], second["moved_bytes"]), (1, 1 << 20))
        self.assertEqual(second["price_ms"] // 1000, 1)
        self.assertLess(second["step_ms"], first["step_ms"])
        self.refused(cluster, FAILED, "proposal 1: replaced .* proposal 2, which", "--approve", "1")
        self.assertEqual(self.changes(cluster), [])
        wait_for(
            "the agents hear each other",
            lambda: cluster.status(1).get("nodes_answering") == RANKS,
            30,
        )
        answers = []

        def approve():
            answers.append(run("replan", "--approve", "2", "--agent", cluster.socket(1)))
            return answers[-1][0] == OK

        wait_for("all ranks report again, and commit", approve, 30)
        self.assertIn(
            "proposal 2 is offered to the trainers: micro-batches 5 | 3, layers", answers[-1][1]
        )
        for code, _, error in answers[:-1]:
            self.assertEqual(code, FAILED)
            self.assertRegex(error, "not all ranks report|newest commit")
        wait_for("the layers move", lambda: self.said(cluster, "move", 0), 40)
        digests = self.ends(cluster, ranks)
        moves = [move for rank in range(RANKS) for move in self.said(cluster, "move", rank)]
        self.assertEqual([move["adopted"] for move in moves], [True] * RANKS)
        self.assertEqual(moves[0]["layers"], second["layers"])
        self.assertEqual(digests, undisturbed([*SHAPE, "--steps", str(STEPS)]))

    def test_an_operator_goes_back(self):
        cluster = self.agents("enforce")
        ranks = self.train(cluster, STEPS, *ALWAYS_SLOW)
        wait_for("the shares move", lambda: self.changes(cluster), 60)
        offer = self.offer(cluster)
        self.refused(cluster, DENIED, "plan_policy is enforce", "--approve", "1")
        code, answer, _ = self.replan(cluster, "--dry-run", "--back")
        self.assertEqual((code, answer["number"], answer["dry_run"]), (OK, 2, True))
        code, answer, error = self.replan(cluster, "--back")
        self.assertEqual((code, answer["number"]), (OK, 2), error)
        wait_for("the shares go back", lambda: self.changes(cluster) == [SHARED, HOME], 40)
        self.refused(cluster, FAILED, "home placement: the trainers have it", "--back", node=2)
        self.train_on(cluster, 25)
        digests = self.ends(cluster, ranks)
        if self.offer(cluster)["number"] == 2:
            self.assertEqual(self.changes(cluster), [SHARED, HOME])
        else:
            self.assertFalse(is_same_evidence(self.offer(cluster), offer), self.offer(cluster))
        self.assertEqual(digests, undisturbed([*SHAPE, "--steps", str(STEPS)]))

    def test_an_operator_does_not_wait_and_reads_the_story(self):
        cluster = self.agents("approve")
        ranks = self.train(cluster, STEPS, *ALWAYS_SLOW)
        wait_for("training begins", lambda: self.step(cluster) > 2, 60)
        self.refused(cluster, FAILED, "no other plan gains enough", "--now")
        self.waiting(cluster, 1)
        for words in (
            ("--deny", "1", "--for", "1x"),
            ("--back", "--for", "1h"),
            ("--now", "--back"),
        ):
            self.assertEqual(run("replan", *words, "--agent", cluster.socket(0))[0], USAGE)
        code, answer, error = self.replan(cluster, "--deny", "1", "--for", "1h")
        self.assertEqual((code, answer["number"]), (OK, 1), error)
        self.assertEqual(run("explain", "plan", "1", "--agent", cluster.socket(1))[0], USAGE)
        code, answer, error = self.replan(cluster, "--now", node=2)
        self.assertEqual(code, OK, error)
        number = answer["number"]
        wait_for("the shares move", lambda: self.changes(cluster), 40)
        self.assertEqual(self.changes(cluster)[0], SHARED)
        code, story, error = cairn("explain", "plan", str(number), "--agent", cluster.socket(3))
        self.assertEqual((code, story["number"]), (OK, number), error)
        self.assertEqual((story["decided"], story["decided_node"]), ("approved", 2))
        self.assertEqual([each["rank"] for each in story["slow"]], [SLOW_RANK])
        self.assertLess(story["step_ms"], story["running_ms"])
        self.assertAlmostEqual(story["alternatives"]["microbatches"]["step_ms"], story["step_ms"])

        def fate():
            return cairn("explain", "plan", str(number), "--agent", cluster.socket(1))[1]

        wait_for("its steps are measured", lambda: fate()["fate"] not in ("offered", "taken"), 60)
        self.assertGreater(fate()["taken_wall_ns"], fate()["offered_wall_ns"])
        code, shown, _ = run("explain", "plan", str(number), "--agent", cluster.socket(1))
        self.assertEqual(code, OK)
        self.assertRegex(shown, rf"plan +{number}: micro-batches 6 \| 2")
        self.assertRegex(shown, rf"evidence +rank {SLOW_RANK} was [0-9.]+ times slow")
        digests = self.ends(cluster, ranks)
        self.assertEqual(digests, undisturbed([*SHAPE, "--steps", str(STEPS)]))

    def test_the_agent_that_plans_hangs(self):
        cluster = self.agents("approve")
        ranks = self.train(cluster, STEPS, *ALWAYS_SLOW)
        self.waiting(cluster, 1)
        cluster.agents[0].send_signal(signal.SIGSTOP)
        # the next one decides once the others have missed it
        code, answer, error = self.replan(cluster, "--approve", "1", node=2)
        self.assertEqual((code, (answer or {}).get("node")), (OK, 1), error)
        self.train_on(cluster, 3)
        cluster.agents[0].send_signal(signal.SIGCONT)
        wait_for("the shares move", lambda: self.changes(cluster), 40)
        self.assertEqual(self.changes(cluster)[0], SHARED)
        self.refused(cluster, FAILED, "proposal 1: approved .* node 2", "--approve", "1", node=0)
        digests = self.ends(cluster, ranks)
        self.assertEqual(digests, undisturbed([*SHAPE, "--steps", str(STEPS)]))

    def test_an_agent_that_plans_and_does_not_answer(self):
        cluster = self.agents("approve", dead_after_ms=60000)
        for node in range(1, RANKS):
            wait_for(
                "each agent hears it",
                lambda node=node: cluster.status(node).get("nodes_answering") == RANKS,
                30,
            )
        cluster.agents[0].send_signal(signal.SIGSTOP)
        # until it has heard of node 0, node 1 plans itself
        wait_for("node 1 asks node 0", lambda: self.replan(cluster, "--back")[0] == PEER, 10)
        self.refused(cluster, PEER, "node 0: its agent, which plans, has not answered", "--back")
        cluster.agents[0].send_signal(signal.SIGCONT)
        self.refused(cluster, FAILED, "home placement: the trainers have it", "--back")

    def test_nothing_is_decided_where_the_policy_only_advises(self):
        cluster = self.agents("advise")
        for word in ("--approve", "--deny"):
            self.refused(
                cluster, DENIED, "neither approve nor enforce in the file of node", word, "1"
            )
        code, answer, _ = self.replan(cluster)
        self.assertEqual((code, answer["offer"], answer["home"]), (LOST, None, None))
        self.assertIn("plan_policy is advise", answer["nothing"])
        code, shown, _ = run("replan", "--agent", cluster.socket(0))
        self.assertEqual(code, LOST)
        self.assertIn("nothing    waits: plan_policy is advise", shown)


def is_same_evidence(left, right):
    """As the agents see it: the same ranks, each by nearly the same factor."""
    slow = [{each["rank"]: each["rate"] for each in side["slow"]} for side in (left, right)]
    return slow[0].keys() == slow[1].keys() and all(
        abs(slow[0][rank] - slow[1][rank]) <= 0.25 * max(slow[0][rank], slow[1][rank])
        for rank in slow[0]
    )


def run_status(cluster):
    return run("status", "--agent", cluster.socket(1))[1]


if __name__ == "__main__":
    unittest.main()
