#!/usr/bin/env python3
"""Certificates: who shows one that does not count is refused by name, as caller and as callee, and
sessions of others live; they are renewed under load, authority and all, and no commit is lost; a
running job moves from a key to certificates; a bad file keeps the old one.

HOSTILE_SCALE multiplies the renewals.
"""
import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
from attacker import SCALE, connect, dumped_memory, process_time
from authority import Authority
from harness import (
    CONFIG,
    OK,
    PATIENCE,
    Built,
    Cluster,
    cairn,
    codes,
    free_ports,
    say,
    wait_for,
    write_key,
)

NODES = 3
RENEWALS = int(4 * SCALE)
FLOOD_S = 4
JOB = "cluster"
SPIFFE = "spiffe://example.org/cairn/{job}/{node}"
DNS = "{job}-{node}.cairn.example.org"


def name_of(node, job=JOB, pattern=SPIFFE):
    text = pattern.format(job=job, node=node)
    return ("URI:" if "://" in text else "DNS:") + text


class Certificates(Built):
    def setUp(self):
        self.ports = free_ports(NODES)
        self.cluster = Cluster(NODES, 1, addresses=[f"127.0.0.1:{port}" for port in self.ports])
        self.addCleanup(self.cluster.close)
        self.authority = Authority(self.cluster.path("authority"))

    def install(self, node, pem=None, key=None, authorities=()):
        """Puts files in the places of a node's certificate, private key and authorities."""
        files = {"certificate": pem, "private": key, "ca": authorities or None}
        for name, source in files.items():
            if not source:
                continue
            path = self.cluster.path(f"{name}{node}.pem")
            text = b""
            for each in source if name == "ca" else [source]:
                with open(each, "rb") as file:
                    text += file.read()
            with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.write(text)
            os.replace(path + ".new", path)

    def certify(self, nodes=range(NODES), pattern=SPIFFE, **options):
        """Gives nodes a configuration with certificates, and certificates."""
        for node in nodes:
            self.install(
                node,
                *self.authority.sign([name_of(node, pattern=pattern)]),
                authorities=[self.authority.pem],
            )
            self.cluster.configure(
                node,
                certificate_file=self.cluster.path(f"certificate{node}.pem"),
                private_key_file=self.cluster.path(f"private{node}.pem"),
                ca_file=self.cluster.path(f"ca{node}.pem"),
                identity=f'"{pattern}"',
                protection="authenticate",
                **options,
            )

    def reload(self, node, line="transport: the certificate that is shown"):
        """Tells an agent to read its files again, and waits for a line of its log."""
        marks = self.cluster.log(node).count(line)
        self.cluster.agents[node].send_signal(signal.SIGHUP)
        wait_for(f'agent {node} logs "{line}"', lambda: self.cluster.log(node).count(line) > marks)

    def lost(self, nodes=range(NODES)):
        return sum(self.cluster.log(i).count("transport: lost peer") for i in nodes)

    def all_answer(self):
        wait_for(
            "all hear all",
            lambda: all(
                self.cluster.status(i).get("nodes_answering") == NODES for i in range(NODES)
            ),
        )

    # ---- a stranger that speaks TLS ----

    def claim(self, caller, callee):
        """What a caller says before anything is proved, as anybody on the network can read it: node
        1 is called by agent 0, and its place is the stranger's."""
        if not hasattr(self, "job_id"):
            with socket.create_server(("127.0.0.1", self.ports[1])) as server:
                server.settimeout(10 * PATIENCE)
                peer = server.accept()[0]
                with peer:
                    seen = re.search(rb"cairn1 job=([0-9a-f]{16}) protection=1", peer.recv(4096))
            self.assertTrue(seen, "the claim is not in the first message")
            self.job_id = seen[1].decode()
        return f"cairn1 job={self.job_id} protection=1 from={caller} to={callee}"

    @staticmethod
    def context(protocol, claim, files=None):
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if claim:
            context.set_alpn_protocols([claim])
        if files:
            context.load_cert_chain(*files)
        return context

    def call(self, claim, files=None):
        """Calls agent 0; whether it let the stranger in."""
        context = self.context(ssl.PROTOCOL_TLS_CLIENT, claim, files)
        with socket.create_connection(("127.0.0.1", self.ports[0]), 10 * PATIENCE) as plain:
            try:
                with context.wrap_socket(plain) as secure:
                    secure.settimeout(0.5)
                    return secure.recv(1) != b""
            except TimeoutError:
                return True  # it waits for our first frame
            except (ssl.SSLError, OSError):
                return False

    def refused(self, reason, claim, files=None):
        """A fresh agent 0 refuses the caller and its log names the reason: of the refusals that it
        sees it logs one in ten seconds."""
        self.cluster.kill_agent(0)
        self.cluster.start(0)
        marks = len(self.cluster.log(0))
        self.assertFalse(self.call(claim, files), f"{claim} was let in")
        wait_for(
            reason,
            lambda: re.search(
                rf"refused a connection from 127\.0\.0\.1: .*{reason}", self.cluster.log(0)[marks:]
            ),
        )
        self.assertFalse(self.cluster.ended(0))

    def test_strangers_that_call(self):
        self.certify()
        self.cluster.start(0)
        claim, sign = self.claim(2, 0), self.authority.sign
        right = [name_of(2)]
        other = Authority(self.cluster.path("other"))
        self.assertTrue(self.call(claim, sign(right)), "the right certificate is not let in")
        missed = "made out to .*, and node 2 is spiffe://example.org/cairn/cluster/2"
        for reason, files in (
            (missed, sign([name_of(1)])),
            (missed, sign([name_of(2, job="cluster2")])),
            (missed, sign([name_of(2, pattern="spiffe://example.com/cairn/{job}/{node}")])),
            (missed, sign([name_of(2, pattern=DNS)])),
            (missed, sign(["URI:spiffe://example.org/cairn/cluster/*"])),
            (missed, sign([*right, name_of(1)])),
            ("has no URI and no DNS name", sign([])),
            ("has no URI and no DNS name", sign(["IP:127.0.0.1"])),
            ("does not lead to an authority", other.sign(right)),
            ("has expired at ", sign(right, -7200, -60)),
            ("is not valid before ", sign(right, 3600, 7200)),
            ("is an authority's own", sign(right, ca=True)),
            ("shows no certificate", None),
        ):
            self.refused(reason, claim, files)
        good = sign(right)
        for reason, wrong in (
            ("not an agent of this version", re.sub("job=.", "job=x", claim)),
            ("belongs to another job", claim.replace(self.job_id, "0123456789abcdef")),
            ("another protection", claim.replace("protection=1", "protection=2")),
            ("calls itself node 2 and this node 1", claim.replace("to=0", "to=1")),
            ("calls itself node 0 and", claim.replace("from=2", "from=0")),
            ("calls itself node 3 and", claim.replace("from=2", "from=3")),
            ("not an agent of this version", "http/1.1"),
            ("not an agent of this version", "cairn1 " + "a" * 240),
            ("not an agent of this version", None),
        ):
            self.refused(reason, wrong, good)
        self.refused("made out to .*, and node 1 is", self.claim(1, 0), good)
        self.assertTrue(self.call(claim, good), "the right certificate is no longer let in")

    def test_dns_names(self):
        """The same with names of the other kind; wildcards match nothing."""
        self.certify(pattern=DNS)
        self.cluster.start(0)
        claim, sign = self.claim(2, 0), self.authority.sign
        self.assertTrue(self.call(claim, sign([name_of(2, pattern=DNS)])))
        for names in (
            ["DNS:*.cairn.example.org"],
            [name_of(1, pattern=DNS)],
            [name_of(2, job="cluster2", pattern=DNS)],
            [name_of(2)],
        ):
            self.refused("made out to .*, and node 2 is cluster-2.cairn", claim, sign(names))

    def test_strangers_that_are_called(self):
        """At node 1's address is who has another node's certificate, or one of another job or
        authority."""
        self.certify()
        other = Authority(self.cluster.path("other"))
        for reason, files in (
            ("made out to .*, and node 1 is", self.authority.sign([name_of(2)])),
            ("made out to .*, and node 1 is", self.authority.sign([name_of(1, job="cluster2")])),
            ("has no URI and no DNS name", self.authority.sign([])),
            ("does not lead to an authority", other.sign([name_of(1)])),
            ("has expired at ", self.authority.sign([name_of(1)], -7200, -60)),
        ):
            if self.cluster.agents[0]:
                self.cluster.kill_agent(0)
            with socket.create_server(("127.0.0.1", self.ports[1])) as server:
                server.settimeout(10 * PATIENCE)
                marks = len(self.cluster.log(0))
                self.cluster.start(0)
                claim = self.claim_of(server)
                context = self.context(ssl.PROTOCOL_TLS_SERVER, claim, files)
                peer = server.accept()[0]
                with self.assertRaises((ssl.SSLError, OSError)), peer:
                    peer.settimeout(10 * PATIENCE)
                    context.wrap_socket(peer, server_side=True).recv(1)
                wait_for(
                    reason,
                    lambda reason=reason, marks=marks: re.search(
                        rf"peer node=1 is refused: .*{reason}", self.cluster.log(0)[marks:]
                    ),
                )
            self.assertFalse(self.cluster.ended(0))

    @staticmethod
    def claim_of(server):
        """Reads a caller's claim and hangs up; it calls again."""
        peer = server.accept()[0]
        with peer:
            return re.search(rb"cairn1 job=\w+ protection=1 from=0 to=1", peer.recv(4096))[
                0
            ].decode()

    # ---- agents ----

    def test_agents_with_wrong_certificates(self):
        """Agent 2 of a job of three is refused by name, and the session of the others lives."""
        other = Authority(self.cluster.path("other"))
        sign = self.authority.sign
        both = [self.authority.pem, other.pem]
        self.certify()
        self.cluster.start(0, 1)
        wait_for("two answer", lambda: self.cluster.status(0).get("nodes_answering") == 2)
        for reason, files, authorities, pattern in (
            ("does not lead to an authority", other.sign([name_of(2)]), both, SPIFFE),
            ("has expired at ", sign([name_of(2)], -7200, -60), both, SPIFFE),
            ("is not valid before ", sign([name_of(2)], 3600, 7200), both, SPIFFE),
        ):
            lost = self.lost((0, 1))
            marks = [len(self.cluster.log(i)) for i in range(NODES)]
            self.install(2, *files, authorities=authorities)
            self.cluster.configure(2, identity=f'"{pattern}"')
            self.cluster.start(2)
            wait_for(
                f"node 2 is refused: {reason}",
                lambda reason=reason, marks=marks: any(
                    re.search(rf"node 2 .*{reason}", self.cluster.log(i)[marks[i] :])
                    for i in (0, 1)
                ),
            )
            wait_for(
                "and learns it",
                lambda marks=marks: "(its log says which)" in self.cluster.log(2)[marks[2] :],
            )
            self.assertEqual(self.cluster.status(2).get("nodes_answering"), 1)
            self.assertEqual(self.cluster.status(0).get("nodes_answering"), 2)
            self.assertEqual(self.lost((0, 1)), lost, "a session of others was ended")
            self.assertFalse(any(self.cluster.ended(i) for i in range(NODES)))
            self.cluster.kill_agent(2)
        self.assertIn("peers-denied", codes(self.cluster.status(0)))
        # with the right one it is let in
        self.install(2, *sign([name_of(2)]))
        self.cluster.start(2)
        self.all_answer()

    def test_what_does_not_start(self):
        """What an agent would not be let in with ends its start, and names the file."""
        sign = self.authority.sign
        self.certify([2])
        path = self.cluster.path
        good = sign([name_of(2)])
        cases = (
            (sign([name_of(1)]), "made out to spiffe://example.org/cairn/cluster/1"),
            (sign([name_of(2, job="other")]), "made out to spiffe://example.org/cairn/other/2"),
            (sign([]), "has no URI and no DNS name"),
            ((good[0], sign([name_of(2)])[1]), "is not the private key of the certificate"),
            ((good[1], good[1]), "holds no certificate"),
            ((good[0], good[0]), "holds no private key"),
        )

        def fails(line):
            done = subprocess.run(
                [self.cluster.programs[2], "agent", "--config", path("node2.yaml")],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60 * PATIENCE,
                check=False,
            )
            self.assertIn(done.returncode, (CONFIG, 77), done.stdout)
            self.assertIn(line, done.stdout)
            code, answer, _ = cairn("doctor", "--config", path("node2.yaml"))
            self.assertEqual(code, 3)
            self.assertTrue(any(line in each["what"] for each in answer["findings"]))

        for files, line in cases:
            self.install(2, *files)
            fails(line)
        self.install(2, *good)
        os.chmod(path("private2.pem"), 0o644)
        fails("has mode 0644, so others can use the key")
        os.chmod(path("private2.pem"), 0o600)
        os.chmod(path("ca2.pem"), 0o666)
        fails("others can say who is let in")
        os.chmod(path("ca2.pem"), 0o644)
        self.cluster.configure(2, identity='"spiffe://example.org/cairn/{node}"')
        fails("identity: is ")

    def test_dates_are_shown(self):
        """Status and doctor warn of a certificate that ends soon, and of one that has ended."""
        self.certify()
        self.install(2, *self.authority.sign([name_of(2)], -3600, 300))
        self.cluster.start()
        self.all_answer()
        answer = self.cluster.status(0)
        check = next(each for each in answer["checks"] if each["code"] == "certificate-ends")
        self.assertRegex(check["what"], "1 node .* node 2 in [45] minutes")
        config = self.cluster.path("node2.yaml")
        code, answer, _ = cairn("doctor", "--config", config)
        levels = {each["code"]: each["level"] for each in answer["findings"]}
        self.assertEqual(levels["certificate"], "WARN")
        self.install(2, *self.authority.sign([name_of(2)], -3600, -60))
        code, answer, _ = cairn("doctor", "--config", config)
        levels = {each["code"]: each["level"] for each in answer["findings"]}
        self.assertEqual((code, levels["certificate"]), (3, "CRITICAL"))
        self.install(2, *self.authority.sign([name_of(2)]))
        self.reload(2)
        self.assertNotIn("certificate-ends", codes(self.cluster.status(0)))
        self.assertEqual(cairn("doctor", "--config", config)[0] in (OK, 2), True)

    # ---- changes while a job runs ----

    def restart(self, node):
        self.cluster.kill_agent(node)
        self.cluster.start(node)
        self.all_answer()

    def finish(self, newest):
        """Nothing that was committed is lost."""
        cluster = self.cluster
        newest = cluster.wait_committed(newest)
        self.assertFalse(any(cluster.ended(node) for node in range(NODES)))
        cluster.stop_trainers()
        self.check_restore(cluster, newest)

    def test_renewal_under_load(self):
        """Each time the authority changes, too: trust both, new certificates, trust the new."""
        self.certify()
        cluster = self.cluster.start()
        cluster.train(step_us=5000)
        first = newest = cluster.wait_committed((1, 3))
        for renewal in range(RENEWALS):
            fresh, lost = Authority(cluster.path(f"authority{renewal}")), self.lost()
            both = [self.authority.pem, fresh.pem]
            leaves = [fresh.sign([name_of(node)]) for node in range(NODES)]
            for files, authorities in ((None, both), (leaves, None), (None, [fresh.pem])):
                for node in range(NODES):
                    self.install(node, *(files[node] if files else ()), authorities=authorities)
                    self.reload(node)
                self.assertEqual(self.lost(), lost, "a session did not outlive its certificate")
                if files:
                    newest = cluster.wait_committed(newest)
                    self.restart(2)  # its sessions are new ones, under the new certificates
                    lost = self.lost()
            self.authority = fresh
            newest = cluster.wait_committed(newest)
        self.restart(2)
        say(f"{RENEWALS} renewals while {newest[1] - first[1]} steps were trained and protected")
        self.finish(newest)

    def test_bad_files_keep_the_old(self):
        self.certify()
        self.cluster.start()
        self.all_answer()
        sign, path = self.authority.sign, self.cluster.path
        good = sign([name_of(0)])
        lost = self.lost()
        for files, line in (
            ((good[0], sign([name_of(0)])[1]), "is not the private key"),
            (sign([name_of(1)]), "made out to"),
            (sign([name_of(0)], -7200, -60), "expired at"),
            (sign([name_of(0)], 3600, 7200), "is not valid before"),
            ((path("node0.yaml"), None), "holds no certificate"),
        ):
            self.install(0, *files)
            self.reload(0, "reload: nothing is changed: ")
            self.assertIn(line, self.cluster.log(0).splitlines()[-1])
        self.install(0, *good)
        os.chmod(path("private0.pem"), 0o640)
        self.reload(0, "reload: nothing is changed: ")
        self.assertEqual(self.lost(), lost)
        self.restart(2)  # agent 0 still proves itself, with what it had
        os.chmod(path("private0.pem"), 0o600)
        self.reload(0)
        self.restart(1)

    def test_from_a_key_to_certificates(self):
        """While the job runs: first all get certificates beside the key, then the key goes."""
        cluster = self.cluster
        key = write_key(cluster.path("key"))
        for node in range(NODES):
            cluster.configure(node, key_file=key, protection="authenticate")
        cluster.start()
        cluster.train(step_us=5000)
        newest = cluster.wait_committed((1, 3))
        lost = self.lost()
        for node in range(NODES):
            self.certify([node])
            self.reload(node)
        newest = cluster.wait_committed(newest)
        self.assertEqual(self.lost(), lost)
        self.restart(2)
        lost = self.lost()
        for node in range(NODES):
            cluster.configure(node, key_file='""')
            self.reload(node, "transport: no key is offered or accepted")
            newest = cluster.wait_committed(newest)
        self.assertEqual(self.lost(), lost)
        self.restart(2)
        self.finish(newest)

    def test_no_private_key_in_a_core_file(self):
        """Neither the one in use nor one before it."""
        self.certify()
        self.cluster.start()
        self.all_answer()
        secrets = []
        for _ in range(2):
            files = self.authority.sign([name_of(0)])
            self.install(0, *files)
            self.reload(0)
            self.restart(2)
            text = subprocess.run(
                ["openssl", "pkey", "-in", files[1], "-noout", "-text"],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout
            digits = re.search(r"priv:\n((?:\s+[0-9a-f:]+\n)+)", text)[1]
            number = bytes.fromhex(re.sub(r"[\s:]", "", digits)).rjust(32, b"\0")[-32:]
            with open(files[1], "rb") as file:
                pem = file.read()
            secrets += [number, number[::-1], pem.splitlines()[1]]
        seen = False
        for region in dumped_memory(self.cluster.agents[0].pid):
            seen |= self.cluster.path("node0.yaml").encode() in region
            for place, secret in enumerate(secrets):
                self.assertFalse(secret in region, f"agent 0 shows secret {place}")
        self.assertTrue(seen, "not even the name of its configuration was found")

    def test_flood_of_handshakes(self):
        """A stranger repeats the first message of node 2 as fast as it can. To answer one takes
        agent 0 milliseconds, for it has a long RSA key. Its sessions live, it keeps most of its
        processor, and a restarted node joins."""
        rsa = Authority(self.cluster.path("rsa"), key=("RSA", "rsa_keygen_bits:4096"))
        self.certify()
        both = [self.authority.pem, rsa.pem]
        for node in range(NODES):
            self.install(node, authorities=both)
        self.install(0, *rsa.sign([name_of(0)]))
        self.cluster.start(0)
        claim = self.claim(2, 0)
        self.cluster.start(1, 2)
        self.all_answer()
        lost, answers = self.lost(), ssl.MemoryBIO()
        hello = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            self.context(ssl.PROTOCOL_TLS_CLIENT, claim).wrap_bio(answers, hello).do_handshake()
        first = hello.read()
        child = os.fork()
        if child == 0:
            end = time.monotonic() + FLOOD_S
            while time.monotonic() < end:
                with contextlib.suppress(OSError), connect(self.ports[0], 1) as peer:
                    peer.sendall(first)
                    peer.settimeout(0.01)
                    peer.recv(65536)
            os._exit(0)
        pid = self.cluster.agents[0].pid
        begun, used = time.monotonic(), process_time(pid)
        os.waitpid(child, 0)
        rate = (process_time(pid) - used) / (time.monotonic() - begun)
        say(f"agent 0 used {rate:.2f} of a processor")
        self.assertLess(rate, 0.6)
        self.assertEqual(self.lost(), lost)
        self.restart(2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
