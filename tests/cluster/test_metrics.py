#!/usr/bin/env python3
"""The status of a running job as metrics: printed, and served over HTTP."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import unittest
import urllib.error
import urllib.request

from harness import CAIRN, IO, OK, PEER, ROOT, USAGE, Built, Cluster, run, wait_for

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
DASHBOARD = os.path.join(ROOT, "examples", "deploy", "grafana-dashboard.json")

# Debian's Python has the parsers of the Prometheus project's own client.
PARSE = """
import json, sys
from prometheus_client.{module} import text_string_to_metric_families as parse
print(json.dumps([[f.name, f.type, [[s.name, s.labels, s.value] for s in f.samples]]
                  for f in parse(sys.stdin.read())]))
"""


def parse(text, module):
    done = subprocess.run(
        ["/usr/bin/python3", "-c", PARSE.format(module=module)],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if "ModuleNotFoundError" in done.stderr:
        raise unittest.SkipTest("python3-prometheus-client is not installed")
    assert done.returncode == 0, f"{done.stderr}\n{text}"
    return {family[0]: family for family in json.loads(done.stdout)}


def by_node(families, name):
    return {int(labels["node"]): value for _, labels, value in families[name][2]}


class Metrics(Built):
    def setUp(self):
        self.cluster = Cluster(3, parity=1).start()
        self.addCleanup(self.cluster.close)
        self.agent = ("--agent", self.cluster.socket(0))
        self.cluster.train()
        self.cluster.wait_committed(self.cluster.committed())

    def page(self):
        code, text, error = run("metrics", *self.agent)
        self.assertEqual(code, OK, error)
        return parse(text, "openmetrics.parser")

    def serve(self, port=0):
        server = subprocess.Popen(
            [CAIRN, "metrics", "--listen", str(port), *self.agent],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(server.stderr.close)
        self.end_with_test(server)
        return server, int(re.search(r"127\.0\.0\.1:(\d+)/metrics", server.stderr.readline())[1])

    def test_what_is_printed(self):
        families = self.page()
        self.assertEqual(
            by_node(families, "cairn_node_up"), {0: 1, 1: 1, 2: 1}, families["cairn_node_up"]
        )
        self.assertEqual(by_node(families, "cairn_node_peers"), {0: 2, 1: 2, 2: 2})
        for which in ("sent", "received"):
            name, kind, _ = families[f"cairn_node_{which}_bytes"]
            self.assertEqual(kind, "counter")
            moved = by_node(families, name)
            self.assertTrue(all(value > 65536 for value in moved.values()), moved)
        sent = by_node(families, "cairn_node_sent_bytes")
        for node, blocks in by_node(families, "cairn_node_sent_block_bytes").items():
            self.assertTrue(sent[node] / 2 < blocks < sent[node], (node, blocks, sent[node]))
        self.assertTrue(all(by_node(families, "cairn_node_sent_messages").values()))
        self.assertTrue(all(by_node(families, "cairn_node_disk_free_bytes").values()))
        self.assertGreater(families["cairn_protect_seconds"][2][0][2], 0)
        self.assertEqual(families["cairn_nodes_answering"][2][0][2], 3)
        # what is shown by status is the same in the older format
        code, text, _ = run("metrics", "-o", "prometheus", *self.agent)
        self.assertEqual(code, OK)
        older = parse(text, "parser")
        self.assertEqual(
            {name: family[1] for name, family in older.items()},
            {name: family[1] for name, family in families.items()},
        )
        self.cluster.kill_node(2)
        wait_for("the loss shows", lambda: by_node(self.page(), "cairn_node_up")[2] == 0)
        self.assertEqual(set(by_node(self.page(), "cairn_node_peers")), {0, 1})

    def test_the_dashboard_asks_for_what_there_is(self):
        families = {
            name + ("_total" if kind == "counter" else "") for name, kind, _ in self.page().values()
        }
        with open(DASHBOARD) as file:
            text = file.read()
        asked = set(re.findall(r"cairn_[a-z_]+", text))
        json.loads(text)
        self.assertGreater(len(asked), 20)
        self.assertEqual(asked - families, set())

    def test_what_is_served(self):
        server, port = self.serve()
        url = f"http://127.0.0.1:{port}/metrics"

        def get(path="/metrics", method="GET", body=None, **headers):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            try:
                connection.request(method, path, body=body, headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.getheader("Content-Type"), answer.read().decode()
            finally:
                connection.close()

        with urllib.request.urlopen(url) as answer:
            self.assertEqual(answer.headers["Content-Type"], PROMETHEUS)
            self.assertIn("cairn_node_up", parse(answer.read().decode(), "parser"))
        status, kind, text = get(Accept=f"{OPENMETRICS},text/plain;q=0.5")
        self.assertEqual((status, kind), (200, OPENMETRICS))
        self.assertIn("cairn_node_up", parse(text, "openmetrics.parser"))
        self.assertEqual(get(method="HEAD")[0::2], (200, ""))
        self.assertEqual(get("/")[0], 404)
        self.assertEqual(get("/metrics/../../etc/passwd")[0], 404)
        self.assertEqual(get(method="POST", body="x" * 100000)[0], 405)
        self.assertEqual(get(method="DELETE")[0], 405)

        # requests that never end, and garbage, keep nobody else waiting
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
        for i, each in enumerate(idle):
            self.addCleanup(each.close)
            each.sendall((b"GET /metrics HTTP/1.1\r\nHost: ", os.urandom(4000))[i % 2])
        self.assertEqual(get()[0], 200)

        # it listens on the loopback address alone, and says when a port is taken
        with open(f"/proc/{server.pid}/net/tcp") as file:
            listening = [line.split()[1] for line in file if line.split()[3] == "0A"]
        self.assertIn(f"0100007F:{port:04X}", listening)
        self.assertNotIn(f"00000000:{port:04X}", listening)
        self.assertEqual(run("metrics", "--listen", str(port), *self.agent)[0], IO)

        self.cluster.kill_agent(0)
        self.assertEqual(get()[0], 503)
        self.cluster.start(0)
        wait_for("it is served again", lambda: get()[0] == 200)
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(20), 0)

    def test_bad_input(self):
        for port in ("-1", "65536", "x", "", "80 "):
            self.assertEqual(run("metrics", "--listen", port, *self.agent)[0], USAGE, port)
        self.assertEqual(run("metrics", "-o", "table", *self.agent)[0], USAGE)
        self.assertEqual(run("metrics", "-o", "prometheus", "--listen", "0")[0], USAGE)
        nobody = self.cluster.path("nobody.sock")
        self.assertEqual(run("metrics", "--agent", nobody)[0], PEER)


if __name__ == "__main__":
    unittest.main(verbosity=2)
