#!/usr/bin/env python3
"""A job whose blocks travel over libfabric, on a network that nobody else reaches: a node is lost
with its memory, the others rebuild what it had, and every byte is restored."""
import unittest

from harness import Built, Cluster, say, text_of, wait_for, write_key

NODES = 4


def with_key(cluster, **options):
    """Gives all nodes one key, and these options."""
    key = write_key(cluster.path("key"))
    for node in range(cluster.nodes):
        cluster.configure(node, key_file=key, network_is_closed="true", **options)


class Fabrics(Built):
    def lose_and_restore(self, provider, protection):
        with Cluster(NODES, 1) as cluster:
            with_key(cluster, provider=provider, protection=protection)
            cluster.start()
            for node in range(NODES):
                self.assertIn("libfabric", text_of(f"/proc/{cluster.agents[node].pid}/maps"))
            cluster.train()
            newest = cluster.wait_committed((1, 3))
            cluster.kill_node(2)
            cluster.stop_trainers()
            newest = max(newest, cluster.committed())
            cluster.start(2)
            cluster.wait_repaired(2)
            self.assertGreater(cluster.rebuilt_blocks(), 0)
            generation, answer = self.check_restore(cluster, newest, 2, node=2)
            cluster.train(resume=True)
            cluster.wait_committed((newest[0], newest[1] + 3))
            for node in range(NODES):
                self.assertNotIn("is damaged", cluster.log(node))
            say(f"{provider}, {protection}: epoch {generation[0]} step {generation[1]} is back")

    def test_authenticated(self):
        self.lose_and_restore("libfabric-tcp", "authenticate")

    def test_unprotected(self):
        self.lose_and_restore("libfabric-tcp", "none")

    def test_the_key_changes_while_the_job_runs(self):
        """As with provider tcp: two keys for a time, then the new one alone."""
        with Cluster(NODES, 1) as cluster:
            with_key(cluster, provider="libfabric-tcp", protection="authenticate")
            cluster.start()
            cluster.train(step_us=20000)
            cluster.wait_committed((1, 3))
            fresh = write_key(cluster.path("fresh"))
            for first, second in (("key", fresh), ("fresh", cluster.path("key")), ("fresh", '""')):
                for node in range(NODES):
                    seen = cluster.log(node).count("reload:")
                    cluster.configure(node, key_file=cluster.path(first), second_key_file=second)
                    cluster.agents[node].send_signal(1)
                    wait_for(
                        f"agent {node} has read its keys",
                        lambda node=node, seen=seen: cluster.log(node).count("reload:") > seen,
                    )
            cluster.kill_agent(1)
            cluster.start(1)
            wait_for(
                "agent 1 has joined", lambda: cluster.status(0).get("nodes_answering") == NODES
            )
            newest = cluster.committed()
            cluster.train(resume=True)
            cluster.wait_committed((newest[0], newest[1] + 3))


if __name__ == "__main__":
    unittest.main(verbosity=2)
